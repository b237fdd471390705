/* SPDX-License-Identifier: MIT */
#include "cli/dof/report.h"

#include "cli/dof/pictures.h"
#include "cli/experiment/options.h"
#include "cli/training/html.h"
#include "io/out_file.h"

#include <inttypes.h>
#include <math.h>

enum { LINE = 512 };

/* ---- in words */

static void write_inputs(FILE *out, const study *s)
{
    fprintf(out,
            "%" PRId64 " layers of %" PRId64 " heads of %" PRId64 " channels; %" PRId64 " tokens in %" PRId64
            " windows of at most %" PRId64 ", of %" PRId64 " text%s; lambda %s",
            s->layers, s->per_layer, s->config->head_dim, s->tokens, s->windows, s->context, s->texts,
            s->texts == 1 ? "" : "s", s->lambda);
    if (s->sampled)
        fprintf(out,
                "; J = %" PRId64 " queries and keys of each head, seed %" PRIu64
                ", mean |x|^2 of a head: quartiles %.3g, %.3g, %.3g",
                s->options.samples, s->options.seed, s->squares[0], s->squares[1], s->squares[2]);
}

/* "1.0 to 44.8, median 4.3 over heads". */
static const char *range_text(const study_mode *m, char text[LINE])
{
    snprintf(text, LINE, "%.3g to %.3g, median %.3g over heads", m->least, m->most, m->median);
    return text;
}

/* What says that the sample does not settle the numbers; "" where nothing does. */
static const char *warning_text(const study *s, int mode, char text[LINE])
{
    const study_mode *m = &s->modes[mode];
    const bool attention = mode == DOF_ATTN;
    *text = '\0';
    if (m->grows > 0 || m->large > 0)
        snprintf(text, LINE,
                 "not settled: %s changes N by more than 20 %% in %" PRId64 " of %" PRId64
                 " heads, N is more than a quarter of the %s in %" PRId64,
                 attention ? "half the tokens of a window" : "half the sample", m->grows, s->heads,
                 attention ? "tokens" : "sample", m->large);
    return text;
}

/* ---- the table */

static void print_mode(FILE *out, const study *s, int mode)
{
    const study_mode *m = &s->modes[mode];
    char text[LINE];
    fprintf(out, "\n%s: %s\n", dof_mode_name(mode), range_text(m, text));
    if (*warning_text(s, mode, text)) fprintf(out, "%s\n", text);
    fprintf(out, "%5s %7s %5s %9s   degrees of freedom of its heads (features, head by head)\n", "layer",
            "largest", "DoF", "DoF+Clip");
    for (int64_t layer = 0; layer < s->layers; layer++) {
        fprintf(out, "%5" PRId64 " %7.1f %5" PRId64 " %9" PRId64 "  ", layer, m->layers[layer],
                m->by_layer[layer], m->clipped[layer]);
        for (int64_t n = layer * s->per_layer; n < (layer + 1) * s->per_layer; n++)
            fprintf(out, " %5.1f (%" PRId64 ")", m->needs[n], m->by_head[n]);
        fputc('\n', out);
    }
    fprintf(out, "numbers of state: DoF %" PRId64 ", DoF+Clip %" PRId64 ", head by head %" PRId64 "\n",
            study_state(s, m->by_layer, NULL), study_state(s, m->clipped, NULL),
            study_state(s, NULL, m->by_head));
}

static void print_ranks(FILE *out, const study *s)
{
    for (int a = 0; a < DOF_MODES; a++)
        for (int b = a + 1; b < DOF_MODES; b++)
            if (s->options.modes[a] && s->options.modes[b])
                fprintf(out, "rank correlation of %s and %s over heads: %.2f\n", dof_mode_name(a),
                        dof_mode_name(b), s->rho[a][b]);
}

int dof_report_print(const study *s, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, "-", error);
    if (status) return status;
    FILE *out = out_stream(file);
    fprintf(out, "%s: ", s->model);
    write_inputs(out, s);
    fprintf(out, "\nFix: %" PRId64 " features of each head\n", s->budget.mean);
    for (int mode = 0; mode < DOF_MODES; mode++)
        if (s->options.modes[mode]) print_mode(out, s, mode);
    fputc('\n', out);
    print_ranks(out, s);
    return out_commit(file, error);
}

/* ---- CSV */

static int write_heads(const study *s, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    FILE *out = out_stream(file);
    fputs("mode,layer,head,dof,dof_of_half,features\n", out);
    for (int mode = 0; mode < DOF_MODES; mode++)
        for (int64_t n = 0; s->options.modes[mode] && n < s->heads; n++) {
            const study_mode *m = &s->modes[mode];
            fprintf(out, "%s,%" PRId64 ",%" PRId64 ",%.9g,", dof_mode_name(mode), n / s->per_layer,
                    n % s->per_layer, m->needs[n]);
            if (isfinite(m->heads[n].half)) fprintf(out, "%.9g", m->heads[n].half);
            fprintf(out, ",%" PRId64 "\n", m->by_head[n]);
        }
    return out_commit(file, error);
}

