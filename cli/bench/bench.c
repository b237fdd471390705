/* SPDX-License-Identifier: MIT
 * loam bench: reads the shapes, checks them all, then measures row by row. */
#define _POSIX_C_SOURCE 200809L
#include "cli/bench/device.h"
#include "cli/bench/error.h"
#include "cli/bench/files.h"
#include "cli/bench/measure.h"
#include "cli/bench/report.h"
#include "cli/command.h"
#include "cli/files.h"
#include "cli/names.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "io/out_file.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char ABOUT[] =
    "Measures the kernels on the problems of shape files, or of a set built in, against what the machine "
    "can do in the same run: OpenBLAS's sgemm for forward and backward, reading memory for decode, updating "
    "it for that of recurrences. The set built in has every mechanism, but without --mechanism and --shape "
    "its local family alone is measured. Each shape is run by the kernel that a plan chooses, unless it, or "
    "--kernel, names more. Rows of CUDA run on the current GPU, on arrays in its memory, and are timed by "
    "its events with its cache emptied before each run.";

/* Seconds after which the roofs are measured again before the next shape. */
static const double ROOF_AGE = 10;

enum { FORMAT_TABLE, FORMAT_JSON, FORMAT_CSV };

typedef struct bench_options {
    const char *kernel, *backend, *mechanism, *pass, *dtype, *shape, *format, *out;
    int64_t threads, repeat, seed;
    double seconds, memory; /* GiB; 0: three quarters of the machine's */
    bool no_error, no_roof, print_shapes;
    int only_mechanism, only_pass, only_dtype; /* -1: all */
    int form;
    loam_backend on;
} bench_options;

/* One line of the result to come: a shape and a row of the registry, NULL for the one that a plan chooses. */
typedef struct job {
    const bench_shape *shape;
    const char *kernel;
    bool device;
} job;

typedef struct bench_run {
    const bench_options *options;
    bench_protocol protocol;
    bench_machine machine;
    bench_roofs roofs;
    bench_device device; /* of the rows of CUDA */
    bool any_device, any_host;
    bench_shapes shapes;
    job *jobs;
    bench_result *results;
    size_t count, room;
} bench_run;

/* ---------------------------------------------------------------- options */

static const char *format_name(int index)
{
    static const char *const names[] = { "table", "json", "csv", NULL };
    return names[index];
}

/* The index of a word among names, -1 where it is not given. */
static int choose(const char *option, const char *word, names_word *names, int *choice, io_error *error)
{
    char text[NAMES_BYTES];
    *choice = word ? names_find(names, word) : -1;
    if (!word || *choice >= 0) return 0;
    const char *nearest = names_nearest(names, word);
    if (nearest)
        return io_fail(error, EXIT_USAGE, "--%s: unknown '%s'; did you mean '%s'?", option, word, nearest);
    return io_fail(error, EXIT_USAGE, "--%s: unknown '%s', expected %s", option, word,
                   names_list(text, names, " or "));
}

static int check_options(bench_options *o, io_error *error)
{
    int on;
    int status = choose("mechanism", o->mechanism, names_mechanism, &o->only_mechanism, error);
    if (!status) status = choose("pass", o->pass, names_pass, &o->only_pass, error);
    if (!status) status = choose("dtype", o->dtype, names_dtype, &o->only_dtype, error);
    if (!status) status = choose("format", o->format, format_name, &o->form, error);
    if (!status) status = choose("backend", o->backend, names_backend, &on, error);
    if (!status) o->on = (loam_backend)on;
    return status;
}

