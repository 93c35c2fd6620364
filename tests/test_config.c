// core/config: defaults, every kind of mistake with its message, extends, overrides, resuming, the round trip through JSON, help, docs.
// The tests run in a directory of their own, so that messages name short paths.
#include "core/config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "core/strict_json.h"
#include "tests/support.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
enum { FLAGS = 3 };

static char root[4096], directory[256];

static int enter_directory(void **state) {
    (void)state;
    assert_non_null(getcwd(root, sizeof root));
    make_directory(directory);
    return chdir(directory);
}

static int leave_directory(void **state) {
    (void)state;
    assert_int_equal(chdir(root), 0);
    remove_directory(directory);
    return 0;
}

// ---- helpers ----

// "section.key=value" strings as overrides. The keys are copies, kept until the next call.
static int split_flags(Override overrides[FLAGS], const char *const flags[FLAGS]) {
    static char names[FLAGS][200];
    int n = 0;
    for (; n < FLAGS && flags[n]; n++) {
        const char *equals = strchr(flags[n], '=');
        snprintf(names[n], sizeof names[n], "%.*s", (int)(equals - flags[n]), flags[n]);
        overrides[n] = (Override){names[n], equals + 1};
    }
    return n;
}

static int read_config(Config *config, const char *text, const char *const flags[FLAGS]) {
    Override overrides[FLAGS];
    write_text("a.json", text);
    return config_read(config, "a.json", overrides, split_flags(overrides, flags));
}

// The config that a text and up to three flags stand for; the test fails when it is refused.
static Config read_good(const char *text, const char *flag1, const char *flag2, const char *flag3) {
    Config config = {.seed = 0};
    if (read_config(&config, text, (const char *const[]){flag1, flag2, flag3})) fail_msg("%s: %s", text, error_text());
    return config;
}

static void assert_same(const Config *a, const Config *b) { assert_memory_equal(a, b, sizeof *a); }

// ---- defaults ----

static const char default_text[] =
    "{\"run_dir\": null, \"seed\": 1337,"
    "\"model\": {\"arch\": \"gpt2\", \"vocab_size\": 256, \"hidden_size\": 128, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,"
    "            \"num_key_value_heads\": 4, \"head_dim\": 32, \"intermediate_size\": 512, \"max_position_embeddings\": 128,"
    "            \"tie_word_embeddings\": true, \"rope_theta\": 10000, \"rope_scaling\": null, \"norm_eps\": 1e-5,"
    "            \"initializer_range\": 0.02, \"init_from\": null},"
    "\"attention\": {\"type\": \"baseline\", \"gate\": \"none\", \"affine_activation\": \"linear_clipping\", \"affine_rho\": 0.9,"
    "                \"affine_n\": \"sequence\", \"affine_length\": 128},"
    "\"data\": {\"train\": null, \"val\": null, \"shuffle\": true, \"tokenizer\": null},"
    "\"train\": {\"steps\": 500, \"batch_size\": 16, \"micro_batch_size\": 16, \"sequence_length\": 128},"
    "\"optimizer\": {\"lr\": 1e-3, \"beta1\": 0.9, \"beta2\": 0.95, \"eps\": 1e-8, \"weight_decay\": 0.1, \"grad_clip\": 1.0},"
    "\"schedule\": {\"type\": \"wsd\", \"warmup_steps\": 100, \"decay_fraction\": 0.2, \"min_lr_ratio\": 0.0},"
    "\"distill\": {\"teacher\": null, \"weight\": 1.0, \"temperature\": 1.0},"
    "\"eval\": {\"every\": 50, \"batches\": 20},"
    "\"checkpoint\": {\"every\": 250, \"keep\": 2},"
    "\"sample\": {\"every\": 0, \"tokens\": 64, \"prompt\": \"\", \"temperature\": 1.0, \"top_k\": 0, \"top_p\": 1.0},"
    "\"diagnostics\": {\"every\": 10},"
    "\"compute\": {\"threads\": 0, \"dtype\": \"fp32\", \"recompute\": \"none\"}}";

static void test_defaults(void **state) {
    (void)state;
    Config defaults;
    config_defaults(&defaults);
    cJSON *wanted, *found = config_to_json(&defaults);
    assert_int_equal(strict_json_parse(&wanted, default_text, strlen(default_text)), STATUS_OK);
    char *printed = cJSON_Print(found);
    if (!cJSON_Compare(wanted, found, true)) fail_msg("the defaults are %s", printed);
    cJSON_free(printed);
    cJSON_Delete(wanted);
    cJSON_Delete(found);
    const Config empty = read_good("{}", NULL, NULL, NULL), whole = read_good(default_text, NULL, NULL, NULL);
    assert_same(&defaults, &empty);
    assert_same(&defaults, &whole);
    assert_int_equal(config_check(&defaults, "x"), STATUS_OK);
}

// What follows from other keys, for other values of those; null stands for "as if not given".
static void test_derived(void **state) {
    (void)state;
    Config c = read_good("{\"model\": {\"hidden_size\": 96, \"num_attention_heads\": 6, \"head_dim\": null},"
                         " \"train\": {\"sequence_length\": 50, \"batch_size\": 12}}", NULL, NULL, NULL);
    assert_int_equal(c.model.K, 6);
    assert_int_equal(c.model.D, 16);
    assert_int_equal(c.model.intermediate_size, 384);
    assert_int_equal(c.model.max_position_embeddings, 50);
    assert_int_equal(c.attention.affine_length, 50);
    assert_int_equal(c.train.micro_batch_size, 12);
    assert_true(c.model.tie_word_embeddings);
    const char *const arches[] = {"model.arch=llama", "model.arch=qwen2"};
    for (int i = 0; i < 2; i++) {
        c = read_good("{\"model\": {\"intermediate_size\": 100}}", arches[i], "model.num_key_value_heads=2", "model.head_dim=10");
        assert_int_equal(c.model.arch, i == 0 ? ARCH_LLAMA : ARCH_QWEN2);
        assert_int_equal(c.model.D, 10);
        assert_int_equal(c.model.K, 2);
        assert_int_equal(c.model.intermediate_size, 100);
        assert_false(c.model.tie_word_embeddings);
    }
    c = read_good("{\"model\": {\"tie_word_embeddings\": false, \"max_position_embeddings\": 4096}, \"attention\": {\"affine_length\": 7}}",
                  "train.micro_batch_size=4", "model.max_position_embeddings=null", NULL);
    assert_false(c.model.tie_word_embeddings);
    assert_int_equal(c.model.max_position_embeddings, 128);
    assert_int_equal(c.attention.affine_length, 7);
    assert_int_equal(c.train.micro_batch_size, 4);
}

// ---- mistakes ----

typedef struct Mistake { const char *text, *flags[FLAGS], *message; } Mistake;

#define LLAMA "\"arch\": \"llama\", \"intermediate_size\": 64"
#define SCALING "\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, " \
                "\"original_max_position_embeddings\": 64"

