// The attention types: what each needs, and every formula that is a function of one row or one element, so that a device writes only loops.
// Included by core/ (what a type needs), by cpu/ with REAL float or double, and by train_gpt.cu with REAL float. Formulas:
// docs/attention.md. i is a query's position from 0; P the softmax over its causal keys (and the sink, where there is one); a_ij the
// effective weights.
#ifndef ATTENTION_H
#define ATTENTION_H

#ifndef REAL
#define REAL double                             // core's and the tests' choice; a device says what its own is
#endif
#include <math.h>                               // not tgmath.h: it defines I
#ifdef __CUDACC__
#define ROW_FUNCTION static __host__ __device__ inline
#else
#define ROW_FUNCTION static inline
#endif

typedef enum { ATTENTION_BASELINE, ATTENTION_OFF_BY_ONE, ATTENTION_SINK, ATTENTION_AFFINE } AttentionType;
typedef enum { GATE_NONE, GATE_HEADWISE, GATE_ELEMENTWISE } GateType;
typedef enum { AFFINE_LINEAR_CLIPPING, AFFINE_SIGMOID } AffineActivation;
typedef enum { AFFINE_N_SEQUENCE, AFFINE_N_PREFIX } AffineN;

typedef struct AttentionConfig {                // the config's section "attention", the same for all layers
    AttentionType type;
    GateType gate;
    AffineActivation affine_activation;
    AffineN affine_n;                           // what N is in beta: affine_length, or i + 1
    int affine_length;
    double affine_rho;                          // decay of alpha's moving average
} AttentionConfig;

// ---- what a type needs: asked by core/model.c (parameters), by the plan of activations, and by the devices ----
ROW_FUNCTION int attention_alpha_columns(AttentionConfig c, int H) { return c.type == ATTENTION_AFFINE ? H : 0; }
ROW_FUNCTION int attention_gate_columns(AttentionConfig c, int H, int D) {
    return c.gate == GATE_NONE ? 0 : c.gate == GATE_HEADWISE ? H : H * D;
}
ROW_FUNCTION int attention_has_sinks(AttentionConfig c) { return c.type == ATTENTION_SINK; }
ROW_FUNCTION int attention_has_alpha(AttentionConfig c) { return c.type == ATTENTION_AFFINE; }
// Values kept per (sequence, head, query) from forward to backward. The softmax family keeps one: lse, the log of the softmax's
// denominator.
ROW_FUNCTION int attention_row_stats(AttentionConfig c) { (void)c; return 1; }
// Whether what leaves the operation differs from the core's own output, which backward then needs too (dividing alpha or the gate out again
// is unstable where they are near 0).
ROW_FUNCTION int attention_keeps_core(AttentionConfig c) { return c.type == ATTENTION_AFFINE || c.gate != GATE_NONE; }

// ---- formulas ----
ROW_FUNCTION REAL real_exp(REAL x) { return sizeof x == sizeof(double) ? (REAL)exp((double)x) : (REAL)expf((float)x); }
ROW_FUNCTION REAL sigmoid(REAL x) { return 1 / (1 + real_exp(-x)); }

// The logit of the outcome "attend to nothing", whose exponential joins the softmax's denominator; minus infinity where there is none.
ROW_FUNCTION REAL attention_sink_logit(AttentionConfig c, REAL sink) {
    return c.type == ATTENTION_SINK ? sink : c.type == ATTENTION_OFF_BY_ONE ? (REAL)0 : (REAL)-INFINITY;
}

// affine: alpha_i = phi(x), x the alpha column of the projection; a_ij = alpha_i P_ij + beta_i (arXiv 2602.23057)
ROW_FUNCTION REAL affine_alpha(AttentionConfig c, REAL x) {
    if (c.affine_activation == AFFINE_SIGMOID) return sigmoid(x);
    REAL alpha = (REAL)0.1 * x + (REAL)0.5;
    return alpha < 0 ? (REAL)0 : alpha > 1 ? (REAL)1 : alpha;   // written so that a NaN stays one
}
ROW_FUNCTION REAL affine_alpha_slope(AttentionConfig c, REAL x) {
    if (c.affine_activation == AFFINE_SIGMOID) { REAL s = sigmoid(x); return s * (1 - s); }
    return x > -5 && x < 5 ? (REAL)0.1 : (REAL)0;
}
ROW_FUNCTION REAL affine_inverse_n(AttentionConfig c, int i) { return 1 / (REAL)(c.affine_n == AFFINE_N_PREFIX ? i + 1 : c.affine_length); }
ROW_FUNCTION REAL affine_beta(AttentionConfig c, REAL alpha, REAL alpha_ma, int i) { return (alpha_ma - alpha) * affine_inverse_n(c, i); }

// Sum over the causal keys of the effective weights: sink_mass is exp(sink logit - lse), 0 where there is none.
ROW_FUNCTION REAL attention_row_sum(AttentionConfig c, REAL alpha, REAL alpha_ma, REAL sink_mass, int i) {
    return c.type == ATTENTION_AFFINE ? alpha + (i + 1) * affine_beta(c, alpha, alpha_ma, i) : 1 - sink_mass;
}
#endif
