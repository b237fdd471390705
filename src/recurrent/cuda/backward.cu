/* SPDX-License-Identifier: MIT
 * The backward row recurrent_backward_cuda (compute capability 8.0 and newer): its workspace, and the order
 * of its kernels. The states are computed once more and one in every sqrt(tokens) is kept; then the
 * recurrence runs in reverse through all tokens. */
#include "src/recurrent/cuda/backward.cuh"
#include "src/recurrent/cuda/solve.cuh"
#include "src/recurrent/cuda/sweep.cuh"

#include <math.h>

enum { MOST_PARTS = 4 };

/* Rows of the state in a tile of reverse_kernel: reverse_shape in
 * src/recurrent/cuda/reverse.cuh. */
static int64_t tile_rows(const loam_problem *p, bool wide)
{
    const int lanes = recurrent_cuda_width(p) / CHANNELS, warps = lanes == 32 ? 4 : 8;
    return warps * (32 / lanes) * (wide || lanes == 4 ? 1 : 2);
}

template <class REAL> static backward_work<REAL> backward_carve(const loam_problem *p, arena *pool)
{
    backward_work<REAL> w = {};
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    const int64_t rows = recurrent_state_rows(p), tile = tile_rows(p, solves<REAL>),
                  tiles = (rows - 1) / tile + 1;
    const int64_t every = (int64_t)ceil(sqrt((double)p->len_q));
    const auto take = [&](bool wanted, size_t count, size_t bytes) {
        return wanted ? arena_take(pool, count, bytes) : NULL;
    };
    const size_t heads = (size_t)p->heads_v, d = (size_t)p->dim_qk, f = sizeof(REAL);
    const size_t work_rows = size_mul((size_t)recurrent_tokens(p), heads);
    w.work_rows = (int64_t)work_rows;
    w.parts = tiles < MOST_PARTS ? (int)tiles : MOST_PARTS;
    w.kept = kept_carve<REAL>(p, every > 1 ? every : 1, rows, pool);
    const int64_t by_sequence = (int64_t)size_mul((size_t)p->batch, (size_t)w.kept.every);
    w.replayed_by_sequence = p->total_q < 0 || by_sequence <= p->total_q;
    w.replayed_per_head = w.replayed_by_sequence ? by_sequence : p->total_q;
    const size_t replayed = size_mul(size_mul((size_t)w.replayed_per_head, heads), (size_t)w.parts);
    w.replayed = (REAL *)take(true, size_mul(replayed, (size_t)(tile * w.kept.width)), f);
    const size_t per_part = size_mul(work_rows, (size_t)w.parts), columns = size_mul(per_part, d);
    w.dx = (REAL *)take(true, columns, f);
    w.dk = (REAL *)take(true, columns, f);
    w.dg = (REAL *)take(form->gate != GATE_NONE, columns, f);
    w.dbeta = (REAL *)take(form->beta, per_part, f);
    w.denominator = (float *)take(p->normalise, work_rows, sizeof(float));
    w.o_dot_parts = sweep_shape_of(p, rows).tiles;
    w.o_dot = (REAL *)take(p->normalise, size_mul(work_rows, (size_t)w.o_dot_parts), f);
    if (form->solved) w.system = kept_carve<double>(p, SOLVE_TOKENS, p->dim_qk, pool);
    w.x = (REAL *)take(form->solved, size_mul(work_rows, d), f);
    w.dw = (REAL *)take(form->solved, size_mul(work_rows, d), f);
    w.scale = (double *)take(true, work_rows, sizeof(double));
    w.decay = (double *)take(form->gate == GATE_HEAD, work_rows, sizeof(double));
    w.ridge = (double *)take(form->solved, size_mul(heads, d), sizeof(double));
    return w;
}

static bool is_solved(const loam_problem *p) { return recurrent_form_of(p->mechanism)->solved; }

size_t recurrent_backward_cuda_work(const loam_problem *p)
{
    arena pool = {};
    if (is_solved(p))
        (void)backward_carve<double>(p, &pool);
    else
        (void)backward_carve<float>(p, &pool);
    return pool.used;
}

/* A sweep of all rows of the states, which keeps some of the states. */
template <class REAL>
static sweep<REAL> sweep_all(const loam_problem *p, const loam_args *a, const backward_work<REAL> &w)
{
    sweep<REAL> s = sweep_of<REAL>(p, a);
    s.rows = w.kept.rows, s.read = READ_NOTHING, s.kept = w.kept;
    return s;
}

static loam_status direct(const loam_problem *p, const loam_args *a, const backward_work<float> &w,
                          loam_error *error)
{
    sweep<float> s = sweep_all(p, a, w);
    if (p->normalise) {
        TRY(sweep_denominators(p, a, w.denominator, error));
        s.read = READ_O_DOT, s.o_dot = w.o_dot;
    }
    TRY(sweep_run(&s, error));
    return recurrent_reverse_cuda(p, a, &w, error);
}

static loam_status solved(const loam_problem *p, const loam_args *a, const backward_work<double> &w,
                          loam_error *error)
{
    sweep<double> s = sweep_all(p, a, w);
    TRY(sweep_systems(p, a, &w.system, error));
    TRY(sweep_run(&s, error));
    TRY(recurrent_adjoint_cuda(p, a, &w, error));
    TRY(recurrent_solve_cuda(p, a, &w.system, w.x, w.dx, w.parts, error));
    return recurrent_reverse64_cuda(p, a, &w, error);
}

loam_status recurrent_backward_cuda(const loam_problem *p, const loam_args *given, loam_error *error)
{
    loam_args a = *given;
    arena pool = { (char *)a.work, 0 };
    a.state_out.data = NULL, a.info.data = NULL; /* outputs of the forward pass: not written again */
    if (is_solved(p)) {
        const backward_work<double> w = backward_carve<double>(p, &pool);
        TRY(p->batch > 0 ? solved(p, &a, w, error) : LOAM_OK);
        TRY(recurrent_gather64_cuda(p, &a, &w, error));
    } else {
        const backward_work<float> w = backward_carve<float>(p, &pool);
        TRY(p->batch > 0 ? direct(p, &a, w, error) : LOAM_OK);
        TRY(recurrent_gather_cuda(p, &a, &w, error));
    }
    return loam_succeed(error);
}
