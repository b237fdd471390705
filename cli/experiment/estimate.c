/* SPDX-License-Identifier: MIT */
#include "cli/experiment/estimate.h"

#include "cli/device_set.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const estimator_names[ESTIMATORS + 1] = { "lla",         "softmax", "mesa",   "linear", "delta",
                                                      "gated-delta", "kda",     "random", NULL };

/* What one pair costs the memory of those before: Gated DeltaNet's, and those of the first and last channel
 * of KDA. */
static const double LOST = 0.01, LOST_MOST = 0.1, LOST_LEAST = 0.001;

static int no_memory(io_error *error) { return io_fail(error, EXIT_INTERNAL, "out of memory"); }

static int64_t sequence_size(const estimate_batch *batch) { return batch->task.length * batch->task.dim; }

int estimate_generate(const estimate_batch *batch, int threads, io_error *error)
{
    const experiment_task *task = &batch->task;
    const int64_t size = sequence_size(batch), map_size = task->dim * task->dim;
    double *maps = calloc((size_t)(batch->count * map_size), sizeof *maps);
    if (!maps) return no_memory(error);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t s = 0; s < batch->count; s++)
        task_generate(task, batch->first + s, batch->keys + s * size, batch->values + s * size,
                      maps + s * map_size);
    free(maps);
    return EXIT_OK;
}

/* ---- the estimators of loam.h */

/* The arrays as the library sees them: those of the batch, or float copies. */
typedef struct typed_arrays {
    const void *keys, *values, *gates; /* gates: betas of all tokens, then log decays of all channels */
    void *outputs, *work;
    double *exact; /* the gates */
    float *copies; /* keys, values, outputs, gates */
    int64_t total, gate_count;
} typed_arrays;

static loam_mechanism mechanism_of(estimator which)
{
    static const loam_mechanism mechanisms[] = {
        [ESTIMATOR_LLA] = LOAM_LLA,     [ESTIMATOR_SOFTMAX] = LOAM_SOFTMAX,
        [ESTIMATOR_MESA] = LOAM_MESA,   [ESTIMATOR_LINEAR] = LOAM_LINEAR,
        [ESTIMATOR_DELTA] = LOAM_DELTA, [ESTIMATOR_GATED_DELTA] = LOAM_GATED_DELTA,
        [ESTIMATOR_KDA] = LOAM_KDA,
    };
    return mechanisms[which];
}

/* Where its own pair is hidden, query i + 1 runs against keys 0 .. i. */
static loam_problem problem_of(const estimate_setup *setup, estimator which, const estimate_batch *batch)
{
    loam_problem problem = loam_problem_default(mechanism_of(which), LOAM_FORWARD);
    problem.dtype = setup->backend == LOAM_BACKEND_REFERENCE ? LOAM_F64 : LOAM_F32;
    problem.batch = batch->count;
    problem.len_q = problem.len_kv = batch->task.length - (batch->hidden ? 1 : 0);
    problem.dim_qk = problem.dim_v = batch->task.dim;
    problem.backend = setup->backend;
    problem.threads = setup->threads;
    problem.scale = 1;
    if (which == ESTIMATOR_MESA) problem.ridge = setup->mesa_ridge;
    if (which != ESTIMATOR_LLA && which != ESTIMATOR_SOFTMAX) return problem;
    problem.score = setup->score;
    problem.scale = 1 / (setup->bandwidth * sqrt((double)batch->task.dim));
    if (which == ESTIMATOR_LLA) {
        problem.ridge = setup->ridge;
        problem.ridge_unit = setup->ridge_unit;
    }
    return problem;
}

/* Where the back end has no kernel for a mechanism, the reference stands in. */
static int plan_of(loam_plan **plan, const estimate_setup *setup, estimator which,
                   const estimate_batch *batch, io_error *error)
{
    loam_problem problem = problem_of(setup, which, batch);
    loam_error why;
    loam_status status = loam_plan_create(plan, &problem, &why);
    if (status == LOAM_EUNSUPPORTED && setup->backend != LOAM_BACKEND_REFERENCE) {
        problem.backend = LOAM_BACKEND_REFERENCE;
        status = loam_plan_create(plan, &problem, &why);
    }
    if (status != LOAM_OK)
        return io_fail(error, why.status == LOAM_EMEMORY ? EXIT_INTERNAL : EXIT_USAGE, "%s", why.text);
    return EXIT_OK;
}

/* ---- gates */

static bool is_delta(estimator which)
{
    return which == ESTIMATOR_DELTA || which == ESTIMATOR_GATED_DELTA || which == ESTIMATOR_KDA;
}

/* strength 1 makes a delta rule exact for its key, as beta 1 does where keys have length 1; MesaNet has
 * beta 1. */
