/* SPDX-License-Identifier: MIT
 * Each operation around attention: its gradient against central differences in float64, float32 against
 * float64, and the same bits for any number of threads. Two models, whose numbers differ. */
#include "tests/support/element.h"
#include "tests/train/fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MODELS = 2, INPUTS = 3, ROWS = 0, FEW = 6, MANY = 720 };

typedef void forward_function(const machine *on, matrix y, const matrix *x);
typedef void back_function(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x);

/* y of x[0 .. inputs - 1]; shapes are rows and width, ROWS the rows of a batch. */
typedef struct op_case {
    const char *name;
    forward_function *forward;
    back_function *back;
    int64_t y[2];
    int inputs;
    int64_t x[INPUTS][2];
} op_case;

static const matrix none = { 0 };

static void product_y(const machine *on, matrix y, const matrix *x) { on->op->product(on, y, x[0], x[1], 0); }
static void product_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->product(on, dx[0], g, x[1], PRODUCT_B_TRANSPOSED);
    on->op->product(on, dx[1], x[0], g, PRODUCT_A_TRANSPOSED);
}

/* Half of it is in y already: PRODUCT_ADD. Both transposed. */
static void product_added(const machine *on, matrix y, const matrix *x)
{
    const unsigned both = PRODUCT_A_TRANSPOSED | PRODUCT_B_TRANSPOSED;
    on->op->product(on, y, x[0], x[1], both);
    on->op->product(on, y, x[0], x[1], both | PRODUCT_ADD);
}
static void product_added_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    on->op->combine(on, y, 2, g, 0, g);
    on->op->product(on, dx[0], x[1], y, PRODUCT_A_TRANSPOSED | PRODUCT_B_TRANSPOSED);
    on->op->product(on, dx[1], y, x[0], PRODUCT_A_TRANSPOSED | PRODUCT_B_TRANSPOSED);
}

static void combine_y(const machine *on, matrix y, const matrix *x)
{
    on->op->copy(on, y, x[1]);
    on->op->combine(on, y, 3, x[0], -0.5, y);
}
static void combine_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y, (void)x;
    on->op->combine(on, dx[0], 3, g, 0, g);
    on->op->combine(on, dx[1], -1, g, 0.5, g);
}

/* Large enough to be seen. */
#define EPS 0.125

static matrix room_of_rows(const machine *on, matrix x) { return fixture_matrix(on, x.models, x.rows, 1); }

static void norm_y(const machine *on, matrix y, const matrix *x)
{
    matrix r = room_of_rows(on, x[0]);
    on->op->rms_norm(on, y, r, x[0], x[1], EPS);
    free(r.data);
}
/* dx in two unequal parts, of which the second is added. */
static void norm_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    matrix r = room_of_rows(on, x[0]);
    on->op->rms_norm(on, y, r, x[0], x[1], EPS);
    on->op->combine(on, y, 0.25, g, 0, g);
    on->op->rms_norm_back(on, dx[0], none, dx[1], y, x[0], r, x[1], none);
    on->op->combine(on, y, 0.75, g, 0, g);
    on->op->rms_norm_back(on, dx[0], none, dx[1], y, x[0], r, x[1], dx[0]);
    on->op->combine(on, dx[1], 4.0 / 3, dx[1], 0, dx[1]);
    free(r.data);
}

static matrix room_of_stats(const machine *on, matrix x) { return fixture_matrix(on, x.models, x.rows, 2); }

static void layer_norm_y(const machine *on, matrix y, const matrix *x)
{
    matrix stats = room_of_stats(on, x[0]);
    on->op->layer_norm(on, y, stats, x[0], x[1], x[2], EPS);
    free(stats.data);
}
/* As norm_back. */
static void layer_norm_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    matrix stats = room_of_stats(on, x[0]);
    on->op->layer_norm(on, y, stats, x[0], x[1], x[2], EPS);
    on->op->combine(on, y, 0.25, g, 0, g);
    on->op->layer_norm_back(on, dx[0], none, dx[1], dx[2], y, x[0], stats, x[1], none);
    on->op->combine(on, y, 0.75, g, 0, g);
    on->op->layer_norm_back(on, dx[0], none, dx[1], dx[2], y, x[0], stats, x[1], dx[0]);
    on->op->combine(on, dx[1], 4.0 / 3, dx[1], 0, dx[1]);
    on->op->combine(on, dx[2], 4.0 / 3, dx[2], 0, dx[2]);
    free(stats.data);
}

