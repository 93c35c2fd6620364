// Matrix products: c[m,n] = sum over k of a[m,k] b[k,n], for y = x weight^T and both of its gradients. Part of device.c.
//
// The design is BLIS's, turned to these shapes. A register tile of up to TILE_ROWS x TILE_COLUMNS of c is summed over a block of k: a
// broadcast element of a times a row of b, one after another. A slab of b is packed first, by all threads together, into panels of
// TILE_COLUMNS columns in which that loop reads straight on, the last one filled up with zeros. The rows of a are split into equal
// panels of at most TILE_ROWS, so that none is thin. Where b has many columns each thread packs the panel of a that it works on; where
// there are few that would not pay, and the tile reads a as it lies. Packing turns a matrix over where it must, so all three products
// run through the same tile.
//
// Threads take panels of a (by groups of b's panels) from a grid that depends on shapes alone. Blocks of k follow each other, so that
// c's sums run in one order. Two buffers alternate: a thread that finds no more work in a block goes on packing the next.

#if VECTOR_BYTES == 64
#define TILE_ROWS 14
#elif VECTOR_BYTES == 32 || !defined(__aarch64__)
#define TILE_ROWS 6                             // 16 vector registers
#else
#define TILE_ROWS 14
#endif

enum {
    TILE_VECTORS = 2,
    TILE_COLUMNS = TILE_VECTORS * LANES,
    DEPTH = 256 / (sizeof(real) / sizeof(float)),   // most of k at a time: a panel of a stays in the first cache
    SLAB_COLUMNS = 1024,                        // most columns of b at a time: a packed slab stays in the second cache
    ENOUGH_TASKS = 48,                          // a block is divided along b too, to have so many
    DIRECT_COLUMNS = 512,                       // of b: up to so many a's columns are read as they lie
    DIRECT_ROWS = 512, DIRECT_STRIDE = SLAB_COLUMNS,    // of a, of b: up to so many and so much b is
    CACHE_PERIOD = 4096,                        // rows of a a multiple of so many bytes apart fall on the same lines of the first cache
};

typedef enum { FINISH_NOTHING, FINISH_GELU, FINISH_GELU_SLOPE } Finish;

typedef struct Product {
    size_t M, N, K;
    const real *a, *b;                          // one stride of each is 1
    size_t a_row, a_k, b_k, b_column;
    real *c;                                    // [M,N]
    const real *add;                            // [M,N] to add, c itself to accumulate, or NULL
    const real *bias;                           // [bias_width] to add to the first columns, or NULL
    size_t bias_width;
    Finish finish;
    real *gelu_input;                           // [M,N]: FINISH_GELU keeps there what it is applied to; FINISH_GELU_SLOPE reads it
    real *a_sums;                               // [a_sums_count]: += the sum over k of a[m,:] for the first m, or NULL
    size_t a_sums_count;
} Product;

// ---- the tile ----

// What is added to the sums on their way to memory; strides in reals.
typedef struct TileOutput {
    real *c;
    const real *add_or_null, *bias_or_null;     // bias: TILE_COLUMNS of it
    size_t stride;                              // of c and add
} TileOutput;

#define FOR_1(DO) DO(0)
#define FOR_2(DO) FOR_1(DO) DO(1)
#define FOR_3(DO) FOR_2(DO) DO(2)
#define FOR_4(DO) FOR_3(DO) DO(3)
#define FOR_5(DO) FOR_4(DO) DO(4)
#define FOR_6(DO) FOR_5(DO) DO(5)
#define FOR_7(DO) FOR_6(DO) DO(6)
#define FOR_8(DO) FOR_7(DO) DO(7)
#define FOR_9(DO) FOR_8(DO) DO(8)
#define FOR_10(DO) FOR_9(DO) DO(9)
#define FOR_11(DO) FOR_10(DO) DO(10)
#define FOR_12(DO) FOR_11(DO) DO(11)
#define FOR_13(DO) FOR_12(DO) DO(12)
#define FOR_14(DO) FOR_13(DO) DO(13)

