/* SPDX-License-Identifier: MIT */
#include "cli/bench/report.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- what is derived */

/* Softmax has no ridge, and LLA no sink; all else must agree. */
static bool same_problem(const bench_result *a, const bench_result *b)
{
    const loam_problem *p = &a->shape->problem, *q = &b->shape->problem;
    return strcmp(a->kernel, b->kernel) == 0 && p->pass == q->pass && p->dtype == q->dtype &&
           p->batch == q->batch && p->heads_q == q->heads_q && p->heads_kv == q->heads_kv &&
           p->len_q == q->len_q && p->len_kv == q->len_kv && p->dim_qk == q->dim_qk && p->dim_v == q->dim_v &&
           p->score == q->score && p->scale == q->scale && p->soft_cap == q->soft_cap &&
           p->causal == q->causal && p->window == q->window && p->slope == q->slope && p->sink == q->sink &&
           p->decay == q->decay && p->path == q->path && a->shape->tokens_first == b->shape->tokens_first;
}

static double times_softmax(const bench_report *report, const bench_result *r)
{
    for (size_t i = 0; i < report->count; i++) {
        const bench_result *other = &report->results[i];
        if (other->shape->problem.mechanism == LOAM_SOFTMAX && same_problem(other, r))
            return r->median / other->median;
    }
    return NAN;
}

static const char *roof_name(const bench_result *r)
{
    const loam_problem *p = &r->shape->problem;
    return r->device                ? "device copy"
           : p->pass != LOAM_DECODE ? "sgemm"
           : bench_recurrent(p)     ? "update" /* the state is read and written in place */
                                    : "read";
}

bench_rates bench_rates_of(const bench_report *report, const bench_result *r)
{
    const bench_roofs *roofs = report->roofs;
    bench_rates x = { .gflops = 1e-9 * r->flop / r->median,
                      .gbs = 1e-9 * r->bytes / r->median,
                      .of_sgemm = NAN,
                      .of_read = NAN,
                      .times_softmax = times_softmax(report, r) };
    if (r->device) {
        if (report->device && report->device->copy > 0) x.of_read = x.gbs / report->device->copy;
    } else if (roofs->count > 0) {
        x.of_sgemm = x.gflops / roofs->sgemm.most;
        x.of_read = x.gbs / roofs->read.most;
    }
    x.of_roof = strcmp(roof_name(r), "sgemm") == 0 ? x.of_sgemm : x.of_read;
    if (strcmp(roof_name(r), "update") == 0 && roofs->count > 0) x.of_roof = x.gbs / roofs->update.most;
    return x;
}

/* ---------------------------------------------------------------- fields, the same in JSON and CSV */

enum { MOST_FIELDS = 64 };

typedef struct field {
    const char *name, *text; /* text NULL: a number */
    double number;
    bool whole;
} field;

typedef struct fields {
    field at[MOST_FIELDS];
    int count;
} fields;

static void put(fields *f, field one)
{
    if (f->count < MOST_FIELDS) f->at[f->count++] = one;
}

static void put_text(fields *f, const char *name, const char *text)
{
    put(f, (field){ .name = name, .text = text });
}

static void put_whole(fields *f, const char *name, double number)
{
    put(f, (field){ .name = name, .number = number, .whole = true });
}

static void put_real(fields *f, const char *name, double number)
{
    put(f, (field){ .name = name, .number = number });
}

static void put_problem(fields *f, const bench_result *r)
{
    const loam_problem *p = &r->shape->problem;
    put_text(f, "shape", r->shape->name);
    put_text(f, "kernel", r->kernel);
    put_text(f, "mechanism", loam_mechanism_name(p->mechanism));
    put_text(f, "pass", loam_pass_name(p->pass));
    put_text(f, "dtype", loam_dtype_name(p->dtype));
    put_whole(f, "batch", (double)p->batch);
    put_whole(f, "heads_q", (double)p->heads_q);
    put_whole(f, "heads_kv", (double)(bench_recurrent(p) ? p->heads_v : p->heads_kv));
    put_whole(f, "len_q", (double)p->len_q);
    put_whole(f, "len_kv", (double)p->len_kv);
    put_whole(f, "dim_qk", (double)p->dim_qk);
    put_whole(f, "dim_v", (double)p->dim_v);
    put_text(f, "flags", r->shape->flags);
}

