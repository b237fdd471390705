/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "corpus/paths.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int no_memory(io_error *error) { return io_fail(error, EXIT_INTERNAL, "out of memory for paths"); }

static int cannot_read(const char *path, int reason, io_error *error)
{
    if (reason == ENOMEM) return no_memory(error);
    return io_fail(error, EXIT_INPUT, "cannot read %s: %s", path, strerror(reason));
}

static char *joined(const char *first, const char *second)
{
    const size_t head = strlen(first), tail = strlen(second);
    char *path = malloc(head + 1 + tail + 1);
    if (!path) return NULL;
    memcpy(path, first, head);
    path[head] = '/';
    memcpy(path + head + 1, second, tail + 1);
    return path;
}

/* Takes the path over. */
static int add_path(paths *list, char *path, io_error *error)
{
    if (path && list->count == list->room) {
        const size_t room = list->room ? 2 * list->room : 64;
        char **larger = realloc(list->at, room * sizeof *larger);
        if (larger) list->at = larger, list->room = room;
    }
    if (!path || list->count == list->room) {
        free(path);
        return no_memory(error);
    }
    list->at[list->count++] = path;
    return 0;
}

/* A name in a folder: a file goes into `files`, a folder into `folders`, which takes `relative` over. */
static int sort_name(const char *top, char *relative, paths *files, paths *folders, io_error *error)
{
    struct stat itself, meant;
    char *path = relative ? joined(top, relative) : NULL;
    const int gone = !path || lstat(path, &itself) != 0 || stat(path, &meant) != 0;
    const char *const failed = path ? path : top;
    int status = 0;
    if (!path)
        status = no_memory(error);
    else if (gone && errno != ENOENT && errno != ELOOP) /* a link to nothing is no file */
        status = cannot_read(failed, errno, error);
    if (!status && !gone && S_ISREG(meant.st_mode))
        status = add_path(files, relative, error), relative = NULL;
    else if (!status && !gone && S_ISDIR(itself.st_mode))
        status = add_path(folders, relative, error), relative = NULL;
    free(relative);
    free(path);
    return status;
}

static int read_folder(const char *top, const char *relative, paths *files, paths *folders, io_error *error)
{
    char *path = joined(top, relative);
    DIR *directory = path ? opendir(path) : NULL;
    int status = !path ? no_memory(error) : !directory ? cannot_read(path, errno, error) : 0;
    while (!status) {
        errno = 0;
        struct dirent *entry = readdir(directory);
        if (!entry && errno) status = cannot_read(path, errno, error);
        if (!entry) break;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char *name = *relative ? joined(relative, entry->d_name) : strdup(entry->d_name);
        status = sort_name(top, name, files, folders, error);
    }
    if (directory) closedir(directory);
    free(path);
    return status;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int paths_find(paths *list, const char *path, io_error *error)
{
    struct stat told;
    paths folders = { 0 };
    *list = (paths){ 0 };
    if (stat(path, &told) != 0) return cannot_read(path, errno, error);
    const char *const slash = strrchr(path, '/');
    int status = 0;
    list->folder = S_ISDIR(told.st_mode);
    if (!list->folder)
        status = add_path(list, strdup(slash ? slash + 1 : path), error);
    else
        status = read_folder(path, "", list, &folders, error);
    for (size_t i = 0; i < folders.count && !status; i++)
        status = read_folder(path, folders.at[i], list, &folders, error);
    if (list->count > 0) qsort(list->at, list->count, sizeof *list->at, compare_paths);
    paths_free(&folders);
    if (status) paths_free(list);
    return status;
}

void paths_free(paths *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->at[i]);
    free(list->at);
    *list = (paths){ 0 };
}

char *paths_join(const paths *list, const char *path, size_t n)
{
    return list->folder ? joined(path, list->at[n]) : strdup(path);
}
