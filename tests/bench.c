// make bench: how fast the program is, beside how fast the machine is. Prints Markdown tables: the machine's own FMA peak and memory
// bandwidth, measured just before and just after; matrix products and attention by shape; a training step by operation; whole steps of four
// models; what each attention type and the diagnostics add. Times are medians (and minima) over rounds in which the things compared take
// turns, so that a noisy neighbour disturbs all of them alike.
//   bench [--quick]          quick: fewer rounds, small models only
#include <omp.h>
#include <sys/resource.h>

#include "harness.h"

enum { MOST_ROUNDS = 64 };

static int rounds = 7;
static bool quick;
static double peak_flops; // measured at the start, FLOP/s of all threads

typedef struct Times {
    double seconds[MOST_ROUNDS];
    int count;
} Times;

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void add_time(Times *t, double seconds) {
    if (t->count < MOST_ROUNDS) t->seconds[t->count++] = seconds;
}
static double median(Times *t) {
    qsort(t->seconds, t->count, sizeof *t->seconds, compare_doubles);
    return t->count % 2 ? t->seconds[t->count / 2] : (t->seconds[t->count / 2 - 1] + t->seconds[t->count / 2]) / 2;
}
static double minimum(Times *t) {
    qsort(t->seconds, t->count, sizeof *t->seconds, compare_doubles);
    return t->seconds[0];
}

// ---- the machine ----

#ifdef __AVX512F__
typedef float Vector __attribute__((vector_size(64)));
#else
typedef float Vector __attribute__((vector_size(32)));
#endif
enum { LANES = sizeof(Vector) / sizeof(float), CHAINS = 10 }; // more chains than latency x units need, fewer than there are registers

enum { MOST_THREADS = 1024 };
Vector sums[MOST_THREADS];                          // not static: what is stored here may be read elsewhere, so it must be computed

// FLOP/s of all threads in multiply-adds that wait for nothing but their own chain
static double measure_peak(void) {
    volatile float start_value = 1e-3f;             // not the compiler's to compute with
    double best = 0;
    for (int round = 0; round < 5; round++) {
        const long n = 20000000;
        const double start = seconds_now();
        int threads = 1;
#pragma omp parallel
        {
            Vector a, b, c[CHAINS], c0, c1, c2, c3, c4, c5, c6, c7, c8, c9;
            for (int i = 0; i < LANES; i++) {
                a[i] = start_value * (i + 1); // not 0, or the lane would sink into denormal numbers, which are slow
                b[i] = 1 - start_value;
                for (int k = 0; k < CHAINS; k++) c[k][i] = start_value * k; // chains that start alike would be computed once
            }
            c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3], c4 = c[4], c5 = c[5], c6 = c[6], c7 = c[7], c8 = c[8], c9 = c[9];
            for (long i = 0; i < n; i++) {
                c0 = c0 * b + a, c1 = c1 * b + a, c2 = c2 * b + a, c3 = c3 * b + a, c4 = c4 * b + a;
                c5 = c5 * b + a, c6 = c6 * b + a, c7 = c7 * b + a, c8 = c8 * b + a, c9 = c9 * b + a;
            }
            sums[omp_get_thread_num() % MOST_THREADS] = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9;
#pragma omp single
            threads = omp_get_num_threads();
        }
        const double flops = 2.0 * n * CHAINS * LANES * threads / (seconds_now() - start);
        if (flops > best) best = flops;
    }
    return best;
}

// bytes/s of a[i] = b[i] + s c[i], three streams counted
static double measure_bandwidth(void) {
    const size_t n = quick ? 1 << 24 : 1 << 26;
    float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b), *c = malloc(n * sizeof *c);
    double best = 0;
    if (!a || !b || !c) return 0;
#pragma omp parallel for
    for (size_t i = 0; i < n; i++) {
        a[i] = 0;
        b[i] = 1;
        c[i] = 2;
    }
    for (int round = 0; round < 5; round++) {
        const double start = seconds_now();
#pragma omp parallel for
        for (size_t i = 0; i < n; i++) a[i] = b[i] + 3 * c[i];
        best = fmax(best, 3.0 * n * sizeof *a / (seconds_now() - start));
    }
    free(a);
    free(b);
    free(c);
    return best;
}

static void print_machine(const char *when) {
    const double peak = measure_peak(), bandwidth = measure_bandwidth();
    printf("%s: FMA peak %.0f GFLOP/s, triad %.1f GB/s\n", when, peak / 1e9, bandwidth / 1e9);
    fflush(stdout);
    if (!peak_flops) peak_flops = peak;
}

