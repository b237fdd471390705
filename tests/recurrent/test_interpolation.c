/* SPDX-License-Identifier: MIT
 * The interpolation of local attention and a recurrence: against its
 * equation written out with W_i read column by column, central differences
 * of every input, what it becomes in special cases, and itself packed. */
#include "tests/support/random.h"

#include "loam.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 2, HEADS = 2, LEN = 7, D = 3, DV = 2, TOKENS = BATCH * HEADS * LEN, MOST = TOKENS * (D + DV) };
enum { ROWS = BATCH * HEADS * (DV + D) * D };

/* Inputs, and gradients of sum(o * grad_o) in the same places. */
typedef struct inputs {
    double q[TOKENS * D], k[TOKENS * D], v[TOKENS * DV], log_decay[TOKENS * D], beta[TOKENS], state[ROWS],
        ridge[HEADS * D];
} inputs;

typedef struct scene {
    loam_mechanism local, recurrent;
    inputs x, grad;
    double o[TOKENS * DV], grad_o[TOKENS * DV];
    double scale, ridge; /* of the recurrence (0: 1), and of LLA */
    const int64_t *cu;   /* packed: one sequence after another instead of a batch */
} scene;

static loam_mechanism_info form_of(loam_mechanism mechanism)
{
    loam_mechanism_info info;
    assert_int_equal(loam_mechanism_at((int)mechanism, &info), LOAM_OK);
    return info;
}

static loam_problem problem_of(const scene *s, loam_mechanism mechanism, loam_pass pass)
{
    loam_problem p = loam_problem_default(mechanism, pass);
    p.dtype = LOAM_F64, p.backend = LOAM_BACKEND_REFERENCE, p.threads = 1;
    p.batch = BATCH, p.heads_q = p.heads_kv = HEADS, p.len_q = p.len_kv = LEN, p.dim_qk = D, p.dim_v = DV;
    if (s->cu) p.total_q = p.total_kv = BATCH * LEN;
    if (mechanism == LOAM_MESA) p.ridge_axes = LOAM_RIDGE_HEAD_CHANNEL;
    if (mechanism == LOAM_LLA) p.ridge = s->ridge;
    if (form_of(mechanism).family == LOAM_FAMILY_RECURRENT) p.scale = s->scale;
    return p;
}

static void set_args(scene *s, loam_args *a, loam_args *r)
{
    const int64_t len = s->cu ? BATCH * LEN : LEN;
    const loam_mechanism_info form = form_of(s->recurrent);
    const int64_t channels = form.log_decay == LOAM_DECAY_CHANNEL ? D : 1,
                  rows = DV + (s->recurrent == LOAM_MESA ? D : 0);
    *a = (loam_args){ .q = loam_dense(s->x.q, HEADS, len, D),
                      .k = loam_dense(s->x.k, HEADS, len, D),
                      .v = loam_dense(s->x.v, HEADS, len, DV),
                      .o = loam_dense_out(s->o, HEADS, len, DV),
                      .grad_o = loam_dense(s->grad_o, HEADS, len, DV),
                      .grad_q = loam_dense_out(s->grad.q, HEADS, len, D),
                      .grad_k = loam_dense_out(s->grad.k, HEADS, len, D),
                      .grad_v = loam_dense_out(s->grad.v, HEADS, len, DV),
                      .cu_q = s->cu,
                      .cu_kv = s->cu };
    *r = (loam_args){ .state_in = loam_dense(s->x.state, HEADS, rows, D),
                      .grad_state_in = loam_dense_out(s->grad.state, HEADS, rows, D) };
    if (form.log_decay == LOAM_DECAY_HEAD) {
        r->log_decay = (loam_const_view){ s->x.log_decay, 0, 1, 0 };
        r->grad_log_decay = (loam_view){ s->grad.log_decay, 0, 1, 0 };
    } else if (form.log_decay != LOAM_DECAY_NONE) {
        r->log_decay = loam_dense(s->x.log_decay, HEADS, len, channels);
        r->grad_log_decay = loam_dense_out(s->grad.log_decay, HEADS, len, channels);
    }
    if (form.beta) {
        r->beta = loam_dense(s->x.beta, HEADS, len, 1);
        r->grad_beta = loam_dense_out(s->grad.beta, HEADS, len, 1);
    }
    if (s->recurrent == LOAM_MESA) {
        r->ridge = (loam_const_view){ s->x.ridge, 0, D, 0 };
        r->grad_ridge = (loam_view){ s->grad.ridge, 0, D, 0 };
    }
}

