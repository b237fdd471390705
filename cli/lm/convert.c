/* SPDX-License-Identifier: MIT
 * loam convert. */
#define _POSIX_C_SOURCE 200809L
#include "cli/command.h"
#include "cli/lm/folder.h"
#include "cli/options.h"
#include "io/out_folder.h"
#include "lm/chat.h"
#include "lm/path.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char ABOUT[] =
    "Writes a model as the Hugging Face library reads it: model.safetensors, config.json, and where it "
    "has them tokenizer.json and chat_template.jinja in the folder OUT, which appears whole or not at all. "
    "MODEL is a folder with config.json and model.safetensors or its shards, of gpt2, gpt_neox, llama or "
    "bert; or a .gguf file of llama.";

/* What is converted; tokenizer and template are NULL where there is none. */
typedef struct conversion {
    lm_files *model;
    tokenizer *tokenizer;
    char *template;
    loam_dtype dtype;
} conversion;

static int read_part(const void *from, lm_part part, int64_t layer, int64_t first, int64_t count,
                     loam_dtype dtype, void *out, io_error *error)
{
    return lm_files_read(from, part, layer, first, count, dtype, out, error);
}

/* ---------------------------------------------------------------- the folder */

static int write_folder(const conversion *c, const char *out, io_error *error)
{
    const lm_folder from = { .config = lm_files_config(c->model),
                             .dtype = c->dtype,
                             .read = read_part,
                             .from = c->model,
                             .tokenizer = c->tokenizer,
                             .template = c->template };
    out_folder folder;
    int status = out_folder_open(&folder, out, error);
    for (int i = 0; i < LM_FOLDER_FILES && !status; i++) {
        char *path;
        status = out_folder_path(&folder, lm_folder_name(i), &path, error);
        if (!status) status = lm_folder_write(&from, i, path, error);
        free(path);
    }
    return out_folder_end(&folder, status, error);
}

/* ---------------------------------------------------------------- the command */

/* By default that of the file, where it is plain and has 16 bits. */
static int choose_dtype(const char *word, const char *own, loam_dtype *out, io_error *error)
{
    static const char *const words[] = { [LOAM_F32] = "f32", [LOAM_BF16] = "bf16", [LOAM_F16] = "f16", NULL };
    *out = strcmp(own, "BF16") == 0 ? LOAM_BF16 : strcmp(own, "F16") == 0 ? LOAM_F16 : LOAM_F32;
    if (!word) return 0;
    const int choice = options_choice(word, words);
    if (choice < 0)
        return io_fail(error, EXIT_USAGE, "--dtype %s is not known; expected f32, bf16 or f16", word);
    *out = (loam_dtype)choice;
    return 0;
}

/* Whether the folder, or the .gguf file, has what tokenizer_open looks for. */
static bool has_tokenizer(const char *model)
{
    static const char *const names[] = { "tokenizer.json", "encoder.json" };
    bool found = false;
    gguf *file;
    for (int i = 0; i < 2 && !found; i++) {
        char *path;
        struct stat told;
        found = lm_path(&path, model, names[i], NULL) == 0 && stat(path, &told) == 0;
        free(path);
    }
    if (found || gguf_open(&file, model, NULL)) return found;
    found = gguf_has(file, "tokenizer.ggml.model");
    gguf_close(file);
    return found;
}

static int open_all(conversion *c, const char *model, const char *words, const char *dtype, io_error *error)
{
    /* A wrong word is noticed before anything is read. */
    int status = choose_dtype(dtype, "", &c->dtype, error);
    if (!status) status = lm_files_open(&c->model, model, error);
    if (!status) status = choose_dtype(dtype, lm_files_type(c->model), &c->dtype, error);
    if (!status && (words || has_tokenizer(model)))
        status = tokenizer_open(&c->tokenizer, words ? words : model, error);
    if (!status) status = lm_chat_template(&c->template, model, error);
    return status;
}

static void print_summary(const conversion *c, const char *out)
{
    const lm_config *config = lm_files_config(c->model);
    printf("%s: %s, %lld layers, %s as %s%s\n", out, lm_architecture_name(config->architecture),
           (long long)config->layers, lm_files_type(c->model), array_dtype_name(c->dtype),
           c->tokenizer ? "" : ", without a tokenizer");
}

int command_convert(int argc, char **argv)
{
    const char *dtype = NULL, *words = NULL;
    const option_row rows[] = {
        { "tokenizer", OPTION_TEXT, &words, 0, 0, "F",
          "the tokenizer, a folder or a file, where it is not MODEL's own" },
        { "dtype", OPTION_TEXT, &dtype, 0, 0, "T",
          "f32, bf16 or f16; default the 16-bit type of most of the weights, else f32" },
        { 0 }
    };
    bool help;
    io_error error;
    int status = options_parse(&argc, argv, rows, "loam convert MODEL OUT [OPTIONS]", ABOUT, &help, &error);
    if (!status && help) return EXIT_OK;
    if (!status && argc != 3)
        status = io_fail(&error, EXIT_USAGE, "expected MODEL and OUT, not %d arguments", argc - 1);
    conversion c = { 0 };
    if (!status) status = open_all(&c, argv[1], words, dtype, &error);
    if (!status) status = write_folder(&c, argv[2], &error);
    if (!status) print_summary(&c, argv[2]);
    tokenizer_close(c.tokenizer);
    free(c.template);
    lm_files_close(c.model);
    return status ? options_report("convert", &error) : EXIT_OK;
}
