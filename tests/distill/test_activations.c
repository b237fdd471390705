/* SPDX-License-Identifier: MIT
 * Queries and keys of windows beside those of a text that the model reads by itself. */
#include "distill/activations.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WINDOWS = 3, TOKENS = 5 };

static const int32_t ids[WINDOWS][TOKENS] = { { 3, 1, 4, 1, 5 }, { 9, 2, 6, 5, 3 }, { 5, 8, 9, 7, 9 } };

/* Texts of any lengths follow each other. */
static const int64_t lengths[WINDOWS] = { 2, 5, 3 }, begins[WINDOWS] = { 0, 2, 7 };

static void count_one(void *to) { ++*(int *)to; }

/* `count` tokens are those of a window. */
static void check_window(const activations *a, const lm_model *m, lm_text *text, int64_t window,
                         const int32_t *tokens, int64_t count)
{
    const lm_config *c = lm_model_config(m);
    const int64_t d = c->head_dim;
    matrix hidden;
    io_error error;
    lm_text_rewind(text, 0);
    assert_int_equal(lm_text_read(text, tokens, count, &hidden, &error), 0);
    const int64_t layer = c->layers - 1;
    const lm_heads heads = lm_text_heads(text, layer, count);
    for (int64_t head = 0; head < c->heads_q; head++) {
        const dof_text got = activations_text(a, layer, head, window);
        const int64_t key = head / (c->heads_q / c->heads_kv);
        const float *const q = heads.q.data, *const k = heads.k.data;
        assert_int_equal(got.count, count);
        assert_true(got.scale >= lm_config_scale(c, layer) && got.scale <= lm_config_scale(c, layer));
        assert_int_equal(got.causal, c->architecture != LM_BERT);
        for (int64_t t = 0; t < count; t++) {
            assert_memory_equal(got.q + t * got.q_row, q + t * heads.q.row + head * d, (size_t)d * sizeof *q);
            assert_memory_equal(got.k + t * got.k_row, k + t * heads.k.row + key * d, (size_t)d * sizeof *k);
        }
    }
}

static void test_windows(void **state)
{
    static const char *const models[] = { "gpt2-scaled", "llama", "bert" };
    (void)state;
    for (size_t n = 0; n < sizeof models / sizeof *models; n++) {
        const lm_options options = lm_options_default();
        machine on = machine_cpu(LOAM_F32, 2);
        lm_files *files;
        lm_model *m;
        lm_text *text;
        activations a;
        io_error error;
        char path[4096];
        int told = 0;
        snprintf(path, sizeof path, "%s/%s", LM_TEST_DATA, models[n]);
        assert_int_equal(lm_files_open(&files, path, &error), 0);
        assert_int_equal(lm_model_open(&m, &on, files, &options, &error), 0);
        if (activations_open(&a, m, ids[0], WINDOWS, TOKENS, count_one, &told, &error))
            fail_msg("%s", error.text);
        assert_int_equal(told, WINDOWS);
        assert_int_equal(lm_text_open(&text, m, TOKENS, TOKENS, &error), 0);
        for (int64_t window = 0; window < WINDOWS; window++)
            check_window(&a, m, text, window, ids[window], TOKENS);
        assert_true(activations_even(&a));
        activations_close(&a);
        if (activations_open_texts(&a, m, ids[0], lengths, WINDOWS, NULL, NULL, &error))
            fail_msg("%s", error.text);
        for (int64_t window = 0; window < WINDOWS; window++)
            check_window(&a, m, text, window, ids[0] + begins[window], lengths[window]);
        assert_int_equal(a.tokens, 5);
        assert_false(activations_even(&a));
        activations_close(&a);
        const int32_t wrong[TOKENS] = { -1 };
        assert_int_equal(activations_open(&a, m, wrong, 1, TOKENS, NULL, NULL, &error), EXIT_INPUT);
        assert_null(a.q);
        lm_text_close(text);
        lm_model_close(m);
        lm_files_close(files);
        machine_close(&on);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_windows) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