static void *room(size_t bytes)
{
    return aligned_alloc(LOAM_ALIGN, bytes / LOAM_ALIGN * LOAM_ALIGN + LOAM_ALIGN);
}

static void keep_pass(loam_pass pass, loam_args *a, loam_args *r)
{
    loam_args_keep(a, pass);
    loam_args_keep(r, pass);
}

static void run_pass(scene *s, loam_pass pass, void **saved)
{
    const loam_problem local = problem_of(s, s->local, pass), recurrent = problem_of(s, s->recurrent, pass);
    loam_interpolation *i;
    loam_error error;
    loam_args a, r;
    if (loam_interpolation_create(&i, &local, &recurrent, &error)) fail_msg("%s", error.text);
    set_args(s, &a, &r);
    void *work = a.work = room(loam_interpolation_work_bytes(i));
    memset(work, 0xff, loam_interpolation_work_bytes(i)); /* NaN */
    if (!*saved) *saved = room(loam_interpolation_saved_bytes(i));
    a.saved = *saved;
    keep_pass(pass, &a, &r);
    if (loam_interpolation_run(i, &a, &r, &error)) fail_msg("%s", error.text);
    free(work);
    loam_interpolation_destroy(i);
}

static void run_forward(scene *s)
{
    void *saved = NULL;
    run_pass(s, LOAM_FORWARD, &saved);
    free(saved);
}

static void draw(double *x, int count, rng *random, double offset, double factor)
{
    for (int i = 0; i < count; i++)
        x[i] = offset + factor * rng_normal(random);
}

static scene make_scene(loam_mechanism local, loam_mechanism recurrent)
{
    scene s = { .local = local, .recurrent = recurrent, .ridge = 0.3 };
    rng random = rng_make(11, (uint64_t)(local * 100 + recurrent));
    draw(s.x.q, TOKENS * D, &random, 0, 1);
    draw(s.x.k, TOKENS * D, &random, 0, 0.5);
    draw(s.x.v, TOKENS * DV, &random, 0, 1);
    draw(s.x.state, ROWS, &random, 0, 0.3);
    draw(s.grad_o, TOKENS * DV, &random, 0, 1);
    for (int i = 0; i < TOKENS * D; i++)
        s.x.log_decay[i] = -fabs(rng_normal(&random));
    for (int i = 0; i < TOKENS; i++)
        s.x.beta[i] = 1 / (1 + exp(-rng_normal(&random)));
    for (int i = 0; i < HEADS * D; i++)
        s.x.ridge[i] = 0.5 + fabs(rng_normal(&random));
    const int rows = DV + D; /* H of MesaNet: symmetric, positive */
    for (int head = 0; head < BATCH * HEADS && recurrent == LOAM_MESA; head++)
        for (int a = 0; a < D * D; a++)
            s.x.state[(head * rows + DV) * D + a] = a % (D + 1) == 0 ? 0.7 : 0.1;
    return s;
}

/* ------------------------------------------------------------------ the equation */

