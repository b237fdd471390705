/* SPDX-License-Identifier: MIT
 *
 * loam.h - attention as regression at test time. Two families: local estimators (softmax,
 * Parallax, Local Linear Attention) and recurrences that fit one linear map to all that came
 * before (linear attention to MesaNet).
 *
 * Every mechanism of the local family is softmax attention with a probe (Zuo et al. 2025, eq. 8, in
 * the centred form that docs/mathematics.md derives):
 *
 *     o_i = sum_j p_ij (1 - u_ij) v_j,   u_ij = rho_i . (k_j - kbar_i),   kbar_i = sum_j p_ij k_j
 *
 * with p_ij the softmax over the keys j that query i sees. The probe rho_i is 0 (softmax), given
 * (Parallax) or solved for (LLA): (Cov_i + Lambda_i) rho_i = kbar_i - q_i.
 *
 * Every mechanism of the recurrent family is one recurrence on a state S [dim_v, dim_qk] with a few switches
 * (docs/recurrent.md has the table and the sources):
 *
 *     S_t = S_{t-1} Diag(e^{g_t}) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,   o_t = S_t x_t
 *
 * with g_t the log decay, the factor in parentheses only where the write is a delta rule,
 * beta_t = 1 where there is none, and x_t = scale q_t, but in MesaNet
 * (H_t + Lambda)^-1 scale q_t, H_t = H_{t-1} e^{g_t} + beta_t k_t k_t^T.
 *
 * Plan, then run. All checks, choices and sizes are made once; a run allocates nothing:
 *
 *     loam_problem problem = loam_problem_default(LOAM_LLA, LOAM_FORWARD);
 *     problem.batch = 1, problem.heads_q = problem.heads_kv = 8;
 *     problem.len_q = problem.len_kv = 4096, problem.dim_qk = problem.dim_v = 64;
 *
 *     loam_error error;
 *     loam_plan *plan;
 *     if (loam_plan_create(&plan, &problem, &error)) return fprintf(stderr, "%s\n", error.text), 1;
 *     loam_args args = {
 *         .q = loam_dense(q, 8, 4096, 64), .k = loam_dense(k, 8, 4096, 64),
 *         .v = loam_dense(v, 8, 4096, 64), .o = loam_dense_out(o, 8, 4096, 64),
 *         .work = aligned_alloc(LOAM_ALIGN, loam_plan_work_bytes(plan)),
 *     };
 *     if (loam_run(plan, &args, &error)) ...
 *     loam_plan_destroy(plan);
 *
 * Axes. Arrays are [batch, head, token, channel] with a stride for each of the first three; the last
 * axis is contiguous. Both (B,H,T,D) and (B,T,H,D) fit without a copy, and a stride of 0 broadcasts an
 * input. Type `real` below is float, or double where problem.dtype is LOAM_F64.
 *
 * Threads. A plan is read-only once made: any number of threads may run it at the same time, each with
 * its own args and work. The library keeps no global state, prints nothing and never exits.
 *
 * Results are deterministic: the same inputs give the same bits for any number of threads, and a
 * sequence gives the same bits at any place of a batch.
 *
 * GPUs. With LOAM_BACKEND_CUDA every pointer in loam_args is memory of the calling thread's
 * current CUDA device, and loam_run only launches kernels on args.stream: it allocates nothing,
 * waits for nothing and may be captured into a graph. docs/gpu.md has an example.
 */
#ifndef LOAM_H
#define LOAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined _WIN32
#define LOAM_API
#else
#define LOAM_API __attribute__((visibility("default")))
#endif

#define LOAM_VERSION_MAJOR 0
#define LOAM_VERSION_MINOR 1
#define LOAM_VERSION_PATCH 0

#define LOAM_VERSION_NUMBER (LOAM_VERSION_MAJOR * 10000 + LOAM_VERSION_MINOR * 100 + LOAM_VERSION_PATCH)

/* Alignment in bytes of `work` and `saved`; loam_plan_work_bytes
 * and loam_plan_saved_bytes are multiples of it. */
#define LOAM_ALIGN 64

/* Largest dim_qk and dim_v. */
#define LOAM_MAX_DIM 512

/* ---------------------------------------------------------------- errors */

typedef enum loam_status {
    LOAM_OK = 0,
    LOAM_EARG = -1,         /* a null pointer, an unknown enumerator, options that contradict */
    LOAM_ESHAPE = -2,       /* a size or stride out of range, shapes that do not fit together */
    LOAM_EVALUE = -3,       /* a number out of range: NaN or negative ridge, scale, window, ... */
    LOAM_EUNSUPPORTED = -4, /* no kernel of this build and machine does what is asked */
    LOAM_EMEMORY = -5,      /* an allocation failed, or a size overflows */
    LOAM_ECUDA = -6         /* a CUDA call failed; the text has CUDA's own */
} loam_status;

/* Filled by a call that fails (text names the argument, the value and what was expected) and by one
 * that succeeds (LOAM_OK, ""). Every `error` parameter may be NULL. */
typedef struct loam_error {
    loam_status status;
    char text[256];
} loam_error;

LOAM_API const char *loam_status_text(loam_status status);

/* The version of the linked library, "0.1.0". */
LOAM_API const char *loam_version(void);

/* ---------------------------------------------------------------- the problem */

