// Everything that works row by row: embedding, norms, rotary positions, SwiGLU, the classifier's loss; and GELU, which the products apply.
// Part of device.c. Rows are handed out ROW_BLOCK at a time.

enum { ROW_BLOCK = 16 };

// Whether so many elements are worth waking the other threads for.
static inline int worth_threads(size_t elements) { return elements > 8192; }

// The lanes' sum in double, for sums that are carried on in double after a few vectors.
INLINE double vector_sum_in_double(vector x) {
    real lanes[LANES];
    vector_store(lanes, x);
    wide sum = wide_load(lanes);
    for (int l = WIDE_LANES; l < LANES; l += WIDE_LANES) sum += wide_load(lanes + l);
    return wide_sum(sum);
}

// ---- GELU in its tanh form: 0.5 x (1 + tanh u) = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3) ----

#define GELU_SLOPE ((real)1.5957691216057308)                   // 2 sqrt(2/pi)
#define GELU_CUBE ((real)0.044715)

INLINE vector vector_gelu(vector x) {
    vector twice_u = GELU_SLOPE * x * (GELU_CUBE * x * x + (real)1);
    return x * vector_sigmoid(twice_u);
}

// s + x s (1 - s) 2u' with s = sigmoid(2u)
INLINE vector vector_gelu_slope(vector x) {
    vector square = x * x;
    vector s = vector_sigmoid(GELU_SLOPE * x * (GELU_CUBE * square + (real)1));
    return s + x * s * ((real)1 - s) * (GELU_SLOPE * (3 * GELU_CUBE * square + (real)1));
}

// ---- embedding ----

// to += from
static void add_row(real *to, const real *from, int n) {
    for (int i = 0; i < n; i += LANES) {
        int lanes = lanes_left(n - i);
        vector_store_first(to + i, vector_load_first(to + i, lanes) + vector_load_first(from + i, lanes), lanes);
    }
}

static void embed(Compute *out, const int *tokens, const Compute *token_table, const Compute *position_table_or_null,
                  int B, int first, int T, int C) {
    const size_t rows = (size_t)B * T;
#pragma omp parallel for schedule(static) num_threads(thread_count) if (worth_threads(rows * C))
    for (size_t r = 0; r < rows; r++) {
        real *to = reals(out) + r * C;
        memcpy(to, const_reals(token_table) + (size_t)tokens[r] * C, C * sizeof(real));
        if (position_table_or_null) add_row(to, const_reals(position_table_or_null) + (first + r % T) * C, C);
    }
}

// A run of equal tokens in `order` belongs to the block of positions that its first lies in, so each row of the table has one writer.
static void embed_backward(Real *d_token_table, Real *d_position_table_or_null, const Compute *d_out, const int *tokens, const int *order,
                           int B, int T, int C) {
    const size_t rows = (size_t)B * T, row_blocks = blocks_of(rows, ROW_BLOCK);
    const real *d = const_reals(d_out);
#pragma omp parallel num_threads(thread_count) if (worth_threads(rows * C))
    {
#pragma omp for schedule(dynamic) nowait
        for (size_t block = 0; block < row_blocks; block++) {
            size_t i = block * ROW_BLOCK, end = smaller(i + ROW_BLOCK, rows);
            while (i > 0 && i < end && tokens[order[i]] == tokens[order[i - 1]]) i++;
            if (i == end) continue;
            for (; i < rows && (i < end || tokens[order[i]] == tokens[order[i - 1]]); i++)
                add_row(reals(d_token_table) + (size_t)tokens[order[i]] * C, d + (size_t)order[i] * C, C);
        }
        if (d_position_table_or_null) {
#pragma omp for schedule(dynamic, ROW_BLOCK)
            for (int t = 0; t < T; t++)
                for (int b = 0; b < B; b++) add_row(reals(d_position_table_or_null) + (size_t)t * C, d + ((size_t)b * T + t) * C, C);
        }
    }
}

// ---- norms ----

// The sums over a row of x - shift and its square, in double.
static void row_moments(double *sum, double *sum_of_squares, const real *x, int C, double shift) {
    const int whole = C / WIDE_LANES * WIDE_LANES;
    wide sums = {0}, squares = {0};
    for (int c = 0; c < whole; c += WIDE_LANES) {
        wide d = wide_load(x + c) - shift;
        sums += d;
        squares += d * d;
    }
    *sum = wide_sum(sums);
    *sum_of_squares = wide_sum(squares);
    for (int c = whole; c < C; c++) {
        double d = x[c] - shift;
        *sum += d;
        *sum_of_squares += d * d;
    }
}

