// Every operation of a device against the plain loops of naive.c, on the float and on the double device: odd shapes, all options, outputs
// poisoned with NaN, guards around every tensor and around the scratch, pointers aligned to their element only, NaN and infinity in every
// input, and the same bits with 1, 2, 3 and 5 threads.
//
// An error is allowed up to factor * epsilon * magnitude: epsilon is the type's, magnitude what the terms of the result add up to in
// absolute value (sum |a||b| for a product), so the bound does not depend on how much the terms cancel. Each check says its magnitude
// and its factor. A sum of n terms of random sign is good to about sqrt(n) epsilon of its largest partial sum, far inside 4 epsilon of
// sum |a||b|.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../core/device.h"
#include "naive.h"

// ================================================================ one run ================================================================
// A check sets an operation up, calls it and states what it expects. It runs once for each device and number of threads: the first time its
// outputs are held against the reference, then against the bits of the first time.

static const Device *const devices[] = { &cpu_device, &cpu_double_device };
static const int thread_counts[] = { 1, 2, 3, 5 };
enum { DEVICES = sizeof devices / sizeof *devices, THREAD_COUNTS = sizeof thread_counts / sizeof *thread_counts };

enum { GUARD = 256, GUARD_BYTE = 0xa5, MOST_BLOCKS = 256 };

typedef struct Block {
    unsigned char *memory;
    size_t offset, bytes;           // of what is between the guards
} Block;

static const Device *device;
static char context[256];           // of the check that runs, for messages
static Block blocks[MOST_BLOCKS];
static void *host_arrays[MOST_BLOCKS];
static int block_count, host_array_count;

static struct {
    int threads;
    bool first;                     // outputs are held against the reference and kept; later they are held against what was kept
    double *kept;
    size_t kept_count, compared;
    uint64_t random;
    int inputs;                     // made so far in this run
    int special_input;              // the input that gets a NaN or an infinity, -1 for none
    double special;
    bool may_show_anywhere;         // set by a check whose sums need not all depend on what they do in the reference
    bool should_show, shows;        // whether the reference's, the device's outputs hold anything that is not finite
} run;

static double epsilon(void) {
    return device->real_bytes == sizeof(float) ? 0x1p-23 : 0x1p-52;
}

// ---- memory ----

static void *on_host(size_t n) {
    assert_true(host_array_count < MOST_BLOCKS && n < (size_t)1 << 32);
    return host_arrays[host_array_count++] = calloc(n ? n : 1, sizeof(double));
}

// Device memory between guards. Every second number of threads shifts it by one element, so that vectors do not lie aligned.
static void *between_guards(size_t bytes, size_t element, int fill) {
    assert_true(block_count < MOST_BLOCKS);
    Block *b = &blocks[block_count++];
    b->offset = GUARD + (run.threads % 2 ? 0 : element);
    b->bytes = bytes;
    b->memory = device->allocate(b->offset + bytes + GUARD);
    assert_non_null(b->memory);
    memset(b->memory, GUARD_BYTE, b->offset + bytes + GUARD);
    memset(b->memory + b->offset, fill, bytes);
    return b->memory + b->offset;
}

static void check_guard(const Block *b, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        if (b->memory[i] != GUARD_BYTE)
            fail_msg("%s: byte %td of a tensor of %zu bytes was overwritten", context, (ptrdiff_t)i - (ptrdiff_t)b->offset, b->bytes);
}

static void end_run(void) {
    for (int i = 0; i < block_count; i++) {
        const Block *b = &blocks[i];
        check_guard(b, 0, b->offset);
        check_guard(b, b->offset + b->bytes, b->offset + b->bytes + GUARD);
        device->release(blocks[i].memory);
    }
    for (int i = 0; i < host_array_count; i++) free(host_arrays[i]);
    block_count = host_array_count = 0;
}

static void *output(size_t n) { return between_guards(n * device->real_bytes, device->real_bytes, 0xff); }     // NaN as float and as double

static void *tensor(const double *values, size_t n) {
    void *t = output(n);
    device->write(t, values, n);
    return t;
}

static double *doubles_tensor(const double *values, size_t n) {
    double *t = between_guards(n * sizeof *t, sizeof *t, 0);
    device->copy_to_device(t, values, n * sizeof *t);
    return t;
}

static int *int_tensor(const int *values, size_t n) {
    int *t = between_guards(n * sizeof *t, sizeof *t, 0);
    device->copy_to_device(t, values, n * sizeof *t);
    return t;
}

// Exactly what scratch_bytes says, poisoned, between guards.
static void use_scratch(const Limits *limits) {
    size_t bytes = device->scratch_bytes(limits, 1, run.threads);
    assert_int_equal(bytes, device->scratch_bytes(limits, 1, run.threads));
    device->use_scratch(between_guards(bytes, 0, 0xff), bytes);
}

// ---- values ----

static uint64_t random_bits(void) {
    uint64_t x = run.random += 0x9e3779b97f4a7c15u;             // splitmix64
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// In [-1, 1), exact in float, so that every device computes on the same numbers.
static double random_value(void) { return (double)(int64_t)(random_bits() >> 40) * 0x1p-23 - 1; }

// An operation's input. One element of the run's special input is special.
static double *input_values(size_t n, double factor) {
    double *values = on_host(n);
    for (size_t i = 0; i < n; i++) values[i] = (double)(float)(factor * random_value());
    if (run.inputs++ == run.special_input && n > 0) values[random_bits() % n] = run.special;
    return values;
}

static double *copy_of(const double *values, size_t n) {
    double *copy = on_host(n);
    memcpy(copy, values, n * sizeof *copy);
    return copy;
}

static double *absolute(const double *values, size_t n) {
    double *result = values ? on_host(n) : NULL;
    for (size_t i = 0; values && i < n; i++) result[i] = fabs(values[i]);
    return result;
}

static double *constant(double value, size_t n) {
    double *result = on_host(n);
    for (size_t i = 0; i < n; i++) result[i] = value;
    return result;
}

static double largest(const double *values, size_t n) {
    double result = 0;
    for (size_t i = 0; i < n; i++) result = fmax(result, fabs(values[i]));
    return result;
}

// What a tensor that the device reads holds after rounding to its type.
static double *rounded(const double *values, size_t n) {
    double *result = on_host(n);
    for (size_t i = 0; i < n; i++) result[i] = device->real_bytes == sizeof(float) ? (double)(float)values[i] : values[i];
    return result;
}

// ---- expectations ----

static bool need_reference(void) { return run.first; }

static void keep_or_compare(const char *name, const double *actual, size_t n) {
    if (run.first) {
        run.kept = realloc(run.kept, (run.kept_count + n) * sizeof *run.kept);
        assert_non_null(run.kept);
        memcpy(run.kept + run.kept_count, actual, n * sizeof *actual);
        run.kept_count += n;
        return;
    }
    assert_true(run.compared + n <= run.kept_count);
    for (size_t i = 0; i < n; i++) {
        double before = run.kept[run.compared + i];
        if (memcmp(&before, &actual[i], sizeof before) != 0 && !(isnan(before) && isnan(actual[i])))
            fail_msg("%s: %s[%zu] is %.17g with %d threads, %.17g with 1", context, name, i, actual[i], run.threads, before);
    }
    run.compared += n;
}

// Where the reference gives a NaN from a NaN so must the device. An infinity may become a NaN there and its limit here (a sink at
// infinity takes all), but it must show somewhere. And a tile may let either reach more than it must; without them all is checked.
static bool acceptable(double actual, double expected, double allowed) {
    if (run.special_input < 0) return fabs(actual - expected) <= allowed || actual == expected || (isnan(actual) && isnan(expected));
    run.should_show |= !isfinite(expected);
    run.shows |= !isfinite(actual);
    return isfinite(expected) || !isfinite(actual) || isinf(run.special) || run.may_show_anywhere;
}

static void expect_values(const char *name, const double *actual, const double *expected, const double *magnitude, double factor,
                          size_t n) {
    for (size_t i = 0; need_reference() && i < n; i++) {
        double allowed = factor * epsilon() * magnitude[i];
        if (!acceptable(actual[i], expected[i], allowed))
            fail_msg("%s: %s[%zu] is %.9g, expected %.9g, off by %.3g, allowed %.3g", context, name, i, actual[i], expected[i],
                     fabs(actual[i] - expected[i]), allowed);
    }
    keep_or_compare(name, actual, n);
}

// What the device holds against what it should; expected and magnitude are read in a first run only.
static void expect(const char *name, const void *actual, const double *expected, const double *magnitude, double factor, size_t n) {
    double *values = on_host(n);
    device->read(values, actual, n);
    expect_values(name, values, expected, magnitude, factor, n);
}

static void expect_doubles(const char *name, const double *actual, const double *expected, const double *magnitude, double factor,
                           size_t n) {
    double *values = on_host(n);
    device->copy_to_host(values, actual, n * sizeof *values);
    assert_int_equal(device->wait(device->mark()), 0);
    expect_values(name, values, expected, magnitude, factor, n);
}

// Inputs that the operation must leave alone.
static void expect_same(const char *name, const void *actual, const double *values, size_t n) {
    double *now = on_host(n);
    device->read(now, actual, n);
    for (size_t i = 0; i < n; i++)
        if (now[i] != values[i] && !(isnan(now[i]) && isnan(values[i]))) fail_msg("%s: %s[%zu] was changed", context, name, i);
}

typedef void Check(const void *a_case);

static void run_once(Check *check, const void *a_case, uint64_t seed, int special_input, double special) {
    run.kept_count = 0;
    for (int t = 0; t < THREAD_COUNTS; t++) {
        DeviceInfo info;
        run.threads = thread_counts[t];
        run.first = t == 0;
        run.compared = 0;
        run.random = seed;
        run.inputs = 0;
        run.special_input = special_input;
        run.special = special;
        assert_int_equal(device->open(&info, &(DeviceOptions){ .threads = run.threads }), 0);
        assert_int_equal(info.threads, run.threads);
        run.may_show_anywhere = run.should_show = run.shows = false;
        check(a_case);
        if (run.should_show && !run.shows) fail_msg("%s: what is not finite in input %d does not show", context, special_input);
        end_run();
        device->close();
    }
}

// Ordinary values on every device; then, where asked, each input in turn with a NaN and with an infinity.
static void run_everywhere(Check *check, const void *a_case, uint64_t seed, bool with_special_values) {
    for (int d = 0; d < DEVICES; d++) {
        device = devices[d];
        run_once(check, a_case, seed, -1, 0);
        int inputs = run.inputs;
        for (int i = 0; with_special_values && i < inputs; i++) {
            run_once(check, a_case, seed, i, NAN);
            run_once(check, a_case, seed, i, INFINITY);
        }
    }
    free(run.kept);
    run.kept = NULL;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
static int larger(int a, int b) { return a > b ? a : b; }

// ================================================================ the table, memory and order ============================================

static void test_tables_are_complete(void **state) {
    (void)state;
    assert_string_equal(cpu_device.dtype, "fp32");
    assert_string_equal(cpu_double_device.dtype, "fp64");
    assert_int_equal(cpu_device.real_bytes, 4);
    assert_int_equal(cpu_double_device.real_bytes, 8);
    for (int d = 0; d < DEVICES; d++) {
        assert_int_equal(devices[d]->compute_bytes, devices[d]->real_bytes);
        assert_true(devices[d]->weights_are_master);
        const unsigned char *at = (const unsigned char *)&devices[d]->open, *end = (const unsigned char *)(devices[d] + 1);
        for (; at + sizeof(void *) <= end; at += sizeof(void *)) {
            void *operation;
            memcpy(&operation, at, sizeof operation);
            assert_non_null(operation);
        }
    }
}

static void test_open_says_what_there_is(void **state) {
    (void)state;
    for (int d = 0; d < DEVICES; d++) {
        DeviceInfo info;
        memset(&info, 0xff, sizeof info);
        assert_int_equal(devices[d]->open(&info, &(DeviceOptions){0}), 0);
        assert_true(info.threads >= 1);
        assert_true(info.memory_bytes > (size_t)1 << 20);
        assert_true(strlen(info.name) > 0 && strlen(info.name) < sizeof info.name);
        devices[d]->close();
    }
}

static void test_allocation(void **state) {
    (void)state;
    const size_t sizes[] = { 0, 1, 255, 256, 257, 1 << 20, (2 << 20) - 1, 2 << 20, (2 << 20) + 1 };
    for (int d = 0; d < DEVICES; d++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            unsigned char *memory = devices[d]->allocate(sizes[i]), *host = devices[d]->allocate_host(sizes[i]);
            assert_non_null(memory);
            assert_non_null(host);
            assert_int_equal((uintptr_t)memory % 256, 0);
            memset(memory, 1, sizes[i]);
            memset(host, 2, sizes[i]);
            devices[d]->release(memory);
            devices[d]->release_host(host);
        }
        assert_null(devices[d]->allocate(SIZE_MAX));
        devices[d]->release(NULL);
    }
}

// Copies of n reals of every kind; n around the size at which a copy is shared among threads.
static void check_copies(const void *a_case) {
    const size_t n = *(const size_t *)a_case;
    snprintf(context, sizeof context, "copies of %zu", n);
    double *values = input_values(n, 1);
    void *from = tensor(values, n), *copied = output(n), *narrowed = output(n), *widened = output(n);
    void *sent = output(n), *received = output(n);
    device->copy(copied, from, n * device->real_bytes);
    device->narrow(narrowed, from, n);
    device->widen(widened, from, n);
    device->copy_to_device(sent, from, n * device->real_bytes);
    device->copy_to_host(received, from, n * device->real_bytes);
    assert_int_equal(device->wait(device->mark()), 0);
    void *const all[] = { copied, narrowed, widened, sent, received };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) expect_same("copy", all[i], values, n);
    device->zero(copied, n * device->real_bytes);
    expect_same("zeroed", copied, constant(0, n), n);
    expect_same("source", from, values, n);
}

