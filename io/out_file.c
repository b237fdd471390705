/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* fopencookie */
#include "io/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEMPORARY_NAMES = 1000, TEMPORARY_SPACE = 48 };

struct out_file {
    FILE *stream;    /* NULL once finished */
    int descriptor;  /* likewise -1 */
    int code;        /* errno of the first write that failed: the stream alone would forget it */
    char *target;    /* what errors name, and the new name */
    char *temporary; /* NULL where written directly */
    bool is_stdout;
};

static char *copy_text(const char *text, size_t room)
{
    char *copy = malloc(strlen(text) + 1 + room);
    if (copy) strcpy(copy, text);
    return copy;
}

static void free_file(out_file *file)
{
    free(file->target);
    free(file->temporary);
    free(file);
}

static int cannot_write(const out_file *file, int code, io_error *error)
{
    if (code == ENOMEM) return io_fail(error, EXIT_INTERNAL, "out of memory for the output %s", file->target);
    if (file->is_stdout)
        return io_fail(error, EXIT_OUTPUT, "cannot write standard output: %s", strerror(code));
    return io_fail(error, EXIT_OUTPUT, "cannot write %s: %s", file->target, strerror(code));
}

/* The write function of the stream: all of it, or 0 and the reason in file->code. */
static ssize_t write_bytes(void *cookie, const char *bytes, size_t count)
{
    out_file *file = cookie;
    for (size_t done = 0; done < count && !file->code;) {
        ssize_t written = write(file->descriptor, bytes + done, count - done);
        if (written > 0)
            done += (size_t)written;
        else if (written == 0 || errno != EINTR)
            file->code = written == 0 ? EIO : errno;
    }
    return file->code ? 0 : (ssize_t)count;
}

/* Opens a new file in the directory of the target. A short name of its own: the target's may already be as
 * long as the file system allows. */
static int open_temporary(out_file *file)
{
    file->temporary = copy_text(file->target, TEMPORARY_SPACE);
    if (!file->temporary) {
        errno = ENOMEM;
        return -1;
    }
    char *slash = strrchr(file->temporary, '/');
    char *name = slash ? slash + 1 : file->temporary;
    int descriptor = -1;
    for (int n = 0; n < TEMPORARY_NAMES; n++) {
        snprintf(name, TEMPORARY_SPACE, ".loam-%ld-%d.tmp", (long)getpid(), n);
        descriptor = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0 || errno != EEXIST) break;
    }
    if (descriptor < 0) {
        free(file->temporary);
        file->temporary = NULL;
    }
    return descriptor;
}

/* The path of a file without links in it; NULL where it has none, as a deleted one that is open as
 * /dev/stdout. */
static char *real_path(const char *path, const struct stat *status)
{
    struct stat found;
    char *real = realpath(path, NULL);
    if (real && (stat(real, &found) || found.st_dev != status->st_dev || found.st_ino != status->st_ino)) {
        free(real);
        real = NULL;
    }
    return real;
}

/* Devices, pipes and files without a name are written in place: renaming over /dev/null would replace it. A
 * link to nothing is refused: /dev/stdout is one where standard output is closed. */
static int open_target(out_file *file, const char *path)
{
    struct stat status;
    const int place = O_WRONLY | O_TRUNC | O_CLOEXEC;
    if (stat(path, &status)) {
        const bool link = lstat(path, &status) == 0 && S_ISLNK(status.st_mode);
        return link ? open(path, place) : open_temporary(file);
    }
    if (S_ISDIR(status.st_mode)) {
        errno = EISDIR;
        return -1;
    }
    char *real = S_ISREG(status.st_mode) ? real_path(path, &status) : NULL;
    if (!real) return open(path, place);
    free(file->target);
    file->target = real;
    return open_temporary(file);
}

static int open_descriptor(out_file *file, const char *path)
{
    file->is_stdout = strcmp(path, "-") == 0;
    if (!file->is_stdout) return open_target(file, path);
    fflush(stdout); /* what was printed before comes before */
    return STDOUT_FILENO;
}

static int open_stream(out_file *file, const char *path, io_error *error)
{
    file->descriptor = open_descriptor(file, path);
    if (file->descriptor < 0) return cannot_write(file, errno, error);
    file->stream = fopencookie(file, "wb", (cookie_io_functions_t){ .write = write_bytes });
    return file->stream ? 0 : cannot_write(file, ENOMEM, error);
}

int out_open(out_file **out, const char *path, io_error *error)
{
    *out = NULL;
    if (!*path) return io_fail(error, EXIT_OUTPUT, "cannot write a file without a name");
    out_file *file = calloc(1, sizeof *file);
    if (!file) return io_fail(error, EXIT_INTERNAL, "out of memory for the output %s", path);
    file->descriptor = -1;
    file->target = copy_text(path, 0);
    int status = file->target ? open_stream(file, path, error)
                              : io_fail(error, EXIT_INTERNAL, "out of memory for the output %s", path);
    if (status) {
        out_discard(file);
        return status;
    }
    *out = file;
    return 0;
}

FILE *out_stream(out_file *file) { return file->stream; }

/* A pipe or a terminal cannot be synced, which is no error. */
static int sync_descriptor(int descriptor)
{
    bool synced = fsync(descriptor) == 0 || errno == EINVAL || errno == EROFS || errno == ENOTSUP;
    return synced ? 0 : errno;
}

static int close_descriptor(out_file *file)
{
    int descriptor = file->descriptor;
    file->descriptor = -1;
    if (descriptor < 0 || file->is_stdout) return 0;
    return close(descriptor) ? errno : 0;
}

int out_finish(out_file *file, io_error *error)
{
    if (!file->stream) return file->code ? cannot_write(file, file->code, error) : 0;
    bool failed = fclose(file->stream) != 0;
    file->stream = NULL;
    if (!file->code && failed) file->code = EIO;
    if (!file->code) file->code = sync_descriptor(file->descriptor);
    int code = close_descriptor(file);
    if (!file->code) file->code = code;
    return file->code ? cannot_write(file, file->code, error) : 0;
}

/* Makes the new name last through a power cut, where the system can. `path` is of a file, and is changed. */
static void sync_directory(char *path)
{
    char *slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, ".");
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    (void)fsync(descriptor);
    close(descriptor);
}

int out_commit(out_file *file, io_error *error)
{
    int status = out_finish(file, error);
    if (!status && file->temporary) {
        if (rename(file->temporary, file->target)) {
            status = cannot_write(file, errno, error);
        } else {
            sync_directory(file->temporary);
            free(file->temporary);
            file->temporary = NULL;
        }
    }
    out_discard(file);
    return status;
}

void out_discard(out_file *file)
{
    if (!file) return;
    if (file->stream) fclose(file->stream);
    close_descriptor(file);
    if (file->temporary) unlink(file->temporary);
    free_file(file);
}
