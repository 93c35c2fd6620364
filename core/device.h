// A device: the operations that train_gpt.c is made of, each by its shapes and its formula, forward beside backward. cpu/ (C and OpenMP)
// and train_gpt.cu (CUDA) export one table for each dtype; everything else in them is static, in this file's order.
//
// Element types. Memory holds two kinds of numbers, told apart by their role, never by a tag on a tensor:
//   Compute  activations, their gradients, and the weights as forward and backward read them: float or bf16 on a GPU; on a CPU always the
//            real type (cpu_bf16_device rounds inside its products, memory stays float)
//   Real     what is summed over many terms or kept from step to step: master weights, parameter gradients, moments, row statistics,
//            alpha_ma, the losses of rows. float; double in cpu_double_device, which exists for gradient tests
//   double   sums over a step (losses, squares, alpha, diagnostics), in device memory too
// Compute and Real are incomplete types outside a device: train_gpt.c can neither dereference them, nor mix them up, nor do arithmetic on
// them but through its own compute_at() and real_at(). So it is compiled once for all devices, and one program can hold several.
//
// Order. Operations are queued and run one after another, as if each waited for the one before; on a CPU each is done on return. The host
// reads device memory only by read(), or by copy_to_host() once wait() for a later mark() has returned. Collectives run beside the queue:
// they start when what was queued before them is done; collectives_wait() makes the queue, not the host, wait for them.
//
// Names: B sequences, T positions, C channels, H heads, K key-value heads, D head size, V vocabulary; rows = B*T. Matrices are row-major.
// Outputs stand first. The gradient of an activation is overwritten unless the formula says +=; the gradient of a parameter (Real) is
// always added to: a step begins by zeroing the arena. Pointers may be NULL only where the name says or_null. No operation allocates; none
// fails (open and allocate do; an asynchronous error is kept, and wait() returns it). No input aliases an output unless the formula says
// so. The order of every sum depends on shapes alone, never on the number of threads: results are the same bits whatever their number.
#ifndef DEVICE_H
#define DEVICE_H

#include <stddef.h>

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Compute Compute;
typedef struct Real Real;

typedef struct DeviceOptions {
    int threads;                    // 0: as many as OpenMP would take
    int local_rank;                 // which of the machine's GPUs
} DeviceOptions;

typedef struct DeviceInfo {
    char name[128];                 // of the processor or card
    int threads;
    size_t memory_bytes;            // that the device has in all
} DeviceInfo;

// The largest call of each kind, so that scratch can be planned before anything is allocated; see scratch_bytes.
typedef struct Limits {
    size_t rows;                    // B*T
    int B, T, C, H, K, D;
    int widest;                     // largest in or out of a matmul other than the classifier
    int chunk_rows, V;              // the classifier's calls: rows at a time; its out, padded
    int span_count;                 // of sum_squares and adamw
} Limits;

// One call of attention. The columns of a projection row are q [H*D] at 0, then k [K*D], v [K*D], gate [attention_gate_columns],
// alpha [attention_alpha_columns], and unused ones up to width: one matrix product makes them all, so alpha and gate cost no pass of their
// own. Query head h reads key head h / (H / K).
typedef struct Attention {
    AttentionConfig config;
    int B, T;                       // T: queries of this call
    int first_query;                // position of the first; there are first_query + T keys (0 but when decoding)
    int H, K, D, width;
    int key_column, value_column, gate_column, alpha_column;
    double scale;                   // z_ij = scale q_i.k_j; usually 1/sqrt(D)
    const Compute *projection;      // [B, first_query + T, width], q and k rotated; the rows before first_query are the decoding cache
    const Compute *sinks;           // [H], or NULL
    const Real *alpha_ma;           // [H], or NULL
} Attention;

// A run of one tensor's parameters inside one process's share: the unit of work, and of order in sums. At most SPAN_SIZE long.
enum { SPAN_SIZE = 1 << 16 };
typedef struct Span {
    size_t offset;                  // in weights, masters and gradients
    size_t state_offset;            // in the moments, which hold one process's share only
    size_t count;
    int tensor;                     // index of the tensor it belongs to
    int decay;                      // whether weight decay applies
} Span;

