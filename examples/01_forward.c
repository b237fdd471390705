/* SPDX-License-Identifier: MIT
 *
 * Forward: the values are an affine function of the keys, v = 1 + k / 2. Softmax attention averages the
 * values around a query and so pulls every output towards the mean; Local Linear Attention fits the line.
 *
 *     cc 01_forward.c $(pkg-config --cflags --libs loam) -lm -o
 * 01_forward */
#include <loam.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 2, TOKENS = 256, DIM = 8, COUNT = HEADS * TOKENS * DIM };

/* Scattered numbers in [-1, 1), the same on every machine. */
static void fill(float *x, unsigned seed)
{
    for (int index = 0; index < COUNT; index++) {
        seed = seed * 1664525u + 1013904223u;
        x[index] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

/* Returns 0 and fills o, or says what was wrong. */
static int attend(loam_mechanism mechanism, const float *q, const float *k, const float *v, float *o)
{
    loam_problem problem = loam_problem_default(mechanism, LOAM_FORWARD);
    problem.heads_q = problem.heads_kv = HEADS;
    problem.len_q = problem.len_kv = TOKENS;
    problem.dim_qk = problem.dim_v = DIM;
    problem.ridge = 1e-3;

    loam_error error;
    loam_plan *plan;
    if (loam_plan_create(&plan, &problem, &error)) return fprintf(stderr, "%s\n", error.text), 1;
    const size_t bytes = loam_plan_work_bytes(plan);
    void *work = bytes ? aligned_alloc(LOAM_ALIGN, bytes) : NULL;
    const loam_args args = {
        .q = loam_dense(q, HEADS, TOKENS, DIM),
        .k = loam_dense(k, HEADS, TOKENS, DIM),
        .v = loam_dense(v, HEADS, TOKENS, DIM),
        .o = loam_dense_out(o, HEADS, TOKENS, DIM),
        .work = work,
    };
    const loam_status status = loam_run(plan, &args, &error);
    if (status)
        fprintf(stderr, "%s\n", error.text);
    else
        printf("%s\n", loam_plan_name(plan));
    free(work);
    loam_plan_destroy(plan);
    return status != LOAM_OK;
}

/* Root of the mean square of o - (1 + q / 2) over the queries that see many keys. */
static double error_of(const float *q, const float *o)
{
    double sum = 0;
    int count = 0;
    for (int head = 0; head < HEADS; head++) {
        for (int index = TOKENS / 2 * DIM; index < TOKENS * DIM; index++, count++) {
            const int at = head * TOKENS * DIM + index;
            const double off = (double)o[at] - (1 + 0.5 * (double)q[at]);
            sum += off * off;
        }
    }
    return sqrt(sum / count);
}

int main(void)
{
    static float q[COUNT], k[COUNT], v[COUNT], o[COUNT];
    fill(q, 1);
    fill(k, 2);
    for (int index = 0; index < COUNT; index++)
        v[index] = 1 + k[index] / 2;

    if (attend(LOAM_SOFTMAX, q, k, v, o)) return 1;
    const double constant = error_of(q, o);
    if (attend(LOAM_LLA, q, k, v, o)) return 1;
    const double line = error_of(q, o);
    printf("error of softmax %.4f, of local linear attention %.4f\n", constant, line);
    return !(line < constant / 20);
}
