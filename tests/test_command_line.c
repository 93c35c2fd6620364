// core/command_line: what each form of command means, and every kind of mistake with its message.
#include "core/command_line.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/error.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
enum { ARGUMENTS = 8 };

// Parses "train_gpt" and the arguments, NULL at the end.
static int parse(Command *command, const char *const arguments[ARGUMENTS]) {
    char *argv[ARGUMENTS + 2] = {(char *)"train_gpt"};
    int argc = 1;
    for (int i = 0; i < ARGUMENTS && arguments[i]; i++) argv[argc++] = (char *)arguments[i];
    memset(command, 0x5a, sizeof *command);
    return command_line_parse(command, argc, argv);
}

#define GOOD(...) parse_good((const char *const[ARGUMENTS]){__VA_ARGS__})
static Command parse_good(const char *const arguments[ARGUMENTS]) {
    Command command;
    if (parse(&command, arguments)) fail_msg("%s", error_text());
    return command;
}

static void test_train(void **state) {
    (void)state;
    Command c = GOOD("configs/a.json");
    assert_int_equal(c.action, ACTION_TRAIN);
    assert_string_equal(c.path, "configs/a.json");
    assert_false(c.overwrite);
    assert_int_equal(c.override_count, 0);
    command_line_free(&c);

    c = GOOD("--train.steps=5", "a.json", "--overwrite", "--run_dir=x=y", "--sample.prompt=", "--seed=7", "--model.rope_scaling={}");
    assert_int_equal(c.action, ACTION_TRAIN);
    assert_string_equal(c.path, "a.json");
    assert_true(c.overwrite);
    assert_int_equal(c.override_count, 5);
    static const Override wanted[] = {
        {"train.steps", "5"}, {"run_dir", "x=y"}, {"sample.prompt", ""}, {"seed", "7"}, {"model.rope_scaling", "{}"},
    };
    for (size_t i = 0; i < COUNT(wanted); i++) {
        assert_string_equal(c.overrides[i].key, wanted[i].key);
        assert_string_equal(c.overrides[i].value, wanted[i].value);
    }
    command_line_free(&c);
    assert_null(c.overrides);

    c = GOOD("./demo", "--dry-run", "--overwrite");
    assert_int_equal(c.action, ACTION_DRY_RUN);
    assert_string_equal(c.path, "./demo");
    command_line_free(&c);

    // A section is a known name: that it holds no value is the config's to say.
    c = GOOD("a.json", "--train=5");
    assert_int_equal(c.override_count, 1);
    command_line_free(&c);
}

static void test_resume(void **state) {
    (void)state;
    Command c = GOOD("--resume", "runs/a");
    assert_int_equal(c.action, ACTION_RESUME);
    assert_string_equal(c.path, "runs/a");
    command_line_free(&c);
    c = GOOD("--train.steps=9", "--resume=runs/a", "--eval.every=0");
    assert_int_equal(c.action, ACTION_RESUME);
    assert_string_equal(c.path, "runs/a");
    assert_int_equal(c.override_count, 2);
    assert_string_equal(c.overrides[1].key, "eval.every");
    command_line_free(&c);
}

static void test_eval(void **state) {
    (void)state;
    Command c = GOOD("eval", "runs/a/checkpoints/step-1", "--data=val*.bin");
    assert_int_equal(c.action, ACTION_EVAL);
    assert_string_equal(c.path, "runs/a/checkpoints/step-1");
    assert_string_equal(c.data, "val*.bin");
    assert_int_equal(c.length, 0);
    assert_int_equal(c.threads, 0);
    command_line_free(&c);
    c = GOOD("eval", "--length=32", "--threads=3", "--data=x", "c");
    assert_string_equal(c.path, "c");
    assert_int_equal(c.length, 32);
    assert_int_equal(c.threads, 3);
    command_line_free(&c);
}

