// What the program refuses: each mistake with its exit status and a message that names the thing, and with nothing made, changed or lost.
#define _GNU_SOURCE
#include "support.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cjson/cJSON.h>

// Name, size and time of everything in the working directory. To be freed.
static char *look_around(void) {
    Outcome outcome = expect(0, "find . -printf '%%p %%s %%T@\\n' | sort");
    char *text = strdup(outcome.out);
    free_outcome(&outcome);
    return text;
}

// Exits with that status, says each of the texts separated by '|', and leaves every file as it was.
static void refuses_and_leaves_all(int status, const char *says, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void refuses_and_leaves_all(int status, const char *says, const char *format, ...) {
    char command[2048];
    va_list arguments;
    va_start(arguments, format);
    assert_true(vsnprintf(command, sizeof command, format, arguments) < (int)sizeof command);
    va_end(arguments);
    char *before = look_around();
    refuses(status, says, "%s", command);
    char *after = look_around();
    if (strcmp(before, after)) fail_msg("`%s` changed\n%sinto\n%s", command, before, after);
    free(before);
    free(after);
}

static void refuse_all(const char *const (*cases)[2], const char *prefix) {
    for (; (*cases)[0]; cases++) refuses_and_leaves_all(2, (*cases)[1], "train_gpt %s%s", prefix, (*cases)[0]);
}

// ---- the command line and the config ----

static void test_command_line(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        { "", "--help" },
        { "none.json", "none.json" },
        { "trian", "trian" },
        { "config.json other.json", "other.json" },
        { "config.json --dry-ran", "--dry-ran|--dry-run" },
        { "config.json --overwrit", "--overwrit|--overwrite" },
        { "config.json -x", "-x" },
        { "config.json --train.steps", "--train.steps|=" },
        { "config.json --train.steps=1 --train.steps=2", "--train.steps|twice" },
        { "config.json --resume run", "--resume|config.json" },
        { "--resume", "--resume" },
        { "--resume run --overwrite", "--overwrite|--resume" },
        { "eval", "eval" },
        { "eval run --dta=val.bin", "--dta|--data" },
        { "sample run --prompt=a --sead=1", "--sead|--seed" },
        { "sample run --prompt=a --top_p=1.5", "--top_p|1.5" },
        { "sample run --prompt=a --tokens=many", "--tokens|many" },
        { "help train.stepz", "train.stepz|train.steps" },
        { NULL, NULL } };
    refuse_all(cases, "");
}

static void test_config_keys_and_values(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        { "--train.stpes=3", "train.stpes|train.steps" },
        { "--trian.steps=3", "trian.steps|train.steps" },
        { "--steps=3", "steps|train.steps" },
        { "--train=3", "train" },
        { "--train.steps=-1", "train.steps|-1" },
        { "--train.steps=1.5", "train.steps|1.5" },
        { "--train.steps=ten", "train.steps|ten" },
        { "--train.steps=", "train.steps" },
        { "--train.steps=1e999", "train.steps|1e999" },
        { "--seed=9007199254740993", "seed|9007199254740993" },
        { "--train.batch_size=0", "train.batch_size|0" },
        { "--optimizer.lr=-0.1", "optimizer.lr|-0.1" },
        { "--optimizer.lr=nan", "optimizer.lr|nan" },
        { "--optimizer.beta1=1", "optimizer.beta1|1" },
        { "--data.shuffle=yes", "data.shuffle|yes|true or false" },
        { "--attention.type=sinks", "attention.type|sinks|baseline, off_by_one, sink, affine" },
        { "--attention.gate=head", "attention.gate|head|none, headwise, elementwise" },
        { "--schedule.type=step", "schedule.type|step|constant, wsd, linear, cosine" },
        { "--compute.dtype=fp16", "compute.dtype|fp16|fp32" },
        { "--checkpoint.keep=0", "checkpoint.keep|0" },
        { "--train.batch_size=10 --train.micro_batch_size=4", "train.batch_size|10 is not a multiple of train.micro_batch_size (4)" },
        { "--model.hidden_size=17", "model.hidden_size|17|model.num_attention_heads (2)" },
        { "--model.num_key_value_heads=1", "model.num_key_value_heads|1|gpt2" },
        { "--model.head_dim=4", "model.head_dim|4|model.hidden_size (16)|gpt2" },
        { "--model.arch=llama", "model.intermediate_size|llama" },
        { "--model.arch=llama --model.intermediate_size=32 --model.head_dim=7", "model.head_dim|7|odd" },
        { "--model.arch=llama --model.intermediate_size=32 --model.num_attention_heads=4 --model.num_key_value_heads=3",
          "model.num_attention_heads|4|model.num_key_value_heads (3)" },
        { "--model.max_position_embeddings=7", "train.sequence_length|8|model.max_position_embeddings (7)" },
        { "--model.arch=gpt3", "model.arch|gpt3|gpt2, llama, qwen2" },
        { "--model.hidden_size=1000000000", "model.hidden_size|1000000000" },
        { "--run_dir=null", "run_dir" },
        { "--data.train=null", "data.train" },
        { NULL, NULL } };
    refuse_all(cases, "config.json ");
}

