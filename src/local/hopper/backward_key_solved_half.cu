/* SPDX-License-Identifier: MIT
 *
 * The pass over keys of the backward of Local Linear Attention on Hopper, for float16: the scales of the
 * heads, then, when the rows are complete, backward_key_runs.cuh or, for more than 128 channels,
 * backward_key_solved_wide.cu.
 *
 * Gradients of keys and values are linear in do and y, and a power of two of rho is undone in its products:
 * one for each head brings these into the range of float16, by what the rows of the head have at most
 * (head_extremes.cuh).
 *
 * u and t = y . k are small differences of large products. Their centres are what the pass over rows found as
 * the means of these products, which are the same here, bit by bit. Of rows that are left to query_kernel no
 * such mean is known, but that of exact products.
 *
 * A head whose directions these scales leave too few digits, whose keys or values are so long that what is
 * lost of y or do shows, or whose rows of the latter kind have products too large for it, is not tame:
 * query_kernel and key_kernel of cuda/ take it.
 */
#include "src/gpu/block_sum.cuh"
#include "src/local/hopper/backward_key_runs.cuh"
#include "src/local/hopper/backward_plan.cuh"

static __device__ __forceinline__ float warp_max(float x)
{
    return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(fabsf(x))));
}

/* The extremes of a row that is left to query_kernel; a warp calls it. */
static __device__ __forceinline__ head_extremes row_extremes(const loam_problem &p, const loam_args &a,
                                                             const local_saved &saved,
                                                             const row_arrays &arrays, const row_block &block,
                                                             int at, float longest)
{
    const int64_t line = local_row(&p, &block.s, block.h, block.i0 + at), token = block.s.q0 + block.i0 + at,
                  q = LOCAL_AT(a.q, block.s.b, block.h, token),
                  grad = LOCAL_AT(a.grad_o, block.s.b, block.h, token);
    row_norms x = {};
    float rho_kbar = 0, y_kbar = 0, error;
    for (int64_t c = threadIdx.x % 32; c < p.dim_qk; c += 32) {
        const float rho = ((const float *)saved.rho)[line * p.dim_qk + c],
                    kbar = ((const float *)saved.kbar)[line * p.dim_qk + c],
                    b = kbar - load_real<float>(a.q.data, p.dtype, q + c), y = arrays.y[line * p.dim_qk + c],
                    lambda_rho = rho * arrays.record[line].unit *
                                 (float)local_ridge(&p, &a, &block.s, block.h, block.i0 + at, c);
        x.square += rho * (b - lambda_rho), x.rho2 += rho * rho, x.b2 += b * b;
        x.top_rho = fmaxf(x.top_rho, fabsf(rho)), x.top = fmaxf(x.top, fabsf(y)), x.e -= y * lambda_rho;
        rho_kbar += rho * kbar, y_kbar += y * kbar;
    }
    for (int64_t c = threadIdx.x % 32; c < p.dim_v; c += 32) {
        const float y = load_real<float>(a.grad_o.data, p.dtype, grad + c);
        x.grad2 += y * y, x.top = fmaxf(x.top, fabsf(y));
    }
    x.square = warp_sum(x.square), x.rho2 = warp_sum(x.rho2), x.b2 = warp_sum(x.b2);
    x.grad2 = warp_sum(x.grad2), x.e = warp_sum(x.e);
    x.top_rho = warp_max(x.top_rho), x.top = warp_max(x.top);
    rho_kbar = warp_sum(rho_kbar), y_kbar = warp_sum(y_kbar);
    head_extremes out = extremes_of_row(p, x, longest, &error);
    out.product = exponent_above(fmaxf(fabsf(rho_kbar), error > 0 ? 8 * fabsf(y_kbar) / error : 0));
    return out;
}

/* Those of the rows that the sweeps of Hopper have not finished. A warp for each row at a time, of 64. */
enum { ROW_WARPS = 8 };
static __global__ void __launch_bounds__(32 * ROW_WARPS)
    head_extremes_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                         const local_saved saved, const row_arrays arrays, const half_copy copy,
                         head_extremes *extremes)
{
    launch_dependents();
    const row_block block = row_block_at(p, a, blockIdx.x);
    if (block.rows <= 0 || arrays.state[blockIdx.x] != ROWS_PENDING) return;
    const int64_t sequence = blockIdx.x / p.heads_q % p.batch;
    const float longest = longest_value(half_units_of(copy, p, sequence, block.h_kv), p);
    head_extremes most = {};
    for (int at = threadIdx.x / 32; at < block.rows; at += ROW_WARPS)
        raise_extremes(most, row_extremes(p, a, saved, arrays, block, at, longest));
    put_extremes(extremes[sequence * p.heads_kv + block.h_kv], most);
}

