// Hugging Face's config.json, in both directions: the keys of each arch beside ours, and what a file may ask for that this program does not
// compute. The values themselves are checked by the config's own table, and our section "attention" is that table's section.
#include "hf_config.h"

#include <cjson/cJSON.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "json_text.h"
#include "message.h"
#include "strict_json.h"

enum { CONFIG_LIMIT = 1 << 20 };        // bytes; real ones have a few thousand

// One key of theirs, and ours of the section "model". initial: what the reference implementation takes where the key is absent or null, as
// JSON; NULL: it must be there; "": our own default, which is theirs (head_dim = hidden_size / num_attention_heads, ...).
typedef struct Translation {
    const char *theirs, *ours;
    enum { SIZE, NUMBER, FLAG } kind;
    const char *initial;
} Translation;

static const Translation gpt2_keys[] = {
    { "vocab_size", "vocab_size", SIZE, NULL },
    { "n_embd", "hidden_size", SIZE, NULL },
    { "n_layer", "num_hidden_layers", SIZE, NULL },
    { "n_head", "num_attention_heads", SIZE, NULL },
    { "n_positions", "max_position_embeddings", SIZE, "1024" },
    { "n_inner", "intermediate_size", SIZE, "" },
    { "layer_norm_epsilon", "norm_eps", NUMBER, "1e-5" },
    { "initializer_range", "initializer_range", NUMBER, "0.02" },
    { "tie_word_embeddings", "tie_word_embeddings", FLAG, "true" },
    { 0 },
};

#define ROTARY_KEYS(POSITIONS) \
    { "vocab_size", "vocab_size", SIZE, NULL }, \
    { "hidden_size", "hidden_size", SIZE, NULL }, \
    { "intermediate_size", "intermediate_size", SIZE, NULL }, \
    { "num_hidden_layers", "num_hidden_layers", SIZE, NULL }, \
    { "num_attention_heads", "num_attention_heads", SIZE, NULL }, \
    { "num_key_value_heads", "num_key_value_heads", SIZE, "" }, \
    { "head_dim", "head_dim", SIZE, "" }, \
    { "max_position_embeddings", "max_position_embeddings", SIZE, POSITIONS }, \
    { "rms_norm_eps", "norm_eps", NUMBER, "1e-6" }, \
    { "initializer_range", "initializer_range", NUMBER, "0.02" }, \
    { "tie_word_embeddings", "tie_word_embeddings", FLAG, "false" }, \
    { 0 }
static const Translation llama_keys[] = { ROTARY_KEYS("2048") };
static const Translation qwen2_keys[] = { ROTARY_KEYS("32768") };

// A key that must be absent, null, or one of these values: nothing else is computed here.
typedef struct Demand {
    const char *key, *value, *synonym;
} Demand;

static const Demand gpt2_demands[] = {
    { "activation_function", "\"gelu_new\"", "\"gelu_pytorch_tanh\"" },
    { "scale_attn_weights", "true", NULL },
    { "scale_attn_by_inverse_layer_idx", "false", NULL },
    { "add_cross_attention", "false", NULL },
    { "quantization_config", "null", NULL },
    { 0 },
};
static const Demand llama_demands[] = {
    { "hidden_act", "\"silu\"", "\"swish\"" },
    { "attention_bias", "false", NULL },
    { "mlp_bias", "false", NULL },
    { "quantization_config", "null", NULL },
    { 0 },
};
static const Demand qwen2_demands[] = {
    { "hidden_act", "\"silu\"", "\"swish\"" },
    { "quantization_config", "null", NULL },
    { 0 },
};

