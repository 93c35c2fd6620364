// A run's directory: refused when it holds a run, locked while it is in use.
#define _GNU_SOURCE
#include "run_directory.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "json_text.h"
#include "strict_json.h"

enum { NAME_SIZE = PATH_SIZE + 32, CONFIG_LIMIT = 1 << 20 };

// What makes a directory a run, and what --overwrite removes: the config last, so that a removal cut off still looks like a run.
static const char *const run_parts[] = { "metrics.jsonl", "checkpoints", "config.json" };
enum { RUN_PARTS = sizeof run_parts / sizeof *run_parts };

static int lock_file = -1;

// The name of something in a run's directory.
static int part_path(char path[NAME_SIZE], const char *directory, const char *part) {
    return format_path(path, NAME_SIZE, "%s/%s", directory, part);
}

static int in_use(const char *path) {
    return set_error(STATUS_BAD_INPUT, "run_dir: %s: is in use by a live process; wait for it to end, or take another run_dir", path);
}

// Whether a live process holds the lock; looks without keeping it.
static int check_lock(const char *path) {
    char name[NAME_SIZE];
    if (part_path(name, path, "lock")) return STATUS_BAD_INPUT;
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return errno == ENOENT ? 0 : set_error(STATUS_BAD_INPUT, "run_dir: %s: cannot open: %s", name, strerror(errno));
    int taken = flock(file, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    close(file);
    return taken ? in_use(path) : 0;
}

// A run has a log that begins with a start event, or, cut off before that, a lock beside its config.
static bool is_run(const char *path) {
    static const char start[] = "{\"event\":\"start\"";
    char name[NAME_SIZE], first[sizeof start] = "";
    struct stat is;
    FILE *log = part_path(name, path, "metrics.jsonl") ? NULL : fopen(name, "r");
    bool run = log && fread(first, 1, sizeof start - 1, log) == sizeof start - 1 && !strcmp(first, start);
    if (log) fclose(log);
    return run || (!part_path(name, path, "lock") && !lstat(name, &is));
}

// --overwrite takes away a run, not somebody's model or other files of the same names.
static int check_nothing_foreign(const char *path) {
    static const char *const models[] = { "trainer_state.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin" };
    char name[NAME_SIZE];
    struct stat is;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (part_path(name, path, models[i])) return STATUS_BAD_INPUT;
        if (!lstat(name, &is))
            return set_error(STATUS_BAD_INPUT, "run_dir: %s: holds a model or a checkpoint (%s); take another run_dir", path, models[i]);
    }
    for (int i = 0; i < RUN_PARTS && !is_run(path); i++) {
        if (part_path(name, path, run_parts[i])) return STATUS_BAD_INPUT;
        if (!lstat(name, &is))
            return set_error(STATUS_BAD_INPUT, "run_dir: %s: holds %s, which is no run's; take another run_dir", path, run_parts[i]);
    }
    return 0;
}

static int check_no_run(const char *path) {
    char name[NAME_SIZE];
    struct stat is;
    for (int i = 0; i < RUN_PARTS; i++) {
        if (part_path(name, path, run_parts[i])) return STATUS_BAD_INPUT;
        if (lstat(name, &is)) continue;
        return set_error(STATUS_BAD_INPUT, "run_dir: %s: holds a run (%s); use --resume to go on with it or --overwrite to replace it",
                         path, run_parts[i]);
    }
    return 0;
}

// Whether files can be made in a directory, or, where it is not there, in the nearest one above it that is.
static int check_writable(const char *path) {
    char above[NAME_SIZE];
    struct stat is;
    if (format_path(above, sizeof above, "%s", path)) return STATUS_BAD_INPUT;
    while (stat(above, &is)) {
        if (errno != ENOENT) return set_error(STATUS_BAD_INPUT, "run_dir: %s: %s", path, strerror(errno));
        char *slash = strrchr(above, '/');
        if (!slash) strcpy(above, ".");
        else slash[slash == above] = '\0';
    }
    if (!S_ISDIR(is.st_mode)) return set_error(STATUS_BAD_INPUT, "run_dir: %s: %s is a file, a directory was wanted", path, above);
    if (!access(above, W_OK | X_OK)) return 0;
    return set_error(STATUS_BAD_INPUT, "run_dir: %s: cannot write in %s: %s", path, above, strerror(errno));
}

int run_directory_check(const char *path, bool overwrite) {
    if (strlen(path) >= PATH_SIZE) return set_error(STATUS_BAD_INPUT, "run_dir: %.40s...: longer than %d bytes", path, PATH_SIZE - 1);
    int status = check_writable(path);
    if (!status) status = check_lock(path);
    if (!status) status = check_nothing_foreign(path);
    if (!status && !overwrite) status = check_no_run(path);
    return status;
}

static int lock(const char *path) {
    char name[NAME_SIZE];
    if (part_path(name, path, "lock")) return STATUS_BAD_INPUT;
    run_directory_close();
    int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return set_error(STATUS_FAILED, "run_dir: %s: cannot open: %s", name, strerror(errno));
    if (!flock(file, LOCK_EX | LOCK_NB)) {
        lock_file = file;
        return 0;
    }
    int reason = errno;
    close(file);
    return reason == EWOULDBLOCK ? in_use(path) : set_error(STATUS_FAILED, "run_dir: %s: cannot lock: %s", name, strerror(reason));
}

void run_directory_close(void) {
    if (lock_file >= 0) close(lock_file);
    lock_file = -1;
}

int run_directory_create(const Config *config, bool overwrite) {
    const char *path = config->run_dir;
    char name[NAME_SIZE];
    int status = make_directories(path);
    if (!status) status = lock(path);
    if (!status && !overwrite) status = check_no_run(path);             // again, now that nobody else can start one
    for (int i = 0; i < RUN_PARTS && !status; i++) {
        status = part_path(name, path, run_parts[i]);
        if (!status) status = remove_tree(name);
    }
    if (!status) status = run_directory_write_config(config);
    if (status) run_directory_close();
    return status;
}

int run_directory_resume(const char *path, Config *config) {
    char name[NAME_SIZE];
    struct stat is;
    cJSON *json = NULL;
    if (strlen(path) >= PATH_SIZE) return set_error(STATUS_BAD_INPUT, "%.40s...: longer than %d bytes", path, PATH_SIZE - 1);
    if (stat(path, &is)) return set_error(STATUS_BAD_INPUT, "%s: %s: there is no run to resume", path, strerror(errno));
    if (!S_ISDIR(is.st_mode)) return set_error(STATUS_BAD_INPUT, "%s: is a file; --resume takes a run's directory", path);
    int status = part_path(name, path, "config.json");
    if (!status && lstat(name, &is)) {
        status = set_error(STATUS_BAD_INPUT, "%s: holds no run: there is no config.json in it", path);
    }
    if (!status) status = lock(path);
    if (!status) status = strict_json_read(&json, name, CONFIG_LIMIT);
    if (!status) status = config_from_json(config, json, name);
    if (!status) strcpy(config->run_dir, path);                         // the directory may have been moved since
    cJSON_Delete(json);
    if (status) run_directory_close();
    return status;
}

int run_directory_write_config(const Config *config) {
    char name[NAME_SIZE];
    if (part_path(name, config->run_dir, "config.json")) return STATUS_BAD_INPUT;
    cJSON *json = config_to_json(config);
    char *text = json ? json_text_print(json, true) : NULL;
    cJSON_Delete(json);
    if (!text) return set_error(STATUS_FAILED, "%s: out of memory", name);
    int status = write_file_atomically(name, text);
    cJSON_free(text);
    return status;
}
