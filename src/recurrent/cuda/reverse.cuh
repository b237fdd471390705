/* SPDX-License-Identifier: MIT
 *
 * The recurrence in reverse. A thread block has some rows of the state of a head. From the state kept at the
 * beginning of each span of `every` tokens, it computes the states before all tokens of the span again, then
 * goes back through them. With dM the gradient of M_t, from the last token to the first:
 *
 *     dM += dy x^T + dz z^T,   dx = M^T dy
 *     du = dM k,   dk = dM^T u - [delta rule] D^T dw,   dw = beta du,   dbeta = du . err
 *     dM -= [delta rule] dw k^T,   dg_c = sum_r dM_rc D_rc,   dM <- dM Diag(e^g)
 *
 * dy is the gradient of y = M x, and dz = 0. For rows of H (MesaNet), dy_r = -z_r / 2 and dz_r = -x_r / 2.
 * Sums over rows are added in the order of lanes, warps and tiles; recurrent/cuda/gather.cu adds up the parts
 * of the thread blocks.
 */
#ifndef LOAM_RECURRENT_CUDA_REVERSE_CUH
#define LOAM_RECURRENT_CUDA_REVERSE_CUH

#include "src/recurrent/cuda/backward.cuh"

/* Threads of a block; tokens staged at a time, few enough for the shared memory of all GPUs; rows of the
 * state in a lane. */
template <int LANES> constexpr int reverse_threads = LANES == 32 ? 128 : 256;
template <int LANES> constexpr int reverse_staged = LANES == 32 ? 2 : LANES == 16 ? 4 : 8;
template <class REAL, int LANES> constexpr int reverse_groups = solves<REAL> || LANES == 4 ? 1 : 2;

template <class REAL> struct reverse {
    loam_problem p;
    loam_args a;
    recurrent_form form;
    backward_work<REAL> w;
    bool quads_out, quads_in;
};

template <class REAL, int LANES, int GROUPS> struct reverse_shape {
    static constexpr int width = width_of<LANES>, apart = 32 / LANES, warps = reverse_threads<LANES> / 32;
    static constexpr int rows = warps * apart * GROUPS, staged = reverse_staged<LANES>;
};

template <class REAL, int LANES, int GROUPS> struct reverse_stage {
    typedef reverse_shape<REAL, LANES, GROUPS> shape;
    REAL k[shape::staged][shape::width], x[shape::staged][shape::width], decay[shape::staged][shape::width];
    REAL z[solves<REAL> ? shape::staged : 1][solves<REAL> ? shape::width : 4];
    REAL w[shape::staged][shape::rows], dy[shape::staged][shape::rows], dz[shape::staged][shape::rows];
    REAL dw[shape::staged][shape::rows];
    REAL columns[3][shape::warps][shape::width]; /* of dx, dk and dg, summed over the rows of each warp */
    REAL scalars[shape::warps];                  /* of dbeta, likewise */
    REAL beta[shape::staged];
};

/* A tile: rows row0 .. of the state of a head. */
struct reverse_tile {
    recurrent_seq seq;
    int64_t h, row0, rows; /* rows: of the whole state */
    int part;
    bool first; /* first tile of its thread block: writes its sums, later ones add to them */
};

template <class REAL>
static __device__ __forceinline__ REAL read_gradient(const reverse<REAL> &s, const reverse_tile &tile,
                                                     int64_t t, int64_t row)
{
    const loam_problem &p = s.p;
    const int64_t at = recurrent_work_row(&p, &tile.seq, tile.h, t);
    const REAL denominator = p.normalise ? (REAL)s.w.denominator[at] : (REAL)1;
    if (denominator == 0 || row >= p.dim_v + p.normalise) return 0;
    if (row < p.dim_v) {
        return load_real<REAL>(s.a.grad_o.data, p.dtype,
                               RECURRENT_AT(s.a.grad_o, tile.seq.b, tile.h, tile.seq.first + t) + row) /
               denominator;
    }
    REAL o_dot = 0; /* do . y */
    for (int part = 0; part < s.w.o_dot_parts; part++)
        o_dot += s.w.o_dot[part * s.w.work_rows + at];
    return -o_dot / denominator / denominator;
}

/* What to load: for the state forward; the same and the gradients of reads; all that the step
 * backward needs. */