static const struct ArchRow {
    const char *architecture;           // the class that stock transformers loads
    const char *own;                    // the classes of our modeling file: this and "Config", this and "ForCausalLM"
    const Translation *keys;
    const Demand *demands;
} arch_rows[] = {
    [ARCH_GPT2] = { "GPT2LMHeadModel", "SelectableGPT2", gpt2_keys, gpt2_demands },
    [ARCH_LLAMA] = { "LlamaForCausalLM", "SelectableLlama", llama_keys, llama_demands },
    [ARCH_QWEN2] = { "Qwen2ForCausalLM", "SelectableQwen2", qwen2_keys, qwen2_demands },
};
enum { ARCHS = sizeof arch_rows / sizeof *arch_rows };

// Before the arch in the model_type of a model that only our modeling file computes, so that nothing takes it for the stock one.
#define OWN_PREFIX "train_gpt_"

// The item, or NULL where the key is absent or null.
static const cJSON *given(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item;
}

// ================================================================ reading ================================================================

static int read_arch(const char *path, const cJSON *theirs, Arch *arch) {
    char printable[PRINTABLE_SIZE];
    const cJSON *type = given(theirs, "model_type");
    if (!type)
        return set_error(STATUS_BAD_INPUT, "%s: model_type: is missing; gpt2, llama or qwen2 was wanted (a run's models lie in its "
                         "checkpoints/)", path);
    const char *name = cJSON_IsString(type) ? type->valuestring : "";
    if (!strncmp(name, OWN_PREFIX, strlen(OWN_PREFIX))) name += strlen(OWN_PREFIX);
    for (int i = 0; i < ARCHS; i++) {
        if (strcmp(name, arch_name((Arch)i))) continue;
        *arch = (Arch)i;
        return 0;
    }
    return set_error(STATUS_BAD_INPUT, "%s: model_type: %s is not a model this program knows (gpt2, llama, qwen2)", path,
                     make_printable(printable, cJSON_IsString(type) ? type->valuestring : "the value"));
}

static int check_demands(const char *path, const cJSON *theirs, const Demand *demand) {
    for (; demand->key; demand++) {
        const cJSON *item = given(theirs, demand->key);
        if (!item) continue;
        char *text = json_text_print(item, false), printable[PRINTABLE_SIZE];
        if (!text) return set_error(STATUS_FAILED, "%s: out of memory", path);
        bool fits = !strcmp(text, demand->value) || (demand->synonym && !strcmp(text, demand->synonym));
        if (!fits) {
            set_error(STATUS_BAD_INPUT, "%s: %s: %s is not what this program computes; it computes %s", path, demand->key,
                      make_printable(printable, text), demand->value);
        }
        cJSON_free(text);
        if (!fits) return STATUS_BAD_INPUT;
    }
    return 0;
}

// qwen2 may ask for a sliding window from some layer on, by layer_types or, where that is absent, by two other keys.
static int check_windows(const char *path, const cJSON *theirs) {
    const cJSON *types = given(theirs, "layer_types"), *type, *use = given(theirs, "use_sliding_window");
    const cJSON *full = given(theirs, "max_window_layers"), *layers = given(theirs, "num_hidden_layers");
    cJSON_ArrayForEach(type, types) {
        if (cJSON_IsString(type) && !strcmp(type->valuestring, "full_attention")) continue;
        return set_error(STATUS_BAD_INPUT, "%s: layer_types: only full_attention is computed here", path);
    }
    const double usual_full_layers = 28;
    bool windows = !types && cJSON_IsTrue(use) && layers->valuedouble > (cJSON_IsNumber(full) ? full->valuedouble : usual_full_layers);
    return windows ? set_error(STATUS_BAD_INPUT, "%s: use_sliding_window: a sliding window is not computed here", path) : 0;
}

static bool fits_kind(const cJSON *item, const Translation *key) {
    if (key->kind == FLAG) return cJSON_IsBool(item);
    if (key->kind == NUMBER) return cJSON_IsNumber(item);
    return json_text_is_whole(item) && item->valuedouble >= 1 && item->valuedouble <= INT_MAX;
}

