// Strict JSON (RFC 8259) for files that people write. cJSON makes the tree, but alone it lets through what has no meaning, or another than
// the writer's: 01 and 1., control characters, text cut at \u0000, broken UTF-8, 1e400, integers that change when they become a double, and
// keys given twice.
#ifndef STRICT_JSON_H
#define STRICT_JSON_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cJSON;

enum {
    STRICT_JSON_DEPTH = 100,            // deepest nesting
    STRICT_JSON_NUMBER_SIZE = 64        // longest number, terminator included: cJSON's own limit
};

// *json = the parsed text, freed by the caller with cJSON_Delete. A byte order mark is skipped. Status 2: "line 3: ...",
// "a.b: given twice".
int strict_json_parse(struct cJSON **json, const char *text, size_t length);

// The same from a file of at most limit bytes; errors begin with the path.
int strict_json_read(struct cJSON **json, const char *path, size_t limit);

// Whether text is a JSON number and nothing else.
bool strict_json_is_number(const char *text);

// The double that a JSON number stands for. Status 2 for what overflows, what underflows to 0, and an integer that no double holds.
int strict_json_number(double *value, const char *number);

// Whether the bytes are UTF-8, without surrogates and overlong forms (RFC 3629).
bool is_utf8(const char *text, size_t length);

#ifdef __cplusplus
}
#endif
#endif
