/* SPDX-License-Identifier: MIT */
#include "cli/distill/pictures.h"

#include "cli/distill/arms.h"
#include "cli/plot.h"
#include "cli/training/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { COLOURS = 8 }; /* of lines, which are dashed where they have them once more */

const cell *distill_shared(const cells *c, int how)
{
    for (int i = 0; i < c->count; i++) {
        const cell *one = &c->list[i];
        if (one->chosen && one->strategy == how && distill_arm_at(one->arm)->form == FORM_TRAINED) return one;
    }
    return NULL;
}

/* Below a picture: the names of the texts that are predicted, and what its bars are. */
static void put_texts(plot *p, const char *texts)
{
    char line[512] = "";
    for (const char *at = texts; at; at = *at ? at + 1 : NULL) {
        const char *const end = at + strcspn(at, ","), *name = at;
        for (const char *c = at; c < end; c++)
            if (*c == '/') name = c + 1;
        text_add(line, sizeof line, "%s%.*s", at == texts ? "of " : ", ", (int)(end - name), name);
        at = end;
    }
    text_add(line, sizeof line, "; bars: one standard error of the difference to softmax, by windows");
    fputs("set label 1 ", plot_script(p)), plot_quote(p, line);
    fputs(" at screen 0.5, screen 0.02 center font ',10'\nset bmargin 4.5\n", plot_script(p));
}

static bool is_far(const cell *one) { return one->chosen && cell_has_far(one); }

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
static int draw_nll(const cells *c, const char *texts, const char *path, io_error *error)
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
    fprintf(out, " offset 0,-0.5\nset xlabel '%s, more than with softmax' offset 0,0.3\n", cells_measure(c));
    put_texts(p, texts);
    fputs("unset key\nset lmargin at screen 0.38\nset rmargin at screen 0.96\n"
          "plot $n using 1:2:3:4 with xerrorbars lc variable pt 7 ps 0.7\n",
          out);
    return plot_close(p, error);
}

/* ---- lines by tokens, on a scale of powers of two */

/* A token's -log p behind so many others of a long window. */
static int draw_positions(const cells *c, const char *texts, const char *path, io_error *error)
{
    char label[CELL_LABEL];
    plot *p;
    int lines = 0;
    for (int i = 0; i < c->count; i++)
        lines += is_far(&c->list[i]);
    const int status = plot_open(&p, path, 960, 200 + 30 * (lines < 12 ? 12 : lines), error);
    if (status) return status;
    FILE *out = plot_script(p);
    for (int i = 0; i < c->count; i++) {
        if (!is_far(&c->list[i])) continue;
        fprintf(out, "$s%d << EOD\n", i);
        for (int place = 0; place < TRIAL_PLACES; place++) {
            const paired nll = cell_far(c, &c->list[i], NULL, place),
                         more = cell_far(c, &c->list[i], &c->list[0], place);
            if (nll.tokens > 0)
                fprintf(out, "%.6g %.6g %.6g\n", (place + 0.5) * (double)c->length / TRIAL_PLACES, nll.mean,
                        more.windows > 1 ? more.error : 0);
        }
        fputs("EOD\n", out);
    }
    fputs("set title ", out), plot_quote(p, c->model);
    fputs(" offset 0,-0.5\nset xlabel 'tokens before it' offset 0,0.5\nset ylabel '-log p of a token'\n"
          "set key outside right top\nset grid\n",
          out);
    put_texts(p, texts);
    fprintf(out, "set arrow 1 from %" PRId64 ", graph 0 to %" PRId64 ", graph 1 nohead dt 2 lc 8\n",
            c->length / 4, c->length / 4);
    const char *before = "plot ";
    int line = 0;
    for (int i = 0; i < c->count; i++) {
        if (!is_far(&c->list[i])) continue;
        fprintf(out, "%s$s%d using 1:2:3 with yerrorlines lt %d dt %d pt 7 ps 0.4 title ", before, i,
                line % COLOURS + 1, line / COLOURS + 1);
        line++;
        plot_quote(p, cell_label(&c->list[i], label));
        before = ", ";
    }
    fputc('\n', out);
    return plot_close(p, error);
}

static int draw_speed(const cells *c, const char *path, io_error *error)
{
    plot *p;
    const int status = plot_open(&p, path, 640, 420, error);
    if (status) return status;
    FILE *out = plot_script(p);
    fputs("$s << EOD\n", out);
    for (int i = 0; i < SPEEDS && c->behind[i] > 0; i++)
        fprintf(out, "%" PRId64 " %.6g %.6g\n", c->behind[i], 1 / c->speeds[0][i], 1 / c->speeds[1][i]);
    fputs("EOD\nset title ", out), plot_quote(p, c->model);
    fputs(" offset 0,-0.5\nset xlabel 'tokens before it' offset 0,0.5\nset ylabel 'tokens a second'\n"
          "set logscale x 2\nset yrange [0:*]\nset grid\nset key bottom left\n"
          "plot $s using 1:2 with linespoints lt 1 pt 7 title 'keys and values', "
          "$s using 1:3 with linespoints lt 2 pt 7 title 'states'\n",
          out);
    return plot_close(p, error);
}

int distill_draw(const cells *c, const char *texts, int number, const char *directory, io_error *error)
{
    char path[EXPERIMENT_PATH];
    bool shared = false;
    for (int how = 0; strategy_name(how); how++)
        shared |= distill_shared(c, how) != NULL;
    snprintf(path, sizeof path, "%s/nll-%d.svg", directory, number);
    int status = draw_nll(c, texts, path, error);
    snprintf(path, sizeof path, "%s/dimensions-%d.svg", directory, number);
    if (!status && shared) status = draw_dimensions(c, path, error);
    snprintf(path, sizeof path, "%s/positions-%d.svg", directory, number);
    if (!status && c->far > 0) status = draw_positions(c, texts, path, error);
    snprintf(path, sizeof path, "%s/speed-%d.svg", directory, number);
    return !status && cells_timed(c) ? draw_speed(c, path, error) : status;
}
