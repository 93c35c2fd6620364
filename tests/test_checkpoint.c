// core/checkpoint: what was written comes back, in the file's layout; whole or absent, whatever happens; and tensors that do not fit.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "core/checkpoint.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hf_config.h"
#include "core/json_text.h"
#include "core/safetensors.h"
#include "core/version.h"
#include "support.h"

static char directory[256];
static Config config;
static ParameterTable table;

static void build(Arch arch, AttentionType type, GateType gate, bool tied) {
    config.model = (ModelConfig){
        .arch = arch, .V = 11, .C = 12, .L = 2, .H = 2, .K = arch == ARCH_GPT2 ? 2 : 1, .D = 6, .intermediate_size = 70,
        .max_position_embeddings = 128, .tie_word_embeddings = tied, .rope_theta = 10000, .norm_eps = 1e-5, .initializer_range = 0.02,
    };
    config.attention.type = type;
    config.attention.gate = gate;
    parameter_table_free(&table);
    assert_int_equal(parameter_table_build(&table, &config.model, &config.attention, 0, 1), 0);
}

static int setup(void **state) {
    (void)state;
    make_directory(directory);
    config_defaults(&config);
    snprintf(config.run_dir, sizeof config.run_dir, "%s/run", directory);
    config.train.batch_size = 6, config.train.micro_batch_size = 3, config.train.sequence_length = 100;
    memset(&table, 0, sizeof table);
    build(ARCH_GPT2, ATTENTION_AFFINE, GATE_HEADWISE, true);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    parameter_table_free(&table);
    remove_directory(directory);
    return 0;
}

// A file or directory of the run.
static const char *in_run(const char *name) {
    return path_of("%s/%s", config.run_dir, name);
}

// The value at memory index i, a float: a different one for each tensor, part and writing.
static float value(const Tensor *tensor, CheckpointPart part, size_t i, int writing) {
    return (float)(tensor - table.tensors) + 1000.0f * part + (float)i / 1024 + 0.25f * writing;
}

static int write_part(CheckpointWriter *writer, CheckpointPart part, const Tensor *tensor, int writing) {
    enum { PIECE = 7 };
    int status = 0;
    for (size_t first = 0; first < tensor->count && !status; first += PIECE) {
        double values[PIECE];
        size_t n = tensor->count - first < PIECE ? tensor->count - first : PIECE;
        for (size_t i = 0; i < n; i++) values[i] = value(tensor, part, first + i, writing);
        status = checkpoint_write(writer, part, tensor, values, first, n);
    }
    return status;
}

static int write_all_parts(CheckpointWriter *writer, int writing) {
    int status = 0;
    for (CheckpointPart part = CHECKPOINT_WEIGHTS; part <= CHECKPOINT_EXP_AVG_SQ; part++) {
        for (int i = 0; i < (part ? table.parameter_tensors : table.tensor_count) && !status; i++) {
            status = write_part(writer, part, &table.tensors[i], writing);
        }
    }
    return status;
}

static void save(long step, int writing, const char *tokenizer) {
    CheckpointWriter *writer;
    if (checkpoint_create(&writer, &config, &table, step, tokenizer)) fail_msg("%s", error_text());
    if (write_all_parts(writer, writing)) fail_msg("%s", error_text());
    if (checkpoint_commit(writer)) fail_msg("%s", error_text());
}

static void expect_part(CheckpointReader *reader, CheckpointPart part, const Tensor *tensor, int writing) {
    enum { PIECE = 5 };
    for (size_t first = 0; first < tensor->count; first += PIECE) {
        double values[PIECE];
        size_t n = tensor->count - first < PIECE ? tensor->count - first : PIECE;
        if (checkpoint_read(reader, part, tensor, values, first, n)) fail_msg("%s", error_text());
        for (size_t i = 0; i < n; i++) {
            if (values[i] != value(tensor, part, first + i, writing)) fail_msg("%s[%zu] is %g", tensor->name, first + i, values[i]);
        }
    }
}