static void test_copies(void **state) {
    (void)state;
    const size_t sizes[] = { 1, 3, 100, 32767, 32768, 32769, 65536, 65537, 200001 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) run_everywhere(check_copies, &sizes[i], i, false);
}

// ================================================================ embedding ==============================================================

typedef struct EmbedCase { int B, first, T, C, V; bool positions; } EmbedCase;
static const EmbedCase embed_cases[] = {
    { 1, 0, 1, 1, 1, true }, { 2, 0, 3, 5, 2, true }, { 1, 4, 7, 16, 3, true }, { 3, 0, 17, 33, 4, false }, { 2, 0, 64, 31, 1, true },
    { 4, 0, 65, 64, 100, true }, { 8, 0, 128, 40, 256, true }, { 1, 9, 1, 130, 50, false },
};

static int *random_tokens(size_t n, int V) {
    int *tokens = on_host(n);
    for (size_t i = 0; i < n; i++) tokens[i] = (int)(random_bits() % (uint64_t)V);
    return tokens;
}

static void check_embed(const void *a_case) {
    const EmbedCase *c = a_case;
    const size_t rows = (size_t)c->B * c->T, n = rows * c->C;
    const size_t tokens_n = (size_t)c->V * c->C, positions_n = (size_t)(c->first + c->T) * c->C;
    snprintf(context, sizeof context, "embed B %d T %d C %d V %d first %d", c->B, c->T, c->C, c->V, c->first);
    const int *tokens = random_tokens(rows, c->V);
    const double *table = input_values(tokens_n, 1), *positions = c->positions ? input_values(positions_n, 1) : NULL;
    double *expected = on_host(n), *magnitude = on_host(n);
    naive_embed(expected, tokens, table, positions, c->B, c->first, c->T, c->C);
    naive_embed(magnitude, tokens, absolute(table, tokens_n), absolute(positions, positions_n), c->B, c->first, c->T, c->C);
    void *out = output(n);
    device->embed(out, int_tensor(tokens, rows), tensor(table, tokens_n), positions ? tensor(positions, positions_n) : NULL,
                  c->B, c->first, c->T, c->C);
    expect("out", out, expected, magnitude, 1, n);
}

static int *positions_by_token(const int *tokens, int rows, int V) {
    int *order = on_host(rows), n = 0;
    for (int v = 0; v < V; v++)
        for (int r = 0; r < rows; r++)
            if (tokens[r] == v) order[n++] = r;
    return order;
}

static void check_embed_backward(const void *a_case) {
    const EmbedCase *c = a_case;
    const size_t rows = (size_t)c->B * c->T, n = rows * c->C, tokens_n = (size_t)c->V * c->C, positions_n = (size_t)c->T * c->C;
    snprintf(context, sizeof context, "embed_backward B %d T %d C %d V %d", c->B, c->T, c->C, c->V);
    const int *tokens = random_tokens(rows, c->V), *order = positions_by_token(tokens, (int)rows, c->V);
    const double *d_out = input_values(n, 1), *old_table = input_values(tokens_n, 1), *old_positions = input_values(positions_n, 1);
    double *table = copy_of(old_table, tokens_n), *positions = copy_of(old_positions, positions_n);
    double *table_magnitude = absolute(old_table, tokens_n), *positions_magnitude = absolute(old_positions, positions_n);
    naive_embed_backward(table, c->positions ? positions : NULL, d_out, tokens, c->B, c->T, c->C);
    naive_embed_backward(table_magnitude, positions_magnitude, absolute(d_out, n), tokens, c->B, c->T, c->C);
    void *d_table = tensor(old_table, tokens_n), *d_positions = tensor(old_positions, positions_n);
    device->embed_backward(d_table, c->positions ? d_positions : NULL, tensor(d_out, n), int_tensor(tokens, rows), int_tensor(order, rows),
                           c->B, c->T, c->C);
    expect("d_token_table", d_table, table, table_magnitude, 4, tokens_n);
    expect("d_position_table", d_positions, positions, positions_magnitude, 4, positions_n);
}

static void test_embed(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof embed_cases / sizeof *embed_cases; i++) run_everywhere(check_embed, &embed_cases[i], i, true);
}

static void test_embed_backward(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof embed_cases / sizeof *embed_cases; i++) run_everywhere(check_embed_backward, &embed_cases[i], i, true);
}

// ================================================================ norms ==================================================================

typedef struct NormCase { int rows, C; bool centred, bias; double shift; } NormCase;
static const NormCase norm_cases[] = {
    { 1, 1, true, true, 0 }, { 2, 3, false, false, 0 }, { 3, 2, true, false, 0 }, { 15, 16, true, true, 3 }, { 17, 33, false, false, 0 },
    { 16, 31, true, true, 100 }, { 1, 768, true, true, 0 }, { 65, 130, false, true, 0 }, { 300, 64, true, true, 1 },
    { 1027, 17, true, true, 0 },
};

static double *norm_input(const NormCase *c) {
    double *x = input_values((size_t)c->rows * c->C, 1);
    for (size_t i = 0; i < (size_t)c->rows * c->C; i++) x[i] = (double)(float)(x[i] + c->shift);
    return x;
}

