// The command line: argv taken apart. Flags whose meaning and range are a config key's are checked by that key's row of the config table.
#include "command_line.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "message.h"

typedef enum { FOR_TRAINING = 1, FOR_EVAL = 2, FOR_SAMPLE = 4 } Use;

// A flag that is no config key.
typedef struct Flag {
    const char *name;
    int uses;                           // of Use: the commands that take it
    const char *value;                  // what stands behind =, as in messages; NULL: the flag takes none
    const char *key;                    // the config key with the same range; NULL: any text
} Flag;

static const Flag flags[] = {
    {"overwrite", FOR_TRAINING, NULL, NULL},
    {"dry-run", FOR_TRAINING, NULL, NULL},
    {"resume", FOR_TRAINING, "RUN_DIR", NULL},
    {"data", FOR_EVAL, "SHARDS", NULL},
    {"length", FOR_EVAL, "N", "train.sequence_length"},
    {"prompt", FOR_SAMPLE, "TEXT", NULL},
    {"tokens", FOR_SAMPLE, "N", "sample.tokens"},
    {"temperature", FOR_SAMPLE, "X", "sample.temperature"},
    {"top_k", FOR_SAMPLE, "K", "sample.top_k"},
    {"top_p", FOR_SAMPLE, "P", "sample.top_p"},
    {"seed", FOR_SAMPLE, "N", "seed"},
    {"threads", FOR_EVAL | FOR_SAMPLE, "N", "compute.threads"},
};
enum { FLAG_COUNT = sizeof flags / sizeof flags[0] };

