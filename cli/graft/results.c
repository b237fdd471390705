/* SPDX-License-Identifier: MIT */
#include "cli/graft/results.h"

#include "io/out_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char first_line[] = "loam experiment graft 1";

/* ---- runs */

int64_t graft_runs(const graft_plan *p) { return 1 + (int64_t)GRAFT_KINDS * p->choice.seeds.count; }
int graft_run_kind(int64_t run) { return run == 0 ? GRAFT_NONE : (int)((run - 1) % GRAFT_KINDS); }
int graft_run_seed(int64_t run) { return run == 0 ? 0 : (int)((run - 1) / GRAFT_KINDS); }

bool graft_run_chosen(const graft_plan *p, int64_t run)
{
    return run == 0 || p->choice.kinds[graft_run_kind(run)];
}

int64_t graft_run_of(const graft_plan *p, int kind, int seed)
{
    (void)p;
    return kind == GRAFT_NONE ? 0 : 1 + (int64_t)seed * GRAFT_KINDS + kind;
}

static int64_t heads_of(const graft_plan *p) { return p->config->layers * p->config->heads_q; }

graft_result graft_result_of(const graft_results *r, int64_t run)
{
    double *x = r->x + run * r->size;
    graft_result of = { .nll = x };
    of.away = of.nll + r->plan->windows;
    of.moved = of.away + 1, of.seconds = of.moved + 1, of.ridge = of.seconds + 1;
    of.temperature = of.ridge + heads_of(r->plan);
    of.negative = of.temperature + heads_of(r->plan);
    of.curve = of.negative + r->plan->config->layers;
    return of;
}

bool graft_finished(const graft_results *r, int64_t run) { return !isnan(*graft_result_of(r, run).nll); }

bool graft_whole(const graft_results *r)
{
    bool whole = true;
    for (int64_t run = 0; run < graft_runs(r->plan); run++)
        whole = whole && (!graft_run_chosen(r->plan, run) || graft_finished(r, run));
    return whole;
}

int graft_results_open(graft_results *r, const graft_plan *p, io_error *error)
{
    const int64_t every = p->choice.steps >= 10 ? p->choice.steps / 10 : 1;
    *r = (graft_results){ .plan = p, .tests = (p->choice.steps + every - 1) / every };
    r->size = p->windows + 3 + 2 * heads_of(p) + p->config->layers + r->tests * GRAFT_CURVE;
    const int64_t count = graft_runs(p) * r->size;
    r->x = calloc((size_t)count, sizeof *r->x);
    for (int64_t i = 0; r->x && i < count; i++)
        r->x[i] = NAN;
    return r->x ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for results");
}

void graft_results_close(graft_results *r)
{
    free(r->x);
    *r = (graft_results){ 0 };
}

/* ---- the file */

static int damaged(const char *path, io_error *error)
{
    return io_fail(error, EXIT_INPUT, "%s is damaged; --restart discards it", path);
}

static int read_runs(graft_results *r, FILE *file, const char *path, io_error *error)
{
    const int64_t runs = graft_runs(r->plan);
    int64_t run;
    char end[8];
    int got;
    while ((got = fscanf(file, "run %" SCNd64, &run)) == 1) {
        if (run < 0 || run >= runs) return damaged(path, error);
        for (int64_t i = 0; i < r->size; i++)
            if (fscanf(file, "%la ", &r->x[run * r->size + i]) != 1) return damaged(path, error);
        if (!graft_finished(r, run)) return damaged(path, error);
    }
    return got == 0 && fscanf(file, "%7s", end) == 1 && strcmp(end, "end") == 0 ? 0 : damaged(path, error);
}

/* A line without its end; false: it is longer, or not there. */
static bool read_line(FILE *file, char *text, size_t size)
{
    if (!fgets(text, (int)size, file)) return false;
    char *end = strchr(text, '\n');
    if (end) *end = '\0';
    return end != NULL;
}

static int read_checked(graft_results *r, FILE *file, const char *path, io_error *error)
{
    char text[sizeof r->line];
    if (!read_line(file, text, sizeof text) || strcmp(text, first_line) != 0 ||
        !read_line(file, text, sizeof text))
        return damaged(path, error);
    if (strcmp(text, r->line) != 0)
        return io_fail(error, EXIT_INPUT,
                       "%s is of a run with another model, text, options or version: --restart discards it",
                       path);
    if (!read_line(file, r->machine, sizeof r->machine)) return damaged(path, error);
    return read_runs(r, file, path, error);
}

int graft_results_load(graft_results *r, const char *path, io_error *error)
{
    FILE *file = fopen(path, "r");
    if (!file && errno == ENOENT) return 0;
    if (!file) return io_fail(error, EXIT_INPUT, "%s: %s", path, strerror(errno));
    const int status = read_checked(r, file, path, error);
    fclose(file);
    return status;
}

int graft_results_save(const graft_results *r, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    fprintf(out_stream(file), "%s\n%s\n%s\n", first_line, r->line, r->machine);
    for (int64_t run = 0; run < graft_runs(r->plan); run++) {
        if (!graft_finished(r, run)) continue;
        fprintf(out_stream(file), "run %" PRId64 "\n", run);
        for (int64_t i = 0; i < r->size; i++)
            fprintf(out_stream(file), "%a\n", r->x[run * r->size + i]);
    }
    fputs("end\n", out_stream(file));
    return out_commit(file, error);
}

/* ---- what is shown */

static double mean_nll(const graft_results *r, int kind, int64_t window)
{
    const int seeds = kind == GRAFT_NONE ? 1 : r->plan->choice.seeds.count;
    double sum = 0;
    for (int seed = 0; seed < seeds; seed++)
        sum += graft_result_of(r, graft_run_of(r->plan, kind, seed)).nll[window];
    return sum / seeds;
}

paired graft_difference(const graft_results *r, int a, int b, int text)
{
    const graft_plan *p = r->plan;
    double *values = calloc((size_t)p->windows, sizeof *values);
    int64_t *scored = calloc((size_t)p->windows, sizeof *scored);
    paired out = { NAN, NAN, 0, 0 };
    for (int64_t n = 0; values && scored && n < p->windows; n++) {
        const bool in = text < 0 || graft_text_of(p, n) == text;
        values[n] = !in ? (double)NAN : mean_nll(r, a, n) - (b < 0 ? 0 : mean_nll(r, b, n));
        scored[n] = p->choice.context;
    }
    if (values && scored) out = paired_of(values, scored, p->windows);
    free(values);
    free(scored);
    return out;
}
