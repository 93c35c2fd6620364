// Token shards as one stream of windows. Files are read with pread, a window at a time: they may be larger than memory, and one that is
// cut short while in use gives an error, where a mapping would give a signal.
#include "dataset.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "random.h"

enum {
    HEADER_SIZE = 1024,                 // bytes: 256 int32, of which three say something
    OPEN_FILES = 64,                    // shards held open at a time: all of a small data set, never all of thousands
    DIGIT_BITS = 11,                    // of a token, sorted in one pass
};
_Static_assert(sizeof(off_t) == 8, "shards may be larger than 2 GiB");

typedef struct OpenFile { int shard, descriptor; } OpenFile;            // shard -1: none

struct Dataset {
    Shard *shards;
    uint64_t *first_window;             // [shard_count + 1]: the number of each shard's first window, and at the end of all
    int shard_count;
    int T, V;
    bool shuffle;
    uint64_t epoch_key;                 // of the stream whose value e is the key of epoch e's permutation
    OpenFile open_files[OPEN_FILES];    // shard i is held in place i % OPEN_FILES
    unsigned char *window;              // [T+1], as in the file
    int *scratch;                       // of the sort; grows
    size_t scratch_count;
};

// Shards are little-endian, whatever the machine.
static inline uint32_t read_u16(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;
}
static inline uint32_t read_u32(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

// ---- opening: the glob, and each shard's header ----

// Reads exactly `size` bytes at `offset`; 1 when it cannot, with errno, which is 0 where the file ends before.
static int read_fully(int descriptor, unsigned char *bytes, size_t size, off_t offset) {
    while (size > 0) {
        ssize_t got = pread(descriptor, bytes, size, offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            if (got == 0) errno = 0;
            return 1;
        }
        bytes += got;
        size -= (size_t)got;
        offset += got;
    }
    return 0;
}

// FNV-1a of the header, then of the file's size as 8 bytes.
static uint64_t hash_shard(const unsigned char header[HEADER_SIZE], uint64_t size) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int i = 0; i < HEADER_SIZE; i++) hash = (hash ^ header[i]) * 0x100000001b3;
    for (int i = 0; i < 8; i++) hash = (hash ^ (size >> (8 * i) & 0xff)) * 0x100000001b3;
    return hash;
}

// What the header of a file of `size` bytes says, into shard.
static int check_header(Shard *shard, const char *split, const unsigned char header[HEADER_SIZE], uint64_t size) {
    const uint32_t magic = read_u32(header), version = read_u32(header + 4), tokens = read_u32(header + 8);
    if (magic != 20240520 && magic != 20240801) {
        return set_error(STATUS_BAD_INPUT, "%s: %s: not a token shard: it begins with %" PRIu32 ", a shard with 20240520 or 20240801; "
                         "data/prepare.py makes shards of text", split, shard->path, magic);
    }
    const uint32_t known_version = magic == 20240520 ? 1 : 7;
    if (version != known_version) {
        return set_error(STATUS_BAD_INPUT, "%s: %s: a token shard (magic %" PRIu32 ") of version %" PRIu32 ", not %" PRIu32 "; "
                         "run data/prepare.py again", split, shard->path, magic, version, known_version);
    }
    shard->tokens = tokens;
    shard->token_bytes = magic == 20240520 ? 2 : 4;
    const uint64_t expected = HEADER_SIZE + (uint64_t)tokens * (uint64_t)shard->token_bytes;
    if (size != expected) {
        return set_error(STATUS_BAD_INPUT, "%s: %s: %s: by its header it holds %" PRIu32 " tokens and is %" PRIu64 " bytes long, but it "
                         "has %" PRIu64 " bytes; copy it again, or run data/prepare.py again", split, shard->path,
                         size < expected ? "truncated" : "too long", tokens, expected, size);
    }
    shard->hash = hash_shard(header, size);
    return STATUS_OK;
}

