/* SPDX-License-Identifier: MIT
 * How far positive random features (docs/features.md) are from softmax on one sequence of one head, and the
 * gradients of their z and log alpha. With x = sqrt(scale) q, y = sqrt(scale) k, after shift and balance,
 *
 *     K_tj = e^{x_t . y_j},   k_tj = (1/M) sum_m e^{z_m . (x_t + y_j) - |x_t|^2/2 - |y_j|^2/2 + log alpha_m}
 *
 *     softmax   -(1/T) sum_tj p_tj log(k_tj / sum_j k_tj),   p_tj = K_tj / sum_j K_tj
 *     l2row     (1/T) sum_tj (k_tj / sum_j K_tj - p_tj)^2
 *     l2        mean over pairs of (e^{-s} k_tj - e^{-s} K_tj)^2, s the same for all sequences: the largest
 *               x . y of the calibration text, or some kernel values overflow
 *
 * over the keys j that t sees. With a window (softmax alone, causal) k is K for the first `sinks` keys and
 * the last `window` that t sees, and e^gain k for the others. All float64; T x T numbers are never kept. */
#ifndef LOAM_TRAIN_FEATURE_LOSS_H
#define LOAM_TRAIN_FEATURE_LOSS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum feature_loss_kind {
    FEATURE_LOSS_SOFTMAX,
    FEATURE_LOSS_L2ROW,
    FEATURE_LOSS_L2
} feature_loss_kind;

typedef struct feature_loss {
    feature_loss_kind kind;
    bool causal;
    double largest;        /* s of l2 */
    int64_t sinks, window; /* window 0: none */
    double gain;
    int64_t tokens, channels, features; /* T, d, M */
    const double *x, *y;                /* [T, d] */
    const double *z, *log_alpha;        /* [M, d], [M] */
    const double *z_keys;               /* [M, d]: of y in the place of z, or NULL */
} feature_loss;

/* Of the workspace. */
size_t feature_loss_doubles(const feature_loss *loss);
/* Returns the loss; its gradients are added to grad_z [M, d], grad_log_alpha [M] and, with z_keys,
 * grad_z_keys [M, d], else NULL. */
double feature_loss_run(const feature_loss *loss, double *grad_z, double *grad_z_keys, double *grad_log_alpha,
                        double *work);

#endif
