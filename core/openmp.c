// What must be said to the OpenMP library before it starts: see openmp.h.
#include "openmp.h"

#include <stdlib.h>
#include <unistd.h>

void openmp_limit_spinning(char **argv) {
    static const char *const settings[] = { "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME" };
    for (int i = 0; i < 3; i++)
        if (getenv(settings[i])) return;
    if (setenv("GOMP_SPINCOUNT", "1000", 1) || setenv("KMP_BLOCKTIME", "0", 1)) return;     // gcc's library, clang's
    execv("/proc/self/exe", argv);                      // where there is no such file, all goes on as it was
}
