// The table of configuration keys, and all that comes from it: reading files and flags, defaults, checks, writing, help, docs/config.md.
#include "config.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "error.h"
#include "hf_config.h"
#include "json_text.h"
#include "message.h"
#include "strict_json.h"

// ---- the table ----

typedef enum { TYPE_INT, TYPE_LONG, TYPE_UINT64, TYPE_DOUBLE, TYPE_BOOL, TYPE_CHOICE, TYPE_TEXT, TYPE_EXTENDS, TYPE_ROPE_SCALING } Type;

#define SMALLEST 1e-37                      // what a float holds with all its bits: smaller ones would be 0 to a device, and 0/0 a NaN
enum { OPEN_LOW = 1, OPEN_HIGH = 2 };                           // that end of the range does not belong to it

typedef struct Key {
    const char *name;                   // section.key
    Type type;
    size_t offset;                      // in Config
    const char *initial;                // the default, as written behind --section.key=; from a = on: how it follows from other keys
    double low, high;
    int open;
    const char *const *choices;         // names of an enum's values from 0, NULL at the end
    const char *unit;
    const char *meaning;
} Key;

static const char *const arch_names[] = {"gpt2", "llama", "qwen2", NULL};
static const char *const rope_type_names[] = {"default", "llama3", NULL};   // Hugging Face calls plain positions "default"
static const char *const attention_type_names[] = {"baseline", "off_by_one", "sink", "affine", NULL};
static const char *const gate_names[] = {"none", "headwise", "elementwise", NULL};
static const char *const affine_activation_names[] = {"linear_clipping", "sigmoid", NULL};
static const char *const affine_n_names[] = {"sequence", "prefix", NULL};
static const char *const schedule_names[] = {"constant", "wsd", "linear", "cosine", NULL};
static const char *const dtype_names[] = {"fp32", "bf16", NULL};
static const char *const recompute_names[] = {"none", "attention", "block", NULL};
_Static_assert(sizeof(Arch) == sizeof(int) && sizeof(AttentionType) == sizeof(int), "the table stores a choice as an int");

// Limits that keep every product of two sizes within 64 bits, far beyond any machine; check_sizes guards the larger products.
#define MAX_COUNT 9007199254740992.0                            // 2^53: a JSON number, a double, holds every integer up to here
#define MAX_SIZE 16777216                                       // 2^24: vocabulary, positions, sequences
#define MAX_HIDDEN 1048576
#define MAX_HEADS 65536
#define MAX_LAYERS 4096
#define MAX_THREADS 4096

#define MEMBER(field) (((Config *)0)->field)
#define INTEGER_TYPE(field) _Generic(MEMBER(field), int: TYPE_INT, long: TYPE_LONG, uint64_t: TYPE_UINT64)
#define NUMBER_TYPE(field) _Generic(MEMBER(field), double: TYPE_DOUBLE)
#define NAMED_INTEGER(name, field, initial, low, high, unit, meaning) \
    {name, INTEGER_TYPE(field), offsetof(Config, field), initial, low, high, 0, NULL, unit, meaning}
