/* SPDX-License-Identifier: MIT
 * The loop: which examples it takes, what it records, where it stops, and that neither pieces nor neighbours
 * change a bit. */
#include "tests/train/course.h"
#include "tests/train/fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_STEPS = 1 << 20 };

static void check_stack(const char *what, const course *all)
{
    trainer stack, alone;
    course_open(&stack, all);
    course_advance(&stack, MOST_STEPS);
    assert_true(trainer_finished(&stack));
    for (int64_t m = 0; m < all->models; m++) {
        const course one = course_alone(all, m);
        course_open(&alone, &one);
        course_advance(&alone, MOST_STEPS);
        course_same(what, &stack, m, &alone, 0, true);
        trainer_close(&alone);
    }
    trainer_close(&stack);
}

/* Models of other seeds, rates and segments. */
static void stacks_are_single_runs(void **state)
{
    (void)state;
    course c = course_recall("lla", 2);
    check_stack("lla", &c);
    c = course_recall("softmax", 3);
    c.options.muon = true;
    check_stack("softmax, muon", &c);
    c = course_regression("mesa", 3);
    check_stack("mesa", &c);
    c = course_regression("lla", 3);
    check_stack("lla, regression", &c);
}

/* In pieces of 1, 2, 3 ... steps, and of no time at all. */
static void pieces_are_one_run(void **state)
{
    (void)state;
    const course c = course_regression("gla", 2);
    loam_error error;
    trainer whole, cut;
    course_open(&whole, &c), course_open(&cut, &c);
    course_advance(&whole, MOST_STEPS);
    assert_int_equal(trainer_advance(&cut, MOST_STEPS, 0, &error), LOAM_OK);
    assert_int_equal(cut.step, 1);
    for (int64_t steps = 1; !trainer_finished(&cut); steps++)
        course_advance(&cut, steps);
    course_advance(&cut, 5);
    assert_int_equal(cut.step, c.options.steps);
    for (int64_t m = 0; m < c.models; m++)
        course_same("pieces", &whole, m, &cut, m, true);
    trainer_close(&whole), trainer_close(&cut);
}

/* What the watch sees of the training, and sums up by itself. */
typedef struct witness {
    double loss, answers;
    int64_t steps, tests;
} witness;

/* The batch is that of the order of its epoch. */
static void expect_batch(const trainer *t)
{
    const train_source *from = &t->each[0].from;
    const int64_t length = from->recall.length, whole = 2, step = t->step - 1;
    int32_t order[10], tokens[12], at[3], targets[3], scratch[64];
    train_epoch_order(t->each[0].seed, TRAIN_RECALL, step / whole, 10, order);
    for (int64_t i = 0; i < 4; i++) {
        recall_shape shape = from->recall;
        const int32_t example = order[step % whole * 4 + i];
        shape.pairs = example < 4 ? 2 : 3;
        recall_example(&shape, t->each[0].seed, TRAIN_SPLIT_TRAIN, example, tokens, at, targets, scratch);
        assert_memory_equal(t->data.here.tokens + i * length, tokens, sizeof tokens);
    }
}

static void look(void *with, const trainer *t, bool tested)
{
    witness *seen = with;
    seen->steps++;
    seen->tests += tested;
    assert_int_equal(tested, t->step % 4 == 0 || t->step == 11);
    if (tested) return;
    const matrix each = model_results(t->net);
    expect_batch(t);
    for (int64_t i = 0; i < each.rows; i++)
        seen->loss += fixture_get(each, i * each.width);
    seen->answers += (double)t->data.here.counts[0];
}

/* Epochs of 10 examples in batches of 4: two are left out each time, and the next epoch has another order.
 * The mean loss is that over all answers since the test before, of which the last step's is not seen here. */
static void batches_follow_the_epochs(void **state)
{
    (void)state;
    witness seen = { 0 };
    const course c = course_recall("softmax", 1);
    trainer t, last;
    course_open(&t, &c), course_open(&last, &c);
    t.watch = look, t.with = &seen;
    course_advance(&t, 4);
    assert_int_equal(seen.steps, 4);
    assert_int_equal(seen.tests, 1);
    course_advance(&last, 3);
    const double loss = fixture_get(last.sums, 0), answers = (double)last.answers[0];
    assert_true(fabs(loss - seen.loss) <= 1e-5 * loss && answers == seen.answers);
    course_advance(&t, 7);
    assert_int_equal(seen.steps, 11);
    assert_int_equal(seen.tests, 3);
    assert_int_equal(t.tested[0], 3);
    for (int i = 0; i < 3; i++) {
        assert_true(trainer_record(&t, 0, i)->step == (i < 2 ? 4 * (i + 1) : 11));
        assert_true(trainer_record(&t, 0, i)->gradient > 0 && t.times[i] > 0);
    }
    /* The fourth step: one loss more, of a size that such losses have, and more answers. */
    const double mean = trainer_record(&t, 0, 0)->train_loss;
    assert_true(fabs(mean - loss / answers) < 0.2);
    trainer_close(&t), trainer_close(&last);
}

