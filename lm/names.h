/* SPDX-License-Identifier: MIT
 * What files call the parts of a model, and how they lay them out. */
#ifndef LOAM_LM_NAMES_H
#define LOAM_LM_NAMES_H

#include "lm/files.h"

/* Where row i of a part lies in its array: the part may be one third of it, the query's, key's or value's. */
typedef enum lm_layout {
    LM_ROWS,        /* row i */
    LM_COLUMNS,     /* column i; thirds one after another */
    LM_HEAD_THIRDS, /* head by head, of each head the query's rows, the key's, the value's */
    LM_PAIRS        /* row i; what RoPE turns together are adjacent rows of a head, not its halves */
} lm_layout;

typedef struct lm_name {
    const char *pattern; /* "h.%.ln_1.weight", % the layer; NULL: no such part */
    lm_layout layout;
    int third; /* which, or LM_WHOLE: all of the array */
} lm_name;

/* The families of names: those of the architectures, then that of .gguf files. */
enum { LM_NAMES_GGUF = LM_BERT + 1 };

enum { LM_NAME_TEXT = 128, LM_WHOLE = -1 };

lm_name lm_name_of(int names, lm_part part);
/* The row of the array, or its column, that is row i of `rows` of a part; elements of vectors are rows. */
int64_t lm_name_place(lm_name name, int64_t rows, int64_t head_dim, int64_t i);
/* The shape of the array of a part with this shape. */
void lm_name_shape(lm_name name, lm_part part, int64_t rows, int64_t columns, int *rank, int64_t shape[2]);
/* The whole name, with what all names of a family begin with or without. */
const char *lm_name_text(int names, lm_part part, int64_t layer, bool prefix, char text[LM_NAME_TEXT]);
/* True of the names of parts of the model, and of arrays that change nothing: masks, tables, heads that are
 * not used. */
bool lm_name_known(int names, const lm_config *config, const char *name, size_t bytes);

#endif
