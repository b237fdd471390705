/* SPDX-License-Identifier: MIT */
#include "cli/attend/attend.h"
#include "cli/names.h"

#include <stdio.h>
#include <stdlib.h>

int attend_report(const loam_error *from, int exit_status, io_error *error)
{
    if (from->status == LOAM_EMEMORY)
        exit_status = EXIT_INTERNAL;
    else if (from->status == LOAM_ECUDA)
        exit_status = EXIT_INTERNAL;
    else if (from->status == LOAM_ESHAPE)
        exit_status = EXIT_INPUT;
    return io_fail(error, exit_status, "%s", from->text);
}

/* ---------------------------------------------------------------- outputs */

/* [batch, heads_q, tokens of q] with the axes that the rank of q has, and `last` after them where it is >=
 * 0. */
static int make_rows(attend_run *run, enum attend_output which, int64_t last, const char *what,
                     io_error *error)
{
    const loam_problem *p = &run->problem;
    const int64_t all[] = { p->batch, p->heads_q, attend_tokens_q(run), last };
    int skipped = 4 - run->rank;
    return array_create(&run->out[which], run->real, (last < 0 ? 3 : 4) - skipped, all + skipped, what,
                        error);
}

/* Heads of the result. */
static int64_t row_heads(const loam_problem *p) { return p->heads_v ? p->heads_v : p->heads_q; }

static int make_info(attend_run *run, io_error *error)
{
    const loam_problem *p = &run->problem;
    int64_t shape[] = { run->cu_q.at ? 1 : p->batch, row_heads(p), attend_tokens_q(run),
                        sizeof(loam_row_info) / sizeof(float) };
    return array_create(&run->out[OUT_INFO], LOAM_F32, 4, shape, "the info of the rows", error);
}

static int make_state(attend_run *run, io_error *error)
{
    int64_t shape[4];
    const int rank = attend_state_shape(run, shape);
    return array_create(&run->out[OUT_STATE], run->real, rank, shape, "the state", error);
}

static int prepare_forward(attend_run *run, io_error *error)
{
    const attend_options *o = run->options;
    const array *like = &run->in[names_is_recurrent(&o->form) && !attend_positive(o) ? IN_V : IN_Q];
    int64_t o_shape[ARRAY_MAX_RANK];
    for (int axis = 0; axis < run->rank; axis++)
        o_shape[axis] = like->shape[axis];
    o_shape[run->rank - 1] = run->problem.dim_v;
    int status = array_create(&run->out[OUT_O], run->problem.dtype, run->rank, o_shape, "the result", error);
    if (!status && o->out[OUT_LSE]) status = make_rows(run, OUT_LSE, -1, "lse", error);
    if (!status && o->out[OUT_RHO])
        status = array_create(&run->out[OUT_RHO], run->real, run->rank, run->in[IN_Q].shape, "rho", error);
    if (!status && o->out[OUT_WEIGHTS])
        status = make_rows(run, OUT_WEIGHTS, run->problem.len_kv, "the weights", error);
    if (!status && o->out[OUT_INFO]) status = make_info(run, error);
    if (!status && o->out[OUT_STATE]) status = make_state(run, error);
    return status;
}

/* Of the shape of what it is a gradient of, or a single number where that is one. */
static int prepare_backward(attend_run *run, io_error *error)
{
    static const enum attend_input of[OUT_COUNT] = { [OUT_DQ] = IN_Q,
                                                     [OUT_DK] = IN_K,
                                                     [OUT_DV] = IN_V,
                                                     [OUT_DPROBE] = IN_PROBE,
                                                     [OUT_DRIDGE] = IN_RIDGE,
                                                     [OUT_DSCALE] = IN_COUNT,
                                                     [OUT_DSLOPE] = IN_SLOPE,
                                                     [OUT_DKEY_BIAS] = IN_KEY_BIAS,
                                                     [OUT_DSINK] = IN_SINK,
                                                     [OUT_DLOG_DECAY] = IN_LOG_DECAY,
                                                     [OUT_DBETA] = IN_BETA,
                                                     [OUT_DW] = IN_W,
                                                     [OUT_DSTATE] = IN_STATE,
                                                     [OUT_DZ] = IN_Z,
                                                     [OUT_DLOG_ALPHA] = IN_LOG_ALPHA };
    int status = 0;
    for (int i = OUT_DQ; i < OUT_COUNT && !status; i++) {
        const array *a = of[i] < IN_COUNT && run->in[of[i]].data ? &run->in[of[i]] : NULL;
        if (attend_has_gradient(run->options, (enum attend_output)i))
            status = array_create(&run->out[i], a ? a->dtype : run->real, a ? a->rank : 0,
                                  a ? a->shape : NULL, "a gradient", error);
    }
    return status;
}