static int translate(const char *path, const cJSON *theirs, const Translation *key, cJSON *model) {
    static const char *const wanted[] = { [SIZE] = "a whole number from 1", [NUMBER] = "a number", [FLAG] = "true or false" };
    const cJSON *item = given(theirs, key->theirs);
    if (!item && !key->initial) return set_error(STATUS_BAD_INPUT, "%s: %s: is missing", path, key->theirs);
    if (item && !fits_kind(item, key)) return set_error(STATUS_BAD_INPUT, "%s: %s: %s was wanted", path, key->theirs, wanted[key->kind]);
    if (!item && !*key->initial) return 0;
    cJSON *copy = item ? cJSON_Duplicate(item, 1) : cJSON_Parse(key->initial);
    if (copy && cJSON_AddItemToObject(model, key->ours, copy)) return 0;
    return set_error(STATUS_FAILED, "%s: out of memory", path);
}

// rope_theta and rope_scaling, or rope_parameters, in which newer files keep both.
static int translate_rope(const char *path, const cJSON *theirs, cJSON *model) {
    const cJSON *parameters = given(theirs, "rope_scaling") ? given(theirs, "rope_scaling") : given(theirs, "rope_parameters");
    const cJSON *theta = given(parameters, "rope_theta") ? given(parameters, "rope_theta") : given(theirs, "rope_theta");
    if (parameters && !cJSON_IsObject(parameters)) {
        return set_error(STATUS_BAD_INPUT, "%s: %s: an object or null was wanted", path, parameters->string);
    }
    cJSON *scaling = parameters ? cJSON_Duplicate(parameters, 1) : cJSON_CreateNull();
    cJSON *copy = theta ? cJSON_Duplicate(theta, 1) : cJSON_CreateNumber(10000);
    cJSON_DeleteItemFromObjectCaseSensitive(scaling, "rope_theta");
    if (given(scaling, "rope_type")) cJSON_DeleteItemFromObjectCaseSensitive(scaling, "type");         // the older name, kept beside it
    bool empty = cJSON_IsObject(scaling) && !scaling->child;
    if (copy && scaling && cJSON_AddItemToObject(model, "rope_theta", copy) && cJSON_AddItemToObject(model, "rope_scaling", scaling)) {
        if (empty) cJSON_DeleteItemFromObjectCaseSensitive(model, "rope_scaling");
        return 0;
    }
    return set_error(STATUS_FAILED, "%s: out of memory", path);
}

// Their file as a config of ours: sections "model", "attention", and just enough of "train" that nothing else is in its way.
static int translate_all(const char *path, const cJSON *theirs, cJSON *ours) {
    Arch arch = ARCH_GPT2;
    int status = read_arch(path, theirs, &arch);
    cJSON *model = cJSON_AddObjectToObject(ours, "model");
    if (!status && !cJSON_AddStringToObject(model, "arch", arch_name(arch))) status = set_error(STATUS_FAILED, "%s: out of memory", path);
    for (const Translation *key = status ? NULL : arch_rows[arch].keys; key && key->theirs && !status; key++) {
        status = translate(path, theirs, key, model);
    }
    if (!status) status = check_demands(path, theirs, arch_rows[arch].demands);
    if (!status && arch == ARCH_QWEN2) status = check_windows(path, theirs);
    if (!status && arch != ARCH_GPT2) status = translate_rope(path, theirs, model);
    const cJSON *attention = given(theirs, "attention"), *positions = cJSON_GetObjectItemCaseSensitive(model, "max_position_embeddings");
    cJSON *train = cJSON_AddObjectToObject(ours, "train");
    if (!status && !(cJSON_AddNumberToObject(train, "steps", 0) && cJSON_AddNumberToObject(train, "batch_size", 1) &&
                     cJSON_AddNumberToObject(train, "sequence_length", positions->valuedouble))) {
        status = set_error(STATUS_FAILED, "%s: out of memory", path);
    }
    cJSON *copy = attention ? cJSON_Duplicate(attention, 1) : cJSON_CreateObject();
    if (copy && cJSON_AddItemToObject(ours, "attention", copy)) return status;
    return set_error(STATUS_FAILED, "%s: out of memory", path);
}

