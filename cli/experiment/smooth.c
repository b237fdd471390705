/* SPDX-License-Identifier: MIT
 * loam experiment smooth: the task of a smooth map seen through noise, with settings chosen on held-out
 * sequences. */
#define _POSIX_C_SOURCE 200809L
#include "cli/experiment/figures.h"
#include "cli/experiment/options.h"
#include "cli/experiment/report.h"
#include "cli/experiment/smooth_task.h"
#include "cli/experiment/tune.h"
#include "cli/names.h"
#include "cli/plot.h"
#include "cli/progress.h"
#include "io/out_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* CHUNK sequences are held out, from number HELD_OUT on: --sequences stays below. */
enum { CHUNK = 8, HELD_OUT = 1 << 30, MAX_INPUTS = 64, MAX_LENGTH = 1 << 14 };

static const char about[] =
    "One smooth map for the whole sequence, seen through noise: each position is predicted from the pairs "
    "before it, and the error is the distance from the map without the noise. The settings of each estimator "
    "are the best of a grid on 8 held-out sequences: bandwidth and ridge of LLA, bandwidth of softmax, ridge "
    "of MesaNet, strength and decays of the delta rules. Scores are RBF; the first channel of a key is 1.\n"
    "Writes smooth.csv, summary.csv and a picture for each number of inputs.";

typedef struct request {
    const char *dims, *backend, *out;
    int64_t length, sequences, seed, threads;
    double noise, scale;
} request;

typedef struct smooth_cell {
    smooth_task task;
    estimate_setup chosen[ESTIMATORS];
    moments sums;
} smooth_cell;

typedef struct smooth_run {
    smooth_cell cells[EXPERIMENT_LIST];
    int cell_count, threads;
    loam_backend backend;
    int64_t sequences;
    const char *out;
} smooth_run;

/* Of CHUNK sequences. */
typedef struct smooth_arrays {
    estimate_batch batch;
    double *truth, *outputs;    /* [CHUNK, length, dim] */
    double *errors[ESTIMATORS]; /* [CHUNK, length] */
} smooth_arrays;

/* ---- the sums of a cell */

static void arrays_close(smooth_arrays *a)
{
    free(a->batch.keys);
    free(a->batch.values);
    free(a->truth);
    free(a->outputs);
    for (int e = 0; e < ESTIMATORS; e++)
        free(a->errors[e]);
}

static int arrays_open(smooth_arrays *a, const smooth_task *task, io_error *error)
{
    const size_t tokens = (size_t)(CHUNK * task->pairs.length), size = tokens * (size_t)task->pairs.dim;
    *a = (smooth_arrays){ .batch = { .task = task->pairs, .hidden = 1 } };
    a->batch.keys = calloc(size, sizeof(double));
    a->batch.values = calloc(size, sizeof(double));
    a->truth = calloc(size, sizeof(double));
    a->outputs = calloc(size, sizeof(double));
    bool whole = a->batch.keys && a->batch.values && a->truth && a->outputs;
    for (int e = 0; e < ESTIMATORS; e++)
        whole &= (a->errors[e] = calloc(tokens, sizeof(double))) != NULL;
    return whole ? EXIT_OK : io_fail(error, EXIT_INTERNAL, "out of memory");
}

static int generate(const smooth_task *task, smooth_arrays *a, int64_t first, int64_t count, io_error *error)
{
    const int64_t size = task->pairs.length * task->pairs.dim;
    int status = EXIT_OK;
    a->batch.first = first, a->batch.count = count;
    for (int64_t n = 0; n < count && status == EXIT_OK; n++)
        status = smooth_generate(task, first + n, a->batch.keys + n * size, a->truth + n * size,
                                 a->batch.values + n * size, error);
    return status;
}

static int choose_settings(smooth_cell *cell, smooth_arrays *a, progress *bar, io_error *error)
{
    int status = generate(&cell->task, a, HELD_OUT, CHUNK, error);
    for (int e = 0; e < ESTIMATORS && status == EXIT_OK; e++) {
        status = tune_estimator((estimator)e, &a->batch, a->truth, &cell->chosen[e], error);
        progress_add(bar, CHUNK);
    }
    return status;
}

