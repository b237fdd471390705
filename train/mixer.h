/* SPDX-License-Identifier: MIT
 * Token mixers: what a layer makes of its normed input x before W_o. Each is one row of a table: its arrays,
 * its gates, its problem. The passes read the row and have no case for a mechanism; what is wired otherwise
 * is a block with passes of its own. */
#ifndef LOAM_TRAIN_MIXER_H
#define LOAM_TRAIN_MIXER_H

#include "train/machine.h"
#include "train/parameter.h"

/* How the log decay comes from a = x W_a, or of channels a = x W_1 W_2, and bias. */
typedef enum mixer_decay {
    MIXER_NO_DECAY,
    MIXER_DECAY_FIXED,           /* of head h: log(1 - 2^(-5 - h)), not learned */
    MIXER_DECAY_SIGMOID,         /* log sigmoid(a + decay_shift) */
    MIXER_DECAY_SIGMOID_BIAS,    /* log sigmoid(a + bias), bias from decay_shift */
    MIXER_DECAY_SOFTPLUS,        /* -e^rate softplus(a + bias) */
    MIXER_DECAY_SIGMOID_CHANNEL, /* log sigmoid(a + bias) / 16 */
    MIXER_DECAY_SOFTPLUS_CHANNEL /* as above, with a rate per head */
} mixer_decay;

typedef enum mixer_ridge {
    MIXER_NO_RIDGE,
    MIXER_RIDGE_TOKEN,   /* least + (most - least) sigmoid(x W_lambda), Zuo et al. 2025, eq. 27 */
    MIXER_RIDGE_CHANNEL, /* 0.25 + softplus(p) */
    MIXER_RIDGE_HEAD     /* 1 / softplus(s), a number for each head */
} mixer_ridge;

typedef enum mixer_block { MIXER_PLAIN, MIXER_MAMBA, MIXER_HYENA } mixer_block;

/* Mamba-2 is as many times as wide inside, and has as many times the heads of values; queries and keys have
 * one head. */
enum { MAMBA_EXPAND = 2 };
/* The MLP between mixers is mostly as many times as wide inside. */
enum { MLP_EXPAND = 4 };
/* eps of all norms. */
#define NORM_EPS 1e-5
/* Columns inside the MLP of Hyena's filter. */
enum { HYENA_FILTER = 64 };

typedef struct mixer {
    const char *name;
    loam_mechanism mechanism; /* not of MIXER_HYENA */
    mixer_block block;
    double scale;     /* of the problem; 0: 1 / sqrt(channels of a head) */
    double beta_most; /* beta = beta_most sigmoid(x W_b); 0: none */
    double decay_shift;
    mixer_decay decay;
    mixer_ridge ridge;
    int64_t rank; /* of W_1 W_2 */
    int64_t taps; /* of the short convolutions that are published with it; 0: none */
    /* Channels of queries and keys, and of values, as many times, as they are published; 0: once. */
    double published_keys, published_values;
    bool beta_bias; /* beta = beta_most sigmoid(x W_b + b) */
    bool silu;      /* of queries, keys and values */
    bool unit;      /* LOAM_FEATURES_UNIT */
    bool probe;     /* x W_R */
    bool reflect;   /* PaTH: w = unit(x W_1 W_2) by heads */
    bool head_norm; /* RMSNorm of each head's output, one gain for all heads */
    bool gate;      /* then times silu(x W_z) */
    bool positive;  /* LOAM_FEATURES_POSITIVE, normalised: z and log alpha are learned */
} mixer;

/* Ends with a row whose name is NULL. */
extern const mixer mixers[];
/* NULL: there is none of this name. */
const mixer *mixer_find(const char *name);

