// core/files: whole or unchanged, and errors that name the file.
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
#include <unistd.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/files.h"
#include "support.h"

static char directory[256];

static int setup(void **state) {
    (void)state;
    make_directory(directory);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    remove_directory(directory);
    return 0;
}

static void expect_error(int status, int wanted, const char *says) {
    assert_int_equal(status, wanted);
    if (!strstr(error_text(), says)) fail_msg("the message is: %s", error_text());
}

static void expect_names(const char *wanted) {
    char *names = list_directory(directory);
    assert_string_equal(names, wanted);
    free(names);
}

static void reads_text(void **state) {
    (void)state;
    const char *path = path_of("%s/a", directory);
    enum { LARGE = 1 << 18 };                                   // more than one reading
    char *large = malloc(LARGE + 1), *text;
    size_t length;
    for (int i = 0; i < LARGE; i++) large[i] = (char)('a' + i % 23);
    large[LARGE] = '\0';
    write_text(path, large);
    assert_int_equal(read_text_file(path, LARGE, &text, &length), 0);
    assert_int_equal(length, LARGE);
    assert_string_equal(text, large);
    free(text);
    expect_error(read_text_file(path, LARGE - 1, &text, &length), STATUS_BAD_INPUT, "/a: larger than 262143 bytes");
    assert_null(text);
    free(large);
    write_text(path, "");
    assert_int_equal(read_text_file(path, 10, &text, NULL), 0);
    assert_string_equal(text, "");
    free(text);
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite("ab\0c", 1, 4, file), 4);
    fclose(file);
    assert_int_equal(read_text_file(path, 10, &text, &length), 0);
    assert_int_equal(length, 4);
    assert_memory_equal(text, "ab\0c", 5);
    free(text);
    expect_error(read_text_file(path, 10, &text, NULL), STATUS_BAD_INPUT, "byte 2 is zero");
    expect_error(read_text_file(path_of("%s/b", directory), 10, &text, NULL), STATUS_BAD_INPUT, "/b: cannot open: No such file");
    expect_error(read_text_file(directory, 10, &text, NULL), STATUS_BAD_INPUT, "Is a directory");
}

// A limit on file sizes stands in for a full disk.
static void replaces_whole_or_not_at_all(void **state) {
    (void)state;
    const char *path = path_of("%s/a", directory);
    struct rlimit limit, small;
    assert_int_equal(write_file_atomically(path, "old"), 0);
    assert_int_equal(write_file_atomically(path, "new"), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    small = limit;
    small.rlim_cur = 4;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int status = write_file_atomically(path, "newer");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, before);
    expect_error(status, STATUS_FAILED, "cannot write: File too large");
    char *text = read_file(path, NULL);
    assert_string_equal(text, "new");
    free(text);
    expect_names("a ");                                         // nothing left of the attempt
    assert_int_equal(mkdir(path_of("%s/b", directory), 0777), 0);
    expect_error(write_file_atomically(path_of("%s/b", directory), "x"), STATUS_FAILED, "cannot rename");
    expect_names("a b ");
    expect_error(write_file_atomically(path_of("%s/c/d", directory), "x"), STATUS_FAILED, "c/d.writing: cannot create: No such file");
}

static void copies(void **state) {
    (void)state;
    const char *from = path_of("%s/from", directory), *to = path_of("%s/to", directory);
    enum { COUNT = 200001 };
    char *bytes = malloc(COUNT);
    for (int i = 0; i < COUNT; i++) bytes[i] = (char)(i * 7 % 251);
    assert_int_equal(write_file(from, bytes, COUNT), 0);
    assert_int_equal(write_file(to, "longer than nothing", 19), 0);
    assert_int_equal(copy_file(from, to), 0);
    assert_same_file(from, to);
    free(bytes);
    expect_error(copy_file(path_of("%s/absent", directory), to), STATUS_FAILED, "/absent: cannot open");
    expect_error(copy_file(from, path_of("%s/no/to", directory)), STATUS_FAILED, "/no/to: cannot create");
    expect_error(copy_file(directory, to), STATUS_FAILED, "cannot read: Is a directory");
}

static void makes_and_removes_directories(void **state) {
    (void)state;
    const char *deep = path_of("%s/a/b//c/", directory);
    assert_int_equal(make_directories(deep), 0);
    assert_int_equal(make_directories(deep), 0);                // there already
    assert_true(exists(path_of("%s/a/b/c", directory)));
    write_text(path_of("%s/a/b/file", directory), "x");
    expect_error(make_directories(path_of("%s/a/b/file", directory)), STATUS_FAILED, "is no directory");
    expect_error(make_directories(path_of("%s/a/b/file/d", directory)), STATUS_FAILED, "file/d");
    write_text(path_of("%s/kept", directory), "x");
    assert_int_equal(symlink("../../kept", path_of("%s/a/b/link", directory)), 0);
    assert_int_equal(symlink("..", path_of("%s/a/b/up", directory)), 0);
    assert_int_equal(remove_tree(path_of("%s/a", directory)), 0);
    expect_names("kept ");
    assert_int_equal(remove_tree(path_of("%s/a", directory)), 0);       // nothing there
    assert_int_equal(symlink("kept", path_of("%s/link", directory)), 0);
    assert_int_equal(remove_tree(path_of("%s/link", directory)), 0);
    assert_int_equal(remove_tree(path_of("%s/kept", directory)), 0);
    expect_names("");
    assert_int_equal(sync_directory(directory), 0);
    expect_error(sync_directory(path_of("%s/a", directory)), STATUS_FAILED, "/a: cannot open");
}

static void formats_paths(void **state) {
    (void)state;
    char path[8];
    assert_int_equal(format_path(path, sizeof path, "%s/%d", "abc", 123), 0);
    assert_string_equal(path, "abc/123");
    expect_error(format_path(path, sizeof path, "%s/%d", "abc", 1234), STATUS_BAD_INPUT, "longer than 7 bytes");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_text, setup, teardown),
        cmocka_unit_test_setup_teardown(replaces_whole_or_not_at_all, setup, teardown),
        cmocka_unit_test_setup_teardown(copies, setup, teardown),
        cmocka_unit_test_setup_teardown(makes_and_removes_directories, setup, teardown),
        cmocka_unit_test_setup_teardown(formats_paths, setup, teardown),
    };
    return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}
