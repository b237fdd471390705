/* SPDX-License-Identifier: MIT
 * A progress bar with the remaining time on stderr; silent where stderr is not a terminal. */
#ifndef LOAM_CLI_PROGRESS_H
#define LOAM_CLI_PROGRESS_H

#include <stdint.h>

typedef struct progress {
    const char *label;
    int64_t total, done;
    double begun, drawn; /* seconds of the monotonic clock */
    int shown;
} progress;

void progress_begin(progress *bar, const char *label, int64_t total);
void progress_add(progress *bar, int64_t steps);
void progress_end(progress *bar); /* clears the line */

#endif
