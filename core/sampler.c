// Choosing the next token. The tokens are put into a heap and taken out likeliest first, only as many as the cuts keep: no full sort.
#include "sampler.h"

#include <math.h>
#include <stdbool.h>

#include "error.h"
#include "random.h"

typedef struct Candidate {              // 16 bytes, as the header promises
    double value;                       // the logit, and once taken from the heap the weight exp((logit - largest) / temperature)
    int id;
} Candidate;
_Static_assert(sizeof(Candidate) == 16, "sampler.h says how large work is");

static bool is_likelier(Candidate a, Candidate b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// Restores the heap (no child likelier than its parent) below `parent`, which alone may break it.
static void sift_down(Candidate *heap, int n, int parent) {
    const Candidate moved = heap[parent];
    for (;;) {
        int child = 2 * parent + 1;
        if (child >= n) break;
        if (child + 1 < n && is_likelier(heap[child + 1], heap[child])) child++;
        if (!is_likelier(heap[child], moved)) break;
        heap[parent] = heap[child];
        parent = child;
    }
    heap[parent] = moved;
}

static void make_heap(Candidate *heap, const double *logits, int V) {
    for (int id = 0; id < V; id++) heap[id] = (Candidate){logits[id], id};
    for (int parent = V / 2 - 1; parent >= 0; parent--) sift_down(heap, V, parent);
}

static double weight_of(double logit, double largest, double temperature) {
    return exp((logit - largest) / temperature);
}

// Takes the likeliest of the n left in the heap, puts it, with its weight, into the place that becomes free at the heap's end; the weight.
static double take_likeliest(Candidate *heap, int n, double largest, double temperature) {
    const Candidate likeliest = heap[0];
    heap[0] = heap[n - 1];
    sift_down(heap, n - 1, 0);
    heap[n - 1] = (Candidate){weight_of(likeliest.value, largest, temperature), likeliest.id};
    return heap[n - 1].value;
}

// All tokens in order of their ids, the first at the end of candidates [V]; *sum: of their weights.
static int keep_all(double *sum, Candidate *candidates, const double *logits, int V, double largest, double temperature) {
    *sum = 0;
    for (int id = 0; id < V; id++) {
        candidates[V - 1 - id] = (Candidate){weight_of(logits[id], largest, temperature), id};
        *sum += candidates[V - 1 - id].value;
    }
    return V;
}

// The tokens that the cuts leave, from the end of candidates [V] backwards, likeliest first; returns how many; *sum: of their weights.
static int keep_likeliest(double *sum, Candidate *candidates, const double *logits, int V, double largest, const SamplerOptions *options) {
    const int top_k = options->top_k > 0 && options->top_k < V ? options->top_k : V;
    const double temperature = options->temperature;
    double total = 0;                                       // of what top_k leaves: top_p is a share of it
    int taken = 0, kept = 0;
    make_heap(candidates, logits, V);
    if (top_k < V) while (taken < top_k) total += take_likeliest(candidates, V - taken++, largest, temperature);
    else for (int id = 0; id < V; id++) total += weight_of(logits[id], largest, temperature);
    *sum = 0;
    while (kept < top_k && (kept == 0 || *sum < options->top_p * total)) {
        if (kept == taken) take_likeliest(candidates, V - taken++, largest, temperature);
        *sum += candidates[V - 1 - kept++].value;
    }
    return kept;
}

// The token at which the running sum of the kept weights first exceeds target, which is under their sum.
static int draw(const Candidate *candidates, int V, int kept, double target) {
    double sum = 0;
    for (int i = 0; i < kept - 1; i++) {
        sum += candidates[V - 1 - i].value;
        if (sum > target) return candidates[V - 1 - i].id;
    }
    return candidates[V - kept].id;
}

int sample_token(const double *logits, int V, const SamplerOptions *options, uint64_t position, void *work) {
    int likeliest = 0;
    for (int id = 0; id < V; id++) {
        if (!isfinite(logits[id])) {
            set_error(STATUS_FAILED, "no token can be drawn: the logit of token %d is %g", id, logits[id]);
            return -1;
        }
        if (logits[id] > logits[likeliest]) likeliest = id;
    }
    if (options->temperature == 0) return likeliest;
    const bool cut = (options->top_k > 0 && options->top_k < V) || options->top_p < 1;
    double sum;
    const int kept = cut ? keep_likeliest(&sum, work, logits, V, logits[likeliest], options)
                         : keep_all(&sum, work, logits, V, logits[likeliest], options->temperature);
    const double u = random_uniform(random_key(options->seed, "sample"), position);
    return draw(work, V, kept, u * sum);
}
