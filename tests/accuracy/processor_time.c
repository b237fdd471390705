/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/accuracy/processor_time.h"

#include <time.h>

double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
