// train_gpt: pretrains GPTs whose attention is selectable, and shows what the attention changed.
//
// This file is what a model computes, in the order it computes it, as calls of a device's operations (core/device.h), and the loop around
// them. It reads top to bottom: the model and its memory; forward; backward; the loss; one step; weights in and out; evaluation; sampling;
// training; the commands. It is compiled into train_gpt and train_gpt_cuda alike: only a device knows how an operation is done.
//
// B sequences, T positions, rows = B*T, C channels, H query heads, K key-value heads, D head size, V vocabulary, L layers.
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "core/checkpoint.h"
#include "core/comm.h"
#include "core/command_line.h"
#include "core/config.h"
#include "core/dataset.h"
#include "core/device.h"
#include "core/diagnostics.h"
#include "core/error.h"
#include "core/json_text.h"
#include "core/memory_plan.h"
#include "core/metrics.h"
#include "core/model.h"
#include "core/openmp.h"
#include "core/progress.h"
#include "core/random.h"
#include "core/rope.h"
#include "core/run_directory.h"
#include "core/sampler.h"
#include "core/schedule.h"
#include "core/stop.h"
#include "core/tokenizer.h"
#include "core/version.h"

static const Device *device;                        // the table of compute.dtype

// ================================================ the model and its memory ================================================

// Weights, and what training keeps beside them. All arenas share the parameter table's layout, so a view is an offset.
typedef struct Model {
    ModelConfig shape;
    AttentionConfig attention;
    ParameterTable table;
    Real *master, *gradient;
    Real *moment1, *moment2;                        // this process's share
    Compute *weights;                               // what forward and backward read: the master itself where they are one type
    Real *alpha_ma;                                 // [L,H], or NULL
} Model;

// One layer's activations. Each has B*T rows of the width in brackets.
typedef struct Layer {
    Compute *residual;                              // [C] what enters the layer
    Compute *normed1;                               // [C]
    Real *stats1;                                   // [2]
    Compute *projection;                            // [width] q | k | v | gate | alpha
    Compute *core;                                  // [H*D], or NULL
    Real *row_stats;                                // [attention_row_stats * H]
    Compute *attended;                              // [H*D]
    Compute *middle;                                // [C] residual + attention
    Compute *normed2;                               // [C]
    Real *stats2;                                   // [2]
    Compute *hidden_in;                             // [mlp_in.out] before GELU, or SwiGLU's gate | up
    Compute *hidden;                                // [intermediate_size]
} Layer;

typedef enum { TRAIN, FORWARD, DECODE } Purpose;    // FORWARD: a teacher's, eval's; DECODE: each layer's projection is kept as the cache

// A model at work on up to B sequences of T positions: its activations. Several passes may share one model (sampling beside training).
typedef struct Pass {
    Model *model;
    Purpose purpose;
    Recompute recompute;
    int B, T, chunk_rows;                           // chunk_rows: rows of logits at a time
    Layer *layers;                                  // [L+1]; [L].residual is what leaves the last
    Compute *final, *logits;                        // [rows,C], [chunk_rows, classifier.out]
    Real *final_stats, *losses, *rope_table;        // [2,rows], [LOSS_KINDS,rows], [T,D]
    Compute *d_residual, *d_normed;                 // [rows,C]
    Compute *d_narrow, *d_wide;                     // [rows, widest input of a product], [rows, widest output]
    // device memory of doubles, adjacent, so that one all_reduce and one copy do for all; the verdict stands behind them
    double *totals;                                 // [LOSS_KINDS]
    double *squares, *parameter_squares;            // [tensors]
    double *alpha_sums, *diagnostics, *verdict;     // [L,H], [L,H,DIAGNOSE_SIZE], [VERDICT_SIZE]
    size_t total_count;                             // of all but the verdict
    Span *spans;                                    // the table's, in device memory
    bool diagnose;                                  // this step's attention is looked at
} Pass;

static Compute *compute_at(const Compute *p, size_t i) { return p ? (Compute *)((char *)p + i * device->compute_bytes) : NULL; }
static Real *real_at(const Real *p, size_t i) { return p ? (Real *)((char *)p + i * device->real_bytes) : NULL; }
static const Compute *weight(const Model *m, size_t at) { return at == NO_TENSOR ? NULL : compute_at(m->weights, at); }
static Real *gradient(const Model *m, size_t at) { return at == NO_TENSOR ? NULL : real_at(m->gradient, at); }
static int largest(int a, int b) { return a > b ? a : b; }
static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static int projection_width(const Model *m) { return m->table.layers[0].attention_in.out; }
static int widest_input(const Model *m) { return largest(largest(m->shape.C, m->shape.H * m->shape.D), m->shape.intermediate_size); }
static int widest_output(const Model *m) { return largest(projection_width(m), m->table.layers[0].mlp_in.out); }

static void plan_model(MemoryPlan *plan, Model *m, bool train, int processes) {
    size_t n = m->table.count, real = device->real_bytes;
    m->master = memory_plan_take(plan, MEMORY_WEIGHTS, "master weights", n * real);
    m->weights = device->weights_are_master ? (Compute *)m->master
               : memory_plan_take(plan, MEMORY_WEIGHTS, "weights in compute.dtype", n * device->compute_bytes);
    m->alpha_ma = NULL;
    if (attention_has_alpha(m->attention))
        m->alpha_ma = memory_plan_take(plan, MEMORY_WEIGHTS, "alpha_ma", (size_t)m->shape.L * m->shape.H * real);
    if (!train) return;
    m->gradient = memory_plan_take(plan, MEMORY_GRADIENTS, "gradients", n * real);
    m->moment1 = memory_plan_take(plan, MEMORY_MOMENTS, "AdamW's first moments", n / processes * real);
    m->moment2 = memory_plan_take(plan, MEMORY_MOMENTS, "AdamW's second moments", n / processes * real);
}

// Layers share what recompute makes again and what nobody reads later: only what is kept has memory of its own in every layer.
static void plan_layers(MemoryPlan *plan, Pass *f) {
    const Model *m = f->model;
    const ModelConfig *s = &m->shape;
    const size_t rows = (size_t)f->B * f->T, real = device->real_bytes, compute = device->compute_bytes, queries = (size_t)s->H * s->D;
    const bool train = f->purpose == TRAIN;
    const bool keep_attention = train && f->recompute == RECOMPUTE_NONE, keep_mlp = train && f->recompute != RECOMPUTE_BLOCK;
    Layer shared = { 0 };
#define TAKE(field, keep, name, row_bytes) \
    (a->field = l == 0 || (keep) ? shared.field = memory_plan_take(plan, MEMORY_ACTIVATIONS, name, rows * (row_bytes)) : shared.field)
    for (int l = 0; l < s->L; l++) {
        Layer *a = &f->layers[l];
        TAKE(residual, train, "residual stream", s->C * compute);
        TAKE(normed1, keep_attention, "norms", s->C * compute);
        TAKE(stats1, keep_attention, "norms", 2 * real);
        TAKE(projection, keep_attention || f->purpose == DECODE, "attention's projections", projection_width(m) * compute);
        if (attention_keeps_core(m->attention)) TAKE(core, keep_attention, "attention's core", queries * compute);
        TAKE(row_stats, keep_attention, "attention's row statistics", (size_t)attention_row_stats(m->attention) * s->H * real);
        TAKE(attended, keep_attention, "attention's output", queries * compute);
        if (train) TAKE(middle, keep_mlp, "residual stream", s->C * compute);
        else a->middle = a->residual;
        TAKE(normed2, keep_mlp, "norms", s->C * compute);
        TAKE(stats2, keep_mlp, "norms", 2 * real);
        TAKE(hidden_in, keep_mlp, "MLP", m->table.layers[0].mlp_in.out * compute);
        TAKE(hidden, keep_mlp, "MLP", s->intermediate_size * compute);
    }
#undef TAKE
    f->layers[s->L].residual = train ? memory_plan_take(plan, MEMORY_ACTIVATIONS, "residual stream", rows * s->C * compute)
                                     : f->layers[0].residual;
}

static void plan_pass(MemoryPlan *plan, Pass *f) {
    const Model *m = f->model;
    const ModelConfig *s = &m->shape;
    const size_t rows = (size_t)f->B * f->T, real = device->real_bytes, compute = device->compute_bytes;
    const size_t tensors = m->table.parameter_tensors, heads = (size_t)s->L * s->H;
    plan_layers(plan, f);
    f->final = memory_plan_take(plan, MEMORY_ACTIVATIONS, "norms", rows * s->C * compute);
    f->final_stats = memory_plan_take(plan, MEMORY_ACTIVATIONS, "norms", rows * 2 * real);
    f->losses = memory_plan_take(plan, MEMORY_ACTIVATIONS, "losses", LOSS_KINDS * rows * real);
    const size_t logits = (size_t)f->chunk_rows * m->table.classifier.out;
    f->logits = memory_plan_take(plan, MEMORY_BUFFERS, "logits, a chunk of rows", logits * compute);
    f->rope_table = NULL;
    if (s->arch != ARCH_GPT2) f->rope_table = memory_plan_take(plan, MEMORY_BUFFERS, "rotary table", (size_t)f->T * s->D * real);
    f->total_count = LOSS_KINDS + 2 * tensors + heads * (1 + DIAGNOSE_SIZE);
    f->totals = memory_plan_take(plan, MEMORY_BUFFERS, "sums over a step", (f->total_count + VERDICT_SIZE) * sizeof(double));
    if (f->totals) {
        f->squares = f->totals + LOSS_KINDS;
        f->parameter_squares = f->squares + tensors;
        f->alpha_sums = f->parameter_squares + tensors;
        f->diagnostics = f->alpha_sums + heads;
        f->verdict = f->totals + f->total_count;
    }
    if (f->purpose != TRAIN) return;
    f->spans = memory_plan_take(plan, MEMORY_BUFFERS, "spans of parameters", m->table.span_count * sizeof(Span));
    f->d_residual = memory_plan_take(plan, MEMORY_BUFFERS, "gradients of activations", rows * s->C * compute);
    f->d_normed = memory_plan_take(plan, MEMORY_BUFFERS, "gradients of activations", rows * s->C * compute);
    f->d_narrow = memory_plan_take(plan, MEMORY_BUFFERS, "gradients of activations", rows * widest_input(m) * compute);
    f->d_wide = memory_plan_take(plan, MEMORY_BUFFERS, "gradients of activations", rows * widest_output(m) * compute);
}

