// Each field of a diagnostics event, as a training step of several micro-batches logs it, against its definition in docs/metrics.md: from
// full T x T matrices in double, made here from what enters a layer's attention and the layer's weights by their names in a checkpoint.
#define run run_program                 // train_gpt.c has a function of that name
#include "support.h"
#undef run

#include "harness.h"
#include "naive.h"

enum { BATCH = 6, MICRO_BATCH = 2, T = 13, MOST_HEADS = 6 };

// ---- what the definitions are over ----

enum { Z, FIRST, ROW_SUM, ENTROPY, SINK_MASS, ALPHA, ALPHA_MA, GATE, KINDS };
enum { MOST_VALUES = BATCH * T * (T + 1) / 2 };

typedef struct Values { int n; double of[MOST_VALUES]; } Values;        // of one head, over the queries (Z: pairs; GATE: gates) of a batch
typedef struct LayerValues { Values kinds[MOST_HEADS][KINDS]; double grad_norm, param_norm; } LayerValues;

static void append(LayerValues *layer, int h, int kind, double value) {
    Values *to = &layer->kinds[h][kind];
    assert_true(to->n < MOST_VALUES);
    to->of[to->n++] = value;
}

// A tensor of layer l by the end of its name, in memory order [out, in]; NULL where there is none.
static double *layer_tensor(const Model *m, int l, const char *end) {
    char name[128];
    snprintf(name, sizeof name, m->shape.arch == ARCH_GPT2 ? "transformer.h.%d.attn.%s" : "model.layers.%d.self_attn.%s", l, end);
    for (int i = 0; i < m->table.tensor_count; i++) {
        const Tensor *x = &m->table.tensors[i];
        if (!strcmp(x->name, name)) return read_reals(tensor_place(m, m->master, x), x->count);
    }
    return NULL;
}

// x W^T + bias, W and bias named; NULL where there is no such weight. x [BATCH*T, C]
static double *product(const Model *m, int l, const double *x, const char *weight_name, const char *bias_name, int out) {
    double *w = layer_tensor(m, l, weight_name), *bias = bias_name ? layer_tensor(m, l, bias_name) : NULL, *y = NULL;
    if (w) {
        y = malloc((size_t)BATCH * T * out * sizeof *y);
        naive_matmul(y, NULL, x, w, bias, out, NULL, BATCH * T, m->shape.C, out);
    }
    free(w);
    free(bias);
    return y;
}

typedef struct Projections { double *q, *k, *gate, *alpha; int q_stride, k_stride; } Projections;

static void turn(const Model *m, double *x, int heads) {
    double *table = malloc(T * m->shape.D * sizeof *table);
    for (int t = 0; t < T; t++) rope_table_row(table + t * m->shape.D, &m->shape, t);
    naive_rope(x, table, BATCH, 0, T, heads, m->shape.D, heads * m->shape.D, 1);
    free(table);
}

static Projections project(const Model *m, int l, const double *x) {
    const ModelConfig *s = &m->shape;
    const int gates = m->attention.gate == GATE_HEADWISE ? s->H : s->H * s->D;
    Projections p = { 0 };
    p.gate = product(m, l, x, "gate_proj.weight", NULL, gates);
    p.alpha = product(m, l, x, "alpha_proj.weight", NULL, s->H);
    if (s->arch == ARCH_GPT2) {
        p.q_stride = p.k_stride = 3 * s->C;
        p.q = product(m, l, x, "c_attn.weight", "c_attn.bias", 3 * s->C);
        p.k = p.q + s->C;
        return p;
    }
    p.q_stride = s->H * s->D, p.k_stride = s->K * s->D;
    p.q = product(m, l, x, "q_proj.weight", "q_proj.bias", p.q_stride);
    p.k = product(m, l, x, "k_proj.weight", "k_proj.bias", p.k_stride);
    turn(m, p.q, s->H);
    turn(m, p.k, s->K);
    return p;
}

static double plogp(double p) { return p > 0 ? p * log(p) : 0; }

static double phi(const AttentionConfig *c, double x) {
    if (c->affine_activation == AFFINE_SIGMOID) return 1 / (1 + exp(-x));
    return x <= -5 ? 0 : x >= 5 ? 1 : 0.1 * x + 0.5;
}

