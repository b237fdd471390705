/* SPDX-License-Identifier: MIT
 * loam distill as a user runs it, on a tiny model. */
#include "tests/lm/ridge_texts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BASE \
    "distill " MODELS "llama --tokenizer " TOKENIZER " --calibration " TEXTS " --text " TEXTS \
    " --context 16 --windows 3 --batch 2 "

/* What `loam lm eval` says of all texts. */
static double nll_of_all(const outcome *told)
{
    double nll = 0;
    const char *const line = strstr(told->out, "\nall ");
    assert_true(line && sscanf(line, "\nall %*d %lf", &nll) == 1);
    return nll;
}

/* NLL of an attention in the table. */
static double nll_of(const outcome *told, const char *name)
{
    char line[64];
    snprintf(line, sizeof line, "\n%-16s ", name);
    const char *const at = strstr(told->out, line);
    if (!at) fail_msg("no %s in\n%s", name, told->out);
    return strtod(at + strlen(line), NULL);
}

/* Sums over windows give what results.csv says of each attention. */
static void check_windows(void)
{
    assert_true(shell_holds(
        "awk -F, 'FNR == 1 { next } FILENAME ~ /windows/ { n[$1] += $4; x[$1] += $5; next } "
        "{ rows++; d = x[$1] / n[$1] - $2; if (d * d > 1e-16) exit 1 } END { if (rows != 9) exit 1 }' "
        "a/windows.csv a/results.csv"));
}

/* Rows of all attentions, as of loam lm eval where it is softmax; one layer alone is less of a change. */
static void test_table(void **state)
{
    static const char *const names[] = { "uniform", "normal",         "orthogonal", "dct",
                                         "pairs",   "balanced pairs", "elu + 1",    "window" };
    (void)state;
    make_texts();
    const outcome all = run_loam(BASE "--features 8 --steps 0 --out a");
    expect_status(&all, 0);
    const outcome one = run_loam(BASE "--features 8 --steps 0 --layer 1 --shared");
    expect_status(&one, 0);
    const double softmax = nll_of(&all, "softmax");
    assert_true(fabs(nll_of(&one, "softmax") - softmax) < 1e-9);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_true(fabs(nll_of(&all, names[i]) - softmax) > 1e-4);
        assert_true(fabs(nll_of(&one, names[i]) - nll_of(&all, names[i])) > 1e-4);
    }
    assert_null(strstr(all.out, "trained"));
    assert_non_null(strstr(all.out, "times less than e^-20: "));
    const outcome eval = run_loam("lm eval " MODELS "llama --tokenizer " TOKENIZER " --text " TEXTS
                                  " --context 16");
    expect_status(&eval, 0);
    assert_true(fabs(nll_of_all(&eval) - softmax) < 2e-4);
    assert_non_null(strstr(all.out, "3 windows of 16 tokens calibrate"));
    const outcome rows = run_shell("awk -F, 'NR > 1 && NF == 5' a/results.csv | wc -l");
    assert_int_equal(atoi(rows.out), 9);
    check_windows();
}

/* What begins elsewhere ends elsewhere, and goes on from a file of its own; no other row depends on it. */
static void test_start(void **state)
{
    (void)state;
    make_texts();
    const outcome pairs = run_loam(BASE "--features 8 --steps 6 --out s"),
                  normal = run_loam(BASE "--features 8 --steps 6 --out s --start normal"),
                  again = run_loam(BASE "--features 8 --steps 6 --out s --start normal"),
                  none = run_loam(BASE "--features 8 --steps 0 --start normal");
    expect_status(&pairs, 0), expect_status(&normal, 0), expect_status(&again, 0), expect_status(&none, 0);
    assert_true(fabs(nll_of(&pairs, "trained") - nll_of(&normal, "trained")) > 1e-4);
    assert_true(fabs(nll_of(&pairs, "balanced pairs") - nll_of(&none, "balanced pairs")) < 1e-9);
    assert_string_equal(normal.out, again.out);
    assert_true(shell_holds("ls s/training.safetensors s/training-normal.safetensors"));
    const outcome wrong = run_loam(BASE "--start uniform");
    expect_status(&wrong, 2);
    assert_non_null(strstr(wrong.err, "pairs, normal, orthogonal or dct"));
}