/* Errors are means over the value channels, against the map without noise. */
static int add_chunk(smooth_cell *cell, smooth_arrays *a, io_error *error)
{
    const int64_t length = cell->task.pairs.length;
    estimate_batch truth = a->batch;
    truth.values = a->truth;
    for (int e = 0; e < ESTIMATORS; e++) {
        const int status = estimate_outputs(&cell->chosen[e], (estimator)e, &a->batch, a->outputs, error);
        if (status != EXIT_OK) return status;
        estimate_errors(&truth, a->outputs, a->errors[e]);
        for (int64_t i = 0; i < a->batch.count * length; i++)
            a->errors[e][i] /= (double)cell->task.pairs.dim;
    }
    for (int64_t n = 0; n < a->batch.count; n++) {
        const double *rows[ESTIMATORS];
        for (int e = 0; e < ESTIMATORS; e++)
            rows[e] = a->errors[e] + n * length;
        moments_add(&cell->sums, rows);
    }
    return EXIT_OK;
}

static int fill_cell(const smooth_run *run, smooth_cell *cell, smooth_arrays *a, progress *bar,
                     io_error *error)
{
    int status = choose_settings(cell, a, bar, error);
    while (status == EXIT_OK && cell->sums.sequences < run->sequences) {
        const int64_t done = cell->sums.sequences, left = run->sequences - done;
        status = generate(&cell->task, a, done, left < CHUNK ? left : CHUNK, error);
        if (status == EXIT_OK) status = add_chunk(cell, a, error);
        progress_add(bar, a->batch.count);
    }
    return status;
}

static int fill_cells(smooth_run *run, io_error *error)
{
    int status = EXIT_OK;
    progress bar;
    progress_begin(&bar, "experiment", run->cell_count * (run->sequences + CHUNK * ESTIMATORS));
    for (int i = 0; i < run->cell_count && status == EXIT_OK; i++) {
        smooth_arrays a;
        smooth_cell *cell = &run->cells[i];
        status = arrays_open(&a, &cell->task, error);
        if (status == EXIT_OK) status = moments_create(&cell->sums, cell->task.pairs.length, error);
        if (status == EXIT_OK) status = fill_cell(run, cell, &a, &bar, error);
        arrays_close(&a);
    }
    progress_end(&bar);
    return status;
}

/* ---- results */

static int64_t inputs_of(const smooth_cell *cell) { return cell->task.pairs.dim - 1; }

/* Over the last quarter of the positions. */
static double late_error(const smooth_cell *cell, estimator which)
{
    const int64_t length = cell->sums.length;
    return moments_range(&cell->sums, which, length - (length + 3) / 4, length);
}

typedef struct setting {
    const char *name;
    double value;
} setting;

/* What was chosen for an estimator: two settings at most. */
static int chosen_settings(const smooth_cell *cell, estimator which, setting out[2])
{
    const estimate_setup *setup = &cell->chosen[which];
    int count = 0;
    if (which == ESTIMATOR_LLA || which == ESTIMATOR_SOFTMAX)
        out[count++] = (setting){ "bandwidth", tune_bandwidth(setup, cell->task.pairs.dim) };
    if (which == ESTIMATOR_LLA) out[count++] = (setting){ "ridge", setup->ridge };
    if (which == ESTIMATOR_MESA) out[count++] = (setting){ "ridge", setup->mesa_ridge };
    if (which >= ESTIMATOR_DELTA && which <= ESTIMATOR_KDA)
        out[count++] = (setting){ "strength", setup->strength };
    if (which == ESTIMATOR_GATED_DELTA || which == ESTIMATOR_KDA)
        out[count++] = (setting){ "forget", setup->forget };
    return count;
}

static void write_settings(FILE *out, const smooth_cell *cell, estimator which)
{
    setting settings[2];
    const int count = chosen_settings(cell, which, settings);
    for (int i = 0; i < count; i++)
        fprintf(out, "%s%s %.3g", i ? ", " : "", settings[i].name, settings[i].value);
}

