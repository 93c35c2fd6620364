// Errors: a function that fails says why once, where it knows most, and returns a status; callers pass the status up; main prints and
// exits.
#ifndef ERROR_H
#define ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

// What functions return and the program exits with.
enum { STATUS_OK = 0, STATUS_FAILED = 1 /* the run failed */, STATUS_BAD_INPUT = 2 /* usage, config or data is wrong */ };

// Keeps the message (one line, no trailing newline) and returns status, so that `return set_error(STATUS_BAD_INPUT, "...", ...)` is all it
// takes. A later message replaces an earlier one.
int set_error(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Puts text before the kept message ("configs/a.json: " before "train.steps: ..."); returns status.
int prefix_error(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The kept message; "" when there is none.
const char *error_text(void);

#ifdef __cplusplus
}
#endif
#endif
