// RUN/metrics.jsonl: whole lines, appended; cut at the resumed step.
#define _GNU_SOURCE
#include "metrics.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "files.h"
#include "json_text.h"

enum { EVENT_NAME_SIZE = 24, NO_STEP = -1 };

typedef struct Entry {
    char event[EVENT_NAME_SIZE];
    long step;                          // NO_STEP: the event has none
} Entry;

struct Metrics {
    char path[4096];
    int file;
    off_t size;                         // of the whole lines
    Entry *entries;                     // of the file as opened, in order
    size_t count, capacity;
};

static int remember(Metrics *metrics, const Entry *entry) {
    if (metrics->count == metrics->capacity) {
        size_t capacity = metrics->capacity ? 2 * metrics->capacity : 256;
        Entry *grown = realloc(metrics->entries, capacity * sizeof *grown);
        if (!grown) return set_error(STATUS_FAILED, "%s: out of memory", metrics->path);
        metrics->entries = grown;
        metrics->capacity = capacity;
    }
    metrics->entries[metrics->count++] = *entry;
    return 0;
}

// What a line says: false where it is not an event.
static bool read_entry(Entry *entry, const char *line, size_t length) {
    const char *end = line;
    cJSON *json = cJSON_ParseWithLengthOpts(line, length, &end, 0);
    while (end < line + length && (*end == ' ' || *end == '\t' || *end == '\r')) end++;
    const cJSON *event = cJSON_GetObjectItemCaseSensitive(json, "event"), *step = cJSON_GetObjectItemCaseSensitive(json, "step");
    bool good = json && end == line + length && cJSON_IsString(event) && (!step || json_text_is_whole(step));
    if (good) {
        snprintf(entry->event, sizeof entry->event, "%s", event->valuestring);
        entry->step = step ? (long)step->valuedouble : NO_STEP;
    }
    cJSON_Delete(json);
    return good;
}

// Reads the lines and decides where the file is to end: *keep bytes.
static int scan(Metrics *metrics, FILE *lines, long resumed_step, off_t *keep) {
    char *line = NULL;
    size_t capacity = 0;
    long number = 0;
    bool cut = false;
    int status = 0;
    *keep = 0;
    for (ssize_t length; !status && (errno = 0, length = getline(&line, &capacity, lines)) >= 0;) {
        if (!length || line[length - 1] != '\n') break;             // a write was cut off here
        Entry entry = {0};
        bool good = read_entry(&entry, line, (size_t)length - 1);
        number++;
        if (!good && !cut) {
            status = set_error(STATUS_BAD_INPUT, "%s:%ld: is no event (a JSON object with \"event\"): take the line out or put it right",
                               metrics->path, number);
            break;
        }
        if (good && resumed_step >= 0) {
            bool later = !strcmp(entry.event, "end") || entry.step > resumed_step;
            if (cut && !later && entry.step != NO_STEP) {
                status = set_error(STATUS_BAD_INPUT, "%s:%ld: step %ld stands after later ones: put the lines in order",
                                   metrics->path, number, entry.step);
            }
            cut = cut || later;
        }
        if (!status && !cut) {
            *keep += length;
            status = remember(metrics, &entry);
        }
    }
    if (!status && !feof(lines)) status = set_error(STATUS_FAILED, "%s: cannot read: %s", metrics->path, strerror(errno));
    free(line);
    return status;
}

