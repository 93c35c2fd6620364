// Attention. Part of device.c.

// One head of one sequence of a call, as pointers to its first row.
typedef struct Head {
    const real *q, *k, *v;          // rows `stride` apart; q from the first query on
    size_t stride;
    real sink_logit, alpha_ma;
} Head;

static Head head_of(const Attention *a, int b, int h) {
    const real *rows = const_reals(a->projection) + (size_t)b * (a->first_query + a->T) * a->width;
    const int key_head = h / (a->H / a->K);
    return (Head){
        .q = rows + (size_t)a->first_query * a->width + (size_t)h * a->D,
        .k = rows + a->key_column + (size_t)key_head * a->D,
        .v = rows + a->value_column + (size_t)key_head * a->D,
        .stride = a->width,
        .sink_logit = attention_sink_logit(a->config, a->sinks ? const_reals(a->sinks)[h] : 0),
        .alpha_ma = a->alpha_ma ? const_reals(a->alpha_ma)[h] : 0,
    };
}
static const real *query_row(const Attention *a, int b, int t) {
    return const_reals(a->projection) + ((size_t)b * (a->first_query + a->T) + a->first_query + t) * a->width;
}
static real dot(const real *a, const real *b, int n) {
    vector sums = {0};
    for (int i = 0; i < n; i += LANES) sums += vector_load_first(a + i, lanes_left(n - i)) * vector_load_first(b + i, lanes_left(n - i));
    return vector_sum(sums);
}
static real gate_at(const Attention *a, const real *row, int h, int d) {
    if (a->config.gate == GATE_NONE) return 1;
    return sigmoid(row[a->gate_column + (a->config.gate == GATE_HEADWISE ? h : h * a->D + d)]);
}
static void alpha_beta(const Attention *a, const Head *head, const real *row, int h, int i, real *alpha, real *beta) {
    *alpha = 1, *beta = 0;
    if (a->config.type != ATTENTION_AFFINE) return;
    *alpha = affine_alpha(a->config, row[a->alpha_column + h]);
    *beta = affine_beta(a->config, *alpha, head->alpha_ma, i);
}
static void axpy(real *y, real alpha, const real *x, int n) {
    for (int i = 0; i < n; i += LANES)
        vector_store_first(y + i, vector_load_first(y + i, lanes_left(n - i)) + alpha * vector_load_first(x + i, lanes_left(n - i)), lanes_left(n - i));
}

enum { MAX_D = 4096 };
static void attention(Compute *out, Compute *core_or_null, Real *stats, const Attention *a) {
    const int D = a->D;
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(thread_count)
    for (int b = 0; b < a->B; b++)
        for (int h = 0; h < a->H; h++) {
            Head head = head_of(a, b, h);
            real running[MAX_D] = {0};
            for (int j = 0; j < a->first_query; j++) axpy(running, 1, head.v + j * head.stride, D);
            for (int t = 0; t < a->T; t++) {
                const int i = a->first_query + t;
                axpy(running, 1, head.v + i * head.stride, D);
                real m = head.sink_logit, l = m != -INFINITY ? 1 : 0, o[MAX_D];
                memset(o, 0, sizeof(real) * D);
                for (int j = 0; j <= i; j++) {
                    real z = (real)a->scale * dot(head.q + t * head.stride, head.k + j * head.stride, D);
                    if (z > m) {
                        real factor = real_exp(m - z);
                        for (int d = 0; d < D; d++) o[d] *= factor;
                        l *= factor;
                        m = z;
                    }
                    real e = real_exp(z - m);
                    l += e;
                    axpy(o, e, head.v + j * head.stride, D);
                }
                reals(stats)[((size_t)b * a->H + h) * a->T + t] = m + (real)log(l);
                real alpha, beta;
                const real *row = query_row(a, b, t);
                alpha_beta(a, &head, row, h, i, &alpha, &beta);
                for (int d = 0; d < D; d++) {
                    size_t at = (((size_t)b * a->T + t) * a->H + h) * D + d;
                    if (core_or_null) reals(core_or_null)[at] = o[d] / l;
                    real y = a->config.type == ATTENTION_AFFINE ? alpha * (o[d] / l) + beta * running[d] : o[d] / l;
                    reals(out)[at] = y * gate_at(a, row, h, d);
                }
            }
        }
}

