/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/regress/command.h"

#include "cli/command.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

char said[1 << 16];

void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

void read_file(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("%s is missing; the program said: %s", path, said);
    const size_t n = fread(text, 1, size - 1, file);
    assert_true(n < size - 1);
    text[n] = 0;
    fclose(file);
}

int run(const char *line)
{
    char name[] = "regress", copy[512], *argv[40] = { name }, *rest = NULL;
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    fflush(NULL);
    const int keep_out = dup(1), keep_err = dup(2), to = open("said", O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(keep_out >= 0 && keep_err >= 0 && to >= 0);
    dup2(to, 1);
    dup2(to, 2);
    const int status = command_regress(argc, argv);
    fflush(NULL);
    dup2(keep_out, 1);
    dup2(keep_err, 2);
    close(keep_out);
    close(keep_err);
    close(to);
    read_file("said", said, sizeof said);
    unlink("said");
    return status;
}

static int count_files(void)
{
    int count = 0;
    DIR *directory = opendir(".");
    assert_non_null(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

void expect_error(const char *line, int status, const char *words)
{
    const int before = count_files(), got = run(line);
    if (got != status) fail_msg("'%s': status %d, not %d; said: %s", line, got, status, said);
    if (!strstr(said, words)) fail_msg("'%s': '%s' lacks '%s'", line, said, words);
    const char *end = strchr(said, '\n');
    if (!end || end[1]) fail_msg("'%s': not one line: %s", line, said);
    if (count_files() != before) fail_msg("'%s' left a file", line);
}

void expect_done(const char *line)
{
    if (run(line)) fail_msg("'%s' failed: %s", line, said);
}

void expect_said(const char *words)
{
    if (!strstr(said, words)) fail_msg("'%s' lacks '%s'", said, words);
}

void expect_in_file(const char *path, const char *words)
{
    static char text[1 << 18];
    read_file(path, text, sizeof text);
    if (!strstr(text, words)) fail_msg("%s, '%.300s', lacks '%s'", path, text, words);
}
