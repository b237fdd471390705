/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "lm/files.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

/* Sizes that were taken can be multiplied: no part is larger than a 64-bit number of bytes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lm_config config;
    io_error error = { 0 };
    const int status = lm_config_parse(&config, (const char *)data, size, "fuzz.json", &error);
    if (status && (status != error.exit_status || !*error.text)) abort();
    for (int i = 0; !status && i < 3 * LM_PARTS; i++) {
        int64_t rows, columns, bytes;
        lm_part_shape(&config, (lm_part)(i / 3), i % 3 * (config.layers - 1) / 2, &rows, &columns);
        if (rows < 0 || columns < 0 || __builtin_mul_overflow(3 * rows, columns, &bytes) ||
            __builtin_mul_overflow(bytes, 4, &bytes))
            abort();
    }
    return 0;
}