typedef enum loam_mechanism {
    LOAM_SOFTMAX,  /* rho = 0: fits a constant around each query (Nadaraya-Watson) */
    LOAM_PARALLAX, /* rho given, args.probe */
    LOAM_LLA,      /* rho solved: fits an affine function around each query */

    /* The recurrent family: which log decay and beta each reads. */
    LOAM_LINEAR,      /* linear attention: neither */
    LOAM_RETENTION,   /* RetNet: a log decay per head */
    LOAM_SSD,         /* Mamba-2: a log decay and beta (its Delta) per token */
    LOAM_GLA,         /* gated linear attention: a log decay per channel */
    LOAM_DELTA,       /* DeltaNet: beta, delta rule */
    LOAM_GATED_DELTA, /* a log decay per token, beta, delta rule */
    LOAM_KDA,         /* Kimi delta attention: a log decay per channel, beta, delta rule */
    LOAM_MESA         /* MesaNet: a log decay per token, beta; the read solves with a ridge */
} loam_mechanism;

typedef enum loam_pass {
    LOAM_FORWARD,
    LOAM_BACKWARD, /* all gradients; local: from args.saved of a forward of the same problem */
    LOAM_DECODE    /* local: few queries, many keys: split over keys, partial states merged; recurrent: the
                      next tokens, len_q of them, from state_in to state_out, which may be the same memory */
} loam_pass;

typedef enum loam_dtype { LOAM_F32, LOAM_BF16, LOAM_F16, LOAM_F64 } loam_dtype;

typedef enum loam_score {
    LOAM_DOT, /* scale * q.k */
    LOAM_RBF  /* -scale/2 |q - k|^2: a Gaussian kernel of bandwidth 1/sqrt(scale) */
} loam_score;

/* Which axes the ridge varies over. */
typedef enum loam_ridge_axes {
    LOAM_RIDGE_NUMBER,  /* one number: problem.ridge, or args.ridge [1] where that is given */
    LOAM_RIDGE_HEAD,    /* args.ridge [heads_q], LOAM_MESA: [heads_v]; its stride is .head */
    LOAM_RIDGE_TOKEN,   /* args.ridge [batch, heads_q, len_q] */
    LOAM_RIDGE_CHANNEL, /* args.ridge [batch, heads_q, len_q, dim_qk]; not LOAM_MESA, nor LOAM_RIDGE_TOKEN */
    LOAM_RIDGE_HEAD_CHANNEL /* args.ridge [heads, dim_qk], stride .head; LOAM_MESA only */
} loam_ridge_axes;

/* What the ridge is relative to: Lambda_i = ridge * unit_i, added to the covariance of the keys under
 * the normalised weights p. */
typedef enum loam_ridge_unit {
    LOAM_RIDGE_NORMALISED, /* unit = 1 */
    LOAM_RIDGE_MAX,        /* unit = max_j p_ij: what Zuo et al. 2025, Algorithm 1 computes */
    LOAM_RIDGE_TRACE       /* unit = trace(Cov_i) / dim_qk + 1e-3: dimensionless */
} loam_ridge_unit;

/* What the recurrent family does to q and k before anything else. */
typedef enum loam_feature_map {
    LOAM_FEATURES_IDENTITY, /* nothing: q and k are themselves, or features that the caller made of them */
    LOAM_FEATURES_ELU,      /* elu(x) + 1 = x + 1 for x > 0, e^x else */
    LOAM_FEATURES_UNIT,     /* x / |x|, 0 for x = 0: keeps the delta rules from growing, beta |k|^2 <= 2 */
    LOAM_FEATURES_POSITIVE  /* positive random features, args.z: products of them estimate e^{scale q.k}, so
                               that the normalised read estimates softmax (docs/features.md). LOAM_LINEAR with
                               normalise = 1. No input that is finite overflows: logarithms of features
                               are held between -2^24 and 2^24 */
} loam_feature_map;

typedef enum loam_backend {
    LOAM_BACKEND_AUTO,      /* the best for host memory: never CUDA, unless `kernel` names such a row */
    LOAM_BACKEND_REFERENCE, /* float64, scalar, from the equations */
    LOAM_BACKEND_CPU,       /* float32 inside, vectorised, threaded */
    LOAM_BACKEND_CUDA       /* float32 inside, on an NVIDIA GPU; all pointers are device pointers */
} loam_backend;

/* What the structs of this header are to the caller's compiler. It begins those that the library
 * takes, which loam_problem_default and loam_rope_default fill in; the library refuses a struct with
 * any other stamp: one that did not begin with its default, and one of another version's header. */
typedef struct loam_stamp {
    uint64_t version;    /* LOAM_VERSION_NUMBER */
    uint64_t bytes;      /* of the struct that it begins */
    uint64_t args_bytes; /* of loam_args; loam_rope: of loam_view */
} loam_stamp;