/* The arrays of a layer, in the order of their numbers. */
typedef enum role {
    ROLE_GAIN, /* of the norm before the mixer */
    ROLE_NORM_BIAS,
    ROLE_IN, /* W_in, of blocks */
    ROLE_IN_TAPS,
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_PROBE,
    ROLE_Q_BIAS, /* of mixer_options.biases */
    ROLE_K_BIAS,
    ROLE_V_BIAS,
    ROLE_Q_LOW_1, /* A and B of mixer_options.low, in the order of its bits */
    ROLE_K_LOW_1,
    ROLE_V_LOW_1,
    ROLE_PROBE_LOW_1,
    ROLE_OUT_LOW_1,
    ROLE_Q_LOW_2,
    ROLE_K_LOW_2,
    ROLE_V_LOW_2,
    ROLE_PROBE_LOW_2,
    ROLE_OUT_LOW_2,
    ROLE_TEMPERATURE,
    ROLE_Q_TAPS,
    ROLE_K_TAPS,
    ROLE_V_TAPS,
    ROLE_Q_GAIN, /* of the norm by heads: one for all heads, as ROLE_HEAD_GAIN */
    ROLE_K_GAIN,
    ROLE_PROBE_GAIN,
    ROLE_PROBE_GATE,
    ROLE_RIDGE,
    ROLE_REFLECT_1,
    ROLE_REFLECT_2,
    ROLE_BETA,
    ROLE_BETA_BIAS,
    ROLE_DECAY_RATE,
    ROLE_DECAY_1, /* W_a, or W_1 of channels */
    ROLE_DECAY_2,
    ROLE_DECAY_BIAS,
    ROLE_RIDGE_CHANNEL,
    ROLE_RIDGE_HEAD,
    ROLE_Z, /* of positive features: rows of z, heads one after another; log alpha, a row for each head */
    ROLE_LOG_ALPHA,
    ROLE_SHIFT, /* and what is not learned: a row for each head; A and B, heads one after another */
    ROLE_BALANCE,
    ROLE_BALANCE_KEYS,
    ROLE_FILTER_1,
    ROLE_FILTER_BIAS_1,
    ROLE_FILTER_2,
    ROLE_FILTER_BIAS_2,
    ROLE_FILTER_3,
    ROLE_FILTER_BIAS_3,
    ROLE_FILTER_4,
    ROLE_FILTER_RATE, /* f */
    ROLE_SKIP,        /* D */
    ROLE_HEAD_GAIN,
    ROLE_GATE,
    ROLE_OUT,
    ROLE_OUT_BIAS,
    ROLE_MLP_GAIN,
    ROLE_MLP_BIAS, /* of layer_norm */
    ROLE_MLP_1,
    ROLE_MLP_GATE,
    ROLE_MLP_2,
    ROLE_MLP_1_BIAS,
    ROLE_MLP_2_BIAS,
    ROLES
} role;

/* What may have a product of two thin matrices beside it, as bits of mixer_options.low: W_q, W_k, W_v, W_R
 * and W_o. */
enum { LOW_Q, LOW_K, LOW_V, LOW_PROBE, LOW_OUT, LOWS };

typedef struct mixer_shape {
    int64_t models, batch, length, width, heads;
    int64_t seen; /* the first tokens of a sequence, which others see as keys; length: all of them */
    /* Heads of keys and of values, each for as many neighbouring heads of queries, and the channels of a
     * head. */
    int64_t heads_kv, head_dim;
} mixer_shape;

/* Inside an MLP without gate. */
typedef enum mlp_activation { MLP_GELU_TANH, MLP_GELU_ERF, MLP_RELU } mlp_activation;

/* How a model knows the places of tokens. */
typedef enum positions {
    POSITIONS_LEARNED, /* a vector for each, added to the embedding */
    POSITIONS_ROPE,    /* queries, keys and probes are turned (loam_rope_apply); not of blocks */
    POSITIONS_NONE
} positions;

typedef struct mixer_options {
    double ridge_least, ridge_most; /* of MIXER_RIDGE_TOKEN */
    loam_ridge_unit ridge_unit;
    bool probe_zero; /* W_R begins at 0, where Parallax is softmax; else like W_q */
    positions positions;
    bool layer_norm;   /* LayerNorm, not RMSNorm, before mixers, MLPs and logits */
    bool mlp;          /* after each mixer e = e + gelu(norm(e) W_1) W_2 */
    bool mlp_gate;     /* e + (norm(e) W_1 silu(norm(e) W_g)) W_2 instead */
    bool parallel;     /* both from one e: e + mix(norm(e)) W_o + mlp(norm'(e)) */
    bool untied;       /* logits by an array of their own, not the embedding */
    int64_t mlp_inner; /* columns inside the MLP; 0: MLP_EXPAND times the width */
    mlp_activation activation;
    int64_t rope_dim; /* channels of a head that POSITIONS_ROPE turns, the first; 0: all */
    double rope_base; /* 0: 1e4 */
    double norm_eps;  /* of norms over the width; 0: NORM_EPS */
    bool biases;      /* of W_q, W_k, W_v, W_o and of the MLP without gate */
    /* Bits 1 << LOW_Q ..: W + A B in the place of W, and of W_R, A B alone; `rank` columns of A. B is 0 in
     * the beginning. */
    unsigned low;
    int64_t rank;
    bool temperature;     /* queries times 1 + t, a number for each head, 0 in the beginning */
    double ridge_start;   /* of MIXER_RIDGE_HEAD; 0: 1 */
    int64_t features;     /* positive ones of a head; 0: as many as it has channels */
    bool features_shared; /* their heads are those of keys, which queries of a group share */
    bool qk_norm; /* RMSNorm of queries, keys and probes by heads, before they are turned; not of blocks */
    bool blind;   /* regression: no token sees a query row as a key, not even the row itself */
    /* What only mixers that have it take part in. */
    bool probe_gate;     /* probe = sigmoid(x w_g) x W_R, a number for each head */
    bool short_filter;   /* the convolution of a few tokens that is published with the mixer */
    bool published_dims; /* the channels of keys and values that are published */
    bool no_silu;        /* of queries, keys and values */
} mixer_options;

