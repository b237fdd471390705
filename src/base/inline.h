/* SPDX-License-Identifier: MIT
 * Small functions of the headers: they serve C files and, on both sides of a launch, CUDA files. */
#ifndef LOAM_BASE_INLINE_H
#define LOAM_BASE_INLINE_H

#ifdef __CUDACC__
#define LOAM_INLINE static inline __host__ __device__
#else
#define LOAM_INLINE static inline
#endif

#endif