typedef enum reverse_loads { LOAD_WRITE, LOAD_READ, LOAD_REVERSE } reverse_loads;

/* Stages tokens first .. first + n - 1 in shared memory. */
template <class REAL, int LANES, int GROUPS>
static __device__ __forceinline__ void reverse_load(const reverse<REAL> &s,
                                                    reverse_stage<REAL, LANES, GROUPS> &stage,
                                                    const reverse_tile &tile, int64_t first, int n,
                                                    reverse_loads what)
{
    typedef reverse_shape<REAL, LANES, GROUPS> shape;
    const loam_problem &p = s.p;
    const recurrent_seq &seq = tile.seq;
    const int64_t key_head = recurrent_key_head(&p, tile.h);
    __syncthreads();
    for (int task = threadIdx.x / 32; task < 3 * n; task += shape::warps) {
        const int t = task / 3;
        const int64_t token = seq.first + first + t, work = recurrent_work_row(&p, &seq, tile.h, first + t);
        if (task % 3 == 0) {
            stage_features<LANES>(stage.k[t], p, s.a.k.data, RECURRENT_AT(s.a.k, seq.b, key_head, token),
                                  (REAL)1);
        } else if (task % 3 == 1) {
            stage_decay<LANES>(stage.decay[t], p, s.form, s.a.log_decay, seq, tile.h, first + t);
        } else if (what == LOAD_REVERSE && solves<REAL>) {
            for (int c = threadIdx.x % 32; c < shape::width; c += 32) {
                stage.x[t][c] = c < p.dim_qk ? s.w.x[work * p.dim_qk + c] : 0;
                stage.z[solves<REAL> ? t : 0][c] = c < p.dim_qk ? s.w.dx[work * p.dim_qk + c] : 0;
            }
        } else if (what == LOAD_REVERSE) {
            stage_features<LANES>(stage.x[t], p, s.a.q.data, RECURRENT_AT(s.a.q, seq.b, key_head, token),
                                  (REAL)p.scale);
        }
    }
    for (int t = threadIdx.x; t < n; t += blockDim.x)
        stage.beta[t] = beta_of<REAL>(s.form, s.a, seq, tile.h, first + t);
    __syncthreads();
    for (int e = threadIdx.x; e < n * shape::rows; e += blockDim.x) {
        const int t = e / shape::rows, r = e % shape::rows;
        const int64_t row = tile.row0 + r;
        const bool system = solves<REAL> && row >= p.dim_v;
        REAL w = 0, dy = 0, dz = 0;
        if (row < tile.rows) {
            w = row < p.dim_v
                    ? load_real<REAL>(s.a.v.data, p.dtype,
                                      RECURRENT_AT(s.a.v, seq.b, tile.h, seq.first + first + t) + row)
                : system ? stage.k[t][row - p.dim_v]
                         : (REAL)1;
            if (what == LOAD_READ) {
                dy = read_gradient(s, tile, first + t, row);
            } else if (what == LOAD_REVERSE) {
                dy = system ? -stage.z[solves<REAL> ? t : 0][row - p.dim_v] / 2
                            : read_gradient(s, tile, first + t, row);
                dz = system ? -stage.x[t][row - p.dim_v] / 2 : 0;
            }
        }
        stage.w[t][r] = w, stage.dy[t][r] = dy, stage.dz[t][r] = dz;
    }
    __syncthreads();
}

/* m <- D = M Diag(e^g); err and u of the write, which would make it M = D + u k^T. */
template <class REAL, int LANES, int GROUPS>
static __device__ __forceinline__ void decay_and_write(const reverse<REAL> &s,
                                                       const reverse_stage<REAL, LANES, GROUPS> &stage, int t,
                                                       int local, const REAL (&k)[CHANNELS],
                                                       REAL (&m)[GROUPS][CHANNELS], REAL (&err)[GROUPS],
                                                       REAL (&u)[GROUPS])
{
    REAL decay[CHANNELS];
    load_row<LANES>(decay, stage.decay[t]);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
#pragma unroll
        for (int i = 0; i < CHANNELS; i++)
            m[g][i] = decayed(m[g][i], decay[i]);
        const REAL w = stage.w[t][local + g * (32 / LANES)];
        err[g] = s.form.delta ? w - row_dot<LANES>(m[g], k) : w;
        u[g] = mul_unfused(stage.beta[t], err[g]);
    }
}