/* Sinks and a window beside features: rows of their own, drawn and trained, which goes on where it was. */
static void test_hybrid(void **state)
{
    (void)state;
    make_texts();
    const outcome alone = run_loam(BASE "--features 16 --steps 6");
    expect_status(&alone, 0);
    const outcome all = run_loam(BASE "--features 16 --steps 6 --hybrid 3 --out h --threads 1");
    expect_status(&all, 0);
    const outcome again = run_loam(BASE "--features 16 --steps 6 --hybrid 3 --out h --threads 2");
    expect_status(&again, 0);
    assert_string_equal(all.out, again.out);
    const double drawn = nll_of(&all, "hybrid pairs"), trained = nll_of(&all, "hybrid");
    const double softmax = nll_of(&all, "softmax");
    assert_true(fabs(nll_of(&all, "trained") - nll_of(&alone, "trained")) < 1e-9);
    assert_true(fabs(drawn - softmax) > 1e-4 && fabs(drawn - trained) > 1e-5);
    assert_non_null(strstr(all.out, "hybrid: softmax over the first 4 tokens and the last 3, "));
    /* As a model of its own it predicts the same. */
    const outcome saved = run_loam("lm eval h/hybrid --text " TEXTS " --context 16");
    expect_status(&saved, 0);
    assert_true(fabs(nll_of_all(&saved) - trained) < 2e-4);
    const outcome written = run_loam("lm generate h/hybrid --prompt 'the cat' --tokens 20 --temperature 1");
    expect_status(&written, 0);
    const outcome tuned = run_loam("lm tune h/hybrid --text " TEXTS " --context 8 --out ht");
    expect_status(&tuned, 3);
    assert_non_null(strstr(tuned.err, "it has a window beside its features; expected none"));
    const outcome rows = run_shell("awk -F, 'NR > 1 && NF == 5' h/results.csv | wc -l");
    assert_int_equal(atoi(rows.out), 12);
    const outcome none = run_loam(BASE "--features 16 --steps 0 --hybrid 3");
    expect_status(&none, 0);
    assert_true(fabs(nll_of(&none, "hybrid pairs") - drawn) < 1e-9);
    const outcome long_window = run_loam(BASE "--hybrid 10000");
    expect_status(&long_window, 2);
    assert_non_null(strstr(long_window.err, "--hybrid 10000: leaves no memory of that of 64 features"));
    const outcome loss = run_loam(BASE "--hybrid 2 --loss l2");
    expect_status(&loss, 2);
    assert_non_null(strstr(loss.err, "--hybrid: trains by the softmax loss"));
}

/* Numbers after this text, to the end of the line: how many, and whether they differ. */
static int64_t numbers_after(const char *out, const char *text, int64_t *sum, bool *differ)
{
    const char *at = strstr(out, text);
    int64_t count = 0, first = 0;
    if (!at) fail_msg("no %s in\n%s", text, out);
    at += strlen(text);
    for (char *end; *at != '\n'; at = end, count++) {
        const int64_t of = strtol(at, &end, 10);
        if (count == 0) first = of;
        *differ |= of != first, *sum += of;
    }
    return count;
}

