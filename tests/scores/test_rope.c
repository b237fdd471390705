/* SPDX-License-Identifier: MIT
 * Rotary positions (Su et al. 2021): rotations, of which products see differences of positions alone. */
#include "loam.h"
#include "tests/support/compare.h"
#include "tests/support/element.h"
#include "tests/support/expect.h"
#include "tests/support/memory.h"
#include "tests/support/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, HEADS = 3, TOKENS = 7, CHANNELS = 12, SIZE = BATCH * HEADS * TOKENS * CHANNELS };

static loam_rope rope_of(loam_dtype dtype)
{
    loam_rope r = loam_rope_default(dtype);
    r.batch = BATCH, r.heads = HEADS, r.tokens = TOKENS, r.channels = CHANNELS;
    return r;
}

static void fill(double *x, uint64_t seed)
{
    rng r = rng_make(seed, 1);
    rng_fill_normal(&r, x, SIZE, 0, 1);
}

static void turn_dense(const loam_rope *r, const void *from, void *to)
{
    const loam_const_view in = loam_dense(from, r->heads, r->tokens, r->channels);
    const loam_view out = loam_dense_out(to, r->heads, r->tokens, r->channels);
    loam_error error;
    if (loam_rope_apply(r, &in, &out, &error)) fail_msg("%s", error.text);
}

