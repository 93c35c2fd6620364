// The configuration of a run: one struct, and one table that says each key's name, type, default, range and meaning. Parsing, --help,
// RUN/config.json and docs/config.md all come from that table.
#ifndef CONFIG_H
#define CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "attention.h"

struct cJSON;

enum { PATH_SIZE = 1024 };              // longest path or text a key can hold, terminator included

typedef enum { ARCH_GPT2, ARCH_LLAMA, ARCH_QWEN2 } Arch;
typedef enum { SCHEDULE_CONSTANT, SCHEDULE_WSD, SCHEDULE_LINEAR, SCHEDULE_COSINE } ScheduleType;
typedef enum { RECOMPUTE_NONE, RECOMPUTE_ATTENTION, RECOMPUTE_BLOCK } Recompute;
typedef enum { DTYPE_FP32, DTYPE_BF16 } Dtype;

// Hugging Face's llama3 rope_scaling; type none: plain rotary positions.
typedef struct RopeScaling {
    enum { ROPE_SCALING_NONE, ROPE_SCALING_LLAMA3 } rope_type;
    double factor, low_freq_factor, high_freq_factor;
    int original_max_position_embeddings;
} RopeScaling;

typedef struct ModelConfig {            // the keys' names beside ours
    Arch arch;
    int V;                              // vocab_size
    int C;                              // hidden_size
    int L;                              // num_hidden_layers
    int H;                              // num_attention_heads
    int K;                              // num_key_value_heads
    int D;                              // head_dim
    int intermediate_size;
    int max_position_embeddings;
    bool tie_word_embeddings;
    double rope_theta;
    RopeScaling rope_scaling;
    double norm_eps;
    double initializer_range;
} ModelConfig;

typedef struct Config {
    char run_dir[PATH_SIZE];
    uint64_t seed;
    ModelConfig model;
    char init_from[PATH_SIZE];          // model.init_from: a directory; "" is null
    AttentionConfig attention;
    struct { char train[PATH_SIZE], val[PATH_SIZE], tokenizer[PATH_SIZE]; bool shuffle; } data;         // globs; "" is null
    struct { long steps; int batch_size, micro_batch_size, sequence_length; } train;
    struct { double lr, beta1, beta2, eps, weight_decay, grad_clip; } optimizer;
    struct { ScheduleType type; long warmup_steps; double decay_fraction, min_lr_ratio; } schedule;
    struct { char teacher[PATH_SIZE]; double weight, temperature; } distill;
    struct { long every; int batches; } eval;
    struct { long every; int keep; } checkpoint;
    struct { long every; int tokens; char prompt[PATH_SIZE]; double temperature; int top_k; double top_p; } sample;
    struct { long every; } diagnostics;
    struct { int threads; Dtype dtype; Recompute recompute; } compute;
} Config;

// One "--section.key=value" of the command line.
typedef struct Override { const char *key, *value; } Override;

// Every default filled in, those that depend on other keys too (head_dim, intermediate_size, ...); no run_dir, no data.
void config_defaults(Config *config);

// Reads a JSON file (and those it extends, paths relative to the file that says so), then the overrides, fills in the defaults (with
// model.init_from that directory's model), checks every range and every relation between keys. Errors name file and key, or the flag. On
// failure *config is as it was, here and below.
int config_read(Config *config, const char *path, const Override *overrides, int override_count);

// The same from JSON already parsed; `name` stands for the file in messages. No `extends`.
int config_from_json(Config *config, const struct cJSON *json, const char *name);

// config becomes that of a resumed run: the overrides applied to the saved one. Refuses, naming the key, all but train.steps and the
// sections eval, checkpoint, diagnostics, sample and compute.
int config_override_resumed(Config *config, const Override *overrides, int override_count);

// The first key, of those that a resumed run may not change (run_dir aside, which may have been moved), in which two configs differ; NULL:
// none.
const char *config_difference(const Config *a, const Config *b);

// Relations between keys that config_read checks at its end (shapes that divide, gpt2's own rules, ...); `name` begins the message.
int config_check(const Config *config, const char *name);

// One value from its spelling on a command line, checked against the key's range alone. Errors say what was wanted and found, not where.
int config_set(Config *config, const char *key, const char *text);

// The known key or section nearest to name by edit distance; *distance is 0 where name is known.
const char *config_nearest_key(const char *name, int *distance);

// The whole config, every key, as a new cJSON object: config_from_json reads the same config back, bit for bit, also from its printed text
// (so a number that cJSON would print rounded is an item of raw text). NULL when out of memory.
struct cJSON *config_to_json(const Config *config);

// The name in the config of an enum's value: "affine", "wsd", ...
const char *attention_type_name(AttentionType type);
const char *gate_name(GateType gate);
const char *arch_name(Arch arch);
const char *dtype_name(Dtype dtype);
const char *recompute_name(Recompute recompute);

// help KEY: default, range and meaning of one key, of a section, or (key NULL) of all; "--markdown": docs/config.md. Unknown: status 2,
// naming the nearest.
int config_help(FILE *out, const char *key);

// The same as a Markdown page: docs/config.md.
void config_help_markdown(FILE *out);

#endif
