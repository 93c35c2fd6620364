// The parameter table: every tensor's name, shape, initial value and decay, and where it lies. Names and shapes are Hugging Face's; the
// order in memory is that in which backward finishes gradients, a bucket a layer. Every arena (masters, weights, gradients) has this
// layout, so a view is an offset. Tensors that read the same input stand in one matrix [out,in], one under the other without a gap, so that
// one product makes them all: q|k|v|gate|alpha, gate|up.
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stddef.h>

#include "config.h"
#include "device.h"

#define NO_TENSOR ((size_t)-1)

typedef struct Tensor {
    char name[112];                 // "transformer.h.0.attn.c_attn.weight"
    int dimensions, shape[2];       // as in the file
    size_t offset, count;           // in the arena, or, for a buffer, in alpha_ma [L,H]; elements
    double initial_std;             // normal(0, initial_std) where not 0
    double initial_value;           // else this
    bool decay;                     // weight decay applies
    bool transposed;                // memory holds the transpose of the file's matrix (gpt2's Conv1D)
    bool buffer;                    // not trained by the optimizer: alpha_ma
    bool attention_own;             // only this attention type or gate has it: not among the weights that all types share
    int layer;                      // -1: none
} Tensor;

typedef struct Linear {             // one matrix product's weight [out,in] and bias
    size_t weight, bias;            // offsets; bias NO_TENSOR where there is none
    int in, out, bias_width;        // out may be padded: the rows past the tensors' own are 0 and stay so
} Linear;

typedef struct LayerLayout {
    size_t norm1, norm1_bias, norm2, norm2_bias, sinks;     // NO_TENSOR where there is none
    Linear attention_in, attention_out, mlp_in, mlp_out;
} LayerLayout;

typedef struct Bucket { size_t offset, count; } Bucket;     // what processes reduce at once; count is a multiple of their number

typedef struct ParameterTable {
    Tensor *tensors;
    int tensor_count;               // buffers included, which stand last
    int parameter_tensors;          // without buffers
    LayerLayout *layers;
    size_t token_embedding, position_embedding, final_norm, final_norm_bias;
    Linear classifier;
    Bucket *buckets;                // in the order backward finishes them: [0] final norm and untied classifier, [L - l] layer l,
                                    // [L+1] embeddings
    int bucket_count;
    size_t count;                   // of the arena, padding included
    size_t parameters, attention_parameters;    // trained values: in all, and those only this attention has (padding and buffers are none)
    Span *spans;                    // this process's share
    int span_count;
} ParameterTable;

// Builds the table of rank's share among `processes`. Status 1 when out of memory.
int parameter_table_build(ParameterTable *table, const ModelConfig *model, const AttentionConfig *attention, int rank, int processes);
void parameter_table_free(ParameterTable *table);

// FLOPs of training on one token: 6 per parameter of the matrices used in products (embeddings looked up not counted, the classifier once)
// and 6 L H D T for causal attention, T the sequence length.
double flops_per_token(const ParameterTable *table, const ModelConfig *model, int T);

#endif
