// The update: squares of the gradient, the verdict on the step, AdamW over all tensors in one pass. Part of device.c.
// Spans are the tasks; a span's sum is its own, and the sums of a tensor's spans are added in their order.

static double *span_squares(Layout *layout, int span_count) { return layout_take(layout, (size_t)span_count * sizeof(double)); }

static double squares_of(const real *x, size_t n) {
    const size_t whole = n / (4 * WIDE_LANES) * (4 * WIDE_LANES);
    wide sums[4] = {{0}, {0}, {0}, {0}};
    for (size_t i = 0; i < whole; i += 4 * WIDE_LANES)
        for (int part = 0; part < 4; part++) {
            wide v = wide_load(x + i + part * WIDE_LANES);
            sums[part] += v * v;
        }
    double sum = wide_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (size_t i = whole; i < n; i++) sum += (double)x[i] * x[i];
    return sum;
}

static void sum_squares(double *squares, const Real *x, const Span *spans, int span_count) {
    Layout layout = scratch_layout();
    double *sums = span_squares(&layout, span_count);
    check_layout(&layout);
#pragma omp parallel for schedule(dynamic) num_threads(thread_count) if (span_count > 1)
    for (int i = 0; i < span_count; i++) sums[i] = squares_of(const_reals(x) + spans[i].offset, spans[i].count);
    for (int i = 0; i < span_count; i++) squares[spans[i].tensor] += sums[i];
}

static void judge(double *verdict, const double *squares, int tensor_count, const double *losses, int loss_count, double grad_clip) {
    double sum = 0, loss = 0;
    for (int i = 0; i < tensor_count; i++) sum += squares[i];
    for (int i = 0; i < loss_count; i++) loss += losses[i];
    const double norm = sqrt(sum);
    verdict[VERDICT_NORM] = norm;
    verdict[VERDICT_FINITE] = isfinite(norm) && isfinite(loss);
    verdict[VERDICT_SCALE] = grad_clip > 0 && norm > grad_clip ? grad_clip / norm : 1;
}

// moment1 = beta1 moment1 + (1 - beta1) g, moment2 = beta2 moment2 + (1 - beta2) g^2 with g the clipped gradient;
// master -= lr (moment1 / correction1 / (sqrt(moment2 / correction2) + eps) + decay master)
typedef struct Update {
    real clip, beta1, rest1, beta2, rest2, step_size, inverse_correction2, eps, lr_decay;
} Update;

static void update_span(real *master, const real *gradient, real *moment1, real *moment2, size_t n, const Update *u, real lr_decay) {
    for (size_t i = 0; i < n; i += LANES) {
        int lanes = lanes_left(n - i);
        vector g = vector_load_first(gradient + i, lanes) * u->clip, w = vector_load_first(master + i, lanes);
        vector m = u->beta1 * vector_load_first(moment1 + i, lanes) + u->rest1 * g;
        vector v = u->beta2 * vector_load_first(moment2 + i, lanes) + u->rest2 * g * g;
        vector_store_first(moment1 + i, m, lanes);
        vector_store_first(moment2 + i, v, lanes);
        vector change = u->step_size * m / (vector_sqrt(v * u->inverse_correction2) + u->eps) + lr_decay * w;
        vector_store_first(master + i, w - change, lanes);
    }
}

static void adamw(Real *master, Compute *weights_or_null, const Real *gradient, Real *moment1, Real *moment2, const Span *spans,
                  int span_count, const AdamW *hyper, const double *verdict) {
    if (verdict[VERDICT_FINITE] == 0) return;
    const double correction1 = 1 - pow(hyper->beta1, (double)hyper->step), correction2 = 1 - pow(hyper->beta2, (double)hyper->step);
    const Update update = {
        .clip = (real)verdict[VERDICT_SCALE],
        .beta1 = (real)hyper->beta1,
        .rest1 = (real)(1 - hyper->beta1),
        .beta2 = (real)hyper->beta2,
        .rest2 = (real)(1 - hyper->beta2),
        .step_size = (real)(hyper->lr / correction1),
        .inverse_correction2 = (real)(1 / correction2),
        .eps = (real)hyper->eps,
        .lr_decay = (real)(hyper->lr * hyper->weight_decay),
    };
#pragma omp parallel for schedule(dynamic) num_threads(thread_count) if (span_count > 1)
    for (int i = 0; i < span_count; i++) {
        const Span *s = &spans[i];
        update_span(reals(master) + s->offset, const_reals(gradient) + s->offset, reals(moment1) + s->state_offset,
                    reals(moment2) + s->state_offset, s->count, &update, s->decay ? update.lr_decay : 0);
        if (weights_or_null) memcpy(reals(weights_or_null) + s->offset, reals(master) + s->offset, s->count * sizeof(real));
    }
}

static void average_alpha(Real *alpha_ma, const double *alpha_sum, int n, double rows, double rho, const double *verdict) {
    if (verdict[VERDICT_FINITE] == 0) return;
    for (int i = 0; i < n; i++) reals(alpha_ma)[i] = (real)(rho * reals(alpha_ma)[i] + (1 - rho) * alpha_sum[i] / rows);
}

static size_t optimizer_scratch(const Limits *limits) {
    Layout layout = { NULL, 0 };
    span_squares(&layout, limits->span_count);
    return layout.used;
}
