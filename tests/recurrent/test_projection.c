/* SPDX-License-Identifier: MIT
 * Projections from a seed: lengths and angles of their rows, and that a head depends on its number alone. */
#include "tests/recurrent/cases.h"
#include "tests/support/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 3, FEATURES = 200, CHANNELS = 24 };

static double *draw(loam_projection projection, uint64_t seed, int64_t heads, int64_t features,
                    int64_t channels)
{
    double *z = memory_zeroed((size_t)(heads * features * channels), sizeof *z);
    const loam_view view = loam_dense_out(z, heads, features, channels);
    loam_error error;
    if (loam_projection_draw(projection, seed, heads, features, channels, LOAM_F64, &view, &error))
        fail_msg("%s", error.text);
    return z;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

/* E |z|^2 = n, Var |z|^2 = 2 n, and the mean of z is 0: within 4 deviations. */
static void moments(void **state)
{
    (void)state;
    for (int projection = 0; projection <= LOAM_PROJECTION_DCT; projection++) {
        double *z = draw((loam_projection)projection, 5, HEADS, FEATURES, CHANNELS);
        const double rows = HEADS * FEATURES, n = CHANNELS;
        double square = 0, fourth = 0, mean[CHANNELS] = { 0 };
        for (int64_t r = 0; r < HEADS * FEATURES; r++) {
            const double norm2 = dot(z + r * CHANNELS, z + r * CHANNELS, CHANNELS);
            square += norm2 / rows;
            fourth += (norm2 - n) * (norm2 - n) / rows;
            for (int64_t c = 0; c < CHANNELS; c++)
                mean[c] += z[r * CHANNELS + c] / rows;
        }
        assert_true(fabs(square - n) < 4 * sqrt(2 * n / rows));
        assert_true(fabs(fourth - 2 * n) < 0.3 * 2 * n);
        for (int64_t c = 0; c < CHANNELS; c++)
            assert_true(fabs(mean[c]) < 4 / sqrt(rows) * (projection == LOAM_PROJECTION_DCT ? 6 : 1));
        free(z);
    }
}

/* Rows of one block of CHANNELS are orthogonal, and those of two blocks are not. */
static void angles(void **state)
{
    (void)state;
    for (int projection = LOAM_PROJECTION_ORTHOGONAL; projection <= LOAM_PROJECTION_DCT; projection++) {
        double *z = draw((loam_projection)projection, 6, 1, FEATURES, CHANNELS), most_apart = 0;
        for (int64_t i = 0; i < FEATURES; i++) {
            for (int64_t j = 0; j < i; j++) {
                const double *x = z + i * CHANNELS, *y = z + j * CHANNELS;
                const double cosine = dot(x, y, CHANNELS) / sqrt(dot(x, x, CHANNELS) * dot(y, y, CHANNELS));
                if (i / CHANNELS == j / CHANNELS) assert_true(fabs(cosine) < 1e-13);
                most_apart = fmax(most_apart, i / CHANNELS == j / CHANNELS ? 0 : fabs(cosine));
            }
        }
        assert_true(most_apart > 0.3);
        free(z);
    }
}

/* Lengths of "DCT + stratified chi": one in each stratum, so that their distribution is that of chi to 1 / M:
 * of two channels P(|z| < r) = 1 - e^{-r^2/2}. */
static void strata(void **state)
{
    (void)state;
    double *z = draw(LOAM_PROJECTION_DCT, 8, 1, FEATURES, 2);
    int count[FEATURES] = { 0 };
    for (int64_t m = 0; m < FEATURES; m++) {
        const double below = -expm1(-dot(z + m * 2, z + m * 2, 2) / 2);
        count[(int)(below * FEATURES)]++;
    }
    for (int m = 0; m < FEATURES; m++)
        assert_int_equal(count[m], 1);
    free(z);
}

static void heads_are_their_own(void **state)
{
    (void)state;
    for (int projection = 0; projection <= LOAM_PROJECTION_DCT; projection++) {
        double *all = draw((loam_projection)projection, 9, HEADS, 20, 7);
        double *again = draw((loam_projection)projection, 9, 2, 20, 7);
        double *other = draw((loam_projection)projection, 10, HEADS, 20, 7);
        assert_memory_equal(all, again, 2 * 20 * 7 * sizeof *all);
        for (int64_t h = 0; h < HEADS; h++) {
            const size_t bytes = 20 * 7 * sizeof *all;
            assert_true(memcmp(all + h * 140, other + h * 140, bytes) != 0);
            assert_true(h == 0 || memcmp(all, all + h * 140, bytes) != 0);
        }
        float z[3][22][9], untouched = z[0][0][8] = z[0][20][0] = 77;
        const loam_view view = { z, 0, 22 * 9, 9 };
        assert_int_equal(
            loam_projection_draw((loam_projection)projection, 9, HEADS, 20, 7, LOAM_F32, &view, NULL),
            LOAM_OK);
        assert_true(z[0][0][8] == untouched && z[0][20][0] == untouched);
        for (int64_t e = 0; e < HEADS * 20 * 7; e++)
            assert_true(z[e / 140][e / 7 % 20][e % 7] == (float)all[e]);
        free(all);
        free(again);
        free(other);
    }
}

static void refuse(loam_projection projection, int64_t heads, int64_t features, int64_t channels,
                   loam_dtype dtype, const loam_view *z, loam_status status, const char *name)
{
    loam_error error;
    assert_int_equal(loam_projection_draw(projection, 1, heads, features, channels, dtype, z, &error),
                     status);
    if (!strstr(error.text, name)) fail_msg("%s: %s", name, error.text);
}

static void refused(void **state)
{
    (void)state;
    double x[64] = { 0 };
    const loam_view z = loam_dense_out(x, 2, 4, 8), overlap = { x, 0, 32, 7 }, none = { 0 };
    const loam_projection normal = LOAM_PROJECTION_NORMAL;
    refuse((loam_projection)3, 2, 4, 8, LOAM_F64, &z, LOAM_EARG, "projection");
    refuse((loam_projection)-1, 2, 4, 8, LOAM_F64, &z, LOAM_EARG, "projection");
    refuse(normal, -1, 4, 8, LOAM_F64, &z, LOAM_ESHAPE, "heads");
    refuse(normal, 2, 0, 8, LOAM_F64, &z, LOAM_ESHAPE, "features");
    refuse(normal, 2, 513, 8, LOAM_F64, &z, LOAM_ESHAPE, "features");
    refuse(normal, 2, 4, 0, LOAM_F64, &z, LOAM_ESHAPE, "channels");
    refuse(normal, 2, 4, 513, LOAM_F64, &z, LOAM_ESHAPE, "channels");
    refuse(normal, 2, 4, 8, LOAM_BF16, &z, LOAM_EARG, "dtype");
    refuse(normal, 2, 4, 8, LOAM_F64, NULL, LOAM_EARG, "z");
    refuse(normal, 2, 4, 8, LOAM_F64, &none, LOAM_EARG, "z");
    refuse(normal, 2, 4, 8, LOAM_F64, &overlap, LOAM_ESHAPE, "z");
    for (int i = 0; i < 64; i++)
        assert_true(x[i] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moments), cmocka_unit_test(angles),
        cmocka_unit_test(strata),  cmocka_unit_test(heads_are_their_own),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
