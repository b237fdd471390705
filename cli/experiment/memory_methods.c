/* SPDX-License-Identifier: MIT */
#include "cli/experiment/memory_methods.h"

#include "cli/experiment/memory_naive.h"
#include "loam.h"
#include "random/random.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>

const char *const memory_names[MEMORY_METHODS] = { "differences",      "systems",
                                                   "blocks",           "differences+backward",
                                                   "systems+backward", "blocks+backward" };

static const double ridge = 1;

static loam_problem problem_of(const memory_case *c, loam_pass pass)
{
    loam_problem problem = loam_problem_default(LOAM_LLA, pass);
    problem.len_q = problem.len_kv = c->length;
    problem.dim_qk = problem.dim_v = c->dim;
    problem.backend = c->on.cuda ? LOAM_BACKEND_CUDA : LOAM_BACKEND_CPU;
    problem.dtype = c->on.bf16 ? LOAM_BF16 : LOAM_F32;
    problem.threads = c->threads;
    problem.ridge = ridge;
    return problem;
}

static int plan_of(const memory_case *c, loam_pass pass, loam_plan **plan, io_error *error)
{
    loam_error why;
    const loam_problem problem = problem_of(c, pass);
    if (loam_plan_create(plan, &problem, &why) == LOAM_OK) return EXIT_OK;
    return io_fail(error, why.status == LOAM_EMEMORY ? EXIT_INTERNAL : EXIT_USAGE, "%s", why.text);
}

/* ---- sizes */

static int64_t array_floats(const memory_case *c) { return c->length * c->dim; }

/* Passes of the library share a workspace. */
static int library_sizes(const memory_case *c, memory_sizes *sizes, io_error *error)
{
    for (loam_pass pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
        loam_plan *plan;
        if (pass == LOAM_BACKWARD && c->method != MEMORY_BACKWARD) break;
        const int status = plan_of(c, pass, &plan, error);
        if (status != EXIT_OK) return status;
        const size_t work = loam_plan_work_bytes(plan);
        if (work > sizes->work) sizes->work = work;
        if (pass == LOAM_BACKWARD) sizes->saved = loam_plan_saved_bytes(plan);
        loam_plan_destroy(plan);
    }
    sizes->working = sizes->work + sizes->saved;
    return EXIT_OK;
}

int memory_sizes_of(const memory_case *c, memory_sizes *sizes, io_error *error)
{
    const int arrays = memory_has_backward(c->method) ? 8 : 4;
    *sizes = (memory_sizes){ .arrays = (size_t)(arrays * array_floats(c)) * memory_element(c) };
    if (!memory_is_naive(c->method)) return library_sizes(c, sizes, error);
    const int64_t n = c->length, d = c->dim;
    const int64_t floats = memory_forward_of(c->method) == MEMORY_DIFFERENCES ? naive_differences_room(n, d)
                           : memory_has_backward(c->method) ? naive_systems_backward_room(n, d)
                                                            : naive_systems_room(n, d);
    sizes->working = (size_t)floats * sizeof(float);
    return EXIT_OK;
}

double memory_formula(const memory_case *c)
{
    const double n = (double)c->length, d = (double)c->dim;
    const memory_method method = memory_forward_of(c->method);
    return sizeof(float) * n * d * (method == MEMORY_DIFFERENCES ? n : method == MEMORY_SYSTEMS ? d : 1);
}

/* ---- data */

/* q, k, v and, last of all arrays, the gradient of o; those that are written are in between. */
void memory_draw(const memory_case *c, float *arrays)
{
    const int64_t size = array_floats(c);
    for (int which = 0; which < (memory_has_backward(c->method) ? 4 : 3); which++) {
        float *to = arrays + (which == 3 ? 7 : which) * size;
        for (int64_t i = 0; i < c->length; i++) {
            double row[LOAM_MAX_DIM];
            random_normals((random_stream){ c->seed, (uint64_t)which }, (uint64_t)(i * c->dim), c->dim, row);
            for (int64_t a = 0; a < c->dim; a++)
                to[i * c->dim + a] = (float)row[a];
        }
    }
}

