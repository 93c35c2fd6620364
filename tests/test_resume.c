// Runs that are stopped, killed or hindered, and resumed: each must end with the metrics, weights and moments of a run left alone, bit for
// bit.
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <cjson/cJSON.h>

// State of every kind: alpha_ma, moments, batches shuffled over epochs of 2.5 steps, diagnostics; a step in four micro-batches.
static const char flags[] = "--attention.type=affine --attention.gate=headwise --data.train=few.bin --data.shuffle=true "
    "--train.micro_batch_size=1";

static int enter(void **state) {
    int status = enter_workplace(state);
    write_shard("few.bin", 81, orbit_token);
    return status;
}

// What every resumed run's log has to hold beside what it shares with one left alone.
static void check_starts(const char *run_dir, int count, long last_resumed_from) {
    cJSON *starts = read_metrics(run_dir, "start"), *ends = read_metrics(run_dir, "end");
    assert_int_equal(cJSON_GetArraySize(starts), count);
    assert_int_equal(cJSON_GetArraySize(ends), 1);
    assert_null(cJSON_GetObjectItem(starts->child, "resumed_from"));
    assert_int_equal(number(cJSON_GetArrayItem(starts, count - 1), "resumed_from"), last_resumed_from);
    cJSON_Delete(starts);
    cJSON_Delete(ends);
}

static void assert_checkpoints(const char *run_dir, const char *wanted) {
    char *names = list_directory(path_of("%s/checkpoints", run_dir));
    assert_string_equal(names, wanted);
    free(names);
}

// ---- stopped ----

static void test_resumed_at_a_checkpoint(void **state) {
    (void)state;
    must("train_gpt config.json %s --run_dir=alone --train.steps=40", flags);
    must("train_gpt config.json %s", flags);
    must("train_gpt --resume run --train.steps=30");
    must("train_gpt --resume=run --train.steps=40");
    assert_same_run("run", "alone", 40);
    check_starts("run", 3, 30);
    assert_checkpoints("run", "step-00000030 step-00000040 ");
    // Each was a run of its own right: it says how far it meant to go.
    char *config = read_file("run/config.json", NULL);
    cJSON *json = cJSON_Parse(config);
    assert_int_equal(number(cJSON_GetObjectItem(json, "train"), "steps"), 40);
    cJSON_Delete(json);
    free(config);
}

static void test_resumed_on_other_threads_and_recomputing(void **state) {
    (void)state;
    must("train_gpt config.json %s --run_dir=alone", flags);
    must("train_gpt config.json %s --train.steps=10", flags);
    must("train_gpt --resume run --train.steps=20 --compute.threads=2 --compute.recompute=block");
    assert_same_run("run", "alone", 20);
}

static void test_resume_of_a_complete_run(void **state) {
    (void)state;
    must("train_gpt config.json %s", flags);
    must("cp -r run before");
    must("train_gpt --resume run");
    assert_same_run("run", "before", 20);
    check_starts("run", 2, 20);
    assert_checkpoints("run", "step-00000010 step-00000020 ");
}

static void test_initial_weights_are_a_checkpoint(void **state) {
    (void)state;
    must("train_gpt config.json %s --run_dir=alone", flags);
    must("train_gpt config.json %s --train.steps=0", flags);
    must("train_gpt --resume run --train.steps=20");
    assert_same_run("run", "alone", 20);
    check_starts("run", 2, 0);
}

