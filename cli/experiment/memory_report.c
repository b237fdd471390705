/* SPDX-License-Identifier: MIT */
#include "cli/experiment/memory_report.h"

#include "cli/plot.h"
#include "io/out_file.h"

#include <inttypes.h>
#include <math.h>

enum { WIDTH = 480, HEIGHT = 500, LAST = 4 };

static const double mebi = 1 << 20, gibi = 1 << 30;

static const char *const end_names[] = { "computed", "taken", "out" };
static const char *const long_names[MEMORY_METHODS] = { "differences, n^2 d", "systems, n d^2",
                                                        "LLA by blocks",      "+ gradients",
                                                        "+ gradients",        "+ gradients" };

/* Line types of cli/plot.h, and its filled points; open ones have the number before. */
static const int colours[MEMORY_METHODS] = { 8, 8, 1, 4, 4, 6 };
static const int marks[MEMORY_METHODS] = { 5, 9, 7, 5, 9, 13 };

static bool fits(const memory_point *point) { return point->result.end != MEMORY_OUT; }

/* ---- what was measured */

double memory_growth(const memory_sweep *s, memory_method method)
{
    double x[LAST], y[LAST], x_mean = 0, y_mean = 0, xx = 0, xy = 0;
    int count = 0;
    for (int i = s->count - 1; i >= 0 && count < LAST; i--) {
        const memory_point *point = &s->points[method][i];
        if (!fits(point) || point->result.working == 0) continue;
        x[count] = log((double)point->what.length);
        y[count++] = log((double)point->result.working);
    }
    for (int i = 0; i < count; i++)
        x_mean += x[i] / count, y_mean += y[i] / count;
    for (int i = 0; i < count; i++) {
        xx += (x[i] - x_mean) * (x[i] - x_mean);
        xy += (x[i] - x_mean) * (y[i] - y_mean);
    }
    return count < 2 ? NAN : xy / xx;
}

double memory_difference(const memory_sweep *s, memory_method method, int index)
{
    const memory_method blocks = memory_has_backward(method) ? MEMORY_BACKWARD : MEMORY_BLOCKS;
    const memory_result *a = &s->points[method][index].result, *b = &s->points[blocks][index].result;
    double most = 0, away = 0;
    if (a->end != MEMORY_COMPUTED || b->end != MEMORY_COMPUTED) return NAN;
    for (int i = 0; i < MEMORY_SAMPLE; i++) {
        most = fmax(most, fabs((double)b->sample[i]));
        away = fmax(away, fabs((double)a->sample[i] - (double)b->sample[i]));
    }
    return away / most;
}

/* Whether blocks keep less than the others at a length. */
static bool blocks_keep_less(const memory_sweep *s, int i)
{
    bool less = true;
    for (memory_method method = 0; method < MEMORY_METHODS; method++) {
        const memory_method ours = memory_has_backward(method) ? MEMORY_BACKWARD : MEMORY_BLOCKS;
        const memory_point *naive = &s->points[method][i], *blocks = &s->points[ours][i];
        if (memory_is_naive(method))
            less &= fits(blocks) && (!fits(naive) || naive->result.working > blocks->result.working);
    }
    return less;
}

int64_t memory_holds_from(const memory_sweep *s)
{
    int64_t from = 0;
    const bool grows = memory_growth(s, MEMORY_BLOCKS) < 1.1 && memory_growth(s, MEMORY_BACKWARD) < 1.1 &&
                       fabs(memory_growth(s, MEMORY_DIFFERENCES) - 2) < 0.1 &&
                       fabs(memory_growth(s, MEMORY_DIFFERENCES_BACKWARD) - 2) < 0.1;
    for (int i = s->count - 1; i >= 0 && grows && blocks_keep_less(s, i); i--)
        if (s->points[0][i].what.length > s->points[0][i].what.dim) from = s->points[0][i].what.length;
    return from;
}

/* The least length that did not fit, or 0. */
static int64_t ran_out(const memory_sweep *s, int method)
{
    for (int i = 0; i < s->count; i++)
        if (!fits(&s->points[method][i])) return s->points[method][i].what.length;
    return 0;
}

/* ---- CSV and the table */

