/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "io/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const tensors[] = { "a", "b", "nosuch", "" };
    FILE *stream = fuzz_stream(data, size);
    for (int i = 0; stream && i < 4; i++) {
        array a;
        io_error error = { 0 };
        int status = safetensors_read_stream(&a, stream, "fuzz.safetensors", tensors[i], &error);
        if (!status != (a.data != NULL) || (status && (status != error.exit_status || !*error.text))) abort();
        if (!status) (void)array_check_finite(&a, tensors[i], &error);
        array_free(&a);
    }
    if (stream) fclose(stream);
    return 0;
}
