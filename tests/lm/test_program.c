/* SPDX-License-Identifier: MIT
 * loam lm as a user runs it, on tiny models whose tokenizer knows letters. */
#include "tests/cli/program.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODELS LM_TEST_DATA "/"
#define TOKENIZER " --tokenizer " LM_TEST_DATA "/tokenizer.json"

static const char *const writers[] = {
    "gpt2", "gpt2-scaled", "neox", "neox-serial", "llama", "llama-sharded", "llama-gguf/model.gguf"
};
enum { WRITERS = sizeof writers / sizeof *writers };

static void make_text(void)
{
    const outcome made = run_shell(
        "echo 'the cat, the dog. a text that ends' >t.txt; echo 'other words' >u.txt");
    expect_status(&made, 0);
}

/* The first number of a CSV's row `row` in column `column`, both from 0. */
static double csv_value(const char *path, int row, int column)
{
    FILE *file = fopen(path, "r");
    char line[1024];
    assert_non_null(file);
    for (int i = 0; i <= row; i++)
        assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    const char *at = line;
    for (int i = 0; i < column; i++)
        assert_non_null(at = strchr(at, ',')), at++;
    return strtod(at, NULL);
}

static void test_info(void **state)
{
    static const char *const says[] = { "gpt2", "gpt2", "gpt_neox", "gpt_neox", "llama", "llama", "llama" };
    (void)state;
    for (int i = 0; i < WRITERS; i++) {
        const outcome told = run_loam("lm info " MODELS "%s" TOKENIZER, writers[i]);
        const char *const line = strstr(told.out, "architecture   ");
        expect_status(&told, 0);
        assert_non_null(line);
        assert_memory_equal(line + 15, says[i], strlen(says[i]));
        assert_non_null(strstr(told.out, "layers         2 of width"));
    }
}

/* nll of the same text and windows: softmax, LLA as softmax, another attention; the same bits again. */
static void test_eval(void **state)
{
    static const char *const attention[] = { "", " --mechanism lla --ridge 1e7",
                                             " --mechanism lla --ridge 0.5", " --sharpen 2",
                                             " --mechanism parallax" };
    (void)state;
    make_text();
    for (int i = 0; i < WRITERS; i++) {
        double nll[5];
        for (int n = 0; n < 5; n++) {
            const outcome told = run_loam("lm eval " MODELS "%s" TOKENIZER
                                          " --text t.txt,u.txt --context 8 --weights f32 --out o%d.csv%s",
                                          writers[i], n, attention[n]);
            char path[32];
            expect_status(&told, 0);
            assert_non_null(strstr(told.out, "u.txt"));
            snprintf(path, sizeof path, "o%d.csv", n);
            nll[n] = csv_value(path, 1, 3);
            assert_true(nll[n] > 0 && nll[n] < 20);
            const double bits = nll[n] * csv_value(path, 1, 1) / csv_value(path, 1, 2) / log(2);
            assert_true(fabs(csv_value(path, 1, 5) - bits) < 1e-6);
        }
        assert_true(fabs(nll[1] - nll[0]) < 1e-5 && fabs(nll[4] - nll[0]) < 1e-6);
        assert_true(fabs(nll[2] - nll[0]) > 1e-4 && fabs(nll[3] - nll[0]) > 1e-4);
    }
    outcome again = run_loam("lm eval " MODELS "llama" TOKENIZER
                             " --text t.txt,u.txt --context 8 --out a.csv");
    expect_status(&again, 0);
    again = run_loam("lm eval " MODELS "llama" TOKENIZER
                     " --text t.txt,u.txt --context 8 --threads 1 --out b.csv");
    expect_status(&again, 0);
    assert_true(shell_holds("cmp -s a.csv b.csv"));
    again = run_loam("lm eval " MODELS "llama" TOKENIZER " --text t.txt --context 8 --most 9 --out m.csv");
    expect_status(&again, 0);
    assert_true(csv_value("m.csv", 1, 1) <= 9 && csv_value("m.csv", 1, 1) >= 8);
}

static void test_generate(void **state)
{
    (void)state;
    for (int i = 0; i < WRITERS; i++) {
        const outcome plain = run_loam("lm generate " MODELS "%s" TOKENIZER " --prompt 'the cat' --tokens 9",
                                       writers[i]);
        expect_status(&plain, 0);
        assert_non_null(strstr(plain.err, "tokens read"));
        assert_true(strlen(plain.out) >= 1);
        const outcome same = run_shell(
            "printf 'the cat' | \"$LOAM\" lm generate " MODELS "%s" TOKENIZER
            " --prompt-file - --tokens 9 --temperature 1 --top-k 1 --seed 5 --threads 1 2>/dev/null",
            writers[i]);
        assert_string_equal(same.out, plain.out);
    }
    const char *const warm = "lm generate " MODELS "llama" TOKENIZER
                             " --prompt x --tokens 12 --temperature 2 --seed %d";
    outcome one = run_loam(warm, 1), two = run_loam(warm, 2), again = run_loam(warm, 1);
    expect_status(&one, 0);
    assert_string_equal(one.out, again.out);
    assert_string_not_equal(one.out, two.out);
}