// Where N is the length that the model was made for, no default can stand in for it.
static int check_attention(const char *path, const cJSON *theirs, const AttentionConfig *attention) {
    bool needed = attention->type == ATTENTION_AFFINE && attention->affine_n == AFFINE_N_SEQUENCE;
    if (!needed || given(given(theirs, "attention"), "affine_length")) return 0;
    return set_error(STATUS_BAD_INPUT, "%s: attention.affine_length: is missing, and affine attention depends on it", path);
}

int hf_config_read(const char *path, ModelConfig *model, AttentionConfig *attention) {
    cJSON *theirs, *ours = cJSON_CreateObject();
    Config *config = calloc(1, sizeof *config);
    int status = strict_json_read(&theirs, path, CONFIG_LIMIT);
    if (!status && (!config || !ours)) status = set_error(STATUS_FAILED, "%s: out of memory", path);
    if (!status && !cJSON_IsObject(theirs)) status = set_error(STATUS_BAD_INPUT, "%s: is not a JSON object", path);
    if (!status) status = translate_all(path, theirs, ours);
    if (!status) status = config_from_json(config, ours, path);
    if (!status) status = check_attention(path, theirs, &config->attention);
    if (!status) {
        *model = config->model;
        *attention = config->attention;
    }
    cJSON_Delete(theirs);
    cJSON_Delete(ours);
    free(config);
    return status;
}

// ================================================================ writing ================================================================

// A real number, with a point even where it is whole: transformers complains of a factor 8 that is no float.
static void add_real(cJSON *json, const char *name, double value) {
    char text[JSON_TEXT_NUMBER_SIZE + 2];
    json_text_of_number(text, value);
    if (!strpbrk(text, ".en")) strcat(text, ".0");
    cJSON_AddRawToObject(json, name, text);
}

static void add_gpt2(cJSON *json, const ModelConfig *m) {
    cJSON_AddNumberToObject(json, "n_embd", m->C);
    cJSON_AddNumberToObject(json, "n_layer", m->L);
    cJSON_AddNumberToObject(json, "n_head", m->H);
    cJSON_AddNumberToObject(json, "n_positions", m->max_position_embeddings);
    cJSON_AddNumberToObject(json, "n_inner", m->intermediate_size);
    cJSON_AddStringToObject(json, "activation_function", "gelu_new");
    add_real(json, "layer_norm_epsilon", m->norm_eps);
    cJSON_AddTrueToObject(json, "scale_attn_weights");
    // their defaults drop out 10 %: this program does not
    add_real(json, "resid_pdrop", 0);
    add_real(json, "embd_pdrop", 0);
    add_real(json, "attn_pdrop", 0);
}

static void add_rope(cJSON *json, const ModelConfig *m) {
    const RopeScaling *rope = &m->rope_scaling;
    add_real(json, "rope_theta", m->rope_theta);
    if (rope->rope_type == ROPE_SCALING_NONE) {
        cJSON_AddNullToObject(json, "rope_scaling");
        return;
    }
    cJSON *scaling = cJSON_AddObjectToObject(json, "rope_scaling");
    cJSON_AddStringToObject(scaling, "rope_type", "llama3");
    add_real(scaling, "factor", rope->factor);
    add_real(scaling, "low_freq_factor", rope->low_freq_factor);
    add_real(scaling, "high_freq_factor", rope->high_freq_factor);
    cJSON_AddNumberToObject(scaling, "original_max_position_embeddings", rope->original_max_position_embeddings);
}