// What --resume may change takes effect, and nothing else changes.
static void test_resume_with_other_intervals(void **state) {
    (void)state;
    must("train_gpt config.json %s --run_dir=alone", flags);
    must("train_gpt config.json %s --train.steps=10", flags);
    must("train_gpt --resume run --train.steps=20 --eval.every=4 --eval.batches=1 --checkpoint.every=3 --checkpoint.keep=4 "
         "--diagnostics.every=0");
    assert_same_file("run/checkpoints/step-00000020/model.safetensors", "alone/checkpoints/step-00000020/model.safetensors");
    assert_checkpoints("run", "step-00000012 step-00000015 step-00000018 step-00000020 ");
    cJSON *evaluations = read_metrics("run", "eval"), *diagnostics = read_metrics("run", "diagnostics");
    static const int wanted[] = { 0, 10, 12, 16, 20 };
    assert_int_equal(cJSON_GetArraySize(evaluations), 5);
    for (int i = 0; i < 5; i++) assert_int_equal(number(cJSON_GetArrayItem(evaluations, i), "step"), wanted[i]);
    assert_int_equal(cJSON_GetArraySize(diagnostics), 2);
    cJSON_Delete(evaluations);
    cJSON_Delete(diagnostics);
}

static void test_resume_where_it_was_moved_to(void **state) {
    (void)state;
    must("train_gpt config.json %s --run_dir=alone", flags);
    must("train_gpt config.json %s --train.steps=10", flags);
    must("mkdir elsewhere && mv run elsewhere/moved && train_gpt --resume elsewhere/moved --train.steps=20");
    assert_same_run("elsewhere/moved", "alone", 20);
    assert_false(exists("run"));
}

// A signal ends the run after the step it is at.
static void stop_by(int signal_number) {
    must("rm -rf run");
    Process process = start("exec $TRAIN_GPT config.json %s --train.steps=1000000000", flags);
    wait_for_step(&process, "run", 13);
    assert_int_equal(kill(process.pid, signal_number), 0);
    Outcome outcome = finish(&process);
    assert_int_equal(outcome.status, 0);
    assert_non_null(strstr(outcome.out, "train_gpt --resume run"));
    free_outcome(&outcome);
    cJSON *steps = read_metrics("run", "step"), *ends = read_metrics("run", "end");
    const long stopped = cJSON_GetArraySize(steps);
    assert_int_equal(cJSON_GetArraySize(ends), 0);
    cJSON_Delete(steps);
    cJSON_Delete(ends);
    assert_true(exists(path_of("run/checkpoints/step-%08ld", stopped)));
    must("train_gpt --resume run --train.steps=%ld", stopped + 7);
    must("train_gpt config.json %s --overwrite --run_dir=alone --train.steps=%ld", flags, stopped + 7);
    assert_same_run("run", "alone", stopped + 7);
    check_starts("run", 2, stopped);
}

static void test_stopped_by_a_signal(void **state) {
    (void)state;
    stop_by(SIGTERM);
    stop_by(SIGINT);
}

// ---- killed ----

static void test_killed_while_it_trains(void **state) {
    (void)state;
    must("train_gpt config.json %s --run_dir=alone --train.steps=120", flags);
    static const long at[] = { 1, 9, 10, 33, 70 };
    for (int i = 0; i < 5; i++) {
        must("rm -rf run");
        Process process = start("exec $TRAIN_GPT config.json %s --train.steps=120", flags);
        wait_for_step(&process, "run", at[i]);
        kill(process.pid, SIGKILL);
        Outcome outcome = finish(&process);
        free_outcome(&outcome);
        must("train_gpt --resume run");
        assert_same_run("run", "alone", 120);
        assert_checkpoints("run", "step-00000110 step-00000120 ");
    }
}

static void test_killed_before_the_first_checkpoint(void **state) {
    (void)state;
    must("train_gpt config.json %s --run_dir=alone --checkpoint.every=0 --train.steps=60", flags);
    Process process = start("exec $TRAIN_GPT config.json %s --checkpoint.every=0 --train.steps=1000000000", flags);
    wait_for_step(&process, "run", 5);
    kill(process.pid, SIGKILL);
    Outcome outcome = finish(&process);
    assert_int_equal(outcome.status, 128 + SIGKILL);
    free_outcome(&outcome);
    assert_checkpoints("run", "");
    must("train_gpt --resume run --train.steps=60");
    assert_same_run("run", "alone", 60);
    check_starts("run", 2, 0);
}

