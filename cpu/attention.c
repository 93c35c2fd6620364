// Attention: flash-style tiles, no matrix of queries by keys in memory. Part of device.c.
//
// Forward works on PANEL queries of one head at a time and on FORWARD_KEYS keys after another: logits with the queries along the vectors
// (so that a softmax's running maximum and sum are vectors too), exponentials in place, then their product with the values. Backward
// works on BLOCK keys of one key-value head at a time, over its query heads and over blocks of queries: dk and dv stay with the task; dq
// is added to by one block of keys after another, in their order, each task waiting where it is too early. All products go through
// gemm.c's tile.
//
// affine's running sum of v, and its suffix sum in backward, are kept at the borders of blocks, so that they cost O(T D) in all.
// Adding a type: its formulas stand in core/attention.h; what is left for it here is in scale_and_shift() and prepare_row().

enum {
    PANEL = TILE_COLUMNS,
    FORWARD_KEYS = 112,                         // a multiple of the tile's rows
    BLOCK = 64,                                 // a multiple of PANEL
    COPY_BYTES = 8 << 20,                       // of q, k, v and gradients laid out anew, at most (but of one head at least)
    COPY_FROM = 512,                            // queries from which on that is worth while in any case
};

// Rows of D reals.
typedef struct Rows {
    const real *at;
    size_t stride;
} Rows;

static const real *row(Rows rows, size_t i) { return rows.at + i * rows.stride; }

static int keys_of(const Attention *a) { return a->first_query + a->T; }
static int group_of(const Attention *a) { return a->H / a->K; }             // query heads to a key-value head
static size_t padded(int D) { return round_up(D, TILE_COLUMNS); }           // to whole tiles

static const real *projection_row(const Attention *a, int b, int position) {
    return const_reals(a->projection) + ((size_t)b * keys_of(a) + position) * a->width;
}
static Rows projection_rows(const Attention *a, int b, int first, int column) {
    return (Rows){ projection_row(a, b, first) + column, a->width };
}
static Rows query_rows(const Attention *a, int b, int h) { return projection_rows(a, b, a->first_query, h * a->D); }
static Rows key_rows(const Attention *a, int b, int k) { return projection_rows(a, b, 0, a->key_column + k * a->D); }
static Rows value_rows(const Attention *a, int b, int k) { return projection_rows(a, b, 0, a->value_column + k * a->D); }

static size_t stat_at(const Attention *a, int b, int h, int t) { return ((size_t)b * a->H + h) * a->T + t; }
static size_t head_at(const Attention *a, int b, int h, int t) { return (((size_t)b * a->T + t) * a->H + h) * a->D; }   // in [B,T,H*D]

static real sink_logit_of(const Attention *a, int h) {
    return attention_sink_logit(a->config, a->sinks ? const_reals(a->sinks)[h] : 0);
}

static void alpha_and_beta(real *alpha, real *beta, const Attention *a, int b, int h, int position) {
    *alpha = 1;
    *beta = 0;
    if (!attention_has_alpha(a->config)) return;
    *alpha = affine_alpha(a->config, projection_row(a, b, position)[a->alpha_column + h]);
    *beta = affine_beta(a->config, *alpha, const_reals(a->alpha_ma)[h], position);
}

// ---- rows ----

static real dot(const real *x, const real *y, int n) {
    vector sum = {0};
    for (int i = 0; i < n; i += LANES) {
        const int lanes = lanes_left(n - i);
        sum += vector_load_first(x + i, lanes) * vector_load_first(y + i, lanes);
    }
    return vector_sum(sum);
}

// The values of the gate of elements i .. i + lanes of head h, from its row of the projection.
INLINE vector gate_at(const Attention *a, const real *projection, int h, int i, int lanes) {
    switch (a->config.gate) {
    case GATE_ELEMENTWISE: return vector_sigmoid(vector_load_first(projection + a->gate_column + h * a->D + i, lanes));
    case GATE_HEADWISE: return vector_sigmoid(vector_all(projection[a->gate_column + h]));
    default: return vector_all(1);
    }
}

static void copy_rows(real *to, size_t to_stride, Rows from, int rows, int D) {
    for (int r = 0; r < rows; r++) {
        memcpy(to + r * to_stride, row(from, r), D * sizeof *to);
        memset(to + r * to_stride + D, 0, (to_stride - D) * sizeof *to);
    }
}

// ---- layouts ----

// The tile can read q, k, v and the gradient where they lie, unless D does not fill its columns or rows fall on the same lines of the
// cache. For many queries a copy, in which a head's rows follow each other, is cheaper in any case. Copies are made for some key-value
// heads of some sequences (units) at a time, which are worked on before the next are copied.
static int copies_rows(const Attention *a) {
    return a->D % TILE_COLUMNS != 0 || a->width * sizeof(real) % (CACHE_PERIOD / 2) == 0 || a->T >= COPY_FROM;
}

static size_t units_at_a_time(size_t units, size_t unit_bytes) { return smaller(units, larger(1, COPY_BYTES / larger(1, unit_bytes))); }

// What a call keeps beside its copies, for all units; in one place for attention_scratch. Sizes never fall when a dimension grows.
typedef struct ForwardScratch {
    real *prefix;                               // [B*K, panels, padded D]: affine's running sum of v before each panel of queries
    real *threads;                              // [threads, thread_size]
    size_t thread_size;
    real *keys, *values;                        // [units, keys, padded D], copies
    size_t units;                               // copied at a time
} ForwardScratch;

static ForwardScratch forward_layout(Layout *layout, int B, int T, int keys, int K, int D, int affine, int threads) {
    ForwardScratch s = { .thread_size = round_up((size_t)PANEL * D + FORWARD_KEYS * PANEL + (PANEL + 1) * padded(D), LANES) };
    const size_t unit_bytes = keys * padded(D) * sizeof(real);
    if (affine) s.prefix = layout_take(layout, (size_t)B * K * blocks_of(T, PANEL) * padded(D) * sizeof(real));
    s.threads = layout_take(layout, threads * s.thread_size * sizeof(real));
    s.units = units_at_a_time((size_t)B * K, 2 * unit_bytes);
    s.keys = layout_take(layout, larger(unit_bytes, smaller(COPY_BYTES / 2, B * K * unit_bytes)));
    s.values = layout_take(layout, larger(unit_bytes, smaller(COPY_BYTES / 2, B * K * unit_bytes)));
    return s;
}