static Limits limits_of(const Pass *f) {
    const Model *m = f->model;
    const ModelConfig *s = &m->shape;
    return (Limits){
        .rows = (size_t)f->B * f->T, .B = f->B, .T = f->T, .C = s->C, .H = s->H, .K = s->K, .D = s->D,
        .widest = largest(widest_output(m), widest_input(m)), .chunk_rows = f->chunk_rows, .V = m->table.classifier.out,
        .span_count = m->table.span_count,
    };
}

static int describe_model(Model *m, const ModelConfig *shape, const AttentionConfig *attention, int rank, int processes) {
    *m = (Model){ .shape = *shape, .attention = *attention };
    return parameter_table_build(&m->table, shape, attention, rank, processes);
}

// Layers are described here and placed by plan_pass.
static int describe_pass(Pass *f, Model *m, Purpose purpose, Recompute recompute, int B, int T) {
    enum { LOGITS = 16 << 20 };                     // how many to hold at a time; of no thread count, so that no sum's order depends on it
    *f = (Pass){ .model = m, .purpose = purpose, .recompute = recompute, .B = B, .T = T };
    f->chunk_rows = (int)smaller(largest(16, LOGITS / m->table.classifier.out), (size_t)B * T);
    f->layers = calloc(m->shape.L + 1, sizeof *f->layers);
    return f->layers ? 0 : set_error(STATUS_FAILED, "out of memory for %d layers", m->shape.L);
}

static void free_model(Model *m) {
    parameter_table_free(&m->table);
}
static void free_pass(Pass *f) {
    free(f->layers);
    f->layers = NULL;
}

static int write_rope_table(const Pass *f) {
    const int D = f->model->shape.D;
    if (!f->rope_table) return 0;
    double *row = malloc(D * sizeof *row);
    if (!row) return set_error(STATUS_FAILED, "out of memory for the rotary table");
    for (int t = 0; t < f->T; t++) {
        rope_table_row(row, &f->model->shape, t);
        device->write(real_at(f->rope_table, (size_t)t * D), row, D);
    }
    free(row);
    return 0;
}

static int copy_spans(const Pass *f) {
    const ParameterTable *p = &f->model->table;
    const size_t bytes = p->span_count * sizeof(Span);
    Span *spans = device->allocate_host(bytes);
    if (!spans) return set_error(STATUS_FAILED, "out of memory for %zu bytes of spans", bytes);
    memcpy(spans, p->spans, bytes);
    device->copy_to_device(f->spans, spans, bytes);
    int status = device->wait(device->mark());
    device->release_host(spans);
    return status;
}

// ================================================ forward ================================================

static void linear(const Model *m, Compute *y, Compute *gelu_input, const Compute *x, Linear w, const Compute *residual, size_t rows) {
    device->matmul(y, gelu_input, x, weight(m, w.weight), weight(m, w.bias), w.bias_width, residual, rows, w.in, w.out);
}

static void norm(const Model *m, Compute *out, Real *stats, const Compute *x, size_t w, size_t bias, size_t rows) {
    device->norm(out, stats, x, weight(m, w), weight(m, bias), rows, m->shape.C, m->shape.arch == ARCH_GPT2, m->shape.norm_eps);
}

// Layer l's attention on queries at positions first .. first+T-1
static Attention attention_of(const Pass *f, int l, int B, int first, int T) {
    const Model *m = f->model;
    const ModelConfig *s = &m->shape;
    const int q = s->H * s->D, k = s->K * s->D;
    return (Attention){
        .config = m->attention, .B = B, .T = T, .first_query = first, .H = s->H, .K = s->K, .D = s->D, .width = projection_width(m),
        .key_column = q, .value_column = q + k, .gate_column = q + 2 * k,
        .alpha_column = q + 2 * k + attention_gate_columns(m->attention, s->H, s->D),
        .scale = 1 / sqrt(s->D),
        .projection = f->layers[l].projection, .sinks = weight(m, m->table.layers[l].sinks),
        .alpha_ma = real_at(m->alpha_ma, (size_t)l * s->H),
    };
}

// residual -> attended: all of the attention but its output product; what recompute = attention does again in backward
static void attention_hidden(const Pass *f, int l, int B, int first, int T) {
    const Model *m = f->model;
    const LayerLayout *w = &m->table.layers[l];
    const Layer *a = &f->layers[l];
    const size_t rows = (size_t)B * T;
    const Attention attention = attention_of(f, l, B, first, T);
    // decoding (B = 1) appends to the rows already there
    Compute *projection = compute_at(a->projection, (size_t)first * attention.width);
    norm(m, a->normed1, a->stats1, a->residual, w->norm1, w->norm1_bias, rows);
    linear(m, projection, NULL, a->normed1, w->attention_in, NULL, rows);
    if (f->rope_table)                              // q and k stand side by side: one call turns both
        device->rope(projection, f->rope_table, B, first, T, attention.H + attention.K, attention.D, attention.width, 1);
    device->attention(a->attended, a->core, a->row_stats, &attention);
}

static void attention_output(const Pass *f, int l, size_t rows) {
    const Layer *a = &f->layers[l];
    linear(f->model, a->middle, NULL, a->attended, f->model->table.layers[l].attention_out, a->residual, rows);
}

// middle -> hidden: all of the MLP but its output product; with the two above, what recompute = block does again
static void mlp_hidden(const Pass *f, int l, size_t rows) {
    const Model *m = f->model;
    const LayerLayout *w = &m->table.layers[l];
    const Layer *a = &f->layers[l];
    norm(m, a->normed2, a->stats2, a->middle, w->norm2, w->norm2_bias, rows);
    if (m->shape.arch == ARCH_GPT2) {
        linear(m, a->hidden, a->hidden_in, a->normed2, w->mlp_in, NULL, rows);
    } else {
        linear(m, a->hidden_in, NULL, a->normed2, w->mlp_in, NULL, rows);
        device->swiglu(a->hidden, a->hidden_in, rows, m->shape.intermediate_size);
    }
}

static void mlp_output(const Pass *f, int l, size_t rows) {
    const Layer *a = &f->layers[l];
    linear(f->model, f->layers[l + 1].residual, NULL, a->hidden, f->model->table.layers[l].mlp_out, a->middle, rows);
}

// tokens [B,T] at positions first .. first+T-1 -> final [B*T,C], the classifier's input
static void forward(const Pass *f, const int *tokens, int B, int first, int T) {
    const Model *m = f->model;
    const ModelConfig *s = &m->shape;
    const ParameterTable *p = &m->table;
    const size_t rows = (size_t)B * T;
    device->embed(f->layers[0].residual, tokens, weight(m, p->token_embedding), weight(m, p->position_embedding), B, first, T, s->C);
    for (int l = 0; l < s->L; l++) {
        attention_hidden(f, l, B, first, T);
        attention_output(f, l, rows);
        mlp_hidden(f, l, rows);
        mlp_output(f, l, rows);
    }
    norm(m, f->final, f->final_stats, f->layers[s->L].residual, p->final_norm, p->final_norm_bias, rows);
}

// ================================================ backward ================================================
// d_residual [rows,C] is the gradient of the residual stream, from the last layer down: each branch adds its part to it.
// The gradient of every parameter is added to.

static void linear_backward_weight(const Model *m, const Compute *d_y, const Compute *x, Linear w, size_t rows) {
    device->matmul_backward_weight(gradient(m, w.weight), gradient(m, w.bias), w.bias_width, d_y, x, rows, w.in, w.out);
}

static void linear_backward_input(const Model *m, Compute *d_x, const Compute *d_y, Linear w, const Compute *gelu_input, size_t rows) {
    device->matmul_backward_input(d_x, d_y, weight(m, w.weight), gelu_input, rows, w.in, w.out);
}

static void norm_backward(const Pass *f, const Compute *d_out, const Compute *x, const Real *stats, size_t w, size_t bias, size_t rows) {
    const Model *m = f->model;
    device->norm_backward(f->d_residual, gradient(m, w), gradient(m, bias), d_out, x, stats, weight(m, w), rows, m->shape.C,
                          m->shape.arch == ARCH_GPT2);
}

static void mlp_backward(const Pass *f, int l, size_t rows) {
    const Model *m = f->model;
    const LayerLayout *w = &m->table.layers[l];
    const Layer *a = &f->layers[l];
    linear_backward_weight(m, f->d_residual, a->hidden, w->mlp_out, rows);
    if (m->shape.arch == ARCH_GPT2) {
        linear_backward_input(m, f->d_wide, f->d_residual, w->mlp_out, a->hidden_in, rows);
    } else {
        linear_backward_input(m, f->d_narrow, f->d_residual, w->mlp_out, NULL, rows);
        device->swiglu_backward(f->d_wide, f->d_narrow, a->hidden_in, rows, m->shape.intermediate_size);
    }
    linear_backward_weight(m, f->d_wide, a->normed2, w->mlp_in, rows);
    linear_backward_input(m, f->d_normed, f->d_wide, w->mlp_in, NULL, rows);
    norm_backward(f, f->d_normed, a->middle, a->stats2, w->norm2, w->norm2_bias, rows);
}

