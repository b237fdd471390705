/* SPDX-License-Identifier: MIT */
#include "tests/support/expect.h"

#include "tests/support/compare.h"

#include <math.h>

static void say_case(const values *v)
{
    char text[700];
    spec_print(&v->spec, text, sizeof text);
    print_error("    case: %s%s%s\n", text, v->spec.kernel[0] ? " on " : "", v->spec.kernel);
}

void expect_run(values *v)
{
    const outcome r = run_values(v);
    if (r.status || r.misuse[0]) {
        say_case(v);
        fail_msg("%s", r.status ? r.error.text : r.misuse);
    }
}

void expect_near(const char *what, const values *got, slot which, const double *want, double tolerance,
                 double floor)
{
    const int64_t count = slot_size(got, which);
    const double far = compare_distance(want, got->x[which], count);
    const double size = fmax(compare_norm(want, count), floor);
    if (!(far <= tolerance * size)) {
        const shape a = slot_shape(got, which);
        const difference d = compare(want, got->x[which], count / (a.channels ? a.channels : 1), a.channels);
        say_case(got);
        fail_msg("%s: %s is off by %.3g of %.3g, allowed %.3g; worst row %lld (%.3g): %.17g, expected %.17g",
                 what, slot_names[which], far, size, tolerance, (long long)d.row, d.worst_row,
                 got->x[which][d.row * a.channels], want[d.row * a.channels]);
    }
}

void expect_same_rows(const char *what, const values *got, slot which, int64_t begin, const double *want,
                      int64_t count)
{
    const int64_t n = slot_shape(got, which).channels;
    const double *x = got->x[which] + begin * n;
    const int64_t at = compare_bits(want, x, count * n);
    if (at >= 0) {
        say_case(got);
        fail_msg("%s: %s row %lld channel %lld is %.17g, expected the bits of %.17g", what, slot_names[which],
                 (long long)(begin + at / n), (long long)(at % n), x[at], want[at]);
    }
}

void expect_same(const char *what, const values *got, slot which, const double *want)
{
    const shape a = slot_shape(got, which);
    expect_same_rows(what, got, which, 0, want, a.batch * a.heads * a.tokens);
}

void expect_any_threads(spec s, int most)
{
    s.threads = 1;
    values one = values_make(&s);
    expect_run(&one);
    for (s.threads = 2; s.threads <= most; s.threads++) {
        values more = values_like(&s, &one);
        expect_run(&more);
        for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++)
            if (one.x[which]) expect_same("more threads", &more, (slot)which, one.x[which]);
        if (one.info)
            assert_memory_equal(more.info, one.info, (size_t)slot_size(&one, SLOT_INFO) * sizeof *one.info);
        values_free(&more);
    }
    values_free(&one);
}

void expect_no_nan(const values *got)
{
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++) {
        for (int64_t i = 0; got->x[which] && i < slot_size(got, (slot)which); i++) {
            if (isnan(got->x[which][i])) {
                say_case(got);
                fail_msg("%s[%lld] is NaN", slot_names[which], (long long)i);
            }
        }
    }
}