// ---- products of tiles ----

// Rows are split into the fewest parts that a tile takes, of equal heights.
static int parts_of_rows(int rows) { return (int)((unsigned)(rows + TILE_ROWS - 1) / TILE_ROWS); }

// c [rows, columns] = a b, added to c where asked; a as PanelOfA says but of any number of rows; b's panels of TILE_COLUMNS b_panel apart
static void product(real *c, size_t c_stride, int add, PanelOfA a, const real *b, size_t b_stride, size_t b_panel, size_t columns,
                    size_t depth) {
    const size_t row_stride = a.columns_contiguous ? 1 : a.stride;
    PanelOfA panel = a;
    for (int rows = a.rows, parts = parts_of_rows(rows); parts > 0; parts--) {
        panel.rows = (rows + parts - 1) / parts;
        rows -= panel.rows;
        for (size_t j = 0; j < columns; j += TILE_COLUMNS) {
            const TileOutput out = { c + j, add ? c + j : NULL, NULL, c_stride };
            const real *b_at = b + j / TILE_COLUMNS * b_panel;
            if (columns - j >= TILE_COLUMNS) {
                sum_tile(&out, &panel, b_at, b_stride, depth);
            } else {
                sum_edge_tile(&out, &panel, columns - j, 0, b_at, b_stride, depth);
            }
        }
        panel.a += panel.rows * row_stride;
        c += panel.rows * c_stride;
    }
}

// ---- forward ----

// PANEL queries of one head, at positions first .. first + queries - 1; the other lanes hold zeros, whose results nobody reads.
typedef struct QueryPanel {
    const Attention *a;
    int b, h, t, first, queries;                // t: the first's index in the call
    Rows k, v;
    real *q;                                    // [D, PANEL], times scale
    real *logits;                               // [FORWARD_KEYS, PANEL]
    real *out;                                  // [PANEL, padded D]
    real *running;                              // [padded D]: affine's running sum of v
} QueryPanel;

static QueryPanel query_panel(const Attention *a, int b, int h, int t, Rows k, Rows v, real *memory) {
    QueryPanel p = { a, b, h, t, a->first_query + t, (int)smaller(PANEL, a->T - t), k, v, memory, NULL, NULL, NULL };
    p.logits = p.q + (size_t)PANEL * a->D;
    p.out = p.logits + FORWARD_KEYS * PANEL;
    p.running = p.out + PANEL * padded(a->D);
    const Rows q = query_rows(a, b, h);
    pack(p.q, PANEL, row(q, t), q.stride, 1, p.queries, a->D);
    for (int i = 0; i < PANEL * a->D; i += LANES) vector_store(p.q + i, vector_load(p.q + i) * (real)a->scale);
    return p;
}

// logits [keys, PANEL] of keys from `key` on; minus infinity where the key comes after the query
static void panel_logits(const QueryPanel *p, int key, int keys) {
    product(p->logits, PANEL, 0, (PanelOfA){ row(p->k, key), p->k.stride, keys, 0 }, p->q, PANEL, 0, PANEL, p->a->D);
    for (int v = 0; v < PANEL; v += LANES)
        for (int j = int_max(0, p->first + v + 1 - key); j < keys; j++) {      // the first of these comes after lane 0
            real *at = p->logits + j * PANEL + v;
            const vector early = vector_all((real)(key + j - p->first - v));
            vector_store(at, vector_choose(lane_numbers() < early, vector_all((real)-INFINITY), vector_load(at)));
        }
}

// A vector for each lane of a panel of queries.
typedef struct Lanes {
    vector part[TILE_VECTORS];
} Lanes;

INLINE Lanes lanes_all(real x) { return (Lanes){ { vector_all(x), vector_all(x) } }; }

// logits become exp(logits - largest); sum and largest so far are carried on. Returns what earlier sums are to be multiplied with.
// Not inlined, so that the constants of the exponential stay in registers.
static __attribute__((noinline)) Lanes panel_exponentials(real *logits, int keys, Lanes *largest, Lanes *sum) {
    const vector before0 = largest->part[0], before1 = largest->part[1];
    vector most0 = before0, most1 = before1, other0 = before0, other1 = before1, total0 = {0}, total1 = {0};
    real *x = logits;
    for (int j = 0; j < keys / 2; j++, x += 2 * PANEL) {
        most0 = vector_max(vector_load(x), most0);
        most1 = vector_max(vector_load(x + LANES), most1);
        other0 = vector_max(vector_load(x + PANEL), other0);
        other1 = vector_max(vector_load(x + PANEL + LANES), other1);
    }
    if (keys % 2) {
        other0 = vector_max(vector_load(x), other0);
        other1 = vector_max(vector_load(x + LANES), other1);
    }
    most0 = vector_max(most0, other0);
    most1 = vector_max(most1, other1);
    x = logits;
    for (int j = 0; j < keys; j++, x += PANEL) {
        const vector e0 = vector_exp_below(vector_load(x) - most0), e1 = vector_exp_below(vector_load(x + LANES) - most1);
        vector_store(x, e0);
        vector_store(x + LANES, e1);
        total0 += e0;
        total1 += e1;
    }
    const Lanes factor = { { vector_exp_below(before0 - most0), vector_exp_below(before1 - most1) } };
    *largest = (Lanes){ { most0, most1 } };
    *sum = (Lanes){ { sum->part[0] * factor.part[0] + total0, sum->part[1] * factor.part[1] + total1 } };
    return factor;
}

static void scale_rows(real *out, size_t columns, const Lanes *factor) {
    real factors[PANEL];
    for (int v = 0; v < TILE_VECTORS; v++) vector_store(factors + v * LANES, factor->part[v]);
    for (int i = 0; i < PANEL; i++) {
        if (factors[i] == 1) continue;                          // the running maximum seldom moves
        for (size_t d = 0; d < columns; d += LANES) vector_store(out + i * columns + d, vector_load(out + i * columns + d) * factors[i]);
    }
}

