/* SPDX-License-Identifier: MIT */
#include "lm/path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int lm_path(char **path, const char *folder, const char *name, io_error *error)
{
    const size_t bytes = strlen(folder) + 1 + strlen(name) + 1;
    *path = malloc(bytes);
    if (!*path) return io_fail(error, EXIT_INTERNAL, "out of memory for the path of %s", name);
    snprintf(*path, bytes, "%s/%s", folder, name);
    return 0;
}
