/* SPDX-License-Identifier: MIT
 * The launch of the forward pass where blocks of rows are few. */
#ifndef LOAM_LOCAL_HOPPER_FORWARD_FEW_CUH
#define LOAM_LOCAL_HOPPER_FORWARD_FEW_CUH

#include "src/local/hopper/heavy_work.cuh"

/* The mark that the copy in fp16 is complete, for a launch that may begin before it is: a counter that blocks
 * with 64 channels have no other use for. One thread calls them, and no other one of the waiting thread block
 * asks for copies of keys. */
static __device__ __forceinline__ void mark_copied(const solve_work &work)
{
    asm volatile("st.release.gpu.global.s64 [%0], %1;" ::"l"(work.next_listed), "l"(1ll) : "memory");
}
static __device__ __forceinline__ void wait_copied(const solve_work &work)
{
    long long mark = 0;
    while (mark == 0)
        asm volatile("ld.acquire.gpu.global.s64 %0, [%1];" : "=l"(mark) : "l"(work.next_listed) : "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* Is it faster than that of forward_solved.cu? The bits are the same. */
bool forward_few_pays(const loam_problem *p);

/* Queues what blocks write that take one part, and lists those that need row matrices. maps: of the copies in
 * fp16. */
loam_status forward_few(const loam_problem *p, const loam_args *a, const local_saved *saved,
                        const solve_work *work, const half_copy *copy, const heavy_work *heavy,
                        const qkv_maps *maps, loam_error *error);

#endif
