// core/tokenizer: what data/prepare.py writes, permuted ids, and every kind of file that is refused.
#define _XOPEN_SOURCE 700                       // nftw
#include "core/tokenizer.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/error.h"

static char directory[128], path[160];          // path: directory/tokenizer.json

static int make_directory(void **state) {
    (void)state;
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%.80s/test_tokenizer.XXXXXX", parent && *parent ? parent : "/tmp");
    if (!mkdtemp(directory)) return -1;
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    return 0;
}

static int remove_entry(const char *entry, const struct stat *info, int type, struct FTW *ftw) {
    (void)info, (void)type, (void)ftw;
    return remove(entry);
}

static int remove_directory(void **state) {
    (void)state;
    return nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void write_file(const char *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

// ---- a byte tokenizer, written apart from the program's own table ----

typedef struct Text { char bytes[1 << 16]; size_t size; } Text;

static void append(Text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    text->size += (size_t)vsnprintf(text->bytes + text->size, sizeof text->bytes - text->size, format, arguments);
    va_end(arguments);
    assert_true(text->size < sizeof text->bytes);
}

// The characters of GPT-2's byte-level BPE, in three runs as its authors list them, then the rest from 256 on, as \u escapes or as UTF-8.
static void append_vocabulary(Text *text, int (*id_of_byte)(int), int first_byte, int count, bool as_utf8) {
    int next_other = 256;
    append(text, "{");
    for (int byte = 0; byte < 256; byte++) {
        const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
        const int code_point = visible ? byte : next_other++;
        if (byte < first_byte || byte >= first_byte + count) continue;
        append(text, byte == first_byte ? "\"" : ", \"");
        if (!as_utf8 || code_point == '"' || code_point == '\\') append(text, "\\u%04x", (unsigned)code_point);
        else if (code_point < 0x80) append(text, "%c", code_point);
        else append(text, "%c%c", 0xc0 | code_point >> 6, 0x80 | (code_point & 0x3f));
        append(text, "\": %d", id_of_byte(byte));
    }
    append(text, "}");
}

static int same(int byte) { return byte; }
static int turned(int byte) { return (byte * 37 + 11) % 256; }

static const char head[] = "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [], \"normalizer\": null,\n"
    "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true},\n"
    "\"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\"},\n"
    "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": \"\", \"vocab\": ";
static const char tail[] = ", \"merges\": []}}\n";

static Text byte_tokenizer(int (*id_of_byte)(int), bool as_utf8) {
    Text text = {.size = 0};
    append(&text, "%s", head);
    append_vocabulary(&text, id_of_byte, 0, 256, as_utf8);
    append(&text, "%s", tail);
    return text;
}

// ---- what is read ----

static void check_tokenizer(const char *where, int (*id_of_byte)(int)) {
    Tokenizer *tokenizer = NULL;
    if (tokenizer_open(&tokenizer, where)) fail_msg("%s", error_text());
    assert_int_equal(tokenizer_vocab_size(tokenizer), 256);
    char text[600];
    for (int i = 0; i < 600; i++) text[i] = (char)(i * 7);
    int *tokens = NULL;
    size_t count = 0, length = 0;
    assert_int_equal(tokenizer_encode(tokenizer, text, sizeof text, &tokens, &count), 0);
    assert_int_equal(count, sizeof text);
    for (int i = 0; i < 600; i++) {
        assert_int_equal(tokens[i], id_of_byte((unsigned char)text[i]));
        const char *bytes = tokenizer_token_bytes(tokenizer, tokens[i], &length);
        assert_non_null(bytes);
        assert_int_equal(length, 1);
        assert_int_equal(*bytes, text[i]);
    }
    free(tokens);
    assert_int_equal(tokenizer_encode(tokenizer, text, 0, &tokens, &count), 0);
    assert_int_equal(count, 0);
    free(tokens);
    assert_null(tokenizer_token_bytes(tokenizer, -1, &length));
    assert_null(tokenizer_token_bytes(tokenizer, 256, &length));
    tokenizer_close(tokenizer);
    tokenizer_close(NULL);
}

static void test_byte_tokenizers(void **state) {
    (void)state;
    for (int as_utf8 = 0; as_utf8 < 2; as_utf8++) {
        Text text = byte_tokenizer(same, as_utf8);
        write_file(text.bytes, text.size);
        check_tokenizer(path, same);
        check_tokenizer(directory, same);
        text = byte_tokenizer(turned, as_utf8);
        write_file(text.bytes, text.size);
        check_tokenizer(path, turned);
    }
}

static void test_prepare_written(void **state) {
    (void)state;
    char command[512];
    snprintf(command, sizeof command, "D='%s'; printf 'a text' >\"$D/text\" && "
             "python3 data/prepare.py --train \"$D/text\" --out \"$D\" >\"$D/log\"", directory);
    assert_int_equal(system(command), 0);
    check_tokenizer(directory, same);
}

// ---- what is refused ----

static void check_refused(const char *begin, const char *part) {
    Tokenizer *tokenizer = (Tokenizer *)&tokenizer;
    assert_int_equal(tokenizer_open(&tokenizer, directory), STATUS_BAD_INPUT);
    assert_null(tokenizer);
    const size_t length = strlen(path);
    if (strncmp(error_text(), path, length) || strncmp(error_text() + length, begin, strlen(begin)) || !strstr(error_text(), part)) {
        fail_msg("\"%s\" is not PATH%s...%s", error_text(), begin, part);
    }
    assert_null(strchr(error_text(), '\n'));
}

static void test_files(void **state) {
    (void)state;
    Tokenizer *tokenizer;
    assert_int_equal(tokenizer_open(&tokenizer, directory), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "/tokenizer.json: No such file or directory; "));
    assert_int_equal(tokenizer_open(&tokenizer, "no/such/place"), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "no/such/place: No such file or directory"));
    char *long_path = malloc(10001);
    memset(long_path, 'a', 10000);
    long_path[10000] = 0;
    assert_int_equal(tokenizer_open(&tokenizer, long_path), STATUS_BAD_INPUT);
    free(long_path);
    assert_int_equal(mkfifo(path, 0644), 0);
    check_refused(": not a regular file", "");
    remove(path);
    write_file("", 0);
    assert_int_equal(truncate(path, (off_t)1 << 32), 0);
    check_refused(": 4294967296 bytes: larger than any tokenizer.json", "");
}

