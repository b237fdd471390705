/* SPDX-License-Identifier: MIT
 * Losses: their values and gradients against sums written out and against central differences in float64. */
#include "tests/train/fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MODELS = 2, FEW = 6 };

static const matrix none = { 0 };

typedef double loss_function(const machine *on, matrix y, matrix each, int model);

static const int32_t targets[MODELS * FEW] = { 3, -1, 0, 4, -1, 2, -1, 1, 1, 0, 2, 2 };
static const int64_t counts[MODELS] = { 4, 5 };

static double entropy_of(const machine *on, matrix y, matrix each, int model)
{
    double sum = 0;
    on->op->cross_entropy(on, each, y, y, (numbers){ targets, FEW }, counts);
    for (int64_t i = 0; i < FEW; i++)
        sum += fixture_get(each, (model * FEW + i) * 2) / (double)counts[model];
    return sum;
}

static double error_of(const machine *on, matrix y, matrix each, int model)
{
    double sum = 0;
    matrix wanted = fixture_matrix(on, MODELS, FEW, y.width);
    fixture_fill(wanted, 9);
    on->op->squared_error(on, each, y, wanted);
    for (int64_t i = 0; i < FEW; i++)
        sum += fixture_get(each, model * FEW + i) / FEW;
    free(wanted.data);
    return sum;
}

/* The loss of its own model, with element i moved. */
static double moved(const machine *on, loss_function *loss, matrix y, matrix each, int64_t i, double step)
{
    fixture_fill(y, 1);
    fixture_set(y, i, fixture_get(y, i) + step);
    return loss(on, y, each, (int)(i / (FEW * y.width)));
}

static void check_loss(loss_function *loss, int64_t width, int64_t results)
{
    const machine on = machine_cpu(LOAM_F64, 2);
    matrix y = fixture_matrix(&on, MODELS, FEW, width), g = fixture_matrix(&on, MODELS, FEW, width);
    matrix each = fixture_matrix(&on, MODELS, FEW, results), want = fixture_matrix(&on, MODELS, FEW, width);
    fixture_fill(g, 1);
    loss(&on, g, each, 0);
    for (int64_t i = 0; i < matrix_elements(y); i++)
        fixture_set(want, i,
                    (moved(&on, loss, y, each, i, 1e-5) - moved(&on, loss, y, each, i, -1e-5)) / 2e-5);
    assert_true(fixture_distance(g, want) < 1e-8);
    free(y.data), free(g.data), free(each.data), free(want.data);
}

static void test_losses(void **state)
{
    (void)state;
    check_loss(entropy_of, 5, 2);
    check_loss(error_of, 7, 1);
}

/* The loss itself where it is known: of two equal logits log 2; a right answer; a row without a target. */
static void test_cross_entropy(void **state)
{
    (void)state;
    const machine on = machine_cpu(LOAM_F32, 1);
    static const int32_t wanted[3] = { 1, -1, 0 };
    static const int64_t count = 2;
    float logits[6] = { 7, 7, 1, 2, 900, -900 }, each[6];
    const matrix rows = matrix_dense(logits, LOAM_F32, 1, 3, 2);
    on.op->cross_entropy(&on, matrix_dense(each, LOAM_F32, 1, 3, 2), rows, rows, (numbers){ wanted, 0 },
                         &count);
    assert_true(fabsf(each[0] - logf(2)) < 1e-7f && each[2] == 0 && each[4] == 0);
    assert_true(each[1] == 0 && each[3] == 0 && each[5] == 1);
    const float want[6] = { 0.25f, -0.25f, 0, 0, 0, 0 };
    assert_memory_equal(logits, want, sizeof want);
}

/* By its formula, in float64; and half the sum of p d^2 where logits are moved by small d of mean 0: what
 * float32 would lose to 1 - 1. */