static int parse(int *argc, char **argv, bench_options *o, bool *help, io_error *error)
{
    const option_row rows[] = {
        { "kernel", OPTION_TEXT, &o->kernel, 0, 0, "GLOB",
          "every available row of the registry (loam list) so named" },
        { "backend", OPTION_TEXT, &o->backend, 0, 0, "B",
          "auto, the default: the fastest of the CPU's; or cpu, cuda (the current NVIDIA GPU) or reference" },
        { "mechanism", OPTION_TEXT, &o->mechanism, 0, 0, "M",
          "only shapes of this mechanism, of either family" },
        { "pass", OPTION_TEXT, &o->pass, 0, 0, "P", "only forward, backward or decode" },
        { "dtype", OPTION_TEXT, &o->dtype, 0, 0, "T", "only f32, bf16, f16 or f64" },
        { "shape", OPTION_TEXT, &o->shape, 0, 0, "GLOB", "only shapes so named" },
        { "threads", OPTION_INT, &o->threads, 0, 1024, "N",
          "threads of the kernels and the roofs; 0, the default: all" },
        { "repeat", OPTION_INT, &o->repeat, 0, 1e6, "N",
          "timed runs of each row; 0, the default: see --seconds" },
        { "seconds", OPTION_REAL, &o->seconds, 0, 1e6, "X",
          "time for the runs of a row, of which there are 3 or more; default 0.5" },
        { "seed", OPTION_INT, &o->seed, 0, 1e15, "N", "of the N(0, 1) inputs; default 1" },
        { "memory", OPTION_REAL, &o->memory, 0, 1e9, "GIB",
          "refuse larger shapes; default 3/4 of the machine's" },
        { "no-error", OPTION_FLAG, &o->no_error, 0, 0, NULL,
          "do not compare the last 16 queries of one head or group with the float64 reference" },
        { "no-roof", OPTION_FLAG, &o->no_roof, 0, 0, NULL, "do not measure the roofs" },
        { "print-shapes", OPTION_FLAG, &o->print_shapes, 0, 0, NULL,
          "print the shapes instead of measuring them" },
        { "format", OPTION_TEXT, &o->format, 0, 0, "F", "table, json or csv; default table" },
        { "out", OPTION_TEXT, &o->out, 0, 0, "F", "where to; default -, standard output" },
        { 0 }
    };
    const int status = options_parse(argc, argv, rows, "loam bench [SHAPES.txt ...] [OPTIONS]", ABOUT, help,
                                     error);
    return status || *help ? status : check_options(o, error);
}

/* ---------------------------------------------------------------- what to measure */

static int read_shapes(bench_shapes *shapes, const bench_options *o, int argc, char **argv, io_error *error)
{
    if (argc < 2) return bench_shapes_default(shapes, o->mechanism || o->shape, error);
    int status = 0;
    for (int i = 1; i < argc && !status; i++)
        status = bench_shapes_load(shapes, argv[i], error);
    return status;
}

/* The result would be written over what it is a result of. */
static int check_files(int argc, char **argv, const bench_options *o, io_error *error)
{
    const named_file outputs[] = { { "--out", o->out }, { NULL, NULL } };
    int status = 0;
    for (int i = 1; i < argc && !status; i++) {
        const named_file inputs[] = { { "the shapes", argv[i] }, { NULL, NULL } };
        status = files_check(inputs, outputs, error);
    }
    return status;
}

static bool is_chosen(const bench_options *o, const bench_shape *s)
{
    const loam_problem *p = &s->problem;
    return (o->only_mechanism < 0 || o->only_mechanism == (int)p->mechanism) &&
           (o->only_pass < 0 || o->only_pass == (int)p->pass) &&
           (o->only_dtype < 0 || o->only_dtype == (int)p->dtype) &&
           (!o->shape || fnmatch(o->shape, s->name, 0) == 0);
}

static int add_job(bench_run *run, const bench_shape *shape, const char *kernel, io_error *error)
{
    if (run->count == run->room) {
        const size_t room = run->room ? 2 * run->room : 64;
        job *jobs = realloc(run->jobs, room * sizeof *jobs);
        if (!jobs) return io_fail(error, EXIT_INTERNAL, "out of memory for the list of what to measure");
        run->jobs = jobs;
        run->room = room;
    }
    run->jobs[run->count++] = (job){ shape, kernel, false };
    return 0;
}

/* What a row does, and whether this machine can run it, a plan says. */
static int add_if_fits(bench_run *run, const bench_shape *shape, const char *kernel, io_error *error)
{
    loam_problem problem = shape->problem;
    problem.kernel = kernel;
    problem.backend = run->options->on;
    loam_plan *plan;
    loam_error reason;
    const loam_status status = loam_plan_create(&plan, &problem, &reason);
    loam_plan_destroy(plan);
    if (status == LOAM_EMEMORY) return bench_fail(shape, &reason, error);
    return status == LOAM_EUNSUPPORTED ? 0 : add_job(run, shape, kernel, error);
}

static int add_shape(bench_run *run, const bench_shape *shape, io_error *error)
{
    const char *glob = run->options->kernel ? run->options->kernel : shape->kernel;
    if (!*glob) return add_job(run, shape, NULL, error);
    loam_kernel_info row;
    int status = 0;
    for (int i = 0; !status && loam_kernel_at(i, &row) == LOAM_OK; i++)
        if (fnmatch(glob, row.name, 0) == 0) status = add_if_fits(run, shape, row.name, error);
    return status;
}

/* On a GPU what counts is its own memory, the emptying of its cache included. */
static int check_device_memory(const bench_run *run, const bench_shape *shape, double planned,
                               io_error *error)
{
    const double gib = 1024.0 * 1024 * 1024, bytes = bench_arrays_bytes(shape) + planned;
    const double free_bytes = (double)run->device.info.free_memory - 2 * (double)run->device.info.l2_bytes;
    if (bytes <= free_bytes) return 0;
    return io_fail(error, EXIT_INPUT,
                   "%s:%d: %s: needs %.2f GiB of device memory, of which %.2f GiB are free", shape->source,
                   shape->line, shape->name, bytes / gib, free_bytes / gib);
}