static void expect_saved(const char *name, int writing) {
    CheckpointReader *reader;
    if (checkpoint_open(&reader, in_run(name))) fail_msg("%s", error_text());
    if (checkpoint_check(reader, &table, true)) fail_msg("%s", error_text());
    for (CheckpointPart part = CHECKPOINT_WEIGHTS; part <= CHECKPOINT_EXP_AVG_SQ; part++) {
        int count = part ? table.parameter_tensors : table.tensor_count;
        for (int i = 0; i < count; i++) expect_part(reader, part, &table.tensors[i], writing);
    }
    checkpoint_close(reader);
}

static void expect_list(const char *name, const char *wanted) {
    char *found = list_directory(in_run(name));
    assert_string_equal(found, wanted);
    free(found);
}

static void expect_newest(long wanted, const char *name) {
    char found[PATH_SIZE] = "";
    long step;
    assert_int_equal(checkpoint_newest(config.run_dir, found, &step), 0);
    assert_int_equal(step, wanted);
    if (wanted >= 0) assert_string_equal(found, in_run(name));
}

// ---- what was written comes back ----

static void comes_back(void **state) {
    (void)state;
    static const struct { Arch arch; AttentionType type; GateType gate; bool tied; } cases[] = {
        { ARCH_GPT2, ATTENTION_AFFINE, GATE_HEADWISE, true }, { ARCH_GPT2, ATTENTION_BASELINE, GATE_NONE, false },
        { ARCH_LLAMA, ATTENTION_SINK, GATE_NONE, true }, { ARCH_QWEN2, ATTENTION_AFFINE, GATE_ELEMENTWISE, false },
        { ARCH_LLAMA, ATTENTION_OFF_BY_ONE, GATE_NONE, false },
    };
    write_text(path_of("%s/tokenizer-of-mine.json", directory), "{\"any\": 1}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        build(cases[i].arch, cases[i].type, cases[i].gate, cases[i].tied);
        save((long)i, 0, path_of("%s/tokenizer-of-mine.json", directory));
        const char *name = path_of("checkpoints/step-%08zu", i);
        expect_saved(name, 0);
        bool stock = cases[i].type == ATTENTION_BASELINE && cases[i].gate == GATE_NONE;
        expect_list(name, stock ? "config.json model.safetensors optimizer.safetensors tokenizer.json "
                                  "tokenizer_config.json trainer_state.json "
                                : "config.json model.safetensors modeling_train_gpt.py optimizer.safetensors tokenizer.json "
                                  "tokenizer_config.json trainer_state.json ");
        if (!stock) assert_same_file(in_run(path_of("%s/modeling_train_gpt.py", name)), "scripts/hf/modeling_train_gpt.py");
        assert_same_file(in_run(path_of("%s/tokenizer.json", name)), path_of("%s/tokenizer-of-mine.json", directory));
        char *text = read_file(in_run(path_of("%s/tokenizer_config.json", name)), NULL);
        assert_non_null(strstr(text, "PreTrainedTokenizerFast"));
        free(text);
    }
    write_text(path_of("%s/tokenizer_config.json", directory), "{\"mine\": true}");
    save(4, 0, path_of("%s/tokenizer-of-mine.json", directory));
    assert_same_file(in_run("checkpoints/step-00000004/tokenizer_config.json"), path_of("%s/tokenizer_config.json", directory));
    expect_list("checkpoints", "step-00000000 step-00000001 step-00000002 step-00000003 step-00000004 ");
}

