/* SPDX-License-Identifier: MIT
 * Pretrained models: what the training finds of held-out text is what lm/ finds with the files, for every
 * architecture and mechanism; the best of the validations is kept; wrong shards are refused by name. */
#include "lm/pretrain.h"
#include "lm/score.h"
#include "tests/lm/folder.h"
#include "tests/lm/grammar.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

enum { CONTEXT = 16 };

static lm_recipe recipe_of(lm_architecture architecture, const char *mechanism)
{
    return (lm_recipe){ .architecture = architecture,
                        .mechanism = mechanism,
                        .layers = 2,
                        .width = 32,
                        .heads = 2,
                        .context = CONTEXT,
                        .ridge_least = 0.01,
                        .ridge_most = 1,
                        .steps = 30,
                        .batch = 8,
                        .piece = 8,
                        .warm = 3,
                        .every = 10,
                        .rate = 0.02,
                        .decay = 0.1,
                        .seed = 3 };
}

/* Trains to the end in a new folder `run`, on the shards in `data`. */
static void trained(const lm_recipe *r, const lm_shards *s, lm_held_loss *held)
{
    const machine on = machine_cpu(LOAM_F32, 1);
    const lm_pretraining p = {
        .recipe = r, .shards = s, .on = &on, .data = "data", .folder = "run", .interval = 1e9, .seconds = 1e9
    };
    bool finished;
    io_error error;
    assert_int_equal(mkdir("run", 0777), 0);
    if (lm_pretrain(&p, held, &finished, &error)) fail_msg("%s", error.text);
    assert_true(finished);
}

static void open_data(lm_shards *s)
{
    io_error error;
    grammar_write("data");
    if (lm_shards_open(s, "data", &error)) fail_msg("%s", error.text);
    assert_int_equal(s->corpora, 2);
}

static void close_data(lm_shards *s)
{
    lm_shards_close(s);
    grammar_remove("data");
}

/* What the model in `run` finds of tokens [count] but the first, in windows of which the last begins earlier;
 * or in whole windows alone. */
static double scored(const lm_options *options, const uint16_t *text, int64_t count, bool whole_windows)
{
    machine on = machine_cpu(LOAM_F32, 1);
    lm_files *files;
    lm_model *model;
    scorer *s;
    io_error error;
    score_window w;
    double sum = 0, nll[CONTEXT];
    int32_t tokens[CONTEXT + 1];
    int64_t all = 0;
    if (lm_files_open(&files, "run", &error) || lm_model_open(&model, &on, files, options, &error) ||
        scorer_open(&s, model, CONTEXT, &error))
        fail_msg("%s", error.text);
    for (int64_t n = 0; score_window_at(&w, count, CONTEXT, false, n); n++) {
        if (whole_windows && w.scored < CONTEXT) break;
        for (int64_t i = 0; i <= w.inputs; i++)
            tokens[i] = text[w.begin + i];
        if (scorer_run(s, tokens, w.inputs, tokens + 1 + w.inputs - w.scored, w.scored, nll, &error))
            fail_msg("%s", error.text);
        for (int64_t i = 0; i < w.scored; i++, all++)
            sum += nll[i];
    }
    scorer_close(s);
    lm_model_close(model);
    lm_files_close(files);
    machine_close(&on);
    return sum / (double)all;
}

/* The smallest number in the column of validations. */
static double best_in_losses(void)
{
    char line[256];
    double best = INFINITY, train, valid;
    FILE *file = fopen("run/loss.csv", "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    while (fgets(line, sizeof line, file)) {
        assert_int_equal(sscanf(line, "%*d,%lf,%lf", &train, &valid), 2);
        best = valid < best ? valid : best;
    }
    fclose(file);
    return best;
}

static void check_model(const lm_recipe *r, const lm_shards *s)
{
    lm_held_loss held[2];
    lm_options own = lm_options_default(), softmax = own;
    own.own = true;
    trained(r, s, held);
    for (int i = 0; i < 2; i++) {
        const lm_shard *text = &s->held[i].shard;
        const double nll = scored(&own, text->tokens, text->count, false);
        if (!(fabs(nll - held[i].nll) < 1e-5))
            fail_msg("%s, %s: %.9g, in training %.9g", lm_architecture_name(r->architecture), r->mechanism,
                     nll, held[i].nll);
        assert_int_equal(held[i].tokens, i == 0 ? GRAMMAR_HELD : GRAMMAR_SHORT);
        assert_true(fabs(held[i].bits - nll / (3 * log(2))) < 1e-5);
    }
    const double best = best_in_losses(), valid = scored(&own, s->valid.tokens, s->valid.count, true);
    assert_true(fabs(valid - best) < 1e-5);
    const double other = scored(&softmax, s->valid.tokens, s->valid.count, true);
    assert_true(strcmp(r->mechanism, "softmax") == 0 ? other == valid : fabs(other - valid) > 1e-5);
    folder_remove("run");
}

