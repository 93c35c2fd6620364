// core/diagnostics: every field from sums whose rows are known, against statistics taken from the rows.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "core/diagnostics.h"

enum { L = 2, H = 3, ROWS = 5 };

static const ModelConfig model = {
    .arch = ARCH_GPT2, .V = 11, .C = 6, .L = L, .H = H, .K = H, .D = 2, .intermediate_size = 24, .max_position_embeddings = 8,
    .tie_word_embeddings = true, .norm_eps = 1e-5, .initializer_range = 0.02,
};

// Some value of row r, different for each layer, head and kind.
static double value(int l, int h, int r, int what) {
    return sin(1 + l + 7 * h + 29 * r + 113 * what);
}

// The kinds that are plain means over rows, and what they are called.
static const struct { int what; const char *name; } means[] = {
    { DIAGNOSE_FIRST, "first_token_weight" }, { DIAGNOSE_ROW_SUM, "row_sum_mean" }, { DIAGNOSE_ENTROPY, "entropy" },
    { DIAGNOSE_SINK, "sink_mass" }, { DIAGNOSE_ALPHA, "alpha_mean" }, { DIAGNOSE_ALPHA_AT_0, "alpha_at_0" },
    { DIAGNOSE_ALPHA_AT_1, "alpha_at_1" }, { DIAGNOSE_ALPHA_MA, "alpha_ma" }, { DIAGNOSE_GATE, "gate_mean" },
};
enum { MEANS = sizeof means / sizeof *means };

static double *make_sums(void) {
    double *all = calloc(L * H * DIAGNOSE_SIZE, sizeof *all);
    for (int l = 0; l < L; l++) {
        for (int h = 0; h < H; h++) {
            double *sums = all + (l * H + h) * DIAGNOSE_SIZE;
            for (int r = 0; r < ROWS; r++) {
                for (int i = 0; i < MEANS; i++) sums[means[i].what] += value(l, h, r, means[i].what);
                sums[DIAGNOSE_ROWS] += 1;
                sums[DIAGNOSE_PAIRS] += r + 1;
                for (int j = 0; j <= r; j++) {
                    sums[DIAGNOSE_Z] += value(l, h, r, 1000 + j);
                    sums[DIAGNOSE_Z2] += pow(value(l, h, r, 1000 + j), 2);
                }
                sums[DIAGNOSE_ROW_SUM2] += pow(value(l, h, r, DIAGNOSE_ROW_SUM), 2);
                sums[DIAGNOSE_ALPHA2] += pow(value(l, h, r, DIAGNOSE_ALPHA), 2);
            }
            for (int i = 0; i < ROW_SUM_BINS; i++) sums[DIAGNOSE_ROW_SUM_BINS + i] = 100 * l + 10 * h + i;
            for (int i = 0; i < ALPHA_BINS; i++) sums[DIAGNOSE_ALPHA_BINS + i] = 1000 * l + 20 * h + i;
        }
    }
    return all;
}

typedef struct Moments { double mean, deviation, rms; } Moments;

// Of value() over the rows of heads first..last (of the logits: over their pairs), by the definitions.
static Moments moments(int l, int first, int last, int what, bool pairs) {
    double values[H * ROWS * ROWS], mean = 0, variance = 0, squares = 0;
    int n = 0;
    for (int h = first; h <= last; h++) {
        for (int r = 0; r < ROWS; r++) {
            for (int j = 0; j <= (pairs ? r : 0); j++) values[n++] = value(l, h, r, pairs ? 1000 + j : what);
        }
    }
    for (int i = 0; i < n; i++) mean += values[i] / n;
    for (int i = 0; i < n; i++) variance += pow(values[i] - mean, 2) / n, squares += pow(values[i], 2) / n;
    return (Moments){ mean, sqrt(variance), sqrt(squares) };
}

static double number(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsNumber(item)) fail_msg("%s is not there", name);
    return item->valuedouble;
}

static void expect(double found, double wanted, const char *name) {
    if (!(fabs(found - wanted) <= 1e-12)) fail_msg("%s is %.17g, not %.17g", name, found, wanted);
}