static int read_header(Shard *shard, const char *split, int descriptor) {
    unsigned char header[HEADER_SIZE];
    struct stat info;
    if (fstat(descriptor, &info)) return set_error(STATUS_FAILED, "%s: %s: %s", split, shard->path, strerror(errno));
    if (!S_ISREG(info.st_mode)) {
        return set_error(STATUS_BAD_INPUT, "%s: %s: %s, not a token shard", split, shard->path,
                         S_ISDIR(info.st_mode) ? "a directory" : "not a regular file");
    }
    if (info.st_size < HEADER_SIZE) {
        return set_error(STATUS_BAD_INPUT, "%s: %s: not a token shard, or truncated: it has %lld bytes, a shard's header alone %d; "
                         "run data/prepare.py again", split, shard->path, (long long)info.st_size, HEADER_SIZE);
    }
    if (read_fully(descriptor, header, HEADER_SIZE, 0)) {
        return set_error(STATUS_FAILED, "%s: %s: cannot be read: %s", split, shard->path, errno ? strerror(errno) : "it ends too soon");
    }
    return check_header(shard, split, header, (uint64_t)info.st_size);
}

static int open_shard(Shard *shard, const char *split, const char *path, int T) {
    shard->path = strdup(path);
    if (!shard->path) return set_error(STATUS_FAILED, "%s: out of memory for the list of shards", split);
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);       // not to wait for a named pipe's other end
    if (descriptor < 0) {
        return set_error(errno == EMFILE || errno == ENFILE ? STATUS_FAILED : STATUS_BAD_INPUT, "%s: %s: cannot be opened: %s",
                         split, path, strerror(errno));
    }
    const int status = read_header(shard, split, descriptor);
    close(descriptor);
    if (status == STATUS_OK) shard->windows = shard->tokens > 0 ? (shard->tokens - 1) / (uint64_t)T : 0;
    return status;
}