// ---- operations alone ----

static Compute *random_compute(size_t n) {
    float *x = device->allocate(n * sizeof *x);
    if (!x) {
        fprintf(stderr, "bench: out of memory\n");
        exit(1);
    }
    const uint64_t key = random_key(1, "bench");
#pragma omp parallel for
    for (size_t i = 0; i < n; i++) x[i] = (float)(random_uniform(key, i) - 0.5);
    return (Compute *)x;
}

static void *plan_scratch(const Limits *limits) {
    const size_t bytes = device->scratch_bytes(limits, 1, 0);
    void *scratch = device->allocate(bytes);
    device->use_scratch(scratch, bytes);
    return scratch;
}

static void bench_products(void) {
    static const struct {
        const char *name;
        int in, out;
    } shapes[] = {
        { "q, k, v", 768, 2304 }, { "attention's output", 768, 768 }, { "MLP in", 768, 3072 },
        { "MLP out", 3072, 768 }, { "classifier", 768, 50264 },
    };
    static const int row_counts[] = { 256, 1024 };
    printf("\n### Matrix products of GPT-2 124M, fp32\n\nGFLOP/s, and the share of the FMA peak, at the median.\n\n"
           "| product | rows | in | out | y = x W^T | share | dx = dy W | share | dW += dy^T x | share "
           "|\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t r = 0; r < 2; r++) {
            const int rows = row_counts[r], in = shapes[s].in, out = shapes[s].out;
            const Limits limits = { .rows = rows,
                                    .B = 1,
                                    .T = rows,
                                    .C = in,
                                    .H = 1,
                                    .K = 1,
                                    .D = 64,
                                    .widest = out > in ? out : in,
                                    .chunk_rows = rows,
                                    .V = out };
            void *scratch = plan_scratch(&limits);
            Compute *x = random_compute((size_t)rows * in), *w = random_compute((size_t)out * in), *y = random_compute((size_t)rows * out);
            Times times[3] = { 0 };
            for (int round = 0; round < rounds; round++)
                for (int k = 0; k < 3; k++) {
                    const double start = seconds_now();
                    if (k == 0) device->matmul(y, NULL, x, w, NULL, 0, NULL, rows, in, out);
                    if (k == 1) device->matmul_backward_input(x, y, w, NULL, rows, in, out);
                    if (k == 2) device->matmul_backward_weight((Real *)w, NULL, 0, y, x, rows, in, out);
                    add_time(&times[k], seconds_now() - start);
                }
            const double flops = 2.0 * rows * in * out;
            printf("| %s | %d | %d | %d |", shapes[s].name, rows, in, out);
            for (int k = 0; k < 3; k++) {
                const double rate = flops / median(&times[k]);
                printf(" %.0f | %.2f |", rate / 1e9, rate / peak_flops);
            }
            printf("\n");
            fflush(stdout);
            device->release(x);
            device->release(w);
            device->release(y);
            device->release(scratch);
        }
}

