/* SPDX-License-Identifier: MIT */
#include "cli/experiment/rates_fit.h"

#include <inttypes.h>
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

/* `system` has room for the matrix, the right sides and the singular values, c each. */
static int solve_global(const fit_task *task, double *system, io_error *error)
{
    const int64_t c = task->channels + 1;
    double *right = system + c * c;
    memset(system, 0, (size_t)(c * (c + RATES_DRAWS + 1)) * sizeof *system);
    for (int64_t j = 0; j < task->pairs; j++) {
        const double *key = task->keys + j * task->channels, *value = task->values + j * RATES_DRAWS;
        for (int64_t a = 0; a < c; a++) {
            for (int64_t b = 0; b < c; b++)
                system[a * c + b] += term(key, a) * term(key, b);
            for (int v = 0; v < RATES_DRAWS; v++)
                right[a * RATES_DRAWS + v] += term(key, a) * value[v];
        }
    }
    /* Keys of a surface need not span their channels: of all solutions the shortest. */
    lapack_int rank, n = (lapack_int)c;
    if (LAPACKE_dgelsd(LAPACK_ROW_MAJOR, n, n, RATES_DRAWS, system, n, right, RATES_DRAWS,
                       right + c * RATES_DRAWS, 1e-10, &rank) != 0)
        return io_fail(error, EXIT_INTERNAL, "the global line: LAPACK's dgelsd failed");
    return EXIT_OK;
}

static int predict_global(const fit_task *task, double *out, io_error *error)
{
    const int64_t c = task->channels + 1;
    double *system = malloc((size_t)(c * (c + RATES_DRAWS + 1)) * sizeof *system);
    if (!system) return no_memory(error);
    const int status = solve_global(task, system, error);
    for (int64_t i = 0; i < task->queries && status == EXIT_OK; i++)
        for (int v = 0; v < RATES_DRAWS; v++) {
            double sum = 0;
            for (int64_t a = 0; a < c; a++)
                sum += system[c * c + a * RATES_DRAWS + v] * term(task->asked + i * task->channels, a);
            out[i * RATES_DRAWS + v] = sum;
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
    problem.dim_qk = task->channels, problem.dim_v = RATES_DRAWS;
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
    const int64_t c = task->channels, v = RATES_DRAWS, hidden = task->ordered;
    const size_t values = (size_t)(task->pairs * c), asked = values + (size_t)(task->pairs * v);
    const size_t outputs = asked + (size_t)(task->queries * c);
    loam_error why;
    fill_typed(t, 0, task->keys, task->pairs * c);
    fill_typed(t, values, task->values, task->pairs * v);
    fill_typed(t, asked, task->asked, task->queries * c);
    char *at = t->block, *o = at + (outputs + (size_t)(hidden * v)) * t->element;
    const loam_args args = {
        .q = loam_dense(at + (asked + (size_t)(hidden * c)) * t->element, 1, task->queries - hidden, c),
        .k = loam_dense(at, 1, task->pairs, c),
        .v = loam_dense(at + values * t->element, 1, task->pairs, v),
        .o = loam_dense_out(o, 1, task->queries - hidden, v),
        .work = t->work,
    };
    if (loam_run(plan, &args, &why)) return io_fail(error, EXIT_INTERNAL, "%s", why.text);
    fetch_outputs(t, outputs, task->queries * v, out);
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
    const int64_t elements = (task->pairs + task->queries) * (task->channels + RATES_DRAWS);
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

static void add_squares(const double *a, const double *b, double sums[RATES_DRAWS])
{
    for (int v = 0; v < RATES_DRAWS; v++)
        sums[v] += (a[v] - b[v]) * (a[v] - b[v]);
}

static int region_errors(const rates_sample *sample, rates_region region, const double *out,
                         double errors[RATES_DRAWS], io_error *error)
{
    double count = 0;
    for (int v = 0; v < RATES_DRAWS; v++)
        errors[v] = 0;
    for (int64_t i = 0; i < sample->queries; i++) {
        double truth[RATES_DRAWS];
        if (!sample->inside[region][i]) continue;
        for (int v = 0; v < RATES_DRAWS; v++)
            truth[v] = sample->truth[i];
        add_squares(out + i * RATES_DRAWS, truth, errors);
        count++;
    }
    for (int v = 0; v < RATES_DRAWS; v++)
        errors[v] /= count;
    if (count > 0) return EXIT_OK;
    return io_fail(error, EXIT_USAGE,
                   "none of %" PRId64 " queries is in the interior; expected more of them: --queries, with "
                   "--setting ordered --n",
                   sample->queries);
}

int rates_errors(const rates_engine *engine, rates_estimator which, const rates_sample *sample, bool ordered,
                 double bandwidth, double errors[RATES_REGIONS][RATES_DRAWS], io_error *error)
{
    const fit_task task = { sample->keys,    sample->values,   sample->asked, sample->pairs,
                            sample->queries, sample->channels, ordered,       bandwidth * sample->unit };
    double *out = malloc((size_t)(sample->queries * RATES_DRAWS) * sizeof *out);
    if (!out) return no_memory(error);
    int status = predict(engine, which, &task, out, error);
    for (int r = 0; r < RATES_REGIONS && status == EXIT_OK; r++)
        status = region_errors(sample, (rates_region)r, out, errors[r], error);
    free(out);
    return status;
}

/* Fold f, pairs first .. end - 1, from the others; the sums are over its first pairs. */
static int add_fold(const rates_engine *engine, rates_estimator which, const rates_sample *sample, int f,
                    double bandwidth, double *room, double sums[RATES_DRAWS], io_error *error)
{
    enum { MOST = RATES_QUERIES_OF_FOLDS / RATES_FOLDS };
    const int64_t n = sample->pairs, c = sample->channels, v = RATES_DRAWS;
    const int64_t first = n * f / RATES_FOLDS, end = n * (f + 1) / RATES_FOLDS;
    double *keys = room, *values = keys + n * c, *out = values + n * v;
    memcpy(keys, sample->keys, (size_t)(first * c) * sizeof *keys);
    memcpy(keys + first * c, sample->keys + end * c, (size_t)((n - end) * c) * sizeof *keys);
    memcpy(values, sample->values, (size_t)(first * v) * sizeof *values);
    memcpy(values + first * v, sample->values + end * v, (size_t)((n - end) * v) * sizeof *values);
    const fit_task task = { .keys = keys,
                            .values = values,
                            .asked = sample->keys + first * c,
                            .pairs = n - (end - first),
                            .queries = end - first < MOST ? end - first : MOST,
                            .channels = c,
                            .bandwidth = bandwidth * sample->unit };
    const int status = predict(engine, which, &task, out, error);
    for (int64_t i = 0; i < task.queries && status == EXIT_OK; i++)
        add_squares(out + i * v, sample->values + (first + i) * v, sums);
    return status;
}

int rates_cross_validate(const rates_engine *engine, rates_estimator which, const rates_sample *sample,
                         double bandwidth, double scores[RATES_DRAWS], io_error *error)
{
    const int64_t n = sample->pairs;
    double *room = malloc((size_t)(n * (sample->channels + 2 * RATES_DRAWS)) * sizeof *room);
    if (!room) return no_memory(error);
    int status = EXIT_OK;
    for (int v = 0; v < RATES_DRAWS; v++)
        scores[v] = 0;
    for (int f = 0; f < RATES_FOLDS && status == EXIT_OK; f++)
        status = add_fold(engine, which, sample, f, bandwidth, room, scores, error);
    free(room);
    return status;
}
