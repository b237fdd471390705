/* SPDX-License-Identifier: MIT
 * Sizes, views and shapes of the arrays of `loam attend`, and what is said where they do not fit. */
#include "cli/attend/attend.h"

#include <string.h>

const char *attend_input_option(enum attend_input which)
{
    static const char *const options[] = { [IN_Q] = "--q",
                                           [IN_K] = "--k",
                                           [IN_V] = "--v",
                                           [IN_PROBE] = "--probe",
                                           [IN_W] = "--w",
                                           [IN_RIDGE] = "--ridge",
                                           [IN_LOG_DECAY] = "--log-decay",
                                           [IN_BETA] = "--beta",
                                           [IN_STATE] = "--state-in",
                                           [IN_GRAD_STATE] = "--grad-state-out",
                                           [IN_Z] = "--z",
                                           [IN_LOG_ALPHA] = "--log-alpha",
                                           [IN_SHIFT] = "--shift",
                                           [IN_BALANCE] = "--balance",
                                           [IN_BALANCE_KEYS] = "--balance-keys",
                                           [IN_SLOPE] = "--slope",
                                           [IN_KEY_BIAS] = "--key-bias",
                                           [IN_SINK] = "--sink",
                                           [IN_GRAD_OUT] = "--grad-out" };
    return options[which];
}

const char *attend_output_option(enum attend_output which)
{
    static const char *const options[OUT_DQ] = {
        [OUT_O] = "--out",           [OUT_LSE] = "--lse",   [OUT_RHO] = "--rho",
        [OUT_WEIGHTS] = "--weights", [OUT_INFO] = "--info", [OUT_STATE] = "--state-out"
    };
    return options[which];
}

attend_sizes attend_sizes_of(const attend_run *run, const array *a)
{
    attend_sizes sizes = { 1, 1, 1, 1 };
    if (a->rank == 4) sizes.batch = a->shape[0];
    if (a->rank >= 3) {
        const int64_t *last = a->shape + a->rank - 3;
        sizes.heads = last[run->tokens_first ? 1 : 0];
        sizes.tokens = last[run->tokens_first ? 0 : 1];
    } else {
        sizes.tokens = a->shape[0];
    }
    sizes.channels = a->shape[a->rank - 1];
    return sizes;
}

loam_view attend_view(const attend_run *run, array *a)
{
    if (!a->data) return (loam_view){ 0 };
    attend_sizes s = attend_sizes_of(run, a);
    if (!run->tokens_first) return loam_dense_out(a->data, s.heads, s.tokens, s.channels);
    return (loam_view){ a->data, s.heads * s.tokens * s.channels, s.channels, s.heads * s.channels };
}

loam_const_view attend_const_view(const attend_run *run, array *a)
{
    loam_view view = attend_view(run, a);
    return (loam_const_view){ view.data, view.batch, view.head, view.token };
}

int attend_misfit(const attend_run *run, enum attend_input a, enum attend_input b, const char *expected,
                  io_error *error)
{
    const array *x = &run->in[a], *y = &run->in[b];
    char x_shape[ARRAY_TEXT], y_shape[ARRAY_TEXT];
    return io_fail(error, EXIT_INPUT, "%s %s has shape %s and %s %s has shape %s: expected %s",
                   attend_input_option(a), run->options->in[a], array_shape_text(x_shape, x->rank, x->shape),
                   attend_input_option(b), run->options->in[b], array_shape_text(y_shape, y->rank, y->shape),
                   expected);
}

int attend_side_shape(const attend_run *run, enum attend_input like, int axes, int64_t rows, int64_t channels,
                      int64_t *shape)
{
    attend_sizes s = attend_sizes_of(run, &run->in[like]);
    const int64_t all[] = { s.batch, s.heads, rows, channels };
    int skipped = 4 - run->rank, rank = 0;
    for (int axis = skipped; axis < axes; axis++)
        shape[rank++] = all[axis];
    return rank;
}

int64_t attend_tokens_q(const attend_run *run) { return attend_sizes_of(run, &run->in[IN_Q]).tokens; }
int64_t attend_tokens_kv(const attend_run *run) { return attend_sizes_of(run, &run->in[IN_K]).tokens; }

bool attend_has_shape(const array *a, int rank, const int64_t *shape)
{
    return a->rank == rank && memcmp(a->shape, shape, (size_t)rank * sizeof *shape) == 0;
}

bool attend_is_single(const array *a) { return a->rank == 0 || (a->rank == 1 && a->shape[0] == 1); }

int attend_wrong_shape(const attend_run *run, enum attend_input which, enum attend_input like,
                       const char *expected, io_error *error)
{
    const array *a = &run->in[which], *b = &run->in[like];
    char a_shape[ARRAY_TEXT], b_shape[ARRAY_TEXT];
    return io_fail(error, EXIT_INPUT, "%s %s has shape %s: with %s of shape %s expected %s",
                   attend_input_option(which), run->options->in[which],
                   array_shape_text(a_shape, a->rank, a->shape), attend_input_option(like),
                   array_shape_text(b_shape, b->rank, b->shape), expected);
}

int attend_check_side(const attend_run *run, enum attend_input which, enum attend_input like, int axes,
                      int64_t rows, int64_t channels, io_error *error)
{
    const array *a = &run->in[which];
    int64_t shape[4];
    char text[ARRAY_TEXT];
    const int rank = attend_side_shape(run, like, axes, rows, channels, shape);
    if (!a->data || attend_has_shape(a, rank, shape)) return 0;
    return attend_wrong_shape(run, which, like, array_shape_text(text, rank, shape), error);
}

int attend_check_per_head(const attend_run *run, enum attend_input which, enum attend_input like,
                          io_error *error)
{
    const array *a = &run->in[which];
    const int64_t heads = attend_sizes_of(run, &run->in[like]).heads;
    char text[ARRAY_TEXT];
    if (!a->data || attend_has_shape(a, 1, &heads) || (heads == 1 && attend_is_single(a))) return 0;
    return attend_wrong_shape(run, which, like, array_shape_text(text, 1, &heads), error);
}

int attend_check_ranks(const attend_run *run, io_error *error)
{
    static const enum attend_input like_q[] = { IN_K, IN_V, IN_PROBE, IN_W, IN_GRAD_OUT };
    const array *q = &run->in[IN_Q];
    char text[ARRAY_TEXT];
    if (q->rank < 2 || q->rank > 4)
        return io_fail(error, EXIT_INPUT, "--q %s has shape %s: expected (B,H,T,D), (H,T,D) or (T,D)",
                       run->options->in[IN_Q], array_shape_text(text, q->rank, q->shape));
    for (int i = 0; i < 5; i++)
        if (run->in[like_q[i]].data && run->in[like_q[i]].rank != q->rank)
            return attend_misfit(run, IN_Q, like_q[i], "the same number of axes", error);
    return 0;
}