/* Layers differ, and have as many features together as with 60 each; clipped, less. */
static void test_strategies(void **state)
{
    static const char *const names[] = { "rel", "attn", "clip", "measured" };
    (void)state;
    make_texts();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char line[512];
        int64_t sum = 0;
        bool differ = false;
        snprintf(line, sizeof line,
                 BASE
                 "--features 60 --unit 1 --strategy %s --steps 0 --measured-steps 2 --measured-windows 2",
                 names[i]);
        const outcome told = run_loam("%s", line);
        expect_status(&told, 0);
        const int64_t layers = numbers_after(told.out, "features by layer:", &sum, &differ);
        assert_true(layers > 1);
        if (i < 2) assert_true(differ);
        if (strcmp(names[i], "clip"))
            assert_int_equal(sum, 60 * layers);
        else
            assert_true(sum < 60 * layers);
        const char *const loses = strstr(told.out, "all layers together, ");
        assert_true((loses != NULL) == (i == 3));
        if (loses) assert_true(isfinite(strtod(loses + strlen("all layers together, "), NULL)));
    }
    const outcome fix = run_loam(BASE "--features 12 --steps 0 --unit 1");
    assert_null(strstr(fix.out, "features by layer"));
    const outcome uneven = run_loam(BASE "--features 6 --unit 4");
    expect_status(&uneven, 2);
    const outcome unknown = run_loam(BASE "--strategy best");
    expect_status(&unknown, 2);
}

/* Heads of a layer differ; trained, the model predicts as one that has these features. */
static void test_heads(void **state)
{
    (void)state;
    make_texts();
    const outcome told = run_loam(BASE "--features 12 --unit 1 --strategy head --steps 3");
    expect_status(&told, 0);
    int64_t sum = 0, heads = 0;
    bool differ = false;
    char text[64];
    int layer = 0;
    for (; snprintf(text, sizeof text, "features of layer %d:", layer), strstr(told.out, text); layer++)
        heads += numbers_after(told.out, text, &sum, &differ);
    assert_true(layer > 1 && heads > layer && differ);
    assert_int_equal(sum, 12 * heads);
    assert_true(isfinite(nll_of(&told, "trained")));
    assert_true(fabs(nll_of(&told, "trained") - nll_of(&told, "balanced pairs")) > 1e-5);
}

/* A run that is cut and goes on ends where one run ends; with other options it is refused. */
static void test_resumed(void **state)
{
    (void)state;
    make_texts();
    outcome told = run_loam(BASE "--features 8 --steps 6 --out r");
    expect_status(&told, 0);
    const double trained = nll_of(&told, "trained");
    assert_true(fabs(trained - nll_of(&told, "balanced pairs")) > 1e-4);
    told = run_loam(BASE "--features 8 --steps 6 --out r");
    expect_status(&told, 0);
    assert_true(fabs(nll_of(&told, "trained") - trained) < 1e-9);
    told = run_loam(BASE "--features 8 --steps 7 --out r");
    expect_status(&told, 3);
    assert_non_null(strstr(told.err, "r/training.safetensors is of another run"));
}

/* What --out keeps is a model: it predicts as the table says, tells its states, writes, and is no teacher. */
static void test_model(void **state)
{
    (void)state;
    make_texts();
    for (int trained = 0; trained < 2; trained++) {
        outcome told = run_loam(BASE "--features 8 --shared --steps %d --out m%d", trained, trained);
        expect_status(&told, 0);
        const double wanted = nll_of(&told, trained ? "trained" : "balanced pairs");
        double nll = 0, change = 0;
        told = run_loam("lm eval m%d --text " TEXTS " --context 16 --against softmax", trained);
        expect_status(&told, 0);
        const char *const line = strstr(told.out, "\nall ");
        assert_true(line && sscanf(line, "\nall %*d %lf %*s %*f %lf", &nll, &change) == 2);
        assert_true(fabs(nll - wanted) < 2e-4 && fabs(change) > 1e-4);
    }
    outcome told = run_loam("lm info m1");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "8 of each key head in the mean, 2 of 2 layers"));
    assert_non_null(strstr(told.out, " bytes, of any text"));
    assert_null(strstr(told.out, "for each token"));
    const outcome once = run_loam("lm generate m1 --prompt abc --tokens 12");
    expect_status(&once, 0);
    assert_non_null(strstr(once.err, "12 written"));
    told = run_loam("convert m1 again");
    expect_status(&told, 0);
    told = run_loam("lm generate again --prompt abc --tokens 12");
    assert_string_equal(told.out, once.out);
    told = run_loam("distill m1 --calibration " TEXTS " --text " TEXTS " --context 16 --steps 0");
    expect_status(&told, 2);
    assert_non_null(strstr(told.err, "its attention is features; expected softmax"));
}

