// The CPU device: the operations of core/device.h in C and OpenMP. One translation unit, compiled once for each real type: with
// -DREAL=float it exports cpu_device, with -DREAL=double cpu_double_device. It includes the rest of cpu/, each file the operations of
// one kind.
//
// Threads. Every operation is one parallel region of `thread_count` threads over a grid of tasks that depends on shapes alone; tasks are
// handed out as threads come free, and no sum crosses tasks but in the tasks' order. So results are the same bits with any number of
// threads.
#ifndef REAL
#error "compile with -DREAL=float (cpu_device) or -DREAL=double (cpu_double_device)"
#endif

#include <assert.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../core/device.h"
#include "vector.h"

// On a CPU both kinds of numbers in memory are reals.
static inline real *reals(void *p) { return p; }
static inline const real *const_reals(const void *p) { return p; }

static inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t larger(size_t a, size_t b) { return a > b ? a : b; }
static inline int int_min(int a, int b) { return a < b ? a : b; }
static inline int int_max(int a, int b) { return a > b ? a : b; }
static inline size_t blocks_of(size_t n, size_t size) { return (n + size - 1) / size; }
static inline size_t round_up(size_t n, size_t multiple) { return blocks_of(n, multiple) * multiple; }

// ---- scratch: each operation lays its own needs out from the start, by the same code that scratch_bytes counts them with ----

typedef struct Layout {
    char *base;                     // NULL: only count
    size_t used;
} Layout;

static char *scratch;
static size_t scratch_size;

static void *layout_take(Layout *layout, size_t bytes) {
    size_t at = layout->used;
    layout->used = round_up(at + bytes, 256);
    return layout->base ? layout->base + at : NULL;
}

static Layout scratch_layout(void) { return (Layout){ scratch, 0 }; }

// What was taken must have been planned for: see Limits.
static void check_layout(const Layout *layout) {
    assert(layout->used <= scratch_size);
    (void)layout;
}

static int thread_count = 1;

#include "layers.c"
#include "gemm.c"
#include "attention.c"
#include "optimizer.c"

// ---- memory and order ----