// gpt2's matrices lie in the file as Hugging Face has them: the transpose of memory.
static void transposes_as_the_table_says(void **state) {
    (void)state;
    save(1, 0, NULL);
    SafetensorsReader *file;
    int transposed = 0;
    assert_int_equal(safetensors_open(&file, in_run("checkpoints/step-00000001/model.safetensors")), 0);
    for (int t = 0; t < table.tensor_count; t++) {
        const Tensor *tensor = &table.tensors[t];
        const SafetensorsInfo *info = safetensors_find(file, tensor->name);
        double *values = malloc(tensor->count * sizeof *values);
        assert_non_null(info);
        assert_int_equal(info->type, SAFETENSORS_F32);
        assert_int_equal(safetensors_read(file, info, values, 0, tensor->count), 0);
        size_t in = info->shape[0], out = tensor->dimensions == 2 ? info->shape[1] : 1;
        for (size_t i = 0; i < in; i++) {
            for (size_t o = 0; o < out; o++) {
                double wanted = value(tensor, CHECKPOINT_WEIGHTS, tensor->transposed ? o * in + i : i * out + o, 0);
                assert_true(values[i * out + o] == wanted);
            }
        }
        transposed += tensor->transposed;
        free(values);
    }
    assert_int_equal(transposed, 4 * config.model.L);
    const SafetensorsInfo *c_attn = safetensors_find(file, "transformer.h.1.attn.c_attn.weight");
    assert_true(c_attn->shape[0] == 12 && c_attn->shape[1] == 36);
    assert_non_null(safetensors_find(file, "transformer.h.0.attn.alpha_ma"));
    assert_null(safetensors_find(file, "lm_head.weight"));      // tied: not stored
    safetensors_close(file);
    assert_int_equal(safetensors_open(&file, in_run("checkpoints/step-00000001/optimizer.safetensors")), 0);
    assert_non_null(safetensors_find(file, "transformer.wte.weight.exp_avg"));
    assert_non_null(safetensors_find(file, "transformer.wte.weight.exp_avg_sq"));
    assert_int_equal(safetensors_count(file), 2 * table.parameter_tensors);
    safetensors_close(file);
}

static void keeps_the_trainers_state(void **state) {
    (void)state;
    config.optimizer.lr = 0.1 + 0.2;
    save(5000000, 0, NULL);
    char *text = read_file(in_run("checkpoints/step-05000000/trainer_state.json"), NULL);
    cJSON *json = cJSON_Parse(text), *item = json->child;
    static const char *const keys[] = { "format", "step", "tokens", "version", "config" };
    for (int i = 0; i < 5; i++, item = item->next) assert_string_equal(item->string, keys[i]);
    assert_null(item);
    assert_true(number(json, "format") == 1 && number(json, "step") == 5e6 && number(json, "tokens") == 5e6 * 600);
    assert_string_equal(cJSON_GetObjectItem(json, "version")->valuestring, program_version());
    cJSON_Delete(json);
    free(text);

    CheckpointReader *reader;
    assert_int_equal(checkpoint_open(&reader, in_run("checkpoints/step-05000000")), 0);
    assert_int_equal(checkpoint_step(reader), 5000000);
    assert_memory_equal(&checkpoint_config(reader)->optimizer, &config.optimizer, sizeof config.optimizer);
    assert_string_equal(checkpoint_config(reader)->run_dir, config.run_dir);
    assert_int_equal(checkpoint_model(reader)->intermediate_size, 70);
    assert_int_equal(checkpoint_attention(reader)->type, ATTENTION_AFFINE);
    checkpoint_close(reader);
}

// ---- which checkpoints there are ----

static void make_checkpoint(const char *name, bool complete) {
    static const char *const files[] = { "config.json", "model.safetensors", "optimizer.safetensors", "trainer_state.json" };
    assert_int_equal(make_directories(in_run(path_of("checkpoints/%s", name))), 0);
    for (int i = complete ? 0 : 1; i < 4; i++) write_text(in_run(path_of("checkpoints/%s/%s", name, files[i])), "x");
}

static void finds_the_newest_whole_one(void **state) {
    (void)state;
    expect_newest(-1, NULL);                                    // no run
    assert_int_equal(make_directories(in_run("checkpoints")), 0);
    expect_newest(-1, NULL);
    make_checkpoint("step-00000002", true);
    make_checkpoint("step-00000010", true);
    make_checkpoint("step-00000099", false);
    make_checkpoint("step-500", true);                          // not a name that is ever written
    make_checkpoint("step-000000500", true);
    make_checkpoint("step-0000050x", true);
    make_checkpoint("step-00000500.old", true);
    make_checkpoint("step--0000500", true);
    make_checkpoint("step-99999999999999999999", true);
    make_checkpoint(".writing-step-00000500", true);
    make_checkpoint(".removing-step-00000400", true);
    write_text(in_run("checkpoints/step-00000600"), "a file");
    expect_newest(10, "checkpoints/step-00000010");
    make_checkpoint("step-99999999", true);
    make_checkpoint("step-100000000", true);                    // more digits than eight: compared as numbers
    expect_newest(100000000, "checkpoints/step-100000000");
    make_checkpoint("step-00000000", true);
    write_text(in_run("checkpoints/step-100000000/optimizer.safetensors"), "");
    expect_newest(99999999, "checkpoints/step-99999999");       // an empty file is not a whole checkpoint
}

