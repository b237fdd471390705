/* SPDX-License-Identifier: MIT
 * Training of students of a tiny model: each loss falls, of all heads; threads, resuming, files of others. */
#include "distill/checkpoint.h"
#include "tests/distill/scene.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LAYERS = 8, MOST_HEADS = 64 };

static const char path[] = "student.safetensors";

/* As many features in all layers but the last. */
static student begin(const scene *s, student_start start, bool shared, int64_t features)
{
    int64_t each[LAYERS];
    student made;
    io_error error;
    for (int64_t i = 0; i < LAYERS; i++)
        each[i] = i == s->config->layers - 1 ? features + 2 : features;
    if (student_open(&made, &s->of, each, shared, &error)) fail_msg("%s", error.text);
    if (student_calibrate(&made, &s->of, true, 2, &error)) fail_msg("%s", error.text);
    if (student_begin(&made, &s->of, start, 7, 2, &error)) fail_msg("%s", error.text);
    return made;
}

static training_options short_run(int64_t steps, int threads)
{
    training_options o = training_options_default();
    o.steps = steps, o.batch = 3, o.threads = threads, o.seed = 9;
    return o;
}

static void open_training(training *t, student *by, const scene *s, const training_options *o)
{
    io_error error;
    if (training_open(t, by, &s->of, o, &error)) fail_msg("%s", error.text);
}

/* Of all windows, before any step: the losses of each head. */
static void losses_of(student *by, const scene *s, feature_loss_kind kind, double *out)
{
    training_options o = short_run(1, 2);
    student copy = *by;
    o.loss = kind, o.batch = SCENE_WINDOWS, o.rate = o.rate_log_alpha = 0;
    training t;
    open_training(&t, &copy, s, &o);
    training_step(&t);
    memcpy(out, t.losses, (size_t)(by->layers * by->heads) * sizeof *out);
    training_close(&t);
}

/* Every head's loss falls. Of the softmax loss a large part is the entropy of the attention itself. */
static void test_losses(void **state)
{
    static const char *const names[] = { "softmax", "l2row", "l2" };
    (void)state;
    for (int kind = FEATURE_LOSS_SOFTMAX; kind <= FEATURE_LOSS_L2; kind++)
        for (int shared = 0; shared < 3; shared++) {
            double before[MOST_HEADS], after[MOST_HEADS], sums[2] = { 0 };
            training_options o = short_run(60, 2);
            scene s;
            scene_open(&s, shared == 2 ? "bert" : "llama");
            if (shared == 2) scene_uneven(&s);
            student by = begin(&s, STUDENT_NORMAL, shared == 1, 16);
            assert_true(by.layers * by.heads <= MOST_HEADS);
            losses_of(&by, &s, (feature_loss_kind)kind, before);
            o.loss = (feature_loss_kind)kind;
            training t;
            open_training(&t, &by, &s, &o);
            while (training_taken(&t) < o.steps)
                training_step(&t);
            training_close(&t);
            losses_of(&by, &s, (feature_loss_kind)kind, after);
            for (int64_t n = 0; n < by.layers * by.heads; n++) {
                assert_true(after[n] < before[n]);
                sums[0] += before[n], sums[1] += after[n];
            }
            printf("%-8s %d: %.4g, trained %.4g\n", names[kind], shared, sums[0], sums[1]);
            assert_true(sums[1] < (kind == FEATURE_LOSS_SOFTMAX ? shared == 2 ? 0.95 : 0.9 : 0.6) * sums[0]);
            student_close(&by);
            scene_close(&s);
        }
}

/* Gradients are those of the mean over windows and queries: of z and log alpha by central differences. */
static void test_gradients(void **state)
{
    training_options o = short_run(1, 1);
    scene s;
    (void)state;
    scene_open(&s, "llama");
    o.batch = SCENE_WINDOWS, o.rate = o.rate_log_alpha = 0;
    student by = begin(&s, STUDENT_PAIRS, true, 6);
    training t;
    open_training(&t, &by, &s, &o);
    training_step(&t);
    const int64_t layer = 1, head = by.heads - 1, place = layer * by.heads + head, M = 6;
    for (int which = 0; which < 2; which++) {
        double *const x = which ? by.layer[layer].log_alpha + head * M + 2
                                : by.layer[layer].z + (head * M + 2) * by.channels + 1;
        const double got = which ? ((double *)t.log_alpha[layer].g.data)[head * M + 2]
                                 : ((double *)t.z[layer].g.data)[(head * M + 2) * by.channels + 1];
        double loss[2][MOST_HEADS];
        for (int side = 0; side < 2; side++) {
            *x += side ? -2e-5 : 1e-5;
            losses_of(&by, &s, FEATURE_LOSS_SOFTMAX, loss[side]);
        }
        *x += 1e-5;
        const double want = (loss[0][place] - loss[1][place]) / 2e-5;
        printf("%s: %.9f, by differences %.9f\n", which ? "log alpha" : "z", got, want);
        assert_true(fabs(want) > 1e-6 && fabs(got - want) < 1e-6 * (fabs(want) + 1e-2));
    }
    training_close(&t);
    student_close(&by);
    scene_close(&s);
}