static void unit_y(const machine *on, matrix y, const matrix *x) { on->op->unit(on, y, x[0]); }
static void unit_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->unit_back(on, dx[0], g, x[0]);
}

static void silu_y(const machine *on, matrix y, const matrix *x) { on->op->silu(on, y, x[0]); }
static void silu_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->silu_back(on, dx[0], g, x[0]);
}

static void gelu_y(const machine *on, matrix y, const matrix *x) { on->op->gelu(on, y, x[0]); }
static void gelu_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->gelu_back(on, dx[0], g, x[0]);
}

/* What has an operand alone, and its gradient by that. */
#define UNARY(name) \
    static void name##_y(const machine *on, matrix y, const matrix *x) { on->op->name(on, y, x[0]); } \
    static void name##_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x) \
    { \
        (void)y; \
        on->op->name##_back(on, dx[0], g, x[0]); \
    }
UNARY(gelu_erf)
UNARY(relu)
UNARY(inverse_softplus)

static void output_gate_y(const machine *on, matrix y, const matrix *x)
{
    on->op->output_gate(on, y, x[0], x[1]);
}
static void output_gate_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->output_gate_back(on, dx[0], dx[1], g, x[0], x[1]);
}

static void sigmoid_gate_y(const machine *on, matrix y, const matrix *x)
{
    on->op->sigmoid_gate(on, y, x[0], x[1], 0.01, 2);
}
static void sigmoid_gate_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->sigmoid_gate_back(on, dx[0], dx[1], g, x[0], x[1], 0.01, 2);
}

static void forget_gate_y(const machine *on, matrix y, const matrix *x)
{
    on->op->forget_gate(on, y, x[0], none, 4, 16);
}
static void forget_gate_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->forget_gate_back(on, dx[0], none, g, x[0], none, 4, 16);
}
static void forget_bias_y(const machine *on, matrix y, const matrix *x)
{
    on->op->forget_gate(on, y, x[0], x[1], 0, 1);
}
static void forget_bias_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->forget_gate_back(on, dx[0], dx[1], g, x[0], x[1], 0, 1);
}

static void decay_gate_y(const machine *on, matrix y, const matrix *x)
{
    on->op->decay_gate(on, y, none, x[0], x[1], x[2]);
}
static void decay_gate_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    on->op->decay_gate(on, y, none, x[0], x[1], x[2]);
    on->op->decay_gate_back(on, dx[0], dx[1], dx[2], g, none, y, x[0], x[1], x[2]);
}

/* The rate times delta and delta itself, half of the result each. */
static matrix room_like(const machine *on, matrix x) { return fixture_matrix(on, x.models, x.rows, x.width); }

static void decay_delta_y(const machine *on, matrix y, const matrix *x)
{
    matrix delta = room_like(on, y);
    on->op->decay_gate(on, y, delta, x[0], x[1], x[2]);
    on->op->combine(on, y, 0.5, y, 0.5, delta);
    free(delta.data);
}
static void decay_delta_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    matrix half = room_like(on, y);
    on->op->combine(on, half, 0.5, g, 0, g);
    on->op->decay_gate(on, y, none, x[0], x[1], x[2]);
    on->op->decay_gate_back(on, dx[0], dx[1], dx[2], half, half, y, x[0], x[1], x[2]);
    free(half.data);
}

static void scale_rows_y(const machine *on, matrix y, const matrix *x)
{
    on->op->scale_rows(on, y, x[0], x[1]);
}
static void scale_rows_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->scale_rows_back(on, dx[0], dx[1], g, x[0], x[1]);
}

static void skip_y(const machine *on, matrix y, const matrix *x)
{
    on->op->copy(on, y, x[1]);
    on->op->add_skip(on, y, x[0], x[2]);
}
static void skip_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->combine(on, dx[0], 0, g, 0, g);
    on->op->add_skip_back(on, dx[0], dx[2], g, x[0], x[2]);
    on->op->copy(on, dx[1], g);
}

static void multiply_y(const machine *on, matrix y, const matrix *x) { on->op->multiply(on, y, x[0], x[1]); }
static void multiply_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->multiply(on, dx[0], g, x[1]);
    on->op->multiply(on, dx[1], g, x[0]);
}

