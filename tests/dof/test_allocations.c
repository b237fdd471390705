/* SPDX-License-Identifier: MIT
 * Every allocation fails once: each time an error that says so, and nothing is left behind. */
#include "dof/draw.h"
#include "dof/heads.h"
#include "dof/rank.h"
#include "tests/support/alloc_fail.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 12, DIM = 4, FEATURES = 8 };

static machine on;
static lm_files *files;
static lm_model *model;

static int open_model(void **state)
{
    const lm_options options = lm_options_default();
    io_error error;
    (void)state;
    on = machine_cpu(LOAM_F32, 1);
    return lm_files_open(&files, LM_TEST_DATA "/llama", &error) ||
           lm_model_open(&model, &on, files, &options, &error);
}

static int close_model(void **state)
{
    (void)state;
    lm_model_close(model);
    lm_files_close(files);
    machine_close(&on);
    return 0;
}

/* `action` with its first, second, ... allocation failing, until it has no more. */
static void fail_each(int (*action)(io_error *error), int least)
{
    for (int nth = 1;; nth++) {
        io_error error = { 0 };
        alloc_fail_at(nth);
        const int status = action(&error);
        const bool happened = alloc_fail_happened();
        alloc_fail_at(0);
        if (!happened) {
            if (status) fail_msg("with every allocation: %s", error.text);
            assert_true(nth > least);
            return;
        }
        if (status != EXIT_INTERNAL || !strstr(error.text, "out of memory"))
            fail_msg("allocation %d: status %d, '%s'", nth, status, error.text);
    }
}

static int open_heads(io_error *error)
{
    static const int64_t lengths[] = { TOKENS };
    const dof_options o = { { true, true, true, true }, 0x1p-8, 8, 1, 0, 2 };
    dof_heads *h;
    const int status = dof_heads_open(&h, model, &o, lengths, 1, error);
    assert_int_equal(status != 0, h == NULL);
    dof_heads_close(h);
    return status;
}

static int open_capture(io_error *error)
{
    lm_capture *c;
    const int status = lm_capture_open(&c, model, TOKENS, error);
    assert_int_equal(status != 0, c == NULL);
    lm_capture_close(c);
    return status;
}

static int draw(io_error *error)
{
    float x[2 * TOKENS * DIM];
    double z[FEATURES * DIM], log_alpha[FEATURES], n, effective, rho;
    draw_pairs p;
    for (int i = 0; i < 2 * TOKENS * DIM; i++)
        x[i] = (float)(i % 7) / 8;
    const dof_text text = { x, x + TOKENS * DIM, DIM, DIM, TOKENS, 1, true };
    const random_stream from = { 0, 0 };
    int status = draw_pairs_open(&p, &text, DIM, 0, FEATURES, from, error);
    if (status) {
        assert_null(p.sums);
        return status;
    }
    const draw_leverage by = { &p, x, 2 * TOKENS, DIM, FEATURES, 1, 0x1p-8 };
    status = draw_by_leverage(&by, FEATURES, from, z, log_alpha, &n, &effective, error);
    if (!status) status = dof_rank_correlation(z, log_alpha, FEATURES, &rho, error);
    draw_pairs_close(&p);
    return status;
}

static void test_heads(void **state)
{
    (void)state;
    fail_each(open_heads, 20);
}

static void test_capture(void **state)
{
    (void)state;
    fail_each(open_capture, 5);
}

static void test_draw(void **state)
{
    (void)state;
    fail_each(draw, 14);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_capture),
        cmocka_unit_test(test_draw),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
