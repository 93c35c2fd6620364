// core/schedule: every schedule against numbers worked out by hand from the formulas in the design, and the edges of a run.
#include "core/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

// lr 0.8 and ratio 0.25, so low is 0.2 and lr - low 0.6, unless a test says otherwise.
static double rate(ScheduleType type, long n, long w, double fraction, long step) {
    Config config;
    memset(&config, 0, sizeof config);
    config.optimizer.lr = 0.8;
    config.train.steps = n;
    config.schedule.type = type;
    config.schedule.warmup_steps = w;
    config.schedule.decay_fraction = fraction;
    config.schedule.min_lr_ratio = 0.25;
    return learning_rate(&config, step);
}

static void assert_near(double found, double wanted) {
    if (!(fabs(found - wanted) <= 1e-15)) fail_msg("%.17g is not %.17g", found, wanted);
}

static void test_warmup(void **state) {
    (void)state;
    for (int type = SCHEDULE_CONSTANT; type <= SCHEDULE_COSINE; type++) {
        assert_near(rate(type, 100, 4, 0.2, 0), 0.2);
        assert_near(rate(type, 100, 4, 0.2, 1), 0.4);
        assert_near(rate(type, 100, 4, 0.2, 2), 0.6);
        assert_near(rate(type, 100, 4, 0.2, 3), 0.8);
        assert_near(rate(type, 100, 4, 0.2, 4), 0.8);           // f = 0: no jump where the warm-up ends
        assert_near(rate(type, 100, 0, 0.2, 0), 0.8);           // none
        assert_near(rate(type, 100, 1, 0.2, 0), 0.8);
        assert_near(rate(type, 3, 8, 0.2, 0), 0.1);             // longer than the run: it is all there is
        assert_near(rate(type, 3, 8, 0.2, 2), 0.3);
        assert_near(rate(type, 8, 8, 1, 7), 0.8);               // and it goes before the decay
        assert_true(rate(type, 100, 9007199254740991, 0.2, 0) > 0);
    }
}

static void test_constant(void **state) {
    (void)state;
    const long steps[] = {4, 50, 99};
    for (int i = 0; i < 3; i++) assert_near(rate(SCHEDULE_CONSTANT, 100, 4, 0.2, steps[i]), 0.8);
}

static void test_wsd(void **state) {
    (void)state;
    // n = 20, d = 4: the decay begins at step 16
    static const struct { long step; double rate; } four[] = {
        {2, 0.8}, {15, 0.8}, {16, 0.8},
        {17, 0.5},                              // 0.2 + 0.6 (1 - sqrt(1/4))
        {18, 0.37573593128807149},              // 0.2 + 0.6 (1 - sqrt(1/2)) = 0.8 - 0.3 sqrt(2)
        {19, 0.28038475772933678},              // 0.2 + 0.6 (1 - sqrt(3/4)) = 0.8 - 0.3 sqrt(3)
    };
    for (int i = 0; i < 6; i++) assert_near(rate(SCHEDULE_WSD, 20, 2, 0.2, four[i].step), four[i].rate);
    // d = round(7 * 0.5) = round(3.5) = 4, so it begins at 3; round(5 * 0.3) = round(1.5) = 2, at 3; round(7 * 0.2) = round(1.4) = 1, at 6
    assert_near(rate(SCHEDULE_WSD, 7, 0, 0.5, 3), 0.8);
    assert_near(rate(SCHEDULE_WSD, 7, 0, 0.5, 4), 0.5);
    assert_near(rate(SCHEDULE_WSD, 5, 0, 0.3, 4), 0.37573593128807149);
    assert_near(rate(SCHEDULE_WSD, 7, 0, 0.2, 6), 0.8);
    // no decay, and nothing but decay
    assert_near(rate(SCHEDULE_WSD, 20, 0, 0, 19), 0.8);
    assert_near(rate(SCHEDULE_WSD, 2, 0, 0.2, 1), 0.8);         // d = round(0.4) = 0
    assert_near(rate(SCHEDULE_WSD, 16, 0, 1, 0), 0.8);
    assert_near(rate(SCHEDULE_WSD, 16, 0, 1, 4), 0.5);
    assert_near(rate(SCHEDULE_WSD, 16, 0, 1, 9), 0.35);         // 0.2 + 0.6 (1 - 3/4)
    // a warm-up that reaches into the decay: 12 steps of 16, then the decay where it is by then
    assert_near(rate(SCHEDULE_WSD, 16, 12, 1, 8), 0.6);         // 0.8 * 9/12
    assert_near(rate(SCHEDULE_WSD, 16, 12, 1, 12), 0.28038475772933678);
}

