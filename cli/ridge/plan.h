/* SPDX-License-Identifier: MIT
 * What is measured of a model: its texts in windows, and the attentions that each window is read with. */
#ifndef LOAM_CLI_RIDGE_PLAN_H
#define LOAM_CLI_RIDGE_PLAN_H

#include "lm/score.h"
#include "text/tokenizer.h"

enum { RIDGES = 32, RIDGE_TEXTS = 64, RIDGE_LINE = 1536 };

typedef struct ridge_list {
    double items[RIDGES]; /* descending */
    int count;
} ridge_list;

typedef enum arm_kind { ARM_SOFTMAX, ARM_LLA, ARM_CONTROL, ARM_LAYER, ARM_HEAD } arm_kind;

/* An attention. */
typedef struct ridge_arm {
    arm_kind kind;
    double ridge; /* of a control: of the row that it is for */
    loam_ridge_unit unit;
    double inverse_temperature;
    int64_t layer, head; /* -1: all */
} ridge_arm;

/* What is done, from the options. */
typedef struct ridge_choice {
    ridge_list normalised, trace, parts; /* parts: of layers and heads alone */
    bool layers, heads;
    int64_t context, tokens, layer_tokens, head_tokens; /* of all texts together */
} ridge_choice;

typedef struct ridge_window {
    int text;
    bool layers, heads; /* layers, and heads, alone are measured in it too */
    score_window at;
} ridge_window;

typedef struct ridge_plan {
    ridge_choice choice;
    bool encoder; /* measured are vectors of lines, not predictions */
    int32_t bos;  /* before a text's first token; -1: none */
    int64_t layers, heads, head_dim;
    ridge_arm *arms; /* softmax, the curve, then parts in the order of layers */
    int arm_count, curve_count;
    char *names[RIDGE_TEXTS];
    tokens texts[RIDGE_TEXTS];
    int text_count;
    ridge_window *windows; /* groups follow each other */
    int64_t window_count;
    int64_t together; /* windows that are read at once, at most */
} ridge_plan;

/* `texts`: paths with commas between. On failure *p is all zero. */
int ridge_plan_open(ridge_plan *p, const ridge_choice *choice, const lm_model *m, const tokenizer *t,
                    const char *texts, io_error *error);
void ridge_plan_close(ridge_plan *p);

/* The attention of an arm. */
lm_options ridge_options(const ridge_arm *a);
/* The first arm of this kind, or -1. */
int ridge_find(const ridge_plan *p, arm_kind kind, double ridge, loam_ridge_unit unit, int64_t layer,
               int64_t head);
/* "ridge 300", "ridge 300 of the trace", "scores x 1.027", "softmax". */
const char *ridge_arm_text(const ridge_arm *a, char text[64]);
/* What values are: "NLL", "1 - cosine". */
const char *ridge_measure(const ridge_plan *p);
/* Is it measured in this window? */
bool ridge_has(const ridge_plan *p, int64_t window, int arm);
/* How many windows from `first` on, which begins a group, are read at once: of one length, with the same
 * parts. Groups begin with window 0 and are measured whole, so that no bit depends on where a run was cut. */
int64_t ridge_group(const ridge_plan *p, int64_t first);
/* The tokens that a window reads; out [at.inputs]. */
void ridge_inputs(const ridge_plan *p, const ridge_window *w, int32_t *out);
/* Those that it predicts, [at.scored]. */
const int32_t *ridge_targets(const ridge_plan *p, const ridge_window *w);
/* All that results depend on but the model, in one line. */
void ridge_describe(const ridge_plan *p, char line[RIDGE_LINE]);

#endif
