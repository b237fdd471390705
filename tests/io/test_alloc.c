/* SPDX-License-Identifier: MIT
 * Every allocation of the readers, the writers, the options and `loam attend` fails once: each time an error
 * that says so, exit status 1, and nothing half done. */
#define _XOPEN_SOURCE 700
#include "cli/attend/attend.h"
#include "cli/options.h"
#include "io/csv.h"
#include "io/load.h"
#include "io/npy.h"
#include "io/out_file.h"
#include "io/safetensors.h"
#include "tests/io/bytes.h"
#include "tests/support/alloc_fail.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const char HEADER[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}";

static int enter_directory(void **state)
{
    char directory[] = "alloc-XXXXXX";
    *state = NULL;
    if (!mkdtemp(directory) || chdir(directory)) return -1;
    json_set_alloc_funcs(alloc_fail_malloc, alloc_fail_free);
    bytes b = npy_bytes(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3)}", 48);
    memset(b.at + b.count - 48, 0, 48);
    save_bytes("a.npy", &b);
    b = safetensors_bytes(strlen(HEADER), HEADER, 24);
    save_bytes("a.safetensors", &b);
    b = text_bytes("x,y\n1,2\n3,4\n5,\n");
    save_bytes("a.csv", &b);
    b = text_bytes("1,2\n3,4\n");
    save_bytes("plain.csv", &b);
    return 0;
}

static int leave_directory(void **state)
{
    (void)state;
    char directory[4096];
    if (!getcwd(directory, sizeof directory)) return -1;
    return unlink("a.npy") | unlink("a.safetensors") | unlink("a.csv") | unlink("plain.csv") | chdir("..") |
           rmdir(directory);
}

/* `action` with its first, second, ... allocation failing, until it has no more. */
static void fail_each_allocation(int (*action)(io_error *error), int at_least)
{
    for (int nth = 1;; nth++) {
        io_error error = { 0 };
        alloc_fail_at(nth);
        int status = action(&error);
        bool happened = alloc_fail_happened();
        alloc_fail_at(0);
        if (!happened) {
            if (status) fail_msg("with every allocation: %s", error.text);
            assert_true(nth > at_least);
            return;
        }
        if (status != EXIT_INTERNAL || error.exit_status != EXIT_INTERNAL ||
            !strstr(error.text, "out of memory"))
            fail_msg("allocation %d: status %d, '%s'", nth, status, error.text);
    }
}

static int load_npy(io_error *error)
{
    array a;
    int status = array_load(&a, "a.npy", error);
    if (!status) status = array_convert(&a, LOAM_F32, "a.npy", error);
    array_free(&a);
    return status;
}

/* Some of jansson's own failed allocations are told by it, and so by us, as a mistake in the text. */
static int load_safetensors(io_error *error)
{
    array a;
    int status = array_load(&a, "a.safetensors:a", error);
    assert_true(!status == (a.data != NULL));
    array_free(&a);
    if (status == EXIT_INPUT && strstr(error->text, "the header is not JSON"))
        return io_fail(error, EXIT_INTERNAL, "out of memory");
    return status;
}

static int read_csv(io_error *error)
{
    csv_table table;
    const char *const columns[] = { "y", "1" };
    const csv_request request = { .columns = columns, .column_count = 2, .missing = CSV_DROP_ROW };
    int status = csv_read(&table, "a.csv", &request, error);
    csv_table_free(&table);
    return status;
}

static int read_plain_csv(io_error *error)
{
    csv_table table;
    const char *const columns[] = { "2" };
    int status = csv_read(&table, "plain.csv", &(csv_request){ .columns = columns, .column_count = 1 },
                          error);
    csv_table_free(&table);
    return status;
}

static int read_labelled_csv(io_error *error)
{
    csv_table table;
    const char *const columns[] = { "x" };
    const csv_request request = {
        .columns = columns, .column_count = 1, .label = "y", .missing = CSV_DROP_ROW
    };
    int status = csv_read(&table, "a.csv", &request, error);
    csv_table_free(&table);
    return status;
}

