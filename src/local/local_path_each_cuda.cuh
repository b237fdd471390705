/* SPDX-License-Identifier: MIT
 *
 * PaTH scores on GPUs, for any probe: each row is a problem of its own, of one query and the keys as it sees them. Keys are
 * turned past the positions of a group of rows (local_path_each_turn_cuda.cu), which leaves a copy for each row; the kernels of
 * the family then take the group as a batch of problems with one query each, in float32, and know nothing of reflections.
 *
 * Steps count from the end of the longer of queries and keys: step n is position n - (steps - n_kv) among the keys, and query
 * n - (steps - n_q), each where it is not negative. So the host, which knows no lengths, knows which steps have rows at most.
 *
 * Backward goes through the groups from the last. M may be singular: keys are never turned back, but made again from frames
 * (keys as seen before some step) that the way there left, each half as far from the group as the one before.
 */
#ifndef LOAM_LOCAL_LOCAL_PATH_EACH_CUDA_CUH
#define LOAM_LOCAL_LOCAL_PATH_EACH_CUDA_CUH

#include "src/gpu/launch.cuh"
#include "src/local/local_backward_cuda.h"
#include "src/local/local_decay.h"
#include "src/local/local_forward_cuda.h"
#include "src/local/local_path.h"

enum { EACH_KEYS = 32 }; /* of a thread block that turns keys back */

/* What the groups of a problem are. */
struct each_shape {
    int64_t steps, group, groups; /* steps: of the longest sequence; in a group; groups */
    int64_t no_rows;              /* no step before this one has a query */
};

/* Arrays of one sequence, and of one group of its rows. Frames, sums and parts are float64. */
struct each_arrays {
    each_shape shape;
    loam_problem own; /* the group as a batch of rows */
    float *values;    /* [heads_kv][len_kv][dim_v] */
    local_decay_pair *decay; /* [heads_q][len_kv] */
    double *frames;          /* [slots][heads_kv][len_kv][dim_qk] */
    int64_t slots, frame;    /* frame: its size */
    float *keys;             /* [group][heads_kv][len_kv][dim_qk] */
    int64_t *lens;           /* [group]: how many keys the row sees */
    float *q, *probe, *ridge, *o, *lse, *rho, *weights;
    loam_row_info *info;
    void *saved, *solver;
    /* Backward. */
    float *grad_o, *grad_q, *grad_probe, *grad_ridge;
    float *grad_k, *grad_v, *columns; /* [group][heads_kv or heads_q][len_kv][..] */
    double *sum_k, *sum_v, *sum_columns;
    double *parts; /* [heads_kv][tiles of EACH_KEYS keys][group][dim_qk + 1]: of dw and dbeta */
    row_arrays rows, all; /* of the group; of the problem */
};

/* Rows of the whole problem, in its type, and those of a group, dense: [group][heads_q][width] of F32 (or of F64, as `data`). */
struct each_rows {
    void *data;
    loam_dtype dtype;
    int64_t batch, head, token, width;
    void *own;
};

enum { EACH_MOST_ROWS = 12 };
struct each_moves {
    each_rows rows[EACH_MOST_ROWS];
    int count;
};

each_arrays each_arrays_carve(const loam_problem *p, arena *pool);
/* The arguments of the group's problem: forward, and what backward has beside. */
loam_args each_args(const loam_problem *p, const loam_args *a, const each_arrays *w);

/* One launch each, for sequence b and the steps first .. first + count - 1. */
loam_status each_begin_cuda(const loam_problem *p, const loam_args *a, const each_arrays *w, int64_t b,
                            loam_error *error);
/* Rows into the group, and the lengths; or out of it. */
loam_status each_move_cuda(const loam_problem *p, const loam_args *a, const each_arrays *w,
                           const each_moves *moves, bool in, int64_t b, int64_t first, int64_t count,
                           loam_error *error);
/* Keys from the frame `from` to the frame `to`; copies: each step's keys are left in w->keys. */
loam_status each_turn_cuda(const loam_problem *p, const loam_args *a, const each_arrays *w, int64_t b,
                           int64_t first, int64_t count, int64_t from, int64_t to, bool copies,
                           loam_error *error);
