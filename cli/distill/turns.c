/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/distill/turns.h"

#include "cli/lm/lm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int turns_open(turns *t, const char *path, io_error *error)
{
    t->file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    return t->file >= 0 ? 0 : io_fail(error, EXIT_OUTPUT, "%s: %s", path, strerror(errno));
}

void turns_close(turns *t)
{
    if (t->file >= 0) close(t->file);
    t->file = -1;
}

/* FNV-1a of the name, as a place that a file may have. */
static off_t place_of(const char *what)
{
    uint64_t sum = 14695981039346656037u;
    for (; *what; what++)
        sum = (sum ^ (unsigned char)*what) * 1099511628211u;
    return (off_t)(sum >> 24);
}

static bool set(const turns *t, const char *what, short kind)
{
    struct flock lock = { .l_type = kind, .l_whence = SEEK_SET, .l_start = place_of(what), .l_len = 1 };
    return fcntl(t->file, F_SETLK, &lock) == 0;
}

bool turns_take(const turns *t, const char *what) { return set(t, what, F_WRLCK); }
void turns_leave(const turns *t, const char *what) { (void)set(t, what, F_UNLCK); }

bool turns_wait(const turns *t, const char *what, double end)
{
    const struct timespec pause = { 0, 20000000 };
    bool taken;
    while (!(taken = turns_take(t, what)) && lm_seconds() < end)
        nanosleep(&pause, NULL);
    return taken;
}
