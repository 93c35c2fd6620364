// The live line of a terminal, and the plain lines of a log.
#include "progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { LINE_SIZE = 512, USUAL_WIDTH = 80 };
static const double redraw_seconds = 0.1, plain_seconds = 30;

static struct {
    bool drawn;                         // the live line stands there
    int width;                          // columns it fills
    long step;                          // of the last line
    double seconds;                     // when it was written
} last;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void progress_duration(char *text, int size, double seconds) {
    if (!(seconds >= 0 && seconds < 1e9)) {
        snprintf(text, (size_t)size, "?");
        return;
    }
    long s = lround(seconds);
    if (s < 60) snprintf(text, (size_t)size, "%ld s", s);
    else if (s < 3600) snprintf(text, (size_t)size, "%ld:%02ld", s / 60, s % 60);
    else snprintf(text, (size_t)size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
}

static void describe(char text[LINE_SIZE], const ProgressStep *step) {
    char left[32];
    progress_duration(left, sizeof left, step->seconds_left);
    snprintf(text, LINE_SIZE, "step %ld/%ld  loss %.4f  grad norm %.3g  lr %.2e  %.0f tokens/s%s%s%s", step->step, step->steps, step->loss,
             step->grad_norm, step->lr, step->tokens_per_second, step->seconds_left < 0 ? "" : "  ", step->seconds_left < 0 ? "" : left,
             step->seconds_left < 0 ? "" : " left");
}

static int terminal_width(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || size.ws_col < 2 ? USUAL_WIDTH : size.ws_col;
}

// Redraws the line in place. Blanks cover what a longer one left, so no terminal needs to know an escape code; the last column stays free,
// since a character there makes some terminals wrap.
static void draw(char *text) {
    int most = terminal_width() - 1, length = (int)strlen(text);
    if (length > most) text[length = most] = '\0';
    int cover = last.drawn && last.width > length ? (last.width < most ? last.width : most) : length;
    printf("\r%-*s", cover, text);
    fflush(stdout);
    last.drawn = true;
    last.width = length;
}

// 1, 2, 5, 10, 20, 50, ...
static bool is_round(long step) {
    while (step >= 10 && step % 10 == 0) step /= 10;
    return step == 1 || step == 2 || step == 5;
}

void progress_step(const ProgressStep *step) {
    char text[LINE_SIZE];
    bool terminal = isatty(STDOUT_FILENO);
    double time = now(), since = time - last.seconds;
    bool first = !last.step, due = terminal ? since >= redraw_seconds : is_round(step->step) || since >= plain_seconds;
    if (!first && !due && step->step != step->steps) return;
    describe(text, step);
    if (terminal) {
        draw(text);
    } else {
        printf("%s\n", text);
        fflush(stdout);
    }
    last.step = step->step;
    last.seconds = time;
}

void progress_note(const char *format, ...) {
    if (last.drawn) printf("\r%*s\r", last.width, "");
    last.drawn = false;
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

void progress_end(void) {
    if (last.drawn) putchar('\n');
    fflush(stdout);
    last.drawn = false;
}