// One head on one sequence: its T x T logits, softmax and effective weights, then every value the definitions speak of.
static void look_at_head(LayerValues *to, const Model *m, const Projections *p, int b, int h, double sink, double alpha_ma) {
    const ModelConfig *s = &m->shape;
    const AttentionConfig *c = &m->attention;
    const double nothing = c->type == ATTENTION_SINK ? exp(sink) : c->type == ATTENTION_OFF_BY_ONE ? 1 : 0;
    double z[T][T], P[T][T], a[T][T];
    for (int i = 0; i < T; i++) {
        const size_t row = b * T + i;
        double denominator = nothing, alpha = 1, beta = 0;
        if (c->type == ATTENTION_AFFINE) {
            alpha = phi(c, p->alpha[row * s->H + h]);
            beta = (alpha_ma - alpha) / (c->affine_n == AFFINE_N_PREFIX ? i + 1 : c->affine_length);
        }
        for (int j = 0; j <= i; j++) {
            const double *q = p->q + row * p->q_stride + h * s->D, *k = p->k + (size_t)(b * T + j) * p->k_stride + h / (s->H / s->K) * s->D;
            z[i][j] = 0;
            for (int d = 0; d < s->D; d++) z[i][j] += q[d] * k[d] / sqrt(s->D);
            denominator += exp(z[i][j]);
        }
        double row_sum = 0, entropy = -plogp(nothing / denominator);
        for (int j = 0; j <= i; j++) {
            P[i][j] = exp(z[i][j]) / denominator;
            a[i][j] = alpha * P[i][j] + beta;
            row_sum += a[i][j];
            entropy -= plogp(P[i][j]);
            append(to, h, Z, z[i][j]);
        }
        append(to, h, FIRST, a[i][0]);
        append(to, h, ROW_SUM, row_sum);
        append(to, h, ENTROPY, entropy);
        if (nothing > 0) append(to, h, SINK_MASS, nothing / denominator);
        if (c->type == ATTENTION_AFFINE) append(to, h, ALPHA, alpha), append(to, h, ALPHA_MA, alpha_ma);
        if (c->gate == GATE_HEADWISE) append(to, h, GATE, naive_sigmoid(p->gate[row * s->H + h]));
        for (int d = 0; d < s->D && c->gate == GATE_ELEMENTWISE; d++)
            append(to, h, GATE, naive_sigmoid(p->gate[(row * s->H + h) * s->D + d]));
    }
}

// L2 norm in an arena of all trained tensors whose names say that they are layer l's
static double norm_of_layer_by_name(const Model *m, const Real *arena, int l) {
    char prefix[64];
    double sum = 0;
    snprintf(prefix, sizeof prefix, m->shape.arch == ARCH_GPT2 ? "transformer.h.%d." : "model.layers.%d.", l);
    for (int i = 0; i < m->table.tensor_count; i++) {
        const Tensor *x = &m->table.tensors[i];
        if (strncmp(x->name, prefix, strlen(prefix)) || strstr(x->name, "alpha_ma")) continue;
        double *values = read_reals(tensor_place(m, arena, x), x->count);
        for (size_t j = 0; j < x->count; j++) sum += values[j] * values[j];
        free(values);
    }
    return sqrt(sum);
}

// Trains nothing: the values of each layer on the batch of t->step, which t takes in one piece. To be freed.
static LayerValues *look_at_batch(Trainer *t) {
    const Model *m = &t->model;
    const Pass *f = &t->pass;
    const size_t width = (size_t)BATCH * T * m->shape.C;
    LayerValues *layers = calloc(m->shape.L, sizeof *layers);
    const int *tokens, *targets, *order;
    check_status(next_batch(t, t->train, (uint64_t)t->step * BATCH, BATCH, &tokens, &targets, &order));
    device->zero(f->totals, f->total_count * sizeof(double));
    device->zero(m->gradient, m->table.count * device->real_bytes);
    forward(f, tokens, BATCH, 0, T);
    classify(f, &CROSS_ENTROPY, targets, BATCH * T, 1.0 / (BATCH * T));
    backward(f, tokens, order, BATCH, T, true);

    Real *wide = device->allocate(width * device->real_bytes);
    double *alpha_ma = m->alpha_ma ? read_reals(m->alpha_ma, m->shape.L * m->shape.H) : NULL;
    for (int l = 0; l < m->shape.L; l++) {
        device->widen(wide, f->layers[l].normed1, width);
        double *x = read_reals(wide, width), *sinks = layer_tensor(m, l, "sinks");
        Projections p = project(m, l, x);
        for (int b = 0; b < BATCH; b++)
            for (int h = 0; h < m->shape.H; h++)
                look_at_head(&layers[l], m, &p, b, h, sinks ? sinks[h] : NAN, alpha_ma ? alpha_ma[l * m->shape.H + h] : NAN);
        layers[l].grad_norm = norm_of_layer_by_name(m, m->gradient, l);
        layers[l].param_norm = norm_of_layer_by_name(m, m->master, l);
        if (p.k != p.q + m->shape.C) free(p.k);
        free(p.q), free(p.gate), free(p.alpha), free(x), free(sinks);
    }
    free(alpha_ma);
    device->release(wide);
    return layers;
}