static void put_result(fields *f, const bench_report *report, const bench_result *r)
{
    const bench_rates x = bench_rates_of(report, r);
    put_problem(f, r);
    put_whole(f, "runs", (double)r->runs);
    put_real(f, "median_s", r->median);
    put_real(f, "quartile1_s", r->low);
    put_real(f, "quartile3_s", r->high);
    put_real(f, "min_s", r->least);
    put_real(f, "max_s", r->most);
    put_real(f, "pairs", r->pairs);
    put_real(f, "flop", r->flop);
    put_real(f, "bytes", r->bytes);
    put_real(f, "gflops", x.gflops);
    put_real(f, "gbs", x.gbs);
    put_real(f, "of_sgemm", x.of_sgemm);
    put_real(f, "of_read", x.of_read);
    put_text(f, "roof", roof_name(r));
    put_real(f, "of_roof", x.of_roof);
    put_real(f, "times_softmax", x.times_softmax);
    put_real(f, "iterations", r->iterations);
    put_real(f, "exact", r->exact);
    put_real(f, "error", r->error);
    put_whole(f, "work_bytes", (double)r->work_bytes);
}

static void put_roof(fields *f, const bench_roofs *roofs, const bench_roof *roof, const char *const names[3])
{
    const bool measured = roofs->count > 0;
    put_real(f, names[0], measured ? roof->most : NAN);
    put_real(f, names[1], measured ? roof->first : NAN);
    put_real(f, names[2], measured ? roof->last : NAN);
}

static void put_run(fields *f, const bench_report *report)
{
    static const char *const sgemm[] = { "sgemm_gflops", "sgemm_first", "sgemm_last" };
    static const char *const read[] = { "read_gbs", "read_first", "read_last" };
    static const char *const copy[] = { "copy_gbs", "copy_first", "copy_last" };
    static const char *const update[] = { "update_gbs", "update_first", "update_last" };
    const bench_machine *m = report->machine;
    put_text(f, "machine", m->cpu);
    put_whole(f, "cores", (double)m->cores);
    put_text(f, "features", m->features);
    put_text(f, "compiler", m->compiler);
    put_text(f, "version", loam_version());
    put_text(f, "commit", m->commit);
    put_text(f, "date", m->date);
    put_whole(f, "threads", report->protocol->threads);
    put_whole(f, "seed", (double)report->protocol->seed);
    put_roof(f, report->roofs, &report->roofs->sgemm, sgemm);
    put_roof(f, report->roofs, &report->roofs->read, read);
    put_roof(f, report->roofs, &report->roofs->copy, copy);
    put_roof(f, report->roofs, &report->roofs->update, update);
    if (report->device) {
        put_text(f, "device", report->device->info.name);
        put_real(f, "device_copy_gbs", report->device->copy > 0 ? report->device->copy : NAN);
    }
}

/* ---------------------------------------------------------------- CSV */

/* Texts hold no comma and no quote: names and flags are checked, the machine's words are made plain. */
static void write_csv_field(const field *f, bool last, FILE *stream)
{
    if (f->text)
        fputs(f->text, stream);
    else if (f->whole)
        fprintf(stream, "%.0f", f->number);
    else if (isfinite(f->number))
        fprintf(stream, "%.6g", f->number);
    else if (!isnan(f->number))
        fputs(f->number > 0 ? "inf" : "-inf", stream);
    fputc(last ? '\n' : ',', stream);
}

int bench_report_csv(const bench_report *report, FILE *stream, io_error *error)
{
    (void)error;
    for (size_t i = 0; i < report->count; i++) {
        fields f = { .count = 0 };
        put_result(&f, report, &report->results[i]);
        put_run(&f, report);
        for (int c = 0; c < f.count && i == 0; c++)
            fprintf(stream, "%s%c", f.at[c].name, c + 1 < f.count ? ',' : '\n');
        for (int c = 0; c < f.count; c++)
            write_csv_field(&f.at[c], c + 1 == f.count, stream);
    }
    return 0; /* whoever opened the stream checks it */
}

/* ---------------------------------------------------------------- JSON */

/* NaN and infinity are null: JSON has neither. */
static json_t *json_value(const field *f)
{
    if (f->text) return json_string(f->text);
    if (f->whole) return json_integer((json_int_t)f->number);
    return isfinite(f->number) ? json_real(f->number) : json_null();
}

