// Stopping a run from outside: see stop.h.
#include "stop.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t requested;

static void request(int number) {
    (void)number;
    requested = 1;
}

void stop_on_signals(void) {
    struct sigaction action = { .sa_handler = request, .sa_flags = SA_RESTART | SA_RESETHAND };     // the second finds the default again
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction hangup;
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);   // nohup ignores it
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

bool stop_requested(void) {
    return requested;
}
