// model.init_from and distill.teacher: runs that begin from, or learn from, a Hugging Face directory or a checkpoint, in one file or in
// several, in any of the float types; what is refused, and what it says.
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "core/error.h"
#include "core/safetensors.h"
#include "support.h"

#define QUIET "--eval.every=0 --checkpoint.every=0 --diagnostics.every=0"
#define ROTARY "--model.intermediate_size=24 --model.num_key_value_heads=1 --model.rope_theta=500 --model.norm_eps=1e-6 "
#define AT_0 "checkpoints/step-00000000"
#define AT_4 "checkpoints/step-00000004"

// A config that says nothing about the model: all of that comes from the directory.
static void write_bare_config(void) {
    write_text("bare.json",
        "{\"run_dir\": \"run\", \"seed\": 7, \"data\": {\"train\": \"train_*.bin\", \"val\": \"val.bin\", \"shuffle\": false},\n"
        " \"train\": {\"steps\": 4, \"batch_size\": 4, \"sequence_length\": 8}, \"optimizer\": {\"lr\": 0.01},\n"
        " \"schedule\": {\"type\": \"constant\", \"warmup_steps\": 0}}\n");
}

// Copies model.safetensors and config.json of `from` to a Hugging Face directory `to` of that many files, every tensor in that type, except
// the one named in leave_out; without a prefix where strip is true.
typedef struct Copy { int files; SafetensorsType type; bool strip; const char *leave_out; } Copy;

static void copy_directory(const char *from, const char *to, Copy how) {
    must("mkdir -p %s && cp %s/config.json %s/", to, from, to);
    SafetensorsReader *source;
    assert_int_equal(safetensors_open(&source, path_of("%s/model.safetensors", from)), 0);
    cJSON *index = cJSON_CreateObject(), *map = cJSON_AddObjectToObject(index, "weight_map");
    for (int f = 0; f < how.files; f++) {
        SafetensorsInfo infos[128];
        const SafetensorsInfo *stored[128];
        char name[64] = "model.safetensors";
        int count = 0;
        if (how.files > 1) snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", f + 1, how.files);
        for (int t = f; t < safetensors_count(source); t += how.files) {
            stored[count] = safetensors_info(source, t);
            if (how.leave_out && strstr(stored[count]->name, how.leave_out)) continue;
            infos[count] = *stored[count];
            infos[count].type = how.type;
            if (how.strip && strchr(infos[count].name, '.') && strncmp(infos[count].name, "lm_head", 7))
                memmove(infos[count].name, strchr(infos[count].name, '.') + 1, strlen(strchr(infos[count].name, '.')));
            cJSON_AddStringToObject(map, infos[count].name, name);
            count++;
        }
        SafetensorsWriter *writer;
        assert_int_equal(safetensors_create(&writer, path_of("%s/%s", to, name), infos, count), 0);
        for (int i = 0; i < count; i++) {
            double *values = malloc(stored[i]->count * sizeof *values);
            assert_int_equal(safetensors_read(source, stored[i], values, 0, stored[i]->count), 0);
            assert_int_equal(safetensors_write(writer, i, values, 0, stored[i]->count), 0);
            free(values);
        }
        assert_int_equal(safetensors_finish(writer), 0);
    }
    char *text = cJSON_Print(index);
    if (how.files > 1) write_text(path_of("%s/model.safetensors.index.json", to), text);
    free(text);
    cJSON_Delete(index);
    safetensors_close(source);
}

static int directory_count;
static const char *copied(const char *from, Copy how) {
    const char *to = path_of("hf%d", directory_count++);
    copy_directory(from, to, how);
    return to;
}

// The weights of two checkpoints are the same bytes, tensor by tensor of the first.
static void assert_same_tensors(const char *a, const char *b) {
    SafetensorsReader *file;
    char one[300], other[300];
    snprintf(one, sizeof one, "%s/model.safetensors", a);
    snprintf(other, sizeof other, "%s/model.safetensors", b);
    assert_int_equal(safetensors_open(&file, one), 0);
    for (int t = 0; t < safetensors_count(file); t++) {
        const char *name = safetensors_info(file, t)->name;
        size_t n, m;
        double *x = read_tensor(one, name, &n), *y = read_tensor(other, name, &m);
        assert_int_equal(n, m);
        if (memcmp(x, y, n * sizeof *x)) fail_msg("%s differs", name);
        free(x);
        free(y);
    }
    safetensors_close(file);
}

