/* SPDX-License-Identifier: MIT
 * Losses of positive features of many heads on a GPU, and their gradients, against float64 on the CPU: odd
 * lengths, channels and numbers of features, queries that share a head, large norms; the same bits whatever
 * else is computed. */
#include "tests/support/memory.h"
#include "tests/support/random.h"
#include "train/feature_losses.h"

#include "cli/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SKIPPED = 77, MOST_HEADS = 3, WINDOWS = 3 };

typedef struct shape {
    feature_loss_kind kind;
    bool causal;
    int64_t tokens, channels, queries, features[MOST_HEADS]; /* the first that is 0 ends them */
    double size;                                             /* of queries and keys */
    int64_t sinks, window;                                   /* window 0: none */
} shape;

/* Numbers of one head, with its results. */
typedef struct numbers_of_head {
    double *x, *y, *z, *log_alpha, *grad, loss; /* grad: of z, then of log alpha */
} numbers_of_head;

typedef struct scene {
    shape is;
    machine on;
    int64_t heads;
    feature_losses l;
    memory room;
    feature_head head[MOST_HEADS];
    numbers_of_head want[MOST_HEADS];
    float *z[MOST_HEADS], *log_alpha[MOST_HEADS]; /* of the machine */
    float *rows, *matrix, *shift;                 /* likewise: what x and y are made of */
} scene;

static const int32_t chosen[] = { 2, 0 };
enum { BATCH = sizeof chosen / sizeof *chosen };
static const float gains[] = { 0.5f, -0.75f, 1.5f, 2, 0, -1 }; /* of query heads */

/* ---- a scene */

static void take(scene *s)
{
    const int64_t d = s->is.channels;
    s->rows = memory_take(&s->room, WINDOWS * s->is.tokens * (d + 1), sizeof *s->rows);
    s->matrix = memory_take(&s->room, d * d, sizeof *s->matrix);
    s->shift = memory_take(&s->room, d, sizeof *s->shift);
    for (int64_t h = 0; h < s->heads; h++) {
        const int64_t M = s->is.features[h];
        s->z[h] = memory_take(&s->room, M * d, sizeof(float));
        s->log_alpha[h] = memory_take(&s->room, M, sizeof(float));
        s->head[h] = (feature_head){ s->z[h],
                                     s->log_alpha[h],
                                     memory_take(&s->room, M * d, sizeof(float)),
                                     memory_take(&s->room, M, sizeof(float)),
                                     M,
                                     0 };
    }
}

/* n numbers that float32 has, to the machine where `to` is. */
static double *draw(scene *s, rng *r, int64_t n, double deviation, float *to)
{
    double *const x = memory_zeroed((size_t)n, sizeof *x);
    float *const rounded = memory_zeroed((size_t)n, sizeof *rounded);
    rng_fill_normal(r, x, n, 0, deviation);
    for (int64_t i = 0; i < n; i++)
        x[i] = rounded[i] = (float)x[i];
    if (to) machine_upload(&s->on, to, rounded, (size_t)n * sizeof *rounded);
    free(rounded);
    return x;
}

/* Rows one number longer than they are, mapped on the machine and here. */
static double *draw_rows(scene *s, rng *r, int64_t head, int64_t n)
{
    const int64_t d = s->is.channels, count = WINDOWS * s->is.tokens;
    double *const raw = draw(s, r, count * (d + 1), s->is.size, s->rows),
                  *const map = draw(s, r, d * d, 1 / sqrt((double)d), s->matrix),
                  *const shift = draw(s, r, d, s->is.size / 2, s->shift),
                  *const out = memory_zeroed((size_t)(count * d), sizeof *out);
    const bool shifted = n < 0;
    const feature_rows from = { s->rows, d + 1, count, shifted ? s->shift : NULL, s->matrix, 0.75 };
    feature_losses_rows(&s->l, head, n, &from);
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = 0; c < d; c++)
            for (int64_t k = 0; k < d; k++)
                out[i * d + c] += 0.75 * map[c * d + k] * (raw[i * (d + 1) + k] - (shifted ? shift[k] : 0));
    free(raw);
    free(map);
    free(shift);
    return out;
}

static void draw_head(scene *s, int64_t h)
{
    const int64_t d = s->is.channels, M = s->is.features[h], each = WINDOWS * s->is.tokens * d;
    numbers_of_head *const to = &s->want[h];
    rng r = rng_make(77, (uint64_t)h);
    to->x = memory_zeroed((size_t)(s->is.queries * each), sizeof *to->x);
    for (int64_t n = 0; n < s->is.queries; n++) {
        double *const x = draw_rows(s, &r, h, n);
        memcpy(to->x + n * each, x, (size_t)each * sizeof *x);
        free(x);
    }
    to->y = draw_rows(s, &r, h, -1);
    to->z = draw(s, &r, M * d, 1, s->z[h]);
    to->log_alpha = draw(s, &r, M, 1, s->log_alpha[h]);
    to->grad = memory_zeroed((size_t)(M * (d + 1)), sizeof *to->grad);
}

