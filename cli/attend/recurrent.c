/* SPDX-License-Identifier: MIT
 * What the recurrent family reads beside q, k and v: shapes, and what stands for inputs that were left
 * out. */
#include "cli/attend/attend.h"

static attend_sizes values_of(const attend_run *run) { return attend_sizes_of(run, &run->in[IN_V]); }

int64_t attend_state_rows(const attend_run *run)
{
    const attend_options *o = run->options;
    return values_of(run).channels + (o->normalise ? 1 : 0) + (attend_positive(o) ? 1 : 0) +
           (o->form.ridge_axes ? attend_sizes_of(run, &run->in[IN_Q]).channels : 0);
}

int attend_state_shape(const attend_run *run, int64_t *shape)
{
    const int packed = run->cu_q.at ? 1 : 0;
    if (packed) shape[0] = run->cu_q.count - 1;
    const int rank = attend_side_shape(run, IN_V, 4, attend_state_rows(run), attend_state_width(run),
                                       shape + packed);
    if (rank > 2) shape[packed + rank - 3] = attend_state_heads(run);
    return packed + rank;
}

/* Features and channels of z, whose heads arrays without heads have not. */
static int64_t z_heads(const array *z) { return z->rank == 3 ? z->shape[0] : 1; }

int64_t attend_state_heads(const attend_run *run)
{
    return attend_positive(run->options) ? z_heads(&run->in[IN_Z]) : values_of(run).heads;
}

int64_t attend_state_width(const attend_run *run)
{
    const array *z = &run->in[IN_Z];
    return attend_positive(run->options) ? z->shape[z->rank - 2]
                                         : attend_sizes_of(run, &run->in[IN_Q]).channels;
}

/* ---------------------------------------------------------------- shapes */

static int check_state(const attend_run *run, enum attend_input which, io_error *error)
{
    int64_t shape[4];
    char text[ARRAY_TEXT];
    const int rank = attend_state_shape(run, shape);
    if (!run->in[which].data || attend_has_shape(&run->in[which], rank, shape)) return 0;
    return attend_wrong_shape(run, which, IN_V, array_shape_text(text, rank, shape), error);
}

static int check_log_decay(const attend_run *run, io_error *error)
{
    const attend_sizes q = attend_sizes_of(run, &run->in[IN_Q]);
    if (run->options->form.log_decay == LOAM_DECAY_HEAD)
        return attend_check_per_head(run, IN_LOG_DECAY, IN_V, error);
    const int axes = run->options->form.log_decay == LOAM_DECAY_CHANNEL ? 4 : 3;
    return attend_check_side(run, IN_LOG_DECAY, IN_V, axes, q.tokens, q.channels, error);
}

/* A number, per head, or per head and channel; without heads, per channel. */
static int check_ridge(attend_run *run, io_error *error)
{
    const array *a = &run->in[IN_RIDGE];
    const int64_t both[] = { values_of(run).heads, attend_sizes_of(run, &run->in[IN_Q]).channels };
    run->problem.ridge_axes = LOAM_RIDGE_NUMBER;
    if (!a->data || attend_is_single(a)) return 0;
    if (run->rank > 2 && attend_has_shape(a, 1, both))
        run->problem.ridge_axes = LOAM_RIDGE_HEAD;
    else if (run->rank > 2 ? attend_has_shape(a, 2, both) : attend_has_shape(a, 1, both + 1))
        run->problem.ridge_axes = LOAM_RIDGE_HEAD_CHANNEL;
    else
        return attend_wrong_shape(run, IN_RIDGE, IN_V,
                                  run->rank > 2 ? "(), (1,), (Hv,) or (Hv,D)" : "(), (1,) or (D,)", error);
    return 0;
}

/* One of the arrays beside z: for each of its heads `columns` numbers, or rows of so many. */
static int check_beside(const attend_run *run, enum attend_input which, int64_t rows, int64_t columns,
                        io_error *error)
{
    const array *z = &run->in[IN_Z], *a = &run->in[which];
    const int64_t all[] = { z->shape[0], rows, columns }, row[] = { z->shape[0], columns };
    const int64_t *shape = rows ? all : row;
    const int skipped = z->rank == 3 ? 0 : 1, rank = (rows ? 3 : 2) - skipped;
    char text[ARRAY_TEXT];
    if (!a->data || attend_has_shape(a, rank, shape + skipped)) return 0;
    return attend_wrong_shape(run, which, IN_Z, array_shape_text(text, rank, shape + skipped), error);
}

