/* SPDX-License-Identifier: MIT
 * loam experiment memory: the working memory of Local Linear Attention, by blocks and as it is written. */
#define _POSIX_C_SOURCE 200809L
#include "cli/experiment/memory_report.h"
#include "cli/plot.h"
#include "cli/progress.h"
#include "loam.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_LENGTH = 1 << 20 };

static const double gibi = 1 << 30;

/* Without --limit: 8 GiB, or nine tenths of what the machine can give. */
static const double usual_limit = 8, share = 0.9;

static const char about[] =
    "Figure 2 of Zuo et al. 2025, measured: the peak of memory beyond inputs and outputs against "
    "n for LLA with all differences k_j - q_i at once (n^2 d numbers), with all covariances at once (n d^2), "
    "and by blocks, as the library computes it, each forward and with the backward. Each is a process of its "
    "own under a limit that it sets itself; what does not fit is a point of the figure.\n"
    "Beyond --compute, and on a GPU for the first two, all memory of a method is allocated and written to, "
    "but nothing is computed.\n"
    "Writes memory.csv and memory.svg.";

typedef struct request {
    const char *lengths, *out, *backend, *dtype;
    int64_t dim, compute, seed, threads;
    double limit; /* GiB; 0: not given */
} request;

static int read_request(int argc, char **argv, request *r, bool *help, io_error *error)
{
    *r = (request){ .lengths = "256,512,1024,2048,4096,8192,16384,32768,65536,131072",
                    .out = "out/memory",
                    .backend = "cpu",
                    .dim = 128,
                    .compute = 4096,
                    .seed = 1 };
    const option_row rows[] = {
        { "n", OPTION_TEXT, &r->lengths, 0, 0, "LIST", "tokens, from 64 (256,512, doubled up to 131072)" },
        { "d", OPTION_INT, &r->dim, 1, LOAM_MAX_DIM, "N", "channels of keys and values (128)" },
        { "compute", OPTION_INT, &r->compute, 0, MOST_LENGTH, "N", "the largest n that is computed (4096)" },
        { "limit", OPTION_REAL, &r->limit, 0.01, 1e6, "GIB",
          "memory of a process (8, or nine tenths of what is free where that is less)" },
        { "backend", OPTION_TEXT, &r->backend, 0, 0, "cpu|cuda", "where (cpu)" },
        { "dtype", OPTION_TEXT, &r->dtype, 0, 0, "TYPE",
          "of the library's arrays: f32, or bf16 on a GPU (bf16)" },
        { "seed", OPTION_INT, &r->seed, 0, 9e15, "N", "of all random numbers (1)" },
        { "threads", OPTION_INT, &r->threads, 1, 4096, "N", "all by default; each needs memory of its own" },
        { "out", OPTION_TEXT, &r->out, 0, 0, "DIR", "where the results go (out/memory)" },
        { 0 },
    };
    return experiment_parse(argc, argv, rows, "loam experiment memory [options]", about, help, error);
}

/* Beyond what is free the limit would not hold: the machine would end the process, or another one. */
static int choose_limit(const request *r, bool cuda, size_t *limit, io_error *error)
{
    const double available = cuda ? 0 : (double)memory_available();
    if (available > 0 && r->limit * gibi > available)
        return io_fail(error, EXIT_USAGE,
                       "--limit %g: expected at most %.2f, the GiB that this machine has free", r->limit,
                       available / gibi);
    *limit = (size_t)((r->limit > 0 ? r->limit : usual_limit) * gibi);
    if (r->limit <= 0 && available > 0 && share * available < (double)*limit)
        *limit = (size_t)(share * available);
    return EXIT_OK;
}

static int make_sweep(const request *r, memory_sweep *s, io_error *error)
{
    number_list lengths;
    backend on;
    int status = experiment_check_out(r->out, error);
    if (status == EXIT_OK) status = experiment_read_list("n", r->lengths, MOST_LENGTH, &lengths, error);
    if (status == EXIT_OK && (lengths.count < 2 || lengths.items[0] < MEMORY_SAMPLE))
        return io_fail(error, EXIT_USAGE, "--n %s: expected two numbers or more, from %d to %d, for a slope",
                       r->lengths, MEMORY_SAMPLE, MOST_LENGTH);
    if (status == EXIT_OK) status = backend_read(&on, r->backend, r->dtype, error);
    if (status == EXIT_OK) status = choose_limit(r, on.cuda, &s->limit, error);
    if (status != EXIT_OK) return status;
    s->count = lengths.count;
    for (int method = 0; method < MEMORY_METHODS; method++)
        for (int i = 0; i < s->count; i++)
            s->points[method][i].what = (memory_case){ .method = (memory_method)method,
                                                       .length = lengths.items[i],
                                                       .dim = r->dim,
                                                       .seed = (uint64_t)r->seed,
                                                       .threads = r->threads ? (int)r->threads
                                                                             : loam_max_threads(),
                                                       .on = on };
    return EXIT_OK;
}

static bool is_computed(const memory_point *p, const request *r)
{
    return p->what.on.cuda ? !memory_is_naive(p->what.method) : p->what.length <= r->compute;
}

/* About proportional to the time: what is computed counts by operations, what is not by bytes. */
static int64_t cost_of(const memory_point *p, const request *r)
{
    const double n = (double)p->what.length, d = (double)p->what.dim;
    const double passes = memory_has_backward(p->what.method) ? 3 : 1;
    const double operations = passes * (memory_is_naive(p->what.method) ? 2 * d : 40) * n * n * d;
    return 1 + (int64_t)(is_computed(p, r) ? operations / 1e9 : memory_formula(&p->what) / 1e9);
}

static int measure_all(memory_sweep *s, const request *r, io_error *error)
{
    int64_t total = 0;
    int status = EXIT_OK;
    progress bar;
    for (int method = 0; method < MEMORY_METHODS; method++)
        for (int i = 0; i < s->count; i++)
            total += cost_of(&s->points[method][i], r);
    progress_begin(&bar, "experiment", total);
    for (int method = 0; method < MEMORY_METHODS; method++)
        for (int i = 0; i < s->count && status == EXIT_OK; i++) {
            memory_point *p = &s->points[method][i];
            status = memory_measure(&p->what, s->limit, is_computed(p, r), &p->result, error);
            progress_add(&bar, cost_of(p, r));
        }
    progress_end(&bar);
    return status;
}

static int run_memory(const request *r, memory_sweep *s, io_error *error)
{
    int status = make_sweep(r, s, error);
    if (status == EXIT_OK) status = plot_check("memory.svg", error);
    if (status == EXIT_OK) status = experiment_make_directories(r->out, error);
    if (status != EXIT_OK) return status;
    status = measure_all(s, r, error);
    if (status == EXIT_OK) status = memory_report(s, r->out, error);
    if (status != EXIT_OK) rmdir(r->out); /* It stays where there is something in it. */
    return status;
}

int experiment_memory(int argc, char **argv, const char **out, io_error *error)
{
    request r;
    bool help = false;
    int status = read_request(argc, argv, &r, &help, error);
    if (status != EXIT_OK || help) return status;
    memory_sweep *s = calloc(1, sizeof *s);
    if (!s) return io_fail(error, EXIT_INTERNAL, "out of memory");
    status = run_memory(&r, s, error);
    free(s);
    *out = r.out;
    return status;
}
