/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/experiment/sweep.h"

#include "cli/experiment/state.h"
#include "cli/progress.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Sequences between two looks at the clock, and seconds between two state files of a cell. */
enum { CHUNK = 8 };
static const double save_seconds = 2;

typedef struct chunk {
    estimate_batch batch;
    double *outputs;            /* [CHUNK, length, dim] */
    double *errors[ESTIMATORS]; /* [CHUNK, length] each */
} chunk;

static double now(void)
{
    struct timespec time;
    return clock_gettime(CLOCK_MONOTONIC, &time) == 0 ? (double)time.tv_sec + 1e-9 * (double)time.tv_nsec : 0;
}

static const char *own_name(const sweep_cell *cell) { return cell->hidden ? "hidden" : "visible"; }

static void state_path(const sweep *s, const sweep_cell *cell, char *path, size_t size)
{
    snprintf(path, size, "%s/d%" PRId64 "-S%" PRId64 "-%s", s->directory, cell->task.dim, cell->task.segment,
             own_name(cell));
}

static int describe_inputs(const sweep *s, const sweep_cell *cell, char *text, size_t size, io_error *error)
{
    const experiment_task *task = &cell->task;
    const estimate_setup *setup = &s->setup;
    const estimate_batch batch = { .task = *task, .count = CHUNK, .hidden = cell->hidden };
    char kernels[512];
    const int status = estimate_kernels(setup, &batch, kernels, sizeof kernels, error);
    if (status == EXIT_OK)
        snprintf(text, size,
                 "d %" PRId64 " S %" PRId64 " L %" PRId64 " own %s sequences %" PRId64 " seed %" PRIu64
                 " noise %.17g score %d bandwidth %.17g ridge %.17g unit %d mesa %.17g kernels %s loam %s",
                 task->dim, task->segment, task->length, own_name(cell), s->sequences, task->seed,
                 task->noise, (int)setup->score, setup->bandwidth, setup->ridge, (int)setup->ridge_unit,
                 setup->mesa_ridge, kernels, loam_version());
    return status;
}

static void chunk_close(chunk *c)
{
    free(c->batch.keys);
    free(c->batch.values);
    free(c->outputs);
    for (int e = 0; e < ESTIMATORS; e++)
        free(c->errors[e]);
}

static int chunk_open(chunk *c, const sweep_cell *cell, io_error *error)
{
    const size_t tokens = (size_t)(CHUNK * cell->task.length), size = tokens * (size_t)cell->task.dim;
    *c = (chunk){ .batch = { .task = cell->task, .hidden = cell->hidden } };
    c->batch.keys = calloc(size, sizeof(double));
    c->batch.values = calloc(size, sizeof(double));
    c->outputs = calloc(size, sizeof(double));
    bool whole = c->batch.keys && c->batch.values && c->outputs;
    for (int e = 0; e < ESTIMATORS; e++)
        whole &= (c->errors[e] = calloc(tokens, sizeof(double))) != NULL;
    if (whole) return EXIT_OK;
    chunk_close(c);
    return io_fail(error, EXIT_INTERNAL, "out of memory");
}

static int chunk_run(const sweep *s, chunk *c, moments *sums, io_error *error)
{
    int status = estimate_generate(&c->batch, s->setup.threads, error);
    for (int e = 0; e < ESTIMATORS && status == EXIT_OK; e++) {
        status = estimate_outputs(&s->setup, (estimator)e, &c->batch, c->outputs, error);
        if (status == EXIT_OK) estimate_errors(&c->batch, c->outputs, c->errors[e]);
    }
    for (int64_t n = 0; n < c->batch.count && status == EXIT_OK; n++) {
        const double *rows[ESTIMATORS];
        for (int e = 0; e < ESTIMATORS; e++)
            rows[e] = c->errors[e] + n * sums->length;
        moments_add(sums, rows);
    }
    return status;
}

/* About proportional to the time of a sequence. */
static int64_t cost_of(const sweep_cell *cell)
{
    const int64_t d = cell->task.dim;
    return d * (d + 16);
}

static int cell_fill(const sweep *s, sweep_cell *cell, chunk *c, progress *bar, io_error *error)
{
    char path[4096], inputs[1024];
    state_path(s, cell, path, sizeof path);
    int status = describe_inputs(s, cell, inputs, sizeof inputs, error);
    double saved = now();
    while (status == EXIT_OK && cell->sums.sequences < s->sequences) {
        const int64_t left = s->sequences - cell->sums.sequences;
        c->batch.first = cell->sums.sequences;
        c->batch.count = left < CHUNK ? left : CHUNK;
        status = chunk_run(s, c, &cell->sums, error);
        if (status == EXIT_OK && (left <= CHUNK || now() - saved >= save_seconds)) {
            status = state_save(path, inputs, &cell->sums, error);
            saved = now();
        }
        progress_add(bar, c->batch.count * cost_of(cell));
    }
    return status;
}

static int load_cell(const sweep *s, sweep_cell *cell, bool *found, io_error *error)
{
    char path[4096], inputs[1024];
    int status = moments_create(&cell->sums, cell->task.length, error);
    if (status == EXIT_OK) status = describe_inputs(s, cell, inputs, sizeof inputs, error);
    if (status != EXIT_OK) return status;
    state_path(s, cell, path, sizeof path);
    return state_load(path, inputs, &cell->sums, found, error);
}

/* Brings back what earlier runs did; *work is what is left. */
static int sweep_begin(const sweep *s, int64_t *work, io_error *error)
{
    bool any = false;
    *work = 0;
    if (s->start == SWEEP_RESTART) sweep_forget(s);
    for (int64_t i = 0; i < s->cell_count; i++) {
        bool found;
        const int status = load_cell(s, &s->cells[i], &found, error);
        if (status != EXIT_OK) return status;
        any |= found;
        *work += (s->sequences - s->cells[i].sums.sequences) * cost_of(&s->cells[i]);
    }
    if (s->start == SWEEP_RESUME && !any)
        return io_fail(error, EXIT_INPUT, "--resume: %s holds no run to continue", s->directory);
    return EXIT_OK;
}

int sweep_run(sweep *s, io_error *error)
{
    int64_t work;
    int status = sweep_begin(s, &work, error);
    if (status != EXIT_OK) return status;
    progress bar;
    progress_begin(&bar, "experiment", work);
    for (int64_t i = 0; i < s->cell_count && status == EXIT_OK; i++) {
        sweep_cell *cell = &s->cells[i];
        chunk c;
        if (cell->sums.sequences == s->sequences) continue;
        status = chunk_open(&c, cell, error);
        if (status != EXIT_OK) break;
        status = cell_fill(s, cell, &c, &bar, error);
        chunk_close(&c);
    }
    progress_end(&bar);
    return status;
}

/* What a run killed while it wrote a state file has left. */
static void remove_temporaries(const char *directory)
{
    DIR *entries = opendir(directory);
    if (!entries) return;
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        const size_t length = strlen(entry->d_name);
        if (strncmp(entry->d_name, ".loam-", 6) == 0 && strcmp(entry->d_name + length - 4, ".tmp") == 0)
            unlinkat(dirfd(entries), entry->d_name, 0);
    }
    closedir(entries);
}

void sweep_forget(const sweep *s)
{
    char path[4096];
    for (int64_t i = 0; i < s->cell_count; i++) {
        state_path(s, &s->cells[i], path, sizeof path);
        unlink(path);
    }
    remove_temporaries(s->directory);
}
