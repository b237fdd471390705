/* SPDX-License-Identifier: MIT */
#include "cli/experiment_estimate.h"

#include "cli/device_set.h"
#include "cli/experiment_baselines.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const estimator_names[ESTIMATORS + 1] = { "lla", "softmax", "mesa", "linear", "random", NULL };

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
    const void *keys, *values;
    void *outputs, *work;
    float *copies; /* keys, values, outputs */
    int64_t total; /* elements of each */
} typed_arrays;

/* Where its own pair is hidden, query i + 1 runs against keys 0 .. i. */
static loam_problem problem_of(const estimate_setup *setup, estimator which, const estimate_batch *batch)
{
    const loam_mechanism mechanism = which == ESTIMATOR_LLA ? LOAM_LLA : LOAM_SOFTMAX;
    loam_problem problem = loam_problem_default(mechanism, LOAM_FORWARD);
    problem.dtype = setup->backend == LOAM_BACKEND_REFERENCE ? LOAM_F64 : LOAM_F32;
    problem.batch = batch->count;
    problem.len_q = problem.len_kv = batch->task.length - (batch->hidden ? 1 : 0);
    problem.dim_qk = problem.dim_v = batch->task.dim;
    problem.score = setup->score;
    problem.scale = 1 / (setup->bandwidth * sqrt((double)batch->task.dim));
    if (which == ESTIMATOR_LLA) {
        problem.ridge = setup->ridge;
        problem.ridge_unit = setup->ridge_unit;
    }
    problem.backend = setup->backend;
    problem.threads = setup->threads;
    return problem;
}

static int plan_of(loam_plan **plan, const estimate_setup *setup, estimator which,
                   const estimate_batch *batch, io_error *error)
{
    const loam_problem problem = problem_of(setup, which, batch);
    loam_error why;
    if (loam_plan_create(plan, &problem, &why) != LOAM_OK)
        return io_fail(error, why.status == LOAM_EMEMORY ? EXIT_INTERNAL : EXIT_USAGE, "%s", why.text);
    return EXIT_OK;
}

static int typed_open(typed_arrays *arrays, const loam_plan *plan, const estimate_batch *batch,
                      double *outputs, io_error *error)
{
    const int64_t total = batch->count * sequence_size(batch);
    const bool device = loam_plan_problem(plan)->backend == LOAM_BACKEND_CUDA;
    const size_t work_bytes = device ? 0 : loam_plan_work_bytes(plan);
    *arrays = (typed_arrays){
        .keys = batch->keys, .values = batch->values, .outputs = outputs, .total = total
    };
    if (work_bytes > 0 && !(arrays->work = aligned_alloc(LOAM_ALIGN, work_bytes))) return no_memory(error);
    if (loam_plan_problem(plan)->dtype == LOAM_F64) return EXIT_OK;
    float *copies = arrays->copies = calloc((size_t)total, 3 * sizeof(float));
    if (!copies) return no_memory(error);
    for (int64_t i = 0; i < total; i++) {
        copies[i] = (float)batch->keys[i];
        copies[total + i] = (float)batch->values[i];
    }
    arrays->keys = copies, arrays->values = copies + total, arrays->outputs = copies + 2 * total;
    return EXIT_OK;
}

static void typed_close(typed_arrays *arrays)
{
    free(arrays->work);
    free(arrays->copies);
}

static loam_args args_of(const typed_arrays *arrays, const estimate_batch *batch, size_t element)
{
    const int64_t d = batch->task.dim, size = sequence_size(batch);
    const size_t shift = batch->hidden ? (size_t)d * element : 0;
    return (loam_args){
        .q = { (const char *)arrays->keys + shift, size, size, d },
        .k = { arrays->keys, size, size, d },
        .v = { arrays->values, size, size, d },
        .o = { (char *)arrays->outputs + shift, size, size, d },
        .work = arrays->work,
    };
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

static int run_args(const loam_plan *plan, const loam_args *args, io_error *error)
{
    loam_error why;
    return loam_run(plan, args, &why) ? io_fail(error, EXIT_INTERNAL, "%s", why.text) : EXIT_OK;
}

/* The same on a GPU: keys, values and outputs are one block there too. */
static int run_device(const loam_plan *plan, const typed_arrays *arrays, const estimate_batch *batch,
                      io_error *error)
{
    const size_t each = (size_t)arrays->total * sizeof(float);
    typed_arrays there = *arrays;
    device_set set = { .count = 0 };
    const char *failed = device_set_input(&set, &there.keys, each);
    if (!failed) failed = device_set_input(&set, &there.values, each);
    if (!failed) failed = device_set_output(&set, &there.outputs, each);
    if (!failed) failed = device_set_scratch(&set, &there.work, loam_plan_work_bytes(plan));
    const loam_args args = args_of(&there, batch, sizeof(float));
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
    status = typed_open(&arrays, plan, batch, outputs, error);
    if (status == EXIT_OK) {
        const loam_args args = args_of(&arrays, batch, arrays.copies ? sizeof(float) : sizeof(double));
        status = loam_plan_problem(plan)->backend == LOAM_BACKEND_CUDA
                     ? run_device(plan, &arrays, batch, error)
                     : run_args(plan, &args, error);
        if (status == EXIT_OK) collect_outputs(&arrays, batch, outputs);
    }
    typed_close(&arrays);
    loam_plan_destroy(plan);
    return status;
}

int estimate_kernels(const estimate_setup *setup, const estimate_batch *batch, char *text, size_t size,
                     io_error *error)
{
    const estimator both[] = { ESTIMATOR_LLA, ESTIMATOR_SOFTMAX };
    text[0] = '\0';
    for (int i = 0; i < 2; i++) {
        loam_plan *plan;
        const int status = plan_of(&plan, setup, both[i], batch, error);
        if (status != EXIT_OK) return status;
        const size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", i ? " " : "", loam_plan_problem(plan)->kernel);
        loam_plan_destroy(plan);
    }
    return EXIT_OK;
}

/* ---- the others */

static void run_baseline(const estimate_setup *setup, estimator which, const estimate_batch *batch, int64_t s,
                         double *outputs, double *scratch)
{
    const int64_t size = sequence_size(batch);
    const baseline_sequence in = { batch->keys + s * size, batch->values + s * size, batch->task.length,
                                   batch->task.dim, batch->hidden };
    if (which == ESTIMATOR_MESA)
        baseline_mesa(&in, setup->mesa_ridge, outputs + s * size, scratch);
    else if (which == ESTIMATOR_LINEAR)
        baseline_linear(&in, outputs + s * size, scratch);
    else
        task_guess(&batch->task, batch->first + s, outputs + s * size);
}

int estimate_outputs(const estimate_setup *setup, estimator which, const estimate_batch *batch,
                     double *outputs, io_error *error)
{
    if (which == ESTIMATOR_LLA || which == ESTIMATOR_SOFTMAX)
        return run_library(setup, which, batch, outputs, error);
    const size_t each = baseline_scratch(batch->task.dim);
    double *scratch = calloc((size_t)batch->count * each, sizeof *scratch);
    if (!scratch) return no_memory(error);
#pragma omp parallel for num_threads(setup->threads) schedule(dynamic)
    for (int64_t s = 0; s < batch->count; s++)
        run_baseline(setup, which, batch, s, outputs, scratch + (size_t)s * each);
    free(scratch);
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
