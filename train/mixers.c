/* SPDX-License-Identifier: MIT
 * The table of mixers: which arrays each has, and how they begin. */
#include "train/mixer.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const mixer mixers[] = {
    { .name = "softmax", .mechanism = LOAM_SOFTMAX },
    { .name = "lla", .mechanism = LOAM_LLA, .ridge = MIXER_RIDGE_TOKEN },
    { .name = "parallax", .mechanism = LOAM_PARALLAX, .probe = true },
    { .name = "linear", .mechanism = LOAM_LINEAR, .head_norm = true },
    { .name = "gla",
      .mechanism = LOAM_GLA,
      .decay = MIXER_DECAY_SIGMOID_CHANNEL,
      .rank = 16,
      .taps = 4,
      .published_keys = 0.5,
      .head_norm = true,
      .gate = true },
    { .name = "gated-delta",
      .mechanism = LOAM_GATED_DELTA,
      .silu = true,
      .unit = true,
      .beta_most = 1,
      .decay = MIXER_DECAY_SOFTPLUS,
      .taps = 4,
      .published_values = 2,
      .head_norm = true,
      .gate = true },
    { .name = "mesa",
      .mechanism = LOAM_MESA,
      .scale = 1,
      .unit = true,
      .beta_most = 1,
      .beta_bias = true,
      .decay = MIXER_DECAY_SIGMOID_BIAS,
      .decay_shift = 4,
      .ridge = MIXER_RIDGE_CHANNEL,
      .taps = 4,
      .head_norm = true },
    { .name = "fox", .mechanism = LOAM_SOFTMAX, .decay = MIXER_DECAY_SIGMOID, .decay_shift = 4 },
    { .name = "path", .mechanism = LOAM_SOFTMAX, .reflect = true, .rank = 32, .beta_most = 2 },
    /* Strengths to 2: eigenvalues from -1 on. */
    { .name = "gated-delta-2",
      .mechanism = LOAM_GATED_DELTA,
      .silu = true,
      .unit = true,
      .beta_most = 2,
      .decay = MIXER_DECAY_SOFTPLUS,
      .taps = 4,
      .published_values = 2,
      .head_norm = true,
      .gate = true },
    { .name = "retention",
      .mechanism = LOAM_RETENTION,
      .decay = MIXER_DECAY_FIXED,
      .head_norm = true,
      .gate = true },
    { .name = "delta",
      .mechanism = LOAM_DELTA,
      .silu = true,
      .unit = true,
      .beta_most = 1,
      .taps = 4,
      .head_norm = true },
    { .name = "kda",
      .mechanism = LOAM_KDA,
      .silu = true,
      .unit = true,
      .beta_most = 1,
      .decay = MIXER_DECAY_SOFTPLUS_CHANNEL,
      .rank = 16,
      .taps = 4,
      .head_norm = true,
      .gate = true },
    { .name = "mamba-2",
      .mechanism = LOAM_SSD,
      .block = MIXER_MAMBA,
      .scale = 1,
      .beta_bias = true,
      .decay = MIXER_DECAY_SOFTPLUS,
      .taps = 4,
      .head_norm = true },
    { .name = "hyena", .block = MIXER_HYENA, .taps = 3 },
    { .name = "lla-heads", .mechanism = LOAM_LLA, .ridge = MIXER_RIDGE_HEAD },
    { .name = "features", .mechanism = LOAM_LINEAR, .positive = true },
    { .name = NULL },
};

const mixer *mixer_find(const char *name)
{
    const mixer *row = mixers;
    while (row->name && strcmp(row->name, name) != 0)
        row++;
    return row->name ? row : NULL;
}

static bool by_channel(const mixer *row)
{
    return row->decay == MIXER_DECAY_SIGMOID_CHANNEL || row->decay == MIXER_DECAY_SOFTPLUS_CHANNEL;
}

static bool softplus_decay(const mixer *row)
{
    return row->decay == MIXER_DECAY_SOFTPLUS || row->decay == MIXER_DECAY_SOFTPLUS_CHANNEL;
}

