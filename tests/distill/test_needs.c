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

enum { LAYERS = 8, HEADS = 16 };

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
    double got[2][LAYERS * HEADS], layers[LAYERS];
    io_error error;
    (void)state;
    for (size_t n = 0; n < sizeof models / sizeof *models; n++) {
        scene s;
        scene_open(&s, models[n]);
        dof_heads *h = read_heads(&s);
        const dof_value *values = dof_heads_values(h, DOF_ATTN);
        for (int threads = 1; threads < 4; threads += 2)
            assert_int_equal(activations_needs(&s.of, DOF_ATTN, 0x1p-8, 0, threads, got[threads / 2], &error),
                             0);
        assert_true(s.of.layers <= LAYERS && s.of.heads_q <= HEADS);
        assert_memory_equal(got[0], got[1], (size_t)(s.of.layers * s.of.heads_q) * sizeof **got);
        needs_largest(got[0], s.of.layers, s.of.heads_q, layers);
        for (int64_t layer = 0; layer < s.of.layers; layer++) {
            double most = 0;
            for (int64_t head = 0; head < s.of.heads_q; head++)
                most = fmax(most, values[layer * s.of.heads_q + head].whole);
            assert_true(fabs(layers[layer] - most) < 1e-9);
        }
        dof_heads_close(h);
        s.of.q[1][3] = NAN;
        assert_int_equal(activations_needs(&s.of, DOF_ATTN, 0x1p-8, 0, 1, got[0], &error), EXIT_INPUT);
        assert_non_null(strstr(error.text, "layer 1, head 0: its queries and keys give no numbers"));
        scene_close(&s);
    }
}

/* All queries and keys but those of first tokens, in any order: their kernel matrix, by itself. */
static void check_sample(const char *name, bool uneven)
{
    enum { ROWS = 2 * SCENE_WINDOWS * (SCENE_TOKENS - 1) };
    double got[LAYERS * HEADS];
    io_error error;
    scene s;
    scene_open(&s, name);
    if (uneven) scene_uneven(&s);
    for (int mode = 0; mode < DOF_MODES; mode += DOF_GAUSS - DOF_REL) {
        assert_int_equal(activations_needs(&s.of, (dof_mode)mode, 0x1p-8, 5, 2, got, &error), 0);
        for (int64_t n = 0; n < s.of.layers * s.of.heads_q; n++) {
            static float rows[ROWS * 64];
            const int64_t d = s.of.channels, layer = n / s.of.heads_q;
            dof_room room;
            double want;
            int64_t count = 0;
            assert_true(d <= 64);
            for (int64_t at = 0; at < SCENE_WINDOWS * SCENE_TOKENS; at++) {
                const dof_text t = activations_text(&s.of, layer, n % s.of.heads_q, at / SCENE_TOKENS);
                if (at % SCENE_TOKENS == 0 || at % SCENE_TOKENS >= t.count) continue;
                memcpy(rows + count++ * d, t.q + at % SCENE_TOKENS * t.q_row, (size_t)d * sizeof *rows);
                memcpy(rows + count++ * d, t.k + at % SCENE_TOKENS * t.k_row, (size_t)d * sizeof *rows);
            }
            assert_int_equal(dof_room_open(&room, count, d, false, &error), 0);
            dof_sample(&room, rows, count, sqrt(s.of.scale[layer]));
            assert_true(dof_kernel(&room, (dof_mode)mode, 0x1p-8, count, &want, NULL));
            assert_true(want > 1 && fabs(got[n] - want) < 1e-8 * want);
            dof_room_close(&room);
        }
    }
    scene_close(&s);
}

static void test_sample(void **state)
{
    (void)state;
    check_sample("llama", false);
    check_sample("llama", true);
    check_sample("bert", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_needs), cmocka_unit_test(test_sample) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
