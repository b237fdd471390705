/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "io/csv.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>

static void read_once(const uint8_t *data, size_t size, const char *const *columns, int count,
                      csv_missing missing)
{
    FILE *stream = fuzz_stream(data, size);
    if (!stream) return;
    csv_table table;
    io_error error = { 0 };
    int status = csv_read_stream(&table, stream, "fuzz.csv", columns, count, missing, &error);
    fclose(stream);
    if (!status != (table.values != NULL) || (status && (status != error.exit_status || !*error.text)))
        abort();
    for (int64_t i = 0; i < table.rows * table.columns; i++)
        if (!isfinite(table.values[i])) abort();
    csv_table_free(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const columns[] = { "1", "x", "2" };
    read_once(data, size, columns, 1, CSV_MISSING_ERROR);
    read_once(data, size, columns, 2, CSV_DROP_ROW);
    read_once(data, size, columns, 3, CSV_DROP_ROW);
    return 0;
}