static char *initial_weights(const char *run_dir) {
    cJSON *start = read_metrics(run_dir, "start");
    char *text = strdup(cJSON_GetStringValue(cJSON_GetObjectItem(start->child, "initial_weights")));
    cJSON_Delete(start);
    return text;
}

// ---- the weights ----

// Every way to store them gives the same run, with the model's shape from the directory alone.
static void test_every_layout(void **state) {
    (void)state;
    static const char *const models[] = { "", "--model.tie_word_embeddings=false", ROTARY "--model.arch=llama",
                                         ROTARY "--model.arch=qwen2" };
    static const Copy ways[] = {
        { 1, SAFETENSORS_F32, false, NULL }, { 3, SAFETENSORS_F32, false, NULL }, { 2, SAFETENSORS_F64, true, NULL },
    };
    write_bare_config();
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        must("train_gpt config.json --run_dir=source%zu --train.steps=3 " QUIET " %s", m, models[m]);
        char source[64], hf[64], run_dir[64];                   // longer-lived than path_of's
        snprintf(source, sizeof source, "source%zu/checkpoints/step-00000003", m);
        must("train_gpt bare.json --run_dir=again%zu --model.init_from=%s", m, source);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            snprintf(hf, sizeof hf, "hf%zu%zu", m, w);
            snprintf(run_dir, sizeof run_dir, "run%zu%zu", m, w);
            copy_directory(source, hf, ways[w]);
            must("train_gpt bare.json --run_dir=%s --model.init_from=%s --train.steps=0", run_dir, hf);
            assert_same_tensors(source, path_of("%s/" AT_0, run_dir));
            must("train_gpt bare.json --run_dir=%s --model.init_from=%s --overwrite", run_dir, hf);
            assert_same_run(path_of("again%zu", m), run_dir, 4);
        }
    }
}

// Half precision: what the file's 16 bits stand for.
static void test_half_precision(void **state) {
    (void)state;
    must("train_gpt config.json --run_dir=source --train.steps=3 " QUIET);
    for (int i = 0; i < 2; i++) {
        const SafetensorsType type = i ? SAFETENSORS_BF16 : SAFETENSORS_F16;
        const char *hf = copied("source/checkpoints/step-00000003", (Copy){ 2, type, false, NULL });
        must("train_gpt config.json --run_dir=half%d --model.init_from=%s --train.steps=0", i, hf);
        size_t n;
        double *before = read_tensor("source/checkpoints/step-00000003/model.safetensors", "transformer.wte.weight", NULL);
        double *after = read_tensor(path_of("half%d/" AT_0 "/model.safetensors", i), "transformer.wte.weight", &n);
        const double unit = i ? 0x1p-8 : 0x1p-11;
        int changed = 0;
        for (size_t k = 0; k < n; k++) {
            const double error = after[k] - before[k], limit = unit * (before[k] < 0 ? -before[k] : before[k]) + 0x1p-25;
            if (error > limit || error < -limit) fail_msg("%g became %g", before[k], after[k]);
            changed += error != 0;
        }
        assert_true(changed > (int)n / 2);
        free(before);
        free(after);
    }
}

// Another attention adds its own parameters at their initial values; what both have comes from the directory.
static void test_another_attention(void **state) {
    (void)state;
    must("train_gpt config.json --run_dir=source --train.steps=3 " QUIET);
    must("train_gpt config.json --run_dir=fresh --train.steps=0 --attention.type=affine --attention.gate=headwise");
    must("train_gpt config.json --run_dir=run --train.steps=0 --attention.type=affine --attention.gate=headwise "
         "--model.init_from=source/checkpoints/step-00000003");
    assert_same_tensors("source/checkpoints/step-00000003", "run/" AT_0);
    for (int i = 0; i < 3; i++) {
        static const char *const own[] = { "alpha_proj.weight", "alpha_ma", "gate_proj.weight" };
        const char *name = path_of("transformer.h.1.attn.%s", own[i]);
        size_t n;
        double *wanted = read_tensor("fresh/" AT_0 "/model.safetensors", name, &n), *found = read_tensor("run/" AT_0 "/model.safetensors",
                                                                                                          name, NULL);
        assert_memory_equal(wanted, found, n * sizeof *wanted);
        free(wanted);
        free(found);
    }
    // and the hash of what all types share tells that they began from the same
    must("train_gpt config.json --run_dir=sink --train.steps=0 --attention.type=sink --model.init_from=source/checkpoints/step-00000003");
    char *fresh = initial_weights("fresh"), *affine = initial_weights("run"), *sink = initial_weights("sink");
    assert_string_equal(affine, sink);
    assert_string_not_equal(affine, fresh);
    free(fresh);
    free(affine);
    free(sink);
}