static const Mistake mistakes[] = {
    // the file
    {"", {0}, "a.json: is empty: wanted JSON"},
    {"{\n\"seed\": 1\n\"train\": {}}", {0}, "a.json: line 3: wanted a comma or }, found \""},
    {"{} trailing", {0}, "a.json: line 1: wanted nothing after the end of the JSON value, found t"},
    {"[1]", {0}, "a.json: wanted an object with sections, found an array"},
    {"7", {0}, "a.json: wanted an object with sections, found 7"},
    {"null", {0}, "a.json: wanted an object with sections, found null"},
    // names
    {"{\"train\": {\"stps\": 5}}", {0}, "a.json: train.stps: unknown key; the nearest is train.steps"},
    {"{\"trian\": {\"steps\": 5}}", {0}, "a.json: trian: unknown key; the nearest is train"},
    {"{\"model\": {\"lr\": 5}}", {0}, "a.json: model.lr: unknown key; the nearest is optimizer.lr"},
    {"{\"lr\": 5}", {0}, "a.json: lr: unknown key; the nearest is optimizer.lr"},
    {"{\"sede\": 5}", {0}, "a.json: sede: unknown key; the nearest is seed"},
    {"{\"Seed\": 5}", {0}, "a.json: Seed: unknown key; the nearest is seed"},
    {"{\"model\": {\"extends\": \"b.json\"}}", {0}, "a.json: model.extends: unknown key; the nearest is extends"},
    {"{\"model\": {\"rope_scaling\": {\"facter\": 1}}}", {0}, "a.json: model.rope_scaling.facter: unknown key; the nearest is "
                                                              "model.rope_scaling.factor"},
    {"{\"train.steps\": 5}", {0}, "a.json: train.steps: a key in a file has no dot; sections are objects: {\"section\": {\"key\": ...}}"},
    {"{\"model\": {\"rope_scaling.factor\": 5}}", {0},
     "a.json: model.rope_scaling.factor: a key in a file has no dot; sections are objects: "
                                                       "{\"section\": {\"key\": ...}}"},
    {"{\"a\\u001b[31m\\n\": 5}", {0}, "a.json: a?[31m?: unknown key; the nearest is extends"},
    {"{\"seed\": 1, \"seed\": 1}", {0}, "a.json: seed: given twice"},
    {"{\"train\": {\"steps\": 1}, \"train\": {\"batch_size\": 1}}", {0}, "a.json: train: given twice"},
    {"{\"train\": {\"steps\": 1, \"steps\": 1}}", {0}, "a.json: train.steps: given twice"},
    {"{\"model\": {" LLAMA ", \"rope_scaling\": {\"type\": \"llama3\", " SCALING "}}}", {0},
     "a.json: model.rope_scaling.rope_type: given twice"},
    // types: what was wanted and what was found
    {"{\"train\": 5}", {0}, "a.json: train: wanted an object, found 5"},
    {"{\"train\": null}", {0}, "a.json: train: wanted an object, found null"},
    {"{\"train\": []}", {0}, "a.json: train: wanted an object, found an array"},
    {"{\"seed\": {}}", {0}, "a.json: seed: wanted an integer from 0 to 2^53, found an object"},
    {"{\"train\": {\"steps\": \"5\"}}", {0}, "a.json: train.steps: wanted an integer from 0 to 2^53, found the text \"5\""},
    {"{\"train\": {\"steps\": 5.5}}", {0}, "a.json: train.steps: wanted an integer from 0 to 2^53, found 5.5"},
    {"{\"train\": {\"steps\": null}}", {0}, "a.json: train.steps: wanted an integer from 0 to 2^53, found null"},
    {"{\"train\": {\"steps\": true}}", {0}, "a.json: train.steps: wanted an integer from 0 to 2^53, found true"},
    {"{\"train\": {\"steps\": [5]}}", {0}, "a.json: train.steps: wanted an integer from 0 to 2^53, found an array"},
    {"{\"train\": {\"micro_batch_size\": \"x\"}}", {0},
     "a.json: train.micro_batch_size: wanted an integer from 1 to 2^24 or null, found the "
                                                        "text \"x\""},
    {"{\"optimizer\": {\"lr\": \"big\"}}", {0}, "a.json: optimizer.lr: wanted a number of at least 0, found the text \"big\""},
    {"{\"data\": {\"shuffle\": 1}}", {0}, "a.json: data.shuffle: wanted true or false, found 1"},
    {"{\"data\": {\"shuffle\": \"true\"}}", {0}, "a.json: data.shuffle: wanted true or false, found the text \"true\""},
    {"{\"model\": {\"tie_word_embeddings\": 0}}", {0}, "a.json: model.tie_word_embeddings: wanted true, false or null, found 0"},
    {"{\"data\": {\"train\": 5}}", {0}, "a.json: data.train: wanted text or null, found 5"},
    {"{\"data\": {\"train\": \"\"}}", {0}, "a.json: data.train: is empty; null means none"},
    {"{\"sample\": {\"prompt\": null}}", {0}, "a.json: sample.prompt: wanted text, found null"},
    {"{\"attention\": {\"type\": \"Affine\"}}", {0},
     "a.json: attention.type: wanted one of baseline, off_by_one, sink, affine, found the text "
                                                     "\"Affine\""},
    {"{\"attention\": {\"type\": 3}}", {0}, "a.json: attention.type: wanted one of baseline, off_by_one, sink, affine, found 3"},
    {"{\"attention\": {\"gate\": null}}", {0}, "a.json: attention.gate: wanted one of none, headwise, elementwise, found null"},
    {"{\"model\": {\"rope_scaling\": 8}}", {0}, "a.json: model.rope_scaling: wanted an object or null, found 8"},
    // ranges: each kind once here, each key in test_ranges
    {"{\"train\": {\"batch_size\": 0}}", {0}, "a.json: train.batch_size: wanted an integer from 1 to 2^24, found 0"},
    {"{\"train\": {\"steps\": -1}}", {0}, "a.json: train.steps: wanted an integer from 0 to 2^53, found -1"},
    {"{\"compute\": {\"threads\": 5000}}", {0}, "a.json: compute.threads: wanted an integer from 0 to 4096, found 5000"},
    {"{\"optimizer\": {\"eps\": 0}}", {0}, "a.json: optimizer.eps: wanted a number of at least 1e-37, found 0"},
    {"{\"optimizer\": {\"beta1\": 1}}", {0}, "a.json: optimizer.beta1: wanted a number of at least 0 and below 1, found 1"},
    {"{\"sample\": {\"top_p\": 0}}", {0}, "a.json: sample.top_p: wanted a number above 0 and at most 1, found 0"},
    {"{\"distill\": {\"weight\": 1.5}}", {0}, "a.json: distill.weight: wanted a number from 0 to 1, found 1.5"},
    // numbers that a double does not hold
    {"{\n\"optimizer\": {\"lr\": 1e400}}", {0}, "a.json: line 2: 1e400 is too large for a double"},
    {"{\"optimizer\": {\"lr\": NaN}}", {0}, "a.json: line 1: wanted a value, found N"},
    {"{\"seed\": 9007199254740993}", {0}, "a.json: line 1: 9007199254740993 cannot be held exactly: as a double it is 9007199254740992"},
    {"{\"seed\": 9007199254740994}", {0}, "a.json: seed: wanted an integer from 0 to 2^53, found 9007199254740994"},
    // flags
    {"{}", {"train.stps=5"}, "--train.stps=5: unknown key; the nearest is train.steps"},
    {"{}", {"train=5"}, "--train=5: is a section; give its keys, as in --train.key=value"},
    {"{}", {"extends=b.json"}, "--extends=b.json: only a file can extend another"},
    {"{}", {"train.steps=5", "train.steps=5"}, "--train.steps=5: given twice"},
    {"{}", {"model.rope_scaling.type=llama3", "model.rope_scaling.rope_type=llama3"}, "--model.rope_scaling.rope_type=llama3: given twice"},
    {"{}", {"train.steps="}, "--train.steps=: wanted an integer from 0 to 2^53, found the text \"\""},
    {"{}", {"train.steps=x"}, "--train.steps=x: wanted an integer from 0 to 2^53, found the text \"x\""},
    {"{}", {"train.steps=1e400"}, "--train.steps=1e400: 1e400 is too large for a double"},
    {"{}", {"optimizer.lr=0.00000000000000000000000000000000000000000000000000000000000001"},
     "--optimizer.lr=0.00000000000000000000000000000000000000000000000000000000000001: "
     "0.000000000000000000...: a number has at most 63 characters"},
    {"{}", {"train.steps=0x10"}, "--train.steps=0x10: wanted an integer from 0 to 2^53, found the text \"0x10\""},
    {"{}", {"train.steps= 5"}, "--train.steps= 5: wanted an integer from 0 to 2^53, found the text \" 5\""},
    {"{}", {"train.steps=null"}, "--train.steps=null: wanted an integer from 0 to 2^53, found the text \"null\""},
    {"{}", {"optimizer.lr=nan"}, "--optimizer.lr=nan: wanted a number of at least 0, found the text \"nan\""},
    {"{}", {"seed=9007199254740993"},
     "--seed=9007199254740993: 9007199254740993 cannot be held exactly: as a double it is 9007199254740992"},
    {"{}", {"data.shuffle=yes"}, "--data.shuffle=yes: wanted true or false, found the text \"yes\""},
    {"{}", {"run_dir="}, "--run_dir=: is empty; null means none"},
    {"{}", {"run_dir=\xff"}, "--run_dir=\xff: is not UTF-8 text"},
    {"{}", {"attention.type=afine\n"},
     "--attention.type=afine?: wanted one of baseline, off_by_one, sink, affine, found the text \"afine?\""},
    {"{}", {"model.rope_scaling=8"}, "--model.rope_scaling=8: wanted an object or null, found the text \"8\""},
    {"{}", {"model.rope_scaling={\"factor\": \"8\"}"},
     "--model.rope_scaling={\"factor\": \"8\"}: model.rope_scaling.factor: wanted a number of at least 1 or null, found the text \"8\""},
    {"{}", {"model.rope_scaling={\"factor\""},
     "--model.rope_scaling={\"factor\": line 1: wanted a colon after the key, found the end of the text"},
    // relations: blamed on what was set last
    {"{\"train\": {\"batch_size\": 10, \"micro_batch_size\": 4}}", {0},
     "a.json: train.batch_size: 10 is not a multiple of train.micro_batch_size (4)"},
    {"{\"train\": {\"micro_batch_size\": 4}}", {"train.batch_size=10"},
     "--train.batch_size=10: 10 is not a multiple of train.micro_batch_size (4)"},
    {"{\"train\": {\"batch_size\": 10}}", {"train.micro_batch_size=4"},
     "--train.micro_batch_size=4: train.batch_size: 10 is not a multiple of train.micro_batch_size (4)"},
    {"{\"train\": {\"micro_batch_size\": 32}}", {0}, "a.json: train.batch_size: 16 is not a multiple of train.micro_batch_size (32)"},
    {"{\"model\": {\"hidden_size\": 130}}", {0}, "a.json: model.hidden_size: 130 is not a multiple of model.num_attention_heads (4)"},
    {"{\"model\": {\"hidden_size\": 130, " LLAMA "}}", {0},
     "a.json: model.hidden_size: 130 is not a multiple of model.num_attention_heads (4); or give model.head_dim"},
    {"{\"model\": {\"num_attention_heads\": 3, \"num_key_value_heads\": 2, \"head_dim\": 4, " LLAMA "}}", {0},
     "a.json: model.num_attention_heads: 3 is not a multiple of model.num_key_value_heads (2)"},
    {"{\"model\": {\"num_key_value_heads\": 2}}", {0},
     "a.json: model.num_key_value_heads: 2 is not model.num_attention_heads (4), as model.arch gpt2 needs"},
    {"{\"model\": {\"head_dim\": 16}}", {0},
     "a.json: model.head_dim: 16 times model.num_attention_heads (4) is not model.hidden_size (128), as model.arch gpt2 needs"},
    {"{\"model\": {\"head_dim\": 7, " LLAMA "}}", {0},
     "a.json: model.head_dim: 7 is odd: the rotary positions of model.arch llama turn pairs"},
    {"{\"model\": {\"hidden_size\": 12}}", {"model.arch=qwen2", "model.intermediate_size=8"},
     "--model.arch=qwen2: model.head_dim: 3 is odd: the rotary positions of model.arch qwen2 turn pairs"},
    {"{\"model\": {\"arch\": \"llama\"}}", {0},
     "a.json: model.intermediate_size: must be given for model.arch llama (Llama 2's is 8/3 of hidden_size, rounded up)"},
    {"{\"model\": {" LLAMA "}}", {"model.intermediate_size=null"},
     "--model.intermediate_size=null: must be given for model.arch llama (Llama 2's "
                                                                   "is 8/3 of hidden_size, rounded up)"},
    {"{\"model\": {\"max_position_embeddings\": 64}}", {0},
     "a.json: train.sequence_length: 128 is more than model.max_position_embeddings (64)"},
    {"{\"model\": {\"max_position_embeddings\": 64}}", {"train.sequence_length=65"},
     "--train.sequence_length=65: 65 is more than model.max_position_embeddings (64)"},
    // rope_scaling
    {"{\"model\": {\"rope_scaling\": {" SCALING "}}}", {0},
     "a.json: model.rope_scaling.rope_type: model.arch gpt2 has no rotary positions to scale"},
    {"{\"model\": {" LLAMA ", \"rope_scaling\": {\"factor\": 8}}}", {0},
     "a.json: model.rope_scaling.factor: means nothing without model.rope_scaling.rope_type llama3"},
    {"{\"model\": {" LLAMA ", \"rope_scaling\": {" SCALING "}}}", {"model.rope_scaling.rope_type=default"},
     "--model.rope_scaling.rope_type=default: model.rope_scaling.factor: means nothing without model.rope_scaling.rope_type llama3"},
    {"{\"model\": {" LLAMA "}}", {"model.rope_scaling.factor=8"},
     "--model.rope_scaling.factor=8: means nothing without model.rope_scaling.rope_type llama3"},
    {"{\"model\": {" LLAMA ", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8}}}", {0},
     "a.json: model.rope_scaling.low_freq_factor: must be given with model.rope_scaling.rope_type llama3"},
    {"{\"model\": {" LLAMA ", \"rope_scaling\": {" SCALING "}}}", {"model.rope_scaling.factor=null"},
     "--model.rope_scaling.factor=null: must be given with model.rope_scaling.rope_type llama3"},
    {"{\"model\": {" LLAMA ", \"rope_scaling\": {\"rope_type\": \"yarn\"}}}", {0},
     "a.json: model.rope_scaling.rope_type: wanted one of default, llama3, found the text \"yarn\""},
    {"{\"model\": {" LLAMA ", \"rope_scaling\": {" SCALING "}}}", {"model.rope_scaling.high_freq_factor=1"},
     "--model.rope_scaling.high_freq_factor=1: model.rope_scaling.low_freq_factor: 1 is not below model.rope_scaling.high_freq_factor (1)"},
    // sizes that no int or memory holds
    {"{\"model\": {\"num_attention_heads\": 65536, \"head_dim\": 65536, " LLAMA "}}", {0},
     "a.json: model.num_attention_heads: with model.head_dim 65536 an attention projection has 12885032960 columns; at most 2^30"},
    {"{\"train\": {\"batch_size\": 16777216, \"sequence_length\": 128}}", {0},
     "a.json: train.micro_batch_size: times train.sequence_length that is 2147483648 tokens at once; at most 2^31 - 1"},
    {"{\"model\": {\"hidden_size\": 1048576, \"num_attention_heads\": 16, \"num_hidden_layers\": 4096}}", {0},
     "a.json: model.hidden_size: the model's sizes make about 7.2e+16 parameters; at most 2^44"},
    {"{\"model\": {\"hidden_size\": 32768, \"num_hidden_layers\": 64}, \"train\": {\"batch_size\": 1048576}}", {0},
     "a.json: train.micro_batch_size: the sizes of model and batch make about 7.9e+15 activations; at most 2^50"},
    {"{\"train\": {\"steps\": 9007199254740992}}", {0},
     "a.json: train.steps: times batch_size (16) times sequence_length (128) is over 2^53 tokens"},
};