/* Beside the student whose layers are trained side by side; what is kept is the cascade, and goes on. */
static void test_cascade(void **state)
{
    (void)state;
    make_texts();
    outcome told = run_loam(BASE "--features 8 --steps 6 --cascade --out c");
    expect_status(&told, 0);
    const double cascade = nll_of(&told, "cascade");
    assert_true(fabs(cascade - nll_of(&told, "trained")) > 1e-4);
    assert_true(fabs(cascade - nll_of(&told, "balanced pairs")) > 1e-4);
    told = run_loam("lm eval c --text " TEXTS " --context 16");
    expect_status(&told, 0);
    assert_true(fabs(nll_of_all(&told) - cascade) < 2e-4);
    const outcome cut = run_shell("cp c/cascade-0.safetensors 0; rm c/cascade-1.safetensors");
    expect_status(&cut, 0);
    told = run_loam(BASE "--features 8 --steps 6 --cascade --out c --threads 1");
    expect_status(&told, 0);
    assert_true(fabs(nll_of(&told, "cascade") - cascade) < 1e-9);
    const outcome same = run_shell("cmp c/cascade-0.safetensors 0 && ls c/cascade-1.safetensors");
    expect_status(&same, 0);
    told = run_loam(BASE "--steps 6 --cascade --layer 1");
    expect_status(&told, 2);
    assert_non_null(strstr(told.err, "--cascade with --layer 1: expected all layers"));
}

/* Keys have features of their own: a student that is other, that is kept, and that decodes. */
static void test_untied(void **state)
{
    (void)state;
    make_texts();
    outcome told = run_loam(BASE "--features 8 --steps 6 --untied --out y");
    expect_status(&told, 0);
    const double untied = nll_of(&told, "untied");
    assert_true(fabs(untied - nll_of(&told, "trained")) > 1e-4);
    told = run_loam(BASE "--features 8 --steps 6 --untied --out y");
    expect_status(&told, 0);
    assert_true(fabs(nll_of(&told, "untied") - untied) < 1e-9);
    told = run_loam("lm eval y --text " TEXTS " --context 16");
    expect_status(&told, 0);
    assert_true(fabs(nll_of_all(&told) - untied) < 2e-4);
    const outcome once = run_loam("lm generate y --prompt abc --tokens 12");
    expect_status(&once, 0);
    told = run_loam("convert y y2");
    expect_status(&told, 0);
    told = run_loam("lm generate y2 --prompt abc --tokens 12");
    assert_string_equal(told.out, once.out);
    const outcome kept = run_shell("grep -q '\"untied\": true' y2/config.json && ls y/untied.safetensors");
    expect_status(&kept, 0);
}

enum { LINES = 3, NUMBERS = 3 * 1024 };

/* The vectors that `loam lm embed` wrote; returns how many numbers each has. */
static int64_t read_vectors(const char *path, float *out)
{
    unsigned char head[10];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(head, 1, sizeof head, file), sizeof head);
    assert_int_equal(fseek(file, 10 + head[8] + 256 * head[9], SEEK_SET), 0);
    const size_t count = fread(out, sizeof *out, NUMBERS, file);
    fclose(file);
    assert_true(count > 0 && count < NUMBERS && count % LINES == 0);
    return (int64_t)count / LINES;
}

static int64_t embed(const char *model, float *out)
{
    const outcome told = run_loam("lm embed %s --tokenizer " TOKENIZER " --text lines.txt --out e.npy",
                                  model);
    expect_status(&told, 0);
    return read_vectors("e.npy", out);
}

