/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "io/mapped.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { BYTES = 8 << 20 };

/* Kilobytes of files that are in this process's memory. */
static long resident_files(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long found = -1;
    assert_non_null(file);
    while (found < 0 && fgets(line, sizeof line, file))
        (void)sscanf(line, "RssFile: %ld", &found);
    fclose(file);
    return found;
}

static long sum_of(const mapped *m)
{
    long sum = 0;
    for (int64_t i = 0; i < m->bytes; i++)
        sum += m->data[i];
    return sum;
}

/* What is forgotten leaves memory and can be read again. */
static void test_forget(void **state)
{
    const char *const path = "test_mapped.bin";
    mapped m;
    io_error error;
    FILE *file = fopen(path, "wb");
    long sum = 0;
    (void)state;
    assert_non_null(file);
    for (int64_t i = 0; i < BYTES; i++) {
        fputc((int)(i * 7 % 251), file);
        sum += i * 7 % 251;
    }
    assert_int_equal(fclose(file), 0);
    assert_int_equal(mapped_open(&m, path, &error), 0);
    assert_int_equal(sum_of(&m), sum);
    const long before = resident_files();
    mapped_forget(&m, m.data + 1, 100); /* less than a page */
    assert_true(resident_files() > before - 1024);
    mapped_forget(&m, m.data + 4097, BYTES / 2);
    assert_true(resident_files() < before - BYTES / 2048 + 1024 &&
                resident_files() > before - BYTES / 1024 + 2048);
    assert_int_equal(sum_of(&m), sum);
    /* Arrays that share pages, read and forgotten one by one, leave none behind. */
    mapped_forget(&m, m.data, (size_t)m.bytes);
    const long without = resident_files();
    long again = 0;
    for (int64_t i = 0, size; i < m.bytes; i += size) {
        size = m.bytes - i < 5000 ? m.bytes - i : 5000;
        for (int64_t k = 0; k < size; k++)
            again += m.data[i + k];
        mapped_forget(&m, m.data + i, (size_t)size);
    }
    assert_int_equal(again, sum);
    assert_true(resident_files() < without + 1024);
    mapped_close(&m);
    assert_int_equal(remove(path), 0);
}

/* Memory beside a mapping is somebody else's: of pages without a file forgetting makes zeros. */
static void test_neighbours(void **state)
{
    enum { PAGES = 1 << 16, SIDE = 3 * PAGES };
    (void)state;
    unsigned char *all = mmap(NULL, SIDE + PAGES + SIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                              -1, 0);
    assert_true(all != MAP_FAILED);
    memset(all, 7, SIDE + PAGES + SIDE);
    const mapped m = { all + SIDE, PAGES };
    mapped_forget(&m, m.data + 10, PAGES - 20);
    for (int64_t i = 0; i < SIDE + PAGES + SIDE; i++)
        assert_int_equal(all[i], i >= SIDE && i < SIDE + PAGES ? 0 : 7);
    assert_int_equal(munmap(all, SIDE + PAGES + SIDE), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_forget), cmocka_unit_test(test_neighbours) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