static void write_point(FILE *out, const memory_sweep *s, int method, int i)
{
    const memory_point *p = &s->points[method][i];
    const double difference = memory_difference(s, (memory_method)method, i);
    fprintf(out, "%" PRId64 ",%" PRId64 ",%s,%s,", p->what.length, p->what.dim, memory_names[method],
            end_names[p->result.end]);
    if (fits(p)) fprintf(out, "%zu", p->result.working);
    fputc(',', out);
    if (fits(p)) fprintf(out, "%zu", p->result.process);
    fprintf(out, ",%zu,%zu,%.0f,", p->result.sizes.arrays, p->result.sizes.working, memory_formula(&p->what));
    if (!memory_is_naive((memory_method)method))
        fprintf(out, "%zu,%zu", p->result.sizes.work, p->result.sizes.saved);
    else
        fputc(',', out);
    fputc(',', out);
    if (!isnan(difference)) fprintf(out, "%.3g", difference);
    fputc('\n', out);
}

static int write_points(const memory_sweep *s, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    FILE *out = out_stream(file);
    fputs("n,d,method,end,working_bytes,process_bytes,arrays_bytes,asked_bytes,formula_bytes,plan_work_bytes,"
          "saved_bytes,difference\n",
          out);
    for (int i = 0; i < s->count; i++)
        for (int method = 0; method < MEMORY_METHODS; method++)
            write_point(out, s, method, i);
    return out_commit(file, error);
}

static void write_verdict(FILE *out, const memory_sweep *s)
{
    double worst[2] = { 0 };
    for (memory_method method = 0; method < MEMORY_METHODS; method++)
        for (int i = 0; i < s->count; i++) {
            double *most = &worst[memory_has_backward(method)];
            *most = fmax(*most, memory_difference(s, method, i));
        }
    fputs("\nOver the last four n that fit, working memory grows as ", out);
    for (int method = 0; method < MEMORY_METHODS; method++)
        fprintf(out, "n^%.2f (%s)%s", memory_growth(s, (memory_method)method), memory_names[method],
                method + 1 < MEMORY_METHODS ? ", " : ".\n");
    for (int method = 0; method < MEMORY_METHODS; method++)
        if (ran_out(s, method))
            fprintf(out, "Out of memory under the limit of %.3g GiB: %s from n = %" PRId64 ".\n",
                    (double)s->limit / gibi, memory_names[method], ran_out(s, method));
    if (!s->points[0][0].what.on.cuda)
        fprintf(
            out,
            "Outputs of the three differ by at most %.1e of the largest, gradients by %.1e, where all was "
            "computed.\n",
            worst[0], worst[1]);
    const int64_t from = memory_holds_from(s);
    if (from)
        fprintf(
            out,
            "Verdict: figure 2 holds: by blocks the working memory grows no faster than n, and is the least "
            "from n = %" PRId64 " on.\n",
            from);
    else
        fputs("Verdict: figure 2 does not show at these n.\n", out);
}

static int write_table(const memory_sweep *s, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, "-", error);
    if (status != EXIT_OK) return status;
    FILE *out = out_stream(file);
    fprintf(out,
            "\nPeak of memory in MiB beyond inputs and outputs, d = %" PRId64
            ", one head, %s (*: allocated and written, not computed)\n%8s",
            s->points[0][0].what.dim, backend_text(s->points[0][0].what.on), "n");
    for (int method = 0; method < MEMORY_METHODS; method++)
        fprintf(out, " %20s", memory_names[method]);
    fprintf(out, " %10s %10s\n", "plan: work", "saved");
    for (int i = 0; i < s->count; i++) {
        const memory_sizes *library = &s->points[MEMORY_BACKWARD][i].result.sizes;
        fprintf(out, "%8" PRId64, s->points[0][i].what.length);
        for (int method = 0; method < MEMORY_METHODS; method++) {
            const memory_result *r = &s->points[method][i].result;
            if (r->end == MEMORY_OUT)
                fprintf(out, " %20s", "out");
            else
                fprintf(out, " %19.1f%c", (double)r->working / mebi, r->end == MEMORY_TAKEN ? '*' : ' ');
        }
        fprintf(out, " %10.1f %10.1f\n", (double)library->work / mebi, (double)library->saved / mebi);
    }
    write_verdict(out, s);
    return out_commit(file, error);
}

