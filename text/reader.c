/* SPDX-License-Identifier: MIT
 * Files, and the members of JSON's objects. */
#include "io/in_file.h"
#include "text/parts.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 28 };

int reader_fail(const reader *r, const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return io_fail(r->error, EXIT_INPUT, "%.100s: %s", r->name, text);
}

int reader_no_memory(const reader *r)
{
    return io_fail(r->error, EXIT_INTERNAL, "out of memory for the tokenizer of %s", r->name);
}

/* ---------------------------------------------------------------- members */

int reader_keys(const reader *r, const json_t *object, const char *where, const char *const *keys)
{
    if (!json_is_object(object)) return reader_fail(r, "%s is not an object", where);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        const char *const *known = keys;
        while (*known && strcmp(*known, key) != 0)
            known++;
        if (!*known) return reader_fail(r, "%s has '%.60s', which is not known here", where, key);
    }
    return 0;
}

int reader_flag(const reader *r, const json_t *object, const char *where, const char *key, bool missing,
                bool *out)
{
    const json_t *value = json_object_get(object, key);
    *out = value && !json_is_null(value) ? json_is_true(value) : missing;
    if (!value || json_is_null(value) || json_is_boolean(value)) return 0;
    return reader_fail(r, "%s: %s is neither true nor false", where, key);
}

int reader_text(const reader *r, const json_t *object, const char *where, const char *key,
                const char *missing, char **out)
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    *out = NULL;
    if (!text && missing && (!value || json_is_null(value))) text = missing;
    if (!text) return reader_fail(r, "%s: %s is not a text", where, key);
    *out = malloc(strlen(text) + 1);
    if (!*out) return reader_no_memory(r);
    strcpy(*out, text);
    return 0;
}

int reader_pattern(const reader *r, const json_t *object, const char *where, matcher **out)
{
    const json_t *pattern = json_object_get(object, "pattern");
    const char *text = json_string_value(json_object_get(pattern, "String"));
    const char *expression = json_string_value(json_object_get(pattern, "Regex"));
    *out = NULL;
    if (json_object_size(pattern) != 1 || (!text && !expression))
        return reader_fail(r, "%s: the pattern is neither a String nor a Regex", where);
    return matcher_make(out, text ? text : expression, text != NULL, r->name, r->error);
}

const char *reader_type(const reader *r, const json_t *object, const char *where, int *status)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    *status = type ? 0 : reader_fail(r, "%s has no type", where);
    return type;
}

/* ---------------------------------------------------------------- files */

int read_whole_file(const char *path, char **text, size_t *bytes, io_error *error)
{
    *text = NULL;
    FILE *stream = in_open(path, error);
    if (!stream) return EXIT_INPUT;
    int64_t size = 0;
    int status = in_size(stream, path, &size, error);
    if (!status && size > FILE_BYTES_MAX)
        status = io_fail(error, EXIT_INPUT, "%s has %lld bytes; expected at most %d", path, (long long)size,
                         FILE_BYTES_MAX);
    if (!status) {
        *bytes = (size_t)size;
        *text = malloc(*bytes + 1);
        status = *text ? in_read(stream, path, *text, *bytes, error)
                       : io_fail(error, EXIT_INTERNAL, "out of memory for %s", path);
    }
    fclose(stream);
    if (status) free(*text);
    return status;
}

json_t *json_of_bytes(const char *text, size_t bytes, const char *name, io_error *error)
{
    json_error_t reason;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &reason);
    /* Without memory jansson gives no reason, or that one. */
    if (!root && (!*reason.text || json_error_code(&reason) == json_error_out_of_memory))
        io_fail(error, EXIT_INTERNAL, "out of memory for %s", name);
    else if (!root)
        io_fail(error, EXIT_INPUT, "%s is not JSON: %.150s", name, reason.text);
    return root;
}

json_t *json_of_file(const char *path, io_error *error)
{
    char *text;
    size_t bytes = 0;
    if (read_whole_file(path, &text, &bytes, error)) return NULL;
    json_t *root = json_of_bytes(text, bytes, path, error);
    free(text);
    return root;
}
