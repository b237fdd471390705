/* SPDX-License-Identifier: MIT */
#include "cli/experiment/rates_fit.h"

#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const rates_estimator_names[RATES_ESTIMATORS] = { "global", "nw", "ll" };

static int no_memory(io_error *error) { return io_fail(error, EXIT_INTERNAL, "out of memory"); }

/* What is fitted, and where it is asked for. */
typedef struct fit_task {
    const double *keys, *values, *asked;
    int64_t pairs, queries, channels;
    bool ordered;
    double bandwidth; /* in units of the keys */
} fit_task;

/* ---- the global line */

/* Row and column c of the normal equations: 1, then the channels of the key. */
static double term(const double *key, int64_t c) { return c == 0 ? 1 : key[c - 1]; }

/* `system` has room for the matrix, the right side and the singular values, c each. */
static int solve_global(const fit_task *task, double *system, io_error *error)
{
    const int64_t c = task->channels + 1;
    double *right = system + c * c;
    memset(system, 0, (size_t)(c * (c + 2)) * sizeof *system);
    for (int64_t j = 0; j < task->pairs; j++) {
        const double *key = task->keys + j * task->channels;
        for (int64_t a = 0; a < c; a++) {
            right[a] += term(key, a) * task->values[j];
            for (int64_t b = 0; b < c; b++)
                system[a * c + b] += term(key, a) * term(key, b);
        }
    }
    /* Keys of a surface need not span their channels: of all solutions the shortest. */
    lapack_int rank, n = (lapack_int)c;
    if (LAPACKE_dgelsd(LAPACK_ROW_MAJOR, n, n, 1, system, n, right, 1, right + c, 1e-10, &rank) != 0)
        return io_fail(error, EXIT_INTERNAL, "the global line: LAPACK's dgelsd failed");
    return EXIT_OK;
}

static int predict_global(const fit_task *task, double *out, io_error *error)
{
    const int64_t c = task->channels + 1;
    double *system = malloc((size_t)(c * (c + 2)) * sizeof *system);
    if (!system) return no_memory(error);
    const int status = solve_global(task, system, error);
    for (int64_t i = 0; i < task->queries && status == EXIT_OK; i++) {
        out[i] = 0;
        for (int64_t a = 0; a < c; a++)
            out[i] += system[c * c + a] * term(task->asked + i * task->channels, a);
    }
    free(system);
    return status;
}

/* ---- the estimators of loam.h */

static loam_problem problem_of(const rates_engine *engine, rates_estimator which, const fit_task *task)
{
    const double h2 = task->bandwidth * task->bandwidth;
    loam_problem problem = loam_problem_default(which == RATES_LINEAR ? LOAM_LLA : LOAM_SOFTMAX,
                                                LOAM_FORWARD);
    problem.dtype = engine->backend == LOAM_BACKEND_REFERENCE ? LOAM_F64 : LOAM_F32;
    problem.backend = engine->backend;
    problem.threads = engine->threads;
    problem.dim_qk = task->channels, problem.dim_v = 1;
    problem.score = LOAM_RBF;
    problem.scale = 1 / h2;
    problem.causal = task->ordered;
    /* Query i + 1 sees pairs 0 .. i: its own is hidden. */
    problem.len_q = task->queries - task->ordered;
    problem.len_kv = task->pairs - task->ordered;
    if (which == RATES_LINEAR) problem.ridge = engine->ridge * h2;
    return problem;
}

/* One after another: keys, values, queries, outputs. */
typedef struct typed {
    char *block;
    void *work;
    size_t element;
} typed;

static void fill_typed(const typed *t, size_t first, const double *from, int64_t count)
{
    if (t->element == sizeof(double)) {
        memcpy(t->block + first * t->element, from, (size_t)count * sizeof *from);
        return;
    }
    float *to = (float *)(void *)t->block + first;
    for (int64_t i = 0; i < count; i++)
        to[i] = (float)from[i];
}

static void fetch_outputs(const typed *t, size_t first, int64_t count, double *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = t->element == sizeof(double) ? ((const double *)(void *)t->block)[first + (size_t)i]
                                              : (double)((const float *)(void *)t->block)[first + (size_t)i];
}

static int run_typed(const loam_plan *plan, const fit_task *task, const typed *t, double *out,
                     io_error *error)
{
    const int64_t c = task->channels, hidden = task->ordered;
    const size_t values = (size_t)(task->pairs * c), asked = values + (size_t)task->pairs;
    const size_t outputs = asked + (size_t)(task->queries * c);
    loam_error why;
    fill_typed(t, 0, task->keys, task->pairs * c);
    fill_typed(t, values, task->values, task->pairs);
    fill_typed(t, asked, task->asked, task->queries * c);
    const char *at = t->block;
    const loam_args args = {
        .q = loam_dense(at + (asked + (size_t)(hidden * c)) * t->element, 1, task->queries - hidden, c),
        .k = loam_dense(at, 1, task->pairs, c),
        .v = loam_dense(at + values * t->element, 1, task->pairs, 1),
        .o = loam_dense_out(t->block + (outputs + (size_t)hidden) * t->element, 1, task->queries - hidden, 1),
        .work = t->work,
    };
    if (loam_run(plan, &args, &why)) return io_fail(error, EXIT_INTERNAL, "%s", why.text);
    fetch_outputs(t, outputs, task->queries, out);
    return EXIT_OK;
}