static void scene_open(scene *s, const shape *is)
{
    loam_error error;
    *s = (scene){ .is = *is };
    if (machine_cuda(&s->on, LOAM_F32, &error)) fail_msg("%s", error.text);
    while (s->heads < MOST_HEADS && is->features[s->heads] > 0)
        s->heads++;
    take(s);
    assert_true(memory_open(&s->room, &s->on));
    take(s);
    s->l = (feature_losses){ .on = &s->on,
                             .kind = is->kind,
                             .causal = is->causal,
                             .tokens = is->tokens,
                             .channels = is->channels,
                             .heads = s->heads,
                             .queries = is->queries,
                             .windows = WINDOWS,
                             .batch = BATCH,
                             .sinks = is->sinks,
                             .window = is->window,
                             .gain = gains };
    assert_true(feature_losses_open(&s->l, s->head));
    for (int64_t h = 0; h < s->heads; h++)
        draw_head(s, h);
    feature_losses_prepare(&s->l);
}

static void scene_close(scene *s)
{
    for (int64_t h = 0; h < s->heads; h++) {
        const numbers_of_head *of = &s->want[h];
        double *const all[] = { of->x, of->y, of->z, of->log_alpha, of->grad };
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            free(all[i]);
    }
    feature_losses_close(&s->l);
    memory_close(&s->room);
    machine_close(&s->on);
}

/* ---- float64 */

static double largest_of(const scene *s, const numbers_of_head *of)
{
    const int64_t T = s->is.tokens, d = s->is.channels;
    double most = -HUGE_VAL;
    for (int64_t n = 0; n < s->is.queries * WINDOWS; n++)
        for (int64_t i = 0; i < T; i++)
            for (int64_t j = 0; j < (s->is.causal ? i + 1 : T); j++) {
                double sum = 0;
                for (int64_t c = 0; c < d; c++)
                    sum += of->x[(n * T + i) * d + c] * of->y[(n % WINDOWS * T + j) * d + c];
                most = fmax(most, sum);
            }
    return most;
}

static void run_exactly(scene *s, int64_t h)
{
    numbers_of_head *const of = &s->want[h];
    const int64_t T = s->is.tokens, d = s->is.channels, M = s->is.features[h];
    feature_loss loss = { .kind = s->is.kind,
                          .causal = s->is.causal,
                          .sinks = s->is.sinks,
                          .window = s->is.window,
                          .tokens = T,
                          .channels = d,
                          .features = M,
                          .z = of->z,
                          .log_alpha = of->log_alpha };
    double *const work = memory_zeroed(feature_loss_doubles(&loss), sizeof *work);
    if (s->is.kind == FEATURE_LOSS_L2) loss.largest = largest_of(s, of);
    for (int i = 0; i < BATCH; i++)
        for (int64_t n = 0; n < s->is.queries; n++) {
            loss.x = of->x + (n * WINDOWS + chosen[i]) * T * d;
            loss.gain = (double)gains[h * s->is.queries + n];
            loss.y = of->y + chosen[i] * T * d;
            of->loss += feature_loss_run(&loss, of->grad, NULL, of->grad + M * d, work);
        }
    of->loss /= (double)(BATCH * s->is.queries);
    for (int64_t e = 0; e < M * (d + 1); e++)
        of->grad[e] /= (double)(BATCH * s->is.queries);
    free(work);
}

/* ---- comparisons */

static void fetch(const scene *s, void *to, const void *from, int64_t n)
{
    loam_error error;
    if (machine_download(&s->on, to, from, (size_t)n * sizeof(float), &error)) fail_msg("%s", error.text);
}

static void expect_near(const shape *is, const char *what, const float *got, const double *want, int64_t n,
                        double bound)
{
    double most = 0, worst = 0;
    for (int64_t e = 0; e < n; e++) {
        most = fmax(most, fabs(want[e]));
        worst = isnan(got[e]) ? INFINITY : fmax(worst, fabs((double)got[e] - want[e]));
    }
    printf("kind %d causal %d T %3d d %3d queries %d size %.2g: %-9s off by %.1e of %.3g\n", (int)is->kind,
           is->causal, (int)is->tokens, (int)is->channels, (int)is->queries, is->size, what, worst / most,
           most);
    if (!(worst <= bound * most)) fail_msg("%s: off by %g, bound %g", what, worst / most, bound);
}