// The same function goes on: affine's constants are the directory's unless the config says otherwise, and its alpha_ma too.
static void test_affine_goes_on(void **state) {
    (void)state;
    write_bare_config();
    must("train_gpt config.json --run_dir=source --train.steps=4 --attention.type=affine --attention.affine_rho=0.5 " QUIET);
    Outcome before = expect(0, "train_gpt eval source/" AT_4 " --data=val.bin --length=4");
    must("train_gpt bare.json --train.sequence_length=4 --attention.type=affine --model.init_from=source/" AT_4 " --train.steps=0");
    assert_same_tensors("source/" AT_4, "run/" AT_0);
    Outcome after = expect(0, "train_gpt eval run/" AT_0 " --data=val.bin --length=4");
    assert_string_equal(strstr(before.out, "\"loss\""), strstr(after.out, "\"loss\""));
    must("train_gpt bare.json --attention.type=affine --attention.affine_length=5 --model.init_from=source/" AT_4 " --train.steps=0 "
         "--overwrite");
    char *text = read_file("run/config.json", NULL);
    cJSON *config = cJSON_Parse(text), *attention = cJSON_GetObjectItem(config, "attention");
    assert_int_equal(number(attention, "affine_length"), 5);
    assert_true(number(attention, "affine_rho") == 0.5);
    cJSON_Delete(config);
    free(text);
    free_outcome(&before);
    free_outcome(&after);
}

// A resumed run has its own weights, wherever those that it began from have gone.
static void test_resume_needs_no_beginning(void **state) {
    (void)state;
    must("train_gpt config.json --run_dir=source --train.steps=3 " QUIET);
    must("train_gpt config.json --run_dir=whole --model.init_from=source/checkpoints/step-00000003 --train.steps=20 --eval.every=0");
    must("train_gpt config.json --run_dir=run --model.init_from=source/checkpoints/step-00000003 --train.steps=10 --eval.every=0");
    must("rm -r source && train_gpt --resume run --train.steps=20");
    assert_same_run("whole", "run", 20);
}

static void test_teacher_in_several_files(void **state) {
    (void)state;
    must("train_gpt config.json --run_dir=source --train.steps=3 --attention.type=sink " QUIET);
    const char *hf = copied("source/checkpoints/step-00000003", (Copy){ 3, SAFETENSORS_F32, false, NULL });
    must("train_gpt config.json --run_dir=one --train.steps=4 --distill.teacher=source/checkpoints/step-00000003");
    must("train_gpt config.json --run_dir=three --train.steps=4 --distill.teacher=%s", hf);
    assert_same_run("one", "three", 4);
}

// ---- what is refused ----

static void test_differing_keys(void **state) {
    (void)state;
    must("train_gpt config.json --run_dir=source --train.steps=0 --model.arch=llama " ROTARY);
    write_text("wide.json", "{\"run_dir\": \"run\", \"model\": {\"init_from\": \"source/" AT_0 "\", \"hidden_size\": 32}}");
    refuses(2, "wide.json: model.hidden_size: 32 is not that of the weights in source/" AT_0 " (16)", "train_gpt wide.json --dry-run");
    write_bare_config();
#define FROM "train_gpt bare.json --model.init_from=source/" AT_0 " --dry-run "
    refuses(2, "--model.arch=gpt2: gpt2 is not|(llama)", FROM "--model.arch=gpt2");
    refuses(2, "--model.norm_eps=1e-05: 1e-05 is not|(1e-06)", FROM "--model.norm_eps=1e-05");
    refuses(2, "--model.tie_word_embeddings=true: true is not|(false)", FROM "--model.tie_word_embeddings=true");
    refuses(2, "--model.rope_theta=10000: 10000 is not|(500)", FROM "--model.rope_theta=10000");
    refuses(2, "--model.vocab_size=33: 33 is not|(32)", FROM "--model.vocab_size=33");
    must(FROM "--model.max_position_embeddings=64 --model.initializer_range=0.1 --model.num_key_value_heads=1");
    refuses(2, "--model.init_from=nowhere: |nowhere/config.json: cannot open", "train_gpt bare.json --model.init_from=nowhere --dry-run");
    assert_false(exists("run"));
}

