/* SPDX-License-Identifier: MIT
 *
 * PaTH scores for any probe: each row is a problem of its own, of one query and the keys as it sees them. Keys are turned past the
 * positions of a group of rows, which leaves a copy for each row; the kernels of the family then take the group as a batch of
 * problems with one query each, in float32, and know nothing of reflections. local_path_each.c says in which order, a back end
 * (each_backend) how.
 *
 * Steps count from the end of the longer of queries and keys: step n is position n - (steps - n_kv) among the keys, and query
 * n - (steps - n_q), each where it is not negative. So a host that knows no lengths knows which steps have rows at most.
 *
 * Backward goes through the groups from the last. M may be singular: keys are never turned back, but made again from frames
 * (keys as seen before some step) that the way there left, each half as far from the group as the one before.
 */
#ifndef LOAM_LOCAL_LOCAL_PATH_EACH_H
#define LOAM_LOCAL_LOCAL_PATH_EACH_H

#include "src/local/local_decay.h"
#include "src/local/local_path.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Keys whose parts of dw and dbeta are one sum. */
enum { EACH_KEYS = 32 };

/* What the groups of a problem are. */
typedef struct each_shape {
    int64_t steps, group, groups; /* steps: of the longest sequence; in a group; groups */
    int64_t no_rows;              /* no step before this one has a query */
} each_shape;

/* Arrays of one sequence, and of one group of its rows. Frames, sums and parts are float64. */
typedef struct each_arrays {
    each_shape shape;
    loam_problem own;        /* the group as a batch of rows */
    int64_t first, end;      /* keys that count: all, or the slice of a partial state */
    float *values;           /* [heads_kv][len_kv][dim_v] */
    local_decay_pair *decay; /* [heads_q][len_kv] */
    double *frames;          /* [slots][heads_kv][len_kv][dim_qk] */
    int64_t frame;           /* numbers in one */
    double *turns;           /* CPU: [heads_kv][group][dim_qk + 1], w and beta of the steps */
    float *keys;             /* [group][heads_kv][len_kv][dim_qk] */
    int64_t *lens;           /* [group]: how many keys the row sees */
    float *q, *probe, *ridge, *o, *lse, *rho, *weights;
    loam_row_info *info;
    void *saved, *work; /* work: of the group's problem */
    double *states;     /* of the group */
    /* Backward. */
    float *grad_o, *grad_q, *grad_probe, *grad_ridge;
    float *grad_k, *grad_v, *columns; /* [group][heads_kv or heads_q][len_kv][..] */
    double *sum_k, *sum_v, *sum_columns;
    double *parts;       /* [heads_kv][tiles of EACH_KEYS keys][group][dim_qk + 1]: of dw and dbeta */
    local_row_sums sums; /* of all rows */
    double *head_sums;   /* [2][heads_q] */
} each_arrays;

/* Rows of the whole problem, in its type, and those of a group, dense: [group][heads_q][width] of F32 (or of F64, as `data`). */
typedef struct each_rows {
    void *data;
    loam_dtype dtype;
    int64_t batch, head, token, width;
    void *own;
} each_rows;

enum { EACH_MOST_ROWS = 12 };
typedef struct each_moves {
    each_rows rows[EACH_MOST_ROWS];
    int count;
} each_moves;

/* Steps first .. first + count - 1 of sequence b; rows: some of them may have a query. */
typedef struct each_steps {
    int64_t b, first, count;
    bool rows;
} each_steps;

/* How a back end does what local_path_each.c asks for. */
typedef struct each_backend {
    size_t group_bytes; /* what the copies of keys of a group may take, if that leaves a few rows */
    size_t (*work)(const loam_problem *own);
    /* Values and sums of decays of a sequence into the workspace. */
    loam_status (*begin)(const loam_problem *p, const loam_args *a, const each_arrays *w, int64_t b,
                         loam_error *error);
    loam_status (*clear)(const loam_args *a, void *data, size_t bytes, loam_error *error);
    /* Rows into the group, and the lengths; or out of it. */
    loam_status (*move)(const loam_problem *p, const loam_args *a, const each_arrays *w,
                        const each_moves *moves, bool in, const each_steps *steps, loam_error *error);
    /* Keys from the frame `from` to the frame `to`; copies: each step's keys are left in w->keys. */
    loam_status (*turn)(const loam_problem *p, const loam_args *a, const each_arrays *w,
                        const each_steps *steps, int64_t from, int64_t to, bool copies, loam_error *error);
    /* The kernels of the family on the group: w->own, with its arguments. Backward leaves its row sums in *sums. */
    loam_status (*forward)(const each_arrays *w, const loam_args *own, loam_error *error);
    loam_status (*backward)(const each_arrays *w, const loam_args *own, local_row_sums *sums,
                            loam_error *error);
    /* sum[h][j][c] += parts[n][h][j][c] over the rows n of the group, from the last, for the first `keys` keys. */
    loam_status (*add)(const loam_args *a, double *sum, const float *parts, int64_t heads, int64_t stored,
                       int64_t keys, int64_t width, int64_t count, loam_error *error);
    /* sum_k back through the steps of the group, whose first sees `frame`; dw and dbeta of its positions. Where there are rows,
     * w->grad_k joins. */
    loam_status (*turn_back)(const loam_problem *p, const loam_args *a, const each_arrays *w,
                             const each_steps *steps, int64_t frame, loam_error *error);
    /* The gradients of sequence b; then those that are sums over rows. */
    loam_status (*finish)(const loam_problem *p, const loam_args *a, const each_arrays *w, int64_t b,
                          loam_error *error);
    loam_status (*reduce)(const loam_problem *p, const loam_args *a, const each_arrays *w, loam_error *error);
} each_backend;

/* The kernels: what they need, forward or decode, backward, partial states. */
size_t local_path_each_work(const each_backend *backend, const loam_problem *p);
loam_status local_path_each_forward(const each_backend *backend, const loam_problem *p, const loam_args *a,
                                    loam_error *error);
loam_status local_path_each_backward(const each_backend *backend, const loam_problem *p, const loam_args *a,
                                     loam_error *error);
/* partial: that of plain keys. */
loam_status local_path_each_partial(const each_backend *backend, local_partial_fn *partial,
                                    const loam_problem *p, const loam_args *a, int64_t first, int64_t count,
                                    double *states, loam_error *error);

/* How many keys any row of the steps before `end` sees at most. */
LOAM_INLINE int64_t each_keys_before(const loam_problem *p, const each_arrays *w, int64_t end)
{
    const int64_t keys = end - w->shape.steps + p->len_kv;
    return keys < 0 ? 0 : keys;
}

/* Step n of a sequence: its position among the keys and its query, negative where it has none. */
typedef struct each_step {
    int64_t position, query;
} each_step;

LOAM_INLINE each_step each_step_at(const each_shape *x, const local_seq *s, int64_t n)
{
    each_step out;
    out.position = n - (x->steps - s->nk), out.query = n - (x->steps - s->nq);
    return out;
}

#ifdef __cplusplus
}
#endif

#endif
