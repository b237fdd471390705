/* SPDX-License-Identifier: MIT */
#include "cli/attend/attend.h"

#include "cli/names.h"
#include "io/load.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

/* ---------------------------------------------------------------- the problem */

static loam_dtype chosen_dtype(const attend_run *run)
{
    const attend_options *o = run->options;
    if (o->choice.dtype >= 0) return (loam_dtype)o->choice.dtype;
    bool reference = o->choice.backend == LOAM_BACKEND_REFERENCE;
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
    attend_packed_sizes(run);
}

/* Those of the recurrences, and the scores of softmax, parallax and lla that depend on the tokens between. */
static void fill_switches(attend_run *run)
{
    const attend_options *o = run->options;
    loam_problem *p = &run->problem;
    if (names_is_recurrent(&o->form)) {
        p->heads_v = attend_positive(o) ? p->heads_q : attend_sizes_of(run, &run->in[IN_V]).heads;
        p->features = attend_positive(o) ? attend_state_width(run) : 0;
        p->features_shared = attend_positive(o) && attend_state_heads(run) != p->heads_q;
        p->feature_map = (loam_feature_map)o->choice.feature_map;
        p->normalise = o->normalise;
    } else {
        p->decay = attend_decays(o);
        p->path = run->in[IN_W].data != NULL;
    }
}

static void fill_options(attend_run *run)
{
    const attend_options *o = run->options;
    loam_problem *p = &run->problem;
    p->dtype = chosen_dtype(run);
    run->real = p->dtype == LOAM_F64 ? LOAM_F64 : LOAM_F32;
    p->score = (loam_score)o->choice.score;
    p->causal = !o->full;
    p->slope = run->in[IN_SLOPE].data != NULL;
    p->key_bias = run->in[IN_KEY_BIAS].data != NULL;
    p->sink = run->in[IN_SINK].data != NULL;
    if (o->form.ridge_axes) p->ridge = o->ridge_number;
    p->ridge_unit = (loam_ridge_unit)o->choice.ridge_unit;
    fill_switches(run);
    p->backend = (loam_backend)o->choice.backend;
    p->kernel = o->kernel;
    p->threads = (int)o->threads;
}

/* -inf forgets everything, and is as good as any other log decay. */
static int convert_log_decay(attend_run *run, io_error *error)
{
    array *a = &run->in[IN_LOG_DECAY];
    const char *path = run->options->in[IN_LOG_DECAY];
    char text[ARRAY_TEXT];
    for (int64_t i = 0; i < a->count; i++)
        if (!(array_get(a, i) <= 0))
            return io_fail(error, EXIT_INPUT,
                           "%s: the log decay at %s is %g: expected a logarithm from -inf to 0", path,
                           array_index_text(text, a, i), array_get(a, i));
    return array_convert(a, run->real, path, error);
}

static int convert_input(attend_run *run, enum attend_input which, io_error *error)
{
    array *a = &run->in[which];
    const char *path = run->options->in[which];
    bool is_real = which >= IN_RIDGE && which <= IN_SINK;
    if (!a->data || !path) return 0;
    if (which == IN_LOG_DECAY) return convert_log_decay(run, error);
    int status = array_check_finite(a, path, error);
    if (!status) status = array_convert(a, is_real ? run->real : run->problem.dtype, path, error);
    return status ? status : array_check_finite(a, path, error);
}

/* Every value lies between `least` and `most`. */
static int check_values(const attend_run *run, enum attend_input which, const char *what, double least,
                        double most, const char *expected, io_error *error)
{
    const array *a = &run->in[which];
    char text[ARRAY_TEXT];
    for (int64_t i = 0; i < a->count && run->options->in[which]; i++)
        if (array_get(a, i) < least || array_get(a, i) > most)
            return io_fail(error, EXIT_INPUT, "%s: the %s at %s is %g: expected %s", run->options->in[which],
                           what, array_index_text(text, a, i), array_get(a, i), expected);
    return 0;
}

static int check_ranges(const attend_run *run, io_error *error)
{
    const attend_options *o = run->options;
    const bool positive = o->form.ridge_positive;
    char expected[64] = "a number of at least 0";
    const int status = check_values(run, IN_RIDGE, "ridge", positive ? DBL_MIN : 0, DBL_MAX,
                                    positive ? "a number above 0" : expected, error);
    if (isfinite(o->form.beta_most))
        snprintf(expected, sizeof expected, "a number from 0 to %g", o->form.beta_most);
    return status ? status : check_values(run, IN_BETA, "beta", 0, o->form.beta_most, expected, error);
}

int attend_read(attend_run *run, io_error *error)
{
    const attend_options *o = run->options;
    int status = 0;
    for (int i = 0; i < IN_COUNT && !status; i++)
        if (o->in[i]) status = array_load(&run->in[i], o->in[i], error);
    if (status) return status;
    run->problem = o->problem;
    run->problem.mechanism = o->mechanism;
    run->tokens_first = o->choice.tokens_first;
    run->rank = run->in[IN_Q].rank;
    status = attend_check_ranks(run, error);
    if (!status) status = attend_packed_read(run, error);
    if (!status)
        status = (names_is_recurrent(&o->form) ? attend_recurrent_shapes : attend_local_shapes)(run, error);
    if (status) return status;
    fill_sizes(run);
    fill_options(run);
    for (int i = 0; i < IN_COUNT && !status; i++)
        status = convert_input(run, (enum attend_input)i, error);
    if (!status) status = check_ranges(run, error);
    return status ? status : attend_defaults(run, error);
}
