/* SPDX-License-Identifier: MIT
 * A test case in one line of text, "mech=lla pass=backward dtype=f32 q=17 k=33 ... seed=7": the problem, the
 * kind of data, the layout of each array and which outputs are left out. All contents follow from it. */
#ifndef TESTS_SUPPORT_SPEC_H
#define TESTS_SUPPORT_SPEC_H

#include "loam.h"

/* The arrays of loam_args, inputs first. */
typedef enum slot {
    SLOT_Q,
    SLOT_K,
    SLOT_V,
    SLOT_PROBE,
    SLOT_RIDGE,
    SLOT_SLOPE,
    SLOT_KEY_BIAS,
    SLOT_SINK,
    SLOT_GRAD_O,
    SLOT_LOG_DECAY,
    SLOT_BETA,
    SLOT_STATE_IN,
    SLOT_GRAD_STATE_OUT,
    SLOT_W,
    SLOT_Z,
    SLOT_LOG_ALPHA,
    SLOT_SHIFT,
    SLOT_BALANCE,
    SLOT_BALANCE_KEYS,
    SLOT_O,
    SLOT_LSE,
    SLOT_RHO,
    SLOT_WEIGHTS,
    SLOT_INFO,
    SLOT_GRAD_Q,
    SLOT_GRAD_K,
    SLOT_GRAD_V,
    SLOT_GRAD_PROBE,
    SLOT_GRAD_RIDGE,
    SLOT_GRAD_SCALE,
    SLOT_GRAD_SLOPE,
    SLOT_GRAD_KEY_BIAS,
    SLOT_GRAD_SINK,
    SLOT_STATE_OUT,
    SLOT_GRAD_LOG_DECAY,
    SLOT_GRAD_BETA,
    SLOT_GRAD_STATE_IN,
    SLOT_GRAD_W,
    SLOT_GRAD_Z,
    SLOT_GRAD_LOG_ALPHA,
    SLOT_COUNT,
    SLOT_FIRST_OUTPUT = SLOT_O
} slot;

extern const char *const slot_names[SLOT_COUNT];

typedef enum data_kind {
    DATA_NORMAL,   /* all N(0, 1) */
    DATA_STEEP,    /* scores up to about +-80; log decays of 0, -1000 and -inf, beta of 0, 1 and 2 */
    DATA_EQUAL,    /* all keys of a head are equal */
    DATA_REPEATED, /* three different keys, over and over */
    DATA_DOMINANT, /* one key of a head takes nearly all weight */
    DATA_FAR,      /* keys (with the RBF score queries too) far from the origin */
    DATA_TINY,     /* keys and values close to 0 */
    DATA_LARGE,    /* large values */
    DATA_SELF,     /* queries are keys */
    DATA_REAL,     /* queries, keys and values of a trained model (real.h) */
    DATA_HUGE,     /* values in float16 whose products with gradients it does not hold */
    DATA_KINDS
} data_kind;

/* The maps of a scaled score z: name in a case, member of loam_problem, formula with its constant c > 0. */
#define SPEC_MAPS(X) X("cap", soft_cap, c *tanh(z / c))
#define SPEC_MAP_MEMBER(name, member, ...) double member;

typedef struct spec {
    int64_t mechanism, pass, dtype, backend;
    int64_t batch, heads_q, heads_kv, len_q, len_kv, dim_qk, dim_v;
    int64_t packed, lens; /* lengths of the sequences, drawn from the seed */
    int64_t score, causal, window, slope, key_bias, sink, decay, path;
    double scale, ridge;
    SPEC_MAPS(SPEC_MAP_MEMBER)
    int64_t ridge_axes, ridge_unit, ridge_array; /* ridge_array: args.ridge [1] for LOAM_RIDGE_NUMBER */
    int64_t threads, data;
    int64_t layout; /* 0: dense; else a seed of strides, padding and broadcasting */
    int64_t omit;   /* bit s: output s is not wanted; SPEC_OMIT_SAVED */
    int64_t seed;
    int64_t heads_v, feature_map, normalise; /* of the recurrent family */
    int64_t state;                           /* state_in and grad_state_out are given */
    /* Of positive features: their number, whether heads of keys share them, and what is given beside z. */
    int64_t features, features_shared, with_alpha, with_shift, with_balance;
    char kernel[48];
} spec;

/* What a mechanism of the recurrent family is called and has, gates in the order of loam_decay_axes: once
 * more, for tests are an oracle of their own. */
typedef enum spec_gate { SPEC_NO_GATE, SPEC_GATE_HEAD, SPEC_GATE_TOKEN, SPEC_GATE_CHANNEL } spec_gate;
typedef struct spec_recurrence {
    const char *name; /* NULL: of another family */
    spec_gate gate;
    int beta, delta;
} spec_recurrence;

/* How many mechanisms the library has: loops over all of them meet new ones. */
int spec_mechanisms(void);
static inline int spec_recurrent(const spec *s) { return s->mechanism >= LOAM_LINEAR; }
spec_recurrence spec_recurrence_of(const spec *s);
static inline int64_t spec_heads_v(const spec *s) { return s->heads_v ? s->heads_v : s->heads_q; }
/* Rows of a state. */
int64_t spec_state_rows(const spec *s);

static inline int spec_positive(const spec *s) { return s->feature_map == LOAM_FEATURES_POSITIVE; }
/* How wide a state is, and the heads of z and states. */
static inline int64_t spec_state_width(const spec *s)
{
    return spec_positive(s) && s->features ? s->features : s->dim_qk;
}
static inline int64_t spec_state_heads(const spec *s)
{
    return spec_positive(s) && s->features_shared ? s->heads_kv : spec_heads_v(s);
}

#define SPEC_OMIT_SAVED ((int64_t)1 << SLOT_COUNT)

/* One head, causal, float64 on the reference, dense, nothing left out but the weights. */
spec spec_default(loam_mechanism mechanism, loam_pass pass, int64_t len, int64_t dim_qk, int64_t dim_v);
/* The case as text; only what differs from zero. */
void spec_print(const spec *s, char *text, size_t bytes);
/* 0, or -1 with a message on stderr. */
int spec_parse(spec *s, const char *text);
/* Without total_q and total_kv of packed sequences, which come with the lengths (values.h). */
loam_problem spec_problem(const spec *s);

static inline int spec_wants(const spec *s, slot output) { return !(s->omit >> output & 1); }
static inline int64_t spec_omit(slot output) { return (int64_t)1 << output; }

#endif
