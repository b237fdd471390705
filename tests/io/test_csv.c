/* SPDX-License-Identifier: MIT
 * io/csv.c: headers or none, names or numbers, missing values, and errors that tell where. */
#define _POSIX_C_SOURCE 200809L
#include "io/csv.h"

#include "io/csv_delimiter.h"
#include "tests/io/bytes.h"

#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { COLUMNS_MAX = 4 };

typedef struct reading {
    csv_table table;
    io_error error;
    int status;
} reading;

/* Columns are separated by '|' in `chosen`; the request's own are not looked at. */
static reading read_request(const char *text, const char *chosen, csv_request request)
{
    reading r = { 0 };
    char words[200];
    const char *columns[COLUMNS_MAX];
    request.columns = columns;
    strcpy(words, chosen);
    for (char *word = strtok(words, "|"); word; word = strtok(NULL, "|"))
        columns[request.column_count++] = word;
    bytes b = text_bytes(text);
    FILE *stream = open_bytes(&b);
    r.status = csv_read_stream(&r.table, stream, "x.csv", &request, &r.error);
    fclose(stream);
    return r;
}

static reading read_text(const char *text, const char *chosen, csv_missing missing)
{
    return read_request(text, chosen, (csv_request){ .missing = missing });
}

static void expect_values(const char *text, const char *chosen, csv_missing missing, int64_t rows,
                          int columns, const double *column_major)
{
    reading r = read_text(text, chosen, missing);
    if (r.status) fail_msg("%s", r.error.text);
    assert_int_equal(r.table.rows, rows);
    assert_int_equal(r.table.columns, columns);
    for (int64_t i = 0; i < rows * columns; i++)
        if (r.table.values[i] != column_major[i])
            fail_msg("value %d of '%s' is %g, expected %g", (int)i, text, r.table.values[i], column_major[i]);
    csv_table_free(&r.table);
    assert_null(r.table.values);
}

#define EXPECT(text, chosen, rows, columns, ...) \
    expect_values(text, chosen, CSV_MISSING_ERROR, rows, columns, (const double[]){ __VA_ARGS__ })

static void columns_by_name_and_number(void **state)
{
    (void)state;
    const char *table = "a,b,c\n1,2,3\n4,5,6\n";
    EXPECT(table, "a|b|c", 2, 3, 1, 4, 2, 5, 3, 6);
    EXPECT(table, "c|1", 2, 2, 3, 6, 1, 4);
    EXPECT(table, "b|2|b", 2, 3, 2, 5, 2, 5, 2, 5);
    EXPECT("1,2\n3,4", "2", 2, 1, 2, 4);
    EXPECT("NA,2\n3,4", "2|2", 2, 2, 2, 4, 2, 4);
    EXPECT("2,1\n3,4\n", "1", 2, 1, 2, 3);
}

static void quirks_of_files(void **state)
{
    (void)state;
    EXPECT("\xEF\xBB\xBF"
           "a,b\r\n1,2\r\n\r\n3,4\r\n",
           "a|b", 2, 2, 1, 3, 2, 4);
    EXPECT("\"a \"\"x\"\"\",\"b,c\"\n\"1.5\", -2e3 \n", "a \"x\"|b,c", 1, 2, 1.5, -2000);
    EXPECT("a\n0x10\n+7\n.5\n", "a", 3, 1, 16, 7, 0.5);
    EXPECT("\"two\nlines\",b\n1,2\n", "b", 1, 1, 2);
    EXPECT("year,\n1990,x\n", "year", 1, 1, 1990);
}

static void expect_delimiter(const char *text, char delimiter)
{
    reading r = read_request(text, "1", (csv_request){ .label = "1", .missing = CSV_DROP_ROW });
    if (r.status) fail_msg("'%s': %s", text, r.error.text);
    if (r.table.delimiter != delimiter)
        fail_msg("'%s' is separated by '%c', not by '%c'", text, delimiter, r.table.delimiter);
    csv_table_free(&r.table);
}