static void read_processor_name(char *name, size_t size) {
    snprintf(name, size, "unknown processor");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", 10) != 0) continue;
        snprintf(name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    fclose(file);
}

static int threads_or_default(int threads) { return threads > 0 ? threads : omp_get_max_threads(); }

static int device_open(DeviceInfo *info, const DeviceOptions *options) {
    memset(info, 0, sizeof *info);
    thread_count = threads_or_default(options->threads);
    read_processor_name(info->name, sizeof info->name);
    info->threads = thread_count;
    info->memory_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    return 0;
}

static void device_close(void) {
    scratch = NULL;
    scratch_size = 0;
}

static size_t device_scratch_bytes(const Limits *limits, int count, int threads) {
    threads = threads_or_default(threads);
    size_t bytes = 0;
    for (int i = 0; i < count; i++) {
        bytes = larger(bytes, layers_scratch(&limits[i], threads));
        bytes = larger(bytes, gemm_scratch(&limits[i], threads));
        bytes = larger(bytes, attention_scratch(&limits[i], threads));
        bytes = larger(bytes, optimizer_scratch(&limits[i]));
    }
    return bytes;
}

static void device_use_scratch(void *memory, size_t bytes) {
    scratch = memory;
    scratch_size = bytes;
}

enum { HUGE_PAGE = 2 << 20 };

// Large blocks ask for huge pages, which spare the products most of their address translations.
static void *device_allocate(size_t bytes) {
    bytes = larger(bytes, 1);
    int large = bytes >= HUGE_PAGE;
    size_t alignment = large ? HUGE_PAGE : 256;
    if (bytes > SIZE_MAX - alignment) return NULL;
    void *memory = aligned_alloc(alignment, round_up(bytes, alignment));
#ifdef MADV_HUGEPAGE
    if (memory && large) madvise(memory, round_up(bytes, alignment), MADV_HUGEPAGE);
#endif
    return memory;
}

static void device_release(void *memory) { free(memory); }

static void device_write(Real *to, const double *from_host, size_t n) {
    real *x = reals(to);
    for (size_t i = 0; i < n; i++) x[i] = (real)from_host[i];
}

static void device_read(double *to_host, const Real *from, size_t n) {
    const real *x = const_reals(from);
    for (size_t i = 0; i < n; i++) to_host[i] = (double)x[i];
}

// memcpy and memset by all threads, in pieces large enough to be worth a thread
enum { COPY_PIECE = 1 << 18 };

static void copy_bytes(void *to, const void *from, size_t bytes) {
    size_t pieces = blocks_of(bytes, COPY_PIECE);
#pragma omp parallel for schedule(static) num_threads(thread_count) if (pieces > 1)
    for (size_t p = 0; p < pieces; p++) {
        size_t at = p * COPY_PIECE;
        memcpy((char *)to + at, (const char *)from + at, smaller(bytes - at, COPY_PIECE));
    }
}

static void device_zero(void *memory, size_t bytes) {
    size_t pieces = blocks_of(bytes, COPY_PIECE);
#pragma omp parallel for schedule(static) num_threads(thread_count) if (pieces > 1)
    for (size_t p = 0; p < pieces; p++) {
        size_t at = p * COPY_PIECE;
        memset((char *)memory + at, 0, smaller(bytes - at, COPY_PIECE));
    }
}

static void device_narrow(Compute *to, const Real *from, size_t n) { copy_bytes(to, from, n * sizeof(real)); }
static void device_widen(Real *to, const Compute *from, size_t n) { copy_bytes(to, from, n * sizeof(real)); }

// Operations are done on return, so that every mark has passed.
static long device_mark(void) { return 0; }
static int device_wait(long mark) {
    (void)mark;
    return 0;
}

// ---- between processes: one process is the whole sum already, and its share everything ----

static void collective_of_reals(Real *x, size_t count) { (void)x, (void)count; }
static void collective_of_weights(Compute *x, size_t count) { (void)x, (void)count; }
static void collective_of_doubles(double *x, size_t count) { (void)x, (void)count; }
static void device_collectives_wait(void) {}

#if REAL_IS_DOUBLE
const Device cpu_double_device = {
    .dtype = "fp64",
#else
const Device cpu_device = {
    .dtype = "fp32",
#endif
    .compute_bytes = sizeof(real),
    .real_bytes = sizeof(real),
    .weights_are_master = 1,
    .open = device_open,
    .close = device_close,
    .scratch_bytes = device_scratch_bytes,
    .use_scratch = device_use_scratch,
    .allocate = device_allocate,
    .release = device_release,
    .allocate_host = device_allocate,
    .release_host = device_release,
    .write = device_write,
    .read = device_read,
    .narrow = device_narrow,
    .widen = device_widen,
    .zero = device_zero,
    .copy = copy_bytes,
    .copy_to_device = copy_bytes,
    .copy_to_host = copy_bytes,
    .mark = device_mark,
    .wait = device_wait,
    .embed = embed,
    .embed_backward = embed_backward,
    .norm = norm,
    .norm_backward = norm_backward,
    .matmul = matmul,
    .matmul_backward_input = matmul_backward_input,
    .matmul_backward_weight = matmul_backward_weight,
    .rope = rope,
    .attention = attention,
    .attention_backward = attention_backward,
    .attention_diagnose = attention_diagnose,
    .attention_weights = attention_weights,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .cross_entropy = cross_entropy,
    .add_up = add_up,
    .sum_squares = sum_squares,
    .judge = judge,
    .adamw = adamw,
    .average_alpha = average_alpha,
    .reduce_scatter = collective_of_reals,
    .all_gather_weights = collective_of_weights,
    .all_gather = collective_of_reals,
    .all_reduce = collective_of_doubles,
    .broadcast = collective_of_doubles,
    .collectives_wait = device_collectives_wait,
};