static void test_mistakes(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(mistakes); i++) {
        Config config, before;
        memset(&config, 0x5a, sizeof config);
        memcpy(&before, &config, sizeof config);
        int status = read_config(&config, mistakes[i].text, mistakes[i].flags);
        if (status != STATUS_BAD_INPUT || strcmp(error_text(), mistakes[i].message) != 0)
            fail_msg("%s %s:\nstatus %d, %s\nwanted %s", mistakes[i].text, mistakes[i].flags[0] ? mistakes[i].flags[0] : "", status,
                     status ? error_text() : "-", mistakes[i].message);
        assert_same(&config, &before);
    }
}

static void test_long_text(void **state) {
    (void)state;
    char text[1200], value[1100], flag[1200];
    memset(value, 'x', sizeof value);
    value[PATH_SIZE - 1] = 0;
    snprintf(text, sizeof text, "{\"run_dir\": \"%s\"}", value);
    const Config c = read_good(text, NULL, NULL, NULL);
    assert_string_equal(c.run_dir, value);
    value[PATH_SIZE - 1] = 'x';
    value[PATH_SIZE] = 0;
    Config config;
    snprintf(text, sizeof text, "{\"run_dir\": \"%s\"}", value);
    assert_int_equal(read_config(&config, text, (const char *const[]){NULL, NULL, NULL}), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "a.json: run_dir: is 1024 bytes long; at most 1023 fit");
    snprintf(flag, sizeof flag, "sample.prompt=%s", value);
    assert_int_equal(read_config(&config, "{}", (const char *const[]){flag, NULL, NULL}), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "xxx...: is 1024 bytes long; at most 1023 fit"));
    assert_int_equal(config_read(&config, value, NULL, 0), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "the path is longer than 1023 bytes"));
}

