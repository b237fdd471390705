/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/regress/scratch.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

static char name[] = "scratch-XXXXXX";

int scratch_enter(void **state)
{
    (void)state;
    return mkdtemp(name) && chdir(name) == 0 ? 0 : -1;
}

int scratch_leave(void **state)
{
    (void)state;
    DIR *directory = opendir(".");
    if (!directory) return -1;
    for (struct dirent *entry; (entry = readdir(directory));)
        unlink(entry->d_name); /* fails for . and .., as it should */
    closedir(directory);
    return chdir("..") || rmdir(name) ? -1 : 0;
}