static void attention_backward(const Pass *f, int l, int B, int T) {
    const Model *m = f->model;
    const LayerLayout *w = &m->table.layers[l];
    const Layer *a = &f->layers[l];
    const size_t rows = (size_t)B * T, heads = m->shape.H;
    const Attention attention = attention_of(f, l, B, 0, T);
    linear_backward_weight(m, f->d_residual, a->attended, w->attention_out, rows);
    linear_backward_input(m, f->d_narrow, f->d_residual, w->attention_out, NULL, rows);
    if (f->diagnose)                                // here every recompute mode has what it needs, exactly once a micro-batch
        device->attention_diagnose(f->diagnostics + l * heads * DIAGNOSE_SIZE, a->row_stats, &attention);
    device->attention_backward(f->d_wide, gradient(m, w->sinks), m->alpha_ma ? f->alpha_sums + l * heads : NULL, f->d_narrow, a->attended,
                               a->core, a->row_stats, &attention);
    if (f->rope_table)
        device->rope(f->d_wide, f->rope_table, B, 0, T, attention.H + attention.K, attention.D, attention.width, -1);
    linear_backward_weight(m, f->d_wide, a->normed1, w->attention_in, rows);
    linear_backward_input(m, f->d_normed, f->d_wide, w->attention_in, NULL, rows);
    norm_backward(f, f->d_normed, a->residual, a->stats1, w->norm1, w->norm1_bias, rows);
}

// A bucket of gradients is finished: its sum over processes may begin while the next is computed.
static void finish_bucket(const Model *m, int bucket) {
    const Bucket *b = &m->table.buckets[bucket];
    device->reduce_scatter(gradient(m, b->offset), b->count);
}

// d_normed holds the classifier's d_final -> every parameter's gradient. last: this is the step's last micro-batch.
static void backward(const Pass *f, const int *tokens, const int *order, int B, int T, bool last) {
    const Model *m = f->model;
    const ModelConfig *s = &m->shape;
    const ParameterTable *p = &m->table;
    const size_t rows = (size_t)B * T;
    device->zero(f->d_residual, rows * s->C * device->compute_bytes);
    norm_backward(f, f->d_normed, f->layers[s->L].residual, f->final_stats, p->final_norm, p->final_norm_bias, rows);
    if (last) finish_bucket(m, 0);
    for (int l = s->L - 1; l >= 0; l--) {
        if (f->recompute != RECOMPUTE_NONE) attention_hidden(f, l, B, 0, T);
        if (f->recompute == RECOMPUTE_BLOCK) {
            attention_output(f, l, rows);
            mlp_hidden(f, l, rows);
        }
        mlp_backward(f, l, rows);
        attention_backward(f, l, B, T);
        if (last) finish_bucket(m, s->L - l);
    }
    device->embed_backward(gradient(m, p->token_embedding), gradient(m, p->position_embedding), f->d_residual, tokens, order, B, T, s->C);
    if (last) finish_bucket(m, s->L + 1);
}

// ================================================ the loss ================================================

typedef struct Objective {                          // per row: (1 - weight) ce + weight temperature^2 (kl + teacher's entropy)
    const Pass *teacher;                            // NULL: ce alone
    double weight, temperature;
} Objective;

static const Objective CROSS_ENTROPY = { .teacher = NULL, .weight = 0, .temperature = 1 };

// final [rows,C] -> losses [LOSS_KINDS,rows] and, added to totals, their sums. With scale not 0 also the gradient of scale * the sum over
// rows of the objective, to d_normed and the classifier. Logits, a teacher's too, exist a chunk of rows at a time.
static void classify(const Pass *f, const Objective *objective, const int *targets, size_t rows, double scale) {
    const Model *m = f->model;
    const Pass *teacher = objective->teacher;
    const Linear w = m->table.classifier;
    const size_t stride = (size_t)f->B * f->T;
    for (size_t row = 0; row < rows; row += f->chunk_rows) {
        const size_t n = smaller(rows - row, f->chunk_rows);
        const Compute *x = compute_at(f->final, row * w.in);
        linear(m, f->logits, NULL, x, w, NULL, n);
        if (teacher) {
            const Linear v = teacher->model->table.classifier;
            linear(teacher->model, teacher->logits, NULL, compute_at(teacher->final, row * v.in), v, NULL, n);
        }
        device->cross_entropy(f->logits, real_at(f->losses, row), stride, teacher ? teacher->logits : NULL, targets + row,
                              n, m->shape.V, w.out, objective->weight, objective->temperature, scale);
        if (scale == 0) continue;
        linear_backward_weight(m, f->logits, x, w, n);
        linear_backward_input(m, compute_at(f->d_normed, row * w.in), f->logits, w, NULL, n);
    }
    device->add_up(f->totals, f->losses, rows, LOSS_KINDS, stride);
}

// ================================================ one step ================================================

typedef struct Batch {                              // tokens | targets | order of a micro-batch
    int *host, *on_device;                          // [3, B*T]; host is pinned
    long copied;                                    // the mark after its last copy
} Batch;

typedef struct PendingStep {                        // results under way to the host
    double *host;                                   // [total_count + VERDICT_SIZE]
    long step, mark;                                // step 0: none
    double lr;
    bool diagnosed;
} PendingStep;

typedef struct Trainer {
    Config config;
    Model model, teacher_model;
    Pass pass, teacher, sampling;
    Objective objective;
    void *memory, *host_memory;                     // all of the above, and what is below, lies in these
    Dataset *train, *validation;                    // validation NULL: none
    Metrics *metrics;
    Tokenizer *tokenizer;                           // NULL: none was found
    char tokenizer_path[PATH_SIZE];
    int rank, processes;
    Batch batches[2];                               // one is read and checked while the other is used
    long batch_count;
    PendingStep pending[2];
    double *loss_totals;                            // [LOSS_KINDS], on the host, for evaluation
    long step;                                      // updates queued so far
    uint64_t initial_weights;                       // hash of the initial weights that all attention types share
    double start_time, last_time, step_seconds;     // step_seconds: smoothed
    long retry_save;                                // when a periodic save that failed is tried again; 0: none failed
} Trainer;

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

// Reads, checks and sends sequences first .. first+count-1 of a dataset.
static int next_batch(Trainer *t, Dataset *dataset, uint64_t first, int count, const int **tokens, const int **targets, const int **order) {
    Batch *b = &t->batches[t->batch_count++ % 2];
    const size_t rows = (size_t)t->pass.B * t->pass.T;
    int status = device->wait(b->copied);           // its last copy has left
    if (!status) status = dataset_read(dataset, first, count, b->host, b->host + rows, b->host + 2 * rows);
    if (status) return status;
    device->copy_to_device(b->on_device, b->host, 3 * rows * sizeof(int));
    b->copied = device->mark();
    *tokens = b->on_device;
    *targets = *tokens + rows;
    *order = *targets + rows;
    return 0;
}

// The gradient of the whole global batch, and its sums, by micro-batches.
static int accumulate_gradients(Trainer *t) {
    Model *m = &t->model;
    const Pass *f = &t->pass;
    const Config *c = &t->config;
    const int B = f->B, T = f->T, share = c->train.batch_size / t->processes;
    const double rows = (double)c->train.batch_size * T;
    device->zero(f->totals, f->total_count * sizeof(double));
    device->zero(m->gradient, m->table.count * device->real_bytes);
    for (int done = 0; done < share; done += B) {
        const int *tokens, *targets, *order;
        uint64_t first = (uint64_t)t->step * c->train.batch_size + t->rank * share + done;
        int status = next_batch(t, t->train, first, B, &tokens, &targets, &order);
        if (status) return status;
        forward(f, tokens, B, 0, T);
        if (t->objective.teacher) forward(t->objective.teacher, tokens, B, 0, T);
        classify(f, &t->objective, targets, (size_t)B * T, 1 / rows);
        backward(f, tokens, order, B, T, done + B == share);
    }
    device->collectives_wait();
    return 0;
}

// The verdict on the gradient, and AdamW's update by it.
static void update_weights(Trainer *t, const AdamW *hyper) {
    Model *m = &t->model;
    const Pass *f = &t->pass;
    const ParameterTable *p = &m->table;
    const double rows = (double)t->config.train.batch_size * f->T;
    device->sum_squares(f->squares, m->gradient, f->spans, p->span_count);
    if (f->diagnose) device->sum_squares(f->parameter_squares, m->master, f->spans, p->span_count);
    device->all_reduce(f->totals, f->total_count);
    device->judge(f->verdict, f->squares, p->parameter_tensors, f->totals, LOSS_KINDS, t->config.optimizer.grad_clip);
    device->broadcast(f->verdict, VERDICT_SIZE);    // the same bits everywhere: an all-reduce does not promise them
    device->adamw(m->master, device->weights_are_master ? NULL : m->weights, m->gradient, m->moment1, m->moment2, f->spans, p->span_count,
                  hyper, f->verdict);
    if (m->alpha_ma)
        device->average_alpha(m->alpha_ma, f->alpha_sums, m->shape.L * m->shape.H, rows, m->attention.affine_rho, f->verdict);
    for (int b = p->bucket_count - 1; b >= 0; b--)  // what forward needs first, first
        device->all_gather_weights(compute_at(m->weights, p->buckets[b].offset), p->buckets[b].count);
    device->collectives_wait();
}

// Queues one update. Nothing here waits for the device, but next_batch for the micro-batch before the last.
static int train_step(Trainer *t) {
    const Config *c = &t->config;
    Pass *f = &t->pass;
    f->diagnose = c->diagnostics.every && (t->step + 1) % c->diagnostics.every == 0;
    int status = accumulate_gradients(t);
    if (status) return status;
    const AdamW hyper = {
        .lr = learning_rate(c, t->step), .beta1 = c->optimizer.beta1, .beta2 = c->optimizer.beta2, .eps = c->optimizer.eps,
        .weight_decay = c->optimizer.weight_decay, .step = t->step + 1,
    };
    update_weights(t, &hyper);
    PendingStep *pending = &t->pending[t->step++ % 2];
    device->copy_to_host(pending->host, f->totals, (f->total_count + VERDICT_SIZE) * sizeof(double));
    *pending = (PendingStep){ .host = pending->host, .step = t->step, .mark = device->mark(), .lr = hyper.lr, .diagnosed = f->diagnose };
    return 0;
}