static void test_config_files(void **state) {
    (void)state;
    static const struct { const char *text, *says; } cases[] = {
        { "{\"train\": {\"step\": 3}}", "bad.json|train.step|train.steps" },
        { "{\"train\": {\"steps\": \"3\"}}", "bad.json|train.steps|\"3\"" },
        { "{\"train\": 3}", "bad.json|train" },
        { "{\"optimiser\": {\"lr\": 1}}", "bad.json|optimiser" },
        { "{\"seed\": 1,\n \"train\": {\"steps\": 3,\n  \"steps\": 4}}", "bad.json|steps" },
        { "{\"seed\": 1,\n \"seed\": 1}", "bad.json|seed" },
        { "{\"seed\": 1,\n \"train\": {\"steps\": 3,}\n}", "bad.json|line 2" },
        { "{\"optimizer\": {\"lr\": 1e999}}", "bad.json|1e999" },
        { "{\"seed\": 01}", "bad.json" },
        { "{\"seed\": 1} {}", "bad.json" },
        { "[1, 2]", "bad.json" },
        { "", "bad.json" },
        { "{\"extends\": \"none.json\"}", "bad.json|extends|none.json" },
        { "{\"extends\": \"bad.json\"}", "bad.json|extends|cycle" },
        { "{\"extends\": \"config.json\", \"train\": {\"batch_size\": 10, \"micro_batch_size\": 4}}",
          "bad.json: train.batch_size: 10 is not a multiple of train.micro_batch_size (4)" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text("bad.json", cases[i].text);
        refuses_and_leaves_all(2, cases[i].says, "train_gpt bad.json --run_dir=run");
    }
}

static void test_what_this_build_cannot_do(void **state) {
    (void)state;
    refuses_and_leaves_all(2, "compute.dtype|bf16|fp32", "train_gpt config.json --compute.dtype=bf16");
    refuses_and_leaves_all(2, "compute.dtype|bf16|fp32", "train_gpt config.json --dry-run --compute.dtype=bf16");
}

// ---- data ----

static int token_of_30_too_large(size_t i) { return i == 30 ? 40 : orbit_token(i); }
static int token_of_93_too_large(size_t i) { return i == 93 ? 32 : orbit_token(i); }

static void test_shards(void **state) {
    (void)state;
    refuses_and_leaves_all(2, "data.train|none*.bin", "train_gpt config.json --data.train='none*.bin'");
    refuses_and_leaves_all(2, "data.val|none.bin", "train_gpt config.json --data.val=none.bin");
    refuses_and_leaves_all(2, "data.train|config.json", "train_gpt config.json --data.train=config.json");
    must("mkdir directory && head -c 3000 train_0.bin > truncated.bin && head -c 1000 train_0.bin > header.bin && "
         "cp train_0.bin longer.bin && echo >> longer.bin && "
         "cp train_0.bin version.bin && printf '\\002' | dd of=version.bin bs=1 seek=4 conv=notrunc 2>/dev/null");
    static const char *const damaged[] = { "directory", "truncated.bin", "header.bin", "longer.bin", "version.bin" };
    for (int i = 0; i < 5; i++)
        refuses_and_leaves_all(2, path_of("data.train|%s", damaged[i]), "train_gpt config.json --data.train=%s", damaged[i]);
    write_shard("short.bin", 8, orbit_token);               // a window is 8 tokens and the one after
    refuses_and_leaves_all(2, "data.train|short.bin|8", "train_gpt config.json --data.train=short.bin");
}

static void test_a_token_outside_the_vocabulary(void **state) {
    (void)state;
    write_shard("first.bin", 401, token_of_30_too_large);
    refuses_and_leaves_all(2, "first.bin|token 40|position 30|model.vocab_size 32", "train_gpt config.json --data.train=first.bin");
    refuses_and_leaves_all(2, "first.bin|token 40|position 30|model.vocab_size 32", "train_gpt config.json --data.val=first.bin");
    refuses_and_leaves_all(2, "first.bin|token 40|position 30", "train_gpt config.json --data.train=first.bin --train.micro_batch_size=1");
    // In the third batch, tokens 64 to 96: what was done before it stays, and with a mended shard the run goes on.
    write_shard("later.bin", 401, token_of_93_too_large);
    write_shard("whole.bin", 401, orbit_token);
    static const char flags[] = "--eval.every=0 --diagnostics.every=0 --train.steps=6 --checkpoint.every=1";
    refuses(2, "later.bin|token 32|position 93|model.vocab_size 32", "train_gpt config.json --data.train=later.bin %s", flags);
    cJSON *steps = read_metrics("run", "step"), *ends = read_metrics("run", "end");
    assert_int_equal(cJSON_GetArraySize(steps), 2);
    assert_int_equal(cJSON_GetArraySize(ends), 0);
    cJSON_Delete(steps);
    cJSON_Delete(ends);
    char *checkpoints = list_directory("run/checkpoints");
    assert_non_null(strstr(checkpoints, "step-00000001 "));
    free(checkpoints);
    must("mv whole.bin later.bin && train_gpt --resume run && train_gpt config.json --data.train=later.bin %s --run_dir=alone", flags);
    assert_same_run("run", "alone", 6);
}

// ---- run directories ----

static void test_a_directory_that_holds_a_run(void **state) {
    (void)state;
    must("train_gpt config.json && echo mine > run/notes.txt");
    refuses_and_leaves_all(2, "run|--resume|--overwrite", "train_gpt config.json");
    refuses_and_leaves_all(2, "run|--resume|--overwrite", "train_gpt run/config.json");
    // An --overwrite that is refused for another reason loses nothing.
    refuses_and_leaves_all(2, "none.bin", "train_gpt config.json --overwrite --data.train=none.bin");
    refuses_and_leaves_all(2, "model.hidden_size", "train_gpt config.json --overwrite --model.hidden_size=15");
    must("train_gpt config.json --run_dir=fresh --train.steps=5 --seed=3");
    must("train_gpt config.json --overwrite --train.steps=5 --seed=3");
    assert_same_run("run", "fresh", 5);
    char *checkpoints = list_directory("run/checkpoints"), *notes = read_file("run/notes.txt", NULL);
    assert_string_equal(checkpoints, "step-00000005 ");
    assert_string_equal(notes, "mine\n");
    free(checkpoints);
    free(notes);
    cJSON *starts = read_metrics("run", "start");
    assert_int_equal(cJSON_GetArraySize(starts), 1);
    cJSON_Delete(starts);
    // A log or checkpoints alone are a run too.
    must("rm run/config.json");
    refuses_and_leaves_all(2, "run|--resume|--overwrite", "train_gpt config.json");
}

static void test_places_that_can_hold_no_run(void **state) {
    (void)state;
    write_text("file", "x");
    refuses_and_leaves_all(2, "run_dir|file", "train_gpt config.json --run_dir=file");
    refuses_and_leaves_all(2, "run_dir|file", "train_gpt config.json --run_dir=file/run");
    refuses_and_leaves_all(2, "none|resume", "train_gpt --resume none");
    refuses_and_leaves_all(2, "file", "train_gpt --resume file");
    must("mkdir -p empty/nested");
    refuses_and_leaves_all(2, "empty|config.json", "train_gpt --resume empty");
    must("train_gpt config.json --run_dir=empty/nested/deep/run --train.steps=1");      // but these can be made
    assert_true(exists("empty/nested/deep/run/metrics.jsonl"));
}

static void test_a_directory_in_use(void **state) {
    (void)state;
    Process process = start("exec $TRAIN_GPT config.json --train.steps=1000000000 --eval.every=0 --diagnostics.every=0");
    wait_for_step(&process, "run", 1);
    refuses(2, "run|in use", "train_gpt config.json");
    refuses(2, "run|in use", "train_gpt config.json --overwrite");
    refuses(2, "run|in use", "train_gpt --resume run --train.steps=10");
    assert_true(is_alive(&process));
    kill(process.pid, SIGTERM);
    Outcome outcome = finish(&process);
    assert_int_equal(outcome.status, 0);                    // nothing was taken from under it
    free_outcome(&outcome);
    cJSON *steps = read_metrics("run", "step");
    const long stopped = cJSON_GetArraySize(steps);
    cJSON_Delete(steps);
    must("train_gpt --resume run --train.steps=%ld", stopped + 3);     // the lock went with the process
    must("train_gpt config.json --eval.every=0 --diagnostics.every=0 --run_dir=alone --train.steps=%ld", stopped + 3);
    assert_same_run("run", "alone", stopped + 3);
}

// ---- --resume ----

static void test_what_resume_may_not_change(void **state) {
    (void)state;
    must("train_gpt config.json --train.steps=10");
    static const char *const flags[] = {
        "seed=8", "run_dir=other", "model.hidden_size=32", "model.norm_eps=1e-6", "attention.type=sink", "attention.affine_rho=0.5",
        "data.train=few.bin", "data.shuffle=true", "train.batch_size=8", "train.micro_batch_size=2", "train.sequence_length=4",
        "optimizer.lr=0.1", "schedule.type=wsd", "distill.weight=0.5" };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        const int key = (int)strcspn(flags[i], "=");
        refuses_and_leaves_all(2, path_of("%.*s|--resume|train.steps", key, flags[i]), "train_gpt --resume run --%s", flags[i]);
    }
    refuses_and_leaves_all(2, "train.steps|9|10", "train_gpt --resume run --train.steps=9");
    refuses_and_leaves_all(2, "eval.evry|eval.every", "train_gpt --resume run --eval.evry=3");
    refuses_and_leaves_all(2, "checkpoint.keep|0", "train_gpt --resume run --checkpoint.keep=0");
    must("mv train_0.bin away.bin && mv train_1.bin away_1.bin");
    refuses_and_leaves_all(2, "data.train|train_*.bin", "train_gpt --resume run --train.steps=20");
    must("mv away_1.bin train_1.bin");
    refuses_and_leaves_all(2, "train_1.bin|other data", "train_gpt --resume run --train.steps=20");    // one shard less
    must("mv away.bin train_0.bin && cp train_0.bin train_2.bin");
    refuses_and_leaves_all(2, "train_2.bin|other data", "train_gpt --resume run --train.steps=20");
    must("rm train_2.bin && train_gpt --resume run --train.steps=20");
}