static void prunes_old_ones_and_leftovers(void **state) {
    (void)state;
    assert_int_equal(checkpoint_prune(config.run_dir, 2), 0);   // no run: nothing to do
    for (int i = 1; i <= 4; i++) make_checkpoint(path_of("step-%08d", i), true);
    make_checkpoint("step-00000009", false);
    make_checkpoint(".writing-step-00000005", false);
    make_checkpoint(".removing-step-00000007", false);
    make_checkpoint(".replaced-step-00000004", true);
    make_checkpoint(".replaced-step-00000008", true);           // its replacement never came: it stays for a person to see
    make_checkpoint(".writing-notes", false);                   // not ours
    assert_int_equal(checkpoint_prune(config.run_dir, 0), 0);
    expect_list("checkpoints", ".replaced-step-00000008 .writing-notes step-00000001 step-00000002 step-00000003 step-00000004 "
                               "step-00000009 ");
    assert_int_equal(checkpoint_prune(config.run_dir, 5), 0);
    assert_int_equal(checkpoint_prune(config.run_dir, 2), 0);
    expect_list("checkpoints", ".replaced-step-00000008 .writing-notes step-00000003 step-00000004 step-00000009 ");
}

// ---- whatever happens ----

static void replaces_one_of_the_same_step(void **state) {
    (void)state;
    save(5, 0, NULL);
    save(5, 1, NULL);
    expect_saved("checkpoints/step-00000005", 1);
    expect_list("checkpoints", "step-00000005 ");
}

// Killed at every stage: before, the old one is there; after, the new one; never half of one.
static void a_killed_write_changes_nothing(void **state) {
    (void)state;
    save(5, 0, NULL);
    for (int stage = 0; stage < 5; stage++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            CheckpointWriter *writer;
            int status = checkpoint_create(&writer, &config, &table, stage < 3 ? 5 : 6, NULL);
            if (!status && stage > 0) status = write_part(writer, CHECKPOINT_WEIGHTS, &table.tensors[0], 1);
            if (!status && stage > 1) status = write_part(writer, CHECKPOINT_EXP_AVG, &table.tensors[1], 1);
            raise(SIGKILL);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        expect_newest(5, "checkpoints/step-00000005");
        expect_saved("checkpoints/step-00000005", 0);
    }
    save(6, 1, NULL);                                           // over what the killed one left
    expect_saved("checkpoints/step-00000006", 1);
    assert_int_equal(checkpoint_prune(config.run_dir, 5), 0);
    expect_list("checkpoints", "step-00000005 step-00000006 ");
}

static void an_abandoned_or_incomplete_one_leaves_nothing(void **state) {
    (void)state;
    CheckpointWriter *writer;
    save(5, 0, NULL);
    assert_int_equal(checkpoint_create(&writer, &config, &table, 6, NULL), 0);
    assert_int_equal(write_part(writer, CHECKPOINT_WEIGHTS, &table.tensors[0], 0), 0);
    checkpoint_abandon(writer);
    expect_list("checkpoints", "step-00000005 ");

    assert_int_equal(checkpoint_create(&writer, &config, &table, 5, NULL), 0);
    for (int i = 1; i < table.tensor_count; i++) assert_int_equal(write_part(writer, CHECKPOINT_WEIGHTS, &table.tensors[i], 1), 0);
    assert_int_equal(checkpoint_commit(writer), STATUS_FAILED);
    assert_non_null(strstr(error_text(), "was not written whole"));
    expect_list("checkpoints", "step-00000005 ");
    expect_saved("checkpoints/step-00000005", 0);

    assert_int_equal(checkpoint_create(&writer, &config, &table, 6, "/no/such/tokenizer.json"), STATUS_FAILED);
    assert_non_null(strstr(error_text(), "/no/such/tokenizer.json"));
    expect_list("checkpoints", "step-00000005 ");

    const Tensor *transposed = table.tensors;
    while (!transposed->transposed) transposed++;
    const double values[2] = { 0 };
    assert_int_equal(checkpoint_create(&writer, &config, &table, 6, NULL), 0);
    assert_int_equal(checkpoint_write(writer, CHECKPOINT_WEIGHTS, transposed, values, 0, 2), 0);
    assert_int_equal(checkpoint_write(writer, CHECKPOINT_WEIGHTS, transposed, values, 3, 2), STATUS_FAILED);
    assert_non_null(strstr(error_text(), "out of order"));
    assert_int_equal(checkpoint_write(writer, CHECKPOINT_EXP_AVG, &table.tensors[table.tensor_count - 1], values, 0, 2), STATUS_FAILED);
    assert_non_null(strstr(error_text(), "alpha_ma' is a buffer"));
    checkpoint_abandon(writer);
    expect_list("checkpoints", "step-00000005 ");
}

