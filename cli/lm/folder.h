/* SPDX-License-Identifier: MIT
 * The files of a model's folder, as the Hugging Face library reads it. */
#ifndef LOAM_CLI_LM_FOLDER_H
#define LOAM_CLI_LM_FOLDER_H

#include "lm/write.h"
#include "text/tokenizer.h"

typedef struct lm_folder {
    const lm_config *config;
    loam_dtype dtype; /* of weights */
    lm_reader *read;
    const void *from;
    const tokenizer *tokenizer; /* NULL: there is none */
    const char *template;       /* of chats; NULL: there is none */
} lm_folder;

enum { LM_FOLDER_FILES = 4 };
/* "config.json", ...: the weights are last. */
const char *lm_folder_name(int which);
/* One of them at `path`, whole or not at all; nothing where the model has no such file. */
int lm_folder_write(const lm_folder *m, int which, const char *path, io_error *error);

#endif
