// Counter-based random numbers: value i of a stream depends on (seed, stream's name, i) only, and is the same bits on every machine and
// compiler: integer mixing, and arithmetic that IEEE 754 fixes; no transcendental function of the C library, no contraction to FMA.
#ifndef RANDOM_H
#define RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"

// The key of a named stream.
uint64_t random_key(uint64_t seed, const char *name);
// 64 uniform bits: value `index` of the stream.
uint64_t random_bits(uint64_t key, uint64_t index);
// Uniform in [0,1), 53 bits.
double random_uniform(uint64_t key, uint64_t index);
// Standard normal: random_normal_of_bits(random_bits(key, index)).
double random_normal(uint64_t key, uint64_t index);
// The normal that 64 uniform bits make: the top bit is its sign (1: negative), the other 63, as a number k, say that a |z| under it has the
// probability (k + 1/2) / 2^63. Relative accuracy about 1e-15; |z| ends at 9.16.
double random_normal_of_bits(uint64_t bits);

// Initial values of tensor's elements first .. first+n-1, in memory order (for a transposed tensor the random index is the file's place).
void random_initial_values(double *values, const Tensor *tensor, size_t first, size_t n, uint64_t seed);

// A random permutation of 0..n-1, evaluated at i < n without storing it: a bijection that depends on key alone; n <= 2^62.
uint64_t random_permutation(uint64_t key, uint64_t n, uint64_t i);

#endif
