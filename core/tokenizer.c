// Tokenizers of 256 byte tokens: a tokenizer.json of Hugging Face's byte-level BPE without merges, whose vocabulary gives each byte an id.
// All that would change what a text becomes, and is not done here, is refused.
#include "tokenizer.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "error.h"

enum { VOCABULARY = 256 };
static const size_t largest_file = 64 << 20;                // the largest in use (vocabularies of 256k) have about 35 MB
static const char cure[] = "train_gpt so far reads byte tokenizers only: 256 tokens, one a byte, no merges, as data/prepare.py writes";

struct Tokenizer {
    unsigned char byte_of[VOCABULARY];                      // token id -> byte
    unsigned char id_of[VOCABULARY];                        // byte -> token id
};

// ---- the file ----

// The whole file at path into *text, malloc'd, with a 0 behind it.
static int read_file(char **text, size_t *length, const char *path) {
    struct stat info;
    if (stat(path, &info)) return set_error(STATUS_BAD_INPUT, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return set_error(STATUS_BAD_INPUT, "%s: not a regular file", path);
    FILE *file = fopen(path, "rb");
    if (!file) return set_error(STATUS_BAD_INPUT, "%s: %s", path, strerror(errno));
    const size_t size = (size_t)info.st_size;
    char *bytes = size <= largest_file ? malloc(size + 1) : NULL;
    int status = STATUS_OK;
    if (size > largest_file) status = set_error(STATUS_BAD_INPUT, "%s: %zu bytes: larger than any tokenizer.json", path, size);
    else if (!bytes) status = set_error(STATUS_FAILED, "%s: out of memory", path);
    else if (fread(bytes, 1, size, file) != size) status = set_error(STATUS_FAILED, "%s: cannot be read", path);
    fclose(file);
    if (status) {
        free(bytes);
        return status;
    }
    bytes[size] = '\0';
    *text = bytes;
    *length = size;
    return STATUS_OK;
}

static int parse_json(cJSON **json, const char *path) {
    char *text = NULL;
    size_t length = 0;
    const int status = read_file(&text, &length, path);
    if (status) return status;
    const char *end = text;
    *json = cJSON_ParseWithLengthOpts(text, length + 1, &end, true);
    int line = 1;
    for (const char *c = text; c < end; c++) line += *c == '\n';
    free(text);
    return *json ? STATUS_OK : set_error(STATUS_BAD_INPUT, "%s:%d: not valid JSON", path, line);
}

// ---- the settings around the vocabulary ----

static const cJSON *member(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static bool is_nothing(const cJSON *item) {
    return !item || cJSON_IsNull(item) || (cJSON_IsString(item) && !*item->valuestring) || (cJSON_IsArray(item) && !item->child);
}

static bool is_byte_level(const cJSON *item) {
    const cJSON *type = member(item, "type");
    return cJSON_IsString(type) && strcmp(type->valuestring, "ByteLevel") == 0 && !cJSON_IsTrue(member(item, "add_prefix_space"));
}

// What an object's "type" says, for a message.
static const char *type_of(const cJSON *item) {
    const cJSON *type = member(item, "type");
    return cJSON_IsString(type) ? type->valuestring : "none";
}

// Settings that, if they say anything, change the tokens.
static int check_absent(const cJSON *object, const char *section, const char *const *names, const char *path) {
    for (; *names; names++) {
        if (is_nothing(member(object, *names))) continue;
        return set_error(STATUS_BAD_INPUT, "%s: %s%s is not empty; %s", path, section, *names, cure);
    }
    return STATUS_OK;
}

static int check_settings(const cJSON *json, const cJSON *model, const char *path) {
    static const char *const top_names[] = {"normalizer", "added_tokens", "truncation", "padding", NULL};
    static const char *const model_names[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", NULL};
    const cJSON *pre = member(json, "pre_tokenizer"), *post = member(json, "post_processor"), *decoder = member(json, "decoder");
    if (!is_byte_level(pre)) {
        return set_error(STATUS_BAD_INPUT, "%s: pre_tokenizer is %s, not ByteLevel without add_prefix_space; %s", path, type_of(pre), cure);
    }
    if (!is_nothing(post) && strcmp(type_of(post), "ByteLevel") != 0) {
        return set_error(STATUS_BAD_INPUT, "%s: post_processor is %s, not null or ByteLevel; %s", path, type_of(post), cure);
    }
    if (strcmp(type_of(decoder), "ByteLevel") != 0) {
        return set_error(STATUS_BAD_INPUT, "%s: decoder is %s, not ByteLevel; %s", path, type_of(decoder), cure);
    }
    const int status = check_absent(json, "", top_names, path);
    return status ? status : check_absent(model, "model.", model_names, path);
}

// ---- the vocabulary ----

// The code point that stands for a byte in GPT-2's byte-level BPE: a visible character of Latin-1 for itself; the 68 others, of which there
// were *others before this one, from 256 on in order.
static int code_point_of_byte(int byte, int *others) {
    const bool visible = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    return visible ? byte : 256 + (*others)++;
}

// The byte that a vocabulary's key stands for; -1 for none. Such a key is one character, of at most two bytes of UTF-8.
static int byte_of_key(const char *key) {
    const unsigned char *c = (const unsigned char *)key;
    int code_point = -1, others = 0;
    if (c[0] < 0x80 && c[0] && !c[1]) code_point = c[0];
    else if (c[0] >= 0xc2 && c[0] <= 0xdf && (c[1] & 0xc0) == 0x80 && !c[2]) code_point = (c[0] & 0x1f) << 6 | (c[1] & 0x3f);
    for (int byte = 0; byte < VOCABULARY; byte++) if (code_point_of_byte(byte, &others) == code_point) return byte;
    return -1;
}

static int id_of_value(const cJSON *item) {
    const double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    return value >= 0 && value < VOCABULARY && floor(value) == value ? (int)value : -1;
}

static int read_vocabulary(Tokenizer *tokenizer, const cJSON *vocabulary, const char *path) {
    bool has_byte[VOCABULARY] = {false}, has_id[VOCABULARY] = {false};
    const int size = cJSON_GetArraySize(vocabulary);
    if (size != VOCABULARY) {
        return set_error(STATUS_BAD_INPUT, "%s: model.vocab has %d tokens, not %d; %s", path, size, VOCABULARY, cure);
    }
    int entry = 0;                                          // for messages: a key may hold anything
    for (const cJSON *token = vocabulary->child; token; token = token->next) {
        entry++;
        const int byte = byte_of_key(token->string), id = id_of_value(token);
        if (byte < 0) return set_error(STATUS_BAD_INPUT, "%s: model.vocab: entry %d stands for no byte; %s", path, entry, cure);
        if (id < 0) return set_error(STATUS_BAD_INPUT, "%s: model.vocab: entry %d: not an id from 0 to %d", path, entry, VOCABULARY - 1);
        if (has_byte[byte] || has_id[id]) {
            return set_error(STATUS_BAD_INPUT, "%s: model.vocab: entry %d: the byte %d or the id %d is there twice", path, entry, byte, id);
        }
        has_byte[byte] = has_id[id] = true;
        tokenizer->byte_of[id] = (unsigned char)byte;
        tokenizer->id_of[byte] = (unsigned char)id;
    }
    return STATUS_OK;
}

static int read_tokenizer(Tokenizer *tokenizer, const cJSON *json, const char *path) {
    const cJSON *model = member(json, "model"), *merges = member(model, "merges"), *vocabulary = member(model, "vocab");
    if (!cJSON_IsObject(model)) return set_error(STATUS_BAD_INPUT, "%s: not a tokenizer: it has no object \"model\"; %s", path, cure);
    if (strcmp(type_of(model), "BPE") != 0) {
        return set_error(STATUS_BAD_INPUT, "%s: model.type is %s, not BPE; %s", path, type_of(model), cure);
    }
    if (!cJSON_IsObject(vocabulary) || !cJSON_IsArray(merges)) {
        return set_error(STATUS_BAD_INPUT, "%s: model has no %s; %s", path, cJSON_IsArray(merges) ? "object \"vocab\"" : "array \"merges\"",
                         cure);
    }
    if (merges->child) {
        return set_error(STATUS_BAD_INPUT, "%s: a BPE of %d tokens and %d merges; %s", path, cJSON_GetArraySize(vocabulary),
                         cJSON_GetArraySize(merges), cure);
    }
    const int status = check_settings(json, model, path);
    return status ? status : read_vocabulary(tokenizer, vocabulary, path);
}

// ---- where it is ----

int tokenizer_find(char path[PATH_SIZE], const char *configured, const char *beside) {
    const char *slash = strrchr(beside, '/');
    const int directory = slash ? (int)(slash + 1 - beside) : 0;
    struct stat info;
    int length;
    if (!configured[0]) length = snprintf(path, PATH_SIZE, "%.*stokenizer.json", directory, beside);
    else if (stat(configured, &info) == 0 && S_ISDIR(info.st_mode)) length = snprintf(path, PATH_SIZE, "%s/tokenizer.json", configured);
    else length = snprintf(path, PATH_SIZE, "%s", configured);
    if (length >= PATH_SIZE) {
        return set_error(STATUS_BAD_INPUT, "%s: the tokenizer's path may have at most %d bytes", configured[0] ? configured : beside,
                         PATH_SIZE - 1);
    }
    if ((configured[0] || beside[0]) && stat(path, &info) == 0) return STATUS_OK;
    if (configured[0]) {
        return set_error(STATUS_BAD_INPUT, "%s: %s; a tokenizer.json is expected there, as data/prepare.py writes beside the shards", path,
                         strerror(errno));
    }
    path[0] = '\0';
    return STATUS_OK;
}

// ---- what the header offers ----

int tokenizer_open(Tokenizer **tokenizer, const char *path) {
    *tokenizer = NULL;
    char file[PATH_SIZE];
    int status = tokenizer_find(file, path, "");
    if (status) return status;
    cJSON *json = NULL;
    status = parse_json(&json, file);
    if (status) return status;
    Tokenizer *t = calloc(1, sizeof *t);
    status = t ? read_tokenizer(t, json, file) : set_error(STATUS_FAILED, "%s: out of memory", file);
    cJSON_Delete(json);
    if (status) free(t);
    else *tokenizer = t;
    return status;
}

void tokenizer_close(Tokenizer *tokenizer) {
    free(tokenizer);
}

int tokenizer_vocab_size(const Tokenizer *tokenizer) {
    (void)tokenizer;
    return VOCABULARY;
}

int tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t length, int **tokens, size_t *count) {
    int *ids = malloc((length > 0 ? length : 1) * sizeof *ids);
    if (!ids) return set_error(STATUS_FAILED, "out of memory for %zu tokens", length);
    for (size_t i = 0; i < length; i++) ids[i] = tokenizer->id_of[(unsigned char)text[i]];
    *tokens = ids;
    *count = length;
    return STATUS_OK;
}

const char *tokenizer_token_bytes(const Tokenizer *tokenizer, int token, size_t *length) {
    if (token < 0 || token >= VOCABULARY) return NULL;
    *length = 1;
    return (const char *)&tokenizer->byte_of[token];
}
