/* SPDX-License-Identifier: MIT
 * Two keys that a query sees alike: softmax attention gives the mean of their values. Prints the version. */
#include <loam.h>

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    const float q[1] = { 0 }, k[2] = { 1, -1 }, v[2] = { 2, 4 };
    float o[1] = { 0 };

    loam_problem problem = loam_problem_default(LOAM_SOFTMAX, LOAM_FORWARD);
    problem.len_q = 1, problem.len_kv = 2, problem.dim_qk = problem.dim_v = 1;
    loam_error error;
    loam_plan *plan;
    if (loam_plan_create(&plan, &problem, &error)) return fprintf(stderr, "%s\n", error.text), 1;
    const size_t bytes = loam_plan_work_bytes(plan);
    void *work = bytes ? aligned_alloc(LOAM_ALIGN, bytes) : NULL;
    const loam_args args = {
        .q = loam_dense(q, 1, 1, 1),
        .k = loam_dense(k, 1, 2, 1),
        .v = loam_dense(v, 1, 2, 1),
        .o = loam_dense_out(o, 1, 1, 1),
        .work = work,
    };
    const loam_status status = loam_run(plan, &args, &error);
    free(work);
    loam_plan_destroy(plan);
    if (status) return fprintf(stderr, "%s\n", error.text), 1;
    printf("%s\n", loam_version());
    return !(o[0] > 2.9999f && o[0] < 3.0001f);
}
