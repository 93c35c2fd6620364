// SIMD for a device's loops through the compilers' vector types: one source for AVX-512, AVX2, SSE2 and NEON, for REAL float and double.
// A `vector` holds LANES reals; arithmetic on it is written with + - * /, a product and a sum in one expression become one FMA
// (-std=gnu11). Comparisons give a `mask`: all bits set where true. Every function is inlined; none changes what a NaN is.
#ifndef VECTOR_H
#define VECTOR_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX__) || defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

typedef REAL real;

// The preprocessor's view of REAL.
#define REAL_IS_DOUBLE_float 0
#define REAL_IS_DOUBLE_double 1
#define REAL_IS_DOUBLE_(name) REAL_IS_DOUBLE_##name
#define REAL_IS_DOUBLE__(name) REAL_IS_DOUBLE_(name)
#define REAL_IS_DOUBLE REAL_IS_DOUBLE__(REAL)

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#if REAL_IS_DOUBLE
typedef int64_t real_bits;
#define REAL_EPSILON 2.220446049250313e-16
#else
typedef int32_t real_bits;
#define REAL_EPSILON 1.1920928955078125e-7
#endif

enum { LANES = VECTOR_BYTES / sizeof(real), WIDE_LANES = VECTOR_BYTES / sizeof(double) };

typedef real vector __attribute__((vector_size(VECTOR_BYTES)));
typedef real_bits mask __attribute__((vector_size(VECTOR_BYTES)));
typedef double wide __attribute__((vector_size(VECTOR_BYTES)));
typedef real vector_in_memory __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));
typedef double wide_in_memory __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(double)), may_alias));
typedef real wide_source __attribute__((vector_size(sizeof(real) * (VECTOR_BYTES / sizeof(double))), aligned(sizeof(real)), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE vector vector_load(const real *from) {
    return *(const vector_in_memory *)from;
}

INLINE void vector_store(real *to, vector x) {
    *(vector_in_memory *)to = x;
}

INLINE vector vector_all(real x) {
    return x - (vector){0};
}

// The first `count` lanes, 1 <= count; the others are 0. A loop over n elements takes `lanes_left(n - i)` at a time, its last turn too.
INLINE int lanes_left(size_t n) {
    return n < LANES ? (int)n : LANES;
}

INLINE vector vector_load_first(const real *from, int count) {
    if (__builtin_expect(count >= LANES, 1)) return vector_load(from);
#if VECTOR_BYTES == 64 && REAL_IS_DOUBLE
    return (vector)_mm512_maskz_loadu_pd((__mmask8)((1u << count) - 1), from);
#elif VECTOR_BYTES == 64
    return (vector)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#else
    real lanes[LANES] = {0};
    for (int l = 0; l < count; l++) lanes[l] = from[l];
    return vector_load(lanes);
#endif
}

INLINE void vector_store_first(real *to, vector x, int count) {
    if (__builtin_expect(count >= LANES, 1)) {
        vector_store(to, x);
        return;
    }
#if VECTOR_BYTES == 64 && REAL_IS_DOUBLE
    _mm512_mask_storeu_pd(to, (__mmask8)((1u << count) - 1), (__m512d)x);
#elif VECTOR_BYTES == 64
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)x);
#else
    real lanes[LANES];
    vector_store(lanes, x);
    for (int l = 0; l < count; l++) to[l] = lanes[l];
#endif
}

// a0 b0 a1 b1 ... of the lower, the upper half of the lanes
#if VECTOR_BYTES / 8 == 8 && !REAL_IS_DOUBLE
#define LOWER_LANES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define UPPER_LANES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif VECTOR_BYTES / 8 == 8 || (VECTOR_BYTES / 8 == 4 && !REAL_IS_DOUBLE)
#define LOWER_LANES 0, 8, 1, 9, 2, 10, 3, 11
#define UPPER_LANES 4, 12, 5, 13, 6, 14, 7, 15
#elif VECTOR_BYTES / 8 == 4 || !REAL_IS_DOUBLE
#define LOWER_LANES 0, 4, 1, 5
#define UPPER_LANES 2, 6, 3, 7
#else
#define LOWER_LANES 0, 2
#define UPPER_LANES 1, 3
#endif

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (mask){ __VA_ARGS__ })
#endif

