// Processes that train together: who this one is, and how many there are. This build runs as one process.
#ifndef COMM_H
#define COMM_H

static inline int comm_rank(void) { return 0; }
static inline int comm_size(void) { return 1; }

#endif
