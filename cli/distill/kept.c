/* SPDX-License-Identifier: MIT */
#include "cli/distill/kept.h"

#include "cli/distill/arms.h"
#include "io/out_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char first_line[] = "loam experiment distill 2";

/* ---- writing */

static void write_numbers(FILE *out, const double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        fprintf(out, "%a%c", x[i], i % 8 == 7 || i + 1 == count ? '\n' : ' ');
}

int kept_save(const cells *c, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    FILE *out = out_stream(file);
    fprintf(out, "%s\n%s\n%016" PRIx64 "\n", first_line, c->line, c->checksum);
    write_numbers(out, c->rises, c->layers * STRATEGY_POINTS);
    write_numbers(out, c->speeds[0], 2 * SPEEDS);
    for (int i = 0; i < c->count; i++) {
        const cell *one = &c->list[i];
        if (!cell_done(one)) continue;
        fprintf(out, "cell\t%s\t%s\t%s\t%" PRId64 "\n", distill_arm_at(one->arm)->name,
                one->strategy < 0 ? "none" : strategy_name(one->strategy),
                one->loss < 0 ? "none" : course_loss(one->loss), one->seed);
        write_numbers(out, one->nll, cell_numbers(c));
    }
    fputs("end\n", out);
    return out_commit(file, error);
}

/* ---- reading: false where a line is not as it was written */

static bool read_line(FILE *in, char *line, size_t size)
{
    if (!fgets(line, (int)size, in)) return false;
    char *const end = strchr(line, '\n');
    if (end) *end = '\0';
    return end != NULL;
}

static bool read_numbers(FILE *in, double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (fscanf(in, "%la ", &x[i]) != 1) return false;
    return true;
}

/* Numbers that are not yet known stay as they are. */
static bool read_known(FILE *in, double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double value;
        if (fscanf(in, "%la ", &value) != 1) return false;
        if (!isnan(value)) x[i] = value;
    }
    return true;
}

typedef const char *word_at(int index);

/* -2: it is none of them; -1: "none" */
static int find(word_at *word, const char *name)
{
    if (strcmp(name, "none") == 0) return -1;
    for (int i = 0; word(i); i++)
        if (strcmp(word(i), name) == 0) return i;
    return -2;
}

static bool read_cell(cells *c, FILE *in)
{
    char arm[32], name[32], loss[32];
    int64_t seed;
    if (fscanf(in, "\t%31[^\t]\t%31[^\t]\t%31[^\t]\t%" SCNd64, arm, name, loss, &seed) != 4) return false;
    const int how = find(strategy_name, name), trained_by = find(course_loss, loss);
    if (distill_arm_find(arm) < 0 || how < -1 || trained_by < -1) return false;
    cell *const one = cells_take(c, distill_arm_find(arm), how, trained_by, seed);
    return one && read_numbers(in, one->nll, cell_numbers(c)) && cell_done(one);
}

static bool read_rest(cells *c, FILE *in)
{
    char word[8];
    if (fscanf(in, "%" SCNx64, &c->checksum) != 1 || !read_known(in, c->rises, c->layers * STRATEGY_POINTS) ||
        !read_known(in, c->speeds[0], 2 * SPEEDS))
        return false;
    while (fscanf(in, "%7s", word) == 1) {
        if (strcmp(word, "end") == 0) return true;
        if (strcmp(word, "cell") != 0 || !read_cell(c, in)) return false;
    }
    return false;
}

static int read_checked(cells *c, FILE *in, const char *path, io_error *error)
{
    char line[sizeof c->line];
    bool good = read_line(in, line, sizeof line) && strcmp(line, first_line) == 0 &&
                read_line(in, line, sizeof line);
    if (good && strncmp(line, c->line, c->bound > 0 ? c->bound : sizeof line) != 0)
        return io_fail(
            error, EXIT_INPUT,
            "%s is of a run with another model, text, machine, version or other options: --restart "
            "discards it",
            path);
    memcpy(c->line, line, sizeof line);
    good = good && read_rest(c, in);
    return good ? 0 : io_fail(error, EXIT_INPUT, "%s is damaged; --restart discards it", path);
}

int kept_load(cells *c, const char *path, io_error *error)
{
    FILE *in = fopen(path, "r");
    if (!in && errno == ENOENT) return 0;
    if (!in) return io_fail(error, EXIT_INPUT, "%s: %s", path, strerror(errno));
    const int status = read_checked(c, in, path, error);
    fclose(in);
    return status;
}