int attend_prepare(attend_run *run, io_error *error)
{
    int status = prepare_forward(run, error);
    return status || !run->options->grad_dir ? status : prepare_backward(run, error);
}

/* ---------------------------------------------------------------- running */

static loam_view ridge_view(const attend_run *run, array *a)
{
    const loam_problem *p = &run->problem;
    switch (p->ridge_axes) {
    case LOAM_RIDGE_CHANNEL: return loam_dense_out(a->data, p->heads_q, attend_tokens_q(run), p->dim_qk);
    case LOAM_RIDGE_TOKEN: return loam_dense_out(a->data, p->heads_q, attend_tokens_q(run), 1);
    case LOAM_RIDGE_HEAD: return (loam_view){ a->data, 0, 1, 0 };
    case LOAM_RIDGE_HEAD_CHANNEL: return (loam_view){ a->data, 0, p->dim_qk, 0 };
    case LOAM_RIDGE_NUMBER: break;
    }
    return (loam_view){ a->data, 0, 0, 0 };
}

/* Of softmax, parallax and lla a log decay goes with the keys of a query head, a beta with those of a key
 * head. */
static loam_view decay_view(const attend_run *run, array *a)
{
    const loam_problem *p = &run->problem;
    switch (run->options->form.log_decay) {
    case LOAM_DECAY_HEAD: return (loam_view){ a->data, 0, 1, 0 };
    case LOAM_DECAY_TOKEN: return loam_dense_out(a->data, p->heads_v, attend_tokens_q(run), 1);
    case LOAM_DECAY_CHANNEL: return loam_dense_out(a->data, p->heads_v, attend_tokens_q(run), p->dim_qk);
    case LOAM_DECAY_NONE: break;
    }
    return loam_dense_out(a->data, p->heads_q, attend_tokens_kv(run), 1);
}

static loam_view beta_view(const attend_run *run, array *a)
{
    const loam_problem *p = &run->problem;
    return loam_dense_out(a->data, names_is_recurrent(&run->options->form) ? p->heads_v : p->heads_kv,
                          attend_tokens_kv(run), 1);
}

static loam_view state_view(const attend_run *run, array *a)
{
    return loam_dense_out(a->data, attend_state_heads(run), attend_state_rows(run), attend_state_width(run));
}

/* Of an array with `rows` of `columns` for each head of z. */
static loam_view beside_view(array *a, int64_t rows, int64_t columns)
{
    return (loam_view){ a->data, 0, rows * columns, columns };
}

static loam_const_view as_const(loam_view view)
{
    return (loam_const_view){ view.data, view.batch, view.head, view.token };
}

static loam_view rows_view(const attend_run *run, array *a, int64_t last)
{
    return loam_dense_out(a->data, row_heads(&run->problem), attend_tokens_q(run), last);
}