// The rounding of x - mean, relative to x and mean, is what the normed value can be off by.
static double normed_magnitude(const double *stats, const double *x, int rows, int r) {
    return (fabs(*x) + fabs(stats[r])) * stats[rows + r];
}

static void check_norm(const void *a_case) {
    const NormCase *c = a_case;
    const size_t n = (size_t)c->rows * c->C;
    snprintf(context, sizeof context, "norm rows %d C %d centred %d", c->rows, c->C, c->centred);
    const double *x = norm_input(c), *weight = input_values(c->C, 1), *bias = c->bias ? input_values(c->C, 1) : NULL;
    double *expected = on_host(n), *stats = on_host(2 * c->rows), *magnitude = on_host(n), *stats_magnitude = on_host(2 * c->rows);
    naive_norm(expected, stats, x, weight, bias, c->rows, c->C, c->centred, 1e-5);
    for (int r = 0; r < c->rows; r++) {
        for (int i = 0; i < c->C; i++)
            magnitude[r * c->C + i] = normed_magnitude(stats, &x[r * c->C + i], c->rows, r) * fabs(weight[i]) + fabs(bias ? bias[i] : 0);
        stats_magnitude[r] = largest(x + r * c->C, c->C);
        stats_magnitude[c->rows + r] = stats[c->rows + r] * (1 + stats_magnitude[r] * stats[c->rows + r]);
    }
    void *out = output(n), *out_stats = output(2 * c->rows);
    device->norm(out, out_stats, tensor(x, n), tensor(weight, c->C), bias ? tensor(bias, c->C) : NULL, c->rows, c->C, c->centred, 1e-5);
    expect("out", out, expected, magnitude, 4, n);
    expect("stats", out_stats, stats, stats_magnitude, 2, 2 * c->rows);
}

static void check_norm_backward(const void *a_case) {
    const NormCase *c = a_case;
    const size_t n = (size_t)c->rows * c->C;
    snprintf(context, sizeof context, "norm_backward rows %d C %d centred %d", c->rows, c->C, c->centred);
    const double *x = norm_input(c), *weight = input_values(c->C, 1), *d_out = input_values(n, 1), *old_x = input_values(n, 1);
    const double *old_weight = input_values(c->C, 1), *old_bias = input_values(c->C, 1);
    double *scores = on_host(n), *exact_stats = on_host(2 * c->rows), *d_x = copy_of(old_x, n), *magnitude = absolute(old_x, n);
    double *d_weight = copy_of(old_weight, c->C), *d_bias = copy_of(old_bias, c->C), *weight_magnitude = absolute(old_weight, c->C);
    naive_norm(scores, exact_stats, x, weight, NULL, c->rows, c->C, c->centred, 1e-5);
    const double *stats = rounded(exact_stats, 2 * c->rows);
    naive_norm_backward(d_x, d_weight, c->bias ? d_bias : NULL, d_out, x, stats, weight, c->rows, c->C, c->centred);
    for (int r = 0; r < c->rows; r++) {
        double sum_g = 0, sum_gn = 0;
        for (int i = 0; i < c->C; i++) {
            double g = fabs(d_out[r * c->C + i] * weight[i]), normed = normed_magnitude(stats, &x[r * c->C + i], c->rows, r);
            sum_g += g / c->C;
            sum_gn += g * normed / c->C;
            weight_magnitude[i] += fabs(d_out[r * c->C + i]) * normed;
        }
        for (int i = 0; i < c->C; i++) {
            double g = fabs(d_out[r * c->C + i] * weight[i]), normed = normed_magnitude(stats, &x[r * c->C + i], c->rows, r);
            magnitude[r * c->C + i] += (g + sum_g + normed * sum_gn) * stats[c->rows + r];
        }
    }
    use_scratch(&(Limits){ .rows = c->rows, .B = 1, .T = c->rows, .C = c->C, .H = 1, .K = 1, .D = 1, .widest = 1, .chunk_rows = 1,
                           .V = 1 });
    void *out_x = tensor(old_x, n), *out_weight = tensor(old_weight, c->C), *out_bias = tensor(old_bias, c->C);
    device->norm_backward(out_x, out_weight, c->bias ? out_bias : NULL, tensor(d_out, n), tensor(x, n), tensor(stats, 2 * c->rows),
                          tensor(weight, c->C), c->rows, c->C, c->centred);
    expect("d_x", out_x, d_x, magnitude, 4, n);
    expect("d_weight", out_weight, d_weight, weight_magnitude, 4, c->C);
    expect("d_bias", out_bias, d_bias, constant(c->rows + 1, c->C), 4, c->C);
}

static void test_norm(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof norm_cases / sizeof *norm_cases; i++) run_everywhere(check_norm, &norm_cases[i], i, true);
}

static void test_norm_backward(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof norm_cases / sizeof *norm_cases; i++) run_everywhere(check_norm_backward, &norm_cases[i], i, true);
}

// ================================================================ matrix products ========================================================

typedef enum { NO_RESIDUAL, RESIDUAL, RESIDUAL_IS_Y } Residual;
typedef struct MatmulCase {
    int rows, in, out;
    int bias;                       // 0 none, 1 on some columns, 2 on all
    Residual residual;
    bool gelu;
} MatmulCase;

// Around the sizes of micro-kernels (up to 14 x 32 in float, 14 x 16 in double), panels and blocks of the inner dimension.
static const int matmul_shapes[][3] = {
    { 1, 1, 1 }, { 1, 2, 3 }, { 2, 3, 1 }, { 3, 1, 2 }, { 4, 5, 6 }, { 5, 15, 7 }, { 8, 16, 9 }, { 7, 5, 47 }, { 1, 768, 96 },
    { 2, 100, 130 },
    { 13, 31, 15 }, { 14, 32, 16 }, { 15, 33, 17 }, { 28, 64, 64 }, { 29, 65, 63 }, { 127, 130, 97 }, { 64, 256, 128 }, { 65, 255, 129 },
    { 66, 257, 127 }, { 100, 600, 70 }, { 600, 70, 100 }, { 70, 100, 600 }, { 300, 129, 513 }, { 3, 1030, 1040 }, { 1025, 48, 33 },
};
enum { MATMUL_SHAPES = sizeof matmul_shapes / sizeof *matmul_shapes };

static Limits matmul_limits(const MatmulCase *c) {
    return (Limits){ .rows = c->rows, .B = 1, .T = c->rows, .C = 1, .H = 1, .K = 1, .D = 1, .widest = larger(c->in, c->out),
                     .chunk_rows = 1, .V = 1 };
}

// As the classifier's, whose output is wider than `widest`.
static Limits classifier_limits(const MatmulCase *c) {
    return (Limits){ .rows = c->rows, .B = 1, .T = c->rows, .C = c->in, .H = 1, .K = 1, .D = 1, .widest = c->in, .chunk_rows = c->rows,
                     .V = c->out };
}

static int bias_width_of(const MatmulCase *c) { return c->bias == 1 ? c->out / 2 : c->out; }

static void describe_matmul(const char *name, const MatmulCase *c) {
    snprintf(context, sizeof context, "%s %s rows %d in %d out %d bias %d residual %d gelu %d", device->dtype, name, c->rows, c->in, c->out,
             c->bias, c->residual, c->gelu);
}

static void check_matmul(const void *a_case) {
    const MatmulCase *c = a_case;
    const size_t rows = c->rows, x_n = rows * c->in, weight_n = (size_t)c->out * c->in, y_n = rows * c->out;
    const int bias_width = bias_width_of(c);
    describe_matmul("matmul", c);
    const double *x = input_values(x_n, 1), *weight = input_values(weight_n, 1), *bias = c->bias ? input_values(bias_width, 1) : NULL;
    const double *residual = c->residual != NO_RESIDUAL ? input_values(y_n, 1) : NULL;
    double *y = on_host(y_n), *gelu_input = c->gelu ? on_host(y_n) : NULL, *magnitude = on_host(y_n);
    if (need_reference()) {
        naive_matmul(y, gelu_input, x, weight, bias, bias_width, residual, rows, c->in, c->out);
        naive_matmul(magnitude, NULL, absolute(x, x_n), absolute(weight, weight_n), absolute(bias, bias_width), bias_width,
                     absolute(residual, y_n), rows, c->in, c->out);
    }
    const Limits limits = rows % 2 ? matmul_limits(c) : classifier_limits(c);
    use_scratch(&limits);
    void *out = c->residual == RESIDUAL_IS_Y ? tensor(residual, y_n) : output(y_n), *before = c->gelu ? output(y_n) : NULL;
    void *added = c->residual == NO_RESIDUAL ? NULL : c->residual == RESIDUAL_IS_Y ? out : tensor(residual, y_n);
    device->matmul(out, before, tensor(x, x_n), tensor(weight, weight_n), bias ? tensor(bias, bias_width) : NULL, bias_width, added,
                   rows, c->in, c->out);
    if (c->gelu) expect("gelu_input", before, gelu_input, magnitude, 4, y_n);
    expect("y", out, y, magnitude, c->gelu ? 12 : 4, y_n);      // GELU: its slope is under 1.13, and some roundings of its own
}

