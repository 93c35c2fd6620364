// The learning rate over a run.
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include "config.h"

// Learning rate of the update from step `step` (from 0) to the next. With n = train.steps, w = schedule.warmup_steps, low = lr
// min_lr_ratio:
//   step < w   lr (step+1)/w, whatever the type
//   constant   lr
//   wsd        d = round(n decay_fraction): lr while step < n-d, then low + (lr-low)(1 - sqrt((step-(n-d))/d))
//   linear     low + (lr-low)(1-f), f = (step-w)/max(1, n-w)
//   cosine     low + (lr-low)(1+cos(pi f))/2
double learning_rate(const Config *config, long step);

#endif
