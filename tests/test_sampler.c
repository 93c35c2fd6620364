// core/sampler: which tokens the cuts leave, worked by hand and against a full sort; how often each is drawn, against exact probabilities.
#include "core/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/random.h"

enum { MAX_V = 1000, DRAWS = 20000 };
static char work[MAX_V * 16];

static SamplerOptions options_of(double temperature, int top_k, double top_p, uint64_t seed) {
    return (SamplerOptions){.temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = seed};
}

// Draws DRAWS tokens and holds their counts against the probabilities wanted; a token of probability 0 must not come up at all.
static void check_distribution(const double *logits, int V, SamplerOptions options, const double *wanted) {
    long counts[MAX_V] = {0};
    double chi = 0;
    int kinds = 0;
    for (uint64_t position = 0; position < DRAWS; position++) {
        const int token = sample_token(logits, V, &options, position, work);
        assert_in_range(token, 0, V - 1);
        counts[token]++;
    }
    for (int id = 0; id < V; id++) {
        const double expected = wanted[id] * DRAWS;
        if (wanted[id] == 0 && counts[id]) fail_msg("token %d was drawn", id);
        if (wanted[id] == 0) continue;
        chi += (counts[id] - expected) * (counts[id] - expected) / expected;
        kinds++;
    }
    const double freedom = kinds - 1;           // Wilson and Hilferty: the cube root of chi-square / freedom is nearly normal
    if (freedom == 0) return;
    const double sigmas = (cbrt(chi / freedom) - (1 - 2 / (9 * freedom))) / sqrt(2 / (9 * freedom));
    if (!(sigmas < 4)) fail_msg("chi-square %g at %g degrees of freedom, %g sigmas", chi, freedom, sigmas);
}

// ---- the reference: softmax, sorted, cut ----

static const double *sorted_logits;

static int compare_ids(const void *a, const void *b) {
    const int x = *(const int *)a, y = *(const int *)b;
    if (sorted_logits[x] != sorted_logits[y]) return sorted_logits[x] > sorted_logits[y] ? -1 : 1;
    return x - y;
}

static void reference(double *probabilities, const double *logits, int V, SamplerOptions options) {
    int order[MAX_V];
    for (int i = 0; i < V; i++) order[i] = i;
    sorted_logits = logits;
    qsort(order, (size_t)V, sizeof *order, compare_ids);
    const int top_k = options.top_k > 0 && options.top_k < V ? options.top_k : V;
    double total = 0, reached = 0, kept = 0;
    for (int i = 0; i < V; i++) probabilities[i] = 0;
    for (int i = 0; i < top_k; i++) total += exp((logits[order[i]] - logits[order[0]]) / options.temperature);
    for (int i = 0; i < top_k && (i == 0 || reached < options.top_p); i++) {
        probabilities[order[i]] = exp((logits[order[i]] - logits[order[0]]) / options.temperature) / total;
        reached += probabilities[order[i]];
        kept = reached;
    }
    for (int i = 0; i < V; i++) probabilities[i] /= kept;
}

static void test_against_a_full_sort(void **state) {
    (void)state;
    static const double temperatures[] = {0.3, 1, 2.5}, shares[] = {0.05, 0.5, 0.9, 0.999, 1};
    static const int counts[] = {0, 1, 2, 5, 17, 39, 40, 100};
    double logits[40], wanted[40];
    for (int id = 0; id < 40; id++) logits[id] = 2 * random_normal(7, (uint64_t)id) + 100;
    logits[3] = logits[30];                     // ties
    logits[8] = logits[9] = logits[10];
    for (size_t t = 0; t < 3; t++) {
        for (size_t p = 0; p < 5; p++) {
            for (size_t k = 0; k < 8; k++) {
                const SamplerOptions options = options_of(temperatures[t], counts[k], shares[p], 1000 * t + 100 * p + k);
                reference(wanted, logits, 40, options);
                check_distribution(logits, 40, options, wanted);
            }
        }
    }
}

// ---- by hand ----

