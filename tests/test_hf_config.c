// core/hf_config: config.json as stock transformers writes and reads it.
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "core/error.h"
#include "core/hf_config.h"
#include "core/json_text.h"
#include "support.h"

static char directory[256], path[300];
static ModelConfig model;
static AttentionConfig attention;

static int setup(void **state) {
    (void)state;
    make_directory(directory);
    snprintf(path, sizeof path, "%s/config.json", directory);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    remove_directory(directory);
    return 0;
}

static void read_text(const char *text) {
    write_text(path, text);
    if (hf_config_read(path, &model, &attention)) fail_msg("%s", error_text());
}

// openai-community/gpt2's own file, in its older spelling.
static void reads_gpt2(void **state) {
    (void)state;
    read_text("{\"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"], \"attn_pdrop\": 0.1,"
              "\"bos_token_id\": 50256, \"embd_pdrop\": 0.1, \"eos_token_id\": 50256, \"initializer_range\": 0.02,"
              "\"layer_norm_epsilon\": 1e-05,"
              "\"model_type\": \"gpt2\", \"n_ctx\": 1024, \"n_embd\": 768, \"n_head\": 12, \"n_layer\": 12, \"n_positions\": 1024,"
              "\"resid_pdrop\": 0.1, \"summary_type\": \"cls_index\","
              "\"task_specific_params\": {\"text-generation\": {\"max_length\": 50}},"
              "\"vocab_size\": 50257}");
    assert_int_equal(model.arch, ARCH_GPT2);
    assert_int_equal(model.V, 50257);
    assert_int_equal(model.C, 768);
    assert_int_equal(model.L, 12);
    assert_int_equal(model.H, 12);
    assert_int_equal(model.K, 12);
    assert_int_equal(model.D, 64);
    assert_int_equal(model.intermediate_size, 3072);            // absent: 4 times the hidden size
    assert_int_equal(model.max_position_embeddings, 1024);
    assert_true(model.tie_word_embeddings);                     // absent
    assert_true(model.norm_eps == 1e-5 && model.initializer_range == 0.02);
    assert_int_equal(attention.type, ATTENTION_BASELINE);
    assert_int_equal(attention.gate, GATE_NONE);
}

#define LLAMA32 "{\"model_type\": \"llama\", \"attention_bias\": false, \"head_dim\": 64, \"hidden_act\": \"silu\", " \
    "\"hidden_size\": 2048, \"initializer_range\": 0.02, \"intermediate_size\": 8192, \"max_position_embeddings\": 131072, " \
    "\"mlp_bias\": false, \"num_attention_heads\": 32, \"num_hidden_layers\": 16, \"num_key_value_heads\": 8, \"pretraining_tp\": 1, " \
    "\"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", \"use_cache\": true, " \
    "\"vocab_size\": 128256, \"eos_token_id\": [1, 2], "
#define LLAMA3_SCALING "{\"factor\": 32.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, " \
    "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\""

static void expect_llama32(void) {
    assert_int_equal(model.arch, ARCH_LLAMA);
    assert_int_equal(model.C, 2048);
    assert_int_equal(model.L, 16);
    assert_int_equal(model.H, 32);
    assert_int_equal(model.K, 8);
    assert_int_equal(model.D, 64);
    assert_int_equal(model.intermediate_size, 8192);
    assert_true(model.tie_word_embeddings);
    assert_true(model.rope_theta == 500000);
    assert_int_equal(model.rope_scaling.rope_type, ROPE_SCALING_LLAMA3);
    assert_true(model.rope_scaling.factor == 32 && model.rope_scaling.low_freq_factor == 1 && model.rope_scaling.high_freq_factor == 4);
    assert_int_equal(model.rope_scaling.original_max_position_embeddings, 8192);
}

