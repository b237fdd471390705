/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "io/csv.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>

static void check_labels(const csv_table *table)
{
    if (!table->label_column) return;
    for (int64_t i = 0; i < table->rows; i++)
        if (table->label[i] < 0 || table->label[i] >= table->label_count || !*table->labels[table->label[i]])
            abort();
}

static void read_once(const uint8_t *data, size_t size, csv_request request)
{
    FILE *stream = fuzz_stream(data, size);
    if (!stream) return;
    csv_table table;
    io_error error = { 0 };
    int status = csv_read_stream(&table, stream, "fuzz.csv", &request, &error);
    fclose(stream);
    if (!status != (table.values != NULL) || (status && (status != error.exit_status || !*error.text)))
        abort();
    for (int64_t i = 0; i < table.rows * table.columns; i++)
        if (!isfinite(table.values[i])) abort();
    if (!status) check_labels(&table);
    csv_table_free(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const columns[] = { "1", "x", "2" };
    const csv_request strict = { .columns = columns, .column_count = 1 };
    const csv_request dropping = { .columns = columns, .column_count = 2, .missing = CSV_DROP_ROW };
    const csv_request labelled = {
        .columns = columns + 1, .column_count = 2, .label = "1", .missing = CSV_DROP_ROW
    };
    csv_request tabs = strict;
    tabs.delimiter = '\t';
    read_once(data, size, strict);
    read_once(data, size, dropping);
    read_once(data, size, labelled);
    read_once(data, size, tabs);
    return 0;
}