/* Columns of queries and of keys, of one head in blocks; columns of values and of the result; heads of
 * values; columns inside the MLP; columns of W_in. */
int64_t mixer_keys(const mixer *row, const mixer_options *options, const mixer_shape *shape);
int64_t mixer_inner(const mixer *row, const mixer_options *options, const mixer_shape *shape);
int64_t mixer_value_heads(const mixer *row, const mixer_shape *shape);
/* Of MIXER_PLAIN: heads of queries, keys, values or probes, and columns of all of them. */
int64_t mixer_stream_heads(const mixer_shape *shape, int stream);
int64_t mixer_stream_columns(const mixer *row, const mixer_options *options, const mixer_shape *shape,
                             int stream);
int64_t mixer_mlp_inner(const mixer_options *options, const mixer_shape *shape);
int64_t mixer_in_width(const mixer *row, const mixer_shape *shape);
/* Positive features of a head, and the heads that have them. */
int64_t mixer_features(const mixer *row, const mixer_options *options, const mixer_shape *shape);
int64_t mixer_feature_heads(const mixer_options *options, const mixer_shape *shape);
/* Those columns of a block's x W_in that a short convolution is over. */
void mixer_filtered(const mixer *row, const mixer_shape *shape, int64_t *first, int64_t *count);
/* rows and width of the array; rows 0: the mixer has none. */
void mixer_array(const mixer *row, const mixer_options *options, const mixer_shape *shape, role which,
                 int64_t *rows, int64_t *width);
/* "W_q" */
const char *mixer_array_name(role which);

/* How an array begins, but for the deviation of START_NORMAL. */
void mixer_array_start(const mixer *row, const mixer_options *options, role which, parameter *p);

/* What follows from x, in the order of the forward pass. */
typedef enum activation {
    ACTIVE_X,       /* the normed input */
    ACTIVE_X_NORM,  /* its 1 / sqrt(mean square), or the stats of layer_norm */
    ACTIVE_IN,      /* x W_in */
    ACTIVE_IN_CONV, /* mixer_filtered of it after the short convolution; the same memory without one */
    /* Queries, keys, values and probes in stages; one that a mixer does not have is the memory of the stage
     * before: x W; after the short convolution; after silu; normed; probes gated, queries times 1 + t, and
     * turned in place. */
    ACTIVE_Q_IN,
    ACTIVE_K_IN,
    ACTIVE_V_IN,
    ACTIVE_PROBE_IN,
    ACTIVE_Q_CONV,
    ACTIVE_K_CONV,
    ACTIVE_V_CONV,
    ACTIVE_PROBE_CONV,
    ACTIVE_Q_SILU,
    ACTIVE_K_SILU,
    ACTIVE_V_SILU,
    ACTIVE_PROBE_SILU,
    ACTIVE_Q_NORMED,
    ACTIVE_K_NORMED,
    ACTIVE_V_NORMED,
    ACTIVE_PROBE_NORMED,
    ACTIVE_Q,
    ACTIVE_K,
    ACTIVE_V,
    ACTIVE_PROBE,
    ACTIVE_Q_LOW, /* x A; of W_o y A */
    ACTIVE_K_LOW,
    ACTIVE_V_LOW,
    ACTIVE_PROBE_LOW,
    ACTIVE_OUT_LOW,
    ACTIVE_Q_NORM, /* 1 / sqrt(mean square) of each head */
    ACTIVE_K_NORM,
    ACTIVE_V_NORM,
    ACTIVE_PROBE_NORM,
    ACTIVE_PROBE_GATE_RAW,
    ACTIVE_PROBE_GATE,
    ACTIVE_RIDGE_RAW, /* before the gate */
    ACTIVE_RIDGE,
    ACTIVE_REFLECT_LOW, /* x W_1 */
    ACTIVE_REFLECT_RAW,
    ACTIVE_REFLECT,
    ACTIVE_BETA_RAW,
    ACTIVE_BETA,
    ACTIVE_DECAY_LOW,
    ACTIVE_DECAY_RAW,
    ACTIVE_DECAY,
    ACTIVE_TIMES,  /* fixed, [length] rows */
    ACTIVE_WINDOW, /* likewise */
    ACTIVE_FILTER_RAW_1,
    ACTIVE_FILTER_1,
    ACTIVE_FILTER_RAW_2,
    ACTIVE_FILTER_2,
    ACTIVE_FILTER_RAW_3,
    ACTIVE_FILTER_3,
    ACTIVE_FILTER_RAW, /* before the window */
    ACTIVE_FILTER,     /* h */
    ACTIVE_V_SEEN,     /* of Hyena: V, 0 in rows that are not seen; the same memory where all are */
    ACTIVE_O,
    ACTIVE_O_NORM,
    ACTIVE_NORMED, /* O, normed by heads; the same memory where it is not; of Mamba-2 o silu(z) */
    ACTIVE_GATE_RAW,
    ACTIVE_Y,       /* to W_o; the memory of NORMED where there is no gate */
    ACTIVE_BETWEEN, /* e between mixer and MLP; its gradient is that of e */
    ACTIVE_MLP_X,   /* normed */
    ACTIVE_MLP_NORM,
    ACTIVE_MLP_RAW,  /* before GELU */
    ACTIVE_MLP_GATE, /* before silu */
    ACTIVE_MLP,
    ACTIVATIONS
} activation;