/* Of all windows and queries of a head of keys, by itself. */
static double loss_of_head(const student *by, const scene *s, int64_t layer, int64_t head)
{
    const int64_t d = by->channels, M = by->layer[layer].features;
    double *const x = calloc((size_t)(2 * SCENE_TOKENS * d), sizeof *x), *const y = x + SCENE_TOKENS * d;
    double *const grad = calloc((size_t)(M * (d + 1)), sizeof *grad), sum = 0;
    feature_loss loss = { .kind = FEATURE_LOSS_SOFTMAX,
                          .causal = s->of.causal,
                          .tokens = SCENE_TOKENS,
                          .channels = d,
                          .features = M,
                          .x = x,
                          .y = y,
                          .z = by->layer[layer].z + head * M * d,
                          .log_alpha = by->layer[layer].log_alpha + head * M };
    double *const work = calloc(feature_loss_doubles(&loss), sizeof *work);
    assert_true(x && grad && work);
    for (int64_t w = 0; w < SCENE_WINDOWS; w++)
        for (int64_t n = 0; n < by->queries; n++) {
            student_rows(by, &s->of, layer, head, n, w, x, y);
            loss.tokens = s->of.begins[w + 1] - s->of.begins[w];
            sum += feature_loss_run(&loss, grad, NULL, grad + M * d, work);
        }
    free(x);
    free(grad);
    free(work);
    return sum / (double)(SCENE_WINDOWS * by->queries);
}

/* Losses are means over the windows and the queries of a group, of whatever length these are. */
static void check_means(const char *name, bool uneven)
{
    training_options o = short_run(1, 2);
    scene s;
    scene_open(&s, name);
    if (uneven) scene_uneven(&s);
    o.batch = SCENE_WINDOWS;
    student by = begin(&s, STUDENT_PAIRS, true, 6), copy = begin(&s, STUDENT_PAIRS, true, 6);
    assert_int_equal(by.queries, s.config->heads_q / s.config->heads_kv);
    training t;
    open_training(&t, &by, &s, &o);
    training_step(&t);
    for (int64_t n = 0; n < by.layers * by.heads; n++)
        assert_true(fabs(t.losses[n] - loss_of_head(&copy, &s, n / by.heads, n % by.heads)) < 1e-12);
    training_close(&t);
    student_close(&by);
    student_close(&copy);
    scene_close(&s);
}

static void test_means(void **state)
{
    (void)state;
    check_means("llama", false);
    check_means("llama", true);
    check_means("bert", true);
}

/* A GPU has arrays of one length. */
static void test_lengths_on_a_gpu(void **state)
{
    training_options o = short_run(1, 1);
    training t;
    io_error error;
    scene s;
    (void)state;
    scene_open(&s, "bert");
    scene_uneven(&s);
    student by = begin(&s, STUDENT_PAIRS, false, 6);
    o.gpu = &s.on; /* nothing asks it */
    assert_int_equal(training_open(&t, &by, &s.of, &o, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "texts of different lengths"));
    student_close(&by);
    scene_close(&s);
}

/* Each pass has every window once, and an order of its own. */
static void test_order(void **state)
{
    enum { PASSES = 8 };
    training_options o = short_run(PASSES * SCENE_WINDOWS / 2, 1);
    int64_t order[PASSES][SCENE_WINDOWS];
    bool differ = false;
    scene s;
    (void)state;
    scene_open(&s, "llama");
    o.batch = 2;
    student by = begin(&s, STUDENT_NORMAL, false, 2);
    training t;
    open_training(&t, &by, &s, &o);
    for (int i = 0; i < PASSES * SCENE_WINDOWS; i += 2) {
        training_step(&t);
        memcpy(&order[i / SCENE_WINDOWS][i % SCENE_WINDOWS], t.chosen, 2 * sizeof **order);
    }
    for (int pass = 0; pass < PASSES; pass++) {
        int seen = 0;
        for (int i = 0; i < SCENE_WINDOWS; i++) {
            seen |= 1 << order[pass][i];
            differ |= order[pass][i] != order[0][i];
        }
        assert_int_equal(seen, (1 << SCENE_WINDOWS) - 1);
    }
    assert_true(differ);
    training_close(&t);
    student_close(&by);
    scene_close(&s);
}

