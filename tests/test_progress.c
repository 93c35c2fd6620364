// core/progress on a terminal (a pseudo-terminal of a known width) and in a file.
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/progress.h"
#include "support.h"

static ProgressStep at(long step, long steps, double tokens_per_second) {
    return (ProgressStep){ step, steps, 5.5451, 1.25, 1e-3, tokens_per_second, (double)(steps - step) };
}

// A run: its last line is shorter than the one it replaces.
static void show(void) {
    progress_note("eval %d", 0);
    for (long step = 1; step <= 60; step++) {
        ProgressStep now = at(step, 60, step < 60 ? 123456789 : 7);
        progress_step(&now);
    }
    progress_end();
}

// The same, and a note instead of its end.
static void show_then_note(void) {
    ProgressStep now = at(1, 60, 1);
    progress_step(&now);
    progress_note("saved");
    progress_end();
}

// What `action` writes to `file`.
static void show_in_child(int file, void (*action)(void)) {
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        dup2(file, STDOUT_FILENO);
        action();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void a_file_gets_lines_now_and_then(void **state) {
    (void)state;
    char directory[256], path[300], wanted[4096] = "";
    make_directory(directory);
    snprintf(path, sizeof path, "%s/out", directory);
    int file = open(path, O_CREAT | O_WRONLY, 0600);
    show_in_child(file, show);
    close(file);
    char *text = read_file(path, NULL);
    static const long lines[] = { 0, 1, 2, 5, 10, 20, 50, 60 };
    static const char *const left[] = { "", "59 s", "58 s", "55 s", "50 s", "40 s", "10 s", "0 s" };
    for (int i = 0; i < 8; i++) {
        char line[256];
        snprintf(line, sizeof line, "step %ld/60  loss 5.5451  grad norm 1.25  lr 1.00e-03  %s tokens/s  %s left\n", lines[i],
                 lines[i] < 60 ? "123456789" : "7", left[i]);
        strcat(wanted, lines[i] ? line : "eval 0\n");
    }
    assert_string_equal(text, wanted);                          // no escape code, no \r
    free(text);
    remove_directory(directory);
}

// What stands on the screen after `text`: lines separated by \n, blanks at their ends taken away. No line may wrap.
static char *screen_after(const char *text, int width) {
    char *screen = calloc(1, strlen(text) + 200), *line = screen;
    int column = 0, length = 0;
    for (; *text; text++) {
        if (*text == '\r') {
            column = 0;
        } else if (*text == '\n') {
            while (length && line[length - 1] == ' ') length--;
            line += length;
            *line++ = '\n';
            column = length = 0;
        } else {
            assert_in_range((unsigned char)*text, ' ', '~');    // no escape code
            line[column++] = *text;
            if (column >= width) fail_msg("column %d of %d was written", column, width);
            if (column > length) length = column;
        }
    }
    line[length] = '\0';
    return screen;
}

static char *show_on_terminal(int width, void (*action)(void)) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0);
    assert_int_equal(grantpt(master), 0);
    assert_int_equal(unlockpt(master), 0);
    struct winsize size = { .ws_col = (unsigned short)width, .ws_row = 24 };
    assert_int_equal(ioctl(master, TIOCSWINSZ, &size), 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    show_in_child(slave, action);                               // little enough for the terminal's own buffer
    close(slave);
    char *text = calloc(1, 65536);
    size_t length = 0;
    for (ssize_t got; length < 65535 && (got = read(master, text + length, 65535 - length)) > 0;) length += (size_t)got;
    close(master);
    return text;
}

static void a_terminal_gets_one_live_line(void **state) {
    (void)state;
    char *text = show_on_terminal(120, show), *screen = screen_after(text, 120);
    assert_string_equal(screen, "eval 0\nstep 60/60  loss 5.5451  grad norm 1.25  lr 1.00e-03  7 tokens/s  0 s left\n");
    assert_non_null(strstr(text, "\rstep 1/60  "));
    free(text);
    free(screen);
    text = show_on_terminal(20, show), screen = screen_after(text, 20);
    assert_string_equal(screen, "eval 0\nstep 60/60  loss 5.\n");
    free(text);
    free(screen);
    text = show_on_terminal(120, show_then_note), screen = screen_after(text, 120);
    assert_string_equal(screen, "saved\n");                    // the live line makes room
    free(text);
    free(screen);
}

static void durations(void **state) {
    (void)state;
    static const struct { double seconds; const char *text; } cases[] = {
        { 0, "0 s" }, { 0.4, "0 s" }, { 59.4, "59 s" }, { 59.6, "1:00" }, { 754, "12:34" }, { 3599.6, "1:00:00" }, { 3723, "1:02:03" },
        { 360000, "100:00:00" }, { -1, "?" }, { NAN, "?" }, { INFINITY, "?" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];
        progress_duration(text, sizeof text, cases[i].seconds);
        assert_string_equal(text, cases[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_gets_lines_now_and_then),
        cmocka_unit_test(a_terminal_gets_one_live_line),
        cmocka_unit_test(durations),
    };
    return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