static void test_divergence(void **state)
{
    enum { WIDTH = 5 };
    static const float p[2 * WIDTH] = { 1, -2, 0.5f, 3, -700, 1, 2, 3, 4, 5 };
    static const float q[2 * WIDTH] = { 0, 2, -90, 1, 3, 1, 2, 3, 4, 5.0001f };
    float out[2];
    double of_p[WIDTH], of_q[WIDTH], sums[2] = { 0 }, want = 0;
    (void)state;
    const machine on = machine_cpu(LOAM_F32, 1);
    on.op->divergence(&on, matrix_dense(out, LOAM_F32, 1, 2, 1),
                      matrix_dense((void *)(uintptr_t)p, LOAM_F32, 1, 2, WIDTH),
                      matrix_dense((void *)(uintptr_t)q, LOAM_F32, 1, 2, WIDTH));
    for (int c = 0; c < WIDTH; c++)
        sums[0] += of_p[c] = exp((double)p[c]), sums[1] += of_q[c] = exp((double)q[c]);
    for (int c = 0; c < WIDTH; c++)
        want += of_p[c] / sums[0] * ((double)p[c] - log(sums[0]) - (double)q[c] + log(sums[1]));
    assert_true(fabs((double)out[0] / want - 1) < 1e-6);
    const double share = 1 / (1 + exp(-1) + exp(-2) + exp(-3) + exp(-4)), d = (double)q[9] - (double)p[9];
    assert_true(fabs((double)out[1] / (share * (1 - share) * d * d / 2) - 1) < 1e-3);
}

/* The loss of rows over words of a model, by the operation; its gradients too where they have data. */
static double word_loss_of(const machine *on, matrix x, matrix table, matrix dx, matrix dtable)
{
    matrix each = fixture_matrix(on, MODELS, FEW, 2), logits = fixture_matrix(on, 1, 2, table.rows);
    matrix g = fixture_matrix(on, 1, 4, table.rows);
    double sum = 0;
    on->op->word_loss(on, each, dx, dtable, x, table, (numbers){ targets, FEW }, counts, logits, g);
    for (int64_t i = 0; i < MODELS * FEW; i++)
        sum += fixture_get(each, 2 * i) / (double)counts[i / FEW];
    free(each.data), free(logits.data), free(g.data);
    return sum;
}

static void expect_slope(const machine *on, matrix x, matrix table, matrix of, matrix gradient)
{
    static const double step = 1e-5;
    for (int64_t i = 0; i < matrix_elements(of); i++) {
        const double at = fixture_get(of, i);
        fixture_set(of, i, at + step);
        const double more = word_loss_of(on, x, table, none, none);
        fixture_set(of, i, at - step);
        const double less = word_loss_of(on, x, table, none, none);
        fixture_set(of, i, at);
        assert_true(fabs((more - less) / (2 * step) - fixture_get(gradient, i)) < 1e-8);
    }
}

/* Rows in blocks that do not divide them, against logits of all rows; a gradient that was there is
 * overwritten. */
/* Many words that hardly count, as language models have them: each is lost in a float32 sum, all are not. */
static void test_many_words(void **state)
{
    enum { WORDS = 49152 };
    static const int32_t target = 0;
    static const int64_t count = 1;
    (void)state;
    const machine on = machine_cpu(LOAM_F32, 1);
    const double want = log1p((WORDS - 1) * exp(-17));
    matrix x = fixture_matrix(&on, 1, 1, WORDS), each = fixture_matrix(&on, 1, 1, 2);
    for (int64_t c = 1; c < WORDS; c++)
        fixture_set(x, c, -17);
    on.op->cross_entropy(&on, each, x, x, (numbers){ &target, 0 }, &count);
    const double loss = fixture_get(each, 0);
    if (!(fabs(loss / want - 1) < 1e-5)) fail_msg("loss %.9g, expected %.9g", loss, want);
    free(x.data), free(each.data);
}

static void test_word_loss(void **state)
{
    (void)state;
    enum { WORDS = 5, WIDTH = 3 };
    const machine on = machine_cpu(LOAM_F64, 2);
    matrix x = fixture_matrix(&on, MODELS, FEW, WIDTH), dx = fixture_matrix(&on, MODELS, FEW, WIDTH);
    matrix table = fixture_matrix(&on, MODELS, WORDS, WIDTH),
           dtable = fixture_matrix(&on, MODELS, WORDS, WIDTH);
    fixture_fill(x, 1), fixture_fill(table, 2), fixture_fill(dx, 3), fixture_fill(dtable, 4);
    double loss = word_loss_of(&on, x, table, dx, dtable);
    matrix logits = fixture_matrix(&on, MODELS, FEW, WORDS), each = fixture_matrix(&on, MODELS, FEW, 2);
    for (int model = 0; model < MODELS; model++) {
        on.op->product(&on, logits, x, table, PRODUCT_B_TRANSPOSED);
        loss -= entropy_of(&on, logits, each, model);
    }
    assert_true(fabs(loss) < 1e-13);
    expect_slope(&on, x, table, x, dx);
    expect_slope(&on, x, table, table, dtable);
    free(x.data), free(dx.data), free(table.data), free(dtable.data), free(logits.data), free(each.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses),     cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_divergence), cmocka_unit_test(test_many_words),
        cmocka_unit_test(test_word_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