static bool learned_decay(const mixer *row)
{
    return row->decay != MIXER_NO_DECAY && row->decay != MIXER_DECAY_FIXED;
}

bool mixer_has_stage(const mixer *row, const mixer_options *options, stage at, int stream)
{
    const bool filtered = options->short_filter && row->taps > 0 && stream != STREAM_PROBE;
    switch (at) {
    case STAGE_CONV: return filtered;
    /* The published convolutions of queries, keys and values end in it. */
    case STAGE_SILU: return (row->silu || filtered) && !options->no_silu && stream != STREAM_PROBE;
    case STAGE_NORM: return options->qk_norm && stream != STREAM_V;
    default:
        return (options->probe_gate && stream == STREAM_PROBE) ||
               (options->temperature && stream == STREAM_Q && row->block == MIXER_PLAIN);
    }
}

static bool has_low(const mixer *row, const mixer_options *options, int which)
{
    const bool there = which != LOW_PROBE || row->probe;
    return row->block == MIXER_PLAIN && there && (options->low >> which & 1);
}

static bool has_array(const mixer *row, const mixer_options *options, role which)
{
    const bool plain = row->block == MIXER_PLAIN, filtered = options->short_filter && row->taps > 0;
    if (which >= ROLE_FILTER_1 && which <= ROLE_FILTER_RATE) return row->block == MIXER_HYENA;
    if (which >= ROLE_Q_LOW_1 && which <= ROLE_OUT_LOW_2)
        return has_low(row, options, (which - ROLE_Q_LOW_1) % LOWS);
    switch (which) {
    case ROLE_NORM_BIAS: return options->layer_norm;
    case ROLE_IN:
    case ROLE_SKIP: return !plain;
    case ROLE_IN_TAPS: return !plain && filtered;
    case ROLE_Q:
    case ROLE_K:
    case ROLE_V: return plain;
    case ROLE_PROBE: return row->probe && !has_low(row, options, LOW_PROBE);
    case ROLE_Q_BIAS:
    case ROLE_K_BIAS:
    case ROLE_V_BIAS: return plain && options->biases;
    case ROLE_OUT_BIAS: return options->biases;
    case ROLE_TEMPERATURE: return plain && options->temperature;
    case ROLE_Q_TAPS:
    case ROLE_K_TAPS:
    case ROLE_V_TAPS: return plain && filtered;
    case ROLE_Q_GAIN:
    case ROLE_K_GAIN: return options->qk_norm;
    case ROLE_PROBE_GAIN: return options->qk_norm && row->probe;
    case ROLE_PROBE_GATE: return options->probe_gate && row->probe;
    case ROLE_RIDGE: return row->ridge == MIXER_RIDGE_TOKEN;
    case ROLE_REFLECT_1:
    case ROLE_REFLECT_2: return row->reflect;
    case ROLE_BETA: return row->beta_most > 0;
    case ROLE_BETA_BIAS: return row->beta_bias;
    case ROLE_DECAY_RATE: return softplus_decay(row);
    case ROLE_DECAY_1: return plain && learned_decay(row);
    case ROLE_DECAY_2: return by_channel(row);
    case ROLE_DECAY_BIAS: return plain && learned_decay(row) && row->decay != MIXER_DECAY_SIGMOID;
    case ROLE_RIDGE_CHANNEL: return row->ridge == MIXER_RIDGE_CHANNEL;
    case ROLE_RIDGE_HEAD: return row->ridge == MIXER_RIDGE_HEAD;
    case ROLE_Z:
    case ROLE_LOG_ALPHA:
    case ROLE_SHIFT:
    case ROLE_BALANCE:
    case ROLE_BALANCE_KEYS: return row->positive;
    case ROLE_HEAD_GAIN: return row->head_norm;
    case ROLE_GATE: return row->gate;
    case ROLE_MLP_BIAS: return options->mlp && options->layer_norm;
    case ROLE_MLP_GAIN:
    case ROLE_MLP_1:
    case ROLE_MLP_2: return options->mlp;
    case ROLE_MLP_GATE: return options->mlp && options->mlp_gate;
    case ROLE_MLP_1_BIAS:
    case ROLE_MLP_2_BIAS: return options->mlp && options->biases && !options->mlp_gate;
    default: return true;
    }
}

