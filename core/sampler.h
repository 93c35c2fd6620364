// Choosing the next token from logits.
#ifndef SAMPLER_H
#define SAMPLER_H

#include <stdint.h>

typedef struct SamplerOptions {
    double temperature;                 // 0: the most likely token
    int top_k;                          // 0: all
    double top_p;                       // 1: all
    uint64_t seed;
} SamplerOptions;

// A token id drawn from softmax(logits / temperature) [V], first cut to the top_k likeliest, then to the smallest set of likeliest tokens
// whose probability reaches top_p (Hugging Face's order and meaning). Depends on (seed, position) only beside the logits. Ties: the lower
// id first. work: [V] scratch, 16 bytes an element. A non-finite logit: -1, with set_error.
int sample_token(const double *logits, int V, const SamplerOptions *options, uint64_t position, void *work);

#endif