/* The stages above. */
enum { STREAM_Q, STREAM_K, STREAM_V, STREAM_PROBE, STREAMS };
typedef enum stage { STAGE_IN, STAGE_CONV, STAGE_SILU, STAGE_NORM, STAGE_GATE, STAGES } stage;
static inline activation mixer_stage(stage at, int stream)
{
    return (activation)(ACTIVE_Q_IN + STREAMS * (int)at + stream);
}
/* Whether a stage after the first does something. */
bool mixer_has_stage(const mixer *row, const mixer_options *options, stage at, int stream);

/* What comes of x by products, streams and output gate, is made by one, side by side; not where rows are cut
 * into heads before the library's call. */
enum { SIDES = STREAMS + 1 };
typedef struct sides {
    matrix all; /* without data: each by itself */
    matrix w;   /* their arrays; of gradients, those of these */
} sides;

typedef struct mixer_layer {
    parameter *array[ROLES]; /* NULL: none */
    matrix value[ACTIVATIONS];
    sides sides;
    void *saved, *query_saved; /* of the library's forward, and of its calls for rows that are not seen */
    /* Of LLA's forward, [models * batch][heads][length]; NULL: none. In the machine's memory. */
    loam_row_info *info;
} mixer_layer;

/* What the layers share: plans, workspace, gradients. */
typedef struct mixing {
    const machine *on;
    const mixer *row;
    mixer_shape shape;
    mixer_options options;
    loam_plan *plan[2]; /* LOAM_FORWARD, LOAM_BACKWARD; of MIXER_HYENA none */
    matrix gradient[ACTIVATIONS];
    sides sides; /* of gradients */
    /* Of rows that are not seen, where they have calls of their own: their plans, what these calls have of
     * the gradients of keys, and a column of ones. */
    loam_plan *query_plan[2];
    matrix beside[ACTIVATIONS], ones;
    void *work;
} mixing;

/* `on` must outlive it. */
loam_status mixing_open(mixing *mix, const machine *on, const mixer *row, const mixer_shape *shape,
                        const mixer_options *options, loam_error *error);
void mixing_close(mixing *mix);
/* What the library's calls need besides; takes so much of it and the memory of gradients, or shares that of
 * another mixing, of one shape and with other features; and the memory of a layer. */
int64_t mixing_work(const mixing *mix);
void mixing_take(mixing *mix, int64_t work, memory *from);
void mixing_share(mixing *mix, const mixing *with);
void mixer_layer_take(const mixing *mix, mixer_layer *layer, memory *from);

/* From ACTIVE_X to ACTIVE_Y; and from the gradient of ACTIVE_Y to that of ACTIVE_X, with those of all arrays
 * but ROLE_GAIN and ROLE_OUT. */
loam_status mixer_forward(const mixing *mix, const mixer_layer *layer, loam_error *error);
loam_status mixer_backward(const mixing *mix, const mixer_layer *layer, loam_error *error);

#endif
