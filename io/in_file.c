/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "io/in_file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* Asked before opening, because opening a pipe would wait for a writer. */
FILE *in_open(const char *path, io_error *error)
{
    struct stat status;
    int failed = stat(path, &status);
    if (!failed && !S_ISREG(status.st_mode)) {
        io_fail(error, EXIT_INPUT, "cannot read %s: it is not a regular file", path);
        return NULL;
    }
    FILE *stream = failed ? NULL : fopen(path, "rb");
    if (!stream) io_fail(error, EXIT_INPUT, "cannot read %s: %s", path, strerror(errno));
    return stream;
}

int in_size(FILE *stream, const char *name, int64_t *bytes, io_error *error)
{
    off_t end = fseeko(stream, 0, SEEK_END) ? -1 : ftello(stream);
    if (end < 0 || fseeko(stream, 0, SEEK_SET))
        return io_fail(error, EXIT_INPUT, "cannot read %s: %s", name, strerror(errno));
    *bytes = end;
    return 0;
}

int in_read(FILE *stream, const char *name, void *into, size_t bytes, io_error *error)
{
    if (fread(into, 1, bytes, stream) == bytes) return 0;
    if (ferror(stream)) return io_fail(error, EXIT_INPUT, "cannot read %s: %s", name, strerror(errno));
    return io_fail(error, EXIT_INPUT, "%s ended while it was read", name);
}
