/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "io/npy.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* What was read is written and must read back the same, bit for bit. */
static void check_round_trip(const array *a)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    npy_write_stream(out, a);
    if (fclose(out)) abort();
    FILE *in = fuzz_stream((const uint8_t *)text, length);
    array b;
    if (npy_read_stream(&b, in, "again", NULL)) abort();
    fclose(in);
    if (a->dtype != b.dtype || a->rank != b.rank || memcmp(a->shape, b.shape, sizeof a->shape) != 0 ||
        memcmp(a->data, b.data, (size_t)a->count * array_dtype_bytes(a->dtype)) != 0)
        abort();
    array_free(&b);
    free(text);
}

static void read_integers(const uint8_t *data, size_t size)
{
    FILE *stream = fuzz_stream(data, size);
    int64_t *values, count;
    io_error error = { 0 };
    const int status = npy_read_integers_stream(&values, &count, stream, "fuzz.npy", &error);
    fclose(stream);
    if (!status != (values != NULL) || (status && (status != error.exit_status || count || !*error.text)))
        abort();
    free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FILE *stream = fuzz_stream(data, size);
    if (!stream) return 0;
    array a;
    io_error error = { 0 };
    int status = npy_read_stream(&a, stream, "fuzz.npy", &error);
    fclose(stream);
    if (!status != (a.data != NULL) || (status && (status != error.exit_status || !*error.text))) abort();
    if (!status) {
        check_round_trip(&a);
        (void)array_check_finite(&a, "fuzz.npy", &error);
    }
    array_free(&a);
    read_integers(data, size);
    return 0;
}
