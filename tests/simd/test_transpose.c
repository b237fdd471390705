/* SPDX-License-Identifier: MIT
 * src/simd/transpose.h: transposing is exact; the product on a part of the lanes has the bits of the whole
 * one there and leaves the others. src/simd/product64.h: against plain sums, at sizes around its blocks. */
#include "src/simd/product64.h"
#include "src/simd/transpose.h"
#include "tests/simd/suites.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MOST = 80, STRIDE = MOST + 3 };
static const float UNTOUCHED = 12345;

static void fill(float *x, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)next_number(&seed);
}

static void transposing_is_exact(void **state)
{
    (void)state;
    static float from[MOST * STRIDE], to[MOST * STRIDE];
    fill(from, MOST * STRIDE, 1);
    for (int64_t rows = VL; rows <= MOST; rows += VL) {
        for (int64_t columns = VL; columns <= MOST; columns += 2 * VL) {
            fill(to, MOST * STRIDE, 2);
            transpose_tile(to, STRIDE, from, STRIDE, rows, columns);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t c = 0; c < columns; c++)
                    assert_true(to[c * STRIDE + r] == from[r * STRIDE + c]);
        }
    }
}

static void lanes_are_those_of_the_whole(void **state)
{
    (void)state;
    static float a[MOST * MOST], b[MOST * LANES], part[MOST * LANES], whole[MOST * LANES];
    fill(a, MOST * MOST, 3);
    fill(b, MOST * LANES, 4);
    for (int64_t rows = 1; rows <= 21; rows++) {
        for (int64_t lanes = 16; lanes <= LANES; lanes += 16) {
            for (int add = 0; add < 2; add++) {
                for (int64_t e = 0; e < MOST * LANES; e++)
                    part[e] = whole[e] = UNTOUCHED;
                lanes_product(part, rows, a, 1, MOST, b, 37, lanes, add);
                panel_product(whole, rows, a, 1, MOST, b, 37, add);
                for (int64_t e = 0; e < MOST * LANES; e++) {
                    const int in = e < rows * LANES && e % LANES < lanes;
                    assert_true(part[e] == (in ? whole[e] : UNTOUCHED));
                }
            }
        }
    }
}

static void products_of_doubles(void **state)
{
    (void)state;
    static double a[MOST * STRIDE], b[MOST * STRIDE], c[MOST * STRIDE];
    uint64_t seed = 5;
    for (int64_t e = 0; e < MOST * STRIDE; e++) {
        a[e] = next_number(&seed);
        b[e] = next_number(&seed);
    }
    for (int64_t rows = 1; rows <= 14; rows++) {
        for (int64_t columns = VL64; columns <= 7 * VL64; columns += VL64) {
            for (int across = 0; across < 2; across++) {
                const matrix64 left = { a, across ? STRIDE : 1, across ? 1 : STRIDE };
                for (int64_t e = 0; e < MOST * STRIDE; e++)
                    c[e] = 1;
                product64(c, STRIDE, rows, left, b, STRIDE, 29, columns, rows % 2);
                for (int64_t e = 0; e < 16 * STRIDE; e++) {
                    const int64_t r = e / STRIDE, n = e % STRIDE;
                    double want = 1;
                    if (r < rows && n < columns) {
                        want = (double)(rows % 2);
                        for (int64_t t = 0; t < 29; t++)
                            want += left.at[r * left.row + t * left.column] * b[t * STRIDE + n];
                    }
                    assert_true(fabs(c[e] - want) <= 30 * 0x1p-52 * 30);
                }
            }
        }
    }
}

int suite_transpose(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transposing_is_exact),
        cmocka_unit_test(lanes_are_those_of_the_whole),
        cmocka_unit_test(products_of_doubles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