static void bench_attention(void) {
    static const struct {
        const char *name;
        AttentionConfig config;
    } types[] = {
        { "baseline", { .type = ATTENTION_BASELINE } },
        { "off_by_one", { .type = ATTENTION_OFF_BY_ONE } },
        { "sink", { .type = ATTENTION_SINK } },
        { "affine", { .type = ATTENTION_AFFINE, .affine_length = 1024 } },
        { "baseline, gated", { .gate = GATE_ELEMENTWISE } },
    };
    enum { TYPES = sizeof types / sizeof *types };
    printf("\n### Attention alone, 12 heads, fp32\n\nMedian milliseconds; shares of the FMA peak count 2 T^2 D FLOPs a head forward "
           "(causal), 5 T^2 D backward.\n\n"
           "| T | D | type | forward, ms | share | backward, ms | share | diagnostics pass, ms |\n|---|---|---|---|---|---|---|---|\n");
    for (int T = 64; T <= (quick ? 256 : 2048); T *= T == 64 ? 4 : T == 256 ? 4 : 2)
        for (int D = 64; D <= 128; D *= 2) {
            const int H = 12, q = H * D, B = T < 256 ? 4 : 1;
            const Limits limits = {
                .rows = (size_t)B * T, .B = B, .T = T, .C = q, .H = H, .K = H, .D = D, .widest = 4 * q + H, .chunk_rows = 16, .V = 16
            };
            void *scratch = plan_scratch(&limits);
            const size_t rows = (size_t)B * T, width = 4 * q + 16;
            Compute *projection = random_compute(rows * width), *out = random_compute(rows * q), *core = random_compute(rows * q),
                    *d_out = random_compute(rows * q), *d_projection = random_compute(rows * width), *sinks = random_compute(H);
            Real *stats = (Real *)random_compute(rows * H), *alpha_ma = (Real *)random_compute(H), *d_sinks = (Real *)random_compute(H);
            double alpha_sum[12] = { 0 }, *sums = calloc((size_t)H * DIAGNOSE_SIZE, sizeof *sums);
            Times times[TYPES][3] = { 0 };
            for (int round = 0; round < rounds; round++)
                for (int i = 0; i < TYPES; i++) {
                    const AttentionConfig c = types[i].config;
                    const int gates = attention_gate_columns(c, H, D);
                    const Attention a = {
                        .config = c,
                        .B = B,
                        .T = T,
                        .H = H,
                        .K = H,
                        .D = D,
                        .width = 3 * q + gates + (attention_has_alpha(c) ? 16 : 0),
                        .key_column = q,
                        .value_column = 2 * q,
                        .gate_column = 3 * q,
                        .alpha_column = 3 * q + gates,
                        .scale = 1 / sqrt(D),
                        .projection = projection,
                        .sinks = attention_has_sinks(c) ? sinks : NULL,
                        .alpha_ma = attention_has_alpha(c) ? alpha_ma : NULL,
                    };
                    Compute *kept = attention_keeps_core(c) ? core : NULL;
                    double start = seconds_now();
                    device->attention(out, kept, stats, &a);
                    add_time(&times[i][0], seconds_now() - start);
                    start = seconds_now();
                    device->attention_backward(d_projection, attention_has_sinks(c) ? d_sinks : NULL,
                                               attention_has_alpha(c) ? alpha_sum : NULL, d_out, out, kept, stats, &a);
                    add_time(&times[i][1], seconds_now() - start);
                    start = seconds_now();
                    device->attention_diagnose(sums, stats, &a);
                    add_time(&times[i][2], seconds_now() - start);
                }
            const double flops = 2.0 * B * H * T * T * D;
            for (int i = 0; i < TYPES; i++) {
                const double forward_time = median(&times[i][0]), backward_time = median(&times[i][1]);
                printf("| %d | %d | %s | %.2f | %.2f | %.2f | %.2f | %.2f |\n", T, D, types[i].name, forward_time * 1e3,
                       flops / forward_time / peak_flops, backward_time * 1e3, 2.5 * flops / backward_time / peak_flops,
                       median(&times[i][2]) * 1e3);
            }
            fflush(stdout);
            device->release(projection);
            device->release(out);
            device->release(core);
            device->release(d_out);
            device->release(d_projection);
            device->release(sinks);
            device->release(stats);
            device->release(alpha_ma);
            device->release(d_sinks);
            device->release(scratch);
            free(sums);
        }
}

// ---- whole steps ----

// A trainer whose batches are random tokens, so that no data is needed.
static Trainer *open_bench(const Config *config) {
    const Device *on = device;
    Trainer *t = open_trainer(on, config, NULL);
    if (begin_weights(&t->model, config->seed, NULL, &t->initial_weights)) {
        fprintf(stderr, "bench: %s\n", error_text());
        exit(1);
    }
    return t;
}

static void bench_step(Trainer *t) {
    Model *m = &t->model;
    Pass *f = &t->pass;
    const int B = f->B, T = f->T, *tokens, *targets, *order;
    device->zero(f->totals, f->total_count * sizeof(double));
    device->zero(m->gradient, m->table.count * device->real_bytes);
    fill_batch(t, 3, &tokens, &targets, &order);
    for (int done = 0; done < t->config.train.batch_size; done += B) {
        forward(f, tokens, B, 0, T);
        classify(f, &t->objective, targets, (size_t)B * T, 1.0 / ((double)t->config.train.batch_size * T));
        backward(f, tokens, order, B, T, done + B == t->config.train.batch_size);
    }
    update_weights(t, &(AdamW){ .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = ++t->step });
}

static Config read_bench_config(const char *path, int B, int T) {
    Config c;
    if (config_read(&c, path, NULL, 0)) {
        fprintf(stderr, "bench: %s\n", error_text());
        exit(1);
    }
    c.train.batch_size = c.train.micro_batch_size = B;
    c.train.sequence_length = c.attention.affine_length = T;
    return c;
}

