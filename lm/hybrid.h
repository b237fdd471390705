/* SPDX-License-Identifier: MIT
 * Softmax over a text's first tokens and the last ones before each query, positive features for those
 * between, under one normaliser (docs/mechanisms/hybrid.md). */
#ifndef LOAM_LM_HYBRID_H
#define LOAM_LM_HYBRID_H

#include "lm/model.h"

/* Memory of the library's call, as much as any layer took; all zero before the first. */
typedef struct hybrid_room {
    memory room;
    void *work;
    size_t bytes;
} hybrid_room;

/* What a layer of a text keeps that is read in pieces: the state [heads][head_dim + 3][features + 1] of its
 * features, keys and values of sinks and window [heads_kv][sinks + window][head_dim], and how many tokens
 * came before those that are read, in the machine's memory. */
typedef struct hybrid_kept {
    matrix state, keys, values;
    const int64_t *seen;
    bool begins; /* none did, and several are read */
} hybrid_kept;

/* o of the rows of q, k and v, so many whole texts one after another, by o->sinks, o->window and the features
 * of a layer. kept: of one text, which goes on from it; NULL: nothing is kept, and texts are whole. */
int hybrid_attend(hybrid_room *w, const machine *on, const lm_options *options, const lm_config *c,
                  int64_t layer, int64_t texts, matrix o, matrix q, matrix k, matrix v,
                  const hybrid_kept *kept, io_error *error);
/* Rows of a state, features + 1 wide. */
int64_t hybrid_rows(const lm_config *c);
void hybrid_close(hybrid_room *w);

#endif
