/* SPDX-License-Identifier: MIT */
#include "cli/lm/folder.h"

#include "io/out_file.h"

#include <stdio.h>

enum { CONFIG, TOKENIZER, TEMPLATE, WEIGHTS };

const char *lm_folder_name(int which)
{
    static const char *const names[LM_FOLDER_FILES] = { [CONFIG] = "config.json",
                                                        [TOKENIZER] = "tokenizer.json",
                                                        [TEMPLATE] = "chat_template.jinja",
                                                        [WEIGHTS] = "model.safetensors" };
    return names[which];
}

static int write_template(const char *text, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    fputs(text, out_stream(file));
    return out_commit(file, error);
}

int lm_folder_write(const lm_folder *m, int which, const char *path, io_error *error)
{
    switch (which) {
    case CONFIG: return lm_config_write(m->config, path, error);
    case TOKENIZER: return m->tokenizer ? tokenizer_write(m->tokenizer, path, error) : 0;
    case TEMPLATE: return m->template ? write_template(m->template, path, error) : 0;
    default: return lm_write(path, m->config, m->dtype, m->read, m->from, error);
    }
}