/* ---- the picture */

/* What was computed, what was taken, and the first that ran out, at the limit: for marks of their own. */
static void write_marks(FILE *out, const memory_sweep *s, int method)
{
    for (int end = MEMORY_COMPUTED; end <= MEMORY_OUT; end++) {
        fprintf(out, "$m%d%s << EOD\n", method, end_names[end]);
        bool any = false;
        for (int i = 0; i < s->count && !(any && end == MEMORY_OUT); i++) {
            const memory_point *p = &s->points[method][i];
            if (p->result.end != (memory_end)end) continue;
            const double bytes = end == MEMORY_OUT ? (double)s->limit : (double)p->result.working;
            fprintf(out, "%" PRId64 " %.6g\n", p->what.length, bytes / mebi);
            any = true;
        }
        fprintf(out, "%sEOD\n", any ? "" : "nan nan\n");
    }
}

static void draw(FILE *out, const memory_sweep *s)
{
    const double first = (double)s->points[0][0].what.length, d = (double)s->points[0][0].what.dim;
    const double last = (double)s->points[0][s->count - 1].what.length, limit = (double)s->limit / mebi;
    fprintf(
        out,
        "set lmargin at screen 0.18\nset rmargin at screen 0.96\nset tmargin at screen 0.925\n"
        "set bmargin at screen 0.34\n"
        "set key at screen 0.6,0.225 center top vertical maxrows 4 Left reverse samplen 2.4 width -4\n"
        "set title \"{/:Bold working memory %s, d = %g}\" offset 0,-0.5\n"
        "set label \"MiB beyond inputs and outputs\" at screen 0.03,0.64 center rotate\n"
        "set xlabel 'tokens, n (open marks: taken, not computed)' offset 0,0.6\nset logscale xy\nset format "
        "'10^{%%T}'\n"
        "set xrange [%g:%g]\nset yrange [*:%g]\n",
        backend_text(s->points[0][0].what.on), d, 0.8 * first, 1.25 * last, 4 * limit);
    for (int method = 0; method < MEMORY_METHODS; method++)
        write_marks(out, s, method);
    const double scale = sizeof(float) / mebi;
    fprintf(out,
            "plot %g with lines lt 8 dt 3 lw 1 title 'limit; x: out of memory', "
            "(y=%g*x*x, y < %g ? y : NaN) with lines lt 8 lw 1 dt 2 title '4 n^2 d, 4 n d^2, 4 n d', "
            "(y=%g*x, y < %g ? y : NaN) with lines lt 8 lw 1 dt 2 notitle, %g*x with lines lt 8 lw 1 dt 2 "
            "notitle, ",
            limit, scale * d, limit, scale * d * d, limit, scale * d);
    for (int m = 0; m < MEMORY_METHODS; m++) {
        const double size = memory_has_backward((memory_method)m) ? 0.5 : 1;
        fprintf(out,
                "$m%dcomputed using 1:2 with points lt %d pt %d ps %g title '%s', "
                "$m%dtaken using 1:2 with points lt %d pt %d ps %g notitle, "
                "$m%dout using 1:2 with points lt %d pt 2 ps %g notitle%s",
                m, colours[m], marks[m], size, long_names[m], m, colours[m], marks[m] - 1, size, m,
                colours[m], 1.2 * size, m + 1 < MEMORY_METHODS ? ", " : "\n");
    }
}

int memory_report(const memory_sweep *s, const char *directory, io_error *error)
{
    char path[EXPERIMENT_PATH];
    plot *p;
    snprintf(path, sizeof path, "%s/memory.csv", directory);
    int status = write_points(s, path, error);
    snprintf(path, sizeof path, "%s/memory.svg", directory);
    if (status == EXIT_OK) status = plot_open(&p, path, WIDTH, HEIGHT, error);
    if (status != EXIT_OK) return status;
    draw(plot_script(p), s);
    status = plot_close(p, error);
    return status == EXIT_OK ? write_table(s, error) : status;
}
