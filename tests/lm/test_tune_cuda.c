/* SPDX-License-Identifier: MIT
 * loam lm tune on a GPU: what it comes to is what the CPU comes to, and the same bytes where it was cut. */
#include "tests/cli/program.h"
#include "tests/lm/featured.h"

#include "cli/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SKIPPED = 77, MOST = 16 };

/* Where gpu-bundle.sh took the models, or where they are in the tree. */
static const char *data(void)
{
    static char path[4096];
    const char *const folder = getenv("LOAM_TEST_DATA");
    snprintf(path, sizeof path, "%s%s", folder ? folder : LM_TEST_DATA, folder ? "/lm" : "");
    return path;
}

static void make_student(const char *model, int64_t first, bool shared)
{
    char path[4200];
    const outcome made = run_shell(
        "rm -rf s; mkdir s; for i in 1 2 3 4 5 6 7 8; do echo 'the cat, the dog. a text that ends, and '$i' "
        "other that goes on and on; it is long enough for windows'; done >long.txt");
    expect_status(&made, 0);
    snprintf(path, sizeof path, "%s/%s", data(), model);
    write_featured("s", path, first, shared);
}

static outcome tune(const char *model, const char *what, const char *arguments)
{
    return run_loam(
        "lm tune s --tokenizer %s/tokenizer.json --text long.txt --context 16 --what %s --teacher %s/%s "
        "--steps 12 --batch 4 --every 2 --rate 0.01 %s",
        data(), what, data(), model, arguments);
}

/* Losses of what is held out, by step. */
static int read_losses(const char *path, double *losses)
{
    char line[256];
    int count = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) && count <= MOST)
        if (count++ > 0) losses[count - 2] = strtod(strrchr(line, ',') + 1, NULL);
    fclose(file);
    return count - 1;
}

static void compare(const char *what, const char *with, double bound)
{
    double want[MOST], got[MOST], worst = 0;
    char path[64];
    snprintf(path, sizeof path, "%s/tune.csv", with);
    const int count = read_losses("cpu/tune.csv", want);
    assert_int_equal(count, 7);
    assert_int_equal(read_losses(path, got), count);
    for (int i = 0; i < count; i++)
        worst = fmax(worst, fabs(got[i] - want[i]));
    printf("%s, %s: losses %.4f to %.4f, off by %.2g\n", what, with, got[0], got[count - 1], worst);
    if (!(worst < bound)) fail_msg("%s, %s: off by %g", what, with, worst);
}

static void check(const char *model, int64_t first, bool shared, const char *what)
{
    make_student(model, first, shared);
    outcome told = tune(model, what, "--out cpu");
    expect_status(&told, 0);
    told = tune(model, what, "--backend cuda --dtype f32 --out f32");
    expect_status(&told, 0);
    told = tune(model, what, "--backend cuda --out bf16");
    expect_status(&told, 0);
    compare(what, "f32", 2e-3);
    compare(what, "bf16", 0.1);
    told = run_shell("rm -r cpu f32 bf16");
    expect_status(&told, 0);
}

static void test_losses(void **state)
{
    (void)state;
    check("llama", 11, false, "features");
    check("llama", 0, true, "both");
    check("neox", 5, true, "all");
    check("gpt2", 16, false, "lora");
}

static void test_resume(void **state)
{
    (void)state;
    make_student("llama", 11, false);
    outcome told = tune("llama", "both", "--backend cuda --out whole");
    expect_status(&told, 0);
    for (int piece = 0; piece < 3; piece++) {
        told = tune("llama", "both", "--backend cuda --out cut --time 1e-5");
        expect_status(&told, 0);
    }
    told = tune("llama", "both", "--backend cuda --out cut");
    expect_status(&told, 0);
    assert_true(shell_holds("cmp -s whole/model.safetensors cut/model.safetensors"));
    assert_true(shell_holds("cmp -s whole/tune.csv cut/tune.csv"));
}

int main(void)
{
    if (!device_count()) {
        print_message("skipped: no CUDA device\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_losses), cmocka_unit_test(test_resume) };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
