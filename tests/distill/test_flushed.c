/* SPDX-License-Identifier: MIT
 * Shares of tokens that take the past of a feature away, beside maxima over all keys before. */
#include "distill/flushed.h"
#include "tests/distill/scene.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 8 };

/* ceil of the logarithm of feature m of the key of token t, from the equation. */
static double level(const scene *s, const student *by, int64_t layer, int64_t head, int64_t w, int64_t t,
                    int64_t m)
{
    const student_layer *l = &by->layer[layer];
    const int64_t d = by->channels, M = l->features;
    const dof_text text = activations_text(&s->of, layer, head * by->queries, w);
    double sum = l->log_alpha[head * M + m];
    for (int64_t i = 0; i < d; i++) {
        double y = 0;
        for (int64_t c = 0; c < d; c++)
            y += l->balance_keys[(head * d + i) * d + c] * sqrt(s->of.scale[layer]) *
                 ((double)text.k[t * text.k_row + c] - l->shift[head * d + c]);
        sum += l->z[(head * M + m) * d + i] * y - y * y / 2;
    }
    return ceil(sum);
}

static bool is_flushed(const scene *s, const student *by, int64_t layer, int64_t head, int64_t w, int64_t t)
{
    for (int64_t m = 0; m < by->layer[layer].features; m++) {
        double before = -HUGE_VAL;
        for (int64_t j = 0; j < t; j++)
            before = fmax(before, level(s, by, layer, head, w, j, m));
        if (t > 0 && level(s, by, layer, head, w, t, m) > before + 20) return true;
    }
    return false;
}

static void test_shares(void **state)
{
    double got[2][LAYERS];
    io_error error;
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        scene s;
        scene_open(&s, "llama");
        if (shared) scene_uneven(&s);
        student by = scene_student(&s, shared);
        /* In the first layer keys are far from each other, in the second they are alike. */
        for (int64_t i = 0; i < by.heads * by.layer[0].features * by.channels; i++)
            by.layer[0].z[i] *= 4;
        for (int64_t e = 0; e < s.of.begins[s.of.windows] * s.of.heads_kv * s.of.channels; e++)
            s.of.k[0][e] *= e / (s.of.heads_kv * s.of.channels) % 3 == 1 ? 4 : 1;
        for (int threads = 1; threads < 4; threads += 2)
            assert_int_equal(student_flushed(&by, &s.of, threads, got[threads / 2], &error), 0);
        assert_memory_equal(got[0], got[1], (size_t)by.layers * sizeof **got);
        for (int64_t layer = 0; layer < by.layers; layer++) {
            int64_t count = 0, all = by.heads * s.of.begins[s.of.windows];
            for (int64_t n = 0; n < by.heads * s.of.windows; n++) {
                const int64_t head = n / s.of.windows, w = n % s.of.windows;
                for (int64_t t = 0; t < s.of.begins[w + 1] - s.of.begins[w]; t++)
                    count += is_flushed(&s, &by, layer, head, w, t);
            }
            printf("layer %d: %d of %d\n", (int)layer, (int)count, (int)all);
            assert_true(layer > 0 || (count > 0 && count < all / 2));
            assert_true(fabs(got[0][layer] - (double)count / (double)all) < 1e-12);
        }
        student_close(&by);
        scene_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_shares) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