static void compare(scene *s, double bound)
{
    float losses[MOST_HEADS];
    fetch(s, losses, s->l.losses, s->heads);
    for (int64_t i = 0; i < s->heads; i++) {
        const feature_head *head = &s->head[i];
        const numbers_of_head *of = &s->want[head->place];
        const int64_t M = head->features, of_z = M * s->is.channels;
        float *const grad = memory_zeroed((size_t)(of_z + M), sizeof *grad);
        fetch(s, grad, head->grad_z, of_z);
        fetch(s, grad + of_z, head->grad_log_alpha, M);
        run_exactly(s, head->place);
        expect_near(&s->is, "loss", &losses[head->place], &of->loss, 1, bound);
        expect_near(&s->is, "z", grad, of->grad, of_z, bound);
        expect_near(&s->is, "log alpha", grad + of_z, of->grad + of_z, M, bound);
        free(grad);
    }
}

static const shape shapes[] = {
    { FEATURE_LOSS_SOFTMAX, true, 65, 64, 1, { 64, 64 }, 0.5, 0, 0 },
    { FEATURE_LOSS_SOFTMAX, true, 150, 20, 2, { 8, 72, 16 }, 1, 0, 0 },
    { FEATURE_LOSS_SOFTMAX, false, 70, 35, 1, { 24, 130 }, 0.7, 0, 0 },
    { FEATURE_LOSS_SOFTMAX, true, 1, 4, 1, { 8 }, 1, 0, 0 },
    { FEATURE_LOSS_SOFTMAX, false, 64, 72, 3, { 5 }, 0.5, 0, 0 },
    { FEATURE_LOSS_SOFTMAX, true, 150, 20, 2, { 8, 72, 16 }, 1, 4, 20 },
    { FEATURE_LOSS_SOFTMAX, true, 200, 64, 1, { 64, 64 }, 0.5, 0, 1 },
    { FEATURE_LOSS_SOFTMAX, true, 100, 16, 1, { 16 }, 0.7, 66, 34 },
    { FEATURE_LOSS_L2ROW, true, 130, 32, 2, { 64, 8 }, 0.5, 0, 0 },
    { FEATURE_LOSS_L2ROW, false, 33, 66, 1, { 70 }, 0.4, 0, 0 },
    { FEATURE_LOSS_L2, true, 100, 16, 2, { 16, 80, 40 }, 0.7, 0, 0 },
    { FEATURE_LOSS_L2, false, 65, 8, 1, { 8 }, 1, 0, 0 },
};

/* Exponents of about 20 in float32 have an error of 2e-6, of which the largest counts. */
static void test_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        scene s;
        scene_open(&s, &shapes[i]);
        feature_losses_run(&s.l, chosen);
        compare(&s, 3e-5);
        scene_close(&s);
    }
}

/* Norms of queries and keys of real models, whose exponents are beyond 100, and ten times that: numbers. */
static void test_large(void **state)
{
    (void)state;
    for (int kind = FEATURE_LOSS_SOFTMAX; kind <= FEATURE_LOSS_L2; kind++)
        for (int far = 0; far < 2; far++) {
            const shape is = { (feature_loss_kind)kind, true, 150, 64, 1, { 64, 16 }, far ? 10 : 1, 0, 0 };
            scene s;
            float losses[2], grad[64 * 64];
            scene_open(&s, &is);
            feature_losses_run(&s.l, chosen);
            fetch(&s, losses, s.l.losses, 2);
            fetch(&s, grad, s.head[0].grad_z, 64 * 64);
            for (int e = 0; e < 64 * 64; e++)
                assert_true(isfinite(grad[e]));
            printf("kind %d, size %g: losses %g %g\n", kind, is.size, losses[0], losses[1]);
            assert_true(isfinite(losses[0]) && isfinite(losses[1]));
            if (kind == FEATURE_LOSS_SOFTMAX && !far) compare(&s, 1e-4);
            scene_close(&s);
        }
}

/* A head's bits do not depend on the others. */
static void test_alone(void **state)
{
    const shape is = { FEATURE_LOSS_SOFTMAX, true, 90, 20, 2, { 16, 80 }, 0.7, 0, 0 };
    shape alone = is;
    float all[16 * 20], one[16 * 20];
    scene s;
    (void)state;
    scene_open(&s, &is);
    feature_losses_run(&s.l, chosen);
    fetch(&s, all, s.head[1].grad_z, 16 * 20);
    assert_int_equal(s.head[1].place, 0);
    scene_close(&s);
    alone.features[1] = 0;
    scene_open(&s, &alone);
    for (int i = 0; i < 2; i++)
        feature_losses_run(&s.l, chosen);
    fetch(&s, one, s.head[0].grad_z, 16 * 20);
    assert_memory_equal(all, one, sizeof all);
    scene_close(&s);
}

int main(void)
{
    if (!device_count()) {
        print_message("skipped: no CUDA device\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
