/* SPDX-License-Identifier: MIT
 * What the commands on language models share: a model by its options, and texts. */
#ifndef LOAM_CLI_LM_LM_H
#define LOAM_CLI_LM_LM_H

#include "cli/options.h"
#include "lm/model.h"
#include "text/tokenizer.h"

/* Options as they are written. */
typedef struct lm_words {
    const char *weights, *mechanism, *ridge_unit, *tokenizer, *backend, *dtype;
    double ridge, sharpen;
    int64_t layer, head, threads, device;
} lm_words;

lm_words lm_words_default(void);

/* The rows of these options, for a command's table. */
#define LM_OPTION_ROWS(words) \
    { "weights", \
      OPTION_TEXT, \
      &(words).weights, \
      0, \
      0, \
      "TYPE", \
      "in memory: f32, bf16 or f16; default: the file's type, of 4- and 8-bit files f32" }, \
        { "mechanism", \
          OPTION_TEXT, \
          &(words).mechanism, \
          0, \
          0, \
          "NAME", \
          "attention: softmax, lla, or parallax with probe 0; default: what it was trained with" }, \
        { "ridge", OPTION_REAL, &(words).ridge, 0, 1e30, "X", "of lla; default 1000" }, \
        { "ridge-unit", \
          OPTION_TEXT, \
          &(words).ridge_unit, \
          0, \
          0, \
          "UNIT", \
          "what it is relative to: normalised (default), max or trace" }, \
        { "layer", OPTION_INT, &(words).layer, 0, 1e6, "N", "the one layer with it; default all" }, \
        { "head", \
          OPTION_INT, \
          &(words).head, \
          0, \
          1e6, \
          "N", \
          "the one query head with it, of that layer or of each; default all" }, \
        { "sharpen", \
          OPTION_REAL, \
          &(words).sharpen, \
          1e-3, \
          1e3, \
          "X", \
          "scores times X: an inverse temperature; default 1" }, \
        { "tokenizer", \
          OPTION_TEXT, \
          &(words).tokenizer, \
          0, \
          0, \
          "PATH", \
          "tokenizer.json, a folder or .gguf; default: beside the model" }, \
        { "backend", OPTION_TEXT, &(words).backend, 0, 0, "cpu|cuda", "default cpu" }, \
        { "device", OPTION_INT, &(words).device, 0, 1023, "N", "which GPU; default 0" }, \
        { "dtype", \
          OPTION_TEXT, \
          &(words).dtype, \
          0, \
          0, \
          "TYPE", \
          "of what products and attention read: f32 (default), or bf16 on a GPU" }, \
    { \
        "threads", OPTION_INT, &(words).threads, 1, 4096, "N", "default: all" \
    }

/* A model as a command uses it. */
typedef struct lm_session {
    machine on;
    bool open; /* is there a machine? */
    lm_files *files;
    tokenizer *tokens;
    lm_model *model;
} lm_session;

int lm_session_open(lm_session *s, const char *path, const lm_words *words, io_error *error);
void lm_session_close(lm_session *s);
/* A model of these files, the session's or others, with other attention, whose mechanism is what this option
 * says. It closes before files and session. On failure *made is NULL. */
int lm_session_other(lm_model **made, const lm_session *s, const lm_files *files, const lm_words *words,
                     const char *option, io_error *error);

enum { LM_ATTENTION = 160 };
/* "softmax", "lla, ridge 100 (normalised), layer 3": the attention that was asked for. */
const char *lm_session_attention(const lm_session *s, const lm_words *words, char text[LM_ATTENTION]);

enum { LM_MODEL_NAME = 256 };
/* "model.gguf" of its path; a folder by its last part. */
void lm_model_name(const char *path, char name[LM_MODEL_NAME]);

/* The bytes of a file, malloc's, with a 0 behind them; "-" is standard input. */
int lm_text_file(char **text, size_t *bytes, const char *path, io_error *error);

/* The token before a text that is evaluated; -1: none. */
int32_t lm_prefix(const tokenizer *t, const lm_config *c);

/* A sentence's vector: the mean of its rows, scaled to length 1; out [width]. rows: room for them in host
 * memory. */
int lm_mean_row(const lm_model *m, matrix hidden, float *rows, float *out, io_error *error);

/* Seconds of the monotonic clock. */
double lm_seconds(void);

typedef int lm_command(int argc, char **argv, io_error *error);
lm_command lm_info, lm_eval, lm_generate, lm_embed, lm_data, lm_make_items, lm_train;
lm_command lm_tune; /* of cli/tune */

#endif
