// core/random: pinned bits, the distribution against the C library's erf, streams, tensors in pieces and transposed, permutations.
#include "core/random.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static uint64_t pattern(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double *new_values(size_t n) {
    double *values = malloc(n * sizeof *values);
    assert_non_null(values);
    return values;
}

// How far counts are from equal ones, in standard deviations of the chi-square distribution (positive: further than chance).
static double chi_square_sigmas(const long *counts, int bins, double expected) {
    double chi = 0;
    for (int i = 0; i < bins; i++) chi += (counts[i] - expected) * (counts[i] - expected) / expected;
    return (chi - (bins - 1)) / sqrt(2.0 * (bins - 1));
}

// ---- bits and uniform numbers ----

// Made apart, by a few lines of Python that follow the published definitions of FNV-1a and splitmix64.
static void test_pinned_bits(void **state) {
    (void)state;
    assert_int_equal(random_key(0, ""), 0x69dd497cadf91c08);
    assert_int_equal(random_key(1337, "transformer.wte.weight"), 0x9d5f3592f152ec42);
    assert_int_equal(random_bits(0, 0), 0x48218226ff3cd4bf);
    assert_int_equal(random_bits(random_key(1337, "transformer.wte.weight"), 0), 0xbe90e61268a5e137);
    assert_int_equal(random_bits(random_key(1337, "transformer.wte.weight"), 12345678901), 0x5cbe44a4ab39fc5e);
    assert_int_equal(random_bits(UINT64_MAX, UINT64_MAX), 0xd6bdf7544574c9cb);
}

static void test_uniform(void **state) {
    (void)state;
    enum { N = 1 << 20, BINS = 256 };
    const uint64_t key = random_key(3, "uniform");
    static long high[BINS], low[BINS], pairs[BINS];
    double sum = 0;
    for (uint64_t i = 0; i < N; i++) {
        const double u = random_uniform(key, i);
        if (!(u >= 0 && u < 1) || u != (double)(random_bits(key, i) >> 11) * 0x1p-53) fail_msg("uniform %d is %g", (int)i, u);
        sum += u;
        high[(int)(u * BINS)]++;
        low[random_bits(key, i) & 255]++;
        pairs[(int)(u * 16) * 16 + (int)(random_uniform(key, i + 1) * 16)]++;
    }
    assert_true(fabs(sum / N - 0.5) < 4 * sqrt(1.0 / 12 / N));
    assert_true(fabs(chi_square_sigmas(high, BINS, N / BINS)) < 4);
    assert_true(fabs(chi_square_sigmas(low, BINS, N / BINS)) < 4);
    assert_true(fabs(chi_square_sigmas(pairs, BINS, N / BINS)) < 4);
}

// Flipping one bit of key or index flips each bit of the result with probability 1/2.
static void test_avalanche(void **state) {
    (void)state;
    enum { TRIALS = 2000 };
    for (int bit = 0; bit < 64; bit++) {
        long flipped_by_key[64] = {0}, flipped_by_index[64] = {0};
        for (uint64_t i = 0; i < TRIALS; i++) {
            const uint64_t key = random_bits(11, i), flip = (uint64_t)1 << bit, value = random_bits(key, i);
            const uint64_t by_key = value ^ random_bits(key ^ flip, i), by_index = value ^ random_bits(key, i ^ flip);
            for (int b = 0; b < 64; b++) {
                flipped_by_key[b] += by_key >> b & 1;
                flipped_by_index[b] += by_index >> b & 1;
            }
        }
        for (int b = 0; b < 64; b++) {      // 8192 counts in all: 5.5 standard deviations
            assert_true(labs(flipped_by_key[b] - TRIALS / 2) < 5.5 * sqrt(TRIALS / 4.0));
            assert_true(labs(flipped_by_index[b] - TRIALS / 2) < 5.5 * sqrt(TRIALS / 4.0));
        }
    }
}

// ---- normal numbers ----