// out [PANEL, columns] += weights^T v, the weights as panel_exponentials left them; no query needs keys after itself
static void panel_values(const QueryPanel *p, int key, int keys, size_t columns) {
    for (int r = 0, parts = parts_of_rows(p->queries), count; parts > 0; parts--, r += count) {
        count = (p->queries - r + parts - 1) / parts;
        const int depth = int_min(keys, p->first + r + count - key);
        if (depth <= 0) continue;
        const PanelOfA weights = { p->logits + r, PANEL, count, 1 };
        product(p->out + r * columns, columns, key > 0, weights, row(p->v, key), p->v.stride, TILE_COLUMNS, columns, depth);
    }
}

// One query's row: y = alpha core + beta (running sum of v), out = gate y. core comes in as sums of weights, to be divided by their total.
static void scale_and_shift(real *out, real *core_or_null, const QueryPanel *p, int r, real total) {
    const Attention *a = p->a;
    const real *from = p->out + r * padded(a->D), inverse = 1 / total, *projection = projection_row(a, p->b, p->first + r);
    const int affine = attention_has_alpha(a->config);
    real alpha, beta;
    alpha_and_beta(&alpha, &beta, a, p->b, p->h, p->first + r);
    for (int d = 0; d < a->D; d += LANES) {
        const int lanes = lanes_left(a->D - d);
        vector y = vector_load(from + d) * inverse;
        if (core_or_null) vector_store_first(core_or_null + d, y, lanes);
        if (affine) y = alpha * y + beta * vector_load(p->running + d);
        vector_store_first(out + d, a->config.gate == GATE_NONE ? y : y * gate_at(a, projection, p->h, d, lanes), lanes);
    }
}

// running [padded D] += a row of v
static void add_value(real *running, const real *v, int D) {
    for (int d = 0; d < D; d += LANES) vector_store(running + d, vector_load(running + d) + vector_load_first(v + d, lanes_left(D - d)));
}

static void finish_panel(const QueryPanel *p, Compute *out, Compute *core_or_null, Real *stats, const Lanes *largest, const Lanes *sum) {
    real totals[PANEL], log_sums[PANEL];
    for (int v = 0; v < TILE_VECTORS; v++) {
        vector_store(totals + v * LANES, sum->part[v]);
        vector_store(log_sums + v * LANES, largest->part[v] + vector_log(sum->part[v]));
    }
    memcpy(reals(stats) + stat_at(p->a, p->b, p->h, p->t), log_sums, p->queries * sizeof *log_sums);
    for (int r = 0; r < p->queries; r++) {
        const size_t at = head_at(p->a, p->b, p->h, p->t + r);
        if (attention_has_alpha(p->a->config)) add_value(p->running, row(p->v, p->first + r), p->a->D);
        scale_and_shift(reals(out) + at, core_or_null ? reals(core_or_null) + at : NULL, p, r, totals[r]);
    }
}

static void attention_panel(const QueryPanel *p, Compute *out, Compute *core_or_null, Real *stats) {
    const size_t columns = padded(p->a->D);
    const real sink = sink_logit_of(p->a, p->h);
    Lanes largest = lanes_all(sink), sum = lanes_all(sink == -INFINITY ? 0 : 1);
    const int end = p->first + p->queries;
    for (int key = 0; key < end; key += FORWARD_KEYS) {
        const int keys = (int)smaller(FORWARD_KEYS, end - key);
        panel_logits(p, key, keys);
        const Lanes factor = panel_exponentials(p->logits, keys, &largest, &sum);
        if (key > 0) scale_rows(p->out, columns, &factor);
        panel_values(p, key, keys, columns);
    }
    finish_panel(p, out, core_or_null, stats, &largest, &sum);
}

// The running sum of v before each panel of queries of a unit.
static void value_prefix(real *prefix, const Attention *a, int b, int k) {
    const Rows v = value_rows(a, b, k);
    const size_t columns = padded(a->D);
    real *running = prefix;
    memset(running, 0, columns * sizeof *running);
    for (int j = 0; j < a->first_query; j++) add_value(running, row(v, j), a->D);
    for (int t = PANEL; t < a->T; t += PANEL) {
        memcpy(running + columns, running, columns * sizeof *running);
        running += columns;
        for (int j = t - PANEL; j < t; j++) add_value(running, row(v, a->first_query + j), a->D);
    }
}

// One call of attention.
typedef struct Forward {
    const Attention *a;
    const ForwardScratch *s;
    size_t columns, panels, key_blocks;         // padded D; of PANEL queries, of BLOCK keys
    size_t first_unit;                          // of those worked on
    int copy;                                   // whether k and v are copied
} Forward;

static real *copied_keys(const Forward *w, size_t unit) { return w->s->keys + (unit - w->first_unit) * keys_of(w->a) * w->columns; }
static real *copied_values(const Forward *w, size_t unit) { return w->s->values + (unit - w->first_unit) * keys_of(w->a) * w->columns; }

static void copy_key_block(const Forward *w, size_t unit, size_t block) {
    const Attention *a = w->a;
    const size_t j = block * BLOCK;
    const int b = (int)(unit / a->K), k = (int)(unit % a->K), count = (int)smaller(BLOCK, keys_of(a) - j);
    const Rows key = key_rows(a, b, k), value = value_rows(a, b, k);
    copy_rows(copied_keys(w, unit) + j * w->columns, w->columns, (Rows){ row(key, j), key.stride }, count, a->D);
    copy_rows(copied_values(w, unit) + j * w->columns, w->columns, (Rows){ row(value, j), value.stride }, count, a->D);
}

static void panel_task(const Forward *w, Compute *out, Compute *core_or_null, Real *stats, size_t unit, int h, size_t panel, real *memory) {
    const Attention *a = w->a;
    const int b = (int)(unit / a->K), k = (int)(unit % a->K);
    const Rows key = w->copy ? (Rows){ copied_keys(w, unit), w->columns } : key_rows(a, b, k);
    const Rows value = w->copy ? (Rows){ copied_values(w, unit), w->columns } : value_rows(a, b, k);
    const QueryPanel p = query_panel(a, b, h, (int)panel * PANEL, key, value, memory);
    const real *prefix = w->s->prefix + (unit * w->panels + panel) * w->columns;
    if (attention_has_alpha(a->config)) memcpy(p.running, prefix, w->columns * sizeof *prefix);
    attention_panel(&p, out, core_or_null, stats);
}