typedef struct loam_problem {
    loam_stamp stamp; /* of loam_problem_default */

    loam_mechanism mechanism;
    loam_pass pass;
    loam_dtype dtype; /* of q, k, v, probe, o and their gradients */

    int64_t batch;    /* >= 0; the number of sequences where they are packed */
    int64_t heads_q;  /* >= 1, a multiple of heads_kv: query head h reads */
    int64_t heads_kv; /* key-value head h / (heads_q / heads_kv); recurrent: = heads_q, see heads_v */
    int64_t len_q;    /* >= 0; the longest where sequences are packed */
    int64_t len_kv;   /* >= 0; likewise */
    int64_t dim_qk;   /* 1 .. LOAM_MAX_DIM */
    int64_t dim_v;    /* 1 .. LOAM_MAX_DIM */

    /* Packed sequences of different lengths: q is [total_q, heads, dim], k and v [total_kv, heads, dim]
     * and args.cu_q, args.cu_kv say where each begins. Both -1 (default): not packed. The batch axis
     * and its strides are then unused: row `cu_q[b] + i` of the token axis is token i of sequence b. */
    int64_t total_q, total_kv;

    loam_score score; /* default LOAM_DOT */
    double scale;     /* default 0: 1/sqrt(dim_qk), for both scores. LOAM_RBF: > 0. LOAM_MESA: default 1;
                         with normalise it cancels: 0 or 1, but LOAM_FEATURES_POSITIVE: > 0 */
    double soft_cap;  /* default 0: none. c > 0: scaled scores become c tanh(s / c) */
    int causal;       /* default 1: query i sees keys j <= i + len_kv - len_q. 0: all keys */
    int64_t window;   /* default 0: none. w >= 1: only keys with |i + len_kv - len_q - j| < w */

    int slope;    /* 1: args.slope, adds -slope_h |i + len_kv - len_q - j| to the scores (ALiBi) */
    int key_bias; /* 1: args.key_bias, adds bias_hj to the scores */
    int sink;     /* 1: args.sink, a logit per head that takes mass but has no value; LOAM_SOFTMAX only */

    /* Scores that depend on the tokens between (docs/scores.md). Both want causal = 1 and LOAM_DOT. */
    int decay; /* 1: FoX. args.log_decay [batch, heads_q, len_kv], adds its sum over keys j + 1 ..
                  i + len_kv - len_q to the score of query i and key j, after scale and soft cap. No sink */
    int path;  /* 1: PaTH. args.w and args.beta turn each key by the reflections of the keys after it, up to
                  the query's: q_i . (I - beta_t w_t w_t^T) ... k_j, t = i + len_kv - len_q .. j + 1. No
                  soft_cap, window, slope, key_bias or sink; goes with decay */

    double ridge; /* default 0.1, >= 0. LOAM_LLA only, as are the next two; LOAM_MESA: > 0, without units */
    loam_ridge_axes ridge_axes;
    loam_ridge_unit ridge_unit;

    loam_backend backend; /* default LOAM_BACKEND_AUTO: the last row of the registry that fits */
    const char *kernel;   /* default NULL. A name from loam_kernel_at: that row and no other */
    int threads;          /* default 0: all that OpenMP offers. Not used by CUDA */

    /* The recurrent family only. It wants len_kv = len_q (packed: total_kv = total_q), causal = 1 and
     * LOAM_DOT, has no soft_cap, window, slope, key_bias, sink, decay or path, and its scale applies to q. */
    int64_t heads_v; /* default 0: heads_q. A multiple of heads_q: heads of v, o, log_decay, beta, ridge and
                        states; value head h reads q and k of head h / (heads_v / heads_q) */
    loam_feature_map feature_map; /* default LOAM_FEATURES_IDENTITY */
    /* 1: o = S x / (s . x), s_t = s_{t-1} Diag(e^{g_t}) + beta_t k_t: a weighted mean of the values
     * where features are positive. LOAM_LINEAR, RETENTION, SSD and GLA. */
    int normalise;

    /* LOAM_FEATURES_POSITIVE only, which takes heads_q a multiple of heads_kv: query head h reads key and
     * value head h / (heads_q / heads_kv), and heads_v stays 0. */
    int64_t features;    /* default 0: dim_qk. M, 1 .. LOAM_MAX_DIM: how many features a key has */
    int features_shared; /* 0: z and a state for each query head. 1: for each key-value head, of heads_kv */
} loam_problem;

/* ---------------------------------------------------------------- the plan */

typedef struct loam_plan loam_plan;
struct loam_args;

/* Checks the problem, which begins as loam_problem_default (below), chooses the kernel and fixes
 * the sizes. On failure *plan is NULL. A plan for CUDA is made for the current device of the
 * calling thread, and runs on each of its kind. */
LOAM_API loam_status loam_plan_create(loam_plan **plan, const loam_problem *problem, loam_error *error);
LOAM_API void loam_plan_destroy(loam_plan *plan); /* NULL is allowed */

/* "lla forward f32 local_forward_avx512 b1 h8/8 q4096 k4096 d64/64 causal"; lives as long as the plan. */
LOAM_API const char *loam_plan_name(const loam_plan *plan);
/* The checked problem with every default filled in, `kernel` the chosen row. */
LOAM_API const loam_problem *loam_plan_problem(const loam_plan *plan);
/* Bytes of args.work: O(tokens * dim + threads * tile); never tokens^2. May be 0. The backward of
 * the recurrent reference: for each thread O(tokens * dim_qk) and 2 sqrt(tokens) states; of its
 * CPU kernels: likewise, with a state for every 64 tokens instead (LOAM_MESA: in float64). */
LOAM_API size_t loam_plan_work_bytes(const loam_plan *plan);
/* Bytes of args.saved: lse, mean key, mean value and probe of each query, as real; in
 * host memory a stamp of LOAM_ALIGN bytes before them. Recurrent: 0, nothing is saved. */
LOAM_API size_t loam_plan_saved_bytes(const loam_plan *plan);
/* Rows of the state of one head of the recurrent family, dim_qk wide (positive features: `features` wide):
 * dim_v of S, then 1 of s with normalise, or dim_qk of H for LOAM_MESA; with positive features a last one
 * of the logarithms that S and s are relative to, which count where s > 0. 0 for the local family. */
LOAM_API int64_t loam_plan_state_rows(const loam_plan *plan);
/* The row of the registry that may run in place of the chosen one, or NULL: then none may, as in
 * host memory always. Rows of CUDA for Hopper read 16 bytes at a time, and leave to this one what
 * they cannot: data and strides that are not multiples of 16 bytes, broadcast strides; in a local
 * forward also wanted weights, and a scale <= 0. The result is right, but slower. */
LOAM_API const char *loam_plan_fallback(const loam_plan *plan);
/* The row that a run with these arguments takes: the chosen
 * one or its fallback. Looks at pointers and strides alone. */
LOAM_API const char *loam_plan_kernel_for(const loam_plan *plan, const struct loam_args *args);

/* ---------------------------------------------------------------- running */