// Opens the file and ends it where scan says; ftruncate changes the length in one step, so no crash leaves half of it.
static int open_file(Metrics *metrics, long resumed_step) {
    metrics->file = open(metrics->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    int copy = metrics->file < 0 ? -1 : fcntl(metrics->file, F_DUPFD_CLOEXEC, 0);
    FILE *lines = copy < 0 ? NULL : fdopen(copy, "r");
    if (!lines) {
        int reason = errno;
        if (copy >= 0) close(copy);
        return set_error(STATUS_FAILED, "%s: cannot open: %s", metrics->path, strerror(reason));
    }
    int status = scan(metrics, lines, resumed_step, &metrics->size);
    fclose(lines);
    struct stat is;
    if (!status && fstat(metrics->file, &is)) status = set_error(STATUS_FAILED, "%s: %s", metrics->path, strerror(errno));
    if (!status && is.st_size != metrics->size && (ftruncate(metrics->file, metrics->size) || fsync(metrics->file))) {
        status = set_error(STATUS_FAILED, "%s: cannot cut: %s", metrics->path, strerror(errno));
    }
    return status;
}

int metrics_open(Metrics **opened, const char *run_dir, long resumed_step) {
    *opened = NULL;
    Metrics *metrics = calloc(1, sizeof *metrics);
    if (!metrics) return set_error(STATUS_FAILED, "%s: out of memory", run_dir);
    metrics->file = -1;
    int status = format_path(metrics->path, sizeof metrics->path, "%s/metrics.jsonl", run_dir);
    if (!status) status = open_file(metrics, resumed_step);
    if (status) metrics_close(metrics);
    else *opened = metrics;
    return status;
}

void metrics_close(Metrics *metrics) {
    if (!metrics) return;
    if (metrics->file >= 0) close(metrics->file);
    free(metrics->entries);
    free(metrics);
}

int metrics_append(Metrics *metrics, cJSON *event) {
    char *text = event ? json_text_print(event, false) : NULL;
    cJSON_Delete(event);
    if (!text) return set_error(STATUS_FAILED, "%s: out of memory", metrics->path);
    size_t length = strlen(text);
    text[length] = '\n';                // in the place of the terminator: one write, so that a reader sees whole lines
    int failed = write_all(metrics->file, text, length + 1, -1), reason = errno;
    cJSON_free(text);
    if (!failed) {
        metrics->size += (off_t)length + 1;
        return 0;
    }
    if (ftruncate(metrics->file, metrics->size)) {
        return set_error(STATUS_FAILED, "%s: cannot write: %s; nor cut the broken line off: %s", metrics->path, strerror(reason),
                         strerror(errno));
    }
    return set_error(STATUS_FAILED, "%s: cannot write: %s", metrics->path, strerror(reason));
}

int metrics_sync(Metrics *metrics) {
    return fsync(metrics->file) ? set_error(STATUS_FAILED, "%s: cannot sync: %s", metrics->path, strerror(errno)) : 0;
}

bool metrics_has(const Metrics *metrics, const char *event, long step) {
    for (size_t i = metrics->count; i-- > 0;) {         // what is asked about stands near the end
        if (metrics->entries[i].step == step && !strcmp(metrics->entries[i].event, event)) return true;
    }
    return false;
}

cJSON *metrics_event(const char *name) {
    cJSON *event = cJSON_CreateObject();
    if (event && cJSON_AddStringToObject(event, "event", name)) return event;
    cJSON_Delete(event);
    return NULL;
}

void metrics_add_number(cJSON *event, const char *name, double value) {
    if (isfinite(value)) cJSON_AddNumberToObject(event, name, value);
    else cJSON_AddNullToObject(event, name);
}

int metrics_read_first(const char *run_dir, cJSON **event) {
    *event = NULL;
    char path[sizeof ((Metrics *)0)->path], *line = NULL;
    size_t capacity = 0;
    int status = format_path(path, sizeof path, "%s/metrics.jsonl", run_dir);
    if (status) return status;
    FILE *file = fopen(path, "r");
    if (!file) return errno == ENOENT ? 0 : set_error(STATUS_FAILED, "%s: cannot open: %s", path, strerror(errno));
    ssize_t length = getline(&line, &capacity, file);
    if (length > 0 && line[length - 1] == '\n') {
        *event = cJSON_ParseWithLength(line, (size_t)length);
        if (!*event) status = set_error(STATUS_BAD_INPUT, "%s:1: is no event (a JSON object with \"event\")", path);
    }
    free(line);
    fclose(file);
    return status;
}
