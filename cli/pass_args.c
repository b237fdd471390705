/* SPDX-License-Identifier: MIT */
#include "cli/pass_args.h"

static void drop_results(loam_args *a)
{
    a->o = a->lse = a->rho = a->weights = a->info = a->state_out = (loam_view){ 0 };
}

static void drop_gradients(loam_args *a)
{
    a->grad_o = a->grad_state_out = (loam_const_view){ 0 };
    a->grad_q = a->grad_k = a->grad_v = a->grad_probe = a->grad_ridge = (loam_view){ 0 };
    a->grad_key_bias = a->grad_log_decay = a->grad_beta = a->grad_state_in = a->grad_w = (loam_view){ 0 };
    a->grad_scale = a->grad_slope = a->grad_sink = NULL;
}

loam_args pass_args(loam_args all, loam_pass pass)
{
    (pass == LOAM_BACKWARD ? drop_results : drop_gradients)(&all);
    return all;
}