static int write_npy(io_error *error)
{
    array a;
    int status = array_create(&a, LOAM_F32, 1, (int64_t[]){ 3 }, "a", error);
    if (!status) {
        memset(a.data, 0, 12);
        status = npy_write("out.npy", &a, error);
    }
    array_free(&a);
    if ((access("out.npy", F_OK) == 0) != (status == 0))
        fail_msg("status %d, but the file is%s there", status, status ? "" : " not");
    unlink("out.npy");
    return status;
}

static int write_safetensors(io_error *error)
{
    static float data[2];
    static const char *const names[] = { "x" }, *const texts[] = { "k", "v", NULL };
    const array a = { LOAM_F32, 2, { 1, 2 }, 2, data };
    const int status = safetensors_write("out.st", &(safetensors_contents){ 1, names, &a, texts }, error);
    if ((access("out.st", F_OK) == 0) != (status == 0))
        fail_msg("status %d, but the file is%s there", status, status ? "" : " not");
    unlink("out.st");
    return status;
}

static int read_tensors(io_error *error)
{
    safetensors *file;
    array a = { 0 };
    int status = safetensors_open(&file, "a.safetensors", error);
    assert_true(!status == (file != NULL));
    if (!status) status = safetensors_tensor(file, &a, "a", error);
    array_free(&a);
    safetensors_close(file);
    if (status == EXIT_INPUT && strstr(error->text, "the header is not JSON"))
        return io_fail(error, EXIT_INTERNAL, "out of memory");
    return status;
}

static int parse_options(io_error *error)
{
    bool flag = false, help;
    const option_row rows[] = { { "flag", OPTION_FLAG, &flag, 0, 0, NULL, "a flag" }, { 0 } };
    char name[] = "test", word[] = "--flag", *argv[] = { name, word, NULL };
    int argc = 2;
    return options_parse(&argc, argv, rows, "test", "about", &help, error);
}

static int attend(io_error *error)
{
    static const char *const words[] = { "attend",     "lla",   "--q",        "a.npy", "--k",    "a.npy",
                                         "--v",        "a.npy", "--out",      "o.npy", "--lse",  "l.npy",
                                         "--rho",      "r.npy", "--weights",  "w.npy", "--info", "i.csv",
                                         "--grad-out", "a.npy", "--grad-dir", "g" };
    enum { COUNT = sizeof words / sizeof *words };
    char *argv[COUNT + 1] = { NULL };
    for (int i = 0; i < COUNT; i++)
        argv[i] = (char *)(uintptr_t)words[i];
    attend_options options;
    int status = attend_parse(&options, COUNT, argv, error);
    attend_run run = { .options = &options };
    if (!status) status = attend_read(&run, error);
    if (!status) status = attend_prepare(&run, error);
    if (!status) status = attend_compute(&run, error);
    if (!status) status = attend_write(&run, error);
    attend_free(&run);
    static const char *const results[] = {
        "o.npy",    "l.npy",    "r.npy",    "w.npy",        "i.csv",
        "g/dq.npy", "g/dk.npy", "g/dv.npy", "g/dridge.npy", "g/dscale.npy"
    };
    for (int i = 0; i < 10; i++)
        assert_int_equal(unlink(results[i]), status ? -1 : 0);
    assert_int_equal(rmdir("g"), status ? -1 : 0);
    return status;
}

static void readers(void **state)
{
    (void)state;
    fail_each_allocation(load_npy, 3);
    fail_each_allocation(load_safetensors, 8);
    fail_each_allocation(read_tensors, 8);
    fail_each_allocation(read_csv, 8);
    fail_each_allocation(read_plain_csv, 8);
    fail_each_allocation(read_labelled_csv, 8);
}

static void writers(void **state)
{
    (void)state;
    fail_each_allocation(write_npy, 3);
    fail_each_allocation(write_safetensors, 20);
}

static void options(void **state)
{
    (void)state;
    fail_each_allocation(parse_options, 1);
}

static void attention(void **state)
{
    (void)state;
    fail_each_allocation(attend, 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers),
        cmocka_unit_test(writers),
        cmocka_unit_test(options),
        cmocka_unit_test(attention),
    };
    return cmocka_run_group_tests(tests, enter_directory, leave_directory);
}