// The same model as transformers 4 and 5 write it.
static void reads_llama(void **state) {
    (void)state;
    read_text(LLAMA32 "\"rope_theta\": 500000.0, \"rope_scaling\": " LLAMA3_SCALING "}}");
    expect_llama32();
    read_text(LLAMA32 "\"rope_theta\": 500000.0, \"rope_scaling\": " LLAMA3_SCALING ", \"type\": \"llama3\"}}");
    expect_llama32();
    read_text(LLAMA32 "\"rope_parameters\": " LLAMA3_SCALING ", \"rope_theta\": 500000.0}}");
    expect_llama32();
    read_text(LLAMA32 "\"rope_theta\": 2, \"rope_scaling\": null, \"rope_parameters\": {\"rope_theta\": 7, \"rope_type\": \"default\"}}");
    assert_true(model.rope_theta == 7);
    assert_int_equal(model.rope_scaling.rope_type, ROPE_SCALING_NONE);
    read_text("{\"model_type\": \"llama\", \"vocab_size\": 32000, \"hidden_size\": 96, \"intermediate_size\": 200,"
              "\"num_hidden_layers\": 2, \"num_attention_heads\": 6, \"num_key_value_heads\": null, \"head_dim\": null}");
    assert_int_equal(model.K, 6);
    assert_int_equal(model.D, 16);
    assert_int_equal(model.max_position_embeddings, 2048);
    assert_false(model.tie_word_embeddings);
    assert_true(model.rope_theta == 10000 && model.norm_eps == 1e-6 && model.initializer_range == 0.02);
}

#define QWEN15 "{\"model_type\": \"qwen2\", \"attention_dropout\": 0.0, \"hidden_act\": \"silu\", \"hidden_size\": 1024, " \
    "\"intermediate_size\": 2816, \"max_position_embeddings\": 32768, \"num_attention_heads\": 16, \"num_hidden_layers\": 24, " \
    "\"num_key_value_heads\": 16, \"rms_norm_eps\": 1e-06, \"rope_theta\": 1000000.0, \"tie_word_embeddings\": true, \"vocab_size\": 151936"

static void reads_qwen2(void **state) {
    (void)state;
    read_text(QWEN15 ", \"max_window_layers\": 21, \"sliding_window\": 32768, \"use_sliding_window\": false}");
    assert_int_equal(model.arch, ARCH_QWEN2);
    assert_int_equal(model.D, 64);
    assert_true(model.rope_theta == 1e6);
    read_text(QWEN15 ", \"use_sliding_window\": true}");        // from layer 28 on, which there is not
    read_text(QWEN15 ", \"use_sliding_window\": true, \"max_window_layers\": 24}");
    read_text(QWEN15 ", \"use_sliding_window\": true, \"max_window_layers\": 2, \"layer_types\": [\"full_attention\"]}");
}

#define GPT2 "{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_embd\": 8, \"n_layer\": 1, \"n_head\": 2"
#define LLAMA "{\"model_type\": \"llama\", \"vocab_size\": 9, \"hidden_size\": 8, \"intermediate_size\": 8, \"num_hidden_layers\": 1, " \
    "\"num_attention_heads\": 2"

