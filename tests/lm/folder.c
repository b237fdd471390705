/* SPDX-License-Identifier: MIT */
#define _XOPEN_SOURCE 700
#include "tests/lm/folder.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATH_BYTES = 512 };

const char *const folder_models[FOLDER_MODELS] = { "gpt2",        "gpt2-scaled", "neox",
                                                   "neox-serial", "llama",       "llama-sharded",
                                                   "bert",        "llama-gguf",  "llama-gguf/model.gguf" };

int folder_setup(void **state)
{
    char directory[] = "models-XXXXXX";
    *state = NULL;
    return !mkdtemp(directory) || chdir(directory) ? -1 : 0;
}

int folder_teardown(void **state)
{
    (void)state;
    char directory[4096];
    return !getcwd(directory, sizeof directory) || chdir("..") || rmdir(directory) ? -1 : 0;
}

static const char *in_folder(char path[PATH_BYTES], const char *folder, const char *file)
{
    assert_true(snprintf(path, PATH_BYTES, "%s/%s", folder, file) < PATH_BYTES);
    return path;
}

bool folder_is_file(const char *file) { return strstr(file, ".gguf") != NULL; }

char *folder_read(const char *folder, const char *file, size_t *count)
{
    enum { MOST = 1 << 20 };
    char path[PATH_BYTES], *data = malloc(MOST);
    FILE *stream = fopen(in_folder(path, folder, file), "rb");
    assert_true(stream && data);
    *count = fread(data, 1, MOST, stream);
    assert_true(*count < MOST);
    fclose(stream);
    return data;
}

static void write_file(const char *folder, const char *file, const char *data, size_t count)
{
    char path[PATH_BYTES];
    FILE *stream = fopen(in_folder(path, folder, file), "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(data, 1, count, stream), count);
    assert_int_equal(fclose(stream), 0);
}

void folder_cut(const char *folder, const char *file, size_t count)
{
    char path[PATH_BYTES];
    assert_int_equal(truncate(in_folder(path, folder, file), (off_t)count), 0);
}

void folder_unlink(const char *folder, const char *file)
{
    char path[PATH_BYTES];
    assert_int_equal(unlink(in_folder(path, folder, file)), 0);
}

/* Of each file of the folder. */
static void each_file(const char *folder, void (*act)(const char *folder, const char *file, void *context),
                      void *context)
{
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        if (*entry->d_name != '.') act(folder, entry->d_name, context);
    closedir(directory);
}

static void copy_file(const char *folder, const char *file, void *context)
{
    size_t count;
    char *data = folder_read(folder, file, &count);
    write_file(context, file, data, count);
    free(data);
}

static void remove_file(const char *folder, const char *file, void *context)
{
    (void)context;
    folder_unlink(folder, file);
}

void folder_copy(const char *model, const char *to)
{
    char path[PATH_BYTES];
    assert_int_equal(mkdir(to, 0777), 0);
    each_file(in_folder(path, LM_TEST_DATA, model), copy_file, (void *)(uintptr_t)to);
}

void folder_remove(const char *folder)
{
    each_file(folder, remove_file, NULL);
    assert_int_equal(rmdir(folder), 0);
}

void folder_replace(const char *folder, const char *file, const char *from, const char *to)
{
    size_t count, written = 0;
    int found = 0;
    char *data = folder_read(folder, file, &count), *changed = malloc(2 * count);
    assert_non_null(changed);
    for (size_t at = 0; at < count;) {
        const bool here = at + strlen(from) <= count && memcmp(data + at, from, strlen(from)) == 0;
        const char *piece = here ? to : data + at;
        const size_t bytes = here ? strlen(to) : 1;
        assert_true(written + bytes <= 2 * count);
        memcpy(changed + written, piece, bytes);
        written += bytes;
        at += here ? strlen(from) : 1;
        found += here;
    }
    if (!found) fail_msg("%s has no %s", file, from);
    write_file(folder, file, changed, written);
    free(changed);
    free(data);
}
