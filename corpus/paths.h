/* SPDX-License-Identifier: MIT
 * The files of a folder and of those in it, in the order of their paths' bytes. */
#ifndef LOAM_CORPUS_PATHS_H
#define LOAM_CORPUS_PATHS_H

#include "io/error.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct paths {
    char **at; /* relative to the folder; of a file, its name alone */
    size_t count, room;
    bool folder;
} paths;

/* `path` is a folder or a file. Links to files are followed, those to folders below `path` are not; what is
 * neither a file nor a folder is passed over. On failure *list is empty. */
int paths_find(paths *list, const char *path, io_error *error);
void paths_free(paths *list); /* and zeroes it */

/* Where file n of paths_find's list is, malloc's; NULL without memory. */
char *paths_join(const paths *list, const char *path, size_t n);

#endif
