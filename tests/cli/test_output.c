/* SPDX-License-Identifier: MIT
 * Results come whole or not at all: full disks, limits on file sizes, closed pipes, and a program that is
 * killed while it writes. */
#define _XOPEN_SOURCE 700
#include "io/error.h"
#include "io/npy.h"
#include "tests/cli/program.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { TOKENS = 4096, DIM = 64 };

#define ATTEND "attend softmax --window 1 --q long.npy --k long.npy --v long.npy --threads 1 "

/* A megabyte of input: window 1 makes the result v itself, and quickly. */
static int make_long_input(void **state)
{
    if (program_setup(state)) return -1;
    const int64_t shape[] = { TOKENS, DIM };
    array a;
    if (array_create(&a, LOAM_F32, 2, shape, "input", NULL)) return -1;
    for (int64_t i = 0; i < a.count; i++)
        array_set(&a, i, (double)(i % 7) / 8);
    int status = npy_write("long.npy", &a, NULL);
    array_free(&a);
    return status;
}

static void expect_nothing_left(void)
{
    assert_int_equal(count_files(".loam-"), 0);
    assert_int_equal(count_files("new"), 0);
}

static void full_disks_are_noticed(void **state)
{
    (void)state;
    static const char *const options[] = { "--lse", "--rho", "--weights", "--info" };
    for (int i = 0; i < 4; i++) {
        outcome result = run_loam("attend lla --q $IN:q --k $IN:k --v $IN:v --out new.npy %s /dev/full",
                                  options[i]);
        expect_complaint(&result, EXIT_OUTPUT, "cannot write /dev/full: No space left on device");
        expect_nothing_left();
    }
    outcome result = run_loam(ATTEND "--out /dev/full --lse new.npy");
    expect_complaint(&result, EXIT_OUTPUT, "cannot write /dev/full: No space left on device");
    expect_nothing_left();
    result = run_shell("\"$LOAM\" " ATTEND "--out - --lse new.npy >/dev/full");
    expect_complaint(&result, EXIT_OUTPUT, "cannot write standard output: No space left on device");
    expect_nothing_left();
}

/* ulimit -f is a disk that fills in the middle of a file; XFSZ must not kill the program silently. */
static void a_disk_that_fills_leaves_nothing(void **state)
{
    (void)state;
    outcome result = run_shell("(trap '' XFSZ; ulimit -f 500; \"$LOAM\" " ATTEND
                               "--lse new_lse.npy --out new.npy)");
    expect_complaint(&result, EXIT_OUTPUT, "cannot write new.npy: File too large");
    expect_nothing_left();
}

static void directories_without_permission_are_noticed(void **state)
{
    (void)state;
    if (geteuid() == 0) skip(); /* root may write anywhere */
    outcome result = run_shell("mkdir -m 500 locked");
    expect_status(&result, 0);
    result = run_loam(ATTEND "--out locked/new.npy");
    expect_complaint(&result, EXIT_OUTPUT, "cannot write locked/new.npy: Permission denied");
}

static void closed_pipes_are_noticed(void **state)
{
    (void)state;
    outcome result = run_shell("mkfifo gone && { { sleep 0.2; \"$LOAM\" " ATTEND
                               "--out - ; echo $? >status; } >gone & "
                               "exec 3<gone; exec 3<&-; wait; cat status; }");
    assert_string_equal(result.out, "4\n");
    assert_non_null(strstr(result.err, "cannot write standard output: Broken pipe"));
}

/* What is beside a link is the target's business: the link stays, the target is replaced. */
static void links_are_followed(void **state)
{
    (void)state;
    outcome result = run_shell("mkdir there && echo old >there/real.npy && ln -s there/real.npy link.npy");
    expect_status(&result, 0);
    result = run_loam(ATTEND "--out link.npy");
    expect_status(&result, 0);
    result = run_shell("test -L link.npy && cmp link.npy there/real.npy && test $(wc -c <link.npy) -gt 1000");
    expect_status(&result, 0);
}

#define LOAM_QKV "lla --q in.safetensors:q --k in.safetensors:k --v in.safetensors:v "
#define GRADIENTS "--out o.npy --grad-out in.safetensors:grad_out --grad-dir "