/* The columns of all heads, as many times as are published where that is asked for. */
static int64_t published(const mixer_options *options, const mixer_shape *shape, double times)
{
    const int64_t once = shape->head_dim;
    if (!options->published_dims || !(times > 0)) return once * shape->heads;
    const double channels = times * (double)once;
    assert(channels == floor(channels) && channels >= 1);
    return (int64_t)channels * shape->heads;
}

int64_t mixer_keys(const mixer *row, const mixer_options *options, const mixer_shape *shape)
{
    if (row->block != MIXER_PLAIN) return shape->width / shape->heads;
    return published(options, shape, row->published_keys);
}

int64_t mixer_inner(const mixer *row, const mixer_options *options, const mixer_shape *shape)
{
    if (row->block == MIXER_MAMBA) return MAMBA_EXPAND * shape->width;
    return published(options, shape, row->published_values);
}

int64_t mixer_value_heads(const mixer *row, const mixer_shape *shape)
{
    return row->block == MIXER_MAMBA ? MAMBA_EXPAND * shape->heads : shape->heads;
}

int64_t mixer_stream_heads(const mixer_shape *shape, int stream)
{
    return stream == STREAM_K || stream == STREAM_V ? shape->heads_kv : shape->heads;
}

int64_t mixer_stream_columns(const mixer *row, const mixer_options *options, const mixer_shape *shape,
                             int stream)
{
    const int64_t all = stream == STREAM_V ? mixer_inner(row, options, shape)
                                           : mixer_keys(row, options, shape);
    return all / shape->heads * mixer_stream_heads(shape, stream);
}

int64_t mixer_features(const mixer *row, const mixer_options *options, const mixer_shape *shape)
{
    return options->features > 0 ? options->features : mixer_keys(row, options, shape) / shape->heads;
}

int64_t mixer_feature_heads(const mixer_options *options, const mixer_shape *shape)
{
    return options->features_shared ? shape->heads_kv : shape->heads;
}

int64_t mixer_mlp_inner(const mixer_options *options, const mixer_shape *shape)
{
    return options->mlp_inner > 0 ? options->mlp_inner : MLP_EXPAND * shape->width;
}

int64_t mixer_in_width(const mixer *row, const mixer_shape *shape)
{
    if (row->block == MIXER_HYENA) return 3 * shape->width;
    return 2 * (MAMBA_EXPAND * shape->width + shape->width / shape->heads) + mixer_value_heads(row, shape);
}

/* Of Mamba-2 values, keys and queries; of Hyena all. */
void mixer_filtered(const mixer *row, const mixer_shape *shape, int64_t *first, int64_t *count)
{
    const int64_t inner = MAMBA_EXPAND * shape->width;
    const bool all = row->block == MIXER_HYENA;
    *first = all ? 0 : inner;
    *count = all ? mixer_in_width(row, shape) : inner + 2 * shape->width / shape->heads;
}

static bool is_map_bias(role which)
{
    return (which >= ROLE_Q_BIAS && which <= ROLE_V_BIAS) || which == ROLE_OUT_BIAS ||
           which == ROLE_MLP_1_BIAS || which == ROLE_MLP_2_BIAS;
}

/* Rows and columns of W_q, W_k, W_v, W_R and W_o, of what may be beside them, and of biases; of another array
 * nothing. */
