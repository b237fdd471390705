/* SPDX-License-Identifier: MIT
 * src/simd/panel.h: the product through both strides, at sizes around its blocks, against float64 with the
 * bound of float32 summation; a row's bits do not depend on its block, a lane's not on its neighbours. */
#include "src/simd/panel.h"
#include "tests/simd/suites.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST = 130, GUARD = 2 };
static const float UNTOUCHED = 12345;

/* c [rows + GUARD][LANES], a for both orientations, b [t_count][LANES]. */
typedef struct operands {
    int64_t rows, t_count, row_stride, t_stride;
    float a[(MOST + 5) * (MOST + 5)], b[MOST * LANES], c[(MOST + GUARD) * LANES], before[MOST * LANES];
} operands;

static void fill(float *x, int64_t count, uint64_t *counter)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)next_number(counter);
}

/* across: A(r, t) = a[r * stride + t], as keys are read for
 * scores; else a[t * stride + r], as for sums of keys. */
static void prepare(operands *o, int64_t rows, int64_t t_count, bool across, uint64_t seed)
{
    const int64_t stride = (across ? t_count : rows) + 3;
    o->rows = rows;
    o->t_count = t_count;
    o->row_stride = across ? stride : 1;
    o->t_stride = across ? 1 : stride;
    fill(o->a, (int64_t)(sizeof o->a / sizeof o->a[0]), &seed);
    fill(o->b, t_count * LANES, &seed);
    fill(o->before, rows * LANES, &seed);
    memcpy(o->c, o->before, (size_t)(rows * LANES) * sizeof(float));
    for (int64_t i = 0; i < GUARD * LANES; i++)
        o->c[rows * LANES + i] = UNTOUCHED;
}

static void run(operands *o, bool add)
{
    panel_product(o->c, o->rows, o->a, o->row_stride, o->t_stride, o->b, o->t_count, add);
}

static void check_product(const operands *o, bool add)
{
    for (int64_t r = 0; r < o->rows; r++) {
        for (int64_t lane = 0; lane < LANES; lane++) {
            double want = add ? (double)o->before[r * LANES + lane] : 0, size = fabs(want);
            for (int64_t t = 0; t < o->t_count; t++) {
                const double term = (double)o->a[r * o->row_stride + t * o->t_stride] *
                                    (double)o->b[t * LANES + lane];
                want += term;
                size += fabs(term);
            }
            const double got = (double)o->c[r * LANES + lane], off = fabs(got - want);
            if (!(off <= (double)(o->t_count + 1) * 0x1p-24 * size)) {
                fail_msg("%d x %d, strides %d and %d, add %d: [%d][%d] is %.9g, expected %.9g", (int)o->rows,
                         (int)o->t_count, (int)o->row_stride, (int)o->t_stride, add, (int)r, (int)lane, got,
                         want);
            }
        }
    }
    for (int64_t i = 0; i < GUARD * LANES; i++)
        assert_true(o->c[o->rows * LANES + i] == UNTOUCHED);
}

static operands *make_operands(void)
{
    operands *o = malloc(sizeof *o);
    assert_non_null(o);
    return o;
}

static void product_is_within_its_bound(void **state)
{
    (void)state;
    static const int64_t sizes[] = { 0,  1,  2,  3,  4,  5,  6,  7,   11,  12,
                                     13, 17, 32, 40, 63, 64, 65, 111, 128, MOST };
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    operands *o = make_operands();
    for (int which = 0; which < SIZES * SIZES * 4; which++) {
        const bool across = which % 2, add = which / 2 % 2;
        prepare(o, sizes[which / 4 / SIZES], sizes[which / 4 % SIZES], across, (uint64_t)which);
        run(o, add);
        check_product(o, add);
    }
    free(o);
}

static void a_row_does_not_depend_on_its_block(void **state)
{
    (void)state;
    operands *o = make_operands(), *alone = make_operands();
    for (int across = 0; across < 2; across++) {
        prepare(o, 17, 65, across, 3);
        run(o, true);
        for (int64_t r = 0; r < 17; r++) {
            memcpy(alone->c, o->before + r * LANES, LANES * sizeof(float));
            panel_product(alone->c, 1, o->a + r * o->row_stride, o->row_stride, o->t_stride, o->b, 65, true);
            assert_memory_equal(alone->c, o->c + r * LANES, LANES * sizeof(float));
        }
    }
    free(o);
    free(alone);
}