// Every numeric key: values at the ends of its range, and just outside.
static const struct { const char *key, *good, *bad; } ranges[] = {
    {"seed", "0 9007199254740992", "-1 0.5 9007199254740994"},
    {"model.vocab_size", "2 16777216", "1 0 16777217"},
    {"model.hidden_size", "1 1048576", "0 -4 1048577"},
    {"model.num_hidden_layers", "1 4096", "0 4097"},
    {"model.num_attention_heads", "1 65536", "0 65537"},
    {"model.num_key_value_heads", "1 65536", "0 65537"},
    {"model.head_dim", "1 65536", "0 65537"},
    {"model.intermediate_size", "1 16777216", "0 16777217"},
    {"model.max_position_embeddings", "1 16777216", "0 16777217"},
    {"model.rope_theta", "1e-9 1e6", "0 -1"},
    {"model.rope_scaling.factor", "1 32", "0 0.99"},
    {"model.rope_scaling.low_freq_factor", "0.1 1", "0 -1"},
    {"model.rope_scaling.high_freq_factor", "0.1 4", "0 -1"},
    {"model.rope_scaling.original_max_position_embeddings", "1 8192", "0 0.5"},
    {"model.norm_eps", "1e-12 1", "0 1e-38 -1e-5"},
    {"model.initializer_range", "1e-9 1", "0 -0.02"},
    {"attention.affine_rho", "0 1", "-0.1 1.1"},
    {"attention.affine_length", "1 16777216", "0 16777217"},
    {"train.steps", "0 9007199254740992", "-1 1.5"},
    {"train.batch_size", "1 16777216", "0 16777217"},
    {"train.micro_batch_size", "1 16777216", "0 16777217"},
    {"train.sequence_length", "1 16777216", "0 16777217"},
    {"optimizer.lr", "0 10", "-1e-9"},
    {"optimizer.beta1", "0 0.999999", "-0.1 1"},
    {"optimizer.beta2", "0 0.999999", "-0.1 1"},
    {"optimizer.eps", "1e-30 1", "0 1e-38 -1e-8"},
    {"optimizer.weight_decay", "0 2", "-0.1"},
    {"optimizer.grad_clip", "0 1e9", "-1"},
    {"schedule.warmup_steps", "0 9007199254740992", "-1 0.5"},
    {"schedule.decay_fraction", "0 1", "-0.1 1.0001"},
    {"schedule.min_lr_ratio", "0 1", "-0.1 1.0001"},
    {"distill.weight", "0 1", "-0.1 1.0001"},
    {"distill.temperature", "1e-3 100", "0 1e-4 1001 -1"},
    {"eval.every", "0 9007199254740992", "-1 0.5"},
    {"eval.batches", "1 16777216", "0 16777217"},
    {"checkpoint.every", "0 9007199254740992", "-1 0.5"},
    {"checkpoint.keep", "1 16777216", "0 16777217"},
    {"sample.every", "0 9007199254740992", "-1 0.5"},
    {"sample.tokens", "1 16777216", "0 16777217"},
    {"sample.temperature", "0 1e-3 100", "-1"},
    {"sample.top_k", "0 16777216", "-1 16777217"},
    {"sample.top_p", "1e-6 1", "0 1.0001"},
    {"diagnostics.every", "0 9007199254740992", "-1 0.5"},
    {"compute.threads", "0 4096", "-1 4097"},
};

// A number as config_to_json writes it: an item of raw text where cJSON would print it rounded. NAN for anything else.
static double number_of(const cJSON *item) {
    return cJSON_IsNumber(item) ? item->valuedouble : cJSON_IsRaw(item) ? strtod(item->valuestring, NULL) : NAN;
}