/* Weights p (1 - u) end at 2^14, as do gradients of scores and p E, which follow from the exponents of the
 * directions; of these the largest element is at most 2^3, from which on fp16 has 27 bits down. Products lose
 * about 2^-22: PRODUCT_MOST leaves 2^-10 of 1, and 2^-13 of B. What elements of y and do lose, 2^-25, comes
 * into E by keys and values: LOST_MOST leaves 2^-18 of B. */
enum {
    WEIGHT_TOP = 14,
    VECTOR_TOP = 3,
    PROBE_MOST = 8,
    VECTOR_LEAST = VECTOR_TOP - 12,
    HALF_END = 15,
    PRODUCT_MOST = 12,
    LOST_MOST = 7,
};

/* The scales of head `h` of a sequence, number n of all. */
static __device__ __forceinline__ key_scale key_scale_of(const loam_problem &p, const half_copy &copy,
                                                         const head_extremes *extremes, int64_t sequence,
                                                         int64_t h)
{
    const half_units units = half_units_of(copy, p, sequence, h);
    const head_extremes x = extremes[sequence * p.heads_kv + h];
    const int weight = x.weight ? x.weight - EXPONENT_OF_1 : 0,
              key = exponent_above(units.norm * units.key) - EXPONENT_OF_1,
              value = exponent_above(longest_value(units, p)) - EXPONENT_OF_1;
    /* Where do is 0, so are y and all gradients; where rho is 0, so is what its unit is for. */
    const int vector = x.error && x.vector ? x.vector - EXPONENT_OF_1 : VECTOR_TOP,
              error = x.error ? x.error - EXPONENT_OF_1 : 0, score = x.score ? x.score - EXPONENT_OF_1 : 0,
              probe = x.probe ? x.probe - EXPONENT_OF_1 : VECTOR_TOP;
    const int grad = min(1 + weight - score, VECTOR_TOP - vector),
              raise = max(min(VECTOR_TOP - probe, (int)PROBE_MOST), grad + error - weight - 1);
    const bool tame = abs(grad) < 100 && abs(raise) < 100 && weight < 100 && raise + probe <= HALF_END &&
                      grad + vector >= VECTOR_LEAST && key - raise <= 13 &&
                      (!x.error || max(key, value) <= grad + error + LOST_MOST) &&
                      x.product <= PRODUCT_MOST + EXPONENT_OF_1;
    return { exp2f((float)grad), exp2f((float)raise), exp2f((float)-weight), tame };
}

/* The scales of the heads. The rows of heads that are not tame are those of query_kernel. A thread for each
 * 64 rows; those of the last rows write. */
static __global__ void key_scales_kernel(const __grid_constant__ loam_problem p, const row_arrays arrays,
                                         const half_copy copy, const head_extremes *extremes)
{
    wait_for_previous_launch();
    const unsigned n = blockIdx.x * blockDim.x + threadIdx.x, heads_q = (unsigned)p.heads_q,
                   h = n % heads_q / (heads_q / (unsigned)p.heads_kv),
                   sequence = n / heads_q % (unsigned)p.batch;
    if (n >= local_row_states(&p)) return;
    const key_scale scale = key_scale_of(p, copy, extremes, sequence, h);
    if (!scale.tame) arrays.state[n] = ROWS_PENDING;
    if (n < heads_q * (unsigned)p.batch)
        local_key_scales(&p, arrays.state)[sequence * p.heads_kv + h] = scale;
}

/* By how much what is stored of x, hi and lo, exceeds it. Products of finished rows had two parts of x. */
static __device__ __forceinline__ float excess(float x, float hi, float lo, bool finished)
{
    const float first = one_part(x);
    return (hi + lo) - (finished ? first + one_part(x - first) : x);
}

/* Stores N channels of a vector of a row, times `factor`: hi parts, and lo parts where there are two; where
 * there is one, it is all of the vector that the products had. Returns the excess. */
template <int N>
static __device__ __forceinline__ float_vector<N> put_parts(uint16_t *const (&to)[2], int64_t at,
                                                            bool two_parts, bool finished, float factor,
                                                            const float_vector<N> &x)
{
    pair_vector<N> part[2];
    float_vector<N> over;
#pragma unroll
    for (int c = 0; c < N; c += 2) {
        const float whole[2] = { factor * x.x[c], factor * x.x[c + 1] };
        uint32_t pair[2];
        if (two_parts) {
            split_pair<__half>(pair, whole[0], whole[1]);
            part[1].pair[c / 2] = pair[1];
        } else {
            pair[0] = pack_pair<__half>(whole[0], whole[1]);
        }
        part[0].pair[c / 2] = pair[0];
        const float2 hi = unpack_pair<__half>(pair[0]);
        if (two_parts) {
            const float2 lo = unpack_pair<__half>(pair[1]);
            over.x[c] = excess(whole[0], hi.x, lo.x, finished);
            over.x[c + 1] = excess(whole[1], hi.y, lo.y, finished);
        } else {
            over.x[c] = hi.x - whole[0], over.x[c + 1] = hi.y - whole[1];
        }
    }
    *(pair_vector<N> *)(to[0] + at) = part[0];
    if (two_parts) *(pair_vector<N> *)(to[1] + at) = part[1];
    return over;
}

