/* SPDX-License-Identifier: MIT
 *
 * Decode, a token at a time, in the two ways that there are. Local Linear Attention keeps all keys and
 * values: a cache that grows within its capacity, one plan for all steps, and lens_kv says how far it is
 * filled. The gated delta rule keeps a state of one size. Both give what one forward over all tokens gives.
 *
 *     cc 03_decode.c $(pkg-config --cflags --libs loam) -lm -o 03_decode
 *
 * With -DLOAM_HAVE_CUDA and the CUDA runtime the state also goes from step to step on a GPU, where there is
 *
 * one. */
#include <loam.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LOAM_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

enum { HEADS = 2, CAPACITY = 48, DIM = 16, COUNT = HEADS * CAPACITY * DIM, GATES = HEADS * CAPACITY };

/* Tokens of the sequence, [HEADS, CAPACITY, DIM], with a log decay and a write strength for each. */
typedef struct tokens {
    float q[COUNT], k[COUNT], v[COUNT], log_decay[GATES], beta[GATES];
} tokens;

static void fill(tokens *x)
{
    for (int index = 0; index < COUNT; index++) {
        x->q[index] = sinf(1.3f * (float)index);
        x->k[index] = sinf(0.7f * (float)(index % 997) * (float)(index % 31));
        x->v[index] = cosf(2.9f * (float)index);
    }
    for (int index = 0; index < GATES; index++) {
        x->log_decay[index] = -0.05f * (float)(index % 3);
        x->beta[index] = 0.5f + 0.4f * sinf((float)index);
    }
}

/* ------------------------------------------------------------------ memory of the host, or of the GPU */

/* New memory with these contents; NULL where there is none. */
static void *put(loam_backend backend, const void *from, size_t bytes)
{
    void *to = NULL;
#ifdef LOAM_HAVE_CUDA
    if (backend == LOAM_BACKEND_CUDA)
        return cudaMalloc(&to, bytes) || cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice) ? NULL : to;
#endif
    (void)backend;
    to = aligned_alloc(LOAM_ALIGN, (bytes + LOAM_ALIGN - 1) / LOAM_ALIGN * LOAM_ALIGN);
    return to ? memcpy(to, from, bytes) : NULL;
}

static int get(loam_backend backend, void *to, const void *from, size_t bytes)
{
#ifdef LOAM_HAVE_CUDA
    if (backend == LOAM_BACKEND_CUDA)
        return cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost) != cudaSuccess;
#endif
    (void)backend;
    memcpy(to, from, bytes);
    return 0;
}

static void release(loam_backend backend, void *memory)
{
#ifdef LOAM_HAVE_CUDA
    if (backend == LOAM_BACKEND_CUDA) {
        cudaFree(memory);
        return;
    }
#endif
    (void)backend;
    free(memory);
}

/* ------------------------------------------------------------------ plans */

/* `steps` queries at once; the cache of the local family has room for CAPACITY keys. */
static loam_plan *plan_for(loam_mechanism mechanism, loam_pass pass, int64_t steps, loam_backend backend)
{
    loam_problem problem = loam_problem_default(mechanism, pass);
    problem.heads_q = problem.heads_kv = HEADS;
    problem.len_q = steps;
    problem.len_kv = mechanism == LOAM_LLA ? CAPACITY : steps;
    problem.dim_qk = problem.dim_v = DIM;
    if (mechanism == LOAM_GATED_DELTA)
        problem.feature_map = LOAM_FEATURES_UNIT; /* keys of length 1 keep a delta rule from growing */
    problem.backend = backend;
    loam_error error;
    loam_plan *plan;
    if (loam_plan_create(&plan, &problem, &error)) fprintf(stderr, "%s\n", error.text);
    return plan;
}

/* Memory for `work` of both plans. */
static void *room_for(loam_backend backend, const loam_plan *a, const loam_plan *b)
{
    const size_t first = loam_plan_work_bytes(a), second = loam_plan_work_bytes(b);
    const size_t bytes = (first > second ? first : second) + LOAM_ALIGN;
    void *zeros = calloc(1, bytes), *room = zeros ? put(backend, zeros, bytes) : NULL;
    free(zeros);
    return room;
}

static int run(const loam_plan *plan, const loam_args *args)
{
    loam_error error;
    const loam_status status = loam_run(plan, args, &error);
    if (status) fprintf(stderr, "%s\n", error.text);
    return status != LOAM_OK;
}

static double distance(const float *a, const float *b)
{
    double most = 0;
    for (int index = 0; index < COUNT; index++) {
        const double off = fabs((double)a[index] - (double)b[index]);
        if (isnan(off)) return off;
        most = off > most ? off : most;
    }
    return most;
}

/* ------------------------------------------------------------------ a cache that grows */

