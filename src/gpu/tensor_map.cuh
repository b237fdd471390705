/* SPDX-License-Identifier: MIT
 * Tensor maps, which describe arrays to bulk tensor copies; the host encodes them for each launch. */
#ifndef LOAM_GPU_TENSOR_MAP_CUH
#define LOAM_GPU_TENSOR_MAP_CUH

#include "src/gpu/launch.cuh"

#include <cuda.h>
#include <cudaTypedefs.h>

static inline bool step_fits(int64_t stride, int64_t count)
{
    return count <= 1 || (stride > 0 && stride % 8 == 0);
}

/* Can bulk copies read this view of 16-bit numbers? Its address and strides must be multiples of 16 bytes. */
static inline bool tensor_map_fits(const loam_const_view *v, int64_t batch, int64_t heads, int64_t tokens)
{
    return (uintptr_t)v->data % 16 == 0 && step_fits(v->token, tokens) && step_fits(v->head, heads) &&
           step_fits(v->batch, batch);
}

/* The map of `view` as [batch][heads][tokens][channels] of bf16 or float16, in boxes of `rows` tokens by
 * `columns` channels: 64 (128-byte swizzle) or 32 (64-byte swizzle). Elements outside the array read as 0. */
static inline loam_status tensor_map_make(CUtensorMap *map, const loam_const_view *view, int64_t batch,
                                          int64_t heads, int64_t tokens, int64_t channels, int rows,
                                          loam_error *error, int columns = 64)
{
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    TRY(cuda_check(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
        "cuTensorMapEncodeTiled", error));
    REQUIRE(found == cudaDriverEntryPointSuccess && entry, error, LOAM_ECUDA,
            "cuTensorMapEncodeTiled: not in this driver");
    const cuuint64_t sizes[4] = { (cuuint64_t)channels, (cuuint64_t)tokens, (cuuint64_t)heads,
                                  (cuuint64_t)batch };
    /* Along an axis of one entry the stride may be any that is valid. */
    const cuuint64_t strides[3] = { (cuuint64_t)(tokens > 1 ? view->token * 2 : 16),
                                    (cuuint64_t)(heads > 1 ? view->head * 2 : 16),
                                    (cuuint64_t)(batch > 1 ? view->batch * 2 : 16) };
    const cuuint32_t box[4] = { (cuuint32_t)columns, (cuuint32_t)rows, 1, 1 }, step[4] = { 1, 1, 1, 1 };
    const CUresult code = ((PFN_cuTensorMapEncodeTiled_v12000)entry)(
        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)(uintptr_t)view->data, sizes, strides, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    REQUIRE(code == CUDA_SUCCESS, error, LOAM_ECUDA,
            "cuTensorMapEncodeTiled: error %d for a view of strides %lld %lld %lld", (int)code,
            (long long)view->batch, (long long)view->head, (long long)view->token);
    return LOAM_OK;
}

#endif
