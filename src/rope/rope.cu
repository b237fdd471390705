/* SPDX-License-Identifier: MIT
 * Rotary positions on GPUs: a thread has one plane of a token, or one channel that is not rotated, for all
 * heads. */
#include "src/gpu/launch.cuh"
#include "src/rope/rope.h"

enum { ROPE_THREADS = 256 };

__global__ void __launch_bounds__(ROPE_THREADS)
    rope_kernel(const __grid_constant__ loam_rope r, const __grid_constant__ rope_frequencies frequencies,
                const loam_const_view from, const loam_view to)
{
    const int64_t planes = r.dim / 2, items = planes + r.channels - r.dim,
                  n = (int64_t)blockIdx.x * ROPE_THREADS + threadIdx.x, token = n / items, c = n % items;
    if (token >= r.batch * r.tokens) return;
    const int64_t b = token / r.tokens, t = token % r.tokens;
    if (c >= planes) {
        const int64_t own = r.dim + c - planes;
        for (int64_t h = 0; h < r.heads && from.data != to.data; h++) {
            element_store(to.data, r.dtype, ROPE_AT(&to, b, h, t) + own,
                          element_load(from.data, r.dtype, ROPE_AT(&from, b, h, t) + own));
        }
        return;
    }
    const rope_plane at = rope_plane_of(&r, c);
    const double position = (double)rope_position(&r, b, t) * (r.inverse ? -1 : 1);
    double sine, cosine;
    sincos(position * frequencies.plane[c], &sine, &cosine);
    for (int64_t h = 0; h < r.heads; h++) {
        const int64_t in = ROPE_AT(&from, b, h, t), out = ROPE_AT(&to, b, h, t);
        const double x = element_load(from.data, r.dtype, in + at.x),
                     y = element_load(from.data, r.dtype, in + at.y);
        element_store(to.data, r.dtype, out + at.x, x * cosine - y * sine);
        element_store(to.data, r.dtype, out + at.y, x * sine + y * cosine);
    }
}

loam_status rope_apply_cuda(const loam_rope *r, const rope_frequencies *frequencies,
                            const loam_const_view *from, const loam_view *to, loam_error *error)
{
    const int64_t items = r->dim / 2 + r->channels - r->dim,
                  blocks = (r->batch * r->tokens * items + ROPE_THREADS - 1) / ROPE_THREADS;
    REQUIRE(blocks <= INT32_MAX, error, LOAM_EMEMORY, "batch x tokens: too large for one launch");
    rope_kernel<<<(unsigned)blocks, ROPE_THREADS, 0, (cudaStream_t)r->stream>>>(*r, *frequencies, *from, *to);
    return cuda_launched("rope_kernel", error);
}