/* Appends a token to the cache and attends to all that are there. What lies beyond them is not read. */
static int cached_step(const loam_plan *plan, const tokens *x, int64_t t, float *k, float *v, float *o,
                       void *work)
{
    for (int64_t head = 0; head < HEADS; head++) {
        const int64_t row = (head * CAPACITY + t) * DIM;
        memcpy(k + row, x->k + row, DIM * sizeof *k);
        memcpy(v + row, x->v + row, DIM * sizeof *v);
    }
    const int64_t in_use = t + 1;
    const loam_args args = {
        .q = loam_dense(x->q + t * DIM, HEADS, CAPACITY, DIM), /* token t, in strides of the whole */
        .k = loam_dense(k, HEADS, CAPACITY, DIM),
        .v = loam_dense(v, HEADS, CAPACITY, DIM),
        .lens_kv = &in_use,
        .o = loam_dense_out(o + t * DIM, HEADS, CAPACITY, DIM),
        .work = work,
    };
    return run(plan, &args);
}

static int grow_a_cache(const tokens *x)
{
    static float k[COUNT], v[COUNT], o[COUNT], expected[COUNT];
    loam_plan *whole = plan_for(LOAM_LLA, LOAM_FORWARD, CAPACITY, LOAM_BACKEND_AUTO);
    loam_plan *step = plan_for(LOAM_LLA, LOAM_DECODE, 1, LOAM_BACKEND_AUTO);
    void *work = whole && step ? room_for(LOAM_BACKEND_AUTO, whole, step) : NULL;
    const loam_args args = {
        .q = loam_dense(x->q, HEADS, CAPACITY, DIM),
        .k = loam_dense(x->k, HEADS, CAPACITY, DIM),
        .v = loam_dense(x->v, HEADS, CAPACITY, DIM),
        .o = loam_dense_out(expected, HEADS, CAPACITY, DIM),
        .work = work,
    };
    for (int index = 0; index < COUNT; index++)
        k[index] = v[index] = NAN;
    int failed = !work || run(whole, &args);
    for (int64_t t = 0; t < CAPACITY && !failed; t++)
        failed = cached_step(step, x, t, k, v, o, work);
    if (!failed) {
        printf("%s: %d steps, off by %.1e\n", loam_plan_name(step), CAPACITY, distance(o, expected));
        failed = !(distance(o, expected) < 1e-4);
    }
    free(work);
    loam_plan_destroy(whole);
    loam_plan_destroy(step);
    return failed;
}

/* ------------------------------------------------------------------ a state */

/* The tokens from `first` on, as many as the plan's, from the state to the state, in place; NULL: no state is
 * kept. */
static loam_args state_args(const tokens *x, int64_t first, float *state, float *o, void *work)
{
    loam_args args = {
        .q = loam_dense(x->q + first * DIM, HEADS, CAPACITY, DIM),
        .k = loam_dense(x->k + first * DIM, HEADS, CAPACITY, DIM),
        .v = loam_dense(x->v + first * DIM, HEADS, CAPACITY, DIM),
        .log_decay = loam_dense(x->log_decay + first, HEADS, CAPACITY, 1),
        .beta = loam_dense(x->beta + first, HEADS, CAPACITY, 1),
        .state_in = loam_dense(state, HEADS, DIM, DIM),
        .state_out = loam_dense_out(state, HEADS, DIM, DIM),
        .o = loam_dense_out(o + first * DIM, HEADS, CAPACITY, DIM),
        .work = work,
    };
    return args;
}

static int keep_a_state(const tokens *x, loam_backend backend)
{
    static float o[COUNT], expected[COUNT], zeros[COUNT];
    loam_plan *whole = plan_for(LOAM_GATED_DELTA, LOAM_FORWARD, CAPACITY, backend);
    loam_plan *step = plan_for(LOAM_GATED_DELTA, LOAM_DECODE, 1, backend);
    tokens *there = put(backend, x, sizeof *x);
    float *out = put(backend, zeros, sizeof zeros), *state = put(backend, zeros, sizeof zeros);
    void *work = whole && step ? room_for(backend, whole, step) : NULL;
    int failed = !there || !out || !state || !work;
    if (!failed) {
        const loam_args args = state_args(there, 0, NULL, out, work);
        failed = run(whole, &args) || get(backend, expected, out, sizeof expected);
    }
    for (int64_t t = 0; t < CAPACITY && !failed; t++) {
        const loam_args args = state_args(there, t, state, out, work);
        failed = run(step, &args);
    }
    if (!failed && !get(backend, o, out, sizeof o))
        printf("%s: %d steps, off by %.1e\n", loam_plan_name(step), CAPACITY, distance(o, expected));
    failed = failed || !(distance(o, expected) < 1e-4);
    release(backend, there), release(backend, out), release(backend, state), release(backend, work);
    loam_plan_destroy(whole);
    loam_plan_destroy(step);
    return failed;
}

int main(void)
{
    static tokens x;
    fill(&x);
    int failed = grow_a_cache(&x) || keep_a_state(&x, LOAM_BACKEND_AUTO);
#ifdef LOAM_HAVE_CUDA
    int devices = 0;
    if (!failed && cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0)
        failed = keep_a_state(&x, LOAM_BACKEND_CUDA);
#endif
    return failed;
}
