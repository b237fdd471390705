/* SPDX-License-Identifier: MIT
 *
 * Gradients of MesaNet by chunks (recurrent/hopper/mesa/solve.cuh), in three stages. First x_t and z_t =
 * A_t^-1 dx_t, dx_t = S_t^T do_t, for all chunks in parallel. Then the gradients dS and dH of the states at
 * the end of each chunk, from the last chunk to the first,
 *
 *     dS <- e^total dS + do^T (e^pre x),   dH <- e^total dH - (z^T (e^pre x) + x^T (e^pre z)) / 2
 *
 * with x and z as matrices whose rows are tokens. Then all other gradients, for all chunks in parallel, with
 * D_tj = e^(sum of the gates of j + 1 .. t) for t >= j, and suf_j the sum of the gates after j:
 *
 *     dv_j = beta_j (sum_t D_tj (k_j . x_t) do_t + e^suf_j dS k_j),   dk_j = beta_j (s_j + h_j)
 *     s_j = sum_t D_tj (v_j . do_t) x_t + e^suf_j dS^T v_j
 *     h_j = -sum_t D_tj ((k_j . z_t) x_t + (k_j . x_t) z_t) + 2 e^suf_j dH k_j
 *     dbeta_j = s_j . k_j + h_j . k_j / 2 (from the pairs),   dq = scale z,   dLambda = -sum_t z_t x_t
 *
 * The gradient of a gate is the sum over all that its decay multiplies: pairs with one token on each side of
 * it, reads of S0 and H0 after it, writes before it that reach the end of the chunk, and the states before
 * the chunk that reach its end. */
#ifndef LOAM_RECURRENT_HOPPER_MESA_BACKWARD_CUH
#define LOAM_RECURRENT_HOPPER_MESA_BACKWARD_CUH

#include "src/recurrent/hopper/mesa/solve.cuh"

/* bf16 parts of x and of z. */
enum { X_PARTS = 3, Z_PARTS = 3, SOLUTION_PARTS = X_PARTS + Z_PARTS };
enum { MESA_SUMS = MESA_DIM + 1 };

struct mesa_backward_params {
    mesa_params m;
    kept_states<float> grads; /* [slot]: dS, then dH, at the end of the chunk */
    /* [slot]: tiles of x and of z, in three parts each, because a small ridge makes them large. */
    mesa_tile (*solutions)[SOLUTION_PARTS];
    float *read_terms;     /* [slot][64]: e^pre (do . S0 x - z . H0 x) */
    double *antisymmetric; /* [sequence][value head][SCAN_BLOCKS], see mesa_scan */
    float *z, *dk;     /* [work row][64]: z and dk of one value head, where value heads share a key head */
    double *dx;        /* [work row][64]: dx, then z, of chunks that are solved in float64 */
    float *sums;       /* [slot][MESA_SUMS]: sums over the tokens of -z x, channel by channel, and of z . q */
    double *head_sums; /* [value head][MESA_SUMS]: the same over all tokens of the head */
    bool shared;       /* value heads share a key head */
};

/* ------------------------------------------------------------------ x and z */

/* Stores x in parts. */
template <int PARTS>
static __device__ __forceinline__ void mesa_store_solution(mesa_tile *to, const mesa_rows &x)
{
    const int t0 = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
#pragma unroll
    for (int e = 0; e < 2 * MESA_BLOCKS; e++) {
        uint32_t part[PARTS];
        mesa_split_pair(part, x[e / 2][e % 2 * 2], x[e / 2][e % 2 * 2 + 1]);
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            *(uint32_t *)(to[i] + mesa_offset(t0, e / 2, e % 2)) = part[i];
    }
}

/* Puts the thread's elements into shared memory, and takes them back. */
static __device__ __forceinline__ void mesa_keep(float4 (&to)[MESA_BLOCKS][MESA_THREADS], const mesa_rows &x)
{
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++)
        to[n][threadIdx.x] = make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
}
static __device__ __forceinline__ void mesa_take(mesa_rows &x,
                                                 const float4 (&from)[MESA_BLOCKS][MESA_THREADS])
{
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        const float4 f = from[n][threadIdx.x];
        x[n][0] = f.x, x[n][1] = f.y, x[n][2] = f.z, x[n][3] = f.w;
    }
}

