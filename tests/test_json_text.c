// core/json_text: numbers in their shortest exact spelling, values as text, repeated keys.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "core/json_text.h"

static void numbers(void **state) {
    (void)state;
    static const struct { double value; const char *text; } cases[] = {
        { 0, "0" }, { -0.0, "-0" }, { 0.1, "0.1" }, { 1e-5, "1e-05" }, { 500, "500" }, { -3, "-3" }, { 1e6, "1000000" },
        { 0x1p53, "9007199254740992" }, { 0x1p53 - 1, "9007199254740991" }, { 1e23, "1e+23" }, { 0.1 + 0.2, "0.30000000000000004" },
        { 5e-324, "4.94065645841247e-324" }, { 1.7976931348623157e308, "1.7976931348623157e+308" }, { 1.0 / 3, "0.3333333333333333" },
        { NAN, "null" }, { INFINITY, "null" }, { -INFINITY, "null" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[JSON_TEXT_NUMBER_SIZE];
        json_text_of_number(text, cases[i].value);
        assert_string_equal(text, cases[i].text);
        if (isfinite(cases[i].value)) assert_true(strtod(text, NULL) == cases[i].value);
    }
}

static void values(void **state) {
    (void)state;
    cJSON *json = cJSON_Parse("{\"a\": [1, 2.5, {\"b\": null}], \"c\": \"\\u00e9\\n\\\"\", \"d\": true, \"e\": {}, \"f\": []}");
    cJSON_AddNumberToObject(json, "g", 0.1 + 0.2);
    cJSON_AddRawToObject(json, "h", "1.0");
    char *text = json_text_print(json, false);
    assert_string_equal(text, "{\"a\":[1,2.5,{\"b\":null}],\"c\":\"\xc3\xa9\\n\\\"\",\"d\":true,\"e\":{},\"f\":[],"
                              "\"g\":0.30000000000000004,\"h\":1.0}");
    cJSON_free(text);
    assert_true(cJSON_IsNumber(cJSON_GetObjectItem(json, "g")));        // printing changes nothing
    text = json_text_print(json, true);
    assert_non_null(strchr(text, '\n'));
    cJSON *again = cJSON_Parse(text);
    assert_true(cJSON_GetObjectItem(again, "g")->valuedouble == 0.1 + 0.2);
    cJSON_Delete(json);
    cJSON_Delete(again);
    cJSON_free(text);
}

static void repeated_keys(void **state) {
    (void)state;
    static const struct { const char *text, *key; } cases[] = {
        { "{}", NULL }, { "{\"a\":1}", NULL }, { "{\"a\":1,\"A\":1}", NULL }, { "{\"a\":{\"a\":1}}", NULL },
        { "{\"b\":1,\"a\":1,\"c\":2,\"a\":3}", "a" }, { "{\"\":1,\"\":1}", "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool failed = true;
        cJSON *json = cJSON_Parse(cases[i].text);
        const char *key = json_text_repeated_key(json, &failed);
        assert_false(failed);
        if (cases[i].key) assert_string_equal(key, cases[i].key);
        else assert_null(key);
        cJSON_Delete(json);
    }
}

static void whole_numbers(void **state) {
    (void)state;
    static const struct { const char *text; bool whole; } cases[] = {
        { "0", true }, { "7", true }, { "7.0", true }, { "9007199254740992", true }, { "9007199254740994", false }, { "-1", false },
        { "0.5", false }, { "\"7\"", false }, { "null", false }, { "[7]", false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cJSON *json = cJSON_Parse(cases[i].text);
        assert_int_equal(json_text_is_whole(json), cases[i].whole);
        cJSON_Delete(json);
    }
    assert_false(json_text_is_whole(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers),
        cmocka_unit_test(values),
        cmocka_unit_test(repeated_keys),
        cmocka_unit_test(whole_numbers),
    };
    return cmocka_run_group_tests_name("json_text", tests, NULL, NULL);
}
