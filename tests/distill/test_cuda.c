/* SPDX-License-Identifier: MIT
 * Students of a tiny model that are trained on a GPU: the losses of the CPU, the same bits after a run that
 * was cut, files of the CPU. */
#include "distill/checkpoint.h"
#include "distill/gains.h"
#include "tests/distill/scene.h"

#include "cli/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SKIPPED = 77, LAYERS = 8, MOST_HEADS = 64, STEPS = 6 };

static const char path[] = "student_cuda.safetensors";

/* As many features in all layers but the last. */
static student begin(const scene *s, bool shared)
{
    int64_t each[LAYERS];
    student made;
    io_error error;
    for (int64_t i = 0; i < LAYERS; i++)
        each[i] = i == s->config->layers - 1 ? 10 : 8;
    if (student_open(&made, &s->of, each, shared, &error)) fail_msg("%s", error.text);
    if (student_calibrate(&made, &s->of, true, 2, &error)) fail_msg("%s", error.text);
    if (student_begin(&made, &s->of, STUDENT_PAIRS, 7, 2, &error)) fail_msg("%s", error.text);
    assert_true(made.layers <= LAYERS && made.layers * made.heads <= MOST_HEADS);
    return made;
}

static training_options run_options(feature_loss_kind loss, const machine *gpu)
{
    training_options o = training_options_default();
    o.loss = loss, o.steps = STEPS, o.batch = 3, o.threads = 1, o.seed = 9, o.gpu = gpu;
    return o;
}

static void open_training(training *t, student *by, const scene *s, const training_options *o)
{
    io_error error;
    if (training_open(t, by, &s->of, o, &error)) fail_msg("%s", error.text);
}

static void fetch(training *t)
{
    io_error error;
    if (training_fetch(t, &error)) fail_msg("%s", error.text);
}

static machine open_gpu(void)
{
    machine on;
    loam_error error;
    if (machine_cuda(&on, LOAM_F32, &error)) fail_msg("%s", error.text);
    return on;
}

/* The losses of each head before the first step, and before the last. */
static void losses_of(const scene *s, const training_options *o, bool shared, double out[2][MOST_HEADS])
{
    student by = begin(s, shared);
    training t;
    io_error error;
    if (o->window > 0) assert_int_equal(student_gains(&by, &s->of, o->sinks, o->window, 2, &error), 0);
    open_training(&t, &by, s, o);
    for (int64_t step = 0; step < STEPS; step++) {
        training_step(&t);
        fetch(&t);
        if (step % (STEPS - 1) == 0)
            memcpy(out[step > 0], t.losses, (size_t)(by.layers * by.heads) * sizeof(double));
    }
    training_close(&t);
    student_close(&by);
}

/* Before any step they differ by float32; then by what AdamW makes of gradients that are nearly 0, too. */
static void check_losses(const machine *on, feature_loss_kind kind, bool shared, int64_t window)
{
    training_options host = run_options(kind, NULL), gpu = run_options(kind, on);
    double want[2][MOST_HEADS] = { { 0 } }, got[2][MOST_HEADS] = { { 0 } }, worst[2] = { 0 };
    scene s;
    scene_open(&s, "llama");
    host.sinks = gpu.sinks = 2, host.window = gpu.window = window;
    losses_of(&s, &host, shared, want);
    losses_of(&s, &gpu, shared, got);
    for (int n = 0; n < MOST_HEADS; n++)
        for (int i = 0; i < 2; i++)
            worst[i] = fmax(worst[i], fabs(got[i][n] - want[i][n]) / (want[i][n] + 1e-30));
    printf("kind %d shared %d window %d: off by %.1e, after %d steps %.1e\n", (int)kind, shared, (int)window,
           worst[0], STEPS - 1, worst[1]);
    assert_true(want[0][0] > 0 && worst[0] < 1e-5 && worst[1] < 1e-3);
    scene_close(&s);
}

static void test_losses(void **state)
{
    machine on = open_gpu();
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        for (int kind = FEATURE_LOSS_SOFTMAX; kind <= FEATURE_LOSS_L2; kind++)
            check_losses(&on, (feature_loss_kind)kind, shared, 0);
        check_losses(&on, FEATURE_LOSS_SOFTMAX, shared, 5);
    }
    machine_close(&on);
}

static void check_same(const student *a, const student *b)
{
    for (int64_t i = 0; i < a->layers; i++) {
        const size_t rows = (size_t)(a->heads * a->layer[i].features);
        assert_memory_equal(a->layer[i].z, b->layer[i].z, rows * (size_t)a->channels * sizeof(double));
        assert_memory_equal(a->layer[i].log_alpha, b->layer[i].log_alpha, rows * sizeof(double));
    }
}

/* All steps at once, and in two runs through a file, which a run on the CPU refuses. */
static void test_resumed(void **state)
{
    machine on = open_gpu();
    const training_options o = run_options(FEATURE_LOSS_SOFTMAX, &on),
                           host = run_options(FEATURE_LOSS_SOFTMAX, NULL);
    io_error error;
    bool found;
    scene s;
    (void)state;
    scene_open(&s, "llama");
    unlink(path);
    student by[2] = { begin(&s, false), begin(&s, false) }, before = begin(&s, false);
    training t;
    open_training(&t, &by[0], &s, &o);
    while (training_taken(&t) < STEPS)
        training_step(&t);
    fetch(&t);
    training_close(&t);
    double moved = 0;
    for (int64_t e = 0; e < by[0].channels; e++)
        moved = fmax(moved, fabs(by[0].layer[0].z[e] - before.layer[0].z[e]));
    printf("z moved by up to %g\n", moved);
    assert_true(moved > 0.02);
    open_training(&t, &by[1], &s, &o);
    for (int i = 0; i < STEPS / 2; i++)
        training_step(&t);
    if (training_save(&t, path, &error)) fail_msg("%s", error.text);
    training_close(&t);
    student_close(&by[1]);
    by[1] = begin(&s, false);
    open_training(&t, &by[1], &s, &o);
    if (training_load(&t, path, &found, &error)) fail_msg("%s", error.text);
    assert_true(found);
    assert_int_equal(training_taken(&t), STEPS / 2);
    while (training_taken(&t) < STEPS)
        training_step(&t);
    fetch(&t);
    training_close(&t);
    check_same(&by[0], &by[1]);
    open_training(&t, &before, &s, &host);
    assert_int_equal(training_load(&t, path, &found, &error), EXIT_INPUT);
    assert_non_null(strstr(error.text, "is of another run"));
    training_close(&t);
    for (int n = 0; n < 2; n++)
        student_close(&by[n]);
    student_close(&before);
    unlink(path);
    scene_close(&s);
    machine_close(&on);
}

int main(void)
{
    if (!device_count()) {
        print_message("skipped: no CUDA device\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_losses), cmocka_unit_test(test_resumed) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
