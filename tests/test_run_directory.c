// core/run_directory: who may use a directory, what --overwrite takes away and what it leaves, and the config that stands in it.
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/run_directory.h"
#include "support.h"

static char directory[256], run_path[300];
static Config config;

static int setup(void **state) {
    (void)state;
    make_directory(directory);
    snprintf(run_path, sizeof run_path, "%s/runs/a", directory);
    config_defaults(&config);
    snprintf(config.run_dir, sizeof config.run_dir, "%s", run_path);
    snprintf(config.data.train, sizeof config.data.train, "data/*.bin");
    return 0;
}

static int teardown(void **state) {
    (void)state;
    run_directory_close();
    remove_directory(directory);
    return 0;
}

static const char *in(const char *base, const char *name) {
    static char paths[4][600];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", base, name);
    return path;
}

static void expect_error(int status, int wanted, const char *says) {
    assert_int_equal(status, wanted);
    if (!strstr(error_text(), says)) fail_msg("the message is: %s", error_text());
}

static void checking_writes_nothing(void **state) {
    (void)state;
    assert_int_equal(run_directory_check(run_path, false), 0);
    assert_false(exists(in(directory, "runs")));
    assert_int_equal(run_directory_check("a_run_that_is_not_there", false), 0);
    assert_int_equal(mkdir(in(directory, "runs"), 0777), 0);
    assert_int_equal(mkdir(run_path, 0777), 0);
    assert_int_equal(run_directory_check(run_path, false), 0);
    assert_false(exists(in(run_path, "lock")));
}

static void creates_and_reads_back(void **state) {
    (void)state;
    Config read;
    config.optimizer.lr = 0.1 + 0.2;                            // needs 17 digits
    config.train.steps = 123456789;
    config.attention.type = ATTENTION_AFFINE;
    assert_int_equal(run_directory_create(&config, false), 0);
    run_directory_close();
    if (run_directory_resume(run_path, &read)) fail_msg("%s", error_text());
    assert_memory_equal(&read.optimizer, &config.optimizer, sizeof config.optimizer);
    assert_int_equal(read.train.steps, 123456789);
    assert_int_equal(read.attention.type, ATTENTION_AFFINE);
    assert_string_equal(read.run_dir, run_path);
    read.train.steps = 7;
    assert_int_equal(run_directory_write_config(&read), 0);
    assert_false(exists(in(run_path, "config.json.writing")));
    run_directory_close();

    char moved[300];
    snprintf(moved, sizeof moved, "%s/moved", directory);
    assert_int_equal(rename(run_path, moved), 0);
    assert_int_equal(run_directory_resume(moved, &read), 0);
    assert_int_equal(read.train.steps, 7);
    assert_string_equal(read.run_dir, moved);                   // not where it was made
}

static void refuses_a_run_that_is_there(void **state) {
    (void)state;
    assert_int_equal(run_directory_create(&config, false), 0);
    run_directory_close();
    expect_error(run_directory_check(run_path, false), STATUS_BAD_INPUT, "holds a run (config.json); use --resume");
    expect_error(run_directory_create(&config, false), STATUS_BAD_INPUT, "--overwrite");
    assert_int_equal(unlink(in(run_path, "config.json")), 0);
    write_text(in(run_path, "metrics.jsonl"), "{}\n");
    expect_error(run_directory_check(run_path, false), STATUS_BAD_INPUT, "holds a run (metrics.jsonl)");
    assert_int_equal(run_directory_check(run_path, true), 0);
}

static void overwrites_the_run_and_nothing_else(void **state) {
    (void)state;
    assert_int_equal(run_directory_create(&config, false), 0);
    write_text(in(run_path, "metrics.jsonl"), "{}\n");
    write_text(in(run_path, "notes.txt"), "mine");
    assert_int_equal(mkdir(in(run_path, "checkpoints"), 0777), 0);
    assert_int_equal(mkdir(in(run_path, "checkpoints/step-00000001"), 0777), 0);
    write_text(in(run_path, "checkpoints/step-00000001/config.json"), "{}");
    assert_int_equal(mkdir(in(directory, "elsewhere"), 0777), 0);
    write_text(in(directory, "elsewhere/kept"), "kept");
    assert_int_equal(symlink("../../../../elsewhere", in(run_path, "checkpoints/link")), 0);
    run_directory_close();

    config.train.steps = 3;
    assert_int_equal(run_directory_create(&config, true), 0);
    assert_false(exists(in(run_path, "metrics.jsonl")));
    assert_false(exists(in(run_path, "checkpoints")));
    assert_true(exists(in(run_path, "notes.txt")));
    assert_true(exists(in(directory, "elsewhere/kept")));      // links are removed, not followed
    Config read;
    run_directory_close();
    assert_int_equal(run_directory_resume(run_path, &read), 0);
    assert_int_equal(read.train.steps, 3);
}

// Files of the same names that no run wrote: a model's, a checkpoint's, somebody's own.
static void overwrites_no_model_and_no_foreign_file(void **state) {
    (void)state;
    assert_int_equal(make_directories(run_path), 0);
    write_text(in(run_path, "config.json"), "{}");
    expect_error(run_directory_check(run_path, true), STATUS_BAD_INPUT, "holds config.json, which is no run's");
    assert_int_equal(unlink(in(run_path, "config.json")), 0);
    assert_int_equal(mkdir(in(run_path, "checkpoints"), 0777), 0);
    expect_error(run_directory_check(run_path, true), STATUS_BAD_INPUT, "holds checkpoints, which is no run's");
    write_text(in(run_path, "metrics.jsonl"), "{\"event\":\"start\"}\n");
    assert_int_equal(run_directory_check(run_path, true), 0);
    write_text(in(run_path, "model.safetensors"), "weights");
    expect_error(run_directory_check(run_path, true), STATUS_BAD_INPUT, "holds a model or a checkpoint (model.safetensors)");
}