/* W of every token: the recurrence read at the unit vector of each channel. */
static void read_maps(const scene *s, double w[TOKENS][DV][D])
{
    for (int c = 0; c < D; c++) {
        scene one = *s;
        loam_problem p = problem_of(&one, s->recurrent, LOAM_FORWARD);
        loam_args a, r;
        loam_plan *plan;
        p.scale = s->scale ? s->scale : 1;
        for (int i = 0; i < TOKENS * D; i++)
            one.x.q[i] = i % D == c;
        set_args(&one, &a, &r);
        r.q = a.q, r.k = a.k, r.v = a.v, r.o = a.o, r.cu_q = a.cu_q;
        assert_int_equal(loam_plan_create(&plan, &p, NULL), LOAM_OK);
        r.work = room(loam_plan_work_bytes(plan));
        r.grad_log_decay.data = r.grad_beta.data = r.grad_ridge.data = r.grad_state_in.data = NULL;
        assert_int_equal(loam_run(plan, &r, NULL), LOAM_OK);
        free(r.work);
        loam_plan_destroy(plan);
        for (int t = 0; t < TOKENS; t++)
            for (int e = 0; e < DV; e++)
                w[t][e][c] = one.o[t * DV + e];
    }
}

/* o of softmax, from sum_j p_j (v_j - W k_j) + W q. */
static void expect_equation(scene *s)
{
    static double w[TOKENS][DV][D];
    read_maps(s, w);
    run_forward(s);
    for (int row = 0; row < TOKENS; row++) {
        const int first = row / LEN * LEN;
        double p[LEN], total = 0, want[DV] = { 0 };
        for (int j = first; j <= row; j++) {
            double score = 0;
            for (int c = 0; c < D; c++)
                score += s->x.q[row * D + c] * s->x.k[j * D + c] / sqrt(D);
            total += p[j - first] = exp(score);
        }
        for (int e = 0; e < DV; e++) {
            for (int j = first; j <= row; j++) {
                double left = s->x.v[j * DV + e];
                for (int c = 0; c < D; c++)
                    left -= w[row][e][c] * s->x.k[j * D + c];
                want[e] += p[j - first] / total * left;
            }
            for (int c = 0; c < D; c++)
                want[e] += w[row][e][c] * s->x.q[row * D + c];
            if (!(fabs(s->o[row * DV + e] - want[e]) < 1e-11))
                fail_msg("%s, row %d: %.15g, expected %.15g", loam_mechanism_name(s->recurrent), row,
                         s->o[row * DV + e], want[e]);
        }
    }
}

static void outputs_follow_the_equation(void **state)
{
    (void)state;
    for (int m = LOAM_LINEAR; loam_mechanism_name((loam_mechanism)m); m++) {
        scene s = make_scene(LOAM_SOFTMAX, (loam_mechanism)m);
        expect_equation(&s);
        s.scale = 0.4;
        expect_equation(&s);
    }
}

/* ------------------------------------------------------------------ gradients */

static double loss(scene *s)
{
    double sum = 0;
    run_forward(s);
    for (int i = 0; i < TOKENS * DV; i++)
        sum += s->o[i] * s->grad_o[i];
    return sum;
}

static void expect_gradient(scene *s, const char *what, double *x, const double *grad, int count)
{
    const double step = 1e-4;
    for (int i = 0; i < count; i++) {
        const double before = x[i];
        double at[4];
        const double shifts[] = { 1, -1, 2, -2 };
        for (int n = 0; n < 4; n++) {
            x[i] = before + shifts[n] * step;
            at[n] = loss(s);
        }
        x[i] = before;
        const double want = (8 * (at[0] - at[1]) - at[2] + at[3]) / (12 * step);
        if (!(fabs(grad[i] - want) < 1e-7 * (1 + fabs(want))))
            fail_msg("%s over %s, gradient of %s %d: %.12g, expected %.12g", loam_mechanism_name(s->local),
                     loam_mechanism_name(s->recurrent), what, i, grad[i], want);
    }
}