// Accumulators are variables of their own, written out by the preprocessor: an array of them might stay in memory.
#define TILE_ZERO(r) vector left##r = {0}, right##r = {0};
#define TILE_MULTIPLY(r, element)                   \
    {                                               \
        const vector x = vector_all(element);       \
        left##r += x * b_left;                      \
        right##r += x * b_right;                    \
    }
#define TILE_MULTIPLY_COLUMN(r) TILE_MULTIPLY(r, a[r])
#define ROW_OF_A(r) ((r) < 3 ? a0 : (r) < 6 ? a3 : (r) < 9 ? a6 : (r) < 12 ? a9 : a12)[(r) % 3 * a_stride]
#define TILE_MULTIPLY_ROWS(r) TILE_MULTIPLY(r, ROW_OF_A(r))
#define TILE_BIAS(r) left##r += bias_left, right##r += bias_right;
#define TILE_ADD(r)                                                         \
    left##r += vector_load(out->add_or_null + (r) * out->stride);           \
    right##r += vector_load(out->add_or_null + (r) * out->stride + LANES);
#define TILE_STORE(r)                                                       \
    vector_store(out->c + (r) * out->stride, left##r);                      \
    vector_store(out->c + (r) * out->stride + LANES, right##r);
#define TILE_FINISH(ROWS)                                                                                               \
    if (out->bias_or_null) {                                                                                            \
        const vector bias_left = vector_load(out->bias_or_null), bias_right = vector_load(out->bias_or_null + LANES);   \
        FOR_##ROWS(TILE_BIAS)                                                                                           \
    }                                                                                                                   \
    if (out->add_or_null) {                                                                                             \
        FOR_##ROWS(TILE_ADD)                                                                                            \
    }                                                                                                                   \
    FOR_##ROWS(TILE_STORE)

// c [ROWS, TILE_COLUMNS] = sum over k of a[k,ROWS] b[k,TILE_COLUMNS] + add + bias, b packed. Of a, either the columns are contiguous,
// a_stride apart, as packed ones are; or its rows are: their addresses are kept as those of every third, which the processor adds one or
// two strides to.
#define DEFINE_TILE(ROWS)                                                                                               \
    static void columns_tile_##ROWS(const TileOutput *out, const real *a, size_t a_stride, const real *b, size_t b_stride, size_t depth) { \
        FOR_##ROWS(TILE_ZERO)                                                                                           \
        for (size_t k = 0; k < depth; k++, a += a_stride, b += b_stride) {                                          \
            const vector b_left = vector_load(b), b_right = vector_load(b + LANES);                                     \
            FOR_##ROWS(TILE_MULTIPLY_COLUMN)                                                                            \
        }                                                                                                               \
        TILE_FINISH(ROWS)                                                                                               \
    }                                                                                                                   \
    static void rows_tile_##ROWS(const TileOutput *out, const real *a, size_t a_stride, const real *b, size_t b_stride, size_t depth) { \
        FOR_##ROWS(TILE_ZERO)                                                                                           \
        const real *a0 = a, *a3 = a0 + 3 * a_stride, *a6 = a3 + 3 * a_stride, *a9 = a6 + 3 * a_stride, *a12 = a9 + 3 * a_stride; \
        for (size_t k = 0; k < depth; k++, b += b_stride) {                                                             \
            const vector b_left = vector_load(b), b_right = vector_load(b + LANES);                                     \
            FOR_##ROWS(TILE_MULTIPLY_ROWS)                                                                              \
            a0++, a3++, a6++, a9++, a12++;                                                                              \
        }                                                                                                               \
        TILE_FINISH(ROWS)                                                                                               \
    }

typedef void Tile(const TileOutput *out, const real *a, size_t a_stride, const real *b, size_t b_stride, size_t depth);

DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(3)
DEFINE_TILE(4)
DEFINE_TILE(5)
DEFINE_TILE(6)
#if TILE_ROWS == 14
DEFINE_TILE(7)
DEFINE_TILE(8)
DEFINE_TILE(9)
DEFINE_TILE(10)
DEFINE_TILE(11)
DEFINE_TILE(12)
DEFINE_TILE(13)
DEFINE_TILE(14)
#endif

#if TILE_ROWS == 14
#define TILES_FROM_7(KIND) , KIND##7, KIND##8, KIND##9, KIND##10, KIND##11, KIND##12, KIND##13, KIND##14
#else
#define TILES_FROM_7(KIND)
#endif
#define TILES(KIND) { NULL, KIND##1, KIND##2, KIND##3, KIND##4, KIND##5, KIND##6 TILES_FROM_7(KIND) }
static Tile *const columns_tiles[TILE_ROWS + 1] = TILES(columns_tile_), *const rows_tiles[TILE_ROWS + 1] = TILES(rows_tile_);

// A panel of a: contiguous are its columns, the rows' elements of one k, or its rows; the others are `stride` apart.
typedef struct PanelOfA {
    const real *a;
    size_t stride;
    int rows, columns_contiguous;
} PanelOfA;

static void sum_tile(const TileOutput *out, const PanelOfA *panel, const real *b, size_t b_stride, size_t depth) {
    (panel->columns_contiguous ? columns_tiles : rows_tiles)[panel->rows](out, panel->a, panel->stride, b, b_stride, depth);
}

// A tile at the right edge goes through memory of its own.
static void sum_edge_tile(const TileOutput *out, const PanelOfA *panel, size_t columns, size_t bias_columns, const real *b, size_t b_stride,
                          size_t depth) {
    real whole[TILE_ROWS * TILE_COLUMNS];
    sum_tile(&(TileOutput){ .c = whole, .stride = TILE_COLUMNS }, panel, b, b_stride, depth);
    for (int r = 0; r < panel->rows; r++)
        for (size_t j = 0; j < columns; j++) {
            real sum = whole[r * TILE_COLUMNS + j];
            if (out->bias_or_null && j < bias_columns) sum += out->bias_or_null[j];
            if (out->add_or_null) sum += out->add_or_null[r * out->stride + j];
            out->c[r * out->stride + j] = sum;
        }
}

// ---- packing: to[k * width + i] = from[i * stride_i + k * stride_k], 0 from i = count on ----
// What a store writes past `width` belongs to the next k, which is written later; panels end with LANES to spare.

static void pack_straight(real *to, size_t width, const real *from, size_t stride_k, size_t count, size_t depth) {
    for (size_t k = 0; k < depth; k++, from += stride_k, to += width)
        for (size_t i = 0; i < width; i += LANES) {
            vector x = {0};
            if (i < count) x = vector_load_first(from + i, lanes_left(count - i));
            vector_store(to + i, x);
        }
}

// LANES lines of `from` become LANES columns of a panel. Not inlined: the compiler would keep all the lines' addresses in memory.
static __attribute__((noinline)) void turn_block(real *to, size_t width, const real *from, size_t stride_i) {
    vector lines[LANES];
    for (int l = 0; l < LANES; l++) lines[l] = vector_load(from + l * stride_i);
    vector_transpose(lines);
    for (int l = 0; l < LANES; l++) vector_store(to + l * width, lines[l]);
}

static void turn_part_of_block(real *to, size_t width, const real *from, size_t stride_i, int count, int depth) {
    vector lines[LANES];
    for (int l = 0; l < LANES; l++) lines[l] = l < count ? vector_load_first(from + l * stride_i, depth) : (vector){0};
    vector_transpose(lines);
    for (int l = 0; l < depth; l++) vector_store(to + l * width, lines[l]);
}

