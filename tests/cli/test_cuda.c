/* SPDX-License-Identifier: MIT
 * The program on a GPU: every mechanism of `loam attend --backend cuda` gives
 * what the CPU gives, the regression experiment and the benchmark run there. */
#include "cli/device.h"
#include "io/error.h"
#include "io/npy.h"
#include "loam.h"
#include "tests/cli/program.h"
#include "tests/cli/sequences.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SKIPPED = 77 };

/* Of the widths that the kernels of Hopper take, and of others. */
static const sequences SIZES[] = {
    { .count = 3, .queries = { 70, 1, 64 }, .keys = { 75, 3, 64 }, .dim = 64, .dim_v = 64 },
    { .count = 3, .queries = { 5, 0, 130 }, .keys = { 9, 0, 131 }, .dim = 24, .dim_v = 40 },
};

static int attend(const attend_case *c, const char *to, const char *options, bool *refused)
{
    outcome made = run_shell("rm -rf g so.npy lse.npy rho.npy %s && mkdir %s", to, to);
    expect_status(&made, 0);
    outcome result = run_loam("attend %s %s --out %s/o.npy --grad-dir g %s", c->arguments, c->outputs, to,
                              options);
    /* Not every mechanism has keys that are turned there, nor every type. */
    *refused = strstr(c->arguments, "--w ") && strstr(result.err, "has no kernel for");
    if (*refused) return 0;
    if (result.status) {
        print_error("loam attend %s %s: %s", c->arguments, options, result.err);
        return 1;
    }
    made = run_shell("mv g/*.npy %s/; for f in so lse rho; do test ! -f $f.npy || mv $f.npy %s/; done", to,
                     to);
    expect_status(&made, 0);
    return 0;
}

/* Are they further apart than `tolerance` of the largest? */
static int differ(const char *file, double tolerance)
{
    char path[300];
    snprintf(path, sizeof path, "cpu/%s", file);
    array expected = read_array(path);
    snprintf(path, sizeof path, "gpu/%s", file);
    array got = read_array(path);
    assert_int_equal(got.rank, expected.rank);
    assert_memory_equal(got.shape, expected.shape, sizeof got.shape);
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < got.count; i++) {
        const double difference = fabs(array_get(&got, i) - array_get(&expected, i));
        largest = fmax(largest, fabs(array_get(&expected, i)));
        worst = difference <= worst ? worst : difference; /* NaN too */
    }
    array_free(&got);
    array_free(&expected);
    /* That of the scale is one number, a sum in which much cancels. */
    if (worst <= (strcmp(file, "dscale.npy") == 0 ? 10 : 1) * tolerance * largest) return 0;
    print_error("%s differs by %g where the largest is %g: ", file, worst, largest);
    return 1;
}

/* How many of its arrays differ. */
static int compare_case(const attend_case *c, const char *dtype, bool packed, double tolerance)
{
    char options[160];
    snprintf(options, sizeof options, "--dtype %s %s %s", dtype, packed ? "--cu-seqlens cu.npy" : "",
             packed && c->keys ? "--cu-seqlens-k cuk.npy" : "");
    bool refused;
    int different = attend(c, "cpu", options, &refused), count = 0;
    assert_false(refused);
    strcat(options, " --backend cuda");
    different += attend(c, "gpu", options, &refused);
    if (different || refused) return different;
    outcome files = run_shell("ls cpu");
    for (char *file = strtok(files.out, "\n"); file; file = strtok(NULL, "\n"), count++)
        if (differ(file, tolerance)) {
            print_error("loam attend %s %s\n", c->arguments, options);
            different++;
        }
    assert_true(count >= 6);
    return different;
}

static void every_mechanism_runs_on_a_gpu(void **state)
{
    (void)state;
    int different = 0;
    for (int size = 0; size < 2; size++) {
        save_sequences(".", &SIZES[size], false, 0);
        for (int i = 0; i < ATTEND_CASE_COUNT; i++)
            different += size == 0 ? compare_case(&ATTEND_CASES[i], "bf16", true, 3e-2)
                                   : compare_case(&ATTEND_CASES[i], "f32", true, 2e-4);
    }
    assert_int_equal(different, 0);
}

/* States have no axis of sequences there. */
static void one_sequence_runs_on_a_gpu(void **state)
{
    (void)state;
    int different = 0;
    save_sequences(".", &SIZES[0], true, 0);
    for (int i = 0; i < ATTEND_CASE_COUNT; i++)
        different += compare_case(&ATTEND_CASES[i], "bf16", false, 3e-2);
    assert_int_equal(different, 0);
}

/* A CSV file, by lines. */
typedef struct table {
    char line[128][1024];
    int count;
} table;

static void read_table(table *t, const char *path)
{
    FILE *stream = fopen(path, "rb");
    if (!stream) fail_msg("no %s", path);
    for (t->count = 0; t->count < 128 && fgets(t->line[t->count], sizeof *t->line, stream);)
        t->count++;
    fclose(stream);
    assert_true(t->count > 1);
}

/* Column `name` of line `row`. */
static const char *cell(const table *t, int row, const char *name)
{
    static char text[256];
    const char *heading = t->line[0], *at = t->line[row];
    const size_t length = strlen(name);
    while (strncmp(heading, name, length) != 0 || !strchr(",\n", heading[length])) {
        heading = strchr(heading, ','), at = strchr(at, ',');
        if (!heading || !at) fail_msg("no column %s", name);
        heading++, at++;
    }
    snprintf(text, sizeof text, "%.*s", (int)strcspn(at, ",\n"), at);
    return text;
}