static int log_diagnostics(Trainer *t, const PendingStep *pending) {
    const Pass *f = &t->pass;
    const double *totals = pending->host;
    cJSON *event = metrics_event("diagnostics");
    metrics_add_number(event, "step", pending->step);
    cJSON_AddItemToObject(event, "layers", diagnostics_layers(totals + (f->diagnostics - f->totals), totals + (f->squares - f->totals),
        totals + (f->parameter_squares - f->totals), &t->model.table, &t->model.shape, &t->model.attention));
    return metrics_append(t->metrics, event);
}

// Logs step `step`, if it is still pending, once its result is there.
static int finish_step(Trainer *t, long step) {
    PendingStep *pending = &t->pending[(step + 1) % 2];
    const Config *c = &t->config;
    const Pass *f = &t->pass;
    if (step < 1 || pending->step != step) return 0;
    int status = device->wait(pending->mark);
    if (status) return status;
    pending->step = 0;

    const double *totals = pending->host, *verdict = totals + f->total_count;
    const double rows = (double)c->train.batch_size * f->T, now = seconds_now(), seconds = now - t->last_time;
    const double ce = totals[LOSS_CE] / rows, kl = totals[LOSS_KL] / rows, teacher_entropy = totals[LOSS_TEACHER_ENTROPY] / rows;
    const double w = c->distill.weight, tau = c->distill.temperature;
    const double loss = t->objective.teacher ? (1 - w) * ce + w * tau * tau * (kl + teacher_entropy) : ce;
    t->last_time = now;
    t->step_seconds = t->step_seconds ? 0.9 * t->step_seconds + 0.1 * seconds : seconds;

    cJSON *event = metrics_event("step");
    metrics_add_number(event, "step", step);
    metrics_add_number(event, "tokens", step * rows);
    metrics_add_number(event, "loss", loss);
    if (t->objective.teacher) {
        metrics_add_number(event, "ce", ce);
        metrics_add_number(event, "kl", kl);
        metrics_add_number(event, "teacher_entropy", teacher_entropy);
    }
    metrics_add_number(event, "grad_norm", verdict[VERDICT_NORM]);
    metrics_add_number(event, "lr", pending->lr);
    metrics_add_number(event, "seconds", seconds);
    metrics_add_number(event, "tokens_per_second", rows / seconds);
    const bool bad = !verdict[VERDICT_FINITE];
    if (bad) cJSON_AddTrueToObject(event, "bad");
    status = metrics_append(t->metrics, event);
    if (status) return status;
    if (bad) progress_note("step %ld: loss or gradient is not finite; the update was skipped", step);
    progress_step(&(ProgressStep){
        .step = step, .steps = c->train.steps, .loss = loss, .grad_norm = verdict[VERDICT_NORM], .lr = pending->lr,
        .tokens_per_second = rows / t->step_seconds, .seconds_left = (c->train.steps - step) * t->step_seconds,
    });
    if (!pending->diagnosed) return 0;
    pending->step = step;                           // its sums are still there
    status = log_diagnostics(t, pending);
    pending->step = 0;
    return status;
}

// ================================================ weights in and out ================================================
// Tensors travel in pieces through a buffer on the host, as doubles, in memory order.

typedef int UsePiece(void *context, Real *place, const Tensor *tensor, double *values, size_t first, size_t n);

static int for_pieces(const Model *m, Real *arena, bool buffers, UsePiece *use, void *context) {
    enum { PIECE = 1 << 20 };
    double *values = malloc(PIECE * sizeof *values);
    int status = values ? 0 : set_error(STATUS_FAILED, "out of memory for a piece of a tensor");
    for (int i = 0; i < m->table.tensor_count && !status; i++) {
        const Tensor *x = &m->table.tensors[i];
        if (x->buffer && !buffers) continue;
        Real *place = real_at(x->buffer ? m->alpha_ma : arena, x->offset);
        for (size_t first = 0; first < x->count && !status; first += PIECE)
            status = use(context, real_at(place, first), x, values, first, smaller(x->count - first, PIECE));
    }
    free(values);
    return status;
}

// What is read must be numbers, as floats too.
static int check_finite(const Tensor *x, const double *values, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite((float)values[i]))
            return set_error(STATUS_BAD_INPUT, "tensor %s holds %g, with which nothing can be computed; take another checkpoint, "
                             "or the one before", x->name, values[i]);
    return 0;
}

typedef struct Initialisation { uint64_t seed, hash; CheckpointReader *beginning; } Initialisation;

static int initialise_piece(void *context, Real *place, const Tensor *x, double *values, size_t first, size_t n) {
    Initialisation *to = context;
    int status = 0;
    if (to->beginning && checkpoint_has(to->beginning, x)) status = checkpoint_read(to->beginning, CHECKPOINT_WEIGHTS, x, values, first, n);
    else random_initial_values(values, x, first, n, to->seed);
    if (!status) status = check_finite(x, values, n);
    if (status) return status;
    for (size_t i = 0; !x->attention_own && i < n; i++) {       // FNV-1a over the floats' bits
        float value = (float)values[i];
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        to->hash = (to->hash ^ bits) * UINT64_C(0x100000001b3);
    }
    device->write(place, values, n);
    return 0;
}

typedef struct Loading { CheckpointReader *reader; CheckpointPart part; } Loading;

static int load_piece(void *context, Real *place, const Tensor *x, double *values, size_t first, size_t n) {
    Loading *from = context;
    int status = checkpoint_read(from->reader, from->part, x, values, first, n);
    if (!status) status = check_finite(x, values, n);
    if (!status) device->write(place, values, n);
    return status;
}

typedef struct Storing { CheckpointWriter *writer; CheckpointPart part; } Storing;

static int store_piece(void *context, Real *place, const Tensor *x, double *values, size_t first, size_t n) {
    Storing *to = context;
    device->read(values, place, n);
    return checkpoint_write(to->writer, to->part, x, values, first, n);
}

static void narrow_weights(const Model *m) {
    if (!device->weights_are_master) device->narrow(m->weights, m->master, m->table.count);
}

// The weights of `beginning`, and random ones where it has none; NULL: all of them random.
static int begin_weights(Model *m, uint64_t seed, CheckpointReader *beginning, uint64_t *shared_hash) {
    Initialisation to = { .seed = seed, .hash = UINT64_C(0xcbf29ce484222325), .beginning = beginning };
    device->zero(m->master, m->table.count * device->real_bytes);   // the padding too, which stays 0
    int status = for_pieces(m, m->master, true, initialise_piece, &to);
    narrow_weights(m);
    *shared_hash = to.hash;
    return status;
}

static int load_weights(Model *m, CheckpointReader *reader) {
    device->zero(m->master, m->table.count * device->real_bytes);
    int status = for_pieces(m, m->master, true, load_piece, &(Loading){ reader, CHECKPOINT_WEIGHTS });
    narrow_weights(m);
    return status;
}

// Between steps the arena of gradients is free: there the processes' shares of a moment are put together.
static Real *gather_moment(const Trainer *t, const Real *moment) {
    const Model *m = &t->model;
    for (int b = 0; b < m->table.bucket_count; b++) {
        const Bucket *u = &m->table.buckets[b];
        const size_t part = u->count / t->processes;
        Real *whole = gradient(m, u->offset);
        device->copy(real_at(whole, t->rank * part), real_at(moment, u->offset / t->processes), part * device->real_bytes);
        device->all_gather(whole, u->count);
    }
    device->collectives_wait();
    return m->gradient;
}

// A moment of all processes from a checkpoint, of which this one keeps its share.
static int load_moment(Trainer *t, Real *moment, CheckpointReader *reader, CheckpointPart part) {
    Model *m = &t->model;
    device->zero(m->gradient, m->table.count * device->real_bytes);
    int status = for_pieces(m, m->gradient, false, load_piece, &(Loading){ reader, part });
    for (int b = 0; b < m->table.bucket_count && !status; b++) {
        const Bucket *u = &m->table.buckets[b];
        const size_t share = u->count / t->processes;
        device->copy(real_at(moment, u->offset / t->processes), gradient(m, u->offset + t->rank * share), share * device->real_bytes);
    }
    return status;
}

static int store_all(Trainer *t, CheckpointWriter *writer) {
    Model *m = &t->model;
    if (!device->weights_are_master)                // masters are up to date in their own process's share only
        for (int b = 0; b < m->table.bucket_count; b++)
            device->all_gather(real_at(m->master, m->table.buckets[b].offset), m->table.buckets[b].count);
    device->collectives_wait();
    int status = for_pieces(m, m->master, true, store_piece, &(Storing){ writer, CHECKPOINT_WEIGHTS });
    if (!status) status = for_pieces(m, gather_moment(t, m->moment1), false, store_piece, &(Storing){ writer, CHECKPOINT_EXP_AVG });
    if (!status) status = for_pieces(m, gather_moment(t, m->moment2), false, store_piece, &(Storing){ writer, CHECKPOINT_EXP_AVG_SQ });
    return status;
}

// Saves a checkpoint of step t->step, then removes old ones.
static int save(Trainer *t) {
    const Config *c = &t->config;
    CheckpointWriter *writer;
    int status = finish_step(t, t->step);           // the log is whole up to what is saved
    if (t->tokenizer_path[0] && access(t->tokenizer_path, R_OK)) {
        progress_note("warning: %s is gone: checkpoints are saved without it", t->tokenizer_path);
        t->tokenizer_path[0] = 0;                   // no reason to lose the weights
    }
    if (!status) status = metrics_sync(t->metrics);
    if (!status) status = checkpoint_create(&writer, c, &t->model.table, t->step, t->tokenizer_path[0] ? t->tokenizer_path : NULL);
    if (status) return status;
    status = store_all(t, writer);
    if (status) {
        checkpoint_abandon(writer);
        return status;
    }
    status = checkpoint_commit(writer);
    if (status) return status;
    progress_note("step %ld: saved %s/checkpoints/step-%08ld", t->step, c->run_dir, t->step);
    if (checkpoint_prune(c->run_dir, c->checkpoint.keep)) progress_note("warning: old checkpoints stay: %s", error_text());
    return 0;
}

