// A run's directory: who may use it, and what stands in it (config.json, metrics.jsonl, checkpoints/).
#ifndef RUN_DIRECTORY_H
#define RUN_DIRECTORY_H

#include "config.h"
#include "files.h"

// Whether a new run may start there: status 2 when the directory holds a run (unless overwrite: "use --resume or --overwrite"), is a file,
// cannot be written, is in use by a live process, or holds a model, a checkpoint or files that --overwrite would take for a run's. Writes
// nothing.
int run_directory_check(const char *path, bool overwrite);
// Makes it (and its parents), locks it (flock on RUN/lock) until the process ends, with overwrite removes the run that is there (its
// config.json, metrics.jsonl and checkpoints/, nothing else), and writes config.json.
int run_directory_create(const Config *config, bool overwrite);
// For --resume: locks it and reads RUN/config.json; run_dir becomes the path given, since a run's directory may have been moved.
int run_directory_resume(const char *path, Config *config);
// Writes RUN/config.json anew, atomically: a resumed run's overrides.
int run_directory_write_config(const Config *config);
void run_directory_close(void);                 // gives the lock back

#endif
