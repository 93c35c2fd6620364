// The arithmetic of core/device.h as plain loops over plain arrays of double: what tests hold a device against. Nothing here is fast,
// nothing is shared with a device but the shapes; attention is written with its full matrices, its gradient straight from their
// definition. Shapes, formulas and what is added to are those of core/device.h. Pointers named there or_null may be NULL.
#ifndef NAIVE_H
#define NAIVE_H

#include "../core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

double naive_gelu(double x);
double naive_gelu_slope(double x);
double naive_sigmoid(double x);

void naive_embed(double *out, const int *tokens, const double *token_table, const double *position_table, int B, int first, int T, int C);
void naive_embed_backward(double *d_token_table, double *d_position_table, const double *d_out, const int *tokens, int B, int T, int C);

void naive_norm(double *out, double *stats, const double *x, const double *weight, const double *bias, size_t rows, int C, int centred,
                double eps);
void naive_norm_backward(double *d_x, double *d_weight, double *d_bias, const double *d_out, const double *x, const double *stats,
                         const double *weight, size_t rows, int C, int centred);

void naive_matmul(double *y, double *gelu_input, const double *x, const double *weight, const double *bias, int bias_width,
                  const double *residual, size_t rows, int in, int out);
void naive_matmul_backward_input(double *d_x, const double *d_y, const double *weight, const double *gelu_input, size_t rows, int in,
                                 int out);
void naive_matmul_backward_weight(double *d_weight, double *d_bias, int bias_width, const double *d_y, const double *x,
                                  size_t rows, int in, int out);

void naive_rope(double *x, const double *table, int B, int first, int T, int heads, int D, int width, int direction);

// The same call as a device's, with its arrays as doubles. `call` gives shapes and config; its own pointers are not read.
typedef struct NaiveAttention {
    Attention call;
    const double *projection, *sinks, *alpha_ma;
} NaiveAttention;

void naive_attention(double *out, double *core, double *stats, const NaiveAttention *a);
void naive_attention_backward(double *d_projection, double *d_sinks, double *alpha_sum, const double *d_out, const NaiveAttention *a);
void naive_attention_diagnose(double *sums, const NaiveAttention *a);
void naive_attention_weights(double *weights, const NaiveAttention *a, int sequence, int head, int query, int count);

void naive_swiglu(double *out, const double *x, size_t rows, int intermediate);
void naive_swiglu_backward(double *d_x, const double *d_out, const double *x, size_t rows, int intermediate);

void naive_cross_entropy(double *logits, double *losses, size_t losses_stride, const double *teacher_logits, const int *targets,
                         size_t rows, int V, int stride, double weight, double temperature, double scale);

void naive_adamw(double *master, const double *gradient, double *moment1, double *moment2, size_t n, int decay, const AdamW *hyper,
                 double clip);

#ifdef __cplusplus
}
#endif
#endif