static void gradients_are_differences(void **state)
{
    (void)state;
    static const loam_mechanism pairs[][2] = {
        { LOAM_SOFTMAX, LOAM_LINEAR }, { LOAM_SOFTMAX, LOAM_RETENTION }, { LOAM_SOFTMAX, LOAM_GLA },
        { LOAM_SOFTMAX, LOAM_KDA },    { LOAM_SOFTMAX, LOAM_MESA },      { LOAM_LLA, LOAM_GATED_DELTA },
    };
    for (size_t n = 0; n < sizeof pairs / sizeof pairs[0]; n++) {
        scene s = make_scene(pairs[n][0], pairs[n][1]);
        const loam_mechanism_info form = form_of(s.recurrent);
        void *saved = NULL;
        run_pass(&s, LOAM_FORWARD, &saved);
        run_pass(&s, LOAM_BACKWARD, &saved);
        free(saved);
        const int decays[] = { [LOAM_DECAY_NONE] = 0,
                               [LOAM_DECAY_HEAD] = HEADS,
                               [LOAM_DECAY_TOKEN] = TOKENS,
                               [LOAM_DECAY_CHANNEL] = TOKENS * D };
        expect_gradient(&s, "q", s.x.q, s.grad.q, TOKENS * D);
        expect_gradient(&s, "k", s.x.k, s.grad.k, TOKENS * D);
        expect_gradient(&s, "v", s.x.v, s.grad.v, TOKENS * DV);
        expect_gradient(&s, "log_decay", s.x.log_decay, s.grad.log_decay, decays[form.log_decay]);
        expect_gradient(&s, "beta", s.x.beta, s.grad.beta, form.beta ? TOKENS : 0);
        expect_gradient(&s, "ridge", s.x.ridge, s.grad.ridge, s.recurrent == LOAM_MESA ? HEADS * D : 0);
        expect_gradient(&s, "state", s.x.state, s.grad.state,
                        BATCH * HEADS * D * (DV + (s.recurrent == LOAM_MESA ? D : 0)));
    }
}

/* ------------------------------------------------------------------ special cases */

/* The output of one plan alone. */
static void run_local(scene *s, double *o)
{
    const loam_problem p = problem_of(s, s->local, LOAM_FORWARD);
    loam_args a, r;
    loam_plan *plan;
    set_args(s, &a, &r);
    a.o = loam_dense_out(o, HEADS, LEN, DV);
    loam_args_keep(&a, LOAM_FORWARD);
    assert_int_equal(loam_plan_create(&plan, &p, NULL), LOAM_OK);
    a.work = room(loam_plan_work_bytes(plan));
    assert_int_equal(loam_run(plan, &a, NULL), LOAM_OK);
    free(a.work);
    loam_plan_destroy(plan);
}

static void expect_near(const double *got, const double *want, int count, double tolerance)
{
    for (int i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * (1 + fabs(want[i]))))
            fail_msg("element %d: %.15g, expected %.15g", i, got[i], want[i]);
}

/* A ridge beyond all keys leaves no map: what remains is softmax. */
static void no_map_is_softmax(void **state)
{
    (void)state;
    scene s = make_scene(LOAM_SOFTMAX, LOAM_MESA);
    double o[TOKENS * DV];
    for (int i = 0; i < HEADS * D; i++)
        s.x.ridge[i] = 1e13;
    run_forward(&s);
    run_local(&s, o);
    expect_near(s.o, o, TOKENS * DV, 1e-11);
}

/* Where kbar is the query itself the map is read at 0. LLA
 * with a small ridge fits the identity map of the keys. */
static void nothing_is_left_over_of_lla(void **state)
{
    (void)state;
    scene s = make_scene(LOAM_LLA, LOAM_DELTA);
    double o[TOKENS * DV];
    s.ridge = 1e-9;
    run_forward(&s);
    run_local(&s, o);
    for (int row = 0; row < TOKENS; row++)
        if (row % LEN > D) expect_near(s.o + row * DV, o + row * DV, DV, 1e-4);
}

