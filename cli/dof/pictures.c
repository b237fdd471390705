/* SPDX-License-Identifier: MIT */
#include "cli/dof/pictures.h"

#include "cli/experiment/options.h"
#include "cli/plot.h"

#include <inttypes.h>
#include <math.h>

enum { WIDTH = 480, HEIGHT = 480 };

static int draw_layers(const study *s, const char *path, io_error *error)
{
    plot *p;
    const int status = plot_open(&p, path, WIDTH, HEIGHT, error);
    if (status) return status;
    FILE *out = plot_script(p);
    fprintf(out,
            "set lmargin at screen 0.17\nset rmargin at screen 0.95\nset tmargin at screen 0.92\n"
            "set bmargin at screen 0.32\n"
            "set key at screen 0.57,0.2 center top vertical maxrows 3 Left reverse samplen 2 width 1\n"
            "set title \"{/:Bold Features by layer, %" PRId64 " in the mean}\" offset 0,-0.5\n"
            "set xlabel 'layer' offset 0,0.5\n"
            "set label 'features of a head' at screen 0.03,0.62 center rotate\n"
            "set xrange [-0.5:%g]\nset yrange [0:*]\nset xtics %d\n",
            s->budget.mean, (double)s->layers - 0.5, s->layers > 10 ? 5 : 1);
    for (int mode = 0; mode < DOF_MODES; mode++) {
        if (!s->options.modes[mode]) continue;
        fprintf(out, "$m%d << EOD\n", mode);
        for (int64_t layer = 0; layer < s->layers; layer++)
            fprintf(out, "%" PRId64 " %" PRId64 "\n", layer, s->modes[mode].by_layer[layer]);
        fputs("EOD\n", out);
    }
    fprintf(out, "plot %" PRId64 " with lines lt 8 dt 2 title 'Fix'", s->budget.mean);
    for (int mode = 0; mode < DOF_MODES; mode++)
        if (s->options.modes[mode])
            fprintf(out, ", $m%d using 1:2 with linespoints lt %d title 'DoF, %s'", mode, mode + 1,
                    dof_mode_name(mode));
    fputc('\n', out);
    return plot_close(p, error);
}

static int draw_heads(const study *s, int mode, const char *path, io_error *error)
{
    const study_mode *m = &s->modes[mode];
    plot *p;
    const int status = plot_open(&p, path, WIDTH, HEIGHT + 120, error);
    if (status) return status;
    FILE *out = plot_script(p);
    fputs("$h << EOD\n", out);
    for (int64_t n = 0; n < s->heads; n++)
        fprintf(out, "%" PRId64 " %" PRId64 " %.6g\n", n % s->per_layer, n / s->per_layer,
                fmax(m->needs[n], 1e-3));
    fprintf(
        out,
        "EOD\nset title \"{/:Bold Degrees of freedom, %s}\" offset 0,-0.3\nset xlabel 'head' offset 0,0.5\n"
        "set label 'layer' at screen 0.04,0.56 center rotate\nset style fill solid noborder\n"
        "set xrange [-0.5:%g]\nset yrange [-0.5:%g]\nunset grid\nset xtics %d\n"
        "set palette defined (0 '#FFFFFF', 1 '#56B4E9', 2 '#0072B2', 3 '#882255')\nset logscale cb\n"
        "set cbrange [%.4g:%.4g]\n"
        "set colorbox horizontal user origin screen 0.19,0.08 size screen 0.76,0.025\n"
        "set lmargin at screen 0.16\nset rmargin at screen 0.96\nset bmargin at screen 0.24\n"
        "set format cb '%%g'\nplot $h using 1:2:3 with image pixels notitle\n",
        dof_mode_name(mode), (double)s->per_layer - 0.5, (double)s->layers - 0.5, s->per_layer > 16 ? 4 : 1,
        fmax(m->least, 1e-3) * 0.99, fmax(m->most, 1e-3) * 1.01);
    return plot_close(p, error);
}

int dof_pictures_draw(const study *s, const char *directory, io_error *error)
{
    char path[EXPERIMENT_PATH];
    snprintf(path, sizeof path, "%s/layers.svg", directory);
    int status = draw_layers(s, path, error);
    for (int mode = 0; !status && mode < DOF_MODES; mode++) {
        if (!s->options.modes[mode]) continue;
        snprintf(path, sizeof path, "%s/heads-%s.svg", directory, dof_mode_name(mode));
        status = draw_heads(s, mode, path, error);
    }
    return status;
}