// The number under a dotted name.
static double number_at(const cJSON *json, const char *name) {
    char parts[100], *rest = NULL;
    snprintf(parts, sizeof parts, "%s", name);
    for (char *part = strtok_r(parts, ".", &rest); part; part = strtok_r(NULL, ".", &rest))
        json = cJSON_GetObjectItemCaseSensitive(json, part);
    return number_of(json);
}

static void set_each(const char *key, const char *values, int status) {
    char list[100], *rest = NULL;
    snprintf(list, sizeof list, "%s", values);
    for (char *value = strtok_r(list, " ", &rest); value; value = strtok_r(NULL, " ", &rest)) {
        Config config;
        config_defaults(&config);
        config.model.rope_scaling.rope_type = ROPE_SCALING_LLAMA3;          // so that its keys are written
        if (config_set(&config, key, value) != status) fail_msg("%s=%s: wanted status %d: %s", key, value, status, error_text());
        if (status) continue;
        cJSON *json = config_to_json(&config);
        assert_true(number_at(json, key) == strtod(value, NULL));           // the right field was set
        cJSON_Delete(json);
    }
}

static int count_numbers(const cJSON *json) {
    int n = !isnan(number_of(json));
    for (const cJSON *child = json->child; child; child = child->next) n += count_numbers(child);
    return n;
}

static void test_ranges(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(ranges); i++) {
        set_each(ranges[i].key, ranges[i].good, STATUS_OK);
        set_each(ranges[i].key, ranges[i].bad, STATUS_BAD_INPUT);
    }
    Config config;
    config_defaults(&config);
    config.model.rope_scaling.rope_type = ROPE_SCALING_LLAMA3;
    cJSON *json = config_to_json(&config);
    assert_int_equal(count_numbers(json), COUNT(ranges));                   // none is left out above
    cJSON_Delete(json);
}

static void test_set(void **state) {
    (void)state;
    Config config;
    config_defaults(&config);
    assert_int_equal(config_set(&config, "sample.tokens", "x"), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "wanted an integer from 1 to 2^24, found the text \"x\"");
    assert_int_equal(config_set(&config, "sample.tokns", "1"), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "sample.tokns is no key that holds a value");
    assert_int_equal(config_set(&config, "model.rope_scaling", "null"), STATUS_BAD_INPUT);
    assert_int_equal(config_set(&config, "optimizer.lr", "-0"), STATUS_OK);
    assert_false(signbit(config.optimizer.lr));                             // one zero, so that equal configs are equal bytes
}

// ---- what is no mistake ----

static void test_flags(void **state) {
    (void)state;
    Config c = read_good("{\"train\": {\"steps\": 10}}", "train.steps=2e1", "run_dir=runs/\"a b\"", "data.shuffle=false");
    assert_int_equal(c.train.steps, 20);
    assert_string_equal(c.run_dir, "runs/\"a b\"");
    assert_false(c.data.shuffle);
    c = read_good("{\"data\": {\"tokenizer\": \"t\"}}", "data.tokenizer=null", "sample.prompt=null", "seed=9007199254740991");
    assert_string_equal(c.data.tokenizer, "");
    assert_string_equal(c.sample.prompt, "null");                           // no null is allowed there, so it is a word
    assert_true(c.seed == 9007199254740991u);
    c = read_good("{\"run_dir\": \"a long name of a run\"}", "run_dir=b", "sample.prompt=x=y=z\n", NULL);
    assert_string_equal(c.sample.prompt, "x=y=z\n");
    const Config again = read_good("{\"run_dir\": \"b\", \"sample\": {\"prompt\": \"x=y=z\\n\"}}", NULL, NULL, NULL);
    assert_same(&c, &again);                                                // nothing of the longer text is left
    c = read_good("{}", "attention.type=off_by_one", "attention.gate=elementwise", "attention.affine_n=prefix");
    assert_int_equal(c.attention.type, ATTENTION_OFF_BY_ONE);
    assert_int_equal(c.attention.gate, GATE_ELEMENTWISE);
    assert_int_equal(c.attention.affine_n, AFFINE_N_PREFIX);
    c = read_good("{}", "compute.dtype=bf16", "compute.recompute=block", "schedule.type=cosine");
    assert_int_equal(c.compute.dtype, DTYPE_BF16);
    assert_int_equal(c.compute.recompute, RECOMPUTE_BLOCK);
    assert_int_equal(c.schedule.type, SCHEDULE_COSINE);
    // train.steps = 0 is legal whatever the rest says
    c = read_good("{\"train\": {\"steps\": 0}, \"schedule\": {\"warmup_steps\": 100}}", NULL, NULL, NULL);
    assert_int_equal(c.train.steps, 0);
    c = read_good("\xef\xbb\xbf{\"seed\": 5}\n", NULL, NULL, NULL);
    assert_int_equal(c.seed, 5);
}

static void test_rope_scaling(void **state) {
    (void)state;
    const char *text = "{\"model\": {" LLAMA ", \"rope_scaling\": {" SCALING "}}}";
    const Config plain = read_good("{\"model\": {" LLAMA "}}", NULL, NULL, NULL);
    Config c = read_good(text, NULL, NULL, NULL);
    const RopeScaling *rope = &c.model.rope_scaling;
    assert_int_equal(rope->rope_type, ROPE_SCALING_LLAMA3);
    assert_true(rope->factor == 8 && rope->low_freq_factor == 1 && rope->high_freq_factor == 4);
    assert_int_equal(rope->original_max_position_embeddings, 64);
    const Config older = read_good("{\"model\": {" LLAMA ", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, "
                                   "\"low_freq_factor\": 1, \"high_freq_factor\": 4, \"original_max_position_embeddings\": 64}}}",
                                   NULL, NULL, NULL);
    assert_same(&c, &older);
    const Config flag = read_good("{\"model\": {" LLAMA "}}", "model.rope_scaling={" SCALING "}", NULL, NULL);
    assert_same(&c, &flag);
    Config other = read_good(text, "model.rope_scaling.factor=32", NULL, NULL);
    assert_true(other.model.rope_scaling.factor == 32 && other.model.rope_scaling.low_freq_factor == 1);
    other = read_good(text, "model.rope_scaling=null", NULL, NULL);
    assert_same(&other, &plain);
    other = read_good("{\"model\": {" LLAMA ", \"rope_scaling\": {\"rope_type\": \"default\"}}}", NULL, NULL, NULL);
    assert_same(&other, &plain);
}

static void test_hostile_files(void **state) {
    (void)state;
    Config config;
    assert_int_equal(config_read(&config, "missing.json", NULL, 0), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "missing.json: cannot open: No such file or directory");
    assert_int_equal(config_read(&config, ".", NULL, 0), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "Is a directory"));

    FILE *file = fopen("zero.json", "wb");
    fwrite("{\"seed\": 1}\0", 1, 12, file);
    fclose(file);
    assert_int_equal(config_read(&config, "zero.json", NULL, 0), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "zero.json: line 1: wanted nothing after the end of the JSON value, found the byte 0x00");

    assert_int_equal(truncate("zero.json", 16 * 1024 * 1024 + 1), 0);
    assert_int_equal(config_read(&config, "zero.json", NULL, 0), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "zero.json: larger than 16777216 bytes");

    file = fopen("deep.json", "wb");
    for (int i = 0; i < 100000; i++) fputs("{\"model\":", file);
    fclose(file);
    assert_int_equal(config_read(&config, "deep.json", NULL, 0), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "deep.json: line 1: nested deeper than 100 levels");

    write_text("nested.json", "{\"model\": {\"model\": {\"model\": {}}}}");
    assert_int_equal(config_read(&config, "nested.json", NULL, 0), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "nested.json: model.model: unknown key; the nearest is "));
}