// ---- the definitions ----

// Over heads first .. last of a layer
typedef struct Heads { const LayerValues *layer; int first, last; } Heads;
typedef double Definition(Heads heads, int kind);

static double mean_of(Heads heads, int kind, double (*f)(double x, double parameter), double parameter) {
    double sum = 0;
    size_t n = 0;
    for (int h = heads.first; h <= heads.last; h++) {
        const Values *v = &heads.layer->kinds[h][kind];
        for (int i = 0; i < v->n; i++) sum += f(v->of[i], parameter);
        n += v->n;
    }
    return sum / n;
}

static double itself(double x, double ignored) { (void)ignored; return x; }
static double squared_distance(double x, double from) { return (x - from) * (x - from); }
static double is_equal(double x, double to) { return x == to; }
static double mean(Heads heads, int kind) { return mean_of(heads, kind, itself, 0); }
static double root_mean_square(Heads heads, int kind) { return sqrt(mean_of(heads, kind, squared_distance, 0)); }
static double deviation_of(Heads heads, int kind) { return sqrt(mean_of(heads, kind, squared_distance, mean(heads, kind))); }
static double share_at_0(Heads heads, int kind) { return mean_of(heads, kind, is_equal, 0); }
static double share_at_1(Heads heads, int kind) { return mean_of(heads, kind, is_equal, 1); }

static const struct { const char *name; int kind; Definition *definition; double tolerance; } definitions[] = {
    { "logit_mean", Z, mean, 1e-11 }, { "logit_rms", Z, root_mean_square, 1e-11 }, { "first_token_weight", FIRST, mean, 1e-11 },
    { "row_sum_mean", ROW_SUM, mean, 1e-11 }, { "row_sum_std", ROW_SUM, deviation_of, 1e-7 },   // the root of what rounding leaves of 0
    { "entropy", ENTROPY, mean, 1e-11 }, { "sink_mass", SINK_MASS, mean, 1e-11 }, { "alpha_mean", ALPHA, mean, 1e-11 },
    { "alpha_std", ALPHA, deviation_of, 1e-7 }, { "alpha_at_0", ALPHA, share_at_0, 1e-11 }, { "alpha_at_1", ALPHA, share_at_1, 1e-11 },
    { "alpha_ma", ALPHA_MA, mean, 1e-11 }, { "gate_mean", GATE, mean, 1e-11 },
};
enum { DEFINITIONS = sizeof definitions / sizeof *definitions };

static void expect_number(const cJSON *item, double wanted, double tolerance, const char *context, const char *name) {
    if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble - wanted) <= tolerance * (1 + fabs(wanted))))
        fail_msg("%s: %s is %.17g, not %.17g", context, name, item ? item->valuedouble : NAN, wanted);
}

// Each bin holds the values nearest to its centre; the first and last also what lies beyond.
static void expect_histogram(const cJSON *histogram, const LayerValues *layer, int H, int kind, double first, double width, int bins,
                             const char *context) {
    const cJSON *counts = cJSON_GetObjectItemCaseSensitive(histogram, "counts");
    expect_number(cJSON_GetObjectItemCaseSensitive(histogram, "first"), first, 0, context, "first");
    expect_number(cJSON_GetObjectItemCaseSensitive(histogram, "width"), width, 0, context, "width");
    assert_int_equal(cJSON_GetArraySize(counts), bins);
    for (int bin = 0; bin < bins; bin++) {
        const double low = first + (bin - 0.5) * width, high = low + width;
        int n = 0;
        for (int h = 0; h < H; h++)
            for (int i = 0; i < layer->kinds[h][kind].n; i++) {
                const double value = layer->kinds[h][kind].of[i];
                n += (value >= low || bin == 0) && (value < high || bin == bins - 1);
            }
        expect_number(cJSON_GetArrayItem(counts, bin), n, 0, context, "a bin of a histogram");
    }
}