// What the new run is to read may not lie in what --overwrite takes away.
static void test_overwriting_what_is_needed(void **state) {
    (void)state;
    must("train_gpt config.json --train.steps=10");
    static const char teacher[] = "run/checkpoints/step-00000010";
    static const char *const keys[] = { "distill.teacher", "model.init_from" };
    for (int i = 0; i < 2; i++)
        refuses_and_leaves_all(2, path_of("%s|run/checkpoints|--overwrite", keys[i]), "train_gpt config.json --overwrite --%s=%s",
                               keys[i], teacher);
    must("cp train_0.bin run/mine.bin");
    refuses_and_leaves_all(2, "data.train|run/mine.bin|--overwrite", "train_gpt config.json --overwrite --data.train=run/mine.bin");
}

// A checkpoint that says it is another step's, or of another config; one whose weights are no numbers.
static void test_a_checkpoint_of_another_run(void **state) {
    (void)state;
    must("train_gpt config.json --train.steps=10");
    must("mv run/checkpoints/step-00000010 run/checkpoints/step-00000011");
    refuses_and_leaves_all(2, "step-00000011|says step 10", "train_gpt --resume run --train.steps=20");
    must("mv run/checkpoints/step-00000011 run/checkpoints/step-00000010");
    must("cp run/config.json config.kept && sed -i 's/\"beta1\":[^,]*,/\"beta1\": 0.5,/' run/config.json");
    refuses_and_leaves_all(2, "step-00000010|optimizer.beta1|config.json", "train_gpt --resume run --train.steps=20");
    must("cp config.kept run/config.json");
    must("cd run/checkpoints/step-00000010 && size=$(stat -c %%s model.safetensors) && "
         "printf '\\377\\377\\377\\377' | dd of=model.safetensors bs=1 seek=$((size - 4)) conv=notrunc 2>/dev/null");
    refuses_and_leaves_all(2, "tensor|nan|take another checkpoint", "train_gpt --resume run --train.steps=20");
    refuses(2, "tensor|nan", "train_gpt eval run/checkpoints/step-00000010 --data='val*.bin'");
    must("cp -r run/checkpoints/step-00000010 run/checkpoints/step-00000015 && : > run/checkpoints/step-00000015/model.safetensors");
    Outcome outcome = run("train_gpt --resume run --train.steps=20");
    assert_non_null(strstr(outcome.out, "run/checkpoints/step-00000015 is passed over"));
    free_outcome(&outcome);
    refuses(2, "run/checkpoints/step-00000010: is a checkpoint", "train_gpt --resume run/checkpoints/step-00000010");
}

