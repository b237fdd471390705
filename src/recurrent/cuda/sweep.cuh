/* SPDX-License-Identifier: MIT
 *
 * Some rows of the states of all heads, through all tokens, one token after another:
 *
 *     D = M_r Diag(e^g),   u = beta (w_r - [delta rule] D . k),   M_r <- D + u k,   y_r = M_r . x
 *
 * where w is the generalised value and x what reads the state. The state stays in registers; k, x, decays,
 * values and betas of a few tokens at a time are staged in shared memory for all warps of the block.
 */
#ifndef LOAM_RECURRENT_CUDA_SWEEP_CUH
#define LOAM_RECURRENT_CUDA_SWEEP_CUH

#include "src/recurrent/cuda/common.cuh"

enum { SWEEP_THREADS = 128 };

typedef enum sweep_read {
    READ_NOTHING,
    READ_OUTPUT,      /* y to args.o, divided by s . x where reads are normalised */
    READ_DENOMINATOR, /* y of the one row to `denominator` */
    READ_O_DOT        /* do . y over the value rows of each thread block, to `o_dot` */
} sweep_read;

template <class REAL> struct sweep {
    loam_problem p;
    loam_args a;
    recurrent_form form;
    int64_t first_row, rows; /* of the state */
    int tiles, block_rows;   /* thread blocks of a head, and rows of each */
    int staged;              /* tokens staged at a time */
    bool quads_in, quads_out;
    sweep_read read;
    const REAL *x;      /* what reads the state, [work row][dim_qk]; NULL: the features of q times scale */
    float *denominator; /* [work row]: s . x of normalised reads */
    REAL *o_dot;        /* [tile][work row] */
    kept_states<REAL> kept; /* states to keep; data is NULL where there are none */
};

/* Shared memory of a block, carved into arrays. */
template <int LANES, class REAL> struct sweep_stage {
    REAL *k, *x, *decay; /* [staged][width] */
    REAL *w, *y;         /* [staged][block_rows]: the generalised value w; what was read, y */
    REAL *beta;          /* [staged] */

    __host__ __device__ static size_t bytes(int64_t staged, int64_t block_rows)
    {
        return sizeof(REAL) * (size_t)(staged * (3 * width_of<LANES> + 2 * block_rows + 1));
    }
    __device__ sweep_stage(void *shared, int staged, int block_rows)
    {
        k = (REAL *)shared, x = k + staged * width_of<LANES>, decay = x + staged * width_of<LANES>;
        w = decay + staged * width_of<LANES>, y = w + staged * block_rows, beta = y + staged * block_rows;
    }
};

/* Stages tokens first .. first + n - 1: each warp loads whole rows of k, x or the decay; the threads
 * share the values. */
template <int LANES, class REAL>
static __device__ __forceinline__ void sweep_load(const sweep<REAL> &s, const sweep_stage<LANES, REAL> &stage,
                                                  const recurrent_seq &seq, int64_t h, int64_t row0,
                                                  int64_t first, int n)
{
    constexpr int width = width_of<LANES>;
    const loam_problem &p = s.p;
    const int64_t key_head = recurrent_key_head(&p, h);
    for (int task = threadIdx.x / 32; task < 3 * n; task += blockDim.x / 32) {
        const int t = task / 3;
        const int64_t token = seq.first + first + t;
        switch (task % 3) {
        case 0:
            stage_features<LANES>(stage.k + t * width, p, s.a.k.data,
                                  RECURRENT_AT(s.a.k, seq.b, key_head, token), (REAL)1);
            break;
        case 1:
            if (s.x) {
                const REAL *x = s.x + recurrent_work_row(&p, &seq, h, first + t) * p.dim_qk;
                for (int c = threadIdx.x % 32; c < width; c += 32)
                    stage.x[t * width + c] = c < p.dim_qk ? x[c] : 0;
            } else if (s.read != READ_NOTHING) {
                stage_features<LANES>(stage.x + t * width, p, s.a.q.data,
                                      RECURRENT_AT(s.a.q, seq.b, key_head, token), (REAL)p.scale);
            }
            break;
        default: stage_decay<LANES>(stage.decay + t * width, p, s.form, s.a.log_decay, seq, h, first + t);
        }
    }
    for (int e = threadIdx.x; e < n * s.block_rows; e += blockDim.x) {
        const int t = e / s.block_rows, r = e % s.block_rows;
        const int64_t row = row0 + r;
        REAL w = row >= s.first_row + s.rows ? 0 : 1;
        if (w != 0 && row < p.dim_v) {
            w = load_real<REAL>(s.a.v.data, p.dtype,
                                RECURRENT_AT(s.a.v, seq.b, h, seq.first + first + t) + row);
        }
        stage.w[e] = w;
    }
    for (int t = threadIdx.x; t < n; t += blockDim.x)
        stage.beta[t] = beta_of<REAL>(s.form, s.a, seq, h, first + t);
}