// Exactly the fields of this attention, each as it is defined; returns how many were compared.
static int check_layer(const cJSON *logged, const LayerValues *layer, int l, int H, const char *context) {
    const cJSON *heads = cJSON_GetObjectItemCaseSensitive(logged, "heads");
    int fields = 0, others = 5;                         // layer, row_sum_histogram, grad_norm, param_norm, heads
    expect_number(cJSON_GetObjectItemCaseSensitive(logged, "layer"), l, 0, context, "layer");
    for (int i = 0; i < DEFINITIONS; i++) {
        const char *name = definitions[i].name;
        const int kind = definitions[i].kind;
        if (!layer->kinds[0][kind].n) continue;         // not of this attention
        const cJSON *array = cJSON_GetObjectItemCaseSensitive(heads, name);
        expect_number(cJSON_GetObjectItemCaseSensitive(logged, name), definitions[i].definition((Heads){ layer, 0, H - 1 }, kind),
                      definitions[i].tolerance, context, name);
        assert_int_equal(cJSON_GetArraySize(array), H);
        for (int h = 0; h < H; h++)
            expect_number(cJSON_GetArrayItem(array, h), definitions[i].definition((Heads){ layer, h, h }, kind), definitions[i].tolerance,
                          context, name);
        fields++;
    }
    expect_histogram(cJSON_GetObjectItemCaseSensitive(logged, "row_sum_histogram"), layer, H, ROW_SUM, -0.5, 1 / 32.0, 64, context);
    if (layer->kinds[0][ALPHA].n) {
        expect_histogram(cJSON_GetObjectItemCaseSensitive(logged, "alpha_histogram"), layer, H, ALPHA, 1 / 64.0, 1 / 32.0, 32, context);
        others++;
    }
    expect_number(cJSON_GetObjectItemCaseSensitive(logged, "grad_norm"), layer->grad_norm, 1e-11, context, "grad_norm");
    expect_number(cJSON_GetObjectItemCaseSensitive(logged, "param_norm"), layer->param_norm, 1e-11, context, "param_norm");
    assert_int_equal(cJSON_GetArraySize(logged), fields + others);
    assert_int_equal(cJSON_GetArraySize(heads), fields);
    return fields;
}

// ---- the cases ----

static char directory[256];
static int token(size_t i) { return (int)(random_bits(random_key(3, "tokens"), i) % 19); }

static int enter(void **state) {
    (void)state;
    make_directory(directory);
    write_shard(path_of("%s/train.bin", directory), 10 * T + 1, token);
    return 0;
}

static int leave(void **state) {
    (void)state;
    remove_directory(directory);
    return 0;
}

// A trainer with random weights before its first step; its log is in `directory`.
static Trainer *open_run(const Config *c) {
    Trainer *t = open_trainer(&cpu_double_device, c, NULL);
    remove(path_of("%s/metrics.jsonl", directory));
    check_status(dataset_open(&t->train, "data.train", path_of("%s/train.bin", directory), T, c->model.V, true, 5));
    check_status(metrics_open(&t->metrics, directory, -1));
    fill_random(&t->model, 21);
    return t;
}

// Step 1 is not logged and costs nothing; step 2 is, over three micro-batches: what it logs, and the weights and alpha_ma it found.
static cJSON *train_and_log(const Config *c, double **weights, double **alpha_ma) {
    Trainer *t = open_run(c);
    const Pass *f = &t->pass;
    const Model *m = &t->model;
    check_status(train_step(t));
    assert_false(t->pending[0].diagnosed);
    for (int i = 0; i < m->shape.L * m->shape.H * DIAGNOSE_SIZE; i++) assert_true(t->pending[0].host[f->diagnostics - f->totals + i] == 0);
    *weights = read_reals(m->master, m->table.count);
    *alpha_ma = m->alpha_ma ? read_reals(m->alpha_ma, m->shape.L * m->shape.H) : NULL;
    check_status(train_step(t));
    assert_true(t->pending[1].diagnosed);
    check_status(log_diagnostics(t, &t->pending[1]));
    shut_trainer(t);
    return read_metrics(directory, "diagnostics");
}

static LayerValues *look_at_step_2(const Config *c, double *weights, double *alpha_ma) {
    Config whole = *c;
    whole.train.micro_batch_size = BATCH;
    whole.compute.recompute = RECOMPUTE_NONE;
    Trainer *t = open_run(&whole);
    t->step = 1;
    device->write(t->model.master, weights, t->model.table.count);
    if (alpha_ma) device->write(t->model.alpha_ma, alpha_ma, c->model.L * c->model.H);
    LayerValues *layers = look_at_batch(t);
    shut_trainer(t);
    free(weights);
    free(alpha_ma);
    return layers;
}