loam_args attend_args(attend_run *run)
{
    const loam_problem *p = &run->problem;
    const int64_t keys = attend_tokens_kv(run);
    array *in = run->in, *out = run->out;
    return (loam_args){ .q = attend_const_view(run, &in[IN_Q]),
                        .k = attend_const_view(run, &in[IN_K]),
                        .v = attend_const_view(run, &in[IN_V]),
                        .probe = attend_const_view(run, &in[IN_PROBE]),
                        .ridge = as_const(ridge_view(run, &in[IN_RIDGE])),
                        .slope = in[IN_SLOPE].data,
                        .key_bias = as_const(loam_dense_out(in[IN_KEY_BIAS].data, p->heads_q, keys, 1)),
                        .sink = in[IN_SINK].data,
                        .o = attend_view(run, &out[OUT_O]),
                        .lse = rows_view(run, &out[OUT_LSE], 1),
                        .rho = attend_view(run, &out[OUT_RHO]),
                        .weights = rows_view(run, &out[OUT_WEIGHTS], p->len_kv),
                        .info = rows_view(run, &out[OUT_INFO], 1),
                        .grad_o = attend_const_view(run, &in[IN_GRAD_OUT]),
                        .grad_q = attend_view(run, &out[OUT_DQ]),
                        .grad_k = attend_view(run, &out[OUT_DK]),
                        .grad_v = attend_view(run, &out[OUT_DV]),
                        .grad_probe = attend_view(run, &out[OUT_DPROBE]),
                        .grad_ridge = ridge_view(run, &out[OUT_DRIDGE]),
                        .grad_scale = out[OUT_DSCALE].data,
                        .grad_slope = out[OUT_DSLOPE].data,
                        .grad_key_bias = loam_dense_out(out[OUT_DKEY_BIAS].data, p->heads_q, keys, 1),
                        .grad_sink = out[OUT_DSINK].data,
                        .log_decay = as_const(decay_view(run, &in[IN_LOG_DECAY])),
                        .beta = as_const(beta_view(run, &in[IN_BETA])),
                        .state_in = as_const(state_view(run, &in[IN_STATE])),
                        .state_out = state_view(run, &out[OUT_STATE]),
                        .grad_state_out = as_const(state_view(run, &in[IN_GRAD_STATE])),
                        .grad_log_decay = decay_view(run, &out[OUT_DLOG_DECAY]),
                        .grad_beta = beta_view(run, &out[OUT_DBETA]),
                        .grad_state_in = state_view(run, &out[OUT_DSTATE]),
                        .w = attend_const_view(run, &in[IN_W]),
                        .grad_w = attend_view(run, &out[OUT_DW]),
                        .z = as_const(beside_view(&in[IN_Z], p->features, p->dim_qk)),
                        .log_alpha = as_const(beside_view(&in[IN_LOG_ALPHA], 1, p->features)),
                        .shift = as_const(beside_view(&in[IN_SHIFT], 1, p->dim_qk)),
                        .balance = as_const(beside_view(&in[IN_BALANCE], p->dim_qk, p->dim_qk)),
                        .balance_keys = as_const(beside_view(&in[IN_BALANCE_KEYS], p->dim_qk, p->dim_qk)),
                        .grad_z = beside_view(&out[OUT_DZ], p->features, p->dim_qk),
                        .grad_log_alpha = beside_view(&out[OUT_DLOG_ALPHA], 1, p->features),
                        .cu_q = run->cu_q.at,
                        .cu_kv = names_is_recurrent(&run->options->form) ? NULL : run->cu_kv.at };
}

static int device_report(const char *failed, io_error *error)
{
    return failed ? io_fail(error, EXIT_INTERNAL, "CUDA: %s", failed) : 0;
}

static size_t array_bytes(const array *a, bool info)
{
    return (size_t)a->count * array_dtype_bytes(info ? LOAM_F32 : a->dtype);
}

int attend_send(attend_run *run, attend_call *call, io_error *error)
{
    loam_args *a = &call->args;
    const void **in[IN_COUNT] = { [IN_Q] = &a->q.data,
                                  [IN_K] = &a->k.data,
                                  [IN_V] = &a->v.data,
                                  [IN_PROBE] = &a->probe.data,
                                  [IN_RIDGE] = &a->ridge.data,
                                  [IN_SLOPE] = &a->slope,
                                  [IN_KEY_BIAS] = &a->key_bias.data,
                                  [IN_SINK] = &a->sink,
                                  [IN_W] = &a->w.data,
                                  [IN_LOG_DECAY] = &a->log_decay.data,
                                  [IN_BETA] = &a->beta.data,
                                  [IN_STATE] = &a->state_in.data,
                                  [IN_GRAD_STATE] = &a->grad_state_out.data,
                                  [IN_Z] = &a->z.data,
                                  [IN_LOG_ALPHA] = &a->log_alpha.data,
                                  [IN_SHIFT] = &a->shift.data,
                                  [IN_BALANCE] = &a->balance.data,
                                  [IN_BALANCE_KEYS] = &a->balance_keys.data,
                                  [IN_GRAD_OUT] = &a->grad_o.data };
    void **out[OUT_COUNT] = { [OUT_O] = &a->o.data,
                              [OUT_LSE] = &a->lse.data,
                              [OUT_RHO] = &a->rho.data,
                              [OUT_WEIGHTS] = &a->weights.data,
                              [OUT_INFO] = &a->info.data,
                              [OUT_DQ] = &a->grad_q.data,
                              [OUT_DK] = &a->grad_k.data,
                              [OUT_DV] = &a->grad_v.data,
                              [OUT_DPROBE] = &a->grad_probe.data,
                              [OUT_DRIDGE] = &a->grad_ridge.data,
                              [OUT_DSCALE] = &a->grad_scale,
                              [OUT_DSLOPE] = &a->grad_slope,
                              [OUT_DKEY_BIAS] = &a->grad_key_bias.data,
                              [OUT_DSINK] = &a->grad_sink,
                              [OUT_STATE] = &a->state_out.data,
                              [OUT_DLOG_DECAY] = &a->grad_log_decay.data,
                              [OUT_DBETA] = &a->grad_beta.data,
                              [OUT_DW] = &a->grad_w.data,
                              [OUT_DSTATE] = &a->grad_state_in.data,
                              [OUT_DZ] = &a->grad_z.data,
                              [OUT_DLOG_ALPHA] = &a->grad_log_alpha.data };
    const void *cu_q = a->cu_q, *cu_kv = a->cu_kv;
    const char *failed = device_set_input(&call->set, &cu_q, (size_t)run->cu_q.count * sizeof(int64_t));
    if (!failed) failed = device_set_input(&call->set, &cu_kv, (size_t)run->cu_kv.count * sizeof(int64_t));
    a->cu_q = cu_q, a->cu_kv = cu_kv;
    for (int i = 0; i < IN_COUNT && !failed; i++)
        failed = device_set_input(&call->set, in[i], array_bytes(&run->in[i], false));
    for (int i = 0; i < OUT_COUNT && !failed; i++)
        failed = device_set_output(&call->set, out[i], array_bytes(&run->out[i], i == OUT_INFO));
    return device_report(failed, error);
}