/* Of o, or of the gradients of q, k and v in turn, which follow it. */
void memory_take_sample(const memory_case *c, const float *arrays, float sample[MEMORY_SAMPLE])
{
    for (int64_t s = 0; s < MEMORY_SAMPLE; s++) {
        const float *from = arrays + (3 + (memory_has_backward(c->method) ? 1 + s % 3 : 0)) * array_floats(c);
        sample[s] = from[((s + 1) * c->length / MEMORY_SAMPLE - 1) * c->dim + s % c->dim];
    }
}

/* ---- computing */

static int compute_naive(const memory_case *c, float *arrays, void *working, io_error *error)
{
    const int64_t size = array_floats(c);
    const naive_task task = { .n = c->length,
                              .d = c->dim,
                              .scale = (float)(1 / sqrt((double)c->dim)),
                              .ridge = (float)ridge,
                              .q = arrays,
                              .k = arrays + size,
                              .v = arrays + 2 * size,
                              .o = arrays + 3 * size,
                              .grad_q = arrays + 4 * size,
                              .grad_k = arrays + 5 * size,
                              .grad_v = arrays + 6 * size,
                              .grad_o = arrays + 7 * size };
    const bool differences = memory_forward_of(c->method) == MEMORY_DIFFERENCES;
    openblas_set_num_threads(c->threads);
    int64_t failed = differences ? naive_differences(&task, working) : naive_systems(&task, working);
    if (failed == 0 && memory_has_backward(c->method))
        failed = differences ? naive_differences_backward(&task, working)
                             : naive_systems_backward(&task, working);
    if (failed == 0) return EXIT_OK;
    return io_fail(error, EXIT_INTERNAL, "%s: the system of row %lld is not positive definite",
                   memory_names[c->method], (long long)failed);
}

static int run_pass(const memory_case *c, loam_pass pass, char *arrays, void *working, size_t work_bytes,
                    io_error *error)
{
    const int64_t n = c->length, d = c->dim, size = n * d * (int64_t)memory_element(c);
    loam_plan *plan;
    const int status = plan_of(c, pass, &plan, error);
    if (status != EXIT_OK) return status;
    loam_args args = {
        .q = loam_dense(arrays, 1, n, d),
        .k = loam_dense(arrays + size, 1, n, d),
        .v = loam_dense(arrays + 2 * size, 1, n, d),
        .o = loam_dense_out(arrays + 3 * size, 1, n, d),
        .work = work_bytes > 0 ? working : NULL,
    };
    if (c->method == MEMORY_BACKWARD) {
        args.saved = (char *)working + work_bytes;
        args.grad_q = loam_dense_out(arrays + 4 * size, 1, n, d);
        args.grad_k = loam_dense_out(arrays + 5 * size, 1, n, d);
        args.grad_v = loam_dense_out(arrays + 6 * size, 1, n, d);
        args.grad_o = loam_dense(arrays + 7 * size, 1, n, d);
    }
    loam_error why;
    loam_args_keep(&args, pass);
    const loam_status ran = loam_run(plan, &args, &why);
    loam_plan_destroy(plan);
    return ran == LOAM_OK ? EXIT_OK : io_fail(error, EXIT_INTERNAL, "%s", why.text);
}

int memory_compute_library(const memory_case *c, void *arrays, void *working, io_error *error)
{
    memory_sizes sizes;
    int status = memory_sizes_of(c, &sizes, error);
    if (status == EXIT_OK) status = run_pass(c, LOAM_FORWARD, arrays, working, sizes.work, error);
    if (status == EXIT_OK && c->method == MEMORY_BACKWARD)
        status = run_pass(c, LOAM_BACKWARD, arrays, working, sizes.work, error);
    return status;
}

int memory_compute(const memory_case *c, float *arrays, void *working, float sample[MEMORY_SAMPLE],
                   io_error *error)
{
    const int status = memory_is_naive(c->method) ? compute_naive(c, arrays, working, error)
                                                  : memory_compute_library(c, arrays, working, error);
    if (status == EXIT_OK) memory_take_sample(c, arrays, sample);
    return status;
}
