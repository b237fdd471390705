/* SPDX-License-Identifier: MIT
 * The divergence of one distribution of words from another. */
#include "train/machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_divergence) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