static void check_same(const student *a, const student *b)
{
    for (int64_t i = 0; i < a->layers; i++) {
        const size_t rows = (size_t)(a->heads * a->layer[i].features);
        assert_memory_equal(a->layer[i].z, b->layer[i].z, rows * (size_t)a->channels * sizeof(double));
        assert_memory_equal(a->layer[i].log_alpha, b->layer[i].log_alpha, rows * sizeof(double));
        if (a->layer[i].z_keys)
            assert_memory_equal(a->layer[i].z_keys, b->layer[i].z_keys,
                                rows * (size_t)a->channels * sizeof(double));
    }
}

/* Five steps at once, by other threads, and in two runs through a file: the same bits. */
static student begin_tied_or_not(const scene *s, student_start start, bool untied)
{
    student made = begin(s, start, false, 6);
    io_error error;
    if (untied && student_untie(&made, &error)) fail_msg("%s", error.text);
    return made;
}

static void check_resumed(bool untied)
{
    student by[3];
    io_error error;
    bool found;
    scene s;
    scene_open(&s, "llama");
    unlink(path);
    for (int n = 0; n < 3; n++) {
        const training_options o = short_run(5, n == 1 ? 3 : 1);
        by[n] = begin_tied_or_not(&s, STUDENT_PAIRS, untied);
        training t;
        open_training(&t, &by[n], &s, &o);
        assert_int_equal(training_load(&t, path, &found, &error), 0);
        assert_false(found);
        for (int i = 0; i < (n == 2 ? 2 : 5); i++)
            training_step(&t);
        if (n == 2) assert_int_equal(training_save(&t, path, &error), 0);
        training_close(&t);
    }
    check_same(&by[0], &by[1]);
    student_close(&by[2]);
    by[2] = begin_tied_or_not(&s, STUDENT_NORMAL, untied);
    const training_options o = short_run(5, 2);
    training t;
    open_training(&t, &by[2], &s, &o);
    if (training_load(&t, path, &found, &error)) fail_msg("%s", error.text);
    assert_true(found);
    assert_int_equal(training_taken(&t), 2);
    while (training_taken(&t) < 5)
        training_step(&t);
    training_close(&t);
    check_same(&by[0], &by[2]);
    for (int n = 0; n < 3; n++)
        student_close(&by[n]);
    unlink(path);
    scene_close(&s);
}

static void test_resumed(void **state)
{
    (void)state;
    check_resumed(false);
    check_resumed(true);
}

/* Keys begin as queries do, and untied losses fall further than those of the same steps with one z. */
static void test_untied(void **state)
{
    double after[3][MOST_HEADS], sums[3] = { 0 };
    scene s;
    (void)state;
    scene_open(&s, "llama");
    for (int n = 0; n < 3; n++) {
        const training_options o = short_run(n == 0 ? 1 : 100, 2);
        student by = begin_tied_or_not(&s, STUDENT_PAIRS, n == 2);
        training t;
        open_training(&t, &by, &s, &o);
        while (n > 0 && training_taken(&t) < o.steps)
            training_step(&t);
        training_close(&t);
        losses_of(&by, &s, FEATURE_LOSS_SOFTMAX, after[n]);
        for (int64_t i = 0; i < by.layers * by.heads; i++)
            sums[n] += after[n][i];
        if (n == 2)
            assert_memory_not_equal(by.layer[0].z, by.layer[0].z_keys,
                                    6 * (size_t)by.channels * sizeof(double));
        student_close(&by);
    }
    printf("untied: from %.4f, tied %.4f, untied %.4f\n", sums[0], sums[1], sums[2]);
    assert_true(sums[1] < sums[0] && sums[2] < sums[1]);
    training_options o = short_run(1, 1);
    student by = begin_tied_or_not(&s, STUDENT_PAIRS, true);
    training t;
    io_error error;
    o.gpu = &s.on; /* nothing asks it */
    assert_int_equal(training_open(&t, &by, &s.of, &o, &error), EXIT_USAGE);
    assert_non_null(strstr(error.text, "untied features"));
    student_close(&by);
    scene_close(&s);
}