static void check_matmul_backward_input(const void *a_case) {
    const MatmulCase *c = a_case;
    const size_t rows = c->rows, x_n = rows * c->in, weight_n = (size_t)c->out * c->in, y_n = rows * c->out;
    describe_matmul("matmul_backward_input", c);
    const double *d_y = input_values(y_n, 1), *weight = input_values(weight_n, 1), *gelu_input = c->gelu ? input_values(x_n, 4) : NULL;
    double *d_x = on_host(x_n), *magnitude = on_host(x_n);
    if (need_reference()) {
        naive_matmul_backward_input(d_x, d_y, weight, gelu_input, rows, c->in, c->out);
        naive_matmul_backward_input(magnitude, absolute(d_y, y_n), absolute(weight, weight_n), NULL, rows, c->in, c->out);
    }
    const Limits limits = rows % 2 ? matmul_limits(c) : classifier_limits(c);
    use_scratch(&limits);
    void *out = output(x_n);
    device->matmul_backward_input(out, tensor(d_y, y_n), tensor(weight, weight_n), gelu_input ? tensor(gelu_input, x_n) : NULL, rows,
                                  c->in, c->out);
    expect("d_x", out, d_x, magnitude, c->gelu ? 12 : 4, x_n);
}

static void check_matmul_backward_weight(const void *a_case) {
    const MatmulCase *c = a_case;
    const size_t rows = c->rows, x_n = rows * c->in, weight_n = (size_t)c->out * c->in, y_n = rows * c->out;
    const int bias_width = bias_width_of(c);
    describe_matmul("matmul_backward_weight", c);
    const double *d_y = input_values(y_n, 1), *x = input_values(x_n, 1), *old_weight = input_values(weight_n, 1);
    const double *old_bias = input_values(bias_width, 1);
    double *d_weight = copy_of(old_weight, weight_n), *d_bias = copy_of(old_bias, bias_width);
    double *magnitude = absolute(old_weight, weight_n), *bias_magnitude = absolute(old_bias, bias_width);
    if (need_reference()) {
        naive_matmul_backward_weight(d_weight, c->bias ? d_bias : NULL, bias_width, d_y, x, rows, c->in, c->out);
        naive_matmul_backward_weight(magnitude, bias_magnitude, bias_width, absolute(d_y, y_n), absolute(x, x_n), rows, c->in, c->out);
    }
    const Limits limits = rows % 2 ? matmul_limits(c) : classifier_limits(c);
    use_scratch(&limits);
    void *out = tensor(old_weight, weight_n), *out_bias = tensor(old_bias, bias_width);
    device->matmul_backward_weight(out, c->bias ? out_bias : NULL, bias_width, tensor(d_y, y_n), tensor(x, x_n), rows, c->in, c->out);
    expect("d_weight", out, d_weight, magnitude, 4, weight_n);
    expect("d_bias", out_bias, d_bias, bias_magnitude, 4, bias_width);
}

// All combinations of options on small shapes; on larger ones as many as have different ones, a few each.
static void run_matmul_cases(Check *check, bool residuals, bool biases) {
    int number = 0;
    for (int s = 0; s < MATMUL_SHAPES; s++)
        for (int option = 0; option < 18; option++) {
            MatmulCase c = { matmul_shapes[s][0], matmul_shapes[s][1], matmul_shapes[s][2], option / 6, (Residual)(option / 2 % 3),
                             option % 2 };
            bool small = (double)c.rows * c.in * c.out < 5e4;
            if ((!residuals && c.residual) || (!biases && c.bias)) continue;
            number++;
            if (small || number % 6 == s % 6) run_everywhere(check, &c, number, small && number % 3 == 0);
        }
}

static void test_matmul(void **state) {
    (void)state;
    run_matmul_cases(check_matmul, true, true);
}

static void test_matmul_backward_input(void **state) {
    (void)state;
    run_matmul_cases(check_matmul_backward_input, false, false);
}

static void test_matmul_backward_weight(void **state) {
    (void)state;
    run_matmul_cases(check_matmul_backward_weight, false, true);
}

// ================================================================ rotary positions =======================================================

typedef struct RopeCase { int B, first, T, heads, D, width, direction; } RopeCase;
static const RopeCase rope_cases[] = {
    { 1, 0, 1, 1, 2, 2, 1 }, { 2, 0, 3, 2, 4, 11, -1 }, { 1, 5, 4, 3, 32, 100, 1 }, { 3, 0, 17, 2, 34, 70, -1 },
    { 2, 0, 70, 4, 64, 300, 1 },
};

static void check_rope(const void *a_case) {
    const RopeCase *c = a_case;
    const size_t n = (size_t)c->B * c->T * c->width, table_n = (size_t)(c->first + c->T) * c->D;
    snprintf(context, sizeof context, "rope B %d T %d heads %d D %d", c->B, c->T, c->heads, c->D);
    const double *x = input_values(n, 1), *table = input_values(table_n, 1);
    double *expected = copy_of(x, n);
    naive_rope(expected, table, c->B, c->first, c->T, c->heads, c->D, c->width, c->direction);
    void *out = tensor(x, n);
    device->rope(out, tensor(table, table_n), c->B, c->first, c->T, c->heads, c->D, c->width, c->direction);
    expect("x", out, expected, constant(2, n), 1, n);           // two products of numbers under 1
}

static void test_rope(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rope_cases / sizeof *rope_cases; i++) run_everywhere(check_rope, &rope_cases[i], i, true);
}

// ================================================================ attention ==============================================================

typedef struct AttentionCase {
    int B, first_query, T, H, K, D;
    AttentionConfig config;
} AttentionCase;

// Around the sizes of query and key tiles; head sizes that fill vectors and that do not.
static const int attention_shapes[][5] = {      // B, T, H, K, D
    { 1, 1, 1, 1, 1 }, { 2, 2, 2, 1, 3 }, { 1, 3, 3, 3, 2 }, { 2, 7, 2, 2, 5 }, { 2, 13, 4, 2, 8 }, { 1, 17, 6, 2, 16 },
    { 2, 31, 2, 2, 12 },
    { 1, 32, 2, 1, 32 }, { 1, 33, 2, 2, 33 }, { 1, 63, 1, 1, 16 }, { 2, 64, 2, 2, 32 }, { 1, 65, 4, 1, 31 }, { 1, 127, 2, 2, 64 },
    { 1, 128, 1, 1, 65 }, { 1, 129, 2, 1, 64 }, { 1, 200, 2, 2, 130 }, { 1, 300, 1, 1, 96 }, { 1, 520, 2, 1, 32 },
};
enum { ATTENTION_SHAPES = sizeof attention_shapes / sizeof *attention_shapes };

typedef struct AttentionTensors {
    NaiveAttention naive;
    Attention call;                 // the device's
    size_t queries, projection_n, out_n, stats_n;
    double z_magnitude;             // largest scale * sum |q||k|
    double largest_q, largest_k, largest_v;
} AttentionTensors;

static double largest_in_columns(const NaiveAttention *a, int from, int count) {
    const size_t rows = (size_t)a->call.B * (a->call.first_query + a->call.T);
    double result = 0;
    for (size_t r = 0; r < rows; r++)
        for (int c = from; c < from + count; c++) result = fmax(result, fabs(a->projection[r * a->call.width + c]));
    return result;
}

// Columns as train_gpt.c lays them out, and some unused ones, which hold NaN: nothing may read them.
static AttentionTensors attention_tensors(const AttentionCase *c) {
    const int queries = c->H * c->D, keys = c->K * c->D, gates = attention_gate_columns(c->config, c->H, c->D);
    const int used = queries + 2 * keys + gates + attention_alpha_columns(c->config, c->H), width = used + c->T % 4;
    const size_t rows = (size_t)c->B * (c->first_query + c->T);
    AttentionTensors t = {
        .call = { .config = c->config, .B = c->B, .T = c->T, .first_query = c->first_query, .H = c->H, .K = c->K, .D = c->D, .width = width,
                  .key_column = queries, .value_column = queries + keys, .gate_column = queries + 2 * keys,
                  .alpha_column = queries + 2 * keys + gates, .scale = 1 / sqrt(c->D) },
        .queries = (size_t)c->B * c->T, .projection_n = rows * width, .out_n = (size_t)c->B * c->T * queries,
        .stats_n = (size_t)attention_row_stats(c->config) * c->B * c->H * c->T,
    };
    const double *values = input_values(rows * used, 2);
    double *projection = constant(NAN, t.projection_n);
    for (size_t r = 0; r < rows; r++) memcpy(projection + r * width, values + r * used, used * sizeof *values);
    for (size_t r = 0; r < rows && c->config.type == ATTENTION_AFFINE; r++)      // some alphas clipped, at both ends
        for (int h = 0; h < c->H; h++) projection[r * width + t.call.alpha_column + h] *= 4;
    t.naive = (NaiveAttention){ .call = t.call, .projection = projection };
    if (attention_has_sinks(c->config)) t.naive.sinks = input_values(c->H, 2);
    if (attention_has_alpha(c->config)) t.naive.alpha_ma = absolute(input_values(c->H, 1), c->H);
    t.call.projection = tensor(projection, t.projection_n);
    t.call.sinks = t.naive.sinks ? tensor(t.naive.sinks, c->H) : NULL;
    t.call.alpha_ma = t.naive.alpha_ma ? tensor(t.naive.alpha_ma, c->H) : NULL;
    t.largest_q = largest_in_columns(&t.naive, 0, queries);
    t.largest_k = largest_in_columns(&t.naive, t.call.key_column, keys);
    t.largest_v = largest_in_columns(&t.naive, t.call.value_column, keys);
    t.z_magnitude = t.call.scale * c->D * t.largest_q * t.largest_k;
    use_scratch(&(Limits){ .rows = rows, .B = c->B, .T = c->first_query + c->T, .C = 1, .H = c->H, .K = c->K, .D = c->D, .widest = 1,
                           .chunk_rows = 1, .V = 1 });
    return t;
}

