/* SPDX-License-Identifier: MIT */
#include "cli/lm/lm.h"

#include <stdio.h>

static const char USAGE[] = "loam lm info MODEL";
static const char ABOUT[] = "What a model is: its architecture, sizes, weights and tokens.";

/* What a text takes while it is written on, in float32. */
static void print_states(const lm_config *c)
{
    int64_t floats = 0, with = 0, features = 0, layer = 0;
    for (; layer < c->layers; layer++) {
        floats += lm_config_state(c, layer);
        features += lm_config_features(c, layer);
        with += lm_config_features(c, layer) > 0;
    }
    const int64_t each = 2 * c->heads_kv * c->head_dim * (int64_t)sizeof(float);
    if (with > 0)
        printf("%-14s %.4g of each %s head in the mean, %lld of %lld layers\n%-14s %lld bytes, of any text\n",
               "features", (double)features / (double)with, c->features_shared ? "key" : "query",
               (long long)with, (long long)layer, "states", (long long)(floats * (int64_t)sizeof(float)));
    if (c->architecture != LM_BERT && with < layer)
        printf("%-14s %lld bytes for each token\n", "keys, values", (long long)((layer - with) * each));
}

static void print_config(const lm_config *c)
{
    printf("%-14s %s\n", "architecture", lm_architecture_name(c->architecture));
    printf("%-14s %lld of width %lld, mlp %lld\n", "layers", (long long)c->layers, (long long)c->width,
           (long long)c->inner);
    printf("%-14s %lld of %lld channels", "heads", (long long)c->heads_q, (long long)c->head_dim);
    if (c->heads_kv != c->heads_q) printf(", %lld of keys and values", (long long)c->heads_kv);
    if (c->rope_dim > 0)
        printf("\n%-14s rotary, %lld channels, base %g", "positions", (long long)c->rope_dim, c->rope_base);
    else
        printf("\n%-14s learned", "positions");
    printf(", %lld tokens at most\n", (long long)c->context);
    printf("%-14s %lld%s\n", "vocabulary", (long long)c->vocabulary,
           c->tied ? ", logits by the embedding" : "");
    if (c->mechanism != LOAM_SOFTMAX || c->forgets)
        printf("%-14s %s\n", "attention", lm_config_attention_name(c));
    print_states(c);
}

static int64_t parameters_of(const lm_config *c)
{
    int64_t count = 0;
    for (int part = 0; part < LM_PARTS; part++)
        for (int64_t layer = 0; layer < (part < LM_NORM_1 ? 1 : c->layers); layer++) {
            int64_t rows, columns;
            lm_part_shape(c, (lm_part)part, layer, &rows, &columns);
            count += rows * columns;
        }
    return count;
}

int lm_info(int argc, char **argv, io_error *error)
{
    bool help = false;
    const char *tokenizer_path = NULL;
    const option_row rows[] = { { "tokenizer", OPTION_TEXT, &tokenizer_path, 0, 0, "PATH",
                                  "tokenizer.json, a folder or .gguf; default: beside the model" },
                                { .name = NULL } };
    int status = options_parse(&argc, argv, rows, USAGE, ABOUT, &help, error);
    if (status || help) return status;
    if (argc != 2) return io_fail(error, EXIT_USAGE, "expected one model; usage: %s", USAGE);
    lm_files *files;
    tokenizer *words = NULL;
    if ((status = lm_files_open(&files, argv[1], error))) return status;
    const lm_config *c = lm_files_config(files);
    status = tokenizer_open(&words, tokenizer_path ? tokenizer_path : argv[1], error);
    if (!status) {
        print_config(c);
        printf("%-14s %.1f million, mostly %s, %.1f MB\n", "parameters", (double)parameters_of(c) / 1e6,
               lm_files_type(files), (double)lm_files_bytes(files) / 1e6);
        printf("%-14s %lld\n", "tokens", (long long)tokenizer_size(words));
    }
    tokenizer_close(words);
    lm_files_close(files);
    return status;
}