/* Strides count elements. The channel axis is contiguous. data == NULL: not given, or not wanted. */
typedef struct loam_const_view {
    const void *data;
    int64_t batch, head, token;
} loam_const_view;

typedef struct loam_view {
    void *data;
    int64_t batch, head, token;
} loam_view;

/* How one row of the solve ended. Softmax and Parallax rows say LOAM_ROW_SOLVED or LOAM_ROW_EMPTY. */
typedef enum loam_row_code {
    LOAM_ROW_SOLVED = 0,
    LOAM_ROW_EMPTY = 1, /* no visible key: o = 0, rho = 0, lse = -inf (or the sink), all gradients 0 */
    /* Cov + Lambda is singular (ridge 0 or too small for float64), or rho beyond float32: rho = 0, the
     * softmax row, here and in the gradients. Recurrent: H + Lambda is, or s . x = 0: o = 0, and the
     * row's read has no gradients. */
    LOAM_ROW_SINGULAR = 2
} loam_row_code;

typedef enum loam_solver {
    LOAM_SOLVER_NONE, /* nothing to solve */
    LOAM_SOLVER_CG,   /* conjugate gradients, float32 */
    LOAM_SOLVER_DUAL, /* Cholesky of the keys' Gram matrix (fewer keys than channels), float64 */
    LOAM_SOLVER_GRAM  /* Cholesky of Cov + Lambda: float32 refined by float64 residuals, or float64 */
} loam_solver;

typedef struct loam_row_info {
    int32_t code;       /* loam_row_code */
    int32_t solver;     /* loam_solver that gave the result */
    int32_t iterations; /* of conjugate gradients, also where another solver then took over */
    float residual;     /* |(Cov + Lambda) rho - (kbar - q)| / |kbar - q|; refined: before the last step */
} loam_row_info;

/* No output may overlap an input or another output, but state_out state_in. Where sequences are
 * packed, every view has its tokens (of arrays by keys: its keys) one after another and .batch is
 * not used, but by states. rho and weights of 16-bit LLA are as exact as o, and real gradients of
 * LOAM_BF16 as exact as those of its type, not more. Gradients of keys beyond lens_kv are 0.
 *
 * What a pass neither reads nor writes must be left out: a probe for softmax, gradients in a forward,
 * `o` in a backward, a stream in host memory are refused, by name; loam_args_keep leaves out what is
 * another pass's. loam_state_partial and loam_state_finish take what their plan's loam_run takes.
 *
 * With LOAM_BACKEND_CUDA all of these, small arrays included, are device memory, on which host
 * code cannot look: that ridge, slope and sink are finite, log_decay, beta and w in their ranges,
 * that cu_q and cu_kv ascend and that `saved` is of a forward of the same problem is then the
 * caller's promise. Kernels hold lengths and offsets within the arrays that the problem describes.
 * Any alignment of elements works; 16-byte aligned rows are fastest (loam_plan_kernel_for). */
