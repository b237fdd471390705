/* SPDX-License-Identifier: MIT
 * PaTH scores on GPUs: forward. A thread block has 64 queries of a head and goes through the tiles as
 * local/cuda/path/common.cuh says, with the sums of the online softmax. Each warp has 16 queries, with
 * scores, sums and output in registers. */
#include "src/local/cuda/path/common.cuh"

/* A stage of the ring: keys, values, and E or Eg in hi and lo parts, which the rows cross after the tile. */
enum { STAGES = 2, STAGE_TILES = 4, KEYS = 0, VALUES = 1, CROSS_HI = 2, CROSS_LO = 3 };

struct forward_shared {
    shared_tile tile[STAGES][STAGE_TILES];
};

/* Online softmax of a warp's rows: m (to base 2) and omega of the thread's rows g and g + 8, and sum w v. */
struct softmax_sums {
    float m[2], omega[2];
    strip o;
};

/* Scores s become weights under the new maximum; the sums are rescaled to it. */
static __device__ __forceinline__ void online_softmax_step(softmax_sums &x, strip &s)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = x.m[half];
#pragma unroll
        for (int n = 0; n < 8; n++)
            top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        top = quad_max(top);
        const float keep = x.m[half] > -INFINITY ? exp2_fast(x.m[half] - top) : 0,
                    from = top > -INFINITY ? top : 0;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            s[n][2 * half] = exp2_fast(s[n][2 * half] - from);
            s[n][2 * half + 1] = exp2_fast(s[n][2 * half + 1] - from);
            sum += s[n][2 * half] + s[n][2 * half + 1];
            x.o[n][2 * half] *= keep;
            x.o[n][2 * half + 1] *= keep;
        }
        x.omega[half] = x.omega[half] * keep + sum;
        x.m[half] = top;
    }
}

static __device__ __forceinline__ void fill_stage(shared_tile *stage, const loam_args &a, const path_rows &x,
                                                  const path_arrays &w, int j)
{
    if (j >= 0) {
        fill_slot(stage[KEYS], keys_for(x, w, j));
        fill_argument(stage[VALUES], a.v, x.s.b, x.h_kv, x.s.k0, (int64_t)j * EDGE, x.s.nk);
        if (crosses(x.n, j, w.group)) fill_crossing(stage[CROSS_HI], stage[CROSS_LO], x, w, j);
    }
    copy_async_commit();
}

static __device__ __forceinline__ void put_rows(const loam_problem &p, const loam_args &a,
                                                const local_saved &saved, const path_rows &x,
                                                softmax_sums &sums, int m)
{
    const int g = threadIdx.x % 32 / 4;
    float inverse[2], lse[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float omega = quad_sum(sums.omega[half]);
        inverse[half] = omega > 0 ? 1 / omega : 0;
        lse[half] = omega > 0 ? (sums.m[half] + log2f(omega)) / (float)LOG2E : -INFINITY;
    }
    for_pairs(sums.o, m, [&](int r, int c, float &u, float &v) {
        if (!row_exists(x, r)) return;
        const int half = r != m + g;
        const int64_t i = x.first + r, at = local_row(&p, &x.s, x.h, i);
        bf16 *o = (bf16 *)a.o.data + LOCAL_AT(a.o, x.s.b, x.h, x.s.q0 + i) + c;
        o[0] = __float2bfloat16_rn(u * inverse[half]);
        o[1] = __float2bfloat16_rn(v * inverse[half]);
        if (a.saved) {
            float *vbar = (float *)saved.vbar + at * EDGE + c;
            vbar[0] = u * inverse[half], vbar[1] = v * inverse[half];
        }
        if (a.rho.data) {
            float *rho = (float *)a.rho.data + LOCAL_AT(a.rho, x.s.b, x.h, x.s.q0 + i) + c;
            rho[0] = rho[1] = 0;
        }
        if (c == 0) {
            if (a.saved) ((float *)saved.lse)[at] = lse[half];
            if (a.lse.data) ((float *)a.lse.data)[LOCAL_AT(a.lse, x.s.b, x.h, x.s.q0 + i)] = lse[half];
            if (a.info.data) {
                const int32_t code = x.n < 0 ? LOAM_ROW_EMPTY : LOAM_ROW_SOLVED;
                ((loam_row_info *)a.info.data)[LOCAL_AT(a.info, x.s.b, x.h, x.s.q0 + i)] = loam_row_info{
                    code, LOAM_SOLVER_NONE, 0, 0
                };
            }
        }
    });
}