int attend_buffer(attend_call *call, void **buffer, size_t bytes, const char *what, io_error *error)
{
    if (call->device) return device_report(device_set_scratch(&call->set, buffer, bytes), error);
    *buffer = aligned_alloc(LOAM_ALIGN, (bytes / LOAM_ALIGN + 1) * LOAM_ALIGN);
    return *buffer ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for %s of %zu bytes", what, bytes);
}

int attend_end(attend_call *call, int status, io_error *error)
{
    if (!status && call->device) status = device_report(device_set_fetch(&call->set), error);
    if (!call->device) free(call->saved);
    device_set_free(&call->set);
    return status;
}

static int run_plan(const attend_run *run, const loam_plan *plan, attend_call *call, io_error *error)
{
    size_t bytes = loam_plan_work_bytes(plan);
    if (run->options->verbose)
        fprintf(stderr, "loam attend: %s, %zu bytes of workspace\n", loam_plan_name(plan), bytes);
    int status = attend_buffer(call, &call->args.work, bytes, "a workspace", error);
    if (status) return status;
    loam_error reason;
    loam_args args = call->args;
    loam_args_keep(&args, loam_plan_problem(plan)->pass);
    status = loam_run(plan, &args, &reason) ? attend_report(&reason, EXIT_INPUT, error) : 0;
    if (!call->device) free(call->args.work);
    call->args.work = NULL;
    return status;
}

static int run_planned(attend_run *run, const loam_plan *plan, attend_call *call, io_error *error)
{
    const bool device = loam_plan_problem(plan)->backend == LOAM_BACKEND_CUDA;
    int status = 0;
    if (loam_plan_problem(plan)->pass == LOAM_FORWARD) {
        call->device = device;
        if (device) status = attend_send(run, call, error);
    } else if (device != call->device) {
        return io_fail(error, EXIT_USAGE, "%s: the gradients must be on the back end of the forward",
                       loam_plan_problem(plan)->kernel);
    }
    const size_t bytes = loam_plan_saved_bytes(plan);
    if (!status && run->options->grad_dir && bytes && !call->saved)
        status = attend_buffer(call, &call->saved, bytes, "what the gradients need", error);
    call->args.saved = call->saved;
    return status ? status : run_plan(run, plan, call, error);
}

static int run_pass(attend_run *run, loam_pass pass, attend_call *call, io_error *error)
{
    loam_problem problem = run->problem;
    problem.pass = pass;
    if (pass == LOAM_BACKWARD) {
        problem.kernel = run->options->grad_kernel;
        if (call->device && !problem.kernel) problem.backend = LOAM_BACKEND_CUDA;
    }
    loam_plan *plan;
    loam_error reason;
    if (loam_plan_create(&plan, &problem, &reason)) return attend_report(&reason, EXIT_USAGE, error);
    const int status = run_planned(run, plan, call, error);
    loam_plan_destroy(plan);
    return status;
}

int attend_compute(attend_run *run, io_error *error)
{
    attend_call call = { .args = attend_args(run) };
    int status = run_pass(run, LOAM_FORWARD, &call, error);
    if (!status && run->options->grad_dir) status = run_pass(run, LOAM_BACKWARD, &call, error);
    return attend_end(&call, status, error);
}
