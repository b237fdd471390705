/* SPDX-License-Identifier: MIT
 * A model as files that the Hugging Face library reads. */
#ifndef LOAM_LM_WRITE_H
#define LOAM_LM_WRITE_H

#include "lm/files.h"

/* Where the weights come from: as lm_files_read, of what `from` is. */
typedef int lm_reader(const void *from, lm_part part, int64_t layer, int64_t first, int64_t count,
                      loam_dtype dtype, void *out, io_error *error);

/* A .safetensors file with this element type, under the names and in the layouts of its architecture; whole
 * or not at all. In memory is one array at a time, and only where its layout is not that of its parts. */
int lm_write(const char *path, const lm_config *config, loam_dtype dtype, lm_reader *read, const void *from,
             io_error *error);

#endif
