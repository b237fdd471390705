/* SPDX-License-Identifier: MIT
 * Who is told how far a computation is: the program draws a bar of it. */
#ifndef LOAM_REGRESS_WATCH_H
#define LOAM_REGRESS_WATCH_H

#include <stdint.h>

typedef struct regress_watch {
    void (*begin)(void *watcher, const char *label, int64_t total);
    void (*add)(void *watcher, int64_t steps); /* by one thread at a time */
    void (*end)(void *watcher);
    void *watcher;
} regress_watch;

/* A watch may be NULL. */
static inline void regress_watch_begin(const regress_watch *watch, const char *label, int64_t total)
{
    if (watch) watch->begin(watch->watcher, label, total);
}

static inline void regress_watch_add(const regress_watch *watch, int64_t steps)
{
    if (watch) watch->add(watch->watcher, steps);
}

static inline void regress_watch_end(const regress_watch *watch)
{
    if (watch) watch->end(watch->watcher);
}

#endif