static const struct Refusal { const char *text, *says; } refusals[] = {
    { "{", "line 1" },
    { "[1]", "is not a JSON object" },
    { "{}", "model_type: is missing" },
    { "{\"model_type\": \"mistral\"}", "model_type: mistral is not" },
    { "{\"model_type\": \"train_gpt_mistral\"}", "model_type: train_gpt_mistral is not" },
    { "{\"model_type\": \"\"}", "model_type:" },
    { "{\"model_type\": 3}", "model_type:" },
    { "{\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_layer\": 1, \"n_head\": 2}", "vocab_size: is missing" },
    { "{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_layer\": 1, \"n_head\": 2}", "n_embd: is missing" },
    { "{\"model_type\": \"gpt2\", \"vocab_size\": \"9\", \"n_embd\": 8, \"n_layer\": 1, \"n_head\": 2}", "vocab_size: a whole number" },
    { "{\"model_type\": \"gpt2\", \"vocab_size\": 9.5, \"n_embd\": 8, \"n_layer\": 1, \"n_head\": 2}", "vocab_size: a whole number" },
    { "{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_embd\": 8, \"n_layer\": 0, \"n_head\": 2}", "n_layer: a whole number" },
    { "{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_embd\": 8, \"n_layer\": 1, \"n_head\": 3}", "model.hidden_size" },
    { "{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_embd\": 4294967304, \"n_layer\": 1, \"n_head\": 2}", "n_embd: a whole number" },
    { "{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_embd\": 2147483646, \"n_layer\": 1, \"n_head\": 2}", "model.hidden_size" },
    { GPT2 ", \"n_embd\": 8}", "given twice" },
    { GPT2 ", \"tie_word_embeddings\": 1}", "tie_word_embeddings: true or false" },
    { GPT2 ", \"layer_norm_epsilon\": \"small\"}", "layer_norm_epsilon: a number" },
    { GPT2 ", \"layer_norm_epsilon\": -1}", "model.norm_eps" },
    { GPT2 ", \"activation_function\": \"gelu\"}", "activation_function: \"gelu\" is not what this program computes; it computes "
                                                "\"gelu_new\"" },
    { GPT2 ", \"scale_attn_weights\": false}", "scale_attn_weights" },
    { GPT2 ", \"scale_attn_by_inverse_layer_idx\": true}", "scale_attn_by_inverse_layer_idx" },
    { GPT2 ", \"add_cross_attention\": true}", "add_cross_attention" },
    { GPT2 ", \"quantization_config\": {\"bits\": 4}}", "quantization_config" },
    { LLAMA ", \"attention_bias\": true}", "attention_bias" },
    { LLAMA ", \"mlp_bias\": true}", "mlp_bias" },
    { LLAMA ", \"hidden_act\": \"gelu\"}", "hidden_act" },
    { LLAMA ", \"num_key_value_heads\": 3}", "model.num_key_value_heads" },
    { LLAMA ", \"head_dim\": 3}", "model.head_dim" },
    { LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}}", "model.rope_scaling" },
    { LLAMA ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 2.0}}", "model.rope_scaling" },
    { LLAMA ", \"rope_scaling\": 2}", "rope_scaling: an object or null" },
    { LLAMA ", \"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}}", "partial_rotary_factor" },
    { LLAMA ", \"rope_theta\": \"big\"}", "model.rope_theta" },
    { QWEN15 ", \"use_sliding_window\": true, \"max_window_layers\": 23}", "use_sliding_window" },
    { QWEN15 ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]}", "layer_types" },
    { GPT2 ", \"attention\": {\"type\": \"afine\"}}", "attention.type" },
    { GPT2 ", \"attention\": {\"typ\": \"affine\"}}", "attention.typ" },
    { GPT2 ", \"attention\": [\"affine\"]}", "attention" },
    { GPT2 ", \"attention\": {\"type\": \"affine\"}}", "attention.affine_length: is missing" },
};

static void refuses_what_it_does_not_compute(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        write_text(path, refusals[i].text);
        int status = hf_config_read(path, &model, &attention);
        if (status != STATUS_BAD_INPUT) fail_msg("%s gave status %d", refusals[i].text, status);
        if (!strstr(error_text(), refusals[i].says)) fail_msg("%s gave: %s", refusals[i].text, error_text());
        if (strncmp(error_text(), path, strlen(path))) fail_msg("does not begin with the file's name: %s", error_text());
    }
    assert_int_equal(hf_config_read("/no/such/config.json", &model, &attention), STATUS_BAD_INPUT);
}

static void write_config(const ModelConfig *m, const AttentionConfig *a) {
    cJSON *json = hf_config_to_json(m, a);
    assert_non_null(json);
    char *text = json_text_print(json, true);
    write_text(path, text);
    cJSON_Delete(json);
    cJSON_free(text);
}

static ModelConfig example(Arch arch) {
    ModelConfig m = {
        .arch = arch, .V = 300, .C = 24, .L = 3, .H = 4, .K = arch == ARCH_GPT2 ? 4 : 2, .D = arch == ARCH_LLAMA ? 8 : 6,
        .intermediate_size = 50, .max_position_embeddings = 77, .tie_word_embeddings = arch == ARCH_LLAMA, .rope_theta = 10000,
        .norm_eps = 0.1 + 0.2,
        .initializer_range = 0.013,
    };
    if (arch != ARCH_GPT2) m.rope_theta = 123456.7;
    if (arch == ARCH_LLAMA) m.rope_scaling = (RopeScaling){ ROPE_SCALING_LLAMA3, 8.5, 1.25, 4, 1024 };
    return m;
}

