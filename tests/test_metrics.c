// core/metrics: lines whole or not there, numbers that read back, and the cut at the resumed step.
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "core/error.h"
#include "core/metrics.h"
#include "support.h"

static char directory[256], path[300];

static int setup(void **state) {
    (void)state;
    make_directory(directory);
    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    remove_directory(directory);
    return 0;
}

static void expect_file(const char *wanted) {
    char *text = read_file(path, NULL);
    assert_string_equal(text, wanted);
    free(text);
}

static cJSON *step_event(long step, double loss) {
    cJSON *event = metrics_event("step");
    metrics_add_number(event, "step", (double)step);
    metrics_add_number(event, "loss", loss);
    return event;
}

static void appends_lines(void **state) {
    (void)state;
    Metrics *metrics;
    assert_int_equal(metrics_open(&metrics, directory, -1), 0);
    cJSON *start = metrics_event("start");
    cJSON_AddStringToObject(start, "version", "a \"quoted\" one\n");
    assert_int_equal(metrics_append(metrics, start), 0);
    assert_int_equal(metrics_append(metrics, step_event(1, 5.5)), 0);
    assert_int_equal(metrics_append(metrics, step_event(1000000, NAN)), 0);
    expect_file("{\"event\":\"start\",\"version\":\"a \\\"quoted\\\" one\\n\"}\n"
                "{\"event\":\"step\",\"step\":1,\"loss\":5.5}\n"
                "{\"event\":\"step\",\"step\":1000000,\"loss\":null}\n");
    assert_int_equal(metrics_sync(metrics), 0);
    assert_false(metrics_has(metrics, "step", 1));              // of the file as opened
    metrics_close(metrics);

    assert_int_equal(metrics_open(&metrics, directory, -1), 0); // goes on behind what is there
    assert_true(metrics_has(metrics, "step", 1));
    assert_int_equal(metrics_append(metrics, step_event(2, 1)), 0);
    metrics_close(metrics);
    char *text = read_file(path, NULL);
    assert_non_null(strstr(text, "null}\n{\"event\":\"step\",\"step\":2,\"loss\":1}\n"));
    free(text);
}

// Doubles of all sizes, and neighbours of short decimals, where printing 15 digits alone would lose the last bit.
static void numbers_read_back(void **state) {
    (void)state;
    double values[1000] = {
        0.1 + 0.2, 1e-5, 0x1p53 - 1, -0.0, 5e-324, 1.7976931348623157e308, 1e23, nextafter(0.1, 1), 2e9, 123456789012.0,
    };
    uint64_t bits = 88172645463325252;
    for (int i = 10; i < 1000; i++) {
        do {
            bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
            memcpy(&values[i], &bits, sizeof bits);
        } while (!isfinite(values[i]));
    }
    Metrics *metrics;
    assert_int_equal(metrics_open(&metrics, directory, -1), 0);
    for (int i = 0; i < 1000; i++) assert_int_equal(metrics_append(metrics, step_event(i, values[i])), 0);
    metrics_close(metrics);
    char *text = read_file(path, NULL), *line = text;
    for (int i = 0; i < 1000; i++) {
        double value = strtod(strstr(line, "\"loss\":") + 7, NULL);
        assert_memory_equal(&value, &values[i], sizeof value);
        line = strchr(line, '\n') + 1;
    }
    assert_non_null(strstr(text, "\"loss\":1e-05}"));
    assert_non_null(strstr(text, "\"loss\":0.30000000000000004}"));
    assert_non_null(strstr(text, "\"loss\":123456789012}"));
    free(text);
}

#define START "{\"event\":\"start\",\"version\":\"1\"}\n"
#define RESUMED "{ \"event\" :\"start\", \"resumed_from\":2}\n"
#define STEP(s) "{\"event\":\"step\",\"step\":" #s ",\"loss\":0.50}\n"              // not how this program spells it: bytes must stay
#define EVAL(s) "{\"event\":\"eval\",\"step\":" #s ",\"val_loss\":1e0}\n"
#define SAMPLE(s) "{\"event\":\"sample\",\"step\":" #s ",\"text\":\"\\u00e9\"}\n"
#define END(s) "{\"event\":\"end\",\"step\":" #s "}\n"

static const struct Cut { const char *before; long step; const char *after; } cuts[] = {
    { START EVAL(0) STEP(1) STEP(2) EVAL(2) SAMPLE(2) STEP(3) STEP(4) EVAL(4), 2, START EVAL(0) STEP(1) STEP(2) EVAL(2) SAMPLE(2) },
    { START STEP(1) STEP(2) RESUMED RESUMED STEP(3) STEP(4), 3, START STEP(1) STEP(2) RESUMED RESUMED STEP(3) },
    { START STEP(1) STEP(2) RESUMED STEP(3), 2, START STEP(1) STEP(2) RESUMED },
    { START STEP(1) STEP(2) STEP(3) RESUMED STEP(4), 2, START STEP(1) STEP(2) },
    { START EVAL(0) STEP(1) EVAL(1) END(1), 1, START EVAL(0) STEP(1) EVAL(1) },
    { START EVAL(0) STEP(1) END(1), 0, START EVAL(0) },
    { START STEP(1) STEP(2), 5, START STEP(1) STEP(2) },
    { START STEP(1) "{\"event\":\"step\",\"st", 1, START STEP(1) },
    { START STEP(1) "{\"event\":\"step\",\"step\":1}", 1, START STEP(1) },           // whole but for its end
    { START STEP(1) "{\"event\":\"step\",\"st", -1, START STEP(1) },
    { START STEP(1) END(1), -1, START STEP(1) END(1) },
    { START STEP(1) STEP(2) "garbage\n" STEP(3), 1, START STEP(1) },
    { START STEP(99999999) STEP(100000000), 99999999, START STEP(99999999) },
    { START "{\"event\":\"step\",\"step\":1}\r\n" STEP(2), 1, START "{\"event\":\"step\",\"step\":1}\r\n" },
    { "", 3, "" },
    { "no end", 0, "" },
};