static void test_pinned_normals(void **state) {
    (void)state;
    const uint64_t key = random_key(1337, "transformer.wte.weight");
    static const struct { uint64_t index, bits; } pins[] = {
        {0, 0xbfe505dcb39c2696}, {1, 0xbfe8649cdb10de3c}, {2, 0x3ff58368cf20ab68}, {3, 0xc00205caf32744a6}, {4, 0x3ff1847c930e2c36},
        {12345678901, 0x3ff17325f91451d8},
    };
    for (size_t i = 0; i < COUNT(pins); i++) assert_int_equal(pattern(random_normal(key, pins[i].index)), pins[i].bits);
    // the centre, the tail, the far tail, the ends, and both signs
    static const struct { uint64_t uniform, bits; } quantile_pins[] = {
        {0, 0x3bf40d931ff62707}, {0x8000000000000000, 0xbbf40d931ff62707}, {0x1234567890abcdef, 0x3fc6f02562d8562d},
        {0x6cccccccccccc000, 0x3ff7085226d3e51d}, {0x6ccccccccccccfff, 0x3ff7085226d3e524}, {0xf123456789abcdef, 0xbff92413ea3e631c},
        {0x7fffffffff000000, 0x401c30d85650cdaf}, {0xfffffffffffffff0, 0xc0218dc50b0f6d22}, {0x7fffffffffffffff, 0x40224f82aa55eb15},
    };
    for (size_t i = 0; i < COUNT(quantile_pins); i++) {
        assert_int_equal(pattern(random_normal_of_bits(quantile_pins[i].uniform)), quantile_pins[i].bits);
    }
    uint64_t all = 0;                       // one number for many values: any bit that differs changes it
    for (uint64_t i = 0; i < 200000; i++) all = all * 0x100000001b3 + pattern(random_normal(key, i));
    assert_int_equal(all, 0x1cbe0154ffb6ae84);
}

// |z| against erf and erfc in long double, over the whole range of bits, each octave from both ends.
static void check_quantile(uint64_t place) {
    const uint64_t last = UINT64_MAX >> 1;
    const double z = random_normal_of_bits(place);
    assert_true(pattern(random_normal_of_bits(place | ~last)) == pattern(-z));
    const long double root = sqrtl(2), density = expl(-(long double)z * z / 2) / sqrtl(2 * 3.14159265358979323846L);
    const long double wanted_tail = ((long double)(last - place) + 0.5L) * 0x1p-64L, wanted_centre = ((long double)place + 0.5L) * 0x1p-64L;
    const long double off = z > 0.5 ? erfcl(z / root) / 2 - wanted_tail : erfl(z / root) / 2 - wanted_centre;      // a probability
    if (!(fabsl(off / density) <= 2e-15L * (long double)z)) fail_msg("place %#lx: %.17g", (unsigned long)place, z);
}

