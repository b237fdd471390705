/* SPDX-License-Identifier: MIT */
#include "io/json.h"

#include "io/mapped.h"

int json_object_of(json_t **root, const char *text, size_t bytes, const char *name, const char *what,
                   io_error *error)
{
    json_error_t reason;
    *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &reason);
    if (json_is_object(*root)) return 0;
    const int other = *root != NULL;
    json_decref(*root);
    *root = NULL;
    if (other) return io_fail(error, EXIT_INPUT, "%s: %s is not a JSON object", name, what);
    /* Without memory jansson gives no reason, or that one; with a reason it is the text that is wrong. */
    if (!*reason.text || json_error_code(&reason) == json_error_out_of_memory)
        return io_fail(error, EXIT_INTERNAL, "out of memory for %s of %s", what, name);
    return io_fail(error, EXIT_INPUT, "%s: %s is not JSON: %s", name, what, reason.text);
}

int json_object_in(json_t **root, const char *path, io_error *error)
{
    mapped file;
    *root = NULL;
    int status = mapped_open(&file, path, error);
    if (!status)
        status = json_object_of(root, file.data ? (const char *)file.data : "", (size_t)file.bytes, path,
                                "the text", error);
    mapped_close(&file);
    return status;
}