typedef struct loam_args {
    /* Read by every pass. */
    loam_const_view q;        /* [batch, heads_q,  len_q,  dim_qk] dtype */
    loam_const_view k;        /* [batch, heads_kv, len_kv, dim_qk] dtype */
    loam_const_view v;        /* [batch, heads_kv, len_kv, dim_v]  dtype; recurrent: heads_v */
    loam_const_view probe;    /* [batch, heads_q,  len_q,  dim_qk] dtype; LOAM_PARALLAX */
    loam_const_view ridge;    /* real, see loam_ridge_axes; LOAM_LLA, LOAM_MESA */
    const void *slope;        /* [heads_q] real, >= 0 for the usual meaning; problem.slope */
    loam_const_view key_bias; /* [batch, heads_q, len_kv] real; .token is the stride of keys */
    const void *sink;         /* [heads_q] real; problem.sink */
    const int64_t *cu_q;      /* [batch + 1] from 0, ascending, to total_q; packed sequences */
    const int64_t *cu_kv;     /* [batch + 1] likewise; recurrent: NULL, cu_q is for both */
    const int64_t *lens_kv;   /* [batch] keys in use, 0 .. len_kv, or NULL: len_kv; not where packed.
                                 The mask is aligned at the end of the keys in use */

    /* Written by forward and decode. */
    loam_view o;       /* [batch, heads_q, len_q, dim_v] dtype */
    loam_view lse;     /* [batch, heads_q, len_q] real, or not wanted: log sum_j exp(score), sink too */
    loam_view rho;     /* [batch, heads_q, len_q, dim_qk] real, or not wanted: the probe used */
    loam_view weights; /* [batch, heads_q, len_q, len_kv] real, or not wanted: p_ij (1 - u_ij), 0 for
                          unseen keys. For small inputs: it is n^2. Forward only */
    loam_view info;    /* [batch, heads_q, len_q] loam_row_info, or not wanted */

    /* Written by forward where it is given, read by backward. Private layout, aligned to
     * LOAM_ALIGN. In host memory backward refuses what no forward of the same problem wrote;
     * kernel, back end and threads of the two may differ. */
    void *saved;

    /* Backward: grad_o is read, the others are written (not added to); each may be unwanted. */
    loam_const_view grad_o;  /* [batch, heads_q,  len_q,  dim_v]  dtype */
    loam_view grad_q;        /* [batch, heads_q,  len_q,  dim_qk] dtype */
    loam_view grad_k;        /* [batch, heads_kv, len_kv, dim_qk] dtype */
    loam_view grad_v;        /* [batch, heads_kv, len_kv, dim_v]  dtype */
    loam_view grad_probe;    /* [batch, heads_q,  len_q,  dim_qk] dtype; LOAM_PARALLAX */
    loam_view grad_ridge;    /* real, axes of the ridge; LOAM_LLA */
    void *grad_scale;        /* [1] real */
    void *grad_slope;        /* [heads_q] real */
    loam_view grad_key_bias; /* [batch, heads_q, len_kv] real */
    void *grad_sink;         /* [heads_q] real */

    void *work; /* loam_plan_work_bytes, aligned to LOAM_ALIGN; contents need no care */

    void *stream; /* the cudaStream_t to launch on, NULL: the default stream; LOAM_BACKEND_CUDA */

    /* The recurrent family; q, k, v, ridge, cu_q, o, info, grad_o, grad_q, grad_k, grad_v,
     * grad_ridge and grad_scale are as above, o and its gradient with heads_v heads. Sequence b
     * of a packed batch has state b. */
    loam_const_view log_decay; /* real, -inf .. 0: LOAM_RETENTION [heads_v], stride .head; LOAM_SSD,
                                  GATED_DELTA, MESA [batch, heads_v, len_q]; LOAM_GLA, KDA [batch, heads_v,
                                  len_q, dim_qk]. Local with problem.decay [batch, heads_q, len_kv], .token
                                  the stride of keys; below -16384 counts as -16384: no weight is left */
    loam_const_view beta;      /* [batch, heads_v, len_q] real, >= 0; delta rules <= 2. LOAM_SSD, DELTA,
                                  GATED_DELTA, KDA, MESA. Local with problem.path [batch, heads_kv, len_kv],
                                  0 .. 2 */
    loam_const_view state_in;  /* [batch, heads_v, loam_plan_state_rows, dim_qk] real, .token the stride of
                                  rows; not given: 0. LOAM_MESA reads the symmetric part of H */
    loam_view state_out;       /* as state_in, or not wanted (decode: needed); may be the memory of state_in,
                                  with its strides. Forward and decode */
    loam_const_view grad_state_out; /* backward: gradient of state_out, or not given: 0 */
    loam_view grad_log_decay;       /* real, axes of log_decay */
    loam_view grad_beta;            /* real, axes of beta */
    loam_view grad_state_in;        /* as state_in */

    /* problem.path; beta and grad_beta above. Rows of w have length 1, checked as beta is, to the
     * rounding of dtype (LOAM_F64: of bfloat16, since the reference also takes data that were
     * rounded), or 0: such a token reflects nothing. */
    loam_const_view w; /* [batch, heads_kv, len_kv, dim_qk] dtype */
    loam_view grad_w;  /* likewise; of w as it is, not of what was scaled to length 1 */

    /* LOAM_FEATURES_POSITIVE; heads are heads_q, or heads_kv with features_shared. v and its gradient have
     * heads_kv heads, states those of z; their last row has no gradient. No grad_scale. */
    loam_const_view z;         /* [heads, features, dim_qk] real; .token is the stride of features */
    loam_const_view log_alpha; /* [heads, features] real, or not given: 0; the weight of a feature, its log */
    loam_const_view shift;     /* [heads, dim_qk] real, or not given: 0; subtracted from the keys */
    loam_const_view balance;   /* [heads, dim_qk, dim_qk] real, or not given: queries become A q; .token is
                                  the stride of rows */
    loam_const_view balance_keys; /* likewise: keys become B k; given with balance. B^T A = I is the caller's
                                     promise, without which products of other vectors are estimated */
    loam_view grad_z;             /* as z */
    loam_view grad_log_alpha;     /* as log_alpha */
} loam_args;

/* Views of a dense (batch, heads, tokens, channels) array;
 * with channels = 1 also of [batch, heads, tokens]. */
static inline loam_const_view loam_dense(const void *data, int64_t heads, int64_t tokens, int64_t channels)
{
    loam_const_view view = { data, heads * tokens * channels, tokens * channels, channels };
    return view;
}
static inline loam_view loam_dense_out(void *data, int64_t heads, int64_t tokens, int64_t channels)
{
    loam_view view = { data, heads * tokens * channels, tokens * channels, channels };
    return view;
}
/* Of a dense (batch, tokens, heads, channels) array; packed sequences: of (tokens, heads, channels). */
static inline loam_const_view loam_dense_bthd(const void *data, int64_t heads, int64_t tokens,
                                              int64_t channels)
{
    loam_const_view view = { data, tokens * heads * channels, channels, heads * channels };
    return view;
}
static inline loam_view loam_dense_bthd_out(void *data, int64_t heads, int64_t tokens, int64_t channels)
{
    loam_view view = { data, tokens * heads * channels, channels, heads * channels };
    return view;
}

/* Defaults as said at each member; shapes are 0 and must be set (batch, heads_q and heads_kv are 1).
 * Inline, so that the stamp is of the header that the caller compiled with; other languages fill
 * the three numbers of the stamp in themselves. */
static inline loam_problem loam_problem_default(loam_mechanism mechanism, loam_pass pass)
{
    loam_problem problem;
    memset(&problem, 0, sizeof problem);
    problem.stamp.version = LOAM_VERSION_NUMBER;
    problem.stamp.bytes = sizeof(loam_problem);
    problem.stamp.args_bytes = sizeof(loam_args);
    problem.mechanism = mechanism;
    problem.pass = pass;
    problem.batch = problem.heads_q = problem.heads_kv = 1;
    problem.total_q = problem.total_kv = -1;
    problem.causal = 1;
    problem.ridge = 0.1;
    return problem;
}

/* Leaves out of args what this pass neither reads nor writes,
 * so that one set serves the forward and the backward. */
LOAM_API void loam_args_keep(loam_args *args, loam_pass pass);

/* Runs the pass that the plan is for. Checks the arguments first: on failure nothing is written.
 * With LOAM_BACKEND_CUDA the work is only launched when it returns; LOAM_ECUDA: a launch failed,
 * then and there or of an earlier call. */