static void sine_y(const machine *on, matrix y, const matrix *x) { on->op->sine(on, y, x[0], x[1], x[2]); }
/* drate in two parts, of which the second is added. */
static void sine_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    on->op->combine(on, y, 0.25, g, 0, g);
    on->op->sine_back(on, dx[0], dx[1], dx[2], y, x[0], x[1], x[2], false);
    on->op->combine(on, y, 0.75, g, 0, g);
    on->op->sine_back(on, dx[0], dx[1], dx[2], y, x[0], x[1], x[2], true);
    on->op->combine(on, dx[0], 4.0 / 3, dx[0], 0, dx[0]);
    on->op->combine(on, dx[1], 4.0 / 3, dx[1], 0, dx[1]);
}

static void long_conv_y(const machine *on, matrix y, const matrix *x)
{
    on->op->long_conv(on, y, x[0], x[1]);
}
static void long_conv_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->long_conv_back(on, dx[0], dx[1], g, x[0], x[1]);
}

/* Runs of 6 rows, all seen; and of 3, of which 2 are. */
static void short_conv_y(const machine *on, matrix y, const matrix *x)
{
    on->op->short_conv(on, y, x[0], x[1], 6, 6);
}
static void short_conv_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->short_conv_back(on, dx[0], dx[1], g, x[0], x[1], 6, 6);
}
static void short_conv_seen_y(const machine *on, matrix y, const matrix *x)
{
    on->op->short_conv(on, y, x[0], x[1], 3, 2);
}
static void short_conv_seen_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->short_conv_back(on, dx[0], dx[1], g, x[0], x[1], 3, 2);
}

static void softplus_y(const machine *on, matrix y, const matrix *x) { on->op->softplus(on, y, x[0], 0.25); }
static void softplus_back(const machine *on, const matrix *dx, matrix g, matrix y, const matrix *x)
{
    (void)y;
    on->op->softplus_back(on, dx[0], g, x[0]);
}

static const op_case cases[] = {
    { "product", product_y, product_back, { ROWS, 5 }, 2, { { ROWS, 7 }, { 7, 5 } } },
    { "product, added", product_added, product_added_back, { 40, 3 }, 2, { { ROWS, 40 }, { 3, ROWS } } },
    { "combine", combine_y, combine_back, { ROWS, 5 }, 2, { { ROWS, 5 }, { ROWS, 5 } } },
    { "rms_norm", norm_y, norm_back, { ROWS, 20 }, 2, { { ROWS, 20 }, { 1, 20 } } },
    { "layer_norm", layer_norm_y, layer_norm_back, { ROWS, 20 }, 3, { { ROWS, 20 }, { 1, 20 }, { 1, 20 } } },
    { "unit", unit_y, unit_back, { ROWS, 8 }, 1, { { ROWS, 8 } } },
    { "silu", silu_y, silu_back, { ROWS, 8 }, 1, { { ROWS, 8 } } },
    { "gelu", gelu_y, gelu_back, { ROWS, 8 }, 1, { { ROWS, 8 } } },
    { "gelu_erf", gelu_erf_y, gelu_erf_back, { ROWS, 8 }, 1, { { ROWS, 8 } } },
    { "relu", relu_y, relu_back, { ROWS, 8 }, 1, { { ROWS, 8 } } },
    { "output_gate", output_gate_y, output_gate_back, { ROWS, 8 }, 2, { { ROWS, 8 }, { ROWS, 8 } } },
    { "sigmoid_gate", sigmoid_gate_y, sigmoid_gate_back, { ROWS, 3 }, 2, { { ROWS, 3 }, { 1, 3 } } },
    { "forget_gate", forget_gate_y, forget_gate_back, { ROWS, 3 }, 1, { { ROWS, 3 } } },
    { "forget_gate, bias", forget_bias_y, forget_bias_back, { ROWS, 18 }, 2, { { ROWS, 18 }, { 1, 18 } } },
    { "decay_gate", decay_gate_y, decay_gate_back, { ROWS, 6 }, 3, { { ROWS, 6 }, { 1, 2 }, { 1, 6 } } },
    { "decay_gate, delta",
      decay_delta_y,
      decay_delta_back,
      { ROWS, 6 },
      3,
      { { ROWS, 6 }, { 1, 2 }, { 1, 6 } } },
    { "scale_rows", scale_rows_y, scale_rows_back, { ROWS, 5 }, 2, { { ROWS, 5 }, { ROWS, 1 } } },
    { "add_skip", skip_y, skip_back, { ROWS, 6 }, 3, { { ROWS, 6 }, { ROWS, 6 }, { 1, 3 } } },
    { "multiply", multiply_y, multiply_back, { ROWS, 6 }, 2, { { ROWS, 6 }, { ROWS, 6 } } },
    { "sine", sine_y, sine_back, { ROWS, 4 }, 3, { { ROWS, 4 }, { 1, 4 }, { 1, 4 } } },
    { "long_conv", long_conv_y, long_conv_back, { 12, 4 }, 2, { { 12, 4 }, { 6, 4 } } },
    { "long_conv, one", long_conv_y, long_conv_back, { ROWS, 8 }, 2, { { ROWS, 8 }, { ROWS, 8 } } },
    { "short_conv", short_conv_y, short_conv_back, { ROWS, 8 }, 2, { { ROWS, 8 }, { 3, 8 } } },
    { "short_conv, seen",
      short_conv_seen_y,
      short_conv_seen_back,
      { ROWS, 8 },
      2,
      { { ROWS, 8 }, { 3, 8 } } },
    { "softplus", softplus_y, softplus_back, { 2, 5 }, 1, { { 2, 5 } } },
    { "inverse_softplus", inverse_softplus_y, inverse_softplus_back, { 2, 5 }, 1, { { 2, 5 } } },
};
enum { CASES = sizeof cases / sizeof *cases };

