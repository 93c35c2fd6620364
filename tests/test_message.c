// core/message: distances worked out by hand, and text made fit to print.
#include "core/message.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_edit_distance(void **state) {
    (void)state;
    static const struct { const char *a, *b; int distance; } cases[] = {
        {"", "", 0},
        {"", "abc", 3},
        {"same", "same", 0},
        {"kitten", "sitting", 3},
        {"stps", "steps", 1},
        {"stepss", "steps", 1},
        {"stepz", "steps", 1},
        {"wieght", "weight", 1},                // neighbours swapped
        {"ab", "ba", 1},
        {"abc", "ca", 3},                       // no edit within a swapped pair: the restricted distance
        {"overwrit", "overwrite", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(edit_distance(cases[i].a, cases[i].b), cases[i].distance);
        assert_int_equal(edit_distance(cases[i].b, cases[i].a), cases[i].distance);
    }
}

static void test_edit_distance_of_long_names(void **state) {
    (void)state;
    char a[5000], b[5000];
    memset(a, 'a', sizeof a - 1);
    memset(b, 'b', sizeof b - 1);
    a[sizeof a - 1] = b[sizeof b - 1] = 0;
    assert_int_equal(edit_distance(a, b), 63);
    assert_int_equal(edit_distance(a, ""), 63);
    b[63] = 0;
    assert_int_equal(edit_distance("b", b), 62);
}

static void test_printable(void **state) {
    (void)state;
    char printable[PRINTABLE_SIZE], text[1000];
    assert_string_equal(make_printable(printable, ""), "");
    assert_string_equal(make_printable(printable, "a\nb\x1b[31m\x7f\t"), "a?b?[31m??");
    assert_string_equal(make_printable(printable, "Zürich"), "Zürich");
    memset(text, 'x', sizeof text);
    text[PRINTABLE_SIZE - 1] = 0;                               // the longest that fits
    assert_string_equal(make_printable(printable, text), text);
    text[PRINTABLE_SIZE - 1] = 'x';
    text[PRINTABLE_SIZE] = 0;
    make_printable(printable, text);
    assert_int_equal(strlen(printable), PRINTABLE_SIZE - 1);
    assert_string_equal(printable + PRINTABLE_SIZE - 5, "x...");
}

// A cut never leaves half a character.
static void test_printable_cuts_between_characters(void **state) {
    (void)state;
    for (int shift = 0; shift < 4; shift++) {
        char printable[PRINTABLE_SIZE], text[400] = "";
        memset(text, 'x', (size_t)shift);
        for (int i = 0; i < 60; i++) strcat(text, "€");
        make_printable(printable, text);
        const size_t length = strlen(printable);
        assert_true(length > PRINTABLE_SIZE - 8 && length < PRINTABLE_SIZE);
        assert_string_equal(printable + length - 3, "...");
        assert_int_equal((length - 3 - (size_t)shift) % 3, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edit_distance),
        cmocka_unit_test(test_edit_distance_of_long_names),
        cmocka_unit_test(test_printable),
        cmocka_unit_test(test_printable_cuts_between_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