static int check_case(const Config *c, const char *context) {
    double *weights, *alpha_ma;
    cJSON *events = train_and_log(c, &weights, &alpha_ma), *logged = cJSON_GetObjectItemCaseSensitive(events->child, "layers");
    LayerValues *layers = look_at_step_2(c, weights, alpha_ma);
    assert_int_equal(cJSON_GetArraySize(events), 1);
    expect_number(cJSON_GetObjectItemCaseSensitive(events->child, "step"), 2, 0, context, "step");
    assert_int_equal(cJSON_GetArraySize(logged), c->model.L);
    int fields = 0;
    for (int l = 0; l < c->model.L; l++) fields += check_layer(cJSON_GetArrayItem(logged, l), &layers[l], l, c->model.H, context);
    const bool clips = c->attention.type == ATTENTION_AFFINE && c->attention.affine_activation == AFFINE_LINEAR_CLIPPING;
    if (clips) assert_true(share_at_0((Heads){ layers, 0, c->model.H - 1 }, ALPHA) > 0);        // else the case would show nothing
    if (clips) assert_true(share_at_1((Heads){ layers, 0, c->model.H - 1 }, ALPHA) > 0);
    cJSON_Delete(events);
    free(layers);
    return fields;
}

// What differs between archs beside the arch itself: key heads, where N of affine lies, and the activation.
static Config case_config(Arch arch, AttentionType type, GateType gate, Recompute recompute) {
    Config c = small_config(arch);
    c.attention.type = type;
    c.attention.gate = gate;
    c.attention.affine_length = arch == ARCH_GPT2 ? 5 : T;              // under T: row sums far outside the histogram too
    if (arch == ARCH_LLAMA) c.model.H = 6, c.model.K = 2;
    if (arch == ARCH_QWEN2) c.model.K = 1, c.attention.affine_activation = AFFINE_SIGMOID;
    c.compute.recompute = recompute;
    c.train.batch_size = BATCH;
    c.train.micro_batch_size = MICRO_BATCH;
    c.train.sequence_length = T;
    c.train.steps = 4;
    c.optimizer.lr = 0.01;
    c.diagnostics.every = 2;
    return c;
}

static void test_fields_of_arch(Arch arch) {
    static const char *const arch_names[] = { "gpt2", "llama", "qwen2" }, *const gate_names[] = { "none", "headwise", "elementwise" };
    int cases = 0, fields = 0;
    for (int type = ATTENTION_BASELINE; type <= ATTENTION_AFFINE; type++)
        for (int gate = GATE_NONE; gate <= GATE_ELEMENTWISE; gate++)
            for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_BLOCK; recompute++) {
                const Config c = case_config(arch, type, gate, recompute);
                char context[128];
                snprintf(context, sizeof context, "%s, %s, gate %s, recompute %s", arch_names[arch], attention_type_name(type),
                         gate_names[gate], recompute_name(recompute));
                fields += check_case(&c, context);
                cases++;
            }
    print_message("%s: %d cases, %d fields\n", arch_names[arch], cases, fields);
}

static void test_gpt2(void **state) { (void)state; test_fields_of_arch(ARCH_GPT2); }
static void test_llama(void **state) { (void)state; test_fields_of_arch(ARCH_LLAMA); }
static void test_qwen2(void **state) { (void)state; test_fields_of_arch(ARCH_QWEN2); }

static void test_prefix(void **state) {
    (void)state;
    Config c = case_config(ARCH_LLAMA, ATTENTION_AFFINE, GATE_NONE, RECOMPUTE_NONE);
    c.attention.affine_n = AFFINE_N_PREFIX;
    check_case(&c, "affine_n prefix");
}

// Looking at a step changes not one bit of it.
static void test_looking_changes_nothing(void **state) {
    (void)state;
    for (int type = ATTENTION_BASELINE; type <= ATTENTION_AFFINE; type++) {
        double *weights[2], *averages[2] = { NULL, NULL };
        size_t n = 0, heads = 0;
        for (int every = 0; every < 2; every++) {
            Config c = case_config(ARCH_LLAMA, type, GATE_HEADWISE, RECOMPUTE_ATTENTION);
            c.diagnostics.every = every;
            Trainer *t = open_run(&c);
            for (int i = 0; i < 3; i++) check_status(train_step(t));
            assert_int_equal(t->pending[0].diagnosed, every);
            n = t->model.table.count, heads = (size_t)c.model.L * c.model.H;
            weights[every] = read_reals(t->model.master, n);
            if (t->model.alpha_ma) averages[every] = read_reals(t->model.alpha_ma, heads);
            shut_trainer(t);
        }
        assert_memory_equal(weights[0], weights[1], n * sizeof(double));
        if (averages[0]) assert_memory_equal(averages[0], averages[1], heads * sizeof(double));
        for (int i = 0; i < 2; i++) free(weights[i]), free(averages[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2), cmocka_unit_test(test_llama), cmocka_unit_test(test_qwen2), cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_looking_changes_nothing),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
