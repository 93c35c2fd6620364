// The parameter table of each arch: see model.h.
#include "model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

enum { MATRIX_ALIGNMENT = 64 };         // elements between matrices: 256 bytes of float
enum { PADDED_ROWS = 8 };               // what tensor cores want of a product's width, where only we read its output

typedef struct Builder {
    ParameterTable *table;
    const ModelConfig *model;
    const AttentionConfig *attention;
    size_t bucket_alignment;
    bool failed;                        // out of memory: checked once, at the end
} Builder;

// What a tensor is beside its name and place.
typedef struct Kind {
    double std, value;
    bool transposed, attention_own;
} Kind;

static size_t round_up(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

static void align(Builder *b, size_t multiple) {
    b->table->count = round_up(b->table->count, multiple);
}

// array with room for one more element, doubled when its count is a power of two; NULL (and b->failed) when out of memory
static void *grow(Builder *b, void *array, int count, size_t size) {
    if (count & (count - 1)) return array;
    void *grown = realloc(array, (count ? 2 * (size_t)count : 1) * size);
    if (!grown) b->failed = true;
    return grown;
}

// Adds one tensor at the arena's end and returns its offset. out, in: as in memory; in 0 for a vector.
__attribute__((format(printf, 6, 7)))
static size_t add_tensor(Builder *b, int layer, int out, int in, Kind kind, const char *format, ...) {
    ParameterTable *t = b->table;
    Tensor *grown = grow(b, t->tensors, t->tensor_count, sizeof *t->tensors);
    if (b->failed) return NO_TENSOR;
    t->tensors = grown;
    Tensor *x = &t->tensors[t->tensor_count++];
    *x = (Tensor){
        .dimensions = in ? 2 : 1, .shape = { kind.transposed ? in : out, kind.transposed ? out : in },
        .offset = t->count, .count = (size_t)out * (in ? in : 1),
        .initial_std = kind.std, .initial_value = kind.value, .decay = in > 0,
        .transposed = kind.transposed, .attention_own = kind.attention_own, .layer = layer,
    };
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(x->name, sizeof x->name, format, arguments);
    va_end(arguments);
    t->count += x->count;
    return x->offset;
}

static size_t add_vector(Builder *b, int layer, int n, double value, const char *prefix, const char *name) {
    size_t offset = add_tensor(b, layer, n, 0, (Kind){ .value = value }, "%s%s", prefix, name);
    align(b, MATRIX_ALIGNMENT);
    return offset;
}

// Closes the matrix that began at offset `weight`: its rows are padded to a multiple of `rows`.
static Linear close_matrix(Builder *b, size_t weight, int in, size_t rows) {
    int out = (int)round_up((b->table->count - weight) / in, rows);
    b->table->count = weight + (size_t)out * in;
    align(b, MATRIX_ALIGNMENT);
    return (Linear){ .weight = weight, .bias = NO_TENSOR, .in = in, .out = out };
}

static void close_bucket(Builder *b, size_t start) {
    ParameterTable *t = b->table;
    align(b, b->bucket_alignment);
    Bucket *grown = grow(b, t->buckets, t->bucket_count, sizeof *t->buckets);
    if (b->failed) return;
    t->buckets = grown;
    t->buckets[t->bucket_count++] = (Bucket){ start, t->count - start };
}

// q|k|v|gate|alpha
static Linear add_attention_in(Builder *b, int l, const char *at) {
    const ModelConfig *m = b->model;
    const Kind plain = { .std = m->initializer_range }, own = { .std = m->initializer_range, .attention_own = true };
    int C = m->C, q = m->H * m->D, k = m->K * m->D, gates = attention_gate_columns(*b->attention, m->H, m->D);
    size_t weight;
    if (m->arch == ARCH_GPT2) {
        weight = add_tensor(b, l, 3 * C, C, (Kind){ .std = m->initializer_range, .transposed = true }, "%sc_attn.weight", at);
    } else {
        weight = add_tensor(b, l, q, C, plain, "%sq_proj.weight", at);
        add_tensor(b, l, k, C, plain, "%sk_proj.weight", at);
        add_tensor(b, l, k, C, plain, "%sv_proj.weight", at);
    }
    if (gates) add_tensor(b, l, gates, C, own, "%sgate_proj.weight", at);
    if (attention_has_alpha(*b->attention)) add_tensor(b, l, m->H, C, own, "%salpha_proj.weight", at);
    return close_matrix(b, weight, C, PADDED_ROWS);
}

static void add_layer_gpt2(Builder *b, int l, const char *block, const char *at) {
    const ModelConfig *m = b->model;
    LayerLayout *y = &b->table->layers[l];
    int C = m->C, F = m->intermediate_size;
    const Kind into = { .std = m->initializer_range, .transposed = true };
    const Kind out_of = { .std = m->initializer_range / sqrt(2.0 * m->L), .transposed = true };     // what adds to the residual stream
    y->mlp_out = close_matrix(b, add_tensor(b, l, C, F, out_of, "%smlp.c_proj.weight", block), F, 1);
    y->mlp_in = close_matrix(b, add_tensor(b, l, F, C, into, "%smlp.c_fc.weight", block), C, 1);
    y->attention_out = close_matrix(b, add_tensor(b, l, C, C, out_of, "%sc_proj.weight", at), C, 1);
    y->attention_in = add_attention_in(b, l, at);
    y->mlp_out.bias = add_vector(b, l, y->mlp_out.bias_width = C, 0, block, "mlp.c_proj.bias");
    y->mlp_in.bias = add_vector(b, l, y->mlp_in.bias_width = F, 0, block, "mlp.c_fc.bias");
    y->attention_out.bias = add_vector(b, l, y->attention_out.bias_width = C, 0, at, "c_proj.bias");
    y->attention_in.bias = add_vector(b, l, y->attention_in.bias_width = 3 * C, 0, at, "c_attn.bias");
    y->norm2 = add_vector(b, l, C, 1, block, "ln_2.weight");
    y->norm2_bias = add_vector(b, l, C, 0, block, "ln_2.bias");
    y->norm1 = add_vector(b, l, C, 1, block, "ln_1.weight");
    y->norm1_bias = add_vector(b, l, C, 0, block, "ln_1.bias");
}

static void add_layer_llama(Builder *b, int l, const char *block, const char *at) {
    const ModelConfig *m = b->model;
    LayerLayout *y = &b->table->layers[l];
    int C = m->C, F = m->intermediate_size, q = m->H * m->D, k = m->K * m->D;
    const Kind plain = { .std = m->initializer_range };
    y->mlp_out = close_matrix(b, add_tensor(b, l, C, F, plain, "%smlp.down_proj.weight", block), F, 1);
    size_t gate_up = add_tensor(b, l, F, C, plain, "%smlp.gate_proj.weight", block);
    add_tensor(b, l, F, C, plain, "%smlp.up_proj.weight", block);
    y->mlp_in = close_matrix(b, gate_up, C, 1);
    y->attention_out = close_matrix(b, add_tensor(b, l, C, q, plain, "%so_proj.weight", at), q, 1);
    y->attention_in = add_attention_in(b, l, at);
    if (m->arch == ARCH_QWEN2) {                // adjacent, as their matrices are: one bias vector for the product
        y->attention_in.bias = add_tensor(b, l, q, 0, (Kind){ 0 }, "%sq_proj.bias", at);
        add_tensor(b, l, k, 0, (Kind){ 0 }, "%sk_proj.bias", at);
        add_tensor(b, l, k, 0, (Kind){ 0 }, "%sv_proj.bias", at);
        y->attention_in.bias_width = q + 2 * k;
        align(b, MATRIX_ALIGNMENT);
    }
    y->norm2 = add_vector(b, l, C, 1, block, "post_attention_layernorm.weight");
    y->norm2_bias = NO_TENSOR;
    y->norm1 = add_vector(b, l, C, 1, block, "input_layernorm.weight");
    y->norm1_bias = NO_TENSOR;
}

static void name_layer(const ModelConfig *m, int l, char block[64], char at[80]) {
    snprintf(block, 64, m->arch == ARCH_GPT2 ? "transformer.h.%d." : "model.layers.%d.", l);
    snprintf(at, 80, m->arch == ARCH_GPT2 ? "%sattn." : "%sself_attn.", block);
}

static void add_layer(Builder *b, int l) {
    const ModelConfig *m = b->model;
    LayerLayout *y = &b->table->layers[l];
    char block[64], at[80];
    name_layer(m, l, block, at);
    if (m->arch == ARCH_GPT2) add_layer_gpt2(b, l, block, at);
    else add_layer_llama(b, l, block, at);
    y->sinks = NO_TENSOR;
    if (attention_has_sinks(*b->attention)) {
        y->sinks = add_tensor(b, l, m->H, 0, (Kind){ .attention_own = true }, "%ssinks", at);
        align(b, MATRIX_ALIGNMENT);
    }
}

// alpha_ma [L,H] has memory of its own; it stands last so that the parameters' indices are those of the spans.
static void add_buffers(Builder *b) {
    ParameterTable *t = b->table;
    const ModelConfig *m = b->model;
    t->parameter_tensors = t->tensor_count;
    if (!attention_has_alpha(*b->attention)) return;
    size_t arena = t->count;
    for (int l = 0; l < m->L && !b->failed; l++) {
        char block[64], at[80];
        name_layer(m, l, block, at);
        t->count = (size_t)l * m->H;
        add_tensor(b, l, m->H, 0, (Kind){ .attention_own = true }, "%salpha_ma", at);
        if (!b->failed) t->tensors[t->tensor_count - 1].buffer = true;
    }
    t->count = arena;
}

static void count_parameters(ParameterTable *t) {
    for (int i = 0; i < t->parameter_tensors; i++) {
        t->parameters += t->tensors[i].count;
        if (t->tensors[i].attention_own) t->attention_parameters += t->tensors[i].count;
    }
}

// This process's part of each tensor: the rank-th part of the bucket it lies in.
static void add_spans(Builder *b, int rank, int processes) {
    ParameterTable *t = b->table;
    int u = 0;
    for (int i = 0; i < t->parameter_tensors; i++) {
        const Tensor *x = &t->tensors[i];
        while (x->offset >= t->buckets[u].offset + t->buckets[u].count) u++;    // tensors stand in the arena's order
        size_t part = t->buckets[u].count / processes, low = t->buckets[u].offset + rank * part, high = low + part;
        size_t from = x->offset > low ? x->offset : low, to = x->offset + x->count < high ? x->offset + x->count : high;
        for (; from < to; from += SPAN_SIZE) {
            Span *grown = grow(b, t->spans, t->span_count, sizeof *t->spans);
            if (b->failed) return;
            t->spans = grown;
            t->spans[t->span_count++] = (Span){
                .offset = from, .state_offset = t->buckets[u].offset / processes + from - low,
                .count = to - from < SPAN_SIZE ? to - from : SPAN_SIZE, .tensor = i, .decay = x->decay,
            };
        }
    }
}

int parameter_table_build(ParameterTable *t, const ModelConfig *m, const AttentionConfig *a, int rank, int processes) {
    *t = (ParameterTable){ 0 };
    Builder b = { t, m, a, (size_t)MATRIX_ALIGNMENT * processes, false };
    const bool gpt2 = m->arch == ARCH_GPT2;
    const Kind plain = { .std = m->initializer_range };
    t->layers = calloc(m->L, sizeof *t->layers);
    if (!t->layers) return set_error(STATUS_FAILED, "out of memory for the table of %d layers", m->L);

    t->final_norm = add_vector(&b, -1, m->C, 1, gpt2 ? "transformer.ln_f" : "model.norm", ".weight");
    t->final_norm_bias = gpt2 ? add_vector(&b, -1, m->C, 0, "transformer.ln_f", ".bias") : NO_TENSOR;
    if (!m->tie_word_embeddings) {
        size_t head = add_tensor(&b, -1, m->V, m->C, plain, "lm_head.weight");
        t->classifier = close_matrix(&b, head, m->C, PADDED_ROWS);
    }
    close_bucket(&b, 0);
    for (int l = m->L - 1; l >= 0; l--) {
        size_t start = t->count;
        add_layer(&b, l);
        close_bucket(&b, start);
    }
    size_t start = t->count;
    t->position_embedding = NO_TENSOR;
    if (gpt2) {
        t->position_embedding = add_tensor(&b, -1, m->max_position_embeddings, m->C, plain, "transformer.wpe.weight");
        align(&b, MATRIX_ALIGNMENT);
    }
    t->token_embedding = add_tensor(&b, -1, m->V, m->C, plain, gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
    Linear embedding = close_matrix(&b, t->token_embedding, m->C, PADDED_ROWS);
    if (m->tie_word_embeddings) t->classifier = embedding;
    close_bucket(&b, start);

    add_buffers(&b);
    count_parameters(t);
    if (!b.failed) add_spans(&b, rank, processes);
    if (!b.failed) return 0;
    parameter_table_free(t);
    return set_error(STATUS_FAILED, "out of memory for the parameter table");
}

void parameter_table_free(ParameterTable *t) {
    free(t->tensors);
    free(t->layers);
    free(t->buckets);
    free(t->spans);
    *t = (ParameterTable){ 0 };
}

double flops_per_token(const ParameterTable *t, const ModelConfig *m, int T) {
    double products = (double)m->V * m->C;                                  // the classifier, tied or not
    for (int i = 0; i < t->parameter_tensors; i++)
        if (t->tensors[i].layer >= 0 && t->tensors[i].dimensions == 2) products += (double)t->tensors[i].count;
    return 6 * products + 6.0 * m->L * m->H * m->D * T;
}