static void pack_turned(real *to, size_t width, const real *from, size_t stride_i, size_t count, size_t depth) {
    for (size_t i = round_up(width, LANES); i > 0;) {                          // the last lines first: only their stores go past the width
        i -= LANES;
        const size_t lines = i < count ? smaller(count - i, LANES) : 0;
        for (size_t k = 0; k < depth; k += LANES)
            if (lines == LANES && depth - k >= LANES) {
                turn_block(to + k * width + i, width, from + i * stride_i + k, stride_i);
            } else {
                turn_part_of_block(to + k * width + i, width, from + i * stride_i + k, stride_i, (int)lines, lanes_left(depth - k));
            }
    }
}

static void pack(real *to, size_t width, const real *from, size_t stride_i, size_t stride_k, size_t count, size_t depth) {
    if (stride_i == 1) {
        pack_straight(to, width, from, stride_k, count, depth);
    } else {
        pack_turned(to, width, from, stride_i, count, depth);
    }
}

// ---- blocks ----

// n split into the fewest equal parts of at most `most`: part i is from start(i) to start(i + 1).
typedef struct Split {
    size_t n, parts;
} Split;

static Split split(size_t n, size_t most) { return (Split){ n, blocks_of(n, most) }; }
static size_t split_start(Split s, size_t i) { return i * (s.n / s.parts) + smaller(i, s.n % s.parts); }
static size_t split_size(Split s, size_t i) { return s.n / s.parts + (i < s.n % s.parts); }

enum { A_PANEL = TILE_ROWS * DEPTH + LANES, B_PANEL = TILE_COLUMNS * DEPTH };

typedef struct GemmScratch {
    real *b[2];                                 // a packed slab each
    real *a;                                    // a panel for each thread
} GemmScratch;

static GemmScratch gemm_layout(Layout *layout, size_t N, int threads) {
    GemmScratch s;
    for (int i = 0; i < 2; i++) s.b[i] = layout_take(layout, blocks_of(smaller(N, SLAB_COLUMNS), TILE_COLUMNS) * B_PANEL * sizeof(real));
    s.a = layout_take(layout, (size_t)threads * A_PANEL * sizeof(real));
    return s;
}

// One block of the work: columns n0 .. n0 + columns of c, k0 .. k0 + depth of k.
typedef struct Block {
    size_t n0, columns, k0, depth;
    const real *b;                              // packed, or as it lies
    size_t b_stride, b_panel_stride;            // from one k, one panel to the next
    size_t b_panels, b_group, b_groups;         // panels of b, panels to a task, such groups
    Split a_panels;                             // of rows of a
} Block;

static void pack_b(const Product *p, const Block *block, size_t i) {
    const size_t n = block->n0 + i * TILE_COLUMNS;
    pack((real *)block->b + i * B_PANEL, TILE_COLUMNS, p->b + n * p->b_column + block->k0 * p->b_k, p->b_column, p->b_k,
         smaller(TILE_COLUMNS, block->n0 + block->columns - n), block->depth);
}

// Whether the tile reads a factor as it lies. Packing does not pay where it is used for little; but rows of b far apart, or rows of a
// that fall on the same sets of the first cache, would cost more than packing them does. The last panel of b may not need filling up.
static int reads_a_directly(const Product *p) {
    return p->a_row == 1 ? p->N <= DIRECT_COLUMNS : p->a_row * sizeof(real) % CACHE_PERIOD != 0;
}
static int reads_b_directly(const Product *p) {
    return p->b_column == 1 && p->M <= DIRECT_ROWS && p->N <= DIRECT_STRIDE && p->N % TILE_COLUMNS == 0;
}

static PanelOfA panel_of_a(const Product *p, const Block *block, size_t i, real *packed) {
    const size_t m = split_start(block->a_panels, i), rows = split_size(block->a_panels, i);
    const real *a = p->a + m * p->a_row + block->k0 * p->a_k;
    if (reads_a_directly(p)) return (PanelOfA){ a, p->a_row == 1 ? p->a_k : p->a_row, (int)rows, p->a_row == 1 };
    pack(packed, rows, a, p->a_row, p->a_k, rows, block->depth);
    return (PanelOfA){ packed, rows, (int)rows, 1 };
}

