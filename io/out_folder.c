/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "io/out_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_empty(const char *folder)
{
    DIR *directory = opendir(folder);
    int entries = 0;
    while (directory && entries < 3 && readdir(directory))
        entries++;
    if (directory) closedir(directory);
    return directory && entries < 3; /* . and .. */
}

/* What may become the folder: nothing, or an empty one, which rename replaces. */
static int check_free(const char *target, io_error *error)
{
    struct stat told;
    if (!*target) return io_fail(error, EXIT_USAGE, "OUT is empty; expected the name of a folder");
    if (lstat(target, &told) != 0 || is_empty(target)) return 0;
    return io_fail(error, EXIT_OUTPUT, "cannot write %s: %s", target,
                   S_ISDIR(told.st_mode) ? "the folder is there already, and not empty"
                                         : "there is such a file");
}

/* Slashes at the end of the target do not count. */
int out_folder_open(out_folder *f, const char *target, io_error *error)
{
    *f = (out_folder){ 0 };
    const int status = check_free(target, error);
    if (status) return status;
    size_t begin = strlen(target);
    while (begin > 0 && target[begin - 1] == '/')
        begin--;
    while (begin > 0 && target[begin - 1] != '/')
        begin--;
    const size_t bytes = begin + 40;
    out_folder made = { malloc(strlen(target) + 1), malloc(bytes) };
    int reason = ENOMEM;
    if (made.target && made.temporary) {
        strcpy(made.target, target);
        snprintf(made.temporary, bytes, "%.*s.loam-%ld.tmp", (int)begin, target, (long)getpid());
        reason = mkdir(made.temporary, 0777) == 0 ? 0 : errno;
    }
    if (!reason) {
        *f = made;
        return 0;
    }
    free(made.target);
    free(made.temporary);
    if (reason == ENOMEM) return io_fail(error, EXIT_INTERNAL, "out of memory for the name of %s", target);
    return io_fail(error, EXIT_OUTPUT, "cannot write %s: %s", target, strerror(reason));
}

int out_folder_path(const out_folder *f, const char *name, char **path, io_error *error)
{
    const size_t bytes = strlen(f->temporary) + 1 + strlen(name) + 1;
    *path = malloc(bytes);
    if (!*path) return io_fail(error, EXIT_INTERNAL, "out of memory for the path of %s", name);
    snprintf(*path, bytes, "%s/%s", f->temporary, name);
    return 0;
}

static void remove_files(const out_folder *f)
{
    DIR *directory = opendir(f->temporary);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        unlinkat(dirfd(directory), entry->d_name, 0); /* not . and .., which are folders */
    if (directory) closedir(directory);
    rmdir(f->temporary);
}

int out_folder_end(out_folder *f, int status, io_error *error)
{
    if (!f->temporary) return status;
    if (!status && rename(f->temporary, f->target) != 0)
        status = io_fail(error, EXIT_OUTPUT, "cannot write %s: %s", f->target, strerror(errno));
    if (status) remove_files(f);
    free(f->target);
    free(f->temporary);
    *f = (out_folder){ 0 };
    return status;
}