/* to[width] <- the sum of x over the rows of the warp. */
template <int LANES, class REAL>
static __device__ __forceinline__ void store_columns(REAL *to, REAL (&x)[CHANNELS])
{
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) {
#pragma unroll
        for (int step = LANES; step < 32; step *= 2)
            x[i] += __shfl_xor_sync(~0u, x[i], step);
    }
    if (threadIdx.x % 32 < LANES) store_row<LANES>(to, x);
}

/* dM += dy x^T + dz z^T. Writes the warp's part of dx = M^T dy; not for MesaNet, where adjoint_read_kernel
 * has computed dx. */
template <class REAL, int LANES, int GROUPS>
static __device__ __forceinline__ void reverse_read(reverse_stage<REAL, LANES, GROUPS> &stage, int t,
                                                    int local, const REAL (&k)[CHANNELS],
                                                    const REAL (&u)[GROUPS],
                                                    const REAL (&m)[GROUPS][CHANNELS],
                                                    REAL (&dm)[GROUPS][CHANNELS])
{
    constexpr int apart = 32 / LANES;
    REAL dx[CHANNELS];
    {
        REAL x[CHANNELS];
        load_row<LANES>(x, stage.x[t]);
#pragma unroll
        for (int i = 0; i < CHANNELS; i++) {
            dx[i] = 0;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                const REAL dy = stage.dy[t][local + g * apart];
                dx[i] = fma(dy, fma(u[g], k[i], m[g][i]), dx[i]);
                dm[g][i] = fma(dy, x[i], dm[g][i]);
            }
        }
    }
    if constexpr (solves<REAL>) {
        REAL z[CHANNELS];
        load_row<LANES>(z, stage.z[t]);
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
#pragma unroll
            for (int i = 0; i < CHANNELS; i++)
                dm[g][i] = fma(stage.dz[t][local + g * apart], z[i], dm[g][i]);
        }
    } else {
        store_columns<LANES>(stage.columns[0][threadIdx.x / 32], dx);
    }
}

/* du = dM k, dw = beta du. Writes dw, and the warp's part of dbeta = du . err. */
template <class REAL, int LANES, int GROUPS>
static __device__ __forceinline__ void reverse_values(reverse_stage<REAL, LANES, GROUPS> &stage, int t,
                                                      int local, const REAL (&k)[CHANNELS],
                                                      const REAL (&err)[GROUPS],
                                                      const REAL (&dm)[GROUPS][CHANNELS], REAL (&dw)[GROUPS])
{
    REAL dbeta = 0;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const REAL du = row_dot<LANES>(dm[g], k);
        dbeta = fma(du, err[g], dbeta);
        dw[g] = mul_unfused(stage.beta[t], du);
        if (threadIdx.x % LANES == 0) stage.dw[t][local + g * (32 / LANES)] = dw[g];
    }
#pragma unroll
    for (int step = LANES; step < 32; step *= 2)
        dbeta += __shfl_xor_sync(~0u, dbeta, step);
    if (threadIdx.x % 32 == 0) stage.scalars[threadIdx.x / 32] = dbeta;
}

/* dM -= [delta rule] dw k^T. Writes the warp's part of dk = dM^T u - [delta rule] D^T dw. */
template <class REAL, int LANES, int GROUPS>
static __device__ __forceinline__ void reverse_keys(const reverse<REAL> &s,
                                                    reverse_stage<REAL, LANES, GROUPS> &stage,
                                                    const REAL (&k)[CHANNELS], const REAL (&u)[GROUPS],
                                                    const REAL (&dw)[GROUPS],
                                                    const REAL (&m)[GROUPS][CHANNELS],
                                                    REAL (&dm)[GROUPS][CHANNELS])
{
    REAL dk[CHANNELS];
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) {
        dk[i] = 0;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            dk[i] = fma(u[g], dm[g][i], dk[i]);
            if (s.form.delta) {
                dk[i] = fma(-dw[g], m[g][i], dk[i]);
                dm[g][i] = fma(-dw[g], k[i], dm[g][i]);
            }
        }
    }
    store_columns<LANES>(stage.columns[1][threadIdx.x / 32], dk);
}

