/* SPDX-License-Identifier: MIT
 * Turns of a talk, as the chat template that comes with a model writes them. Templates are programs (Jinja);
 * those are known that write ChatML, where every turn is
 *
 *     <|im_start|>user
 *     text<|im_end|>
 *
 * and a turn of the system may come first by itself. */
#ifndef LOAM_LM_CHAT_H
#define LOAM_LM_CHAT_H

#include "io/error.h"

typedef struct lm_chat {
    char *system; /* malloc's: what the system says where it is told nothing; NULL: it has no turn then */
} lm_chat;

/* malloc's; NULL where the model at `path` has none: tokenizer.chat_template of a .gguf file; in a folder
 * chat_template.jinja, or chat_template in tokenizer_config.json. */
int lm_chat_template(char **text, const char *path, io_error *error);

/* From a template, which messages call `name`'s. One that does something else is refused. */
int lm_chat_parse(lm_chat *out, const char *text, const char *name, io_error *error);
void lm_chat_free(lm_chat *chat); /* and zeroes it */

/* The system's turn, `user` as the user's, and the beginning of the answer; malloc's. system: NULL, or what
 * it says instead. */
int lm_chat_prompt(char **text, const lm_chat *chat, const char *system, const char *user, io_error *error);

#endif