template <bool DECAY>
static __global__ void __launch_bounds__(THREADS, 3)
    path_forward_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                        const local_saved saved, const path_arrays w)
{
    extern __shared__ __align__(16) unsigned char memory[];
    forward_shared &shared = *(forward_shared *)memory;
    const int m = threadIdx.x / 32 * 16;
    const float scale = (float)p.scale * (float)LOG2E;
    path_rows x;
    if (!path_rows_of(p, a, w.slots, blockIdx.x, x)) return;
    softmax_sums sums = { { -INFINITY, -INFINITY }, { 0, 0 }, {} };
    clear(sums.o);
    if (x.n >= 0) {
        strip query, s;
        {
            strip minus_a;
            shared_tile *own = &shared.tile[0][0];
            fill_own(own, a, x, w);
            fill_argument(own[7], a.v, x.s.b, x.h_kv, x.s.k0, (int64_t)x.n * EDGE, x.s.nk);
            await_tiles();
            score_own_tile(s, query, minus_a, own, m);
            scores_of<DECAY>(s, x, a, scale, x.n, m);
            online_softmax_step(sums, s);
            product_weights<1, PITCH>(sums.o, s, own[7], 0);
            __syncthreads();
        }
        fill_stage(shared.tile[0], a, x, w, x.n - 1);
        for (int j = x.n - 1; j >= 0; j--) {
            const int stage = (x.n - 1 - j) % STAGES;
            fill_stage(shared.tile[1 - stage], a, x, w, j - 1);
            copy_async_wait<1>();
            __syncthreads();
            shared_tile *tile = shared.tile[stage];
            clear(s);
            product_transposed_right<1>(s, query, tile[KEYS]);
            scores_of<DECAY>(s, x, a, scale, j, m);
            online_softmax_step(sums, s);
            product_weights<1, PITCH>(sums.o, s, tile[VALUES], 0);
            if (crosses(x.n, j, w.group)) cross_tile(query, tile[CROSS_HI], tile[CROSS_LO]);
            __syncthreads();
        }
    }
    put_rows(p, a, saved, x, sums, m);
}

template <bool DECAY>
static loam_status launch(const loam_problem *p, const loam_args *a, const path_arrays *w, loam_error *error)
{
    const int64_t blocks = path_row_blocks(p) * p->batch * p->heads_q;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    constexpr size_t shared = sizeof(forward_shared);
    TRY(cuda_allow_shared((const void *)path_forward_kernel<DECAY>, shared, error));
    if (p->batch == 0 || p->len_q == 0) return LOAM_OK;
    path_forward_kernel<DECAY>
        <<<(unsigned)blocks, THREADS, shared, (cudaStream_t)a->stream>>>(*p, *a, saved, *w);
    return cuda_launched("path_forward_kernel", error);
}

extern "C" size_t local_path_forward_cuda_work(const loam_problem *p)
{
    arena pool = {};
    path_arrays_carve(p, &pool);
    return pool.used;
}

extern "C" loam_status local_path_forward_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    arena pool = { (char *)a->work, 0 };
    const path_arrays w = path_arrays_carve(p, &pool);
    REQUIRE(!a->weights.data, error, LOAM_EUNSUPPORTED,
            "weights: this kernel gives none, local_path_batch_forward_cuda does");
    TRY(local_path_prepare_cuda(p, a, &w, error));
    return p->decay ? launch<true>(p, a, &w, error) : launch<false>(p, a, &w, error);
}