// A limit on file sizes stands in for a full disk.
static void a_full_disk_keeps_the_last_good_one(void **state) {
    (void)state;
    CheckpointWriter *writer;
    struct rlimit limit, small;
    build(ARCH_GPT2, ATTENTION_BASELINE, GATE_NONE, true);      // no modeling file, which is larger than the limit
    save(5, 0, NULL);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    small = limit;
    small.rlim_cur = 9000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int status = checkpoint_create(&writer, &config, &table, 6, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, before);
    assert_int_equal(status, STATUS_FAILED);
    assert_non_null(strstr(error_text(), "model.safetensors: cannot write: File too large"));
    expect_list("checkpoints", "step-00000005 ");
    expect_saved("checkpoints/step-00000005", 0);
    save(6, 0, NULL);                                           // room again: the same write succeeds
    expect_newest(6, "checkpoints/step-00000006");
}

// ---- directories of others, and tensors that do not fit ----

// What store_foreign does to a tensor's entry: false leaves it out.
typedef bool Change(SafetensorsInfo *info);

// A Hugging Face directory without trainer state: the table's tensors as `change` has them, then `extra` unless it is NULL. All values are
// 0.5.
static const char *store_foreign(Change *change, const SafetensorsInfo *extra) {
    const char *name = path_of("%s/foreign", directory);
    SafetensorsInfo infos[64];
    int count = 0;
    for (int i = 0; i < table.tensor_count; i++) {
        const Tensor *tensor = &table.tensors[i];
        infos[count] = (SafetensorsInfo){ .type = SAFETENSORS_BF16, .dimensions = tensor->dimensions,
                                          .shape = { (uint64_t)tensor->shape[0], (uint64_t)tensor->shape[1] } };
        if (tensor->dimensions == 1) infos[count].shape[1] = 0;
        snprintf(infos[count].name, sizeof infos[count].name, "%s", tensor->name);
        count += !change || change(&infos[count]);
    }
    if (extra) infos[count++] = *extra;
    assert_int_equal(make_directories(name), 0);
    cJSON *json = hf_config_to_json(&config.model, &config.attention);
    char *text = json_text_print(json, true);
    write_text(path_of("%s/config.json", name), text);
    cJSON_Delete(json);
    cJSON_free(text);
    SafetensorsWriter *writer;
    assert_int_equal(safetensors_create(&writer, path_of("%s/model.safetensors", name), infos, count), 0);
    for (int i = 0; i < count; i++) {
        uint64_t n = 1;
        for (int d = 0; d < infos[i].dimensions; d++) n *= infos[i].shape[d];
        double *values = malloc(n * sizeof *values);
        for (uint64_t k = 0; k < n; k++) values[k] = infos[i].type <= SAFETENSORS_BF16 ? 0.5 : 1;
        assert_int_equal(safetensors_write(writer, i, values, 0, n), 0);
        free(values);
    }
    assert_int_equal(safetensors_finish(writer), 0);
    return name;
}

