/* SPDX-License-Identifier: MIT */
#include "cli/bench/files.h"

#include "cli/names.h"
#include "io/npy.h"

#include <stdarg.h>
#include <string.h>

enum { Q, K, V };
enum { HEADS, TOKENS, CHANNELS, AXES };

/* ---------------------------------------------------------------- what is wrong with them */

static int fail(const bench_shape *shape, io_error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(const bench_shape *shape, io_error *error, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return io_fail(error, EXIT_INPUT, "%s:%d: data: %s", shape->source, shape->line, text);
}

static const char *data_word(int index) { return bench_data_names[index]; }

/* A file that cannot be read may be a word that was mistyped. */
static int unreadable(const bench_shape *shape, io_error *error)
{
    char words[NAMES_BYTES];
    const io_error reason = *error;
    return io_fail(error, reason.exit_status, "%s:%d: data: '%s', expected %s, or the prefix of files: %s",
                   shape->source, shape->line, shape->files, names_list(words, data_word, " or "),
                   reason.text);
}

void bench_files_path(const bench_shape *shape, int which, char path[BENCH_PATH_BYTES])
{
    snprintf(path, BENCH_PATH_BYTES, "%s-%c.npy", shape->files, "qkv"[which]);
}

static int read_one(array *a, const bench_shape *shape, int which, io_error *error)
{
    char path[BENCH_PATH_BYTES], text[ARRAY_TEXT];
    bench_files_path(shape, which, path);
    if (npy_read(a, path, error)) return unreadable(shape, error);
    if (a->rank != AXES || a->count == 0)
        return fail(shape, error, "%s has shape %s, expected (heads, tokens, channels), none of them 0", path,
                    array_shape_text(text, a->rank, a->shape));
    int status = array_convert(a, shape->problem.dtype, path, error);
    if (!status && array_check_finite(a, path, error)) {
        const io_error reason = *error;
        status = fail(shape, error, "%s", reason.text);
    }
    return status;
}

/* Axis of file `which` is what it is in file k, or a multiple of that. */
static int check_axis(const bench_files *files, const bench_shape *shape, int which, int axis, bool multiple,
                      io_error *error)
{
    static const char *const names[] = { "heads", "tokens", "channels" };
    const int64_t size = files->of[which].shape[axis], keys = files->of[K].shape[axis];
    char path[BENCH_PATH_BYTES];
    if (multiple ? size % keys == 0 : size == keys) return 0;
    bench_files_path(shape, which, path);
    return fail(shape, error, "%s has %lld %s, expected %s%lld as %s-k.npy", path, (long long)size,
                names[axis], multiple ? "a multiple of " : "", (long long)keys, shape->files);
}

static int check_channels(const bench_files *files, const bench_shape *shape, int which, io_error *error)
{
    const int64_t channels = files->of[which].shape[CHANNELS],
                  dim = which == V ? shape->problem.dim_v : shape->problem.dim_qk;
    char path[BENCH_PATH_BYTES];
    bench_files_path(shape, which, path);
    return dim % channels == 0 ? 0
                               : fail(shape, error, "%s has %lld channels, expected a divisor of %s %lld",
                                      path, (long long)channels, which == V ? "Dv" : "Dqk", (long long)dim);
}

static int check_lengths(const bench_files *files, const bench_shape *shape, io_error *error)
{
    const loam_problem *p = &shape->problem;
    const int64_t tokens = files->of[K].shape[TOKENS];
    if (p->len_kv > tokens)
        return fail(shape, error, "%s-k.npy has %lld tokens, expected Lkv %lld or more", shape->files,
                    (long long)tokens, (long long)p->len_kv);
    if (p->len_q > p->len_kv)
        return fail(shape, error, "Lq is %lld, expected Lkv %lld or less: queries of files have keys",
                    (long long)p->len_q, (long long)p->len_kv);
    return 0;
}

int bench_files_read(bench_files *files, const bench_shape *shape, io_error *error)
{
    int status = 0;
    *files = (bench_files){ 0 };
    if (shape->data != BENCH_FILES) return 0;
    for (int which = 0; which < BENCH_FILES_COUNT && !status; which++)
        status = read_one(&files->of[which], shape, which, error);
    if (!status) status = check_axis(files, shape, Q, HEADS, true, error);
    if (!status) status = check_axis(files, shape, V, HEADS, false, error);
    if (!status) status = check_axis(files, shape, Q, TOKENS, false, error);
    if (!status) status = check_axis(files, shape, V, TOKENS, false, error);
    if (!status) status = check_axis(files, shape, Q, CHANNELS, false, error);
    if (!status) status = check_channels(files, shape, K, error);
    if (!status) status = check_channels(files, shape, V, error);
    return status ? status : check_lengths(files, shape, error);
}

void bench_files_free(bench_files *files)
{
    for (int which = 0; which < BENCH_FILES_COUNT; which++)
        array_free(&files->of[which]);
}

double bench_files_bytes(const bench_files *files)
{
    double bytes = 0;
    for (int which = 0; which < BENCH_FILES_COUNT; which++)
        bytes += (double)files->of[which].count * (double)array_dtype_bytes(files->of[which].dtype);
    return bytes;
}

/* ---------------------------------------------------------------- what a shape takes of them */

void bench_files_row(const bench_files *files, const loam_problem *p, int which, int64_t head, int64_t token,
                     void *to)
{
    const array *a = &files->of[which];
    const int64_t width = a->shape[CHANNELS], parts = (which == V ? p->dim_v : p->dim_qk) / width;
    const int64_t key_heads = files->of[K].shape[HEADS], file_group = a->shape[HEADS] / key_heads;
    const int64_t group = which == Q ? p->heads_q / p->heads_kv : 1;
    const int64_t row = token + (which == Q ? p->len_kv - p->len_q : 0);
    const size_t bytes = (size_t)width * array_dtype_bytes(a->dtype);
    for (int64_t part = 0; part < parts; part++) {
        const int64_t key_head = (head / group * parts + part) % key_heads,
                      from = key_head * file_group + head % group % file_group;
        memcpy((char *)to + (size_t)part * bytes,
               (const char *)a->data + (size_t)(from * a->shape[TOKENS] + row) * bytes, bytes);
    }
}