static void norm_row(real *out, real *mean, real *rstd, const real *x, const real *weight, const real *bias_or_null, int C, int centred,
                     double eps) {
    double sum, squares, centre = 0;
    if (centred) {
        row_moments(&sum, &squares, x, C, 0);
        centre = sum / C;
    }
    row_moments(&sum, &squares, x, C, centre);
    *mean = (real)centre;
    *rstd = (real)(1 / sqrt(squares / C + eps));
    for (int c = 0; c < C; c += LANES) {
        int lanes = lanes_left(C - c);
        vector y = (vector_load_first(x + c, lanes) - *mean) * *rstd * vector_load_first(weight + c, lanes);
        if (bias_or_null) y += vector_load_first(bias_or_null + c, lanes);
        vector_store_first(out + c, y, lanes);
    }
}

static void norm(Compute *out, Real *stats, const Compute *x, const Compute *weight, const Compute *bias_or_null,
                 size_t rows, int C, int centred, double eps) {
    real *means = reals(stats), *rstds = means + rows;
#pragma omp parallel for schedule(dynamic, ROW_BLOCK) num_threads(thread_count) if (worth_threads(rows * C))
    for (size_t r = 0; r < rows; r++)
        norm_row(reals(out) + r * C, means + r, rstds + r, const_reals(x) + r * C, const_reals(weight), const_reals(bias_or_null), C,
                 centred, eps);
}

// With n = (x - mean) rstd and g = d_out weight: d_x += (g - mean(g) - n mean(g n)) rstd, without mean(g) in an RMSNorm.
// d_weight, d_bias [C] are this block of rows' own sums.
static void norm_backward_row(real *d_x, real *d_weight, real *d_bias_or_null, const real *d_out, const real *x, real mean, real rstd,
                              const real *weight, int C, int centred) {
    const int whole = C / WIDE_LANES * WIDE_LANES;
    wide sums = {0}, sums_n = {0};
    for (int c = 0; c < whole; c += WIDE_LANES) {
        wide g = wide_load(d_out + c) * wide_load(weight + c);
        sums += g;
        sums_n += g * (wide_load(x + c) - (double)mean);
    }
    double sum = wide_sum(sums), sum_n = wide_sum(sums_n);
    for (int c = whole; c < C; c++) {
        double g = (double)d_out[c] * weight[c];
        sum += g;
        sum_n += g * ((double)x[c] - mean);
    }
    const real mean_g = centred ? (real)(sum / C) : 0, mean_gn = (real)(sum_n * rstd / C);
    for (int c = 0; c < C; c += LANES) {
        int lanes = lanes_left(C - c);
        vector d = vector_load_first(d_out + c, lanes), n = (vector_load_first(x + c, lanes) - mean) * rstd;
        vector g = d * vector_load_first(weight + c, lanes);
        vector_store_first(d_x + c, vector_load_first(d_x + c, lanes) + (g - mean_g - n * mean_gn) * rstd, lanes);
        vector_store_first(d_weight + c, vector_load_first(d_weight + c, lanes) + d * n, lanes);
        if (d_bias_or_null) vector_store_first(d_bias_or_null + c, vector_load_first(d_bias_or_null + c, lanes) + d, lanes);
    }
}

// Rows of one task of norm_backward, each with sums of its own: so many rows that the sums stay few.
enum { NORM_TASKS = 64 };
static size_t norm_task_rows(size_t rows) { return larger(ROW_BLOCK, blocks_of(rows, NORM_TASKS)); }

static real *norm_backward_sums(Layout *layout, size_t rows, int C) {
    return layout_take(layout, smaller(blocks_of(rows, ROW_BLOCK), NORM_TASKS) * 2 * C * sizeof(real));     // fewer rows never need more
}

// to[c] += the sum over tasks of parts[task][c], in double
static void add_parts(real *to, const real *parts, size_t count, size_t stride, int c) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += parts[i * stride + c];
    to[c] += (real)sum;
}

static void norm_backward(Compute *d_x, Real *d_weight, Real *d_bias_or_null, const Compute *d_out, const Compute *x, const Real *stats,
                          const Compute *weight, size_t rows, int C, int centred) {
    Layout layout = scratch_layout();
    real *sums = norm_backward_sums(&layout, rows, C);
    check_layout(&layout);
    const real *means = const_reals(stats), *rstds = means + rows;
    const size_t task_rows = norm_task_rows(rows), tasks = blocks_of(rows, task_rows);
#pragma omp parallel num_threads(thread_count) if (worth_threads(rows * C))
    {
#pragma omp for schedule(dynamic)
        for (size_t task = 0; task < tasks; task++) {
            real *part = sums + task * 2 * C, *bias_part = d_bias_or_null ? part + C : NULL;
            memset(part, 0, 2 * C * sizeof *part);
            for (size_t r = task * task_rows; r < smaller((task + 1) * task_rows, rows); r++)
                norm_backward_row(reals(d_x) + r * C, part, bias_part, const_reals(d_out) + r * C, const_reals(x) + r * C,
                                  centred ? means[r] : 0, rstds[r], const_reals(weight), C, centred);
        }
#pragma omp for schedule(static)
        for (int c = 0; c < C; c++) {
            add_parts(reals(d_weight), sums, tasks, 2 * C, c);
            if (d_bias_or_null) add_parts(reals(d_bias_or_null), sums + C, tasks, 2 * C, c);
        }
    }
}

