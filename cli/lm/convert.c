/* SPDX-License-Identifier: MIT
 * loam convert: the folder is filled beside its place under a temporary name, then renamed. */
#define _POSIX_C_SOURCE 200809L
#include "cli/command.h"
#include "cli/options.h"
#include "lm/path.h"
#include "lm/write.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char ABOUT[] =
    "Writes a model as the Hugging Face library reads it: model.safetensors and config.json in the folder "
    "OUT, which appears whole or not at all. MODEL is a folder with config.json and model.safetensors or its "
    "shards, of gpt2, gpt_neox, llama or bert; or a .gguf file of llama.";

static const char *const FILES[] = { "config.json", "model.safetensors" };
enum { FILE_COUNT = sizeof FILES / sizeof *FILES };

static int read_part(const void *from, lm_part part, int64_t layer, int64_t first, int64_t count,
                     loam_dtype dtype, void *out, io_error *error)
{
    return lm_files_read(from, part, layer, first, count, dtype, out, error);
}

/* ---------------------------------------------------------------- the folder */

/* What may become the folder: nothing, or an empty one. */
static int check_free(const char *out, io_error *error)
{
    struct stat told;
    if (!*out) return io_fail(error, EXIT_USAGE, "OUT is empty; expected the name of a folder");
    if (lstat(out, &told) != 0 || rmdir(out) == 0) return 0;
    return io_fail(error, EXIT_OUTPUT, "cannot write %s: %s", out,
                   S_ISDIR(told.st_mode) ? "the folder is there already, and not empty"
                                         : "there is such a file");
}

/* Beside `out`, whose slashes at the end do not count. */
static int temporary_of(char **path, const char *out, io_error *error)
{
    size_t begin = strlen(out);
    while (begin > 0 && out[begin - 1] == '/')
        begin--;
    while (begin > 0 && out[begin - 1] != '/')
        begin--;
    const size_t bytes = begin + 40;
    *path = malloc(bytes);
    if (!*path) return io_fail(error, EXIT_INTERNAL, "out of memory for the name of %s", out);
    snprintf(*path, bytes, "%.*s.loam-%ld.tmp", (int)begin, out, (long)getpid());
    if (mkdir(*path, 0777) == 0) return 0;
    const int reason = errno;
    free(*path);
    *path = NULL;
    return io_fail(error, EXIT_OUTPUT, "cannot write %s: %s", out, strerror(reason));
}

static int write_file(const lm_files *model, loam_dtype dtype, const char *folder, int which, io_error *error)
{
    char *path;
    int status = lm_path(&path, folder, FILES[which], error);
    if (!status && which == 0) status = lm_config_write(lm_files_config(model), path, error);
    if (!status && which == 1)
        status = lm_write(path, lm_files_config(model), dtype, read_part, model, error);
    free(path);
    return status;
}

static void remove_folder(const char *folder)
{
    for (int i = 0; i < FILE_COUNT; i++) {
        char *path;
        if (lm_path(&path, folder, FILES[i], NULL) == 0) unlink(path);
        free(path);
    }
    rmdir(folder);
}

static int write_folder(const lm_files *model, loam_dtype dtype, const char *out, io_error *error)
{
    char *temporary = NULL;
    int status = check_free(out, error);
    if (!status) status = temporary_of(&temporary, out, error);
    if (status) return status;
    for (int i = 0; i < FILE_COUNT && !status; i++)
        status = write_file(model, dtype, temporary, i, error);
    if (!status && rename(temporary, out) != 0)
        status = io_fail(error, EXIT_OUTPUT, "cannot write %s: %s", out, strerror(errno));
    if (status) remove_folder(temporary);
    free(temporary);
    return status;
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

static int convert(const char *path, const char *out, const char *word, io_error *error)
{
    lm_files *model;
    loam_dtype dtype = LOAM_F32;
    /* A wrong word is noticed before anything is read. */
    int status = choose_dtype(word, "", &dtype, error);
    if (!status) status = lm_files_open(&model, path, error);
    if (status) return status;
    status = choose_dtype(word, lm_files_type(model), &dtype, error);
    if (!status) status = write_folder(model, dtype, out, error);
    if (!status)
        printf("%s: %s, %lld layers, %s as %s\n", out,
               lm_architecture_name(lm_files_config(model)->architecture),
               (long long)lm_files_config(model)->layers, lm_files_type(model), array_dtype_name(dtype));
    lm_files_close(model);
    return status;
}

int command_convert(int argc, char **argv)
{
    const char *dtype = NULL;
    const option_row rows[] = {
        { "dtype", OPTION_TEXT, &dtype, 0, 0, "T",
          "f32, bf16 or f16; default the 16-bit type of most of the weights, else f32" },
        { 0 }
    };
    bool help;
    io_error error;
    int status = options_parse(&argc, argv, rows, "loam convert MODEL OUT [--dtype T]", ABOUT, &help, &error);
    if (!status && help) return EXIT_OK;
    if (!status && argc != 3)
        status = io_fail(&error, EXIT_USAGE, "expected MODEL and OUT, not %d arguments", argc - 1);
    if (!status) status = convert(argv[1], argv[2], dtype, &error);
    return status ? options_report("convert", &error) : EXIT_OK;
}