/* Flags the chunk for float64, and stores dx for it. */
static __device__ __forceinline__ void mesa_leave_to_f64(const mesa_backward_params &s,
                                                         const mesa_solve_shared &sm, const mesa_chunk &chunk,
                                                         int64_t slot, const float (&decay)[2])
{
    const int lane = threadIdx.x % 32, t0 = (int)threadIdx.x / 32 * 16 + lane / 4;
    if (threadIdx.x == 0) s.m.needs_f64[slot] = 1;
    mesa_rows dx, grad_o;
    mesa_load_rows(grad_o, s.m.a.grad_o, chunk, chunk.h);
    mesa_apply<MAP_ADJOINT>(dx, grad_o, sm, decay);
#pragma unroll
    for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
        const int t = t0 + e % 4 / 2 * 8, c = e / 4 * 8 + lane % 4 * 2 + e % 2;
        if (t < chunk.tokens) {
            const int64_t row = recurrent_work_row(&s.m.p, &chunk.seq, chunk.h,
                                                   chunk.index * MESA_TOKENS + t);
            s.dx[row * MESA_DIM + c] = dx[e / 4][e % 4];
        }
    }
}

struct mesa_adjoint_shared {
    mesa_solve_shared solve;
    /* H0 x, which waits here for its product with z, and do . S0 x: each element is its thread's own. */
    float4 h0_x[MESA_BLOCKS][MESA_THREADS];
    float do_s0_x[2][MESA_THREADS];
    int needs_f64[MESA_WARPS];
    mesa_chunk chunk; /* here so that it occupies no registers during the solves */
};

/* Stores x, and keeps what `read_terms` needs of it. grad_o: rows of do, which are loaded here. */
static __device__ __forceinline__ void mesa_finish_x(const mesa_backward_params &s, mesa_adjoint_shared &all,
                                                     mesa_rows &grad_o, const mesa_rows &x)
{
    float do_s0_x[2];
    mesa_rows s0_x, h0_x;
    weights_operand<2> a;
    mesa_split(a, x);
    wgmma_fence();
    mesa_add<true, 2>(s0_x, a, all.solve.states[0], false);
    mesa_add<true, 2>(h0_x, a, all.solve.states[1], false); /* H0 is symmetric */
    wgmma_commit();
    mesa_store_solution<X_PARTS>(s.solutions[mesa_slot(s.m, all.chunk)], x);
    mesa_load_rows(grad_o, s.m.a.grad_o, all.chunk, all.chunk.h);
    wgmma_wait<0>();
    wgmma_results(s0_x), wgmma_results(h0_x);
    mesa_dot(do_s0_x, grad_o, s0_x);
    all.do_s0_x[0][threadIdx.x] = do_s0_x[0], all.do_s0_x[1][threadIdx.x] = do_s0_x[1];
    mesa_keep(all.h0_x, h0_x);
}

/* Stores z and `read_terms`. */
static __device__ __forceinline__ void mesa_finish_z(const mesa_backward_params &s,
                                                     const mesa_adjoint_shared &all, const mesa_rows &z,
                                                     const float (&decay)[2])
{
    const int lane = threadIdx.x % 32, t0 = (int)threadIdx.x / 32 * 16 + lane / 4;
    const int64_t slot = mesa_slot(s.m, all.chunk);
    float z_h0_x[2];
    mesa_store_solution<Z_PARTS>(s.solutions[slot] + X_PARTS, z);
    mesa_rows h0_x;
    mesa_take(h0_x, all.h0_x);
    mesa_dot(z_h0_x, z, h0_x);
    if (lane % 4 == 0) {
        float *terms = s.read_terms + slot * MESA_TOKENS + t0;
        terms[0] = decay[0] * (all.do_s0_x[0][threadIdx.x] - z_h0_x[0]);
        terms[8] = decay[1] * (all.do_s0_x[1][threadIdx.x] - z_h0_x[1]);
    }
}

/* x, z and `read_terms` of a chunk, one thread block for each. */
__global__ void __launch_bounds__(MESA_THREADS, 2)
    mesa_adjoint_kernel(const __grid_constant__ mesa_backward_params s)
{
    extern __shared__ __align__(1024) char shared_memory[];
    mesa_adjoint_shared &all = *(mesa_adjoint_shared *)shared_memory;
    mesa_solve_shared &sm = all.solve;
    mesa_begin();
    const mesa_chunk chunk = mesa_chunk_of_block(s.m);
    if (chunk.tokens <= 0) return;
    const loam_args &a = s.m.a;
    mesa_rows x, r;
    mesa_load_rows(r, a.q, chunk, chunk.key_head); /* comes while the rest is loaded */
    if (threadIdx.x == 0) all.chunk = chunk;
    mesa_solve_load(s.m, sm, chunk);
    const int lane = threadIdx.x % 32, t0 = (int)threadIdx.x / 32 * 16 + lane / 4;
    const float decay[2] = { exp2_fast(sm.sums[t0].x), exp2_fast(sm.sums[t0 + 8].x) };
    mesa_pair_weights(sm, decay);
#pragma unroll 1 /* one solver for x and z: the kernel waits for instructions */
    for (int side = 0; side < 2; side++) {
        if (side) {
            mesa_rows y;
            mesa_apply<MAP_ADJOINT>(y, r, sm, decay);
            memcpy(r, y, sizeof r);
        } else {
            mesa_scale_queries(r, s.m.p);
        }
        const bool needs_f64 = __any_sync(~0u, mesa_solve_rows(x, r, sm, decay).needs_f64);
        int &flag = all.needs_f64[threadIdx.x / 32];
        if (lane == 0) flag = needs_f64 || (side && flag);
        if (side)
            mesa_finish_z(s, all, x, decay);
        else
            mesa_finish_x(s, all, r, x);
    }
    __syncthreads();
    if (all.needs_f64[0] | all.needs_f64[1] | all.needs_f64[2] | all.needs_f64[3])
        mesa_leave_to_f64(s, sm, all.chunk, mesa_slot(s.m, all.chunk), decay);
}