static void attention(Compute *out, Compute *core_or_null, Real *stats, const Attention *a) {
    const int keys = keys_of(a), group = group_of(a), affine = attention_has_alpha(a->config);
    const size_t units = (size_t)a->B * a->K;
    Layout layout = scratch_layout();
    const ForwardScratch s = forward_layout(&layout, a->B, a->T, keys, a->K, a->D, affine, thread_count);
    check_layout(&layout);
    Forward w = { a, &s, padded(a->D), blocks_of(a->T, PANEL), blocks_of(keys, BLOCK), 0, copies_rows(a) };
    const size_t at_a_time = w.copy ? s.units : units;
    for (; w.first_unit < units; w.first_unit += at_a_time) {
        const size_t first = w.first_unit, count = smaller(at_a_time, units - first), tasks = group * w.panels;
#pragma omp parallel num_threads(thread_count)
        {
#pragma omp for schedule(dynamic) nowait
            for (size_t u = first; u < (affine ? first + count : first); u++)
                value_prefix(s.prefix + u * w.panels * w.columns, a, (int)(u / a->K), (int)(u % a->K));
#pragma omp for schedule(dynamic)
            for (size_t i = 0; i < (w.copy ? count * w.key_blocks : 0); i++) copy_key_block(&w, first + i / w.key_blocks, i % w.key_blocks);
#pragma omp for schedule(dynamic)
            for (size_t i = 0; i < count * tasks; i++) {                        // the longest panels of a head first
                const size_t u = first + i / tasks;
                const int h = (int)(u % a->K) * group + (int)(i % tasks / w.panels);
                real *memory = s.threads + omp_get_thread_num() * s.thread_size;
                panel_task(&w, out, core_or_null, stats, u, h, w.panels - 1 - i % w.panels, memory);
            }
        }
    }
}

// ---- backward ----

// What backward keeps of a head of a sequence: of all of them, or of those of `units` at a time.
typedef struct BackwardScratch {
    real *prefix;                               // [B*K, blocks, padded D]: the running sum of v before each block of queries (affine)
    real *threads;
    size_t thread_size;
    double *sums;                               // [B*H, blocks, 2]: of alpha, and of the sink's gradient
    int *blocks_done;                           // [B*H, blocks]: blocks of keys that have added to dq of a block of queries
    real *D;                                    // [B*H, T]: d_core . core, which the softmax's gradient takes away
    real *keys, *queries;                       // [units (heads of them), T, padded D], copies
    real *d_core, *shift;                       // [heads of units, T, padded D]: alpha gate d_out, beta gate d_out
    real *shift_sums;                           // [heads of units, blocks, padded D]
    size_t units;
} BackwardScratch;

static BackwardScratch backward_layout(Layout *layout, int B, int T, int H, int K, int D, int affine, int threads) {
    const size_t heads = (size_t)B * H, blocks = blocks_of(T, BLOCK), columns = padded(D), group = blocks_of(H, larger(1, K));
    BackwardScratch s = { .thread_size = round_up((size_t)2 * BLOCK * D + 2 * BLOCK * BLOCK + (2 * BLOCK + 1) * columns, LANES) };
    if (affine) s.prefix = layout_take(layout, (size_t)B * K * blocks * columns * sizeof(real));
    s.threads = layout_take(layout, threads * s.thread_size * sizeof(real));
    s.sums = layout_take(layout, heads * blocks * 2 * sizeof(double));
    s.blocks_done = layout_take(layout, heads * blocks * sizeof(int));
    s.D = layout_take(layout, heads * T * sizeof(real));
    if (affine) s.shift_sums = layout_take(layout, heads * blocks * columns * sizeof(real));
    const size_t row_bytes = T * columns * sizeof(real), head_arrays = affine ? 3 : 2;
    const size_t unit_bytes = row_bytes * (1 + head_arrays * group), units = (size_t)B * K;
    s.units = units_at_a_time(units, unit_bytes);
    real *copies = layout_take(layout, larger(unit_bytes, smaller(COPY_BYTES, units * unit_bytes)));
    if (!copies) return s;
    s.keys = copies;
    s.queries = s.keys + s.units * T * columns;
    s.d_core = s.queries + s.units * group * T * columns;
    s.shift = affine ? s.d_core + s.units * group * T * columns : NULL;
    return s;
}

// One call of attention_backward.
typedef struct Backward {
    const Attention *a;
    real *d_projection;
    const real *d_out, *core, *stats;
    const BackwardScratch *s;
    size_t columns, blocks;                     // padded D; of BLOCK positions
    size_t first_unit;                          // of those worked on
    int copy;                                   // whether q and k are copied
    int own_d_core;                             // whether d_core differs from d_out, or is copied with q and k
} Backward;

// Where a head of the units worked on has its rows of a copy.
static size_t copied_head(const Backward *w, int b, int h) {
    return (((size_t)b * w->a->H + h) - w->first_unit * group_of(w->a)) * w->a->T * w->columns;
}
static size_t copied_unit(const Backward *w, int b, int k) { return ((size_t)b * w->a->K + k - w->first_unit) * w->a->T * w->columns; }

static Rows backward_queries(const Backward *w, int b, int h) {
    return w->copy ? (Rows){ w->s->queries + copied_head(w, b, h), w->columns } : query_rows(w->a, b, h);
}
static Rows backward_keys(const Backward *w, int b, int k) {
    return w->copy ? (Rows){ w->s->keys + copied_unit(w, b, k), w->columns } : key_rows(w->a, b, k);
}
static Rows backward_d_core(const Backward *w, int b, int h) {
    if (w->own_d_core) return (Rows){ w->s->d_core + copied_head(w, b, h), w->columns };
    return (Rows){ w->d_out + head_at(w->a, b, h, 0), (size_t)w->a->H * w->a->D };
}

