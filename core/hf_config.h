// A model's config.json with Hugging Face's own keys for each arch (GPT2Config, LlamaConfig, Qwen2Config), and our section "attention"
// beside them. Baseline without a gate is the stock model, and stock transformers loads it. Any other attention is not: its model_type is
// train_gpt_gpt2, ..., and its auto_map names the classes of our modeling file, which stands beside it.
#ifndef HF_CONFIG_H
#define HF_CONFIG_H

#include <stddef.h>

#include "config.h"

struct cJSON;

// The modeling file (scripts/hf/), for checkpoints: the program carries it.
#define HF_MODELING_MODULE "modeling_train_gpt"
extern const char hf_modeling_text[];
extern const size_t hf_modeling_size;

// Whether stock transformers computes this attention.
bool hf_config_is_stock(const AttentionConfig *attention);
// A new object; NULL when out of memory.
struct cJSON *hf_config_to_json(const ModelConfig *model, const AttentionConfig *attention);
// path: the file. What may be absent has the reference implementation's default; without a section "attention" the type is baseline and the
// gate none. Status 2 names the key that is missing, of a wrong type or value, or asks for something this program does not compute (another
// activation, a sliding window in use, attention_bias, ...). Keys that change nothing that is computed here are ignored.
int hf_config_read(const char *path, ModelConfig *model, AttentionConfig *attention);

#endif
