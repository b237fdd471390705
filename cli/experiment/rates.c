/* SPDX-License-Identifier: MIT
 * loam experiment rates: how fast the errors of local fits fall with the number of pairs. */
#define _POSIX_C_SOURCE 200809L
#include "cli/experiment/options.h"
#include "cli/experiment/rates_report.h"
#include "cli/names.h"
#include "cli/plot.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

enum { LEAST_PAIRS = 64, LEAST_QUERIES = 1024, MOST_REPETITIONS = 1000 };

static const char about[] =
    "Propositions 2.1 and 2.2 of Zuo et al. 2025, measured: n pairs (x, f(x) + noise), x uniform in D = [0, "
    "1]^d, "
    "f(x) = sum over channels of 3 x + 0.7 sin(2 pi x), RBF scores. The error is the mean squared distance "
    "from "
    "f over queries uniform in D, at the bandwidth that has the least error; the slope of its logarithm on "
    "log n "
    "is compared with theory: 0 for one global line, -3/(d+3) for softmax (Nadaraya-Watson, NW), at most "
    "-4/(d+4) "
    "for LLA (local linear, LL); -4/(d+4) for both in the interior, all coordinates in 0.3 .. 0.7.\n"
    "Writes rates.csv, summary.csv (slopes) and rates-dD-whole.svg, rates-dD-interior.svg.";

typedef struct request {
    const char *dims, *pairs, *setting, *backend, *out;
    int64_t queries, repetitions, most, seed, threads;
    double noise, ridge, tolerance;
    bool validate;
} request;

static const char *backend_name(int index)
{
    static const char *const names[] = { "cpu", "reference", NULL };
    return names[index];
}

static int read_request(int argc, char **argv, request *r, bool *help, io_error *error)
{
    *r = (request){ .dims = "1,2,3",
                    .pairs = "256,512,1024,2048,4096,8192",
                    .setting = "cube",
                    .backend = "cpu",
                    .out = "out/rates",
                    .queries = 4096,
                    .repetitions = 24,
                    .most = 96,
                    .seed = 1,
                    .noise = 0.5,
                    .ridge = -1,
                    .tolerance = 0.01 };
    const option_row rows[] = {
        { "d", OPTION_TEXT, &r->dims, 0, 0, "LIST", "dimensions of the points, 1 to 4 (1,2,3)" },
        { "n", OPTION_TEXT, &r->pairs, 0, 0, "LIST",
          "numbers of pairs, two at least (256,512,1024,2048,4096,8192)" },
        { "setting", OPTION_TEXT, &r->setting, 0, 0, "cube|ordered|sphere",
          "keys are the points (cube); the same by ascending first coordinate, each asked for from those "
          "before "
          "it, at the edge of what was seen (ordered); keys are 64 channels of length 1 on a surface of d "
          "dimensions (sphere)" },
        { "validate", OPTION_FLAG, &r->validate, 0, 0, NULL,
          "also the bandwidth that 8-fold cross-validation chooses for each draw of the noise" },
        { "queries", OPTION_INT, &r->queries, LEAST_QUERIES, 1 << 20, "N",
          "queries of a repetition (4096); ordered: all pairs" },
        { "repetitions", OPTION_INT, &r->repetitions, 2, MOST_REPETITIONS, "N",
          "least number of repetitions (24)" },
        { "most", OPTION_INT, &r->most, 2, MOST_REPETITIONS, "N",
          "repetitions are added, up to this number (96, or --repetitions)" },
        { "error", OPTION_REAL, &r->tolerance, 1e-6, 1e6, "X",
          "until the standard error of the slopes over all of D is at most this (0.01)" },
        { "noise", OPTION_REAL, &r->noise, 0, 1e6, "X", "standard deviation of the values' noise (0.5)" },
        { "ridge", OPTION_REAL, &r->ridge, 0, 1e6, "X",
          "ridge of LLA, relative to the square of the bandwidth (1e-4; sphere: 0.01)" },
        { "seed", OPTION_INT, &r->seed, 0, 9e15, "N", "of all random numbers (1)" },
        { "backend", OPTION_TEXT, &r->backend, 0, 0, "cpu|reference", "in float32, or in float64 (slow)" },
        { "threads", OPTION_INT, &r->threads, 1, 4096, "N", "all by default; results do not depend on it" },
        { "out", OPTION_TEXT, &r->out, 0, 0, "DIR", "where the results go (out/rates)" },
        { 0 },
    };
    return experiment_parse(argc, argv, rows, "loam experiment rates [options]", about, help, error);
}

