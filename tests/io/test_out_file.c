/* SPDX-License-Identifier: MIT
 * io/out_file.c: a file appears whole or not at all. */
#define _XOPEN_SOURCE 700
#include "io/out_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int enter_directory(void **state)
{
    char directory[] = "out-file-XXXXXX";
    *state = NULL;
    return mkdtemp(directory) && chdir(directory) == 0 ? 0 : -1;
}

static int leave_directory(void **state)
{
    (void)state;
    char directory[4096];
    if (!getcwd(directory, sizeof directory) || chdir("..")) return -1;
    return rmdir(directory);
}

static int count_entries(void)
{
    DIR *directory = opendir(".");
    assert_non_null(directory);
    int count = -2;
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static void expect_text(const char *path, const char *text)
{
    char got[64] = "";
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    size_t length = fread(got, 1, sizeof got - 1, stream);
    fclose(stream);
    assert_int_equal(length, strlen(text));
    assert_string_equal(got, text);
}

static out_file *begin(const char *path, const char *text)
{
    out_file *file;
    io_error error;
    if (out_open(&file, path, &error)) fail_msg("%s", error.text);
    fputs(text, out_stream(file));
    return file;
}

static void a_file_appears_at_the_commit(void **state)
{
    (void)state;
    out_file *file = begin("a", "new");
    assert_int_equal(access("a", F_OK), -1);
    assert_int_equal(out_finish(file, NULL), 0);
    assert_int_equal(access("a", F_OK), -1);
    assert_int_equal(out_commit(file, NULL), 0);
    expect_text("a", "new");
    file = begin("a", "newer");
    expect_text("a", "new");
    assert_int_equal(out_commit(file, NULL), 0);
    expect_text("a", "newer");
    assert_int_equal(count_entries(), 1);
    struct stat status;
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(stat("a", &status), 0);
    assert_int_equal(status.st_mode & 0777, 0666 & ~mask);
    assert_int_equal(unlink("a"), 0);
}

static void discarded_files_leave_nothing(void **state)
{
    (void)state;
    out_discard(begin("a", "text"));
    out_file *file = begin("a", "text");
    assert_int_equal(out_finish(file, NULL), 0);
    out_discard(file);
    out_discard(NULL);
    assert_int_equal(count_entries(), 0);
}

/* Two at once, also for one target, have temporary names of their own; the last commit wins. */
static void files_side_by_side(void **state)
{
    (void)state;
    out_file *first = begin("a", "first"), *second = begin("a", "second");
    assert_int_equal(out_commit(second, NULL), 0);
    expect_text("a", "second");
    assert_int_equal(out_commit(first, NULL), 0);
    expect_text("a", "first");
    assert_int_equal(unlink("a"), 0);
}

/* 255 characters, the most a name may have: the temporary name must not be made from it. */
static void longest_names_work(void **state)
{
    (void)state;
    char name[256];
    memset(name, 'n', 255);
    name[255] = '\0';
    assert_int_equal(out_commit(begin(name, "x"), NULL), 0);
    expect_text(name, "x");
    assert_int_equal(unlink(name), 0);
}

static void links_and_directories(void **state)
{
    (void)state;
    assert_int_equal(mkdir("d", 0777), 0);
    assert_int_equal(out_commit(begin("d/real", "old"), NULL), 0);
    assert_int_equal(symlink("d/real", "link"), 0);
    assert_int_equal(out_commit(begin("link", "new"), NULL), 0);
    struct stat status;
    assert_int_equal(lstat("link", &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    expect_text("d/real", "new");
    out_file *file;
    io_error error;
    assert_int_equal(out_open(&file, "d", &error), EXIT_OUTPUT);
    assert_null(file);
    assert_string_equal(error.text, "cannot write d: Is a directory");
    assert_int_equal(out_open(&file, "nosuch/a", &error), EXIT_OUTPUT);
    assert_string_equal(error.text, "cannot write nosuch/a: No such file or directory");
    assert_int_equal(out_open(&file, "", &error), EXIT_OUTPUT);
    assert_int_equal(unlink("d/real"), 0);
    assert_int_equal(out_open(&file, "link", &error), EXIT_OUTPUT);
    assert_string_equal(error.text, "cannot write link: No such file or directory");
    assert_true(lstat("link", &status) == 0 && S_ISLNK(status.st_mode));
    assert_int_equal(unlink("link") | rmdir("d"), 0);
}

/* A device is written in place, and stays a device. */
static void devices_stay_devices(void **state)
{
    (void)state;
    assert_int_equal(out_commit(begin("/dev/null", "x"), NULL), 0);
    struct stat status;
    assert_int_equal(stat("/dev/null", &status), 0);
    assert_true(S_ISCHR(status.st_mode));
    io_error error;
    assert_int_equal(out_commit(begin("/dev/full", "x"), &error), EXIT_OUTPUT);
    assert_string_equal(error.text, "cannot write /dev/full: No space left on device");
}

/* The reason of the first failed write is told, however much is written after it. */
static void the_first_reason_is_told(void **state)
{
    (void)state;
    out_file *file = begin("/dev/full", "");
    for (int i = 0; i < 100000; i++)
        fputs("0123456789", out_stream(file));
    io_error error;
    assert_int_equal(out_finish(file, &error), EXIT_OUTPUT);
    assert_string_equal(error.text, "cannot write /dev/full: No space left on device");
    error = (io_error){ 0 };
    assert_int_equal(out_commit(file, &error), EXIT_OUTPUT);
    assert_string_equal(error.text, "cannot write /dev/full: No space left on device");
}

static void file_size_limits_are_noticed(void **state)
{
    (void)state;
    struct rlimit old, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    out_file *file = begin("a", "");
    limit = (struct rlimit){ 1000, old.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int i = 0; i < 200; i++)
        fputs("0123456789", out_stream(file));
    io_error error;
    int status = out_commit(file, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, EXIT_OUTPUT);
    assert_string_equal(error.text, "cannot write a: File too large");
    assert_int_equal(count_entries(), 0);
}

static void closed_pipes_are_noticed(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    signal(SIGPIPE, SIG_IGN);
    char path[64];
    snprintf(path, sizeof path, "/dev/fd/%d", ends[1]);
    out_file *file = begin(path, "x");
    close(ends[0]);
    io_error error;
    assert_int_equal(out_commit(file, &error), EXIT_OUTPUT);
    assert_non_null(strstr(error.text, "Broken pipe"));
    close(ends[1]);
    assert_int_equal(count_entries(), 0);
}

static void the_target_becomes_a_directory(void **state)
{
    (void)state;
    out_file *file = begin("a", "x");
    assert_int_equal(mkdir("a", 0777), 0);
    io_error error;
    assert_int_equal(out_commit(file, &error), EXIT_OUTPUT);
    assert_string_equal(error.text, "cannot write a: Is a directory");
    assert_int_equal(rmdir("a"), 0);
    assert_int_equal(count_entries(), 0);
}

/* Standard output is neither renamed nor closed, and keeps its order with what is printed. */
static void standard_output_stays_open(void **state)
{
    (void)state;
    fflush(stdout);
    int saved = dup(STDOUT_FILENO), file_descriptor = open("o", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(saved >= 0 && dup2(file_descriptor, STDOUT_FILENO) >= 0);
    printf("1");
    int status = out_commit(begin("-", "2"), NULL);
    printf("3");
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved), close(file_descriptor);
    assert_int_equal(status, 0);
    expect_text("o", "123");
    assert_int_equal(unlink("o"), 0);
}

/* As /dev/stdout may be: open, and without a name that could be renamed over. */
static void a_deleted_file_is_written_in_place(void **state)
{
    (void)state;
    int descriptor = open("o", O_RDWR | O_CREAT | O_TRUNC, 0666);
    assert_true(descriptor >= 0 && write(descriptor, "older", 5) == 5 && unlink("o") == 0);
    char path[64], text[8] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    assert_int_equal(symlink(path, "link"), 0);
    io_error error;
    assert_int_equal(out_commit(begin("link", "2"), &error), 0);
    struct stat status;
    assert_true(lstat("link", &status) == 0 && S_ISLNK(status.st_mode));
    assert_int_equal(pread(descriptor, text, sizeof text - 1, 0), 1);
    assert_string_equal(text, "2");
    close(descriptor);
    assert_int_equal(unlink("link"), 0);
    assert_int_equal(count_entries(), 0);
}

/* Killed between open and commit: the old file is as it was. */
static void a_killed_writer_leaves_the_old_file(void **state)
{
    (void)state;
    assert_int_equal(out_commit(begin("a", "old"), NULL), 0);
    pid_t child = fork();
    if (child == 0) {
        out_file *file;
        if (out_open(&file, "a", NULL) == 0 && fputs("half", out_stream(file)) >= 0 &&
            !out_finish(file, NULL))
            raise(SIGKILL);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    expect_text("a", "old");
    char left[64];
    snprintf(left, sizeof left, ".loam-%ld-0.tmp", (long)child);
    assert_int_equal(unlink(left), 0);
    assert_int_equal(unlink("a"), 0);
    assert_int_equal(count_entries(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_appears_at_the_commit),
        cmocka_unit_test(discarded_files_leave_nothing),
        cmocka_unit_test(files_side_by_side),
        cmocka_unit_test(longest_names_work),
        cmocka_unit_test(links_and_directories),
        cmocka_unit_test(devices_stay_devices),
        cmocka_unit_test(the_first_reason_is_told),
        cmocka_unit_test(file_size_limits_are_noticed),
        cmocka_unit_test(closed_pipes_are_noticed),
        cmocka_unit_test(the_target_becomes_a_directory),
        cmocka_unit_test(standard_output_stays_open),
        cmocka_unit_test(a_deleted_file_is_written_in_place),
        cmocka_unit_test(a_killed_writer_leaves_the_old_file),
    };
    return cmocka_run_group_tests(tests, enter_directory, leave_directory);
}
