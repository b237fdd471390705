/* SPDX-License-Identifier: MIT */
#include "cli/ridge/page.h"

#include "cli/training/html.h"
#include "io/out_file.h"

#include <inttypes.h>
#include <math.h>

static void write_cell(FILE *out, paired x)
{
    char text[64];
    fprintf(out, "<td>%s</td>", paired_text(x, text));
}

static void write_curve(FILE *out, const ridge_results *r)
{
    const ridge_plan *p = r->plan;
    const paired nothing = { NAN, NAN, 0, 0 };
    char text[64];
    fprintf(out,
            "<h2>All layers</h2>\n<div class=\"wide\"><table>\n<tr><th>attention</th><th>%s</th><th>"
            "minus softmax</th><th>control minus softmax</th><th>minus control</th></tr>\n",
            ridge_measure(p));
    for (int index = 0; index < p->curve_count; index++) {
        const ridge_arm *a = &p->arms[index];
        if (a->kind == ARM_CONTROL) continue;
        const int control = ridge_find(p, ARM_CONTROL, a->ridge, a->unit, -1, -1);
        fprintf(out, "<tr><td>%s</td><td>%.5f</td>", ridge_arm_text(a, text),
                ridge_difference(r, index, -1, -1).mean);
        write_cell(out, index == 0 ? nothing : ridge_difference(r, index, 0, -1));
        write_cell(out, control < 0 ? nothing : ridge_difference(r, control, 0, -1));
        write_cell(out, control < 0 ? nothing : ridge_difference(r, index, control, -1));
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n<p>± is the standard error of the mean over windows, of differences that of "
          "differences window by window. The control is softmax whose scores are multiplied by 1 + sqrt(d) / "
          "ridge, the first effect of the ridge.</p>\n",
          out);
}

static void write_picture(FILE *out, const char *name, const char *what)
{
    fprintf(out, "<a href=\"%s\"><img src=\"%s\" alt=\"%s\"/></a>\n", name, name, what);
}

static void write_pictures(FILE *out, const ridge_plan *p)
{
    fputs("<h2>Pictures</h2>\n<div class=\"row\">\n", out);
    write_picture(out, "curve.svg", "change against the ridge");
    if (p->choice.layers) write_picture(out, "layers.svg", "change by one layer");
    for (int i = 0; p->choice.heads && i < p->choice.parts.count; i++) {
        char name[64];
        snprintf(name, sizeof name, "heads-%g.svg", p->choice.parts.items[i]);
        write_picture(out, name, "change by one head");
    }
    fputs("</div>\n", out);
}

int ridge_page_write(const ridge_page *r, const char *path, io_error *error)
{
    const ridge_plan *p = r->results->plan;
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    FILE *out = out_stream(file);
    html_head(out, "Ridges without training");
    html_claims(out, "What is expected", "about", r->claims, r->claim_count);
    write_curve(out, r->results);
    if (r->drawn) write_pictures(out, p);
    fputs("<h2>What was run</h2>\n<p>", out);
    html_escape(out, r->model);
    fputs(": ", out);
    html_escape(out, r->description);
    fputs(".</p>\n<p>Texts:", out);
    for (int i = 0; i < p->text_count; i++)
        fputc(' ', out), html_escape(out, p->names[i]);
    fprintf(out,
            ".</p>\n<p>Tables: <a href=\"curve.csv\">curve.csv</a>, %s<a href=\"law.csv\">law.csv</a>, <a "
            "href=\"times.csv\">times.csv</a>.</p>\n</body>\n</html>\n",
            p->arm_count > p->curve_count ? "<a href=\"parts.csv\">parts.csv</a>, " : "");
    return out_commit(file, error);
}