/* By any name: itself, links, another spelling; and also where one output is another. */
static void nothing_is_written_over_an_input(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *complaint;
    } bad[] = {
        { "softmax --q long.npy --k long.npy --v long.npy --out long.npy",
          "--out long.npy would be written over --q long.npy" },
        { LOAM_QKV "--out over/../soft.npy",
          "--out over/../soft.npy would be written over --q in.safetensors:q" },
        { LOAM_QKV "--out o.npy --lse hard.npy",
          "--lse hard.npy would be written over --q in.safetensors:q" },
        { LOAM_QKV "--out o.npy --info hard.npy", "--info hard.npy would be written over" },
        { LOAM_QKV "--out o.npy --ridge ridge.npy --rho ./ridge.npy",
          "--rho ./ridge.npy would be written over --ridge ridge.npy" },
        { LOAM_QKV "--out o.npy --cu-seqlens ridge.npy --weights ridge.npy",
          "--weights ridge.npy would be written over --cu-seqlens ridge.npy" },
        { "linear --q long.npy --k long.npy --v long.npy --out o.npy "
          "--state-in ridge.npy --state-out ridge.npy",
          "--state-out ridge.npy would be written over --state-in ridge.npy" },
        { LOAM_QKV GRADIENTS "over --ridge over/dridge.npy",
          "--grad-dir over/dridge.npy would be written over --ridge over/dridge.npy" },
        { LOAM_QKV GRADIENTS "linked --ridge over/dridge.npy",
          "--grad-dir linked/dridge.npy would be written over --ridge over/dridge.npy" },
        { LOAM_QKV GRADIENTS "over --lse linked/dq.npy",
          "--grad-dir over/dq.npy would be written over --lse linked/dq.npy" },
        { LOAM_QKV GRADIENTS "missing --lse ./missing//dq.npy",
          "--grad-dir missing/dq.npy would be written over" },
        { LOAM_QKV "--out new.npy --lse over/../new.npy",
          "--lse over/../new.npy would be written over --out new.npy" },
        { LOAM_QKV "--out - --lse -", "--lse - would be written over --out -" },
        { LOAM_QKV "--out - --lse .out", "--lse .out would be written over --out -" },
    };
    outcome result = run_shell(
        "cp \"$IN\" in.safetensors; ln in.safetensors hard.npy; ln -s in.safetensors soft.npy; "
        "mkdir over; ln -s over linked; cp long.npy ridge.npy; cp long.npy over/dridge.npy; "
        "cat long.npy in.safetensors ridge.npy over/* | cksum >before");
    expect_status(&result, 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        result = run_loam("attend %s", bad[i].arguments);
        expect_complaint(&result, EXIT_USAGE, bad[i].complaint);
        expect_nothing_left();
    }
    result = run_shell(
        "cat long.npy in.safetensors ridge.npy over/* | cksum | cmp - before && ! test -e missing");
    expect_status(&result, 0);
}

/* An old result is no input, a gradient that is not written none either, and devices keep nothing. */
static void what_is_no_input_may_be_replaced(void **state)
{
    (void)state;
    static const char *const good[] = { LOAM_QKV "--out old.npy",
                                        LOAM_QKV "--out old.npy --lse old/../old2.npy",
                                        LOAM_QKV GRADIENTS "old --ridge old/dslope.npy",
                                        LOAM_QKV "--out /dev/null --lse /dev/stderr --rho /dev/null" };
    outcome result = run_shell(
        "mkdir old; cp long.npy old.npy; \"$LOAM\" attend softmax --window 1 --q long.npy --k "
        "long.npy --v long.npy --out o.npy --lse old/l.npy; cp \"$IN\" in.safetensors");
    expect_status(&result, 0);
    float one = 1;
    array ridge;
    const int64_t count = 1;
    assert_int_equal(array_create(&ridge, LOAM_F32, 1, &count, "ridge", NULL), 0);
    memcpy(ridge.data, &one, sizeof one);
    assert_int_equal(npy_write("old/dslope.npy", &ridge, NULL), 0);
    array_free(&ridge);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        result = run_loam("attend %s 2>/dev/null", good[i]);
        if (result.status) fail_msg("loam attend %s: %d", good[i], result.status);
    }
}

static void start(const char *out)
{
    execl(LOAM_PROGRAM, "loam", "attend", "softmax", "--window", "1", "--q", "long.npy", "--k", "long.npy",
          "--v", "long.npy", "--threads", "1", "--out", out, "--rho", "killed_rho.npy", "--lse",
          "killed_lse.npy", (char *)NULL);
    _exit(127);
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * (int64_t)1000000000 + time.tv_nsec;
}

static void expect_whole_if_there(const char *path, int64_t count)
{
    if (!file_exists(path)) return;
    array a = read_array(path);
    assert_int_equal(a.count, count);
    array_free(&a);
    assert_int_equal(unlink(path), 0);
}

/* Killed at 40 moments from the start to about the end of a whole run: each result is absent or whole. */
static void killed_at_any_moment_nothing_is_half(void **state)
{
    (void)state;
    int64_t begun = now();
    outcome result = run_loam(ATTEND "--out killed.npy --rho killed_rho.npy --lse killed_lse.npy");
    int64_t whole = now() - begun;
    expect_status(&result, 0);
    for (int moment = 0; moment < 40; moment++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) start("killed.npy");
        int64_t wait_time = whole * moment / 36;
        nanosleep(&(struct timespec){ wait_time / 1000000000, wait_time % 1000000000 }, NULL);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        expect_whole_if_there("killed.npy", TOKENS * DIM);
        expect_whole_if_there("killed_rho.npy", TOKENS * DIM);
        expect_whole_if_there("killed_lse.npy", TOKENS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_disks_are_noticed),
        cmocka_unit_test(a_disk_that_fills_leaves_nothing),
        cmocka_unit_test(directories_without_permission_are_noticed),
        cmocka_unit_test(closed_pipes_are_noticed),
        cmocka_unit_test(links_are_followed),
        cmocka_unit_test(nothing_is_written_over_an_input),
        cmocka_unit_test(what_is_no_input_may_be_replaced),
        cmocka_unit_test(killed_at_any_moment_nothing_is_half),
    };
    return cmocka_run_group_tests(tests, make_long_input, program_teardown);
}
