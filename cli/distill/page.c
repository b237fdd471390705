/* SPDX-License-Identifier: MIT */
#include "cli/distill/page.h"

#include "cli/distill/pictures.h"
#include "cli/distill/verdicts.h"
#include "cli/training/html.h"
#include "io/out_file.h"

#include <math.h>

static void put_table(FILE *out, const cells *c, const series *list, int count)
{
    char label[CELL_LABEL], text[64];
    fprintf(out,
            "<div class=\"wide\"><table>\n<tr><th>attention</th><th>seeds</th><th>%s</th>"
            "<th>more than softmax</th><th>gap</th></tr>\n",
            cells_measure(c));
    for (int i = 0; i < count; i++)
        fprintf(out, "<tr><td>%s</td><td>%d</td><td>%.4f</td><td>%s</td><td>%.3f</td></tr>\n",
                cell_label(list[i].cell[0], label), list[i].seeds, series_difference(c, &list[i], NULL).mean,
                paired_text(series_difference(c, &list[i], &list[0]), text),
                series_gap(c, list, count, &list[i]));
    fputs("</table></div>\n", out);
}

static void put_gap(FILE *out, double gap)
{
    if (isnan(gap))
        fputs("<td></td>", out);
    else
        fprintf(out, "<td>%.2f</td>", gap);
}

/* The paper's are of GPT-2, features by degrees of freedom of keys and queries. */
static void put_paper(FILE *out, const cells *c, const series *list, int count)
{
    static const struct {
        const char *name, *strategy;
        double direct, softmax, l2;
    } rows[] = { { "Fix", "fix", 0.13, 0.43, 0.60 },
                 { "DoF", NULL, 0.40, 0.14, 0.69 },
                 { "DoF+Clip", "clip", 0.44, 0.14, 0.60 } };
    fputs("<h3>Gaps beside the paper's</h3>\n<div class=\"wide\"><table>\n<tr><th></th>"
          "<th>direct, paper</th><th>softmax, paper</th><th>softmax, here</th><th>L2, paper</th>"
          "<th>L2, here</th></tr>\n",
          out);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const series *soft = rows[i].strategy
                                 ? series_find(list, count, "trained", rows[i].strategy, "softmax")
                                 : verdicts_best(c, list, count),
                     *l2 = rows[i].strategy ? series_find(list, count, "trained", rows[i].strategy, "l2")
                                            : NULL;
        fprintf(out, "<tr><td>%s</td>", rows[i].name);
        put_gap(out, rows[i].direct), put_gap(out, rows[i].softmax);
        put_gap(out, series_gap(c, list, count, soft));
        put_gap(out, rows[i].l2), put_gap(out, series_gap(c, list, count, l2));
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n<p>The gap is what is lost to softmax as a part of what features of N(0, I) lose. "
          "The paper's are of GPT-2 with 64 features in the mean; DoF here is the better of rel and "
          "attn.</p>\n",
          out);
}

static void put_picture(FILE *out, const char *name, int number, const char *alt)
{
    fprintf(out, "<a href=\"%s-%d.svg\"><img src=\"%s-%d.svg\" alt=\"%s\"/></a>\n", name, number, name,
            number, alt);
}

static void put_model(FILE *out, const cells *c, int number, bool drawn)
{
    series list[SERIES];
    claim claims[VERDICTS];
    const int count = cells_series(c, list), judged = verdicts_of(c, claims);
    bool shared = false;
    for (int how = 0; strategy_name(how); how++)
        shared |= distill_shared(c, how) != NULL;
    fputs("<h2>", out), html_escape(out, c->model), fputs("</h2>\n", out);
    put_table(out, c, list, count);
    if (!c->encoder) put_paper(out, c, list, count);
    html_claims(out, "What is expected", "about", claims, judged);
    if (drawn) {
        fputs("<div class=\"row\">\n", out);
        put_picture(out, "nll", number, "NLL by attention");
        if (shared) put_picture(out, "dimensions", number, "features by layer");
        if (c->far > 0) put_picture(out, "positions", number, "NLL by position");
        if (cells_timed(c)) put_picture(out, "speed", number, "tokens a second by length");
        fputs("</div>\n", out);
    }
    fputs("<p>", out), html_escape(out, c->line), fputs(".</p>\n", out);
}

int distill_page_write(const distill_report *r, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    FILE *out = out_stream(file);
    html_head(out, "From softmax to positive features");
    for (int i = 0; i < r->count; i++)
        put_model(out, &r->models[i], i + 1, r->drawn);
    fputs(
        "<h2>What was run</h2>\n<p>NLL is -log p of a token; 1 - cosine, of an encoder, is that between the "
        "vectors of a line under softmax and under this attention. Of ",
        out),
        html_escape(out, r->texts);
    fputs("; features are fitted to ", out), html_escape(out, r->calibration);
    fputs(
        ". ± is one standard error over windows, of differences window by window; of several seeds the mean "
        "of a window is taken first.</p>\n<p>Tables: <a href=\"results.csv\">results.csv</a>, "
        "<a href=\"windows.csv\">windows.csv</a>, <a href=\"dimensions.csv\">dimensions.csv</a>, "
        "<a href=\"positions.csv\">positions.csv</a>, <a href=\"speed.csv\">speed.csv</a>.</p>\n"
        "</body>\n</html>\n",
        out);
    return out_commit(file, error);
}
