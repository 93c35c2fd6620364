// Stopping a run from outside: SIGINT, SIGTERM and SIGHUP (its terminal went away) ask it to finish the step, save and end; a second one
// ends it at once. A pipe that nobody reads any more and a file that may not grow further are no reason to die: the write fails, and says
// so.
#ifndef STOP_H
#define STOP_H

#include <stdbool.h>

void stop_on_signals(void);         // installs the handlers
bool stop_requested(void);

#endif