/* dM <- dM Diag(e^g). Writes the warp's part of dg_c = sum_r dM_rc D_rc. */
template <class REAL, int LANES, int GROUPS>
static __device__ __forceinline__ void reverse_decay(reverse_stage<REAL, LANES, GROUPS> &stage, int t,
                                                     const REAL (&m)[GROUPS][CHANNELS],
                                                     REAL (&dm)[GROUPS][CHANNELS])
{
    REAL decay[CHANNELS], dg[CHANNELS];
    load_row<LANES>(decay, stage.decay[t]);
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) {
        dg[i] = 0;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            dg[i] = fma(dm[g][i], m[g][i], dg[i]);
            dm[g][i] = decayed(dm[g][i], decay[i]);
        }
    }
    store_columns<LANES>(stage.columns[2][threadIdx.x / 32], dg);
}

/* One token of the reverse pass. m holds the state before the token, and becomes D; dm is dM. */
template <class REAL, int LANES, int GROUPS>
static __device__ __forceinline__ void reverse_token(const reverse<REAL> &s,
                                                     reverse_stage<REAL, LANES, GROUPS> &stage, int t,
                                                     int local, REAL (&m)[GROUPS][CHANNELS],
                                                     REAL (&dm)[GROUPS][CHANNELS])
{
    REAL k[CHANNELS], err[GROUPS], u[GROUPS], dw[GROUPS];
    load_row<LANES>(k, stage.k[t]);
    decay_and_write<REAL, LANES, GROUPS>(s, stage, t, local, k, m, err, u);
    reverse_read<REAL, LANES, GROUPS>(stage, t, local, k, u, m, dm);
    reverse_values<REAL, LANES, GROUPS>(stage, t, local, k, err, dm, dw);
    reverse_keys<REAL, LANES, GROUPS>(s, stage, k, u, dw, m, dm);
    if (s.form.gate != GATE_NONE) reverse_decay<REAL, LANES, GROUPS>(stage, t, m, dm);
}

/* The sum of a column over the warps, in their order. */
template <int WARPS, int WIDTH, class REAL>
static __device__ __forceinline__ REAL column_sum(const REAL (&columns)[WARPS][WIDTH], int c)
{
    REAL sum = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++)
        sum += columns[warp][c];
    return sum;
}

template <class REAL> static __device__ __forceinline__ void store_sum(REAL *place, REAL sum, bool first)
{
    *place = first ? sum : *place + sum;
}

/* Adds the warps' sums for token t to those of the earlier tiles of the thread block. */
template <class REAL, int LANES, int GROUPS>
static __device__ __forceinline__ void store_sums(const reverse<REAL> &s,
                                                  const reverse_stage<REAL, LANES, GROUPS> &stage,
                                                  const reverse_tile &tile, int64_t t)
{
    typedef reverse_shape<REAL, LANES, GROUPS> shape;
    const int64_t at = tile.part * s.w.work_rows + recurrent_work_row(&s.p, &tile.seq, tile.h, t),
                  d = s.p.dim_qk;
    REAL *const to[] = { solves<REAL> ? NULL : s.w.dx, s.w.dk, s.w.dg };
#pragma unroll
    for (int which = 0; which < 3; which++)
        for (int c = threadIdx.x; to[which] && c < d; c += blockDim.x)
            store_sum(to[which] + at * d + c, column_sum(stage.columns[which], c), tile.first);
    if (threadIdx.x == 0 && s.w.dbeta) {
        REAL sum = 0;
#pragma unroll
        for (int warp = 0; warp < shape::warps; warp++)
            sum += stage.scalars[warp];
        store_sum(s.w.dbeta + at, sum, tile.first);
    }
}