static int write_positions(const smooth_run *run, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    fputs("d,estimator,position,mse,se,low95,high95\n", out_stream(file));
    for (int i = 0; i < run->cell_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "%" PRId64, inputs_of(&run->cells[i]));
        report_curves(out_stream(file), name, &run->cells[i].sums);
    }
    return out_commit(file, error);
}

static int write_summary(const smooth_run *run, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    FILE *out = out_stream(file);
    fputs("d,estimator,sequences,mse,se,mse_late,ratio_to_lla,ratio_se,settings\n", out);
    for (int i = 0; i < run->cell_count; i++)
        for (int e = 0; e < ESTIMATORS; e++) {
            const smooth_cell *cell = &run->cells[i];
            const mean_error total = moments_total(&cell->sums, (estimator)e);
            const mean_error ratio = moments_ratio(&cell->sums, (estimator)e, ESTIMATOR_LLA);
            fprintf(out, "%" PRId64 ",%s,%" PRId64 ",%.9g,%.9g,%.9g,%.9g,%.9g,\"", inputs_of(cell),
                    estimator_names[e], run->sequences, total.mean, total.error,
                    late_error(cell, (estimator)e), ratio.mean, ratio.error);
            write_settings(out, cell, (estimator)e);
            fputs("\"\n", out);
        }
    return out_commit(file, error);
}

static void write_row(FILE *out, const smooth_cell *cell, estimator which)
{
    const mean_error total = moments_total(&cell->sums, which);
    const mean_error ratio = moments_ratio(&cell->sums, which, ESTIMATOR_LLA);
    fprintf(out, "%4" PRId64 "  %-16s  %8.3g ± %-8.1g  %8.3g  %8.3g ± %-8.1g  ", inputs_of(cell),
            figure_names[which], total.mean, total.error, late_error(cell, which), ratio.mean, ratio.error);
    write_settings(out, cell, which);
    fputc('\n', out);
}

static int write_table(const smooth_run *run, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, "-", error);
    if (status != EXIT_OK) return status;
    FILE *out = out_stream(file);
    fprintf(
        out,
        "\nMean squared error of a value channel, whose variance is 1; %" PRId64 " sequences of %" PRId64
        " (value ± standard error)\n%4s  %-16s  %-19s  %8s  %-19s  settings, chosen on %d other sequences\n",
        run->sequences, run->cells[0].task.pairs.length, "d", "", "all positions", "last 1/4", "over LLA",
        CHUNK);
    for (int i = 0; i < run->cell_count; i++)
        for (int e = 0; e < ESTIMATORS; e++)
            write_row(out, &run->cells[i], (estimator)e);
    return out_commit(file, error);
}

static int write_pictures(const smooth_run *run, io_error *error)
{
    int status = EXIT_OK;
    for (int i = 0; i < run->cell_count && status == EXIT_OK; i++) {
        const smooth_cell *cell = &run->cells[i];
        char path[EXPERIMENT_PATH], title[64];
        snprintf(path, sizeof path, "%s/smooth-d%" PRId64 ".svg", run->out, inputs_of(cell));
        snprintf(title, sizeof title, "smooth map of %" PRId64 " input%s, noise %.3g", inputs_of(cell),
                 inputs_of(cell) == 1 ? "" : "s", cell->task.pairs.noise);
        const figure_text text = { title, "squared error / variance of the map", true };
        status = figure_positions(&cell->sums, &text, path, error);
    }
    return status;
}

static int write_results(const smooth_run *run, io_error *error)
{
    char path[EXPERIMENT_PATH];
    snprintf(path, sizeof path, "%s/smooth.csv", run->out);
    int status = write_positions(run, path, error);
    snprintf(path, sizeof path, "%s/summary.csv", run->out);
    if (status == EXIT_OK) status = write_summary(run, path, error);
    if (status == EXIT_OK) status = write_pictures(run, error);
    if (status == EXIT_OK) status = write_table(run, error);
    return status;
}

/* ---- the command */