static void add_rotary(cJSON *json, const ModelConfig *m) {
    cJSON_AddNumberToObject(json, "hidden_size", m->C);
    cJSON_AddNumberToObject(json, "intermediate_size", m->intermediate_size);
    cJSON_AddNumberToObject(json, "num_hidden_layers", m->L);
    cJSON_AddNumberToObject(json, "num_attention_heads", m->H);
    cJSON_AddNumberToObject(json, "num_key_value_heads", m->K);
    cJSON_AddNumberToObject(json, "head_dim", m->D);
    cJSON_AddNumberToObject(json, "max_position_embeddings", m->max_position_embeddings);
    cJSON_AddStringToObject(json, "hidden_act", "silu");
    add_real(json, "rms_norm_eps", m->norm_eps);
    add_real(json, "attention_dropout", 0);
    add_rope(json, m);
    if (m->arch == ARCH_LLAMA) {
        cJSON_AddFalseToObject(json, "attention_bias");
        cJSON_AddFalseToObject(json, "mlp_bias");
    } else {
        cJSON_AddFalseToObject(json, "use_sliding_window");
        cJSON_AddNumberToObject(json, "max_window_layers", m->L);
    }
}

// The section "attention" as the config's table writes it; NULL when out of memory.
static cJSON *attention_section(const AttentionConfig *attention) {
    Config *config = malloc(sizeof *config);
    if (!config) return NULL;
    config_defaults(config);
    config->attention = *attention;
    cJSON *whole = config_to_json(config), *section = cJSON_DetachItemFromObjectCaseSensitive(whole, "attention");
    cJSON_Delete(whole);
    free(config);
    return section;
}

bool hf_config_is_stock(const AttentionConfig *attention) {
    return attention->type == ATTENTION_BASELINE && attention->gate == GATE_NONE;
}

// The class that computes the model, and for ours where it lies.
static void add_class(cJSON *json, const ModelConfig *m, bool stock) {
    const struct ArchRow *row = &arch_rows[m->arch];
    char config[64], model[64], model_type[64], at[64 + sizeof HF_MODELING_MODULE];
    snprintf(config, sizeof config, "%sConfig", row->own);
    snprintf(model, sizeof model, "%sForCausalLM", row->own);
    snprintf(model_type, sizeof model_type, "%s%s", stock ? "" : OWN_PREFIX, arch_name(m->arch));
    cJSON *architectures = cJSON_AddArrayToObject(json, "architectures");
    cJSON_AddItemToArray(architectures, cJSON_CreateString(stock ? row->architecture : model));
    cJSON_AddStringToObject(json, "model_type", model_type);
    if (stock) return;
    cJSON *auto_map = cJSON_AddObjectToObject(json, "auto_map");
    snprintf(at, sizeof at, HF_MODELING_MODULE ".%s", config);
    cJSON_AddStringToObject(auto_map, "AutoConfig", at);
    snprintf(at, sizeof at, HF_MODELING_MODULE ".%s", model);
    cJSON_AddStringToObject(auto_map, "AutoModelForCausalLM", at);
}

cJSON *hf_config_to_json(const ModelConfig *m, const AttentionConfig *attention) {
    cJSON *json = cJSON_CreateObject();
    add_class(json, m, hf_config_is_stock(attention));
    cJSON_AddNumberToObject(json, "vocab_size", m->V);
    if (m->arch == ARCH_GPT2) add_gpt2(json, m);
    else add_rotary(json, m);
    add_real(json, "initializer_range", m->initializer_range);
    cJSON_AddBoolToObject(json, "tie_word_embeddings", m->tie_word_embeddings);
    cJSON_AddTrueToObject(json, "use_cache");
    // their defaults are ids of another vocabulary, at which text would end
    cJSON_AddNullToObject(json, "bos_token_id");
    cJSON_AddNullToObject(json, "eos_token_id");
    cJSON_AddStringToObject(json, "torch_dtype", "float32");
    cJSON *section = attention_section(attention);
    if (section && cJSON_AddItemToObject(json, "attention", section)) return json;
    cJSON_Delete(section);
    cJSON_Delete(json);
    return NULL;
}