/* Writes dw: grad_v for rows of values; for rows of H, a part of dk that gather_kernel adds. */
template <class REAL, int LANES, int GROUPS>
static __device__ __forceinline__ void store_values(const reverse<REAL> &s,
                                                    const reverse_stage<REAL, LANES, GROUPS> &stage,
                                                    const reverse_tile &tile, int64_t first, int n)
{
    typedef reverse_shape<REAL, LANES, GROUPS> shape;
    const loam_problem &p = s.p;
    for (int e = threadIdx.x; e < n * shape::rows; e += blockDim.x) {
        const int t = e / shape::rows, r = e % shape::rows;
        const int64_t row = tile.row0 + r;
        if (row < p.dim_v && s.a.grad_v.data) {
            store_real(s.a.grad_v.data, p.dtype,
                       RECURRENT_AT(s.a.grad_v, tile.seq.b, tile.h, tile.seq.first + first + t) + row,
                       (float)stage.dw[t][r]);
        } else if (solves<REAL> && row >= p.dim_v && row < tile.rows) {
            s.w.dw[recurrent_work_row(&p, &tile.seq, tile.h, first + t) * p.dim_qk + row - p.dim_v] =
                stage.dw[t][r];
        }
    }
}

/* The states before the tokens of one span, this thread's part, in the order of its registers. */
template <class REAL, int LANES, int GROUPS> struct replayed_states {
    quad<REAL> *at;

    __device__ replayed_states(const reverse<REAL> &s, const reverse_tile &tile)
    {
        const int64_t n = s.w.replayed_slot(tile.seq, tile.h) * s.w.parts +
                          tile.part * s.w.replayed_tokens(tile.seq);
        at = (quad<REAL> *)s.w.replayed +
             n * (reverse_shape<REAL, LANES, GROUPS>::rows * width_of<LANES> / 4);
    }
    __device__ quad<REAL> *of(int64_t t, int g, int n) const
    {
        return at + ((t * GROUPS + g) * (CHANNELS / 4) + n) * reverse_threads<LANES> + threadIdx.x;
    }
    __device__ void store(int64_t t, const REAL (&m)[GROUPS][CHANNELS]) const
    {
#pragma unroll
        for (int e = 0; e < GROUPS * CHANNELS / 4; e++) {
            const int g = e / (CHANNELS / 4), n = e % (CHANNELS / 4);
            *of(t, g, n) = { m[g][4 * n], m[g][4 * n + 1], m[g][4 * n + 2], m[g][4 * n + 3] };
        }
    }
    __device__ void load(int64_t t, REAL (&m)[GROUPS][CHANNELS]) const
    {
#pragma unroll
        for (int e = 0; e < GROUPS * CHANNELS / 4; e++) {
            const int g = e / (CHANNELS / 4), n = e % (CHANNELS / 4);
            const quad<REAL> q = *of(t, g, n);
            m[g][4 * n] = q.x[0], m[g][4 * n + 1] = q.x[1], m[g][4 * n + 2] = q.x[2],
                     m[g][4 * n + 3] = q.x[3];
        }
    }
};

/* Takes the state forward through tokens first .. end - 1 and stores it before each of them. */
template <class REAL, int LANES, int GROUPS>
static __device__ __forceinline__ void replay(const reverse<REAL> &s,
                                              reverse_stage<REAL, LANES, GROUPS> &stage,
                                              const reverse_tile &tile,
                                              const replayed_states<REAL, LANES, GROUPS> &replayed,
                                              int64_t first, int64_t end, int local,
                                              REAL (&m)[GROUPS][CHANNELS])
{
    typedef reverse_shape<REAL, LANES, GROUPS> shape;
    for (int64_t begin = first; begin < end; begin += shape::staged) {
        const int n = (int)min(end - begin, (int64_t)shape::staged);
        reverse_load<REAL, LANES, GROUPS>(s, stage, tile, begin, n, LOAD_WRITE);
        for (int t = 0; t < n; t++) {
            REAL k[CHANNELS], err[GROUPS], u[GROUPS];
            replayed.store(begin + t - first, m);
            load_row<LANES>(k, stage.k[t]);
            decay_and_write<REAL, LANES, GROUPS>(s, stage, t, local, k, m, err, u);
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
#pragma unroll
                for (int i = 0; i < CHANNELS; i++)
                    m[g][i] = fma(u[g], k[i], m[g][i]);
            }
        }
    }
}