typedef struct AdamW {
    double lr, beta1, beta2, eps, weight_decay;
    long step;                      // of this update, from 1, skipped ones counted
} AdamW;

enum { LOSS_CE, LOSS_KL, LOSS_TEACHER_ENTROPY, LOSS_KINDS };                    // rows of losses
enum { VERDICT_NORM, VERDICT_SCALE, VERDICT_FINITE, VERDICT_SIZE };             // gradient norm before clipping; clip factor; 1 or 0

// What attention_diagnose sums per head, over the queries of a call; core/diagnostics turns the sums into what metrics.jsonl says.
// Row sums fall into bins 1/32 wide whose centres are -0.5, -0.5 + 1/32, ..., so that 0 and 1 lie at a bin's centre; alpha into bins 1/32
// wide from 0; what lies outside counts in the first or last bin.
enum { ROW_SUM_BINS = 64, ALPHA_BINS = 32 };
enum {
    DIAGNOSE_ROWS,                  // queries
    DIAGNOSE_PAIRS,                 // (query, causal key) pairs
    DIAGNOSE_Z, DIAGNOSE_Z2,        // sums over pairs of z and z^2
    DIAGNOSE_FIRST,                 // effective weight on the first token
    DIAGNOSE_ROW_SUM, DIAGNOSE_ROW_SUM2,    // sum of a row's effective weights, and its square
    DIAGNOSE_ENTROPY,               // of the softmax's own distribution, the sink counted as one outcome, in nats
    DIAGNOSE_SINK,                  // mass on the sink, exp(sink logit - lse)
    DIAGNOSE_ALPHA, DIAGNOSE_ALPHA2,
    DIAGNOSE_ALPHA_AT_0, DIAGNOSE_ALPHA_AT_1,   // queries whose alpha is exactly 0, 1
    DIAGNOSE_ALPHA_MA,              // the alpha_ma that forward used, once a query
    DIAGNOSE_GATE,                  // mean over the head's gate values of a query
    DIAGNOSE_ROW_SUM_BINS,
    DIAGNOSE_ALPHA_BINS = DIAGNOSE_ROW_SUM_BINS + ROW_SUM_BINS,
    DIAGNOSE_SIZE = DIAGNOSE_ALPHA_BINS + ALPHA_BINS
};

