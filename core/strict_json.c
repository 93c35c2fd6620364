// Strict JSON: a scanner that checks the text and says where it is wrong, then cJSON for the tree, then a search for repeated keys.
#include "strict_json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "files.h"
#include "json_text.h"
#include "message.h"

// ---- numbers ----

static size_t count_digits(const char *text, size_t length) {
    size_t n = 0;
    while (n < length && text[n] >= '0' && text[n] <= '9') n++;
    return n;
}

// Length of the longest number that text begins with; 0 where none does.
static size_t number_length(const char *text, size_t length) {
    size_t at = length > 0 && text[0] == '-';
    size_t digits = count_digits(text + at, length - at);
    if (digits == 0) return 0;
    at += text[at] == '0' ? 1 : digits;
    if (at < length && text[at] == '.') {
        digits = count_digits(text + at + 1, length - at - 1);
        if (digits == 0) return at;
        at += 1 + digits;
    }
    if (at < length && (text[at] == 'e' || text[at] == 'E')) {
        const size_t sign = at + 1 < length && (text[at + 1] == '+' || text[at + 1] == '-');
        digits = count_digits(text + at + 1 + sign, length - at - 1 - sign);
        if (digits > 0) at += 1 + sign + digits;
    }
    return at;
}

bool strict_json_is_number(const char *text) {
    const size_t length = strlen(text);
    return length > 0 && number_length(text, length) == length;
}

// A decimal as its significant digits, without zeros at either end, and the power of ten of the last one; no digits for 0.
typedef struct Decimal {
    char digits[STRICT_JSON_NUMBER_SIZE];
    long exponent;
} Decimal;

static Decimal decimal(const char *number) {
    Decimal d = {.exponent = 0};
    size_t n = 0;
    bool fraction = false;
    for (; *number && *number != 'e' && *number != 'E'; number++) {
        if (*number == '.') fraction = true;
        if (*number < '0' || *number > '9') continue;
        if (n > 0 || *number != '0') d.digits[n++] = *number;
        d.exponent -= fraction;
    }
    if (*number && n > 0) d.exponent += strtol(number + 1, NULL, 10);
    while (n > 0 && d.digits[n - 1] == '0') {
        n--;
        d.exponent++;
    }
    d.digits[n] = 0;
    return d;
}

// Whether the decimal spelling and the double are the same whole number.
static bool same_whole_number(const char *number, double value) {
    char exact[STRICT_JSON_NUMBER_SIZE];
    if ((size_t)snprintf(exact, sizeof exact, "%.0f", value) >= sizeof exact) return false;
    const Decimal a = decimal(number), b = decimal(exact);
    return strcmp(a.digits, b.digits) == 0 && (a.digits[0] == 0 || a.exponent == b.exponent);
}

int strict_json_number(double *value, const char *number) {
    const double exact_limit = 0x1p53;                          // above it a double skips integers
    if (strlen(number) >= STRICT_JSON_NUMBER_SIZE)
        return set_error(STATUS_BAD_INPUT, "%.20s...: a number has at most %d characters", number, STRICT_JSON_NUMBER_SIZE - 1);
    const double x = strtod(number, NULL);
    if (!isfinite(x)) return set_error(STATUS_BAD_INPUT, "%s is too large for a double", number);
    const Decimal spelled = decimal(number);
    if (x == 0 && spelled.digits[0]) return set_error(STATUS_BAD_INPUT, "%s is too small for a double: it would become 0", number);
    const bool whole = !strpbrk(number, ".eE") || (x == floor(x) && fabs(x) <= exact_limit);
    if (whole && !same_whole_number(number, x))
        return set_error(STATUS_BAD_INPUT, "%s cannot be held exactly: as a double it is %.0f", number, x);
    *value = x;
    return STATUS_OK;
}

// ---- text ----

// Length of the UTF-8 character at text; 0 where there is none.
static size_t utf8_length(const unsigned char *text, size_t length) {
    if (text[0] < 0x80) return 1;
    const size_t n = text[0] >= 0xc2 && text[0] <= 0xdf ? 2 : (text[0] & 0xf0) == 0xe0 ? 3 : text[0] >= 0xf0 && text[0] <= 0xf4 ? 4 : 0;
    if (n == 0 || n > length) return 0;
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
    }
    if ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xf0 && text[1] < 0x90)) return 0;       // overlong
    if ((text[0] == 0xed && text[1] > 0x9f) || (text[0] == 0xf4 && text[1] > 0x8f)) return 0;       // a surrogate; beyond U+10FFFF
    return n;
}