/* ------------------------------------------------------------------ the gradients of the states */

struct mesa_reverse_shared {
    union {
        struct {
            mesa_tile x[2], z[2];
        };
        mesa_transpose transposed; /* once x and z have been read */
    };
    mesa_tile grad_o;
    uint64_t loaded;              /* x and z are */
    float factor[2][MESA_TOKENS]; /* e^pre; -e^pre / 2 */
};

/* One warp: the factors of the tokens. */
static __device__ __forceinline__ void mesa_reverse_factors(mesa_reverse_shared &sm, const mesa_params &s,
                                                            const mesa_chunk &chunk)
{
    const int lane = threadIdx.x;
    float gate[2];
    mesa_load_gates(gate, s, chunk);
    const float sum = prefix_sum(gate[0] + gate[1]);
    const float pre[2] = { expf(previous_lane(sum) + gate[0]), expf(sum) };
#pragma unroll
    for (int e = 0; e < 2; e++)
        sm.factor[0][2 * lane + e] = pre[e], sm.factor[1][2 * lane + e] = -pre[e] / 2;
}

/* What a chunk adds to dS and dH, for mesa_scan_kernel; one thread block for each chunk. */
__global__ void __launch_bounds__(MESA_THREADS)
    mesa_reverse_write_kernel(const __grid_constant__ mesa_backward_params s)
{
    extern __shared__ __align__(1024) char shared_memory[];
    mesa_reverse_shared &sm = *(mesa_reverse_shared *)shared_memory;
    mesa_begin();
    const loam_args &a = s.m.a;
    const mesa_chunk chunk = mesa_chunk_of_block(s.m);
    if (chunk.tokens <= 0) return;
    const mesa_tile *solutions = s.solutions[mesa_slot(s.m, chunk)];
    if (threadIdx.x == 0) {
        mesa_expect(&sm.loaded, sizeof sm.x + sizeof sm.z);
        load_bytes(sm.x, solutions[0], sizeof sm.x, &sm.loaded);
        load_bytes(sm.z, solutions[X_PARTS], sizeof sm.z, &sm.loaded);
    }
    mesa_load(sm.grad_o, a.grad_o, chunk, chunk.h);
    copy_async_commit();
    if (threadIdx.x < 32) mesa_reverse_factors(sm, s.m, chunk);
    mesa_tiles_complete();
    barrier_wait(&sm.loaded, 0);
    const int m = (int)threadIdx.x / 32 * 16;
    float *written = mesa_states(s.grads, s.m, chunk);
    mesa_rows acc;
    mesa_outer<1, 2>(acc, &sm.grad_o, sm.x, sm.factor[0]);
    mesa_store_matrix(written, acc, m);
    mesa_outer<2, 2>(acc, sm.z, sm.x, sm.factor[1]);
    __syncthreads();
    mesa_add_transpose(acc, sm.transposed, m);
    mesa_store_matrix(written + MESA_DIM * MESA_DIM, acc, m);
}

/* ------------------------------------------------------------------ gradients of a chunk */

struct mesa_gradient_shared {
    mesa_tile k, v, grad_o, x[X_PARTS], z[Z_PARTS];
    mesa_tile states[2][2];   /* dS and 2 dH, each in hi and lo part */
    uint64_t loaded;          /* x and z are */
    float2 sums[MESA_TOKENS]; /* prefix sums of the gates, as in mesa_solve_shared */
    float beta[MESA_TOKENS], inverse_norm[MESA_TOKENS]; /* inverse_norm: 1 / |k| */
    /* Terms of the gradients of the gates: pairs of a query, summed over the keys of a warp; pairs of a key,
     * summed over the queries; the write of a key as it reaches the end of the chunk; dS . S + dH . H,
     * partial sums of a warp. */
    float query_terms[MESA_WARPS][MESA_TOKENS];
    float key_terms[MESA_TOKENS], write_terms[MESA_TOKENS];
    float state_dot[MESA_WARPS];
    float ridge[MESA_WARPS][MESA_DIM], scale[MESA_WARPS]; /* partial sums of -z x and z . q */
    mesa_chunk chunk; /* here so that it occupies no registers during the products */
};

