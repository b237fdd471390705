/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/experiment/figures.h"
#include "cli/experiment/options.h"
#include "cli/experiment/report.h"
#include "cli/experiment/sweep.h"
#include "cli/names.h"
#include "cli/plot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEFAULT_SEQUENCES = 48, PAPER_SEQUENCES = 10000 };

static const char about[] =
    "The test-time regression task of Zuo et al. 2025 (section 4): in each segment of a sequence the values "
    "are a new linear map of keys from a new cone, and each position is predicted from the pairs seen so "
    "far. Compares LLA, softmax attention, MesaNet, linear attention, DeltaNet, Gated DeltaNet and KDA with "
    "fixed decays and a random guess.\n"
    "Writes regression.csv, summary.csv and pictures: the error by position for each d, segment size and "
    "setting, and the others' error over LLA's for each segment size and setting. A run that was killed "
    "continues when it is started again with the same options.";

static const int64_t default_dims[] = { 8, 16, 32, 64, 0 };
static const int64_t default_segments[] = { 64, 256, 512, 1024, 0 };
static const int64_t paper_dims[] = { 8, 16, 32, 64, 128, 0 };
static const int64_t paper_segments[] = { 8, 16, 32, 64, 128, 256, 512, 1024, 0 };

typedef struct request {
    const char *dims, *segments, *own, *score, *ridge_unit, *backend, *out;
    int64_t length, sequences, seed, threads; /* sequences, threads: 0 is the default */
    double noise, bandwidth, ridge, mesa_ridge;
    bool paper, resume, restart;
} request;

static int read_request(int argc, char **argv, request *r, bool *help, io_error *error)
{
    *r = (request){ .own = "both",
                    .score = "dot",
                    .ridge_unit = "max",
                    .backend = "cpu",
                    .out = "out/regression",
                    .length = 1024,
                    .seed = 1,
                    .bandwidth = 1,
                    .ridge = 0.1,
                    .mesa_ridge = 0.01 };
    const option_row rows[] = {
        { "d", OPTION_TEXT, &r->dims, 0, 0, "LIST", "dimensions of keys and values (8,16,32,64)" },
        { "segment", OPTION_TEXT, &r->segments, 0, 0, "LIST", "segment sizes (64,256,512,1024)" },
        { "length", OPTION_INT, &r->length, 1, TASK_MAX_LENGTH, "N", "positions of a sequence (1024)" },
        { "sequences", OPTION_INT, &r->sequences, 2, 1e9, "N", "sequences per d and segment size (48)" },
        { "own", OPTION_TEXT, &r->own, 0, 0, "visible|hidden|both",
          "whether a position sees its own pair: visible is the paper's task, hidden the harder one (both)" },
        { "noise", OPTION_REAL, &r->noise, 0, 1e6, "X", "standard deviation of the values' noise (0)" },
        { "score", OPTION_TEXT, &r->score, 0, 0, "dot|rbf", "score of LLA and softmax (dot)" },
        { "bandwidth", OPTION_REAL, &r->bandwidth, 1e-6, 1e6, "X", "bandwidth in units of sqrt(d) (1)" },
        { "ridge", OPTION_REAL, &r->ridge, 0, 1e30, "X", "ridge of LLA (0.1)" },
        { "ridge-unit", OPTION_TEXT, &r->ridge_unit, 0, 0, "max|normalised|trace",
          "what the ridge is relative to (max: as in Algorithm 1 of the paper)" },
        { "mesa-ridge", OPTION_REAL, &r->mesa_ridge, 1e-9, 1e30, "X", "ridge of MesaNet (0.01)" },
        { "seed", OPTION_INT, &r->seed, 0, 9e15, "N", "of all random numbers (1)" },
        { "backend", OPTION_TEXT, &r->backend, 0, 0, "cpu|cuda|reference",
          "in float32 on the CPU (cpu, or auto) or a GPU (cuda), or in float64 (reference, slow)" },
        { "threads", OPTION_INT, &r->threads, 1, 4096, "N", "all by default; results do not depend on it" },
        { "out", OPTION_TEXT, &r->out, 0, 0, "DIR", "where the results go (out/regression)" },
        { "paper", OPTION_FLAG, &r->paper, 0, 0, NULL,
          "the paper's sweep: d 8..128, segments 8..1024, 10000 sequences; some hours" },
        { "resume", OPTION_FLAG, &r->resume, 0, 0, NULL, "insist on a killed run to continue" },
        { "restart", OPTION_FLAG, &r->restart, 0, 0, NULL, "discard what a killed run left" },
        { 0 },
    };
    return experiment_parse(argc, argv, rows, "loam experiment regression [options]", about, help, error);
}

/* The default list, as far as it fits. */
static number_list take_list(const int64_t *items, int64_t max)
{
    number_list out = { .count = 0 };
    for (; *items && *items <= max; items++)
        out.items[out.count++] = *items;
    return out;
}

