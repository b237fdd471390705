/* SPDX-License-Identifier: MIT */
#include "cli/distill/arms.h"

#include <string.h>

static const distill_arm arms[] = {
    { "softmax", FORM_SOFTMAX, STUDENT_UNIFORM, false, 0 },
    { "uniform", FORM_DRAWN, STUDENT_UNIFORM, false, 0 },
    { "normal", FORM_DRAWN, STUDENT_NORMAL, false, 0 },
    { "orthogonal", FORM_DRAWN, STUDENT_ORTHOGONAL, false, 0 },
    { "dct", FORM_DRAWN, STUDENT_DCT, false, 0 },
    { "pairs", FORM_DRAWN, STUDENT_PAIRS, false, 0 },
    { "balanced pairs", FORM_DRAWN, STUDENT_PAIRS, true, 0 },
    { "elu + 1", FORM_LINEAR, STUDENT_UNIFORM, false, 0 },
    { "window", FORM_WINDOW, STUDENT_UNIFORM, false, 0 },
    { "trained", FORM_TRAINED, STUDENT_PAIRS, true, 0 },
    { "hybrid 1/2", FORM_HYBRID, STUDENT_PAIRS, true, 4 },
    { "hybrid 3/4", FORM_HYBRID, STUDENT_PAIRS, true, 6 },
    { "hybrid 7/8", FORM_HYBRID, STUDENT_PAIRS, true, 7 },
    { "direct", FORM_DIRECT, STUDENT_PAIRS, true, 0 },
    { "untied", FORM_UNTIED, STUDENT_PAIRS, true, 0 },
    { "cascade", FORM_CASCADE, STUDENT_PAIRS, true, 0 },
};
enum { ARMS = sizeof arms / sizeof *arms };

const distill_arm *distill_arm_at(int index) { return index < ARMS ? &arms[index] : NULL; }

int distill_arm_find(const char *name)
{
    for (int i = 0; i < ARMS; i++)
        if (strcmp(arms[i].name, name) == 0) return i;
    return -1;
}

bool distill_arm_has_features(const distill_arm *a) { return a->form >= FORM_DRAWN; }
bool distill_arm_draws(const distill_arm *a) { return a->start != STUDENT_UNIFORM; }
