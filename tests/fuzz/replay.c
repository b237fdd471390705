/* SPDX-License-Identifier: MIT
 * Runs a fuzz target on every file of the directories named as arguments. */
#define _POSIX_C_SOURCE 200809L
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 1 << 20 };

static int replay_file(const char *path)
{
    FILE *stream = fopen(path, "rb");
    uint8_t *data = malloc(FILE_MAX);
    size_t size = stream && data ? fread(data, 1, FILE_MAX, stream) : 0;
    int failed = !stream || !data || ferror(stream);
    if (!failed)
        LLVMFuzzerTestOneInput(data, size);
    else
        fprintf(stderr, "cannot read %s\n", path);
    free(data);
    if (stream) fclose(stream);
    return failed;
}

static int replay_directory(const char *path, int *count)
{
    DIR *directory = opendir(path);
    int failed = !directory;
    for (struct dirent *entry; directory && (entry = readdir(directory)) != NULL;) {
        char name[4096];
        if (*entry->d_name == '.') continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        failed |= replay_file(name);
        (*count)++;
    }
    if (directory) closedir(directory);
    return failed;
}

int main(int argc, char **argv)
{
    int count = 0, failed = argc < 2;
    for (int i = 1; i < argc; i++)
        failed |= replay_directory(argv[i], &count);
    printf("%d files\n", count);
    return failed || count == 0;
}
