/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/progress.h"

#include <math.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { CELLS = 30 };
static const double redraw_seconds = 0.1;

static double now(void)
{
    struct timespec time;
    if (clock_gettime(CLOCK_MONOTONIC, &time) != 0) return 0;
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* "1:02:03", "2:03". */
static void print_duration(double seconds)
{
    const long whole = (long)fmin(ceil(seconds), 999.0 * 3600);
    if (whole >= 3600)
        fprintf(stderr, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
    else
        fprintf(stderr, "%ld:%02ld", whole / 60, whole % 60);
}

static void draw(progress *bar, double time)
{
    const double share = bar->total > 0 ? fmin(1, (double)bar->done / (double)bar->total) : 1;
    const int full = (int)(share * CELLS);
    fprintf(stderr, "\r\033[K%s [", bar->label);
    for (int cell = 0; cell < CELLS; cell++)
        fputc(cell < full ? '#' : '.', stderr);
    fprintf(stderr, "] %3.0f %%", 100 * share);
    if (share > 0 && share < 1) {
        fputs(", ", stderr);
        print_duration((time - bar->begun) * (1 - share) / share);
        fputs(" left", stderr);
    }
    fflush(stderr);
    bar->drawn = time;
}

void progress_begin(progress *bar, const char *label, int64_t total)
{
    *bar = (progress){ .label = label, .total = total, .shown = isatty(STDERR_FILENO) };
    bar->begun = now();
    if (bar->shown) draw(bar, bar->begun);
}

void progress_add(progress *bar, int64_t steps)
{
    bar->done += steps;
    if (!bar->shown) return;
    const double time = now();
    if (time - bar->drawn >= redraw_seconds) draw(bar, time);
}

void progress_end(progress *bar)
{
    if (bar->shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    bar->shown = 0;
}