// ================================================ evaluation ================================================

// Sums of losses over sequences 0 .. sequences-1 of a dataset, in windows' order, to t->loss_totals; no gradient.
static int sum_losses(Trainer *t, Dataset *dataset, uint64_t sequences) {
    const Pass *f = &t->pass;
    const int B = f->B, T = f->T;
    device->zero(f->totals, LOSS_KINDS * sizeof(double));
    for (uint64_t first = (uint64_t)t->rank * B; first < sequences; first += (uint64_t)t->processes * B) {
        const int *tokens, *targets, *order, count = (int)smaller(sequences - first, B);
        int status = next_batch(t, dataset, first, count, &tokens, &targets, &order);
        if (status) return status;
        forward(f, tokens, count, 0, T);
        classify(f, &CROSS_ENTROPY, targets, (size_t)count * T, 0);
    }
    device->all_reduce(f->totals, LOSS_KINDS);
    device->copy_to_host(t->loss_totals, f->totals, LOSS_KINDS * sizeof(double));
    return device->wait(device->mark());
}

// Mean loss over the first eval.batches batches of validation windows, each window at most once.
static int evaluate(Trainer *t, double *loss) {
    const Config *c = &t->config;
    const uint64_t sequences = smaller((uint64_t)c->eval.batches * c->train.batch_size, dataset_windows(t->validation));
    int status = sum_losses(t, t->validation, sequences);
    *loss = t->loss_totals[LOSS_CE] / ((double)sequences * t->pass.T);
    return status;
}

// ================================================ sampling ================================================

typedef int UseToken(void *context, int token);

// Continues prompt [n] by up to `count` tokens, each handed to use. f: DECODE, B = 1: each token's projections stay in its layers' buffers,
// so no product is repeated for earlier tokens. Stops where f->T positions are full.
static int generate(const Pass *f, const int *prompt, int n, int count, const SamplerOptions *options, UseToken *use, void *context) {
    const Model *m = f->model;
    const Linear w = m->table.classifier;
    const int V = m->shape.V;
    int *host = device->allocate_host(f->T * sizeof *host), *tokens = device->allocate(f->T * sizeof *tokens), status = 0;
    Real *row = device->allocate(V * device->real_bytes);
    double *logits = malloc(V * sizeof *logits);
    void *work = malloc((size_t)V * 16);
    if (!host || !tokens || !row || !logits || !work) status = set_error(STATUS_FAILED, "out of memory for sampling");
    else memcpy(host, prompt, n * sizeof *host);
    for (int first = 0; !status && count-- > 0 && first + n <= f->T; first += n, n = 1) {
        device->copy_to_device(tokens, host + first, n * sizeof *tokens);
        forward(f, tokens, 1, first, n);
        linear(m, f->logits, NULL, compute_at(f->final, (size_t)(n - 1) * w.in), w, NULL, 1);
        device->widen(row, f->logits, V);
        device->read(logits, row, V);
        int token = sample_token(logits, V, options, first + n, work);
        if (token < 0) status = STATUS_FAILED;
        else status = use(context, token);
        if (first + n < f->T) host[first + n] = token;
    }
    device->release_host(host);
    device->release(tokens);
    device->release(row);
    free(logits);
    free(work);
    return status;
}

// The prompt's tokens; an empty prompt is a newline, since a first token must stand somewhere.
static int encode_prompt(const Tokenizer *tokenizer, const char *prompt, int V, int limit, int **tokens, size_t *count) {
    if (!*prompt) prompt = "\n";
    int status = tokenizer_encode(tokenizer, prompt, strlen(prompt), tokens, count);
    if (status) return status;
    for (size_t i = 0; i < *count && !status; i++)
        if ((*tokens)[i] >= V)
            status = set_error(STATUS_BAD_INPUT, "the prompt holds token %d, outside the model's vocabulary of %d", (*tokens)[i], V);
    if (!status && *count > (size_t)limit)
        status = set_error(STATUS_BAD_INPUT, "the prompt has %zu tokens; the model takes %d (max_position_embeddings)", *count, limit);
    if (status) free(*tokens);
    return status;
}

typedef struct Text { const Tokenizer *tokenizer; char *bytes; size_t length, capacity; } Text;

static int append_token(void *context, int token) {
    Text *text = context;
    size_t length;
    const char *bytes = tokenizer_token_bytes(text->tokenizer, token, &length);
    if (!bytes) return 0;                           // a padding id of the model that the tokenizer does not have
    if (text->length + length + 1 > text->capacity) {
        size_t capacity = 2 * (text->length + length + 1);
        char *grown = realloc(text->bytes, capacity);
        if (!grown) return set_error(STATUS_FAILED, "out of memory for the sample");
        text->bytes = grown;
        text->capacity = capacity;
    }
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = 0;
    return 0;
}

// Bytes that are not UTF-8, and NUL, become '?': a JSON string holds text.
static void make_utf8(char *bytes, size_t length) {
    for (size_t i = 0; i < length;) {
        const unsigned char c = bytes[i];
        size_t more = c < 0x80 ? 0 : c >= 0xc2 && c < 0xe0 ? 1 : c >= 0xe0 && c < 0xf0 ? 2 : c >= 0xf0 && c < 0xf5 ? 3 : 4, k = 1;
        while (more < 4 && k <= more && i + k < length && (bytes[i + k] & 0xc0) == 0x80) k++;
        const unsigned char second = more ? bytes[i + 1] : 0;
        bool valid = more < 4 && k == more + 1 && c && !(c == 0xe0 && second < 0xa0) && !(c == 0xed && second > 0x9f)
                   && !(c == 0xf0 && second < 0x90) && !(c == 0xf4 && second > 0x8f);
        if (valid) i += more + 1;
        else bytes[i++] = '?';
    }
}

static int log_sample(Trainer *t) {
    const Config *c = &t->config;
    Text text = { .tokenizer = t->tokenizer };
    int *prompt;
    size_t n;
    int status = encode_prompt(t->tokenizer, c->sample.prompt, c->model.V, t->sampling.T, &prompt, &n);
    if (status) return status;
    const SamplerOptions options = {
        .temperature = c->sample.temperature, .top_k = c->sample.top_k, .top_p = c->sample.top_p, .seed = c->seed + t->step,
    };
    status = generate(&t->sampling, prompt, (int)n, c->sample.tokens, &options, append_token, &text);
    free(prompt);
    if (!status) {
        make_utf8(text.bytes, text.length);
        cJSON *event = metrics_event("sample");
        metrics_add_number(event, "step", t->step);
        cJSON_AddStringToObject(event, "prompt", c->sample.prompt);
        cJSON_AddStringToObject(event, "text", text.bytes ? text.bytes : "");
        status = metrics_append(t->metrics, event);
        progress_note("step %ld: sample: %s%s", t->step, c->sample.prompt, text.bytes ? text.bytes : "");
    }
    free(text.bytes);
    return status;
}

// ================================================ training ================================================

// Every byte of the run but small tables. Called with base NULL to count (all that --dry-run does), then with memory to hand out: so the
// plan that is printed and what is allocated cannot differ.
static void plan_trainer(MemoryPlan *plan, Trainer *t) {
    Limits limits[3];
    int passes = 0;
    plan_model(plan, &t->model, t->pass.purpose == TRAIN, t->processes);
    plan_pass(plan, &t->pass);
    limits[passes++] = limits_of(&t->pass);
    if (t->objective.teacher) {
        plan_model(plan, &t->teacher_model, false, 1);
        plan_pass(plan, &t->teacher);
        limits[passes++] = limits_of(&t->teacher);
    }
    if (t->sampling.model) {
        plan_pass(plan, &t->sampling);
        limits[passes++] = limits_of(&t->sampling);
    }
    for (int i = 0; i < 2; i++)
        t->batches[i].on_device = memory_plan_take(plan, MEMORY_BUFFERS, "batches", 3 * (size_t)t->pass.B * t->pass.T * sizeof(int));
    const size_t bytes = device->scratch_bytes(limits, passes, t->config.compute.threads);
    void *scratch = memory_plan_take(plan, MEMORY_BUFFERS, "operations' scratch", bytes);
    if (plan->base) device->use_scratch(scratch, bytes);
}

// The same for what lies on the host's side of the copies.
static void plan_host(MemoryPlan *plan, Trainer *t) {
    const size_t batch = 3 * (size_t)t->pass.B * t->pass.T * sizeof(int), sums = (t->pass.total_count + VERDICT_SIZE) * sizeof(double);
    for (int i = 0; i < 2; i++) {
        t->batches[i].host = memory_plan_take(plan, MEMORY_BUFFERS, "batches on the host", batch);
        t->pending[i].host = memory_plan_take(plan, MEMORY_BUFFERS, "sums on the host", sums);
    }
    t->loss_totals = memory_plan_take(plan, MEMORY_BUFFERS, "sums on the host", LOSS_KINDS * sizeof(double));
}

static int describe_trainer(Trainer *t, const Config *c) {
    *t = (Trainer){ .config = *c, .rank = comm_rank(), .processes = comm_size(), .objective = CROSS_ENTROPY };
    if (c->train.batch_size % (t->processes * c->train.micro_batch_size))
        return set_error(STATUS_BAD_INPUT, "train.batch_size: %d is not a multiple of %d processes times train.micro_batch_size (%d)",
                         c->train.batch_size, t->processes, c->train.micro_batch_size);
    int status = describe_model(&t->model, &c->model, &c->attention, t->rank, t->processes);
    if (!status)
        status = describe_pass(&t->pass, &t->model, TRAIN, c->compute.recompute, c->train.micro_batch_size, c->train.sequence_length);
    if (!status && c->sample.every)                 // a prompt has at most a token a byte, and one where it is empty
        status = describe_pass(&t->sampling, &t->model, DECODE, RECOMPUTE_NONE, 1,
                               (int)smaller(strlen(c->sample.prompt) + 1 + c->sample.tokens, c->model.max_position_embeddings));
    return status;
}