static int read_request(int argc, char **argv, request *r, bool *help, io_error *error)
{
    *r = (request){ .dims = "2,4,8",
                    .backend = "cpu",
                    .out = "out/smooth",
                    .length = 512,
                    .sequences = 48,
                    .seed = 1,
                    .noise = 0.5,
                    .scale = 2 };
    const option_row rows[] = {
        { "d", OPTION_TEXT, &r->dims, 0, 0, "LIST", "numbers of inputs (2,4,8); keys have one channel more" },
        { "length", OPTION_INT, &r->length, 2, MAX_LENGTH, "N", "positions of a sequence (512)" },
        { "sequences", OPTION_INT, &r->sequences, 2, 1e9, "N", "sequences for each number of inputs (48)" },
        { "noise", OPTION_REAL, &r->noise, 0, 1e6, "X", "standard deviation of the values' noise (0.5)" },
        { "scale", OPTION_REAL, &r->scale, 1e-3, 1e6, "X",
          "distance over which the map changes, in standard deviations of an input (2)" },
        { "seed", OPTION_INT, &r->seed, 0, 9e15, "N", "of all random numbers (1)" },
        { "backend", OPTION_TEXT, &r->backend, 0, 0, "cpu|cuda|reference",
          "in float32 on the CPU (cpu, or auto) or a GPU (cuda), or in float64 (reference, slow)" },
        { "threads", OPTION_INT, &r->threads, 1, 4096, "N", "all by default; results do not depend on it" },
        { "out", OPTION_TEXT, &r->out, 0, 0, "DIR", "where the results go (out/smooth)" },
        { 0 },
    };
    return experiment_parse(argc, argv, rows, "loam experiment smooth [options]", about, help, error);
}

static void make_cell(const smooth_run *run, const request *r, int64_t inputs, smooth_cell *cell)
{
    cell->task = (smooth_task){ { inputs + 1, 0, r->length, r->noise, (uint64_t)r->seed }, r->scale };
    for (int e = 0; e < ESTIMATORS; e++)
        cell->chosen[e] = (estimate_setup){ .score = LOAM_RBF,
                                            .bandwidth = 1,
                                            .ridge_unit = LOAM_RIDGE_MAX,
                                            .mesa_ridge = 1,
                                            .strength = 1,
                                            .forget = 1,
                                            .backend = run->backend,
                                            .threads = run->threads };
}

static int make_run(const request *r, smooth_run *run, io_error *error)
{
    number_list dims;
    int backend = 0;
    int status = experiment_check_out(r->out, error);
    if (status == EXIT_OK) status = names_choose("backend", r->backend, names_backend, &backend, error);
    if (status == EXIT_OK) status = experiment_read_list("d", r->dims, MAX_INPUTS, &dims, error);
    if (status != EXIT_OK) return status;
    *run = (smooth_run){ .cell_count = dims.count,
                         .threads = r->threads ? (int)r->threads : loam_max_threads(),
                         .backend = (loam_backend)backend,
                         .sequences = r->sequences,
                         .out = r->out };
    for (int i = 0; i < dims.count; i++)
        make_cell(run, r, dims.items[i], &run->cells[i]);
    return EXIT_OK;
}

static int smooth(const request *r, io_error *error)
{
    smooth_run run = { .cell_count = 0 };
    int status = make_run(r, &run, error);
    if (status == EXIT_OK) status = plot_check("smooth.svg", error);
    if (status == EXIT_OK) status = experiment_make_directories(r->out, error);
    if (status != EXIT_OK) return status;
    status = fill_cells(&run, error);
    if (status == EXIT_OK) status = write_results(&run, error);
    if (status != EXIT_OK) rmdir(r->out); /* It stays where there is something in it. */
    for (int i = 0; i < run.cell_count; i++)
        moments_destroy(&run.cells[i].sums);
    return status;
}

int experiment_smooth(int argc, char **argv, const char **out, io_error *error)
{
    request r;
    bool help = false;
    const int status = read_request(argc, argv, &r, &help, error);
    if (status != EXIT_OK || help) return status;
    *out = r.out;
    return smooth(&r, error);
}
