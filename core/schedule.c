// The learning rate over a run.
#include "schedule.h"

#include <math.h>

double learning_rate(const Config *config, long step) {
    const double lr = config->optimizer.lr, low = lr * config->schedule.min_lr_ratio;
    const long n = config->train.steps, w = config->schedule.warmup_steps;
    if (step < w) return lr * ((double)(step + 1) / (double)w);
    if (config->schedule.type == SCHEDULE_CONSTANT) return lr;
    if (config->schedule.type == SCHEDULE_WSD) {
        const long d = lround((double)n * config->schedule.decay_fraction);
        if (step < n - d || d == 0) return lr;
        return low + (lr - low) * (1 - sqrt(fmin(1, (double)(step - (n - d)) / (double)d)));
    }
    const double f = fmin(1, (double)(step - w) / (double)(n > w ? n - w : 1));     // 1 from the run's end on
    if (config->schedule.type == SCHEDULE_LINEAR) return low + (lr - low) * (1 - f);
    return low + (lr - low) * (1 + cos(acos(-1) * f)) / 2;
}