static void map_array(const mixer *row, const mixer_options *options, const mixer_shape *shape, role which,
                      int64_t *rows, int64_t *width)
{
    const int64_t inner = mixer_inner(row, options, shape);
    int64_t in[LOWS], out[LOWS];
    for (int i = 0; i < STREAMS; i++)
        in[i] = shape->width, out[i] = mixer_stream_columns(row, options, shape, i);
    in[LOW_OUT] = inner, out[LOW_OUT] = shape->width;
    if (which >= ROLE_Q && which <= ROLE_PROBE) *rows = in[which - ROLE_Q], *width = out[which - ROLE_Q];
    if (which == ROLE_OUT) *rows = in[LOW_OUT], *width = out[LOW_OUT];
    if (which >= ROLE_Q_LOW_1 && which <= ROLE_OUT_LOW_1)
        *rows = in[which - ROLE_Q_LOW_1], *width = options->rank;
    if (which >= ROLE_Q_LOW_2 && which <= ROLE_OUT_LOW_2)
        *rows = options->rank, *width = out[which - ROLE_Q_LOW_2];
    if (!is_map_bias(which)) return;
    *rows = 1, *width = shape->width;
    if (which <= ROLE_V_BIAS) *width = out[which - ROLE_Q_BIAS];
    if (which == ROLE_MLP_1_BIAS) *width = mixer_mlp_inner(options, shape);
}

/* Those of positive features. */
static void feature_array(const mixer *row, const mixer_options *options, const mixer_shape *shape,
                          role which, int64_t *rows, int64_t *width)
{
    const int64_t features = mixer_features(row, options, shape), heads = mixer_feature_heads(options, shape);
    const int64_t channels = mixer_keys(row, options, shape) / shape->heads;
    if (which == ROLE_Z) *rows = heads * features, *width = channels;
    if (which == ROLE_LOG_ALPHA) *rows = heads, *width = features;
    if (which == ROLE_SHIFT) *rows = heads, *width = channels;
    if (which == ROLE_BALANCE || which == ROLE_BALANCE_KEYS) *rows = heads * channels, *width = channels;
}

void mixer_array(const mixer *row, const mixer_options *options, const mixer_shape *shape, role which,
                 int64_t *rows, int64_t *width)
{
    const int64_t d = shape->width, heads = shape->heads, keys = mixer_keys(row, options, shape);
    const int64_t inner = mixer_inner(row, options, shape), value_heads = mixer_value_heads(row, shape);
    const int64_t gates = by_channel(row) ? keys : heads, mlp = mixer_mlp_inner(options, shape);
    const int64_t k = mixer_stream_columns(row, options, shape, STREAM_K),
                  v = mixer_stream_columns(row, options, shape, STREAM_V);
    int64_t first, filtered;
    mixer_filtered(row, shape, &first, &filtered);
    const int64_t sizes[ROLES][2] = {
        [ROLE_GAIN] = { 1, d },
        [ROLE_NORM_BIAS] = { 1, d },
        [ROLE_IN] = { d, mixer_in_width(row, shape) },
        [ROLE_IN_TAPS] = { row->taps, filtered },
        [ROLE_Q_TAPS] = { row->taps, keys },
        [ROLE_K_TAPS] = { row->taps, k },
        [ROLE_V_TAPS] = { row->taps, v },
        [ROLE_Q_GAIN] = { 1, keys / heads },
        [ROLE_K_GAIN] = { 1, keys / heads },
        [ROLE_PROBE_GAIN] = { 1, keys / heads },
        [ROLE_PROBE_GATE] = { d, heads },
        [ROLE_RIDGE] = { d, heads },
        [ROLE_REFLECT_1] = { d, row->rank },
        [ROLE_REFLECT_2] = { row->rank, keys },
        [ROLE_BETA] = { d, heads },
        [ROLE_BETA_BIAS] = { 1, value_heads },
        [ROLE_DECAY_RATE] = { 1, value_heads },
        [ROLE_DECAY_1] = { d, by_channel(row) ? row->rank : heads },
        [ROLE_DECAY_2] = { row->rank, keys },
        [ROLE_DECAY_BIAS] = { 1, gates },
        [ROLE_RIDGE_CHANNEL] = { 1, keys },
        [ROLE_RIDGE_HEAD] = { 1, heads },
        [ROLE_TEMPERATURE] = { 1, heads },
        [ROLE_FILTER_1] = { 3, HYENA_FILTER },
        [ROLE_FILTER_BIAS_1] = { 1, HYENA_FILTER },
        [ROLE_FILTER_2] = { HYENA_FILTER, HYENA_FILTER },
        [ROLE_FILTER_BIAS_2] = { 1, HYENA_FILTER },
        [ROLE_FILTER_3] = { HYENA_FILTER, HYENA_FILTER },
        [ROLE_FILTER_BIAS_3] = { 1, HYENA_FILTER },
        [ROLE_FILTER_4] = { HYENA_FILTER, d },
        [ROLE_FILTER_RATE] = { 1, HYENA_FILTER },
        [ROLE_SKIP] = { 1, row->block == MIXER_HYENA ? d : value_heads },
        [ROLE_HEAD_GAIN] = { 1, row->block == MIXER_MAMBA ? inner : inner / heads },
        [ROLE_GATE] = { d, inner },
        [ROLE_MLP_GAIN] = { 1, d },
        [ROLE_MLP_BIAS] = { 1, d },
        [ROLE_MLP_1] = { d, mlp },
        [ROLE_MLP_GATE] = { d, mlp },
        [ROLE_MLP_2] = { mlp, d },
    };
    *rows = sizes[which][0], *width = sizes[which][1];
    map_array(row, options, shape, which, rows, width);
    feature_array(row, options, shape, which, rows, width);
    if (!has_array(row, options, which)) *rows = 0;
}

