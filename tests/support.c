// What several tests share: see support.h.
#define _GNU_SOURCE
#include "support.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <cjson/cJSON.h>

#include "core/error.h"
#include "core/safetensors.h"

void make_directory(char path[256]) {
    const char *parent = getenv("TMPDIR");
    snprintf(path, 256, "%s/train_gpt-XXXXXX", parent ? parent : "/tmp");
    assert_non_null(mkdtemp(path));
}

void remove_directory(const char *path) {
    char command[600];
    snprintf(command, sizeof command, "chmod -R u+rwX '%s' && rm -rf '%s'", path, path);
    assert_int_equal(system(command), 0);
}

// ---- running the program ----

// The program's absolute path, since tests change the working directory; also in the environment, for commands that exec it.
static const char *program(void) {
    static char path[4096];
    if (path[0]) return path;
    const char *named = getenv("TRAIN_GPT");
    if (!realpath(named ? named : "./train_gpt", path)) {
        path[0] = 0;
        fail_msg("%s: there is no such program; TRAIN_GPT names the one to test", named ? named : "./train_gpt");
    }
    setenv("TRAIN_GPT", path, 1);
    setenv("OMP_NUM_THREADS", "1", 0);      // models this small gain nothing from a second one
    return path;
}

static Process start_command(const char *format, va_list arguments) {
    Process process;
    char *command, *whole;
    const char *path = program();
    make_directory(process.directory);
    assert_true(vasprintf(&command, format, arguments) >= 0);
    assert_true(asprintf(&whole, "train_gpt() { '%s' \"$@\"; }; exec >'%s/out' 2>'%s/err' </dev/null; %s", path, process.directory,
                         process.directory, command) >= 0);
    write_text(path_of("%s/out", process.directory), "");   // so that a test may read them before the shell has begun
    write_text(path_of("%s/err", process.directory), "");
    fflush(NULL);
    process.pid = fork();
    if (process.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);   // a test that fails leaves nothing running behind it
        execl("/bin/sh", "sh", "-c", whole, (char *)NULL);
        _exit(127);
    }
    free(command);
    free(whole);
    assert_true(process.pid > 0);
    return process;
}

Process start(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    Process process = start_command(format, arguments);
    va_end(arguments);
    return process;
}