#define INTEGER(field, initial, low, high, unit, meaning) NAMED_INTEGER(#field, field, initial, low, high, unit, meaning)
#define NUMBER(field, initial, low, high, open, meaning) \
    {#field, NUMBER_TYPE(field), offsetof(Config, field), initial, low, high, open, NULL, "", meaning}
#define TEXT(field, initial, meaning) {#field, TYPE_TEXT, offsetof(Config, field), initial, 0, 0, 0, NULL, "", meaning}
#define FLAG(field, initial, meaning) {#field, TYPE_BOOL, offsetof(Config, field), initial, 0, 0, 0, NULL, "", meaning}
#define CHOICE(field, initial, choices, meaning) {#field, TYPE_CHOICE, offsetof(Config, field), initial, 0, 0, 0, choices, "", meaning}

static const Key keys[] = {
    {"extends", TYPE_EXTENDS, 0, "null", 0, 0, 0, NULL, "", "a config file that this one overlays, relative to this one; read first"},
    TEXT(run_dir, "null", "the directory a run is written to; must be given to train"),
    INTEGER(seed, "1337", 0, MAX_COUNT, "", "decides every random number: initial weights, order of the data, samples"),

    CHOICE(model.arch, "gpt2", arch_names,
           "gpt2: learned positions, LayerNorm, GELU, biases; llama: rotary positions, RMSNorm, SwiGLU, grouped queries, no biases; "
           "qwen2: llama with biases on q, k and v"),
    NAMED_INTEGER("model.vocab_size", model.V, "256", 2, MAX_SIZE, "tokens", "size of the vocabulary; 256 for bytes"),
    NAMED_INTEGER("model.hidden_size", model.C, "128", 1, MAX_HIDDEN, "", "width of the residual stream"),
    NAMED_INTEGER("model.num_hidden_layers", model.L, "4", 1, MAX_LAYERS, "layers", "transformer blocks"),
    NAMED_INTEGER("model.num_attention_heads", model.H, "4", 1, MAX_HEADS, "heads", "query heads of a layer"),
    NAMED_INTEGER("model.num_key_value_heads", model.K, "=model.num_attention_heads", 1, MAX_HEADS, "heads",
                  "key and value heads of a layer; divides num_attention_heads; the same number for gpt2"),
    NAMED_INTEGER("model.head_dim", model.D, "=model.hidden_size / model.num_attention_heads", 1, MAX_HEADS, "",
                  "width of a head; times num_attention_heads it is hidden_size for gpt2; even for llama and qwen2"),
    INTEGER(model.intermediate_size, "=4 x model.hidden_size for gpt2; must be given for llama and qwen2", 1, MAX_SIZE, "",
            "width of the MLP's hidden layer"),
    INTEGER(model.max_position_embeddings, "=train.sequence_length", 1, MAX_SIZE, "tokens",
            "longest sequence the model can see; rows of gpt2's position table"),
    FLAG(model.tie_word_embeddings, "=true for gpt2, false for llama and qwen2",
         "whether the classifier's weight is the token embedding's"),
    NUMBER(model.rope_theta, "10000", 0, INFINITY, OPEN_LOW, "base of the rotary positions' wavelengths; llama and qwen2 only"),
    {"model.rope_scaling", TYPE_ROPE_SCALING, 0, "null", 0, 0, 0, NULL, "",
     "stretched rotary positions, with Hugging Face's keys; llama and qwen2 only"},
    CHOICE(model.rope_scaling.rope_type, "default", rope_type_names,
           "llama3: as Llama 3.1 and later, the other keys must be given; default: plain, as null; `type` is another name of this key"),
    NUMBER(model.rope_scaling.factor, "=none", 1, INFINITY, 0, "how much long wavelengths are stretched (Llama 3.2: 32)"),
    NUMBER(model.rope_scaling.low_freq_factor, "=none", 0, INFINITY, OPEN_LOW,
           "wavelengths over original_max_position_embeddings / this are stretched fully (Llama 3.2: 1)"),
    NUMBER(model.rope_scaling.high_freq_factor, "=none", 0, INFINITY, OPEN_LOW,
           "wavelengths under original_max_position_embeddings / this stay as they are (Llama 3.2: 4); above low_freq_factor"),
    INTEGER(model.rope_scaling.original_max_position_embeddings, "=none", 1, MAX_SIZE, "tokens",
            "sequence length that the unstretched positions were made for (Llama 3.2: 8192)"),
    NUMBER(model.norm_eps, "1e-5", SMALLEST, INFINITY, OPEN_HIGH, "added to the variance (gpt2) or mean square inside the norms"),
    NUMBER(model.initializer_range, "0.02", 0, INFINITY, OPEN_LOW,
           "standard deviation of initial weights; gpt2's residual projections have it divided by sqrt(2 num_hidden_layers)"),
    {"model.init_from", TYPE_TEXT, offsetof(Config, init_from), "null", 0, 0, 0, NULL, "",
     "a Hugging Face directory or a checkpoint whose weights the run begins from; model's other keys have its values unless given, and "
     "must agree; null: random weights"},

    CHOICE(attention.type, "baseline", attention_type_names,
           "baseline: softmax; off_by_one: softmax with 1 added to the denominator; sink: with exp of a learned scalar per head added; "
           "affine: alpha softmax + beta (arXiv 2602.23057)"),
    CHOICE(attention.gate, "none", gate_names, "sigmoid gate on the attention's output: one value a head, or one an element"),
    CHOICE(attention.affine_activation, "linear_clipping", affine_activation_names,
           "from the projection x to alpha: clip(0.1 x + 0.5, 0, 1), or sigmoid(x); affine only"),
    NUMBER(attention.affine_rho, "0.9", 0, 1, 0, "decay per step of alpha's moving average; affine only"),
    CHOICE(attention.affine_n, "sequence", affine_n_names,
           "N in beta = (alpha_ma - alpha) / N: sequence: affine_length; prefix: the query's number of causal keys; affine only"),
    INTEGER(attention.affine_length, "=train.sequence_length", 1, MAX_SIZE, "tokens",
            "N of affine_n = sequence, a constant of the model; affine only"),

    TEXT(data.train, "null", "token shards to train on, a path or a pattern with * and ?; must be given to train"),
    TEXT(data.val, "null", "token shards to evaluate on, a path or a pattern; null: no evaluation"),
    FLAG(data.shuffle, "true", "whether each epoch takes the training windows in a new order, by the seed; false: in file order"),
    TEXT(data.tokenizer, "null", "tokenizer.json or its directory; null: the one beside the training shards"),

    INTEGER(train.steps, "500", 0, MAX_COUNT, "steps", "optimizer steps; 0 saves the initial weights"),
    INTEGER(train.batch_size, "16", 1, MAX_SIZE, "sequences", "sequences of an optimizer step, over all processes and micro-batches"),
    INTEGER(train.micro_batch_size, "=train.batch_size", 1, MAX_SIZE, "sequences",
            "sequences a process computes at once; divides batch_size; smaller takes less memory"),
    INTEGER(train.sequence_length, "128", 1, MAX_SIZE, "tokens", "length of a training sequence, T"),

    NUMBER(optimizer.lr, "0.001", 0, INFINITY, 0, "AdamW's learning rate at its highest"),
    NUMBER(optimizer.beta1, "0.9", 0, 1, OPEN_HIGH, "decay of AdamW's first moment"),
    NUMBER(optimizer.beta2, "0.95", 0, 1, OPEN_HIGH, "decay of AdamW's second moment"),
    NUMBER(optimizer.eps, "1e-8", SMALLEST, INFINITY, OPEN_HIGH, "added to the root of AdamW's second moment"),
    NUMBER(optimizer.weight_decay, "0.1", 0, INFINITY, 0, "decoupled decay of matrices and embeddings; vectors have none"),
    NUMBER(optimizer.grad_clip, "1", 0, INFINITY, 0, "largest global gradient norm, larger ones are scaled down; 0: no clipping"),

    CHOICE(schedule.type, "wsd", schedule_names,
           "learning rate after the warm-up: constant; wsd: constant, then down as 1 - sqrt; linear, cosine: down all the way"),
    INTEGER(schedule.warmup_steps, "100", 0, MAX_COUNT, "steps", "steps over which the learning rate rises linearly"),
    NUMBER(schedule.decay_fraction, "0.2", 0, 1, 0, "part of train.steps over which wsd decays"),
    NUMBER(schedule.min_lr_ratio, "0", 0, 1, 0, "lowest learning rate over optimizer.lr"),

    TEXT(distill.teacher, "null", "checkpoint directory of a teacher to learn from; null: none"),
    NUMBER(distill.weight, "1", 0, 1, 0, "weight of the teacher's soft cross-entropy; the data's has 1 - weight"),
    NUMBER(distill.temperature, "1", 1e-3, 1e3, 0, "divides both models' logits in the soft cross-entropy"),

    INTEGER(eval.every, "50", 0, MAX_COUNT, "steps", "steps between evaluations; 0: none"),
    INTEGER(eval.batches, "20", 1, MAX_SIZE, "batches", "batches of train.batch_size sequences in an evaluation, from the first window on"),
    INTEGER(checkpoint.every, "250", 0, MAX_COUNT, "steps", "steps between checkpoints; 0: only the last step's"),
    INTEGER(checkpoint.keep, "2", 1, MAX_SIZE, "checkpoints", "how many of the newest checkpoints stay"),
    INTEGER(sample.every, "0", 0, MAX_COUNT, "steps", "steps between samples in the log; 0: none"),
    INTEGER(sample.tokens, "64", 1, MAX_SIZE, "tokens", "length of a sample"),
    TEXT(sample.prompt, "", "text that a sample goes on from"),
    NUMBER(sample.temperature, "1", 0, INFINITY, OPEN_HIGH, "divides the logits before a token is drawn; 0: the likeliest token"),
    INTEGER(sample.top_k, "0", 0, MAX_SIZE, "tokens", "draw from the k likeliest tokens only; 1: always the likeliest; 0: from all"),
    NUMBER(sample.top_p, "1", 0, 1, OPEN_LOW, "draw from the likeliest tokens that together have this probability; 1: from all"),
    INTEGER(diagnostics.every, "10", 0, MAX_COUNT, "steps", "steps between attention diagnostics in the log; 0: none"),

    INTEGER(compute.threads, "0", 0, MAX_THREADS, "threads",
            "threads; 0: as many as OpenMP takes (OMP_NUM_THREADS, else the cores); changes no result"),
    CHOICE(compute.dtype, "fp32", dtype_names, "precision of the matrix products; bf16 keeps weights, sums and optimizer in fp32"),
    CHOICE(compute.recompute, "none", recompute_names,
           "what backward computes again instead of keeping it: nothing, the attention, or whole blocks; changes no result"),
};
enum { KEY_COUNT = sizeof keys / sizeof keys[0] };

typedef struct Section {
    const char *name, *meaning;
    bool resumable;                     // whether --resume may change its keys
} Section;

static const Section sections[] = {
    {"", "The run", false},
    {"model", "The architecture; keys as in Hugging Face's config.json", false},
    {"model.rope_scaling", "", false},
    {"attention", "What the attention computes", false},
    {"data", "Where tokens come from", false},
    {"train", "How long and on how much", false},
    {"optimizer", "AdamW", false},
    {"schedule", "The learning rate over the run", false},
    {"distill", "Learning from a teacher", false},
    {"eval", "Validation loss during the run", true},
    {"checkpoint", "Saving", true},
    {"sample", "Text generated during the run", true},
    {"diagnostics", "What the attention does, in the log", true},
    {"compute", "How it is computed", true},
};
enum { SECTION_COUNT = sizeof sections / sizeof sections[0] };

static bool is_derived(const Key *key) { return key->initial[0] == '='; }
static bool is_nullable(const Key *key) { return is_derived(key) || strcmp(key->initial, "null") == 0; }
static bool is_numeric(const Key *key) { return key->type <= TYPE_DOUBLE; }

static int find_key(const char *name) {
    if (strcmp(name, "model.rope_scaling.type") == 0) name = "model.rope_scaling.rope_type";       // Hugging Face's older name
    for (int k = 0; k < KEY_COUNT; k++) {
        if (strcmp(keys[k].name, name) == 0) return k;
    }
    return -1;
}

// NULL where there is none of that name.
static const Section *find_section(const char *name) {
    for (int i = 1; i < SECTION_COUNT; i++) {
        if (strcmp(sections[i].name, name) == 0) return &sections[i];
    }
    return NULL;
}

// The section a key stands in.
static const Section *section_of(const Key *key) {
    char name[64];
    const char *dot = strrchr(key->name, '.');
    if (!dot) return &sections[0];
    snprintf(name, sizeof name, "%.*s", (int)(dot - key->name), key->name);
    return find_section(name);
}

static bool is_rope_scaling(const Key *key) { return strncmp(key->name, "model.rope_scaling.", strlen("model.rope_scaling.")) == 0; }

static bool is_resumable(const Key *key) { return section_of(key)->resumable || strcmp(key->name, "train.steps") == 0; }

static const char *last_part(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

const char *config_nearest_key(const char *name, int *distance) {
    const char *nearest = NULL;
    *distance = 0;
    if (find_key(name) >= 0) return keys[find_key(name)].name;
    if (find_section(name)) return find_section(name)->name;
    for (int i = 0; i < KEY_COUNT + SECTION_COUNT - 1; i++) {
        const char *known = i < KEY_COUNT ? keys[i].name : sections[i - KEY_COUNT + 1].name;
        // The right key in the wrong section is one mistake.
        int whole = edit_distance(name, known), last = edit_distance(last_part(name), last_part(known)) + 1;
        int d = whole < last ? whole : last;
        if (!strncmp(name, known, strlen(name))) d = 1;         // cut short: no letter is wrong
        if (nearest && d >= *distance) continue;
        nearest = known;
        *distance = d;
    }
    return nearest;
}

// ---- values ----

// What a file or a flag says a key is.
typedef struct Value {
    enum { VALUE_NULL, VALUE_BOOL, VALUE_NUMBER, VALUE_TEXT, VALUE_OBJECT, VALUE_ARRAY } kind;
    double number;                      // also 0 or 1 of a VALUE_BOOL
    const char *text;
} Value;

static void write_limit(char *text, size_t size, double limit) {
    int exponent;
    if (limit >= 65536 && frexp(limit, &exponent) == 0.5) snprintf(text, size, "2^%d", exponent - 1);
    else snprintf(text, size, "%.15g", limit);
}

// What a key may be: "an integer from 1 to 2^24".
static const char *describe_wanted(char text[256], const Key *key) {
    const char *or_null = is_nullable(key) ? " or null" : "";
    char low[32], high[32];
    write_limit(low, sizeof low, key->low);
    write_limit(high, sizeof high, key->high);
    size_t n = 0;
    switch (key->type) {
    case TYPE_TEXT: snprintf(text, 256, "text%s", or_null); break;
    case TYPE_EXTENDS: snprintf(text, 256, "a path or null"); break;
    case TYPE_ROPE_SCALING: snprintf(text, 256, "an object or null"); break;
    case TYPE_BOOL: snprintf(text, 256, "%s", is_nullable(key) ? "true, false or null" : "true or false"); break;
    case TYPE_CHOICE:
        for (int i = 0; key->choices[i]; i++) n += (size_t)snprintf(text + n, 256 - n, "%s%s", i ? ", " : "one of ", key->choices[i]);
        break;
    case TYPE_DOUBLE:
        if (isinf(key->high)) snprintf(text, 256, "a number %s %s%s", key->open & OPEN_LOW ? "above" : "of at least", low, or_null);
        else if (key->open & OPEN_LOW) snprintf(text, 256, "a number above %s and at most %s%s", low, high, or_null);
        else if (key->open & OPEN_HIGH) snprintf(text, 256, "a number of at least %s and below %s%s", low, high, or_null);
        else snprintf(text, 256, "a number from %s to %s%s", low, high, or_null);
        break;
    default: snprintf(text, 256, "an integer from %s to %s%s", low, high, or_null); break;
    }
    return text;
}

static const char *describe_found(char text[256], const Value *value) {
    char number[JSON_TEXT_NUMBER_SIZE], printable[PRINTABLE_SIZE];
    switch (value->kind) {
    case VALUE_NULL: return "null";
    case VALUE_BOOL: return value->number ? "true" : "false";
    case VALUE_OBJECT: return "an object";
    case VALUE_ARRAY: return "an array";
    case VALUE_NUMBER:
        json_text_of_number(number, value->number);
        snprintf(text, 256, "%s", number);
        break;
    case VALUE_TEXT: snprintf(text, 256, "the text \"%s\"", make_printable(printable, value->text)); break;
    }
    return text;
}

static int mismatch(const Key *key, const Value *value) {
    char wanted[256], found[256];
    return set_error(STATUS_BAD_INPUT, "wanted %s, found %s", describe_wanted(wanted, key), describe_found(found, value));
}

static bool in_range(const Key *key, double x) {
    if (!(x >= key->low && x <= key->high) || isinf(x)) return false;
    if ((key->open & OPEN_LOW && x == key->low) || (key->open & OPEN_HIGH && x == key->high)) return false;
    return key->type == TYPE_DOUBLE || x == floor(x);
}

static void store_number(Config *config, const Key *key, double x) {
    char *field = (char *)config + key->offset;
    switch (key->type) {
    case TYPE_INT: *(int *)field = (int)x; break;
    case TYPE_LONG: *(long *)field = (long)x; break;
    case TYPE_UINT64: *(uint64_t *)field = (uint64_t)x; break;
    case TYPE_DOUBLE: *(double *)field = x + 0.0; break;        // + 0.0: there is one zero
    case TYPE_BOOL: *(bool *)field = x != 0; break;
    default: memcpy(field, &(int){(int)x}, sizeof(int)); break; // a choice
    }
}

static double load_number(const Config *config, const Key *key) {
    const char *field = (const char *)config + key->offset;
    int choice;
    switch (key->type) {
    case TYPE_INT: return *(const int *)field;
    case TYPE_LONG: return (double)*(const long *)field;
    case TYPE_UINT64: return (double)*(const uint64_t *)field;
    case TYPE_DOUBLE: return *(const double *)field;
    case TYPE_BOOL: return *(const bool *)field;
    default: memcpy(&choice, field, sizeof choice); return choice;
    }
}

static int store_text(Config *config, const Key *key, const Value *value) {
    char *field = (char *)config + key->offset;
    if (value->kind == VALUE_NULL && is_nullable(key)) {
        memset(field, 0, PATH_SIZE);
        return STATUS_OK;
    }
    if (value->kind != VALUE_TEXT) return mismatch(key, value);
    const size_t length = strlen(value->text);
    if (length == 0 && is_nullable(key)) return set_error(STATUS_BAD_INPUT, "is empty; null means none");
    if (length >= PATH_SIZE) return set_error(STATUS_BAD_INPUT, "is %zu bytes long; at most %d fit", length, PATH_SIZE - 1);
    if (!is_utf8(value->text, length)) return set_error(STATUS_BAD_INPUT, "is not UTF-8 text");
    memset(field, 0, PATH_SIZE);                                // all of it, so that equal configs are equal bytes
    memcpy(field, value->text, length);
    return STATUS_OK;
}

// config's field of the key = the value. Errors say what was wanted and found, not the key.
static int store(Config *config, const Key *key, const Value *value) {
    if (key->type == TYPE_TEXT) return store_text(config, key, value);
    if (is_numeric(key)) {
        if (value->kind != VALUE_NUMBER || !in_range(key, value->number)) return mismatch(key, value);
        store_number(config, key, value->number);
        return STATUS_OK;
    }
    if (key->type == TYPE_BOOL) {
        if (value->kind != VALUE_BOOL) return mismatch(key, value);
        store_number(config, key, value->number);
        return STATUS_OK;
    }
    for (int i = 0; key->type == TYPE_CHOICE && value->kind == VALUE_TEXT && key->choices[i]; i++) {
        if (strcmp(key->choices[i], value->text) != 0) continue;
        store_number(config, key, i);
        return STATUS_OK;
    }
    return mismatch(key, value);
}

// false: not a number.
static bool number_of_item(double *x, const cJSON *item) {
    if (cJSON_IsRaw(item) && item->valuestring && strict_json_is_number(item->valuestring))         // made by item_of_number
        return strict_json_number(x, item->valuestring) == STATUS_OK;
    *x = item->valuedouble;
    return cJSON_IsNumber(item);
}

static int value_of_item(Value *value, const cJSON *item) {
    *value = (Value){.kind = VALUE_NULL};
    if (cJSON_IsString(item)) *value = (Value){VALUE_TEXT, 0, item->valuestring};
    else if (cJSON_IsBool(item)) *value = (Value){VALUE_BOOL, cJSON_IsTrue(item), NULL};
    else if (cJSON_IsObject(item)) value->kind = VALUE_OBJECT;
    else if (cJSON_IsArray(item)) value->kind = VALUE_ARRAY;
    else if (!cJSON_IsNull(item)) {
        value->kind = VALUE_NUMBER;
        if (!number_of_item(&value->number, item)) return set_error(STATUS_BAD_INPUT, "is no number that JSON knows");
    }
    return STATUS_OK;
}

// The same of what stands behind --key=: text needs no quotes there.
static int value_of_text(Value *value, const Key *key, const char *text) {
    *value = (Value){VALUE_TEXT, 0, text};
    if (is_nullable(key) && strcmp(text, "null") == 0) value->kind = VALUE_NULL;
    else if (key->type == TYPE_BOOL && (strcmp(text, "true") == 0 || strcmp(text, "false") == 0))
        *value = (Value){VALUE_BOOL, text[0] == 't', NULL};
    else if (is_numeric(key) && strict_json_is_number(text)) {
        value->kind = VALUE_NUMBER;
        return strict_json_number(&value->number, text);
    }
    return STATUS_OK;
}

int config_set(Config *config, const char *key, const char *text) {
    const int k = find_key(key);
    if (k < 0 || keys[k].type >= TYPE_EXTENDS) return set_error(STATUS_BAD_INPUT, "%s is no key that holds a value", key);
    Value value;
    int status = value_of_text(&value, &keys[k], text);
    return status ? status : store(config, &keys[k], &value);
}

// ---- reading ----

enum { EXTENDS_DEPTH = 16, FILE_LIMIT = 16 << 20 };

// Where a key's value came from: order counts up, 0 for a default.
typedef struct Source {
    const char *file;
    const Override *flag;
    int order;
} Source;

typedef struct Reader {
    Config config;
    const char *name;                   // begins messages about defaults
    bool given[KEY_COUNT];              // false: the default stands
    Source source[KEY_COUNT];
    int order;
    int file_count;                     // files being read, each extended by the one before
    char files[EXTENDS_DEPTH][PATH_SIZE];
    struct stat identities[EXTENDS_DEPTH];
} Reader;

// Puts before the kept message where the trouble lies: "--key=value: ", or "file: key: ".
static int blame(int status, const Source *source, const char *key) {
    char printable[PRINTABLE_SIZE], name[PRINTABLE_SIZE];
    make_printable(name, *key ? key : "\"\"");
    if (!source->flag) return prefix_error(status, "%s: %s: ", source->file, name);
    if (strcmp(source->flag->key, key) != 0) prefix_error(status, "%s: ", name);
    make_printable(name, source->flag->key);
    return prefix_error(status, "--%s=%s: ", name, make_printable(printable, source->flag->value));
}

static int unknown_key(const char *name) {
    int distance;
    const char *nearest = config_nearest_key(name, &distance);
    return set_error(STATUS_BAD_INPUT, "unknown key; the nearest is %s", nearest);
}

static void start(Reader *r, const char *name) {
    memset(r, 0, sizeof *r);
    r->name = name;
    for (int k = 0; k < KEY_COUNT; k++) {
        Value value;
        if (keys[k].type >= TYPE_EXTENDS || is_derived(&keys[k])) continue;
        // The table would contradict itself.
        if (value_of_text(&value, &keys[k], keys[k].initial) || store(&r->config, &keys[k], &value)) abort();
    }
}

static void clear_rope_scaling(Reader *r, const Source *source) {
    memset(&r->config.model.rope_scaling, 0, sizeof r->config.model.rope_scaling);
    for (int k = 0; k < KEY_COUNT; k++) {
        if (!is_rope_scaling(&keys[k])) continue;
        r->given[k] = false;
        r->source[k] = *source;
    }
}

static int set_key(Reader *r, int k, const Value *value, const Source *source) {
    const Key *key = &keys[k];
    if (key->type == TYPE_ROPE_SCALING && value->kind == VALUE_NULL) {
        clear_rope_scaling(r, source);
        return STATUS_OK;
    }
    r->given[k] = !(value->kind == VALUE_NULL && is_derived(key));
    if (r->given[k]) {
        int status = store(&r->config, key, value);
        if (status) return blame(status, source, key->name);
    } else if (is_rope_scaling(key)) {
        store_number(&r->config, key, 0);                       // absent; the others are derived at the end
    }
    r->source[k] = *source;
    return STATUS_OK;
}

// The members of an object that stands for the section of that name.
static int read_members(Reader *r, const cJSON *object, const char *section, const char *file, const Override *flag) {
    const int first = r->order + 1;
    for (const cJSON *member = object->child; member; member = member->next) {
        char name[256];
        snprintf(name, sizeof name, "%s%s%s", section, *section ? "." : "", member->string);
        const Source source = {file, flag, ++r->order};
        if (strchr(member->string, '.'))
            return blame(set_error(STATUS_BAD_INPUT, "a key in a file has no dot; sections are objects: {\"section\": {\"key\": ...}}"),
                         &source, name);
        if (cJSON_IsObject(member) && find_section(name)) {
            int status = read_members(r, member, name, file, flag);
            if (status) return status;
            continue;
        }
        Value value;
        const int k = find_key(name);
        if (value_of_item(&value, member)) return blame(STATUS_BAD_INPUT, &source, name);
        if (k >= 0 && keys[k].type == TYPE_EXTENDS) continue;   // read_file has been there
        if (k >= 0 && r->source[k].order >= first)              // as "type" and as "rope_type"
            return blame(set_error(STATUS_BAD_INPUT, "given twice"), &source, keys[k].name);
        if (k < 0 && find_section(name)) {
            char found[256];
            return blame(set_error(STATUS_BAD_INPUT, "wanted an object, found %s", describe_found(found, &value)), &source, name);
        }
        int status = k < 0 ? blame(unknown_key(name), &source, name) : set_key(r, k, &value, &source);
        if (status) return status;
    }
    return STATUS_OK;
}

static int read_top(Reader *r, const cJSON *json, const char *file) {
    Value value;
    char found[256];
    if (value_of_item(&value, json) || value.kind != VALUE_OBJECT)
        return set_error(STATUS_BAD_INPUT, "%s: wanted an object with sections, found %s", file, describe_found(found, &value));
    return read_members(r, json, "", file, NULL);
}

// base = the path that a file's extends means: relative to the file.
static int resolve(char base[PATH_SIZE], const char *file, const char *extends) {
    const char *slash = extends[0] == '/' ? NULL : strrchr(file, '/');
    const size_t directory = slash ? (size_t)(slash - file) + 1 : 0, length = directory + strlen(extends);
    if (length >= PATH_SIZE) return set_error(STATUS_BAD_INPUT, "the path is %zu bytes long; at most %d fit", length, PATH_SIZE - 1);
    memcpy(base, file, directory);
    strcpy(base + directory, extends);
    return STATUS_OK;
}

// Makes room for the file that the last one extends, if it can be that.
static int push_base(Reader *r, const char *extends) {
    if (r->file_count == EXTENDS_DEPTH) return set_error(STATUS_BAD_INPUT, "a chain of more than %d files", EXTENDS_DEPTH);
    char *base = r->files[r->file_count];
    struct stat *identity = &r->identities[r->file_count];
    int status = resolve(base, r->files[r->file_count - 1], extends);
    if (status) return status;
    if (stat(base, identity)) return set_error(STATUS_BAD_INPUT, "%s: cannot be opened: %s", base, strerror(errno));
    for (int i = 0; i < r->file_count; i++) {
        if (r->identities[i].st_dev == identity->st_dev && r->identities[i].st_ino == identity->st_ino)
            return set_error(STATUS_BAD_INPUT, "%s is being read already: the files extend each other in a cycle", base);
    }
    r->file_count++;
    return STATUS_OK;
}

// Reads the last file of the chain over what it extends.
static int read_file(Reader *r) {
    const char *file = r->files[r->file_count - 1];
    cJSON *json;
    int status = strict_json_read(&json, file, FILE_LIMIT);
    if (status) return status;
    const cJSON *extends = cJSON_IsObject(json) ? cJSON_GetObjectItemCaseSensitive(json, "extends") : NULL;
    if (extends && !cJSON_IsNull(extends)) {
        const Source source = {file, NULL, 0};
        Value value;
        if (cJSON_IsString(extends) && extends->valuestring[0]) status = push_base(r, extends->valuestring);
        else if (!(status = value_of_item(&value, extends))) status = mismatch(&keys[find_key("extends")], &value);
        if (status) blame(status, &source, "extends");
        else status = read_file(r);
    }
    if (!status) status = read_top(r, json, file);
    cJSON_Delete(json);
    return status;
}

static int read_override(Reader *r, const Override *flag) {
    const Source source = {NULL, flag, ++r->order};
    const int k = find_key(flag->key);
    Value value;
    if (k < 0 && find_section(flag->key))
        return blame(set_error(STATUS_BAD_INPUT, "is a section; give its keys, as in --%s.key=value", flag->key), &source, flag->key);
    if (k < 0) return blame(unknown_key(flag->key), &source, flag->key);
    if (keys[k].type == TYPE_EXTENDS) return blame(set_error(STATUS_BAD_INPUT, "only a file can extend another"), &source, flag->key);
    if (r->source[k].flag && find_key(r->source[k].flag->key) == k)
        return blame(set_error(STATUS_BAD_INPUT, "given twice"), &source, flag->key);
    if (keys[k].type == TYPE_ROPE_SCALING && flag->value[0] == '{') {
        cJSON *json;
        int status = strict_json_parse(&json, flag->value, strlen(flag->value));
        if (status) return blame(status, &source, flag->key);
        status = read_members(r, json, flag->key, NULL, flag);
        cJSON_Delete(json);
        return status;
    }
    int status = value_of_text(&value, &keys[k], flag->value);
    return status ? blame(status, &source, flag->key) : set_key(r, k, &value, &source);
}

// ---- relations between keys ----

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

// An error about the first of the involved keys, blamed on the file or flag that set the one that was set last.
static int refuse(const Reader *r, const char *const *involved, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int refuse(const Reader *r, const char *const *involved, const char *format, ...) {
    char reason[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    Source last = {r->name, NULL, 0};
    for (int i = 0; involved[i]; i++) {
        const int k = find_key(involved[i]);
        if (r->source[k].order > last.order) last = r->source[k];
    }
    return blame(set_error(STATUS_BAD_INPUT, "%s", reason), &last, involved[0]);
}

// ---- model.init_from ----

// What may differ from the weights that a run begins from: what only new weights depend on, and how far rotary positions are taken.
static bool is_free_to_differ(const Config *theirs, const Key *key) {
    return !strcmp(key->name, "model.initializer_range") ||
           (!strcmp(key->name, "model.max_position_embeddings") && theirs->model.arch != ARCH_GPT2);
}

static const char *describe_number(char text[JSON_TEXT_NUMBER_SIZE], const Key *key, double x) {
    if (key->type == TYPE_BOOL) return x != 0 ? "true" : "false";
    if (key->type == TYPE_CHOICE) return key->choices[(int)x];
    json_text_of_number(text, x);
    return text;
}

// Takes one key of theirs where ours is not given, else compares.
static int take_key(Reader *r, const Config *theirs, int k) {
    const Key *key = &keys[k];
    const double x = load_number(theirs, key), ours = load_number(&r->config, key);
    // a rope_scaling of null is given, and has no keys that are
    if (!r->given[k] && !(is_rope_scaling(key) && r->source[k].order)) {
        store_number(&r->config, key, x);
        r->given[k] = true;
        return STATUS_OK;
    }
    if (x == ours || is_free_to_differ(theirs, key)) return STATUS_OK;
    char found[JSON_TEXT_NUMBER_SIZE], wanted[JSON_TEXT_NUMBER_SIZE];
    return refuse(r, KEYS(key->name, "model.init_from"), "%s is not that of the weights in %s (%s)", describe_number(found, key, ours),
                  r->config.init_from, describe_number(wanted, key, x));
}

// The shape of the weights that the run begins from; and where both attentions are affine, the keys of theirs that are not given, so that
// the function goes on as it was.
static int take_from_directory(Reader *r) {
    char path[PATH_SIZE + 16];
    Config *theirs = malloc(sizeof *theirs);
    if (!theirs) return set_error(STATUS_FAILED, "out of memory");
    config_defaults(theirs);
    snprintf(path, sizeof path, "%s/config.json", r->config.init_from);
    int status = hf_config_read(path, &theirs->model, &theirs->attention);
    if (status) blame(status, &r->source[find_key("model.init_from")], "model.init_from");
    const bool affine = theirs->attention.type == ATTENTION_AFFINE && r->config.attention.type == ATTENTION_AFFINE;
    for (int k = 0; k < KEY_COUNT && !status; k++) {
        const bool number = is_numeric(&keys[k]) || keys[k].type == TYPE_BOOL || keys[k].type == TYPE_CHOICE;
        if (number && !strncmp(keys[k].name, "model.", 6)) status = take_key(r, theirs, k);
        if (number && affine && !r->given[k] && !strncmp(keys[k].name, "attention.affine_", 17)) status = take_key(r, theirs, k);
    }
    free(theirs);
    return status;
}

static void derive_number(Reader *r, const char *name, double x) {
    const int k = find_key(name);
    if (!r->given[k]) store_number(&r->config, &keys[k], x);
}

// Fills in the keys that follow from others where they are not given.
static int derive(Reader *r) {
    ModelConfig *m = &r->config.model;
    const int T = r->config.train.sequence_length;
    if (!r->given[find_key("model.head_dim")] && m->C % m->H)
        return refuse(r, KEYS("model.hidden_size", "model.num_attention_heads"), "%d is not a multiple of model.num_attention_heads (%d)%s",
                      m->C, m->H, m->arch == ARCH_GPT2 ? "" : "; or give model.head_dim");
    if (!r->given[find_key("model.intermediate_size")] && m->arch != ARCH_GPT2)
        return refuse(r, KEYS("model.intermediate_size", "model.arch"),
                      "must be given for model.arch %s (Llama 2's is 8/3 of hidden_size, rounded up)", arch_name(m->arch));
    derive_number(r, "model.num_key_value_heads", m->H);
    derive_number(r, "model.head_dim", m->C / m->H);
    derive_number(r, "model.intermediate_size", 4.0 * m->C);
    derive_number(r, "model.max_position_embeddings", T);
    derive_number(r, "model.tie_word_embeddings", m->arch == ARCH_GPT2);
    derive_number(r, "attention.affine_length", T);
    derive_number(r, "train.micro_batch_size", r->config.train.batch_size);
    return STATUS_OK;
}

// Every value within its range: derived ones too, and those of a Config that no reader made.
static int check_ranges(const Reader *r) {
    const bool scaled = r->config.model.rope_scaling.rope_type != ROPE_SCALING_NONE;
    for (int k = 0; k < KEY_COUNT; k++) {
        const Key *key = &keys[k];
        if (!is_numeric(key) && key->type != TYPE_CHOICE) continue;
        const Value value = {VALUE_NUMBER, load_number(&r->config, key), NULL};
        if (is_numeric(key) && is_rope_scaling(key)) {
            const char *const *involved = KEYS(key->name, "model.rope_scaling.rope_type");
            if (!scaled && value.number == 0) continue;
            if (!scaled) return refuse(r, involved, "means nothing without model.rope_scaling.rope_type llama3");
            if (value.number == 0) return refuse(r, involved, "must be given with model.rope_scaling.rope_type llama3");
        }
        int choices = 0;
        while (key->type == TYPE_CHOICE && key->choices[choices]) choices++;
        if (is_numeric(key) ? in_range(key, value.number) : value.number >= 0 && value.number < choices) continue;
        return blame(mismatch(key, &value), &(Source){r->name, NULL, 0}, key->name);
    }
    return STATUS_OK;
}

static int check_model(const Reader *r) {
    const ModelConfig *m = &r->config.model;
    const RopeScaling *rope = &m->rope_scaling;
    const int T = r->config.train.sequence_length;
    if (m->arch == ARCH_GPT2 && m->K != m->H)
        return refuse(r, KEYS("model.num_key_value_heads", "model.num_attention_heads", "model.arch"),
                      "%d is not model.num_attention_heads (%d), as model.arch gpt2 needs", m->K, m->H);
    if (m->H % m->K)
        return refuse(r, KEYS("model.num_attention_heads", "model.num_key_value_heads"),
                      "%d is not a multiple of model.num_key_value_heads (%d)", m->H, m->K);
    if (m->arch == ARCH_GPT2 && (int64_t)m->H * m->D != m->C)
        return refuse(r, KEYS("model.head_dim", "model.num_attention_heads", "model.hidden_size", "model.arch"),
                      "%d times model.num_attention_heads (%d) is not model.hidden_size (%d), as model.arch gpt2 needs", m->D, m->H, m->C);
    if (m->arch != ARCH_GPT2 && m->D % 2)
        return refuse(r, KEYS("model.head_dim", "model.hidden_size", "model.num_attention_heads", "model.arch"),
                      "%d is odd: the rotary positions of model.arch %s turn pairs", m->D, arch_name(m->arch));
    if (m->arch == ARCH_GPT2 && rope->rope_type != ROPE_SCALING_NONE)
        return refuse(r, KEYS("model.rope_scaling.rope_type", "model.arch"), "model.arch gpt2 has no rotary positions to scale");
    if (rope->rope_type != ROPE_SCALING_NONE && !(rope->low_freq_factor < rope->high_freq_factor))
        return refuse(r, KEYS("model.rope_scaling.low_freq_factor", "model.rope_scaling.high_freq_factor"),
                      "%g is not below model.rope_scaling.high_freq_factor (%g)", rope->low_freq_factor, rope->high_freq_factor);
    if (T > m->max_position_embeddings)
        return refuse(r, KEYS("train.sequence_length", "model.max_position_embeddings"),
                      "%d is more than model.max_position_embeddings (%d)", T, m->max_position_embeddings);
    return STATUS_OK;
}

// Sizes that would overflow an int, or that no memory could hold: later arithmetic on sizes need not fear to overflow.
static int check_sizes(const Reader *r) {
    const Config *c = &r->config;
    const ModelConfig *m = &c->model;
    const double C = m->C, heads = (double)m->H * m->D, T = c->train.sequence_length, rows = c->train.micro_batch_size * T;
    const double gate = c->attention.gate == GATE_ELEMENTWISE ? heads : m->H, width = heads + 2.0 * m->K * m->D + gate + m->H;
    if (width > 1 << 30)
        return refuse(r, KEYS("model.num_attention_heads", "model.num_key_value_heads", "model.head_dim", "attention.gate"),
                      "with model.head_dim %d an attention projection has %.0f columns; at most 2^30", m->D, width);
    if (rows > INT32_MAX)
        return refuse(r, KEYS("train.micro_batch_size", "train.sequence_length"),
                      "times train.sequence_length that is %.0f tokens at once; at most 2^31 - 1", rows);
    const double parameters = m->L * C * (width + heads + 3.0 * m->intermediate_size) + C * (2.0 * m->V + m->max_position_embeddings);
    if (parameters > 0x1p44)
        return refuse(r, KEYS("model.hidden_size", "model.num_hidden_layers", "model.intermediate_size", "model.vocab_size"),
                      "the model's sizes make about %.2g parameters; at most 2^44", parameters);
    const double activations = rows * m->L * (width + heads + 8 * C + 4.0 * m->intermediate_size);
    if (activations > 0x1p50)
        return refuse(r, KEYS("train.micro_batch_size", "train.sequence_length", "model.hidden_size", "model.num_hidden_layers"),
                      "the sizes of model and batch make about %.2g activations; at most 2^50", activations);
    if ((double)c->train.steps * c->train.batch_size * T > MAX_COUNT)
        return refuse(r, KEYS("train.steps", "train.batch_size", "train.sequence_length"),
                      "times batch_size (%d) times sequence_length (%.0f) is over 2^53 tokens", c->train.batch_size, T);
    return STATUS_OK;
}

static int check(const Reader *r) {
    int status = check_ranges(r);
    if (!status) status = check_model(r);
    if (!status) status = check_sizes(r);
    if (!status && r->config.train.batch_size % r->config.train.micro_batch_size)
        status = refuse(r, KEYS("train.batch_size", "train.micro_batch_size"), "%d is not a multiple of train.micro_batch_size (%d)",
                        r->config.train.batch_size, r->config.train.micro_batch_size);
    return status;
}

// Derives, checks, and hands over what was read, unless status says that reading failed.
static int finish(Config *config, Reader *r, int status) {
    if (!status) status = derive(r);
    if (!status) status = check(r);
    if (!status) memcpy(config, &r->config, sizeof *config);
    free(r);
    return status;
}

static Reader *reader_create(const char *name) {
    Reader *r = malloc(sizeof *r);
    if (r) start(r, name);
    else set_error(STATUS_FAILED, "out of memory");
    return r;
}

void config_defaults(Config *config) {
    Reader r;
    start(&r, "");
    if (derive(&r)) abort();                                    // the table would contradict itself
    memcpy(config, &r.config, sizeof *config);
}

int config_read(Config *config, const char *path, const Override *overrides, int override_count) {
    Reader *r = reader_create(path);
    if (!r) return STATUS_FAILED;
    int status = STATUS_OK;
    if (strlen(path) >= PATH_SIZE) status = set_error(STATUS_BAD_INPUT, "%.40s...: the path is longer than %d bytes", path, PATH_SIZE - 1);
    else {
        strcpy(r->files[r->file_count], path);
        // A file that is not there is strict_json_read's to report.
        if (stat(path, &r->identities[r->file_count])) memset(&r->identities[r->file_count], 0, sizeof r->identities[0]);
        r->file_count++;
        status = read_file(r);
    }
    for (int i = 0; !status && i < override_count; i++) status = read_override(r, &overrides[i]);
    if (!status && r->config.init_from[0]) status = take_from_directory(r);
    return finish(config, r, status);
}

int config_from_json(Config *config, const struct cJSON *json, const char *name) {
    Reader *r = reader_create(name);
    if (!r) return STATUS_FAILED;
    int status = STATUS_OK;
    if (cJSON_IsObject(json) && cJSON_GetObjectItemCaseSensitive(json, "extends"))
        status = set_error(STATUS_BAD_INPUT, "%s: extends: only a config file can extend another", name);
    if (!status) status = read_top(r, json, name);
    return finish(config, r, status);
}

int config_override_resumed(Config *config, const Override *overrides, int override_count) {
    Reader *r = reader_create("the resumed run's config");
    if (!r) return STATUS_FAILED;
    memcpy(&r->config, config, sizeof r->config);
    for (int k = 0; k < KEY_COUNT; k++) r->given[k] = true;
    int status = STATUS_OK;
    for (int i = 0; !status && i < override_count; i++) {
        const int k = find_key(overrides[i].key);
        if (k >= 0 && !is_resumable(&keys[k])) {
            set_error(STATUS_BAD_INPUT,
                      "--resume cannot change this, only train.steps and the sections eval, checkpoint, sample, diagnostics and compute");
            status = blame(STATUS_BAD_INPUT, &(Source){NULL, &overrides[i], 1}, overrides[i].key);
        } else {
            status = read_override(r, &overrides[i]);
        }
    }
    return finish(config, r, status);
}

const char *config_difference(const Config *a, const Config *b) {
    for (int k = 0; k < KEY_COUNT; k++) {
        const Key *key = &keys[k];
        if (is_resumable(key) || !strcmp(key->name, "run_dir") || key->type == TYPE_EXTENDS || key->type == TYPE_ROPE_SCALING) continue;
        const char *x = (const char *)a + key->offset, *y = (const char *)b + key->offset;
        if (key->type == TYPE_TEXT ? strcmp(x, y) != 0 : load_number(a, key) != load_number(b, key)) return key->name;
    }
    return NULL;
}

int config_check(const Config *config, const char *name) {
    Reader *r = reader_create(name);
    if (!r) return STATUS_FAILED;
    memcpy(&r->config, config, sizeof r->config);
    int status = check(r);
    free(r);
    return status;
}

// ---- writing ----

// cJSON prints 15 digits where they are near enough, within one part in 2^52: not the same double, and another seed. Raw text it keeps.
static cJSON *item_of_number(double x) {
    char shortest[JSON_TEXT_NUMBER_SIZE], printed[JSON_TEXT_NUMBER_SIZE];
    json_text_of_number(shortest, x);
    snprintf(printed, sizeof printed, "%.15g", x);
    return strtod(printed, NULL) == x ? cJSON_CreateNumber(x) : cJSON_CreateRaw(shortest);
}

static cJSON *item_of_key(const Config *config, const Key *key) {
    const char *text = (const char *)config + key->offset;
    if (key->type == TYPE_TEXT) return !text[0] && is_nullable(key) ? cJSON_CreateNull() : cJSON_CreateString(text);
    const double x = load_number(config, key);
    if (key->type == TYPE_BOOL) return cJSON_CreateBool(x != 0);
    if (key->type == TYPE_CHOICE) return cJSON_CreateString(key->choices[(int)x]);
    return item_of_number(x);
}

// The object that stands for a section, made where it is not there yet.
static cJSON *section_object(cJSON *json, const char *name) {
    if (!*name) return json;
    const char *dot = strchr(name, '.');
    char first[64];
    snprintf(first, sizeof first, "%.*s", dot ? (int)(dot - name) : (int)strlen(name), name);
    cJSON *object = cJSON_GetObjectItemCaseSensitive(json, first);
    if (!object) object = cJSON_AddObjectToObject(json, first);
    return object && dot ? section_object(object, dot + 1) : object;
}

struct cJSON *config_to_json(const Config *config) {
    const bool scaled = config->model.rope_scaling.rope_type != ROPE_SCALING_NONE;
    cJSON *json = cJSON_CreateObject();
    for (int k = 0; json && k < KEY_COUNT; k++) {
        const Key *key = &keys[k];
        if (key->type == TYPE_EXTENDS || (key->type == TYPE_ROPE_SCALING && scaled) || (is_rope_scaling(key) && !scaled)) continue;
        cJSON *item = key->type == TYPE_ROPE_SCALING ? cJSON_CreateNull() : item_of_key(config, key);
        cJSON *object = section_object(json, section_of(key)->name);
        if (item && object && cJSON_AddItemToObject(object, last_part(key->name), item)) continue;
        cJSON_Delete(item);
        cJSON_Delete(json);
        json = NULL;
    }
    return json;
}

const char *attention_type_name(AttentionType type) { return attention_type_names[type]; }
const char *gate_name(GateType gate) { return gate_names[gate]; }
const char *arch_name(Arch arch) { return arch_names[arch]; }
const char *dtype_name(Dtype dtype) { return dtype_names[dtype]; }
const char *recompute_name(Recompute recompute) { return recompute_names[recompute]; }

// ---- help ----

// Whether a key stands in a section, or in one within it.
static bool is_within(const Key *key, const Section *section) {
    const size_t n = strlen(section->name);
    return n ? strncmp(key->name, section->name, n) == 0 && key->name[n] == '.' : !strchr(key->name, '.');
}

// A section within another is printed there.
static bool is_inner(const Section *section) { return strchr(section->name, '.') != NULL; }

static const char *describe_default(const Key *key) {
    if (is_derived(key)) return key->initial + 1;
    return key->initial[0] ? key->initial : "\"\"";
}

static void print_key(FILE *out, const Key *key) {
    char wanted[256];
    fprintf(out, "%s\n    %s\n    %s%s%s; default: %s%s\n", key->name, key->meaning, describe_wanted(wanted, key),
            *key->unit ? ", in " : "", key->unit, describe_default(key), is_resumable(key) ? "; --resume may change it" : "");
}

int config_help(FILE *out, const char *key) {
    if (key && strcmp(key, "--markdown") == 0) {
        config_help_markdown(out);
        return STATUS_OK;
    }
    const int k = key ? find_key(key) : -1;
    const Section *only = key ? find_section(key) : NULL;
    if (key && k < 0 && !only) return prefix_error(unknown_key(key), "help %s: ", key);
    if (k >= 0) print_key(out, &keys[k]);
    for (int i = 0; i < SECTION_COUNT; i++) {
        const Section *section = &sections[i];
        if (key ? section != only : is_inner(section)) continue;
        if (!key) fprintf(out, "%s%s%s%s\n\n", i ? "\n" : "", section->name, *section->name ? ": " : "", section->meaning);
        for (int j = 0; j < KEY_COUNT; j++) {
            if (is_within(&keys[j], section)) print_key(out, &keys[j]);
        }
    }
    return STATUS_OK;
}

void config_help_markdown(FILE *out) {
    fprintf(out,
            "# Configuration\n\n"
            "Written by the program from the table in core/config.c that parses these keys; a test holds this page to it.\n\n"
            "A config is a JSON file of flat sections: `{\"run_dir\": \"runs/a\", \"train\": {\"steps\": 500}}`. A key that is not given "
            "has its default, so a config states only what it means. On the command line `--section.key=value` (`--train.steps=500`, "
            "`--run_dir=runs/b`) overrides the file; text needs no quotes of its own there. `null`, where the table allows it, means none, "
            "or the default that follows from other keys. An unknown or repeated key is an error, and so is a value out of its range. "
            "`train_gpt help KEY` prints a key's row.\n\n"
            "`extends` names a file to overlay, relative to the file that says so: the other file is read first, then each key here "
            "replaces the one there. All other paths are relative to the working directory. The whole config, every default filled in, "
            "is kept as `config.json` in the run's directory; `--resume` may change only what is marked R.\n");
    for (int i = 0; i < SECTION_COUNT; i++) {
        const Section *section = &sections[i];
        if (is_inner(section)) continue;
        fprintf(out, "\n## %s%s%s\n\n| Key | Value | Unit | Default | | Meaning |\n|---|---|---|---|---|---|\n", section->name,
                *section->name ? ": " : "", section->meaning);
        for (int j = 0; j < KEY_COUNT; j++) {
            char wanted[256];
            if (!is_within(&keys[j], section)) continue;
            fprintf(out, "| `%s` | %s | %s | %s | %s | %s |\n", keys[j].name, describe_wanted(wanted, &keys[j]), keys[j].unit,
                    describe_default(&keys[j]), is_resumable(&keys[j]) ? "R" : "", keys[j].meaning);
        }
    }
}
