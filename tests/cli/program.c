/* SPDX-License-Identifier: MIT */
#define _XOPEN_SOURCE 700
#include "tests/cli/program.h"

#include "io/load.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

int program_setup(void **state)
{
    char directory[] = "loam-cli-XXXXXX";
    if (!mkdtemp(directory) || chdir(directory)) return -1;
    *state = NULL;
    return setenv("LOAM", LOAM_PROGRAM, 0) || setenv("DATA", LOAM_DATA, 1) ||
           setenv("IN", LOAM_DATA "/inputs.safetensors", 1);
}

int program_teardown(void **state)
{
    (void)state;
    char directory[4096];
    if (!getcwd(directory, sizeof directory) || chdir("..")) return -1;
    char command[4200];
    snprintf(command, sizeof command, "d='%s'; chmod -R u+w \"$d\"; rm -rf \"$d\"", directory);
    return system(command);
}

static void read_text(const char *path, char *text, size_t room)
{
    FILE *stream = fopen(path, "rb");
    size_t length = stream ? fread(text, 1, room - 1, stream) : 0;
    text[length] = '\0';
    if (stream) fclose(stream);
}

static outcome run(const char *command)
{
    outcome result = { 0 };
    unlink(".out"), unlink(".err");
    int status = system(command);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    read_text(".out", result.out, sizeof result.out);
    read_text(".err", result.err, sizeof result.err);
    return result;
}

outcome run_loam(const char *format, ...)
{
    char arguments[4096], command[5000];
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    snprintf(command, sizeof command, ": >.out; \"$LOAM\" %s 2>.err >>.out", arguments);
    return run(command);
}

outcome run_shell(const char *format, ...)
{
    char arguments[4096], command[5000];
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    snprintf(command, sizeof command, "{ %s ; } 2>.err >.out", arguments);
    return run(command);
}

bool shell_holds(const char *condition) { return system(condition) == 0; }

bool kill_loam(const char *arguments, const char *condition)
{
    char command[5000];
    snprintf(command, sizeof command, "exec \"$LOAM\" %s >.out 2>.err", arguments);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    int ended = 0, status;
    while (!shell_holds(condition) && !ended)
        ended = waitpid(child, &status, WNOHANG) == child;
    if (ended) return false;
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status);
}

void expect_status(const outcome *result, int status)
{
    if (result->status != status)
        fail_msg("exit status %d, expected %d; stdout: %s stderr: %s", result->status, status, result->out,
                 result->err);
}

void expect_complaint(const outcome *result, int status, const char *part)
{
    expect_status(result, status);
    const char *newline = strchr(result->err, '\n');
    if (!strstr(result->err, part) || strncmp(result->err, "loam", 4) != 0)
        fail_msg("stderr lacks '%s': %s", part, result->err);
    if (!newline || newline[1]) fail_msg("stderr is not one line: %s", result->err);
}

void expect_refusals(const char *command, const refusal *cases, size_t count, const char *absent)
{
    for (size_t n = 0; n < count; n++) {
        const outcome told = run_loam("%s %s", command, cases[n].arguments);
        expect_complaint(&told, cases[n].status, cases[n].said);
        if (absent) assert_false(file_exists(absent));
    }
}

bool file_exists(const char *path) { return access(path, F_OK) == 0; }

int count_files(const char *prefix)
{
    DIR *directory = opendir(".");
    assert_non_null(directory);
    int count = 0;
    for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory))
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(directory);
    return count;
}

array read_array(const char *path)
{
    array a;
    io_error error;
    if (array_load(&a, path, &error)) fail_msg("%s", error.text);
    return a;
}

array fixture(const char *file, const char *tensor)
{
    char path[4096];
    snprintf(path, sizeof path, LOAM_DATA "/%s.safetensors:%s", file, tensor);
    array a = read_array(path);
    assert_int_equal(array_convert(&a, LOAM_F64, tensor, NULL), 0);
    return a;
}

void expect_arrays_near(const char *what, const array *got, const array *expected, double tolerance)
{
    char a[ARRAY_TEXT], b[ARRAY_TEXT];
    if (got->rank != expected->rank || memcmp(got->shape, expected->shape, sizeof got->shape) != 0)
        fail_msg("%s has shape %s, expected %s", what, array_shape_text(a, got->rank, got->shape),
                 array_shape_text(b, expected->rank, expected->shape));
    double largest = 0;
    for (int64_t i = 0; i < expected->count; i++)
        largest = fmax(largest, fabs(array_get(expected, i)));
    for (int64_t i = 0; i < expected->count; i++) {
        double difference = fabs(array_get(got, i) - array_get(expected, i));
        if (!(difference <= tolerance * (1 + largest)))
            fail_msg("%s at %s is %.17g, expected %.17g", what, array_index_text(a, got, i),
                     array_get(got, i), array_get(expected, i));
    }
}

void expect_tensor(const char *file, const char *path, const char *name, const char *part, double tolerance)
{
    char tensor[64];
    snprintf(tensor, sizeof tensor, "%s.%s", name, part);
    array got = read_array(path), expected = fixture(file, tensor);
    expect_arrays_near(tensor, &got, &expected, tolerance);
    array_free(&got);
    array_free(&expected);
}

void expect_gradients(const char *file, const char *name, const char *gradients, double tolerance)
{
    char all[128], path[80];
    snprintf(all, sizeof all, "dq dk dv dscale %s", gradients);
    int count = 0;
    for (char *part = strtok(all, " "); part; part = strtok(NULL, " "), count++) {
        snprintf(path, sizeof path, "g/%s.npy", part);
        expect_tensor(file, path, name, part, tolerance);
    }
    outcome listing = run_shell("ls g | wc -l");
    assert_int_equal(atoi(listing.out), count);
}
