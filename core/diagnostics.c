// Each layer's diagnostics as JSON: docs/metrics.md defines the fields.
#include "diagnostics.h"

#include <cjson/cJSON.h>
#include <math.h>

#include "metrics.h"

// Statistics of one head, or of a layer: then the sums are those of its heads together.
typedef double Statistic(const double *sums);

static double mean_over_rows(const double *sums, int what) { return sums[what] / sums[DIAGNOSE_ROWS]; }

// Of the population, not of a sample. Rounding may leave a variance a little below 0; a NaN stays one.
static double deviation(const double *sums, int what, int squares) {
    double mean = mean_over_rows(sums, what), variance = mean_over_rows(sums, squares) - mean * mean;
    return variance < 0 ? 0 : sqrt(variance);
}

static double logit_mean(const double *sums) { return sums[DIAGNOSE_Z] / sums[DIAGNOSE_PAIRS]; }
static double logit_rms(const double *sums) { return sqrt(sums[DIAGNOSE_Z2] / sums[DIAGNOSE_PAIRS]); }
static double first_token_weight(const double *sums) { return mean_over_rows(sums, DIAGNOSE_FIRST); }
static double row_sum_mean(const double *sums) { return mean_over_rows(sums, DIAGNOSE_ROW_SUM); }
static double row_sum_std(const double *sums) { return deviation(sums, DIAGNOSE_ROW_SUM, DIAGNOSE_ROW_SUM2); }
static double entropy(const double *sums) { return mean_over_rows(sums, DIAGNOSE_ENTROPY); }
static double sink_mass(const double *sums) { return mean_over_rows(sums, DIAGNOSE_SINK); }
static double alpha_mean(const double *sums) { return mean_over_rows(sums, DIAGNOSE_ALPHA); }
static double alpha_std(const double *sums) { return deviation(sums, DIAGNOSE_ALPHA, DIAGNOSE_ALPHA2); }
static double alpha_at_0(const double *sums) { return mean_over_rows(sums, DIAGNOSE_ALPHA_AT_0); }
static double alpha_at_1(const double *sums) { return mean_over_rows(sums, DIAGNOSE_ALPHA_AT_1); }
static double alpha_ma(const double *sums) { return mean_over_rows(sums, DIAGNOSE_ALPHA_MA); }
static double gate_mean(const double *sums) { return mean_over_rows(sums, DIAGNOSE_GATE); }

static bool always(const AttentionConfig *c) { (void)c; return true; }
static bool with_sink(const AttentionConfig *c) { return !isinf(attention_sink_logit(*c, 0)); }
static bool with_alpha(const AttentionConfig *c) { return attention_has_alpha(*c); }
static bool with_gate(const AttentionConfig *c) { return c->gate != GATE_NONE; }

static const struct Field {
    const char *name;
    Statistic *statistic;
    bool (*applies)(const AttentionConfig *attention);
} fields[] = {
    { "logit_mean", logit_mean, always },
    { "logit_rms", logit_rms, always },
    { "first_token_weight", first_token_weight, always },
    { "row_sum_mean", row_sum_mean, always },
    { "row_sum_std", row_sum_std, always },
    { "entropy", entropy, always },
    { "sink_mass", sink_mass, with_sink },
    { "alpha_mean", alpha_mean, with_alpha },
    { "alpha_std", alpha_std, with_alpha },
    { "alpha_at_0", alpha_at_0, with_alpha },
    { "alpha_at_1", alpha_at_1, with_alpha },
    { "alpha_ma", alpha_ma, with_alpha },
    { "gate_mean", gate_mean, with_gate },
};
enum { FIELD_COUNT = sizeof fields / sizeof *fields };

static void add_to_array(cJSON *array, double value) {
    cJSON_AddItemToArray(array, isfinite(value) ? cJSON_CreateNumber(value) : cJSON_CreateNull());
}

static void add_histogram(cJSON *layer, const char *name, const double *counts, int bins, double first, double width) {
    cJSON *histogram = cJSON_AddObjectToObject(layer, name);
    metrics_add_number(histogram, "first", first);
    metrics_add_number(histogram, "width", width);
    cJSON *array = cJSON_AddArrayToObject(histogram, "counts");
    for (int i = 0; i < bins; i++) add_to_array(array, counts[i]);
}

// Square root of the sum over the layer's trained tensors.
static double norm_of_layer(const double *squares, const ParameterTable *table, int layer) {
    double sum = 0;
    for (int i = 0; i < table->tensor_count; i++) {
        if (table->tensors[i].layer == layer && !table->tensors[i].buffer) sum += squares[i];
    }
    return sqrt(sum);
}

static void add_heads(cJSON *layer, const double *sums, int H, const AttentionConfig *attention) {
    cJSON *heads = cJSON_AddObjectToObject(layer, "heads");
    for (int i = 0; i < FIELD_COUNT; i++) {
        if (!fields[i].applies(attention)) continue;
        cJSON *array = cJSON_AddArrayToObject(heads, fields[i].name);
        for (int h = 0; h < H; h++) add_to_array(array, fields[i].statistic(sums + (size_t)h * DIAGNOSE_SIZE));
    }
}

// sums [H, DIAGNOSE_SIZE]
static cJSON *describe_layer(int index, const double *sums, const double *gradient_squares, const double *parameter_squares,
                             const ParameterTable *table, int H, const AttentionConfig *attention) {
    double total[DIAGNOSE_SIZE] = {0};
    for (int h = 0; h < H; h++) {
        for (int i = 0; i < DIAGNOSE_SIZE; i++) total[i] += sums[(size_t)h * DIAGNOSE_SIZE + i];
    }
    cJSON *layer = cJSON_CreateObject();
    metrics_add_number(layer, "layer", index);
    for (int i = 0; i < FIELD_COUNT; i++) {
        if (fields[i].applies(attention)) metrics_add_number(layer, fields[i].name, fields[i].statistic(total));
    }
    // bins as core/device.h has them: a row sum's first centre is -0.5; alpha's first bin begins at 0
    add_histogram(layer, "row_sum_histogram", total + DIAGNOSE_ROW_SUM_BINS, ROW_SUM_BINS, -0.5, 1.0 / 32);
    if (with_alpha(attention)) {
        add_histogram(layer, "alpha_histogram", total + DIAGNOSE_ALPHA_BINS, ALPHA_BINS, 0.5 / ALPHA_BINS, 1.0 / ALPHA_BINS);
    }
    metrics_add_number(layer, "grad_norm", norm_of_layer(gradient_squares, table, index));
    metrics_add_number(layer, "param_norm", norm_of_layer(parameter_squares, table, index));
    add_heads(layer, sums, H, attention);
    return layer;
}

cJSON *diagnostics_layers(const double *sums, const double *gradient_squares, const double *parameter_squares, const ParameterTable *table,
                          const ModelConfig *model, const AttentionConfig *attention) {
    cJSON *layers = cJSON_CreateArray();
    for (int l = 0; l < model->L && layers; l++) {
        cJSON *layer = describe_layer(l, sums + (size_t)l * model->H * DIAGNOSE_SIZE, gradient_squares, parameter_squares, table, model->H,
                                      attention);
        if (layer && cJSON_AddItemToArray(layers, layer)) continue;
        cJSON_Delete(layers);
        layers = NULL;
    }
    return layers;
}
