// Counter-based random numbers: splitmix64's mixer for the bits, Wichura's AS 241 for the normal quantile. The same bits everywhere: no
// product is fused with a sum, every operation rounds to double, and no transcendental function of the C library is used. The Makefile says
// -ffp-contract=off for this file; the pragmas below say it again, for whoever compiles it another way.
#include "random.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__FAST_MATH__)
#error "core/random.c must not be compiled with -ffast-math: runs would not share their initial weights"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif
_Static_assert(FLT_EVAL_METHOD == 0, "every operation on doubles must round to double (on x86-32: -msse2 -mfpmath=sse)");

static const uint64_t golden_ratio = 0x9e3779b97f4a7c15;        // 2^64 / phi, odd: splitmix64's step from state to state

// The output function of splitmix64 (Steele, Lea, Flood 2014; constants of Stafford's variant 13): a bijection of 64 bits.
static inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// FNV-1a of the name, on a start that the seed has scrambled.
uint64_t random_key(uint64_t seed, const char *name) {
    uint64_t hash = 0xcbf29ce484222325;
    for (const char *c = name; *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
    return mix(hash + mix(seed + golden_ratio));
}

// splitmix64 alone would make all streams pieces of one sequence, which could overlap; the key in the second round keeps them apart.
static inline uint64_t bits_at(uint64_t key, uint64_t index) {
    return mix(mix(key + (index + 1) * golden_ratio) ^ key);
}

uint64_t random_bits(uint64_t key, uint64_t index) {
    return bits_at(key, index);
}

double random_uniform(uint64_t key, uint64_t index) {
    return (double)(int64_t)(bits_at(key, index) >> 11) * 0x1p-53;
}

// Natural logarithm of a normal, positive x: x = 2^e m with m in [sqrt(1/2), sqrt(2)], and log m = 2 atanh((m-1)/(m+1)) by its series; the
// first term left out is under 1e-18.
static double natural_log(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffff) | 0x3ff0000000000000;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 0x1.6a09e667f3bcdp+0) { m *= 0.5; e++; }
    double s = (m - 1) / (m + 1), t = s * s, sum = 1.0 / 23;
    for (int k = 21; k >= 1; k -= 2) sum = sum * t + 1.0 / k;
    return e * 0x1.62e42fefa39efp-1 + 2 * s * sum;
}

// p(x) / q(x), both of degree 7, coefficients from the constant up.
static inline double rational(double x, const double p[8], const double q[8]) {
    double numerator = p[7], denominator = q[7];
    for (int k = 6; k >= 0; k--) {
        numerator = numerator * x + p[k];
        denominator = denominator * x + q[k];
    }
    return numerator / denominator;
}

// Coefficients of M. J. Wichura, Algorithm AS 241 (PPND16), Applied Statistics 37 (1988): relative accuracy about 1e-16.
static const double central_p[8] = {3.387132872796366608, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
                                    4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3};
static const double central_q[8] = {1, 4.2313330701600911252e1, 6.871870074920579083e2, 5.3941960214247511077e3,
                                    2.1213794301586595867e4, 3.930789580009271061e4, 2.8729085735721942674e4, 5.226495278852854561e3};
static const double tail_p[8] = {1.42343711074968357734, 4.6303378461565452959, 5.7694972214606914055, 3.64784832476320460504,
                                 1.27045825245236838258, 2.4178072517745061177e-1, 2.27238449892691845833e-2, 7.7454501427834140764e-4};
static const double tail_q[8] = {1, 2.05319162663775882187, 1.6763848301838038494, 6.8976733498510000455e-1,
                                 1.4810397642748007459e-1, 1.51986665636164571966e-2, 5.475938084995344946e-4, 1.05075007164441684324e-9};
static const double far_p[8] = {6.6579046435011037772, 5.4637849111641143699, 1.7848265399172913358, 2.9656057182850489123e-1,
                                2.6532189526576123093e-2, 1.2426609473880784386e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7};
static const double far_q[8] = {1, 5.9983220655588793769e-1, 1.3692988092273580531e-1, 1.48753612908506148525e-2,
                                7.868691311456132591e-4, 1.8463183175100546818e-5, 1.4215117583164458887e-7, 2.04426310338993978564e-15};