/* A case with its arrays: x and dx, y, and w, the gradient of sum w y by y. */
typedef struct scene {
    const op_case *op;
    machine on;
    matrix x[INPUTS], dx[INPUTS], y, w;
} scene;

static matrix room(const machine *on, const int64_t shape[2], int64_t rows)
{
    return fixture_matrix(on, MODELS, shape[0] == ROWS ? rows : shape[0], shape[1] == ROWS ? rows : shape[1]);
}

static scene scene_make(const op_case *op, loam_dtype dtype, int threads, int64_t rows)
{
    scene s = { .op = op, .on = machine_cpu(dtype, threads) };
    for (int i = 0; i < op->inputs; i++) {
        s.x[i] = room(&s.on, op->x[i], rows);
        s.dx[i] = room(&s.on, op->x[i], rows);
        fixture_fill(s.x[i], (uint64_t)i);
    }
    s.y = room(&s.on, op->y, rows);
    s.w = room(&s.on, op->y, rows);
    fixture_fill(s.w, INPUTS);
    return s;
}

static void scene_free(scene *s)
{
    for (int i = 0; i < s->op->inputs; i++)
        free(s->x[i].data), free(s->dx[i].data);
    free(s->y.data), free(s->w.data);
}

static double scene_value(scene *s)
{
    s->op->forward(&s->on, s->y, s->x);
    return fixture_dot(s->w, s->y);
}

/* Both passes; y is the result again afterwards. */
static void scene_run(scene *s)
{
    s->op->back(&s->on, s->dx, s->w, s->y, s->x);
    scene_value(s);
}

static void check_differences(scene *s, int input)
{
    const double step = 1e-5;
    matrix want = fixture_matrix(&s->on, MODELS, s->x[input].rows, s->x[input].width);
    for (int64_t i = 0; i < matrix_elements(want); i++) {
        const double kept = fixture_get(s->x[input], i);
        fixture_set(s->x[input], i, kept + step);
        const double above = scene_value(s);
        fixture_set(s->x[input], i, kept - step);
        fixture_set(want, i, (above - scene_value(s)) / (2 * step));
        fixture_set(s->x[input], i, kept);
    }
    const double miss = fixture_distance(s->dx[input], want);
    if (!(miss < 1e-8)) fail_msg("%s, input %d: gradient off by %g", s->op->name, input, miss);
    free(want.data);
}

static void test_gradients(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        scene s = scene_make(&cases[i], LOAM_F64, 1, FEW);
        scene_run(&s);
        for (int input = 0; input < cases[i].inputs; input++)
            check_differences(&s, input);
        scene_free(&s);
    }
}