static void copy_weights(const trainer *t, train_model *net)
{
    int count;
    const parameter *from = model_parameters(t->net, &count), *to = model_parameters(net, &count);
    for (int i = 0; i < count; i++)
        t->on->op->copy(t->on, to[i].x, from[i].x);
}

/* Of each test example by itself, in a model with a batch of one. */
static train_record one_by_one(const trainer *t)
{
    const train_source *from = &t->each[0].from;
    const int64_t examples = source_examples(from, TRAIN_SPLIT_TEST);
    model_shape shape = t->options.shape;
    loam_error error;
    train_model *net;
    train_batch data;
    train_record sum = { 0 };
    shape.batch = 1;
    assert_int_equal(
        model_create(&net, t->on, t->options.row, &shape, &t->options.mixing, &t->each[0].seed, &error),
        LOAM_OK);
    copy_weights(t, net);
    assert_true(batch_open(&data, t->on, from, 1, 1));
    for (int32_t i = 0; i < examples; i++) {
        const int part = source_part(from, TRAIN_SPLIT_TEST, i);
        const matrix each = model_results(net);
        batch_fill(&data, 0, from, t->each[0].seed, TRAIN_SPLIT_TEST, &i);
        assert_int_equal(model_test(net, &data, &error), LOAM_OK);
        double score = 0;
        for (int64_t n = 0; n < each.rows; n++) {
            sum.test_loss += fixture_get(each, n * each.width);
            score += fixture_get(each, (n + 1) * each.width - 1);
        }
        sum.part[part] += score;
        sum.error[part] += score * score;
        for (int64_t l = 0; l < shape.layers && model_layer(net, l)->info; l++)
            for (int64_t n = 0; n < shape.heads * source_length(from); n++) {
                sum.solved[model_layer(net, l)->info[n].solver]++;
                sum.iterations += model_layer(net, l)->info[n].iterations;
            }
    }
    model_destroy(net);
    batch_close(&data);
    return sum;
}

/* The standard error of the mean of `count` scores from their sum and that of their squares. */
static double standard_error(double sum, double squares, double count)
{
    return sqrt(fmax(0, squares - sum * sum / count) / (count - 1) / count);
}

/* Seven examples in batches of four, five likewise: each counts once. */
static void check_test(const char *what, course c, const double *answers)
{
    trainer t;
    c.options.steps = 300, c.options.test_every = 100;
    c.each[0].rate = 0.02;
    c.each[0].from.part[0].examples[TRAIN_SPLIT_TRAIN] = 1000;
    course_open(&t, &c);
    course_advance(&t, MOST_STEPS);
    const train_record want = one_by_one(&t), *got = trainer_record(&t, 0, 2);
    const int64_t examples = source_examples(&c.each[0].from, TRAIN_SPLIT_TEST);
    const double rows = (double)(examples * 2 * 2 * source_length(&c.each[0].from));
    printf("%s: loss %.6f, parts %.3f %.3f, solved %.3f %.3f %.3f %.3f, iterations %.2f\n", what,
           got->test_loss, got->part[0], got->part[1], got->solved[0], got->solved[1], got->solved[2],
           got->solved[3], got->iterations);
    assert_true(fabs(got->test_loss - want.test_loss / (answers[0] + answers[1])) <= 1e-5 * got->test_loss);
    for (int i = 0; i < 2; i++)
        assert_true(fabs(got->part[i] * answers[i] - want.part[i]) <= 1e-5 * (1 + want.part[i]));
    for (int i = 0; i < 2; i++) {
        const double count = (double)c.each[0].from.part[i].examples[TRAIN_SPLIT_TEST];
        const double error = answers[i] > 0 ? standard_error(want.part[i], want.error[i], count) : 0;
        assert_true(fabs(got->error[i] * answers[i] - error * count) <= 1e-5 * (1 + error * count));
    }
    for (int i = 0; i < TRAIN_SOLVERS; i++)
        assert_true(fabs(got->solved[i] * rows - want.solved[i]) < 0.01);
    assert_true(fabs(got->iterations * rows - want.iterations) < 0.01);
    if (c.options.row->mechanism == LOAM_LLA)
        assert_true(got->solved[LOAM_SOLVER_NONE] < 0.1 && got->iterations > 1);
    else
        assert_true(got->iterations == 0);
    assert_true(got->part[0] + got->part[1] > 0 && got->part[2] == 0);
    trainer_close(&t);
}