// A field of the layer, and of each of its heads.
static void expect_field(const cJSON *layer, int l, const char *name, int what, bool pairs, size_t part) {
    const cJSON *heads = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(layer, "heads"), name);
    Moments of_layer = moments(l, 0, H - 1, what, pairs);
    expect(number(layer, name), *(double *)((char *)&of_layer + part), name);
    assert_int_equal(cJSON_GetArraySize(heads), H);
    for (int h = 0; h < H; h++) {
        Moments of_head = moments(l, h, h, what, pairs);
        expect(cJSON_GetArrayItem(heads, h)->valuedouble, *(double *)((char *)&of_head + part), name);
    }
}

static void expect_histogram(const cJSON *histogram, double first, double width, int bins, const double *sums, int at) {
    const cJSON *counts = cJSON_GetObjectItemCaseSensitive(histogram, "counts");
    assert_true(number(histogram, "first") == first);
    assert_true(number(histogram, "width") == width);
    assert_int_equal(cJSON_GetArraySize(counts), bins);
    for (int i = 0; i < bins; i++) {
        double wanted = 0;
        for (int h = 0; h < H; h++) wanted += sums[h * DIAGNOSE_SIZE + at + i];
        assert_true(cJSON_GetArrayItem(counts, i)->valuedouble == wanted);
    }
}

static cJSON *describe(const double *sums, const AttentionConfig *attention, double *gradient_norms, double *parameter_norms) {
    ParameterTable table;
    assert_int_equal(parameter_table_build(&table, &model, attention, 0, 1), 0);
    double *gradients = calloc((size_t)table.tensor_count, sizeof *gradients);
    double *parameters = calloc((size_t)table.tensor_count, sizeof *parameters);
    double totals[2][L] = { { 0 } };
    for (int i = 0; i < table.tensor_count; i++) {
        gradients[i] = 1 + i, parameters[i] = 100 + 3 * i;
        for (int l = 0; l < L; l++) {                           // by its name, not by the table's own idea of its layer
            char prefix[32];
            snprintf(prefix, sizeof prefix, "transformer.h.%d.", l);
            if (strncmp(table.tensors[i].name, prefix, strlen(prefix)) || strstr(table.tensors[i].name, "alpha_ma")) continue;
            totals[0][l] += gradients[i], totals[1][l] += parameters[i];
        }
    }
    for (int l = 0; l < L; l++) gradient_norms[l] = sqrt(totals[0][l]), parameter_norms[l] = sqrt(totals[1][l]);
    cJSON *layers = diagnostics_layers(sums, gradients, parameters, &table, &model, attention);
    assert_int_equal(cJSON_GetArraySize(layers), L);
    free(gradients);
    free(parameters);
    parameter_table_free(&table);
    return layers;
}

static void every_field_is_its_statistic(void **state) {
    (void)state;
    const AttentionConfig attention = { .type = ATTENTION_AFFINE, .gate = GATE_HEADWISE, .affine_length = 8, .affine_rho = 0.9 };
    double *sums = make_sums(), gradient_norms[L], parameter_norms[L];
    cJSON *layers = describe(sums, &attention, gradient_norms, parameter_norms);
    for (int l = 0; l < L; l++) {
        const cJSON *layer = cJSON_GetArrayItem(layers, l);
        expect(number(layer, "layer"), l, "layer");
        for (int i = 0; i < MEANS; i++) {
            if (means[i].what != DIAGNOSE_SINK) expect_field(layer, l, means[i].name, means[i].what, false, offsetof(Moments, mean));
        }
        expect_field(layer, l, "logit_mean", 0, true, offsetof(Moments, mean));
        expect_field(layer, l, "logit_rms", 0, true, offsetof(Moments, rms));
        expect_field(layer, l, "row_sum_std", DIAGNOSE_ROW_SUM, false, offsetof(Moments, deviation));
        expect_field(layer, l, "alpha_std", DIAGNOSE_ALPHA, false, offsetof(Moments, deviation));
        const double *of_layer = sums + l * H * DIAGNOSE_SIZE;
        expect_histogram(cJSON_GetObjectItem(layer, "row_sum_histogram"), -0.5, 0.03125, 64, of_layer, DIAGNOSE_ROW_SUM_BINS);
        expect_histogram(cJSON_GetObjectItem(layer, "alpha_histogram"), 0.015625, 0.03125, 32, of_layer, DIAGNOSE_ALPHA_BINS);
        expect(number(layer, "grad_norm"), gradient_norms[l], "grad_norm");
        expect(number(layer, "param_norm"), parameter_norms[l], "param_norm");
        assert_false(cJSON_HasObjectItem(layer, "sink_mass"));
    }
    cJSON_Delete(layers);
    free(sums);
}