template <class REAL, int LANES, int GROUPS>
static __device__ __forceinline__ void reverse_rows(const reverse<REAL> &s,
                                                    reverse_stage<REAL, LANES, GROUPS> &stage,
                                                    const reverse_tile &tile)
{
    typedef reverse_shape<REAL, LANES, GROUPS> shape;
    const int local = threadIdx.x / 32 * shape::apart * GROUPS + threadIdx.x % 32 / LANES;
    const recurrent_seq &seq = tile.seq;
    const replayed_states<REAL, LANES, GROUPS> replayed(s, tile);
    const loam_const_view &from = s.a.grad_state_out;
    const loam_view &to = s.a.grad_state_in;
    const auto row_of = [&](int g) { return tile.row0 + local + g * shape::apart; };
    REAL m[GROUPS][CHANNELS] = {}, dm[GROUPS][CHANNELS] = {};
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        if (from.data && row_of(g) < tile.rows) {
            load_state_row<LANES>(dm[g],
                                  (const float *)from.data + RECURRENT_AT(from, seq.index, tile.h, row_of(g)),
                                  s.p.dim_qk, s.quads_out);
        }
    }
    const int64_t every = s.w.kept.every;
    for (int64_t first = seq.len > 0 ? (seq.len - 1) / every * every : -1; first >= 0; first -= every) {
        const int64_t end = min(first + every, seq.len);
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            if (row_of(g) < tile.rows)
                load_row<LANES>(m[g], kept_row(s.w.kept, s.p, seq, tile.h, first / every, row_of(g)));
        replay<REAL, LANES, GROUPS>(s, stage, tile, replayed, first, end, local, m);
        for (int64_t begin = first + (end - 1 - first) / shape::staged * shape::staged; begin >= first;
             begin -= shape::staged) {
            const int n = (int)min(end - begin, (int64_t)shape::staged);
            reverse_load<REAL, LANES, GROUPS>(s, stage, tile, begin, n, LOAD_REVERSE);
            for (int t = n - 1; t >= 0; t--) {
                replayed.load(begin + t - first, m);
                reverse_token<REAL, LANES, GROUPS>(s, stage, t, local, m, dm);
                __syncthreads();
                store_sums<REAL, LANES, GROUPS>(s, stage, tile, begin + t);
                __syncthreads();
            }
            store_values<REAL, LANES, GROUPS>(s, stage, tile, begin, n);
        }
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        if (to.data && row_of(g) < tile.rows) {
            store_state_row<LANES>((float *)to.data + RECURRENT_AT(to, seq.index, tile.h, row_of(g)), dm[g],
                                   s.p.dim_qk, s.quads_in);
        }
    }
}

/* Calls each(tile) for the tiles of this thread block: part, part + parts, ... of the rows of its head. */
template <class REAL, int LANES, int GROUPS, class TILE>
static __device__ __forceinline__ void for_tiles(const reverse<REAL> &s, int64_t rows, const TILE &each)
{
    constexpr int tile_rows = reverse_shape<REAL, LANES, GROUPS>::rows;
    const int64_t head = blockIdx.x / s.w.parts;
    reverse_tile tile;
    tile.h = head % s.p.heads_v, tile.part = (int)(blockIdx.x % s.w.parts), tile.first = true;
    tile.seq = recurrent_seq_at(&s.p, &s.a, head / s.p.heads_v);
    tile.rows = rows;
    for (tile.row0 = (int64_t)tile.part * tile_rows; tile.row0 < rows || tile.first;
         tile.row0 += (int64_t)s.w.parts * tile_rows) {
        each(tile);
        tile.first = false;
    }
}

template <class REAL, int LANES, int GROUPS>
__global__ void __launch_bounds__(reverse_threads<LANES>)
    reverse_kernel(const __grid_constant__ reverse<REAL> s)
{
    typedef reverse_stage<REAL, LANES, GROUPS> stage;
    extern __shared__ __align__(16) char shared[];
    for_tiles<REAL, LANES, GROUPS>(s, s.w.kept.rows, [&](const reverse_tile &tile) {
        reverse_rows<REAL, LANES, GROUPS>(s, *(stage *)shared, tile);
    });
}

