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
#define CHOICES LM_TEST_CHOICES "/"
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

/* Column `column` of the first text of a run with these options. */
static double evaluated(const char *options, int column)
{
    const outcome told = run_loam("lm eval " MODELS "llama" TOKENIZER
                                  " --text t.txt --context 8 --weights f32 --out o.csv %s",
                                  options);
    expect_status(&told, 0);
    return csv_value("o.csv", 1, column);
}

/* The change is the difference of two runs, its error that of the mean of two windows. */
static void test_against(void **state)
{
    enum { TOKENS = 1, NLL = 3, CHANGE = 6, CHANGE_ERROR = 7 };
    (void)state;
    make_text();
    const double first = evaluated("--most 8 --mechanism lla --ridge 0.5", NLL) - evaluated("--most 8", NLL);
    const double both = evaluated("--most 16 --mechanism lla --ridge 0.5", NLL) - evaluated("--most 16", NLL);
    assert_int_equal((int)evaluated("--most 8", TOKENS), 8);
    assert_int_equal((int)evaluated("--most 16", TOKENS), 16);
    const char *const paired = "--most 16 --mechanism lla --ridge 0.5 --against softmax";
    assert_true(fabs(both) > 1e-4 && fabs(evaluated(paired, CHANGE) - both) < 1e-6);
    /* Windows' means are first and 2 both - first, apart from `both` by as much each. */
    assert_true(fabs(evaluated(paired, CHANGE_ERROR) / fabs(first - both) - 1) < 1e-2);
    assert_true(fabs(evaluated(paired, NLL) - evaluated("--most 16 --mechanism lla --ridge 0.5", NLL)) <
                1e-12);
    assert_true(fabs(evaluated("--sharpen 2 --against softmax --against-sharpen 2", CHANGE)) < 1e-12);
    const double sharper = evaluated("--sharpen 2", NLL) - evaluated("", NLL);
    assert_true(fabs(evaluated("--against softmax --against-sharpen 2", CHANGE) + sharper) < 1e-6);
}

/* Of windows of 8: the first three places are a text of three tokens, and the last window, of 3 tokens after
 * 5 that were scored before, has the last three. */
static void test_positions(void **state)
{
    enum { TOKENS = 1, NLL = 3 };
    static const int counts[] = { 3, 4, 4 };
    (void)state;
    make_text();
    const double three = evaluated("--most 3", NLL), all = evaluated("--most 11 --positions 3", NLL);
    double sum = 0;
    for (int i = 0; i < 3; i++) {
        assert_int_equal((int)csv_value("o.csv", 2 + i, TOKENS), counts[i]);
        sum += counts[i] * csv_value("o.csv", 2 + i, NLL);
    }
    assert_true(fabs(sum / 11 - all) < 1e-6);
    assert_true(fabs(csv_value("o.csv", 2, NLL) - three) < 1e-6);
    const outcome told = run_loam("lm eval " MODELS "llama" TOKENIZER
                                  " --choices q --form piqa --positions 2");
    expect_status(&told, 2);
}

/* A model diverges from itself by nothing, from another by more than nothing; the error of the mean of two
 * windows is half of what they are apart. */
static void test_divergence(void **state)
{
    enum { NLL = 3, CHANGE = 6, KL = 8, KL_ERROR = 9 };
    static const char *const paired = "--mechanism lla --ridge 0.5 --against softmax";
    const char *const model = "--against-model " MODELS "llama-sharded";
    char options[512];
    (void)state;
    make_text();
    snprintf(options, sizeof options, "--most 8 %s", paired);
    const double first = evaluated(options, KL);
    snprintf(options, sizeof options, "--most 16 %s", paired);
    const double both = evaluated(options, KL);
    assert_true(first > 1e-6 && both > 1e-6);
    assert_true(fabs(evaluated(options, KL_ERROR) / fabs(first - both) - 1) < 1e-2);
    assert_true(fabs(evaluated("--against softmax", KL)) < 1e-12);
    assert_true(fabs(evaluated("--against-model " MODELS "llama", KL)) < 1e-12);
    assert_true(fabs(evaluated("--mechanism lla --ridge 0.5 --against-model " MODELS "llama", KL) -
                     evaluated(paired, KL)) < 1e-9);
    snprintf(options, sizeof options, "%s --against lla", model);
    assert_true(evaluated(model, KL) > 1e-3 && evaluated(options, KL) > 1e-3);
    assert_true(fabs(evaluated(model, KL) - evaluated(options, KL)) > 1e-9);
}

