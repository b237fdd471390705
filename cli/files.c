/* SPDX-License-Identifier: MIT */
#define _XOPEN_SOURCE 700
#include "cli/files.h"

#include "io/load.h"

#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A path that need not end with a zero. */
typedef struct place {
    const char *path;
    size_t length;
    int standard; /* the descriptor that "-" stands for */
} place;

static bool find(const place *at, struct stat *status)
{
    char path[4096];
    if (at->length == 1 && *at->path == '-') return fstat(at->standard, status) == 0;
    if (at->length >= sizeof path) return false;
    memcpy(path, at->path, at->length);
    path[at->length] = '\0';
    return stat(path, status) == 0;
}

/* Cuts the last part off, "." being above all that has no slash; of "." itself and "/" it is empty. */
static place cut(place *at)
{
    if (at->length == 1 && *at->path == '.') return (place){ ".", 0, -1 };
    size_t end = at->length, begin;
    while (end > 1 && at->path[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && at->path[begin - 1] != '/';)
        begin--;
    const place last = { at->path + begin, end - begin, -1 };
    *at = begin ? (place){ at->path, begin, -1 } : (place){ ".", 1, -1 };
    return last;
}

/* What does not exist yet is the same where its name is, in the same directory. */
static bool same_place(place a, place b, mode_t *mode)
{
    struct stat x, y;
    const bool a_is = find(&a, &x), b_is = find(&b, &y);
    *mode = S_IFREG;
    if (a_is != b_is) return false;
    if (a_is) {
        *mode = x.st_mode;
        return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
    }
    const place a_name = cut(&a), b_name = cut(&b);
    return a_name.length && a_name.length == b_name.length &&
           memcmp(a_name.path, b_name.path, a_name.length) == 0 && same_place(a, b, mode);
}

static int refuse(const named_file *output, const named_file *other, io_error *error)
{
    return io_fail(error, EXIT_USAGE, "%s %s would be written over %s %s", output->option, output->path,
                   other->option, other->path);
}

/* A device keeps nothing that could be written over. */
static int check_output(const named_file *inputs, const named_file *before, const named_file *output,
                        io_error *error)
{
    const place to = { output->path, strlen(output->path), STDOUT_FILENO };
    mode_t mode;
    for (; inputs->option; inputs++) {
        const char *path = inputs->path;
        if (!path) continue;
        const place from = { path, array_file_length(path), STDIN_FILENO };
        if (same_place(to, from, &mode) && S_ISREG(mode)) return refuse(output, inputs, error);
    }
    for (; before < output; before++) {
        if (!before->path) continue;
        const place other = { before->path, strlen(before->path), STDOUT_FILENO };
        const bool twice = strcmp(output->path, "-") == 0 && strcmp(before->path, "-") == 0;
        if (twice || (same_place(to, other, &mode) && !S_ISCHR(mode))) return refuse(output, before, error);
    }
    return 0;
}

int files_check(const named_file *inputs, const named_file *outputs, io_error *error)
{
    int status = 0;
    for (const named_file *output = outputs; output->option && !status; output++)
        if (output->path) status = check_output(inputs, outputs, output, error);
    return status;
}
