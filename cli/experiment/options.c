/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/experiment/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int experiment_read_list(const char *option, const char *text, int64_t max, number_list *out, io_error *error)
{
    out->count = 0;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        const long long value = strtoll(at, &end, 10);
        if (end == at || errno || value < 1 || value > max || (*end != ',' && *end != '\0') ||
            out->count == EXPERIMENT_LIST || (out->count > 0 && value <= out->items[out->count - 1]))
            return io_fail(error, EXIT_USAGE,
                           "--%s %s: expected at most %d ascending numbers from 1 to %" PRId64
                           ", as in 8,16,32",
                           option, text, EXPERIMENT_LIST, max);
        out->items[out->count++] = value;
        at = end;
        if (*at == '\0') return EXIT_OK;
    }
}

int experiment_parse(int argc, char **argv, const option_row *rows, const char *usage, const char *about,
                     bool *help, io_error *error)
{
    const int status = options_parse(&argc, argv, rows, usage, about, help, error);
    if (status != EXIT_OK || *help || argc == 1) return status;
    return io_fail(error, EXIT_USAGE, "unknown argument %s", argv[1]);
}

int experiment_check_out(const char *path, io_error *error)
{
    if (strlen(path) > 0 && strlen(path) <= EXPERIMENT_OUT) return EXIT_OK;
    return io_fail(error, EXIT_USAGE, "--out: expected a path of 1 to %d characters, not %zu", EXPERIMENT_OUT,
                   strlen(path));
}

int experiment_make_directories(const char *path, io_error *error)
{
    char prefix[EXPERIMENT_PATH];
    for (const char *end = path;;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        snprintf(prefix, sizeof prefix, "%.*s", (int)(end - path), path);
        if (mkdir(prefix, 0777) != 0 && errno != EEXIST)
            return io_fail(error, EXIT_OUTPUT, "%s: %s", prefix, strerror(errno));
        if (*end == '\0') return EXIT_OK;
    }
}