/* An encoder's students turn the vectors of lines as their files do; no arm has a window. */
static void test_encoder(void **state)
{
    static float vectors[2][NUMBERS];
    static const char *const words[] = { "normal", "balanced pairs", "elu + 1" };
    (void)state;
    make_texts();
    const outcome lines = run_shell("cat t.txt u.txt | grep . >lines.txt");
    expect_status(&lines, 0);
    for (int trained = 0; trained < 2; trained++) {
        double cosine = 0;
        const outcome told = run_loam("distill " MODELS "bert --tokenizer " TOKENIZER " --calibration " TEXTS
                                      " --text " TEXTS
                                      " --context 32 --windows 3 --batch 2 --features 8 --steps %d --out n%d",
                                      8 * trained, trained);
        expect_status(&told, 0);
        assert_non_null(strstr(told.out, "3 lines of at most"));
        assert_non_null(strstr(told.out, " calibrate, 3 lines are compared; 8 features of a query head"));
        assert_null(strstr(told.out, "window"));
        assert_null(strstr(told.out, "e^-20"));
        assert_true(fabs(nll_of(&told, "softmax") - 1) < 1e-6);
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            assert_true(nll_of(&told, words[i]) < 0.9999 && nll_of(&told, words[i]) > -1);
        const int64_t width = embed(MODELS "bert", vectors[0]);
        assert_int_equal(embed(trained ? "n1" : "n0", vectors[1]), width);
        for (int64_t e = 0; e < LINES * width; e++)
            cosine += (double)vectors[0][e] * (double)vectors[1][e] / LINES;
        assert_true(fabs(cosine - nll_of(&told, trained ? "trained" : "balanced pairs")) < 1e-4);
    }
    /* What is cut of long sentences is cut by the student too. */
    outcome cut = run_shell("cp -r " MODELS "bert cutter && chmod -R u+w cutter && "
                            "echo '{\"max_seq_length\": 10}' >cutter/sentence_bert_config.json");
    expect_status(&cut, 0);
    cut = run_loam("distill cutter --tokenizer " TOKENIZER " --calibration " TEXTS " --text " TEXTS
                   " --context 32 --features 8 --steps 0 --out n2");
    expect_status(&cut, 0);
    cut = run_shell("cmp cutter/sentence_bert_config.json n2/sentence_bert_config.json && ! ls n1/sentence*");
    expect_status(&cut, 0);
    const outcome rows = run_shell(
        "head -1 n1/results.csv; awk -F, 'NR > 1 && NF == 5' n1/results.csv | wc -l");
    assert_string_equal(rows.out, "attention,cosine,less,error,gap\n9\n");
    const outcome told = run_loam("lm info n1");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "8 of each query head in the mean, 2 of 2 layers"));
}

static void test_refused(void **state)
{
    (void)state;
    make_texts();
    outcome told = run_loam("distill " MODELS "llama --text t.txt");
    expect_status(&told, 2);
    assert_non_null(strstr(told.err, "expected one model, --calibration and --text"));
    told = run_loam(BASE "--loss l1");
    expect_status(&told, 2);
    told = run_loam(BASE "--layer 99 --steps 0");
    expect_status(&told, 2);
    assert_non_null(strstr(told.err, "layer 99: the model has"));
    told = run_loam("distill " MODELS "bert --tokenizer " TOKENIZER
                    " --calibration t.txt --text t.txt --context 32 --features 12");
    expect_status(&told, 2);
    assert_non_null(strstr(told.err, "--features 12: expected a multiple of --unit 8"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),   cmocka_unit_test(test_strategies), cmocka_unit_test(test_heads),
        cmocka_unit_test(test_hybrid),  cmocka_unit_test(test_resumed),    cmocka_unit_test(test_model),
        cmocka_unit_test(test_start),   cmocka_unit_test(test_untied),     cmocka_unit_test(test_cascade),
        cmocka_unit_test(test_encoder), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