static void fill_betas(const estimate_setup *setup, const estimate_batch *batch, estimator which,
                       double *betas)
{
    const int64_t d = batch->task.dim;
    for (int64_t i = 0; i < batch->count * batch->task.length; i++) {
        double square = 0;
        for (int64_t a = i * d; a < (i + 1) * d; a++)
            square += batch->keys[a] * batch->keys[a];
        betas[i] = !is_delta(which) ? 1 : fmin(2, setup->strength / square);
    }
}

/* MesaNet forgets nothing; the channels of KDA lose from LOST_MOST to LOST_LEAST in equal ratios. */
static void fill_decays(const estimate_setup *setup, int64_t dim, estimator which, double *decays)
{
    for (int64_t a = 0; a < dim; a++) {
        const double part = dim > 1 ? (double)a / (double)(dim - 1) : 1;
        const double lost = which == ESTIMATOR_KDA           ? LOST_MOST * pow(LOST_LEAST / LOST_MOST, part)
                            : which == ESTIMATOR_GATED_DELTA ? LOST
                                                             : 0;
        decays[a] = log1p(-setup->forget * lost);
    }
}

static int fill_gates(typed_arrays *arrays, const estimate_setup *setup, const estimate_batch *batch,
                      estimator which, io_error *error)
{
    const int64_t tokens = batch->count * batch->task.length;
    arrays->gate_count = tokens + batch->task.dim;
    arrays->exact = calloc((size_t)arrays->gate_count, sizeof *arrays->exact);
    if (!arrays->exact) return no_memory(error);
    fill_betas(setup, batch, which, arrays->exact);
    fill_decays(setup, batch->task.dim, which, arrays->exact + tokens);
    arrays->gates = arrays->exact;
    return EXIT_OK;
}

/* ---- running */

static int typed_open(typed_arrays *arrays, const loam_plan *plan, const estimate_setup *setup,
                      estimator which, const estimate_batch *batch, double *outputs, io_error *error)
{
    const int64_t total = batch->count * sequence_size(batch);
    const bool device = loam_plan_problem(plan)->backend == LOAM_BACKEND_CUDA;
    const size_t work_bytes = device ? 0 : loam_plan_work_bytes(plan);
    *arrays = (typed_arrays){
        .keys = batch->keys, .values = batch->values, .outputs = outputs, .total = total
    };
    const int status = fill_gates(arrays, setup, batch, which, error);
    if (status) return status;
    if (work_bytes > 0 && !(arrays->work = aligned_alloc(LOAM_ALIGN, work_bytes))) return no_memory(error);
    if (loam_plan_problem(plan)->dtype == LOAM_F64) return EXIT_OK;
    float *copies = arrays->copies = calloc((size_t)(3 * total + arrays->gate_count), sizeof(float));
    if (!copies) return no_memory(error);
    for (int64_t i = 0; i < total; i++) {
        copies[i] = (float)batch->keys[i];
        copies[total + i] = (float)batch->values[i];
    }
    for (int64_t i = 0; i < arrays->gate_count; i++)
        copies[3 * total + i] = (float)arrays->exact[i];
    arrays->keys = copies, arrays->values = copies + total, arrays->outputs = copies + 2 * total;
    arrays->gates = copies + 3 * total;
    return EXIT_OK;
}

static void typed_close(typed_arrays *arrays)
{
    free(arrays->work);
    free(arrays->exact);
    free(arrays->copies);
}

static loam_args args_of(const typed_arrays *arrays, estimator which, const estimate_batch *batch,
                         size_t element)
{
    const int64_t d = batch->task.dim, length = batch->task.length, size = sequence_size(batch);
    const size_t shift = batch->hidden ? (size_t)d * element : 0;
    const char *gates = arrays->gates, *decays = gates + (size_t)(batch->count * length) * element;
    loam_args args = {
        .q = { (const char *)arrays->keys + shift, size, size, d },
        .k = { arrays->keys, size, size, d },
        .v = { arrays->values, size, size, d },
        .o = { (char *)arrays->outputs + shift, size, size, d },
        .work = arrays->work,
    };
    if (is_delta(which) || which == ESTIMATOR_MESA) args.beta = (loam_const_view){ gates, length, length, 1 };
    /* One for all tokens: strides of 0. */
    if (which == ESTIMATOR_GATED_DELTA || which == ESTIMATOR_KDA || which == ESTIMATOR_MESA)
        args.log_decay = (loam_const_view){ decays, 0, 0, 0 };
    return args;
}