static const struct { const char *name, *full_name; Use use; Action action; } commands[] = {
    {"eval", "train_gpt eval", FOR_EVAL, ACTION_EVAL},
    {"sample", "train_gpt sample", FOR_SAMPLE, ACTION_SAMPLE},
    {"help", "train_gpt help", 0, ACTION_HELP_KEY},
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

// What is known while argv is read.
typedef struct Parser {
    Command *command;
    const char *name;                   // "train_gpt eval", for messages
    Use use;
    int argc, at;                       // at: the argument being read
    char **argv;
    bool given[FLAG_COUNT];
    bool dry_run;
    const char *run_dir;                // of --resume
    Config values;                      // where the values of flags that share a key's range are checked and kept
    char *names;                        // room for the overrides' keys
} Parser;

static int refuse_unknown(const Parser *p, const char *name) {
    int best;
    const char *nearest = config_nearest_key(name, &best);
    char printable[PRINTABLE_SIZE];
    if (p->use != FOR_TRAINING) nearest = NULL;
    for (int i = 0; i < FLAG_COUNT; i++) {
        if (!(flags[i].uses & p->use)) continue;
        const int distance = edit_distance(name, flags[i].name);
        if (nearest && distance >= best) continue;
        nearest = flags[i].name;
        best = distance;
    }
    return set_error(STATUS_BAD_INPUT, "--%s: unknown to %s; the nearest is --%s", make_printable(printable, name), p->name, nearest);
}

// The argument behind a flag that lacks its =, if it looks like a value; else an example.
static int refuse_missing_value(const Parser *p, const char *name, const char *example) {
    char printable[PRINTABLE_SIZE];
    const char *next = p->at + 1 < p->argc && p->argv[p->at + 1][0] != '-' ? make_printable(printable, p->argv[p->at + 1]) : example;
    return set_error(STATUS_BAD_INPUT, "--%s: its value is missing; write --%s=%s", name, name, next);
}

static int take_value(Parser *p, const Flag *flag, const char *value) {
    Command *c = p->command;
    char printable[PRINTABLE_SIZE];
    if (flag->key && config_set(&p->values, flag->key, value))
        return prefix_error(STATUS_BAD_INPUT, "--%s=%s: ", flag->name, make_printable(printable, value));
    if (!*value && strcmp(flag->name, "prompt") != 0) return set_error(STATUS_BAD_INPUT, "--%s=: the value is empty", flag->name);
    if (strcmp(flag->name, "resume") == 0) p->run_dir = value;
    else if (strcmp(flag->name, "data") == 0) c->data = value;
    else if (strcmp(flag->name, "prompt") == 0) c->prompt = value;
    else if (strcmp(flag->name, "length") == 0) c->length = p->values.train.sequence_length;
    return STATUS_OK;
}

static int read_flag(Parser *p, int index, const char *value) {
    const Flag *flag = &flags[index];
    if (p->given[index]) return set_error(STATUS_BAD_INPUT, "--%s: given twice", flag->name);
    p->given[index] = true;
    if (!flag->value) {
        if (value) return set_error(STATUS_BAD_INPUT, "--%s: takes no value", flag->name);
        if (strcmp(flag->name, "overwrite") == 0) p->command->overwrite = true;
        else p->dry_run = true;
        return STATUS_OK;
    }
    // --resume is as much a command as a flag: its directory may stand apart.
    if (!value && strcmp(flag->name, "resume") == 0) {
        const char *next = p->at + 1 < p->argc ? p->argv[p->at + 1] : "-";
        if (next[0] == '-') return set_error(STATUS_BAD_INPUT, "--resume: its run directory is missing; write --resume RUN_DIR");
        value = next;
        p->at++;
    }
    return value ? take_value(p, flag, value) : refuse_missing_value(p, flag->name, flag->value);
}

static int read_override(Parser *p, const char *name, const char *value) {
    Command *c = p->command;
    if (!value) return refuse_missing_value(p, name, "VALUE");
    for (int i = 0; i < c->override_count; i++) {
        if (strcmp(c->overrides[i].key, name) == 0) return set_error(STATUS_BAD_INPUT, "--%s: given twice", name);
    }
    c->overrides[c->override_count].key = strcpy(p->names, name);
    c->overrides[c->override_count].value = value;
    p->names += strlen(name) + 1;
    c->override_count++;
    return STATUS_OK;
}

static int read_argument(Parser *p) {
    const char *argument = p->argv[p->at];
    char name[128], printable[PRINTABLE_SIZE];
    if (argument[0] != '-') {
        if (p->command->path)
            return set_error(STATUS_BAD_INPUT, "%s: one argument too many for %s", make_printable(printable, argument), p->name);
        p->command->path = argument;
        return *argument ? STATUS_OK : set_error(STATUS_BAD_INPUT, "an argument of %s is empty", p->name);
    }
    if (strncmp(argument, "--", 2) != 0)
        return set_error(STATUS_BAD_INPUT, "%s: flags begin with --; see train_gpt --help", make_printable(printable, argument));
    const char *equals = strchr(argument, '='), *value = equals ? equals + 1 : NULL;
    const size_t length = equals ? (size_t)(equals - argument) - 2 : strlen(argument) - 2;
    if (length == 0) return set_error(STATUS_BAD_INPUT, "%s: names no flag; see train_gpt --help", make_printable(printable, argument));
    snprintf(name, sizeof name, "%.*s", length < sizeof name ? (int)length : (int)sizeof name - 1, argument + 2);
    for (int i = 0; i < FLAG_COUNT; i++) {
        if (flags[i].uses & p->use && strcmp(flags[i].name, name) == 0) return read_flag(p, i, value);
    }
    int distance;
    config_nearest_key(name, &distance);
    return p->use == FOR_TRAINING && distance == 0 ? read_override(p, name, value) : refuse_unknown(p, name);
}

// What the flags and arguments of a training command mean together.
static int finish_training(Parser *p) {
    Command *c = p->command;
    char printable[PRINTABLE_SIZE];
    if (p->run_dir) {
        if (c->path)
            return set_error(STATUS_BAD_INPUT, "--resume: takes the config that the run directory holds, not %s",
                             make_printable(printable, c->path));
        if (c->overwrite) return set_error(STATUS_BAD_INPUT, "--overwrite: replaces a run, and --resume goes on with it: give one of them");
        if (p->dry_run) return set_error(STATUS_BAD_INPUT, "--dry-run: takes a config, not --resume");
        c->action = ACTION_RESUME;
        c->path = p->run_dir;
        return STATUS_OK;
    }
    if (!c->path) return set_error(STATUS_BAD_INPUT, "no config given; write train_gpt CONFIG.json, or see train_gpt --help");
    c->action = p->dry_run ? ACTION_DRY_RUN : ACTION_TRAIN;
    return STATUS_OK;
}

static int finish_command(Parser *p) {
    Command *c = p->command;
    if (!c->path) return set_error(STATUS_BAD_INPUT, "%s: the checkpoint directory is missing; see train_gpt --help", p->name);
    if (p->use == FOR_EVAL && !c->data) return set_error(STATUS_BAD_INPUT, "%s: --data=SHARDS is missing", p->name);
    if (p->use == FOR_SAMPLE && !c->prompt) return set_error(STATUS_BAD_INPUT, "%s: --prompt=TEXT is missing", p->name);
    c->tokens = p->values.sample.tokens;
    c->temperature = p->values.sample.temperature;
    c->top_k = p->values.sample.top_k;
    c->top_p = p->values.sample.top_p;
    c->seed = p->values.seed;
    c->threads = p->values.compute.threads;
    return STATUS_OK;
}

// A first argument that is neither a command nor could be a config's path.
static int refuse_command(const char *word) {
    int nearest = 0;
    char printable[PRINTABLE_SIZE];
    for (int i = 1; i < COMMAND_COUNT; i++) {
        if (edit_distance(word, commands[i].name) < edit_distance(word, commands[nearest].name)) nearest = i;
    }
    make_printable(printable, word);
    return set_error(STATUS_BAD_INPUT, "%s: unknown command; the nearest is %s (a config of that name: ./%s)", printable,
                     commands[nearest].name, printable);
}

static int parse_help(Command *c, int argc, char **argv) {
    char printable[PRINTABLE_SIZE];
    // help --markdown is how docs/config.md is made; config_help knows it.
    if (argc > 3) return set_error(STATUS_BAD_INPUT, "%s: train_gpt help takes one key", make_printable(printable, argv[3]));
    if (argc == 3) c->path = argv[2];
    return STATUS_OK;
}

// Room for as many overrides as there are arguments, and for their keys.
static int make_room(Parser *p) {
    size_t size = 1;
    for (int i = 1; i < p->argc; i++) size += strlen(p->argv[i]) + 1;
    p->command->overrides = malloc((size_t)p->argc * sizeof(Override) + size);
    if (!p->command->overrides) return set_error(STATUS_FAILED, "out of memory for the command line");
    p->names = (char *)(p->command->overrides + p->argc);
    return STATUS_OK;
}

int command_line_parse(Command *command, int argc, char **argv) {
    *command = (Command){.action = ACTION_HELP};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return STATUS_OK;
    }
    if (argc < 2 || !*argv[1]) return set_error(STATUS_BAD_INPUT, "no config given; write train_gpt CONFIG.json, or see train_gpt --help");
    if (strcmp(argv[1], "--version") == 0) {
        command->action = ACTION_VERSION;
        return argc == 2 ? STATUS_OK : set_error(STATUS_BAD_INPUT, "--version: takes nothing beside it");
    }
    Parser p = {.command = command, .name = "train_gpt", .use = FOR_TRAINING, .argc = argc, .argv = argv, .at = 1};
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        p.name = commands[i].full_name;
        p.use = commands[i].use;
        p.at = 2;
        command->action = commands[i].action;
    }
    if (command->action == ACTION_HELP_KEY) return parse_help(command, argc, argv);
    if (p.use == FOR_TRAINING && argv[1][0] != '-' && !strpbrk(argv[1], "./")) return refuse_command(argv[1]);
    config_defaults(&p.values);
    int status = make_room(&p);
    for (; !status && p.at < argc; p.at++) status = read_argument(&p);
    if (!status) status = p.use == FOR_TRAINING ? finish_training(&p) : finish_command(&p);
    if (status) command_line_free(command);
    return status;
}

