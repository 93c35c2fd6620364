// The command line: what the program is asked to do.
#ifndef COMMAND_LINE_H
#define COMMAND_LINE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "config.h"

typedef enum {
    ACTION_TRAIN, ACTION_DRY_RUN, ACTION_RESUME, ACTION_EVAL, ACTION_SAMPLE, ACTION_HELP, ACTION_HELP_KEY, ACTION_VERSION
} Action;

typedef struct Command {
    Action action;
    const char *path;               // the config, the run directory, the checkpoint, or the key asked about (NULL: every key)
    bool overwrite;
    Override *overrides;            // config keys, in the order given
    int override_count;
    // eval and sample
    const char *data;               // --data: a glob of shards
    int length;                     // --length: 0 when not given
    const char *prompt;             // --prompt
    int tokens;                     // --tokens
    uint64_t seed;                  // --seed
    double temperature, top_p;      // --temperature, --top_p
    int top_k;                      // --top_k
    int threads;                    // --threads, of eval and sample
} Command;

// argv -> command (its strings point into argv); the config itself is read later. Errors name the flag and the nearest known one, status 2.
int command_line_parse(Command *command, int argc, char **argv);
void command_line_free(Command *command);

// The text of --help.
void command_line_usage(FILE *out);

#endif
