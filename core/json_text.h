// What cJSON leaves out beside strictness (strict_json.h): numbers that read back to the same double (its own printing may be off in the
// last bit), keys that stand twice.
#ifndef JSON_TEXT_H
#define JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct cJSON;

// The value as text, malloc'd; a number that is not finite is null. NULL when out of memory.
char *json_text_print(const struct cJSON *json, bool indented);

// The shortest decimal that reads back to the same double: "0.1", "1e-05", "500"; "null" where it is not finite.
enum { JSON_TEXT_NUMBER_SIZE = 32 };
void json_text_of_number(char text[JSON_TEXT_NUMBER_SIZE], double value);

// A key that stands twice in an object, NULL where there is none. *failed: out of memory.
const char *json_text_repeated_key(const struct cJSON *object, bool *failed);

// Whether the value is a whole number from 0 to 2^53, which a double holds exactly.
bool json_text_is_whole(const struct cJSON *value);

#endif
