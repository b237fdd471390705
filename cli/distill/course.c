/* SPDX-License-Identifier: MIT */
#include "cli/distill/course.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

_Static_assert(FEATURE_LOSS_SOFTMAX == 0 && FEATURE_LOSS_L2ROW == 1 && FEATURE_LOSS_L2 == 2, "words below");

const char *course_loss(int index)
{
    static const char *const words[] = { "softmax", "l2row", "l2" };
    return index >= 0 && index < COURSE_LOSSES ? words[index] : NULL;
}

const char *course_student_name(int index)
{
    static const char *const words[COURSE_STUDENTS] = {
        [COURSE_TRAINED] = "trained",
        [COURSE_HYBRID] = "hybrid",
        [COURSE_CASCADE] = "cascade",
        [COURSE_DIRECT] = "direct",
    };
    return index >= 0 && index < COURSE_STUDENTS ? words[index] : NULL;
}

static void set(int64_t *value, int64_t usual) { *value = *value > 0 ? *value : usual; }

void course_fill(course *c, bool reduced)
{
    set(&c->context, reduced ? 512 : 64);
    set(&c->tokens, reduced ? 102400 : 512);
    set(&c->windows, reduced ? 64 : 4);
    if (c->training.steps < 0) c->training.steps = reduced ? 2000 : 20;
    set(&c->training.batch, reduced ? 8 : 2);
    set(&c->measured_windows, reduced ? 8 : 1);
    if (c->measured_steps < 0) c->measured_steps = reduced ? 100 : 2;
    set(&c->budget.mean, reduced ? 64 : 16);
    set(&c->direct_steps, reduced ? 500 : 10);
}

course course_brief(const course *c)
{
    static const char *const names[] = { "fix", "rel", "attn" };
    course own = *c;
    memset(own.losses, 0, sizeof own.losses);
    for (int i = 0; strategy_name(i); i++) {
        own.strategies[i] = false;
        for (size_t n = 0; n < sizeof names / sizeof *names; n++)
            own.strategies[i] |= c->strategies[i] && strcmp(strategy_name(i), names[n]) == 0;
    }
    own.losses[0] = true;
    for (int i = 0; i < COURSE_STUDENTS; i++)
        own.students[i] = c->students[i] && i == COURSE_TRAINED;
    own.seeds.count = 1;
    return own;
}

course course_of_encoder(const course *c, int64_t channels)
{
    enum { LINES = 8, PART = 4 }; /* of windows and of their length */
    course own = *c;
    own.windows *= LINES, own.context = c->context < PART ? 1 : c->context / PART;
    own.budget.mean = channels;
    own.students[COURSE_HYBRID] = own.students[COURSE_DIRECT] = false;
    for (int i = 0; strategy_name(i); i++)
        if (strcmp(strategy_name(i), "measured") == 0) own.strategies[i] = false;
    return own;
}

void course_describe(const course *c, char line[COURSE_LINE])
{
    snprintf(line, COURSE_LINE,
             "calibration of %" PRId64 " windows of %" PRId64 "; %" PRId64 " features by %" PRId64
             ", shared out by seed %" PRId64 "; %" PRId64 " steps of %" PRId64 ", rates %g and %g; measured "
             "in %" PRId64 " windows after %" PRId64 " steps; through the model %" PRId64 " steps",
             c->windows, c->context, c->budget.mean, c->budget.unit, c->seeds.items[0], c->training.steps,
             c->training.batch, c->training.rate, c->training.rate_log_alpha, c->measured_windows,
             c->measured_steps, c->direct_steps);
}