// |z| from its upper tail's probability, under 0.075.
static double tail_quantile(double probability) {
    double r = sqrt(-natural_log(probability));
    return r <= 5 ? rational(r - 1.6, tail_p, tail_q) : rational(r - 5, far_p, far_q);
}

// The upper 63 bits' place of |z|: 0 at the median, the largest number at the end of the tail.
static const uint64_t sign_bit = (uint64_t)1 << 63, last_place = ((uint64_t)1 << 63) - 1;

static inline double distance_from_median(uint64_t bits) {
    return ((double)(int64_t)(bits & last_place) + 0.5) * 0x1p-64;      // as a probability, in (0, 1/2)
}
static inline double central_normal(uint64_t bits) {
    double q = distance_from_median(bits), z = q * rational(0.180625 - q * q, central_p, central_q);
    return bits & sign_bit ? -z : z;
}
static inline bool is_in_tail(uint64_t bits) {
    return distance_from_median(bits) > 0.425;
}
static double tail_normal(uint64_t bits) {
    double z = tail_quantile(((double)(int64_t)(last_place - (bits & last_place)) + 0.5) * 0x1p-64);
    return bits & sign_bit ? -z : z;
}

double random_normal_of_bits(uint64_t bits) {
    return is_in_tail(bits) ? tail_normal(bits) : central_normal(bits);
}

double random_normal(uint64_t key, uint64_t index) {
    return random_normal_of_bits(bits_at(key, index));
}

enum { BLOCK = 256 };

// values = scale * normals, in two passes so that the first, without a branch, becomes vector code; 85 % of the values need no other.
static void scaled_normals(double *values, const uint64_t *bits, size_t n, double scale) {
    for (size_t i = 0; i < n; i++) values[i] = scale * central_normal(bits[i]);
    for (size_t i = 0; i < n; i++) if (is_in_tail(bits[i])) values[i] = scale * tail_normal(bits[i]);
}

// At most BLOCK values from normal(0, initial_std). A transposed tensor lies in memory as [columns, rows] of the file's [rows, columns].
static void fill_block(double *values, const Tensor *tensor, size_t first, size_t n, uint64_t key) {
    uint64_t bits[BLOCK];
    if (tensor->transposed) {
        const size_t rows = (size_t)tensor->shape[0], columns = (size_t)tensor->shape[1];
        size_t row = first % rows, column = first / rows;
        for (size_t i = 0; i < n; i++) {
            bits[i] = bits_at(key, row * columns + column);
            if (++row == rows) { row = 0; column++; }
        }
    } else {
        for (size_t i = 0; i < n; i++) bits[i] = bits_at(key, first + i);
    }
    scaled_normals(values, bits, n, tensor->initial_std);
}

void random_initial_values(double *values, const Tensor *tensor, size_t first, size_t n, uint64_t seed) {
    const uint64_t key = random_key(seed, tensor->name);
    #pragma omp parallel for schedule(static) if (n > 16 * BLOCK)
    for (size_t begin = 0; begin < n; begin += BLOCK) {
        const size_t count = n - begin < BLOCK ? n - begin : BLOCK;
        if (tensor->initial_std != 0) fill_block(values + begin, tensor, first + begin, count, key);
        else for (size_t i = 0; i < count; i++) values[begin + i] = tensor->initial_value;
    }
}

// A Feistel network on the fewest bits that hold n numbers, in two halves, walked until it falls under n again: on average under two walks.
// Eight rounds would do for large n; where the halves are of two or three bits, only about 32 make all orders equally likely.
uint64_t random_permutation(uint64_t key, uint64_t n, uint64_t i) {
    if (n <= 1) return 0;
    const int bits = 64 - __builtin_clzll(n - 1), low_bits = bits / 2;
    const uint64_t low_mask = ((uint64_t)1 << low_bits) - 1, high_mask = ((uint64_t)1 << (bits - low_bits)) - 1;
    do {
        uint64_t low = i & low_mask, high = i >> low_bits;
        for (uint64_t round = 0; round < 32; round += 2) {
            high ^= bits_at(key, round << 32 | low) & high_mask;
            low ^= bits_at(key, (round + 1) << 32 | high) & low_mask;
        }
        i = high << low_bits | low;
    } while (i >= n);
    return i;
}