/* What the trainer found, from the files. */
static void files_are_what_was_trained(void **state)
{
    static const char *const names[] = { "softmax", "lla", "parallax", "fox" };
    lm_shards s;
    (void)state;
    open_data(&s);
    for (int a = LM_GPT2; a < LM_BERT; a++)
        for (int i = 0; i < 4; i++) {
            const lm_recipe r = recipe_of((lm_architecture)a, names[i]);
            check_model(&r, &s);
        }
    close_data(&s);
}

/* Of a text so short the validation suffers in the end; the files hold the best all the same. */
static void the_best_is_kept(void **state)
{
    lm_shards s;
    lm_held_loss held[2];
    lm_recipe r = recipe_of(LM_GPT2, "softmax");
    const lm_options options = lm_options_default();
    (void)state;
    open_data(&s);
    s.train.count = 60;
    r.steps = 100, r.every = 10;
    trained(&r, &s, held);
    FILE *file = fopen("run/loss.csv", "r");
    char line[256] = "";
    double last = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        (void)sscanf(line, "%*d,%*f,%lf", &last);
    fclose(file);
    const double best = best_in_losses(), found = scored(&options, s.valid.tokens, s.valid.count, true);
    printf("best %.4f, last %.4f\n", best, last);
    assert_true(last > best + 0.01 && fabs(found - best) < 1e-5);
    folder_remove("run");
    close_data(&s);
}

/* Attention that lm/ does not read has losses, and no files of a model. */
static void others_have_no_model(void **state)
{
    lm_shards s;
    lm_held_loss held[2];
    struct stat told;
    const lm_recipe r = recipe_of(LM_LLAMA, "gated-delta");
    (void)state;
    open_data(&s);
    trained(&r, &s, held);
    assert_true(held[0].nll > 0.6 && held[0].nll < 3.2);
    assert_int_equal(stat("run/held.csv", &told), 0);
    assert_int_not_equal(stat("run/model.safetensors", &told), 0);
    assert_int_not_equal(stat("run/config.json", &told), 0);
    folder_remove("run");
    close_data(&s);
}

static void wrong_shards_are_refused(void **state)
{
#define ONE(vocabulary, end, name, tokens) \
    "{\"vocabulary\":" vocabulary ",\"end_token\":" end ",\"corpora\":[{\"name\":\"" name "\"," \
    "\"train\":{\"tokens\":" tokens "},\"valid\":{\"tokens\":2},\"held\":{\"tokens\":2,\"bytes\":9}}]}"
#define GOOD ONE("60", "0", "one", "3")
    static const struct {
        const char *manifest, *train, *held, *text;
    } rows[] = {
        { "[]", "abcdef", "abcd", "manifest.json" },
        { "{}", "abcdef", "abcd", "'vocabulary' is missing; expected a whole number from 2 to 65536" },
        { ONE("70000", "0", "one", "3"), "abcdef", "abcd", "'vocabulary' is another value" },
        { ONE("60", "60", "one", "3"), "abcdef", "abcd",
          "'end_token' is another value; expected a whole number from 0 to 59" },
        { "{\"vocabulary\":60,\"end_token\":0,\"corpora\":[]}", "", "", "'corpora' is no list" },
        { ONE("60", "0", "one", "-1"), "abcdef", "abcd", "'tokens' is another value" },
        { GOOD, "abcde", "abcd", "train.u16 has 5 bytes; expected 3 tokens" },
        { GOOD, "abcd", "abcd", "train.u16 has 4 bytes; expected 3 tokens" },
        { GOOD, "\1\0\2\0\3\1", "\1\0\2\0", "train.u16: token 2 is 259; expected less than the 60" },
        { GOOD, "\1\0\2\0\3\0", "\1\0\74\0", "held-one.u16: token 1 is 60; expected less than the 60" },
        { GOOD, "\1\0\2\0\3\0", "\1\0", "held-one.u16 has 2 bytes; expected 2 tokens" },
        { ONE("60", "0", "../one", "3"), "\1\0\2\0\3\0", "\1\0\1\0", "a corpus has no 'name'" },
    };
    static const unsigned long train_bytes[] = { 6, 6, 6, 6, 0, 6, 5, 4, 6, 6, 6, 6 },
                               held_bytes[] = { 4, 4, 4, 4, 0, 4, 4, 4, 4, 4, 2, 4 };
    (void)state;
    assert_int_equal(mkdir("data", 0777), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lm_shards s;
        io_error error = { 0 };
        grammar_put("data", "manifest.json", rows[i].manifest, strlen(rows[i].manifest));
        grammar_put("data", "train.u16", rows[i].train, train_bytes[i]);
        grammar_put("data", "valid.u16", "\1\0\2\0", 4);
        grammar_put("data", "held-one.u16", rows[i].held, held_bytes[i]);
        assert_int_equal(lm_shards_open(&s, "data", &error), EXIT_INPUT);
        assert_null(s.train.tokens);
        if (!strstr(error.text, rows[i].text)) fail_msg("'%s' lacks '%s'", error.text, rows[i].text);
    }
    grammar_remove("data");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_what_was_trained),
        cmocka_unit_test(the_best_is_kept),
        cmocka_unit_test(others_have_no_model),
        cmocka_unit_test(wrong_shards_are_refused),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
