/* SPDX-License-Identifier: MIT */
#include "cli/training/backend.h"

int backend_open(backend b, int threads, machine *on, io_error *error)
{
    loam_error cause;
    *on = machine_cpu(LOAM_F32, threads);
    if (b.cuda && machine_cuda(on, b.bf16 ? LOAM_BF16 : LOAM_F32, &cause))
        return io_fail(error, EXIT_USAGE, "--backend cuda: %s", cause.text);
    if (threads > 0) on->threads = threads;
    return EXIT_OK;
}
