/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "io/gguf.h"
#include "lm/config.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

/* Every value of every kind, and all of an array. */
static void read_values(const gguf *g, const char *key)
{
    int64_t integer;
    double real;
    gguf_text text;
    gguf_array list;
    size_t sum = 0;
    (void)gguf_integer(g, key, &integer, NULL);
    (void)gguf_real(g, key, &real, NULL);
    if (!gguf_string(g, key, &text, NULL))
        for (size_t i = 0; i < text.bytes; i++)
            sum += (unsigned char)text.at[i];
    if (!gguf_strings(g, key, &list, NULL))
        while (list.count > 0)
            sum += gguf_next_string(&list).bytes;
    if (!gguf_numbers(g, key, &list, NULL))
        while (list.count > 0)
            sum += gguf_next_number(&list) > 0;
    if (sum == SIZE_MAX) abort();
}

static void read_tensors(const gguf *g)
{
    for (int64_t i = 0; i < gguf_tensors(g); i++) {
        const tensor t = gguf_tensor_at(g, i);
        const int64_t block = tensor_block(t.type);
        float values[32];
        if (t.count < block) continue;
        tensor_read(&t, 0, block, LOAM_F32, values);
        tensor_read(&t, t.count - block, block, LOAM_F16, values);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    gguf *g;
    lm_config config;
    io_error error = { 0 };
    const int status = gguf_open_bytes(&g, data, (int64_t)size, "fuzz.gguf", &error);
    if (!status != (g != NULL) || (status && (status != error.exit_status || !*error.text))) abort();
    if (status) return 0;
    read_values(g, "a");
    read_values(g, "tokenizer.ggml.tokens");
    read_tensors(g);
    const int wrong = lm_config_gguf(&config, g, "fuzz.gguf", &error);
    if (wrong && (wrong != error.exit_status || !*error.text)) abort();
    gguf_close(g);
    return 0;
}
