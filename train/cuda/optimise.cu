/* SPDX-License-Identifier: MIT
 * The arithmetic of the optimisers; numbers of a model are [1][1]. */
#include "train/cuda/list.cuh"
#include "train/cuda/sum.cuh"

static const float eps = 1e-8f; /* of AdamW */
static const double beta_m = 0.9, beta_muon = 0.95;

enum { SQUARES_THREADS = 256, SQUARES_EACH = 16 }; /* elements of a thread */

static __device__ float block_total(float x)
{
    __shared__ float sums[SQUARES_THREADS];
    sums[threadIdx.x] = x;
    for (int step = SQUARES_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    }
    return sums[0]; /* of thread 0 */
}

typedef pieces<1, 1> arrays;

/* partial [models][all]: a number for each block, from `before` on. */
static __global__ void __launch_bounds__(SQUARES_THREADS)
    squares_kernel(float *partial, const __grid_constant__ arrays list, unsigned before, unsigned all)
{
    const piece<1, 1> &p = list_mine(list);
    const unsigned first = (blockIdx.x - p.first) * SQUARES_THREADS * SQUARES_EACH + threadIdx.x;
    float sum = 0;
#pragma unroll
    for (int k = 0; k < SQUARES_EACH; k++) {
        const unsigned c = first + k * SQUARES_THREADS;
        float value = 0;
        if (c < p.all) load<1>(&value, p.in[0], blockIdx.y, 0, (int)c);
        sum += value * value;
    }
    sum = block_total(sum);
    if (threadIdx.x == 0) partial[blockIdx.y * all + before + blockIdx.x] = sum;
}

/* The pieces of arrays first .. */
static arrays squares_list(const matrix *x, int first, int count)
{
    arrays list = {};
    for (int i = first; i < count && list.count < PIECES; i++) {
        const matrix row = list_row(x[i]);
        list_add(&list, row, SQUARES_THREADS * SQUARES_EACH, { view_of(row) }, { view_of(row) });
    }
    return list;
}

extern "C" void cuda_squares(const machine *on, matrix sum, const matrix *x, int count)
{
    unsigned all = 0, before = 0;
    for (int i = 0; i < count; i += PIECES)
        all += squares_list(x, i, count).blocks;
    float *partial = (float *)gpu_scratch(on->gpu, (size_t)sum.models * all * sizeof *partial);
    if (!partial) return;
    for (int i = 0; i < count; i += PIECES) {
        const arrays list = squares_list(x, i, count);
        squares_kernel<<<dim3(list.blocks, (unsigned)sum.models), SQUARES_THREADS, 0, on->gpu->stream>>>(
            partial, list, before, all);
        gpu_launched(on, "squares");
        before += list.blocks;
    }
    sum_finish(on, sum, partial, all, 1, false);
}

extern "C" void cuda_copies(const machine *on, const matrix *out, const matrix *x, int count)
{
    for (int i = 0; i < count;) {
        arrays list = {};
        for (; i < count && list.count < PIECES; i++)
            list_add(&list, out[i], LIST_EACH, { view_of(out[i]) }, { view_of(x[i]) });
        list_launch(on, "copies", out[0].models, list,
                    [] __device__(float *y, const float *from) { y[0] = from[0]; });
    }
}

extern "C" void cuda_clip(const machine *on, matrix factor, matrix squares, double limit)
{
    const float most = (float)limit;
    each(on, "clip", factor, { view_of(factor) }, { view_of(squares) },
         [=] __device__(float *y, const float *x) { y[0] = fminf(1, most / (sqrtf(x[0]) + 1e-6f)); });
}

extern "C" void cuda_rate(const machine *on, matrix rate, matrix peak, const int64_t *step, int64_t warm,
                          int64_t steps, double least)
{
    const double pi = 3.14159265358979323846, end = (double)steps, begin = (double)warm;
    each(on, "rate", rate, { view_of(rate) }, { view_of(peak) }, [=] __device__(float *y, const float *x) {
        const double t = (double)*step;
        const double part = t < begin ? (t + 1) / begin
                                      : least + (1 - least) * 0.5 *
                                                    (1 + cos(pi * (t - begin) / fmax(1.0, end - begin)));
        y[0] = (float)((double)x[0] * part);
    });
}

static __global__ void advance_kernel(int64_t *step) { ++*step; }

extern "C" void cuda_advance(const machine *on, int64_t *step)
{
    advance_kernel<<<1, 1, 0, on->gpu->stream>>>(step);
    gpu_launched(on, "advance");
}

typedef pieces<3, 6> adamw_list;

static void adamw_launch(const machine *on, const adamw_list &list, int64_t models, const int64_t *step,
                         double beta_v, double decay)
{
    const float keep_m = (float)beta_m, take_m = (float)(1 - beta_m), keep_v = (float)beta_v,
                take_v = (float)(1 - beta_v), shrink = (float)decay;
    const float log_m = (float)log(beta_m), log_v = (float)log(beta_v);
    list_launch(on, "adamw", models, list, [=] __device__(float *y, const float *x) {
        const float taken = (float)(*step + 1), whole_m = -expm1f(taken * log_m),
                    whole_v = -expm1f(taken * log_v);
        const float d = x[3] * x[4];
        y[1] = keep_m * x[1] + take_m * d;
        y[2] = keep_v * x[2] + take_v * d * d;
        y[0] = x[0] - x[5] * (shrink * x[0] + y[1] / whole_m / (sqrtf(y[2] / whole_v) + eps));
    });
}

extern "C" void cuda_adamw(const machine *on, const parameter *const *list, int count, matrix factor,
                           matrix rate, const int64_t *step, double beta_v, double decay)
{
    for (int decays = 0; decays < 2; decays++)
        for (int i = 0; i < count;) {
            adamw_list some = {};
            for (; i < count && some.count < PIECES; i++) {
                const parameter *p = list[i];
                const matrix row = list_row(p->x);
                const view x = view_of(row), m = view_of(list_row(p->m)), v = view_of(list_row(p->v));
                if (p->decay != (decays > 0)) continue;
                list_add(&some, row, LIST_EACH, { x, m, v },
                         { x, m, v, view_of(list_row(p->g)), view_shared(factor, row.width),
                           view_shared(rate, row.width) });
            }
            adamw_launch(on, some, factor.models, step, beta_v, decays ? decay : 0);
        }
}

extern "C" void cuda_momentum(const machine *on, matrix u, matrix m, matrix g, matrix factor)
{
    const float keep = (float)beta_muon, take = (float)(1 - beta_muon);
    each(on, "momentum", u, { view_of(u), view_of(m) },
         { view_of(m), view_of(g), view_shared(factor, u.width) }, [=] __device__(float *y, const float *x) {
             y[1] = keep * x[0] + take * x[2] * x[1];
             y[0] = keep * y[1] + take * x[2] * x[1];
         });
}

extern "C" void cuda_normalise(const machine *on, matrix x, matrix squares)
{
    each(
        on, "normalise", x, { view_of(x) }, { view_of(x), view_shared(squares, x.width) },
        [] __device__(float *y, const float *from) { y[0] = from[0] / (sqrtf(from[1]) + 1e-7f); });
}

extern "C" void cuda_descend(const machine *on, matrix p, matrix x, matrix rate, double scale, double decay)
{
    const float by = (float)scale, shrink = (float)decay;
    each(on, "descend", p, { view_of(p) }, { view_of(p), view_of(x), view_shared(rate, p.width) },
         [=] __device__(float *y, const float *from) {
             y[0] = from[0] - from[2] * (shrink * from[0] + by * from[1]);
         });
}
