// See naive.h.
#include "naive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double naive_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

// ---- GELU, tanh form ----

static const double gelu_factor = 0.79788456080286535588;       // sqrt(2 / pi)

double naive_gelu(double x) {
    return 0.5 * x * (1 + tanh(gelu_factor * (x + 0.044715 * x * x * x)));
}

double naive_gelu_slope(double x) {
    double t = tanh(gelu_factor * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_factor * (1 + 3 * 0.044715 * x * x);
}

// ---- embedding ----

void naive_embed(double *out, const int *tokens, const double *token_table, const double *position_table, int B, int first, int T, int C) {
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            for (int c = 0; c < C; c++) {
                double position = position_table ? position_table[(size_t)(first + t) * C + c] : 0;
                out[((size_t)b * T + t) * C + c] = token_table[(size_t)tokens[b * T + t] * C + c] + position;
            }
}

void naive_embed_backward(double *d_token_table, double *d_position_table, const double *d_out, const int *tokens, int B, int T, int C) {
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            for (int c = 0; c < C; c++) {
                double d = d_out[((size_t)b * T + t) * C + c];
                d_token_table[(size_t)tokens[b * T + t] * C + c] += d;
                if (d_position_table) d_position_table[(size_t)t * C + c] += d;
            }
}

// ---- norms ----

void naive_norm(double *out, double *stats, const double *x, const double *weight, const double *bias, size_t rows, int C, int centred,
                double eps) {
    for (size_t r = 0; r < rows; r++) {
        const double *row = x + r * C;
        double mean = 0, variance = 0;
        for (int c = 0; centred && c < C; c++) mean += row[c] / C;
        for (int c = 0; c < C; c++) variance += (row[c] - mean) * (row[c] - mean) / C;
        double rstd = 1 / sqrt(variance + eps);
        stats[r] = mean;
        stats[rows + r] = rstd;
        for (int c = 0; c < C; c++) out[r * C + c] = (row[c] - mean) * rstd * weight[c] + (bias ? bias[c] : 0);
    }
}

void naive_norm_backward(double *d_x, double *d_weight, double *d_bias, const double *d_out, const double *x, const double *stats,
                         const double *weight, size_t rows, int C, int centred) {
    for (size_t r = 0; r < rows; r++) {
        double mean = centred ? stats[r] : 0, rstd = stats[rows + r], mean_g = 0, mean_gn = 0;
        for (int c = 0; c < C; c++) {
            double d = d_out[r * C + c], n = (x[r * C + c] - mean) * rstd;
            if (centred) mean_g += d * weight[c] / C;
            mean_gn += d * weight[c] * n / C;
            d_weight[c] += d * n;
            if (d_bias) d_bias[c] += d;
        }
        for (int c = 0; c < C; c++) {
            double n = (x[r * C + c] - mean) * rstd;
            d_x[r * C + c] += (d_out[r * C + c] * weight[c] - mean_g - n * mean_gn) * rstd;
        }
    }
}

// ---- matrix products ----

void naive_matmul(double *y, double *gelu_input, const double *x, const double *weight, const double *bias, int bias_width,
                  const double *residual, size_t rows, int in, int out) {
    for (size_t r = 0; r < rows; r++)
        for (int o = 0; o < out; o++) {
            double sum = bias && o < bias_width ? bias[o] : 0;
            for (int i = 0; i < in; i++) sum += x[r * in + i] * weight[(size_t)o * in + i];
            if (residual) sum += residual[r * out + o];
            if (gelu_input) gelu_input[r * out + o] = sum;
            y[r * out + o] = gelu_input ? naive_gelu(sum) : sum;
        }
}

void naive_matmul_backward_input(double *d_x, const double *d_y, const double *weight, const double *gelu_input, size_t rows, int in,
                                 int out) {
    for (size_t r = 0; r < rows; r++)
        for (int i = 0; i < in; i++) {
            double sum = 0;
            for (int o = 0; o < out; o++) sum += d_y[r * out + o] * weight[(size_t)o * in + i];
            d_x[r * in + i] = gelu_input ? sum * naive_gelu_slope(gelu_input[r * in + i]) : sum;
        }
}

void naive_matmul_backward_weight(double *d_weight, double *d_bias, int bias_width, const double *d_y, const double *x,
                                  size_t rows, int in, int out) {
    for (size_t r = 0; r < rows; r++)
        for (int o = 0; o < out; o++) {
            for (int i = 0; i < in; i++) d_weight[(size_t)o * in + i] += d_y[r * out + o] * x[r * in + i];
            if (d_bias && o < bias_width) d_bias[o] += d_y[r * out + o];
        }
}

// ---- rotary positions ----

void naive_rope(double *x, const double *table, int B, int first, int T, int heads, int D, int width, int direction) {
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            for (int h = 0; h < heads; h++)
                for (int j = 0; j < D / 2; j++) {
                    double *u = x + ((size_t)b * T + t) * width + (size_t)h * D + j, *v = u + D / 2;
                    double cosine = table[(size_t)(first + t) * D + j], sine = direction * table[(size_t)(first + t) * D + D / 2 + j];
                    double turned_u = *u * cosine - *v * sine, turned_v = *v * cosine + *u * sine;
                    *u = turned_u;
                    *v = turned_v;
                }
}

// ---- attention ----

// One head of one sequence with its whole matrices, queries by keys. a = alpha P + beta on the causal part, 0 after it; y = gate (a v).
typedef struct FullHead {
    const NaiveAttention *a;
    int b, h, key_head, queries, keys;
    double *z, *P, *weights;        // [queries, keys]
    double *lse, *sink_mass, *alpha, *inverse_n;    // [queries]
} FullHead;

static const double *row_of(const NaiveAttention *a, int b, int position) {
    return a->projection + ((size_t)b * (a->call.first_query + a->call.T) + position) * a->call.width;
}
static const double *query_of(const FullHead *f, int t) {
    return row_of(f->a, f->b, f->a->call.first_query + t) + (size_t)f->h * f->a->call.D;
}
static const double *key_of(const FullHead *f, int j) {
    return row_of(f->a, f->b, j) + f->a->call.key_column + (size_t)f->key_head * f->a->call.D;
}
static const double *value_of(const FullHead *f, int j) {
    return row_of(f->a, f->b, j) + f->a->call.value_column + (size_t)f->key_head * f->a->call.D;
}
// The column of the gate of element d, or -1.
static int gate_column(const FullHead *f, int d) {
    const Attention *call = &f->a->call;
    if (call->config.gate == GATE_NONE) return -1;
    return call->gate_column + (call->config.gate == GATE_HEADWISE ? f->h : f->h * call->D + d);
}
static double gate_of(const FullHead *f, int t, int d) {
    int column = gate_column(f, d);
    return column < 0 ? 1 : naive_sigmoid(row_of(f->a, f->b, f->a->call.first_query + t)[column]);
}

// z as it is, P by a softmax over the causal keys and, where there is one, the sink.
static void full_softmax_row(FullHead *f, int t) {
    const Attention *call = &f->a->call;
    const int i = call->first_query + t;
    double *z = f->z + (size_t)t * f->keys, *P = f->P + (size_t)t * f->keys;
    const int has_sink = call->config.type == ATTENTION_SINK || call->config.type == ATTENTION_OFF_BY_ONE;
    const double sink = call->config.type == ATTENTION_SINK ? f->a->sinks[f->h] : 0;
    double largest = has_sink ? sink : -INFINITY, sum;
    for (int j = 0; j <= i; j++) {
        z[j] = 0;
        for (int d = 0; d < call->D; d++) z[j] += query_of(f, t)[d] * key_of(f, j)[d];
        z[j] *= call->scale;
        if (isnan(z[j]) || z[j] > largest) largest = z[j];
    }
    sum = has_sink ? exp(sink - largest) : 0;
    for (int j = 0; j <= i; j++) sum += exp(z[j] - largest);
    for (int j = 0; j <= i; j++) P[j] = exp(z[j] - largest) / sum;
    f->lse[t] = largest + log(sum);
    f->sink_mass[t] = has_sink ? exp(sink - largest) / sum : 0;
}

static void full_effective_row(FullHead *f, int t) {
    const Attention *call = &f->a->call;
    const int i = call->first_query + t;
    double beta = 0;
    f->alpha[t] = 1;
    f->inverse_n[t] = 0;
    if (call->config.type == ATTENTION_AFFINE) {
        double x = row_of(f->a, f->b, i)[call->alpha_column + f->h];
        double clipped = isnan(x) ? x : fmin(fmax(0.1 * x + 0.5, 0), 1);
        f->alpha[t] = call->config.affine_activation == AFFINE_SIGMOID ? naive_sigmoid(x) : clipped;
        f->inverse_n[t] = 1.0 / (call->config.affine_n == AFFINE_N_PREFIX ? i + 1 : call->config.affine_length);
        beta = (f->a->alpha_ma[f->h] - f->alpha[t]) * f->inverse_n[t];
    }
    for (int j = 0; j <= i; j++) f->weights[(size_t)t * f->keys + j] = f->alpha[t] * f->P[(size_t)t * f->keys + j] + beta;
}

static FullHead full_head(const NaiveAttention *a, int b, int h) {
    const int queries = a->call.T, keys = a->call.first_query + queries;
    const size_t n = (size_t)queries * keys;
    double *memory = calloc(3 * n + 4 * (size_t)queries, sizeof *memory);
    if (!memory) abort();
    FullHead f = { a, b, h, h / (a->call.H / a->call.K), queries, keys, memory, memory + n, memory + 2 * n, NULL, NULL, NULL, NULL };
    f.lse = memory + 3 * n;
    f.sink_mass = f.lse + queries;
    f.alpha = f.sink_mass + queries;
    f.inverse_n = f.alpha + queries;
    for (int t = 0; t < queries; t++) {
        full_softmax_row(&f, t);
        full_effective_row(&f, t);
    }
    return f;
}
static void full_head_free(FullHead *f) { free(f->z); }

// sum_j matrix[t,j] v[j,d]
static double times_values(const FullHead *f, const double *matrix, int t, int d) {
    double sum = 0;
    for (int j = 0; j <= f->a->call.first_query + t; j++) sum += matrix[(size_t)t * f->keys + j] * value_of(f, j)[d];
    return sum;
}

void naive_attention(double *out, double *core, double *stats, const NaiveAttention *a) {
    const Attention *call = &a->call;
    for (int b = 0; b < call->B; b++)
        for (int h = 0; h < call->H; h++) {
            FullHead f = full_head(a, b, h);
            for (int t = 0; t < call->T; t++) {
                stats[((size_t)b * call->H + h) * call->T + t] = f.lse[t];
                for (int d = 0; d < call->D; d++) {
                    size_t at = (((size_t)b * call->T + t) * call->H + h) * call->D + d;
                    if (core) core[at] = times_values(&f, f.P, t, d);
                    out[at] = gate_of(&f, t, d) * times_values(&f, f.weights, t, d);
                }
            }
            full_head_free(&f);
        }
}

// d_row is the query's row of d_projection, d_y [D] becomes the gradient of the ungated output.
static void gate_backward(const FullHead *f, double *d_row, double *d_y, const double *d_out, int t) {
    for (int d = 0; d < f->a->call.D; d++) {
        double gate = gate_of(f, t, d);
        d_y[d] = d_out[d] * gate;
        int column = gate_column(f, d);
        if (column >= 0) d_row[column] += d_out[d] * times_values(f, f->weights, t, d) * gate * (1 - gate);
    }
}

// d_a_ij = d_y_i.v_j; through a_ij = alpha_i P_ij + (alpha_ma - alpha_i) / N_i to alpha and P, through the softmax to z and the sink.
static void full_backward_row(const FullHead *f, double *d_projection, double *d_sinks, double *alpha_sum, const double *d_y, int t) {
    const Attention *call = &f->a->call;
    const int D = call->D;
    const double *P = f->P + (size_t)t * f->keys, *weights = f->weights + (size_t)t * f->keys;
    double *rows = d_projection + (size_t)f->b * f->keys * call->width, *d_row = rows + (size_t)t * call->width;
    double *d_a = calloc(f->keys, sizeof *d_a), d_alpha = 0, mean = 0;
    if (!d_a) abort();
    for (int j = 0; j <= t; j++) {
        for (int d = 0; d < D; d++) d_a[j] += d_y[d] * value_of(f, j)[d];
        d_alpha += d_a[j] * (P[j] - f->inverse_n[t]);
        mean += P[j] * f->alpha[t] * d_a[j];
    }
    for (int j = 0; j <= t; j++) {
        double d_z = P[j] * (f->alpha[t] * d_a[j] - mean) * call->scale, *d_row_j = rows + (size_t)j * call->width;
        for (int d = 0; d < D; d++) {
            d_row[f->h * D + d] += d_z * key_of(f, j)[d];
            d_row_j[call->key_column + f->key_head * D + d] += d_z * query_of(f, t)[d];
            d_row_j[call->value_column + f->key_head * D + d] += weights[j] * d_y[d];
        }
    }
    free(d_a);
    if (d_sinks) d_sinks[f->h] -= f->sink_mass[t] * mean;
    if (call->config.type != ATTENTION_AFFINE) return;
    double x = row_of(f->a, f->b, t)[call->alpha_column + f->h];
    int inside = x > -5 && x < 5;
    double slope = call->config.affine_activation == AFFINE_SIGMOID ? f->alpha[t] * (1 - f->alpha[t]) : inside ? 0.1 : 0;
    d_row[call->alpha_column + f->h] = d_alpha * slope;
    if (alpha_sum) alpha_sum[f->h] += f->alpha[t];
}

void naive_attention_backward(double *d_projection, double *d_sinks, double *alpha_sum, const double *d_out, const NaiveAttention *a) {
    const Attention *call = &a->call;
    memset(d_projection, 0, (size_t)call->B * call->T * call->width * sizeof *d_projection);
    double *d_y = calloc(call->D, sizeof *d_y);
    if (!d_y) abort();
    for (int b = 0; b < call->B; b++)
        for (int h = 0; h < call->H; h++) {
            FullHead f = full_head(a, b, h);
            for (int t = 0; t < call->T; t++) {
                size_t row = (size_t)b * call->T + t;
                gate_backward(&f, d_projection + row * call->width, d_y, d_out + (row * call->H + h) * call->D, t);
                full_backward_row(&f, d_projection, d_sinks, alpha_sum, d_y, t);
            }
            full_head_free(&f);
        }
    free(d_y);
}

static int bin_of(double x, double first_edge, int bins) {
    int bin = 0;
    while (bin < bins - 1 && x >= first_edge + (bin + 1) / 32.0) bin++;
    return bin;
}

static double entropy_term(double p) { return p == 0 ? 0 : -p * log(p); }

static void diagnose_row(double *sums, const FullHead *f, int t) {
    const Attention *call = &f->a->call;
    double row_sum = 0, gates = 0, entropy = entropy_term(f->sink_mass[t]);
    for (int j = 0; j <= t; j++) {
        double z = f->z[(size_t)t * f->keys + j];
        sums[DIAGNOSE_PAIRS] += 1;
        sums[DIAGNOSE_Z] += z;
        sums[DIAGNOSE_Z2] += z * z;
        row_sum += f->weights[(size_t)t * f->keys + j];
        entropy += entropy_term(f->P[(size_t)t * f->keys + j]);
    }
    sums[DIAGNOSE_ROWS] += 1;
    sums[DIAGNOSE_FIRST] += f->weights[(size_t)t * f->keys];
    sums[DIAGNOSE_ROW_SUM] += row_sum;
    sums[DIAGNOSE_ROW_SUM2] += row_sum * row_sum;
    sums[DIAGNOSE_ROW_SUM_BINS + bin_of(row_sum, -0.5 - 1 / 64.0, ROW_SUM_BINS)] += 1;
    sums[DIAGNOSE_ENTROPY] += entropy;
    sums[DIAGNOSE_SINK] += f->sink_mass[t];
    for (int d = 0; d < call->D; d++) gates += gate_of(f, t, d);
    sums[DIAGNOSE_GATE] += gates / call->D;
    if (call->config.type != ATTENTION_AFFINE) return;
    sums[DIAGNOSE_ALPHA] += f->alpha[t];
    sums[DIAGNOSE_ALPHA2] += f->alpha[t] * f->alpha[t];
    sums[DIAGNOSE_ALPHA_AT_0] += f->alpha[t] == 0;
    sums[DIAGNOSE_ALPHA_AT_1] += f->alpha[t] == 1;
    sums[DIAGNOSE_ALPHA_MA] += f->a->alpha_ma[f->h];
    sums[DIAGNOSE_ALPHA_BINS + bin_of(f->alpha[t], 0, ALPHA_BINS)] += 1;
}

void naive_attention_diagnose(double *sums, const NaiveAttention *a) {
    for (int b = 0; b < a->call.B; b++)
        for (int h = 0; h < a->call.H; h++) {
            FullHead f = full_head(a, b, h);
            for (int t = 0; t < a->call.T; t++) diagnose_row(sums + (size_t)h * DIAGNOSE_SIZE, &f, t);
            full_head_free(&f);
        }
}

void naive_attention_weights(double *weights, const NaiveAttention *a, int sequence, int head, int query, int count) {
    FullHead f = full_head(a, sequence, head);
    memcpy(weights, f.weights + (size_t)query * f.keys, (size_t)count * f.keys * sizeof *weights);
    full_head_free(&f);
}

// ---- SwiGLU ----

void naive_swiglu(double *out, const double *x, size_t rows, int intermediate) {
    for (size_t r = 0; r < rows; r++)
        for (int i = 0; i < intermediate; i++) {
            double gate = x[r * 2 * intermediate + i], up = x[r * 2 * intermediate + intermediate + i];
            out[r * intermediate + i] = gate * naive_sigmoid(gate) * up;
        }
}

void naive_swiglu_backward(double *d_x, const double *d_out, const double *x, size_t rows, int intermediate) {
    for (size_t r = 0; r < rows; r++)
        for (int i = 0; i < intermediate; i++) {
            double gate = x[r * 2 * intermediate + i], up = x[r * 2 * intermediate + intermediate + i];
            double s = naive_sigmoid(gate), d = d_out[r * intermediate + i];
            d_x[r * 2 * intermediate + i] = d * up * (s + gate * s * (1 - s));
            d_x[r * 2 * intermediate + intermediate + i] = d * gate * s;
        }
}

// ---- the classifier's loss ----

// log softmax(x / temperature)[v]
static double log_softmax(const double *x, int V, double temperature, int v) {
    double largest = -INFINITY, sum = 0;
    for (int w = 0; w < V; w++)
        if (isnan(x[w]) || x[w] > largest) largest = x[w];
    for (int w = 0; w < V; w++) sum += exp((x[w] - largest) / temperature);
    return (x[v] - largest) / temperature - log(sum);
}

void naive_cross_entropy(double *logits, double *losses, size_t losses_stride, const double *teacher_logits, const int *targets,
                         size_t rows, int V, int stride, double weight, double temperature, double scale) {
    double *gradient = calloc(stride, sizeof *gradient);
    if (!gradient) abort();
    if (!teacher_logits) weight = 0;
    for (size_t r = 0; r < rows; r++) {
        const double *teacher = teacher_logits ? teacher_logits + r * stride : NULL;
        double *x = logits + r * stride, kl = 0, entropy = 0;
        memset(gradient, 0, stride * sizeof *gradient);
        for (int v = 0; v < V && targets[r] >= 0; v++) {
            gradient[v] = (1 - weight) * (exp(log_softmax(x, V, 1, v)) - (v == targets[r]));
            if (!teacher) continue;
            double log_p = log_softmax(teacher, V, temperature, v), log_q = log_softmax(x, V, temperature, v);
            kl += exp(log_p) * (log_p - log_q);
            entropy -= exp(log_p) * log_p;
            gradient[v] += weight * temperature * (exp(log_q) - exp(log_p));
        }
        losses[LOSS_CE * losses_stride + r] = targets[r] < 0 ? 0 : -log_softmax(x, V, 1, targets[r]);
        losses[LOSS_KL * losses_stride + r] = kl;
        losses[LOSS_TEACHER_ENTROPY * losses_stride + r] = entropy;
        for (int v = 0; v < stride && scale != 0; v++) x[v] = scale * gradient[v];
    }
    free(gradient);
}

// ---- the update ----

void naive_adamw(double *master, const double *gradient, double *moment1, double *moment2, size_t n, int decay, const AdamW *hyper,
                 double clip) {
    for (size_t i = 0; i < n; i++) {
        double g = gradient[i] * clip;
        moment1[i] = hyper->beta1 * moment1[i] + (1 - hyper->beta1) * g;
        moment2[i] = hyper->beta2 * moment2[i] + (1 - hyper->beta2) * g * g;
        double mean = moment1[i] / (1 - pow(hyper->beta1, (double)hyper->step)), square = moment2[i] / (1 - pow(hyper->beta2,
                                                                                                                (double)hyper->step));
        master[i] -= hyper->lr * (mean / (sqrt(square) + hyper->eps) + (decay ? hyper->weight_decay * master[i] : 0));
    }
}