/* Values that are a linear map of the keys come out as that map of the query, once the map is known. */
static void linear_values_are_reproduced(void **state)
{
    (void)state;
    static const double map[DV][D] = { { 1, -2, 0.5 }, { 0.3, 0.7, -1 } };
    scene s = make_scene(LOAM_SOFTMAX, LOAM_MESA);
    memset(s.x.state, 0, sizeof s.x.state);
    memset(s.x.log_decay, 0, sizeof s.x.log_decay);
    for (int i = 0; i < HEADS * D; i++)
        s.x.ridge[i] = 1e-9;
    double want[TOKENS * DV] = { 0 };
    for (int row = 0; row < TOKENS; row++)
        for (int e = 0; e < DV; e++) {
            s.x.v[row * DV + e] = 0;
            for (int c = 0; c < D; c++) {
                s.x.v[row * DV + e] += map[e][c] * s.x.k[row * D + c];
                want[row * DV + e] += map[e][c] * s.x.q[row * D + c];
            }
        }
    run_forward(&s);
    for (int row = 0; row < TOKENS; row++)
        if (row % LEN > D) expect_near(s.o + row * DV, want + row * DV, DV, 1e-5);
}

/* Sequences packed one after another give what they give in a batch, forward and backward. */
static void packed_is_separate(void **state)
{
    (void)state;
    static const int64_t cu[] = { 0, LEN, 2 * LEN };
    static scene whole, packed;
    whole = make_scene(LOAM_SOFTMAX, LOAM_KDA);
    packed = whole, packed.cu = cu;
    for (int b = 0; b < BATCH; b++)
        for (int h = 0; h < HEADS; h++)
            for (int t = 0; t < LEN; t++) {
                const int from = (b * HEADS + h) * LEN + t, to = (h * BATCH + b) * LEN + t;
                memcpy(packed.x.q + to * D, whole.x.q + from * D, D * sizeof(double));
                memcpy(packed.x.k + to * D, whole.x.k + from * D, D * sizeof(double));
                memcpy(packed.x.v + to * DV, whole.x.v + from * DV, DV * sizeof(double));
                memcpy(packed.grad_o + to * DV, whole.grad_o + from * DV, DV * sizeof(double));
                memcpy(packed.x.log_decay + to * D, whole.x.log_decay + from * D, D * sizeof(double));
                packed.x.beta[to] = whole.x.beta[from];
            }
    scene *both[] = { &whole, &packed };
    for (int n = 0; n < 2; n++) {
        void *saved = NULL;
        run_pass(both[n], LOAM_FORWARD, &saved);
        run_pass(both[n], LOAM_BACKWARD, &saved);
        free(saved);
    }
    for (int b = 0; b < BATCH; b++)
        for (int h = 0; h < HEADS; h++)
            for (int t = 0; t < LEN; t++) {
                const int from = (b * HEADS + h) * LEN + t, to = (h * BATCH + b) * LEN + t;
                assert_memory_equal(packed.o + to * DV, whole.o + from * DV, DV * sizeof(double));
                assert_memory_equal(packed.grad.q + to * D, whole.grad.q + from * D, D * sizeof(double));
                assert_memory_equal(packed.grad.k + to * D, whole.grad.k + from * D, D * sizeof(double));
                assert_memory_equal(packed.grad.v + to * DV, whole.grad.v + from * DV, DV * sizeof(double));
            }
}

