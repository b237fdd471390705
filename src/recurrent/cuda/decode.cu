/* SPDX-License-Identifier: MIT
 * The launches of step_kernel. */
#include "src/recurrent/cuda/decode.h"

#include "src/recurrent/cuda/step.cuh"

bool recurrent_step_reads(const loam_problem *p, const loam_args *a)
{
    const auto quads = [&](const auto &view, loam_dtype dtype) {
        return rows_in_quads(p, view.data, dtype_bytes(dtype), view.batch, view.head, view.token);
    };
    return p->len_q == 1 && p->heads_v < 65536 && quads(a->q, p->dtype) && quads(a->k, p->dtype) &&
           quads(a->state_in, LOAM_F32) && quads(a->state_out, LOAM_F32) &&
           (recurrent_form_of(p->mechanism)->gate != GATE_CHANNEL || quads(a->log_decay, LOAM_F32));
}

loam_status recurrent_step_cuda(const loam_problem *p, const loam_args *a, const float *weight,
                                loam_error *error)
{
    step s = {};
    s.p = *p, s.a = *a, s.form = *recurrent_form_of(p->mechanism), s.weight = weight;
    s.share = (unsigned)(p->heads_v / p->heads_q);
    switch (p->dtype) {
    case LOAM_BF16: return step_run<__nv_bfloat16>(&s, error);
    case LOAM_F16: return step_run<__half>(&s, error);
    default: return step_run<float>(&s, error);
    }
}