static const char *const names[ROLES] = {
    [ROLE_GAIN] = "gain",
    [ROLE_NORM_BIAS] = "bias",
    [ROLE_IN] = "W_in",
    [ROLE_IN_TAPS] = "taps_in",
    [ROLE_Q] = "W_q",
    [ROLE_K] = "W_k",
    [ROLE_V] = "W_v",
    [ROLE_PROBE] = "W_r",
    [ROLE_Q_BIAS] = "b_q",
    [ROLE_K_BIAS] = "b_k",
    [ROLE_V_BIAS] = "b_v",
    [ROLE_Q_LOW_1] = "A_q",
    [ROLE_K_LOW_1] = "A_k",
    [ROLE_V_LOW_1] = "A_v",
    [ROLE_PROBE_LOW_1] = "A_r",
    [ROLE_OUT_LOW_1] = "A_o",
    [ROLE_Q_LOW_2] = "B_q",
    [ROLE_K_LOW_2] = "B_k",
    [ROLE_V_LOW_2] = "B_v",
    [ROLE_PROBE_LOW_2] = "B_r",
    [ROLE_OUT_LOW_2] = "B_o",
    [ROLE_TEMPERATURE] = "t",
    [ROLE_Q_TAPS] = "taps_q",
    [ROLE_K_TAPS] = "taps_k",
    [ROLE_V_TAPS] = "taps_v",
    [ROLE_Q_GAIN] = "gain_q",
    [ROLE_K_GAIN] = "gain_k",
    [ROLE_PROBE_GAIN] = "gain_r",
    [ROLE_PROBE_GATE] = "w_g",
    [ROLE_RIDGE] = "W_lambda",
    [ROLE_REFLECT_1] = "W_w1",
    [ROLE_REFLECT_2] = "W_w2",
    [ROLE_BETA] = "W_b",
    [ROLE_BETA_BIAS] = "b",
    [ROLE_DECAY_RATE] = "A",
    [ROLE_DECAY_1] = "W_a1",
    [ROLE_DECAY_2] = "W_a2",
    [ROLE_DECAY_BIAS] = "a",
    [ROLE_RIDGE_CHANNEL] = "p",
    [ROLE_RIDGE_HEAD] = "s",
    [ROLE_Z] = "z",
    [ROLE_LOG_ALPHA] = "log_alpha",
    [ROLE_SHIFT] = "shift",
    [ROLE_BALANCE] = "balance",
    [ROLE_BALANCE_KEYS] = "balance_keys",
    [ROLE_FILTER_1] = "W_1",
    [ROLE_FILTER_BIAS_1] = "b_1",
    [ROLE_FILTER_2] = "W_2",
    [ROLE_FILTER_BIAS_2] = "b_2",
    [ROLE_FILTER_3] = "W_3",
    [ROLE_FILTER_BIAS_3] = "b_3",
    [ROLE_FILTER_4] = "W_4",
    [ROLE_FILTER_RATE] = "f",
    [ROLE_SKIP] = "D",
    [ROLE_HEAD_GAIN] = "head_gain",
    [ROLE_GATE] = "W_z",
    [ROLE_OUT] = "W_o",
    [ROLE_OUT_BIAS] = "b_o",
    [ROLE_MLP_GAIN] = "mlp_gain",
    [ROLE_MLP_BIAS] = "mlp_bias",
    [ROLE_MLP_1] = "mlp_1",
    [ROLE_MLP_GATE] = "mlp_g",
    [ROLE_MLP_2] = "mlp_2",
    [ROLE_MLP_1_BIAS] = "mlp_b1",
    [ROLE_MLP_2_BIAS] = "mlp_b2",
};