/* NULL where memory ran out. */
static json_t *json_fields(const fields *f)
{
    json_t *object = json_object();
    for (int c = 0; c < f->count && object; c++) {
        if (json_object_set_new(object, f->at[c].name, json_value(&f->at[c]))) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static int add_results(json_t *root, const bench_report *report)
{
    json_t *list = json_array();
    int failed = json_object_set_new(root, "results", list);
    for (size_t i = 0; i < report->count && !failed; i++) {
        fields f = { .count = 0 };
        put_result(&f, report, &report->results[i]);
        failed = json_array_append_new(list, json_fields(&f));
    }
    return failed;
}

int bench_report_json(const bench_report *report, FILE *stream, io_error *error)
{
    fields run = { .count = 0 };
    put_run(&run, report);
    json_t *root = json_fields(&run);
    int status = 0;
    if (!root || add_results(root, report))
        status = io_fail(error, EXIT_INTERNAL, "out of memory for the JSON");
    else if (json_dumpf(root, stream, JSON_INDENT(2) | JSON_REAL_PRECISION(8)) || fputc('\n', stream) == EOF)
        status = io_fail(error, EXIT_OUTPUT, "cannot write the JSON");
    json_decref(root);
    return status;
}

/* ---------------------------------------------------------------- the table */

static void write_roof(FILE *stream, const char *name, const bench_roof *roof, const char *unit)
{
    fprintf(stream, "roof    %-12s %8.1f %s (first %.1f, last %.1f)\n", name, roof->most, unit, roof->first,
            roof->last);
}

static void write_head(const bench_report *report, FILE *stream)
{
    const bench_machine *m = report->machine;
    fprintf(stream, "loam %s, commit %s, %s, %s\n", loam_version(), m->commit, m->compiler, m->date);
    fprintf(stream, "%s, %ld cores, %s; threads %d, seed %llu\n", m->cpu, m->cores, m->features,
            report->protocol->threads, (unsigned long long)report->protocol->seed);
    if (report->roofs->count > 0) {
        write_roof(stream, "sgemm 2048^3", &report->roofs->sgemm, "GFLOP/s");
        write_roof(stream, "read", &report->roofs->read, "GB/s");
        write_roof(stream, "copy", &report->roofs->copy, "GB/s, read and written bytes");
        write_roof(stream, "update", &report->roofs->update, "GB/s, likewise, in place");
        fprintf(stream, "        the highest of %d measurements before, between and after the rows\n",
                report->roofs->count);
    }
}

static void write_device(const bench_device *d, FILE *stream)
{
    fprintf(stream, "%s, compute capability %d.%d, %d multiprocessors, %.1f GiB", d->info.name, d->info.major,
            d->info.minor, d->info.multiprocessors, (double)d->info.memory / (1 << 30));
    if (d->copy > 0) fprintf(stream, "; copy %.1f GB/s, read and written bytes", d->copy);
    fputc('\n', stream);
}

typedef struct name_widths {
    int shape, kernel;
} name_widths;

/* Right-aligned; "-" where there is no number. */
static void write_cell(FILE *stream, int width, int digits, double number, double unit)
{
    if (isnan(number))
        fprintf(stream, " %*s", width, "-");
    else
        fprintf(stream, " %*.*f", width, digits, number / unit);
}

static int wider(int width, const char *text)
{
    const int length = (int)strlen(text);
    return length > width ? length : width;
}

/* As wide as the longest name. */
static name_widths widths_of(const bench_report *report)
{
    name_widths w = { 26, 23 };
    for (size_t i = 0; i < report->count; i++) {
        w.shape = wider(w.shape, report->results[i].shape->name);
        w.kernel = wider(w.kernel, report->results[i].kernel);
    }
    return w;
}

static void write_row(const bench_report *report, const bench_result *r, name_widths w, FILE *stream)
{
    const bench_rates x = bench_rates_of(report, r);
    fprintf(stream, "%-*s %-*s", w.shape, r->shape->name, w.kernel, r->kernel);
    write_cell(stream, 10, 3, r->median, 1e-3);
    write_cell(stream, 6, 1, (r->high - r->low) / r->median, 1e-2);
    fprintf(stream, " %5lld", (long long)r->runs);
    write_cell(stream, 8, 1, x.gflops, 1);
    write_cell(stream, 7, 2, x.gbs, 1);
    write_cell(stream, 6, 1, x.of_roof, 1e-2);
    write_cell(stream, 9, 2, x.times_softmax, 1);
    write_cell(stream, 6, 1, r->iterations, 1);
    write_cell(stream, 7, 1, r->exact, 1e-2);
    if (isnan(r->error))
        fprintf(stream, " %9s", "-");
    else
        fprintf(stream, " %9.1e", r->error);
    write_cell(stream, 9, 2, (double)r->work_bytes, 1 << 20);
    fputc('\n', stream);
}

int bench_report_table(const bench_report *report, FILE *stream, io_error *error)
{
    (void)error;
    write_head(report, stream);
    if (report->device) write_device(report->device, stream);
    const name_widths w = widths_of(report);
    fprintf(stream, "\n%-*s %-*s %10s %6s %5s %8s %7s %6s %9s %6s %7s %9s %9s\n", w.shape, "shape", w.kernel,
            "kernel", "median ms", "iqr %", "runs", "GFLOP/s", "GB/s", "roof %", "x softmax", "iter",
            "exact %", "error", "work MiB");
    for (size_t i = 0; i < report->count; i++)
        write_row(report, &report->results[i], w, stream);
    fprintf(stream,
            "\nroof %%: of sgemm by operations; decode: of read by compulsory bytes, recurrences of update; "
            "CUDA: likewise of the device's copy. x softmax: by medians, same row, same problem. exact %%: "
            "rows that a factorisation solved.\n");
    return 0;
}