static void expect_accepted(const char *name) {
    CheckpointReader *reader;
    if (checkpoint_open(&reader, name)) fail_msg("%s", error_text());
    assert_int_equal(checkpoint_step(reader), -1);
    assert_null(checkpoint_config(reader));
    if (checkpoint_check(reader, &table, false)) fail_msg("%s", error_text());
    for (int i = 0; i < table.tensor_count; i++) {
        double value;
        assert_int_equal(checkpoint_read(reader, CHECKPOINT_WEIGHTS, &table.tensors[i], &value, table.tensors[i].count - 1, 1), 0);
        assert_true(value == 0.5);
        assert_int_equal(checkpoint_read(reader, CHECKPOINT_EXP_AVG, &table.tensors[i], &value, 0, 1), STATUS_BAD_INPUT);
    }
    assert_int_equal(checkpoint_check(reader, &table, true), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "there is no optimizer.safetensors in it"));
    checkpoint_close(reader);
}

static void expect_refused(const char *name, const char *says) {
    CheckpointReader *reader;
    if (checkpoint_open(&reader, name)) fail_msg("%s", error_text());
    int status = checkpoint_check(reader, &table, false);
    if (status != STATUS_BAD_INPUT) fail_msg("status %d where it should say: %s", status, says);
    if (!strstr(error_text(), says)) fail_msg("the message is: %s", error_text());
    assert_non_null(strstr(error_text(), "/model.safetensors: "));
    checkpoint_close(reader);
}

static bool without_prefix(SafetensorsInfo *info) {
    char name[sizeof info->name];
    strcpy(name, info->name);
    strcpy(info->name, name + (strncmp(name, "transformer.", 12) ? 0 : 12));
    info->type = SAFETENSORS_F16;
    return true;
}
static bool drop_alpha(SafetensorsInfo *info) { return !strstr(info->name, "h.1.attn.alpha_proj"); }
static bool drop_norm(SafetensorsInfo *info) { return strcmp(info->name, "transformer.ln_f.bias") != 0; }
static bool turn_matrix(SafetensorsInfo *info) {
    if (!strcmp(info->name, "transformer.h.0.mlp.c_fc.weight")) info->shape[0] = 70, info->shape[1] = 12;
    return true;
}
static bool add_dimension(SafetensorsInfo *info) {
    if (!strcmp(info->name, "transformer.h.0.attn.alpha_ma")) info->dimensions = 2, info->shape[1] = 1;
    return true;
}
static bool make_integer(SafetensorsInfo *info) {
    if (!strcmp(info->name, "transformer.wpe.weight")) info->type = SAFETENSORS_I32;
    return true;
}

static void takes_directories_of_others(void **state) {
    (void)state;
    const SafetensorsInfo head = { .name = "lm_head.weight", .type = SAFETENSORS_F32, .dimensions = 2, .shape = { 11, 12 } };
    const SafetensorsInfo mask = {
        .name = "transformer.h.0.attn.bias", .type = SAFETENSORS_BOOL, .dimensions = 4, .shape = { 1, 1, 8, 8 },
    };
    expect_accepted(store_foreign(NULL, NULL));
    expect_accepted(store_foreign(without_prefix, NULL));       // as openai-community/gpt2 has them
    expect_accepted(store_foreign(NULL, &mask));
    expect_accepted(store_foreign(NULL, &head));                // a tied classifier, stored twice
    build(ARCH_LLAMA, ATTENTION_BASELINE, GATE_NONE, false);
    expect_accepted(store_foreign(NULL, NULL));
}

