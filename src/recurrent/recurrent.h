/* SPDX-License-Identifier: MIT
 *
 * The recurrent family: definitions that its kernels share. A kernel gets a checked problem, with all
 * defaults filled in, and checked arguments; it does not see the plan.
 *
 * A state M [rows, dim_qk] holds all that is carried from token to token. Its rows belong to the entries of
 * one generalised value w_t: v_t, then 1 where the read is normalised, or k_t where it is solved (MesaNet).
 * So one recurrence serves S, s and H:
 *
 *     M_t = M_{t-1} Diag(e^{g_t}) + u_t k_t^T,   u_t = beta_t (w_t - [delta rule] M_{t-1} Diag(e^{g_t}) k_t)
 *
 * Names: b batch, h value head, t token, c channel, r row of the state.
 */
#ifndef LOAM_RECURRENT_RECURRENT_H
#define LOAM_RECURRENT_RECURRENT_H

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/kernel.h"
#include "src/base/sequence.h"
#include "src/base/size.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KERNEL(machine, ...) KERNEL_DECLARE_##machine(__VA_ARGS__)
#include "src/recurrent/kernels.def"
#undef KERNEL
kernel_fits_fn recurrent_fits, recurrent_hopper_fits, recurrent_mesa_hopper_fits, positive_fits,
    positive_hopper_fits;

/* ------------------------------------------------------------------ mechanisms: the switches
 * of the recurrence */

typedef enum recurrent_gate {
    GATE_NONE,
    GATE_HEAD,   /* a constant per head */
    GATE_TOKEN,  /* one per token */
    GATE_CHANNEL /* one per token and channel */
} recurrent_gate;

typedef struct recurrent_form {
    recurrent_gate gate;
    bool beta;   /* a write strength per token, else 1 */
    bool delta;  /* delta rule: the value that the state predicts for k_t is subtracted first */
    bool solved; /* x_t = (H_t + Lambda)^-1 scale q_t, else scale q_t */
} recurrent_form;

/* NULL for mechanisms of other families. */
const recurrent_form *recurrent_form_of(loam_mechanism mechanism);

LOAM_INLINE bool recurrent_positive(const loam_problem *p)
{
    return p->feature_map == LOAM_FEATURES_POSITIVE;
}

/* With positive features the last row has the logarithms that the others are relative to. */
static inline int64_t recurrent_state_rows(const loam_problem *p)
{
    return p->dim_v + (p->normalise ? 1 : 0) + (recurrent_form_of(p->mechanism)->solved ? p->dim_qk : 0) +
           (recurrent_positive(p) ? 1 : 0);
}

LOAM_INLINE int64_t recurrent_state_width(const loam_problem *p)
{
    return recurrent_positive(p) ? p->features : p->dim_qk;
}

/* Heads of states and, with positive features, of z. */
LOAM_INLINE int64_t recurrent_state_heads(const loam_problem *p)
{
    return recurrent_positive(p) && p->features_shared ? p->heads_kv : p->heads_v;
}

/* Heads of k, and of v. */
LOAM_INLINE int64_t recurrent_value_heads(const loam_problem *p)
{
    return recurrent_positive(p) ? p->heads_kv : p->heads_v;
}

/* ------------------------------------------------------------------ sequences */

/* Token t of a sequence is row `first + t` of the token axis at batch index b; its state is state `index`. */
typedef struct recurrent_seq {
    int64_t b, first, len, index;
} recurrent_seq;

LOAM_INLINE recurrent_seq recurrent_seq_at(const loam_problem *p, const loam_args *a, int64_t b)
{
    if (sequence_packed(p)) {
        const sequence_span span = sequence_span_at(a->cu_q, b, p->len_q, p->total_q);
        return (recurrent_seq){ 0, span.first, span.len, b };
    }
    return (recurrent_seq){ b, 0, p->len_q, b };
}

/* The head of q and k that value head h reads. */
LOAM_INLINE int64_t recurrent_key_head(const loam_problem *p, int64_t h)
{
    return h / (p->heads_v / p->heads_q);
}

/* Element offset of token (or row of a state) t of head h in a view. */
#define RECURRENT_AT(view, b, h, t) ((b) * (view).batch + (h) * (view).head + (t) * (view).token)

/* Lambda of channel c of a value head. */
LOAM_INLINE double recurrent_ridge(const loam_problem *p, const loam_args *a, int64_t h, int64_t c)
{
    const loam_dtype real = dtype_real(p->dtype);
    if (p->ridge_axes == LOAM_RIDGE_NUMBER)
        return a->ridge.data ? element_load(a->ridge.data, real, 0) : p->ridge;
    return element_load(a->ridge.data, real,
                        h * a->ridge.head + (p->ridge_axes == LOAM_RIDGE_HEAD_CHANNEL ? c : 0));
}

#ifdef __cplusplus
}
#endif

#endif