static int describe_teacher(Trainer *t, CheckpointReader *reader) {
    const Config *c = &t->config;
    const ModelConfig *shape = checkpoint_model(reader);
    if (shape->V != c->model.V)
        return set_error(STATUS_BAD_INPUT, "its vocabulary is %d, the student's (model.vocab_size) %d", shape->V, c->model.V);
    if (shape->max_position_embeddings < c->train.sequence_length)
        return set_error(STATUS_BAD_INPUT, "it takes %d positions, fewer than train.sequence_length (%d)",
                         shape->max_position_embeddings, c->train.sequence_length);
    int status = describe_model(&t->teacher_model, shape, checkpoint_attention(reader), 0, 1);
    if (!status) status = checkpoint_check(reader, &t->teacher_model.table, false);
    if (!status) status = describe_pass(&t->teacher, &t->teacher_model, FORWARD, RECOMPUTE_NONE, t->pass.B, t->pass.T);
    t->teacher.chunk_rows = t->pass.chunk_rows = (int)smaller(t->teacher.chunk_rows, t->pass.chunk_rows);
    t->objective = (Objective){ .teacher = &t->teacher, .weight = c->distill.weight, .temperature = c->distill.temperature };
    return status;
}

// All memory of a trainer. One that does not fit is refused here: asked for, it would be given, and the process killed when it is used.
static int allocate_trainer(Trainer *t, const DeviceInfo *info) {
    const double gib = 1 << 30;
    MemoryPlan plan = { 0 }, host = { 0 };
    plan_trainer(&plan, t);
    plan_host(&host, t);
    const double weights = plan.by_kind[MEMORY_WEIGHTS] + plan.by_kind[MEMORY_GRADIENTS] + (double)plan.by_kind[MEMORY_MOMENTS];
    const bool fits = plan.used <= info->memory_bytes;
    t->memory = fits ? device->allocate(plan.used) : NULL;
    t->host_memory = fits ? device->allocate_host(host.used) : NULL;
    if (!t->memory || !t->host_memory)
        return set_error(STATUS_FAILED, "out of memory: this needs %.1f GiB, %s has %.1f (train_gpt CONFIG --dry-run lists what for); %s",
                         (plan.used + host.used) / gib, info->name, info->memory_bytes / gib, weights > 0.9 * info->memory_bytes
                         ? "weights, gradients and moments alone do not fit: take a smaller model"
                         : "a smaller train.micro_batch_size or compute.recompute=block needs less");
    plan = (MemoryPlan){ .base = t->memory };
    host = (MemoryPlan){ .base = t->host_memory };
    plan_trainer(&plan, t);
    plan_host(&host, t);
    return 0;
}

static int find_tokenizer(Trainer *t) {
    const Config *c = &t->config;
    const char *beside = t->train ? dataset_shard(t->train, 0)->path : "";
    int status = tokenizer_find(t->tokenizer_path, c->data.tokenizer, beside);
    if (status) return status;
    if (c->sample.every) {
        if (!t->tokenizer_path[0])
            return set_error(STATUS_BAD_INPUT, "sample.every: no tokenizer.json beside the shards (%s); name one in data.tokenizer, "
                             "or set sample.every to 0", beside);
        status = tokenizer_open(&t->tokenizer, t->tokenizer_path);
        int *prompt;
        size_t n;
        if (!status) status = encode_prompt(t->tokenizer, c->sample.prompt, c->model.V, c->model.max_position_embeddings, &prompt, &n);
        if (!status) free(prompt);
    }
    return status;
}

// Opens the data, and reads the first batch of each so that a wrong vocabulary is found before anything is written.
static int open_data(Trainer *t) {
    const Config *c = &t->config;
    const int T = c->train.sequence_length, B = c->train.micro_batch_size;
    int status = 0;
    if (c->data.train[0]) status = dataset_open(&t->train, "data.train", c->data.train, T, c->model.V, c->data.shuffle, c->seed);
    else if (c->train.steps) status = set_error(STATUS_BAD_INPUT, "data.train: names no shards to train on");
    if (!status && c->data.val[0]) status = dataset_open(&t->validation, "data.val", c->data.val, T, c->model.V, false, 0);
    Dataset *datasets[] = { t->train, t->validation };
    int *buffer = malloc(3 * (size_t)B * T * sizeof *buffer);
    if (!buffer) return set_error(STATUS_FAILED, "out of memory for a batch");
    for (int i = 0; i < 2 && !status; i++) {
        const int sequences = datasets[i] ? (int)smaller(c->train.batch_size, dataset_windows(datasets[i])) : 0;
        for (int first = 0; first < sequences && !status; first += B) {
            const int count = (int)smaller(sequences - first, B);
            status = dataset_read(datasets[i], first, count, buffer, buffer + (size_t)B * T, buffer + 2 * (size_t)B * T);
        }
    }
    free(buffer);
    if (!status) status = find_tokenizer(t);
    return status;
}

// checkpoint_open, for a directory that a user named: a run in its place is a likely mistake.
static int open_checkpoint(CheckpointReader **reader, const char *directory) {
    char newest[PATH_SIZE];
    long step;
    int status = checkpoint_open(reader, directory);
    if (status == STATUS_BAD_INPUT && !checkpoint_newest(directory, newest, &step) && step >= 0)
        status = set_error(STATUS_BAD_INPUT, "%s: is a run; name one of its checkpoints: %s", directory, newest);
    return status;
}

static int load_teacher(Trainer *t, CheckpointReader *reader) {
    int status = write_rope_table(&t->teacher);
    return status ? status : load_weights(&t->teacher_model, reader);
}

static int open_teacher(Trainer *t, CheckpointReader **reader) {
    *reader = NULL;
    if (!t->config.distill.teacher[0]) return 0;
    int status = open_checkpoint(reader, t->config.distill.teacher);
    if (!status) status = describe_teacher(t, *reader);
    return status ? prefix_error(status, "distill.teacher: ") : 0;
}

// The weights that model.init_from names, but for a run that goes on from its own checkpoint.
static int open_beginning(Trainer *t, CheckpointReader **reader) {
    *reader = NULL;
    if (!t->config.init_from[0]) return 0;
    int status = open_checkpoint(reader, t->config.init_from);
    if (!status) status = checkpoint_check_beginning(*reader, &t->model.table);
    return status ? prefix_error(status, "model.init_from: ") : 0;
}

// beginning, teacher, from: each may be NULL.
static int fill_trainer(Trainer *t, CheckpointReader *beginning, CheckpointReader *teacher, CheckpointReader *from) {
    Model *m = &t->model;
    const size_t moment_bytes = m->table.count / t->processes * device->real_bytes;
    device->zero(m->moment1, moment_bytes);
    device->zero(m->moment2, moment_bytes);
    if (m->alpha_ma) device->zero(m->alpha_ma, (size_t)m->shape.L * m->shape.H * device->real_bytes);
    int status = copy_spans(&t->pass);
    if (!status) status = write_rope_table(&t->pass);
    if (!status && t->sampling.model) status = write_rope_table(&t->sampling);
    if (!status && teacher) status = load_teacher(t, teacher);
    if (!status) status = begin_weights(m, t->config.seed, beginning, &t->initial_weights);
    if (from && t->config.init_from[0]) t->initial_weights = 0;     // where they came from need not be there any more
    if (!status && from) status = load_weights(m, from);
    if (!status && from) status = load_moment(t, m->moment1, from, CHECKPOINT_EXP_AVG);
    if (!status && from) status = load_moment(t, m->moment2, from, CHECKPOINT_EXP_AVG_SQ);
    return status;
}

static void close_trainer(Trainer *t) {
    if (t->memory) device->release(t->memory);
    if (t->host_memory) device->release_host(t->host_memory);
    if (t->train) dataset_close(t->train);
    if (t->validation) dataset_close(t->validation);
    if (t->tokenizer) tokenizer_close(t->tokenizer);
    if (t->metrics) metrics_close(t->metrics);
    free_pass(&t->pass);
    free_pass(&t->teacher);
    free_pass(&t->sampling);
    free_model(&t->model);
    free_model(&t->teacher_model);
    run_directory_close();
}

static void add_shards(cJSON *shards, const char *split, const Dataset *dataset) {
    for (int i = 0; dataset && i < dataset_shard_count(dataset); i++) {
        const Shard *shard = dataset_shard(dataset, i);
        char hash[17];
        snprintf(hash, sizeof hash, "%016" PRIx64, shard->hash);
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddStringToObject(entry, "split", split);
        cJSON_AddStringToObject(entry, "path", shard->path);
        metrics_add_number(entry, "tokens", (double)shard->tokens);
        cJSON_AddStringToObject(entry, "hash", hash);
        cJSON_AddItemToArray(shards, entry);
    }
}

// A resumed run reads what it read before: the shards of its first start event and those that the globs find now.
static int check_same_shards(const Trainer *t) {
    cJSON *start, *shards = cJSON_CreateArray();
    int status = metrics_read_first(t->config.run_dir, &start);
    add_shards(shards, "train", t->train);
    add_shards(shards, "val", t->validation);
    const cJSON *before = cJSON_GetObjectItemCaseSensitive(start, "shards"), *now = shards->child;
    const cJSON *old = cJSON_IsArray(before) ? before->child : NULL;
    for (; !status && before && (old || now); old = old->next, now = now->next) {
        const char *path = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(now ? now : old, "path"));
        const char *a = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(old, "hash"));
        const char *b = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(now, "hash"));
        if (a && b && !strcmp(a, b)) continue;
        status = set_error(STATUS_BAD_INPUT, "%s: %s: the run began with other data: bring back its shards, or start a new run",
                           path ? path : "?", !old ? "is new" : !now ? "is gone" : "is another shard");
        break;
    }
    cJSON_Delete(start);
    cJSON_Delete(shards);
    return status;
}