/* The lanes turned by one, and then one of them not finite. */
static void a_lane_does_not_depend_on_its_neighbours(void **state)
{
    (void)state;
    operands *o = make_operands(), *turned = make_operands();
    prepare(o, 9, 33, true, 5);
    *turned = *o;
    for (int64_t i = 0; i < 33 * LANES; i++)
        turned->b[i / LANES * LANES + (i + 1) % LANES] = o->b[i];
    run(o, false);
    run(turned, false);
    for (int64_t i = 0; i < 9 * LANES; i++)
        assert_memory_equal(&turned->c[i / LANES * LANES + (i + 1) % LANES], &o->c[i], sizeof(float));
    for (int64_t lane = 0; lane < LANES; lane += 7) {
        *turned = *o;
        turned->b[12 * LANES + lane] = lane % 2 ? NAN : INFINITY;
        run(turned, false);
        for (int64_t i = 0; i < 9 * LANES; i++)
            if (i % LANES == lane)
                assert_false(isfinite(turned->c[i]));
            else
                assert_memory_equal(&turned->c[i], &o->c[i], sizeof(float));
    }
    free(o);
    free(turned);
}

/* What was there is overwritten where nothing is added, even what is not a number. */
static void old_contents_do_not_count(void **state)
{
    (void)state;
    operands *o = make_operands();
    prepare(o, 13, 8, false, 7);
    panel_fill(o->c, 13, NAN);
    run(o, false);
    check_product(o, false);
    free(o);
}

static void vertical_functions(void **state)
{
    (void)state;
    enum { ROWS = 11 };
    float x[ROWS * LANES], y[ROWS * LANES], z[ROWS * LANES], s[LANES], dot[LANES], sum[LANES];
    uint64_t counter = 9;
    fill(x, ROWS * LANES, &counter);
    fill(y, ROWS * LANES, &counter);
    fill(s, LANES, &counter);
    fill(sum, LANES, &counter);
    float begin[LANES];
    memcpy(begin, sum, sizeof sum);
    panel_dot(dot, x, y, ROWS);
    panel_sum(sum, x, ROWS);
    for (int lane = 0; lane < LANES; lane++) {
        double d = 0, total = (double)begin[lane];
        for (int r = 0; r < ROWS; r++) {
            d += (double)x[r * LANES + lane] * (double)y[r * LANES + lane];
            total += (double)x[r * LANES + lane];
        }
        assert_true(fabs((double)dot[lane] - d) <= ROWS * ROWS * 0x1p-24);
        assert_true(fabs((double)sum[lane] - total) <= ROWS * ROWS * 0x1p-24);
    }
    panel_copy(z, y, ROWS);
    assert_memory_equal(z, y, sizeof y);
    panel_axpy(z, ROWS, s, x);
    for (int i = 0; i < ROWS * LANES; i++)
        assert_true(fabs((double)z[i] - ((double)y[i] + (double)s[i % LANES] * (double)x[i])) <= 0x1p-22);
    panel_copy(z, x, ROWS);
    panel_scale(z, ROWS, s);
    for (int i = 0; i < ROWS * LANES; i++)
        assert_true(z[i] == x[i] * s[i % LANES]);
    panel_dot(dot, x, y, 0);
    assert_true(dot[0] == 0 && dot[LANES - 1] == 0);
}

int suite_panel(void)
{
    const struct CMUnitTest panel_h[] = {
        cmocka_unit_test(product_is_within_its_bound),
        cmocka_unit_test(a_row_does_not_depend_on_its_block),
        cmocka_unit_test(a_lane_does_not_depend_on_its_neighbours),
        cmocka_unit_test(old_contents_do_not_count),
        cmocka_unit_test(vertical_functions),
    };
    return cmocka_run_group_tests(panel_h, NULL, NULL);
}
