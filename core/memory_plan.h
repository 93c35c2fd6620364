// The memory plan: run once with base NULL to count, once with memory to hand out; so what --dry-run prints and what is allocated cannot
// differ. Behind every view stands a guard: an overrun inside one big allocation is invisible to AddressSanitizer, so sanitized builds
// poison the guards.
#ifndef MEMORY_PLAN_H
#define MEMORY_PLAN_H

#include <stddef.h>

typedef enum { MEMORY_WEIGHTS, MEMORY_GRADIENTS, MEMORY_MOMENTS, MEMORY_ACTIVATIONS, MEMORY_BUFFERS, MEMORY_KINDS } MemoryKind;

typedef struct MemoryPlan {
    char *base;                         // NULL: count only
    size_t used;
    size_t by_kind[MEMORY_KINDS];
    struct { const char *name; MemoryKind kind; size_t bytes; } entries[96];    // what was taken, summed by name
    int entry_count;
} MemoryPlan;

// The next view of that many bytes, aligned to 256, or NULL while counting. name: what it holds, for the printed plan (a literal).
void *memory_plan_take(MemoryPlan *plan, MemoryKind kind, const char *name, size_t bytes);

// "weights", "gradients", "moments", "activations", "buffers"
const char *memory_kind_name(MemoryKind kind);

#endif