/* The separator is told by what parts all lines alike, not by what stands in the header or in quotes. */
static void separators_are_told(void **state)
{
    (void)state;
    EXPECT("a;b\n1.5;2\n3;4\n", "b|a", 2, 2, 2, 4, 1.5, 3);
    EXPECT("a\tb\r\n1\t2\r\n3\t4\r\n", "b|a", 2, 2, 2, 4, 1, 3);
    EXPECT("1;2\n3;4", "2", 2, 1, 2, 4);
    EXPECT("x (a, b);y;z\n1;2;3\n", "x (a, b)|z", 1, 2, 1, 3);
    EXPECT("x (a; b),y,z\n1,2,3\n", "x (a; b)|z", 1, 2, 1, 3);
    EXPECT("last, first;y\n1;2\n", "y", 1, 1, 2);
    EXPECT("mass; kg\n1\n2\n", "mass; kg", 2, 1, 1, 2);
    EXPECT("\"a;b\",c\n1,2\n", "a;b|c", 1, 2, 1, 2);
    EXPECT("a;\"x\n,,;\";c\n\n1;2;3\n", "c", 1, 1, 3);
    EXPECT("a\tb;c\n1\t2\n", "b;c", 1, 1, 2);
    expect_values("n\ty\n\t2\n1\t5\n", "n|y", CSV_DROP_ROW, 1, 2, (const double[]){ 1, 5 });
    expect_delimiter("1;2\n", ';');
    const char *mostly = "g;k, l\nab;cd\nef;gh\n1,2\n"; /* lines that agree count for more than numbers */
    assert_int_equal(csv_guess_delimiter(mostly, strlen(mostly)), ';');
    expect_delimiter("1\n2\n", ',');
}

/* Two texts in which each of two separators would do: the one that leaves numbers does. */
static void numbers_tell_separators(void **state)
{
    (void)state;
    const csv_request any = { .missing = CSV_DROP_ROW };
    reading r = read_request("last, first;v\nSmith, J;3\nMoe, K;4\n", "v", any);
    if (r.status) fail_msg("%s", r.error.text);
    assert_int_equal(r.table.delimiter, ';');
    assert_true(r.table.values[1] == 4);
    csv_table_free(&r.table);
    r = read_request("1,5;2,5\n3,5;4,5\n", "1", any);
    assert_string_equal(
        r.error.text,
        "x.csv, line 2, column 1 ('1,5'): '3,5' is not a finite number (decimals have a point)");
}

static void separators_are_given(void **state)
{
    (void)state;
    const csv_request semicolon = { .delimiter = ';' }, tab = { .delimiter = '\t' };
    reading r = read_request("a;b\n1;2\n", "b", semicolon);
    assert_int_equal(r.status, 0);
    assert_true(r.table.values[0] == 2);
    csv_table_free(&r.table);
    r = read_request("a,b\n1,2\n", "b", semicolon);
    assert_string_equal(r.error.text,
                        "x.csv has no column 'b'; it has 1 columns, the first 'a,b' (separator: ';')");
    r = read_request("a,b\n1,2\n", "b", tab);
    assert_string_equal(r.error.text,
                        "x.csv has no column 'b'; it has 1 columns, the first 'a,b' (separator: tab)");
}

/* A column of texts: groups in order of appearance, also such as have no whole row. */
static void labels_are_kept(void **state)
{
    (void)state;
    const csv_request by = { .label = "g", .missing = CSV_DROP_ROW };
    reading r = read_request("x,g\n1,b\n2,\"a, c\"\n,d\n3,b\n4,NA\n5,7\n", "x", by);
    if (r.status) fail_msg("%s", r.error.text);
    static const char *const labels[] = { "b", "a, c", "d", "7" };
    static const int32_t label[] = { 0, 1, 0, 3 };
    assert_string_equal(r.table.label_column, "g");
    assert_int_equal(r.table.label_count, 4);
    assert_int_equal(r.table.rows, 4);
    assert_int_equal(r.table.dropped, 2);
    for (int i = 0; i < 4; i++)
        assert_string_equal(r.table.labels[i], labels[i]);
    assert_memory_equal(r.table.label, label, sizeof label);
    csv_table_free(&r.table);
    assert_null(r.table.labels);
    r = read_request("x,g\n1,b\n2,\n", "x", (csv_request){ .label = "g" });
    assert_string_equal(r.error.text, "x.csv, line 3, column 2 ('g'): the value is missing");
    r = read_request("x,g\n1,b\n", "x", (csv_request){ .label = "h" });
    assert_int_equal(r.status, EXIT_INPUT);
}

static void too_many_labels_are_refused(void **state)
{
    (void)state;
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    fputs("x,g\n", out);
    for (int i = 0; i <= CSV_LABELS_MOST; i++)
        fprintf(out, "1,g%d\n1,g%d\n", i, i / 2);
    fclose(out);
    FILE *in = fmemopen(text, length, "rb");
    const char *x = "x";
    csv_table table;
    io_error error;
    const csv_request request = { .columns = &x, .column_count = 1, .label = "g" };
    assert_int_equal(csv_read_stream(&table, in, "x.csv", &request, &error), EXIT_INPUT);
    assert_string_equal(error.text, "x.csv, line 2002, column 2 ('g'): more different values than the 1000 "
                                    "that groups may have");
    fclose(in);
    free(text);
}