static int read_lists(const request *r, number_list *dims, number_list *pairs, io_error *error)
{
    int status = experiment_read_list("d", r->dims, RATES_MAX_DIM, dims, error);
    if (status == EXIT_OK) status = experiment_read_list("n", r->pairs, RATES_MAX_PAIRS, pairs, error);
    if (status == EXIT_OK && (pairs->count < 2 || pairs->items[0] < LEAST_PAIRS))
        return io_fail(error, EXIT_USAGE, "--n %s: expected two numbers or more, from %d to %d, for a slope",
                       r->pairs, LEAST_PAIRS, RATES_MAX_PAIRS);
    return status;
}

static int read_choices(const request *r, int *setting, int *backend, io_error *error)
{
    int status = experiment_check_out(r->out, error);
    if (status == EXIT_OK) status = names_choose("setting", r->setting, rates_setting_name, setting, error);
    if (status == EXIT_OK) status = names_choose("backend", r->backend, backend_name, backend, error);
    if (status == EXIT_OK && r->validate && *setting == RATES_ORDERED)
        return io_fail(
            error, EXIT_USAGE,
            "--validate: expected --setting cube or sphere, not ordered, whose pairs are no folds");
    return status;
}

/* A surface has no spread across itself but by its bend: a ridge below the rounding of float32 would be
 * solved in float64, row by row. */
static double ridge_of(const request *r, rates_setting setting)
{
    return r->ridge >= 0 ? r->ridge : setting == RATES_SPHERE ? 0.01 : 1e-4;
}

static void make_sweep(const request *r, rates_setting setting, int backend, int64_t dim,
                       const number_list *pairs, rates_sweep *s)
{
    *s = (rates_sweep){ .engine = { backend == 0 ? LOAM_BACKEND_CPU : LOAM_BACKEND_REFERENCE,
                                    r->threads ? (int)r->threads : loam_max_threads(), ridge_of(r, setting) },
                        .least = r->repetitions,
                        .most = r->most > r->repetitions ? r->most : r->repetitions,
                        .tolerance = r->tolerance,
                        .validate = r->validate,
                        .cell_count = pairs->count };
    for (int i = 0; i < pairs->count; i++)
        s->cells[i].task = (rates_task){ .setting = setting,
                                         .dim = dim,
                                         .pairs = pairs->items[i],
                                         .queries = setting == RATES_ORDERED ? pairs->items[i] : r->queries,
                                         .noise = r->noise,
                                         .seed = (uint64_t)r->seed };
}

static int run_sweeps(rates_sweep *sweeps, int count, const char *out, io_error *error)
{
    int status = plot_check("rates.svg", error);
    if (status == EXIT_OK) status = experiment_make_directories(out, error);
    if (status != EXIT_OK) return status;
    for (int i = 0; i < count && status == EXIT_OK; i++)
        status = rates_sweep_run(&sweeps[i], error);
    if (status == EXIT_OK) status = rates_report(sweeps, count, out, error);
    if (status != EXIT_OK) rmdir(out); /* It stays where there is something in it. */
    return status;
}

static int rates(const request *r, io_error *error)
{
    number_list dims, pairs;
    int setting = 0, backend = 0;
    int status = read_choices(r, &setting, &backend, error);
    if (status == EXIT_OK) status = read_lists(r, &dims, &pairs, error);
    if (status != EXIT_OK) return status;
    rates_sweep *sweeps = calloc((size_t)dims.count, sizeof *sweeps);
    if (!sweeps) return io_fail(error, EXIT_INTERNAL, "out of memory");
    for (int i = 0; i < dims.count; i++)
        make_sweep(r, (rates_setting)setting, backend, dims.items[i], &pairs, &sweeps[i]);
    status = run_sweeps(sweeps, dims.count, r->out, error);
    for (int i = 0; i < dims.count; i++)
        rates_sweep_free(&sweeps[i]);
    free(sweeps);
    return status;
}

int experiment_rates(int argc, char **argv, const char **out, io_error *error)
{
    request r;
    bool help = false;
    const int status = read_request(argc, argv, &r, &help, error);
    if (status != EXIT_OK || help) return status;
    *out = r.out;
    return rates(&r, error);
}
