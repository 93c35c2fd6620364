// core/dataset: good shards of every shape, held against the tokens they were made from; bad ones, each with its message.
#define _XOPEN_SOURCE 700                       // nftw
#include "core/dataset.h"

#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/random.h"

enum { HEADER_SIZE = 1024, V = 300 };
static char directory[128];                     // each test's own

// ---- shards as the tests want them ----

static int make_directory(void **state) {
    (void)state;
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%.80s/test_dataset.XXXXXX", parent && *parent ? parent : "/tmp");
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *ftw) {
    (void)info, (void)type, (void)ftw;
    return remove(path);
}

static int remove_directory(void **state) {
    (void)state;
    return nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

// directory/name; the same few buffers in turn.
static const char *in_directory(const char *name) {
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static void put_u32(unsigned char *bytes, uint32_t value) {
    for (int i = 0; i < 4; i++) bytes[i] = (unsigned char)(value >> (8 * i));
}

static void write_file(const char *name, const void *bytes, size_t size) {
    FILE *file = fopen(in_directory(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

// A shard whose header says `said` tokens, with n of them; token_bytes chooses the header.
static void write_shard_as(const char *name, uint32_t magic, uint32_t version, uint32_t said, int token_bytes, const uint32_t *tokens,
                           size_t n) {
    const size_t size = HEADER_SIZE + n * (size_t)token_bytes;
    unsigned char *bytes = calloc(1, size + 4);
    assert_non_null(bytes);
    put_u32(bytes, magic);
    put_u32(bytes + 4, version);
    put_u32(bytes + 8, said);
    for (size_t i = 0; i < n; i++) {
        unsigned char *token = bytes + HEADER_SIZE + i * (size_t)token_bytes;
        if (token_bytes == 4) put_u32(token, tokens[i]);
        else token[0] = (unsigned char)tokens[i], token[1] = (unsigned char)(tokens[i] >> 8);
    }
    write_file(name, bytes, size);
    free(bytes);
}

static void write_shard(const char *name, int token_bytes, const uint32_t *tokens, size_t n) {
    write_shard_as(name, token_bytes == 2 ? 20240520 : 20240801, token_bytes == 2 ? 1 : 7, (uint32_t)n, token_bytes, tokens, n);
}

// n tokens under V that depend on `salt`.
static uint32_t *random_tokens(uint64_t salt, size_t n) {
    uint32_t *tokens = malloc((n + 1) * sizeof *tokens);
    assert_non_null(tokens);
    for (size_t i = 0; i < n; i++) tokens[i] = (uint32_t)(random_bits(salt, i) % V);
    return tokens;
}

static Dataset *must_open(const char *glob, int T, int vocabulary, bool shuffle, uint64_t seed) {
    Dataset *dataset = NULL;
    const int status = dataset_open(&dataset, "data.train", glob, T, vocabulary, shuffle, seed);
    if (status) fail_msg("status %d: %s", status, error_text());
    assert_non_null(dataset);
    return dataset;
}

// ---- what is read ----

static void check_order(const int *order, const int *tokens, int n) {
    unsigned char *seen = calloc((size_t)n + 1, 1);
    assert_non_null(seen);
    for (int i = 0; i < n; i++) {
        assert_in_range(order[i], 0, n - 1);
        assert_false(seen[order[i]]++);
        if (i == 0) continue;
        const int before = tokens[order[i - 1]], here = tokens[order[i]];
        assert_true(before < here || (before == here && order[i - 1] < order[i]));
    }
    free(seen);
}

// Sequence `first` on, `count` of them, are the windows listed: each as a pointer to its T+1 tokens.
static void check_read(Dataset *dataset, uint64_t first, int count, int T, const uint32_t *const *windows) {
    int *tokens = malloc(3 * (size_t)(count * T) * sizeof *tokens), *targets = tokens + count * T, *order = targets + count * T;
    assert_non_null(tokens);
    if (dataset_read(dataset, first, count, tokens, targets, order)) fail_msg("%s", error_text());
    for (int b = 0; b < count; b++) {
        for (int t = 0; t < T; t++) {
            assert_int_equal(tokens[b * T + t], windows[b][t]);
            assert_int_equal(targets[b * T + t], windows[b][t + 1]);
        }
    }
    check_order(order, tokens, count * T);
    free(tokens);
}

static void check_one_shard(int token_bytes, size_t n, int T) {
    uint32_t *text = random_tokens(1, n);
    write_shard("one.bin", token_bytes, text, n);
    Dataset *dataset = must_open(in_directory("one.bin"), T, V, false, 1);
    const uint64_t windows = (n - 1) / (size_t)T;
    assert_int_equal(dataset_windows(dataset), windows);
    assert_int_equal(dataset_shard_count(dataset), 1);
    assert_int_equal(dataset_shard(dataset, 0)->tokens, n);
    assert_int_equal(dataset_shard(dataset, 0)->windows, windows);
    assert_int_equal(dataset_shard(dataset, 0)->token_bytes, token_bytes);
    assert_string_equal(dataset_shard(dataset, 0)->path, in_directory("one.bin"));
    for (uint64_t s = 0; s < 2 * windows + 1; s++) check_read(dataset, s, 1, T, (const uint32_t *[]){text + s % windows * (size_t)T});
    dataset_close(dataset);
    free(text);
}

static void test_both_headers(void **state) {
    (void)state;
    static const int lengths[] = {1, 2, 7, 16};
    for (int token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        for (int l = 0; l < 4; l++) {
            const size_t T = (size_t)lengths[l];
            check_one_shard(token_bytes, T + 1, (int)T);            // one window exactly
            check_one_shard(token_bytes, 2 * T, (int)T);
            check_one_shard(token_bytes, 2 * T + 1, (int)T);
            check_one_shard(token_bytes, 100, (int)T);
        }
    }
}

static void test_wide_tokens(void **state) {
    (void)state;
    const uint32_t narrow[] = {0, 255, 256, 65535}, wide[] = {0, 65536, 0x01020304, 2147483646};
    write_shard("narrow.bin", 2, narrow, 4);
    write_shard("wide.bin", 4, wide, 4);
    Dataset *dataset = must_open(in_directory("narrow.bin"), 3, 65536, false, 1);
    check_read(dataset, 0, 1, 3, (const uint32_t *[]){narrow});
    dataset_close(dataset);
    dataset = must_open(in_directory("wide.bin"), 3, 2147483647, false, 1);
    check_read(dataset, 0, 1, 3, (const uint32_t *[]){wide});
    dataset_close(dataset);
}

// Shards of both kinds, an empty one, one that is shorter than a window, and names whose order a locale would change.
static void test_glob_in_sorted_order(void **state) {
    (void)state;
    enum { T = 8, SHARDS = 7 };
    static const char *const names[SHARDS] = {"train_000001.bin", "train_000002.bin", "train_10.bin", "train_2.bin", "train_B.bin",
                                              "train_a.bin", "train_\xc3\xa9.bin"};            // sorted byte by byte
    static const size_t sizes[SHARDS] = {30, 8, 0, 100, 9, 17, 16};
    static const int written[SHARDS] = {3, 6, 0, 5, 2, 4, 1};
    uint32_t *text[SHARDS];
    const uint32_t *windows[64];
    int count = 0;
    for (int i = 0; i < SHARDS; i++) {
        const int shard = written[i];
        text[shard] = random_tokens((uint64_t)shard, sizes[shard]);
        write_shard(names[shard], shard % 2 ? 4 : 2, text[shard], sizes[shard]);
    }
    write_shard("val_000001.bin", 2, text[0], sizes[0]);            // not matched
    Dataset *dataset = must_open(in_directory("train*.bin"), T, V, false, 1);
    assert_int_equal(dataset_shard_count(dataset), SHARDS);
    for (int i = 0; i < SHARDS; i++) {
        assert_string_equal(dataset_shard(dataset, i)->path, in_directory(names[i]));
        assert_int_equal(dataset_shard(dataset, i)->windows, sizes[i] ? (sizes[i] - 1) / T : 0);
        for (size_t w = 0; sizes[i] && w < (sizes[i] - 1) / T; w++) windows[count++] = text[i] + w * T;
    }
    assert_int_equal(dataset_windows(dataset), count);
    check_read(dataset, 0, count, T, windows);
    for (int w = 0; w < count; w++) {
        assert_int_equal(dataset_window_of(dataset, (uint64_t)(w + 5 * count)), w);
        check_read(dataset, (uint64_t)(w + 5 * count), 1, T, windows + w);
    }
    dataset_close(dataset);
    for (int i = 0; i < SHARDS; i++) free(text[i]);
}

static void test_hash(void **state) {
    (void)state;
    uint32_t *text = random_tokens(1, 50);
    write_shard("a.bin", 2, text, 50);
    write_shard("b.bin", 2, text + 1, 49);
    write_shard("c.bin", 2, text + 0, 50);
    Dataset *dataset = must_open(in_directory("?.bin"), 4, V, false, 1);
    unsigned char bytes[HEADER_SIZE + 8] = {0};                     // FNV-1a of the header and the size
    put_u32(bytes, 20240520);
    put_u32(bytes + 4, 1);
    put_u32(bytes + 8, 50);
    put_u32(bytes + HEADER_SIZE, HEADER_SIZE + 100);
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < sizeof bytes; i++) hash = (hash ^ bytes[i]) * 0x100000001b3;
    assert_int_equal(dataset_shard(dataset, 0)->hash, hash);
    assert_int_equal(dataset_shard(dataset, 2)->hash, hash);
    assert_int_not_equal(dataset_shard(dataset, 1)->hash, hash);
    dataset_close(dataset);
    free(text);
}

// ---- order, epochs ----

static void test_order(void **state) {
    (void)state;
    static const int vocabularies[] = {1, 2, 3, 256, 257, 2048, 2049, 50257, 151936, 1 << 22, (1 << 22) + 1, 2147483647};
    static const int sizes[] = {0, 1, 2, 100, 5000};
    for (size_t v = 0; v < sizeof vocabularies / sizeof *vocabularies; v++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const int n = sizes[s];
            int *tokens = malloc((2 * (size_t)n + 1) * sizeof *tokens), *order = tokens + n;
            assert_non_null(tokens);
            for (int i = 0; i < n; i++) tokens[i] = (int)(random_bits(v, (uint64_t)i) % (uint64_t)vocabularies[v]);
            for (int i = 0; i + 10 < n; i += 10) tokens[i] = vocabularies[v] - 1 - i / 10 % 2 * (vocabularies[v] / 2);  // repeats
            assert_int_equal(dataset_order(order, tokens, (size_t)n, vocabularies[v]), 0);
            check_order(order, tokens, n);
            free(tokens);
        }
    }
}

// Each epoch visits each window once, in another order; the order depends on the seed.
static void test_epochs(void **state) {
    (void)state;
    enum { T = 3, WINDOWS = 97, EPOCHS = 20 };
    static int visits[EPOCHS][WINDOWS], places[EPOCHS][WINDOWS];
    uint32_t *text = random_tokens(1, WINDOWS * T + 1);
    write_shard("one.bin", 2, text, WINDOWS * T + 1);
    Dataset *dataset = must_open(in_directory("one.bin"), T, V, true, 42), *same = must_open(in_directory("one.bin"), T, V, true, 42);
    Dataset *other = must_open(in_directory("one.bin"), T, V, true, 43);
    memset(visits, 0, sizeof visits);
    int agree = 0;
    for (uint64_t s = 0; s < WINDOWS * EPOCHS; s++) {
        const uint64_t window = dataset_window_of(dataset, s);
        assert_in_range(window, 0, WINDOWS - 1);
        visits[s / WINDOWS][window]++;
        places[s / WINDOWS][s % WINDOWS] = (int)window;
        assert_int_equal(dataset_window_of(same, s), window);
        agree += dataset_window_of(other, s) == window;
        check_read(dataset, s, 1, T, (const uint32_t *[]){text + window * T});
    }
    assert_in_range(agree, 5, 45);              // once an epoch by chance: 20, standard deviation 4.5
    for (int e = 0; e < EPOCHS; e++) {
        int still = 0;
        for (int w = 0; w < WINDOWS; w++) {
            assert_int_equal(visits[e][w], 1);
            still += e > 0 && places[e][w] == places[e - 1][w];
        }
        assert_in_range(still, 0, 8);           // another permutation than the epoch's before
    }
    dataset_close(dataset);
    dataset_close(same);
    dataset_close(other);
    free(text);
}

// A batch is the same however it is cut into micro-batches, at an epoch's end too.
static void test_micro_batches(void **state) {
    (void)state;
    enum { T = 500, BATCH = 12, N = 10 * T + 1, LARGE_V = 100000 };        // so large that the sort needs its scratch
    uint32_t *text = random_tokens(1, N);
    for (int i = 0; i < N; i++) text[i] *= LARGE_V / V;
    write_shard("one.bin", 4, text, N);
    Dataset *dataset = must_open(in_directory("one.bin"), T, LARGE_V, true, 42);
    static int whole[3][BATCH * T], part[3][BATCH * T];
    assert_int_equal(dataset_read(dataset, 0, 1, part[0], part[1], part[2]), 0);            // the scratch grows from here
    for (uint64_t step = 0; step < 4; step++) {
        assert_int_equal(dataset_read(dataset, step * BATCH, BATCH, whole[0], whole[1], whole[2]), 0);
        for (int micro = 1; micro < BATCH; micro++) {
            if (BATCH % micro) continue;
            for (int b = 0; b < BATCH; b += micro) {
                assert_int_equal(dataset_read(dataset, step * BATCH + (uint64_t)b, micro, part[0] + b * T, part[1] + b * T, part[2]), 0);
                check_order(part[2], part[0] + b * T, micro * T);
            }
            assert_memory_equal(part[0], whole[0], sizeof whole[0]);
            assert_memory_equal(part[1], whole[1], sizeof whole[1]);
        }
    }
    dataset_close(dataset);
    free(text);
}

// ---- many and large ----

// A sparse shard of n tokens, 0 but for one.
static bool write_sparse_shard(const char *name, uint32_t n, uint64_t position, uint32_t token) {
    unsigned char header[HEADER_SIZE] = {0}, bytes[2] = {(unsigned char)token, (unsigned char)(token >> 8)};
    put_u32(header, 20240520);
    put_u32(header + 4, 1);
    put_u32(header + 8, n);
    const int file = open(in_directory(name), O_CREAT | O_RDWR, 0644);
    assert_true(file >= 0);
    const bool fits = ftruncate(file, (off_t)(HEADER_SIZE + 2 * (uint64_t)n)) == 0;
    if (fits) {
        assert_int_equal(pwrite(file, header, sizeof header, 0), sizeof header);
        assert_int_equal(pwrite(file, bytes, sizeof bytes, (off_t)(HEADER_SIZE + 2 * position)), sizeof bytes);
    }
    close(file);
    return fits;
}

// Tokens, windows and file offsets over 2^31 and over 2^32.
static void test_counts_over_31_bits(void **state) {
    (void)state;
    const uint32_t n = 2500000001;
    const uint64_t positions[] = {2400000000, 2499999999};
    if (!write_sparse_shard("a.bin", n, positions[0], 200) || !write_sparse_shard("b.bin", n, positions[1], 201)) {
        print_message("the file system holds no sparse file of 5 GB\n");
        skip();
    }
    Dataset *dataset = must_open(in_directory("*.bin"), 1, 256, false, 1);
    assert_int_equal(dataset_shard(dataset, 0)->tokens, n);
    assert_true(dataset_windows(dataset) == 5000000000);
    int tokens[4], targets[4], order[4];
    for (int shard = 0; shard < 2; shard++) {                       // the same place in a later epoch too
        const uint64_t sequence = (uint64_t)shard * 2500000000 + positions[shard] - 1 + 5000000000 * (uint64_t)(shard * 3);
        assert_int_equal(dataset_read(dataset, sequence, 2, tokens, targets, order), 0);
        assert_int_equal(tokens[0], 0);
        assert_int_equal(targets[0], 200 + shard);
        assert_int_equal(tokens[1], 200 + shard);
        assert_int_equal(targets[1], 0);
    }
    dataset_close(dataset);
    dataset = must_open(in_directory("*.bin"), 1, 256, true, 1);    // shuffled: an epoch's end, far out
    bool is_over_31_bits = false;
    for (uint64_t s = 5000000000 * 7 - 20; s < 5000000000 * 7 + 20; s++) {
        const uint64_t window = dataset_window_of(dataset, s);
        assert_true(window < 5000000000);
        is_over_31_bits |= window > UINT32_MAX;
    }
    assert_true(is_over_31_bits);
    assert_int_equal(dataset_read(dataset, 5000000000 * 7 - 2, 4, tokens, targets, order), 0);
    dataset_close(dataset);
    dataset = must_open(in_directory("*.bin"), 1024, 256, false, 1);
    assert_int_equal(dataset_windows(dataset), 2 * (2500000000 / 1024));
    dataset_close(dataset);
    dataset = must_open(in_directory("*.bin"), 1, 200, false, 1);   // an error names a position over 2^31
    assert_int_equal(dataset_read(dataset, positions[0], 1, tokens, targets, order), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "/a.bin: token 200 at position 2400000000 is outside the vocabulary (model.vocab_size 200)"));
    dataset_close(dataset);
}

// More shards than the process may have files open.
static void test_many_shards(void **state) {
    (void)state;
    enum { SHARDS = 600, T = 4 };
    struct rlimit before, lower;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (uint32_t i = 0; i < SHARDS; i++) {
        char name[32];
        const uint32_t text[T + 1] = {i % 256, i / 256, 2, 3, 4};
        snprintf(name, sizeof name, "train_%06u.bin", (unsigned)i);
        write_shard(name, 2, text, T + 1);
    }
    lower = before;
    lower.rlim_cur = 128;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &lower), 0);
    Dataset *dataset = must_open(in_directory("train*.bin"), T, V, true, 9);
    static int tokens[2 * SHARDS * T], targets[2 * SHARDS * T], order[2 * SHARDS * T];
    const int status = dataset_read(dataset, 0, 2 * SHARDS, tokens, targets, order);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (status) fail_msg("%s", error_text());
    for (int b = 0; b < 2 * SHARDS; b++) {
        assert_int_equal(tokens[b * T] + 256 * targets[b * T], dataset_window_of(dataset, (uint64_t)b));
        assert_int_equal(targets[b * T + T - 1], 4);
    }
    dataset_close(dataset);
}