/* Numbers have a point, whatever the locale of the user says. */
static void locales_do_not_matter(void **state)
{
    (void)state;
    if (!setlocale(LC_ALL, "de_DE.UTF-8")) setlocale(LC_ALL, "");
    EXPECT("a\n1.25\n", "a", 1, 1, 1.25);
    setlocale(LC_ALL, "C");
}

static void names_are_kept(void **state)
{
    (void)state;
    reading r = read_text("first,second\n1,2\n", "2|first", CSV_MISSING_ERROR);
    assert_int_equal(r.status, 0);
    assert_string_equal(r.table.names[0], "second");
    assert_string_equal(r.table.names[1], "first");
    csv_table_free(&r.table);
    r = read_text("5,6\n1,2\n", "2", CSV_MISSING_ERROR);
    assert_string_equal(r.table.names[0], "2");
    csv_table_free(&r.table);
}

static void missing_values_may_drop_rows(void **state)
{
    (void)state;
    const char *table = "a,b,c\n1,2,\n,5,6\n7,na,9\n10,NaN,12\n13,14,15\n16,N/A,1\n17,null,18\n";
    expect_values(table, "a|b", CSV_DROP_ROW, 2, 2, (const double[]){ 1, 13, 2, 14 });
    reading r = read_text(table, "a|b", CSV_DROP_ROW);
    assert_int_equal(r.table.dropped, 5);
    csv_table_free(&r.table);
    expect_values("1,2\n,3\n4,5", "1", CSV_DROP_ROW, 2, 1, (const double[]){ 1, 4 });
    expect_values(",2\n8,3\n", "1", CSV_DROP_ROW, 1, 1, (const double[]){ 8 });
}

static void mistakes_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *chosen, *complaint;
        csv_missing missing;
    } rows[] = {
        { "", "a", "x.csv is empty", CSV_MISSING_ERROR },
        { "\n\n", "a", "x.csv is empty", CSV_MISSING_ERROR },
        { "a,b\n", "a", "x.csv has no rows", CSV_MISSING_ERROR },
        { "a,b\n,1\n", "a", "x.csv has no rows without a missing value", CSV_DROP_ROW },
        { "a,b\n1,2\n", "c|a", "x.csv has no column 'c'; it has 2 columns, the first 'a' (separator: ',')",
          CSV_MISSING_ERROR },
        { "a;b\n1;2\n", "c", "x.csv has no column 'c'; it has 2 columns, the first 'a' (separator: ';')",
          CSV_MISSING_ERROR },
        { "depth,b\n1,2\n", "dept", "x.csv has no column 'dept'; did you mean 'depth'?", CSV_MISSING_ERROR },
        { "a,b\n1,2\n", "3", "x.csv has no column '3'", CSV_MISSING_ERROR },
        { "a,b\n1,2\n", "0", "x.csv has no column '0'", CSV_MISSING_ERROR },
        { "a,b\n1,2\n", "-1", "x.csv has no column '-1'", CSV_MISSING_ERROR },
        { "a,b\n1,2\n", "99999999999999999999", "x.csv has no column '9999", CSV_MISSING_ERROR },
        { "a,b\n1,2\n3,\n", "b", "x.csv, line 3, column 2 ('b'): the value is missing", CSV_MISSING_ERROR },
        { "1,NA\n", "2", "x.csv, line 1, column 2 ('2'): the value is missing", CSV_MISSING_ERROR },
        { "a,b\n1,2\n\n3,4x\n", "b", "x.csv, line 4, column 2 ('b'): '4x' is not a finite number",
          CSV_DROP_ROW },
        { "a\n1\ninf\n", "a", "x.csv, line 3, column 1 ('a'): 'inf' is not a finite number", CSV_DROP_ROW },
        { "a\n1\n1e999\n", "a", "x.csv, line 3, column 1 ('a'): '1e999' is not a finite number",
          CSV_DROP_ROW },
        { "a\n1,5\n", "a", "x.csv, line 2, column 2: more than the 1 fields of the first line",
          CSV_MISSING_ERROR },
        { "a,b\n1\n", "a", "x.csv, line 2, column 2: the row ends, but the first line has 2 fields",
          CSV_MISSING_ERROR },
        { "a,b\n1", "a", "x.csv, line 2, column 2: the row ends, but the first line has 2 fields",
          CSV_MISSING_ERROR },
        { "a,b\n1,2\n3,\"1\n2\n3", "a", "x.csv, line 3, column 2: a quoted field never ends",
          CSV_MISSING_ERROR },
        { "a\n1\n2\"3\n", "a", "x.csv, line 3, column 1: a quote in the wrong place", CSV_MISSING_ERROR },
        { "a\n\"1\"2\n", "a", "x.csv, line 2, column 1: a quote in the wrong place", CSV_MISSING_ERROR },
        { "a,b\n1,2\n", "", "x.csv: no column is chosen", CSV_MISSING_ERROR },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        reading r = read_text(rows[i].text, rows[i].chosen, rows[i].missing);
        assert_int_equal(r.status, *rows[i].chosen ? EXIT_INPUT : EXIT_USAGE);
        assert_null(r.table.values);
        assert_null(r.table.names);
        if (strncmp(r.error.text, rows[i].complaint, strlen(rows[i].complaint)) != 0)
            fail_msg("'%s' is not '%s'", r.error.text, rows[i].complaint);
    }
}

