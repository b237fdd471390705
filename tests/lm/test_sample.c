/* SPDX-License-Identifier: MIT */
#include "lm/sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { WORDS = 6, DRAWS = 20000 };

static const float logits[WORDS] = { 0, 1, 2, -1, 2, -INFINITY };

/* How often each token comes, of DRAWS. */
static void draw(double share[WORDS], double temperature, int64_t top_k, double top_p, uint64_t seed)
{
    const sampling how = { temperature, top_k, top_p, seed };
    sampler *s;
    io_error error;
    for (int i = 0; i < WORDS; i++)
        share[i] = 0;
    assert_int_equal(sampler_open(&s, &how, WORDS, &error), 0);
    for (int64_t n = 0; n < DRAWS; n++) {
        const int32_t token = sampler_next(s, logits, n);
        assert_true(token >= 0 && token < WORDS);
        assert_int_equal(token, sampler_next(s, logits, n));
        share[token] += 1.0 / DRAWS;
    }
    sampler_close(s);
}

/* Four standard errors. */
static void expect(const double share[WORDS], const double want[WORDS])
{
    double sum = 0;
    for (int i = 0; i < WORDS; i++)
        sum += want[i];
    for (int i = 0; i < WORDS; i++) {
        const double p = want[i] / sum;
        assert_true(fabs(share[i] - p) <= 4 * sqrt(p * (1 - p) / DRAWS) + 1e-9);
    }
}

static void test_shares(void **state)
{
    double share[WORDS], other[WORDS];
    const double plain[WORDS] = { 1, exp(1), exp(2), exp(-1), exp(2), 0 },
                 cold[WORDS] = { 1, exp(2), exp(4), exp(-2), exp(4), 0 },
                 three[WORDS] = { 0, exp(1), exp(2), 0, exp(2), 0 }, two[WORDS] = { 0, 0, 1, 0, 1, 0 },
                 first[WORDS] = { 0, 0, 1, 0, 0, 0 };
    (void)state;
    draw(share, 1, 0, 1, 1);
    expect(share, plain);
    draw(other, 1, 0, 1, 2);
    assert_true(fabs(share[2] - other[2]) > 0);
    draw(share, 0.5, 0, 1, 1);
    expect(share, cold);
    draw(share, 1, 3, 1, 1);
    expect(share, three);
    /* Both likeliest have 0.78 of all. */
    draw(share, 1, 0, 0.7, 1);
    expect(share, two);
    draw(share, 1, 3, 0.9, 1);
    expect(share, three);
    draw(share, 1, 0, 1e-9, 1);
    expect(share, first);
    draw(share, 1, 1, 1, 1);
    expect(share, first);
    draw(share, 0, 0, 1, 1);
    expect(share, first);
}

static void test_no_token(void **state)
{
    const float none[WORDS] = { NAN, -INFINITY, NAN, -INFINITY, NAN, NAN };
    sampling how = { 0, 0, 1, 0 };
    (void)state;
    for (int n = 0; n < 2; n++) {
        sampler *s;
        io_error error;
        how.temperature = n;
        assert_int_equal(sampler_open(&s, &how, WORDS, &error), 0);
        assert_int_equal(sampler_next(s, none, 0), -1);
        sampler_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_shares), cmocka_unit_test(test_no_token) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