/* Sums of float over a few hundred rows, and products of them: 1e-5. */
static void expect_close(const op_case *op, const char *what, matrix got, matrix want)
{
    const double miss = fixture_distance(got, want);
    if (!(miss < 1e-5)) fail_msg("%s, %s: float32 is off by %g", op->name, what, miss);
}

static void test_float(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        scene s = scene_make(&cases[i], LOAM_F32, 2, MANY), exact = scene_make(&cases[i], LOAM_F64, 2, MANY);
        scene_run(&s);
        scene_run(&exact);
        expect_close(&cases[i], "result", s.y, exact.y);
        for (int input = 0; input < cases[i].inputs; input++)
            expect_close(&cases[i], "gradient", s.dx[input], exact.dx[input]);
        scene_free(&s), scene_free(&exact);
    }
}

static void expect_same(const op_case *op, matrix a, matrix b)
{
    if (memcmp(a.data, b.data, (size_t)matrix_elements(a) * sizeof(float)) != 0)
        fail_msg("%s: bits depend on threads", op->name);
}

static void test_threads(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        scene one = scene_make(&cases[i], LOAM_F32, 1, MANY),
              three = scene_make(&cases[i], LOAM_F32, 3, MANY);
        scene_run(&one);
        scene_run(&three);
        expect_same(&cases[i], one.y, three.y);
        for (int input = 0; input < cases[i].inputs; input++)
            expect_same(&cases[i], one.dx[input], three.dx[input]);
        scene_free(&one), scene_free(&three);
    }
}

/* ---- rows by number */

static const int32_t words[MODELS * FEW] = { 2, 0, 2, 4, 2, 1, 3, 3, 0, 1, 2, 4 };

static void test_embed(void **state)
{
    (void)state;
    const machine on = machine_cpu(LOAM_F64, 2);
    const numbers tokens = { words, FEW };
    matrix table = fixture_matrix(&on, MODELS, 5, 18), positions = fixture_matrix(&on, MODELS, 3, 18);
    matrix e = fixture_matrix(&on, MODELS, FEW, 18), g = fixture_matrix(&on, MODELS, FEW, 18);
    fixture_fill(table, 1), fixture_fill(positions, 2), fixture_fill(g, 3);
    matrix dtable = fixture_matrix(&on, MODELS, 5, 18), dpositions = fixture_matrix(&on, MODELS, 3, 18);
    on.op->embed(&on, e, table, tokens, positions);
    on.op->embed_back(&on, dtable, g, tokens, NULL);
    on.op->add_positions_back(&on, dpositions, g);
    for (int64_t n = 0; n < MODELS * FEW; n++)
        for (int64_t c = 0; c < 18; c++) {
            const int64_t word = n / FEW * 5 + words[n], position = n / FEW * 3 + n % 3;
            const double want = fixture_get(table, word * 18 + c) + fixture_get(positions, position * 18 + c);
            assert_true(fixture_get(e, n * 18 + c) == want);
        }
    /* The map is linear: its gradient is its transpose. */
    assert_true(fabs(fixture_dot(dtable, table) + fixture_dot(dpositions, positions) - fixture_dot(g, e)) <
                1e-12);
    free(table.data), free(positions.data), free(e.data), free(g.data);
    free(dtable.data), free(dpositions.data);
}

/* Parts of a mean over 6 values, with 1, 0, 2 and 3 of them, by the log of the sum of their weights. */
static void test_merge(void **state)
{
    enum { PARTS = 4, HEADS = 2, WIDTH = 6, VALUES = 6 };
    static const int first[PARTS + 1] = { 0, 1, 1, 3, VALUES };
    const machine on = machine_cpu(LOAM_F64, 2);
    matrix parts = fixture_matrix(&on, MODELS, PARTS, WIDTH), lse = fixture_matrix(&on, MODELS, PARTS, HEADS),
           out = fixture_matrix(&on, MODELS, 1, WIDTH), x = fixture_matrix(&on, MODELS, VALUES, WIDTH),
           score = fixture_matrix(&on, MODELS, VALUES, HEADS);
    (void)state;
    fixture_fill(x, 1), fixture_fill(score, 2), fixture_fill(out, 3);
    double whole[MODELS * WIDTH];
    for (int64_t n = 0; n < MODELS * WIDTH; n++) {
        const int64_t m = n / WIDTH, c = n % WIDTH, h = c / (WIDTH / HEADS);
        double sum = 0, all = 0;
        for (int i = 0; i < PARTS; i++) {
            double some = 0, weights = 0;
            for (int k = first[i]; k < first[i + 1]; k++) {
                const double weight = exp(fixture_get(score, (m * VALUES + k) * HEADS + h));
                some += weight * fixture_get(x, (m * VALUES + k) * WIDTH + c), weights += weight;
            }
            fixture_set(parts, (m * PARTS + i) * WIDTH + c, weights > 0 ? some / weights : 0);
            fixture_set(lse, (m * PARTS + i) * HEADS + h, log(weights) + 800);
            sum += some, all += weights;
        }
        whole[n] = sum / all;
    }
    on.op->merge_parts(&on, out, parts, lse);
    for (int64_t n = 0; n < MODELS * WIDTH; n++)
        assert_true(fabs(fixture_get(out, n) - whole[n]) < 1e-12);
    free(parts.data), free(lse.data), free(out.data), free(x.data), free(score.data);
}