/* Loads dS and 2 dH in hi and lo part; each warp leaves its part of dS . S + dH . H in state_dot. */
static __device__ __forceinline__ void mesa_load_grad_states(const mesa_backward_params &s,
                                                             mesa_gradient_shared &sm,
                                                             const mesa_chunk &chunk)
{
    const float *states = mesa_states(s.m.kept, s.m, chunk), *grads = mesa_states(s.grads, s.m, chunk);
    float dot = 0;
#pragma unroll 8 /* loads under way at a time */
    for (int e = threadIdx.x; e < 2 * MESA_DIM * (MESA_DIM / 4); e += MESA_THREADS) {
        const int row = e / (MESA_DIM / 4), c = e % (MESA_DIM / 4) * 4;
        float4 f = *(const float4 *)(grads + row * MESA_DIM + c);
        const float4 m = *(const float4 *)(states + row * MESA_DIM + c);
        dot = fma(f.x, m.x, fma(f.y, m.y, fma(f.z, m.z, fma(f.w, m.w, dot))));
        if (row >= MESA_DIM) /* dH + dH^T = 2 dH, as dH is symmetric */
            f.x *= 2, f.y *= 2, f.z *= 2, f.w *= 2;
        mesa_store_split(sm.states[row / MESA_DIM], row % MESA_DIM, c, f);
    }
    dot = row_sum<32>(dot);
    if (threadIdx.x % 32 == 0) sm.state_dot[threadIdx.x / 32] = dot;
}

/* Loads the operands of mesa_gradient_kernel. All of them are complete at the end. */
static __device__ __forceinline__ void mesa_gradient_load(const mesa_backward_params &s,
                                                          mesa_gradient_shared &sm, const mesa_chunk &chunk,
                                                          int64_t slot)
{
    const loam_args &a = s.m.a;
    if (threadIdx.x == 0) {
        mesa_expect(&sm.loaded, sizeof sm.x + sizeof sm.z);
        load_bytes(sm.x, s.solutions[slot], sizeof sm.x + sizeof sm.z, &sm.loaded); /* x, and z after it */
    }
    mesa_load(sm.k, a.k, chunk, chunk.key_head);
    mesa_load(sm.v, a.v, chunk, chunk.h);
    mesa_load(sm.grad_o, a.grad_o, chunk, chunk.h);
    copy_async_commit();
    mesa_load_grad_states(s, sm, chunk);
    if (threadIdx.x < 32) mesa_cumulative_log_decay(sm.sums, s.m, chunk);
    const float beta = mesa_load_scalar(a.beta, chunk, (int)threadIdx.x / 2);
    mesa_tiles_complete();
    const float norm2 = s.m.p.feature_map == LOAM_FEATURES_UNIT ? mesa_norm2(sm.k) : 1;
    if (threadIdx.x % 2 == 0) {
        const int t = threadIdx.x / 2;
        sm.beta[t] = beta, sm.inverse_norm[t] = norm2 > 0 ? rsqrtf(norm2) : 0;
    }
    __syncthreads();
    barrier_wait(&sm.loaded, 0);
}

/* The gradients of the gates of a chunk, by one warp; lane l has tokens 2 l and 2 l + 1. */
static __device__ __forceinline__ void mesa_store_gates(const mesa_backward_params &s,
                                                        const mesa_gradient_shared &sm,
                                                        const mesa_chunk &chunk, int64_t slot)
{
    const int lane = threadIdx.x % 32;
    float state_dot = exp2_fast(sm.sums[MESA_TOKENS - 1].x) *
                      (sm.state_dot[0] + sm.state_dot[1] + sm.state_dot[2] + sm.state_dot[3]);
    if (s.m.a.state_in.data && s.m.a.grad_state_out.data) {
        /* The antisymmetric parts of H and dH only decay, by all gates of the sequence: every gate
         * gets the whole product. */
        const double *antisymmetric = s.antisymmetric +
                                      (chunk.seq.index * s.m.p.heads_v + chunk.h) * SCAN_BLOCKS;
        state_dot += (float)row_sum<32>(lane < SCAN_BLOCKS ? antisymmetric[lane] : 0);
    }
    double after[2], before[2]; /* terms of a token for the gates up to it, and for the gates after it */
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int t = 2 * lane + e;
        after[e] = (double)s.read_terms[slot * MESA_TOKENS + t] - sm.key_terms[t];
        for (int warp = 0; warp < MESA_WARPS; warp++)
            after[e] += sm.query_terms[warp][t];
        before[e] = sm.write_terms[t];
    }
    const double suffix = suffix_sum(after[0] + after[1]),
                 prefix = prefix_sum(before[0] + before[1]) - (before[0] + before[1]);
    const double gates[2] = { suffix + prefix + state_dot,
                              suffix - after[0] + prefix + before[0] + state_dot };
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int t = 2 * lane + e;
        if (t < chunk.tokens && s.m.a.grad_log_decay.data) {
            ((float *)s.m.a.grad_log_decay.data)[RECURRENT_AT(s.m.a.grad_log_decay, chunk.seq.b, chunk.h,
                                                              chunk.first + t)] = (float)gates[e];
        }
    }
}

