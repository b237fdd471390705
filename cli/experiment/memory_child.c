/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "cli/experiment/memory_child.h"

#include "cli/experiment/memory_device.h"
#include "loam.h"

#include <cblas.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the child says. */
typedef struct report {
    int status;
    io_error error;
    memory_result result;
} report;

/* ---- what Linux says of memory */

/* "NAME:   123 kB" of a file of /proc in bytes; 0 where it is not there. */
static size_t read_kilobytes(const char *path, const char *name)
{
    char line[256];
    size_t found = 0;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    while (found == 0 && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            found = (size_t)strtoull(line + strlen(name), NULL, 10) << 10;
    fclose(file);
    return found;
}

static size_t own(const char *name) { return read_kilobytes("/proc/self/status", name); }

size_t memory_available(void) { return read_kilobytes("/proc/meminfo", "MemAvailable:"); }

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (!file) return;
    fputs(text, file);
    fclose(file);
}

/* ---- the child */

static void *allocate(size_t bytes)
{
    return aligned_alloc(LOAM_ALIGN, (bytes + LOAM_ALIGN) / LOAM_ALIGN * LOAM_ALIGN);
}

/* Pages of 4 KiB, that peaks be what was asked for. Should memory run out all the same, this process goes
 * first. */
static void settle(void)
{
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    write_text("/proc/self/oom_score_adj", "1000");
}

/* OpenBLAS takes the buffers of its threads when a product first needs them, and waits for ever where a limit
 * leaves no room for them. */
static int start_blas(const memory_case *c)
{
    enum { SIDE = 768 };
    float *square = calloc((size_t)SIDE * SIDE * 2, sizeof *square);
    if (!square) return 0;
    openblas_set_num_threads(c->threads);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, SIDE, SIDE, SIDE, 1, square, SIDE, square, SIDE, 0,
                square + (size_t)SIDE * SIDE, SIDE);
    free(square);
    return 1;
}

/* A small run first: threads, stacks and the pools of BLAS are no part of a method's memory. */
static int warm_up(const memory_case *c, report *out)
{
    memory_case small = *c;
    memory_sizes sizes;
    small.length = MEMORY_SAMPLE;
    int status = memory_sizes_of(&small, &sizes, &out->error);
    if (status != EXIT_OK) return status;
    float *arrays = allocate(sizes.arrays);
    void *working = allocate(sizes.working);
    if (arrays && working && start_blas(c)) {
        memory_draw(&small, arrays);
        status = memory_compute(&small, arrays, working, out->result.sample, &out->error);
    } else
        status = io_fail(&out->error, EXIT_INTERNAL, "out of memory");
    free(arrays);
    free(working);
    return status;
}

static int set_limit(size_t limit, io_error *error)
{
    const rlim_t bytes = (rlim_t)(own("VmSize:") + limit);
    const struct rlimit bound = { bytes, bytes };
    if (own("VmSize:") > 0 && setrlimit(RLIMIT_AS, &bound) == 0) return EXIT_OK;
    return io_fail(error, EXIT_INTERNAL, "--limit: a process of %.3g GiB more: %s",
                   (double)limit / ((size_t)1 << 30),
                   own("VmSize:") > 0 ? strerror(errno) : "/proc/self/status has no VmSize");
}

/* Memory that was asked for and not written to does not count, so all is written. */
static int use_memory(const memory_case *c, const memory_sizes *sizes, bool compute, float *arrays,
                      void *working, report *out)
{
    if (compute)
        memory_draw(c, arrays);
    else
        memset(arrays, 0, sizes->arrays);
    write_text("/proc/self/clear_refs", "5"); /* the peak starts anew */
    const size_t before = own("VmRSS:");
    int status = EXIT_OK;
    if (compute)
        status = memory_compute(c, arrays, working, out->result.sample, &out->error);
    else
        memset(working, 0, sizes->working);
    out->result.process = own("VmHWM:");
    out->result.working = out->result.process > before ? out->result.process - before : 0;
    out->result.end = compute ? MEMORY_COMPUTED : MEMORY_TAKEN;
    return status;
}

static int measure(const memory_case *c, size_t limit, bool compute, report *out)
{
    memory_sizes *const sizes = &out->result.sizes;
    settle();
    if (c->on.cuda) return memory_measure_device(c, limit, compute, &out->result, &out->error);
    int status = warm_up(c, out);
    if (status == EXIT_OK) status = memory_sizes_of(c, sizes, &out->error);
    if (status == EXIT_OK) status = set_limit(limit, &out->error);
    if (status != EXIT_OK) return status;
    float *arrays = allocate(sizes->arrays);
    void *working = allocate(sizes->working);
    if (arrays && working)
        status = use_memory(c, sizes, compute, arrays, working, out);
    else
        out->result.end = MEMORY_OUT;
    free(arrays);
    free(working);
    return status;
}

static void run_child(const memory_case *c, size_t limit, bool compute, int pipe_end)
{
    report out = { .status = EXIT_OK };
    out.status = measure(c, limit, compute, &out);
    const bool told = write(pipe_end, &out, sizeof out) == (ssize_t)sizeof out; /* less than a pipe holds */
    _exit(told ? 0 : 1);
}

/* ---- the parent */

static int no_report(const memory_case *c, size_t limit, int wait_status, io_error *error)
{
    char how[64];
    if (WIFSIGNALED(wait_status))
        snprintf(how, sizeof how, "was ended by signal %d", WTERMSIG(wait_status));
    else
        snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(wait_status));
    return io_fail(error, EXIT_INTERNAL,
                   "the process that measured %s at n = %" PRId64
                   " %s; has the machine less memory than the limit of %.3g GiB? --limit sets it",
                   memory_names[c->method], c->length, how, (double)limit / ((size_t)1 << 30));
}

static int read_report(int pipe_end, report *out)
{
    size_t have = 0;
    while (have < sizeof *out) {
        const ssize_t got = read(pipe_end, (char *)out + have, sizeof *out - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        have += (size_t)got;
    }
    return 1;
}

int memory_measure(const memory_case *c, size_t limit, bool compute, memory_result *result, io_error *error)
{
    int ends[2], wait_status = 0;
    report out;
    fflush(NULL);
    if (pipe(ends) != 0) return io_fail(error, EXIT_INTERNAL, "no pipe: %s", strerror(errno));
    const pid_t child = fork();
    if (child < 0) {
        const int why = errno;
        close(ends[0]);
        close(ends[1]);
        return io_fail(error, EXIT_INTERNAL, "no process: %s", strerror(why));
    }
    if (child == 0) {
        close(ends[0]);
        run_child(c, limit, compute, ends[1]);
    }
    close(ends[1]);
    const int told = read_report(ends[0], &out);
    close(ends[0]);
    while (waitpid(child, &wait_status, 0) < 0 && errno == EINTR)
        continue;
    if (!told) return no_report(c, limit, wait_status, error);
    *result = out.result;
    return out.status == EXIT_OK ? EXIT_OK : io_fail(error, out.status, "%s", out.error.text);
}