static void cuts_at_the_resumed_step(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        Metrics *metrics;
        write_text(path, cuts[i].before);
        if (metrics_open(&metrics, directory, cuts[i].step)) fail_msg("case %d: %s", (int)i, error_text());
        expect_file(cuts[i].after);
        assert_int_equal(metrics_append(metrics, metrics_event("start")), 0);
        metrics_close(metrics);
        char *text = read_file(path, NULL);
        assert_int_equal(strlen(text), strlen(cuts[i].after) + strlen("{\"event\":\"start\"}\n"));
        assert_memory_equal(text, cuts[i].after, strlen(cuts[i].after));
        free(text);
    }
}

static void knows_what_stands_there(void **state) {
    (void)state;
    Metrics *metrics;
    write_text(path, START EVAL(0) STEP(1) STEP(2) EVAL(2) STEP(3) EVAL(3));
    assert_int_equal(metrics_open(&metrics, directory, 2), 0);
    assert_true(metrics_has(metrics, "eval", 0));
    assert_true(metrics_has(metrics, "eval", 2));
    assert_true(metrics_has(metrics, "step", 2));
    assert_false(metrics_has(metrics, "eval", 1));
    assert_false(metrics_has(metrics, "eval", 3));              // it was cut
    assert_false(metrics_has(metrics, "sample", 2));
    metrics_close(metrics);
    write_text(path, "");
    assert_int_equal(metrics_open(&metrics, directory, 2), 0);
    assert_false(metrics_has(metrics, "eval", 0));
    metrics_close(metrics);
}

static const struct Damage { const char *text; long step; int line; } damages[] = {
    { START "garbage\n" STEP(1) STEP(2), 2, 2 },
    { START STEP(1) "{\"step\":2}\n", 2, 3 },
    { START STEP(1) "{\"event\":\"step\",\"step\":-1}\n", 2, 3 },
    { START STEP(1) "{\"event\":\"step\",\"step\":1.5}\n", 2, 3 },
    { START STEP(1) "{\"event\":\"step\",\"step\":2} x\n", 2, 3 },                   // something behind the object
    { START "\n" STEP(1), 2, 2 },
    { START "[]\n", 2, 2 },
    { START STEP(1) STEP(3) STEP(2), 2, 4 },                    // not in order: cutting at step 3 would lose step 2
};

static void refuses_damage_and_changes_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        Metrics *metrics;
        char wanted[400];
        write_text(path, damages[i].text);
        if (metrics_open(&metrics, directory, damages[i].step) != STATUS_BAD_INPUT) fail_msg("case %d was accepted", (int)i);
        assert_null(metrics);
        snprintf(wanted, sizeof wanted, "%s:%d: ", path, damages[i].line);
        if (strncmp(error_text(), wanted, strlen(wanted))) fail_msg("case %d: %s", (int)i, error_text());
        expect_file(damages[i].text);
    }
    Metrics *metrics;
    assert_int_equal(metrics_open(&metrics, "/no/such/directory", -1), STATUS_FAILED);
    assert_non_null(strstr(error_text(), "/no/such/directory/metrics.jsonl: cannot open: No such file"));
}

// A limit on file sizes stands in for a full disk: the write is cut in the middle of a line.
static void a_full_disk_leaves_whole_lines(void **state) {
    (void)state;
    Metrics *metrics;
    struct rlimit limit, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(metrics_open(&metrics, directory, -1), 0);
    assert_int_equal(metrics_append(metrics, step_event(1, 0.25)), 0);
    const char *first = "{\"event\":\"step\",\"step\":1,\"loss\":0.25}\n";
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    small = limit;
    small.rlim_cur = strlen(first) + 10;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int status = metrics_append(metrics, step_event(2, 0.25));
    char message[600];
    snprintf(message, sizeof message, "%s", error_text());
    int again = metrics_append(metrics, step_event(2, 0.25));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, before);
    assert_int_equal(status, STATUS_FAILED);
    assert_int_equal(again, STATUS_FAILED);
    assert_non_null(strstr(message, "metrics.jsonl: cannot write: File too large"));
    expect_file(first);
    assert_int_equal(metrics_append(metrics, step_event(2, 0.5)), 0);       // room again
    expect_file("{\"event\":\"step\",\"step\":1,\"loss\":0.25}\n{\"event\":\"step\",\"step\":2,\"loss\":0.5}\n");
    metrics_close(metrics);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(appends_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(numbers_read_back, setup, teardown),
        cmocka_unit_test_setup_teardown(cuts_at_the_resumed_step, setup, teardown),
        cmocka_unit_test_setup_teardown(knows_what_stands_there, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_damage_and_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_leaves_whole_lines, setup, teardown),
    };
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