static void test_quantiles(void **state) {
    (void)state;
    const uint64_t last = UINT64_MAX >> 1;
    for (int octave = 0; octave < 63; octave++) {
        for (uint64_t i = 0; i < 500; i++) {
            const uint64_t place = ((uint64_t)1 << octave) + (random_bits((uint64_t)octave, i) & (((uint64_t)1 << octave) - 1));
            check_quantile(place);
            check_quantile(last - place);
        }
    }
    check_quantile(0);
    check_quantile(last);
    double previous = 0;                    // and it never falls, across the seams of its three pieces too
    for (uint64_t i = 0; i <= 1000000; i++) {
        const double z = random_normal_of_bits(last / 1000000 * i);
        assert_true(z >= previous);
        previous = z;
    }
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void test_normal_distribution(void **state) {
    (void)state;
    enum { N = 400000 };
    double *values = new_values(N), moments[5] = {0};
    const uint64_t key = random_key(5, "normal");
    for (uint64_t i = 0; i < N; i++) {
        const double z = values[i] = random_normal(key, i);
        if (pattern(z) != pattern(random_normal_of_bits(random_bits(key, i)))) fail();
        for (int k = 1; k <= 4; k++) moments[k] += pow(z, k) / N;
    }
    assert_true(fabs(moments[1]) < 4 * sqrt(1.0 / N));
    assert_true(fabs(moments[2] - 1) < 4 * sqrt(2.0 / N));
    assert_true(fabs(moments[3]) < 4 * sqrt(15.0 / N));
    assert_true(fabs(moments[4] - 3) < 4 * sqrt(96.0 / N));
    qsort(values, N, sizeof *values, compare_doubles);
    double distance = 0;                    // Kolmogorov and Smirnov's
    for (int i = 0; i < N; i++) {
        const double wanted = 0.5 * erfc(-values[i] / sqrt(2));
        distance = fmax(distance, fmax(fabs(wanted - (double)i / N), fabs(wanted - (double)(i + 1) / N)));
    }
    assert_true(distance * sqrt(N) < 1.95); // exceeded with probability 0.001
    free(values);
}

// ---- streams ----

static int compare_u64(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int has_duplicates(uint64_t *values, size_t n) {
    qsort(values, n, sizeof *values, compare_u64);
    for (size_t i = 1; i < n; i++) if (values[i] == values[i - 1]) return 1;
    return 0;
}

static void test_streams_differ(void **state) {
    (void)state;
    enum { SEEDS = 40, NAMES = 40, VALUES = 20 };
    static uint64_t keys[SEEDS * NAMES], values[SEEDS * NAMES * VALUES];
    for (int s = 0; s < SEEDS; s++) {
        for (int n = 0; n < NAMES; n++) {
            char name[64];
            snprintf(name, sizeof name, "transformer.h.%d.attn.c_attn.weight", n);
            const uint64_t key = keys[s * NAMES + n] = random_key((uint64_t)s, name);
            for (int i = 0; i < VALUES; i++) values[(s * NAMES + n) * VALUES + i] = random_bits(key, (uint64_t)i);
        }
    }
    assert_false(has_duplicates(keys, COUNT(keys)));
    assert_false(has_duplicates(values, COUNT(values)));
}

static void test_streams_are_uncorrelated(void **state) {
    (void)state;
    enum { N = 100000 };
    const uint64_t key = random_key(1, "a");
    const uint64_t others[] = {random_key(2, "a"), random_key(1, "b"), key + 1, key ^ (uint64_t)1 << 63, key + 0x9e3779b97f4a7c15};
    for (size_t o = 0; o < COUNT(others); o++) {
        for (uint64_t lag = 0; lag < 3; lag++) {
            double product = 0;
            for (uint64_t i = 0; i < N; i++) product += random_normal(key, i) * random_normal(others[o], i + lag);
            assert_true(fabs(product) < 4.5 * sqrt(N));
        }
    }
}

// ---- tensors ----

static Tensor make_tensor(const char *name, int rows, int columns, double std) {
    Tensor tensor = {.dimensions = 2, .shape = {rows, columns}, .count = (size_t)rows * (size_t)columns, .initial_std = std};
    snprintf(tensor.name, sizeof tensor.name, "%s", name);
    return tensor;
}

static void test_initial_values(void **state) {
    (void)state;
    Tensor tensor = make_tensor("h.0.weight", 61, 509, 0.02);
    double *values = new_values(tensor.count);
    random_initial_values(values, &tensor, 0, tensor.count, 42);
    for (size_t i = 0; i < tensor.count; i++) {
        assert_true(pattern(values[i]) == pattern(0.02 * random_normal(random_key(42, "h.0.weight"), i)));
    }
    tensor.initial_std = 0;
    tensor.initial_value = -1.5;
    random_initial_values(values, &tensor, 0, tensor.count, 42);
    for (size_t i = 0; i < tensor.count; i++) assert_true(values[i] == -1.5);
    free(values);
}

static void test_transposed(void **state) {
    (void)state;
    const int rows = 61, columns = 509;
    Tensor tensor = make_tensor("h.0.weight", rows, columns, 0.02);
    double *plain = new_values(tensor.count), *transposed = new_values(tensor.count);
    random_initial_values(plain, &tensor, 0, tensor.count, 42);
    tensor.transposed = true;
    random_initial_values(transposed, &tensor, 0, tensor.count, 42);
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < columns; c++) assert_true(pattern(transposed[c * rows + r]) == pattern(plain[r * columns + c]));
    }
    free(plain);
    free(transposed);
}

static void test_pieces_equal_the_whole(void **state) {
    (void)state;
    const int threads_before = omp_get_max_threads();
    for (int transposed = 0; transposed < 2; transposed++) {
        Tensor tensor = make_tensor("h.0.weight", 61, 509, 0.02);
        tensor.transposed = transposed;
        double *whole = new_values(tensor.count), *piece = new_values(tensor.count);
        random_initial_values(whole, &tensor, 0, tensor.count, 7);
        static const size_t sizes[] = {1, 60, 61, 255, 256, 257, 5000, 31049};
        for (int threads = 1; threads <= 3; threads++) {
            omp_set_num_threads(threads);
            size_t first = 0;
            for (size_t i = 0; first < tensor.count; i++) {
                const size_t n = sizes[i % COUNT(sizes)] < tensor.count - first ? sizes[i % COUNT(sizes)] : tensor.count - first;
                random_initial_values(piece + first, &tensor, first, n, 7);
                first += n;
            }
            assert_memory_equal(piece, whole, tensor.count * sizeof *whole);
        }
        random_initial_values(piece, &tensor, 5, 0, 7);
        free(whole);
        free(piece);
    }
    omp_set_num_threads(threads_before);
}

// ---- permutations ----

