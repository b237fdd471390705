/* SPDX-License-Identifier: MIT
 * `loam attend interpolation`: softmax on what a recurrence leaves over. The scores' options are the
 * softmax's, all else is of the recurrence. */
#include "cli/attend/attend.h"

#include <stdio.h>
#include <stdlib.h>

static loam_problem local_problem(const attend_run *run)
{
    loam_problem local = run->problem;
    local.mechanism = LOAM_SOFTMAX, local.ridge_axes = LOAM_RIDGE_NUMBER;
    local.heads_v = 0, local.feature_map = LOAM_FEATURES_IDENTITY, local.normalise = 0;
    return local;
}

static loam_problem recurrent_problem(const attend_run *run)
{
    const loam_problem *p = &run->problem;
    loam_problem recurrent = loam_problem_default(p->mechanism, p->pass);
    recurrent.dtype = p->dtype, recurrent.backend = p->backend, recurrent.threads = p->threads;
    recurrent.batch = p->batch, recurrent.heads_q = p->heads_q, recurrent.heads_kv = p->heads_kv;
    recurrent.len_q = p->len_q, recurrent.len_kv = p->len_kv;
    recurrent.dim_qk = p->dim_qk, recurrent.dim_v = p->dim_v;
    recurrent.total_q = p->total_q, recurrent.total_kv = p->total_kv;
    recurrent.ridge = p->ridge, recurrent.ridge_axes = p->ridge_axes, recurrent.ridge_unit = p->ridge_unit;
    recurrent.heads_v = p->heads_v, recurrent.feature_map = p->feature_map;
    recurrent.normalise = p->normalise;
    return recurrent;
}

static int run_both(const attend_run *run, const loam_interpolation *plan, attend_call *call, io_error *error)
{
    const loam_args *all = &call->args;
    loam_args args = { .q = all->q, .k = all->k, .v = all->v, .o = all->o, .lse = all->lse };
    args.grad_o = all->grad_o, args.grad_q = all->grad_q, args.grad_k = all->grad_k,
    args.grad_v = all->grad_v;
    args.grad_scale = all->grad_scale, args.saved = call->saved;
    args.cu_q = all->cu_q, args.cu_kv = all->cu_q;
    loam_args recurrent = { .log_decay = all->log_decay,
                            .beta = all->beta,
                            .ridge = all->ridge,
                            .info = all->info,
                            .state_in = all->state_in,
                            .state_out = all->state_out,
                            .grad_state_out = all->grad_state_out,
                            .grad_log_decay = all->grad_log_decay,
                            .grad_beta = all->grad_beta,
                            .grad_ridge = all->grad_ridge,
                            .grad_state_in = all->grad_state_in };
    const size_t bytes = loam_interpolation_work_bytes(plan);
    if (run->options->verbose)
        fprintf(stderr, "loam attend: %s over %s, %zu bytes of workspace\n",
                loam_plan_name(loam_interpolation_local(plan)),
                loam_plan_name(loam_interpolation_recurrent(plan)), bytes);
    int status = attend_buffer(call, &args.work, bytes, "a workspace", error);
    if (status) return status;
    loam_args_keep(&args, run->problem.pass);
    loam_args_keep(&recurrent, run->problem.pass);
    loam_error reason;
    if (loam_interpolation_run(plan, &args, &recurrent, &reason))
        status = attend_report(&reason, EXIT_INPUT, error);
    if (!call->device) free(args.work);
    return status;
}

static int run_pass(attend_run *run, loam_pass pass, attend_call *call, io_error *error)
{
    run->problem.pass = pass;
    const loam_problem local = local_problem(run), recurrent = recurrent_problem(run);
    loam_interpolation *plan;
    loam_error reason;
    if (loam_interpolation_create(&plan, &local, &recurrent, &reason))
        return attend_report(&reason, EXIT_USAGE, error);
    int status = 0;
    if (pass == LOAM_FORWARD) {
        call->device = loam_plan_problem(loam_interpolation_local(plan))->backend == LOAM_BACKEND_CUDA;
        if (call->device) status = attend_send(run, call, error);
        if (!status && run->options->grad_dir)
            status = attend_buffer(call, &call->saved, loam_interpolation_saved_bytes(plan),
                                   "what the gradients need", error);
    }
    if (!status) status = run_both(run, plan, call, error);
    loam_interpolation_destroy(plan);
    return status;
}

int attend_interpolate(attend_run *run, io_error *error)
{
    attend_call call = { .args = attend_args(run) };
    int status = run_pass(run, LOAM_FORWARD, &call, error);
    if (!status && run->options->grad_dir) status = run_pass(run, LOAM_BACKWARD, &call, error);
    return attend_end(&call, status, error);
}
