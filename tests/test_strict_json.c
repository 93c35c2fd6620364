// core/strict_json: what JSON is and is not, with the message and line of each mistake; numbers against exact decimals; UTF-8.
#include "core/strict_json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "core/error.h"
#include "tests/support.h"

#define TEXT(literal) {literal, sizeof literal - 1}             // with the zero bytes that are in it
typedef struct Text { const char *bytes; size_t length; } Text;

static void test_accepted(void **state) {
    (void)state;
    static const Text cases[] = {
        TEXT("{}"), TEXT("[]"), TEXT("null"), TEXT(" \t\r\n1 \n"), TEXT("-0"), TEXT("-0.5e-7"), TEXT("1E+2"), TEXT("\"\""),
        TEXT("[[],[{}]]"),
        TEXT("\xef\xbb\xbf{\"a\": 1}"), TEXT("{\"a\":{\"b\":1},\"c\":{\"b\":1}}"), TEXT("[{\"a\":1},{\"a\":1}]"),
        TEXT("\"\\u00e9\\ud83d\\ude00\\\"\\\\\\/\\b\\f\\n\\r\\t\""), TEXT("\"\xf4\x8f\xbf\xbf\xc2\x80\""), TEXT("9007199254740992"),
        TEXT("-9007199254740992"), TEXT("1e23"), TEXT("1000000000000000019884624838656"), TEXT("0.1"), TEXT("5e-324"),
        TEXT("1.7976931348623157e308"), TEXT("0e99999"), TEXT("100e-2"), TEXT("12.50e1"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *json;
        int status = strict_json_parse(&json, cases[i].bytes, cases[i].length);
        if (status) fail_msg("%s: refused: %s", cases[i].bytes, error_text());
        assert_non_null(json);
        cJSON_Delete(json);
    }
}

static void test_refused(void **state) {
    (void)state;
    static const struct { Text text; const char *message; } cases[] = {
        {TEXT(""), "is empty: wanted JSON"},
        {TEXT(" \n\t"), "is empty: wanted JSON"},
        {TEXT("\xef\xbb\xbf"), "is empty: wanted JSON"},
        {TEXT("{"), "line 1: wanted a key in double quotes, found the end of the text"},
        {TEXT("{\n\"a\": 1,\n}"), "line 3: wanted a key in double quotes, found }"},
        {TEXT("{a: 1}"), "line 1: wanted a key in double quotes, found a"},
        {TEXT("{\"a\" 1}"), "line 1: wanted a colon after the key, found 1"},
        {TEXT("{\"a\": 1\n\n \"b\": 2}"), "line 3: wanted a comma or }, found \""},
        {TEXT("[1 2]"), "line 1: wanted a comma or ], found 2"},
        {TEXT("[1,]"), "line 1: wanted a value, found ]"},
        {TEXT("{} x"), "line 1: wanted nothing after the end of the JSON value, found x"},
        {TEXT("{}\n{}"), "line 2: wanted nothing after the end of the JSON value, found {"},
        {TEXT("{\n// why\n}"), "line 2: wanted a key in double quotes, found /"},
        {TEXT("True"), "line 1: wanted a value, found T"},
        {TEXT("NaN"), "line 1: wanted a value, found N"},
        {TEXT("[Infinity]"), "line 1: wanted a value, found I"},
        {TEXT("nul"), "line 1: wanted a value, found n"},
        {TEXT("'a'"), "line 1: wanted a value, found '"},
        {TEXT("{}\0"), "line 1: wanted nothing after the end of the JSON value, found the byte 0x00"},
        {TEXT("[\0]"), "line 1: wanted a value, found the byte 0x00"},
        {TEXT("[\f1]"), "line 1: wanted a value, found the byte 0x0c"},
        // numbers
        {TEXT("01"), "line 1: wanted nothing after the end of the JSON value, found 1"},
        {TEXT("[-]"), "line 1: wanted a digit after -"},
        {TEXT("[1.]"), "line 1: wanted a comma or ], found ."},
        {TEXT("[.5]"), "line 1: wanted a value, found ."},
        {TEXT("[+5]"), "line 1: wanted a value, found +"},
        {TEXT("[1e]"), "line 1: wanted a comma or ], found e"},
        {TEXT("[0x10]"), "line 1: wanted a comma or ], found x"},
        {TEXT("\n1e400"), "line 2: 1e400 is too large for a double"},
        {TEXT("-1e400"), "line 1: -1e400 is too large for a double"},
        {TEXT("1e-400"), "line 1: 1e-400 is too small for a double: it would become 0"},
        {TEXT("9007199254740993"), "line 1: 9007199254740993 cannot be held exactly: as a double it is 9007199254740992"},
        {TEXT("9007199254740993.0"), "line 1: 9007199254740993.0 cannot be held exactly: as a double it is 9007199254740992"},
        {TEXT("9.007199254740993e15"), "line 1: 9.007199254740993e15 cannot be held exactly: as a double it is 9007199254740992"},
        {TEXT("0.99999999999999999999"), "line 1: 0.99999999999999999999 cannot be held exactly: as a double it is 1"},
        {TEXT("100000000000000000000000"),
         "line 1: 100000000000000000000000 cannot be held exactly: as a double it is 99999999999999991611392"},
        {TEXT("0.0000000000000000000000000000000000000000000000000000000000000001"),
         "line 1: 0.000000000000000000...: a number has at most 63 characters"},
        // strings
        {TEXT("\"a"), "line 1: wanted the closing quote of a string, found the end of the text"},
        {TEXT("{\"a\n\": 1}"), "line 1: a string is not closed before the line ends"},
        {TEXT("\"a\tb\""), "line 1: the byte 0x09 in a string must be written as an escape"},
        {TEXT("\"a\0b\""), "line 1: the byte 0x00 in a string must be written as an escape"},
        {TEXT("\"\\x\""), "line 1: wanted an escape that JSON knows after \\, found x"},
        {TEXT("\"\\"), "line 1: wanted an escape that JSON knows after \\, found the end of the text"},
        {TEXT("\"\\\0\""), "line 1: wanted an escape that JSON knows after \\, found the byte 0x00"},
        {TEXT("\"\\u12g4\""), "line 1: wanted four hexadecimal digits after \\u, found g"},
        {TEXT("\"\\u0000\""), "line 1: \\u0000 cannot stand in a string"},
        {TEXT("\"\\ud83d\""), "line 1: \\ud83d is half a character: its second half must follow"},
        {TEXT("\"\\ud83d\\u0041\""), "line 1: \\ud83d is half a character: its second half must follow"},
        {TEXT("\"\\ude00\""), "line 1: \\ude00 is the second half of a character without its first"},
        {TEXT("\"\xff\""), "line 1: the byte 0xff in a string is not UTF-8"},
        {TEXT("\"\xc0\xaf\""), "line 1: the byte 0xc0 in a string is not UTF-8"},
        {TEXT("\"\xc3\""), "line 1: the byte 0xc3 in a string is not UTF-8"},
        {TEXT("\"\xed\xa0\x80\""), "line 1: the byte 0xed in a string is not UTF-8"},
        {TEXT("\xff"), "line 1: wanted a value, found the byte 0xff"},
        // repeated keys
        {TEXT("{\"a\": 1, \"a\": 1}"), "a: given twice"},
        {TEXT("{\"a\": 1, \"b\": 2, \"\\u0061\": 3}"), "a: given twice"},
        {TEXT("{\"x\": {\"a\": {}, \"a\": {}}}"), "x.a: given twice"},
        {TEXT("{\"x\": [1, {\"y\": {\"a\": 1, \"a\": 2}}]}"), "x[].y.a: given twice"},
        {TEXT("{\"\": 1, \"\": 2}"), ": given twice"},
        {TEXT("{\"a\\nb\": 1, \"a\\nb\": 2}"), "a?b: given twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *json;
        set_error(0, "%s", "");
        // A copy of exactly that length, so that reading beyond it is seen.
        char *bytes = malloc(cases[i].text.length + 1);
        memcpy(bytes, cases[i].text.bytes, cases[i].text.length);
        char *exact = realloc(bytes, cases[i].text.length ? cases[i].text.length : 1);
        assert_int_equal(strict_json_parse(&json, exact, cases[i].text.length), STATUS_BAD_INPUT);
        assert_null(json);
        assert_string_equal(error_text(), cases[i].message);
        free(exact);
    }
}

static int parse_nested(const char *open, const char *close, int depth) {
    char *text = malloc((size_t)depth * (strlen(open) + strlen(close)) + 1), *end = text;
    for (int i = 0; i < depth; i++) end = stpcpy(end, open);
    for (int i = 0; i < depth; i++) end = stpcpy(end, close);
    cJSON *json;
    int status = strict_json_parse(&json, text, (size_t)(end - text));
    cJSON_Delete(json);
    free(text);
    return status;
}

static void test_nesting(void **state) {
    (void)state;
    assert_int_equal(parse_nested("[", "]", 100), STATUS_OK);
    assert_int_equal(parse_nested("[", "]", 101), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "line 1: nested deeper than 100 levels");
    assert_int_equal(parse_nested("{\"a\":[", "]}", 20000), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "line 1: nested deeper than 100 levels");
}

// 200,000 keys, of which the first and the last are the same: a search that compared all pairs would hang here.
static void test_many_keys(void **state) {
    (void)state;
    const int count = 200000;
    char *text = malloc((size_t)count * 16 + 2), *end = text;
    *end++ = '{';
    for (int i = 0; i < count; i++) end += sprintf(end, "\"k%d\":0%s", i == count - 1 ? 0 : i, i == count - 1 ? "}" : ",");
    cJSON *json;
    assert_int_equal(strict_json_parse(&json, text, (size_t)(end - text)), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), "k0: given twice");
    free(text);
}

static void test_numbers(void **state) {
    (void)state;
    static const struct { const char *text; double value; } cases[] = {
        {"0", 0}, {"-1", -1}, {"1e3", 1000}, {"0.5", 0.5}, {"25e-2", 0.25}, {"1.000", 1}, {"9007199254740991", 9007199254740991.0},
        {"90071992547409920e-1", 9007199254740992.0}, {"0.1", 0.1}, {"1e-5", 1e-5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double value = -7;
        assert_true(strict_json_is_number(cases[i].text));
        assert_int_equal(strict_json_number(&value, cases[i].text), STATUS_OK);
        assert_true(value == cases[i].value);
    }
    static const char *const none[] = {"",    "-",  "+1", ".5",  "5.",    "1e",  "1e+", "01",
                                       "0x1", "1 ", " 1", "1,5", "1_000", "inf", "nan", "--1"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) assert_false(strict_json_is_number(none[i]));
}

static void test_utf8(void **state) {
    (void)state;
    static const char *const good[] = {"", "a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                                       "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2\x61", "\xe0\x9f\xbf", "\xe2\x82",
                                      "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf0\x90\x80", "\xfe",
                                      "a\xff"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) assert_true(is_utf8(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(is_utf8(bad[i], strlen(bad[i])));
    assert_true(is_utf8("a\0b", 3));
}

static void test_files(void **state) {
    (void)state;
    char directory[256], path[300], message[800];
    cJSON *json;
    make_directory(directory);
    snprintf(path, sizeof path, "%s/a.json", directory);

    assert_int_equal(strict_json_read(&json, path, 100), STATUS_BAD_INPUT);
    snprintf(message, sizeof message, "%s: cannot open: No such file or directory", path);
    assert_string_equal(error_text(), message);

    write_text(path, "{\"a\":\n tru}");
    assert_int_equal(strict_json_read(&json, path, 100), STATUS_BAD_INPUT);
    snprintf(message, sizeof message, "%s: line 2: wanted a value, found t", path);
    assert_string_equal(error_text(), message);

    write_text(path, "{\"a\": [1]}");
    assert_int_equal(strict_json_read(&json, path, 10), STATUS_OK);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "a")), 1);
    cJSON_Delete(json);
    assert_int_equal(strict_json_read(&json, path, 9), STATUS_BAD_INPUT);
    snprintf(message, sizeof message, "%s: larger than 9 bytes", path);
    assert_string_equal(error_text(), message);

    assert_int_equal(strict_json_read(&json, directory, 100), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "Is a directory"));
    assert_null(json);
    remove_directory(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted), cmocka_unit_test(test_refused), cmocka_unit_test(test_nesting), cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_numbers),  cmocka_unit_test(test_utf8),    cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
