// Rotary position embeddings: see rope.h.
#include "rope.h"

#include <math.h>

double rope_frequency(const ModelConfig *m, int j) {
    const RopeScaling *s = &m->rope_scaling;
    double frequency = pow(m->rope_theta, -2.0 * j / m->D);
    if (s->rope_type != ROPE_SCALING_LLAMA3) return frequency;
    double turns = s->original_max_position_embeddings * frequency / (2 * M_PI);    // over the original context
    if (turns > s->high_freq_factor) return frequency;
    if (turns < s->low_freq_factor) return frequency / s->factor;
    double smooth = (turns - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
    return (1 - smooth) * frequency / s->factor + smooth * frequency;
}

void rope_table_row(double *row, const ModelConfig *m, int position) {
    for (int j = 0; j < m->D / 2; j++) {
        double angle = position * rope_frequency(m, j);
        row[j] = cos(angle);
        row[m->D / 2 + j] = sin(angle);
    }
}
