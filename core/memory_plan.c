// The memory plan: see memory_plan.h.
#include "memory_plan.h"

#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define POISON_GUARDS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISON_GUARDS 1
#endif
#endif
#ifdef POISON_GUARDS
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum { ALIGNMENT = 256 };

void *memory_plan_take(MemoryPlan *plan, MemoryKind kind, const char *name, size_t bytes) {
    size_t padded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + ALIGNMENT;
    char *view = plan->base ? plan->base + plan->used : NULL;
    if (view) ASAN_POISON_MEMORY_REGION(view + bytes, padded - bytes);
    plan->used += padded;
    plan->by_kind[kind] += padded;
    int i = 0;
    while (i < plan->entry_count && (plan->entries[i].kind != kind || strcmp(plan->entries[i].name, name))) i++;
    if (i < (int)(sizeof plan->entries / sizeof *plan->entries)) {
        if (i == plan->entry_count) {
            plan->entries[i].name = name;
            plan->entries[i].kind = kind;
            plan->entry_count++;
        }
        plan->entries[i].bytes += padded;
    }
    return view;
}

const char *memory_kind_name(MemoryKind kind) {
    static const char *const names[MEMORY_KINDS] = { "weights", "gradients", "moments", "activations", "buffers" };
    return names[kind];
}