// ---- killed at every call that changes a file ----

// Of the writes of tensors, which follow each other, the first alone: within the series nothing changes for whoever resumes.
static bool is_counted(const struct __ptrace_syscall_info *call, uint64_t *last) {
    const uint64_t *arguments = call->entry.args, before = *last;
    *last = call->entry.nr;
    switch (call->entry.nr) {
    case SYS_pwrite64: return before != SYS_pwrite64;
    case SYS_openat: return arguments[2] & O_CREAT;
    case SYS_write: case SYS_writev: return arguments[0] > 2;
    case SYS_ftruncate: case SYS_fallocate: case SYS_fsync: case SYS_fdatasync:
    case SYS_mkdirat: case SYS_unlinkat: case SYS_renameat2: case SYS_linkat:
#ifdef SYS_rename                                           // older names, which newer machines do without
    case SYS_mkdir: case SYS_rmdir: case SYS_unlink: case SYS_rename: case SYS_renameat: case SYS_link:
#endif
        return true;
    default: return false;
    }
}

// Runs the program and kills it before its n-th such call (from 1). Returns false if there were fewer: then it has ended well. Skips the
// test where one process may not trace another.
static bool killed_before_call(long n, const char *const *arguments) {
    const pid_t child = fork();
    if (child == 0) {
        const int nothing = open("/dev/null", O_RDWR);
        dup2(nothing, 1);
        dup2(nothing, 2);
        setenv("ASAN_OPTIONS", "detect_leaks=0", 1);        // the leak checker traces too, and there is but one tracer
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) _exit(99);
        execv(getenv("TRAIN_GPT"), (char *const *)arguments);
        _exit(98);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 99) skip();
    assert_true(WIFSTOPPED(status));
    assert_int_equal(ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL), 0);
    uint64_t last = 0;
    for (int signal_number = 0;;) {
        assert_int_equal(ptrace(PTRACE_SYSCALL, child, NULL, signal_number), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSTOPPED(status)) break;
        signal_number = WSTOPSIG(status);
        if (signal_number == SIGTRAP) signal_number = 0;    // it executed another program, or itself anew
        if (signal_number != (SIGTRAP | 0x80)) continue;
        signal_number = 0;
        struct __ptrace_syscall_info call;
        assert_true(ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof call, &call) > 0);
        if (call.op != PTRACE_SYSCALL_INFO_ENTRY || !is_counted(&call, &last) || --n > 0) continue;
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        return true;
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return false;
}

// A small run with everything: checkpoints at 2, 4, 6, ... of which two are kept.
static const char small[] = "--checkpoint.every=2 --eval.every=3 --diagnostics.every=2 --attention.type=affine --data.train=few.bin "
    "--data.shuffle=true";

static void test_killed_at_every_change_of_a_file(void **state) {
    (void)state;
    must("train_gpt config.json %s --train.steps=6 --run_dir=alone", small);
    must("train_gpt config.json %s --train.steps=6", small);
    must("mv run/config.json small.json && rm -r run");
    static const char *const arguments[] = { "train_gpt", "small.json", NULL };
    const long stride = SANITIZED ? 7 : 1;
    long n = 1;
    for (;; n += stride) {
        const bool killed = killed_before_call(n, arguments);
        if (!exists("run/config.json")) must("train_gpt small.json");      // there was no run yet
        else must("train_gpt --resume run");
        assert_same_run("run", "alone", 6);
        assert_checkpoints("run", "step-00000004 step-00000006 ");
        must("rm -r run");
        if (!killed) break;
    }
    assert_true(n > 60);                                    // three checkpoints of four files, each written, synced and put in place
}