static void describe_attention(const char *name, const AttentionCase *c) {
    snprintf(context, sizeof context, "%s %s B %d first %d T %d H %d K %d D %d type %d gate %d activation %d n %d", device->dtype, name,
             c->B, c->first_query, c->T, c->H, c->K, c->D, c->config.type, c->config.gate, c->config.affine_activation, c->config.affine_n);
}

// Averages of v by weights whose relative error is the logits' absolute one; affine's other term is beta times a sum over the keys.
static double attention_magnitude(const AttentionTensors *t, const AttentionCase *c) {
    double most_terms = c->config.affine_n == AFFINE_N_PREFIX ? 1 : (double)(c->first_query + c->T) / c->config.affine_length;
    return (1 + t->z_magnitude) * t->largest_v * (1 + (c->config.type == ATTENTION_AFFINE ? most_terms : 0));
}

static void check_attention(const void *a_case) {
    const AttentionCase *c = a_case;
    describe_attention("attention", c);
    AttentionTensors t = attention_tensors(c);
    double *expected = on_host(t.out_n), *expected_core = on_host(t.out_n), *expected_stats = on_host(t.stats_n);
    if (need_reference()) naive_attention(expected, expected_core, expected_stats, &t.naive);
    void *out = output(t.out_n), *core = attention_keeps_core(c->config) ? output(t.out_n) : NULL, *stats = output(t.stats_n);
    device->attention(out, core, stats, &t.call);
    const double *magnitude = constant(attention_magnitude(&t, c), t.out_n);
    expect("out", out, expected, magnitude, 2, t.out_n);
    if (core) expect("core", core, expected_core, magnitude, 2, t.out_n);
    expect("stats", stats, expected_stats, constant(1 + t.z_magnitude, t.stats_n), 2, t.stats_n);
    expect_same("projection", t.call.projection, t.naive.projection, t.projection_n);
}

// The magnitude of each column of d_projection: |d_z| is at most P times twice the largest d_P, sum |d_y||v|; what a key gathers over
// queries is measured by the largest gradient there is.
static double *d_projection_magnitude(const AttentionTensors *t, const AttentionCase *c, const double *expected, double largest_d) {
    const Attention *a = &t->call;
    const int columns[] = { 0, a->key_column, a->value_column, a->gate_column, a->alpha_column, a->width };
    const double d_P = c->D * largest_d * t->largest_v, y = attention_magnitude(t, c);
    const double floors[] = { a->scale * t->largest_k * d_P, a->scale * t->largest_q * d_P, largest_d, largest_d * y * c->D,
                              largest_d * y * c->D };
    double *magnitude = on_host(t->queries * a->width);
    for (int part = 0; part < 5; part++) {
        double most = floors[part];
        for (size_t r = 0; r < t->queries; r++)
            for (int i = columns[part]; i < columns[part + 1]; i++) most = fmax(most, fabs(expected[r * a->width + i]));
        for (size_t r = 0; r < t->queries; r++)
            for (int i = columns[part]; i < columns[part + 1]; i++) magnitude[r * a->width + i] = (1 + t->z_magnitude) * most;
    }
    return magnitude;
}

static void check_attention_backward(const void *a_case) {
    const AttentionCase *c = a_case;
    describe_attention("attention_backward", c);
    AttentionTensors t = attention_tensors(c);
    const size_t n = t.queries * t.call.width;
    const double *d_out = input_values(t.out_n, 1), *old_sinks = input_values(c->H, 1), *old_alpha = input_values(c->H, 1);
    double *out = on_host(t.out_n), *core = on_host(t.out_n), *stats = on_host(t.stats_n), *expected = on_host(n);
    double *sinks = copy_of(old_sinks, c->H), *alpha = copy_of(old_alpha, c->H);
    const bool has_sinks = attention_has_sinks(c->config), has_alpha = attention_has_alpha(c->config);
    naive_attention(out, core, stats, &t.naive);
    if (need_reference()) naive_attention_backward(expected, has_sinks ? sinks : NULL, has_alpha ? alpha : NULL, d_out, &t.naive);
    void *d_projection = output(n), *d_sinks = tensor(old_sinks, c->H);
    double *alpha_sum = doubles_tensor(old_alpha, c->H);
    void *core_tensor = attention_keeps_core(c->config) ? tensor(core, t.out_n) : NULL;
    device->attention_backward(d_projection, has_sinks ? d_sinks : NULL, has_alpha ? alpha_sum : NULL, tensor(d_out, t.out_n),
                               tensor(out, t.out_n), core_tensor, tensor(stats, t.stats_n), &t.call);
    const double *magnitude = d_projection_magnitude(&t, c, expected, 1);
    expect("d_projection", d_projection, expected, magnitude, 4, n);
    const double mean = t.queries * (1 + t.z_magnitude) * c->D * t.largest_v;
    expect("d_sinks", d_sinks, sinks, constant(mean, c->H), 1, c->H);
    expect_doubles("alpha_sum", alpha_sum, alpha, constant(t.queries + 1, c->H), 8, c->H);
}

static void check_attention_diagnose(const void *a_case) {
    const AttentionCase *c = a_case;
    describe_attention("attention_diagnose", c);
    AttentionTensors t = attention_tensors(c);
    const size_t n = (size_t)c->H * DIAGNOSE_SIZE;
    double *out = on_host(t.out_n), *stats = on_host(t.stats_n), *magnitude = on_host(n);
    naive_attention(out, NULL, stats, &t.naive);
    double *old = on_host(n);
    for (size_t i = 0; i < n; i++) old[i] = (double)(i % 7);
    double *expected = copy_of(old, n);
    naive_attention_diagnose(expected, &t.naive);
    const double rows = (double)c->B * c->T, pairs = (double)c->B * c->T * (c->T + 1) / 2, z = 1 + t.z_magnitude;
    const double most_keys = c->config.affine_n == AFFINE_N_PREFIX ? 1 : (double)c->T / c->config.affine_length, sum = 2 + 2 * most_keys;
    for (int h = 0; h < c->H; h++) {                            // counts are exact
        double *m = magnitude + (size_t)h * DIAGNOSE_SIZE;
        m[DIAGNOSE_Z] = pairs * z;
        m[DIAGNOSE_Z2] = 2 * pairs * z * z;
        m[DIAGNOSE_FIRST] = rows * z * sum;
        m[DIAGNOSE_ROW_SUM] = rows * z * sum;
        m[DIAGNOSE_ROW_SUM2] = rows * z * sum * sum;
        m[DIAGNOSE_ENTROPY] = rows * z * z;
        m[DIAGNOSE_SINK] = rows * z;
        m[DIAGNOSE_ALPHA] = m[DIAGNOSE_ALPHA2] = m[DIAGNOSE_ALPHA_MA] = m[DIAGNOSE_GATE] = rows;
        for (int i = 0; i < DIAGNOSE_ROW_SUM_BINS; i++) m[i] = m[i] == 0 ? 0 : m[i] + fabs(old[h * DIAGNOSE_SIZE + i]);
    }
    run.may_show_anywhere = true;                               // affine's row sum is known from alpha alone
    double *sums = doubles_tensor(old, n);
    device->attention_diagnose(sums, tensor(stats, t.stats_n), &t.call);
    expect_doubles("sums", sums, expected, magnitude, 4, n);
}

static void check_attention_weights(const void *a_case) {
    const AttentionCase *c = a_case;
    describe_attention("attention_weights", c);
    AttentionTensors t = attention_tensors(c);
    const int sequence = c->B - 1, head = c->H - 1, query = c->T / 3, count = c->T - query;
    const size_t n = (size_t)count * (c->first_query + c->T);
    double *out = on_host(t.out_n), *stats = on_host(t.stats_n), *expected = on_host(n);
    naive_attention(out, NULL, stats, &t.naive);
    naive_attention_weights(expected, &t.naive, sequence, head, query, count);
    void *weights = output(n);
    device->attention_weights(weights, tensor(stats, t.stats_n), &t.call, sequence, head, query, count);
    expect("weights", weights, expected, constant(1 + t.z_magnitude, n), 2, n);
}

// Every type with every gate and both affine options on small shapes, a rotating choice of them on larger ones.
static void run_attention_cases(Check *check, bool with_first_query) {
    int number = 0;
    for (int s = 0; s < ATTENTION_SHAPES; s++)
        for (int option = 0; option < 21; option++) {
            const int kind = option / 3;        // baseline, off_by_one, sink, affine clipped and sigmoid with N a constant and the prefix
            const int *shape = attention_shapes[s];
            AttentionCase c = { shape[0], 0, shape[1], shape[2], shape[3], shape[4],
                                { .type = kind < 3 ? (AttentionType)kind : ATTENTION_AFFINE, .gate = (GateType)(option % 3),
                                  .affine_activation = kind % 2 ? AFFINE_LINEAR_CLIPPING : AFFINE_SIGMOID,
                                  .affine_n = kind < 5 ? AFFINE_N_SEQUENCE : AFFINE_N_PREFIX, .affine_length = larger(1, shape[1] - 1),
                                  .affine_rho = 0.9 } };
            number++;
            if (c.T > 20 && number % 5 != s % 5) continue;
            run_everywhere(check, &c, number, c.T < 20 && number % 4 == 0);
            const int first_queries[] = { 1, 5, 40 };
            c.first_query = first_queries[number % 3];
            if (with_first_query) run_everywhere(check, &c, number, false);
        }
}