// Random changes to a good config: whatever comes out is a checked config or an error that names the file.
static void test_mutated(void **state) {
    (void)state;
    static const char alphabet[] = "{}[]\",:0123456789.eE+-truefalsn\\u \n\x01\xff";
    uint64_t random = 1;
    int good = 0, bad = 0;
    for (int i = 0; i < 5000; i++) {
        char text[sizeof default_text];
        memcpy(text, default_text, sizeof text);
        const int changes = 1 + i % 3;
        for (int j = 0; j < changes; j++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            text[(random >> 33) % (sizeof text - 1)] = alphabet[(random >> 20) % (sizeof alphabet - 1)];
        }
        Config config;
        cJSON *json = NULL;
        int status = strict_json_parse(&json, text, sizeof text - 1);
        if (!status) {
            status = config_from_json(&config, json, "name");
            if (status) assert_int_equal(strncmp(error_text(), "name: ", 6), 0);
            else assert_int_equal(config_check(&config, "name"), STATUS_OK);
        }
        cJSON_Delete(json);
        assert_true(status == STATUS_OK || (status == STATUS_BAD_INPUT && error_text()[0]));
        status ? bad++ : good++;
    }
    assert_true(good > 50 && bad > 1000);                                   // both ways were taken
}

// ---- extends ----

static void test_extends(void **state) {
    (void)state;
    assert_int_equal(make_directories("sub/deeper"), STATUS_OK);
    write_text("sub/deeper/base.json", "{\"seed\": 1, \"run_dir\": \"runs/x\", "
                                       "\"train\": {\"steps\": 1, \"batch_size\": 8, \"micro_batch_size\": 2}, "
                                       "\"model\": {\"num_key_value_heads\": 2}}");
    write_text("sub/middle.json", "{\"train\": {\"steps\": 2, \"micro_batch_size\": null}, "
                                  "\"extends\": \"deeper/base.json\", \"seed\": 2}");
    write_text("top.json", "{\"extends\": \"sub/middle.json\", \"seed\": 3, \"model\": {\"num_key_value_heads\": null}}");
    Config c;
    if (config_read(&c, "top.json", NULL, 0)) fail_msg("%s", error_text());
    assert_int_equal(c.seed, 3);
    assert_int_equal(c.train.steps, 2);
    assert_int_equal(c.train.batch_size, 8);
    assert_int_equal(c.train.micro_batch_size, 8);                          // null: derived again
    assert_int_equal(c.model.K, 4);
    assert_string_equal(c.run_dir, "runs/x");                               // a path in the base stays as it is
    // relative to the file that says so, wherever one stands; absolute paths as they are
    char absolute[600], text[700];
    snprintf(absolute, sizeof absolute, "%s/top.json", directory);
    snprintf(text, sizeof text, "{\"extends\": \"%s\"}", absolute);
    write_text("sub/absolute.json", text);
    assert_int_equal(chdir("sub/deeper"), 0);
    Config from_below;
    if (config_read(&from_below, "../absolute.json", NULL, 0)) fail_msg("%s", error_text());
    assert_int_equal(chdir(directory), 0);
    assert_same(&c, &from_below);
    const Config none = read_good("{\"extends\": null}", NULL, NULL, NULL), empty = read_good("{}", NULL, NULL, NULL);
    assert_same(&none, &empty);
}

static void refused(const char *path, const char *message) {
    Config config;
    assert_int_equal(config_read(&config, path, NULL, 0), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), message);
}

static void test_extends_mistakes(void **state) {
    (void)state;
    assert_int_equal(make_directories("e"), STATUS_OK);
    write_text("e/missing.json", "{\"extends\": \"none.json\"}");
    refused("e/missing.json", "e/missing.json: extends: e/none.json: cannot be opened: No such file or directory");
    write_text("e/number.json", "{\"extends\": 5}");
    refused("e/number.json", "e/number.json: extends: wanted a path or null, found 5");
    write_text("e/empty.json", "{\"extends\": \"\"}");
    refused("e/empty.json", "e/empty.json: extends: wanted a path or null, found the text \"\"");
    write_text("e/self.json", "{\"extends\": \"../e/self.json\"}");
    refused("e/self.json", "e/self.json: extends: e/../e/self.json is being read already: the files extend each other in a cycle");
    write_text("e/x.json", "{\"extends\": \"y.json\"}");
    write_text("e/y.json", "{\"extends\": \"x.json\"}");
    refused("e/x.json", "e/y.json: extends: e/x.json is being read already: the files extend each other in a cycle");
    assert_int_equal(symlink("x.json", "e/link.json"), 0);
    refused("e/link.json", "e/y.json: extends: e/x.json is being read already: the files extend each other in a cycle");
    write_text("e/directory.json", "{\"extends\": \"../e\"}");
    refused("e/directory.json", "e/../e: cannot read: Is a directory");

    // mistakes in a base are the base's; relations are blamed on the file that spoke last
    write_text("e/base.json", "{\n\n\"train\": {\"batch_size\": 10},}");
    write_text("e/top.json", "{\"extends\": \"base.json\", \"train\": {\"micro_batch_size\": 4}}");
    refused("e/top.json", "e/base.json: line 3: wanted a key in double quotes, found }");
    write_text("e/base.json", "{\"train\": {\"batch_size\": \"10\"}}");
    refused("e/top.json", "e/base.json: train.batch_size: wanted an integer from 1 to 2^24, found the text \"10\"");
    write_text("e/base.json", "{\"train\": {\"batch_size\": 10}}");
    refused("e/top.json", "e/top.json: train.batch_size: 10 is not a multiple of train.micro_batch_size (4)");
    write_text("e/base.json", "{\"train\": {\"batch_size\": 10, \"micro_batch_size\": 4}}");
    write_text("e/top.json", "{\"extends\": \"base.json\", \"seed\": 1}");
    refused("e/top.json", "e/base.json: train.batch_size: 10 is not a multiple of train.micro_batch_size (4)");

    for (int i = 0; i < 17; i++) {
        char text[100];
        snprintf(text, sizeof text, "{\"extends\": \"chain%d.json\", \"seed\": %d}", i + 1, i);
        write_text(path_of("chain%d.json", i), i < 16 ? text : "{}");
    }
    refused("chain0.json", "chain15.json: extends: a chain of more than 16 files");
    Config config;
    if (config_read(&config, "chain1.json", NULL, 0)) fail_msg("%s", error_text());
    assert_int_equal(config.seed, 1);
}

// ---- JSON that is parsed already ----