static void test_choices(void **state)
{
    (void)state;
    outcome told = run_shell(
        "printf '%%s\\n' '{\"goal\":\"a b\",\"sol1\":\"abc\",\"sol2\":\"x yz\",\"label\":1}' "
        "'{\"goal\":\"q\",\"sol1\":\"a\",\"sol2\":\"b\",\"label\":0}' >q.jsonl");
    told = run_loam("lm eval " MODELS "llama" TOKENIZER " --choices q.jsonl --form piqa --out c.csv");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "questions                2\n"));
    int right = 0;
    for (int n = 1; n <= 2; n++)
        right += (csv_value("c.csv", n, 3) > csv_value("c.csv", n, 2)) == (csv_value("c.csv", n, 1) > 0);
    char line[64];
    snprintf(line, sizeof line, "accuracy                 %.4f", right / 2.0);
    assert_non_null(strstr(told.out, line));
}

static void test_embed(void **state)
{
    (void)state;
    outcome told = run_shell("printf 'abc\\nabc\\nxyz, the\\n' >s.txt");
    told = run_loam("lm embed " MODELS "bert" TOKENIZER " --text s.txt");
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "2 1.000000\n3 "));
    told = run_loam("lm embed " MODELS "bert" TOKENIZER " --text s.txt --out e.npy");
    expect_status(&told, 0);
    array vectors = read_array("e.npy");
    assert_true(vectors.rank == 2 && vectors.shape[0] == 3 && vectors.shape[1] == 16);
    for (int row = 0; row < 3; row++) {
        double norm = 0;
        for (int c = 0; c < 16; c++)
            norm += pow(array_get(&vectors, row * 16 + c), 2);
        assert_true(fabs(norm - 1) < 1e-6);
    }
    array_free(&vectors);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *arguments;
        int status;
        const char *said;
    } cases[] = {
        { "", EXIT_USAGE, "no command named" },
        { "evil", EXIT_USAGE, "unknown argument evil" },
        { "info", EXIT_USAGE, "expected one model" },
        { "info nowhere", EXIT_INPUT, "nowhere" },
        { "info " MODELS "llama", EXIT_INPUT, "tokenizer.json" },
        { "eval " MODELS "llama" TOKENIZER, EXIT_USAGE, "--text or --choices" },
        { "eval " MODELS "llama" TOKENIZER " --text nothing.txt", EXIT_INPUT, "nothing.txt" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --context 99", EXIT_USAGE, "at most 32" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --mechanism lal", EXIT_USAGE,
          " --mechanism lal: expected softmax" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --mechanism lla --layer 2", EXIT_USAGE, "layer 2" },
        { "eval " MODELS "bert" TOKENIZER " --text t.txt", EXIT_INPUT, "bert" },
        { "eval " MODELS "llama" TOKENIZER " --choices t.txt", EXIT_USAGE, "--form" },
        { "eval " MODELS "llama" TOKENIZER " --choices t.txt --form arc", EXIT_INPUT, "t.txt, line 1" },
        { "generate " MODELS "bert" TOKENIZER " --prompt a", EXIT_INPUT, "bert" },
        { "generate " MODELS "llama" TOKENIZER, EXIT_USAGE, "--prompt" },
        { "generate " MODELS "llama" TOKENIZER " --prompt a --tokens 99", EXIT_INPUT, "at most 32" },
        { "generate " MODELS "llama" TOKENIZER " --prompt a --chat", EXIT_INPUT, "<|im_start|>" },
        { "embed " MODELS "bert" TOKENIZER, EXIT_USAGE, "--text" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --backend gpu", EXIT_USAGE, "--backend gpu" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --dtype bf16", EXIT_USAGE, "--dtype bf16" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --device 0", EXIT_USAGE, "--backend cuda" },
    };
    (void)state;
    make_text();
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const outcome told = run_loam("lm %s", cases[n].arguments);
        expect_complaint(&told, cases[n].status, cases[n].said);
    }
}

/* Without a device, a driver or a build for them. */
static void test_no_device(void **state)
{
    static const char *const commands[] = { "eval " MODELS "llama --text t.txt",
                                            "generate " MODELS "llama --prompt a --device 0",
                                            "embed " MODELS "bert --text t.txt" };
    (void)state;
    make_text();
    for (int n = 0; n < 3; n++) {
        outcome told = run_shell("CUDA_VISIBLE_DEVICES=-1 \"$LOAM\" lm %s" TOKENIZER " --backend cuda",
                                 commands[n]);
        expect_complaint(&told, EXIT_USAGE, "--backend cuda: ");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),      cmocka_unit_test(test_eval),  cmocka_unit_test(test_generate),
        cmocka_unit_test(test_choices),   cmocka_unit_test(test_embed), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_device),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