// ---- data/prepare.py ----

static unsigned char *read_bytes(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(*size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

// The text's bytes come back through the shards, window after window, each shard's remainder left out.
static void test_prepare_written_read_back(void **state) {
    (void)state;
    enum { T = 100, SHARD_TOKENS = 30000 };
    unsigned char every_byte[3 * 256];
    for (int i = 0; i < (int)sizeof every_byte; i++) every_byte[i] = (unsigned char)(i * 7);
    write_file("bytes.txt", every_byte, sizeof every_byte);
    char command[512];
    snprintf(command, sizeof command, "D='%s'; python3 data/prepare.py --train data/austen/persuasion.txt --val \"$D/bytes.txt\" "
             "--out \"$D/shards\" --shard-tokens %d >\"$D/log\"", directory, SHARD_TOKENS);
    assert_int_equal(system(command), 0);

    size_t size;
    unsigned char *text = read_bytes("data/austen/persuasion.txt", &size);
    Dataset *dataset = must_open(in_directory("shards/train*.bin"), T, 256, false, 1);
    assert_int_equal(dataset_shard_count(dataset), (size + SHARD_TOKENS - 1) / SHARD_TOKENS);
    uint64_t sequence = 0;
    int tokens[T], targets[T], order[T];
    for (size_t begin = 0; begin < size; begin += SHARD_TOKENS) {
        const size_t end = begin + SHARD_TOKENS < size ? begin + SHARD_TOKENS : size;
        for (size_t at = begin; at + T < end; at += T) {
            assert_int_equal(dataset_read(dataset, sequence++, 1, tokens, targets, order), 0);
            for (size_t t = 0; t < T; t++) if (tokens[t] != text[at + t] || targets[t] != text[at + t + 1]) fail_msg("byte %zu", at + t);
        }
    }
    assert_int_equal(dataset_windows(dataset), sequence);
    dataset_close(dataset);
    free(text);

    dataset = must_open(in_directory("shards/val*.bin"), 1, 256, false, 1);
    assert_int_equal(dataset_windows(dataset), sizeof every_byte - 1);
    for (size_t i = 0; i + 1 < sizeof every_byte; i++) {
        assert_int_equal(dataset_read(dataset, i, 1, tokens, targets, order), 0);
        assert_int_equal(tokens[0], every_byte[i]);
        assert_int_equal(targets[0], every_byte[i + 1]);
    }
    dataset_close(dataset);
}

// ---- what is refused ----

static void check_refused(const char *glob, int T, int status, const char *begin, const char *const *parts) {
    Dataset *dataset = (Dataset *)&dataset;
    assert_int_equal(dataset_open(&dataset, "data.train", glob, T, V, true, 1), status);
    assert_null(dataset);
    if (strncmp(error_text(), begin, strlen(begin))) fail_msg("\"%s\" does not begin with \"%s\"", error_text(), begin);
    for (; *parts; parts++) if (!strstr(error_text(), *parts)) fail_msg("\"%s\" does not say \"%s\"", error_text(), *parts);
}

// A bad shard between good ones.
static void check_bad_shard(const char *first_part, const char *second_part) {
    char begin[256];
    snprintf(begin, sizeof begin, "data.train: %s: ", in_directory("train_2.bin"));
    check_refused(in_directory("train_*.bin"), 4, STATUS_BAD_INPUT, begin, (const char *[]){first_part, second_part, NULL});
}

static void test_bad_shards(void **state) {
    (void)state;
    uint32_t *text = random_tokens(1, 100);
    write_shard("train_1.bin", 2, text, 100);
    write_shard("train_3.bin", 2, text, 100);
    write_shard_as("train_2.bin", 20240520, 1, 101, 2, text, 100);
    check_bad_shard("truncated: by its header it holds 101 tokens and is 1226 bytes long, but it has 1224 bytes", "data/prepare.py");
    write_shard_as("train_2.bin", 20240801, 7, 100, 2, text, 100);
    check_bad_shard("truncated: by its header it holds 100 tokens and is 1424 bytes long, but it has 1224 bytes", "data/prepare.py");
    write_shard_as("train_2.bin", 20240520, 1, 0xffffffff, 2, text, 100);
    check_bad_shard("truncated: by its header it holds 4294967295 tokens and is 8589935614 bytes long", "has 1224 bytes");
    write_shard_as("train_2.bin", 20240520, 1, 99, 2, text, 100);
    check_bad_shard("too long: by its header it holds 99 tokens and is 1222 bytes long, but it has 1224 bytes", "data/prepare.py");
    write_shard_as("train_2.bin", 20240520, 7, 100, 2, text, 100);
    check_bad_shard("a token shard (magic 20240520) of version 7, not 1", "data/prepare.py");
    write_shard_as("train_2.bin", 20240801, 1, 100, 4, text, 100);
    check_bad_shard("a token shard (magic 20240801) of version 1, not 7", "data/prepare.py");
    write_shard_as("train_2.bin", 20240522, 1, 100, 2, text, 100);
    check_bad_shard("not a token shard: it begins with 20240522, a shard with 20240520 or 20240801", "data/prepare.py");
    write_file("train_2.bin", "\0", 1);
    check_bad_shard("not a token shard, or truncated: it has 1 bytes, a shard's header alone 1024", "data/prepare.py");
    write_file("train_2.bin", "", 0);
    check_bad_shard("it has 0 bytes", "data/prepare.py");
    remove(in_directory("train_2.bin"));
    assert_int_equal(symlink("nowhere", in_directory("train_2.bin")), 0);
    check_bad_shard("cannot be opened: No such file or directory", "");
    remove(in_directory("train_2.bin"));
    assert_int_equal(mkdir(in_directory("train_2.bin"), 0755), 0);
    check_bad_shard("a directory, not a token shard", "");
    remove(in_directory("train_2.bin"));
    assert_int_equal(mkfifo(in_directory("train_2.bin"), 0644), 0);
    check_bad_shard("not a regular file, not a token shard", "");
    free(text);
}

static void test_no_shards(void **state) {
    (void)state;
    uint32_t *text = random_tokens(1, 100);
    char message[256];
    check_refused("", 4, STATUS_BAD_INPUT, "data.train: names no shards; ", (const char *[]){"glob", NULL});
    snprintf(message, sizeof message, "data.train: no file matches %s; ", in_directory("train*.bin"));
    check_refused(in_directory("train*.bin"), 4, STATUS_BAD_INPUT, message, (const char *[]){"data/prepare.py", NULL});
    write_shard("train_1.bin", 2, text, 4);
    write_shard("train_2.bin", 2, text, 0);
    write_shard("train_3.bin", 2, text, 3);
    snprintf(message, sizeof message, "data.train: %s: no shard holds a window of 4 tokens", in_directory("train*.bin"));
    check_refused(in_directory("train*.bin"), 4, STATUS_BAD_INPUT, message,
                  (const char *[]){"the longest has 4 tokens", "use a shorter sequence", NULL});
    dataset_close(must_open(in_directory("train*.bin"), 3, V, false, 1));
    free(text);
}

// A token outside the vocabulary, at every place; good windows before it are read all the same.
static void check_bad_token(int token_bytes, size_t position, uint32_t token) {
    enum { T = 4, N = 21 };
    int tokens[5 * T], targets[5 * T], order[5 * T];
    uint32_t *text = random_tokens(1, N);
    text[position] = token;
    write_shard("a.bin", token_bytes, (const uint32_t[5]){0}, 5);
    write_shard("b.bin", token_bytes, text, N);
    Dataset *dataset = must_open(in_directory("*.bin"), T, V, false, 1);
    char message[256];
    snprintf(message, sizeof message, "%s: token %lu at position %zu is outside the vocabulary (model.vocab_size %d)",
             in_directory("b.bin"), (unsigned long)token, position, V);
    const size_t first = position > 0 ? (position - 1) / T : 0;     // the first window that holds the token
    for (size_t w = 0; w < first; w++) assert_int_equal(dataset_read(dataset, 1 + w, 1, tokens, targets, order), 0);
    assert_int_equal(dataset_read(dataset, 0, 5, tokens, targets, order), first == 4 ? 0 : STATUS_BAD_INPUT);
    assert_int_equal(dataset_read(dataset, 1 + first, 1, tokens, targets, order), STATUS_BAD_INPUT);
    assert_string_equal(error_text(), message);
    dataset_close(dataset);
    free(text);
}

static void test_bad_tokens(void **state) {
    (void)state;
    for (size_t position = 0; position < 21; position++) {
        check_bad_token(2, position, V);
        check_bad_token(2, position, 65535);
        check_bad_token(4, position, V);
        check_bad_token(4, position, 0x7fffffff);
        check_bad_token(4, position, 0x80000000);
        check_bad_token(4, position, 0xffffffff);
    }
}

// A file that changes under a run gives an error, not a signal.
static void test_file_cut_short_in_use(void **state) {
    (void)state;
    enum { T = 4, SHARDS = 70 };                                    // more than are held open
    int tokens[T], targets[T], order[T];
    uint32_t *text = random_tokens(1, 21);
    for (int i = 0; i < SHARDS; i++) {
        char name[32];
        snprintf(name, sizeof name, "%03d.bin", i);
        write_shard(name, 2, text, 21);
    }
    Dataset *dataset = must_open(in_directory("*.bin"), T, V, false, 1);
    assert_int_equal(dataset_read(dataset, 4, 1, tokens, targets, order), 0);
    assert_int_equal(truncate(in_directory("000.bin"), HEADER_SIZE + 38), 0);
    assert_int_equal(dataset_read(dataset, 4, 1, tokens, targets, order), STATUS_FAILED);
    assert_non_null(strstr(error_text(), "/000.bin: cannot be read at token 16: the file has become shorter since it was opened"));
    assert_int_equal(dataset_read(dataset, 3, 1, tokens, targets, order), 0);
    assert_int_equal(remove(in_directory("069.bin")), 0);
    assert_int_equal(dataset_read(dataset, 5 * 69, 1, tokens, targets, order), STATUS_FAILED);
    assert_non_null(strstr(error_text(), "/069.bin: cannot be opened again: No such file or directory"));
    assert_int_equal(dataset_read(dataset, 5 * 5, 1, tokens, targets, order), 0);      // the place of 069 still works
    dataset_close(dataset);
    dataset_close(NULL);
    free(text);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_directory, remove_directory)
    const struct CMUnitTest tests[] = {
        TEST(test_both_headers), TEST(test_wide_tokens), TEST(test_glob_in_sorted_order), TEST(test_hash), TEST(test_order),
        TEST(test_epochs), TEST(test_micro_batches), TEST(test_counts_over_31_bits), TEST(test_many_shards),
        TEST(test_prepare_written_read_back), TEST(test_bad_shards), TEST(test_no_shards), TEST(test_bad_tokens),
        TEST(test_file_cut_short_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