LOAM_API loam_status loam_run(const loam_plan *plan, const loam_args *args, loam_error *error);

/* ---------------------------------------------------------------- caches that grow
 *
 * A plan depends on the sizes of its problem, not on how many keys are in use. For a key-value
 * cache make one local plan for LOAM_DECODE with len_kv = the capacity and len_q = the queries of a
 * step (mostly 1); k and v have room for all keys, at the strides of that room, so that nothing
 * moves when a token is appended. At each step write the new keys and values into the next rows and
 * pass lens_kv[b] = keys in use, the new ones included: the last query is aligned with the last of
 * them. Rows beyond are not read, log_decay, beta and w included. A step costs what its keys in use
 * cost; work is as large as the plan says, whatever they are. When the capacity is reached, move to
 * larger arrays and make another plan. Sequences of a batch grow each at its own pace.
 *
 * The recurrent family has no cache: a decode of len_q tokens goes from state_in to state_out,
 * which may be the same memory, and one plan serves every step. examples/03_decode.c does both. */

/* ---------------------------------------------------------------- partial states
 *
 * For local plans for LOAM_DECODE. A set of keys, as one query sees it, reduces to a state; states of
 * disjoint sets merge, in any order, into the state of the union; the state of all keys gives the output.
 * So keys may live on several devices or in several pages. A state is an array of doubles,
 * w_j = exp(s_j - m), x' centred at its own w-mean:
 *
 *     softmax   m, omega = sum w, vbar[dim_v]
 *     parallax  m, omega, tbar = mean of t_j = probe.k_j, vbar[dim_v], sum w t'_j v'_j [dim_v]
 *     lla       m, omega, kbar[dim_qk], vbar[dim_v], sum w k' k'^T [dim_qk (dim_qk + 1) / 2: rows of the
 *               lower triangle], sum w v' k'^T [dim_v, dim_qk]
 *
 * States are dense, [batch, heads_q, len_q]; an empty set is m = -inf, all else 0. The sink joins in
 * loam_state_finish. For context parallelism each rank calls loam_state_partial on its keys. */

/* Doubles of one state, and of all states of the plan; 0 for the recurrent family. */
LOAM_API size_t loam_state_doubles(const loam_plan *plan);
LOAM_API size_t loam_states_doubles(const loam_plan *plan);

/* The states of keys first .. first + count - 1 of each sequence. args.k, args.v and
 * args.key_bias hold just these keys (row 0 is key `first`); masks and biases use their place in
 * the whole sequence of len_kv (or lens_kv) keys. args.log_decay, w and beta are of the whole
 * sequence: what lies between a query and a slice counts too. Reads q, k, v, probe, slope,
 * key_bias, log_decay, w, beta, lens_kv, work. Not for packed plans. */
LOAM_API loam_status loam_state_partial(const loam_plan *plan, const loam_args *args, int64_t first,
                                        int64_t count, double *states, loam_error *error);
/* into = into + from. */
LOAM_API loam_status loam_state_merge(const loam_plan *plan, double *into, const double *from,
                                      loam_error *error);
/* Outputs o, lse, rho and info from states; reads q, probe, ridge, sink, work. */
LOAM_API loam_status loam_state_finish(const loam_plan *plan, const loam_args *args, const double *states,
                                       loam_error *error);

/* ---------------------------------------------------------------- rotary positions
 *
 * RoPE (Su et al. 2021): the plane of channels c of token t turns by the angle
 * position_t base^(-2 c / dim), so that products of queries and keys depend on the differences of
 * their positions alone. Queries and keys are turned ahead of a call, with keys once as they enter a
 * cache; their gradients are turned back after it, with `inverse`. docs/scores.md. */

typedef enum loam_rope_layout {
    LOAM_ROPE_HALF,       /* plane c is channels c and c + dim / 2 */
    LOAM_ROPE_INTERLEAVED /* plane c is channels 2 c and 2 c + 1 */
} loam_rope_layout;

typedef struct loam_rope {
    loam_stamp stamp; /* of loam_rope_default */

    loam_dtype dtype;
    int64_t batch, heads, tokens; /* >= 0; packed sequences: one batch of all tokens, with positions */
    int64_t channels;             /* 1 .. LOAM_MAX_DIM */
    int64_t dim;                  /* default 0: all channels. Even: so many turn, the first ones */
    double base;                  /* default 10000, > 1 */
    loam_rope_layout layout;      /* default LOAM_ROPE_HALF */
    int64_t offset;               /* default 0: the position of token 0, where positions is NULL */
    /* default NULL. [batch, tokens], at positions_batch from one batch entry to the next */
    const int64_t *positions;
    int64_t positions_batch; /* default 0: the same positions for all */
    int inverse;             /* default 0. 1: back by the same angles */
    loam_backend backend;    /* LOAM_BACKEND_CUDA: data and positions are device memory; else host memory */
    int threads;             /* default 0: all that OpenMP offers. Not used by CUDA */
    void *stream;            /* the cudaStream_t to launch on; LOAM_BACKEND_CUDA */
} loam_rope;

/* Defaults as said at each member; shapes are 0 and must be set. */
static inline loam_rope loam_rope_default(loam_dtype dtype)
{
    loam_rope rope;
    memset(&rope, 0, sizeof rope);
    rope.stamp.version = LOAM_VERSION_NUMBER;
    rope.stamp.bytes = sizeof(loam_rope);
    rope.stamp.args_bytes = sizeof(loam_view);
    rope.dtype = dtype;
    rope.base = 10000;
    return rope;
}

/* to [batch, heads, tokens, channels] = from, turned. They may be the same memory
 * with the same strides; else they must not overlap. Angles are found in float64. */
LOAM_API loam_status loam_rope_apply(const loam_rope *rope, const loam_const_view *from, const loam_view *to,
                                     loam_error *error);