// lines[i] lane j becomes lines[j] lane i: line i and line i + LANES / 2 shuffled together, log2 LANES times over
INLINE void vector_transpose(vector lines[LANES]) {
    for (int stage = 1; stage < LANES; stage *= 2) {
        vector mixed[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            mixed[2 * i] = SHUFFLE(lines[i], lines[i + LANES / 2], LOWER_LANES);
            mixed[2 * i + 1] = SHUFFLE(lines[i], lines[i + LANES / 2], UPPER_LANES);
        }
        for (int i = 0; i < LANES; i++) lines[i] = mixed[i];
    }
}

// WIDE_LANES reals as doubles
INLINE wide wide_load(const real *from) {
    return __builtin_convertvector(*(const wide_source *)from, wide);
}

INLINE wide wide_all(double x) {
    return x - (wide){0};
}

// yes where the mask is set, no elsewhere
INLINE vector vector_choose(mask where, vector yes, vector no) {
    return (vector)(((mask)yes & where) | ((mask)no & ~where));
}

// The larger; b where either is a NaN.
INLINE vector vector_max(vector a, vector b) {
#if VECTOR_BYTES == 64 && REAL_IS_DOUBLE
    return (vector)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif VECTOR_BYTES == 64
    return (vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif VECTOR_BYTES == 32 && REAL_IS_DOUBLE
    return (vector)_mm256_max_pd((__m256d)a, (__m256d)b);
#elif VECTOR_BYTES == 32
    return (vector)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vector_choose(a > b, a, b);
#endif
}

INLINE vector vector_min(vector a, vector b) {
#if VECTOR_BYTES == 64 && REAL_IS_DOUBLE
    return (vector)_mm512_min_pd((__m512d)a, (__m512d)b);
#elif VECTOR_BYTES == 64
    return (vector)_mm512_min_ps((__m512)a, (__m512)b);
#elif VECTOR_BYTES == 32 && REAL_IS_DOUBLE
    return (vector)_mm256_min_pd((__m256d)a, (__m256d)b);
#elif VECTOR_BYTES == 32
    return (vector)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vector_choose(a < b, a, b);
#endif
}

INLINE vector vector_sqrt(vector x) {
#if VECTOR_BYTES == 64 && REAL_IS_DOUBLE
    return (vector)_mm512_sqrt_pd((__m512d)x);
#elif VECTOR_BYTES == 64
    return (vector)_mm512_sqrt_ps((__m512)x);
#elif VECTOR_BYTES == 32 && REAL_IS_DOUBLE
    return (vector)_mm256_sqrt_pd((__m256d)x);
#elif VECTOR_BYTES == 32
    return (vector)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE2__) && REAL_IS_DOUBLE
    return (vector)_mm_sqrt_pd((__m128d)x);
#elif defined(__SSE2__)
    return (vector)_mm_sqrt_ps((__m128)x);
#elif defined(__aarch64__) && REAL_IS_DOUBLE
    return (vector)vsqrtq_f64((float64x2_t)x);
#elif defined(__aarch64__)
    return (vector)vsqrtq_f32((float32x4_t)x);
#else
    for (int l = 0; l < LANES; l++) x[l] = (real)sqrt((double)x[l]);
    return x;
#endif
}