static void test_examples_count_once(void **state)
{
    (void)state;
    static const double recall[2] = { 6, 12 }, regression[2] = { 20, 0 };
    check_test("recall", course_recall("lla", 1), recall);
    check_test("recall, softmax", course_recall("softmax", 1), recall);
    check_test("regression", course_regression("lla", 1), regression);
    check_test("regression, softmax", course_regression("softmax", 1), regression);
    course blind = course_regression("lla", 1);
    blind.options.mixing.blind = true;
    check_test("regression, blind", blind, regression);
}

/* Tests have no noise: the target of a segment of length 1 ... is its own map's image. */
static void tests_have_no_noise(void **state)
{
    (void)state;
    course quiet = course_regression("softmax", 1), loud = quiet;
    trainer a, b;
    quiet.each[0].rate = loud.each[0].rate = 0;
    loud.each[0].from.regression.noise = 5;
    course_open(&a, &quiet), course_open(&b, &loud);
    course_advance(&a, 4), course_advance(&b, 4);
    const train_record *one = trainer_record(&a, 0, 0), *other = trainer_record(&b, 0, 0);
    assert_true(one->test_loss == other->test_loss);
    assert_true(one->train_loss != other->train_loss);
    trainer_close(&a), trainer_close(&b);
}

/* A stack with one that learns and one that cannot: the first stops as it does alone, and stays as it is
 * while the other goes on. */
static void who_is_good_enough_stops(void **state)
{
    (void)state;
    const course c = course_stopping();
    trainer stack, alone;
    const course one = course_alone(&c, 0);
    course_open(&stack, &c), course_open(&alone, &one);
    course_advance(&alone, MOST_STEPS), course_advance(&stack, MOST_STEPS);
    const int64_t tests = alone.tested[0];
    printf("accuracy %.3f at step %d\n", trainer_accuracy(&alone, trainer_record(&alone, 0, tests - 1)),
           (int)alone.step);
    assert_true(trainer_finished(&alone) && trainer_stopped(&alone, 0));
    assert_true(alone.step == 10 * tests && tests > 1 && alone.step < 120);
    for (int64_t i = 0; i < tests; i++)
        assert_true((trainer_accuracy(&alone, trainer_record(&alone, 0, i)) >= 0.3) == (i == tests - 1));
    assert_int_equal(stack.step, 120);
    assert_int_equal(stack.tested[1], 12);
    assert_true(!trainer_stopped(&stack, 1));
    course_same("stopped", &stack, 0, &alone, 0, false);
    trainer_close(&stack), trainer_close(&alone);
}

/* The length of the first gradient is that of the same weights, whoever takes it. */
static void gradients_are_before_clipping(void **state)
{
    (void)state;
    course c = course_recall("softmax", 1);
    trainer adamw, muon, free;
    c.options.test_every = 1, c.options.clip = 1e-3;
    course_open(&adamw, &c);
    c.options.muon = true;
    course_open(&muon, &c);
    c.options.clip = 1e9;
    course_open(&free, &c);
    course_advance(&adamw, 1), course_advance(&muon, 1), course_advance(&free, 1);
    const double length = trainer_record(&adamw, 0, 0)->gradient;
    assert_true(length > 0.01);
    assert_true(trainer_record(&muon, 0, 0)->gradient == length);
    assert_true(trainer_record(&free, 0, 0)->gradient == length);
    trainer_close(&adamw), trainer_close(&muon), trainer_close(&free);
}

/* One batch of 12, and 4 of 3 or 12 of 1, in float64: the order of sums alone differs. */
static void several_batches_are_one(void **state)
{
    static const int64_t batches[] = { 1, 4, 12 };
    trainer all[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        course c = course_text("softmax", 2);
        c.on = machine_cpu(LOAM_F64, 2);
        c.options.batches = batches[i], c.options.shape.batch = 12 / batches[i];
        course_open(&all[i], &c);
        course_advance(&all[i], MOST_STEPS);
    }
    for (int i = 1; i < 3; i++)
        for (int64_t m = 0; m < 2; m++)
            for (int64_t test = 0; test < all[0].tested[m]; test++) {
                const train_record *a = trainer_record(&all[0], m, test),
                                   *b = trainer_record(&all[i], m, test);
                assert_true(fabs(a->train_loss - b->train_loss) < 1e-9);
                assert_true(fabs(a->test_loss - b->test_loss) < 1e-9);
                assert_true(fabs(a->gradient - b->gradient) < 1e-9);
            }
    assert_true(all[1].tested[0] == 3 && trainer_record(&all[1], 0, 2)->test_loss < 4.7);
    for (int i = 0; i < 3; i++)
        trainer_close(&all[i]);
}

