/* SPDX-License-Identifier: MIT
 * Each allocation of the command fails once: a status and a line, and no output file. */
#include "cli/bench/roof.h"
#include "cli/command.h"
#include "io/npy.h"
#include "tests/support/alloc_fail.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char SHAPES[] = "bench-allocations.txt", OUT[] = "bench-allocations.out";

/* q, k and v of 4 tokens with 3 channels. */
static void write_data(void)
{
    for (const char *letter = "qkv"; *letter; letter++) {
        char path[32];
        array a;
        io_error error;
        snprintf(path, sizeof path, "bench-allocations-%c.npy", *letter);
        assert_int_equal(array_create(&a, LOAM_F32, 3, (const int64_t[]){ 1, 4, 3 }, path, &error), 0);
        for (int64_t i = 0; i < a.count; i++)
            array_set(&a, i, 1 / (double)(1 + i));
        assert_int_equal(npy_write(path, &a, &error), 0);
        array_free(&a);
    }
}

static int run_command(const char *format)
{
    char line[256], *argv[24];
    int argc = 0;
    snprintf(line, sizeof line, "bench %s --threads 1 --repeat 1 --no-roof --format %s --out %s", SHAPES,
             format, OUT);
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    return command_bench(argc, argv);
}

static int fail_each(const char *format)
{
    bool happened = true;
    int nth = 0;
    while (happened) {
        unlink(OUT);
        alloc_fail_at(++nth);
        const int status = run_command(format);
        happened = alloc_fail_happened();
        alloc_fail_at(0);
        if (happened ? status == EXIT_OK : status != EXIT_OK)
            fail_msg("allocation %d: status %d", nth, status);
        assert_int_equal(access(OUT, F_OK) == 0, !happened);
    }
    unlink(OUT);
    return nth - 1;
}

static void each_allocation_fails_once(void **state)
{
    (void)state;
    FILE *stream = fopen(SHAPES, "w");
    assert_non_null(stream);
    fputs("a lla backward f32 1 2 1 4 4 3 3\nb softmax decode bf16 1 1 1 1 4 3 3 slope sink kernel=*ref\n"
          "c softmax forward bf16 1 1 1 4 4 3 3 data=bench-allocations\n",
          stream);
    assert_int_equal(fclose(stream), 0);
    write_data();
    json_set_alloc_funcs(alloc_fail_malloc, alloc_fail_free);
    const int csv = fail_each("csv"), json = fail_each("json");
    printf("%d and %d allocations\n", csv, json);
    assert_true(csv > 30 && json > csv);
    unlink(SHAPES);
    unlink("bench-allocations-q.npy"), unlink("bench-allocations-k.npy"), unlink("bench-allocations-v.npy");
}

static void roofs_need_memory(void **state)
{
    (void)state;
    for (int nth = 1; nth <= 5; nth++) {
        bench_roofs roofs;
        io_error error;
        alloc_fail_at(nth);
        const int status = bench_roofs_open(&roofs, 1, &error);
        alloc_fail_at(0);
        assert_int_equal(status, EXIT_INTERNAL);
        assert_non_null(strstr(error.text, "out of memory"));
        bench_roofs_close(&roofs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(each_allocation_fails_once),
                                        cmocka_unit_test(roofs_need_memory) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