// ---- a step by operation: the table again, each entry timed ----

enum {
    OP_NORM,
    OP_PRODUCT,
    OP_PRODUCT_DX,
    OP_PRODUCT_DW,
    OP_ATTENTION,
    OP_ATTENTION_BACKWARD,
    OP_LOSS,
    OP_ADAMW,
    OP_EMBEDDING,
    OP_ELEMENTWISE,
    OPS
};
static const char *const op_names[OPS] = {
    "norms, both ways",   "products, y = x W^T",       "products, dx",      "products, dW",         "attention forward",
    "attention backward", "softmax and cross-entropy", "squares and AdamW", "embedding, both ways", "rope, SwiGLU, zeroing",
};
static double op_seconds[OPS];
static const Device *timed_device; // whose operations the timed table calls

#define TIMED(kind, call)                                                                                                                  \
    do {                                                                                                                                   \
        const double start = seconds_now();                                                                                                \
        timed_device->call;                                                                                                                \
        op_seconds[kind] += seconds_now() - start;                                                                                         \
    } while (0)
static void timed_embed(Compute *o, const int *t, const Compute *w, const Compute *p, int B, int f, int T, int C) {
    TIMED(OP_EMBEDDING, embed(o, t, w, p, B, f, T, C));
}
static void timed_embed_backward(Real *dw, Real *dp, const Compute *d, const int *t, const int *o, int B, int T, int C) {
    TIMED(OP_EMBEDDING, embed_backward(dw, dp, d, t, o, B, T, C));
}
static void timed_norm(Compute *o, Real *s, const Compute *x, const Compute *w, const Compute *b, size_t rows, int C, int centred,
                       double eps) {
    TIMED(OP_NORM, norm(o, s, x, w, b, rows, C, centred, eps));
}
static void timed_norm_backward(Compute *dx, Real *dw, Real *db, const Compute *d, const Compute *x, const Real *s, const Compute *w,
                                size_t rows, int C, int centred) {
    TIMED(OP_NORM, norm_backward(dx, dw, db, d, x, s, w, rows, C, centred));
}
static void timed_matmul(Compute *y, Compute *g, const Compute *x, const Compute *w, const Compute *b, int bw, const Compute *r,
                         size_t rows, int in, int out) {
    TIMED(OP_PRODUCT, matmul(y, g, x, w, b, bw, r, rows, in, out));
}
static void timed_backward_input(Compute *dx, const Compute *dy, const Compute *w, const Compute *g, size_t rows, int in, int out) {
    TIMED(OP_PRODUCT_DX, matmul_backward_input(dx, dy, w, g, rows, in, out));
}
static void timed_backward_weight(Real *dw, Real *db, int bw, const Compute *dy, const Compute *x, size_t rows, int in, int out) {
    TIMED(OP_PRODUCT_DW, matmul_backward_weight(dw, db, bw, dy, x, rows, in, out));
}
static void timed_rope(Compute *x, const Real *table, int B, int first, int T, int heads, int D, int width, int direction) {
    TIMED(OP_ELEMENTWISE, rope(x, table, B, first, T, heads, D, width, direction));
}
static void timed_attention(Compute *o, Compute *core, Real *stats, const Attention *a) {
    TIMED(OP_ATTENTION, attention(o, core, stats, a));
}
static void timed_attention_backward(Compute *dp, Real *ds, double *sum, const Compute *d, const Compute *o, const Compute *core,
                                     const Real *stats, const Attention *a) {
    TIMED(OP_ATTENTION_BACKWARD, attention_backward(dp, ds, sum, d, o, core, stats, a));
}
static void timed_swiglu(Compute *o, const Compute *x, size_t rows, int n) { TIMED(OP_ELEMENTWISE, swiglu(o, x, rows, n)); }
static void timed_swiglu_backward(Compute *dx, const Compute *d, const Compute *x, size_t rows, int n) {
    TIMED(OP_ELEMENTWISE, swiglu_backward(dx, d, x, rows, n));
}
static void timed_zero(void *memory, size_t bytes) { TIMED(OP_ELEMENTWISE, zero(memory, bytes)); }
static void timed_cross_entropy(Compute *x, Real *l, size_t ls, const Compute *te, const int *t, size_t rows, int V, int stride, double w,
                                double tau, double scale) {
    TIMED(OP_LOSS, cross_entropy(x, l, ls, te, t, rows, V, stride, w, tau, scale));
}
static void timed_sum_squares(double *s, const Real *x, const Span *spans, int n) { TIMED(OP_ADAMW, sum_squares(s, x, spans, n)); }
static void timed_adamw(Real *p, Compute *w, const Real *g, Real *m, Real *v, const Span *spans, int n, const AdamW *hyper,
                        const double *verdict) {
    TIMED(OP_ADAMW, adamw(p, w, g, m, v, spans, n, hyper, verdict));
}