static void test_attention(void **state) {
    (void)state;
    run_attention_cases(check_attention, true);
}

static void test_attention_backward(void **state) {
    (void)state;
    run_attention_cases(check_attention_backward, false);
}

static void test_attention_diagnose(void **state) {
    (void)state;
    run_attention_cases(check_attention_diagnose, false);
}

static void test_attention_weights(void **state) {
    (void)state;
    run_attention_cases(check_attention_weights, true);
}

// Softmax over one key with q = k = 1 (z = 1) and a sink at 0: P = e / (e + 1), d_z = P (1 - P) v = 0.39322387 for v = 2; d_q = d_k = d_z.
static void check_one_query(const void *a_case) {
    (void)a_case;
    snprintf(context, sizeof context, "one query and one key with a sink");
    const double projection[] = { 1, 1, 2 }, zero = 0, one = 1, P = exp(1) / (exp(1) + 1), expected[] = { 0.39322387, 0.39322387, P };
    Attention a = { .config = { .type = ATTENTION_SINK }, .B = 1, .T = 1, .H = 1, .K = 1, .D = 1, .width = 3, .key_column = 1,
                    .value_column = 2, .gate_column = 3, .alpha_column = 3, .scale = 1, .projection = tensor(projection, 3),
                    .sinks = tensor(&zero, 1) };
    use_scratch(&(Limits){ .rows = 1, .B = 1, .T = 1, .C = 1, .H = 1, .K = 1, .D = 1, .widest = 3, .chunk_rows = 1, .V = 1 });
    void *out = output(1), *stats = output(1), *d_projection = output(3), *d_sinks = tensor(&zero, 1);
    device->attention(out, NULL, stats, &a);
    device->attention_backward(d_projection, d_sinks, NULL, tensor(&one, 1), out, NULL, stats, &a);
    double actual[3], d_sink;
    device->read(actual, d_projection, 3);
    device->read(&d_sink, d_sinks, 1);
    for (int i = 0; i < 3; i++) assert_float_equal(actual[i], expected[i], 1e-6);
    assert_float_equal(d_sink, -2 * P * (1 - P), 1e-6);
}

static void test_one_query(void **state) {
    (void)state;
    run_everywhere(check_one_query, NULL, 0, false);
}

// alpha = 1 (a large alpha column, clipped) and alpha_ma = 1 leave the softmax alone: bit for bit the baseline's output and gradients.
static void check_affine_is_baseline(const void *a_case) {
    AttentionCase c = *(const AttentionCase *)a_case;
    const size_t out_n = (size_t)c.B * c.T * c.H * c.D, stats_n = (size_t)c.B * c.H * c.T, rows = (size_t)c.B * c.T;
    const int plain = (c.H + 2 * c.K) * c.D, affine = plain + c.H;
    snprintf(context, sizeof context, "affine with alpha 1 and alpha_ma 1");
    const double *values = input_values(rows * plain, 1), *d_out = input_values(out_n, 1);
    double *with_alpha = constant(9, rows * affine), *results[2][2];
    for (size_t r = 0; r < rows; r++) memcpy(with_alpha + r * affine, values + r * plain, plain * sizeof *values);
    use_scratch(&(Limits){ .rows = rows, .B = c.B, .T = c.T, .C = 1, .H = c.H, .K = c.K, .D = c.D, .widest = 1, .chunk_rows = 1, .V = 1 });
    for (int is_affine = 0; is_affine < 2; is_affine++) {
        const int width = is_affine ? affine : plain;
        Attention a = { .config = { .type = is_affine ? ATTENTION_AFFINE : ATTENTION_BASELINE, .affine_length = c.T }, .B = c.B, .T = c.T,
                        .H = c.H, .K = c.K, .D = c.D, .width = width, .key_column = c.H * c.D, .value_column = (c.H + c.K) * c.D,
                        .gate_column = plain, .alpha_column = plain, .scale = 1 / sqrt(c.D),
                        .projection = tensor(is_affine ? with_alpha : values, rows * width),
                        .alpha_ma = is_affine ? tensor(constant(1, c.H), c.H) : NULL };
        void *out = output(out_n), *core = is_affine ? output(out_n) : NULL, *stats = output(stats_n), *d_projection = output(rows * width);
        double *alpha_sum = is_affine ? doubles_tensor(constant(0, c.H), c.H) : NULL;
        device->attention(out, core, stats, &a);
        device->attention_backward(d_projection, NULL, alpha_sum, tensor(d_out, out_n), out, core, stats, &a);
        device->read(results[is_affine][0] = on_host(out_n), out, out_n);
        device->read(results[is_affine][1] = on_host(rows * width), d_projection, rows * width);
        for (int h = 0; is_affine && h < c.H; h++) assert_float_equal(alpha_sum[h], (double)rows, 1e-9);
    }
    for (size_t i = 0; i < out_n; i++) assert_true(results[0][0][i] == results[1][0][i]);
    for (size_t r = 0; r < rows; r++)
        for (int i = 0; i < plain; i++) assert_true(results[0][1][r * plain + i] == results[1][1][r * affine + i]);
}