/* sum_k back through the steps of the group, whose first sees `frame`; dw and dbeta of its positions. rows: w->grad_k joins. */
loam_status each_turn_back_cuda(const loam_problem *p, const loam_args *a, const each_arrays *w, int64_t b,
                                int64_t first, int64_t count, int64_t frame, bool rows, loam_error *error);
/* grad_v, and column sums of the group, into the sums of the sequence. */
loam_status each_add_cuda(const loam_problem *p, const loam_args *a, const each_arrays *w, int64_t keys,
                          int64_t count, loam_error *error);
/* The gradients of sequence b. */
loam_status each_finish_cuda(const loam_problem *p, const loam_args *a, const each_arrays *w, int64_t b,
                             loam_error *error);

/* How many keys any row of the steps before `end` sees at most. */
static inline int64_t each_keys_before(const loam_problem *p, const each_arrays *w, int64_t end)
{
    const int64_t keys = end - w->shape.steps + p->len_kv;
    return keys < 0 ? 0 : keys;
}

/* Step n of a sequence: its position among the keys and its query, negative where it has none. */
struct each_step {
    int64_t position, query;
};
static __device__ __forceinline__ each_step each_step_at(const each_shape &x, const local_seq &s, int64_t n)
{
    const each_step out = { n - (x.steps - s.nk), n - (x.steps - s.nq) };
    return out;
}

/* rows of `rows`, of which nothing is wanted where data is NULL */
static inline void each_add_rows(each_moves *moves, void *data, loam_dtype dtype, int64_t batch, int64_t head,
                                 int64_t token, int64_t width, void *own)
{
    if (data && width > 0) {
        const each_rows rows = { data, dtype, batch, head, token, width, own };
        moves->rows[moves->count++] = rows;
    }
}

/* An array over rows in the order of local_row. */
static inline void each_add_line(each_moves *moves, const loam_problem *p, void *data, loam_dtype dtype,
                                 int64_t width, void *own)
{
    const bool packed = local_packed(p);
    each_add_rows(moves, data, dtype, packed ? 0 : p->heads_q * p->len_q * width,
                  (packed ? p->total_q : p->len_q) * width, width, width, own);
}

/* What forward leaves for backward. */
static inline void each_add_saved(each_moves *moves, const loam_problem *p, void *saved, const each_arrays *w)
{
    const local_saved all = local_saved_carve(p, saved, NULL), own = local_saved_carve(&w->own, w->saved, NULL);
    if (!saved) {
        return;
    }
    const bool solved = p->mechanism == LOAM_LLA, given = p->mechanism == LOAM_PARALLAX;
    each_add_line(moves, p, all.lse, LOAM_F32, 1, own.lse);
    each_add_line(moves, p, all.vbar, LOAM_F32, p->dim_v, own.vbar);
    each_add_line(moves, p, all.tbar, LOAM_F32, given ? 2 : 0, own.tbar);
    each_add_line(moves, p, all.lean, LOAM_F32, given ? p->dim_v : 0, own.lean);
    each_add_line(moves, p, all.kbar, LOAM_F32, solved ? p->dim_qk : 0, own.kbar);
    each_add_line(moves, p, all.rho, LOAM_F32, solved ? p->dim_qk : 0, own.rho);
}

/* What both passes read of the rows. */
static inline void each_add_inputs(each_moves *moves, const loam_problem *p, const loam_args *a,
                                   const each_arrays *w)
{
    each_add_rows(moves, (void *)a->q.data, p->dtype, a->q.batch, a->q.head, a->q.token, p->dim_qk, w->q);
    if (p->mechanism == LOAM_PARALLAX) {
        each_add_rows(moves, (void *)a->probe.data, p->dtype, a->probe.batch, a->probe.head, a->probe.token,
                      p->dim_qk, w->probe);
    }
    if (p->mechanism == LOAM_LLA && p->ridge_axes >= LOAM_RIDGE_TOKEN) {
        each_add_rows(moves, (void *)a->ridge.data, LOAM_F32, a->ridge.batch, a->ridge.head, a->ridge.token,
                      p->ridge_axes == LOAM_RIDGE_CHANNEL ? p->dim_qk : 1, w->ridge);
    }
}

#endif