static Device timed_table(const Device *on) {
    Device d = *on;
    d.embed = timed_embed;
    d.embed_backward = timed_embed_backward;
    d.norm = timed_norm;
    d.norm_backward = timed_norm_backward;
    d.matmul = timed_matmul;
    d.matmul_backward_input = timed_backward_input;
    d.matmul_backward_weight = timed_backward_weight;
    d.rope = timed_rope;
    d.attention = timed_attention;
    d.attention_backward = timed_attention_backward;
    d.swiglu = timed_swiglu;
    d.swiglu_backward = timed_swiglu_backward;
    d.zero = timed_zero;
    d.cross_entropy = timed_cross_entropy;
    d.sum_squares = timed_sum_squares;
    d.adamw = timed_adamw;
    return d;
}

static void bench_operations(const char *name, const char *path, int B, int T) {
    const Config c = read_bench_config(path, B, T);
    const Device *plain = device;
    static Device timed;
    timed_device = plain;
    timed = timed_table(plain);
    device = &timed;
    Trainer *t = open_bench(&c);
    bench_step(t); // first touch of all memory
    memset(op_seconds, 0, sizeof op_seconds);
    const double start = seconds_now();
    const int steps = quick ? 2 : 5;
    for (int i = 0; i < steps; i++) bench_step(t);
    const double whole = (seconds_now() - start) / steps;
    double counted = 0;
    printf("\n### A step of %s by operation, B %d, T %d, fp32\n\n| operation | ms | share |\n|---|---|---|\n", name, B, T);
    for (int k = 0; k < OPS; k++) {
        counted += op_seconds[k] / steps;
        printf("| %s | %.2f | %.1f %% |\n", op_names[k], op_seconds[k] / steps * 1e3, 100 * op_seconds[k] / steps / whole);
    }
    printf("| the rest | %.2f | %.1f %% |\n| all | %.1f | |\n", (whole - counted) * 1e3, 100 * (whole - counted) / whole, whole * 1e3);
    fflush(stdout);
    shut_trainer(t);
    device = plain;
}

static void bench_models(void) {
    static const struct {
        const char *name, *path;
        int B, T;
    } models[] = {
        { "demo", "configs/demo-baseline.json", 16, 128 },
        { "gpt2-124m", "configs/gpt2-124m.json", 4, 64 },
        { "gpt2-124m", "configs/gpt2-124m.json", 1, 1024 },
        { "llama-130m", "configs/llama-130m.json", 4, 256 },
    };
    printf("\n### Training steps, fp32\n\n| model | B | T | median, ms | minimum, ms | tokens/s | GFLOP/s | share of peak "
           "|\n|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < (quick ? 1 : sizeof models / sizeof *models); i++) {
        const Config c = read_bench_config(models[i].path, models[i].B, models[i].T);
        Trainer *t = open_bench(&c);
        Times times = { 0 };
        bench_step(t);
        for (int round = 0; round < rounds; round++) {
            const double start = seconds_now();
            bench_step(t);
            add_time(&times, seconds_now() - start);
        }
        const double tokens = (double)models[i].B * models[i].T, seconds = median(&times);
        const double flops = flops_per_token(&t->model.table, &t->model.shape, models[i].T) * tokens;
        printf("| %s | %d | %d | %.1f | %.1f | %.0f | %.0f | %.2f |\n", models[i].name, models[i].B, models[i].T, seconds * 1e3,
               minimum(&times) * 1e3, tokens / seconds, flops / seconds / 1e9, flops / seconds / peak_flops);
        fflush(stdout);
        shut_trainer(t);
    }
}

