/* SPDX-License-Identifier: MIT
 * One launch for many arrays of the same models, each of which is a piece: blocks first .. of the grid are
 * its. */
#ifndef LOAM_TRAIN_CUDA_LIST_CUH
#define LOAM_TRAIN_CUDA_LIST_CUH

#include "train/cuda/each.cuh"

enum { PIECES = 32 }; /* of one launch */

template <int OUTS, int INS> struct piece {
    view out[OUTS], in[INS];
    unsigned width, all, first; /* columns; elements; blocks before it */
    bool four;                  /* columns at a time */
};

template <int OUTS, int INS> struct pieces {
    piece<OUTS, INS> at[PIECES];
    int count;
    unsigned blocks;
};

/* The whole of a dense matrix as one row, whose width then does not matter. */
static inline matrix list_row(matrix a)
{
    assert(!a.data || (a.row == a.width && a.model == a.rows * a.width) || (a.rows == 1 && a.models == 1));
    a.width *= a.rows, a.row = a.width, a.rows = 1;
    return a;
}

/* Adds a piece of the shape of `like`, of which a block has `each` elements. */
template <int OUTS, int INS>
static void list_add(pieces<OUTS, INS> *list, matrix like, int64_t each, const view (&out)[OUTS],
                     const view (&in)[INS])
{
    piece<OUTS, INS> *p = &list->at[list->count++];
    for (int i = 0; i < OUTS; i++)
        p->out[i] = out[i];
    for (int i = 0; i < INS; i++)
        p->in[i] = in[i];
    const int64_t all = like.rows * like.width;
    assert(all < INT32_MAX / 2);
    p->four = like.width % 4 == 0 && all_aligned(out) && all_aligned(in);
    p->width = (unsigned)like.width, p->all = (unsigned)all, p->first = list->blocks;
    list->blocks += (unsigned)((all + each - 1) / each);
}

/* The piece that this block is of. */
template <int OUTS, int INS>
static __device__ __forceinline__ const piece<OUTS, INS> &list_mine(const pieces<OUTS, INS> &list)
{
    int k = list.count - 1;
    while (blockIdx.x < list.at[k].first)
        k--;
    return list.at[k];
}

enum { LIST_EACH = 4 * EACH_THREADS }; /* elements of a block */

template <int OUTS, int INS, class F>
static __global__ void __launch_bounds__(EACH_THREADS)
    list_kernel(const __grid_constant__ pieces<OUTS, INS> list, F f)
{
    const piece<OUTS, INS> &p = list_mine(list);
    const unsigned first = (blockIdx.x - p.first) * LIST_EACH;
    if (p.four) {
        const unsigned c = first + 4 * threadIdx.x;
        if (c < p.all) each_pack<4>(p.out, p.in, blockIdx.y, c / p.width, (int)(c % p.width), f);
        return;
    }
    for (unsigned c = first + threadIdx.x; c < min(first + LIST_EACH, p.all); c += EACH_THREADS)
        each_pack<1>(p.out, p.in, blockIdx.y, c / p.width, (int)(c % p.width), f);
}

template <int OUTS, int INS, class F>
static void list_launch(const machine *on, const char *name, int64_t models, const pieces<OUTS, INS> &list,
                        F f)
{
    if (list.blocks == 0) return;
    const dim3 grid(list.blocks, (unsigned)models);
    list_kernel<<<grid, EACH_THREADS, 0, on->gpu->stream>>>(list, f);
    gpu_launched(on, name);
}

#endif