/* Stores the warp's rows in float32, for the sum over the value heads that share a key head. */
static __device__ __forceinline__ void mesa_store_parts(float *to, const mesa_backward_params &s,
                                                        const mesa_chunk &chunk, const mesa_rows &y, int t0)
{
    const int64_t work = recurrent_work_row(&s.m.p, &chunk.seq, chunk.h, chunk.index * MESA_TOKENS + t0);
    float *data = to + work * MESA_DIM + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (t0 + 8 * row >= chunk.tokens) continue;
#pragma unroll
        for (int n = 0; n < MESA_BLOCKS; n++)
            *(float2 *)(data + 8 * row * MESA_DIM + 8 * n) = make_float2(y[n][2 * row], y[n][2 * row + 1]);
    }
}

/* The chain rule of features of length 1: y becomes the gradient of the rows whose features
 * these are; inverse_norm: 1 / |row|. */
static __device__ __forceinline__ void mesa_feature_gradient(mesa_rows &y, const mesa_rows &features,
                                                             const float (&inverse_norm)[2])
{
    float along[2];
    mesa_dot(along, y, features);
#pragma unroll
    for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
        const int row = e % 4 / 2;
        y[e / 4][e % 4] = fma(-along[row], features[e / 4][e % 4], y[e / 4][e % 4]) * inverse_norm[row];
    }
}

/* The sum over the eight lanes that share columns of D. */
static __device__ __forceinline__ float mesa_column_sum(float x)
{
#pragma unroll
    for (int step = 4; step < 32; step *= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

/* dq = scale z of the warp's rows, and their part of the sums over tokens: -z x,
 * channel by channel, and z . q. */
static __device__ __forceinline__ void mesa_store_queries(const mesa_backward_params &s,
                                                          mesa_gradient_shared &sm, const mesa_chunk &chunk,
                                                          int t0)
{
    const loam_problem &p = s.m.p;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t2 = lane % 4 * 2;
    mesa_rows z, q;
    float inverse_norm[2] = { 1, 1 }, scale[2];
    mesa_load_rows(q, s.m.a.q, chunk, chunk.key_head);
    if (p.feature_map == LOAM_FEATURES_UNIT) {
        mesa_dot(inverse_norm, q, q);
#pragma unroll
        for (int row = 0; row < 2; row++)
            inverse_norm[row] = inverse_norm[row] > 0 ? rsqrtf(inverse_norm[row]) : 0;
        mesa_scale(q, inverse_norm);
    }
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        float ridge[2] = { 0, 0 };
#pragma unroll
        for (int row = 0; row < 2; row++) {
            float part[2][2] = {};
#pragma unroll
            for (int i = 0; i < SOLUTION_PARTS; i++) { /* from the least on */
                const mesa_tile &from = i < X_PARTS ? sm.x[X_PARTS - 1 - i] : sm.z[SOLUTION_PARTS - 1 - i];
                const uint32_t pair = *(const uint32_t *)&from[mesa_offset(t0, n, row)];
                part[i >= X_PARTS][0] += unpack_first(pair);
                part[i >= X_PARTS][1] += unpack_second(pair);
            }
#pragma unroll
            for (int e = 0; e < 2; e++) {
                z[n][2 * row + e] = part[1][e];
                ridge[e] = fma(-part[1][e], part[0][e], ridge[e]);
            }
        }
        ridge[0] = mesa_column_sum(ridge[0]), ridge[1] = mesa_column_sum(ridge[1]);
        if (lane < 4) sm.ridge[warp][8 * n + t2] = ridge[0], sm.ridge[warp][8 * n + t2 + 1] = ridge[1];
    }
    mesa_dot(scale, z, q);
    scale[0] = row_sum<32>(lane % 4 ? 0 : scale[0] + scale[1]);
    if (lane == 0) sm.scale[warp] = scale[0];
    if (s.shared) {
        mesa_store_parts(s.z, s, chunk, z, t0);
    } else if (s.m.a.grad_q.data) {
        const float by[2] = { (float)p.scale, (float)p.scale };
        if (p.feature_map == LOAM_FEATURES_UNIT) mesa_feature_gradient(z, q, inverse_norm);
        mesa_scale(z, by);
        mesa_store_rows(s.m.a.grad_q, chunk, chunk.key_head, z, t0);
    }
}

/* Stores the sums of the chunk; each of 64 threads has one channel c. */
static __device__ __forceinline__ void mesa_store_sums(const mesa_backward_params &s,
                                                       const mesa_gradient_shared &sm, int64_t slot, int c)
{
    float *to = s.sums + slot * MESA_SUMS;
    to[c] = (sm.ridge[0][c] + sm.ridge[1][c]) + (sm.ridge[2][c] + sm.ridge[3][c]);
    if (c == 0) to[MESA_DIM] = (sm.scale[0] + sm.scale[1]) + (sm.scale[2] + sm.scale[3]);
}

/* A warp has 16 keys j as rows, from row m; the thread has j0 and j0 + 8. Columns are queries t. */
struct mesa_key_rows {
    int m, j0;
    float inverse_norm[2], beta[2], suf_decay[2];
};

static __device__ __forceinline__ mesa_key_rows mesa_own_keys(const mesa_gradient_shared &sm)
{
    mesa_key_rows own;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    own.m = 16 * warp, own.j0 = own.m + lane / 4;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int j = own.j0 + 8 * row;
        own.inverse_norm[row] = sm.inverse_norm[j], own.beta[row] = sm.beta[j];
        own.suf_decay[row] = decay_between(sm.sums[MESA_TOKENS - 1], sm.sums[j]);
    }
    return own;
}