/* For rows of H the value is the key, as features. */
template <int LANES, class REAL>
static __device__ __forceinline__ void sweep_load_keys(const sweep<REAL> &s,
                                                       const sweep_stage<LANES, REAL> &stage, int64_t row0,
                                                       int n)
{
    for (int e = threadIdx.x; e < n * s.block_rows; e += blockDim.x) {
        const int64_t row = row0 + e % s.block_rows;
        if (row >= s.p.dim_v && row < s.first_row + s.rows)
            stage.w[e] = stage.k[e / s.block_rows * width_of<LANES> + row - s.p.dim_v];
    }
    __syncthreads();
}

/* One warp for each token: do . y over the rows of the block. */
template <int LANES, class REAL>
static __device__ __forceinline__ void sweep_store_o_dot(const sweep<REAL> &s,
                                                         const sweep_stage<LANES, REAL> &stage,
                                                         const recurrent_seq &seq, int64_t h, int64_t row0,
                                                         int64_t first, int n)
{
    const int64_t plane = recurrent_tokens(&s.p) * s.p.heads_v * (blockIdx.x % s.tiles);
    for (int t = threadIdx.x / 32; t < n; t += blockDim.x / 32) {
        const int64_t at = RECURRENT_AT(s.a.grad_o, seq.b, h, seq.first + first + t);
        REAL sum = 0;
        for (int r = threadIdx.x % 32; r < s.block_rows && row0 + r < s.p.dim_v; r += 32) {
            sum = fma(load_real<REAL>(s.a.grad_o.data, s.p.dtype, at + row0 + r),
                      stage.y[t * s.block_rows + r], sum);
        }
        sum = row_sum<32>(sum);
        if (threadIdx.x % 32 == 0) s.o_dot[plane + recurrent_work_row(&s.p, &seq, h, first + t)] = sum;
    }
}

template <int LANES, class REAL>
static __device__ __forceinline__ void sweep_store(const sweep<REAL> &s,
                                                   const sweep_stage<LANES, REAL> &stage,
                                                   const recurrent_seq &seq, int64_t h, int64_t row0,
                                                   int64_t first, int n)
{
    const loam_args &a = s.a;
    for (int e = threadIdx.x; e < n * s.block_rows; e += blockDim.x) {
        const int t = e / s.block_rows;
        const int64_t row = row0 + e % s.block_rows, at = recurrent_work_row(&s.p, &seq, h, first + t);
        if (row >= s.first_row + s.rows) continue;
        if (s.read == READ_DENOMINATOR) {
            s.denominator[at] = (float)stage.y[e];
            continue;
        }
        const float y = (float)stage.y[e], denominator = s.p.normalise ? s.denominator[at] : 1;
        store_real(a.o.data, s.p.dtype, RECURRENT_AT(a.o, seq.b, h, seq.first + first + t) + row,
                   denominator == 0 ? 0
                   : s.p.normalise  ? y / denominator
                                    : y);
        if (row == 0 && a.info.data && !s.form.solved) {
            const loam_row_info info = { denominator == 0 ? LOAM_ROW_SINGULAR : LOAM_ROW_SOLVED,
                                         LOAM_SOLVER_NONE, 0, 0 };
            ((loam_row_info *)a.info.data)[RECURRENT_AT(a.info, seq.b, h, seq.first + first + t)] = info;
        }
    }
}

/* m, a row of the state: decayed, written to by token t, and read by its x. */
template <class REAL, int LANES>
static __device__ __forceinline__ void sweep_token(const sweep<REAL> &s,
                                                   const sweep_stage<LANES, REAL> &stage, int t, int local,
                                                   REAL (&m)[CHANNELS])
{
    constexpr int width = width_of<LANES>;
    REAL k[CHANNELS];
    load_row<LANES>(k, stage.k + t * width);
    {
        REAL decay[CHANNELS];
        load_row<LANES>(decay, stage.decay + t * width);
#pragma unroll
        for (int i = 0; i < CHANNELS; i++)
            m[i] = decayed(m[i], decay[i]);
    }
    const REAL beta = stage.beta[t], w = stage.w[t * s.block_rows + local];
    const REAL u = mul_unfused(beta, s.form.delta ? w - row_dot<LANES>(m, k) : w);
#pragma unroll
    for (int i = 0; i < CHANNELS; i++)
        m[i] = fma(u, k[i], m[i]);
    if (s.read != READ_NOTHING) {
        REAL x[CHANNELS];
        load_row<LANES>(x, stage.x + t * width);
        const REAL y = row_dot<LANES>(m, x);
        if (threadIdx.x % LANES == 0) stage.y[t * s.block_rows + local] = y;
    }
}