// A run where a checkpoint is wanted: the message names the one to take.
static void test_a_run_is_no_checkpoint(void **state) {
    (void)state;
    must("train_gpt config.json --train.steps=10");
    refuses_and_leaves_all(2, "run: is a run|run/checkpoints/step-00000010", "train_gpt eval run --data='val*.bin'");
    refuses_and_leaves_all(2, "run: is a run|run/checkpoints/step-00000010", "train_gpt sample run --prompt=x");
}

static void test_checkpoints_that_do_not_fit(void **state) {
    (void)state;
    must("train_gpt config.json --attention.type=affine --train.steps=10");
    must("train_gpt config.json --attention.type=affine --train.steps=20 --model.hidden_size=24 --run_dir=wider");
    must("train_gpt config.json --train.steps=20 --run_dir=baseline");
    must("train_gpt config.json --train.steps=20 --attention.type=sink --run_dir=sink");
    must("train_gpt config.json --attention.type=affine --train.steps=20 --model.num_hidden_layers=3 --run_dir=deeper");
    static const char *const foreign[][2] = {
        { "wider", "step-00000020|transformer.|24|16" },                // the first differing tensor, and both shapes
        { "baseline", "step-00000020|attn.alpha_proj.weight|missing" },
        { "sink", "step-00000020|attn.alpha_proj.weight|missing" },
        { "deeper", "step-00000020|transformer.h.2.|not part of this model" },
    };
    for (int i = 0; i < 4; i++) {
        must("rm -rf run/checkpoints/step-00000020 && cp -r %s/checkpoints/step-00000020 run/checkpoints", foreign[i][0]);
        refuses_and_leaves_all(2, foreign[i][1], "train_gpt --resume run --train.steps=30");
    }
}

