/* SPDX-License-Identifier: MIT
 * Means by token, and differences in pairs with their errors over windows. */
#include "cli/distill/trial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_values(void **state)
{
    ridge_window windows[3] = { { .at.scored = 2 }, { .at.scored = 2 }, { .at.scored = 4 } };
    double base[3] = { 4, 6, 10 }, other[3] = { 5, 6, 17 };
    ridge_plan p = { .windows = windows, .window_count = 3 };
    const trial t = { .plan = &p, .count = 2, .sums = { base, other } };
    (void)state;
    const trial_value none = trial_value_of(&t, 0), more = trial_value_of(&t, 1);
    assert_true(fabs(none.mean - 2.5) < 1e-12 && fabs(none.more) < 1e-12 && fabs(none.error) < 1e-12);
    /* One more by token: the windows are off by -1, -2 and 3. */
    assert_true(fabs(more.mean - 3.5) < 1e-12 && fabs(more.more - 1) < 1e-12);
    assert_true(fabs(more.error - sqrt(14 * 3 / 2.0) / 8) < 1e-12);
    p.window_count = 1;
    assert_true(isnan(trial_value_of(&t, 1).error));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_values) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