static void expect_refused(const course *c, loam_status status, const char *text)
{
    loam_error error;
    trainer t;
    assert_int_equal(trainer_open(&t, &c->on, &c->options, c->each, c->models, &error), status);
    assert_null(t.net);
    if (!strstr(error.text, text)) fail_msg("'%s' lacks '%s'", error.text, text);
}

static void wrong_stacks_are_refused(void **state)
{
    (void)state;
    const course good = course_recall("softmax", 2);
    course c = good;
    c.models = 0;
    expect_refused(&c, LOAM_ESHAPE, "a stack of 0 models; expected >= 1");
    c = good, c.options.shape.batch = 11;
    expect_refused(&c, LOAM_ESHAPE, "batch is 11; expected 1 to the 10 training examples");
    c = good, c.options.shape.batch = 0;
    expect_refused(&c, LOAM_ESHAPE, "batch is 0");
    c = good, c.each[1].from.recall.length = 14;
    expect_refused(&c, LOAM_ESHAPE, "model 1 has a source of another shape than model 0");
    c = good, c.each[1].from.recall.fill = false;
    expect_refused(&c, LOAM_ESHAPE, "model 1 has a source of another shape");
    c = good, c.each[1].from.part[1].examples[TRAIN_SPLIT_TRAIN]++;
    expect_refused(&c, LOAM_ESHAPE, "model 1 has a source of another shape");
    c = good, c.each[0].from.part[0].examples[TRAIN_SPLIT_TEST] = 0;
    c.each[0].from.part[1].examples[TRAIN_SPLIT_TEST] = 0;
    expect_refused(&c, LOAM_ESHAPE, "no test examples");
    c = good, c.each[1].rate = -1;
    expect_refused(&c, LOAM_EVALUE, "rate of model 1 is -1");
    c = good, c.options.muon = true, c.each[1].muon_rate = (double)NAN;
    expect_refused(&c, LOAM_EVALUE, "muon_rate of model 1 is nan");
    c = good, c.options.steps = 0;
    expect_refused(&c, LOAM_EVALUE, "steps 0");
    c = good, c.options.batches = 2;
    expect_refused(&c, LOAM_EVALUE, "batches is 2; expected");
    c = good, c.options.batches = -1;
    expect_refused(&c, LOAM_EVALUE, "batches is -1");
    c = course_text("softmax", 1), c.options.batches = 13;
    expect_refused(&c, LOAM_ESHAPE, "batch is 4; expected 1 to");
    c = good, c.options.stop = 1.5;
    expect_refused(&c, LOAM_EVALUE, "stop is 1.5; expected 0 to 1");
    c = course_recall("mamba-2", 1), c.options.mixing.positions = POSITIONS_ROPE;
    expect_refused(&c, LOAM_EUNSUPPORTED, "a block has no queries and keys to turn");
}

/* Warm-up of 1 %, of at least 100 steps; without test_every the end alone is tested. */
static void defaults_are_the_papers(void **state)
{
    (void)state;
    course c = course_recall("softmax", 1);
    trainer t;
    c.options.warm = 0, c.options.test_every = 0;
    course_open(&t, &c);
    assert_int_equal(t.options.warm, 100);
    assert_int_equal(t.most, 1);
    trainer_close(&t);
    c.options.steps = 14976, c.options.test_every = 468;
    course_open(&t, &c);
    assert_int_equal(t.options.warm, 149);
    assert_int_equal(t.most, 32);
    trainer_close(&t);
    const trainer_options usual = trainer_options_default(mixer_find("lla"));
    assert_true(usual.shape.width == 128 && usual.shape.batch == 256 && usual.decay == 0.1 &&
                usual.clip == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stacks_are_single_runs),        cmocka_unit_test(pieces_are_one_run),
        cmocka_unit_test(batches_follow_the_epochs),     cmocka_unit_test(test_examples_count_once),
        cmocka_unit_test(tests_have_no_noise),           cmocka_unit_test(who_is_good_enough_stops),
        cmocka_unit_test(gradients_are_before_clipping), cmocka_unit_test(wrong_stacks_are_refused),
        cmocka_unit_test(defaults_are_the_papers),       cmocka_unit_test(several_batches_are_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
