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

/* o of the rows of q, k and v, so many whole texts one after another, by o->sinks, o->window and the features
 * of a layer. */
int hybrid_attend(hybrid_room *w, const machine *on, const lm_options *options, const lm_config *c,
                  int64_t layer, int64_t texts, matrix o, matrix q, matrix k, matrix v, io_error *error);
void hybrid_close(hybrid_room *w);

#endif
