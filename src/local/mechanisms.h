/* SPDX-License-Identifier: MIT
 * The mechanisms of the local family, one entry each, and the sets of them that rows of kernels.def name:
 *
 *     X(enumerator less LOAM_, name, objective, regulariser, update, output, cost)
 *
 * The texts are those of loam_mechanism_info, in the notation of docs/mathematics.md. */
#ifndef LOAM_LOCAL_MECHANISMS_H
#define LOAM_LOCAL_MECHANISMS_H

#define LOCAL_SOFTMAX(X) X(SOFTMAX, "softmax", "sum_j p_j |b - v_j|^2 / 2", "0", "keep k, v", "b", "4 t d")
#define LOCAL_PARALLAX(X) \
    X(PARALLAX, "parallax", "as lla, its probe rho given", "-", "keep k, v", \
      "sum_j p_j (1 - rho.(k_j - kbar)) v_j", "8 t d")
#define LOCAL_SOLVED(X) \
    X(LLA, "lla", "sum_j p_j |b + W (k_j - q) - v_j|^2 / 2", "tr(W Lambda W^T) / 2", "keep k, v", "b", \
      "3 t d^2 + 7 t d + d^3 / 3")

/* The probe is 0 or an argument. */
#define LOCAL_GIVEN(X) LOCAL_SOFTMAX(X) LOCAL_PARALLAX(X)
#define LOCAL_MECHANISMS(X) LOCAL_GIVEN(X) LOCAL_SOLVED(X)

#endif