static int predict_local(const rates_engine *engine, rates_estimator which, const fit_task *task, double *out,
                         io_error *error)
{
    const loam_problem problem = problem_of(engine, which, task);
    loam_plan *plan;
    loam_error why;
    if (loam_plan_create(&plan, &problem, &why) != LOAM_OK)
        return io_fail(error, why.status == LOAM_EMEMORY ? EXIT_INTERNAL : EXIT_USAGE, "%s", why.text);
    const size_t work_bytes = loam_plan_work_bytes(plan);
    const int64_t elements = (task->pairs + task->queries) * (task->channels + 1);
    typed t = { .element = problem.dtype == LOAM_F64 ? sizeof(double) : sizeof(float) };
    t.block = calloc((size_t)elements, t.element);
    t.work = work_bytes > 0 ? aligned_alloc(LOAM_ALIGN, work_bytes) : NULL;
    const int status = t.block && (t.work || work_bytes == 0) ? run_typed(plan, task, &t, out, error)
                                                              : no_memory(error);
    free(t.block);
    free(t.work);
    loam_plan_destroy(plan);
    return status;
}

static int predict(const rates_engine *engine, rates_estimator which, const fit_task *task, double *out,
                   io_error *error)
{
    return which == RATES_GLOBAL ? predict_global(task, out, error)
                                 : predict_local(engine, which, task, out, error);
}

/* ---- errors */

int rates_errors(const rates_engine *engine, rates_estimator which, const rates_sample *sample, bool ordered,
                 double bandwidth, double errors[RATES_REGIONS], io_error *error)
{
    const fit_task task = { sample->keys,    sample->values,   sample->asked, sample->pairs,
                            sample->queries, sample->channels, ordered,       bandwidth * sample->unit };
    double *out = malloc((size_t)sample->queries * sizeof *out);
    if (!out) return no_memory(error);
    const int status = predict(engine, which, &task, out, error);
    for (int r = 0; r < RATES_REGIONS && status == EXIT_OK; r++) {
        double sum = 0, count = 0;
        for (int64_t i = 0; i < sample->queries; i++)
            if (sample->inside[r][i]) {
                sum += (out[i] - sample->truth[i]) * (out[i] - sample->truth[i]);
                count++;
            }
        errors[r] = sum / count;
    }
    free(out);
    return status;
}

/* Fold f is pairs first .. end - 1: the others, then the fold, in `pairs`; the sum over its first queries. */
static int add_fold(const rates_engine *engine, rates_estimator which, const rates_sample *sample,
                    int64_t first, int64_t end, double bandwidth, double *room, double *sum, int64_t *count,
                    io_error *error)
{
    const int64_t n = sample->pairs, c = sample->channels, most = RATES_QUERIES_OF_FOLDS / RATES_FOLDS;
    double *keys = room, *values = room + n * c, *out = values + n;
    memcpy(keys, sample->keys, (size_t)(first * c) * sizeof *keys);
    memcpy(keys + first * c, sample->keys + end * c, (size_t)((n - end) * c) * sizeof *keys);
    memcpy(values, sample->values, (size_t)first * sizeof *values);
    memcpy(values + first, sample->values + end, (size_t)(n - end) * sizeof *values);
    const fit_task task = {
        keys, values, sample->keys + first * c, n - (end - first), end - first < most ? end - first : most,
        c,    false,  bandwidth * sample->unit
    };
    const int status = predict(engine, which, &task, out, error);
    for (int64_t i = 0; i < task.queries && status == EXIT_OK; i++)
        *sum += (out[i] - sample->values[first + i]) * (out[i] - sample->values[first + i]);
    *count += task.queries;
    return status;
}

int rates_cross_validate(const rates_engine *engine, rates_estimator which, const rates_sample *sample,
                         double bandwidth, double *score, io_error *error)
{
    const int64_t n = sample->pairs;
    double *room = malloc((size_t)(n * (sample->channels + 2)) * sizeof *room), sum = 0;
    if (!room) return no_memory(error);
    int64_t count = 0;
    int status = EXIT_OK;
    for (int64_t f = 0; f < RATES_FOLDS && status == EXIT_OK; f++)
        status = add_fold(engine, which, sample, n * f / RATES_FOLDS, n * (f + 1) / RATES_FOLDS, bandwidth,
                          room, &sum, &count, error);
    *score = sum / (double)count;
    free(room);
    return status;
}