/* planned: bytes that only a plan, or a file, knows of. */
static int check_memory(const bench_run *run, const bench_shape *shape, double planned, io_error *error)
{
    double bytes = bench_arrays_bytes(shape) + planned;
    if (!run->options->no_error) bytes += bench_reference_bytes(shape);
    if (!run->options->no_roof) bytes += (double)bench_roofs_bytes();
    const double gib = 1024.0 * 1024 * 1024;
    const double limit = run->options->memory > 0 ? run->options->memory * gib : 0.75 * run->machine.memory;
    if (bytes <= limit) return 0;
    return io_fail(error, EXIT_INPUT, "%s:%d: %s: needs %.2f GiB of memory, more than %.2f GiB (--memory)",
                   shape->source, shape->line, shape->name, bytes / gib, limit / gib);
}

/* Files are read, and refused, before anything is measured; they are read again when it is their turn. */
static int check_data(const bench_run *run, const bench_shape *shape, io_error *error)
{
    const named_file outputs[] = { { "--out", run->options->out }, { NULL, NULL } };
    bench_files files;
    int status = 0;
    for (int which = 0; shape->data == BENCH_FILES && which < BENCH_FILES_COUNT && !status; which++) {
        char path[BENCH_PATH_BYTES];
        bench_files_path(shape, which, path);
        const named_file inputs[] = { { "the data", path }, { NULL, NULL } };
        status = files_check(inputs, outputs, error);
    }
    if (status) return status;
    status = bench_files_read(&files, shape, error);
    if (!status) status = check_memory(run, shape, bench_files_bytes(&files), error);
    bench_files_free(&files);
    return status;
}

/* Every problem is planned before the first is measured, so that a mistake costs no minutes. */
static int check_job(bench_run *run, job *j, io_error *error)
{
    loam_problem problem = j->shape->problem;
    problem.kernel = j->kernel;
    problem.threads = run->protocol.threads;
    problem.backend = run->protocol.backend;
    loam_plan *plan;
    loam_error reason;
    int status = 0;
    if (loam_plan_create(&plan, &problem, &reason)) return bench_fail(j->shape, &reason, error);
    double planned = (double)loam_plan_work_bytes(plan);
    if (j->shape->saved) planned += (double)loam_plan_saved_bytes(plan);
    j->device = loam_plan_problem(plan)->backend == LOAM_BACKEND_CUDA;
    if (j->device && !run->any_device) status = bench_device_open(&run->device, false, error);
    run->any_device |= j->device;
    run->any_host |= !j->device;
    if (!status)
        status = j->device ? check_device_memory(run, j->shape, planned, error)
                           : check_memory(run, j->shape, planned, error);
    loam_plan_destroy(plan);
    return status;
}

static int choose_jobs(bench_run *run, io_error *error)
{
    size_t chosen = 0;
    int status = 0;
    for (size_t i = 0; i < run->shapes.count && !status; i++)
        if (is_chosen(run->options, &run->shapes.at[i])) {
            chosen++;
            status = add_shape(run, &run->shapes.at[i], error);
        }
    if (status) return status;
    if (chosen == 0)
        return io_fail(error, EXIT_USAGE,
                       "no shape is left of %zu; see --mechanism, --pass, --dtype and --shape",
                       run->shapes.count);
    if (run->count == 0)
        return io_fail(error, EXIT_USAGE,
                       "no row of the registry that this machine can run is named '%s' and does "
                       "the shapes; see loam list",
                       run->options->kernel ? run->options->kernel : "as they say");
    for (size_t i = 0; i < run->count && !status; i++) {
        job *j = &run->jobs[i];
        if (i == 0 || j[-1].shape != j->shape) status = check_data(run, j->shape, error);
        if (!status) status = check_job(run, j, error);
    }
    return status;
}

/* ---------------------------------------------------------------- measuring */

static int measure_rows(bench_run *run, size_t begin, size_t end, bench_arrays *arrays,
                        const bench_reference *reference, progress *bar, io_error *error)
{
    int status = 0;
    for (size_t i = begin; i < end && !status; i++) {
        bench_result *result = &run->results[i];
        status = bench_measure(arrays, run->jobs[i].kernel, &run->protocol, result, error);
        if (!status && reference) result->error = bench_error(reference, arrays);
        progress_add(bar, 1);
    }
    return status;
}

