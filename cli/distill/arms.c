/* SPDX-License-Identifier: MIT */
#include "cli/distill/arms.h"

#include <string.h>

static const distill_arm arms[] = {
    { "softmax", FORM_SOFTMAX, STUDENT_UNIFORM, false },
    { "uniform", FORM_DRAWN, STUDENT_UNIFORM, false },
    { "normal", FORM_DRAWN, STUDENT_NORMAL, false },
    { "orthogonal", FORM_DRAWN, STUDENT_ORTHOGONAL, false },
    { "dct", FORM_DRAWN, STUDENT_DCT, false },
    { "pairs", FORM_DRAWN, STUDENT_PAIRS, false },
    { "balanced pairs", FORM_DRAWN, STUDENT_PAIRS, true },
    { "elu + 1", FORM_LINEAR, STUDENT_UNIFORM, false },
    { "window", FORM_WINDOW, STUDENT_UNIFORM, false },
    { "trained", FORM_TRAINED, STUDENT_PAIRS, true },
    { "untied", FORM_UNTIED, STUDENT_PAIRS, true },
    { "cascade", FORM_CASCADE, STUDENT_PAIRS, true },
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