static double product(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

/* The definition, plane by plane, for both layouts and a part of the channels. */
static void turns_planes_by_their_angles(void **state)
{
    (void)state;
    double x[SIZE], y[SIZE];
    fill(x, 1);
    for (int which = 0; which < 4; which++) {
        loam_rope r = rope_of(LOAM_F64);
        r.layout = (loam_rope_layout)(which % 2);
        r.dim = which / 2 ? 8 : 0;
        r.base = 500;
        r.offset = 11;
        turn_dense(&r, x, y);
        const int64_t dim = r.dim ? r.dim : CHANNELS;
        for (int64_t e = 0; e < SIZE; e++) {
            const int64_t c = e % CHANNELS, row = e - c, t = e / CHANNELS % TOKENS;
            if (c >= dim) {
                assert_true(y[e] == x[e]);
                continue;
            }
            const int half = r.layout == LOAM_ROPE_HALF;
            const int64_t plane = half ? c % (dim / 2) : c / 2, first = half ? plane : 2 * plane,
                          second = half ? plane + dim / 2 : 2 * plane + 1;
            const double angle = (double)(t + 11) * pow(500, -2.0 * (double)plane / (double)dim);
            const double want = c == first ? x[row + first] * cos(angle) - x[row + second] * sin(angle)
                                           : x[row + first] * sin(angle) + x[row + second] * cos(angle);
            assert_true(fabs(y[e] - want) < 1e-13);
        }
    }
}

static void keeps_lengths_and_sees_differences_alone(void **state)
{
    (void)state;
    static const int64_t offsets[] = { 3, -40, 1000000 };
    double q[SIZE], k[SIZE], q0[SIZE], k0[SIZE];
    for (int n = 0; n < 3; n++) {
        loam_rope r = rope_of(LOAM_F64);
        fill(q, 2), fill(k, 3);
        turn_dense(&r, q, q0), turn_dense(&r, k, k0);
        r.offset = offsets[n];
        double q1[SIZE], k1[SIZE];
        turn_dense(&r, q, q1), turn_dense(&r, k, k1);
        assert_true(compare_distance(q0, q1, SIZE) > 1);
        for (int64_t row = 0; row < SIZE / CHANNELS; row++) {
            const double *at = q + row * CHANNELS, *turned = q1 + row * CHANNELS;
            assert_true(fabs(compare_norm(at, CHANNELS) - compare_norm(turned, CHANNELS)) < 1e-13);
        }
        for (int64_t i = 0; i < TOKENS; i++) {
            for (int64_t j = 0; j < TOKENS; j++) {
                const double near = product(q0 + i * CHANNELS, k0 + j * CHANNELS, CHANNELS),
                             far = product(q1 + i * CHANNELS, k1 + j * CHANNELS, CHANNELS);
                assert_true(fabs(near - far) < 1e-14 * (1e3 + fabs((double)offsets[n])));
            }
        }
    }
}

/* Half and interleaved are one rotation of permuted channels, bit for bit. */
static void layouts_agree_up_to_a_permutation(void **state)
{
    (void)state;
    double x[SIZE], y[SIZE], mixed[SIZE], turned[SIZE];
    loam_rope r = rope_of(LOAM_F64);
    fill(x, 4);
    for (int64_t e = 0; e < SIZE; e++) {
        const int64_t c = e % CHANNELS;
        mixed[e - c + (c % 2 ? CHANNELS / 2 : 0) + c / 2] = x[e];
    }
    r.layout = LOAM_ROPE_INTERLEAVED;
    turn_dense(&r, x, y);
    r.layout = LOAM_ROPE_HALF;
    turn_dense(&r, mixed, turned);
    for (int64_t e = 0; e < SIZE; e++) {
        const int64_t c = e % CHANNELS;
        assert_true(y[e] == turned[e - c + (c % 2 ? CHANNELS / 2 : 0) + c / 2]);
    }
}

/* In place, for every type; far positions cost a float32 rotation no digits. */
static void inverse_undoes(void **state)
{
    (void)state;
    static const double eps[] = { 0x1p-23, 0x1p-7, 0x1p-10, 0x1p-52 };
    double x[SIZE], exact[SIZE];
    fill(x, 5);
    for (int dtype = LOAM_F32; dtype <= LOAM_F64; dtype++) {
        double memory[SIZE];
        loam_rope r = rope_of((loam_dtype)dtype);
        r.offset = 1000000;
        for (int64_t e = 0; e < SIZE; e++) {
            x[e] = element_round((loam_dtype)dtype, x[e]);
            element_set(memory, (loam_dtype)dtype, e, x[e]);
        }
        turn_dense(&r, memory, memory);
        r.dtype = LOAM_F64;
        turn_dense(&r, x, exact);
        r.dtype = (loam_dtype)dtype;
        for (int64_t e = 0; e < SIZE; e++)
            assert_true(fabs(element_get(memory, (loam_dtype)dtype, e) - exact[e]) < 4 * eps[dtype]);
        r.inverse = 1;
        turn_dense(&r, memory, memory);
        for (int64_t e = 0; e < SIZE; e++)
            assert_true(fabs(element_get(memory, (loam_dtype)dtype, e) - x[e]) < 8 * eps[dtype]);
    }
}

/* Positions from an array, of each batch entry or of all, views
 * with gaps, and any number of threads: the same bits. */
static void positions_views_and_threads(void **state)
{
    (void)state;
    double x[SIZE], want[SIZE], y[SIZE];
    int64_t positions[BATCH * (TOKENS + 2)];
    loam_rope r = rope_of(LOAM_F64);
    fill(x, 6);
    r.offset = 20;
    turn_dense(&r, x, want);
    r.offset = -5; /* not read */
    r.positions = positions, r.positions_batch = TOKENS + 2;
    for (int64_t n = 0; n < BATCH * (TOKENS + 2); n++)
        positions[n] = 20 + n % (TOKENS + 2);
    for (r.threads = 0; r.threads < 4; r.threads++) {
        turn_dense(&r, x, y);
        assert_true(memcmp(y, want, sizeof y) == 0);
    }
    positions[TOKENS + 2] += 1;
    turn_dense(&r, x, y);
    assert_true(memcmp(y, want, sizeof y / BATCH) == 0 && memcmp(y, want, sizeof y) != 0);
    r.positions_batch = 0;
    turn_dense(&r, x, y);
    assert_true(memcmp(y, want, sizeof y) == 0);

    /* (batch, token, head, channel) with rows of 16 */
    double in[BATCH * TOKENS * HEADS * 16], out[BATCH * TOKENS * HEADS * 16];
    const loam_const_view from = { in, TOKENS * HEADS * 16, 16, HEADS * 16 };
    const loam_view to = { out, TOKENS * HEADS * 16, 16, HEADS * 16 };
    loam_error error;
    for (int64_t e = 0; e < (int64_t)(sizeof out / sizeof *out); e++)
        out[e] = in[e] = 77;
    for (int64_t row = 0; row < SIZE / CHANNELS; row++) {
        const int64_t t = row % TOKENS, h = row / TOKENS % HEADS, b = row / TOKENS / HEADS;
        memcpy(in + ((b * TOKENS + t) * HEADS + h) * 16, x + row * CHANNELS, CHANNELS * sizeof *x);
    }
    assert_int_equal(loam_rope_apply(&r, &from, &to, &error), LOAM_OK);
    for (int64_t row = 0; row < SIZE / CHANNELS; row++) {
        const int64_t t = row % TOKENS, h = row / TOKENS % HEADS, b = row / TOKENS / HEADS;
        const double *at = out + ((b * TOKENS + t) * HEADS + h) * 16;
        assert_true(memcmp(at, want + row * CHANNELS, CHANNELS * sizeof *x) == 0 && at[CHANNELS] == 77);
    }
}

#define REFUSE(change, code, word) \
    do { \
        loam_rope r = rope_of(LOAM_F64); \
        double x[SIZE] = { 0 }; \
        loam_const_view from = loam_dense(x, HEADS, TOKENS, CHANNELS); \
        loam_view to = loam_dense_out(x, HEADS, TOKENS, CHANNELS); \
        loam_error refused; \
        change; \
        assert_int_equal(loam_rope_apply(&r, &from, &to, &refused), code); \
        assert_true(refused.status == (code) && strstr(refused.text, word)); \
    } while (0)

static void errors_are_statuses(void **state)
{
    (void)state;
    loam_error error;
    const loam_rope none = loam_rope_default(LOAM_F32);
    const loam_const_view view = { 0 };
    const loam_view out = { 0 };
    REFUSE(r.dtype = (loam_dtype)9, LOAM_EARG, "dtype");
    REFUSE(r.layout = (loam_rope_layout)2, LOAM_EARG, "layout");
    REFUSE(r.backend = (loam_backend)-1, LOAM_EARG, "backend");
    REFUSE(r.inverse = 2, LOAM_EARG, "inverse");
    REFUSE(r.base = 1, LOAM_EVALUE, "base");
    REFUSE(r.base = NAN, LOAM_EVALUE, "base");
    REFUSE(r.threads = -1, LOAM_EVALUE, "threads");
    REFUSE(r.tokens = -1, LOAM_ESHAPE, "tokens");
    REFUSE(r.channels = 0, LOAM_ESHAPE, "channels");
    REFUSE(r.channels = LOAM_MAX_DIM + 1, LOAM_ESHAPE, "channels");
    REFUSE(r.channels = 11, LOAM_ESHAPE, "dim");
    REFUSE(r.dim = 3, LOAM_ESHAPE, "dim");
    REFUSE(r.dim = CHANNELS + 2, LOAM_ESHAPE, "dim");
    REFUSE(from.data = NULL, LOAM_EARG, "from");
    REFUSE(to.data = NULL, LOAM_EARG, "to");
    REFUSE(to.token = CHANNELS - 1, LOAM_ESHAPE, "token");
    REFUSE(from.head = 0, LOAM_ESHAPE, "memory of from");
    REFUSE(r.stamp.version++, LOAM_EARG, "loam_rope_default");
    REFUSE(r.stamp.bytes--, LOAM_EARG, "loam_rope_default");
    REFUSE(r.stamp = (loam_stamp){ 0 }, LOAM_EARG, "without a stamp");
    assert_int_equal(loam_rope_apply(NULL, &view, &out, &error), LOAM_EARG);
    loam_rope empty = none;
    empty.channels = 2; /* no rows: nothing is read */
    assert_int_equal(loam_rope_apply(&empty, &view, &out, &error), LOAM_OK);
}

/* Local Linear Attention through the rotation. */

typedef struct model {
    double q[SIZE], k[SIZE], v[SIZE], grad_o[SIZE];
} model;

static void run(loam_pass pass, loam_args *args, void *saved)
{
    loam_problem p = loam_problem_default(LOAM_LLA, pass);
    loam_plan *plan;
    loam_error error;
    p.dtype = LOAM_F64, p.batch = BATCH, p.heads_q = p.heads_kv = HEADS, p.len_q = p.len_kv = TOKENS;
    p.dim_qk = p.dim_v = CHANNELS, p.backend = LOAM_BACKEND_REFERENCE, p.ridge = 0.5;
    assert_int_equal(loam_plan_create(&plan, &p, &error), LOAM_OK);
    args->work = aligned_alloc(LOAM_ALIGN, loam_plan_work_bytes(plan) + LOAM_ALIGN);
    args->saved = saved;
    assert_int_equal(loam_run(plan, args, &error), LOAM_OK);
    free(args->work);
    loam_plan_destroy(plan);
}

static double loss_of(const model *m, const loam_rope *r, loam_args *args, double *turned, double *o,
                      void *saved)
{
    turn_dense(r, m->q, turned), turn_dense(r, m->k, turned + SIZE);
    *args = (loam_args){ .q = loam_dense(turned, HEADS, TOKENS, CHANNELS),
                         .k = loam_dense(turned + SIZE, HEADS, TOKENS, CHANNELS),
                         .v = loam_dense(m->v, HEADS, TOKENS, CHANNELS),
                         .o = loam_dense_out(o, HEADS, TOKENS, CHANNELS) };
    run(LOAM_FORWARD, args, saved);
    return product(m->grad_o, o, SIZE);
}

static void gradients_go_through_the_rotation(void **state)
{
    (void)state;
    model *m = memory_zeroed(1, sizeof *m);
    double *x = memory_zeroed(6 * SIZE, sizeof *x), *turned = x, *o = x + 2 * SIZE, *grad = x + 3 * SIZE;
    void *saved = aligned_alloc(LOAM_ALIGN, 1 << 20);
    loam_rope r = rope_of(LOAM_F64);
    loam_args args;
    r.offset = 5;
    fill(m->q, 7), fill(m->k, 8), fill(m->v, 9), fill(m->grad_o, 10);
    loss_of(m, &r, &args, turned, o, saved);
    args.o.data = NULL;
    args.grad_o = loam_dense(m->grad_o, HEADS, TOKENS, CHANNELS);
    args.grad_q = loam_dense_out(grad, HEADS, TOKENS, CHANNELS);
    args.grad_k = loam_dense_out(grad + SIZE, HEADS, TOKENS, CHANNELS);
    run(LOAM_BACKWARD, &args, saved);
    r.inverse = 1;
    turn_dense(&r, grad, grad), turn_dense(&r, grad + SIZE, grad + SIZE);
    r.inverse = 0;
    for (int64_t n = 0; n < 2 * SIZE; n += 13) {
        double *at = n < SIZE ? m->q + n : m->k + n - SIZE, value[2];
        const double before = *at, step = 1e-5;
        for (int side = 0; side < 2; side++) {
            *at = before + (side ? step : -step);
            value[side] = loss_of(m, &r, &args, turned, o, saved);
        }
        *at = before;
        assert_true(fabs((value[1] - value[0]) / (2 * step) - grad[n]) < 1e-6 * (1 + fabs(grad[n])));
    }
    free(saved);
    free(x);
    free(m);
}

/* A common shift of all positions turns queries, keys and the probe alike. */
static void lla_sees_differences_alone(void **state)
{
    (void)state;
    model *m = memory_zeroed(1, sizeof *m);
    double *turned = memory_zeroed(2 * SIZE, sizeof *turned), o[SIZE], shifted[SIZE];
    void *saved = aligned_alloc(LOAM_ALIGN, 1 << 20);
    loam_rope r = rope_of(LOAM_F64);
    loam_args args;
    fill(m->q, 11), fill(m->k, 12), fill(m->v, 13);
    loss_of(m, &r, &args, turned, o, saved);
    r.offset = 12345;
    loss_of(m, &r, &args, turned, shifted, saved);
    assert_true(compare_distance(o, shifted, SIZE) < 1e-9 * compare_norm(o, SIZE));
    free(saved);
    free(turned);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_planes_by_their_angles),
        cmocka_unit_test(keeps_lengths_and_sees_differences_alone),
        cmocka_unit_test(layouts_agree_up_to_a_permutation),
        cmocka_unit_test(inverse_undoes),
        cmocka_unit_test(positions_views_and_threads),
        cmocka_unit_test(errors_are_statuses),
        cmocka_unit_test(gradients_go_through_the_rotation),
        cmocka_unit_test(lla_sees_differences_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