/* Loads the features of the warp's keys. */
static __device__ __forceinline__ void mesa_load_keys(mesa_rows &k, const mesa_gradient_shared &sm,
                                                      const mesa_key_rows &own)
{
#pragma unroll
    for (int e = 0; e < 2 * MESA_BLOCKS; e++) {
        const int row = e % 2;
        const uint32_t pair = *(const uint32_t *)&sm.k[mesa_offset(own.j0, e / 2, row)];
        k[e / 2][2 * row] = unpack_first(pair) * own.inverse_norm[row];
        k[e / 2][2 * row + 1] = unpack_second(pair) * own.inverse_norm[row];
    }
}

/* out = y . k for each of the thread's two rows. The keys are loaded each time: registers are few. */
static __device__ __forceinline__ void mesa_dot_keys(float (&out)[2], const mesa_rows &y,
                                                     const mesa_gradient_shared &sm, const mesa_key_rows &own)
{
    mesa_rows k;
    mesa_load_keys(k, sm, own);
    mesa_dot(out, y, k);
}

/* Stores dk of the warp's rows. */
static __device__ __forceinline__ void mesa_store_keys(const mesa_backward_params &s,
                                                       const mesa_gradient_shared &sm,
                                                       const mesa_chunk &chunk, mesa_rows &dk,
                                                       const mesa_key_rows &own)
{
    if (s.shared) {
        mesa_store_parts(s.dk, s, chunk, dk, own.j0);
    } else if (s.m.a.grad_k.data) {
        if (s.m.p.feature_map == LOAM_FEATURES_UNIT) {
            mesa_rows k;
            mesa_load_keys(k, sm, own);
            mesa_feature_gradient(dk, k, own.inverse_norm);
        }
        mesa_store_rows(s.m.a.grad_k, chunk, chunk.key_head, dk, own.j0);
    }
}

/* Makes kx, the products k . x, D (k . x), and vo, of v . do, D (v . do - k . z): the difference is taken
 * before it is multiplied by x, because where keys are few v . do and k . z are nearly the same, and x is
 * large. Leaves the terms of the gates in sm.query_terms and `key_terms`; dbeta is the part of the pairs in
 * dbeta. */