static void collect_outputs(const typed_arrays *arrays, const estimate_batch *batch, double *outputs)
{
    const int64_t d = batch->task.dim, size = sequence_size(batch);
    if (arrays->copies)
        for (int64_t i = 0; i < batch->count * size; i++)
            outputs[i] = (double)((const float *)arrays->outputs)[i];
    for (int64_t s = 0; s < batch->count && batch->hidden; s++)
        memset(outputs + s * size, 0, (size_t)d * sizeof *outputs);
}

/* Linear attention by the number of pairs seen: without it it is off every scale. */
static void divide_by_count(const estimate_batch *batch, double *outputs)
{
    const int64_t d = batch->task.dim, length = batch->task.length;
    for (int64_t i = 0; i < batch->count * length; i++) {
        const int64_t seen = i % length + (batch->hidden ? 0 : 1);
        for (int64_t a = i * d; a < (i + 1) * d && seen > 0; a++)
            outputs[a] /= (double)seen;
    }
}

static int run_args(const loam_plan *plan, const loam_args *args, io_error *error)
{
    loam_error why;
    return loam_run(plan, args, &why) ? io_fail(error, EXIT_INTERNAL, "%s", why.text) : EXIT_OK;
}

/* The same on a GPU: keys, values and outputs are one block there too. */
static int run_device(const loam_plan *plan, const typed_arrays *arrays, estimator which,
                      const estimate_batch *batch, io_error *error)
{
    const size_t each = (size_t)arrays->total * sizeof(float);
    typed_arrays there = *arrays;
    device_set set = { .count = 0 };
    const char *failed = device_set_input(&set, &there.keys, each);
    if (!failed) failed = device_set_input(&set, &there.values, each);
    if (!failed) failed = device_set_input(&set, &there.gates, (size_t)there.gate_count * sizeof(float));
    if (!failed) failed = device_set_output(&set, &there.outputs, each);
    if (!failed) failed = device_set_scratch(&set, &there.work, loam_plan_work_bytes(plan));
    const loam_args args = args_of(&there, which, batch, sizeof(float));
    int status = failed ? EXIT_INTERNAL : run_args(plan, &args, error);
    if (!status) failed = device_set_fetch(&set);
    device_set_free(&set);
    return failed ? io_fail(error, EXIT_INTERNAL, "CUDA: %s", failed) : status;
}

static int run_library(const estimate_setup *setup, estimator which, const estimate_batch *batch,
                       double *outputs, io_error *error)
{
    loam_plan *plan;
    int status = plan_of(&plan, setup, which, batch, error);
    if (status != EXIT_OK) return status;
    typed_arrays arrays;
    status = typed_open(&arrays, plan, setup, which, batch, outputs, error);
    if (status == EXIT_OK) {
        const loam_args args = args_of(&arrays, which, batch, arrays.copies ? sizeof(float) : sizeof(double));
        status = loam_plan_problem(plan)->backend == LOAM_BACKEND_CUDA
                     ? run_device(plan, &arrays, which, batch, error)
                     : run_args(plan, &args, error);
        if (status == EXIT_OK) collect_outputs(&arrays, batch, outputs);
        if (status == EXIT_OK && which == ESTIMATOR_LINEAR) divide_by_count(batch, outputs);
    }
    typed_close(&arrays);
    loam_plan_destroy(plan);
    return status;
}

int estimate_kernels(const estimate_setup *setup, const estimate_batch *batch, char *text, size_t size,
                     io_error *error)
{
    text[0] = '\0';
    for (int i = 0; i < ESTIMATOR_RANDOM; i++) {
        loam_plan *plan;
        const int status = plan_of(&plan, setup, (estimator)i, batch, error);
        if (status != EXIT_OK) return status;
        const size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", i ? " " : "", loam_plan_problem(plan)->kernel);
        loam_plan_destroy(plan);
    }
    return EXIT_OK;
}

int estimate_outputs(const estimate_setup *setup, estimator which, const estimate_batch *batch,
                     double *outputs, io_error *error)
{
    if (which != ESTIMATOR_RANDOM) return run_library(setup, which, batch, outputs, error);
#pragma omp parallel for num_threads(setup->threads) schedule(dynamic)
    for (int64_t s = 0; s < batch->count; s++)
        task_guess(&batch->task, batch->first + s, outputs + s * sequence_size(batch));
    return EXIT_OK;
}

void estimate_errors(const estimate_batch *batch, const double *outputs, double *errors)
{
    const int64_t d = batch->task.dim;
    for (int64_t i = 0; i < batch->count * batch->task.length; i++) {
        errors[i] = 0;
        for (int64_t a = i * d; a < (i + 1) * d; a++) {
            const double miss = outputs[a] - batch->values[a];
            errors[i] += miss * miss;
        }
    }
}