static int compare_paths(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

// The paths that a glob matches, sorted byte by byte (glob's own order depends on the locale). After success: globfree.
static int match_paths(glob_t *paths, const char *split, const char *pattern) {
    if (pattern[0] == '\0') return set_error(STATUS_BAD_INPUT, "%s: names no shards; give a glob such as data/austen/train*.bin", split);
    switch (glob(pattern, GLOB_NOSORT, NULL, paths)) {
    case 0: break;
    case GLOB_NOMATCH:
        return set_error(STATUS_BAD_INPUT, "%s: no file matches %s; data/prepare.py makes shards of text", split, pattern);
    case GLOB_NOSPACE: return set_error(STATUS_FAILED, "%s: out of memory for the list of shards", split);
    default: return set_error(STATUS_BAD_INPUT, "%s: %s: a directory cannot be read: %s", split, pattern, strerror(errno));
    }
    qsort(paths->gl_pathv, paths->gl_pathc, sizeof *paths->gl_pathv, compare_paths);
    return STATUS_OK;
}

static int open_shards(Dataset *dataset, const char *split, const glob_t *paths) {
    const size_t count = paths->gl_pathc;
    dataset->shards = calloc(count, sizeof *dataset->shards);
    dataset->first_window = calloc(count + 1, sizeof *dataset->first_window);
    if (!dataset->shards || !dataset->first_window) return set_error(STATUS_FAILED, "%s: out of memory for the list of shards", split);
    for (size_t i = 0; i < count; i++) {
        dataset->shard_count = (int)i + 1;
        const int status = open_shard(&dataset->shards[i], split, paths->gl_pathv[i], dataset->T);
        if (status) return status;
        dataset->first_window[i + 1] = dataset->first_window[i] + dataset->shards[i].windows;
    }
    return STATUS_OK;
}

static int require_a_window(const Dataset *dataset, const char *split, const char *pattern) {
    if (dataset_windows(dataset) > 0) return STATUS_OK;
    uint64_t longest = 0;
    for (int i = 0; i < dataset->shard_count; i++) if (dataset->shards[i].tokens > longest) longest = dataset->shards[i].tokens;
    return set_error(STATUS_BAD_INPUT, "%s: %s: no shard holds a window of %d tokens and the one after them: the longest has %" PRIu64
                     " tokens; use a shorter sequence length or more text", split, pattern, dataset->T, longest);
}

int dataset_open(Dataset **dataset, const char *split, const char *pattern, int T, int V, bool shuffle, uint64_t seed) {
    *dataset = NULL;
    glob_t paths = {0};
    int status = match_paths(&paths, split, pattern);
    if (status) {
        globfree(&paths);
        return status;
    }
    Dataset *d = calloc(1, sizeof *d);
    unsigned char *window = malloc(((size_t)T + 1) * 4);
    if (!d || !window) {
        free(d);
        free(window);
        globfree(&paths);
        return set_error(STATUS_FAILED, "%s: out of memory", split);
    }
    *d = (Dataset){.T = T, .V = V, .shuffle = shuffle, .epoch_key = random_key(seed, "epoch"), .window = window};
    for (int i = 0; i < OPEN_FILES; i++) d->open_files[i].shard = -1;
    status = open_shards(d, split, &paths);
    globfree(&paths);
    if (!status) status = require_a_window(d, split, pattern);
    if (status) {
        dataset_close(d);
        return status;
    }
    *dataset = d;
    return STATUS_OK;
}

void dataset_close(Dataset *dataset) {
    if (!dataset) return;
    for (int i = 0; i < OPEN_FILES; i++) if (dataset->open_files[i].shard >= 0) close(dataset->open_files[i].descriptor);
    for (int i = 0; i < dataset->shard_count; i++) free(dataset->shards[i].path);
    free(dataset->shards);
    free(dataset->first_window);
    free(dataset->window);
    free(dataset->scratch);
    free(dataset);
}

// ---- which window is next ----

uint64_t dataset_windows(const Dataset *dataset) {
    return dataset->first_window[dataset->shard_count];
}

int dataset_shard_count(const Dataset *dataset) {
    return dataset->shard_count;
}

const Shard *dataset_shard(const Dataset *dataset, int i) {
    return &dataset->shards[i];
}

uint64_t dataset_window_of(const Dataset *dataset, uint64_t sequence) {
    const uint64_t n = dataset_windows(dataset), place = sequence % n;
    return dataset->shuffle ? random_permutation(random_bits(dataset->epoch_key, sequence / n), n, place) : place;
}

// The last shard whose first window is not after `window`; those without windows are passed over.
static int shard_of(const Dataset *dataset, uint64_t window) {
    int low = 0, high = dataset->shard_count;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (dataset->first_window[middle] <= window) low = middle; else high = middle;
    }
    return low;
}

// ---- reading ----

