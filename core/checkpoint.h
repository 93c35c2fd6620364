// A checkpoint directory: config.json (Hugging Face's keys for the arch and our attention section), model.safetensors,
// optimizer.safetensors (<tensor>.exp_avg and <tensor>.exp_avg_sq), trainer_state.json (format, step, tokens, version, the whole config),
// tokenizer.json and tokenizer_config.json, and where stock transformers does not compute the attention the modeling file that does. It is
// written under a name that does not begin with "step-", synced, then renamed: whole or absent. Values pass in memory order; the table's
// flag says which tensors lie transposed in the file.
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>

#include "config.h"
#include "model.h"

typedef enum { CHECKPOINT_WEIGHTS, CHECKPOINT_EXP_AVG, CHECKPOINT_EXP_AVG_SQ } CheckpointPart;

// ---- writing ----
typedef struct CheckpointWriter CheckpointWriter;
// Begins RUN/checkpoints/step-XXXXXXXX of config->run_dir. tokenizer: a file to copy in as tokenizer.json, with the tokenizer_config.json
// beside it or one made for it, or NULL. table must stay until
// the writer ends. Status 1, and nothing left, on failure.
int checkpoint_create(CheckpointWriter **writer, const Config *config, const ParameterTable *table, long step,
                      const char *tokenizer_or_null);
// Elements first .. first+n-1 (memory order, pieces in rising order) of tensor; buffers have the part CHECKPOINT_WEIGHTS only.
int checkpoint_write(CheckpointWriter *writer, CheckpointPart part, const Tensor *tensor, const double *values, size_t first, size_t n);
// Checks that every element came, syncs, renames, frees the writer. On failure what was written is removed, and older checkpoints are as
// they were. An existing directory of the same step is replaced.
int checkpoint_commit(CheckpointWriter *writer);
void checkpoint_abandon(CheckpointWriter *writer);          // removes what was written
// Removes all but the newest `keep` complete checkpoints of a run (keep 0: none is removed), and leftovers of writes cut off.
int checkpoint_prune(const char *run_dir, int keep);

// ---- reading ----
typedef struct CheckpointReader CheckpointReader;
// Opens a checkpoint directory, or any Hugging Face directory of a known arch, its weights in model.safetensors or in the files that
// model.safetensors.index.json lists: then there is no trainer state.
int checkpoint_open(CheckpointReader **reader, const char *directory);
void checkpoint_close(CheckpointReader *reader);
const ModelConfig *checkpoint_model(const CheckpointReader *reader);
const AttentionConfig *checkpoint_attention(const CheckpointReader *reader);
const Config *checkpoint_config(const CheckpointReader *reader);        // the run's, from trainer_state.json; NULL without one
long checkpoint_step(const CheckpointReader *reader);                   // -1 without trainer state
// Status 2, naming the first tensor that is missing, extra or misshapen against the table; optimizer: whether the moments must be there
// too. A classifier stored beside the embedding it is tied to, and other programs' masks, are ignored.
int checkpoint_check(CheckpointReader *reader, const ParameterTable *table, bool optimizer);
// The same for weights that a run with another attention begins from: what only this attention has may be absent altogether.
int checkpoint_check_beginning(CheckpointReader *reader, const ParameterTable *table);
bool checkpoint_has(const CheckpointReader *reader, const Tensor *tensor);      // among the weights
// Elements first .. first+n-1 in memory order. Status 2 as checkpoint_check, for this tensor alone.
int checkpoint_read(CheckpointReader *reader, CheckpointPart part, const Tensor *tensor, double *values, size_t first, size_t n);
// The newest complete checkpoint of a run: its directory and step; step -1 where there is none.
int checkpoint_newest(const char *run_dir, char directory[PATH_SIZE], long *step);
// What checkpoint_newest passes over: a directory named as a checkpoint of a step after `step` that lacks a file; "" where there is none.
int checkpoint_passed_over(const char *run_dir, long step, char directory[PATH_SIZE]);

#endif