// sums[m] += the sum over this block's k of a[m,k], for the first `count` rows of a panel whose columns are contiguous
static void add_a_sums(real *sums, const PanelOfA *panel, size_t count, size_t depth) {
    for (size_t i = 0; i < count; i += LANES) {
        const int lanes = lanes_left(count - i);
        vector sum = {0};
        for (size_t k = 0; k < depth; k++) sum += vector_load_first(panel->a + k * panel->stride + i, lanes);
        vector_store_first(sums + i, vector_load_first(sums + i, lanes) + sum, lanes);
    }
}

static void finish_row(const Product *p, size_t at, size_t columns) {
    for (size_t j = 0; j < columns; j += LANES) {
        const int lanes = lanes_left(columns - j);
        vector x = vector_load_first(p->c + at + j, lanes);
        if (p->finish == FINISH_GELU) {
            vector_store_first(p->gelu_input + at + j, x, lanes);
            x = vector_gelu(x);
        } else {
            x *= vector_gelu_slope(vector_load_first(p->gelu_input + at + j, lanes));
        }
        vector_store_first(p->c + at + j, x, lanes);
    }
}

// One tile of c in one block of k. The first block adds what there is to add, the last one finishes.
static void compute_tile(const Product *p, const Block *block, const PanelOfA *panel, size_t m, size_t b_panel) {
    const size_t n = block->n0 + b_panel * TILE_COLUMNS, columns = smaller(TILE_COLUMNS, block->n0 + block->columns - n), at = m * p->N + n;
    const int first = block->k0 == 0, last = block->k0 + block->depth == p->K, has_bias = first && p->bias && n < p->bias_width;
    const real *b = block->b + b_panel * block->b_panel_stride, *add = first ? p->add : p->c;
    for (int r = 0; r < panel->rows; r++) {                                    // for the end of the tile
        __builtin_prefetch(p->c + at + r * p->N, 1);
        __builtin_prefetch(p->c + at + r * p->N + LANES, 1);
    }
    const TileOutput out = { p->c + at, add ? add + at : NULL, has_bias ? p->bias + n : NULL, p->N };
    if (columns == TILE_COLUMNS && (!has_bias || n + TILE_COLUMNS <= p->bias_width)) {
        sum_tile(&out, panel, b, block->b_stride, block->depth);
    } else {
        sum_edge_tile(&out, panel, columns, has_bias ? p->bias_width - n : 0, b, block->b_stride, block->depth);
    }
    if (last && p->finish != FINISH_NOTHING)
        for (int r = 0; r < panel->rows; r++) finish_row(p, at + r * p->N, columns);
}

static void compute_task(const Product *p, const Block *block, size_t task, real *packed) {
    const size_t i = task % block->a_panels.parts, first_b = task / block->a_panels.parts * block->b_group;
    const size_t m = split_start(block->a_panels, i);
    const PanelOfA panel = panel_of_a(p, block, i, packed);
    if (p->a_sums && block->n0 == 0 && first_b == 0 && m < p->a_sums_count)
        add_a_sums(p->a_sums + m, &panel, smaller(panel.rows, p->a_sums_count - m), block->depth);
    for (size_t j = first_b; j < smaller(first_b + block->b_group, block->b_panels); j++) compute_tile(p, block, &panel, m, j);
}