static void test_from_json(void **state) {
    (void)state;
    static const struct { const char *text, *message; } cases[] = {
        {"{\"extends\": \"b.json\"}", "state.json: extends: only a config file can extend another"},
        {"[]", "state.json: wanted an object with sections, found an array"},
        {"{\"train\": {\"stps\": 1}}", "state.json: train.stps: unknown key; the nearest is train.steps"},
        {"{\"train\": {\"steps\": 1e999}}", "state.json: train.steps: wanted an integer from 0 to 2^53, found null"},
        {"{\"train\": {\"steps\": 1, \"steps\": 2}}", "state.json: train.steps: given twice"},
        {"{\"train\": {\"batch_size\": 3, \"micro_batch_size\": 2}}",
         "state.json: train.batch_size: 3 is not a multiple of train.micro_batch_size (2)"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Config config;
        cJSON *json = cJSON_Parse(cases[i].text);               // cJSON's own, careless parser
        assert_non_null(json);
        assert_int_equal(config_from_json(&config, json, "state.json"), STATUS_BAD_INPUT);
        assert_string_equal(error_text(), cases[i].message);
        cJSON_Delete(json);
    }
}

static void assert_round_trip(const Config *config) {
    Config back;
    cJSON *json = config_to_json(config), *parsed;
    char *printed[] = {cJSON_Print(json), cJSON_PrintUnformatted(json), json_text_print(json, true)};
    memset(&back, 0x5a, sizeof back);
    if (config_from_json(&back, json, "tree")) fail_msg("%s", error_text());
    assert_same(&back, config);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(strict_json_parse(&parsed, printed[i], strlen(printed[i])), STATUS_OK);
        memset(&back, 0x5a, sizeof back);
        if (config_from_json(&back, parsed, "text")) fail_msg("%s: %s", error_text(), printed[i]);
        cJSON_Delete(parsed);
        assert_same(&back, config);
        cJSON_free(printed[i]);
    }
    cJSON_Delete(json);
}

static void test_round_trip(void **state) {
    (void)state;
    Config c = read_good(
        "{\"run_dir\": \"a \\\"b\\\" \\\\ \\u00e9\\n\\t\\u0001\", \"seed\": 9007199254740991,"
        "\"model\": {\"norm_eps\": 1e-6, " LLAMA ", \"rope_scaling\": {" SCALING "}},"
        "\"optimizer\": {\"lr\": 0.1000000000000000055511151231257827021181583404541015625, \"beta1\": 0.30000000000000004,"
        "                \"eps\": 1.0000000000000002e-8, \"weight_decay\": 5e-324},"
        "\"schedule\": {\"warmup_steps\": 9007199254740991}, \"sample\": {\"prompt\": \"\\ud83d\\ude00\"}}", NULL, NULL, NULL);
    assert_true(c.seed == 9007199254740991u && c.optimizer.beta1 == 0.1 + 0.2);
    assert_round_trip(&c);
    config_defaults(&c);
    assert_round_trip(&c);
    // Doubles of random bits, and seeds of 53 random bits.
    uint64_t random = 7;
    for (int i = 0; i < 300; i++) {
        double *const fields[] = {&c.optimizer.lr, &c.optimizer.beta1, &c.optimizer.weight_decay, &c.model.rope_theta,
                                  &c.schedule.min_lr_ratio};
        for (size_t j = 0; j < COUNT(fields); j++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            const double unit = (double)(random >> 11) * 0x1p-53;
            *fields[j] = ldexp(0.5 + unit / 2, -(int)((random >> 3) % 200));
        }
        c.seed = random >> 11;
        assert_round_trip(&c);
    }
}

static void test_check(void **state) {
    (void)state;
    Config c;
    memset(&c, 0, sizeof c);
    assert_int_equal(config_check(&c, "made"), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "made: model.vocab_size: wanted an integer from 2 to 2^24, found 0");
    config_defaults(&c);
    c.train.micro_batch_size = 3;
    assert_int_equal(config_check(&c, "made"), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "made: train.batch_size: 16 is not a multiple of train.micro_batch_size (3)");
    config_defaults(&c);
    c.optimizer.lr = NAN;
    assert_int_equal(config_check(&c, "made"), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "made: optimizer.lr: wanted a number of at least 0, found null");
    config_defaults(&c);
    memcpy(&c.attention.type, &(int){99}, sizeof(int));
    assert_int_equal(config_check(&c, "made"), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "made: attention.type: wanted one of baseline, off_by_one, sink, affine, found 99");
}

// ---- resuming ----

static int override(Config *config, const char *flag1, const char *flag2, const char *flag3) {
    Override overrides[FLAGS];
    return config_override_resumed(config, overrides, split_flags(overrides, (const char *const[]){flag1, flag2, flag3}));
}