static void test_damaged(void **state) {
    (void)state;
    Text text = byte_tokenizer(same, true);
    for (size_t size = 0; size + 1 < text.size; size += 37) {
        write_file(text.bytes, size);
        check_refused(":", ": not valid JSON");
    }
    write_file("{\"a\": 1,\n\"b\": [1, 2,\n!]}", 24);
    check_refused(":3: not valid JSON", "");
    append(&text, "x");
    write_file(text.bytes, text.size);
    check_refused(":", ": not valid JSON");
    memset(text.bytes, '[', 40000);                                 // deeper than any parser's stack
    write_file(text.bytes, 40000);
    check_refused(":1: not valid JSON", "");
}

// The byte tokenizer with `from` replaced by `to`.
static void check_edited(const char *from, const char *to, const char *begin, const char *part) {
    Text text = byte_tokenizer(same, false), edited = {.size = 0};
    const char *place = strstr(text.bytes, from);
    assert_non_null(place);
    append(&edited, "%.*s%s%s", (int)(place - text.bytes), text.bytes, to, place + strlen(from));
    write_file(edited.bytes, edited.size);
    check_refused(begin, part);
}

static void test_other_kinds(void **state) {
    (void)state;
    static const char only[] = "byte tokenizers only";
    check_edited("\"BPE\"", "\"WordPiece\"", ": model.type is WordPiece, not BPE; ", only);
    check_edited("\"type\": \"BPE\"", "\"type\": 3", ": model.type is none, not BPE; ", only);
    check_edited("\"model\"", "\"mode\"", ": not a tokenizer: it has no object \"model\"; ", only);
    check_edited("\"merges\": []", "\"merges\": [\"a b\", \"c d\"]", ": a BPE of 256 tokens and 2 merges; ", only);
    check_edited("\"merges\": []", "\"merges\": {}", ": model has no array \"merges\"; ", only);
    check_edited("\"vocab\"", "\"vocabulary\"", ": model has no object \"vocab\"; ", only);
    check_edited("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", ": normalizer is not empty; ", only);
    check_edited("\"added_tokens\": []", "\"added_tokens\": [{\"id\": 256}]", ": added_tokens is not empty; ", only);
    check_edited("\"truncation\": null", "\"truncation\": {\"max_length\": 4}", ": truncation is not empty; ", only);
    check_edited("\"padding\": null", "\"padding\": {}", ": padding is not empty; ", only);
    check_edited("\"dropout\": null", "\"dropout\": 0.5", ": model.dropout is not empty; ", only);
    check_edited("\"continuing_subword_prefix\": \"\"", "\"continuing_subword_prefix\": \"##\"",
                 ": model.continuing_subword_prefix is not empty; ", only);
    check_edited("\"type\": \"ByteLevel\"", "\"type\": \"Whitespace\"", ": pre_tokenizer is Whitespace, not ByteLevel", only);
    check_edited("\"add_prefix_space\": false", "\"add_prefix_space\": true",
                 ": pre_tokenizer is ByteLevel, not ByteLevel without add_prefix_space; ", only);
    check_edited("\"pre_tokenizer\"", "\"pre\"", ": pre_tokenizer is none, not ByteLevel", only);
    check_edited("\"post_processor\": null", "\"post_processor\": {\"type\": \"TemplateProcessing\"}",
                 ": post_processor is TemplateProcessing, ", only);
    check_edited("\"decoder\": {\"type\": \"ByteLevel\"}", "\"decoder\": null", ": decoder is none, not ByteLevel; ", only);
    write_file("[]", 2);
    check_refused(": not a tokenizer: it has no object \"model\"; ", only);
    write_file("3", 1);
    check_refused(": not a tokenizer: it has no object \"model\"; ", only);
}