static void test_weights_that_do_not_fit(void **state) {
    (void)state;
    write_bare_config();
    must("train_gpt config.json --run_dir=source --train.steps=0 --attention.type=affine");
    const char *lacking = copied("source/" AT_0, (Copy){ 2, SAFETENSORS_F32, false, "h.1.mlp.c_fc.bias" });
    refuses(2, "model.init_from: |index.json: tensor 'transformer.h.1.mlp.c_fc.bias' [64] is missing",
            "train_gpt bare.json --attention.type=affine --model.init_from=%s", lacking);
    const char *half = copied("source/" AT_0, (Copy){ 1, SAFETENSORS_F32, false, "h.0.attn.alpha_proj" });
    refuses(2, "tensor 'transformer.h.0.attn.alpha_proj.weight' [2, 16] is missing",
            "train_gpt bare.json --attention.type=affine --model.init_from=%s", half);
    // weights that another attention does not have are not dropped in silence
    refuses(2, "model.init_from: |attn.alpha_|is not part of this model", "train_gpt bare.json --model.init_from=source/" AT_0);
    must("train_gpt config.json --run_dir=gated --train.steps=0 --attention.gate=headwise");
    refuses(2, "gate_proj.weight' has shape [2, 16], but the model's is [16, 16]",
            "train_gpt bare.json --attention.gate=elementwise --model.init_from=gated/" AT_0);
    assert_false(exists("run"));
}

static void test_damaged_index(void **state) {
    (void)state;
    must("train_gpt config.json --run_dir=source --train.steps=0");
    const char *hf = copied("source/" AT_0, (Copy){ 2, SAFETENSORS_F32, false, NULL });
    const char *index = path_of("%s/model.safetensors.index.json", hf);
    static const struct { const char *text, *says; } cases[] = {
        { "{", "index.json: line 1" },
        { "[]", "index.json: weight_map: an object" },
        { "{\"weight_map\": {}}", "index.json: weight_map: an object" },
        { "{\"weight_map\": {\"a\": 3}}", "weight_map: tensor 'a': '' is not the name of a file beside it" },
        { "{\"weight_map\": {\"a\": \"../model.safetensors\"}}", "'../model.safetensors' is not the name of a file beside it" },
        { "{\"weight_map\": {\"a\": \"gone.safetensors\"}}", "gone.safetensors: cannot open" },
        { "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\"}}",
          "weight_map: tensor 'a' is not in model-00001-of-00002.safetensors" },
        { "{\"weight_map\": {\"a\": \"config.json\"}}", "config.json: is no safetensors file" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(index, cases[i].text);
        refuses(2, cases[i].says, "train_gpt eval %s --data=val.bin --length=8", hf);
    }
    // the same tensor in two files
    must("cp %s/model-00001-of-00002.safetensors %s/copy.safetensors", hf, hf);
    write_text(index, "{\"weight_map\": {\"transformer.ln_f.weight\": \"model-00001-of-00002.safetensors\", "
                      "\"transformer.h.1.mlp.c_proj.weight\": \"copy.safetensors\"}}");
    refuses(2, "model-00001-of-00002.safetensors: tensor 'transformer.ln_f.weight' is in |copy.safetensors too",
            "train_gpt eval %s --data=val.bin --length=8", hf);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, enter_workplace, leave_workplace)
    const struct CMUnitTest tests[] = {
        TEST(test_every_layout),
        TEST(test_half_precision),
        TEST(test_another_attention),
        TEST(test_affine_goes_on),
        TEST(test_resume_needs_no_beginning),
        TEST(test_teacher_in_several_files),
        TEST(test_differing_keys),
        TEST(test_weights_that_do_not_fit),
        TEST(test_damaged_index),
    };
    return cmocka_run_group_tests_name("init_from", tests, NULL, NULL);
}