static void test_resumed(void **state) {
    (void)state;
    const Config saved = read_good("{\"run_dir\": \"r\", \"train\": {\"micro_batch_size\": 4}, "
                                   "\"model\": {\"tie_word_embeddings\": false}}", NULL, NULL, NULL);
    Config c = saved;
    assert_int_equal(override(&c, NULL, NULL, NULL), STATUS_OK);
    assert_same(&c, &saved);
    // one key of each section that may change
    assert_int_equal(override(&c, "train.steps=900", "eval.batches=3", "checkpoint.keep=7"), STATUS_OK);
    assert_int_equal(override(&c, "diagnostics.every=0", "sample.prompt=Hi", "compute.threads=2"), STATUS_OK);
    Config wanted = saved;
    wanted.train.steps = 900;
    wanted.eval.batches = 3;
    wanted.checkpoint.keep = 7;
    wanted.diagnostics.every = 0;
    wanted.compute.threads = 2;
    strcpy(wanted.sample.prompt, "Hi");
    assert_same(&c, &wanted);

#define FROZEN ": --resume cannot change this, only train.steps and the sections eval, checkpoint, sample, diagnostics and compute"
    static const struct { const char *flag, *message; } cases[] = {
        {"train.batch_size=16", "--train.batch_size=16" FROZEN},
        {"run_dir=b", "--run_dir=b" FROZEN},
        {"model.rope_scaling=null", "--model.rope_scaling=null" FROZEN},
        {"evl.every=1", "--evl.every=1: unknown key; the nearest is eval.every"},
        {"eval=1", "--eval=1: is a section; give its keys, as in --eval.key=value"},
        {"eval.every=-1", "--eval.every=-1: wanted an integer from 0 to 2^53, found -1"},
        {"train.steps=9007199254740992",
         "--train.steps=9007199254740992: times batch_size (16) times sequence_length (128) is over 2^53 tokens"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(override(&c, "eval.batches=9", cases[i].flag, NULL), STATUS_BAD_INPUT);
        assert_string_equal(error_text(), cases[i].message);
        assert_same(&c, &wanted);                               // nothing half changed
    }
}

// Each key of the config is either refused or taken, as the design says.
static void test_resumable_keys(void **state) {
    (void)state;
    static const char *const may[] = {"eval", "checkpoint", "diagnostics", "sample", "compute"};
    Config defaults;
    config_defaults(&defaults);
    cJSON *json = config_to_json(&defaults);
    int taken = 0, refusals = 0;
    for (const cJSON *section = json->child; section; section = section->next) {
        for (const cJSON *item = section->child ? section->child : section; item; item = section->child ? item->next : NULL) {
            char name[100], flag[400], *value = cJSON_IsString(item) ? strdup(item->valuestring) : cJSON_PrintUnformatted(item);
            snprintf(name, sizeof name, "%s%s%s", section->child ? section->string : "", section->child ? "." : "", item->string);
            snprintf(flag, sizeof flag, "%s=%s", name, value);
            bool wanted = strcmp(name, "train.steps") == 0;
            for (size_t i = 0; i < COUNT(may); i++) wanted |= strcmp(section->string, may[i]) == 0;
            Config c = defaults;
            const int status = override(&c, flag, NULL, NULL);
            if (status != (wanted ? STATUS_OK : STATUS_BAD_INPUT)) fail_msg("--%s: status %d", flag, status);
            if (!wanted) assert_non_null(strstr(error_text(), "--resume cannot change this"));
            wanted ? taken++ : refusals++;
            free(value);
        }
    }
    cJSON_Delete(json);
    assert_int_equal(taken, 15);
    assert_true(refusals > 40);
}

// ---- names, help, docs ----

static void test_names(void **state) {
    (void)state;
    assert_string_equal(attention_type_name(ATTENTION_BASELINE), "baseline");
    assert_string_equal(attention_type_name(ATTENTION_OFF_BY_ONE), "off_by_one");
    assert_string_equal(attention_type_name(ATTENTION_SINK), "sink");
    assert_string_equal(attention_type_name(ATTENTION_AFFINE), "affine");
    assert_string_equal(gate_name(GATE_NONE), "none");
    assert_string_equal(gate_name(GATE_HEADWISE), "headwise");
    assert_string_equal(gate_name(GATE_ELEMENTWISE), "elementwise");
    assert_string_equal(arch_name(ARCH_GPT2), "gpt2");
    assert_string_equal(arch_name(ARCH_LLAMA), "llama");
    assert_string_equal(arch_name(ARCH_QWEN2), "qwen2");
    assert_string_equal(dtype_name(DTYPE_FP32), "fp32");
    assert_string_equal(dtype_name(DTYPE_BF16), "bf16");
    assert_string_equal(recompute_name(RECOMPUTE_NONE), "none");
    assert_string_equal(recompute_name(RECOMPUTE_ATTENTION), "attention");
    assert_string_equal(recompute_name(RECOMPUTE_BLOCK), "block");
    const Config c = read_good("{}", "attention.affine_activation=sigmoid", "schedule.type=linear", NULL);
    assert_int_equal(c.attention.affine_activation, AFFINE_SIGMOID);
    assert_int_equal(c.schedule.type, SCHEDULE_LINEAR);
    int distance;
    assert_string_equal(config_nearest_key("train.steps", &distance), "train.steps");
    assert_int_equal(distance, 0);
    assert_string_equal(config_nearest_key("train", &distance), "train");
    assert_int_equal(distance, 0);
    assert_string_equal(config_nearest_key("train.step", &distance), "train.steps");
    assert_int_equal(distance, 1);
}

static char *help(const char *key, int status) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(config_help(out, key), status);
    fclose(out);
    return text;
}

static void test_help(void **state) {
    (void)state;
    static const struct { const char *key, *text; } cases[] = {
        {"optimizer.lr", "optimizer.lr\n    AdamW's learning rate at its highest\n    a number of at least 0; default: 0.001\n"},
        {"checkpoint.keep", "checkpoint.keep\n    how many of the newest checkpoints stay\n"
                            "    an integer from 1 to 2^24, in checkpoints; default: 2; --resume may change it\n"},
        {"model.head_dim", "model.head_dim\n"
                           "    width of a head; times num_attention_heads it is hidden_size for gpt2; even for llama and qwen2\n"
                           "    an integer from 1 to 2^16 or null; default: model.hidden_size / model.num_attention_heads\n"},
        {"diagnostics", "diagnostics.every\n    steps between attention diagnostics in the log; 0: none\n"
                        "    an integer from 0 to 2^53, in steps; default: 10; --resume may change it\n"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *text = help(cases[i].key, STATUS_OK);
        assert_string_equal(text, cases[i].text);
        free(text);
    }
    char *text = help("optimizer.rl", STATUS_BAD_INPUT);
    assert_string_equal(text, "");
    assert_string_equal(error_text(), "help optimizer.rl: unknown key; the nearest is optimizer.lr");
    free(text);
    text = help("model.rope_scaling", STATUS_OK);
    assert_non_null(strstr(text, "model.rope_scaling\n"));
    assert_non_null(strstr(text, "model.rope_scaling.factor\n"));
    assert_null(strstr(text, "model.rope_theta\n"));
    free(text);
}

// How often a line stands in a text.
static int count_lines(const char *text, const char *line) {
    int n = 0;
    for (const size_t length = strlen(line); *text; text += strcspn(text, "\n"), text += *text == '\n')
        n += strncmp(text, line, length) == 0 && text[length] == '\n';
    return n;
}

// Every key of the config stands once in the help of all keys.
static void test_help_is_complete(void **state) {
    (void)state;
    Config config;
    config_defaults(&config);
    config.model.rope_scaling.rope_type = ROPE_SCALING_LLAMA3;
    cJSON *json = config_to_json(&config);
    char *text = help(NULL, STATUS_OK), name[200];
    for (const cJSON *section = json->child; section; section = section->next) {
        if (!section->child) assert_int_equal(count_lines(text, section->string), 1);
        for (const cJSON *item = section->child; item; item = item->next) {
            snprintf(name, sizeof name, "%s.%s", section->string, item->string);
            assert_int_equal(count_lines(text, name), 1);
            for (const cJSON *inner = item->child; inner; inner = inner->next) {
                snprintf(name, sizeof name, "%s.%s.%s", section->string, item->string, inner->string);
                assert_int_equal(count_lines(text, name), 1);
            }
        }
    }
    assert_int_equal(count_lines(text, "extends"), 1);
    free(text);
    cJSON_Delete(json);
}

static void test_docs(void **state) {
    (void)state;
    char *text = help("--markdown", STATUS_OK), *page = read_file(path_of("%s/docs/config.md", root), NULL);
    if (strcmp(text, page) != 0) fail_msg("docs/config.md is not what the table says; write it with: make docs");
    assert_non_null(strstr(page, "\n| `train.steps` | an integer from 0 to 2^53 | steps | 500 | R | "
                                 "optimizer steps; 0 saves the initial weights |\n"));
    free(text);
    free(page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),        cmocka_unit_test(test_derived),          cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_long_text),       cmocka_unit_test(test_ranges),           cmocka_unit_test(test_set),
        cmocka_unit_test(test_flags),           cmocka_unit_test(test_rope_scaling),     cmocka_unit_test(test_hostile_files),
        cmocka_unit_test(test_mutated),         cmocka_unit_test(test_extends),          cmocka_unit_test(test_extends_mistakes),
        cmocka_unit_test(test_from_json),       cmocka_unit_test(test_round_trip),       cmocka_unit_test(test_check),
        cmocka_unit_test(test_resumed),         cmocka_unit_test(test_resumable_keys),   cmocka_unit_test(test_names),
        cmocka_unit_test(test_help),            cmocka_unit_test(test_help_is_complete), cmocka_unit_test(test_docs),
    };
    return cmocka_run_group_tests(tests, enter_directory, leave_directory);
}