static void the_experiment_runs_on_a_gpu(void **state)
{
    (void)state;
    static table cpu, gpu;
    if (run_shell("command -v gnuplot").status) skip(); /* its pictures need it */
    outcome result = run_loam("experiment regression --d 8,64 --segment 64 --length 128 --sequences 4 "
                              "--backend cuda --out ex.gpu");
    expect_status(&result, 0);
    result = run_loam("experiment regression --d 8,64 --segment 64 --length 128 --sequences 4 --out ex.cpu");
    expect_status(&result, 0);
    read_table(&cpu, "ex.cpu/summary.csv");
    read_table(&gpu, "ex.gpu/summary.csv");
    assert_int_equal(cpu.count, gpu.count);
    for (int row = 1; row < cpu.count; row++) {
        const double expected = atof(cell(&cpu, row, "mse")), got = atof(cell(&gpu, row, "mse"));
        if (!(fabs(got - expected) <= 1e-3 * expected + 1e-9))
            fail_msg("mse %g, expected %g, of %s", got, expected, cpu.line[row]);
    }
}

/* What is measured is what was asked for: memory comes in pieces of 2 MiB, of which arrays may leave one. */
static void memory_is_measured_on_a_gpu(void **state)
{
    (void)state;
    static table t;
    if (run_shell("command -v gnuplot").status) skip();
    outcome result = run_loam("experiment memory --n 64,1024 --limit 0.25 --backend cuda --out memory.gpu");
    expect_status(&result, 0);
    read_table(&t, "memory.gpu/memory.csv");
    assert_int_equal(t.count, 1 + 2 * 6);
    for (int row = 1; row < t.count; row++) {
        char end[16];
        snprintf(end, sizeof end, "%s", cell(&t, row, "end"));
        const double asked = atof(cell(&t, row, "asked_bytes")), got = atof(cell(&t, row, "working_bytes"));
        const bool blocks = strncmp(cell(&t, row, "method"), "blocks", 6) == 0;
        assert_string_equal(end, blocks ? "computed" : asked > 0.2 * (1 << 30) ? "out" : "taken");
        if (strcmp(end, "out") != 0 && !(fabs(got - asked) < 4 * (1 << 20)))
            fail_msg("%g bytes measured, %g asked for: %s", got, asked, t.line[row]);
    }
}

static bool is_cuda(const char *kernel)
{
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++)
        if (strcmp(row.name, kernel) == 0)
            return strcmp(row.backend, loam_backend_name(LOAM_BACKEND_CUDA)) == 0;
    return false;
}

/* Small problems of every mechanism, but decode of the local family. How many. */
static int write_shapes(FILE *shapes)
{
    static const loam_dtype dtypes[] = { LOAM_F32, LOAM_BF16 };
    loam_mechanism_info info;
    int count = 0;
    for (int m = 0; loam_mechanism_at(m, &info) == LOAM_OK; m++)
        for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++)
            for (int dtype = 0; dtype < 2; dtype++) {
                const int tokens = pass == LOAM_DECODE ? 1 : 130;
                if (pass == LOAM_DECODE && info.family == LOAM_FAMILY_LOCAL) continue;
                fprintf(shapes, "s%d %s %s %s 2 4 4 %d %d 64 64 data=unit\n", count++, info.name,
                        loam_pass_name((loam_pass)pass), loam_dtype_name(dtypes[dtype]), tokens, tokens);
            }
    for (int path = 0; path < 2; path++)
        for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++)
            fprintf(shapes, "s%d softmax %s bf16 2 4 4 130 130 64 64 causal %s data=unit\n", count++,
                    loam_pass_name((loam_pass)pass), path ? "path" : "decay");
    return count;
}

/* The errors that it finds against float64 on its way. */
static void the_benchmark_runs_on_a_gpu(void **state)
{
    (void)state;
    static table t;
    FILE *shapes = fopen("shapes.txt", "wb");
    assert_non_null(shapes);
    const int count = write_shapes(shapes);
    assert_int_equal(fclose(shapes), 0);
    outcome result = run_loam(
        "bench shapes.txt --backend cuda --format csv --no-roof --repeat 3 --out bench.csv");
    expect_status(&result, 0);
    read_table(&t, "bench.csv");
    assert_int_equal(t.count, count + 1);
    for (int row = 1; row < t.count; row++) {
        if (!is_cuda(cell(&t, row, "kernel"))) fail_msg("not a row of CUDA: %s", t.line[row]);
        const double bound = strcmp(cell(&t, row, "dtype"), "f32") == 0 ? 1e-4 : 1e-2;
        const char *error = cell(&t, row, "error");
        if (!*error || !(atof(error) <= bound)) fail_msg("error %s: %s", error, t.line[row]);
    }
}

/* Of all its tests, or of those that the argument, a pattern, names. */
int main(int argc, char **argv)
{
    if (!device_count()) {
        print_message("skipped: no CUDA device\n");
        return SKIPPED;
    }
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mechanism_runs_on_a_gpu), cmocka_unit_test(one_sequence_runs_on_a_gpu),
        cmocka_unit_test(the_experiment_runs_on_a_gpu),  cmocka_unit_test(memory_is_measured_on_a_gpu),
        cmocka_unit_test(the_benchmark_runs_on_a_gpu),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