static void test_vocabulary(void **state) {
    (void)state;
    static const char only[] = "byte tokenizers only";
    check_edited("\"\\u0061\": 97, ", "", ": model.vocab has 255 tokens, not 256; ", only);
    check_edited("\"\\u0061\": 97, ", "\"\\u0061\": 97, \"more\": 256, ", ": model.vocab has 257 tokens, not 256; ", only);
    static const char *const no_bytes[] = {"", "ab", "\\u0000", "\\u0020", "\\u00ad", "\\u0144", "\\u20ac", "\\ud83d\\ude00", "\xc3",
                                           "\xc1\xa1", "\xc3\xa9\xc3", "\xff", "\\u001b[31m"};
    for (size_t i = 0; i < sizeof no_bytes / sizeof *no_bytes; i++) {
        char key[64];
        snprintf(key, sizeof key, "\"%s\": 97", no_bytes[i]);
        check_edited("\"\\u0061\": 97", key, ": model.vocab: entry 98 stands for no byte; ", only);
    }
    static const char *const no_ids[] = {"-1", "256", "1.5", "1e300", "\"97\"", "null", "[97]"};
    for (size_t i = 0; i < sizeof no_ids / sizeof *no_ids; i++) {
        char entry[64];
        snprintf(entry, sizeof entry, "\"\\u0061\": %s", no_ids[i]);
        check_edited("\"\\u0061\": 97", entry, ": model.vocab: entry 98: not an id from 0 to 255", "");
    }
    check_edited("\"\\u0061\": 97", "\"\\u0061\": 96", ": model.vocab: entry 98: the byte 97 or the id 96 is there twice", "");
    check_edited("\"\\u0061\": 97", "\"\\u0060\": 97", ": model.vocab: entry 98: the byte 96 or the id 97 is there twice", "");
}

// ---- where it is ----

static void check_found(const char *configured, const char *beside, const char *wanted) {
    char found[PATH_SIZE];
    if (tokenizer_find(found, configured, beside)) fail_msg("%s", error_text());
    assert_string_equal(found, wanted);
}

static void test_find(void **state) {
    (void)state;
    char beside[200], found[PATH_SIZE];
    snprintf(beside, sizeof beside, "%s/train_000000.bin", directory);
    check_found("", beside, "");                // nothing there yet, nothing asked for
    check_found("", "", "");
    assert_int_equal(tokenizer_find(found, directory, ""), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "/tokenizer.json: No such file or directory; a tokenizer.json is expected there"));
    assert_int_equal(tokenizer_find(found, "no/such.json", beside), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "no/such.json: No such file or directory"));
    write_file("{}", 2);
    check_found("", beside, path);
    check_found(directory, "", path);
    check_found(path, "elsewhere/train.bin", path);
    check_found("", "elsewhere/train.bin", "");
    check_found("", "train.bin", "");           // the working directory's, which has none
    char long_path[PATH_SIZE + 1];
    memset(long_path, 'a', PATH_SIZE);
    long_path[PATH_SIZE] = 0;
    assert_int_equal(tokenizer_find(found, long_path, ""), STATUS_BAD_INPUT);
    long_path[PATH_SIZE - 8] = '/';
    assert_int_equal(tokenizer_find(found, "", long_path), STATUS_BAD_INPUT);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_directory, remove_directory)
    const struct CMUnitTest tests[] = {
        TEST(test_byte_tokenizers), TEST(test_prepare_written), TEST(test_files), TEST(test_damaged), TEST(test_other_kinds),
        TEST(test_vocabulary), TEST(test_find),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