bool is_utf8(const char *text, size_t length) {
    for (size_t at = 0; at < length;) {
        const size_t n = utf8_length((const unsigned char *)text + at, length - at);
        if (n == 0) return false;
        at += n;
    }
    return true;
}

// ---- the scanner ----

typedef struct Scanner {
    const char *text;
    size_t length, at;
} Scanner;

static int wrong_at(const Scanner *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int wrong_at(const Scanner *s, const char *format, ...) {
    char reason[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    size_t line = 1;
    for (size_t i = 0; i < s->at && i < s->length; i++) line += s->text[i] == '\n';
    return set_error(STATUS_BAD_INPUT, "line %zu: %s", line, reason);
}

static int wanted_at(const Scanner *s, const char *wanted) {
    if (s->at >= s->length) return wrong_at(s, "wanted %s, found the end of the text", wanted);
    const unsigned char found = (unsigned char)s->text[s->at];
    if (found > ' ' && found < 0x7f) return wrong_at(s, "wanted %s, found %c", wanted, found);
    return wrong_at(s, "wanted %s, found the byte 0x%02x", wanted, found);
}

static void skip_space(Scanner *s) {
    while (s->at < s->length && s->text[s->at] && strchr(" \t\r\n", s->text[s->at])) s->at++;
}

static bool take(Scanner *s, char wanted) {
    if (s->at >= s->length || s->text[s->at] != wanted) return false;
    s->at++;
    return true;
}

// *code = the number in the four hexadecimal digits that follow.
static int scan_hex(Scanner *s, unsigned *code) {
    *code = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        const char c = s->at < s->length ? s->text[s->at] : 0;
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return wanted_at(s, "four hexadecimal digits after \\u");
        *code = *code * 16 + (unsigned)digit;
    }
    return STATUS_OK;
}

static int scan_escape(Scanner *s) {
    const char kind = s->at < s->length ? s->text[s->at] : 0;
    if (!kind || !strchr("\"\\/bfnrtu", kind)) return wanted_at(s, "an escape that JSON knows after \\");
    s->at++;
    if (kind != 'u') return STATUS_OK;
    unsigned code, low;
    int status = scan_hex(s, &code);
    if (status) return status;
    if (code == 0) return wrong_at(s, "\\u0000 cannot stand in a string");
    if (code >= 0xdc00 && code <= 0xdfff) return wrong_at(s, "\\u%04x is the second half of a character without its first", code);
    if (code < 0xd800 || code > 0xdbff) return STATUS_OK;
    if (!take(s, '\\') || !take(s, 'u')) return wrong_at(s, "\\u%04x is half a character: its second half must follow", code);
    status = scan_hex(s, &low);
    if (status) return status;
    return low >= 0xdc00 && low <= 0xdfff ? STATUS_OK : wrong_at(s, "\\u%04x is half a character: its second half must follow", code);
}

static int scan_string(Scanner *s) {
    s->at++;                                                    // the opening quote
    while (s->at < s->length && s->text[s->at] != '"') {
        const unsigned char c = (unsigned char)s->text[s->at];
        if (c == '\n') return wrong_at(s, "a string is not closed before the line ends");
        if (c < ' ') return wrong_at(s, "the byte 0x%02x in a string must be written as an escape", c);
        if (c == '\\') {
            s->at++;
            int status = scan_escape(s);
            if (status) return status;
            continue;
        }
        const size_t n = utf8_length((const unsigned char *)s->text + s->at, s->length - s->at);
        if (n == 0) return wrong_at(s, "the byte 0x%02x in a string is not UTF-8", c);
        s->at += n;
    }
    return take(s, '"') ? STATUS_OK : wanted_at(s, "the closing quote of a string");
}

static int scan_number(Scanner *s) {
    char number[STRICT_JSON_NUMBER_SIZE];
    const char *text = s->text + s->at;
    const size_t n = number_length(text, s->length - s->at);
    if (n == 0) return wrong_at(s, "wanted a digit after -");
    if (n >= sizeof number) return wrong_at(s, "%.20s...: a number has at most %d characters", text, STRICT_JSON_NUMBER_SIZE - 1);
    memcpy(number, text, n);
    number[n] = 0;
    double value;
    int status = strict_json_number(&value, number);
    if (status) return wrong_at(s, "%s", error_text());
    s->at += n;
    return STATUS_OK;
}

static int scan_value(Scanner *s, int depth);

// The members of an object or the elements of an array, from behind the opening bracket.
static int scan_members(Scanner *s, bool object, int depth) {
    const char end = object ? '}' : ']';
    if (depth >= STRICT_JSON_DEPTH) return wrong_at(s, "nested deeper than %d levels", STRICT_JSON_DEPTH);
    skip_space(s);
    if (take(s, end)) return STATUS_OK;
    do {
        skip_space(s);
        if (object) {
            if (s->at >= s->length || s->text[s->at] != '"') return wanted_at(s, "a key in double quotes");
            int status = scan_string(s);
            if (status) return status;
            skip_space(s);
            if (!take(s, ':')) return wanted_at(s, "a colon after the key");
        }
        int status = scan_value(s, depth + 1);
        if (status) return status;
        skip_space(s);
    } while (take(s, ','));
    return take(s, end) ? STATUS_OK : wanted_at(s, object ? "a comma or }" : "a comma or ]");
}

static int scan_value(Scanner *s, int depth) {
    static const char *const words[] = {"true", "false", "null"};
    skip_space(s);
    const char c = s->at < s->length ? s->text[s->at] : 0;
    if (c == '"') return scan_string(s);
    if (c == '-' || (c >= '0' && c <= '9')) return scan_number(s);
    if (c == '{' || c == '[') {
        s->at++;
        return scan_members(s, c == '{', depth);
    }
    for (int i = 0; i < 3; i++) {
        const size_t n = strlen(words[i]);
        if (s->length - s->at < n || memcmp(s->text + s->at, words[i], n) != 0) continue;
        s->at += n;
        return STATUS_OK;
    }
    return wanted_at(s, "a value");
}

// ---- repeated keys ----

// path: the dotted name of item, "" at the top.
static int check_repeated(const cJSON *item, const char *path) {
    char longer[512], name[PRINTABLE_SIZE];
    if (cJSON_IsObject(item)) {
        bool failed;
        const char *repeated = json_text_repeated_key(item, &failed);
        if (failed) return set_error(STATUS_FAILED, "out of memory for the keys of JSON");
        if (repeated) return set_error(STATUS_BAD_INPUT, "%s%s%s: given twice", path, *path ? "." : "", make_printable(name, repeated));
    }
    for (const cJSON *child = item->child; child; child = child->next) {
        if (!child->child) continue;
        if (child->string) snprintf(longer, sizeof longer, "%.256s%s%s", path, *path ? "." : "", make_printable(name, child->string));
        else snprintf(longer, sizeof longer, "%.256s[]", path);
        int status = check_repeated(child, longer);
        if (status) return status;
    }
    return STATUS_OK;
}

// ---- parsing and reading ----

int strict_json_parse(struct cJSON **json, const char *text, size_t length) {
    *json = NULL;
    const size_t start = length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    Scanner s = {text, length, start};
    skip_space(&s);
    if (s.at == length) return set_error(STATUS_BAD_INPUT, "is empty: wanted JSON");
    int status = scan_value(&s, 0);
    if (status) return status;
    skip_space(&s);
    if (s.at < length) return wanted_at(&s, "nothing after the end of the JSON value");
    cJSON *tree = cJSON_ParseWithLength(text + start, length - start);
    if (!tree) return set_error(STATUS_FAILED, "out of memory for %zu bytes of JSON", length);
    status = check_repeated(tree, "");
    if (status) cJSON_Delete(tree);
    else *json = tree;
    return status;
}

int strict_json_read(struct cJSON **json, const char *path, size_t limit) {
    char *text;
    size_t length;
    *json = NULL;
    int status = read_text_file(path, limit, &text, &length);
    if (status) return status;
    status = strict_json_parse(json, text, length);
    free(text);
    return status ? prefix_error(status, "%s: ", path) : STATUS_OK;
}