/* A lane has channels of one row. */
template <class REAL, int LANES>
__global__ void __launch_bounds__(SWEEP_THREADS) sweep_kernel(const __grid_constant__ sweep<REAL> s)
{
    extern __shared__ __align__(16) char shared[];
    const sweep_stage<LANES, REAL> stage(shared, s.staged, s.block_rows);
    const int64_t head = blockIdx.x / s.tiles, h = head % s.p.heads_v;
    const int64_t row0 = s.first_row + (int64_t)(blockIdx.x % s.tiles) * s.block_rows;
    const int local = threadIdx.x / 32 * (32 / LANES) + threadIdx.x % 32 / LANES;
    const recurrent_seq seq = recurrent_seq_at(&s.p, &s.a, head / s.p.heads_v);
    const int64_t row = row0 + local;
    const auto inside = [&] { return row < s.first_row + s.rows; };
    REAL m[CHANNELS] = {};

    if (s.a.state_in.data && inside()) {
        load_state_row<LANES>(
            m, (const float *)s.a.state_in.data + RECURRENT_AT(s.a.state_in, seq.index, h, row), s.p.dim_qk,
            s.quads_in);
    }
    for (int64_t first = 0; first < seq.len; first += s.staged) {
        const int n = (int)min(seq.len - first, (int64_t)s.staged);
        sweep_load<LANES>(s, stage, seq, h, row0, first, n);
        __syncthreads();
        if (s.form.solved && s.first_row + s.rows > s.p.dim_v) sweep_load_keys<LANES>(s, stage, row0, n);
        for (int t = 0; t < n; t++) {
            if (s.kept.data && (first + t) % s.kept.every == 0 && inside()) {
                store_row<LANES>(kept_row(s.kept, s.p, seq, h, (first + t) / s.kept.every, row - s.first_row),
                                 m);
            }
            sweep_token<REAL, LANES>(s, stage, t, local, m);
        }
        __syncthreads();
        if (s.read == READ_O_DOT)
            sweep_store_o_dot<LANES>(s, stage, seq, h, row0, first, n);
        else if (s.read != READ_NOTHING)
            sweep_store<LANES>(s, stage, seq, h, row0, first, n);
    }
    if (s.a.state_out.data && inside()) {
        store_state_row<LANES>((float *)s.a.state_out.data + RECURRENT_AT(s.a.state_out, seq.index, h, row),
                               m, s.p.dim_qk, s.quads_out);
    }
}

/* ------------------------------------------------------------------ launches */

/* How the rows are spread over thread blocks: warps of a block, rows of a block, and blocks
 * (tiles) of a head. */
struct sweep_shape {
    int warps, block_rows, tiles;
};

static inline sweep_shape sweep_shape_of(const loam_problem *p, int64_t rows)
{
    const int64_t warp_rows = 32 * CHANNELS / recurrent_cuda_width(p), most = SWEEP_THREADS / 32;
    const int64_t warps = (rows + warp_rows - 1) / warp_rows, used = warps < most ? warps : most;
    return { (int)used, (int)(used * warp_rows), (int)((warps + used - 1) / used) };
}

/* Launches the sweep that `s` describes: rows first_row .. first_row + rows - 1 of the state. */
template <class REAL, int LANES> static loam_status sweep_launch(sweep<REAL> *s, loam_error *error)
{
    const loam_args *a = &s->a;
    const sweep_shape shape = sweep_shape_of(&s->p, s->rows);
    const int64_t staged = width_of<LANES> * sizeof(REAL) <= 512 ? 16 : 8;
    s->staged = (int)(s->p.len_q < staged ? s->p.len_q : staged);
    s->block_rows = shape.block_rows, s->tiles = shape.tiles;
    s->quads_in = state_in_quads(&s->p, a->state_in), s->quads_out = state_in_quads(&s->p, a->state_out);
    return cuda_launch("sweep_kernel", sweep_kernel<REAL, LANES>, s->p.batch * s->p.heads_v * s->tiles,
                       (unsigned)shape.warps * 32, sweep_stage<LANES, REAL>::bytes(s->staged, s->block_rows),
                       a->stream, false, error, *s);
}

template <class REAL> static loam_status sweep_run(sweep<REAL> *s, loam_error *error)
{
    switch (recurrent_cuda_width(&s->p)) {
    case 64: return sweep_launch<REAL, 4>(s, error);
    case 128: return sweep_launch<REAL, 8>(s, error);
    case 256: return sweep_launch<REAL, 16>(s, error);
    default: return sweep_launch<REAL, 32>(s, error);
    }
}

template <class REAL> static sweep<REAL> sweep_of(const loam_problem *p, const loam_args *a)
{
    sweep<REAL> s = {};
    s.p = *p, s.a = *a, s.form = *recurrent_form_of(p->mechanism);
    s.rows = p->dim_v, s.read = READ_OUTPUT;
    return s;
}

/* Takes s of normalised reads alone through the tokens: writes s . x, and its row
 * of state_out. */
static inline loam_status sweep_denominators(const loam_problem *p, const loam_args *a, float *denominator,
                                             loam_error *error)
{
    sweep<float> s = sweep_of<float>(p, a);
    s.first_row = p->dim_v, s.rows = 1, s.read = READ_DENOMINATOR, s.denominator = denominator;
    return sweep_run(&s, error);
}

/* Takes H of MesaNet through the tokens: keeps it before tokens 0, every, ..., and writes its rows
 * of state_out. */
static inline loam_status sweep_systems(const loam_problem *p, const loam_args *a,
                                        const kept_states<double> *kept, loam_error *error)
{
    sweep<double> s = sweep_of<double>(p, a);
    s.first_row = p->dim_v, s.rows = p->dim_qk, s.read = READ_NOTHING, s.kept = *kept;
    return sweep_run(&s, error);
}

#endif
