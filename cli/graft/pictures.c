/* SPDX-License-Identifier: MIT */
#include "cli/graft/pictures.h"

#include "cli/plot.h"

#include <inttypes.h>
#include <math.h>

enum { WIDTH = 480, HEIGHT = 480 };

/* Of the first seed: log10 of 1 / ridge, which is the effect that a ridge has first, or t. */
typedef struct heads_map {
    const double *value;
    int64_t layers, heads;
    bool ridges;
} heads_map;

static heads_map map_of(const graft_results *r, int kind, bool ridges)
{
    const lm_config *c = r->plan->config;
    const graft_result of = graft_result_of(r, graft_run_of(r->plan, kind, 0));
    return (heads_map){ ridges ? of.ridge : of.temperature, c->layers, c->heads_q, ridges };
}

static double shown(const heads_map *m, int64_t i)
{
    return m->ridges ? -log10(m->value[i]) : m->value[i] - 1;
}

static double largest(const heads_map *m)
{
    double most = 1e-6;
    for (int64_t i = 0; i < m->layers * m->heads; i++)
        most = fmax(most, fabs(shown(m, i)));
    return most;
}

static int draw_heads(const heads_map *m, const char *path, io_error *error)
{
    plot *p;
    const int status = plot_open(&p, path, WIDTH, HEIGHT + 120, error);
    if (status) return status;
    FILE *out = plot_script(p);
    fputs("$h << EOD\n", out);
    for (int64_t i = 0; i < m->layers * m->heads; i++)
        fprintf(out, "%" PRId64 " %" PRId64 " %.6g\n", i % m->heads, i / m->heads, shown(m, i));
    fprintf(out,
            "EOD\nset title \"{/:Bold %s}\" offset 0,-0.3\nset xlabel 'head' offset 0,0.5\n"
            "set label 'layer' at screen 0.04,0.56 center rotate\nset style fill solid noborder\n"
            "set xrange [-0.5:%g]\nset yrange [-0.5:%g]\nunset grid\nset xtics 1\n"
            "set colorbox horizontal user origin screen 0.19,0.08 size screen 0.76,0.025\n"
            "set lmargin at screen 0.16\nset rmargin at screen 0.96\nset bmargin at screen 0.24\n",
            m->ridges ? "learned ridges: log10 of 1 / ridge" : "learned temperatures: t of q (1 + t)",
            (double)m->heads - 0.5, (double)m->layers - 0.5);
    if (m->ridges)
        fputs("set palette defined (0 '#FFFFFF', 1 '#0072B2')\n", out);
    else
        fprintf(out,
                "set palette defined (-1 '#0072B2', 0 '#FFFFFF', 1 '#D55E00')\nset cbrange [%.6g:%.6g]\n"
                "set cbtics %.1g\n",
                -largest(m), largest(m), largest(m) / 2);
    fputs("plot $h using 1:2:3 with image pixels notitle\n", out);
    return plot_close(p, error);
}

/* Losses of training, means over seeds. */
static void write_steps(FILE *out, const graft_results *r, int kind)
{
    const int seeds = r->plan->choice.seeds.count;
    fprintf(out, "$k%d << EOD\n", kind);
    for (int64_t i = 0; i < r->tests; i++) {
        double step = 0, held = 0;
        for (int seed = 0; seed < seeds; seed++) {
            const double *at = graft_result_of(r, graft_run_of(r->plan, kind, seed)).curve + i * GRAFT_CURVE;
            step = at[GRAFT_STEP], held += at[GRAFT_TEST] / seeds;
        }
        fprintf(out, "%.0f %.6g\n", step, held);
    }
    fputs("EOD\n", out);
}

static int draw_steps(const graft_results *r, const char *path, io_error *error)
{
    static const int colours[GRAFT_KINDS] = { 1, 2, 6, 3, 4 };
    plot *p;
    const int status = plot_open(&p, path, WIDTH, HEIGHT, error);
    if (status) return status;
    FILE *out = plot_script(p);
    fputs("set title \"{/:Bold losses of the first windows held out}\" offset 0,-0.5\n"
          "set lmargin at screen 0.2\nset rmargin at screen 0.95\nset tmargin at screen 0.92\n"
          "set bmargin at screen 0.28\nset xlabel 'steps' offset 0,0.5\nset ylabel 'NLL'\n"
          "set key at screen 0.57,0.14 center top vertical maxrows 2 Left reverse samplen 2 width 1\n",
          out);
    for (int kind = 0; kind < GRAFT_KINDS; kind++)
        if (r->plan->choice.kinds[kind]) write_steps(out, r, kind);
    const char *before = "plot ";
    for (int kind = 0; kind < GRAFT_KINDS; kind++) {
        if (!r->plan->choice.kinds[kind]) continue;
        fprintf(out, "%s$k%d using 1:2 with linespoints lt %d pt 7 ps 0.4 title '%s'", before, kind,
                colours[kind], graft_name(kind));
        before = ", ";
    }
    fputc('\n', out);
    return plot_close(p, error);
}

/* ridges.svg, both.svg; temperatures.svg, both-temperatures.svg */
static int draw_kind(const graft_results *r, int kind, const char *directory, io_error *error)
{
    char path[EXPERIMENT_PATH];
    int status = 0;
    const heads_map ridges = map_of(r, kind, true), temperatures = map_of(r, kind, false);
    snprintf(path, sizeof path, "%s/%s.svg", directory, graft_name(kind));
    if (graft_has_ridges(kind)) status = draw_heads(&ridges, path, error);
    if (kind == GRAFT_BOTH) snprintf(path, sizeof path, "%s/both-temperatures.svg", directory);
    if (!status && graft_has_temperatures(kind)) status = draw_heads(&temperatures, path, error);
    return status;
}

int graft_draw(const graft_results *r, const char *directory, io_error *error)
{
    char path[EXPERIMENT_PATH];
    int status = 0;
    for (int kind = 0; kind < GRAFT_KINDS && !status; kind++)
        if (r->plan->choice.kinds[kind]) status = draw_kind(r, kind, directory, error);
    snprintf(path, sizeof path, "%s/steps.svg", directory);
    return status ? status : draw_steps(r, path, error);
}
