/* SPDX-License-Identifier: MIT
 * What the rows of the registry cannot do although pass, mechanism and type are theirs. */
#include "src/local/local.h"

/* The CUDA kernels hold a row of each operand in shared memory. */
enum { CUDA_MAX_DIM = 256, CUDA_MAX_HEADS = 65535 };

loam_status local_cuda_fits(const loam_problem *p, loam_error *error)
{
    REQUIRE(p->dim_qk <= CUDA_MAX_DIM, error, LOAM_EUNSUPPORTED,
            "dim_qk: %lld, the CUDA kernels take 1 to %d", (long long)p->dim_qk, CUDA_MAX_DIM);
    REQUIRE(p->dim_v <= CUDA_MAX_DIM, error, LOAM_EUNSUPPORTED, "dim_v: %lld, the CUDA kernels take 1 to %d",
            (long long)p->dim_v, CUDA_MAX_DIM);
    return LOAM_OK;
}

#define MAP_WORDS(member, words) words ", "

/* Tiles of the kernels for Hopper are multiples of 64 channels wide; channels that the arrays do not have
 * read as 0. Scores there are products alone. */
loam_status local_hopper_fits(const loam_problem *p, loam_error *error)
{
    TRY(local_cuda_fits(p, error));
    REQUIRE(p->score == LOAM_DOT && !local_mapped(p) && !p->slope && !p->key_bias, error, LOAM_EUNSUPPORTED,
            "score: with %sslopes, a key bias or RBF, this kernel takes dot products alone",
            "" LOCAL_MAPS(MAP_WORDS));
    REQUIRE(p->ridge_unit != LOAM_RIDGE_TRACE, error, LOAM_EUNSUPPORTED,
            "ridge_unit: trace, this kernel takes normalised or max");
    return LOAM_OK;
}

/* Heads are an axis of the grids. */
loam_status local_path_batch_cuda_fits(const loam_problem *p, loam_error *error)
{
    TRY(local_cuda_fits(p, error));
    REQUIRE(p->heads_q <= CUDA_MAX_HEADS, error, LOAM_EUNSUPPORTED,
            "heads_q: %lld, the CUDA kernels with path take 1 to %d", (long long)p->heads_q, CUDA_MAX_HEADS);
    return LOAM_OK;
}

loam_status local_path_cuda_fits(const loam_problem *p, loam_error *error)
{
    REQUIRE(p->dim_qk == 64 && p->dim_v == 64, error, LOAM_EUNSUPPORTED,
            "dim_qk, dim_v: %lld, %lld, the CUDA kernels with path take 64 for both", (long long)p->dim_qk,
            (long long)p->dim_v);
    return LOAM_OK;
}