static int log_start(Trainer *t, const DeviceInfo *info, long resumed_from) {
    const Config *c = &t->config;
    const ParameterTable *p = &t->model.table;
    char text[32];
    time_t now = time(NULL);
    cJSON *event = metrics_event("start");
    cJSON_AddStringToObject(event, "version", program_version());
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    cJSON_AddStringToObject(event, "time", text);
    cJSON_AddStringToObject(event, "compiler", program_compiler());
    cJSON_AddStringToObject(event, "device", info->name);
    cJSON_AddStringToObject(event, "dtype", device->dtype);
    metrics_add_number(event, "threads", info->threads);
    metrics_add_number(event, "processes", t->processes);
    metrics_add_number(event, "parameters", (double)p->parameters);
    metrics_add_number(event, "attention_parameters", (double)p->attention_parameters);
    metrics_add_number(event, "flops_per_token", flops_per_token(p, &t->model.shape, c->train.sequence_length));
    metrics_add_number(event, "tokens_per_step", (double)c->train.batch_size * c->train.sequence_length);
    snprintf(text, sizeof text, "%016" PRIx64, t->initial_weights);
    if (t->initial_weights) cJSON_AddStringToObject(event, "initial_weights", text);
    cJSON *shards = cJSON_AddArrayToObject(event, "shards");
    add_shards(shards, "train", t->train);
    add_shards(shards, "val", t->validation);
    if (resumed_from >= 0) metrics_add_number(event, "resumed_from", resumed_from);
    progress_note("%s: %s, %zu parameters (%zu of the attention's own), %s, %d threads, %s", c->run_dir,
                  attention_type_name(c->attention.type), p->parameters, p->attention_parameters, device->dtype, info->threads, info->name);
    return metrics_append(t->metrics, event);
}

static int log_end(Trainer *t) {
    cJSON *event = metrics_event("end");
    metrics_add_number(event, "step", t->step);
    metrics_add_number(event, "seconds", seconds_now() - t->start_time);
    return metrics_append(t->metrics, event);
}

static bool is_due(long step, long every, long steps) {
    return every && (step % every == 0 || step == steps);
}

// What is due between steps, unless a resumed run's log has it already: an evaluation, a sample.
static int look_at_model(Trainer *t) {
    const Config *c = &t->config;
    int status = 0;
    if (t->validation && is_due(t->step, c->eval.every, c->train.steps) && !metrics_has(t->metrics, "eval", t->step)) {
        double loss;
        status = finish_step(t, t->step);
        if (!status) status = evaluate(t, &loss);
        if (status) return status;
        cJSON *event = metrics_event("eval");
        metrics_add_number(event, "step", t->step);
        metrics_add_number(event, "val_loss", loss);
        metrics_add_number(event, "val_perplexity", exp(loss));
        status = metrics_append(t->metrics, event);
        progress_note("step %ld: validation loss %.4f, perplexity %.2f", t->step, loss, exp(loss));
    }
    if (!status && is_due(t->step, c->sample.every, c->train.steps) && !metrics_has(t->metrics, "sample", t->step)) {
        status = finish_step(t, t->step);
        if (!status) status = log_sample(t);
    }
    t->last_time = seconds_now();                   // a step's time is its own
    return status;
}

// A periodic save that fails is reported and tried again a tenth of the interval later; the run goes on.
static void save_now_and_then(Trainer *t) {
    const long every = t->config.checkpoint.every;
    if (!every || !t->step || (t->step % every && t->step != t->retry_save)) return;
    t->retry_save = 0;
    if (save(t)) {
        t->retry_save = t->step + largest(1, (int)smaller(every / 10, 1000));
        progress_note("warning: step %ld was not saved: %s; trying again at step %ld", t->step, error_text(), t->retry_save);
    }
    t->last_time = seconds_now();
}

// Steps from t->step to train.steps, or to where a signal asks to stop. saved: the step of the checkpoint that the run began from, or -1.
static int train(Trainer *t, long saved) {
    const long steps = t->config.train.steps;
    int status = 0;
    t->start_time = t->last_time = seconds_now();
    while (!(status = look_at_model(t)) && t->step < steps && !stop_requested()) {
        if (t->step != saved) save_now_and_then(t);
        status = train_step(t);
        if (!status) status = finish_step(t, t->step - device->asynchronous);
        if (status) return status;
    }
    if (status) return status;
    if (t->step != saved) status = save(t);
    else status = checkpoint_prune(t->config.run_dir, t->config.checkpoint.keep);   // a run killed after its last save has not
    if (status) return status;
    if (t->step >= steps) return log_end(t);
    progress_note("stopped at step %ld of %ld; go on with: train_gpt --resume %s", t->step, steps, t->config.run_dir);
    return 0;
}

// ================================================ the commands ================================================

#ifndef FP32_DEVICE                                 // train_gpt_cuda is compiled with cuda_device
#define FP32_DEVICE cpu_device
#endif

static int choose_device(Dtype dtype) {
    if (dtype != DTYPE_FP32)
        return set_error(STATUS_BAD_INPUT, "compute.dtype: %s is not available in this program; use fp32", dtype_name(dtype));
    device = &FP32_DEVICE;
    return 0;
}

// --overwrite may not take away what the new run is to read.
static int check_overwrite(const Trainer *t) {
    const Config *c = &t->config;
    const struct { const char *key, *path; } read[] = {
        { "distill.teacher", c->distill.teacher }, { "model.init_from", c->init_from }, { "the tokenizer", t->tokenizer_path },
        { "data.train", t->train ? dataset_shard(t->train, 0)->path : "" },
        { "data.val", t->validation ? dataset_shard(t->validation, 0)->path : "" },
    };
    char *run_dir = realpath(c->run_dir, NULL);
    const size_t length = run_dir ? strlen(run_dir) : 0;
    int status = 0;
    for (size_t i = 0; run_dir && i < sizeof read / sizeof *read && !status; i++) {
        char *path = read[i].path[0] ? realpath(read[i].path, NULL) : NULL;
        if (path && !strncmp(path, run_dir, length) && path[length] == '/')
            status = set_error(STATUS_BAD_INPUT, "%s: %s: lies in run_dir (%s), which --overwrite would empty; take another run_dir",
                               read[i].key, read[i].path, c->run_dir);
        free(path);
    }
    free(run_dir);
    return status;
}

// Whether a checkpoint is this run's: with its tensors, of the step that its name says, saved under the same config.
static int check_own_checkpoint(const Trainer *t, CheckpointReader *from, long step) {
    const Config *saved = checkpoint_config(from);
    int status = checkpoint_check(from, &t->model.table, true);
    if (!status && checkpoint_step(from) != step)
        status = set_error(STATUS_BAD_INPUT, "its trainer_state.json says step %ld", checkpoint_step(from));
    const char *key = saved ? config_difference(saved, &t->config) : NULL;
    if (!status && key)
        status = set_error(STATUS_BAD_INPUT, "%s was another than the run's config.json says; put that back", key);
    return status ? prefix_error(status, "cannot go on from step-%08ld (without it, --resume takes the one before): ", step) : 0;
}

// Everything that can fail before the run directory is touched; then `begin` touches it.
static int run(const Config *config, CheckpointReader *from, long from_step, int (*begin)(Config *config, bool overwrite), bool overwrite) {
    Trainer *t = calloc(1, sizeof *t);
    CheckpointReader *beginning = NULL, *teacher = NULL;
    DeviceInfo info;
    int status = t ? choose_device(config->compute.dtype) : set_error(STATUS_FAILED, "out of memory");
    if (!status) status = device->open(&info, &(DeviceOptions){ .threads = config->compute.threads });
    if (status) {
        free(t);
        return status;
    }
    status = describe_trainer(t, config);
    if (!status && from) status = check_own_checkpoint(t, from, from_step);
    if (!status && !from) status = open_beginning(t, &beginning);
    if (!status) status = open_teacher(t, &teacher);
    if (!status) status = open_data(t);
    if (!status && from_step >= 0) status = check_same_shards(t);
    if (!status && overwrite) status = check_overwrite(t);
    if (!status) status = allocate_trainer(t, &info);
    if (!status) status = fill_trainer(t, beginning, teacher, from);
    if (beginning) checkpoint_close(beginning);
    if (teacher) checkpoint_close(teacher);
    if (!status) status = begin(&t->config, overwrite);
    if (!status) status = metrics_open(&t->metrics, t->config.run_dir, from_step);
    if (!status) status = log_start(t, &info, from_step);
    if (!status && from_step > 0 && !metrics_has(t->metrics, "step", from_step))
        progress_note("warning: %s/metrics.jsonl lacks steps before %ld: the log has a hole", t->config.run_dir, from_step + 1);
    t->step = from_step < 0 ? 0 : from_step;
    stop_on_signals();
    if (!status) status = train(t, from ? from_step : -1);
    progress_end();
    close_trainer(t);
    device->close();
    free(t);
    return status;
}

static int begin_new(Config *config, bool overwrite) { return run_directory_create(config, overwrite); }
static int begin_resumed(Config *config, bool overwrite) { (void)overwrite; return run_directory_write_config(config); }

static int command_train(const Command *command) {
    Config config;
    int status = config_read(&config, command->path, command->overrides, command->override_count);
    if (!status && !config.run_dir[0]) status = set_error(STATUS_BAD_INPUT, "%s: run_dir: names no directory for the run", command->path);
    if (!status) status = run_directory_check(config.run_dir, command->overwrite);
    return status ? status : run(&config, NULL, -1, begin_new, command->overwrite);
}

