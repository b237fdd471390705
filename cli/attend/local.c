/* SPDX-License-Identifier: MIT
 * The shapes of what the local family reads. */
#include "cli/attend/attend.h"

#include <string.h>

static bool same_shape(const array *a, const array *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

static int check_arrays(const attend_run *run, io_error *error)
{
    attend_sizes q = attend_sizes_of(run, &run->in[IN_Q]);
    attend_sizes k = attend_sizes_of(run, &run->in[IN_K]);
    attend_sizes v = attend_sizes_of(run, &run->in[IN_V]);
    if (q.channels != k.channels) return attend_misfit(run, IN_Q, IN_K, "the same last axis", error);
    if (q.batch != k.batch) return attend_misfit(run, IN_Q, IN_K, "the same batch", error);
    if (k.batch != v.batch || k.heads != v.heads || k.tokens != v.tokens)
        return attend_misfit(run, IN_K, IN_V, "the same batch, heads and tokens", error);
    if (q.heads < 1 || k.heads < 1 || q.heads % k.heads)
        return attend_misfit(run, IN_Q, IN_K, "heads of q in a multiple of the heads of k", error);
    if (run->in[IN_PROBE].data && !same_shape(&run->in[IN_Q], &run->in[IN_PROBE]))
        return attend_misfit(run, IN_Q, IN_PROBE, "the same shape", error);
    if (run->in[IN_W].data && !same_shape(&run->in[IN_K], &run->in[IN_W]))
        return attend_misfit(run, IN_K, IN_W, "the same shape", error);
    if (!run->in[IN_GRAD_OUT].data) return 0;
    attend_sizes g = attend_sizes_of(run, &run->in[IN_GRAD_OUT]);
    if (g.batch != q.batch || g.heads != q.heads || g.tokens != q.tokens)
        return attend_misfit(run, IN_Q, IN_GRAD_OUT, "the same batch, heads and tokens", error);
    if (g.channels != v.channels) return attend_misfit(run, IN_V, IN_GRAD_OUT, "the same last axis", error);
    return 0;
}

static int check_ridge(attend_run *run, io_error *error)
{
    loam_ridge_axes *axes = &run->problem.ridge_axes;
    const array *a = &run->in[IN_RIDGE];
    attend_sizes q = attend_sizes_of(run, &run->in[IN_Q]);
    int64_t token[4], channel[4];
    int token_rank = attend_side_shape(run, IN_Q, 3, q.tokens, 1, token),
        channel_rank = attend_side_shape(run, IN_Q, 4, q.tokens, q.channels, channel);
    *axes = LOAM_RIDGE_NUMBER;
    if (!a->data || attend_is_single(a)) return 0;
    if (run->rank > 2 && attend_has_shape(a, 1, &q.heads))
        *axes = LOAM_RIDGE_HEAD;
    else if (attend_has_shape(a, token_rank, token))
        *axes = LOAM_RIDGE_TOKEN;
    else if (attend_has_shape(a, channel_rank, channel))
        *axes = LOAM_RIDGE_CHANNEL;
    else
        return attend_wrong_shape(run, IN_RIDGE, IN_Q,
                                  run->rank == 4   ? "(), (1,), (H,), (B,H,T) or (B,H,T,D)"
                                  : run->rank == 3 ? "(), (1,), (H,), (H,T) or (H,T,D)"
                                                   : "(), (1,), (T,) or (T,D)",
                                  error);
    return 0;
}

int attend_local_shapes(attend_run *run, io_error *error)
{
    int status = check_arrays(run, error);
    if (status) return status;
    const attend_sizes k = attend_sizes_of(run, &run->in[IN_K]);
    status = check_ridge(run, error);
    if (!status) status = attend_check_per_head(run, IN_SLOPE, IN_Q, error);
    if (!status) status = attend_check_per_head(run, IN_SINK, IN_Q, error);
    if (!status) status = attend_check_side(run, IN_KEY_BIAS, IN_Q, 3, k.tokens, 1, error);
    if (!status) status = attend_check_side(run, IN_LOG_DECAY, IN_Q, 3, k.tokens, 1, error);
    return status ? status : attend_check_side(run, IN_BETA, IN_K, 3, k.tokens, 1, error);
}
