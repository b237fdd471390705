/* SPDX-License-Identifier: MIT */
#include "cli/experiment/state.h"

#include "io/out_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char first_line[] = "loam experiment state 1\n";

enum { MAX_LINE = 1024 };

static uint64_t mix(uint64_t sum, const void *data, size_t size)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ byte[i]) * 1099511628211u;
    return sum;
}

/* FNV-1a, over the bytes as they lie in memory. */
static uint64_t checksum(const moments *m)
{
    const uint64_t sum = mix(14695981039346656037u, &m->sequences, sizeof m->sequences);
    return mix(sum, m->sums, m->count * sizeof *m->sums);
}

int state_save(const char *path, const char *inputs, const moments *m, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    fprintf(out_stream(file), "%s%s\n%" PRId64 " %zu %016" PRIx64 "\n", first_line, inputs, m->sequences,
            m->count, checksum(m));
    fwrite(m->sums, sizeof *m->sums, m->count, out_stream(file));
    return out_commit(file, error);
}

static int damaged(const char *path, io_error *error)
{
    return io_fail(error, EXIT_INPUT, "%s is damaged; --restart discards it", path);
}

static int load_sums(FILE *file, const char *path, moments *m, io_error *error)
{
    char line[MAX_LINE];
    size_t count;
    uint64_t sum;
    if (!fgets(line, sizeof line, file) ||
        sscanf(line, "%" SCNd64 " %zu %" SCNx64, &m->sequences, &count, &sum) != 3 || m->sequences < 0 ||
        count != m->count)
        return damaged(path, error);
    if (fread(m->sums, sizeof *m->sums, count, file) != count || fgetc(file) != EOF || ferror(file) ||
        checksum(m) != sum)
        return damaged(path, error);
    return EXIT_OK;
}

static int load_checked(FILE *file, const char *path, const char *inputs, moments *m, io_error *error)
{
    char line[MAX_LINE];
    if (!fgets(line, sizeof line, file) || strcmp(line, first_line) != 0 || !fgets(line, sizeof line, file))
        return damaged(path, error);
    line[strcspn(line, "\n")] = '\0';
    if (strcmp(line, inputs) != 0)
        return io_fail(error, EXIT_INPUT,
                       "%s is from a run with other options, kernels or version: --restart discards it",
                       path);
    return load_sums(file, path, m, error);
}

int state_load(const char *path, const char *inputs, moments *m, bool *found, io_error *error)
{
    FILE *file = fopen(path, "rb");
    *found = file != NULL;
    if (!file && errno == ENOENT) return EXIT_OK;
    if (!file) return io_fail(error, EXIT_INPUT, "%s: %s", path, strerror(errno));
    const int status = load_checked(file, path, inputs, m, error);
    fclose(file);
    return status;
}
