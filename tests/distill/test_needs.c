/* SPDX-License-Identifier: MIT
 * What layers need, beside degrees of freedom that dof/ finds as the model reads the same windows. */
#include "distill/needs.h"
#include "dof/heads.h"
#include "tests/distill/scene.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 8 };

static dof_heads *read_heads(const scene *s)
{
    const dof_options o = { .modes = { [DOF_ATTN] = true }, .lambda = 0x1p-8, .threads = 1 };
    int64_t lengths[SCENE_WINDOWS];
    dof_heads *h;
    lm_capture *capture;
    io_error error;
    for (int w = 0; w < SCENE_WINDOWS; w++)
        lengths[w] = SCENE_TOKENS;
    assert_int_equal(dof_heads_open(&h, s->model, &o, lengths, SCENE_WINDOWS, &error), 0);
    assert_int_equal(lm_capture_open(&capture, s->model, SCENE_TOKENS, &error), 0);
    for (int w = 0; w < SCENE_WINDOWS; w++) {
        dof_heads_window(h);
        assert_int_equal(lm_capture_read(capture, s->ids[w], SCENE_TOKENS, dof_heads_sink, h, &error), 0);
    }
    lm_capture_close(capture);
    return h;
}

static void test_needs(void **state)
{
    static const char *const models[] = { "gpt2-scaled", "llama" };
    double got[2][LAYERS];
    io_error error;
    (void)state;
    for (size_t n = 0; n < sizeof models / sizeof *models; n++) {
        scene s;
        scene_open(&s, models[n]);
        dof_heads *h = read_heads(&s);
        const dof_value *values = dof_heads_values(h, DOF_ATTN);
        for (int threads = 1; threads < 4; threads += 2)
            assert_int_equal(activations_needs(&s.of, 0x1p-8, threads, got[threads / 2], &error), 0);
        assert_memory_equal(got[0], got[1], (size_t)s.of.layers * sizeof **got);
        for (int64_t layer = 0; layer < s.of.layers; layer++) {
            double most = 0;
            for (int64_t head = 0; head < s.of.heads_q; head++)
                most = fmax(most, values[layer * s.of.heads_q + head].whole);
            assert_true(fabs(got[0][layer] - most) < 1e-9);
        }
        dof_heads_close(h);
        s.of.q[1][3] = NAN;
        assert_int_equal(activations_needs(&s.of, 0x1p-8, 1, got[0], &error), EXIT_INPUT);
        assert_non_null(strstr(error.text, "layer 1, head 0: its queries and keys give no numbers"));
        scene_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_needs) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