const char *mixer_array_name(role which) { return names[which]; }

void mixer_array_start(const mixer *row, const mixer_options *options, role which, parameter *p)
{
    p->start = START_CONSTANT;
    p->value = 0;
    p->fixed = which == ROLE_SHIFT || which == ROLE_BALANCE || which == ROLE_BALANCE_KEYS;
    if (is_map_bias(which) || (which >= ROLE_Q_LOW_2 && which <= ROLE_OUT_LOW_2)) return;
    switch (which) {
    case ROLE_GAIN:
    case ROLE_Q_GAIN:
    case ROLE_K_GAIN:
    case ROLE_PROBE_GAIN:
    case ROLE_FILTER_RATE:
    case ROLE_HEAD_GAIN:
    case ROLE_MLP_GAIN: p->value = 1; break;
    case ROLE_NORM_BIAS:
    case ROLE_MLP_BIAS:
    case ROLE_TEMPERATURE:
    case ROLE_LOG_ALPHA:
    case ROLE_SHIFT:
    case ROLE_FILTER_BIAS_1:
    case ROLE_FILTER_BIAS_2:
    case ROLE_FILTER_BIAS_3: break;
    /* As PyTorch begins a convolution. */
    case ROLE_IN_TAPS:
    case ROLE_Q_TAPS:
    case ROLE_K_TAPS:
    case ROLE_V_TAPS:
        p->start = START_UNIFORM;
        p->value = 1 / sqrt((double)row->taps);
        break;
    case ROLE_BALANCE:
    case ROLE_BALANCE_KEYS: p->start = START_IDENTITY; break;
    case ROLE_SKIP:
        p->value = 1;
        if (row->block == MIXER_HYENA) p->start = START_NORMAL;
        break;
    /* Mamba-2's beta is its Delta. */
    case ROLE_BETA_BIAS:
        if (row->block == MIXER_MAMBA) p->start = START_DECAY_DELTA;
        break;
    case ROLE_PROBE:
        if (!options->probe_zero) p->start = START_NORMAL;
        break;
    case ROLE_DECAY_RATE: p->start = START_DECAY_RATE; break;
    case ROLE_DECAY_BIAS:
        if (softplus_decay(row))
            p->start = START_DECAY_DELTA;
        else
            p->value = row->decay_shift;
        break;
    /* 1 / softplus(s) = ridge_start. */
    case ROLE_RIDGE_HEAD:
        p->value = log(expm1(options->ridge_start > 0 ? 1 / options->ridge_start : 1));
        break;
    /* Lambda = 0.25 + softplus(p) = 1. */
    case ROLE_RIDGE_CHANNEL: p->value = log(expm1(0.75)); break;
    default: p->start = START_NORMAL;
    }
}