static void zero_bytes_are_no_numbers(void **state)
{
    (void)state;
    bytes b = text_bytes("a,b\n1?2,3\n");
    *(unsigned char *)memchr(b.at, '?', b.count) = '\0';
    FILE *stream = open_bytes(&b);
    csv_table table;
    io_error error;
    const char *a = "a";
    assert_int_equal(
        csv_read_stream(&table, stream, "x.csv", &(csv_request){ .columns = &a, .column_count = 1 }, &error),
        EXIT_INPUT);
    assert_string_equal(error.text, "x.csv, line 2, column 1 ('a'): '1' is not a finite number");
    fclose(stream);
}

static void files_by_path(void **state)
{
    (void)state;
    bytes b = text_bytes("a,b\n1,2\n3,\n");
    save_bytes("t.csv", &b);
    csv_table table;
    io_error error;
    const char *const columns[] = { "a", "b" };
    const csv_request one = { .columns = columns, .column_count = 1 };
    csv_request two = { .columns = columns, .column_count = 2 };
    assert_int_equal(csv_read(&table, "t.csv", &one, &error), 0);
    assert_int_equal(table.rows, 2);
    csv_table_free(&table);
    assert_int_equal(csv_read(&table, "t.csv", &two, &error), EXIT_INPUT);
    two.missing = CSV_DROP_ROW;
    assert_int_equal(csv_read(&table, "t.csv", &two, &error), 0);
    assert_int_equal(table.rows, 1);
    csv_table_free(&table);
    assert_int_equal(csv_read(&table, "nosuch.csv", &one, &error), EXIT_INPUT);
    assert_string_equal(error.text, "cannot read nosuch.csv: No such file or directory");
    assert_int_equal(csv_read(&table, ".", &one, &error), EXIT_INPUT);
    assert_string_equal(error.text, "cannot read .: Is a directory");
    assert_int_equal(unlink("t.csv"), 0);
}

/* Rows that cross the chunks in which the file is read, and many columns. */
static void long_files(void **state)
{
    (void)state;
    enum { ROWS = 30000 };
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    fprintf(out, "x,y,z\n");
    for (int i = 0; i < ROWS; i++)
        fprintf(out, "%d,\"%d.5\",%d\n", i, -i, 2 * i);
    fclose(out);
    FILE *in = fmemopen(text, length, "rb");
    csv_table table;
    const char *const columns[] = { "z", "y" };
    assert_int_equal(
        csv_read_stream(&table, in, "x.csv", &(csv_request){ .columns = columns, .column_count = 2 }, NULL),
        0);
    assert_int_equal(table.rows, ROWS);
    for (int i = 1; i < ROWS; i++)
        assert_true(table.values[i] == 2 * i && table.values[ROWS + i] == -i - 0.5);
    csv_table_free(&table);
    fclose(in);
    free(text);
}

static void too_many_columns_are_refused(void **state)
{
    (void)state;
    const size_t columns = (1 << 16) + 1;
    char *text = malloc(2 * columns);
    assert_non_null(text);
    for (size_t i = 0; i < columns; i++)
        memcpy(text + 2 * i, "1,", 2);
    FILE *in = fmemopen(text, 2 * columns, "rb");
    csv_table table;
    io_error error;
    const char *first = "1";
    assert_int_equal(
        csv_read_stream(&table, in, "x.csv", &(csv_request){ .columns = &first, .column_count = 1 }, &error),
        EXIT_INPUT);
    assert_string_equal(error.text, "x.csv: more than 65536 columns");
    fclose(in);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_by_name_and_number),
        cmocka_unit_test(quirks_of_files),
        cmocka_unit_test(separators_are_told),
        cmocka_unit_test(numbers_tell_separators),
        cmocka_unit_test(separators_are_given),
        cmocka_unit_test(labels_are_kept),
        cmocka_unit_test(too_many_labels_are_refused),
        cmocka_unit_test(locales_do_not_matter),
        cmocka_unit_test(names_are_kept),
        cmocka_unit_test(missing_values_may_drop_rows),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(zero_bytes_are_no_numbers),
        cmocka_unit_test(files_by_path),
        cmocka_unit_test(long_files),
        cmocka_unit_test(too_many_columns_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