static int read_lists(const request *r, number_list *dims, number_list *segments, io_error *error)
{
    int status = EXIT_OK;
    if (r->dims)
        status = experiment_read_list("d", r->dims, LOAM_MAX_DIM, dims, error);
    else
        *dims = take_list(r->paper ? paper_dims : default_dims, LOAM_MAX_DIM);
    if (status != EXIT_OK) return status;
    if (r->segments) return experiment_read_list("segment", r->segments, r->length, segments, error);
    *segments = take_list(r->paper ? paper_segments : default_segments, r->length);
    if (segments->count == 0) *segments = (number_list){ { r->length }, 1 };
    return EXIT_OK;
}

enum { OWN_VISIBLE, OWN_HIDDEN, OWN_BOTH };

static const char *own_name(int index)
{
    static const char *const names[] = { "visible", "hidden", "both", NULL };
    return names[index];
}

static int read_setup(const request *r, estimate_setup *setup, int *own, io_error *error)
{
    int score = 0, unit = 0, backend = 0;
    int status = names_choose("score", r->score, names_score, &score, error);
    if (status == EXIT_OK) status = names_choose("ridge-unit", r->ridge_unit, names_ridge_unit, &unit, error);
    if (status == EXIT_OK) status = names_choose("backend", r->backend, names_backend, &backend, error);
    if (status == EXIT_OK) status = names_choose("own", r->own, own_name, own, error);
    if (status != EXIT_OK) return status;
    *setup = (estimate_setup){
        .score = (loam_score)score,
        .bandwidth = r->bandwidth,
        .ridge = r->ridge,
        .ridge_unit = (loam_ridge_unit)unit,
        .mesa_ridge = r->mesa_ridge,
        .strength = 1,
        .forget = 1,
        .backend = (loam_backend)backend,
        .threads = r->threads ? (int)r->threads : loam_max_threads(),
    };
    return EXIT_OK;
}

static int make_cells(const request *r, int own, sweep *s, io_error *error)
{
    number_list dims, segments;
    int status = read_lists(r, &dims, &segments, error);
    if (status != EXIT_OK) return status;
    s->cells = calloc((size_t)(2 * dims.count * segments.count), sizeof *s->cells);
    if (!s->cells) return io_fail(error, EXIT_INTERNAL, "out of memory");
    for (int hidden = own == OWN_HIDDEN; hidden <= (own != OWN_VISIBLE); hidden++)
        for (int i = 0; i < dims.count; i++)
            for (int j = 0; j < segments.count && status == EXIT_OK; j++) {
                sweep_cell *cell = &s->cells[s->cell_count++];
                cell->task = (experiment_task){ dims.items[i], segments.items[j], r->length, r->noise,
                                                (uint64_t)r->seed };
                cell->hidden = hidden;
                status = task_check(&cell->task, error);
            }
    return status;
}

static int write_results(const sweep *s, const char *out, io_error *error)
{
    char path[EXPERIMENT_PATH];
    snprintf(path, sizeof path, "%s/regression.csv", out);
    int status = report_positions(s, path, error);
    snprintf(path, sizeof path, "%s/summary.csv", out);
    if (status == EXIT_OK) status = report_summary(s, path, error);
    if (status == EXIT_OK) status = figures_write(s, out, error);
    if (status == EXIT_OK) status = report_table(s, error);
    return status;
}

static int run(const request *r, sweep *s, const char *state, io_error *error)
{
    s->directory = state;
    s->sequences = r->sequences ? r->sequences : r->paper ? PAPER_SEQUENCES : DEFAULT_SEQUENCES;
    s->start = r->restart ? SWEEP_RESTART : r->resume ? SWEEP_RESUME : SWEEP_CONTINUE;
    int status = plot_check("figure.svg", error);
    if (status == EXIT_OK) status = experiment_make_directories(state, error);
    if (status == EXIT_OK) status = sweep_run(s, error);
    if (status == EXIT_OK) status = write_results(s, r->out, error);
    if (status == EXIT_OK) sweep_forget(s);
    /* Both stay where there is something in them. */
    rmdir(state);
    if (status != EXIT_OK) rmdir(r->out);
    return status;
}

static int regression(const request *r, io_error *error)
{
    sweep s = { .cell_count = 0 };
    int own = 0;
    if (r->resume && r->restart)
        return io_fail(error, EXIT_USAGE, "--resume and --restart contradict each other");
    int status = experiment_check_out(r->out, error);
    if (status == EXIT_OK) status = read_setup(r, &s.setup, &own, error);
    if (status == EXIT_OK) status = make_cells(r, own, &s, error);
    if (status == EXIT_OK) {
        char state[EXPERIMENT_PATH];
        snprintf(state, sizeof state, "%s/state", r->out);
        status = run(r, &s, state, error);
    }
    for (int64_t i = 0; i < s.cell_count; i++)
        moments_destroy(&s.cells[i].sums);
    free(s.cells);
    return status;
}

int experiment_regression(int argc, char **argv, const char **out, io_error *error)
{
    request r;
    bool help = false;
    const int status = read_request(argc, argv, &r, &help, error);
    if (status != EXIT_OK || help) return status;
    *out = r.out;
    return regression(&r, error);
}
