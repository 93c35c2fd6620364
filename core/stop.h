// Stopping a run from outside: SIGINT and SIGTERM ask it to finish the step, save and end; a second one ends it at once.
#ifndef STOP_H
#define STOP_H

#include <stdbool.h>

void stop_on_signals(void);         // installs the handlers
bool stop_requested(void);

#endif
