/* SPDX-License-Identifier: MIT
 * The qualifier of small functions in headers, for C and for host and device code of CUDA. */
#ifndef LOAM_BASE_INLINE_H
#define LOAM_BASE_INLINE_H

#ifdef __CUDACC__
#define LOAM_INLINE static inline __host__ __device__
#else
#define LOAM_INLINE static inline
#endif

#endif