static void test_gather(void **state)
{
    (void)state;
    static const int32_t rows[MODELS * 3] = { 4, -1, 0, 1, 5, 2 };
    const machine on = machine_cpu(LOAM_F64, 2);
    const numbers at = { rows, 3 };
    matrix x = fixture_matrix(&on, MODELS, FEW, 4), y = fixture_matrix(&on, MODELS, 3, 4);
    matrix g = fixture_matrix(&on, MODELS, 3, 4), dx = fixture_matrix(&on, MODELS, FEW, 4);
    fixture_fill(x, 1), fixture_fill(g, 2), fixture_fill(dx, 3), fixture_fill(y, 4);
    on.op->gather(&on, y, x, at);
    on.op->scatter(&on, dx, g, at);
    for (int64_t n = 0; n < MODELS * 3; n++)
        for (int64_t c = 0; c < 4; c++) {
            const int64_t from = (n / 3 * FEW + rows[n]) * 4 + c;
            assert_true(fixture_get(y, n * 4 + c) == (rows[n] < 0 ? 0 : fixture_get(x, from)));
        }
    assert_true(fabs(fixture_dot(dx, x) - fixture_dot(g, y)) < 1e-12);
    /* Added to x; of what is an operand only these rows are written. */
    matrix sum = fixture_matrix(&on, MODELS, FEW, 4), operand = fixture_matrix(&on, MODELS, FEW, 4);
    fixture_fill(sum, 1);
    on.op->scatter_add(&on, sum, operand, g, at);
    for (int64_t i = 0; i < matrix_elements(sum); i++) {
        assert_true(fixture_get(sum, i) == fixture_get(x, i) + fixture_get(dx, i));
        assert_true(fixture_get(operand, i) == (fixture_get(dx, i) != 0 ? fixture_get(sum, i) : 0));
    }
    /* Other rows stay. */
    fixture_fill(sum, 1);
    on.op->put_rows(&on, sum, g, at);
    for (int64_t i = 0; i < matrix_elements(sum); i++)
        assert_true(fixture_get(sum, i) ==
                    (fixture_get(dx, i) != 0 ? fixture_get(dx, i) : fixture_get(x, i)));
    free(x.data), free(y.data), free(g.data), free(dx.data), free(sum.data), free(operand.data);
}

/* Runs of 3 rows whose last is seen by itself alone: each element from the equation. */
static void test_short_conv(void **state)
{
    (void)state;
    const machine on = machine_cpu(LOAM_F64, 2);
    matrix x = fixture_matrix(&on, MODELS, FEW, 4), y = fixture_matrix(&on, MODELS, FEW, 4);
    matrix taps = fixture_matrix(&on, MODELS, 2, 4);
    fixture_fill(x, 1), fixture_fill(taps, 2), fixture_fill(y, 3);
    on.op->short_conv(&on, y, x, taps, 3, 2);
    for (int64_t n = 0; n < MODELS * FEW; n++)
        for (int64_t c = 0; c < 4; c++) {
            const int64_t tap = n / FEW * 8 + c;
            double want = fixture_get(taps, tap) * fixture_get(x, n * 4 + c);
            if (n % 3 > 0) want += fixture_get(taps, tap + 4) * fixture_get(x, (n - 1) * 4 + c);
            assert_true(fabs(fixture_get(y, n * 4 + c) - want) < 1e-15);
        }
    on.op->short_conv(&on, y, x, taps, 3, 1);
    for (int64_t c = 0; c < 4; c++)
        assert_true(fixture_get(y, 8 + c) == fixture_get(taps, c) * fixture_get(x, 8 + c));
    free(x.data), free(y.data), free(taps.data);
}