static void test_resume_killed_at_every_change_of_a_file(void **state) {
    (void)state;
    must("train_gpt config.json %s --run_dir=alone --train.steps=8", small);
    // A run killed between checkpoints, so that the log holds lines to cut.
    must("train_gpt config.json %s --run_dir=stopped --train.steps=6 && rm -r stopped/checkpoints/step-00000006", small);
    static const char *const arguments[] = { "train_gpt", "--resume", "run", "--train.steps=8", NULL };
    const long stride = SANITIZED ? 7 : 1;
    long n = 1;
    for (;; n += stride) {
        must("cp -r stopped run");
        const bool killed = killed_before_call(n, arguments);
        must("train_gpt --resume run --train.steps=8");
        assert_same_run("run", "alone", 8);
        assert_checkpoints("run", "step-00000006 step-00000008 ");
        must("rm -r run");
        if (!killed) break;
    }
    assert_true(n > 40);
}

// ---- what a crash may leave ----

static void test_leftovers_are_no_checkpoints(void **state) {
    (void)state;
    must("train_gpt config.json %s --run_dir=alone", flags);
    must("train_gpt config.json %s --train.steps=10", flags);
    must("cd run/checkpoints && mkdir step-00000015 .writing-step-00000020 && cp step-00000010/*.json step-00000015 && "
         "echo half > .writing-step-00000020/model.safetensors");
    must("train_gpt --resume run --train.steps=20");
    assert_same_run("run", "alone", 20);
    check_starts("run", 2, 10);
    assert_false(exists("run/checkpoints/.writing-step-00000020"));
}

static void test_a_line_that_was_cut_off(void **state) {
    (void)state;
    must("train_gpt config.json %s --run_dir=alone", flags);
    must("train_gpt config.json %s --train.steps=10", flags);
    must("cp -r run other");
    // as a run that was killed at its eleventh step leaves it: no end event, half a line
    must("sed -i '$d' run/metrics.jsonl && printf '{\"event\":\"step\",\"step\":11,\"tok' >> run/metrics.jsonl");
    must("train_gpt --resume run --train.steps=20");
    assert_same_run("run", "alone", 20);
    // In the middle it is no crash's work: it is named, and all stays as it was.
    must("sed -i '4s/.$//' other/metrics.jsonl && cp -r other before");
    refuses(2, "other/metrics.jsonl:4", "train_gpt --resume other --train.steps=20");
    assert_same_file("other/metrics.jsonl", "before/metrics.jsonl");
    assert_checkpoints("other", "step-00000010 ");
}

// ---- hindered ----

static void set_limit(const Process *process, int resource, rlim_t soft) {
    struct rlimit limit;
    assert_int_equal(prlimit(process->pid, resource, NULL, &limit), 0);
    limit.rlim_cur = soft < limit.rlim_max ? soft : limit.rlim_max;
    assert_int_equal(prlimit(process->pid, resource, &limit, NULL), 0);
}

// Waits until the program has written that text to its standard output.
static void wait_for_text(const Process *process, const char *text) {
    for (int i = 0; i < 60000; i++) {
        char *out = read_file(path_of("%s/out", process->directory), NULL);
        const bool found = strstr(out, text);
        free(out);
        if (found) return;
        if (!is_alive(process)) break;
        usleep(1000);
    }
    fail_msg("the program never said: %s", text);
}

