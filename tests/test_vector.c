// cpu/vector.h: its functions against the C library's in double, lane by lane, and its memory accesses against guards.
// Compiled for float; test_vector_double.c compiles it for double.
#ifndef REAL
#define REAL float
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../cpu/vector.h"

static uint64_t random_state = 1;

static double random_value(void) {                              // in [-1, 1)
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;           // splitmix64
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)(int64_t)(x ^ x >> 31) * 0x1p-63;
}

// Every lane of f(values) within so many epsilons, relatively, of the reference.
static void check_lanes(vector result, const real *values, double reference(double), double epsilons) {
    for (int l = 0; l < LANES; l++) {
        const double expected = reference((double)values[l]), off = fabs((double)result[l] - expected);
        if (!(off <= epsilons * (double)REAL_EPSILON * fabs(expected)))
            fail_msg("f(%.17g) is %.17g, expected %.17g: off by %.3g epsilon", (double)values[l], (double)result[l], expected,
                     off / fabs(expected) / (double)REAL_EPSILON);
    }
}

static double reference_sigmoid(double x) { return 1 / (1 + exp(-x)); }

// Epsilon is two units of the last place just under a power of two, one just above: 1 epsilon is a generous unit.
static void test_exp(void **state) {
    (void)state;
    const double lowest = (double)EXP_LOWEST, highest = REAL_EPSILON > 1e-10 ? 88.72 : 709.78;
    real values[LANES];
    for (int i = 0; i < 300000; i++) {
        for (int l = 0; l < LANES; l++) {
            const double anywhere = (lowest + (random_value() + 1) / 2 * (highest - lowest)) * 0.9999;
            values[l] = (real)(i % 2 ? random_value() : anywhere);
        }
        check_lanes(vector_exp(vector_load(values)), values, exp, 1);
        for (int l = 0; l < LANES; l++) values[l] = (real)-fabs((double)values[l] * 0.9);
        check_lanes(vector_exp_below(vector_load(values)), values, exp, 1);
    }
}

static void test_exp_at_its_ends(void **state) {
    (void)state;
    const real inputs[] = { 0, (real)-0.0, -INFINITY, INFINITY, NAN, 1000, -1000, (real)1e30, (real)-1e30, EXP_LOWEST - 1, 1e-30f };
    const real outputs[] = { 1, 1, 0, INFINITY, NAN, INFINITY, 0, INFINITY, 0, 0, 1 };
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        for (int l = 0; l < LANES; l++) {
            vector x = vector_all(1);
            x[l] = inputs[i];
            const vector y = vector_exp(x);
            assert_true(y[l] == outputs[i] || (isnan(y[l]) && isnan(outputs[i])));
            if (inputs[i] <= 0 || isnan(inputs[i])) {
                const vector below = vector_exp_below(x);
                assert_true(below[l] == outputs[i] || (isnan(below[l]) && isnan(outputs[i])));
            }
            for (int other = 0; other < LANES; other++) assert_true(other == l || fabs((double)y[other] - exp(1)) < 1e-6);
        }
}

static void test_log(void **state) {
    (void)state;
    real values[LANES];
    for (int i = 0; i < 100000; i++) {
        for (int l = 0; l < LANES; l++) values[l] = (real)exp((random_value() + 1.001) * 20);      // what a softmax's sum may be
        check_lanes(vector_log(vector_load(values)), values, log, 2);
    }
    assert_true(vector_log(vector_all(1))[0] == 0);
    assert_true(isnan(vector_log(vector_all(NAN))[0]));
}

static void test_sigmoid(void **state) {
    (void)state;
    real values[LANES];
    for (int i = 0; i < 100000; i++) {
        for (int l = 0; l < LANES; l++) values[l] = (real)(random_value() * 80);
        check_lanes(vector_sigmoid(vector_load(values)), values, reference_sigmoid, 3);
    }
    assert_true(vector_sigmoid(vector_all(INFINITY))[0] == 1);
    assert_true(vector_sigmoid(vector_all(-INFINITY))[0] == 0);
    assert_true(isnan(vector_sigmoid(vector_all(NAN))[0]));
}

static void test_first_lanes(void **state) {
    (void)state;
    for (int count = 1; count <= LANES; count++) {
        real from[LANES], to[3 * LANES];
        for (int l = 0; l < LANES; l++) from[l] = (real)(l + 1);
        for (int i = 0; i < 3 * LANES; i++) to[i] = -1;
        const vector x = vector_load_first(from, count);
        vector_store_first(to + LANES, vector_load(from), count);
        for (int l = 0; l < LANES; l++) assert_true(x[l] == (l < count ? from[l] : 0));
        for (int i = 0; i < 3 * LANES; i++) assert_true(to[i] == (i >= LANES && i < LANES + count ? from[i - LANES] : -1));
        assert_int_equal(lanes_left(count), count);
    }
    assert_int_equal(lanes_left(LANES + 1), LANES);
}

static void test_transpose(void **state) {
    (void)state;
    vector lines[LANES];
    for (int i = 0; i < LANES; i++)
        for (int l = 0; l < LANES; l++) lines[i][l] = (real)(i * LANES + l);
    vector_transpose(lines);
    for (int i = 0; i < LANES; i++)
        for (int l = 0; l < LANES; l++) assert_true(lines[i][l] == (real)(l * LANES + i));
}

static void test_sums_and_choices(void **state) {
    (void)state;
    vector x;
    double doubles[WIDE_LANES], sum = 0;
    real source[WIDE_LANES];
    for (int l = 0; l < LANES; l++) x[l] = (real)(l + 1);
    assert_true(vector_sum(x) == LANES * (LANES + 1) / 2);
    assert_true(vector_largest(x) == LANES);
    assert_true(vector_sqrt(x * x)[LANES - 1] == LANES);
    assert_true(lane_numbers()[LANES - 1] == LANES - 1);
    const vector chosen = vector_choose(x > (real)1, x, -x);
    assert_true(chosen[0] == -1 && chosen[LANES - 1] == LANES);
    for (int l = 0; l < WIDE_LANES; l++) sum += doubles[l] = source[l] = (real)(l + 0.5);
    assert_true(wide_sum(wide_load(source)) == sum);
    assert_true(wide_load(source)[WIDE_LANES - 1] == doubles[WIDE_LANES - 1]);
}

// Where one is a NaN the second argument is taken: so a NaN that comes second comes through.
static void test_max_and_min_of_nan(void **state) {
    (void)state;
    const vector one = vector_all(1), two = vector_all(2), nan = vector_all(NAN);
    assert_true(vector_max(one, two)[0] == 2 && vector_max(two, one)[0] == 2);
    assert_true(vector_min(one, two)[0] == 1 && vector_min(two, one)[0] == 1);
    assert_true(isnan(vector_max(one, nan)[0]) && isnan(vector_min(one, nan)[0]));
    assert_true(vector_max(nan, one)[0] == 1 && vector_min(nan, one)[0] == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),           cmocka_unit_test(test_exp_at_its_ends),   cmocka_unit_test(test_log),
        cmocka_unit_test(test_sigmoid),       cmocka_unit_test(test_first_lanes),       cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_sums_and_choices), cmocka_unit_test(test_max_and_min_of_nan),
    };
    return cmocka_run_group_tests_name(sizeof(real) == sizeof(float) ? "vectors of float" : "vectors of double", tests, NULL, NULL);
}