int attend_positive_shapes(attend_run *run, io_error *error)
{
    const attend_sizes q = attend_sizes_of(run, &run->in[IN_Q]), k = attend_sizes_of(run, &run->in[IN_K]);
    const array *z = &run->in[IN_Z];
    const int rank = run->rank == 2 ? 2 : 3;
    if (z->rank != rank || z->shape[rank - 1] != q.channels ||
        (z_heads(z) != q.heads && z_heads(z) != k.heads))
        return attend_wrong_shape(run, IN_Z, IN_Q,
                                  rank == 2 ? "(M,D)" : "(Hq,M,D), or (Hk,M,D) for features that heads share",
                                  error);
    int status = check_beside(run, IN_LOG_ALPHA, 0, z->shape[rank - 2], error);
    if (!status) status = check_beside(run, IN_SHIFT, 0, q.channels, error);
    if (!status) status = check_beside(run, IN_BALANCE, q.channels, q.channels, error);
    return status ? status : check_beside(run, IN_BALANCE_KEYS, q.channels, q.channels, error);
}

/* Keys and values have the heads of each other, queries a multiple of them. */
static int check_grouped(attend_run *run, io_error *error)
{
    const attend_sizes q = attend_sizes_of(run, &run->in[IN_Q]), k = attend_sizes_of(run, &run->in[IN_K]);
    const attend_sizes v = values_of(run);
    if (q.batch != k.batch || q.tokens != k.tokens || q.channels != k.channels || k.heads < 1 ||
        q.heads % k.heads)
        return attend_misfit(run, IN_Q, IN_K, "the same shape, or heads of q in a multiple of those of k",
                             error);
    if (k.batch != v.batch || k.tokens != v.tokens || k.heads != v.heads)
        return attend_misfit(run, IN_K, IN_V, "the same batch, heads and tokens", error);
    if (run->in[IN_GRAD_OUT].data) {
        const attend_sizes g = attend_sizes_of(run, &run->in[IN_GRAD_OUT]);
        if (g.batch != q.batch || g.heads != q.heads || g.tokens != q.tokens || g.channels != v.channels)
            return attend_misfit(run, IN_Q, IN_GRAD_OUT, "the same batch, heads and tokens", error);
    }
    int status = attend_positive_shapes(run, error);
    if (!status) status = check_state(run, IN_STATE, error);
    return status ? status : check_state(run, IN_GRAD_STATE, error);
}

int attend_recurrent_shapes(attend_run *run, io_error *error)
{
    if (attend_positive(run->options)) return check_grouped(run, error);
    const attend_sizes q = attend_sizes_of(run, &run->in[IN_Q]), k = attend_sizes_of(run, &run->in[IN_K]);
    const attend_sizes v = values_of(run);
    if (q.batch != k.batch || q.heads != k.heads || q.tokens != k.tokens || q.channels != k.channels)
        return attend_misfit(run, IN_Q, IN_K, "the same shape", error);
    if (q.batch != v.batch || q.tokens != v.tokens)
        return attend_misfit(run, IN_Q, IN_V, "the same batch and tokens", error);
    if (q.heads < 1 || v.heads < 1 || v.heads % q.heads)
        return attend_misfit(run, IN_Q, IN_V, "heads of v in a multiple of the heads of q", error);
    if (run->in[IN_GRAD_OUT].data) {
        const attend_sizes g = attend_sizes_of(run, &run->in[IN_GRAD_OUT]);
        if (g.batch != v.batch || g.heads != v.heads || g.tokens != v.tokens || g.channels != v.channels)
            return attend_misfit(run, IN_V, IN_GRAD_OUT, "the same shape", error);
    }
    int status = check_log_decay(run, error);
    if (!status) status = attend_check_side(run, IN_BETA, IN_V, 3, q.tokens, 1, error);
    if (!status) status = check_state(run, IN_STATE, error);
    if (!status) status = check_state(run, IN_GRAD_STATE, error);
    return status ? status : check_ridge(run, error);
}
