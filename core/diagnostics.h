// From the sums that attention_diagnose makes to what metrics.jsonl says of each layer.
#ifndef DIAGNOSTICS_H
#define DIAGNOSTICS_H

#include "config.h"
#include "device.h"
#include "model.h"

struct cJSON;

// sums [L, H, DIAGNOSE_SIZE] over a whole global batch; gradient_squares and parameter_squares [tensor_count]: sums of squares of each
// tensor. Returns the array "layers" of a diagnostics event (docs/metrics.md defines its fields): NULL when out of memory.
struct cJSON *diagnostics_layers(const double *sums, const double *gradient_squares, const double *parameter_squares,
                                 const ParameterTable *table, const ModelConfig *model, const AttentionConfig *attention);

#endif
