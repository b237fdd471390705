/* SPDX-License-Identifier: MIT */
#include "cli/backend.h"

#include "cli/names.h"

#include <stddef.h>

static const char *backend_word(int index)
{
    static const char *const list[] = { "cpu", "cuda", NULL };
    return list[index];
}

static const char *dtype_word(int index)
{
    static const char *const list[] = { "f32", "bf16", NULL };
    return list[index];
}

int backend_read(backend *b, const char *name, const char *dtype, io_error *error)
{
    int where = 0, what = 0;
    int status = names_choose("backend", name, backend_word, &where, error);
    if (status == EXIT_OK && dtype) status = names_choose("dtype", dtype, dtype_word, &what, error);
    if (status != EXIT_OK) return status;
    b->cuda = where > 0;
    b->bf16 = dtype ? what > 0 : b->cuda;
    if (b->bf16 && !b->cuda) return io_fail(error, EXIT_USAGE, "--dtype bf16: expected f32 on the CPU");
    return EXIT_OK;
}

const char *backend_text(backend b)
{
    return !b.cuda ? "on the CPU, f32" : b.bf16 ? "on a GPU, bf16" : "on a GPU, f32";
}