// What attention types, gates, diagnostics and recompute cost, in whole steps that take turns.
static void bench_overheads(const char *name, const Config *config) {
    static const struct {
        const char *name;
        AttentionType type;
        GateType gate;
        bool diagnose;
        Recompute recompute;
    } variants[] = {
        { "baseline", ATTENTION_BASELINE, GATE_NONE, false, RECOMPUTE_NONE },
        { "off_by_one", ATTENTION_OFF_BY_ONE, GATE_NONE, false, RECOMPUTE_NONE },
        { "sink", ATTENTION_SINK, GATE_NONE, false, RECOMPUTE_NONE },
        { "affine", ATTENTION_AFFINE, GATE_NONE, false, RECOMPUTE_NONE },
        { "baseline, gate headwise", ATTENTION_BASELINE, GATE_HEADWISE, false, RECOMPUTE_NONE },
        { "baseline, gate elementwise", ATTENTION_BASELINE, GATE_ELEMENTWISE, false, RECOMPUTE_NONE },
        { "baseline, a step with diagnostics", ATTENTION_BASELINE, GATE_NONE, true, RECOMPUTE_NONE },
        { "affine, a step with diagnostics", ATTENTION_AFFINE, GATE_NONE, true, RECOMPUTE_NONE },
        { "baseline, recompute attention", ATTENTION_BASELINE, GATE_NONE, false, RECOMPUTE_ATTENTION },
        { "baseline, recompute block", ATTENTION_BASELINE, GATE_NONE, false, RECOMPUTE_BLOCK },
    };
    enum { VARIANTS = sizeof variants / sizeof *variants };
    Trainer *trainers[VARIANTS];
    Times times[VARIANTS] = { 0 };
    for (int i = 0; i < VARIANTS; i++) {
        Config c = *config;
        c.attention.type = variants[i].type;
        c.attention.gate = variants[i].gate;
        c.compute.recompute = variants[i].recompute;
        trainers[i] = open_bench(&c);
        trainers[i]->pass.diagnose = variants[i].diagnose;
    }
    for (int round = -1; round < rounds; round++)
        for (int i = 0; i < VARIANTS; i++) {
            MemoryPlan plan = { .base = trainers[i]->memory };
            plan_trainer(&plan, trainers[i]); // the device works in this trainer's scratch now
            const double start = seconds_now();
            bench_step(trainers[i]);
            if (round >= 0) add_time(&times[i], seconds_now() - start);
        }
    printf("\n### What it costs: %s, fp32\n\n| variant | median, ms | minimum, ms | over baseline | memory, MiB |\n|---|---|---|---|---|\n",
           name);
    for (int i = 0; i < VARIANTS; i++) {
        MemoryPlan plan = { 0 };
        Trainer copy = *trainers[i];
        plan_trainer(&plan, &copy);
        printf("| %s | %.2f | %.2f | %+.1f %% | %.0f |\n", variants[i].name, median(&times[i]) * 1e3, minimum(&times[i]) * 1e3,
               100 * (median(&times[i]) / median(&times[0]) - 1), plan.used / 1048576.0);
    }
    printf("\nDiagnostics on every tenth step, the default, are %.1f %% of all time (baseline), %.1f %% (affine).\n",
           10 * (median(&times[6]) / median(&times[0]) - 1), 10 * (median(&times[7]) / median(&times[3]) - 1));
    fflush(stdout);
    for (int i = 0; i < VARIANTS; i++) shut_trainer(trainers[i]);
}

int main(int argc, char **argv) {
    openmp_limit_spinning(argv);
    DeviceInfo info;
    quick = argc > 1 && !strcmp(argv[1], "--quick");
    if (quick) rounds = 3;
    device = &cpu_device;
    if (device->open(&info, &(DeviceOptions){ .threads = 0 })) {
        fprintf(stderr, "bench: %s\n", error_text());
        return 1;
    }
    printf("%s, %d threads, %s, train_gpt %s\n\n", info.name, info.threads, program_compiler(), program_version());
    print_machine("before");
    bench_products();
    bench_attention();
    bench_operations("demo", "configs/demo-baseline.json", 16, 128);
    if (!quick) bench_operations("gpt2-124m", "configs/gpt2-124m.json", 4, 64);
    bench_models();
    const Config demo = read_bench_config("configs/demo-baseline.json", 16, 128);
    bench_overheads("demo, B 16, T 128", &demo);
    Config wide = read_bench_config("configs/gpt2-124m.json", 1, 1024);
    wide.model.L = 4; // all variants lie in memory together
    wide.model.V = 4096;
    if (!quick) bench_overheads("GPT-2 124M's width, 4 layers, vocabulary 4096, B 1, T 1024", &wide);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("\npeak memory of this program: %.0f MiB\n", usage.ru_maxrss / 1024.0);
    print_machine("after");
    return 0;
}