template <int N> static __device__ __forceinline__ bool is_zero(const float_vector<N> &x)
{
    bool zero = true;
#pragma unroll
    for (int c = 0; c < N; c++)
        zero &= x.x[c] == 0;
    return zero;
}

/* The products of a vector and its excess with kbar, over the LANES lanes of a row. */
template <int LANES, int N>
static __device__ __forceinline__ float2 mean_products(const float_vector<N> &x, const float_vector<N> &over,
                                                       const float_vector<N> &kbar)
{
    float2 sum = { 0, 0 };
#pragma unroll
    for (int c = 0; c < N; c++)
        sum.x += x.x[c] * kbar.x[c], sum.y += over.x[c] * kbar.x[c];
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        sum.x += __shfl_xor_sync(0xffffffffu, sum.x, step);
        sum.y += __shfl_xor_sync(0xffffffffu, sum.y, step);
    }
    return sum;
}

/* N channels from c on of the row of do at `from`, which bulk copies can read; zeros beyond the columns. */
template <int N>
static __device__ __forceinline__ pair_vector<N> load_gradients(const uint16_t *from, int c, int columns)
{
    if (c + N <= columns) return *(const pair_vector<N> *)(from + c);
    pair_vector<N> out = {};
#pragma unroll
    for (int n = 0; n < N; n++)
        if (c + n < columns) out.pair[n / 2] |= (uint32_t)from[c + n] << n % 2 * 16;
    return out;
}

template <int N>
static __device__ __forceinline__ pair_vector<N> scaled_gradients(const pair_vector<N> &x, float factor)
{
    pair_vector<N> out;
#pragma unroll
    for (int n = 0; n < N / 2; n++) {
        const float2 pair = unpack_pair<__half>(x.pair[n]);
        out.pair[n] = pack_pair<__half>(factor * pair.x, factor * pair.y);
    }
    return out;
}

/* What the pass over rows has taken off the products of a row, and the means that these still had. */
struct row_means {
    float rho_kbar, rho_rest, y_kbar, y_rest;
};

/* Writes the centres of a row, from its products; those of finished rows from their means. */
static __device__ __forceinline__ void put_centres(const key_directions &out, int64_t line,
                                                   const row_means &own, bool finished,
                                                   const key_scale &scale, const float2 &rho, const float2 &y)
{
    const float more_rho = rho.y / scale.probe, more_y = y.y / scale.grad;
    out.centre[line] = finished ? make_float2(own.rho_kbar, own.y_kbar + (own.y_rest + more_y))
                                : make_float2(rho.x, y.x + more_y);
    out.rest[line] = finished ? own.rho_rest + more_rho : more_rho;
}

/* Rows of directions and do that a warp scales together: four channels for each lane, or more where it has
 * one row at a time. */
template <int DIM> struct scaled_rows {
    static constexpr int channels = DIM > 128 ? DIM / 32 : 4, lanes = DIM / channels,
                         step = ROW_WARPS * 32 / lanes, at_once = 2;
    float_vector<channels> probe[at_once], solution[at_once];
    pair_vector<channels> grad_o[at_once];
    row_means means[at_once];
};

/* Stores the rows begin, begin + step, ... of a block whose rows begin at line `first`. */
template <bool TWO_PARTS, int DIM>
static __device__ __forceinline__ void put_scaled(const scaled_rows<DIM> &x, const key_directions &out,
                                                  const local_saved &saved, int64_t first, int begin,
                                                  int rows, int dim, bool finished, const key_scale &scale)
{
    typedef scaled_rows<DIM> S;
    const int c = threadIdx.x % S::lanes * S::channels;
#pragma unroll
    for (int k = 0; k < S::at_once; k++) {
        const int at = begin + k * S::step;
        const int64_t line = first + min(at, rows - 1), to = line * DIM + c;
        float2 rho = { 0, 0 }, y = { 0, 0 };
        const auto over_rho = put_parts(out.rho, to, TWO_PARTS, finished, scale.probe, x.probe[k]),
                   over_y = put_parts(out.y, to, TWO_PARTS, finished, scale.grad, x.solution[k]);
        *(pair_vector<S::channels> *)(out.grad_o + to) = scaled_gradients(x.grad_o[k], scale.grad);
        /* of finished rows nearly always exact: kbar is a third of what there is to read */
        if (!finished || __any_sync(0xffffffffu, !(is_zero(over_rho) && is_zero(over_y)))) {
            const auto kbar = load_channels<S::channels>(saved.kbar, line, c, dim);
            rho = mean_products<S::lanes>(x.probe[k], over_rho, kbar);
            y = mean_products<S::lanes>(x.solution[k], over_y, kbar);
        }
        if (threadIdx.x % S::lanes == 0 && at < rows)
            put_centres(out, line, x.means[k], finished, scale, rho, y);
    }
}