static void test_clear_rows(void **state)
{
    (void)state;
    const machine on = machine_cpu(LOAM_F64, 2);
    matrix x = fixture_matrix(&on, MODELS, FEW, 4), y = fixture_matrix(&on, MODELS, FEW, 4);
    fixture_fill(x, 1), fixture_fill(y, 1);
    on.op->clear_rows(&on, y, 3, 2);
    for (int64_t i = 0; i < matrix_elements(x); i++)
        assert_true(fixture_get(y, i) == (i / 4 % 3 == 2 ? 0 : fixture_get(x, i)));
    free(x.data), free(y.data);
}

/* From the equation in Python: the gradients cannot see a wrong constant. */
static void test_gelu(void **state)
{
    (void)state;
    static const double x[] = { -4, -2, -0.5, 0, 1, 3 };
    static const double want[] = { -7.024594819227126e-05, -0.04540230591222494, -0.15428599017485606, 0.0,
                                   0.8411919906082768,     2.996362607918227 };
    const machine on = machine_cpu(LOAM_F64, 1);
    matrix from = fixture_matrix(&on, 1, 1, 6), to = fixture_matrix(&on, 1, 1, 6);
    matrix_set(from, 0, x, 6);
    on.op->gelu(&on, to, from);
    for (int64_t i = 0; i < 6; i++)
        assert_true(fabs(fixture_get(to, i) - want[i]) < 1e-14);
    free(from.data), free(to.data);
}

/* Each 16-bit number as a weight, infinities, NaN and subnormal ones too: rows of 40 times the same number
 * have exact sums. */
static void check_narrow_weights(const machine *on, loam_dtype narrow, int64_t rows)
{
    enum { WORDS = 1 << 16, WIDTH = 40 };
    const matrix x = fixture_matrix(on, 1, rows, WIDTH), y = fixture_matrix(on, 1, rows, WORDS);
    uint16_t *const bits = malloc((size_t)WORDS * WIDTH * sizeof *bits);
    assert_non_null(bits);
    for (int64_t i = 0; i < (int64_t)WORDS * WIDTH; i++)
        bits[i] = (uint16_t)(i / WIDTH);
    for (int64_t i = 0; i < rows * WIDTH; i++)
        fixture_set(x, i, (double)(i / WIDTH + 1) / 64);
    const matrix w = { .data = bits,
                       .dtype = narrow,
                       .models = 1,
                       .rows = WORDS,
                       .width = WIDTH,
                       .row = WIDTH,
                       .model = (int64_t)WORDS * WIDTH };
    on->op->product(on, y, x, w, PRODUCT_B_TRANSPOSED);
    for (int64_t i = 0; i < rows * WORDS; i++) {
        const double weight = element_get(bits, narrow, i % WORDS * WIDTH), got = fixture_get(y, i);
        const double sum = WIDTH * weight * (double)(i / WORDS + 1) / 64;
        const double want = on->dtype == LOAM_F32 ? (double)(float)sum : sum;
        if (isnan(want) ? !isnan(got) : !(fabs(got - want) <= 1e-45) && got != want)
            fail_msg("%s, weight %04x: %g, expected %g", loam_dtype_name(narrow), bits[i % WORDS * WIDTH],
                     got, want);
    }
    free(x.data), free(y.data), free(bits);
}

static void test_narrow_weights(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows <= 6; rows += 5) {
        for (int dtype = LOAM_F32; dtype <= LOAM_F64; dtype += LOAM_F64 - LOAM_F32) {
            const machine on = machine_cpu((loam_dtype)dtype, 2);
            check_narrow_weights(&on, LOAM_F16, rows);
            check_narrow_weights(&on, LOAM_BF16, rows);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),      cmocka_unit_test(test_float),
        cmocka_unit_test(test_threads),        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_gather),         cmocka_unit_test(test_short_conv),
        cmocka_unit_test(test_clear_rows),     cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_narrow_weights), cmocka_unit_test(test_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