// What leaves prepare_row beside gradients.
typedef struct RowSums {
    double alpha, sink;
} RowSums;

// Backward through gate, scale and shift for one query: the gradients of gate and alpha, d_core, shift, and D = d_core . core.
// running: the sum of v up to this query (affine).
static void prepare_row(const Backward *w, int b, int h, int t, const real *running, RowSums *sums) {
    const Attention *a = w->a;
    const size_t at = head_at(a, b, h, t), head = copied_head(w, b, h) + t * w->columns;
    const real *projection = projection_row(a, b, t), *core = w->core + at, *d_out = w->d_out + at;
    real *d_row = w->d_projection + ((size_t)b * a->T + t) * a->width, alpha, beta;
    alpha_and_beta(&alpha, &beta, a, b, h, t);
    vector with_core = {0}, with_running = {0}, with_gate = {0};
    for (int d = 0; d < a->D; d += LANES) {
        const int lanes = lanes_left(a->D - d);
        const vector gate = gate_at(a, projection, h, d, lanes);
        const vector o = vector_load_first(core + d, lanes), d_o = vector_load_first(d_out + d, lanes);
        const vector sum = running ? vector_load(running + d) : (vector){0}, d_y = d_o * gate;
        if (a->config.gate != GATE_NONE) {
            const vector d_gate = d_o * (running ? alpha * o + beta * sum : o) * gate * ((real)1 - gate);
            if (a->config.gate == GATE_ELEMENTWISE) vector_store_first(d_row + a->gate_column + h * a->D + d, d_gate, lanes);
            with_gate += d_gate;
        }
        with_core += d_y * o;
        if (running) with_running += d_y * sum;
        if (w->own_d_core) vector_store(w->s->d_core + head + d, running ? alpha * d_y : d_y);
        if (running) vector_store(w->s->shift + head + d, beta * d_y);
    }
    if (w->own_d_core)
        for (size_t d = round_up(a->D, LANES); d < w->columns; d += LANES) vector_store(w->s->d_core + head + d, (vector){0});
    const real core_sum = vector_sum(with_core), D = alpha * core_sum, sink = sink_logit_of(a, h);
    w->s->D[stat_at(a, b, h, t)] = D;
    if (a->config.gate == GATE_HEADWISE) d_row[a->gate_column + h] = vector_sum(with_gate);
    if (sink != -INFINITY) sums->sink -= (double)real_exp(sink - w->stats[stat_at(a, b, h, t)]) * D;
    sums->alpha += alpha;
    if (!running) return;
    const real d_alpha = core_sum - vector_sum(with_running) * affine_inverse_n(a->config, t);
    d_row[a->alpha_column + h] = d_alpha * affine_alpha_slope(a->config, projection[a->alpha_column + h]);
}

// One block of queries of one head: prepare_row for each, copies, and what is summed over the block. running [padded D] is the thread's.
static void prepare_block(const Backward *w, int b, int h, int block, real *running) {
    const Attention *a = w->a;
    const int affine = attention_has_alpha(a->config), k = h / group_of(a), first = block * BLOCK, count = int_min(BLOCK, a->T - first);
    const size_t head_block = ((size_t)b * a->H + h) * w->blocks + block;
    const Rows v = value_rows(a, b, k), q = query_rows(a, b, h), key = key_rows(a, b, k);
    RowSums sums = {0};
    if (affine) memcpy(running, w->s->prefix + (((size_t)b * a->K + k) * w->blocks + block) * w->columns, w->columns * sizeof *running);
    for (int t = first; t < first + count; t++) {
        if (affine) add_value(running, row(v, t), a->D);
        prepare_row(w, b, h, t, affine ? running : NULL, &sums);
        if (h > 0) continue;
        const int added = attention_gate_columns(a->config, a->H, a->D) + attention_alpha_columns(a->config, a->H);
        const int used = (a->H + 2 * a->K) * a->D + added;
        memset(w->d_projection + ((size_t)b * a->T + t) * a->width + used, 0, (a->width - used) * sizeof(real));
    }
    w->s->sums[2 * head_block] = sums.alpha;
    w->s->sums[2 * head_block + 1] = sums.sink;
    w->s->blocks_done[head_block] = 0;
    if (w->copy) {
        real *queries = w->s->queries + copied_head(w, b, h) + first * w->columns;
        real *keys = w->s->keys + copied_unit(w, b, k) + first * w->columns;
        copy_rows(queries, w->columns, (Rows){ row(q, first), q.stride }, count, a->D);
        if (h % group_of(a) == 0) copy_rows(keys, w->columns, (Rows){ row(key, first), key.stride }, count, a->D);
    }
    if (!affine) return;
    real *shift_sum = w->s->shift_sums + head_block * w->columns;
    memset(shift_sum, 0, w->columns * sizeof *shift_sum);
    for (int t = first; t < first + count; t++) add_value(shift_sum, w->s->shift + copied_head(w, b, h) + t * w->columns, a->D);
}

// One task: BLOCK keys of one unit, from `first` on.
typedef struct KeyBlock {
    int b, k, block, first, keys;
    real *k_turned, *v_turned;                  // [BLOCK / PANEL, D, PANEL]
    real *P, *d_z;                              // [BLOCK queries, BLOCK]
    real *d_k, *d_v;                            // [BLOCK, padded D]
    real *suffix;                               // [padded D]
} KeyBlock;

static KeyBlock key_block(const Backward *w, int b, int k, int block, real *memory) {
    const Attention *a = w->a;
    const size_t turned = (size_t)BLOCK * a->D;
    const int first = block * BLOCK;
    KeyBlock t = { .b = b, .k = k, .block = block, .first = first, .keys = int_min(BLOCK, a->T - first), .k_turned = memory };
    t.v_turned = t.k_turned + turned;
    t.P = t.v_turned + turned;
    t.d_z = t.P + BLOCK * BLOCK;
    t.d_k = t.d_z + BLOCK * BLOCK;
    t.d_v = t.d_k + BLOCK * w->columns;
    t.suffix = t.d_v + BLOCK * w->columns;
    const Rows key = key_rows(a, b, k), value = value_rows(a, b, k);
    for (int j = 0; j < t.keys; j += PANEL) {
        pack(t.k_turned + j * a->D, PANEL, row(key, t.first + j), key.stride, 1, smaller(PANEL, t.keys - j), a->D);
        pack(t.v_turned + j * a->D, PANEL, row(value, t.first + j), value.stride, 1, smaller(PANEL, t.keys - j), a->D);
    }
    return t;
}