static __device__ __forceinline__ void mesa_pair_gradients(mesa_rows &kx, mesa_rows &vo, const mesa_rows &kz,
                                                           float (&key_terms)[2], float (&dbeta)[2],
                                                           mesa_gradient_shared &sm, const mesa_key_rows &own)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t2 = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < MESA_BLOCKS; n++) {
        float column[2] = { 0, 0 };
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int t = 8 * n + t2 + e % 2, row = e / 2, j = own.j0 + 8 * row;
            const float decay = t >= j ? decay_between(sm.sums[t], sm.sums[j]) : 0;
            kx[n][e] *= own.inverse_norm[row];
            vo[n][e] = decay * fma(-own.inverse_norm[row], kz[n][e], vo[n][e]);
            const float both = kx[n][e] * vo[n][e], pair = t > j ? own.beta[row] * both : 0;
            dbeta[row] += both;
            kx[n][e] *= decay;
            key_terms[row] += pair, column[e % 2] += pair;
        }
        column[0] = mesa_column_sum(column[0]), column[1] = mesa_column_sum(column[1]);
        if (lane < 4)
            sm.query_terms[warp][8 * n + t2] = column[0], sm.query_terms[warp][8 * n + t2 + 1] = column[1];
    }
    key_terms[0] = quad_sum(key_terms[0]), key_terms[1] = quad_sum(key_terms[1]);
    dbeta[0] = quad_sum(dbeta[0]), dbeta[1] = quad_sum(dbeta[1]);
}

/* Decays what comes from the end of the chunk: dv, of dS k, dk, of dS^T v, and h, of 2 dH k. Adds h to dk;
 * end_terms is the part of s . k + h . k / 2 that comes from dS and dH, for the writes that reach the end. */
static __device__ __forceinline__ void mesa_end_gradients(mesa_rows &dv, mesa_rows &dk, mesa_rows &h,
                                                          float (&end_terms)[2],
                                                          const mesa_gradient_shared &sm,
                                                          const mesa_key_rows &own)
{
    const float by[2] = { own.suf_decay[0] * own.inverse_norm[0], own.suf_decay[1] * own.inverse_norm[1] };
    float part[2];
    mesa_scale(dv, by), mesa_scale(dk, own.suf_decay), mesa_scale(h, by);
    mesa_dot_keys(end_terms, dk, sm, own), mesa_dot_keys(part, h, sm, own);
    end_terms[0] += part[0] / 2, end_terms[1] += part[1] / 2;
#pragma unroll
    for (int e = 0; e < 4 * MESA_BLOCKS; e++)
        dk[e / 4][e % 4] += h[e / 4][e % 4];
}

/* dv and dk of the warp's rows, dk of features; the rest as in mesa_pair_gradients and mesa_end_gradients. */
static __device__ __forceinline__ void mesa_token_gradients(mesa_rows &dv, mesa_rows &dk,
                                                            float (&key_terms)[2], float (&dbeta)[2],
                                                            float (&end_terms)[2], mesa_gradient_shared &sm,
                                                            const mesa_key_rows &own)
{
    mesa_rows kx, kz, vo, h;
    wgmma_fence();
    mesa_add_rows<true, X_PARTS>(kx, sm.k, sm.x, false);
    mesa_add_rows<true, Z_PARTS>(kz, sm.k, sm.z, false);
    mesa_add_rows<true, 1>(vo, sm.v, &sm.grad_o, false);
    wgmma_commit();
    mesa_add_rows<true, 2>(dv, sm.k, sm.states[0], false);
    mesa_add_rows<false, 2>(dk, sm.v, sm.states[0], false);
    mesa_add_rows<true, 2>(h, sm.k, sm.states[1], false); /* dH is symmetric */
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_results(kx), wgmma_results(kz), wgmma_results(vo);
    mesa_pair_gradients(kx, vo, kz, key_terms, dbeta, sm, own);
    wgmma_wait<0>();
    wgmma_results(dv), wgmma_results(dk), wgmma_results(h);
    mesa_end_gradients(dv, dk, h, end_terms, sm, own);
    weights_operand<2> a, b;
    mesa_split(a, kx), mesa_split(b, vo);
    wgmma_fence();
    mesa_add<false, 1>(dv, a, &sm.grad_o, true);
    mesa_add<false, 2>(dk, b, sm.x, true);
    mesa_add<false, 2>(h, a, sm.z, false);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(dv), wgmma_results(dk), wgmma_results(h);
    mesa_scale(dv, own.beta);
#pragma unroll
    for (int e = 0; e < 4 * MESA_BLOCKS; e++)
        dk[e / 4][e % 4] = own.beta[e % 4 / 2] * (dk[e / 4][e % 4] - h[e / 4][e % 4]);
}

/* Leaves the terms of the gates that the thread's keys have, and stores dbeta. */
static __device__ __forceinline__ void mesa_store_key_terms(const loam_args &a, mesa_gradient_shared &sm,
                                                            const mesa_chunk &chunk, const mesa_key_rows &own,
                                                            const float (&key_terms)[2],
                                                            const float (&end_terms)[2],
                                                            const float (&dbeta)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int j = own.j0 + 8 * row;
        if (threadIdx.x % 4 == 0) {
            sm.key_terms[j] = key_terms[row];
            sm.write_terms[j] = j < MESA_TOKENS - 1 ? own.beta[row] * end_terms[row] : 0;
            if (j < chunk.tokens && a.grad_beta.data) {
                ((float *)a.grad_beta.data)[RECURRENT_AT(a.grad_beta, chunk.seq.b, chunk.h,
                                                         chunk.first + j)] = dbeta[row] + end_terms[row];
            }
        }
    }
}

