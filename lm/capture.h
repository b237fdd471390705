/* SPDX-License-Identifier: MIT
 * The queries and keys of every layer and head as they enter the product, after bias and RoPE: a model reads
 * texts window by window, and a sink is told what each layer's attention had. */
#ifndef LOAM_LM_CAPTURE_H
#define LOAM_LM_CAPTURE_H

#include "lm/model.h"

typedef struct lm_capture lm_capture;

/* Called for each layer of a window, from the first on. The matrices are in the machine's memory
 * (lm_model_fetch) and valid until it returns; a status other than 0 ends the reading. */
typedef int lm_sink(void *to, int64_t layer, const lm_heads *heads, io_error *error);

/* For windows of at most `length` tokens, under the attention that the model was opened with. The model must
 * live as long. On failure *made is NULL. */
int lm_capture_open(lm_capture **made, const lm_model *m, int64_t length, io_error *error);
void lm_capture_close(lm_capture *c); /* NULL is allowed */

/* Reads `count` tokens as a text of its own. */
int lm_capture_read(lm_capture *c, const int32_t *tokens, int64_t count, lm_sink *sink, void *to,
                    io_error *error);

#endif
