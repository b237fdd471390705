/* SPDX-License-Identifier: MIT
 *
 * Backward: forward keeps a small record of each query in `saved`, backward turns the gradient of the output
 * into the gradients of all inputs. The loss here is the sum of the outputs, so that grad_o is 1 everywhere,
 * and its change along one number of k is shown beside the gradient.
 *
 *     cc 02_backward.c $(pkg-config --cflags --libs loam) -lm -o
 * 02_backward */
#include <loam.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 64, DIM = 16, COUNT = TOKENS * DIM };

typedef struct data {
    double q[COUNT], k[COUNT], v[COUNT], o[COUNT];
    double grad_o[COUNT], grad_q[COUNT], grad_k[COUNT], grad_v[COUNT];
} data;

/* Runs one pass of Local Linear Attention on d; forward writes *saved, backward reads it. */
static int attend(loam_pass pass, data *d, void **saved)
{
    loam_problem problem = loam_problem_default(LOAM_LLA, pass);
    problem.dtype = LOAM_F64;
    problem.len_q = problem.len_kv = TOKENS;
    problem.dim_qk = problem.dim_v = DIM;

    loam_error error;
    loam_plan *plan;
    if (loam_plan_create(&plan, &problem, &error)) return fprintf(stderr, "%s\n", error.text), 1;
    if (!*saved) *saved = aligned_alloc(LOAM_ALIGN, loam_plan_saved_bytes(plan));
    const size_t bytes = loam_plan_work_bytes(plan);
    loam_args args = {
        .q = loam_dense(d->q, 1, TOKENS, DIM),
        .k = loam_dense(d->k, 1, TOKENS, DIM),
        .v = loam_dense(d->v, 1, TOKENS, DIM),
        .saved = *saved,
        .work = bytes ? aligned_alloc(LOAM_ALIGN, bytes) : NULL,
    };
    if (pass == LOAM_FORWARD) {
        args.o = loam_dense_out(d->o, 1, TOKENS, DIM);
    } else {
        args.grad_o = loam_dense(d->grad_o, 1, TOKENS, DIM);
        args.grad_q = loam_dense_out(d->grad_q, 1, TOKENS, DIM);
        args.grad_k = loam_dense_out(d->grad_k, 1, TOKENS, DIM);
        args.grad_v = loam_dense_out(d->grad_v, 1, TOKENS, DIM);
    }
    const loam_status status = loam_run(plan, &args, &error);
    if (status) fprintf(stderr, "%s\n", error.text);
    free(args.work);
    loam_plan_destroy(plan);
    return status != LOAM_OK;
}

static double loss(const data *d)
{
    double sum = 0;
    for (int index = 0; index < COUNT; index++)
        sum += d->o[index];
    return sum;
}

/* The change of the loss along k[at], by a central difference. */
static int measure(data *d, int at, void **saved, double *slope)
{
    const double k = d->k[at], step = 1e-5;
    d->k[at] = k + step;
    int failed = attend(LOAM_FORWARD, d, saved);
    const double above = loss(d);
    d->k[at] = k - step;
    failed |= attend(LOAM_FORWARD, d, saved);
    d->k[at] = k;
    *slope = (above - loss(d)) / (2 * step);
    return failed;
}

int main(void)
{
    static data d;
    for (int index = 0; index < COUNT; index++) {
        d.q[index] = sin(1.3 * index);
        d.k[index] = sin(0.7 * index * index);
        d.v[index] = cos(2.9 * index);
        d.grad_o[index] = 1;
    }

    void *saved = NULL;
    const int at = 5 * DIM + 3;
    double slope = 0;
    int failed = attend(LOAM_FORWARD, &d, &saved) || attend(LOAM_BACKWARD, &d, &saved) ||
                 measure(&d, at, &saved, &slope);
    free(saved);
    if (!failed) {
        printf("d loss / d k[5][3]: %.9f by backward, %.9f by differences\n", d.grad_k[at], slope);
        failed = !(fabs(d.grad_k[at] - slope) <= 1e-6 * (1 + fabs(slope)));
    }
    return failed;
}