bool is_alive(const Process *process) {
    siginfo_t info = { 0 };
    assert_int_equal(waitid(P_PID, process->pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    return info.si_pid == 0;
}

Outcome finish(Process *process) {
    int status;
    struct rusage usage;
    assert_int_equal(wait4(process->pid, &status, 0, &usage), process->pid);
    Outcome outcome = {
        .status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
        .peak_bytes = (size_t)usage.ru_maxrss * 1024,
    };
    outcome.out = read_file(path_of("%s/out", process->directory), &outcome.out_length);
    outcome.err = read_file(path_of("%s/err", process->directory), NULL);
    remove_directory(process->directory);
    return outcome;
}

static Outcome run_command(const char *format, va_list arguments) {
    Process process = start_command(format, arguments);
    return finish(&process);
}

Outcome run(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    Outcome outcome = run_command(format, arguments);
    va_end(arguments);
    return outcome;
}

void free_outcome(Outcome *outcome) {
    free(outcome->out);
    free(outcome->err);
    outcome->out = outcome->err = NULL;
}

static Outcome expect_command(int status, const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    Outcome outcome = run_command(format, arguments);
    if (outcome.status != status) {
        char command[1024];
        vsnprintf(command, sizeof command, format, again);
        fail_msg("`%s` ended with status %d, not %d; it wrote\n%s%s", command, outcome.status, status, outcome.out, outcome.err);
    }
    va_end(again);
    return outcome;
}

Outcome expect(int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    Outcome outcome = expect_command(status, format, arguments);
    va_end(arguments);
    return outcome;
}

void must(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    Outcome outcome = expect_command(0, format, arguments);
    va_end(arguments);
    free_outcome(&outcome);
}

void refuses(int status, const char *says, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    Outcome outcome = expect_command(status, format, arguments);
    va_end(arguments);
    char *texts = strdup(says), *rest = texts, *text;
    while ((text = strsep(&rest, "|")))
        if (!strstr(outcome.err, text)) fail_msg("the message lacks \"%s\": %s", text, outcome.err);
    if (strncmp(outcome.err, "train_gpt: ", 11) || strchr(outcome.err, '\n') != outcome.err + strlen(outcome.err) - 1)
        fail_msg("not one line of the program's: %s", outcome.err);
    free(texts);
    free_outcome(&outcome);
}

// ---- files ----

char *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s cannot be read", path);
    char *text = NULL;
    size_t n = 0, capacity = 0;
    do {                                    // not by its size, which may change under way
        if (n + 4096 > capacity) text = realloc(text, (capacity = 2 * capacity + 8192) + 1);
        assert_non_null(text);
        n += fread(text + n, 1, capacity - n, file);
    } while (!feof(file) && !ferror(file));
    assert_false(ferror(file));
    fclose(file);
    text[n] = 0;
    if (length) *length = n;
    return text;
}

void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    if (!file) fail_msg("%s cannot be written", path);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

bool exists(const char *path) {
    struct stat is;
    return lstat(path, &is) == 0;
}

void assert_same_file(const char *a, const char *b) {
    size_t n, m;
    char *x = read_file(a, &n), *y = read_file(b, &m);
    if (n != m || memcmp(x, y, n)) fail_msg("%s and %s differ", a, b);
    free(x);
    free(y);
}

const char *path_of(const char *format, ...) {
    static char texts[64][1024];
    static int next;
    char *text = texts[next++ % 64];
    va_list arguments;
    va_start(arguments, format);
    assert_true(vsnprintf(text, sizeof texts[0], format, arguments) < (int)sizeof texts[0]);
    va_end(arguments);
    return text;
}

static int keep_name(const struct dirent *entry) { return strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."); }

char *list_directory(const char *path) {
    struct dirent **entries;
    int n = scandir(path, &entries, keep_name, alphasort);
    size_t length;
    char *text;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    for (int i = 0; i < n; i++) {
        fprintf(out, "%s ", entries[i]->d_name);
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    fclose(out);
    return text;
}

void write_shard(const char *path, size_t n, int (*token)(size_t i)) {
    FILE *file = fopen(path, "wb");
    if (!file) fail_msg("%s cannot be written", path);
    int32_t header[256] = { 20240520, 1, (int32_t)n };
    assert_int_equal(fwrite(header, sizeof header, 1, file), 1);
    for (size_t i = 0; i < n; i++) {
        uint16_t value = token(i);
        assert_int_equal(fwrite(&value, sizeof value, 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
}

double *read_tensor(const char *path, const char *name, size_t *count) {
    SafetensorsReader *reader;
    if (safetensors_open(&reader, path)) fail_msg("%s", error_text());
    const SafetensorsInfo *info = safetensors_find(reader, name);
    if (!info) fail_msg("%s has no tensor %s", path, name);
    double *values = malloc(info->count * sizeof *values);
    assert_non_null(values);
    if (safetensors_read(reader, info, values, 0, info->count)) fail_msg("%s", error_text());
    if (count) *count = info->count;
    safetensors_close(reader);
    return values;
}

// ---- what a run left ----

cJSON *read_metrics(const char *run_dir, const char *event) {
    const char *path = path_of("%s/metrics.jsonl", run_dir);
    char *text = read_file(path, NULL), *rest = text, *line;
    cJSON *events = cJSON_CreateArray();
    while ((line = strsep(&rest, "\n"))) {
        if (!*line) continue;
        cJSON *parsed = cJSON_Parse(line);
        if (!parsed) fail_msg("%s: not JSON: %s", path, line);
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(parsed, "event"));
        assert_non_null(name);
        if (!event || !strcmp(name, event)) cJSON_AddItemToArray(events, parsed);
        else cJSON_Delete(parsed);
    }
    free(text);
    return events;
}

// Takes `,"name":value` out of a line of JSON; the value is a number. As text, since printing a parsed number may hide a difference.
static void cut_field(char *line, const char *name) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, ",\"%s\":", name);
    char *field = strstr(line, quoted);
    if (!field) return;
    char *end = field + strlen(quoted);
    end += strcspn(end, ",}");
    memmove(field, end, strlen(end) + 1);
}

char *comparable_metrics(const char *run_dir) {
    char *text = read_file(path_of("%s/metrics.jsonl", run_dir), NULL), *rest = text, *line, *kept;
    size_t length;
    FILE *out = open_memstream(&kept, &length);
    assert_non_null(out);
    while ((line = strsep(&rest, "\n"))) {
        if (strstr(line, "\"event\":\"start\"")) continue;
        cut_field(line, "seconds");
        cut_field(line, "tokens_per_second");
        fprintf(out, "%s%s", line, rest ? "\n" : "");
    }
    fclose(out);
    free(text);
    return kept;
}

double number(const cJSON *event, const char *field) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(event, field);
    if (!cJSON_IsNumber(item)) fail_msg("no number %s in %s", field, cJSON_PrintUnformatted(event));
    return item->valuedouble;
}

static void assert_same_metrics(const char *a, const char *b) {
    char *x = comparable_metrics(a), *y = comparable_metrics(b);
    size_t line = 0, i = 0;
    while (x[i] && x[i] == y[i]) {
        i++;
        if (x[i - 1] == '\n') line = i;
    }
    if (x[i] || y[i])
        fail_msg("%s and %s differ:\n%.*s\n%.*s", a, b, (int)strcspn(x + line, "\n"), x + line, (int)strcspn(y + line, "\n"), y + line);
    free(x);
    free(y);
}

void assert_same_run(const char *a, const char *b, long step) {
    assert_same_metrics(a, b);
    static const char *const files[] = { "model.safetensors", "optimizer.safetensors" };
    for (int i = 0; i < 2; i++)
        assert_same_file(path_of("%s/checkpoints/step-%08ld/%s", a, step, files[i]),
                         path_of("%s/checkpoints/step-%08ld/%s", b, step, files[i]));
}

void wait_for_step(const Process *process, const char *run_dir, long step) {
    enum { POLLS = 60000 };                 // at least a minute: only a program that hangs fails here
    const char *path = path_of("%s/metrics.jsonl", run_dir), *sought = path_of("\"event\":\"step\",\"step\":%ld,", step);
    for (int i = 0; i < POLLS; i++) {
        bool alive = is_alive(process), found = false;
        if (exists(path)) {
            char *text = read_file(path, NULL);
            found = strstr(text, sought);
            free(text);
        }
        if (found) return;
        if (!alive) break;
        usleep(1000);
    }
    char *err = read_file(path_of("%s/err", process->directory), NULL);
    fail_msg("%s: step %ld was not reached: %s", run_dir, step, err);
}

// ---- a small workplace to run in ----

static int orbit(size_t i, uint64_t salt) {
    uint64_t x = (i / 8 + salt) * UINT64_C(0x9e3779b97f4a7c15);
    int token = (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9) >> 59;
    for (size_t k = 0; k < i % 8; k++) token = (5 * token + 3) % 32;
    return token;
}

int orbit_token(size_t i) { return orbit(i, 1); }
int other_orbit_token(size_t i) { return orbit(i, 1000000); }
static int second_orbit_token(size_t i) { return orbit(i, 2000000); }

int enter_workplace(void **state) {
    static char path[256], before[4096];
    program();
    make_directory(path);
    assert_non_null(getcwd(before, sizeof before));
    setenv("OLD_DIRECTORY", before, 1);
    assert_int_equal(chdir(path), 0);
    *state = path;
    write_shard("train_0.bin", 1601, orbit_token);
    write_shard("train_1.bin", 803, second_orbit_token);
    write_shard("val.bin", 331, other_orbit_token);
    write_text("config.json",
        "{\"run_dir\": \"run\", \"seed\": 7,\n"
        " \"model\": {\"arch\": \"gpt2\", \"vocab_size\": 32, \"hidden_size\": 16, \"num_hidden_layers\": 2, \"num_attention_heads\": 2},\n"
        " \"data\": {\"train\": \"train_*.bin\", \"val\": \"val.bin\", \"shuffle\": false},\n"
        " \"train\": {\"steps\": 20, \"batch_size\": 4, \"sequence_length\": 8},\n"
        " \"optimizer\": {\"lr\": 0.01},\n"
        " \"schedule\": {\"type\": \"constant\", \"warmup_steps\": 0},\n"
        " \"eval\": {\"every\": 10, \"batches\": 3},\n"
        " \"checkpoint\": {\"every\": 10, \"keep\": 2},\n"
        " \"diagnostics\": {\"every\": 5}}\n");
    return 0;
}

int leave_workplace(void **state) {
    assert_int_equal(chdir(getenv("OLD_DIRECTORY")), 0);
    remove_directory(*state);
    return 0;
}