/* Directions and do of 64 rows of a head. */
template <int DIM>
static __global__ void __launch_bounds__(32 * ROW_WARPS, DIM > 128 ? 2 : 3)
    scale_directions_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                            const local_saved saved, const row_arrays arrays, const key_directions out)
{
    typedef scaled_rows<DIM> S;
    launch_dependents();
    const row_block block = row_block_at(p, a, blockIdx.x);
    if (block.rows <= 0) return;
    const int64_t head = (int64_t)(blockIdx.x / (unsigned)p.heads_q % (unsigned)p.batch) * p.heads_kv +
                         block.h_kv;
    const key_scale scale = local_key_scales(&p, arrays.state)[head];
    const int state = arrays.state[blockIdx.x];
    const int c = threadIdx.x % S::lanes * S::channels, dim = (int)p.dim_qk;
    const int64_t first = local_row(&p, &block.s, block.h, block.i0);
    const uint16_t *const grads = (const uint16_t *)a.grad_o.data +
                                  LOCAL_AT(a.grad_o, block.s.b, block.h, block.s.q0 + block.i0);
    for (int begin = threadIdx.x / S::lanes; begin < ROWS; begin += S::at_once * S::step) {
        S x;
#pragma unroll
        for (int k = 0; k < S::at_once; k++) {
            const int at = min(begin + k * S::step, block.rows - 1);
            x.probe[k] = load_channels<S::channels>(saved.rho, first + at, c, dim);
            x.solution[k] = load_channels<S::channels>(arrays.y, first + at, c, dim);
            x.grad_o[k] = load_gradients<S::channels>(grads + at * a.grad_o.token, c, (int)p.dim_v);
            const row_scalars &own = arrays.record[first + at];
            x.means[k] = { own.rho_kbar, own.rho_rest, own.y_kbar, own.y_rest };
        }
        if (!scale.tame) return; /* asked only when the loads are under way */
        if (state == ROWS_ONE_PART)
            put_scaled<false>(x, out, saved, first, begin, block.rows, dim, true, scale);
        else
            put_scaled<true>(x, out, saved, first, begin, block.rows, dim, state != ROWS_PENDING, scale);
    }
}

/* ------------------------------------------------------------------ the launches */

size_t local_keys_solved_half_hopper_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)key_directions_carve(p, &pool);
    return pool.used;
}

template <int DIM>
static loam_status launch(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                          const local_saved *saved, const key_directions *directions, void *memory,
                          loam_error *error)
{
    TRY(cuda_launch("scale_directions_kernel", scale_directions_kernel<DIM>, (int64_t)local_row_states(p),
                    32 * ROW_WARPS, 0, a->stream, false, error, *p, *a, *saved, *rows, *directions));
    if constexpr (DIM > 128)
        return local_keys_solved_wide_hopper(p, a, rows, memory, error);
    else
        return launch_staying<__half, DIM, SOLVED_PROBE>(p, a, rows, memory, error);
}

loam_status local_key_scales_half_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                         void *memory, loam_error *error)
{
    size_t bytes;
    const rows_plan plan = rows_plan_of(p, memory, &bytes);
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    const int64_t states = (int64_t)local_row_states(p);
    TRY(cuda_launch("head_extremes_kernel", head_extremes_kernel, states, 32 * ROW_WARPS, 0, a->stream, false,
                    error, *p, *a, saved, *rows, plan.copy, plan.extremes));
    return cuda_launch("key_scales_kernel", key_scales_kernel, (states + THREADS - 1) / THREADS, THREADS, 0,
                       a->stream, true, error, *p, *rows, plan.copy, (const head_extremes *)plan.extremes);
}

loam_status local_keys_solved_half_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                          void *memory, loam_error *error)
{
    arena pool = { (char *)memory, 0 };
    const key_directions directions = key_directions_carve(p, &pool);
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    return by_dim(p, [&](auto dim) {
        return launch<decltype(dim)::value>(p, a, rows, &saved, &directions, memory, error);
    });
}