// 0, 1, 2, ...
INLINE vector lane_numbers(void) {
    static const real numbers[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    return vector_load(numbers);
}

// The sum and the largest of the lanes, in a fixed order: halves onto each other.
INLINE real vector_sum(vector x) {
#if VECTOR_BYTES == 64 && REAL_IS_DOUBLE
    return _mm512_reduce_add_pd((__m512d)x);
#elif VECTOR_BYTES == 64
    return _mm512_reduce_add_ps((__m512)x);
#endif
    real lanes[LANES];
    vector_store(lanes, x);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
    return lanes[0];
}

INLINE double wide_sum(wide x) {
#if VECTOR_BYTES == 64
    return _mm512_reduce_add_pd((__m512d)x);
#endif
    double lanes[WIDE_LANES];
    memcpy(lanes, &x, sizeof lanes);
    for (int half = WIDE_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
    return lanes[0];
}

INLINE real vector_largest(vector x) {
    real lanes[LANES];
    vector_store(lanes, x);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) lanes[l] = lanes[l] > lanes[l + half] ? lanes[l] : lanes[l + half];
    return lanes[0];
}

// e^x to about 1 ulp for x up to EXP_HIGHEST; 0 where it would be under 2^-125 (float), 2^-1021 (double): denormal numbers are slow, and
// nothing here needs them. A NaN stays one. x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial with the smallest largest relative
// error (Remez), 1 + r + r^2 q(r).
#if REAL_IS_DOUBLE
#define EXP_LOWEST ((real)-707.7)
#define EXP_HIGHEST ((real)710)
#else
#define EXP_LOWEST ((real)-86.64)
#define EXP_HIGHEST ((real)89)
#endif

INLINE vector vector_exp_below(vector x) {
#if REAL_IS_DOUBLE
    const real magic = 6755399441055744.0, ln2_high = 0x1.62e42fefa0000p-1, ln2_low = 0x1.cf79abc9e3b39p-40;
#else
    const real magic = 12582912.0f, ln2_high = 0x1.62e400p-1f, ln2_low = 0x1.7f7d1cp-20f;
#endif
#if VECTOR_BYTES != 64
    const mask underflow = x < EXP_LOWEST;
    x = vector_max(vector_all(EXP_LOWEST), x);                                 // in this order a NaN comes through
#endif
    const vector shifted = x * (real)1.4426950408889634 + magic;               // magic is 1.5 * 2^mantissa: n stands in the lowest bits
    const vector n = shifted - magic, r = (x - n * ln2_high) - n * ln2_low;
#if REAL_IS_DOUBLE
    vector q = vector_all(2.5260821694182834972e-8);
    q = q * r + (real)2.763184050928429923e-7;
    q = q * r + (real)2.7556809035331903035e-6;
    q = q * r + (real)0.00002480148938191439798;
    q = q * r + (real)0.00019841270316542494047;
    q = q * r + (real)0.0013888888946086400031;
    q = q * r + (real)0.0083333333331535963479;
    q = q * r + (real)0.041666666666527446513;
    q = q * r + (real)0.1666666666666688129;
    q = q * r + (real)0.50000000000000097558;
#else
    vector q = vector_all(0.0013998078065706839094f);
    q = q * r + (real)0.0083701764356751653155;
    q = q * r + (real)0.04166567591481398478;
    q = q * r + (real)0.16666507088897353244;
    q = q * r + (real)0.5000000193031763602;
#endif
    const vector power = r * r * q + r + (real)1;
#if VECTOR_BYTES == 64 && REAL_IS_DOUBLE
    const __mmask8 is_normal = _mm512_cmp_pd_mask((__m512d)x, _mm512_set1_pd(EXP_LOWEST), _CMP_NLT_UQ);
    return (vector)_mm512_maskz_scalef_pd(is_normal, (__m512d)power, (__m512d)n);
#elif VECTOR_BYTES == 64
    const __mmask16 is_normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(EXP_LOWEST), _CMP_NLT_UQ);
    return (vector)_mm512_maskz_scalef_ps(is_normal, (__m512)power, (__m512)n);
#else
    enum { MANTISSA = REAL_IS_DOUBLE ? 52 : 23, BIAS = REAL_IS_DOUBLE ? 1023 : 127 };
    const mask whole = (mask)shifted - (mask)vector_all(magic);
    const vector scaled = power * (vector)((whole + (BIAS - 1)) << MANTISSA) * (real)2;        // 2^n alone may be too large
    return (vector)((mask)scaled & ~underflow);
#endif
}

// e^x for any x: infinity over the largest number
INLINE vector vector_exp(vector x) {
    return vector_exp_below(vector_min(vector_all(EXP_HIGHEST), x));
}

// The natural logarithm of positive normal numbers to about 1 ulp; a NaN, or an infinity, becomes a NaN.
// x = 2^e m with m within a factor sqrt 2 of 1; log m = 2 atanh((m - 1) / (m + 1)) by its series.
INLINE vector vector_log(vector x) {
    enum { MANTISSA = REAL_IS_DOUBLE ? 52 : 23, TERMS = REAL_IS_DOUBLE ? 11 : 5 };
    const vector root_half = vector_all((real)0.70710678118654752);
    const mask e = ((mask)x - (mask)root_half) >> MANTISSA;                    // so many doublings above sqrt(1/2)
    const vector m = (vector)((mask)x - (e << MANTISSA)), s = (m - (real)1) / (m + (real)1), square = s * s;
    vector series = vector_all((real)1 / (2 * TERMS + 1));
    for (int k = TERMS - 1; k >= 1; k--) series = series * square + (real)1 / (2 * k + 1);
    return __builtin_convertvector(e, vector) * (real)0.69314718055994531 + (s * square * series + s) * 2 + (x - x);
}

// 1 / (1 + e^-x)
INLINE vector vector_sigmoid(vector x) {
    return (real)1 / ((real)1 + vector_exp(-x));
}

#endif