void command_line_free(Command *command) {
    free(command->overrides);
    command->overrides = NULL;
    command->override_count = 0;
}

void command_line_usage(FILE *out) {
    fputs("train_gpt pretrains GPTs whose attention is selectable, and logs what the attention changed.\n"
          "\n"
          "  train_gpt CONFIG.json [--section.key=value ...] [--overwrite] [--dry-run]\n"
          "      Train. The run goes to the config's run_dir; --overwrite replaces a run that is there.\n"
          "      --dry-run prints parameters, FLOPs and memory as one JSON object, and stops.\n"
          "  train_gpt --resume RUN_DIR [--section.key=value ...]\n"
          "      Go on from the newest checkpoint. May change train.steps and the sections eval, checkpoint,\n"
          "      sample, diagnostics and compute.\n"
          "  train_gpt eval CHECKPOINT --data=SHARDS [--length=N] [--threads=N]\n"
          "      Loss and perplexity over all windows of the shards, as one JSON object.\n"
          "  train_gpt sample CHECKPOINT --prompt=TEXT [--tokens=64] [--temperature=1] [--top_k=0] [--top_p=1]\n"
          "                   [--seed=1337] [--threads=N]\n"
          "      Text that goes on from the prompt. top_k 0 and top_p 1 draw from all tokens, top_k 1 takes the likeliest.\n"
          "  train_gpt help [KEY]\n"
          "      What a config key, a section (help train), or every key means, with default and range;\n"
          "      help --markdown writes docs/config.md.\n"
          "  train_gpt --help, --version\n"
          "\n"
          "examples:\n"
          "  train_gpt configs/demo-affine.json --run_dir=runs/affine-7 --seed=7\n"
          "  train_gpt configs/demo-affine.json --attention.gate=headwise --dry-run\n"
          "  train_gpt --resume runs/affine-7 --train.steps=1000\n"
          "  train_gpt sample runs/affine-7/checkpoints/step-00001000 --prompt=\"It is a truth\" --tokens=200\n"
          "  train_gpt help optimizer.lr\n"
          "\n"
          "exit status: 0 success; 1 the run failed; 2 bad usage, config or data\n", out);
}