static void names_the_tensor_that_does_not_fit(void **state) {
    (void)state;
    const SafetensorsInfo strange = { .name = "transformer.h.0.attn.strange", .type = SAFETENSORS_F32, .dimensions = 1, .shape = { 3 } };
    expect_refused(store_foreign(drop_alpha, NULL), "tensor 'transformer.h.1.attn.alpha_proj.weight' [2, 12] is missing: these weights "
                                                    "were not trained with this attention type or gate");
    expect_refused(store_foreign(drop_norm, NULL), "tensor 'transformer.ln_f.bias' [12] is missing");
    expect_refused(store_foreign(turn_matrix, NULL), "tensor 'transformer.h.0.mlp.c_fc.weight' has shape [70, 12], "
                                                     "but the model's is [12, 70]");
    expect_refused(store_foreign(add_dimension, NULL), "alpha_ma' has shape [2, 1], but the model's is [2]");
    expect_refused(store_foreign(make_integer, NULL), "tensor 'transformer.wpe.weight' has type I32");
    expect_refused(store_foreign(NULL, &strange), "tensor 'transformer.h.0.attn.strange' [3] is not part of this model");

    const SafetensorsInfo head = { .name = "lm_head.weight", .type = SAFETENSORS_F32, .dimensions = 2, .shape = { 11, 12 } };
    config.model.tie_word_embeddings = false;                   // of the directory; the table's model ties them
    expect_refused(store_foreign(NULL, &head), "tensor 'lm_head.weight' [11, 12] is not part of this model");

    const char *affine = store_foreign(NULL, NULL);             // affine weights, baseline wanted
    build(ARCH_GPT2, ATTENTION_BASELINE, GATE_NONE, true);
    expect_refused(affine, "tensor 'transformer.h.1.attn.gate_proj.weight' [2, 12] is not part of this model");
    build(ARCH_LLAMA, ATTENTION_BASELINE, GATE_NONE, false);
    expect_refused(affine, "tensor 'model.norm.weight' [12] is missing");
}

static void expect_unopened(const char *name, const char *says) {
    CheckpointReader *reader;
    assert_int_equal(checkpoint_open(&reader, name), STATUS_BAD_INPUT);
    assert_null(reader);
    if (!strstr(error_text(), says)) fail_msg("the message is: %s", error_text());
    assert_non_null(strstr(error_text(), name));
}

static void names_the_file_that_is_wrong(void **state) {
    (void)state;
    const char *name = path_of("%s/checkpoints/step-00000001", config.run_dir), *state_file = path_of("%s/trainer_state.json", name);
    expect_unopened(name, "No such file");
    save(1, 0, NULL);
    char *text = read_file(state_file, NULL), *damaged = strdup(text);
    damaged[strlen(damaged) / 2] = '\0';
    write_text(state_file, damaged);
    expect_unopened(name, "trainer_state.json: line");
    write_text(state_file, "{\"format\": 2, \"step\": 1, \"config\": {}}");
    expect_unopened(name, "trainer_state.json: format: 1 was wanted");
    write_text(state_file, "{\"format\": 1, \"step\": -1, \"config\": {}}");
    expect_unopened(name, "trainer_state.json: step: a whole number");
    write_text(state_file, "{\"format\": 1, \"step\": 1}");
    expect_unopened(name, "trainer_state.json: config: is missing");
    write_text(state_file, "{\"format\": 1, \"step\": 1, \"config\": {\"sed\": 1}}");
    expect_unopened(name, "trainer_state.json: config: sed");
    write_text(state_file, text);
    assert_int_equal(truncate(path_of("%s/model.safetensors", name), 3000), 0);
    expect_unopened(name, "model.safetensors: ");
    assert_int_equal(unlink(path_of("%s/model.safetensors", name)), 0);
    expect_unopened(name, "there is no model.safetensors in it");
    write_text(path_of("%s/model.safetensors.index.json", name), "{}");
    expect_unopened(name, "model.safetensors.index.json: weight_map: an object");
    assert_int_equal(unlink(path_of("%s/config.json", name)), 0);
    expect_unopened(name, "config.json: cannot open");
    expect_unopened(state_file, "is a file; a checkpoint is a directory");
    free(text);
    free(damaged);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(transposes_as_the_table_says, setup, teardown),
        cmocka_unit_test_setup_teardown(keeps_the_trainers_state, setup, teardown),
        cmocka_unit_test_setup_teardown(finds_the_newest_whole_one, setup, teardown),
        cmocka_unit_test_setup_teardown(prunes_old_ones_and_leftovers, setup, teardown),
        cmocka_unit_test_setup_teardown(replaces_one_of_the_same_step, setup, teardown),
        cmocka_unit_test_setup_teardown(a_killed_write_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(an_abandoned_or_incomplete_one_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_keeps_the_last_good_one, setup, teardown),
        cmocka_unit_test_setup_teardown(takes_directories_of_others, setup, teardown),
        cmocka_unit_test_setup_teardown(names_the_tensor_that_does_not_fit, setup, teardown),
        cmocka_unit_test_setup_teardown(names_the_file_that_is_wrong, setup, teardown),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