static void check_bijection(uint64_t key, uint64_t n) {
    unsigned char *seen = calloc(n, 1);
    assert_non_null(seen);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t to = random_permutation(key, n, i);
        if (to >= n || seen[to]) fail_msg("n %lu: %lu goes to %lu", (unsigned long)n, (unsigned long)i, (unsigned long)to);
        seen[to] = 1;
    }
    free(seen);
}

// A run that is resumed by a later version must go on in the same order; made apart, as the pinned bits.
static void test_pinned_permutations(void **state) {
    (void)state;
    static const int ten[] = {4, 7, 0, 3, 5, 2, 1, 8, 6, 9};
    for (uint64_t i = 0; i < 10; i++) assert_int_equal(random_permutation(0, 10, i), ten[i]);
    assert_int_equal(random_permutation(random_key(1, "epoch"), 1000000000000, 123456789), 869549148825);
}

static void test_permutation_is_a_bijection(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 300; n++) for (uint64_t key = 0; key < 5; key++) check_bijection(key, n);
    static const uint64_t large[] = {1021, 1024, 1025, 32767, 32768, 32769, 65537, 1000003};
    for (size_t i = 0; i < COUNT(large); i++) check_bijection(random_key(1, "epoch"), large[i]);
}

static void test_permutation_of_many(void **state) {
    (void)state;
    enum { N = 50000 };
    static const uint64_t counts[] = {((uint64_t)1 << 31) + 11, ((uint64_t)1 << 32) - 1, ((uint64_t)1 << 32) + 1, ((uint64_t)1 << 61) + 1,
                                      (uint64_t)1 << 62};
    static uint64_t values[N];
    for (size_t c = 0; c < COUNT(counts); c++) {
        double mean = 0;
        for (uint64_t i = 0; i < N; i++) {
            values[i] = random_permutation(17, counts[c], i < N / 2 ? i : counts[c] - 1 - (i - N / 2));
            assert_true(values[i] < counts[c]);
            mean += (double)values[i] / (double)counts[c] / N;
        }
        assert_true(fabs(mean - 0.5) < 4 * sqrt(1.0 / 12 / N));
        assert_false(has_duplicates(values, N));
    }
}

// Every order of three, of four and of five comes up equally often.
static void test_permutation_is_uniform(void **state) {
    (void)state;
    static const int factorials[] = {1, 1, 2, 6, 24, 120};
    for (int n = 2; n <= 5; n++) {
        long counts[120] = {0};
        const int keys = 400 * factorials[n];
        for (int k = 0; k < keys; k++) {
            int rank = 0, order[5];
            for (int i = 0; i < n; i++) {
                int smaller = 0;            // Lehmer's code
                order[i] = (int)random_permutation(random_bits(99, (uint64_t)k), (uint64_t)n, (uint64_t)i);
                for (int j = 0; j < i; j++) smaller += order[j] < order[i];
                rank = rank * (i + 1) + smaller;
            }
            counts[rank]++;
        }
        assert_true(fabs(chi_square_sigmas(counts, factorials[n], 400)) < 4);
    }
}

// Neighbours do not stay neighbours, and two keys agree about as often as chance has it: once.
static void test_permutations_mix_and_differ(void **state) {
    (void)state;
    enum { N = 100003 };
    int still_neighbours = 0, agree = 0;
    double product = 0;
    for (uint64_t i = 0; i < N; i++) {
        const uint64_t here = random_permutation(1, N, i), next = random_permutation(1, N, (i + 1) % N);
        still_neighbours += next == here + 1;
        agree += here == random_permutation(2, N, i);
        product += ((double)i / N - 0.5) * ((double)here / N - 0.5);
    }
    assert_in_range(still_neighbours, 0, 6);
    assert_in_range(agree, 0, 6);
    assert_true(fabs(product * 12) < 4 * sqrt(N));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pinned_bits), cmocka_unit_test(test_uniform), cmocka_unit_test(test_avalanche),
        cmocka_unit_test(test_pinned_normals), cmocka_unit_test(test_quantiles), cmocka_unit_test(test_normal_distribution),
        cmocka_unit_test(test_streams_differ), cmocka_unit_test(test_streams_are_uncorrelated),
        cmocka_unit_test(test_initial_values), cmocka_unit_test(test_transposed), cmocka_unit_test(test_pieces_equal_the_whole),
        cmocka_unit_test(test_pinned_permutations), cmocka_unit_test(test_permutation_is_a_bijection),
        cmocka_unit_test(test_permutation_of_many), cmocka_unit_test(test_permutation_is_uniform),
        cmocka_unit_test(test_permutations_mix_and_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