/* Heads with 6 of 9 features begin and train as those that have 6; of l2row the mean over features counts. */
static void test_used(void **state)
{
    training_options o = short_run(4, 1);
    int64_t used[MOST_HEADS], each[LAYERS];
    io_error error;
    scene s;
    (void)state;
    scene_open(&s, "llama");
    o.loss = FEATURE_LOSS_L2ROW;
    student six = begin(&s, STUDENT_PAIRS, false, 6), nine;
    for (int i = 0; i < LAYERS; i++)
        each[i] = 9;
    for (int64_t i = 0; i < six.layers * six.heads; i++)
        used[i] = six.layer[i / six.heads].features;
    assert_int_equal(student_open(&nine, &s.of, each, false, &error), 0);
    student_use(&nine, used);
    assert_int_equal(student_calibrate(&nine, &s.of, true, 1, &error), 0);
    assert_int_equal(student_begin(&nine, &s.of, STUDENT_PAIRS, 7, 1, &error), 0);
    training t[2];
    open_training(&t[0], &six, &s, &o);
    open_training(&t[1], &nine, &s, &o);
    for (int i = 0; i < 8; i++)
        training_step(&t[i % 2]);
    for (int64_t n = 0; n < six.layers * six.heads; n++) {
        const student_layer *a = &six.layer[n / six.heads], *b = &nine.layer[n / six.heads];
        const int64_t head = n % six.heads, d = six.channels, M = a->features;
        assert_memory_equal(a->z + head * M * d, b->z + head * 9 * d, (size_t)(M * d) * sizeof(double));
        assert_memory_equal(a->log_alpha + head * M, b->log_alpha + head * 9, (size_t)M * sizeof(double));
        for (int64_t m = M; m < 9; m++)
            assert_true(b->log_alpha[head * 9 + m] < -9999 && b->log_alpha[head * 9 + m] > -10001);
        assert_true(fabs(t[0].losses[n] - t[1].losses[n]) < 1e-15);
    }
    training_close(&t[0]);
    training_close(&t[1]);
    student_close(&six);
    student_close(&nine);
    scene_close(&s);
}

static void refuse(const scene *s, student *by, training_options o, const char *text)
{
    io_error error;
    bool found;
    const size_t bytes = (size_t)(by->heads * by->layer[0].features * by->channels) * sizeof(double);
    double *const before = malloc(bytes);
    assert_non_null(before);
    memcpy(before, by->layer[0].z, bytes);
    training t;
    open_training(&t, by, s, &o);
    assert_int_equal(training_load(&t, path, &found, &error), EXIT_INPUT);
    if (!strstr(error.text, text)) fail_msg("%s", error.text);
    assert_int_equal(training_taken(&t), 0);
    assert_memory_equal(before, by->layer[0].z, bytes);
    free(before);
    training_close(&t);
}

static void test_refused(void **state)
{
    io_error error;
    scene s;
    training none;
    (void)state;
    scene_open(&s, "llama");
    student by = begin(&s, STUDENT_PAIRS, false, 6), other = begin(&s, STUDENT_PAIRS, false, 4);
    training_options o = short_run(5, 1);
    training t;
    open_training(&t, &by, &s, &o);
    training_step(&t);
    assert_int_equal(training_save(&t, path, &error), 0);
    training_close(&t);
    refuse(&s, &other, o, "tensor 'layer0.z'");
    training_options another = o;
    another.loss = FEATURE_LOSS_L2ROW;
    refuse(&s, &by, another, "is of another run: it has");
    by.layer[1].shift[2] += 1e-9;
    refuse(&s, &by, o, "'layer1.shift' is not that of these texts");
    another.batch = SCENE_WINDOWS + 1;
    assert_int_equal(training_open(&none, &by, &s.of, &another, &error), EXIT_USAGE);
    assert_non_null(
        strstr(error.text, "5 steps of 5 windows: expected at least one step, of 1 to 4 windows"));
    student_close(&by);
    student_close(&other);
    unlink(path);
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses),  cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_means),   cmocka_unit_test(test_lengths_on_a_gpu),
        cmocka_unit_test(test_used),    cmocka_unit_test(test_order),
        cmocka_unit_test(test_resumed), cmocka_unit_test(test_untied),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
