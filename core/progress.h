// What a person sees while a run goes on: on a terminal one live line, elsewhere plain lines now and then.
#ifndef PROGRESS_H
#define PROGRESS_H

typedef struct ProgressStep {
    long step, steps;
    double loss, grad_norm, lr, tokens_per_second;
    double seconds_left;                // < 0: not known yet
} ProgressStep;

// A step is done. On a terminal the live line is redrawn (at most ten times a second); elsewhere a line is written at the first step, at
// steps 1, 2, 5, 10, 20, 50, ..., whenever 30 seconds have passed, and at the last step.
void progress_step(const ProgressStep *step);
// A line that stays: an evaluation, a checkpoint, a warning.
void progress_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Ends the live line, so that what follows begins on its own.
void progress_end(void);
// "1:02:03", "12:34", "5 s" for a number of seconds.
void progress_duration(char *text, int size, double seconds);

#endif
