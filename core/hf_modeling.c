// The modeling file that a checkpoint carries, as bytes of the program, so that it is at hand wherever the program runs. The Makefile makes
// the included list of numbers from scripts/hf/modeling_train_gpt.py.
#include "hf_config.h"

const char hf_modeling_text[] = {
#include "modeling_train_gpt.inc"
};
const size_t hf_modeling_size = sizeof hf_modeling_text;
