/* SPDX-License-Identifier: MIT */
#include "cli/attend.h"

#include "cli/options.h"
#include "io/load.h"

#include <stdio.h>
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
                                           [IN_SLOPE] = "--slope",
                                           [IN_KEY_BIAS] = "--key-bias",
                                           [IN_SINK] = "--sink",
                                           [IN_GRAD_OUT] = "--grad-out" };
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

/* ---------------------------------------------------------------- shapes */

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

static bool same_shape(const array *a, const array *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

static int check_ranks(const attend_run *run, io_error *error)
{
    static const enum attend_input like_q[] = { IN_K, IN_V, IN_PROBE, IN_GRAD_OUT };
    const array *q = &run->in[IN_Q];
    char text[ARRAY_TEXT];
    if (q->rank < 2 || q->rank > 4)
        return io_fail(error, EXIT_INPUT, "--q %s has shape %s: expected (B,H,T,D), (H,T,D) or (T,D)",
                       run->options->in[IN_Q], array_shape_text(text, q->rank, q->shape));
    for (int i = 0; i < 4; i++)
        if (run->in[like_q[i]].data && run->in[like_q[i]].rank != q->rank)
            return attend_misfit(run, IN_Q, like_q[i], "the same number of axes", error);
    return 0;
}

static int check_shapes(const attend_run *run, io_error *error)
{
    int status = check_ranks(run, error);
    if (status) return status;
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
    if (!run->in[IN_GRAD_OUT].data) return 0;
    attend_sizes g = attend_sizes_of(run, &run->in[IN_GRAD_OUT]);
    if (g.batch != q.batch || g.heads != q.heads || g.tokens != q.tokens)
        return attend_misfit(run, IN_Q, IN_GRAD_OUT, "the same batch, heads and tokens", error);
    if (g.channels != v.channels) return attend_misfit(run, IN_V, IN_GRAD_OUT, "the same last axis", error);
    return 0;
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

/* Slope and sink: one number per head of q. */
static int check_per_head(const attend_run *run, enum attend_input which, io_error *error)
{
    const array *a = &run->in[which];
    int64_t heads = attend_sizes_of(run, &run->in[IN_Q]).heads;
    if (!a->data || attend_has_shape(a, 1, &heads) || (heads == 1 && attend_is_single(a))) return 0;
    char expected[48];
    snprintf(expected, sizeof expected, "(%lld,)", (long long)heads);
    return attend_wrong_shape(run, which, IN_Q, expected, error);
}

static int check_key_bias(const attend_run *run, io_error *error)
{
    const array *a = &run->in[IN_KEY_BIAS];
    int64_t shape[4];
    char text[ARRAY_TEXT];
    int rank = attend_side_shape(run, IN_Q, 3, attend_sizes_of(run, &run->in[IN_K]).tokens, 1, shape);
    if (!a->data || attend_has_shape(a, rank, shape)) return 0;
    return attend_wrong_shape(run, IN_KEY_BIAS, IN_Q, array_shape_text(text, rank, shape), error);
}

static int ridge_axes(const attend_run *run, loam_ridge_axes *axes, io_error *error)
{
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

static int check_side_inputs(attend_run *run, io_error *error)
{
    int status = ridge_axes(run, &run->problem.ridge_axes, error);
    if (!status) status = check_per_head(run, IN_SLOPE, error);
    if (!status) status = check_per_head(run, IN_SINK, error);
    return status ? status : check_key_bias(run, error);
}

/* ---------------------------------------------------------------- the problem */

static loam_dtype chosen_dtype(const attend_run *run)
{
    static const char *const names[] = { "f32", "bf16", "f16", "f64", NULL };
    const attend_options *o = run->options;
    if (o->dtype) return (loam_dtype)options_choice(o->dtype, names);
    bool reference = o->backend && strcmp(o->backend, "reference") == 0;
    loam_dtype dtype = run->in[IN_Q].dtype;
    return dtype == LOAM_F64 && !reference ? LOAM_F32 : dtype;
}

static void fill_sizes(attend_run *run)
{
    loam_problem *p = &run->problem;
    attend_sizes q = attend_sizes_of(run, &run->in[IN_Q]), k = attend_sizes_of(run, &run->in[IN_K]);
    p->batch = q.batch, p->heads_q = q.heads, p->heads_kv = k.heads;
    p->len_q = q.tokens, p->len_kv = k.tokens;
    p->dim_qk = q.channels, p->dim_v = attend_sizes_of(run, &run->in[IN_V]).channels;
}

static void fill_options(attend_run *run)
{
    static const char *const units[] = { "normalised", "max", "trace", NULL };
    static const char *const backends[] = { "auto", "reference", "cpu", "cuda", NULL };
    const attend_options *o = run->options;
    loam_problem *p = &run->problem;
    p->dtype = chosen_dtype(run);
    run->real = p->dtype == LOAM_F64 ? LOAM_F64 : LOAM_F32;
    p->score = o->score && strcmp(o->score, "rbf") == 0 ? LOAM_RBF : LOAM_DOT;
    p->scale = o->scale, p->soft_cap = o->soft_cap;
    p->causal = !o->full, p->window = o->window;
    p->slope = run->in[IN_SLOPE].data != NULL;
    p->key_bias = run->in[IN_KEY_BIAS].data != NULL;
    p->sink = run->in[IN_SINK].data != NULL;
    if (o->mechanism == LOAM_LLA) {
        p->ridge = o->ridge_number;
        p->ridge_unit = o->ridge_unit ? (loam_ridge_unit)options_choice(o->ridge_unit, units)
                                      : LOAM_RIDGE_NORMALISED;
    }
    p->backend = o->backend ? (loam_backend)options_choice(o->backend, backends) : LOAM_BACKEND_AUTO;
    p->kernel = o->kernel;
    p->threads = (int)o->threads;
}

static int convert_input(attend_run *run, enum attend_input which, io_error *error)
{
    array *a = &run->in[which];
    const char *path = run->options->in[which];
    bool is_real = which >= IN_RIDGE && which <= IN_SINK;
    if (!a->data) return 0;
    int status = array_check_finite(a, path, error);
    if (!status) status = array_convert(a, is_real ? run->real : run->problem.dtype, path, error);
    return status ? status : array_check_finite(a, path, error);
}

static int check_ridge_values(const attend_run *run, io_error *error)
{
    const array *a = &run->in[IN_RIDGE];
    char text[ARRAY_TEXT];
    for (int64_t i = 0; i < a->count; i++)
        if (array_get(a, i) < 0)
            return io_fail(error, EXIT_INPUT, "%s: the ridge at %s is %g: expected a number of at least 0",
                           run->options->in[IN_RIDGE], array_index_text(text, a, i), array_get(a, i));
    return 0;
}

int attend_read(attend_run *run, io_error *error)
{
    const attend_options *o = run->options;
    int status = 0;
    for (int i = 0; i < IN_COUNT && !status; i++)
        if (o->in[i]) status = array_load(&run->in[i], o->in[i], error);
    if (status) return status;
    run->problem = loam_problem_default(o->mechanism, LOAM_FORWARD);
    run->tokens_first = o->layout && strcmp(o->layout, "bthd") == 0;
    run->rank = run->in[IN_Q].rank;
    status = check_shapes(run, error);
    if (!status) status = check_side_inputs(run, error);
    if (status) return status;
    fill_sizes(run);
    fill_options(run);
    for (int i = 0; i < IN_COUNT && !status; i++)
        status = convert_input(run, (enum attend_input)i, error);
    return status ? status : check_ridge_values(run, error);
}