// Probabilities 1/2, 1/4, 1/8, 1/8 at temperature 1, not in order of their ids.
static void test_top_p_by_hand(void **state) {
    (void)state;
    const double logits[] = {log(0.125), log(0.5), log(0.125), log(0.25)};
    static const struct { double top_p, wanted[4]; } cases[] = {
        {1e-9, {0, 1, 0, 0}}, {0.4, {0, 1, 0, 0}}, {0.49, {0, 1, 0, 0}},
        {0.51, {0, 2.0 / 3, 0, 1.0 / 3}}, {0.74, {0, 2.0 / 3, 0, 1.0 / 3}},
        {0.76, {1.0 / 7, 4.0 / 7, 0, 2.0 / 7}}, {0.87, {1.0 / 7, 4.0 / 7, 0, 2.0 / 7}},      // of equals the lower id first
        {0.88, {0.125, 0.5, 0.125, 0.25}}, {1, {0.125, 0.5, 0.125, 0.25}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        check_distribution(logits, 4, options_of(1, 0, cases[c].top_p, c), cases[c].wanted);
    }
    const double equal[] = {3, 3, 3, 3};        // exact sums: a share that is reached exactly is enough
    check_distribution(equal, 4, options_of(1, 0, 0.25, 1), (const double[]){1, 0, 0, 0});
    check_distribution(equal, 4, options_of(1, 0, 0.5, 1), (const double[]){0.5, 0.5, 0, 0});
    check_distribution(equal, 4, options_of(1, 0, 0.75, 1), (const double[]){1.0 / 3, 1.0 / 3, 1.0 / 3, 0});
    check_distribution(equal, 4, options_of(1, 0, 0.76, 1), (const double[]){0.25, 0.25, 0.25, 0.25});
}

// top_p is a share of what top_k leaves, as in Hugging Face's order; temperature comes before both.
static void test_cuts_together(void **state) {
    (void)state;
    const double logits[] = {log(0.125), log(0.5), log(0.125), log(0.25)};
    check_distribution(logits, 4, options_of(1, 2, 0.6, 1), (const double[]){0, 1, 0, 0});         // 2/3 of the two
    check_distribution(logits, 4, options_of(1, 2, 0.7, 1), (const double[]){0, 2.0 / 3, 0, 1.0 / 3});
    check_distribution(logits, 4, options_of(1, 3, 1, 1), (const double[]){1.0 / 7, 4.0 / 7, 0, 2.0 / 7});
    check_distribution(logits, 4, options_of(0.5, 0, 0.7, 1), (const double[]){0, 1, 0, 0});       // 16/22 after the temperature
    check_distribution(logits, 4, options_of(0.5, 0, 1, 1), (const double[]){1.0 / 22, 16.0 / 22, 1.0 / 22, 4.0 / 22});
    check_distribution(logits, 4, options_of(2, 3, 0.5, 1), (const double[]){0, 0.585786437626905, 0, 0.414213562373095});
}

static void test_most_likely(void **state) {
    (void)state;
    double logits[MAX_V];
    for (uint64_t trial = 0; trial < 50; trial++) {
        const int V = 1 + (int)(random_bits(3, trial) % MAX_V);
        int wanted = 0;
        for (int id = 0; id < V; id++) {
            logits[id] = floor(8 * random_normal(trial, (uint64_t)id)) / 8;                         // with ties
            if (logits[id] > logits[wanted]) wanted = id;
        }
        const SamplerOptions cold = options_of(0, 0, 1, trial), cold_and_cut = options_of(0, 40, 0.9, trial);
        const SamplerOptions one = options_of(1, 1, 1, trial), share = options_of(1.5, 0, 1e-12, trial);
        const SamplerOptions icy = options_of(1e-300, 0, 1, trial);
        for (uint64_t position = 0; position < 20; position++) {
            assert_int_equal(sample_token(logits, V, &cold, position, work), wanted);
            assert_int_equal(sample_token(logits, V, &cold_and_cut, position, work), wanted);
            assert_int_equal(sample_token(logits, V, &one, position, work), wanted);
            assert_int_equal(sample_token(logits, V, &share, position, work), wanted);
        }
        const int coldest = sample_token(logits, V, &icy, 0, work);                                 // all but the ties at the top vanish
        assert_true(logits[coldest] == logits[wanted]);
    }
    const double close[] = {1, 1 + 0x1p-52, 1 - 0x1p-53};       // too close for exp at this temperature, not for top_k
    const SamplerOptions hot = options_of(1000, 1, 1, 1);
    assert_int_equal(sample_token(close, 3, &hot, 0, work), 1);
}

static void test_extreme_logits(void **state) {
    (void)state;
    const double wide[] = {-1e308, 1e308, 1e308, -5};
    check_distribution(wide, 4, options_of(1, 0, 1, 1), (const double[]){0, 0.5, 0.5, 0});
    check_distribution(wide, 4, options_of(1, 0, 0.99, 1), (const double[]){0, 0.5, 0.5, 0});
    check_distribution(wide, 4, options_of(1, 3, 1, 1), (const double[]){0, 0.5, 0.5, 0});
    check_distribution(wide, 4, options_of(5e-324, 3, 0.4, 1), (const double[]){0, 1, 0, 0});
    const double alone = -3;
    check_distribution(&alone, 1, options_of(1, 0, 1, 1), (const double[]){1});
    check_distribution(&alone, 1, options_of(1, 5, 0.5, 1), (const double[]){1});
}

// ---- what it depends on ----

static void test_seed_and_position(void **state) {
    (void)state;
    double logits[MAX_V];
    int agree_with_other_seed = 0, agree_with_next = 0;
    for (int id = 0; id < MAX_V; id++) logits[id] = 0;
    const SamplerOptions options = options_of(1, 0, 1, 5), other = options_of(1, 0, 1, 6);
    for (uint64_t position = 0; position < 2000; position++) {
        const int token = sample_token(logits, MAX_V, &options, position, work);
        memset(work, (int)position, sizeof work);               // what the scratch held does not matter
        assert_int_equal(sample_token(logits, MAX_V, &options, position, work), token);
        agree_with_other_seed += sample_token(logits, MAX_V, &other, position, work) == token;
        agree_with_next += sample_token(logits, MAX_V, &options, position + 1, work) == token;
    }
    assert_in_range(agree_with_other_seed, 0, 9);               // 2 by chance
    assert_in_range(agree_with_next, 0, 9);
}

static void test_non_finite(void **state) {
    (void)state;
    const double bad[] = {NAN, INFINITY, -INFINITY};
    static const char *const said[] = {"nan", "inf", "-inf"};
    for (int kind = 0; kind < 3; kind++) {
        for (int id = 0; id < 4; id++) {
            for (int cold = 0; cold < 2; cold++) {
                double logits[] = {1, 2, 3, 4};
                char message[100];
                logits[id] = bad[kind];
                const SamplerOptions options = options_of(1 - cold, 2, 0.9, 1);
                snprintf(message, sizeof message, "the logit of token %d is %s", id, said[kind]);
                set_error(STATUS_OK, "%s", "");
                assert_int_equal(sample_token(logits, 4, &options, 0, work), -1);
                assert_non_null(strstr(error_text(), message));
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_a_full_sort), cmocka_unit_test(test_top_p_by_hand), cmocka_unit_test(test_cuts_together),
        cmocka_unit_test(test_most_likely), cmocka_unit_test(test_extreme_logits), cmocka_unit_test(test_seed_and_position),
        cmocka_unit_test(test_non_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
