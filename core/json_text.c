// Numbers that read back, and repeated keys: what cJSON leaves out.
#include "json_text.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void json_text_of_number(char text[JSON_TEXT_NUMBER_SIZE], double value) {
    if (!isfinite(value)) {
        strcpy(text, "null");
        return;
    }
    if (value == floor(value) && fabs(value) <= 0x1p53) {
        snprintf(text, JSON_TEXT_NUMBER_SIZE, "%.0f", value);        // counts in full, never as 1e+06
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {             // 17 always suffice
        snprintf(text, JSON_TEXT_NUMBER_SIZE, "%.*g", digits, value);
        if (strtod(text, NULL) == value) return;
    }
}

// Numbers become raw text, which cJSON copies as it is. False when out of memory.
static bool fix_numbers(cJSON *item) {
    if (cJSON_IsNumber(item)) {
        char text[JSON_TEXT_NUMBER_SIZE];
        json_text_of_number(text, item->valuedouble);
        item->valuestring = cJSON_malloc(strlen(text) + 1);
        if (!item->valuestring) return false;
        strcpy(item->valuestring, text);
        item->type = cJSON_Raw | (item->type & cJSON_StringIsConst);
    }
    for (cJSON *child = item->child; child; child = child->next) {
        if (!fix_numbers(child)) return false;
    }
    return true;
}

char *json_text_print(const cJSON *json, bool indented) {
    cJSON *copy = cJSON_Duplicate(json, 1);
    char *text = copy && fix_numbers(copy) ? indented ? cJSON_Print(copy) : cJSON_PrintUnformatted(copy) : NULL;
    cJSON_Delete(copy);
    return text;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

const char *json_text_repeated_key(const cJSON *object, bool *failed) {
    size_t count = 0;
    for (const cJSON *item = object->child; item; item = item->next) count++;
    const char **keys = malloc((count + 1) * sizeof *keys), *repeated = NULL;
    *failed = !keys;
    if (!keys) return NULL;
    count = 0;
    for (const cJSON *item = object->child; item; item = item->next) keys[count++] = item->string;
    qsort(keys, count, sizeof *keys, by_text);
    for (size_t i = 1; i < count && !repeated; i++) {
        if (!strcmp(keys[i - 1], keys[i])) repeated = keys[i];
    }
    free(keys);
    return repeated;
}

bool json_text_is_whole(const cJSON *value) {
    if (!cJSON_IsNumber(value)) return false;
    double number = value->valuedouble;
    return number >= 0 && number <= 0x1p53 && number == floor(number);
}