/* The fast rows in float32 against the reference. */
static void fast_rows_agree(void **state)
{
    (void)state;
    enum { N = 96, WIDE = 16, COUNT = HEADS * N * WIDE };
    static float q[COUNT], k[COUNT], v[COUNT], grad_o[COUNT], beta[HEADS * N], decay[HEADS * N],
        out[2][4][COUNT];
    rng random = rng_make(5, 0);
    for (int i = 0; i < COUNT; i++) {
        q[i] = (float)rng_normal(&random), k[i] = (float)rng_normal(&random) / 4;
        v[i] = (float)rng_normal(&random), grad_o[i] = (float)rng_normal(&random);
    }
    for (int i = 0; i < HEADS * N; i++)
        beta[i] = 0.5f, decay[i] = -0.05f;
    for (int fast = 0; fast < 2; fast++) {
        void *saved = NULL;
        for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
            loam_problem local = loam_problem_default(LOAM_SOFTMAX, (loam_pass)pass);
            loam_problem recurrent = loam_problem_default(LOAM_GATED_DELTA, (loam_pass)pass);
            loam_problem *problems[] = { &local, &recurrent };
            for (int n = 0; n < 2; n++) {
                problems[n]->heads_q = problems[n]->heads_kv = HEADS;
                problems[n]->len_q = problems[n]->len_kv = N;
                problems[n]->dim_qk = problems[n]->dim_v = WIDE;
                problems[n]->backend = fast ? LOAM_BACKEND_AUTO : LOAM_BACKEND_REFERENCE;
            }
            loam_interpolation *i;
            assert_int_equal(loam_interpolation_create(&i, &local, &recurrent, NULL), LOAM_OK);
            loam_args a = { .q = loam_dense(q, HEADS, N, WIDE),
                            .k = loam_dense(k, HEADS, N, WIDE),
                            .v = loam_dense(v, HEADS, N, WIDE),
                            .grad_o = loam_dense(grad_o, HEADS, N, WIDE),
                            .o = loam_dense_out(out[fast][0], HEADS, N, WIDE),
                            .grad_q = loam_dense_out(out[fast][1], HEADS, N, WIDE),
                            .grad_k = loam_dense_out(out[fast][2], HEADS, N, WIDE),
                            .grad_v = loam_dense_out(out[fast][3], HEADS, N, WIDE),
                            .work = room(loam_interpolation_work_bytes(i)) };
            loam_args r = { .beta = loam_dense(beta, HEADS, N, 1),
                            .log_decay = loam_dense(decay, HEADS, N, 1) };
            keep_pass((loam_pass)pass, &a, &r);
            if (!saved) saved = room(loam_interpolation_saved_bytes(i));
            a.saved = saved;
            assert_int_equal(loam_interpolation_run(i, &a, &r, NULL), LOAM_OK);
            free(a.work);
            loam_interpolation_destroy(i);
        }
        free(saved);
    }
    for (int which = 0; which < 4; which++) {
        double miss = 0, size = 0;
        for (int i = 0; i < COUNT; i++) {
            miss += pow((double)out[0][which][i] - (double)out[1][which][i], 2);
            size += pow((double)out[0][which][i], 2);
        }
        assert_true(size > 0 && sqrt(miss / size) < (which ? 5e-5 : 1e-5));
    }
}

/* ------------------------------------------------------------------ mistakes */

static void expect_refused(const loam_problem *local, const loam_problem *recurrent, loam_status status,
                           const char *part)
{
    loam_interpolation *i = (loam_interpolation *)&status;
    loam_error error;
    assert_int_equal(loam_interpolation_create(&i, local, recurrent, &error), status);
    assert_null(i);
    if (!strstr(error.text, part)) fail_msg("'%s' does not say '%s'", error.text, part);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    scene s = make_scene(LOAM_SOFTMAX, LOAM_DELTA);
    const loam_problem local = problem_of(&s, LOAM_SOFTMAX, LOAM_FORWARD);
    const loam_problem recurrent = problem_of(&s, LOAM_DELTA, LOAM_FORWARD);
    loam_problem p = recurrent;
    expect_refused(&recurrent, &recurrent, LOAM_EARG, "a mechanism of each family");
    p.pass = LOAM_BACKWARD;
    expect_refused(&local, &p, LOAM_EUNSUPPORTED, "pass: forward and backward");
    p = recurrent, p.heads_v = 4;
    expect_refused(&local, &p, LOAM_ESHAPE, "heads_v: 2 of the local problem and 4");
    p = recurrent, p.dim_v = 3;
    expect_refused(&local, &p, LOAM_ESHAPE, "dim_v");
    p = recurrent, p.feature_map = LOAM_FEATURES_UNIT;
    expect_refused(&local, &p, LOAM_EUNSUPPORTED, "feature_map");
    p = recurrent, p.dtype = LOAM_F32;
    expect_refused(&local, &p, LOAM_EARG, "dtype");
    loam_problem wide = local;
    p = recurrent, p.dim_qk = wide.dim_qk = 300, p.dim_v = wide.dim_v = 300;
    expect_refused(&wide, &p, LOAM_ESHAPE, "a sum of at most 512");
    expect_refused(NULL, &p, LOAM_EARG, "NULL");

    loam_interpolation *i;
    loam_error error;
    loam_args a, r;
    assert_int_equal(loam_interpolation_create(&i, &local, &recurrent, NULL), LOAM_OK);
    set_args(&s, &a, &r);
    keep_pass(LOAM_FORWARD, &a, &r);
    a.work = room(loam_interpolation_work_bytes(i));
    r.q = a.q;
    assert_int_equal(loam_interpolation_run(i, &a, &r, &error), LOAM_EARG);
    assert_non_null(strstr(error.text, "recurrent q: given"));
    r.q.data = NULL, r.saved = s.o;
    assert_int_equal(loam_interpolation_run(i, &a, &r, &error), LOAM_EARG);
    assert_non_null(strstr(error.text, "recurrent saved: given"));
    r.saved = NULL, r.beta.data = NULL;
    s.o[0] = 1234;
    assert_int_equal(loam_interpolation_run(i, &a, &r, &error), LOAM_EARG);
    assert_non_null(strstr(error.text, "beta"));
    assert_true(s.o[0] == 1234);
    void *work = a.work;
    a.work = NULL;
    assert_int_equal(loam_interpolation_run(i, &a, &r, &error), LOAM_EARG);
    assert_non_null(strstr(error.text, "work"));
    free(work);
    loam_interpolation_destroy(i);
    loam_interpolation_destroy(NULL);
}

