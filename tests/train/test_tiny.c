/* SPDX-License-Identifier: MIT
 * Two tasks that a CPU learns in a minute: recall of 4 pairs among 64 words, and regression in context of 4
 * dimensions in 4 segments of 8 pairs. A few steps here; with the argument `full` all of them, with three
 * seeds, held to what was found with other implementations (make test-training). */
#include "train/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { SEEDS = 3 };

typedef struct study {
    machine on;
    trainer t;
} study;

/* A stack of `models` seeds 1, 2, 3, trained to the end. */
static void run(study *s, const char *task, const char *mixer_name, positions places, int64_t models,
                int64_t steps, int64_t taken)
{
    const bool recall = strcmp(task, "recall") == 0;
    const train_source words = { .task = TRAIN_RECALL,
                                 .recall = { .length = 16, .words = 64, .fill = true },
                                 .part = { { 4, { 32000, 512 } } } };
    const train_source pairs = { .task = TRAIN_REGRESSION,
                                 .regression = { 32, 8, 4, 4, 8, 0.1 },
                                 .part = { { 0, { 12800, 512 } } } };
    trainer_options options = trainer_options_default(mixer_find(mixer_name));
    trainee each[SEEDS];
    loam_error error;
    for (int i = 0; i < SEEDS; i++)
        each[i] = (trainee){ .seed = 1 + (uint64_t)i,
                             .from = recall ? words : pairs,
                             .rate = recall ? 1e-3 : 3e-3 };
    options.mixing.positions = places;
    options.shape.batch = recall ? 64 : 32;
    options.shape.width = recall ? 64 : 32;
    options.steps = steps;
    options.warm = 50;
    options.test_every = 100;
    s->on = machine_cpu(LOAM_F32, 0);
    const double begin = trainer_clock();
    if (trainer_open(&s->t, &s->on, &options, each, models, &error) ||
        trainer_advance(&s->t, taken, 1e9, &error))
        fail_msg("%s", error.text);
    printf("%s, %s: %d steps of %d models in %.1f s\n", task, mixer_name, (int)s->t.step, (int)models,
           trainer_clock() - begin);
    for (int64_t m = 0; m < models; m++)
        for (int64_t i = 0; i < s->t.tested[m]; i++) {
            const train_record *r = trainer_record(&s->t, m, i);
            printf("  seed %d step %4g: train loss %.4f, test loss %.4f, %.4f\n", (int)m + 1, r->step,
                   r->train_loss, r->test_loss, r->part[0]);
        }
}

static double error_of(const study *s, int64_t model)
{
    return trainer_record(&s->t, model, s->t.tested[model] - 1)->part[0];
}

static double mean_error(const study *s)
{
    double sum = 0;
    for (int64_t m = 0; m < SEEDS; m++)
        sum += error_of(s, m);
    return sum / SEEDS;
}

static void expect_between(const char *what, double x, double least, double most)
{
    printf("%s: %.4f, expected %.4f to %.4f\n", what, x, least, most);
    assert_true(x >= least && x <= most);
}

/* ---- a few steps */

/* Which words are values of the sequence is learned first: one in four is right, or a few more, as early keys
 * are asked for early. */
static void recall_begins(void **state)
{
    (void)state;
    study s;
    run(&s, "recall", "softmax", POSITIONS_LEARNED, 1, 2500, 200);
    const train_record *r = trainer_record(&s.t, 0, 1);
    expect_between("accuracy of 4 pairs guessed", r->part[0], 0.25, 0.4);
    expect_between("loss, from ln 64 = 4.16 to ln 4 = 1.39", r->test_loss, 1.38, 2.4);
    trainer_close(&s.t);
}

static void context_begins(void **state)
{
    (void)state;
    study s;
    run(&s, "context", "lla", POSITIONS_LEARNED, 1, 500, 100);
    expect_between("error, of saying nothing 1", error_of(&s, 0), 0.44, 0.85);
    trainer_close(&s.t);
}

/* ---- all steps */

/* The plateau of guessing among four is left before step `before`. */
static void check_recall(const char *mixer_name, int64_t steps, double before)
{
    study s;
    run(&s, "recall", mixer_name, POSITIONS_LEARNED, SEEDS, steps, steps);
    for (int64_t m = 0; m < SEEDS; m++) {
        int64_t i = 0;
        while (i < s.t.tested[m] && trainer_record(&s.t, m, i)->part[0] < 0.5)
            i++;
        assert_true(i < s.t.tested[m]);
        expect_between("step at which half is right", trainer_record(&s.t, m, i)->step, 100, before);
        expect_between("accuracy in the end", error_of(&s, m), 0.99, 1);
    }
    trainer_close(&s.t);
}

static void recall_by_lla(void **state)
{
    (void)state;
    check_recall("lla", 1600, 1000);
}

static void recall_by_softmax(void **state)
{
    (void)state;
    check_recall("softmax", 2500, 1600);
}

/* Below what one layer can do at best, which is 0.494 for LLA and 0.658 for softmax. Without positions LLA is
 * worse by less than seeds differ: 0.439 beside 0.422 over 11 seeds, with a standard deviation of 0.03. */
static void context_in_order(void **state)
{
    (void)state;
    study lla, softmax, placeless;
    run(&lla, "context", "lla", POSITIONS_LEARNED, SEEDS, 500, 500);
    run(&softmax, "context", "softmax", POSITIONS_LEARNED, SEEDS, 500, 500);
    run(&placeless, "context", "lla", POSITIONS_NONE, SEEDS, 500, 500);
    expect_between("error of lla", mean_error(&lla), 0.40, 0.48);
    expect_between("error of softmax", mean_error(&softmax), 0.46, 0.53);
    expect_between("how much lower lla's is", mean_error(&softmax) - mean_error(&lla), 0.02, 1);
    expect_between("error of lla without positions", mean_error(&placeless), 0.40, 0.50);
    trainer_close(&lla.t), trainer_close(&softmax.t), trainer_close(&placeless.t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest few[] = { cmocka_unit_test(recall_begins), cmocka_unit_test(context_begins) };
    const struct CMUnitTest all[] = { cmocka_unit_test(context_in_order), cmocka_unit_test(recall_by_lla),
                                      cmocka_unit_test(recall_by_softmax) };
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2 && strcmp(argv[1], "full") == 0) return cmocka_run_group_tests(all, NULL, NULL);
    return cmocka_run_group_tests(few, NULL, NULL);
}