// P = exp(z - lse) and d_z = P (d_P - D) scale for a row of `columns` keys, of which those from `allowed` on are after the query. z and
// d_P lie where P and d_z will.
static __attribute__((noinline)) void softmax_backward_row(real *P, real *d_z, int columns, int allowed, real scale, real lse, real D) {
    for (int j = 0; j < columns; j += LANES) {
        if (j >= allowed) {
            vector_store(P + j, (vector){0});
            vector_store(d_z + j, (vector){0});
            continue;
        }
        const vector p = vector_exp_below(vector_load(P + j) * scale - lse), d = p * (vector_load(d_z + j) - D) * scale;
        vector_store(P + j, p);
        vector_store(d_z + j, d);
        for (int l = allowed - j; l < LANES; l++) P[j + l] = d_z[j + l] = 0;
    }
}

// Waits until the blocks of keys before this one have added to dq of a block of queries. They were begun before, so that it cannot be
// for ever.
static void wait_for_turn(const int *blocks_done, int turn) {
    for (int tries = 0; __atomic_load_n(blocks_done, __ATOMIC_ACQUIRE) != turn;) {
        if (tries < 100) {
            tries++;
        } else {
            sched_yield();
        }
    }
}

// What one block of queries of one head gives to the keys of a task and gets from them.
static void backward_tile(const Backward *w, const KeyBlock *t, int h, int block, int first_of_task) {
    const Attention *a = w->a;
    const int i = block * BLOCK, queries = int_min(BLOCK, a->T - i), keys = (int)round_up(t->keys, PANEL), diagonal = block == t->block;
    const Rows q = backward_queries(w, t->b, h), d_core = backward_d_core(w, t->b, h), k = backward_keys(w, t->b, t->k);
    for (int j = 0; j < keys; j += PANEL) {                     // on the diagonal the first rows have nothing to do with the last keys
        const int skip = diagonal ? j : 0;
        if (skip >= queries) break;
        const PanelOfA some_q = { row(q, i + skip), q.stride, queries - skip, 0 };
        const PanelOfA some_d = { row(d_core, i + skip), d_core.stride, queries - skip, 0 };
        product(t->P + skip * BLOCK + j, BLOCK, 0, some_q, t->k_turned + j * a->D, PANEL, 0, PANEL, a->D);
        product(t->d_z + skip * BLOCK + j, BLOCK, 0, some_d, t->v_turned + j * a->D, PANEL, 0, PANEL, a->D);
    }
    for (int r = 0; r < queries; r++) {
        const size_t at = stat_at(a, t->b, h, i + r);
        const int allowed = diagonal ? r + 1 : t->keys;
        softmax_backward_row(t->P + r * BLOCK, t->d_z + r * BLOCK, keys, allowed, (real)a->scale, w->stats[at], w->s->D[at]);
    }
    for (int j = 0, parts = parts_of_rows(t->keys), count; parts > 0; parts--, j += count) {        // keys j: only queries from j on
        count = (t->keys - j + parts - 1) / parts;
        const int skip = diagonal ? j : 0, n = queries - skip;
        const PanelOfA some_P = { t->P + skip * BLOCK + j, BLOCK, count, 1 }, some_d_z = { t->d_z + skip * BLOCK + j, BLOCK, count, 1 };
        real *d_v = t->d_v + j * w->columns, *d_k = t->d_k + j * w->columns;
        product(d_v, w->columns, !first_of_task, some_P, row(d_core, i + skip), d_core.stride, TILE_COLUMNS, w->columns, n);
        product(d_k, w->columns, !first_of_task, some_d_z, row(q, i + skip), q.stride, TILE_COLUMNS, w->columns, n);
    }
    int *done = &w->s->blocks_done[((size_t)t->b * a->H + h) * w->blocks + block];
    wait_for_turn(done, t->block);
    real *d_q = w->d_projection + ((size_t)t->b * a->T + i) * a->width + h * a->D;
    product(d_q, a->width, t->block > 0, (PanelOfA){ t->d_z, BLOCK, queries, 0 }, row(k, t->first), k.stride, TILE_COLUMNS, a->D, t->keys);
    __atomic_store_n(done, t->block + 1, __ATOMIC_RELEASE);
}

// d_v += the suffix sums of shift: those of the blocks after this one, then this block's from its end
static void add_suffix(const Backward *w, const KeyBlock *t, int h) {
    const Attention *a = w->a;
    const real *sums = w->s->shift_sums + ((size_t)t->b * a->H + h) * w->blocks * w->columns;
    const real *shift = w->s->shift + copied_head(w, t->b, h);
    real *suffix = t->suffix;
    memset(suffix, 0, w->columns * sizeof *suffix);
    for (size_t block = w->blocks - 1; block > (size_t)t->block; block--) add_value(suffix, sums + block * w->columns, a->D);
    for (int j = t->keys - 1; j >= 0; j--) {
        add_value(suffix, shift + (t->first + j) * w->columns, a->D);
        add_value(t->d_v + j * w->columns, suffix, a->D);
    }
}

static void backward_task(const Backward *w, int b, int k, int block, real *memory) {
    const Attention *a = w->a;
    const KeyBlock t = key_block(w, b, k, block, memory);
    const int first_head = k * group_of(a);
    for (int h = first_head; h < first_head + group_of(a); h++)
        for (int i = block; i < (int)w->blocks; i++) backward_tile(w, &t, h, i, h == first_head && i == block);
    for (int h = first_head; h < first_head + group_of(a) && attention_has_alpha(a->config); h++) add_suffix(w, &t, h);
    for (int j = 0; j < t.keys; j++) {
        real *d_row = w->d_projection + ((size_t)b * a->T + t.first + j) * a->width;
        memcpy(d_row + a->key_column + k * a->D, t.d_k + j * w->columns, a->D * sizeof(real));
        memcpy(d_row + a->value_column + k * a->D, t.d_v + j * w->columns, a->D * sizeof(real));
    }
}