static void reads_what_it_writes(void **state) {
    (void)state;
    static const AttentionConfig attentions[] = {
        { ATTENTION_BASELINE, GATE_NONE, AFFINE_LINEAR_CLIPPING, AFFINE_N_SEQUENCE, 64, 0.9 },
        { ATTENTION_AFFINE, GATE_HEADWISE, AFFINE_SIGMOID, AFFINE_N_PREFIX, 31, 0.1 + 0.7 },
        { ATTENTION_SINK, GATE_ELEMENTWISE, AFFINE_LINEAR_CLIPPING, AFFINE_N_SEQUENCE, 64, 0.9 },
        { ATTENTION_OFF_BY_ONE, GATE_NONE, AFFINE_LINEAR_CLIPPING, AFFINE_N_SEQUENCE, 64, 0.9 },
    };
    for (Arch arch = ARCH_GPT2; arch <= ARCH_QWEN2; arch++) {
        for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++) {
            ModelConfig m = example(arch);
            write_config(&m, &attentions[i]);
            if (hf_config_read(path, &model, &attention)) fail_msg("%s", error_text());
            assert_int_equal(model.arch, arch);
            assert_int_equal(model.V, 300);
            assert_int_equal(model.C, 24);
            assert_int_equal(model.L, 3);
            assert_int_equal(model.H, 4);
            assert_int_equal(model.K, m.K);
            assert_int_equal(model.D, m.D);
            assert_int_equal(model.intermediate_size, 50);
            assert_int_equal(model.max_position_embeddings, 77);
            assert_int_equal(model.tie_word_embeddings, m.tie_word_embeddings);
            assert_true(model.norm_eps == 0.1 + 0.2 && model.initializer_range == 0.013);       // to the last bit
            assert_true(model.rope_theta == m.rope_theta);
            assert_int_equal(model.rope_scaling.rope_type, m.rope_scaling.rope_type);
            assert_true(model.rope_scaling.factor == m.rope_scaling.factor);
            assert_int_equal(attention.type, attentions[i].type);
            assert_int_equal(attention.gate, attentions[i].gate);
            assert_int_equal(attention.affine_activation, attentions[i].affine_activation);
            assert_int_equal(attention.affine_n, attentions[i].affine_n);
            assert_int_equal(attention.affine_length, attentions[i].affine_length);
            assert_true(attention.affine_rho == attentions[i].affine_rho);
        }
    }
}

// The keys that stock transformers reads, and values it would take otherwise.
static void writes_their_keys(void **state) {
    (void)state;
    static const char *const wanted[] = {
        [ARCH_GPT2] = "{\"architectures\":[\"GPT2LMHeadModel\"],\"model_type\":\"gpt2\",\"vocab_size\":300,\"n_embd\":24,\"n_layer\":3,"
            "\"n_head\":4,\"n_positions\":77,\"n_inner\":50,\"activation_function\":\"gelu_new\","
            "\"layer_norm_epsilon\":0.30000000000000004,\"scale_attn_weights\":true,\"resid_pdrop\":0.0,\"embd_pdrop\":0.0,"
            "\"attn_pdrop\":0.0,\"initializer_range\":0.013,"
            "\"tie_word_embeddings\":false,\"use_cache\":true,\"bos_token_id\":null,\"eos_token_id\":null,\"torch_dtype\":\"float32\"}",
        [ARCH_LLAMA] = "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":300,\"hidden_size\":24,"
            "\"intermediate_size\":50,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
            "\"max_position_embeddings\":77,\"hidden_act\":\"silu\",\"rms_norm_eps\":0.30000000000000004,\"attention_dropout\":0.0,"
            "\"rope_theta\":123456.7,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.5,\"low_freq_factor\":1.25,"
            "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":1024},\"attention_bias\":false,\"mlp_bias\":false,"
            "\"initializer_range\":0.013,\"tie_word_embeddings\":true,\"use_cache\":true,\"bos_token_id\":null,\"eos_token_id\":null,"
            "\"torch_dtype\":\"float32\"}",
        [ARCH_QWEN2] = "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"vocab_size\":300,\"hidden_size\":24,"
            "\"intermediate_size\":50,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":6,"
            "\"max_position_embeddings\":77,\"hidden_act\":\"silu\",\"rms_norm_eps\":0.30000000000000004,\"attention_dropout\":0.0,"
            "\"rope_theta\":123456.7,\"rope_scaling\":null,\"use_sliding_window\":false,\"max_window_layers\":3,"
            "\"initializer_range\":0.013,\"tie_word_embeddings\":false,\"use_cache\":true,\"bos_token_id\":null,\"eos_token_id\":null,"
            "\"torch_dtype\":\"float32\"}",
    };
    const AttentionConfig baseline = { ATTENTION_BASELINE, GATE_NONE, AFFINE_LINEAR_CLIPPING, AFFINE_N_SEQUENCE, 64, 0.9 };
    for (Arch arch = ARCH_GPT2; arch <= ARCH_QWEN2; arch++) {
        ModelConfig m = example(arch);
        cJSON *json = hf_config_to_json(&m, &baseline), *section = cJSON_DetachItemFromObject(json, "attention");
        char *text = json_text_print(json, false), *of_section = json_text_print(section, false);
        assert_string_equal(text, wanted[arch]);
        assert_string_equal(of_section, "{\"type\":\"baseline\",\"gate\":\"none\",\"affine_activation\":\"linear_clipping\","
                                        "\"affine_rho\":0.9,\"affine_n\":\"sequence\",\"affine_length\":64}");
        cJSON_Delete(json);
        cJSON_Delete(section);
        cJSON_free(text);
        cJSON_free(of_section);
    }
}