static void fields_belong_to_their_attention(void **state) {
    (void)state;
    static const struct { AttentionType type; GateType gate; bool sink, alpha, gated; } cases[] = {
        { ATTENTION_BASELINE, GATE_NONE, false, false, false }, { ATTENTION_OFF_BY_ONE, GATE_NONE, true, false, false },
        { ATTENTION_SINK, GATE_ELEMENTWISE, true, false, true }, { ATTENTION_AFFINE, GATE_NONE, false, true, false },
    };
    double *sums = make_sums(), ignored[L];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const AttentionConfig attention = { .type = cases[i].type, .gate = cases[i].gate, .affine_length = 8 };
        cJSON *layers = describe(sums, &attention, ignored, ignored);
        for (int l = 0; l < L; l++) {
            const cJSON *layer = cJSON_GetArrayItem(layers, l), *heads = cJSON_GetObjectItem(layer, "heads");
            const cJSON *both[] = { layer, heads };
            for (int k = 0; k < 2; k++) {
                assert_true(cJSON_HasObjectItem(both[k], "logit_mean"));
                assert_int_equal(cJSON_HasObjectItem(both[k], "sink_mass"), cases[i].sink);
                assert_int_equal(cJSON_HasObjectItem(both[k], "alpha_mean"), cases[i].alpha);
                assert_int_equal(cJSON_HasObjectItem(both[k], "alpha_ma"), cases[i].alpha);
                assert_int_equal(cJSON_HasObjectItem(both[k], "gate_mean"), cases[i].gated);
            }
            assert_int_equal(cJSON_HasObjectItem(layer, "alpha_histogram"), cases[i].alpha);
            if (cases[i].sink) expect_field(layer, l, "sink_mass", DIAGNOSE_SINK, false, offsetof(Moments, mean));
        }
        cJSON_Delete(layers);
    }
    free(sums);
}

// A NaN is seen as null, in its own fields only; rounding never makes a NaN of a deviation.
static void nan_is_null(void **state) {
    (void)state;
    const AttentionConfig attention = { .type = ATTENTION_BASELINE };
    double *sums = make_sums(), ignored[L];
    sums[DIAGNOSE_Z2] = NAN;
    sums[DIAGNOSE_ROW_SUM] = 5 * 0.1, sums[DIAGNOSE_ROW_SUM2] = nextafter(5 * 0.1 * 0.1, 0) * (1 - 1e-15);        // variance below 0
    cJSON *layers = describe(sums, &attention, ignored, ignored), *first = cJSON_GetArrayItem(layers, 0);
    const cJSON *heads = cJSON_GetObjectItem(first, "heads");
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(first, "logit_rms")));
    assert_true(cJSON_IsNull(cJSON_GetArrayItem(cJSON_GetObjectItem(heads, "logit_rms"), 0)));
    assert_true(cJSON_IsNumber(cJSON_GetArrayItem(cJSON_GetObjectItem(heads, "logit_rms"), 1)));
    assert_true(cJSON_IsNumber(cJSON_GetObjectItem(first, "logit_mean")));
    assert_true(cJSON_IsNumber(cJSON_GetObjectItem(cJSON_GetArrayItem(layers, 1), "logit_rms")));
    const cJSON *rounded = cJSON_GetArrayItem(cJSON_GetObjectItem(heads, "row_sum_std"), 0);
    assert_true(cJSON_IsNumber(rounded) && rounded->valuedouble == 0);
    cJSON_Delete(layers);
    free(sums);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_is_its_statistic),
        cmocka_unit_test(fields_belong_to_their_attention),
        cmocka_unit_test(nan_is_null),
    };
    return cmocka_run_group_tests_name("diagnostics", tests, NULL, NULL);
}