// A shard's open file; -1, with the error set, where it can no longer be opened.
static int descriptor_of(Dataset *dataset, int shard) {
    OpenFile *file = &dataset->open_files[shard % OPEN_FILES];
    if (file->shard != shard) {
        const int opened = open(dataset->shards[shard].path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (opened < 0) {
            set_error(STATUS_FAILED, "%s: cannot be opened again: %s", dataset->shards[shard].path, strerror(errno));
            return -1;
        }
        if (file->shard >= 0) close(file->descriptor);
        *file = (OpenFile){shard, opened};
    }
    return file->descriptor;
}

static int check_token(const Dataset *dataset, const Shard *shard, uint32_t token, uint64_t position) {
    if (token < (uint32_t)dataset->V) return STATUS_OK;
    return set_error(STATUS_BAD_INPUT, "%s: token %" PRIu32 " at position %" PRIu64 " is outside the vocabulary (model.vocab_size %d)",
                     shard->path, token, position, dataset->V);
}

// tokens and targets [T] of one window.
static int read_window(Dataset *dataset, uint64_t window, int *tokens, int *targets) {
    const int T = dataset->T, index = shard_of(dataset, window);
    const Shard *shard = &dataset->shards[index];
    const uint64_t position = (window - dataset->first_window[index]) * (uint64_t)T;
    const size_t size = ((size_t)T + 1) * (size_t)shard->token_bytes;
    const unsigned char *bytes = dataset->window;
    const int descriptor = descriptor_of(dataset, index);
    if (descriptor < 0) return STATUS_FAILED;
    if (read_fully(descriptor, dataset->window, size, (off_t)(HEADER_SIZE + position * (uint64_t)shard->token_bytes))) {
        return set_error(STATUS_FAILED, "%s: cannot be read at token %" PRIu64 ": %s", shard->path, position,
                         errno ? strerror(errno) : "the file has become shorter since it was opened");
    }
    for (int t = 0; t <= T; t++) {
        const uint32_t token = shard->token_bytes == 2 ? read_u16(bytes + 2 * (size_t)t) : read_u32(bytes + 4 * (size_t)t);
        const int status = check_token(dataset, shard, token, position + (uint64_t)t);
        if (status) return status;
        if (t < T) tokens[t] = (int)token;
        if (t > 0) targets[t - 1] = (int)token;
    }
    return STATUS_OK;
}

// Positions 0..n-1 into `order`, sorted by token: counting sorts by one digit after the other, lowest first, so that V may be far larger
// than n. scratch [n] is used where there is more than one digit.
static void sort_positions(int *order, int *scratch, const int *tokens, size_t n, int V) {
    const int bits = V > 1 ? 32 - __builtin_clz((unsigned)V - 1) : 1;
    const int digits = (bits + DIGIT_BITS - 1) / DIGIT_BITS, digit_bits = (bits + digits - 1) / digits;
    const unsigned mask = (1u << digit_bits) - 1;
    const int *from = NULL;                                         // the order so far; NULL: 0, 1, 2, ...
    for (int digit = 0; digit < digits; digit++) {
        const int shift = digit * digit_bits;
        int *to = (digits - digit) % 2 ? order : scratch;           // so that the last lands in order
        size_t places[1 << DIGIT_BITS] = {0};                       // where the next position of each digit goes
        for (size_t i = 0; i < n; i++) places[(unsigned)tokens[i] >> shift & mask]++;
        size_t place = 0;
        for (unsigned d = 0; d <= mask; d++) {
            const size_t count = places[d];
            places[d] = place;
            place += count;
        }
        for (size_t i = 0; i < n; i++) {
            const int position = from ? from[i] : (int)i;
            to[places[(unsigned)tokens[position] >> shift & mask]++] = position;
        }
        from = to;
    }
}

int dataset_order(int *order, const int *tokens, size_t n, int V) {
    int *scratch = malloc((n > 0 ? n : 1) * sizeof *scratch);
    if (!scratch) return set_error(STATUS_FAILED, "out of memory to sort %zu tokens", n);
    sort_positions(order, scratch, tokens, n, V);
    free(scratch);
    return STATUS_OK;
}

int dataset_read(Dataset *dataset, uint64_t first, int count, int *tokens, int *targets, int *order) {
    const size_t T = (size_t)dataset->T, n = (size_t)count * T;
    for (int b = 0; b < count; b++) {
        const uint64_t window = dataset_window_of(dataset, first + (uint64_t)b);
        const int status = read_window(dataset, window, tokens + (size_t)b * T, targets + (size_t)b * T);
        if (status) return status;
    }
    if (n > dataset->scratch_count) {
        int *scratch = realloc(dataset->scratch, n * sizeof *scratch);
        if (!scratch) return set_error(STATUS_FAILED, "out of memory to sort %zu tokens", n);
        dataset->scratch = scratch;
        dataset->scratch_count = n;
    }
    sort_positions(order, dataset->scratch, tokens, n, dataset->V);
    return STATUS_OK;
}
