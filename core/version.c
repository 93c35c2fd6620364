// What this program is: PROGRAM_VERSION comes from the Makefile.
#include "version.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *program_version(void) {
    return PROGRAM_VERSION;
}

const char *program_compiler(void) {
#if defined(__clang__)
    return "clang " TEXT(__clang_major__) "." TEXT(__clang_minor__) "." TEXT(__clang_patchlevel__);
#elif defined(__GNUC__)
    return "gcc " TEXT(__GNUC__) "." TEXT(__GNUC_MINOR__) "." TEXT(__GNUC_PATCHLEVEL__);
#else
    return "unknown";
#endif
}
