/* SPDX-License-Identifier: MIT */
#include "random/random.h"
#include "tests/experiment/fixture.h"

#include <math.h>
#include <stdlib.h>

enum { COUNT = 400000 };

/* Philox4x32-10 of counter 0 and key 0 is 6627e8d5 e169c58d bc57ac4c 9b00dbd8, as its authors' known answers
 * say; the first pair follows by hand. */
static void test_known_answer(void **state)
{
    (void)state;
    const double u = ldexp((double)(0xe169c58d6627e8d5u >> 12) + 0.5, -52);
    const double w = ldexp((double)(0x9b00dbd8bc57ac4cu >> 12) + 0.5, -52);
    double pair[2];
    random_normals((random_stream){ 0, 0 }, 0, 2, pair);
    const double want[2] = { sqrt(-2 * log(u)) * cos(2 * acos(-1) * w),
                             sqrt(-2 * log(u)) * sin(2 * acos(-1) * w) };
    expect_close("pair", pair, want, 2, 1e-14);
}

static void test_moments(void **state)
{
    (void)state;
    const random_stream from = { 7, 3 };
    double *x = fixture_doubles(COUNT), sums[4] = { 0 }, pairs = 0;
    random_normals(from, 0, COUNT, x);
    for (int i = 0; i < COUNT; i++) {
        double power = 1;
        for (int n = 0; n < 4; n++)
            sums[n] += power *= x[i];
        pairs += x[i] * x[i ^ 1];
    }
    /* Five standard errors: the variances of x, x^2, x^3, x^4 and x y are 1, 2, 15, 96 and 1. */
    const double scale = 5 / sqrt(COUNT);
    assert_true(fabs(sums[0] / COUNT) < scale);
    assert_true(fabs(sums[1] / COUNT - 1) < scale * sqrt(2));
    assert_true(fabs(sums[2] / COUNT) < scale * sqrt(15));
    assert_true(fabs(sums[3] / COUNT - 3) < scale * sqrt(96));
    assert_true(fabs(pairs / COUNT) < scale * sqrt(2));
    free(x);
}

static void test_any_start(void **state)
{
    (void)state;
    const random_stream from = { 0x123456789abcdef0u, 0xfedcba9876543210u };
    double whole[64], part[64];
    random_normals(from, 0, 64, whole);
    for (int first = 0; first < 64; first++)
        for (int count = 0; first + count <= 64; count++) {
            random_normals(from, (uint64_t)first, count, part);
            assert_memory_equal(part, whole + first, (size_t)count * sizeof *part);
        }
}

/* Every bit of the seed, of the stream and of the place matters. */
static void test_streams_differ(void **state)
{
    (void)state;
    double base, other;
    random_normals((random_stream){ 1, 2 }, 6, 1, &base);
    for (int bit = 0; bit < 64; bit++) {
        const uint64_t flip = (uint64_t)1 << bit;
        random_normals((random_stream){ 1 ^ flip, 2 }, 6, 1, &other);
        assert_true(other != base);
        random_normals((random_stream){ 1, 2 ^ flip }, 6, 1, &other);
        assert_true(other != base);
        random_normals((random_stream){ 1, 2 }, 6 ^ flip, 1, &other);
        assert_true(other != base);
    }
}

/* Words, from any start, are those that the normals are made of. */
static void test_words(void **state)
{
    (void)state;
    const random_stream from = { 5, 9 };
    uint64_t whole[8], part[8];
    double uniforms[8], normals[8];
    random_words(from, 0, 8, whole);
    random_uniforms(from, 0, 8, uniforms);
    random_normals(from, 0, 8, normals);
    for (int first = 0; first < 8; first++) {
        random_words(from, (uint64_t)first, 8 - first, part);
        assert_memory_equal(part, whole + first, (size_t)(8 - first) * sizeof *part);
        assert_true(uniforms[first] == ldexp((double)(whole[first] >> 12) + 0.5, -52));
    }
    for (int i = 0; i < 8; i += 2)
        assert_true(fabs(hypot(normals[i], normals[i + 1]) - sqrt(-2 * log(uniforms[i]))) < 1e-14);
}

/* Three of five: all different, and each of the five as often as the others, to five standard errors. */
static void test_distinct(void **state)
{
    (void)state;
    enum { DRAWS = 20000 };
    int seen[5] = { 0 };
    int32_t table[5], x[3];
    for (uint64_t stream = 0; stream < DRAWS; stream++) {
        random_distinct((random_stream){ 1, stream }, 5, 3, table, x);
        assert_true(x[0] != x[1] && x[1] != x[2] && x[0] != x[2]);
        for (int i = 0; i < 3; i++) {
            assert_in_range(x[i], 0, 4);
            seen[x[i]]++;
        }
    }
    for (int i = 0; i < 5; i++)
        assert_true(fabs(seen[i] - 0.6 * DRAWS) < 5 * sqrt(0.24 * DRAWS));
    assert_int_equal(random_below(UINT64_MAX, 7), 6);
    assert_int_equal(random_below(0, 7), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answer), cmocka_unit_test(test_moments),
        cmocka_unit_test(test_any_start),    cmocka_unit_test(test_streams_differ),
        cmocka_unit_test(test_words),        cmocka_unit_test(test_distinct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
