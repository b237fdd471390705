/* SPDX-License-Identifier: MIT
 * Processes that share the work of a folder: what one has taken up, the others leave. These are locks of the
 * system on bytes of a file, one for each name, which end with the process however it ends. */
#ifndef LOAM_CLI_DISTILL_TURNS_H
#define LOAM_CLI_DISTILL_TURNS_H

#include "io/error.h"

#include <stdbool.h>

typedef struct turns {
    int file; /* below 0: there is none */
} turns;

/* The file is made where it is not there. One `turns` of a file in a process. */
int turns_open(turns *t, const char *path, io_error *error);
void turns_close(turns *t);

/* False: another process has it. Of the same process it is never refused. */
bool turns_take(const turns *t, const char *what);
/* Waits for it, as long as lm_seconds is below `end`; false: it is not taken. */
bool turns_wait(const turns *t, const char *what, double end);
void turns_leave(const turns *t, const char *what);

#endif