/* dx = S^T do for all tokens, as S goes forward through them. */
template <class REAL, int LANES, int GROUPS>
static __device__ __forceinline__ void adjoint_rows(const reverse<REAL> &s,
                                                    reverse_stage<REAL, LANES, GROUPS> &stage,
                                                    const reverse_tile &tile)
{
    typedef reverse_shape<REAL, LANES, GROUPS> shape;
    const int local = threadIdx.x / 32 * shape::apart * GROUPS + threadIdx.x % 32 / LANES;
    const loam_const_view &from = s.a.state_in;
    REAL m[GROUPS][CHANNELS] = {};
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int64_t row = tile.row0 + local + g * shape::apart;
        if (from.data && row < tile.rows) {
            load_state_row<LANES>(m[g],
                                  (const float *)from.data + RECURRENT_AT(from, tile.seq.index, tile.h, row),
                                  s.p.dim_qk, false);
        }
    }
    for (int64_t first = 0; first < tile.seq.len; first += shape::staged) {
        const int n = (int)min(tile.seq.len - first, (int64_t)shape::staged);
        reverse_load<REAL, LANES, GROUPS>(s, stage, tile, first, n, LOAD_READ);
        for (int t = 0; t < n; t++) {
            REAL k[CHANNELS], part[CHANNELS] = {}, err[GROUPS], u[GROUPS];
            load_row<LANES>(k, stage.k[t]);
            decay_and_write<REAL, LANES, GROUPS>(s, stage, t, local, k, m, err, u);
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
#pragma unroll
                for (int i = 0; i < CHANNELS; i++) {
                    m[g][i] = fma(u[g], k[i], m[g][i]);
                    part[i] = fma(stage.dy[t][local + g * shape::apart], m[g][i], part[i]);
                }
            }
            store_columns<LANES>(stage.columns[0][threadIdx.x / 32], part);
            __syncthreads();
            const int64_t row = tile.part * s.w.work_rows +
                                recurrent_work_row(&s.p, &tile.seq, tile.h, first + t);
            for (int c = threadIdx.x; c < s.p.dim_qk; c += blockDim.x)
                store_sum(s.w.dx + row * s.p.dim_qk + c, column_sum(stage.columns[0], c), tile.first);
            __syncthreads();
        }
    }
}

template <class REAL, int LANES, int GROUPS>
__global__ void __launch_bounds__(reverse_threads<LANES>)
    adjoint_read_kernel(const __grid_constant__ reverse<REAL> s)
{
    typedef reverse_stage<REAL, LANES, GROUPS> stage;
    extern __shared__ __align__(16) char shared[];
    for_tiles<REAL, LANES, GROUPS>(s, s.p.dim_v, [&](const reverse_tile &tile) {
        adjoint_rows<REAL, LANES, GROUPS>(s, *(stage *)shared, tile);
    });
}

/* ------------------------------------------------------------------ launches */

template <class REAL>
static reverse<REAL> reverse_of(const loam_problem *p, const loam_args *a, const backward_work<REAL> *w)
{
    reverse<REAL> s = {};
    s.p = *p, s.a = *a, s.form = *recurrent_form_of(p->mechanism), s.w = *w;
    s.quads_out = state_in_quads(p, a->grad_state_out), s.quads_in = state_in_quads(p, a->grad_state_in);
    return s;
}

template <class REAL, int LANES> static loam_status reverse_launch(const reverse<REAL> &s, loam_error *error)
{
    constexpr int groups = reverse_groups<REAL, LANES>;
    return cuda_launch("reverse_kernel", reverse_kernel<REAL, LANES, groups>,
                       s.p.batch * s.p.heads_v * s.w.parts, reverse_threads<LANES>,
                       sizeof(reverse_stage<REAL, LANES, groups>), s.a.stream, false, error, s);
}

template <class REAL, int LANES> static loam_status adjoint_launch(const reverse<REAL> &s, loam_error *error)
{
    constexpr int groups = reverse_groups<REAL, LANES>;
    return cuda_launch("adjoint_read_kernel", adjoint_read_kernel<REAL, LANES, groups>,
                       s.p.batch * s.p.heads_v * s.w.parts, reverse_threads<LANES>,
                       sizeof(reverse_stage<REAL, LANES, groups>), s.a.stream, false, error, s);
}

template <class REAL> static loam_status reverse_run(const reverse<REAL> &s, loam_error *error)
{
    switch (recurrent_cuda_width(&s.p)) {
    case 64: return reverse_launch<REAL, 4>(s, error);
    case 128: return reverse_launch<REAL, 8>(s, error);
    case 256: return reverse_launch<REAL, 16>(s, error);
    default: return reverse_launch<REAL, 32>(s, error);
    }
}

#endif