/* The gradients of a chunk, one thread block for each. */
__global__ void __launch_bounds__(MESA_THREADS, 2)
    mesa_gradient_kernel(const __grid_constant__ mesa_backward_params s)
{
    extern __shared__ __align__(1024) char shared_memory[];
    mesa_gradient_shared &sm = *(mesa_gradient_shared *)shared_memory;
    mesa_begin();
    const mesa_chunk chunk = mesa_chunk_of_block(s.m);
    if (chunk.tokens <= 0) return;
    const loam_args &a = s.m.a;
    if (threadIdx.x == 0) sm.chunk = chunk;
    mesa_gradient_load(s, sm, chunk, mesa_slot(s.m, chunk));
    const mesa_key_rows own = mesa_own_keys(sm);
    mesa_rows dv, dk;
    float key_terms[2] = { 0, 0 }, dbeta[2] = { 0, 0 }, end_terms[2];
    mesa_token_gradients(dv, dk, key_terms, dbeta, end_terms, sm, own);
    if (a.grad_v.data) mesa_store_rows(a.grad_v, sm.chunk, sm.chunk.h, dv, own.j0);
    const mesa_chunk own_chunk = sm.chunk;
    const int64_t slot = mesa_slot(s.m, own_chunk);
    mesa_store_key_terms(a, sm, own_chunk, own, key_terms, end_terms, dbeta);
    mesa_store_keys(s, sm, own_chunk, dk, own);
    mesa_store_queries(s, sm, own_chunk, own.j0);
    __syncthreads();
    if (threadIdx.x < 32)
        mesa_store_gates(s, sm, own_chunk, slot);
    else if (threadIdx.x >= 64)
        mesa_store_sums(s, sm, slot, (int)threadIdx.x - 64);
}

/* ------------------------------------------------------------------ sums over tokens */

enum { SUM_GROUPS = 8, SUM_THREADS = SUM_GROUPS * (MESA_DIM + 32) };

/* The sums over all slots of a value head, one thread block for each. */
__global__ void __launch_bounds__(SUM_THREADS)
    mesa_sums_kernel(const __grid_constant__ mesa_backward_params s)
{
    __shared__ double parts[SUM_GROUPS][MESA_SUMS];
    mesa_begin();
    const int group = threadIdx.x / (MESA_DIM + 32), c = threadIdx.x % (MESA_DIM + 32);
    const int64_t slots = s.m.kept.per_head;
    const float *from = s.sums + blockIdx.x * slots * MESA_SUMS + c;
    if (c < MESA_SUMS) {
        double sum = 0;
#pragma unroll 8
        for (int64_t n = group; n < slots; n += SUM_GROUPS)
            sum += (double)from[n * MESA_SUMS];
        parts[group][c] = sum;
    }
    __syncthreads();
    if (threadIdx.x < MESA_SUMS) {
        double sum = 0;
        for (int n = 0; n < SUM_GROUPS; n++)
            sum += parts[n][threadIdx.x];
        s.head_sums[blockIdx.x * MESA_SUMS + threadIdx.x] = sum;
    }
}

/* grad_ridge, summed over heads and channels as the ridge is given, and grad_scale; one warp. */
__global__ void mesa_store_sums_kernel(const __grid_constant__ mesa_backward_params s)
{
    mesa_begin();
    const loam_problem &p = s.m.p;
    const loam_view &g = s.m.a.grad_ridge;
    const int lane = threadIdx.x;
    double all = 0, scale = 0;
    for (int64_t h = 0; h < p.heads_v; h++) {
        const double *sums = s.head_sums + h * MESA_SUMS;
        const double first = sums[lane], second = sums[lane + 32], sum = row_sum<32>(first + second);
        if (g.data && p.ridge_axes == LOAM_RIDGE_HEAD_CHANNEL) {
            float *to = (float *)g.data + h * g.head;
            to[lane] = (float)first, to[lane + 32] = (float)second;
        } else if (g.data && p.ridge_axes == LOAM_RIDGE_HEAD && lane == 0) {
            ((float *)g.data)[h * g.head] = (float)sum;
        }
        all += sum, scale += sums[MESA_DIM];
    }
    if (g.data && p.ridge_axes == LOAM_RIDGE_NUMBER && lane == 0) *(float *)g.data = (float)all;
    if (s.m.a.grad_scale && lane == 0) *(float *)s.m.a.grad_scale = (float)scale;
}

#endif
