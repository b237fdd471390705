/* SPDX-License-Identifier: MIT
 * What stands for log decays and strengths that were left out: arrays like those that --help tells of. */
#include "cli/attend/attend.h"
#include "cli/names.h"

#include <math.h>

/* Of `axes` axes, those of the heads of `like`. */
static int fill(attend_run *run, enum attend_input which, enum attend_input like, int axes, double value,
                io_error *error)
{
    int64_t shape[4];
    const int64_t tokens = attend_tokens_kv(run), channels = attend_sizes_of(run, &run->in[IN_Q]).channels;
    const int rank = attend_side_shape(run, like, axes, tokens, channels, shape);
    array *a = &run->in[which];
    const int status = array_create(a, run->real, rank, shape, attend_input_option(which), error);
    for (int64_t i = 0; i < a->count && !status; i++)
        array_set(a, i, value);
    return status;
}

/* 1 - 2^(-5 - h), Sun et al. 2023. */
static int fill_heads(attend_run *run, io_error *error)
{
    const int64_t heads = attend_sizes_of(run, &run->in[IN_V]).heads;
    array *a = &run->in[IN_LOG_DECAY];
    const int status = array_create(a, run->real, 1, &heads, "--log-decay", error);
    for (int64_t h = 0; h < heads && !status; h++)
        array_set(a, h, log1p(-exp2(-5 - (double)h)));
    return status;
}

static int fill_decay(attend_run *run, io_error *error)
{
    switch (run->options->form.log_decay) {
    case LOAM_DECAY_HEAD: return fill_heads(run, error);
    case LOAM_DECAY_TOKEN: return fill(run, IN_LOG_DECAY, IN_V, 3, 0, error);
    case LOAM_DECAY_CHANNEL: return fill(run, IN_LOG_DECAY, IN_V, 4, 0, error);
    case LOAM_DECAY_NONE: break;
    }
    return fill(run, IN_LOG_DECAY, IN_Q, 3, 0, error); /* of the scores */
}

int attend_defaults(attend_run *run, io_error *error)
{
    const attend_options *o = run->options;
    const bool decays = attend_decays(o) && !o->in[IN_LOG_DECAY],
               writes = attend_writes(o) && !o->in[IN_BETA];
    const int status = decays ? fill_decay(run, error) : 0;
    if (status || !writes) return status;
    return fill(run, IN_BETA, names_is_recurrent(&o->form) ? IN_V : IN_K, 3, 1, error);
}