// ---- rotary positions ----

static void rotate_head(real *x, const real *cosines, const real *sines, int half, real direction) {
    for (int j = 0; j < half; j += LANES) {
        int lanes = lanes_left(half - j);
        vector u = vector_load_first(x + j, lanes), v = vector_load_first(x + half + j, lanes);
        vector c = vector_load_first(cosines + j, lanes), s = vector_load_first(sines + j, lanes) * direction;
        vector_store_first(x + j, u * c - v * s, lanes);
        vector_store_first(x + half + j, v * c + u * s, lanes);
    }
}

static void rope(Compute *x, const Real *table, int B, int first, int T, int heads, int D, int width, int direction) {
    const size_t rows = (size_t)B * T;
#pragma omp parallel for schedule(static) num_threads(thread_count) if (worth_threads(rows * heads * D))
    for (size_t r = 0; r < rows; r++) {
        const real *angles = const_reals(table) + (first + r % T) * D;
        for (int h = 0; h < heads; h++) rotate_head(reals(x) + r * width + (size_t)h * D, angles, angles + D / 2, D / 2, (real)direction);
    }
}

// ---- SwiGLU ----

static void swiglu(Compute *out, const Compute *x, size_t rows, int intermediate) {
#pragma omp parallel for schedule(static) num_threads(thread_count) if (worth_threads(rows * intermediate))
    for (size_t r = 0; r < rows; r++) {
        const real *gates = const_reals(x) + r * 2 * intermediate, *ups = gates + intermediate;
        real *to = reals(out) + r * intermediate;
        for (int i = 0; i < intermediate; i += LANES) {
            int lanes = lanes_left(intermediate - i);
            vector gate = vector_load_first(gates + i, lanes);
            vector_store_first(to + i, gate * vector_sigmoid(gate) * vector_load_first(ups + i, lanes), lanes);
        }
    }
}

static void swiglu_backward(Compute *d_x, const Compute *d_out, const Compute *x, size_t rows, int intermediate) {
#pragma omp parallel for schedule(static) num_threads(thread_count) if (worth_threads(rows * intermediate))
    for (size_t r = 0; r < rows; r++) {
        const real *gates = const_reals(x) + r * 2 * intermediate, *ups = gates + intermediate, *d = const_reals(d_out) + r * intermediate;
        real *d_gates = reals(d_x) + r * 2 * intermediate, *d_ups = d_gates + intermediate;
        for (int i = 0; i < intermediate; i += LANES) {
            int lanes = lanes_left(intermediate - i);
            vector gate = vector_load_first(gates + i, lanes), up = vector_load_first(ups + i, lanes), s = vector_sigmoid(gate);
            vector d_y = vector_load_first(d + i, lanes);
            vector_store_first(d_gates + i, d_y * up * (s + gate * s * ((real)1 - s)), lanes);
            vector_store_first(d_ups + i, d_y * gate * s, lanes);
        }
    }
}

// ---- the classifier's loss ----

// Sums are kept in real for so many elements, then carried on in double.
enum { SUM_BLOCK = 16 * LANES };

static real row_largest(const real *x, int n) {
    vector largest = vector_all((real)-INFINITY);
    const int whole = n / LANES * LANES;
    for (int i = 0; i < whole; i += LANES) largest = vector_max(vector_load(x + i), largest);
    real m = vector_largest(largest);
    for (int i = whole; i < n; i++) m = x[i] > m ? x[i] : m;
    return m;
}

// exp(factor (x - largest)) for all n, put to `exps` where given; returns the sum
static double row_exps(real *exps_or_null, const real *x, int n, real largest, real factor) {
    double sum = 0;
    for (int block = 0; block < n; block += SUM_BLOCK) {
        vector sums = {0};
        for (int i = block; i < n && i < block + SUM_BLOCK; i += LANES) {
            int lanes = lanes_left(n - i);
            vector e = vector_exp((vector_load_first(x + i, lanes) - largest) * factor);
            if (exps_or_null) vector_store_first(exps_or_null + i, e, lanes);
            if (lanes < LANES) {                                // the lanes past the end are not 0 but exp(0 - largest)
                for (int l = 0; l < lanes; l++) sum += e[l];
            } else {
                sums += e;
            }
        }
        sum += vector_sum_in_double(sums);
    }
    return sum;
}

