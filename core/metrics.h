// RUN/metrics.jsonl: one JSON object a line, each written whole and flushed. docs/metrics.md defines every event and field.
#ifndef METRICS_H
#define METRICS_H

#include <stdbool.h>

struct cJSON;
typedef struct Metrics Metrics;

// Opens run_dir's file for appending, and cuts what a crash left of a last line. resumed_step >= 0: also cuts the file before the first
// event of a later step or `end`; every byte before that stays as it is, and a crash leaves the old file or the new. Status 2, naming file
// and line, for a line before the cut that is not an event, and for an event after it that should have stayed (a file not in order).
int metrics_open(Metrics **metrics, const char *run_dir, long resumed_step);
void metrics_close(Metrics *metrics);

// Appends one event and frees it. Status 1, naming the file and the reason (disk full, ...): then the file ends at the last whole line.
int metrics_append(Metrics *metrics, struct cJSON *event);

// Waits until all events are on the disk: before a checkpoint is committed, so that no crash leaves the log behind the weights. Status 1.
int metrics_sync(Metrics *metrics);

// Whether an event of that name and step stands in the file as opened (what was due at the resumed step is not done twice).
bool metrics_has(const Metrics *metrics, const char *event, long step);

// The first line of run_dir's file, its start event; *event NULL where there is none. Status 1 or 2 when it cannot be read.
int metrics_read_first(const char *run_dir, struct cJSON **event);

// A new event object {"event": name}; and a number that reads back to the same double, null where it is not finite.
struct cJSON *metrics_event(const char *name);
void metrics_add_number(struct cJSON *event, const char *name, double value);

#endif
