// What several tests share: scratch directories, running the program as a user does, and reading what a run left.
#ifndef SUPPORT_H
#define SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct cJSON;

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1                 // the program too: all is slower, and its memory is not its own
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

// A new empty directory; remove_directory takes it away with all that is in it.
void make_directory(char path[256]);
void remove_directory(const char *path);

// ---- running the program ----

typedef struct Outcome {
    int status;                     // exit status; 128 + the signal that ended it
    char *out, *err;                // what it wrote; "" when nothing
    size_t out_length;              // of out, which may hold zero bytes
    size_t peak_bytes;              // the most memory that it, or a process it waited for, held at once
} Outcome;

// Runs a shell command, in which `train_gpt` is the program under test (TRAIN_GPT in the environment, ./train_gpt without it).
Outcome run(const char *format, ...) __attribute__((format(printf, 1, 2)));
void free_outcome(Outcome *outcome);

// The same while the test goes on. The command ends in `exec $TRAIN_GPT ...`, so that pid is the program's.
typedef struct Process {
    pid_t pid;
    char directory[256];            // holds what it writes: out, err
} Process;
Process start(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool is_alive(const Process *process);
Outcome finish(Process *process);

// Runs it, and fails the test, showing what the program wrote, unless it exits with that status.
Outcome expect(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
// The same, where nothing but the status is looked at.
void must(const char *format, ...) __attribute__((format(printf, 1, 2)));       // 0
// Exits with that status and says each of the texts, which are separated by '|'.
void refuses(int status, const char *says, const char *format, ...) __attribute__((format(printf, 3, 4)));

// ---- files ----

// The file's bytes, terminated; the test fails when it cannot be read.
char *read_file(const char *path, size_t *length_or_null);
void write_text(const char *path, const char *text);
bool exists(const char *path);
void assert_same_file(const char *a, const char *b);

// A printed path; the text stands until the 64th call after this one.
const char *path_of(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Names in a directory that are not . or .., sorted, each followed by a blank; "" when there is no such directory. To be freed.
char *list_directory(const char *path);

// Writes a shard of n tokens (uint16; value i is token(i)) to path.
void write_shard(const char *path, size_t n, int (*token)(size_t i));

// A tensor of a safetensors file, widened; the test fails when it is not there.
double *read_tensor(const char *path, const char *name, size_t *count_or_null);

// ---- what a run left ----

// The events of RUN/metrics.jsonl as an array, those named `event` only unless it is NULL.
struct cJSON *read_metrics(const char *run_dir, const char *event_or_null);

// metrics.jsonl without its start events, and without the fields that are times: what "bit for bit" compares. The text as it stands there.
char *comparable_metrics(const char *run_dir);

// A field of an event; the test fails when there is no such number.
double number(const struct cJSON *event, const char *field);

// Both runs have the same comparable metrics, and the same weights and moments at that step, byte for byte.
void assert_same_run(const char *a, const char *b, long step);

// Waits until the run has logged that step. The test fails when the process has ended before.
void wait_for_step(const Process *process, const char *run_dir, long step);

// ---- a small workplace to run in ----
// A directory of its own for each test, which is also the working directory: config.json (run_dir "run", gpt2 of 2 layers, hidden_size 16,
// 2 heads, vocabulary 32; T 8; 20 steps of 4 sequences, constant rate 0.01, evaluation and checkpoints every 10, diagnostics every 5; no
// shuffle), train_0.bin, train_1.bin and val.bin of a sequence that can be learnt.
int enter_workplace(void **state);
int leave_workplace(void **state);
// The sequence: 8 tokens of an orbit under x -> 5x+3 mod 32, then another at random. The best loss is log(32)/8 = 0.43.
int orbit_token(size_t i);
int other_orbit_token(size_t i);    // other random numbers, for validation

#endif
