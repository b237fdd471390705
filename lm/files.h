/* SPDX-License-Identifier: MIT
 * The files of a model: a folder with config.json and model.safetensors, or its shards with
 * model.safetensors.index.json; or one .gguf file. Arrays are asked for by their part in the model, whatever
 * a file calls them and however it lays them out. */
#ifndef LOAM_LM_FILES_H
#define LOAM_LM_FILES_H

#include "lm/config.h"
#include "loam.h"

/* Matrices are [out][in]; vectors have one row. Those from LM_NORM_1 on are of a layer. */
typedef enum lm_part {
    LM_EMBED,     /* [vocabulary][width] */
    LM_POSITIONS, /* [context][width] */
    LM_TYPES,     /* [types][width] */
    LM_EMBED_NORM,
    LM_EMBED_NORM_BIAS,
    LM_LAST_NORM,
    LM_LAST_NORM_BIAS,
    LM_HEAD, /* [vocabulary][width]; not of tied models */
    LM_NORM_1,
    LM_NORM_1_BIAS,
    LM_Q, /* [heads_q head_dim][width], heads one after another; channels in halves where RoPE turns them */
    LM_Q_BIAS,
    LM_K,
    LM_K_BIAS,
    LM_V,
    LM_V_BIAS,
    LM_O, /* [width][heads_q head_dim] */
    LM_O_BIAS,
    LM_NORM_2,
    LM_NORM_2_BIAS,
    LM_GATE, /* [inner][width]; of gated mlps */
    LM_UP,
    LM_UP_BIAS,
    LM_DOWN, /* [width][inner] */
    LM_DOWN_BIAS,
    LM_RIDGE,  /* [heads_q][width]; of models trained with LLA */
    LM_PROBE,  /* [heads_q head_dim][width]; with Parallax */
    LM_FORGET, /* [heads_q][width]; with FoX */
    /* Those from here on are of layers with features, and float32 whatever type the weights have, because
     * logarithms of features are differences of large numbers. Heads are those of queries or of keys. */
    LM_FEATURE_Z,       /* [heads features][head_dim], heads one after another, as all of these */
    LM_FEATURE_ALPHA,   /* [heads][features]: log alpha */
    LM_FEATURE_SHIFT,   /* [heads][head_dim] */
    LM_FEATURE_BALANCE, /* [heads head_dim][head_dim] */
    LM_FEATURE_BALANCE_KEYS,
    LM_FEATURE_GAIN, /* [heads_q][1], of features beside a window */
    LM_PARTS
} lm_part;

bool lm_part_is_vector(lm_part part);
/* Rows and columns of a part; 0 rows: the layer, or the model, has none. layer is ignored where a part is not
 * of one. */
void lm_part_shape(const lm_config *config, lm_part part, int64_t layer, int64_t *rows, int64_t *columns);
/* "layer 3's query weights", for messages; layer is ignored where a part is not of one. */
const char *lm_part_text(lm_part part, int64_t layer, char text[64]);

typedef struct lm_files lm_files;

/* Opens and checks: every part is there with its shape, every offset lies within its file, types are known,
 * and no array is there that is no part of such a model. `path` must outlive it. On failure *made is NULL. */
int lm_files_open(lm_files **made, const char *path, io_error *error);
void lm_files_close(lm_files *f); /* NULL is allowed */

const lm_config *lm_files_config(const lm_files *f);
/* The type of most weights but features, as the file has them: "BF16", "Q4_1"; and the bytes of all. */
const char *lm_files_type(const lm_files *f);
int64_t lm_files_bytes(const lm_files *f);

/* Rows first .. first + count - 1 of a part as LOAM_F32, LOAM_BF16 or LOAM_F16, dense. */
int lm_files_read(const lm_files *f, lm_part part, int64_t layer, int64_t first, int64_t count,
                  loam_dtype dtype, void *out, io_error *error);
/* All of it in the mapped file, where that has this type and layout and is aligned to its elements; else
 * NULL. It lives as long as f. */
const void *lm_files_mapped(const lm_files *f, lm_part part, int64_t layer, loam_dtype dtype);
/* The array of a part, where it was read and that was all, leaves memory; the file still has it. */
void lm_files_forget(const lm_files *f, lm_part part, int64_t layer);

#endif