static int command_resume(const Command *command) {
    Config config;
    CheckpointReader *from = NULL;
    char directory[PATH_SIZE];
    long step;
    snprintf(directory, sizeof directory, "%s/trainer_state.json", command->path);
    if (!access(directory, F_OK))
        return set_error(STATUS_BAD_INPUT, "%s: is a checkpoint; --resume takes the run's directory, which holds checkpoints/",
                         command->path);
    int status = run_directory_resume(command->path, &config);
    if (!status) status = config_override_resumed(&config, command->overrides, command->override_count);
    if (!status) status = checkpoint_newest(config.run_dir, directory, &step);
    if (!status && step > config.train.steps)
        status = set_error(STATUS_BAD_INPUT, "--train.steps=%ld: the run's newest checkpoint is already at step %ld",
                           config.train.steps, step);
    char passed_over[PATH_SIZE];
    if (!status) status = checkpoint_passed_over(config.run_dir, step, passed_over);
    if (!status && passed_over[0]) progress_note("warning: %s is passed over: a file of it is missing or empty", passed_over);
    if (!status && step < 0) progress_note("%s holds no complete checkpoint: the run begins again at step 0", config.run_dir);
    if (!status && step >= 0) {
        status = checkpoint_open(&from, directory);
        if (status) prefix_error(status, "cannot go on from %s (without it, --resume takes the one before): ", directory);
    }
    if (!status) status = run(&config, from, step < 0 ? 0 : step, begin_resumed, false);
    if (from) checkpoint_close(from);
    run_directory_close();
    return status;
}

// Prints an object and frees it.
static int print_json(cJSON *object) {
    char *text = json_text_print(object, true);
    int status = text ? 0 : set_error(STATUS_FAILED, "out of memory for the answer");
    if (text && puts(text) < 0) status = set_error(STATUS_FAILED, "standard output: cannot be written");
    free(text);
    cJSON_Delete(object);
    return status;
}

static void add_plan(cJSON *memory, const MemoryPlan *plan, const MemoryPlan *host) {
    for (int k = 0; k < MEMORY_KINDS; k++)
        metrics_add_number(memory, memory_kind_name(k), (double)(plan->by_kind[k] + host->by_kind[k]));
    metrics_add_number(memory, "total", (double)(plan->used + host->used));
    const MemoryPlan *plans[] = { plan, host };
    cJSON *parts = cJSON_AddObjectToObject(memory, "parts");
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < plans[p]->entry_count; i++) {
            const char *kind = memory_kind_name(plans[p]->entries[i].kind);
            cJSON *group = cJSON_GetObjectItemCaseSensitive(parts, kind);
            if (!group) group = cJSON_AddObjectToObject(parts, kind);
            metrics_add_number(group, plans[p]->entries[i].name, (double)plans[p]->entries[i].bytes);
        }
}

static int command_dry_run(const Command *command) {
    Config config;
    Trainer *t = calloc(1, sizeof *t);
    if (!t) return set_error(STATUS_FAILED, "out of memory");
    int status = config_read(&config, command->path, command->overrides, command->override_count);
    if (!status) status = choose_device(config.compute.dtype);
    if (!status) status = describe_trainer(t, &config);
    if (!status) {
        MemoryPlan plan = { 0 }, host = { 0 };
        plan_trainer(&plan, t);
        plan_host(&host, t);
        cJSON *out = cJSON_CreateObject();
        metrics_add_number(out, "parameters", (double)t->model.table.parameters);
        metrics_add_number(out, "attention_parameters", (double)t->model.table.attention_parameters);
        metrics_add_number(out, "flops_per_token", flops_per_token(&t->model.table, &t->model.shape, config.train.sequence_length));
        metrics_add_number(out, "tokens_per_step", (double)config.train.batch_size * config.train.sequence_length);
        metrics_add_number(out, "steps", config.train.steps);
        add_plan(cJSON_AddObjectToObject(out, "memory"), &plan, &host);
        if (config.distill.teacher[0]) cJSON_AddStringToObject(out, "note", "the teacher was not opened: its memory is not counted");
        status = print_json(out);
    }
    free_pass(&t->pass);
    free_pass(&t->sampling);
    free_model(&t->model);
    free(t);
    return status;
}

// A trained model alone, for eval and sample: t->pass is described by the caller's purpose, then placed and filled.
static int open_model(Trainer *t, CheckpointReader *reader, Purpose purpose, int B, int T, int threads) {
    DeviceInfo info;
    t->config.compute.threads = threads;
    t->processes = 1;
    t->objective = CROSS_ENTROPY;
    int status = choose_device(DTYPE_FP32);
    if (!status) status = device->open(&info, &(DeviceOptions){ .threads = threads });
    if (!status) status = describe_model(&t->model, checkpoint_model(reader), checkpoint_attention(reader), 0, 1);
    if (!status) status = checkpoint_check(reader, &t->model.table, false);
    if (!status) status = describe_pass(&t->pass, &t->model, purpose, RECOMPUTE_NONE, B, T);
    if (!status) status = allocate_trainer(t, &info);
    if (!status) status = write_rope_table(&t->pass);
    if (!status && t->model.alpha_ma) device->zero(t->model.alpha_ma, (size_t)t->model.shape.L * t->model.shape.H * device->real_bytes);
    return status ? status : load_weights(&t->model, reader);
}

static int evaluate_checkpoint(Trainer *t, CheckpointReader *reader, const Command *command) {
    const ModelConfig *shape = checkpoint_model(reader);
    const Config *trained = checkpoint_config(reader);
    const int T = command->length ? command->length : trained ? trained->train.sequence_length : shape->max_position_embeddings;
    if (T > shape->max_position_embeddings)
        return set_error(STATUS_BAD_INPUT, "--length=%d: the model takes %d positions at most (max_position_embeddings)", T,
                         shape->max_position_embeddings);
    int status = dataset_open(&t->validation, "--data", command->data, T, shape->V, false, 0);
    if (!status) status = open_model(t, reader, FORWARD, largest(1, 4096 / T), T, command->threads);
    if (status) return status;
    const uint64_t windows = dataset_windows(t->validation);
    status = sum_losses(t, t->validation, windows);
    if (status) return status;
    const double tokens = (double)windows * T, loss = t->loss_totals[LOSS_CE] / tokens;
    cJSON *out = cJSON_CreateObject();
    cJSON_AddStringToObject(out, "checkpoint", command->path);
    cJSON_AddStringToObject(out, "data", command->data);
    metrics_add_number(out, "length", T);
    metrics_add_number(out, "windows", (double)windows);
    metrics_add_number(out, "tokens", tokens);
    metrics_add_number(out, "loss", loss);
    metrics_add_number(out, "perplexity", exp(loss));
    status = print_json(out);
    return status || isfinite(loss) ? status : set_error(STATUS_FAILED, "the loss is not finite");
}

static int print_token(void *context, int token) {
    size_t length;
    const char *bytes = tokenizer_token_bytes(context, token, &length);
    if (bytes && (fwrite(bytes, 1, length, stdout) != length || fflush(stdout)))
        return set_error(STATUS_FAILED, "standard output: cannot be written");
    return 0;
}

static int sample_checkpoint(Trainer *t, CheckpointReader *reader, const Command *command) {
    const ModelConfig *shape = checkpoint_model(reader);
    int *prompt;
    size_t n;
    int status = tokenizer_find(t->tokenizer_path, command->path, "");
    if (!status) status = tokenizer_open(&t->tokenizer, t->tokenizer_path);
    if (!status) status = encode_prompt(t->tokenizer, command->prompt, shape->V, shape->max_position_embeddings, &prompt, &n);
    if (status) return status;
    const size_t positions = smaller(n + command->tokens, shape->max_position_embeddings);
    status = open_model(t, reader, DECODE, 1, (int)positions, command->threads);
    const SamplerOptions options = {
        .temperature = command->temperature, .top_k = command->top_k, .top_p = command->top_p, .seed = command->seed,
    };
    if (!status && fputs(command->prompt, stdout) < 0) status = set_error(STATUS_FAILED, "standard output: cannot be written");
    if (!status) status = generate(&t->pass, prompt, (int)n, command->tokens, &options, print_token, t->tokenizer);
    if (!status) putchar('\n');
    if (!status && n + command->tokens > positions + 1)
        fprintf(stderr, "train_gpt: stopped after %zu tokens: with the prompt that fills the model's %d positions\n", positions + 1 - n,
                shape->max_position_embeddings);
    free(prompt);
    return status;
}

static int with_checkpoint(const Command *command, int (*use)(Trainer *t, CheckpointReader *reader, const Command *command)) {
    Trainer *t = calloc(1, sizeof *t);
    CheckpointReader *reader;
    int status = t ? open_checkpoint(&reader, command->path) : set_error(STATUS_FAILED, "out of memory");
    if (!status) {
        status = use(t, reader, command);
        checkpoint_close(reader);
        close_trainer(t);
        if (device) device->close();
    }
    free(t);
    return status;
}

static int command_help(const Command *command) {
    if (command->action == ACTION_HELP_KEY) return config_help(stdout, command->path);
    command_line_usage(stdout);
    return 0;
}

int main(int argc, char **argv) {
    openmp_limit_spinning(argv);
    Command command;
    int status = command_line_parse(&command, argc, argv);
    if (!status) {
        switch (command.action) {
        case ACTION_TRAIN: status = command_train(&command); break;
        case ACTION_DRY_RUN: status = command_dry_run(&command); break;
        case ACTION_RESUME: status = command_resume(&command); break;
        case ACTION_EVAL: status = with_checkpoint(&command, evaluate_checkpoint); break;
        case ACTION_SAMPLE: status = with_checkpoint(&command, sample_checkpoint); break;
        case ACTION_HELP: case ACTION_HELP_KEY: status = command_help(&command); break;
        case ACTION_VERSION: printf("train_gpt %s, %s\n", program_version(), program_compiler()); break;
        }
        command_line_free(&command);
    }
    const bool output_matters = command.action != ACTION_TRAIN && command.action != ACTION_RESUME;     // a run's is for watching it
    if (!status && output_matters && (fflush(stdout) || ferror(stdout)))
        status = set_error(STATUS_FAILED, "standard output: cannot be written");
    if (status) fprintf(stderr, "train_gpt: %s\n", error_text());
    return status;
}