static void test_linear(void **state) {
    (void)state;
    assert_near(rate(SCHEDULE_LINEAR, 12, 2, 0.2, 2), 0.8);
    assert_near(rate(SCHEDULE_LINEAR, 12, 2, 0.2, 3), 0.74);    // 0.2 + 0.6 * 9/10
    assert_near(rate(SCHEDULE_LINEAR, 12, 2, 0.2, 7), 0.5);
    assert_near(rate(SCHEDULE_LINEAR, 12, 2, 0.2, 11), 0.26);   // the last step: 0.2 + 0.6 * 1/10
    assert_near(rate(SCHEDULE_LINEAR, 1, 0, 0.2, 0), 0.8);
    assert_near(rate(SCHEDULE_LINEAR, 4, 0, 1, 3), 0.35);       // decay_fraction is wsd's alone
}

static void test_cosine(void **state) {
    (void)state;
    assert_near(rate(SCHEDULE_COSINE, 14, 2, 0.2, 2), 0.8);
    assert_near(rate(SCHEDULE_COSINE, 14, 2, 0.2, 4), 0.75980762113533163);     // f = 1/6: 0.5 + 0.3 sqrt(3)/2
    assert_near(rate(SCHEDULE_COSINE, 14, 2, 0.2, 5), 0.71213203435596424);     // f = 1/4: 0.5 + 0.3 / sqrt(2)
    assert_near(rate(SCHEDULE_COSINE, 14, 2, 0.2, 6), 0.65);                    // f = 1/3: 0.5 + 0.3 / 2
    assert_near(rate(SCHEDULE_COSINE, 14, 2, 0.2, 8), 0.5);                     // f = 1/2
    assert_near(rate(SCHEDULE_COSINE, 14, 2, 0.2, 12), 0.24019237886466840);    // f = 5/6: 0.5 - 0.3 sqrt(3)/2
    assert_near(rate(SCHEDULE_COSINE, 1, 0, 0.2, 0), 0.8);
}

// The lowest rate is a part of lr; 1 makes every schedule constant, 0 ends at nothing.
static void test_lowest(void **state) {
    (void)state;
    Config config;
    memset(&config, 0, sizeof config);
    config.optimizer.lr = 3e-4;
    config.train.steps = 10;
    config.schedule.decay_fraction = 0.5;
    for (int type = SCHEDULE_CONSTANT; type <= SCHEDULE_COSINE; type++) {
        config.schedule.type = type;
        config.schedule.min_lr_ratio = 1;
        for (long step = 0; step < 10; step++) assert_near(learning_rate(&config, step), 3e-4);
        config.schedule.min_lr_ratio = 0;
        // where the formulas end, one step after the last
        assert_near(learning_rate(&config, 10), type == SCHEDULE_CONSTANT ? 3e-4 : 0);
    }
    config.optimizer.lr = 0;
    for (long step = 0; step < 10; step++) assert_true(learning_rate(&config, step) == 0);
}

// A run of no steps, and steps after a run's end, give finite rates between low and lr.
static void test_edges(void **state) {
    (void)state;
    assert_near(rate(SCHEDULE_WSD, 20, 0, 0, 20), 0.8);         // no decay: not 0/0
    assert_near(rate(SCHEDULE_LINEAR, 8, 8, 0.2, 8), 0.8);      // n - w is 0: f = 0/1
    assert_near(rate(SCHEDULE_COSINE, 3, 8, 0.2, 8), 0.8);      // n - w is below 0: the same
    assert_near(rate(SCHEDULE_COSINE, 3, 8, 0.2, 9), 0.2);
    for (int type = SCHEDULE_CONSTANT; type <= SCHEDULE_COSINE; type++) {
        const long runs[] = {0, 1, 2, 9007199254740992};
        const double fractions[] = {0, 0.2, 1};
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 3; j++)
                for (long step = 0; step < 5; step++) {
                    const double lr = rate(type, runs[i], 0, fractions[j], step);
                    assert_true(lr >= 0.2 - 1e-15 && lr <= 0.8 + 1e-15);
                }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warmup), cmocka_unit_test(test_constant), cmocka_unit_test(test_wsd),   cmocka_unit_test(test_linear),
        cmocka_unit_test(test_cosine), cmocka_unit_test(test_lowest),   cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
