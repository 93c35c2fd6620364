// A model's config.json with Hugging Face's own keys for each arch (GPT2Config, LlamaConfig, Qwen2Config), and our section "attention"
// beside them, which other readers ignore.
#ifndef HF_CONFIG_H
#define HF_CONFIG_H

#include "config.h"

struct cJSON;
// A new object; NULL when out of memory.
struct cJSON *hf_config_to_json(const ModelConfig *model, const AttentionConfig *attention);
// path: the file. What may be absent has the reference implementation's default; without a section "attention" the type is baseline and the
// gate none. Status 2 names the key that is missing, of a wrong type or value, or asks for something this program does not compute (another
// activation, a sliding window in use, attention_bias, ...). Keys that change nothing that is computed here are ignored.
int hf_config_read(const char *path, ModelConfig *model, AttentionConfig *attention);

#endif