/* One layer, one head of it, one head of each layer: all differ. */
static void test_one_head(void **state)
{
    static const char *const where[] = { "", " --layer 1", " --head 1", " --layer 1 --head 1",
                                         " --layer 1 --head 2" };
    double nll[5];
    (void)state;
    make_text();
    for (int n = 0; n < 5; n++) {
        const outcome told = run_loam("lm eval " MODELS "llama" TOKENIZER
                                      " --text t.txt --mechanism lla --ridge 0.5 --out h.csv%s",
                                      where[n]);
        expect_status(&told, 0);
        assert_int_equal(strstr(told.out, ", head 1 alone") != NULL, n == 2 || n == 3);
        nll[n] = csv_value("h.csv", 1, 3);
        for (int other = 0; other < n; other++)
            assert_true(fabs(nll[n] - nll[other]) > 1e-6);
    }
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

/* What is written after turns, by a template or by hand. */
static void test_chat(void **state)
{
    static const char says[] = "lm generate chatty --tokens 3 %s";
    (void)state;
    outcome made = run_shell(
        "cp -r " MODELS "llama chatty && chmod -R u+w chatty && sed 's/\\[CLS\\]/<|im_start|>/;"
        "s/\\[SEP\\]/<|im_end|>/' " LM_TEST_DATA "/tokenizer.json >chatty/tokenizer.json");
    expect_status(&made, 0);
    FILE *const file = fopen("chatty/chat_template.jinja", "w");
    assert_non_null(file);
    fputs(
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>"
        "system\nok<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
        "message['content'] + "
        "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
        "{% endif %}",
        file);
    fclose(file);
    const outcome own = run_loam(says, "--chat --prompt ab"),
                  other = run_loam(says, "--chat --prompt ab --system xyz");
    const outcome by_hand = run_loam(says,
                                     "--prompt '<|im_start|>system ok<|im_end|><|im_start|>user ab<|im_end|>"
                                     "<|im_start|>assistant'");
    const outcome other_by_hand = run_loam(says,
                                           "--prompt '<|im_start|>system xyz<|im_end|><|im_start|>user ab"
                                           "<|im_end|><|im_start|>assistant'");
    expect_status(&own, 0);
    assert_non_null(strstr(own.err, "28 tokens read"));
    assert_non_null(strstr(other.err, "29 tokens read"));
    assert_string_equal(own.out, by_hand.out);
    assert_string_equal(other.out, other_by_hand.out);
    const outcome converted = run_loam("convert chatty copy");
    expect_status(&converted, 0);
    assert_true(shell_holds("cmp -s chatty/chat_template.jinja copy/chat_template.jinja"));
    made = run_shell("echo '{{ messages }}' >chatty/chat_template.jinja");
    const outcome unknown = run_loam(says, "--chat --prompt ab");
    expect_complaint(&unknown, EXIT_INPUT, "the chat template '{{ messages }}");
    made = run_shell("rm -r chatty copy");
}

/* Of choices: McNemar's exact test by Pascal's triangle. */
static double mcnemar(int gained, int lost)
{
    double ways = 1, sum = 0;
    const int n = gained + lost, fewer = gained < lost ? gained : lost;
    for (int k = 0; k <= fewer; k++) {
        sum += ways;
        ways = ways * (n - k) / (k + 1);
    }
    return fmin(1, 2 * sum / pow(2, n));
}

static void test_choices_against(void **state)
{
    enum { QUESTIONS = 40 };
    int right = 0, gained = 0, lost = 0;
    char line[160];
    (void)state;
    FILE *const file = fopen("q.jsonl", "w");
    assert_non_null(file);
    for (int n = 0; n < QUESTIONS; n++)
        fprintf(file, "{\"goal\":\"%c %c\",\"sol1\":\"%c\",\"sol2\":\"%c\",\"label\":%d}\n", 'a' + n % 26,
                'a' + n * 7 % 26, 'a' + n * 5 % 26, 'a' + (n * 3 + 1) % 26, n % 2);
    fclose(file);
    const outcome told = run_loam("lm eval " MODELS "llama" TOKENIZER
                                  " --choices q.jsonl --form piqa --out c.csv "
                                  "--mechanism lla --ridge 0.05 --against softmax");
    expect_status(&told, 0);
    for (int n = 1; n <= QUESTIONS; n++) {
        const bool second = csv_value("c.csv", n, 1) > 0;
        const bool now = (csv_value("c.csv", n, 3) > csv_value("c.csv", n, 2)) == second;
        const bool before = (csv_value("c.csv", n, 5) > csv_value("c.csv", n, 4)) == second;
        right += now, gained += now && !before, lost += before && !now;
    }
    assert_true(gained + lost >= 3);
    const double n = QUESTIONS, p = right / n, change = (gained - lost) / n;
    snprintf(line, sizeof line,
             "accuracy                 %.4f +- %.4f   change %+.4f +- %.4f: %d gained, %d lost, p = %.2g\n",
             p, sqrt(p * (1 - p) / n), change, sqrt(((gained + lost) / n - change * change) / n), gained,
             lost, mcnemar(gained, lost));
    if (!strstr(told.out, line)) fail_msg("expected '%s' in '%s'", line, told.out);
}

/* The row of expected.csv that begins so, after what it begins with. */
static const char *expected_row(const char *all, const char *model, const char *form, int row, int *answer)
{
    char begin[64];
    const int length = snprintf(begin, sizeof begin, "\n%s,%s,%d,", model, form, row);
    const char *at = strstr(all, begin);
    if (at) *answer = (int)strtol(at + length, NULL, 10);
    return at ? strchr(at + length, ',') : NULL;
}

/* Answers and sums of all choices are those of lm-eval (make_choices.py). */
static int compare_choices(const char *all, const char *model, const char *form, const char *file)
{
    const char *at;
    int rows = 0, answer;
    const outcome told = run_loam("lm eval " MODELS "%s --tokenizer " CHOICES "tokenizer.json --weights f32 "
                                  "--choices " CHOICES "%s --form %s --out c.csv%s",
                                  model, file, form,
                                  strcmp(file, "mmlu.jsonl") == 0 ? " --subject 'abstract algebra'" : "");
    expect_status(&told, 0);
    for (; (at = expected_row(all, model, form, rows + 1, &answer)); rows++) {
        assert_int_equal((int)csv_value("c.csv", rows + 1, 1), answer);
        for (int i = 2; *at == ','; i++) {
            char *end;
            const double want = strtod(at + 1, &end), got = csv_value("c.csv", rows + 1, i);
            if (!(fabs(got - want) < 1e-4))
                fail_msg("%s, %s, question %d, choice %d: %.6f, expected %.6f", model, file, rows + 1, i - 1,
                         got, want);
            at = end;
        }
    }
    return rows;
}

static void test_choices_golden(void **state)
{
    static const char *const models[] = { "gpt2", "llama" };
    static const char *const files[][2] = {
        { "piqa", "piqa.jsonl" },     { "arc", "arc.jsonl" },
        { "logiqa", "logiqa.jsonl" }, { "winogrande", "winogrande.jsonl" },
        { "wsc273", "wsc273.jsonl" }, { "wsc", "wsc.jsonl" },
        { "mmlu", "mmlu.jsonl" },     { "mmlu", "abstract_algebra_test.csv" }
    };
    char all[8192];
    FILE *const file = fopen(CHOICES "expected.csv", "r");
    (void)state;
    assert_non_null(file);
    const size_t bytes = fread(all, 1, sizeof all - 1, file);
    fclose(file);
    assert_true(bytes < sizeof all - 1);
    all[bytes] = 0;
    for (int m = 0; m < 2; m++)
        for (size_t n = 0; n < sizeof files / sizeof *files; n++)
            assert_true(compare_choices(all, models[m], files[n][0], files[n][1]) >= 2);
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

/* A long sentence is that which is cut before it is read, with [SEP] behind it. */
static void expect_cut(const char *cut, const char *notice)
{
    const outcome told = run_loam("lm embed cutter --text %s", cut);
    expect_status(&told, 0);
    assert_non_null(strstr(told.out, "2 1.000000\n3 "));
    assert_null(strstr(told.out, "3 1.000000"));
    assert_non_null(strstr(told.err, notice));
}

static void test_embed_cut(void **state)
{
    (void)state;
    outcome made = run_shell(
        "cp -r " MODELS "bert cutter && chmod -R u+w cutter && "
        "sed 's/\"post_processor\": null/\"post_processor\":{\"type\":\"BertProcessing\","
        "\"sep\":[\"[SEP]\",2],\"cls\":[\"[CLS]\",1]}/' " LM_TEST_DATA
        "/tokenizer.json >cutter/tokenizer.json && "
        "printf 'abcdefghijklmnopqrstuvwxyzabcd\\nabcdefghijklmnopqrstuvwxyzabcdxyz\\nabc\\n' >cut32.txt && "
        "printf 'abcdefgh\\nabcdefgh, the end\\nabc\\n' >cut10.txt");
    expect_status(&made, 0);
    expect_cut("cut32.txt", "cut after 32 tokens: 1 of the sentences");
    made = run_shell("echo '{\"max_seq_length\": 10}' >cutter/sentence_bert_config.json");
    expect_cut("cut10.txt", "cut after 10 tokens: 1 of the sentences");
    made = run_shell("echo '{\"max_seq_length\": -1}' >cutter/sentence_bert_config.json");
    const outcome wrong = run_loam("lm embed cutter --text cut10.txt");
    expect_complaint(&wrong, EXIT_INPUT, "'max_seq_length': expected a number of tokens");
    made = run_shell("rm -r cutter");
}

static void test_refusals(void **state)
{
    static const refusal cases[] = {
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
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --mechanism lla --head 4", EXIT_USAGE, "head 4" },
        { "eval " MODELS "bert" TOKENIZER " --text t.txt", EXIT_INPUT, "bert" },
        { "eval " MODELS "llama" TOKENIZER " --choices t.txt", EXIT_USAGE, "--form" },
        { "eval " MODELS "llama" TOKENIZER " --choices t.txt --form arc", EXIT_INPUT, "t.txt, line 1" },
        { "eval " MODELS "llama" TOKENIZER " --choices t.txt --form arc --subject x", EXIT_USAGE,
          "--subject is for --form mmlu" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --against soft", EXIT_USAGE,
          "--against soft: expected softmax" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --against-model " MODELS "bert", EXIT_INPUT,
          "bert" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --against-model none", EXIT_INPUT, "none" },
        { "eval " MODELS "llama" TOKENIZER " --choices t.txt --form arc --against-model " MODELS "llama",
          EXIT_USAGE, "--against-model is for --text" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --against-sharpen 2", EXIT_USAGE,
          "--against-sharpen is for --against" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --subject x", EXIT_USAGE,
          "--subject is for --choices" },
        { "generate " MODELS "bert" TOKENIZER " --prompt a", EXIT_INPUT, "bert" },
        { "generate " MODELS "llama" TOKENIZER, EXIT_USAGE, "--prompt" },
        { "generate " MODELS "llama" TOKENIZER " --prompt a --tokens 99", EXIT_INPUT, "at most 32" },
        { "generate " MODELS "llama" TOKENIZER " --prompt a --chat", EXIT_INPUT, "no chat template" },
        { "generate " MODELS "llama" TOKENIZER " --prompt a --system b", EXIT_USAGE,
          "--system is for --chat" },
        { "embed " MODELS "bert" TOKENIZER, EXIT_USAGE, "--text" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --backend gpu", EXIT_USAGE, "--backend gpu" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --dtype bf16", EXIT_USAGE, "--dtype bf16" },
        { "eval " MODELS "llama" TOKENIZER " --text t.txt --device 0", EXIT_USAGE, "--backend cuda" },
    };
    (void)state;
    make_text();
    expect_refusals("lm", cases, sizeof cases / sizeof *cases, NULL);
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
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_eval),
        cmocka_unit_test(test_one_head),
        cmocka_unit_test(test_generate),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_choices_golden),
        cmocka_unit_test(test_against),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_choices_against),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_embed_cut),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_device),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