typedef struct Device {
    const char *dtype;              // the value of compute.dtype: "fp32", "bf16"; "fp64" in tests
    size_t compute_bytes, real_bytes;
    int weights_are_master;         // Compute is Real: there is no second copy of the weights
    int asynchronous;               // operations return before they are done

    // ---- memory and order ----
    int (*open)(DeviceInfo *info, const DeviceOptions *options);                // a status, with the reason in core/error
    void (*close)(void);
    // What calls within any of limits[0..count-1] need beside their arguments, with that many threads (0: as many as there are). Pure.
    size_t (*scratch_bytes)(const Limits *limits, int count, int threads);
    void (*use_scratch)(void *scratch, size_t bytes);                           // the memory that later calls work in
    void *(*allocate)(size_t bytes);                                            // aligned to 256, contents undefined; NULL on failure
    void (*release)(void *memory);
    void *(*allocate_host)(size_t bytes);                                       // where the host and copies meet: pinned for a GPU
    void (*release_host)(void *memory);
    void (*write)(Real *to, const double *from_host, size_t n);                 // at once; rounded to the real type
    void (*read)(double *to_host, const Real *from, size_t n);                  // waits for the queue
    void (*narrow)(Compute *to, const Real *from, size_t n);                    // to = from, rounded
    void (*widen)(Real *to, const Compute *from, size_t n);
    void (*zero)(void *memory, size_t bytes);
    void (*copy)(void *to, const void *from, size_t bytes);                     // within the device
    // queued: from_host stays untouched until a later mark is waited for
    void (*copy_to_device)(void *to, const void *from_host, size_t bytes);
    void (*copy_to_host)(void *to_host, const void *from, size_t bytes);        // queued
    long (*mark)(void);                                                         // a point in the queue
    int (*wait)(long mark);                                                     // the host waits for it; the status of everything before it

    // ---- embedding ----
    // out[b,t,:] = token_table[tokens[b,t],:] (+ position_table[first + t,:])              out [B,T,C], tokens [B,T]
    void (*embed)(Compute *out, const int *tokens, const Compute *token_table, const Compute *position_table_or_null,
                  int B, int first, int T, int C);
    // d_token_table[v,:] += sum over positions with token v of d_out; d_position_table[t,:] += sum over b
    // order [B*T]: positions sorted by token, ties by position (made on the host with the batch), so that no device needs an atomic.
    void (*embed_backward)(Real *d_token_table, Real *d_position_table_or_null, const Compute *d_out, const int *tokens, const int *order,
                           int B, int T, int C);

    // ---- norms: LayerNorm when centred, else RMSNorm; the mean square or variance is biased, eps is added to it ----
    // out = (x - mean) rstd weight + bias                     x, out [rows,C]; stats [2,rows]: mean (unused by RMSNorm), rstd
    void (*norm)(Compute *out, Real *stats, const Compute *x, const Compute *weight, const Compute *bias_or_null,
                 size_t rows, int C, int centred, double eps);
    // d_x += ...; d_weight += ...; d_bias += ...              d_x is the residual stream's gradient: the addition is fused
    void (*norm_backward)(Compute *d_x, Real *d_weight, Real *d_bias_or_null, const Compute *d_out, const Compute *x, const Real *stats,
                          const Compute *weight, size_t rows, int C, int centred);

    // ---- matrix products: weight is [out,in] in memory for every arch ----
    // y = x weight^T + bias (on the first bias_width columns) + residual              x [rows,in], y and residual [rows,out]
    // residual may be y itself. gelu_input given: it gets y, and y gets gelu_tanh(y).
    void (*matmul)(Compute *y, Compute *gelu_input_or_null, const Compute *x, const Compute *weight, const Compute *bias_or_null,
                   int bias_width, const Compute *residual_or_null, size_t rows, int in, int out);
    // d_x = d_y weight, times gelu_tanh'(gelu_input) elementwise where given          d_x and gelu_input [rows,in], d_y [rows,out]
    void (*matmul_backward_input)(Compute *d_x, const Compute *d_y, const Compute *weight, const Compute *gelu_input_or_null,
                                  size_t rows, int in, int out);
    // d_weight += d_y^T x; d_bias[o] += sum over rows of d_y[:,o], o < bias_width
    void (*matmul_backward_weight)(Real *d_weight, Real *d_bias_or_null, int bias_width, const Compute *d_y, const Compute *x,
                                   size_t rows, int in, int out);

    // ---- rotary positions, in place, on the first `heads` heads of each row of x [B, T, width]; half-split: element j turns with j + D/2
    // ---- table [positions, D]: cos [D/2], sin [D/2]; row b,t takes position first + t. direction 1: forward; -1: the gradient (the
    // transpose). x points at the row of position first of sequence 0; B is 1 unless first is 0.
    void (*rope)(Compute *x, const Real *table, int B, int first, int T, int heads, int D, int width, int direction);

    // ---- attention ----
    // Three stages, which a device may fuse: the core (no T x T matrix in memory), scale and shift (affine), gate.
    // out = gate * (alpha core + beta (running sum of v)) [B,T,H*D]; alpha 1, beta 0 but for affine; gate = sigmoid of its columns, 1 where
    // none. core [B,T,H*D]: what the core gives; NULL unless attention_keeps_core, since then it is out. stats [attention_row_stats,B,H,T].
    void (*attention)(Compute *out, Compute *core_or_null, Real *stats, const Attention *a);
    // d_projection [B,T,width]: all columns are written, the unused ones 0; a key head's gradient sums over its query heads. d_sinks [H]
    // +=. alpha_sum [H] += sum over queries of alpha: here, not in forward, so that it counts once whatever is recomputed, never in
    // evaluation. first_query is 0.
    void (*attention_backward)(Compute *d_projection, Real *d_sinks_or_null, double *alpha_sum_or_null, const Compute *d_out,
                               const Compute *out, const Compute *core_or_null, const Real *stats, const Attention *a);
    // sums [H, DIAGNOSE_SIZE] += this call's. The logits are computed once more; nothing else changes. first_query is 0.
    void (*attention_diagnose)(double *sums, const Real *stats, const Attention *a);
    // weights [count, first_query + T]: the effective weights of the `count` queries of this call from index `query` on, one sequence, one
    // head; 0 after the diagonal.
    void (*attention_weights)(Real *weights, const Real *stats, const Attention *a, int sequence, int head, int query, int count);

    // ---- SwiGLU: x [rows, 2*intermediate] = gate | up; out [rows, intermediate] = silu(gate) up ----
    void (*swiglu)(Compute *out, const Compute *x, size_t rows, int intermediate);
    void (*swiglu_backward)(Compute *d_x, const Compute *d_out, const Compute *x, size_t rows, int intermediate);

    // ---- the classifier's loss, on a chunk of rows ----
    // logits [rows,stride], of which V columns count -> losses, LOSS_KINDS rows losses_stride apart: ce = -log softmax(logits)[target];
    // with a teacher also kl(teacher || student) and the teacher's entropy, both at the temperature; 0 without one.
    // scale not 0: logits become the gradient of scale * ((1 - weight) ce + weight temperature^2 (kl + entropy)), weight 0 without a
    // teacher, and the unused columns 0. A target < 0 counts for nothing. All in nats.
    void (*cross_entropy)(Compute *logits, Real *losses, size_t losses_stride, const Compute *teacher_logits_or_null, const int *targets,
                          size_t rows, int V, int stride, double weight, double temperature, double scale);
    void (*add_up)(double *sums, const Real *x, size_t n, int kinds, size_t stride);   // sums[k] += sum of x[k*stride ..+n], in double

    // ---- the update: all tensors in one pass; spans lie in device memory ----
    void (*sum_squares)(double *squares, const Real *x, const Span *spans, int span_count);    // squares[span.tensor] += sum of its squares
    // norm = sqrt(sum of squares); finite: whether norm and all losses are; scale = grad_clip > 0 ? min(1, grad_clip / norm) : 1
    void (*judge)(double *verdict, const double *squares, int tensor_count, const double *losses, int loss_count, double grad_clip);
    // AdamW with decoupled decay (arXiv 1711.05101) on gradient * verdict's scale: writes masters, moments, and the weights where they are
    // another copy. Does nothing where the verdict says not finite.
    void (*adamw)(Real *master, Compute *weights_or_null, const Real *gradient, Real *moment1, Real *moment2, const Span *spans,
                  int span_count, const AdamW *hyper, const double *verdict);
    // alpha_ma = rho alpha_ma + (1 - rho) alpha_sum / rows, unless the verdict says not finite
    void (*average_alpha)(Real *alpha_ma, const double *alpha_sum, int n, double rows, double rho, const double *verdict);

    // ---- between processes: in place; count is a multiple of the number of processes; rank r's share is the r-th part ----
    void (*reduce_scatter)(Real *x, size_t count);                              // begins: the share becomes the sum over processes
    void (*all_gather_weights)(Compute *x, size_t count);                       // begins
    void (*all_gather)(Real *x, size_t count);                                  // begins
    void (*all_reduce)(double *x, size_t count);                                // queued like any operation
    void (*broadcast)(double *x, size_t count);                                 // queued: every process gets rank 0's
    void (*collectives_wait)(void);                                             // the queue goes on when all begun ones are done
} Device;

// One table for each pair of types.
extern const Device cpu_device, cpu_bf16_device, cpu_double_device, cuda_device, cuda_bf16_device;

#ifdef __cplusplus
}
#endif
#endif
