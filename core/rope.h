// Rotary position embeddings (arXiv 2104.09864): the angles.
#ifndef ROPE_H
#define ROPE_H

#include "config.h"

// Radians a position by which element j (and j + D/2) of a head turns, j < D/2: rope_theta^(-2j/D), slowed as Hugging Face's llama3
// rope_scaling says: wavelengths longer than original_max_position_embeddings / low_freq_factor by `factor`, those shorter than
// original_max_position_embeddings / high_freq_factor not at all, those between by an interpolation.
double rope_frequency(const ModelConfig *model, int j);

// One row of the table that a device's rope reads: cos [D/2], sin [D/2] at that position.
void rope_table_row(double *row, const ModelConfig *model, int position);

#endif