/* ---------------------------------------------------------------- projections
 *
 * Start values of args.z for LOAM_FEATURES_POSITIVE: rows that are N(0, I), each by itself, or nearly so. The
 * numbers of a head depend on the seed and its number alone. */

typedef enum loam_projection {
    LOAM_PROJECTION_NORMAL,     /* independent N(0, I) */
    LOAM_PROJECTION_ORTHOGONAL, /* orthogonal directions in blocks of dim_qk, independent lengths */
    LOAM_PROJECTION_DCT         /* rows of the DCT-II with random signs of the channels, lengths at stratified
                                   quantiles ("DCT + stratified chi", after DiJiang) */
} loam_projection;

/* z [heads, features, channels] of dtype, LOAM_F32 or LOAM_F64, in host memory; .token is the stride of
 * features, .batch is not used. */
LOAM_API loam_status loam_projection_draw(loam_projection projection, uint64_t seed, int64_t heads,
                                          int64_t features, int64_t channels, loam_dtype dtype,
                                          const loam_view *z, loam_error *error);

/* ---------------------------------------------------------------- interpolation
 *
 * Local attention on what a recurrence leaves over (Zuo et al. 2025, eq. 9),
 * with W_i the linear map that the recurrence reads with after token i:
 *
 *     o_i = sum_j p_ij (v_j - W_i k_j) + W_i q_i = vbar_i + W_i (q_i - kbar_i)
 *
 * The problems agree in pass (forward or backward), dtype, batch, lengths, dimensions and heads,
 * of which there is one number; dim_qk + dim_v <= LOAM_MAX_DIM; the recurrent problem has identity
 * features, is not normalised, and its scale is 1 by default. p may be any mechanism of the local
 * family. Both in host memory, or both with LOAM_BACKEND_CUDA, of which a run only launches. */

typedef struct loam_interpolation loam_interpolation;

LOAM_API loam_status loam_interpolation_create(loam_interpolation **interpolation, const loam_problem *local,
                                               const loam_problem *recurrent, loam_error *error);
LOAM_API void loam_interpolation_destroy(loam_interpolation *interpolation); /* NULL is allowed */
/* Its two plans, for their names and state rows; they live as long. */
LOAM_API const loam_plan *loam_interpolation_local(const loam_interpolation *interpolation);
LOAM_API const loam_plan *loam_interpolation_recurrent(const loam_interpolation *interpolation);
/* Bytes of args.work and of args.saved, which forward writes where
 * it is given and backward reads; stamped like that of a plan. */
LOAM_API size_t loam_interpolation_work_bytes(const loam_interpolation *interpolation);
LOAM_API size_t loam_interpolation_saved_bytes(const loam_interpolation *interpolation);

/* args: q, k, v, o, work, saved, cu_q, stream, grad_o, grad_q, grad_k and grad_v of the whole,
 * and all else of the local problem (cu_kv too); recurrent_args: log_decay, beta, ridge, states,
 * info and their gradients, all else NULL. */
LOAM_API loam_status loam_interpolation_run(const loam_interpolation *interpolation, const loam_args *args,
                                            const loam_args *recurrent_args, loam_error *error);

/* ---------------------------------------------------------------- hybrid
 *
 * Exact attention to the first `sinks` tokens and the last `window` ones, the query's own included, and
 * positive random features for those between, under one normaliser (docs/mechanisms/hybrid.md):
 *
 *     o_i = (sum_near e^{s_ij} v_j + e^{gain} sum_far w_ij v_j) / (sum_near e^{s_ij} + e^{gain} sum_far w_ij)
 *
 * with s_ij = scale q_i.k_j and w_ij its estimate by features, whose mean over draws of z is e^{s_ij}.
 * The problem is that of the features alone (LOAM_LINEAR, LOAM_FEATURES_POSITIVE, normalise = 1): any pass,
 * back end and type, not packed; features <= LOAM_MAX_DIM - 1, dim_qk <= LOAM_MAX_DIM - 2, dim_v <=
 * LOAM_MAX_DIM - 1. */

typedef struct loam_hybrid loam_hybrid;

typedef struct loam_hybrid_args {
    const void *gain; /* [heads_q] real, a number or -inf (nothing far), or not given: 0 */
    void *grad_gain;  /* [heads_q] real, or not wanted; backward */
    /* What decode goes on from besides the state, given where that is: the sinks, and the window as a ring.
     * Token j is in row j, or sinks + (j - sinks) % window. Forward writes, decode reads and writes. */
    loam_view keys;      /* [batch, heads_kv, sinks + window, dim_qk] dtype */
    loam_view values;    /* [batch, heads_kv, sinks + window, dim_v] dtype */
    const int64_t *seen; /* [batch] tokens before this call; decode */
} loam_hybrid_args;

LOAM_API loam_status loam_hybrid_create(loam_hybrid **hybrid, const loam_problem *problem, int64_t sinks,
                                        int64_t window, loam_error *error);
LOAM_API void loam_hybrid_destroy(loam_hybrid *hybrid); /* NULL is allowed */
/* The plan that reads the features, for its name and loam_plan_state_rows; it lives as long. It has one
 * feature more than the problem, one value channel and two channels of queries and keys. */
LOAM_API const loam_plan *loam_hybrid_read(const loam_hybrid *hybrid);
/* Bytes of args.work and of args.saved, which forward writes where
 * it is given and backward reads; stamped like that of a plan. */
LOAM_API size_t loam_hybrid_work_bytes(const loam_hybrid *hybrid);
LOAM_API size_t loam_hybrid_saved_bytes(const loam_hybrid *hybrid);