static void test_affine_is_baseline(void **state) {
    (void)state;
    const AttentionCase cases[] = { { 2, 0, 5, 2, 1, 4, {0} }, { 1, 0, 70, 2, 2, 32, {0} } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_everywhere(check_affine_is_baseline, &cases[i], i, false);
}

static const void *after(const void *tensor_of_reals, size_t n) { return (const char *)tensor_of_reals + n * device->real_bytes; }

// Forward and backward of so many heads that a device may take them a part at a time: what each sequence gives alone, bit for bit.
static void check_sequences_alone(const void *a_case) {
    const AttentionCase *c = a_case;
    describe_attention("sequences alone", c);
    AttentionTensors t = attention_tensors(c);
    const size_t d_n = t.queries * t.call.width, out_n = t.out_n / c->B, stats_n = t.stats_n / c->B, rows_n = d_n / c->B;
    const bool has_alpha = attention_has_alpha(c->config);
    const double *d_out_values = input_values(t.out_n, 1), *zeros = constant(0, c->H);
    void *d_out = tensor(d_out_values, t.out_n);
    void *outs[2], *cores[2], *stats[2], *gradients[2];
    double *alpha_sum = doubles_tensor(zeros, c->H), *values[2][2];
    for (int alone = 0; alone < 2; alone++) {
        outs[alone] = output(t.out_n), cores[alone] = output(t.out_n), stats[alone] = output(t.stats_n), gradients[alone] = output(d_n);
        Attention part = t.call;
        part.B = alone ? 1 : c->B;
        for (int b = 0; b < c->B; b += part.B) {
            void *out = (void *)after(outs[alone], b * out_n), *stat = (void *)after(stats[alone], b * stats_n);
            void *core = attention_keeps_core(c->config) ? (void *)after(cores[alone], b * out_n) : NULL;
            part.projection = after(t.call.projection, b * rows_n);
            device->attention(out, core, stat, &part);
            device->attention_backward((void *)after(gradients[alone], b * rows_n), NULL, has_alpha ? alpha_sum : NULL,
                                       after(d_out, b * out_n), out, core, stat, &part);
        }
        device->read(values[alone][0] = on_host(t.out_n), outs[alone], t.out_n);
        device->read(values[alone][1] = on_host(d_n), gradients[alone], d_n);
    }
    assert_memory_equal(values[0][0], values[1][0], t.out_n * sizeof(double));
    assert_memory_equal(values[0][1], values[1][1], d_n * sizeof(double));
    expect_values("d_projection", values[0][1], values[1][1], constant(0, d_n), 0, d_n);
}

static void test_sequences_alone(void **state) {
    (void)state;
    const AttentionCase cases[] = {
        { 5, 0, 513, 8, 8, 33, { .type = ATTENTION_AFFINE, .affine_length = 513 } },
        { 3, 0, 140, 4, 2, 64, { .type = ATTENTION_BASELINE } },
        { 2, 0, 70, 4, 2, 40, { .type = ATTENTION_OFF_BY_ONE, .gate = GATE_ELEMENTWISE } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_everywhere(check_sequences_alone, &cases[i], i, false);
}

// Another token at position t (its q, k, v, gate and alpha) changes no output before t, bit for bit; and the output at t.
static void check_causality(const void *a_case) {
    const AttentionCase *c = a_case;
    const size_t row_n = (size_t)c->H * c->D;
    describe_attention("causality", c);
    AttentionTensors t = attention_tensors(c);
    const int changed = c->T * 2 / 3;
    double *other = copy_of(t.naive.projection, t.projection_n);
    for (int i = 0; i < t.call.width; i++) other[(size_t)changed * t.call.width + i] *= -1;
    double *results[2];
    for (int i = 0; i < 2; i++) {
        void *out = output(t.out_n);
        if (i) t.call.projection = tensor(other, t.projection_n);
        device->attention(out, attention_keeps_core(c->config) ? output(t.out_n) : NULL, output(t.stats_n), &t.call);
        device->read(results[i] = on_host(t.out_n), out, t.out_n);
    }
    assert_memory_equal(results[0], results[1], changed * row_n * sizeof(double));
    assert_true(memcmp(results[0] + changed * row_n, results[1] + changed * row_n, row_n * sizeof(double)) != 0);
}

static void test_causality(void **state) {
    (void)state;
    for (int option = 0; option < 12; option++) {
        AttentionCase c = { 1, 0, option % 2 ? 150 : 11, 2, 1, 16, { .type = (AttentionType)(option % 4), .gate = (GateType)(option % 3),
                            .affine_length = 100, .affine_n = (AffineN)(option / 4 % 2) } };
        run_everywhere(check_causality, &c, option, false);
    }
}

// Queries asked one after another, or some at a time, on the rows before them give what all at once give.
static void check_decoding(const void *a_case) {
    const AttentionCase *c = a_case;
    const size_t row_n = (size_t)c->H * c->D;
    describe_attention("decoding", c);
    AttentionTensors t = attention_tensors(c);
    void *whole = output(t.out_n), *parts = output(t.out_n), *core = attention_keeps_core(c->config) ? output(t.out_n) : NULL;
    void *stats = output(t.stats_n);
    device->attention(whole, core, stats, &t.call);
    for (int at = 0, count; at < c->T; at += count) {
        count = (int)smaller(at < 4 ? 1 : at < 9 ? 5 : 34, c->T - at);
        Attention part = t.call;
        part.first_query = at;
        part.T = count;
        device->attention((Compute *)((char *)parts + at * row_n * device->compute_bytes), core, stats, &part);
    }
    double *values = on_host(t.out_n);
    device->read(values, whole, t.out_n);
    expect("out", parts, values, constant(attention_magnitude(&t, c), t.out_n), 2, t.out_n);
}

static void test_decoding(void **state) {
    (void)state;
    for (int option = 0; option < 12; option++) {
        AttentionCase c = { 1, 0, 60, 2, 1, 16, { .type = (AttentionType)(option % 4), .gate = (GateType)(option % 3), .affine_length = 50,
                            .affine_n = (AffineN)(option / 4 % 2) } };
        run_everywhere(check_decoding, &c, option, false);
    }
}

// ================================================================ SwiGLU =================================================================

typedef struct PlainCase { int rows, n; double factor; } PlainCase;
static const PlainCase swiglu_cases[] = { { 1, 1, 1 }, { 2, 3, 5 }, { 3, 17, 20 }, { 5, 33, 100 }, { 64, 160, 3 } };

static void check_swiglu(const void *a_case) {
    const PlainCase *c = a_case;
    const size_t n = (size_t)c->rows * c->n;
    snprintf(context, sizeof context, "swiglu rows %d intermediate %d", c->rows, c->n);
    const double *x = input_values(2 * n, c->factor), *d_out = input_values(n, 1);
    double *expected = on_host(n), *d_x = on_host(2 * n), *magnitude = on_host(n);
    naive_swiglu(expected, x, c->rows, c->n);
    naive_swiglu_backward(d_x, d_out, x, c->rows, c->n);
    for (size_t i = 0; i < n; i++) magnitude[i] = fabs(expected[i]) + 1e-30;     // relative: a sigmoid far below 0 is no less exact
    void *out = output(n), *out_d_x = output(2 * n);
    device->swiglu(out, tensor(x, 2 * n), c->rows, c->n);
    device->swiglu_backward(out_d_x, tensor(d_out, n), tensor(x, 2 * n), c->rows, c->n);
    expect("out", out, expected, magnitude, 4, n);
    expect("d_x", out_d_x, d_x, constant(1.1 * c->factor, 2 * n), 4, 2 * n);
}

static void test_swiglu(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof swiglu_cases / sizeof *swiglu_cases; i++) run_everywhere(check_swiglu, &swiglu_cases[i], i, true);
}

// ================================================================ the classifier's loss ==================================================

typedef struct LossCase { int rows, V, padding; bool teacher; double weight, temperature, scale, factor; } LossCase;
static const LossCase loss_cases[] = {
    { 1, 1, 0, false, 0, 1, 1, 1 },         { 2, 3, 0, false, 1, 1, 0.5, 5 },       { 3, 17, 7, false, 0, 1, 0, 5 },
    { 5, 256, 0, false, 0, 1, 0.001, 30 },  { 70, 131, 5, false, 0, 1, 0.25, 80 },  { 9, 300, 4, true, 0.3, 1, 1, 4 },
    { 9, 64, 0, true, 1, 2.5, 0.125, 6 },   { 4, 47, 1, true, 0.5, 0.5, 0, 3 },     { 2, 2, 6, true, 0, 3, 1, 3 },
};

static void check_cross_entropy(const void *a_case) {
    const LossCase *c = a_case;
    const int stride = c->V + c->padding;
    const size_t n = (size_t)c->rows * stride, losses_stride = c->rows + 3;
    snprintf(context, sizeof context, "cross_entropy rows %d V %d teacher %d scale %g", c->rows, c->V, c->teacher, c->scale);
    const double *logits = input_values(n, c->factor), *teacher = c->teacher ? input_values(n, c->factor) : NULL;
    int *targets = on_host(c->rows);
    for (int r = 0; r < c->rows; r++) targets[r] = r % 4 == 2 ? -1 : (int)(random_bits() % (uint64_t)c->V);
    double *gradient = copy_of(logits, n), *losses = constant(NAN, LOSS_KINDS * losses_stride);
    double *loss_values = on_host(LOSS_KINDS * losses_stride);
    naive_cross_entropy(gradient, losses, losses_stride, teacher, targets, c->rows, c->V, stride, c->weight, c->temperature, c->scale);
    void *out = tensor(logits, n), *out_losses = output(LOSS_KINDS * losses_stride);
    device->cross_entropy(out, out_losses, losses_stride, teacher ? tensor(teacher, n) : NULL, int_tensor(targets, c->rows), c->rows,
                          c->V, stride, c->weight, c->temperature, c->scale);
    // A probability's relative error is that of its logit over the temperature, which the largest possible difference bounds.
    const double range = 1 + 4 * c->factor * fmax(1, 1 / c->temperature);
    expect(c->scale != 0 ? "gradient" : "logits", out, gradient, constant(c->scale * range * fmax(1, c->temperature), n), 2, n);
    device->read(loss_values, out_losses, LOSS_KINDS * losses_stride);
    for (int kind = 0; kind < LOSS_KINDS; kind++)               // between the rows of losses nothing is written
        expect_values("losses", loss_values + kind * losses_stride, losses + kind * losses_stride, constant(range, losses_stride), 2,
                      losses_stride);
}

static void test_cross_entropy(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof loss_cases / sizeof *loss_cases; i++) run_everywhere(check_cross_entropy, &loss_cases[i], i, true);
}

// A student equal to its teacher: kl 0 and, at weight 1 and temperature 1, no gradient.
static void check_equal_teacher(const void *a_case) {
    (void)a_case;
    enum { ROWS = 3, V = 77 };
    snprintf(context, sizeof context, "a student equal to its teacher");
    const double *logits = input_values(ROWS * V, 6);
    const int targets[ROWS] = { 0, 5, V - 1 };
    double values[LOSS_KINDS * ROWS], gradient[ROWS * V];
    void *out = tensor(logits, ROWS * V), *losses = output(LOSS_KINDS * ROWS);
    device->cross_entropy(out, losses, ROWS, tensor(logits, ROWS * V), int_tensor(targets, ROWS), ROWS, V, V, 1, 1, 1);
    device->read(values, losses, LOSS_KINDS * ROWS);
    device->read(gradient, out, ROWS * V);
    for (int r = 0; r < ROWS; r++) assert_true(values[LOSS_KL * ROWS + r] == 0);
    for (int i = 0; i < ROWS * V; i++) assert_true(gradient[i] == 0);
}

static void test_equal_teacher(void **state) {
    (void)state;
    run_everywhere(check_equal_teacher, NULL, 1, false);
}

static void check_add_up(const void *a_case) {
    const PlainCase *c = a_case;
    const size_t stride = c->n + 2;
    snprintf(context, sizeof context, "add_up %d kinds of %d", c->rows, c->n);
    const double *x = input_values(c->rows * stride, 1);
    double *expected = on_host(c->rows), *old = on_host(c->rows);
    for (int k = 0; k < c->rows; k++) {
        expected[k] = old[k] = k + 0.5;
        for (int i = 0; i < c->n; i++) expected[k] += x[k * stride + i];
    }
    double *sums = doubles_tensor(old, c->rows);
    device->add_up(sums, tensor(x, c->rows * stride), c->n, c->rows, stride);
    expect_doubles("sums", sums, expected, constant(c->n * 0x1p-52 / epsilon(), c->rows), 1, c->rows);  // in double on every device
}

static void test_add_up(void **state) {
    (void)state;
    const PlainCase cases[] = { { 1, 1, 1 }, { 3, 17, 1 }, { 3, 1000, 1 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_everywhere(check_add_up, &cases[i], i, false);
}

// ================================================================ the update =============================================================

// Three tensors of 1, 77 and 200000 parameters, spans no longer than SPAN_SIZE, moments shifted as in a process's share.
enum { TENSORS = 3, MOST_SPANS = 16, SHIFT = 5 };
typedef struct SpanList {
    Span spans[MOST_SPANS];
    int count;
    size_t parameters;
} SpanList;

static SpanList span_list(void) {
    const size_t sizes[TENSORS] = { 1, 77, 200000 };
    SpanList list = {0};
    for (int tensor_index = 0; tensor_index < TENSORS; tensor_index++)
        for (size_t left = sizes[tensor_index]; left > 0;) {
            size_t count = smaller(left, SPAN_SIZE);
            list.spans[list.count++] = (Span){ .offset = list.parameters + SHIFT, .state_offset = list.parameters, .count = count,
                                               .tensor = tensor_index, .decay = tensor_index != 1 };
            list.parameters += count;
            left -= count;
        }
    return list;
}

static const Span *span_tensor(const SpanList *list) {
    Span *spans = between_guards(list->count * sizeof *spans, 0, 0);
    device->copy_to_device(spans, list->spans, list->count * sizeof *spans);
    return spans;
}

static void check_sum_squares(const void *a_case) {
    (void)a_case;
    const SpanList list = span_list();
    snprintf(context, sizeof context, "sum_squares");
    const double *x = input_values(list.parameters + SHIFT, 3);
    double old[TENSORS] = { 1, 2, 3 }, expected[TENSORS] = { 1, 2, 3 };
    for (int s = 0; s < list.count; s++)
        for (size_t i = 0; i < list.spans[s].count; i++) {
            double v = x[list.spans[s].offset + i];
            expected[list.spans[s].tensor] += v * v;
        }
    use_scratch(&(Limits){ .rows = 1, .B = 1, .T = 1, .C = 1, .H = 1, .K = 1, .D = 1, .widest = 1, .chunk_rows = 1, .V = 1,
                           .span_count = list.count });
    double *squares = doubles_tensor(old, TENSORS), magnitude[TENSORS];
    device->sum_squares(squares, tensor(x, list.parameters + SHIFT), span_tensor(&list), list.count);
    for (int i = 0; i < TENSORS; i++) magnitude[i] = expected[i] * 1e-12 / epsilon();                   // in double on every device
    expect_doubles("squares", squares, expected, magnitude, 1, TENSORS);
}

static void test_sum_squares(void **state) {
    (void)state;
    run_everywhere(check_sum_squares, NULL, 3, true);
}

typedef struct JudgeCase { double squares[2], losses[2], grad_clip, norm, scale; bool finite; } JudgeCase;

static void check_judge(const void *a_case) {
    const JudgeCase *c = a_case;
    snprintf(context, sizeof context, "judge %g %g clip %g", c->squares[0], c->squares[1], c->grad_clip);
    double *verdict = doubles_tensor((double[]){ NAN, NAN, NAN }, VERDICT_SIZE), expected[VERDICT_SIZE];
    device->judge(verdict, doubles_tensor(c->squares, 2), 2, doubles_tensor(c->losses, 2), 2, c->grad_clip);
    expected[VERDICT_NORM] = c->norm;
    expected[VERDICT_SCALE] = c->scale;
    expected[VERDICT_FINITE] = c->finite;
    if (!c->finite) expected[VERDICT_SCALE] = verdict[VERDICT_SCALE];
    expect_doubles("verdict", verdict, expected, constant(0, VERDICT_SIZE), 0, VERDICT_SIZE);
}

static void test_judge(void **state) {
    (void)state;
    const JudgeCase cases[] = {         // squares, losses, grad_clip; norm, scale, finite
        { { 9, 16 }, { 1, 2 }, 0, 5, 1, true },
        { { 9, 16 }, { 1, 2 }, 1, 5, 0.2, true },
        { { 9, 16 }, { 1, 2 }, 5, 5, 1, true },
        { { 9, 16 }, { 1, 2 }, 8, 5, 1, true },
        { { 0, 0 }, { 0, 0 }, 1, 0, 1, true },
        { { NAN, 1 }, { 0, 0 }, 1, NAN, 1, false },
        { { INFINITY, 1 }, { 0, 0 }, 1, INFINITY, 1, false },
        { { 9, 16 }, { NAN, 0 }, 1, 5, 0.2, false },
        { { 9, 16 }, { 0, -INFINITY }, 1, 5, 0.2, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_everywhere(check_judge, &cases[i], i, false);
}

typedef struct UpdateCase { AdamW hyper; double clip; bool finite, copy; } UpdateCase;

static void check_adamw(const void *a_case) {
    const UpdateCase *c = a_case;
    const SpanList list = span_list();
    const size_t n = list.parameters;
    snprintf(context, sizeof context, "adamw step %ld clip %g finite %d", c->hyper.step, c->clip, c->finite);
    const double *old_master = input_values(n + SHIFT, 1), *gradient = input_values(n + SHIFT, 0.1), *old_moment1 = input_values(n, 0.1);
    const double *old_moment2 = absolute(input_values(n, 0.01), n);
    double *master = copy_of(old_master, n + SHIFT), *moment1 = copy_of(old_moment1, n), *moment2 = copy_of(old_moment2, n);
    for (int s = 0; c->finite && s < list.count; s++) {
        const Span *p = &list.spans[s];
        naive_adamw(master + p->offset, gradient + p->offset, moment1 + p->state_offset, moment2 + p->state_offset, p->count, p->decay,
                    &c->hyper, c->clip);
    }
    double verdict[VERDICT_SIZE];
    verdict[VERDICT_NORM] = 1;
    verdict[VERDICT_SCALE] = c->clip;
    verdict[VERDICT_FINITE] = c->finite;
    void *out = tensor(old_master, n + SHIFT), *out1 = tensor(old_moment1, n), *out2 = tensor(old_moment2, n), *weights = output(n + SHIFT);
    device->adamw(out, c->copy ? weights : NULL, tensor(gradient, n + SHIFT), out1, out2, span_tensor(&list), list.count, &c->hyper,
                  doubles_tensor(verdict, VERDICT_SIZE));
    // Factor 4 for the change, which is lr times about 1, and the master's own rounding.
    expect("master", out, master, constant(1 + 10 * c->hyper.lr, n + SHIFT), 4, n + SHIFT);
    expect("moment1", out1, moment1, constant(0.2, n), 2, n);
    expect("moment2", out2, moment2, constant(0.02, n), 2, n);
    double *now = on_host(n + SHIFT), *copied = on_host(n + SHIFT);
    device->read(now, out, n + SHIFT);
    device->read(copied, weights, n + SHIFT);
    for (size_t i = 0; i < n + SHIFT; i++)
        if (i < SHIFT || !c->copy || !c->finite) {
            assert_true(isnan(copied[i]));
        } else if (!isnan(now[i])) {
            assert_true(copied[i] == now[i]);
        }
}

static void test_adamw(void **state) {
    (void)state;
    const UpdateCase cases[] = {
        { { 1e-3, 0.9, 0.95, 1e-8, 0.1, 1 }, 1, true, false }, { { 1e-1, 0.9, 0.999, 1e-8, 0.5, 2 }, 0.3, true, true },
        { { 1e-3, 0.9, 0.95, 1e-8, 0.1, 100000 }, 1, true, false }, { { 1e-1, 0.9, 0.95, 1e-8, 0.1, 3 }, 1, false, true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_everywhere(check_adamw, &cases[i], i, i == 0);
}

static void check_average_alpha(const void *a_case) {
    const bool finite = *(const bool *)a_case;
    enum { N = 37 };
    snprintf(context, sizeof context, "average_alpha finite %d", finite);
    const double *old = input_values(N, 1), *sums = input_values(N, 50), rho = 0.9, rows = 60;
    double expected[N], verdict[VERDICT_SIZE] = {0};
    verdict[VERDICT_FINITE] = finite;
    for (int i = 0; i < N; i++) expected[i] = finite ? rho * old[i] + (1 - rho) * sums[i] / rows : old[i];
    void *alpha_ma = tensor(old, N);
    device->average_alpha(alpha_ma, doubles_tensor(sums, N), N, rows, rho, doubles_tensor(verdict, VERDICT_SIZE));
    expect("alpha_ma", alpha_ma, expected, constant(1, N), finite ? 1 : 0, N);
}

static void test_average_alpha(void **state) {
    (void)state;
    const bool finite[] = { true, false };
    for (int i = 0; i < 2; i++) run_everywhere(check_average_alpha, &finite[i], i, false);
}

// ================================================================ between processes ======================================================

// With one process the sum over processes is what is there, and a share is the whole.
static void check_collectives(const void *a_case) {
    (void)a_case;
    enum { N = 101 };
    snprintf(context, sizeof context, "collectives");
    const double *values = input_values(N, 1);
    void *x = tensor(values, N);
    double *sums = doubles_tensor(values, N);
    device->reduce_scatter(x, N);
    device->all_gather_weights(x, N);
    device->all_gather(x, N);
    device->all_reduce(sums, N);
    device->broadcast(sums, N);
    device->collectives_wait();
    expect_same("x", x, values, N);
    expect_doubles("sums", sums, values, constant(0, N), 0, N);
}

static void test_collectives(void **state) {
    (void)state;
    run_everywhere(check_collectives, NULL, 0, false);
}

int main(int argc, char **argv) {
    // With more threads than processors, waiting ones would take the time of those that work. libgomp reads this when it is loaded.
    if (argc > 0 && !getenv("OMP_WAIT_POLICY") && setenv("OMP_WAIT_POLICY", "passive", 1) == 0) execv("/proc/self/exe", argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_are_complete),
        cmocka_unit_test(test_open_says_what_there_is),
        cmocka_unit_test(test_allocation),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_embed_backward),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_norm_backward),
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_matmul_backward_input),
        cmocka_unit_test(test_matmul_backward_weight),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_backward),
        cmocka_unit_test(test_attention_diagnose),
        cmocka_unit_test(test_attention_weights),
        cmocka_unit_test(test_one_query),
        cmocka_unit_test(test_affine_is_baseline),
        cmocka_unit_test(test_sequences_alone),
        cmocka_unit_test(test_causality),
        cmocka_unit_test(test_decoding),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_equal_teacher),
        cmocka_unit_test(test_add_up),
        cmocka_unit_test(test_sum_squares),
        cmocka_unit_test(test_judge),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_average_alpha),
        cmocka_unit_test(test_collectives),
    };
    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