// log of the sum of exp(factor x)
static double row_log_sum(const real *x, int n, real factor) {
    real largest = row_largest(x, n);
    return (double)largest * factor + log(row_exps(NULL, x, n, largest, factor));
}

// Logits become scale (softmax - one-hot of the target); returns the cross entropy. Its exponentials are made once, in place.
static double cross_entropy_row(real *logits, int target, int V, double scale) {
    real largest = row_largest(logits, V), of_target = logits[target];
    double sum = row_exps(scale != 0 ? logits : NULL, logits, V, largest, 1);
    if (scale != 0) {
        real factor = (real)(scale / sum);
        for (int v = 0; v < V; v += LANES) {
            int lanes = lanes_left(V - v);
            vector_store_first(logits + v, vector_load_first(logits + v, lanes) * factor, lanes);
        }
        logits[target] -= (real)scale;
    }
    return largest + log(sum) - of_target;
}

typedef struct Distillation {
    double weight, temperature, scale;
} Distillation;

// The same with a teacher: p its and q the student's distribution, both at the temperature.
static void distill_row(double losses[LOSS_KINDS], real *logits, const real *teacher, int target, int V, const Distillation *d) {
    const real factor = (real)(1 / d->temperature), of_target = logits[target];
    const double log_sum = row_log_sum(logits, V, 1);
    const real student_sum = (real)row_log_sum(logits, V, factor), teacher_sum = (real)row_log_sum(teacher, V, factor);
    const real hard = (real)(d->scale * (1 - d->weight)), soft = (real)(d->scale * d->weight * d->temperature);
    double kl = 0, entropy = 0;
    for (int block = 0; block < V; block += SUM_BLOCK) {
        vector kls = {0}, entropies = {0};
        for (int v = block; v < V && v < block + SUM_BLOCK; v += LANES) {
            int lanes = lanes_left(V - v);
            vector x = vector_load_first(logits + v, lanes);
            vector log_p = vector_load_first(teacher + v, lanes) * factor - teacher_sum, log_q = x * factor - student_sum;
            vector p = vector_exp(log_p), kl_terms = p * (log_p - log_q), entropy_terms = p * log_p;
            if (d->scale != 0) {
                vector gradient = hard * vector_exp(x - (real)log_sum) + soft * (vector_exp(log_q) - p);
                vector_store_first(logits + v, gradient, lanes);
            }
            for (int l = lanes; l < LANES; l++) kl_terms[l] = entropy_terms[l] = 0;
            kls += kl_terms;
            entropies += entropy_terms;
        }
        kl += vector_sum_in_double(kls);
        entropy -= vector_sum_in_double(entropies);
    }
    if (d->scale != 0) logits[target] -= hard;
    losses[LOSS_CE] = log_sum - of_target;
    losses[LOSS_KL] = kl;
    losses[LOSS_TEACHER_ENTROPY] = entropy;
}

static void cross_entropy(Compute *logits, Real *losses, size_t losses_stride, const Compute *teacher_logits_or_null, const int *targets,
                          size_t rows, int V, int stride, double weight, double temperature, double scale) {
    const Distillation distillation = { weight, temperature, scale };
#pragma omp parallel for schedule(dynamic) num_threads(thread_count) if (worth_threads(rows * V))
    for (size_t r = 0; r < rows; r++) {
        real *x = reals(logits) + r * stride;
        double row_losses[LOSS_KINDS] = {0};
        if (targets[r] < 0) {
            if (scale != 0) memset(x, 0, V * sizeof *x);
        } else if (teacher_logits_or_null) {
            distill_row(row_losses, x, const_reals(teacher_logits_or_null) + r * stride, targets[r], V, &distillation);
        } else {
            row_losses[LOSS_CE] = cross_entropy_row(x, targets[r], V, scale);
        }
        if (scale != 0) memset(x + V, 0, (stride - V) * sizeof *x);
        for (int kind = 0; kind < LOSS_KINDS; kind++) reals(losses)[kind * losses_stride + r] = (real)row_losses[kind];
    }
}

// Rows are summed as they stand: they are few.
static void add_up(double *sums, const Real *x, size_t n, int kinds, size_t stride) {
    for (int kind = 0; kind < kinds; kind++)
        for (size_t i = 0; i < n; i++) sums[kind] += const_reals(x)[kind * stride + i];
}

static size_t layers_scratch(const Limits *limits, int threads) {
    (void)threads;
    Layout layout = { NULL, 0 };
    norm_backward_sums(&layout, limits->rows, limits->C);
    return layout.used;
}