static void test_damaged_checkpoints(void **state) {
    (void)state;
    must("train_gpt config.json && cp -r run whole && train_gpt config.json --run_dir=alone --train.steps=30");
    static const char *const damage[][2] = {
        { "truncate -s -1 model.safetensors", "step-00000020/model.safetensors" },
        { "truncate -s -100 optimizer.safetensors", "step-00000020/optimizer.safetensors" },
        { "printf '\\377\\377\\377\\377\\377\\377' | dd of=model.safetensors bs=1 conv=notrunc 2>/dev/null",
          "step-00000020/model.safetensors" },
        { "printf x | dd of=model.safetensors bs=1 seek=8 conv=notrunc 2>/dev/null", "step-00000020/model.safetensors" },
        { "echo '{' > trainer_state.json", "step-00000020/trainer_state.json" },
        { "echo '{}' > trainer_state.json", "step-00000020/trainer_state.json" },
        { "echo '{}' > config.json", "step-00000020/config.json" },
    };
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        must("rm -r run && cp -r whole run && cd run/checkpoints/step-00000020 && %s", damage[i][0]);
        refuses_and_leaves_all(2, damage[i][1], "train_gpt --resume run --train.steps=30");
        refuses(2, strcmp(damage[i][0], "truncate -s -100 optimizer.safetensors") ? damage[i][1] : "step-00000020",
                "train_gpt eval run/checkpoints/step-00000020 --data=val.bin");
    }
    // The way out that each of them leaves: take the damaged one away, and the one before it serves.
    must("rm -r run/checkpoints/step-00000020 && train_gpt --resume run --train.steps=30");
    assert_same_run("run", "alone", 30);
}

static void test_a_damaged_config_of_a_run(void **state) {
    (void)state;
    must("train_gpt config.json --train.steps=10");
    must("echo '{\"train\": {\"stpes\": 1}}' > run/config.json");
    refuses_and_leaves_all(2, "run/config.json|train.stpes|train.steps", "train_gpt --resume run");
    must("echo '{' > run/config.json");
    refuses_and_leaves_all(2, "run/config.json:", "train_gpt --resume run");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter_workplace, leave_workplace)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_command_line),
        TEST(test_config_keys_and_values),
        TEST(test_config_files),
        TEST(test_what_this_build_cannot_do),
        TEST(test_shards),
        TEST(test_a_token_outside_the_vocabulary),
        TEST(test_a_directory_that_holds_a_run),
        TEST(test_places_that_can_hold_no_run),
        TEST(test_a_directory_in_use),
        TEST(test_what_resume_may_not_change),
        TEST(test_a_run_is_no_checkpoint),
        TEST(test_overwriting_what_is_needed),
        TEST(test_a_checkpoint_of_another_run),
        TEST(test_checkpoints_that_do_not_fit),
        TEST(test_damaged_checkpoints),
        TEST(test_a_damaged_config_of_a_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