// The running sum of v before each block of a unit.
static void block_prefix(const Backward *w, int b, int k) {
    const Attention *a = w->a;
    const Rows v = value_rows(a, b, k);
    real *running = w->s->prefix + ((size_t)b * a->K + k) * w->blocks * w->columns;
    memset(running, 0, w->columns * sizeof *running);
    for (int j = BLOCK; j < a->T; j += BLOCK) {
        memcpy(running + w->columns, running, w->columns * sizeof *running);
        running += w->columns;
        for (int i = j - BLOCK; i < j; i++) add_value(running, row(v, i), a->D);
    }
}

static void add_head_sums(const Backward *w, real *d_sinks_or_null, double *alpha_sum_or_null, int h) {
    double sink = 0;
    for (int b = 0; b < w->a->B; b++)
        for (size_t block = 0; block < w->blocks; block++) {
            const double *sums = w->s->sums + 2 * (((size_t)b * w->a->H + h) * w->blocks + block);
            if (alpha_sum_or_null) alpha_sum_or_null[h] += sums[0];
            sink += sums[1];
        }
    if (d_sinks_or_null) d_sinks_or_null[h] += (real)sink;
}

static void attention_backward(Compute *d_projection, Real *d_sinks_or_null, double *alpha_sum_or_null, const Compute *d_out,
                               const Compute *out, const Compute *core_or_null, const Real *stats, const Attention *a) {
    const int group = group_of(a), affine = attention_has_alpha(a->config);
    const size_t units = (size_t)a->B * a->K;
    Layout layout = scratch_layout();
    const BackwardScratch s = backward_layout(&layout, a->B, a->T, a->H, a->K, a->D, affine, thread_count);
    check_layout(&layout);
    Backward w = { .a = a, .d_projection = reals(d_projection), .d_out = const_reals(d_out), .stats = const_reals(stats), .s = &s,
                   .core = const_reals(core_or_null ? core_or_null : out), .columns = padded(a->D), .blocks = blocks_of(a->T, BLOCK),
                   .copy = copies_rows(a) };
    w.own_d_core = w.copy || attention_keeps_core(a->config);
    const size_t at_a_time = w.copy || w.own_d_core ? s.units : units;
    for (; w.first_unit < units; w.first_unit += at_a_time) {
        const size_t count = smaller(at_a_time, units - w.first_unit);
        size_t next = 0;                                        // the task to begin next: in order, as wait_for_turn needs
#pragma omp parallel num_threads(thread_count)
        {
            real *memory = s.threads + omp_get_thread_num() * s.thread_size;
            if (affine) {
#pragma omp for schedule(dynamic)
                for (size_t u = w.first_unit; u < w.first_unit + count; u++) block_prefix(&w, (int)(u / a->K), (int)(u % a->K));
            }
#pragma omp for schedule(dynamic)
            for (size_t i = 0; i < count * group * w.blocks; i++) {
                const size_t head = w.first_unit * group + i / w.blocks;
                prepare_block(&w, (int)(head / a->H), (int)(head % a->H), (int)(i % w.blocks), memory);
            }
            for (size_t i; (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < count * w.blocks;) {
                const size_t u = w.first_unit + i % count;
                backward_task(&w, (int)(u / a->K), (int)(u % a->K), (int)(i / count), memory);
            }
        }
    }
    for (int h = 0; h < a->H; h++) add_head_sums(&w, reals(d_sinks_or_null), alpha_sum_or_null, h);
}

// ---- diagnostics ----

typedef struct DiagnoseScratch {
    real *threads;
    size_t thread_size;
    double *parts;                              // [B*H, panels, DIAGNOSE_SIZE]
} DiagnoseScratch;

static DiagnoseScratch diagnose_layout(Layout *layout, int B, int T, int H, int D, int threads) {
    DiagnoseScratch s = { .thread_size = round_up((size_t)PANEL * D + FORWARD_KEYS * PANEL, LANES) };
    s.threads = layout_take(layout, threads * s.thread_size * sizeof(real));
    s.parts = layout_take(layout, (size_t)B * H * blocks_of(T, PANEL) * DIAGNOSE_SIZE * sizeof(double));
    return s;
}

// Bin of x, in bins 1/32 wide from `edge` on; what lies outside, and a NaN, counts in the first or last.
static int bin_of(double x, double edge, int bins) {
    const double place = (x - edge) * 32;
    return !(place > 0) ? 0 : place >= bins ? bins - 1 : (int)place;
}

// What is summed over the keys of each query of a panel.
typedef struct LogitSums {
    double z[PANEL], z2[PANEL], Pz[PANEL], first[PANEL];
} LogitSums;

// Adds a block of keys: real sums over the block, carried on in double. after: how many keys of the block come before the panel's first
// query, and it; each further one comes after one more lane, whose logit is minus infinity.
static void add_logit_sums(LogitSums *sums, const real *logits, int key, int keys, int after, const real *lse) {
    for (int v = 0; v < PANEL; v += LANES) {
        const vector log_sum = vector_load(lse + v), lanes = lane_numbers() + (real)v;
        vector z_sum = {0}, z2_sum = {0}, Pz_sum = {0}, first = {0};
        for (int j = 0; j < keys; j++) {
            const vector logit = vector_load(logits + j * PANEL + v), P = vector_exp_below(logit - log_sum);
            const vector z = j < after ? logit : vector_choose(lanes > (real)(j - after), logit, (vector){0});
            if (j == 0) first = P;
            z_sum += z;
            z2_sum += z * z;
            Pz_sum += P * z;
        }
        for (int l = 0; l < LANES; l++) {
            sums->z[v + l] += (double)z_sum[l];
            sums->z2[v + l] += (double)z2_sum[l];
            sums->Pz[v + l] += (double)Pz_sum[l];
            if (key == 0) sums->first[v + l] = (double)first[l];
        }
    }
}

static double gate_mean(const QueryPanel *p, int r) {
    const Attention *a = p->a;
    const real *projection = projection_row(a, p->b, p->first + r);
    double sum = 0;
    if (a->config.gate == GATE_NONE) return 1;
    if (a->config.gate == GATE_HEADWISE) return (double)sigmoid(projection[a->gate_column + p->h]);
    for (int d = 0; d < a->D; d++) sum += (double)sigmoid(projection[a->gate_column + p->h * a->D + d]);
    return sum / a->D;
}

static void diagnose_query(double *part, const QueryPanel *p, int r, const LogitSums *sums, double lse) {
    const Attention *a = p->a;
    const int i = p->first + r;
    const double sink = (double)sink_logit_of(a, p->h), sink_mass = sink == -INFINITY ? 0 : exp(sink - lse);
    real alpha, beta;
    alpha_and_beta(&alpha, &beta, a, p->b, p->h, i);
    const real alpha_ma = a->alpha_ma ? const_reals(a->alpha_ma)[p->h] : 0;
    const double row_sum = (double)attention_row_sum(a->config, alpha, alpha_ma, (real)sink_mass, i);
    part[DIAGNOSE_ROWS] += 1;
    part[DIAGNOSE_PAIRS] += i + 1;
    part[DIAGNOSE_Z] += sums->z[r];
    part[DIAGNOSE_Z2] += sums->z2[r];
    part[DIAGNOSE_FIRST] += (double)alpha * sums->first[r] + (double)beta;
    part[DIAGNOSE_ROW_SUM] += row_sum;
    part[DIAGNOSE_ROW_SUM2] += row_sum * row_sum;
    part[DIAGNOSE_ROW_SUM_BINS + bin_of(row_sum, -0.5 - 1 / 64.0, ROW_SUM_BINS)] += 1;
    part[DIAGNOSE_ENTROPY] += lse - sums->Pz[r] - (sink_mass == 0 ? 0 : sink_mass * sink);
    part[DIAGNOSE_SINK] += sink_mass;
    part[DIAGNOSE_GATE] += gate_mean(p, r);
    if (!attention_has_alpha(a->config)) return;
    part[DIAGNOSE_ALPHA] += (double)alpha;
    part[DIAGNOSE_ALPHA2] += (double)alpha * (double)alpha;
    part[DIAGNOSE_ALPHA_AT_0] += alpha == 0;
    part[DIAGNOSE_ALPHA_AT_1] += alpha == 1;
    part[DIAGNOSE_ALPHA_MA] += (double)alpha_ma;
    part[DIAGNOSE_ALPHA_BINS + bin_of((double)alpha, 0, ALPHA_BINS)] += 1;
}

static void diagnose_panel(double *part, const Real *stats, const QueryPanel *p) {
    LogitSums sums = { .z = {0} };
    real lse[PANEL] = {0};
    const int end = p->first + p->queries;
    memcpy(lse, const_reals(stats) + stat_at(p->a, p->b, p->h, p->t), p->queries * sizeof *lse);
    memset(part, 0, DIAGNOSE_SIZE * sizeof *part);
    for (int key = 0; key < end; key += FORWARD_KEYS) {
        const int keys = (int)smaller(FORWARD_KEYS, end - key);
        panel_logits(p, key, keys);
        add_logit_sums(&sums, p->logits, key, keys, p->first + 1 - key, lse);
    }
    for (int r = 0; r < p->queries; r++) diagnose_query(part, p, r, &sums, (double)lse[r]);
}

static void attention_diagnose(double *sums, const Real *stats, const Attention *a) {
    const size_t panels = blocks_of(a->T, PANEL), heads = (size_t)a->B * a->H;
    Layout layout = scratch_layout();
    const DiagnoseScratch s = diagnose_layout(&layout, a->B, a->T, a->H, a->D, thread_count);
    check_layout(&layout);
#pragma omp parallel num_threads(thread_count)
    {
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < heads * panels; i++) {
            const int b = (int)(i / panels / a->H), h = (int)(i / panels % a->H), k = h / group_of(a);
            const int t = (int)(panels - 1 - i % panels) * PANEL;
            real *memory = s.threads + omp_get_thread_num() * s.thread_size;
            const QueryPanel p = query_panel(a, b, h, t, key_rows(a, b, k), value_rows(a, b, k), memory);
            diagnose_panel(s.parts + i * DIAGNOSE_SIZE, stats, &p);
        }
#pragma omp for schedule(static)
        for (int h = 0; h < a->H; h++)
            for (size_t b = 0; b < (size_t)a->B; b++)
                for (size_t panel = 0; panel < panels; panel++)
                    for (int i = 0; i < DIAGNOSE_SIZE; i++)
                        sums[(size_t)h * DIAGNOSE_SIZE + i] += s.parts[((b * a->H + h) * panels + panel) * DIAGNOSE_SIZE + i];
    }
}

