/* SPDX-License-Identifier: MIT
 * What is trained on top of a pretrained model, on which texts, and what it is held against. */
#ifndef LOAM_CLI_GRAFT_PLAN_H
#define LOAM_CLI_GRAFT_PLAN_H

#include "cli/experiment/options.h"
#include "lm/files.h"
#include "text/tokenizer.h"
#include "train/trainer.h"

enum { GRAFT_TEXTS = 64, GRAFT_LINE = 1024 };

/* What moves: a ridge, a temperature, or both for each head; A and B of Parallax's probe, or of the queries.
 * GRAFT_NONE: nothing, the model as it is. */
typedef enum graft_kind {
    GRAFT_RIDGES,
    GRAFT_TEMPERATURES,
    GRAFT_BOTH,
    GRAFT_PARALLAX,
    GRAFT_LORA,
    GRAFT_NONE
} graft_kind;
enum { GRAFT_KINDS = GRAFT_NONE };

/* "ridges"; NULL beyond the last. */
const char *graft_name(int kind);
/* What it is held against; GRAFT_NONE: it is a control itself. */
int graft_control(int kind);
static inline bool graft_has_ridges(int kind) { return kind == GRAFT_RIDGES || kind == GRAFT_BOTH; }
static inline bool graft_has_temperatures(int kind)
{
    return kind == GRAFT_TEMPERATURES || kind == GRAFT_BOTH;
}

/* From the options. */
typedef struct graft_choice {
    bool kinds[GRAFT_KINDS];
    double rate[GRAFT_KINDS]; /* the highest of AdamW */
    double ridge;             /* that ridges begin with */
    int64_t context, steps, batch, piece, held, rank;
    number_list seeds;
} graft_choice;

typedef struct graft_plan {
    graft_choice choice;
    const lm_config *config;
    const char *model; /* its name, for messages */
    int text_count;
    char *names[GRAFT_TEXTS];
    int64_t windows_of[GRAFT_TEXTS]; /* that are held out */
    uint16_t *tokens[2];             /* of each train_split, text after text */
    int64_t count[2];
    int64_t windows;
    uint64_t sum;
    bool narrow; /* products and attention read bfloat16 */
} graft_plan;

/* Does a number of each head move? */
static inline bool graft_has_heads(const graft_plan *p)
{
    const bool *kinds = p->choice.kinds;
    return kinds[GRAFT_RIDGES] || kinds[GRAFT_TEMPERATURES] || kinds[GRAFT_BOTH];
}

/* Does it have the control of a kind, too? */
static inline bool graft_is_controlled(const graft_plan *p, int kind)
{
    return p->choice.kinds[kind] && graft_control(kind) != GRAFT_NONE && p->choice.kinds[graft_control(kind)];
}

/* texts: paths with commas between, of which the last tenth is not trained on or, where `held` is not NULL,
 * these files in its place. On failure *p is all zero. */
int graft_plan_open(graft_plan *p, const graft_choice *choice, const lm_files *files, const char *model,
                    const tokenizer *t, const char *texts, const char *held, bool narrow, io_error *error);
void graft_plan_close(graft_plan *p);

/* The text of a window that is held out. */
int graft_text_of(const graft_plan *p, int64_t window);
/* How one kind is trained, and on what. `from` names the model. */
int graft_options(const graft_plan *p, int kind, const char *from, trainer_options *o, io_error *error);
trainee graft_trainee(const graft_plan *p, int kind, uint64_t seed);
/* All that results depend on but model and machine, in one line. */
void graft_describe(const graft_plan *p, char line[GRAFT_LINE]);

#endif