/* The rows begin .. end - 1 of one shape share its arrays. */
static int measure_shape(bench_run *run, size_t begin, size_t end, progress *bar, io_error *error)
{
    bench_arrays arrays;
    bench_reference reference = { 0 };
    bool host = false;
    for (size_t i = begin; i < end; i++)
        host |= !run->jobs[i].device;
    int status = (host ? bench_arrays_make : bench_arrays_fill)(
        &arrays, run->jobs[begin].shape, run->protocol.seed, run->protocol.threads, error);
    if (!status && !run->options->no_error) status = bench_reference_make(&reference, &arrays, error);
    if (!status && host && !run->options->no_roof && bench_now() - run->roofs.measured > ROOF_AGE)
        bench_roofs_measure(&run->roofs);
    if (!status)
        status = measure_rows(run, begin, end, &arrays, run->options->no_error ? NULL : &reference, bar,
                              error);
    bench_reference_free(&reference);
    bench_arrays_free(&arrays);
    return status;
}

static int measure_all(bench_run *run, progress *bar, io_error *error)
{
    const bool wanted = !run->options->no_roof, roof = wanted && run->any_host;
    int status = wanted && run->any_device ? bench_device_open(&run->device, true, error) : 0;
    if (!status) status = roof ? bench_roofs_open(&run->roofs, run->protocol.threads, error) : 0;
    if (!status && roof) bench_roofs_measure(&run->roofs);
    for (size_t begin = 0, end; begin < run->count && !status; begin = end) {
        end = begin + 1;
        while (end < run->count && run->jobs[end].shape == run->jobs[begin].shape)
            end++;
        status = measure_shape(run, begin, end, bar, error);
    }
    if (!status && roof) bench_roofs_measure(&run->roofs);
    return status;
}

static int measure(bench_run *run, io_error *error)
{
    run->results = calloc(run->count, sizeof *run->results);
    if (!run->results) return io_fail(error, EXIT_INTERNAL, "out of memory for the results");
    progress bar;
    progress_begin(&bar, "loam bench", (int64_t)run->count);
    const int status = measure_all(run, &bar, error);
    progress_end(&bar);
    return status;
}

/* ---------------------------------------------------------------- the command */

static int write_report(const bench_run *run, FILE *stream, io_error *error)
{
    static int (*const writers[])(const bench_report *, FILE *,
                                  io_error *) = { bench_report_table, bench_report_json, bench_report_csv };
    const bench_report report = {
        .machine = &run->machine,
        .roofs = &run->roofs,
        .protocol = &run->protocol,
        .results = run->results,
        .count = run->count,
        .device = run->any_device ? &run->device : NULL,
    };
    return writers[run->options->form](&report, stream, error);
}

static void print_shapes(const bench_run *run, FILE *stream)
{
    fprintf(stream, "# name mechanism pass dtype B Hq Hkv Lq Lkv Dqk Dv flags...\n");
    for (size_t i = 0; i < run->shapes.count; i++)
        if (is_chosen(run->options, &run->shapes.at[i])) bench_shape_print(&run->shapes.at[i], stream);
}

/* The output is opened first: a wrong path costs no measurement. */
static int measure_and_write(bench_run *run, io_error *error)
{
    out_file *file;
    int status = out_open(&file, run->options->out, error);
    if (status) return status;
    if (run->options->print_shapes) {
        print_shapes(run, out_stream(file));
        return out_commit(file, error);
    }
    status = measure(run, error);
    if (!status) status = write_report(run, out_stream(file), error);
    if (!status) return out_commit(file, error);
    out_discard(file);
    return status;
}

static int run_bench(bench_run *run, int argc, char **argv, io_error *error)
{
    const bench_options *o = run->options;
    run->protocol = (bench_protocol){ .threads = o->threads ? (int)o->threads : loam_max_threads(),
                                      .repeat = o->repeat,
                                      .seconds = o->seconds,
                                      .seed = (uint64_t)o->seed,
                                      .backend = o->on };
    bench_machine_read(&run->machine);
    int status = check_files(argc, argv, o, error);
    if (!status) status = read_shapes(&run->shapes, o, argc, argv, error);
    if (!status) status = choose_jobs(run, error);
    return status ? status : measure_and_write(run, error);
}

int command_bench(int argc, char **argv)
{
    bench_options options = { .seconds = 0.5, .seed = 1, .format = "table", .out = "-", .backend = "auto" };
    io_error error;
    bool help;
    int status = parse(&argc, argv, &options, &help, &error);
    if (!status && !help) {
        bench_run run = { .options = &options };
        status = run_bench(&run, argc, argv, &error);
        bench_roofs_close(&run.roofs);
        bench_shapes_free(&run.shapes);
        free(run.jobs);
        free(run.results);
    }
    return status ? options_report("bench", &error) : EXIT_OK;
}