// What `action` returns in another process; its message is checked there.
static int in_another_process(int (*action)(const char *says), const char *says) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        int status = action(says);
        _exit(status && says && !strstr(error_text(), says) ? 100 : status);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int check_again(const char *says) { (void)says; return run_directory_check(run_path, true); }
static int create_again(const char *says) { (void)says; return run_directory_create(&config, true); }
static int resume_again(const char *says) { (void)says; return run_directory_resume(run_path, &config); }

// Takes the lock and ends without giving it back.
static int create_and_die(const char *says) {
    (void)says;
    return run_directory_create(&config, true) ? 1 : 42;
}

static void one_process_at_a_time(void **state) {
    (void)state;
    // a child made by fork shares its parent's lock, so the holder is another child here, stopped on a pipe
    int ready[2], go[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(go), 0);
    pid_t holder = fork();
    if (!holder) {
        close(go[1]);
        int status = run_directory_create(&config, false);
        if (write(ready[1], status ? "n" : "y", 1) != 1 || read(go[0], &byte, 1) < 0) status = 1;
        _exit(status);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    char *before = read_file(in(run_path, "config.json"), NULL);
    config.train.steps = 99;
    assert_int_equal(in_another_process(check_again, "in use by a live process"), STATUS_BAD_INPUT);
    assert_int_equal(in_another_process(create_again, "in use by a live process"), STATUS_BAD_INPUT);
    assert_int_equal(in_another_process(resume_again, "in use by a live process"), STATUS_BAD_INPUT);
    char *after = read_file(in(run_path, "config.json"), NULL);
    assert_string_equal(before, after);
    free(before);
    free(after);
    close(go[1]);
    int status;
    assert_int_equal(waitpid(holder, &status, 0), holder);
    assert_int_equal(status, 0);
    assert_int_equal(in_another_process(check_again, NULL), 0);
    assert_int_equal(in_another_process(create_and_die, NULL), 42);
    assert_int_equal(in_another_process(resume_again, NULL), 0);       // the dead hold no lock
    close(ready[0]), close(ready[1]), close(go[0]);
}

static void names_what_cannot_be_a_run(void **state) {
    (void)state;
    Config read;
    char long_path[PATH_SIZE + 10];
    expect_error(run_directory_resume(run_path, &read), STATUS_BAD_INPUT, "there is no run to resume");
    write_text(in(directory, "runs"), "a file");
    expect_error(run_directory_check(in(directory, "runs"), false), STATUS_BAD_INPUT, "is a file");
    expect_error(run_directory_check(run_path, false), STATUS_BAD_INPUT, "runs/a");
    expect_error(run_directory_create(&config, false), STATUS_FAILED, "Not a directory");
    expect_error(run_directory_resume(in(directory, "runs"), &read), STATUS_BAD_INPUT, "is a file; --resume takes a run's directory");
    expect_error(run_directory_resume(directory, &read), STATUS_BAD_INPUT, "holds no run: there is no config.json");
    assert_false(exists(in(directory, "lock")));               // what is no run is not touched
    write_text(in(directory, "config.json"), "{\"seed\": 1,}");
    expect_error(run_directory_resume(directory, &read), STATUS_BAD_INPUT, "config.json: line 1");
    write_text(in(directory, "config.json"), "{\"sed\": 1}");
    expect_error(run_directory_resume(directory, &read), STATUS_BAD_INPUT, "config.json: sed");
    memset(long_path, 'a', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    expect_error(run_directory_check(long_path, false), STATUS_BAD_INPUT, "longer than");
}

static int check_as_nobody(const char *says) {
    const unsigned nobody = 65534;
    if (!geteuid() && setuid(nobody)) return 101;               // root may write anywhere
    return check_again(says);
}

static void needs_permission_to_write(void **state) {
    (void)state;
    assert_int_equal(chmod(directory, 0755), 0);
    assert_int_equal(mkdir(in(directory, "runs"), 0755), 0);
    assert_int_equal(chmod(in(directory, "runs"), 0555), 0);
    assert_int_equal(in_another_process(check_as_nobody, "cannot write in"), STATUS_BAD_INPUT);
    assert_int_equal(chmod(in(directory, "runs"), 0777), 0);
    assert_int_equal(in_another_process(check_as_nobody, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(checking_writes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(creates_and_reads_back, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_a_run_that_is_there, setup, teardown),
        cmocka_unit_test_setup_teardown(overwrites_the_run_and_nothing_else, setup, teardown),
        cmocka_unit_test_setup_teardown(overwrites_no_model_and_no_foreign_file, setup, teardown),
        cmocka_unit_test_setup_teardown(one_process_at_a_time, setup, teardown),
        cmocka_unit_test_setup_teardown(names_what_cannot_be_a_run, setup, teardown),
        cmocka_unit_test_setup_teardown(needs_permission_to_write, setup, teardown),
    };
    return cmocka_run_group_tests_name("run_directory", tests, NULL, NULL);
}
