/* SPDX-License-Identifier: MIT
 * A text that a model reads, from within. */
#ifndef LOAM_LM_TEXT_H
#define LOAM_LM_TEXT_H

#include "lm/encoder.h"
#include "lm/hybrid.h"
#include "lm/untied.h"
#include "lm/window.h"

/* Keys that a block of a GPU reads for one query: softmax over more is the mean of such splits. */
enum { TEXT_SPLIT = 256 };

/* Attention of neighbouring heads that are alike, in one layer, or in all where those do not differ. */
typedef struct text_plans {
    loam_plan *step, *chunk; /* one query; `queries` of them */
    int64_t queries;
} text_plans;

/* Where the tokens that are read stand, in the machine's memory: launches for one token differ by nothing
 * else, and can be recorded. */
typedef struct text_place {
    int64_t first, in_use; /* the position of the first; keys, those of these tokens too */
    int32_t row;           /* first, as a number of a row */
} text_place;

struct lm_text {
    const lm_model *of;
    lm_options options; /* of attention */
    int64_t room, most, length;
    int64_t batch, most_batch; /* texts that are read side by side */
    memory memory;
    matrix *keys, *values; /* [layers], each [1][room][heads_kv head_dim] */
    matrix *decays;        /* [layers], each [1][room][heads_q], of models that forget */
    /* [layers], of those with features: [heads][head_dim + 2][features]. Of their keys and values those that
     * are read are there, from row 0 on. Beside a window as hybrid_kept has them, and these. */
    matrix *states, *near_keys, *near_values;
    matrix gates, ridge; /* of the rows that are read, before and after the gate */
    matrix x, y, second, stats, q, o, up, gate, inner, probe; /* second: with parallel attention and mlp */
    matrix ridges;                                            /* [layers][heads_q], of options.heads */
    matrix key, value, forget;                                /* of a GPU: of the one token that is read */
    text_place *place;
    int32_t *ids;                           /* of the tokens that are read */
    int64_t splits, *counts, *split_counts; /* keys of each split, in host memory and the machine's */
    matrix parts, lse;                      /* of each split: the mean of its values, its weight */
    text_plans *plans;                      /* [layers][heads_q], by the first head */
    void *work;
    size_t work_bytes;
    /* Of a GPU: the launches for one token, where the first of them has made its plans; what they give. */
    machine_recording *step;
    bool stepped;
    matrix hidden;
    window_room window;
    hybrid_room hybrid;
    encoder_room encoder;
    untied_room untied;
};

/* Forgets plans of attention, and recordings of their calls. */
void text_drop_plans(lm_text *t);

#endif