// While no file can be opened no checkpoint is saved, and the run goes on; when it can, the next one is.
static void test_a_periodic_save_that_fails(void **state) {
    (void)state;
    Process process = start("exec $TRAIN_GPT config.json --train.steps=1000000000 --eval.every=0 --diagnostics.every=0");
    wait_for_text(&process, "saved run/checkpoints/step-00000010");
    set_limit(&process, RLIMIT_NOFILE, 0);
    wait_for_text(&process, "was not saved: ");
    wait_for_text(&process, "Too many open files");
    char *names = list_directory("run/checkpoints");
    assert_non_null(strstr(names, "step-"));                // what was safe stays safe
    free(names);
    set_limit(&process, RLIMIT_NOFILE, 1024);
    cJSON *steps = read_metrics("run", "step");
    const long reached = cJSON_GetArraySize(steps);
    cJSON_Delete(steps);
    wait_for_step(&process, "run", reached + 20);
    kill(process.pid, SIGTERM);
    Outcome outcome = finish(&process);
    assert_int_equal(outcome.status, 0);
    const char *failed = strstr(outcome.out, "was not saved: ");
    assert_non_null(strstr(failed, "saved run/checkpoints/step-"));
    free_outcome(&outcome);
    steps = read_metrics("run", "step");
    const long stopped = cJSON_GetArraySize(steps);
    cJSON_Delete(steps);
    must("train_gpt --resume run --train.steps=%ld", stopped + 10);
    must("train_gpt config.json --eval.every=0 --diagnostics.every=0 --run_dir=alone --train.steps=%ld", stopped + 10);
    assert_same_run("run", "alone", stopped + 10);
}

static void test_a_final_save_that_fails(void **state) {
    (void)state;
    must("train_gpt config.json --eval.every=0 --diagnostics.every=0 --run_dir=alone");
    // Files of at most 20 kB: enough for the log, too little for the weights. The signal is ignored so that the write fails instead.
    Outcome outcome = run("trap '' XFSZ; ulimit -S -f 40; train_gpt config.json --eval.every=0 --diagnostics.every=0 --checkpoint.every=4");
    assert_int_equal(outcome.status, 1);
    assert_non_null(strstr(outcome.out, "step 4 was not saved: "));
    assert_non_null(strstr(outcome.err, "File too large"));
    assert_non_null(strstr(outcome.err, "safetensors"));
    free_outcome(&outcome);
    assert_checkpoints("run", "");                          // and nothing half written
    cJSON *steps = read_metrics("run", "step"), *ends = read_metrics("run", "end");
    assert_int_equal(cJSON_GetArraySize(steps), 20);
    assert_int_equal(cJSON_GetArraySize(ends), 0);
    cJSON_Delete(steps);
    cJSON_Delete(ends);
    must("train_gpt --resume run --checkpoint.every=10");
    assert_same_run("run", "alone", 20);
}

static void test_a_log_that_cannot_be_written(void **state) {
    (void)state;
    must("train_gpt config.json %s --run_dir=alone --checkpoint.every=0", flags);
    Outcome outcome = run("trap '' XFSZ; ulimit -S -f 8; train_gpt config.json %s --checkpoint.every=0", flags);
    assert_int_equal(outcome.status, 1);
    assert_non_null(strstr(outcome.err, "run/metrics.jsonl"));
    assert_non_null(strstr(outcome.err, "File too large"));
    free_outcome(&outcome);
    size_t length;
    char *text = read_file("run/metrics.jsonl", &length);
    assert_true(length > 0 && length <= 4096 && text[length - 1] == '\n');
    free(text);
    must("train_gpt --resume run");
    assert_same_run("run", "alone", 20);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave_workplace)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_resumed_at_a_checkpoint),
        TEST(test_resumed_on_other_threads_and_recomputing),
        TEST(test_resume_of_a_complete_run),
        TEST(test_initial_weights_are_a_checkpoint),
        TEST(test_resume_with_other_intervals),
        TEST(test_resume_where_it_was_moved_to),
        TEST(test_stopped_by_a_signal),
        TEST(test_killed_while_it_trains),
        TEST(test_killed_before_the_first_checkpoint),
        TEST(test_killed_at_every_change_of_a_file),
        TEST(test_resume_killed_at_every_change_of_a_file),
        TEST(test_leftovers_are_no_checkpoints),
        TEST(test_a_line_that_was_cut_off),
        TEST(test_a_periodic_save_that_fails),
        TEST(test_a_final_save_that_fails),
        TEST(test_a_log_that_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