static int write_layers(const study *s, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    FILE *out = out_stream(file);
    fputs("mode,layer,largest_dof,fix,dof,dof_clip\n", out);
    for (int mode = 0; mode < DOF_MODES; mode++)
        for (int64_t layer = 0; s->options.modes[mode] && layer < s->layers; layer++) {
            const study_mode *m = &s->modes[mode];
            fprintf(out, "%s,%" PRId64 ",%.9g,%" PRId64 ",%" PRId64 ",%" PRId64 "\n", dof_mode_name(mode),
                    layer, m->layers[layer], s->budget.mean, m->by_layer[layer], m->clipped[layer]);
        }
    return out_commit(file, error);
}

/* ---- the page */

static void write_mode(FILE *out, const study *s, int mode)
{
    const study_mode *m = &s->modes[mode];
    const char *const name = dof_mode_name(mode);
    char text[LINE];
    fprintf(out, "<tr><td>%s</td><td>%.3g</td><td>%.3g</td><td>%.3g</td><td>%s</td>", name, m->least,
            m->median, m->most, warning_text(s, mode, text));
    int64_t least = m->by_layer[0], most = least, cut = 0;
    for (int64_t i = 0; i < s->layers; i++) {
        least = m->by_layer[i] < least ? m->by_layer[i] : least;
        most = m->by_layer[i] > most ? m->by_layer[i] : most;
        cut += m->clipped[i];
    }
    fprintf(out, "<td>%" PRId64 " to %" PRId64 "</td><td>%.1f</td></tr>\n", least, most,
            (double)cut / (double)s->layers);
}

static void write_layer_table(FILE *out, const study *s)
{
    fputs("<h2>Layers</h2>\n<div class=\"wide\"><table>\n<tr><th>layer</th>", out);
    for (int mode = 0; mode < DOF_MODES; mode++)
        if (s->options.modes[mode])
            fprintf(out, "<th>largest DoF, %s</th><th>features</th>", dof_mode_name(mode));
    fputs("</tr>\n", out);
    for (int64_t layer = 0; layer < s->layers; layer++) {
        fprintf(out, "<tr><td>%" PRId64 "</td>", layer);
        for (int mode = 0; mode < DOF_MODES; mode++)
            if (s->options.modes[mode])
                fprintf(out, "<td>%.1f</td><td>%" PRId64 "</td>", s->modes[mode].layers[layer],
                        s->modes[mode].by_layer[layer]);
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
}

static void write_pictures(FILE *out, const study *s)
{
    fputs("<div class=\"row\">\n<a href=\"layers.svg\"><img src=\"layers.svg\" alt=\"features by layer\"/>"
          "</a>\n",
          out);
    for (int mode = 0; mode < DOF_MODES; mode++)
        if (s->options.modes[mode])
            fprintf(out,
                    "<a href=\"heads-%s.svg\"><img src=\"heads-%s.svg\" alt=\"degrees of freedom by head and "
                    "layer, %s\"/></a>\n",
                    dof_mode_name(mode), dof_mode_name(mode), dof_mode_name(mode));
    fputs("</div>\n", out);
}

static int write_page(const study *s, const char *path, bool drawn, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    FILE *out = out_stream(file);
    html_head(out, "Degrees of freedom");
    fputs("<p>", out), html_escape(out, s->model), fputs(": ", out);
    write_inputs(out, s);
    fprintf(out, ". Features in units of %" PRId64 ", %" PRId64 " a head in the mean.</p>\n", s->budget.unit,
            s->budget.mean);
    fputs("<div class=\"wide\"><table>\n<tr><th>mode</th><th>least head</th><th>median</th><th>largest</th>"
          "<th>settled</th><th>features of a layer's heads</th><th>mean, clipped</th></tr>\n",
          out);
    for (int mode = 0; mode < DOF_MODES; mode++)
        if (s->options.modes[mode]) write_mode(out, s, mode);
    fputs("</table></div>\n<p>", out);
    print_ranks(out, s);
    fputs("</p>\n", out);
    if (drawn) write_pictures(out, s);
    write_layer_table(out, s);
    fputs("<p>Tables: <a href=\"heads.csv\">heads.csv</a>, <a href=\"layers.csv\">layers.csv</a>.</p>\n"
          "</body>\n</html>\n",
          out);
    return out_commit(file, error);
}

int dof_report_write(const study *s, const char *directory, bool drawn, io_error *error)
{
    char path[EXPERIMENT_PATH];
    snprintf(path, sizeof path, "%s/heads.csv", directory);
    int status = write_heads(s, path, error);
    snprintf(path, sizeof path, "%s/layers.csv", directory);
    if (!status) status = write_layers(s, path, error);
    if (!status && drawn) status = dof_pictures_draw(s, directory, error);
    snprintf(path, sizeof path, "%s/index.html", directory);
    return status ? status : write_page(s, path, drawn, error);
}