// slabs splits b's panels.
static Block block_at(const Product *p, Split slabs, size_t slab, Split depths, size_t depth, const real *b) {
    Block block = { .n0 = split_start(slabs, slab) * TILE_COLUMNS, .k0 = split_start(depths, depth), .depth = split_size(depths, depth),
                    .b = b, .b_panels = split_size(slabs, slab), .a_panels = split(p->M, TILE_ROWS) };
    block.columns = smaller(block.b_panels * TILE_COLUMNS, p->N - block.n0);
    block.b_stride = reads_b_directly(p) ? p->b_k : TILE_COLUMNS;
    block.b_panel_stride = reads_b_directly(p) ? TILE_COLUMNS : B_PANEL;
    if (reads_b_directly(p)) block.b = p->b + block.n0 + block.k0 * p->b_k;
    const size_t wanted = smaller(blocks_of(ENOUGH_TASKS, block.a_panels.parts), blocks_of(block.b_panels, 4));
    block.b_group = blocks_of(block.b_panels, wanted);
    block.b_groups = blocks_of(block.b_panels, block.b_group);
    return block;
}

static void multiply(const Product *p) {
    Layout layout = scratch_layout();
    const GemmScratch s = gemm_layout(&layout, p->N, thread_count);
    check_layout(&layout);
    const Split slabs = split(blocks_of(p->N, TILE_COLUMNS), SLAB_COLUMNS / TILE_COLUMNS), depths = split(p->K, DEPTH);
#pragma omp parallel num_threads(thread_count)
    for (size_t i = 0; i < slabs.parts * depths.parts; i++) {
        const Block block = block_at(p, slabs, i / depths.parts, depths, i % depths.parts, s.b[i % 2]);
        const size_t panels_to_pack = reads_b_directly(p) ? 0 : block.b_panels;
#pragma omp for schedule(dynamic)
        for (size_t panel = 0; panel < panels_to_pack; panel++) pack_b(p, &block, panel);
#pragma omp for schedule(dynamic) nowait
        for (size_t task = 0; task < block.a_panels.parts * block.b_groups; task++)
            compute_task(p, &block, task, s.a + (size_t)omp_get_thread_num() * A_PANEL);
    }
}

// ---- the operations ----

static void matmul(Compute *y, Compute *gelu_input_or_null, const Compute *x, const Compute *weight, const Compute *bias_or_null,
                   int bias_width, const Compute *residual_or_null, size_t rows, int in, int out) {
    multiply(&(Product){
        .M = rows, .N = out, .K = in,
        .a = const_reals(x), .a_row = in, .a_k = 1,
        .b = const_reals(weight), .b_k = 1, .b_column = in,
        .c = reals(y), .add = const_reals(residual_or_null), .bias = const_reals(bias_or_null), .bias_width = bias_width,
        .finish = gelu_input_or_null ? FINISH_GELU : FINISH_NOTHING, .gelu_input = reals(gelu_input_or_null),
    });
}

static void matmul_backward_input(Compute *d_x, const Compute *d_y, const Compute *weight, const Compute *gelu_input_or_null,
                                  size_t rows, int in, int out) {
    multiply(&(Product){
        .M = rows, .N = in, .K = out,
        .a = const_reals(d_y), .a_row = out, .a_k = 1,
        .b = const_reals(weight), .b_k = in, .b_column = 1,
        .c = reals(d_x),
        .finish = gelu_input_or_null ? FINISH_GELU_SLOPE : FINISH_NOTHING, .gelu_input = (real *)const_reals(gelu_input_or_null),
    });
}

static void matmul_backward_weight(Real *d_weight, Real *d_bias_or_null, int bias_width, const Compute *d_y, const Compute *x,
                                   size_t rows, int in, int out) {
    multiply(&(Product){
        .M = out, .N = in, .K = rows,
        .a = const_reals(d_y), .a_row = 1, .a_k = out,
        .b = const_reals(x), .b_k = in, .b_column = 1,
        .c = reals(d_weight), .add = reals(d_weight),
        .a_sums = reals(d_bias_or_null), .a_sums_count = bias_width,
    });
}

static size_t gemm_scratch(const Limits *limits, int threads) {
    Layout layout = { NULL, 0 };
    gemm_layout(&layout, larger(limits->widest, larger(limits->C, limits->V)), threads);
    return layout.used;
}