// What the stock class does not compute must not be taken for it, and names the class that does.
static void names_our_own_classes(void **state) {
    (void)state;
    static const char *const own[] = { [ARCH_GPT2] = "GPT2", [ARCH_LLAMA] = "Llama", [ARCH_QWEN2] = "Qwen2" };
    static const AttentionConfig attentions[] = {
        { .type = ATTENTION_BASELINE, .gate = GATE_HEADWISE }, { .type = ATTENTION_BASELINE, .gate = GATE_ELEMENTWISE },
        { .type = ATTENTION_OFF_BY_ONE }, { .type = ATTENTION_SINK }, { .type = ATTENTION_AFFINE, .affine_length = 9, .affine_rho = 0.5 },
    };
    for (Arch arch = ARCH_GPT2; arch <= ARCH_QWEN2; arch++) {
        for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++) {
            ModelConfig m = example(arch);
            cJSON *json = hf_config_to_json(&m, &attentions[i]), *map = cJSON_GetObjectItem(json, "auto_map");
            char class_name[64], module[96];
            snprintf(class_name, sizeof class_name, "Selectable%sForCausalLM", own[arch]);
            snprintf(module, sizeof module, "train_gpt_%s", arch_name(arch));
            assert_string_equal(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "architectures"), 0)->valuestring, class_name);
            assert_string_equal(cJSON_GetObjectItem(json, "model_type")->valuestring, module);
            snprintf(module, sizeof module, "modeling_train_gpt.%s", class_name);
            assert_string_equal(cJSON_GetObjectItem(map, "AutoModelForCausalLM")->valuestring, module);
            snprintf(module, sizeof module, "modeling_train_gpt.Selectable%sConfig", own[arch]);
            assert_string_equal(cJSON_GetObjectItem(map, "AutoConfig")->valuestring, module);
            snprintf(class_name, sizeof class_name, "class Selectable%sForCausalLM(", own[arch]);
            assert_non_null(memmem(hf_modeling_text, hf_modeling_size, class_name, strlen(class_name)));
            cJSON_Delete(json);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_gpt2, setup, teardown),
        cmocka_unit_test_setup_teardown(reads_llama, setup, teardown),
        cmocka_unit_test_setup_teardown(reads_qwen2, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_what_it_does_not_compute, setup, teardown),
        cmocka_unit_test_setup_teardown(reads_what_it_writes, setup, teardown),
        cmocka_unit_test_setup_teardown(writes_their_keys, setup, teardown),
        cmocka_unit_test(names_our_own_classes),
    };
    return cmocka_run_group_tests_name("hf_config", tests, NULL, NULL);
}