/* A backward goes on from a forward of both problems, and from no other buffer. */
static void saved_is_of_both_problems(void **state)
{
    (void)state;
    scene s = make_scene(LOAM_SOFTMAX, LOAM_DELTA), other = make_scene(LOAM_SOFTMAX, LOAM_DELTA);
    const loam_problem local = problem_of(&s, LOAM_SOFTMAX, LOAM_BACKWARD),
                       recurrent = problem_of(&s, LOAM_DELTA, LOAM_BACKWARD);
    void *saved = NULL, *from_other = NULL;
    loam_interpolation *i;
    loam_error error;
    loam_args a, r;
    run_pass(&s, LOAM_FORWARD, &saved);
    other.scale = 2; /* of the recurrence */
    run_pass(&other, LOAM_FORWARD, &from_other);
    assert_int_equal(loam_interpolation_create(&i, &local, &recurrent, NULL), LOAM_OK);
    assert_int_equal(loam_interpolation_saved_bytes(i) % LOAM_ALIGN, 0);
    set_args(&s, &a, &r);
    keep_pass(LOAM_BACKWARD, &a, &r);
    void *work = a.work = room(loam_interpolation_work_bytes(i));
    a.saved = from_other;
    assert_int_equal(loam_interpolation_run(i, &a, &r, &error), LOAM_EARG);
    assert_non_null(strstr(error.text, "saved: of another problem"));
    memset(from_other, 0xff, LOAM_ALIGN);
    assert_int_equal(loam_interpolation_run(i, &a, &r, &error), LOAM_EARG);
    assert_non_null(strstr(error.text, "saved: nothing"));
    a.saved = (char *)saved + LOAM_ALIGN; /* what the local plan left there */
    assert_int_equal(loam_interpolation_run(i, &a, &r, &error), LOAM_EARG);
    assert_non_null(strstr(error.text, "saved: of another problem"));
    a.saved = saved;
    assert_int_equal(loam_interpolation_run(i, &a, &r, &error), LOAM_OK);
    free(saved), free(from_other), free(work);
    loam_interpolation_destroy(i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_follow_the_equation),
        cmocka_unit_test(gradients_are_differences),
        cmocka_unit_test(no_map_is_softmax),
        cmocka_unit_test(nothing_is_left_over_of_lla),
        cmocka_unit_test(linear_values_are_reproduced),
        cmocka_unit_test(packed_is_separate),
        cmocka_unit_test(fast_rows_agree),
        cmocka_unit_test(saved_is_of_both_problems),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
