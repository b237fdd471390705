/* SPDX-License-Identifier: MIT
 * Every allocation fails once: each time an error that says so, and nothing is left behind. */
#include "distill/balance.h"
#include "distill/cascade.h"
#include "distill/checkpoint.h"
#include "distill/flushed.h"
#include "distill/reading.h"
#include "tests/distill/scene.h"
#include "tests/support/alloc_fail.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char path[] = "student.safetensors";
static const int64_t features[] = { 3, 3, 3, 3, 3, 3, 3, 3 };
static scene of, encoder;

static int open_scene(void **state)
{
    (void)state;
    scene_open(&of, "llama");
    scene_open(&encoder, "bert");
    return 0;
}

static int close_scene(void **state)
{
    (void)state;
    scene_close(&of);
    scene_close(&encoder);
    unlink(path);
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
        if (status != EXIT_INTERNAL || !strstr(error.text, "memory"))
            fail_msg("allocation %d: status %d, '%s'", nth, status, error.text);
    }
}

static int read_windows(io_error *error)
{
    activations a;
    const int status = activations_open(&a, of.model, of.ids[0], 1, SCENE_TOKENS, NULL, NULL, error);
    assert_int_equal(status != 0, a.q == NULL);
    activations_close(&a);
    return status;
}

static int begin(io_error *error)
{
    student s;
    reading r;
    int status = student_open(&s, &of.of, features, false, error);
    if (status) {
        assert_null(s.layer);
        return status;
    }
    status = student_calibrate(&s, &of.of, true, 1, error);
    if (!status) status = student_begin(&s, &of.of, STUDENT_PAIRS, 1, 1, error);
    double shares[8];
    if (!status) status = student_untie(&s, error);
    if (!status) status = student_flushed(&s, &of.of, 1, shares, error);
    if (!status) {
        status = reading_open(&r, &s, &of.on, error);
        assert_int_equal(status != 0, r.layers == NULL);
        reading_close(&r);
    }
    student_close(&s);
    return status;
}

/* An encoder by untied features: states, and queries and keys of twice the channels. */
static int read_encoder(io_error *error)
{
    lm_options options = lm_options_default();
    lm_text *text = NULL;
    student s;
    reading r = { 0 };
    matrix hidden;
    int status = student_open(&s, &encoder.of, features, false, error);
    if (status) return status;
    status = student_untie(&s, error);
    if (!status) status = reading_open(&r, &s, &encoder.on, error);
    options.features = r.layers;
    if (!status) status = lm_text_open(&text, encoder.model, SCENE_TOKENS, SCENE_TOKENS, error);
    if (!status) status = lm_text_attention(text, &options, error);
    if (!status) status = lm_text_read(text, encoder.ids[0], SCENE_TOKENS, &hidden, error);
    lm_text_close(text);
    reading_close(&r);
    student_close(&s);
    return status;
}

static int pass_layer(io_error *error)
{
    student s;
    cascade c;
    int status = student_open(&s, &of.of, features, false, error);
    if (status) return status;
    status = cascade_open(&c, of.model, &s, &of.of, of.ids[0], error);
    assert_int_equal(status != 0, c.text == NULL);
    if (!status) status = cascade_look(&c, error);
    if (!status) status = cascade_pass(&c, error);
    cascade_close(&c);
    student_close(&s);
    return status;
}

static int train(io_error *error)
{
    training_options o = training_options_default();
    student s;
    training t;
    bool found;
    o.batch = 1, o.threads = 1;
    int status = student_open(&s, &of.of, features, false, error);
    if (status) return status;
    t = (training){ 0 };
    status = student_untie(&s, error);
    if (!status) status = training_open(&t, &s, &of.of, &o, error);
    assert_int_equal(status != 0, t.z == NULL);
    if (!status) status = training_save(&t, path, error);
    if (!status) status = training_load(&t, path, &found, error);
    training_close(&t);
    student_close(&s);
    return status;
}

static void test_windows(void **state)
{
    (void)state;
    fail_each(read_windows, 5);
}

static void test_student(void **state)
{
    (void)state;
    fail_each(begin, 20);
}

static void test_encoder(void **state)
{
    (void)state;
    fail_each(read_encoder, 20);
}

static void test_cascade(void **state)
{
    (void)state;
    fail_each(pass_layer, 15);
}

static void test_training(void **state)
{
    (void)state;
    fail_each(train, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows), cmocka_unit_test(test_student),  cmocka_unit_test(test_encoder),
        cmocka_unit_test(test_cascade), cmocka_unit_test(test_training),
    };
    return cmocka_run_group_tests(tests, open_scene, close_scene);
}
