/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/lm/lm.h"

#include "cli/device.h"
#include "cli/names.h"
#include "cli/training/backend.h"
#include "io/in_file.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

lm_words lm_words_default(void)
{
    return (lm_words){ .ridge = 1000, .sharpen = 1, .layer = -1, .head = -1, .device = -1 };
}

static const char *weights_word(int index)
{
    static const char *const list[] = { "f32", "bf16", "f16", NULL };
    return list[index];
}

static const char *mechanism_word(int index)
{
    static const char *const list[] = { "softmax", "parallax", "lla", NULL };
    return list[index];
}

/* option: the one that names the mechanism. */
static int options_of(lm_options *out, const lm_words *words, const char *option, const lm_files *files,
                      io_error *error)
{
    static const loam_dtype types[] = { LOAM_F32, LOAM_BF16, LOAM_F16 };
    static const loam_mechanism mechanisms[] = { LOAM_SOFTMAX, LOAM_PARALLAX, LOAM_LLA };
    const char *type = lm_files_type(files);
    int weights = strcmp(type, "BF16") == 0  ? 1
                  : strcmp(type, "F16") == 0 ? 2
                                             : 0,
        mechanism = 0, unit = LOAM_RIDGE_NORMALISED;
    int status = names_choose("weights", words->weights, weights_word, &weights, error);
    if (!status) status = names_choose(option, words->mechanism, mechanism_word, &mechanism, error);
    if (!status) status = names_choose("ridge-unit", words->ridge_unit, names_ridge_unit, &unit, error);
    *out = lm_options_default();
    if (status) return status;
    out->weights = types[weights], out->mechanism = mechanisms[mechanism];
    out->own = !words->mechanism;
    out->ridge = words->ridge, out->ridge_unit = (loam_ridge_unit)unit;
    out->only = words->layer, out->only_head = words->head;
    out->inverse_temperature = words->sharpen;
    return 0;
}

static int choose_device(int device, io_error *error)
{
    const int devices = device_count();
    if (devices == 0) return 0; /* the machine says why */
    if (device >= devices)
        return io_fail(error, EXIT_USAGE, "--device %d: expected 0 to %d", device, devices - 1);
    const char *failed = device_use(device);
    return failed ? io_fail(error, EXIT_USAGE, "--device %d: %s", device, failed) : 0;
}

static int open_machine(lm_session *s, const lm_words *words, io_error *error)
{
    backend b = { 0 };
    int status = backend_read(&b, words->backend, words->dtype ? words->dtype : "f32", error);
    if (!status && words->device >= 0)
        status = b.cuda ? choose_device((int)words->device, error)
                        : io_fail(error, EXIT_USAGE, "--device: expected with --backend cuda");
    if (!status) status = backend_open(b, (int)words->threads, &s->on, error);
    s->open = !status;
    return status;
}

/* What was parsed is freed, but lies among what is kept: whole pages of it go back. */
static void give_back(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}

int lm_session_open(lm_session *s, const char *path, const lm_words *words, io_error *error)
{
    lm_options options;
    *s = (lm_session){ 0 };
    int status = lm_files_open(&s->files, path, error);
    if (!status) status = options_of(&options, words, "mechanism", s->files, error);
    if (!status) status = tokenizer_open(&s->tokens, words->tokenizer ? words->tokenizer : path, error);
    give_back();
    const int64_t vocabulary = status ? 0 : lm_files_config(s->files)->vocabulary;
    if (!status && tokenizer_size(s->tokens) > vocabulary)
        status = io_fail(error, EXIT_INPUT, "the tokenizer has %lld tokens, the model %lld",
                         (long long)tokenizer_size(s->tokens), (long long)vocabulary);
    if (!status) status = open_machine(s, words, error);
    if (!status) status = lm_model_open(&s->model, &s->on, s->files, &options, error);
    if (status) lm_session_close(s);
    return status;
}

int lm_session_other(lm_model **made, const lm_session *s, const lm_files *files, const lm_words *words,
                     const char *option, io_error *error)
{
    lm_options options;
    *made = NULL;
    const int status = options_of(&options, words, option, files, error);
    return status ? status : lm_model_open(made, &s->on, files, &options, error);
}

void lm_session_close(lm_session *s)
{
    lm_model_close(s->model);
    if (s->open) machine_close(&s->on);
    tokenizer_close(s->tokens);
    lm_files_close(s->files);
    *s = (lm_session){ 0 };
}

const char *lm_session_attention(const lm_session *s, const lm_words *words, char text[LM_ATTENTION])
{
    const bool lla = words->mechanism && strcmp(words->mechanism, "lla") == 0;
    char layer[32] = "", head[32] = "", ridge[48] = "", sharpen[24] = "";
    const char *const own = lm_config_attention_name(lm_files_config(s->files));
    const backend b = { s->on.gpu != NULL, s->on.operand == LOAM_BF16 };
    if (lla)
        snprintf(ridge, sizeof ridge, ", ridge %g (%s)", words->ridge,
                 words->ridge_unit ? words->ridge_unit : names_ridge_unit(LOAM_RIDGE_NORMALISED));
    if (words->layer >= 0) snprintf(layer, sizeof layer, ", layer %d alone", (int)words->layer);
    if (words->head >= 0) snprintf(head, sizeof head, ", head %d alone", (int)words->head);
    if (words->sharpen < 1 || words->sharpen > 1)
        snprintf(sharpen, sizeof sharpen, ", scores x %g", words->sharpen);
    snprintf(text, LM_ATTENTION, "%.15s%s%s%s%s%s%s", words->mechanism ? words->mechanism : own, ridge, layer,
             head, sharpen, b.cuda ? ", " : "", b.cuda ? backend_text(b) : "");
    return text;
}

void lm_model_name(const char *path, char name[LM_MODEL_NAME])
{
    size_t end = strlen(path), first;
    while (end > 1 && path[end - 1] == '/')
        end--;
    for (first = end; first > 0 && path[first - 1] != '/';)
        first--;
    snprintf(name, LM_MODEL_NAME, "%.*s", (int)(end - first), path + first);
}

/* Standard input, whose size nobody knows. */
static int read_stream(char **text, size_t *bytes, io_error *error)
{
    size_t room = 1 << 16, used = 0, got;
    char *all = malloc(room);
    while (all && (got = fread(all + used, 1, room - used - 1, stdin)) > 0) {
        used += got;
        if (used < room - 1) continue;
        char *more = room <= SIZE_MAX / 2 ? realloc(all, room *= 2) : NULL;
        if (!more) free(all);
        all = more;
    }
    if (!all) return io_fail(error, EXIT_INTERNAL, "out of memory for standard input");
    if (ferror(stdin)) {
        free(all);
        return io_fail(error, EXIT_INPUT, "cannot read standard input");
    }
    all[used] = 0;
    *text = all, *bytes = used;
    return 0;
}

int lm_text_file(char **text, size_t *bytes, const char *path, io_error *error)
{
    *text = NULL, *bytes = 0;
    if (strcmp(path, "-") == 0) return read_stream(text, bytes, error);
    FILE *stream = in_open(path, error);
    int64_t size = 0;
    if (!stream) return error->exit_status;
    int status = in_size(stream, path, &size, error);
    if (!status && !(*text = malloc((size_t)size + 1)))
        status = io_fail(error, EXIT_INTERNAL, "out of memory for %s", path);
    if (!status) status = in_read(stream, path, *text, (size_t)size, error);
    fclose(stream);
    if (status) {
        free(*text);
        *text = NULL;
        return status;
    }
    (*text)[size] = 0;
    *bytes = (size_t)size;
    return 0;
}

double lm_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