static void attention_weights(Real *weights, const Real *stats, const Attention *a, int sequence, int head, int query, int count) {
    const int keys = keys_of(a);
    const Rows q = query_rows(a, sequence, head), k = key_rows(a, sequence, head / group_of(a));
#pragma omp parallel for schedule(dynamic) num_threads(thread_count)
    for (int r = 0; r < count; r++) {
        const int t = query + r, i = a->first_query + t;
        const real lse = const_reals(stats)[stat_at(a, sequence, head, t)];
        real alpha, beta, *to = reals(weights) + (size_t)r * keys;
        alpha_and_beta(&alpha, &beta, a, sequence, head, i);
        for (int j = 0; j < keys; j++)
            to[j] = j > i ? 0 : alpha * real_exp((real)a->scale * dot(row(q, t), row(k, j), a->D) - lse) + beta;
    }
}

static size_t attention_scratch(const Limits *limits, int threads) {
    const Limits *l = limits;
    Layout forward = { NULL, 0 }, backward = { NULL, 0 }, diagnose = { NULL, 0 };
    forward_layout(&forward, l->B, l->T, l->T, l->K, l->D, 1, threads);
    backward_layout(&backward, l->B, l->T, l->H, l->K, l->D, 1, threads);
    diagnose_layout(&diagnose, l->B, l->T, l->H, l->D, threads);
    return larger(forward.used, larger(backward.used, diagnose.used));
}
