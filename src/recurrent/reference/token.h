/* SPDX-License-Identifier: MIT
 * One token of the recurrent family, scalar and in float64, written from the equations (docs/recurrent.md):
 *
 *     k = phi(k_t), x^ = scale phi(q_t), w = v_t, [v_t; 1] (normalised) or [v_t; k] (solved)
 *     D_t = M_{t-1} Diag(e^{g_t})
 *     u_t = beta_t (w - D_t k) (delta rule) or beta_t w,   M_t = D_t + u_t k^T
 *     x = x^, or (H_t + Lambda) x = x^ (solved);   y = M_t x;   o_t = y, or y / y_last (normalised)
 */
#ifndef LOAM_RECURRENT_REFERENCE_TOKEN_H
#define LOAM_RECURRENT_REFERENCE_TOKEN_H

#include "src/recurrent/recurrent.h"

typedef struct ref_token {
    const recurrent_form *form;
    int64_t d, rows, dim_v;
    double beta;
    loam_row_info info;
    double *q, *k;   /* their features phi; x^ = scale q */
    double *decay;   /* e^g */
    double *w, *err; /* [rows]: the generalised value; u = beta err */
    double *x, *y;   /* the vector that reads the state, and the result */
    double *ridge;   /* Lambda of this head */
    double *decayed; /* D_t [rows, d] */
    double *factor;  /* of H_t + Lambda, lower triangle [d, d] */
} ref_token;

ref_token ref_token_carve(const loam_problem *p, arena *pool);

/* Loads the ridge of a value head. */
void ref_token_head(const loam_problem *p, const loam_args *a, int64_t h, ref_token *x);
/* Loads token t and updates the state with it. */
void ref_token_write(const loam_problem *p, const loam_args *a, const recurrent_seq *s, int64_t h, int64_t t,
                     ref_token *x, double *state);
/* Reads the state after the token: x, y, info, and o into `out` [dim_v]. */
void ref_token_read(const loam_problem *p, ref_token *x, const double *state, double *out);

/* The state of a head, dense [rows, d]; 0 if `view` has no data. */
void ref_state_load(const loam_problem *p, const loam_const_view *view, const recurrent_seq *s, int64_t h,
                    double *state);
/* Stores the state, if `view` has data. */
void ref_state_store(const loam_problem *p, const loam_view *view, const recurrent_seq *s, int64_t h,
                     const double *state);

/* phi of the row of q or k that begins at element `at`. */
void ref_features(const loam_problem *p, const loam_const_view *view, int64_t at, double *phi);
/* x <- the gradient of that row. On entry x is the gradient of its features. */
void ref_features_backward(const loam_problem *p, const loam_const_view *view, int64_t at, const double *phi,
                           double *x);

#endif