/* args: as of the problem, but work, saved and the state [batch, heads of z, loam_plan_state_rows of the
 * plan above, features + 1], of which zeros are the empty one. It has no gradient. Forward begins with the
 * first token and may leave a state; decode goes on in its memory: state_in is state_out. */
LOAM_API loam_status loam_hybrid_run(const loam_hybrid *hybrid, const loam_args *args,
                                     const loam_hybrid_args *hybrid_args, loam_error *error);

/* ---------------------------------------------------------------- what there is */

typedef struct loam_kernel_info {
    const char *name;       /* "local_forward_avx2" */
    const char *mechanisms; /* "softmax parallax lla", "linear retention ..." */
    const char *pass;       /* "forward" */
    const char *dtypes;     /* "f32 bf16 f16" */
    const char *backend;    /* "reference", "cpu", "cuda" */
    const char *isa;        /* "portable", "avx2", "avx512", "avx512bf16", "amxbf16"; "cuda":
                        compute capability 8.0 or newer, "hopper": 9.0 */
    int available;          /* 1: this CPU (and LOAM_ISA), or the current GPU, can run it */
} loam_kernel_info;

/* Row `index` of the registry, slowest first within each pass; LOAM_EARG beyond the last. */
LOAM_API loam_status loam_kernel_at(int index, loam_kernel_info *info);

/* Which axes the log decays of a mechanism vary over: see loam_args.log_decay. */
typedef enum loam_decay_axes {
    LOAM_DECAY_NONE,
    LOAM_DECAY_HEAD,
    LOAM_DECAY_TOKEN,
    LOAM_DECAY_CHANNEL
} loam_decay_axes;

typedef enum loam_family {
    LOAM_FAMILY_LOCAL,    /* scores: scale, soft_cap, causal, window, slope, key_bias, decay (log_decay),
                             path (w, beta) */
    LOAM_FAMILY_RECURRENT /* states; heads_v, feature_map */
} loam_family;

/* A mechanism as a fit: J and R of the values v of a key k, what is carried on, what is read for
 * a query, and the operations of one more token with dim_qk = dim_v = d, a multiply-add counted
 * as two, after t tokens in the local family. Then what it takes besides q, k, v and what its
 * family does: enough to decide which arrays and options go with it. */
typedef struct loam_mechanism_info {
    const char *name;        /* loam_mechanism_name */
    const char *objective;   /* "|S k - v|^2 / 2" */
    const char *regulariser; /* "|S - D|^2 / 2", D the decayed state */
    const char *update;      /* "S = S (I - beta k k^T) + beta v k^T" */
    const char *output;      /* "S q" */
    const char *cost;        /* "6 d^2" */
    loam_family family;
    int probe;                 /* 1: reads args.probe */
    int sink;                  /* 1: problem.sink may be 1 */
    unsigned ridge_axes;       /* bit 1 << loam_ridge_axes: those that it may have; 0: it has no ridge */
    unsigned ridge_units;      /* bit 1 << loam_ridge_unit: likewise */
    int ridge_positive;        /* 1: its ridge is > 0, not >= 0; only where it has one */
    loam_decay_axes log_decay; /* of args.log_decay where it always reads one; local: see problem.decay */
    int beta;                  /* 1: always reads args.beta; local: see problem.path */
    double beta_most;          /* the largest beta, where one is read: 2, or infinity */
    int delta;                 /* 1: writes by a delta rule */
    int normalise;             /* 1: problem.normalise may be 1 */
} loam_mechanism_info;

/* Mechanism `index` of loam_mechanism; LOAM_EARG beyond the last. */
LOAM_API loam_status loam_mechanism_at(int index, loam_mechanism_info *info);

/* The names that the registry, plans and the program use; NULL outside the
 * enumeration, so that those of 0, 1, ... until NULL are all there are. */
LOAM_API const char *loam_mechanism_name(loam_mechanism mechanism);    /* "softmax", "parallax", "lla", ... */
LOAM_API const char *loam_family_name(loam_family family);             /* "local", "recurrent" */
LOAM_API const char *loam_pass_name(loam_pass pass);                   /* "forward", "backward", "decode" */
LOAM_API const char *loam_dtype_name(loam_dtype dtype);                /* "f32", "bf16", "f16", "f64" */
LOAM_API const char *loam_backend_name(loam_backend backend);          /* "auto", "cpu", "cuda", ... */
LOAM_API const char *loam_score_name(loam_score score);                /* "dot", "rbf" */
LOAM_API const char *loam_ridge_axes_name(loam_ridge_axes axes);       /* "number", "head", "token", ... */
LOAM_API const char *loam_ridge_unit_name(loam_ridge_unit unit);       /* "normalised", "max", "trace" */
LOAM_API const char *loam_feature_map_name(loam_feature_map map);      /* "identity", "elu", "unit", ... */
LOAM_API const char *loam_projection_name(loam_projection projection); /* "normal", "orthogonal", "dct" */
LOAM_API const char *loam_rope_layout_name(loam_rope_layout turns);    /* "half", "interleaved" */
LOAM_API const char *loam_row_code_name(loam_row_code code);           /* "solved", "empty", "singular" */
LOAM_API const char *loam_solver_name(loam_solver solver);             /* "none", "cg", "dual", "gram" */

/* "avx2 avx512 avx512bf16 amxbf16": the instruction sets of this CPU that Loam has kernels for. The
 * environment variable LOAM_ISA=portable|avx2|avx512|avx512bf16|amxbf16, read when a plan is made,
 * allows no more than the one it names. amxbf16 is that of Linux's tile registers, which this function,
 * a list of kernels and a plan ask for (arch_prctl, for the process); LOAM_ISA=avx512bf16 does not. */
LOAM_API const char *loam_cpu_features(void);
LOAM_API int loam_max_threads(void);

#ifdef __cplusplus
}
#endif
#endif
