/* SPDX-License-Identifier: MIT */
#include "cli/distill/pictures.h"

#include "cli/plot.h"

#include <inttypes.h>
#include <stdio.h>

const cell *distill_shared(const cells *c, int how)
{
    for (int i = 0; i < c->count; i++)
        if (c->list[i].chosen && c->list[i].strategy == how && c->list[i].loss >= 0) return &c->list[i];
    return NULL;
}

static int draw_dimensions(const cells *c, const char *path, io_error *error)
{
    plot *p;
    const int status = plot_open(&p, path, 640, 420, error);
    if (status) return status;
    FILE *out = plot_script(p);
    for (int how = 0; strategy_name(how); how++) {
        const cell *one = distill_shared(c, how);
        if (!one) continue;
        fprintf(out, "$s%d << EOD\n", how);
        for (int64_t i = 0; i < c->layers; i++)
            fprintf(out, "%" PRId64 " %.0f\n", i, one->features[i]);
        fputs("EOD\n", out);
    }
    fputs("set title ", out), plot_quote(p, c->model);
    fputs(
        " offset 0,-0.5\nset xlabel 'layer' offset 0,0.5\nset ylabel 'features of a head'\nset yrange [0:*]\n"
        "set lmargin at screen 0.12\nset rmargin at screen 0.96\nset tmargin at screen 0.91\n"
        "set bmargin at screen 0.24\nset key at screen 0.54,0.06 center center horizontal samplen 2\n",
        out);
    const char *before = "plot ";
    for (int how = 0; strategy_name(how); how++) {
        if (!distill_shared(c, how)) continue;
        fprintf(out, "%s$s%d using 1:2 with linespoints lt %d pt 7 ps 0.5 title '%s'", before, how, how + 1,
                strategy_name(how));
        before = ", ";
    }
    fputc('\n', out);
    return plot_close(p, error);
}

/* By how much more than softmax; what is trained in another colour. */
static int draw_nll(const cells *c, const char *path, io_error *error)
{
    series list[SERIES];
    const int count = cells_series(c, list);
    const series *const softmax = series_find(list, count, "softmax", NULL, NULL);
    char label[CELL_LABEL];
    plot *p;
    int status = plot_open(&p, path, 720, 120 + 24 * count, error);
    if (status) return status;
    FILE *out = plot_script(p);
    fputs("$n << EOD\n", out);
    for (int i = 0; i < count; i++) {
        const paired more = series_difference(c, &list[i], softmax);
        fprintf(out, "%.6g %d %.6g %d\n", more.mean, i, more.windows > 1 ? more.error : 0,
                list[i].cell[0]->loss >= 0 ? 1 : 8);
    }
    fprintf(out, "EOD\nset yrange [%d.5:-0.5]\nset ytics (", count - 1);
    for (int i = 0; i < count; i++) {
        if (i > 0) fputs(", ", out);
        plot_quote(p, cell_label(list[i].cell[0], label));
        fprintf(out, " %d", i);
    }
    fputs(")\nset title ", out), plot_quote(p, c->model);
    fputs(" offset 0,-0.5\nset xlabel '-log p of a token, more than with softmax' offset 0,0.3\nunset key\n"
          "set lmargin at screen 0.38\nset rmargin at screen 0.96\n"
          "plot $n using 1:2:3:4 with xerrorbars lc variable pt 7 ps 0.7\n",
          out);
    return plot_close(p, error);
}

int distill_draw(const cells *c, int number, const char *directory, io_error *error)
{
    char path[EXPERIMENT_PATH];
    bool shared = false;
    for (int how = 0; strategy_name(how); how++)
        shared |= distill_shared(c, how) != NULL;
    snprintf(path, sizeof path, "%s/nll-%d.svg", directory, number);
    const int status = draw_nll(c, path, error);
    snprintf(path, sizeof path, "%s/dimensions-%d.svg", directory, number);
    return !status && shared ? draw_dimensions(c, path, error) : status;
}