static void attention_backward(Compute *d_projection, Real *d_sinks_or_null, double *alpha_sum_or_null, const Compute *d_out, const Compute *out,
                               const Compute *core_or_null, const Real *stats, const Attention *a) {
    const int D = a->D, T = a->T, H = a->H, group = H / a->K;
    const real *core = const_reals(core_or_null ? core_or_null : out);
    memset(d_projection, 0, (size_t)a->B * T * a->width * sizeof(real));
    for (int b = 0; b < a->B; b++) {
#pragma omp parallel for schedule(dynamic) num_threads(thread_count)
        for (int kh = 0; kh < a->K; kh++)
            for (int h = kh * group; h < (kh + 1) * group; h++) {
                Head head = head_of(a, b, h);
                real running[MAX_D] = {0}, suffix[MAX_D] = {0}, dy[MAX_D];
                for (int t = 0; t < T; t++) axpy(running, 1, head.v + t * head.stride, D);
                double sink_gradient = 0;
                for (int i = T - 1; i >= 0; i--) {
                    const size_t at = (((size_t)b * T + i) * H + h) * D;
                    const real *row = query_row(a, b, i);
                    real *d_row = reals(d_projection) + ((size_t)b * T + i) * a->width, alpha, beta, d_alpha = 0, Di = 0;
                    alpha_beta(a, &head, row, h, i, &alpha, &beta);
                    for (int d = 0; d < D; d++) {
                        real g = gate_at(a, row, h, d), y = alpha * core[at + d] + beta * running[d], go = const_reals(d_out)[at + d];
                        if (a->config.gate != GATE_NONE) d_row[a->gate_column + (a->config.gate == GATE_HEADWISE ? h : h * D + d)] += go * y * g * (1 - g);
                        dy[d] = go * g;
                        d_alpha += dy[d] * (core[at + d] - running[d] * affine_inverse_n(a->config, i));
                        Di += alpha * dy[d] * core[at + d];
                    }
                    if (a->config.type == ATTENTION_AFFINE) {
                        d_row[a->alpha_column + h] = d_alpha * affine_alpha_slope(a->config, row[a->alpha_column + h]);
                        if (alpha_sum_or_null) alpha_sum_or_null[h] += alpha;
                        axpy(suffix, beta, dy, D);
                        axpy(d_row + a->value_column + kh * D, 1, suffix, D);
                    }
                    axpy(running, -1, head.v + i * head.stride, D);
                    real lse = const_reals(stats)[((size_t)b * H + h) * T + i];
                    if (d_sinks_or_null) sink_gradient -= real_exp(head.sink_logit - lse) * Di;
                    for (int j = 0; j <= i; j++) {
                        real P = real_exp((real)a->scale * dot(head.q + i * head.stride, head.k + j * head.stride, D) - lse);
                        real *d_row_j = reals(d_projection) + ((size_t)b * T + j) * a->width;
                        real dz = P * (alpha * dot(dy, head.v + j * head.stride, D) - Di) * (real)a->scale;
                        axpy(d_row_j + a->value_column + kh * D, P * alpha, dy, D);
                        axpy(d_row + h * D, dz, head.k + j * head.stride, D);
                        axpy(d_row_j + a->key_column + kh * D, dz, head.q + i * head.stride, D);
                    }
                }
                if (d_sinks_or_null) reals(d_sinks_or_null)[h] += (real)sink_gradient;
            }
    }
}

static int bin_of(double x, int bins) {
    if (!(x > 0)) return 0;
    return x >= bins ? bins - 1 : (int)x;
}

static void attention_diagnose(double *sums, const Real *stats, const Attention *a) {
#pragma omp parallel for schedule(dynamic) num_threads(thread_count)
    for (int h = 0; h < a->H; h++)
        for (int b = 0; b < a->B; b++) {
            Head head = head_of(a, b, h);
            double *s = sums + (size_t)h * DIAGNOSE_SIZE;
            for (int t = 0; t < a->T; t++) {
                const real *row = query_row(a, b, t);
                real alpha, beta, lse = const_reals(stats)[((size_t)b * a->H + h) * a->T + t];
                alpha_beta(a, &head, row, h, t, &alpha, &beta);
                double entropy = lse, sink_mass = head.sink_logit != -INFINITY ? exp((double)head.sink_logit - lse) : 0;
                for (int j = 0; j <= t; j++) {
                    double z = a->scale * dot(head.q + t * head.stride, head.k + j * head.stride, a->D), P = exp(z - lse);
                    s[DIAGNOSE_Z] += z;
                    s[DIAGNOSE_Z2] += z * z;
                    entropy -= P * z;
                    if (j == 0) s[DIAGNOSE_FIRST] += alpha * P + beta;
                }
                if (sink_mass != 0) entropy -= sink_mass * head.sink_logit;
                double row_sum = attention_row_sum(a->config, alpha, head.alpha_ma, (real)sink_mass, t), gates = 0;
                s[DIAGNOSE_ROWS]++;
                s[DIAGNOSE_PAIRS] += t + 1;
                s[DIAGNOSE_ROW_SUM] += row_sum;
                s[DIAGNOSE_ROW_SUM2] += row_sum * row_sum;
                s[DIAGNOSE_ENTROPY] += entropy;
                s[DIAGNOSE_SINK] += sink_mass;
                s[DIAGNOSE_ROW_SUM_BINS + bin_of((row_sum + 0.5) * 32 + 0.5, ROW_SUM_BINS)]++;
                for (int d = 0; d < a->D; d++) gates += gate_at(a, row, h, d) / a->D;
                s[DIAGNOSE_GATE] += gates;
                if (a->config.type != ATTENTION_AFFINE) continue;
                s[DIAGNOSE_ALPHA] += alpha;
                s[DIAGNOSE_ALPHA2] += (double)alpha * alpha;
                s[DIAGNOSE_ALPHA_AT_0] += alpha == 0;
                s[DIAGNOSE_ALPHA_AT_1] += alpha == 1;
                s[DIAGNOSE_ALPHA_MA] += head.alpha_ma;
                s[DIAGNOSE_ALPHA_BINS + bin_of(alpha * 32, ALPHA_BINS)]++;
            }
        }
}

static void attention_weights(Real *weights, const Real *stats, const Attention *a, int sequence, int head_index, int query, int count) {
    Head head = head_of(a, sequence, head_index);
    const int keys = a->first_query + a->T;
#pragma omp parallel for schedule(dynamic) num_threads(thread_count)
    for (int r = 0; r < count; r++) {
        const int t = query + r, i = a->first_query + t;
        real alpha, beta, lse = const_reals(stats)[((size_t)sequence * a->H + head_index) * a->T + t], *to = reals(weights) + (size_t)r * keys;
        alpha_beta(a, &head, query_row(a, sequence, t), head_index, i, &alpha, &beta);
        for (int j = 0; j < keys; j++)
            to[j] = j <= i ? alpha * real_exp((real)a->scale * dot(head.q + t * head.stride, head.k + j * head.stride, a->D) - lse) + beta : 0;
    }
}

static size_t attention_scratch(const Limits *limits, int threads) {
    (void)limits, (void)threads;
    return 0;
}
