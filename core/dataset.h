// Token shards as one stream of windows: llm.c's .bin files (256 int32 of header: magic 20240520, version 1, token count, then uint16
// tokens; magic 20240801, version 7 for uint32). Window w of a shard starts at token w*T and holds T+1 tokens; a shard of n tokens has
// floor((n-1)/T); windows are numbered through the shards in the order of their paths, sorted byte by byte.
// Files are little-endian; the count is read as unsigned. A Dataset serves one thread at a time.
#ifndef DATASET_H
#define DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Dataset Dataset;

typedef struct Shard {
    char *path;
    uint64_t tokens, windows;
    int token_bytes;                    // 2 or 4
    uint64_t hash;                      // FNV-1a of the header's 1024 bytes and the file's size (8 bytes, little-endian)
} Shard;

// Opens the shards that the glob matches for windows of T tokens and a vocabulary of V. split ("data.train") begins messages.
// Status 2, naming the file and the cure: no match, not a shard, truncated, longer than its header says, no window of T at all.
int dataset_open(Dataset **dataset, const char *split, const char *glob, int T, int V, bool shuffle, uint64_t seed);
void dataset_close(Dataset *dataset);

uint64_t dataset_windows(const Dataset *dataset);
int dataset_shard_count(const Dataset *dataset);
const Shard *dataset_shard(const Dataset *dataset, int i);

// Which window sequence b of step `step` (from 0) is. Let s = step*batch_size + b, n = windows. Without shuffle: s mod n. With: the windows
// are permuted anew in each epoch s / n, by (seed, epoch) alone.
uint64_t dataset_window_of(const Dataset *dataset, uint64_t sequence);

// Sequences first .. first+count-1 of the stream (first = step*batch_size + b): tokens, targets [count,T] and order [count*T], the
// positions sorted by token, ties by position. Status 2 for a token id outside the vocabulary: file and token's position named; 1 for a
// read that fails.
int dataset_read(Dataset *dataset, uint64_t first, int count, int *tokens, int *targets, int *order);

// The stable counting sort behind `order`: positions 0..n-1 sorted by token; V the vocabulary. Status 1 when out of memory.
int dataset_order(int *order, const int *tokens, size_t n, int V);

#endif
