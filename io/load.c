/* SPDX-License-Identifier: MIT */
#include "io/load.h"

#include "io/npy.h"
#include "io/safetensors.h"

#include <stdlib.h>
#include <string.h>

static const char ENDING[] = ".safetensors";

static int load_tensor(array *out, const char *path, size_t file_length, io_error *error)
{
    char *file = malloc(file_length + 1);
    if (!file) return io_fail(error, EXIT_INTERNAL, "out of memory for the name %s", path);
    memcpy(file, path, file_length);
    file[file_length] = '\0';
    const char *tensor = path[file_length] ? path + file_length + 1 : "";
    int status = safetensors_read(out, file, tensor, error);
    free(file);
    return status;
}

/* Where the ending of a .safetensors file stops, NULL where there is none. */
static const char *tensor_file_end(const char *path)
{
    const size_t ending = sizeof ENDING - 1;
    for (const char *at = strstr(path, ENDING); at; at = strstr(at + 1, ENDING))
        if (at[ending] == ':' || at[ending] == '\0') return at + ending;
    return NULL;
}

size_t array_file_length(const char *path)
{
    const char *end = tensor_file_end(path);
    return end ? (size_t)(end - path) : strlen(path);
}

int array_load(array *out, const char *path, io_error *error)
{
    *out = (array){ 0 };
    const char *end = tensor_file_end(path);
    return end ? load_tensor(out, path, (size_t)(end - path), error) : npy_read(out, path, error);
}