static void test_sample(void **state) {
    (void)state;
    Command c = GOOD("sample", "c", "--prompt=It is");
    assert_int_equal(c.action, ACTION_SAMPLE);
    assert_string_equal(c.path, "c");
    assert_string_equal(c.prompt, "It is");
    assert_int_equal(c.tokens, 64);
    assert_true(c.temperature == 1 && c.top_p == 1);
    assert_int_equal(c.top_k, 0);
    assert_int_equal(c.seed, 1337);
    assert_int_equal(c.threads, 0);
    command_line_free(&c);
    c = GOOD("sample", "c", "--prompt=", "--tokens=9", "--temperature=0.5", "--top_k=40", "--top_p=0.9", "--seed=9007199254740991");
    assert_string_equal(c.prompt, "");
    assert_int_equal(c.tokens, 9);
    assert_true(c.temperature == 0.5 && c.top_p == 0.9);
    assert_int_equal(c.top_k, 40);
    assert_true(c.seed == 9007199254740991u);
    command_line_free(&c);
}

static void test_help_and_version(void **state) {
    (void)state;
    static const struct { const char *arguments[ARGUMENTS]; Action action; const char *path; } cases[] = {
        {{"--help"}, ACTION_HELP, NULL},
        {{"-h"}, ACTION_HELP, NULL},
        {{"eval", "--help"}, ACTION_HELP, NULL},
        {{"--no-such-flag", "-h"}, ACTION_HELP, NULL},
        {{"--version"}, ACTION_VERSION, NULL},
        {{"help"}, ACTION_HELP_KEY, NULL},
        {{"help", "optimizer.lr"}, ACTION_HELP_KEY, "optimizer.lr"},
        {{"help", "--markdown"}, ACTION_HELP_KEY, "--markdown"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Command c = parse_good(cases[i].arguments);
        assert_int_equal(c.action, cases[i].action);
        if (cases[i].path) assert_string_equal(c.path, cases[i].path);
        else assert_null(c.path);
        command_line_free(&c);
    }
}

static void test_mistakes(void **state) {
    (void)state;
    static const struct { const char *arguments[ARGUMENTS], *message; } cases[] = {
        {{NULL}, "no config given; write train_gpt CONFIG.json, or see train_gpt --help"},
        {{""}, "no config given; write train_gpt CONFIG.json, or see train_gpt --help"},
        {{"--overwrite"}, "no config given; write train_gpt CONFIG.json, or see train_gpt --help"},
        {{"--train.steps=5"}, "no config given; write train_gpt CONFIG.json, or see train_gpt --help"},
        {{"analyze", "c"}, "analyze: unknown command; the nearest is eval (a config of that name: ./analyze)"},
        {{"evla", "c"}, "evla: unknown command; the nearest is eval (a config of that name: ./evla)"},
        {{"demo"}, "demo: unknown command; the nearest is help (a config of that name: ./demo)"},
        {{"a.json", "b.json"}, "b.json: one argument too many for train_gpt"},
        {{"a.json", ""}, ": one argument too many for train_gpt"},
        {{"eval", ""}, "an argument of train_gpt eval is empty"},
        {{"eval", "c", "d", "--data=x"}, "d: one argument too many for train_gpt eval"},
        {{"--version", "x"}, "--version: takes nothing beside it"},
        {{"help", "optimizer.lr", "seed"}, "seed: train_gpt help takes one key"},
        // flags
        {{"a.json", "-o"}, "-o: flags begin with --; see train_gpt --help"},
        {{"a.json", "-"}, "-: flags begin with --; see train_gpt --help"},
        {{"a.json", "--overwrit"}, "--overwrit: unknown to train_gpt; the nearest is --overwrite"},
        {{"a.json", "--dryrun"}, "--dryrun: unknown to train_gpt; the nearest is --dry-run"},
        {{"a.json", "--resum=x"}, "--resum: unknown to train_gpt; the nearest is --resume"},
        {{"a.json", "--train.stps=5"}, "--train.stps: unknown to train_gpt; the nearest is --train.steps"},
        {{"a.json", "--lr=5"}, "--lr: unknown to train_gpt; the nearest is --optimizer.lr"},
        {{"a.json", "--prompt=x"}, "--prompt: unknown to train_gpt; the nearest is --sample.prompt"},
        {{"a.json", "--"}, "--: names no flag; see train_gpt --help"},
        {{"a.json", "--=5"}, "--=5: names no flag; see train_gpt --help"},
        {{"a.json", "--see\nd=1"}, "--see?d: unknown to train_gpt; the nearest is --seed"},
        {{"eval", "c", "--dta=x"}, "--dta: unknown to train_gpt eval; the nearest is --data"},
        {{"eval", "c", "--data=x", "--prompt=y"}, "--prompt: unknown to train_gpt eval; the nearest is --data"},
        {{"eval", "c", "--data=x", "--train.steps=5"}, "--train.steps: unknown to train_gpt eval; the nearest is --data"},
        {{"sample", "c", "--promt=x"}, "--promt: unknown to train_gpt sample; the nearest is --prompt"},
        {{"a.json", "--overwrite", "--overwrite"}, "--overwrite: given twice"},
        {{"a.json", "--seed=1", "--seed=1"}, "--seed: given twice"},
        {{"sample", "c", "--prompt=x", "--seed=1", "--seed=2"}, "--seed: given twice"},
        {{"--resume", "a", "--resume=b"}, "--resume: given twice"},
        // values
        {{"a.json", "--train.steps", "5"}, "--train.steps: its value is missing; write --train.steps=5"},
        {{"a.json", "--train.steps", "--seed=5"}, "--train.steps: its value is missing; write --train.steps=VALUE"},
        {{"a.json", "--train.steps"}, "--train.steps: its value is missing; write --train.steps=VALUE"},
        {{"a.json", "--overwrite=true"}, "--overwrite: takes no value"},
        {{"a.json", "--dry-run="}, "--dry-run: takes no value"},
        {{"eval", "c", "--data"}, "--data: its value is missing; write --data=SHARDS"},
        {{"eval", "c", "--data", "x.bin"}, "--data: its value is missing; write --data=x.bin"},
        {{"eval", "c", "--data="}, "--data=: the value is empty"},
        {{"eval", "c", "--data=x", "--length=0"}, "--length=0: wanted an integer from 1 to 2^24, found 0"},
        {{"eval", "c", "--data=x", "--length=12x"}, "--length=12x: wanted an integer from 1 to 2^24, found the text \"12x\""},
        {{"eval", "c", "--data=x", "--length="}, "--length=: wanted an integer from 1 to 2^24, found the text \"\""},
        {{"eval", "c", "--data=x", "--threads=-1"}, "--threads=-1: wanted an integer from 0 to 4096, found -1"},
        {{"sample", "c", "--prompt=x", "--tokens=1.5"}, "--tokens=1.5: wanted an integer from 1 to 2^24, found 1.5"},
        {{"sample", "c", "--prompt=x", "--tokens=99999999999"},
         "--tokens=99999999999: wanted an integer from 1 to 2^24, found 99999999999"},
        {{"sample", "c", "--prompt=x", "--temperature=-1"}, "--temperature=-1: wanted a number of at least 0, found -1"},
        {{"sample", "c", "--prompt=x", "--temperature=nan"}, "--temperature=nan: wanted a number of at least 0, found the text \"nan\""},
        {{"sample", "c", "--prompt=x", "--temperature=1e999"}, "--temperature=1e999: 1e999 is too large for a double"},
        {{"sample", "c", "--prompt=x", "--top_k=-1"}, "--top_k=-1: wanted an integer from 0 to 2^24, found -1"},
        {{"sample", "c", "--prompt=x", "--top_p=0"}, "--top_p=0: wanted a number above 0 and at most 1, found 0"},
        {{"sample", "c", "--prompt=x", "--seed=-1"}, "--seed=-1: wanted an integer from 0 to 2^53, found -1"},
        {{"sample", "c", "--prompt=x", "--seed=9007199254740993"},
         "--seed=9007199254740993: 9007199254740993 cannot be held exactly: as a double it is 9007199254740992"},
        // what is missing, what does not go together
        {{"eval"}, "train_gpt eval: the checkpoint directory is missing; see train_gpt --help"},
        {{"eval", "--data=x"}, "train_gpt eval: the checkpoint directory is missing; see train_gpt --help"},
        {{"eval", "c"}, "train_gpt eval: --data=SHARDS is missing"},
        {{"sample", "c"}, "train_gpt sample: --prompt=TEXT is missing"},
        {{"--resume"}, "--resume: its run directory is missing; write --resume RUN_DIR"},
        {{"--resume", "--eval.every=5"}, "--resume: its run directory is missing; write --resume RUN_DIR"},
        {{"--resume="}, "--resume=: the value is empty"},
        {{"--resume", ""}, "--resume=: the value is empty"},
        {{"--resume", "runs/a", "--overwrite"}, "--overwrite: replaces a run, and --resume goes on with it: give one of them"},
        {{"--resume", "runs/a", "--dry-run"}, "--dry-run: takes a config, not --resume"},
        {{"a.json", "--resume", "runs/a"}, "--resume: takes the config that the run directory holds, not a.json"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Command command;
        int status = parse(&command, cases[i].arguments);
        if (status != STATUS_BAD_INPUT || strcmp(error_text(), cases[i].message) != 0)
            fail_msg("%s %s: status %d: %s\nwanted %s", cases[i].arguments[0], cases[i].arguments[1] ? cases[i].arguments[1] : "", status,
                     status ? error_text() : "-", cases[i].message);
        assert_null(command.overrides);                         // nothing to free
        command_line_free(&command);
    }
}

static void test_usage(void **state) {
    (void)state;
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    command_line_usage(out);
    fclose(out);
    static const char *const mentioned[] = {
        "train_gpt CONFIG.json [--section.key=value ...] [--overwrite] [--dry-run]\n",
        "train_gpt --resume RUN_DIR [--section.key=value ...]\n",
        "train_gpt eval CHECKPOINT --data=SHARDS [--length=N] [--threads=N]\n", "train_gpt sample CHECKPOINT --prompt=TEXT",
        "[--tokens=64]", "[--temperature=1]", "[--top_k=0]", "[--top_p=1]", "[--seed=1337]", "train_gpt help [KEY]", "--help", "--version",
        "examples:", "exit status: 0 success; 1 the run failed; 2 bad usage, config or data\n",
    };
    for (size_t i = 0; i < COUNT(mentioned); i++) {
        if (!strstr(text, mentioned[i])) fail_msg("the usage lacks %s", mentioned[i]);
    }
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) assert_true(strcspn(line, "\n") <= 120);
    // The examples are good commands: those without quotes are parsed here.
    int examples = 0;
    for (char *line = strstr(text, "examples:"), *rest = NULL; (line = strtok_r(line, "\n", &rest)); line = NULL) {
        const char *arguments[ARGUMENTS] = {NULL};
        char *word_rest = NULL;
        int n = 0;
        if (strncmp(line, "  train_gpt ", 12) != 0 || strchr(line, '"')) continue;
        for (char *word = strtok_r(line + 12, " ", &word_rest); word; word = strtok_r(NULL, " ", &word_rest)) arguments[n++] = word;
        Command command = parse_good(arguments);
        command_line_free(&command);
        examples++;
    }
    assert_int_equal(examples, 4);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train),  cmocka_unit_test(test_resume),           cmocka_unit_test(test_eval),
        cmocka_unit_test(test_sample), cmocka_unit_test(test_help_and_version), cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_usage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
