/* SPDX-License-Identifier: MIT */
#include "cli/graft/page.h"

#include "cli/training/html.h"
#include "io/out_file.h"

#include <inttypes.h>
#include <math.h>

static const char *const what[] = {
    [GRAFT_RIDGES] = "LLA in the place of softmax; one ridge for each layer and query head",
    [GRAFT_TEMPERATURES] = "softmax, queries times 1 + t; one t for each layer and query head",
    [GRAFT_BOTH] = "LLA, queries times 1 + t; a ridge and a t for each layer and query head",
    [GRAFT_PARALLAX] = "Parallax, whose probe is A B x; A and B of each layer, B from 0",
    [GRAFT_LORA] = "softmax, W_q + A B in the place of W_q; A and B of each layer, B from 0",
    [GRAFT_NONE] = "nothing: the model as it is",
};

static void put_cell(FILE *out, bool there, paired x)
{
    char text[64];
    fprintf(out, "<td>%s</td>", there ? paired_text(x, text) : "");
}

static void put_table(FILE *out, const graft_results *r)
{
    const graft_plan *p = r->plan;
    fputs("<h2>NLL of held-out text</h2>\n<div class=\"wide\"><table>\n<tr><th>what moves</th>"
          "<th>parameters</th><th>NLL</th><th>minus the model as it is</th><th>minus the control</th></tr>\n",
          out);
    for (int i = -1; i < GRAFT_KINDS; i++) {
        const int kind = i < 0 ? GRAFT_NONE : i;
        if (i >= 0 && !p->choice.kinds[i]) continue;
        const bool against = i >= 0 && graft_is_controlled(p, i);
        fprintf(out, "<tr><td>%s</td><td>%.0f</td><td>%.5f</td>", what[kind],
                *graft_result_of(r, graft_run_of(p, kind, 0)).moved, graft_difference(r, kind, -1, -1).mean);
        put_cell(out, i >= 0, graft_difference(r, kind, GRAFT_NONE, -1));
        put_cell(out, against, against ? graft_difference(r, i, graft_control(i), -1) : (paired){ 0 });
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n<p>± is the standard error of the mean over windows, of differences that of "
          "differences window by window; of several seeds the mean NLL of a window is taken first. The "
          "control of ridges, alone or beside temperatures, are temperatures, that of Parallax is LoRA. All "
          "have the same windows in the same order, AdamW without decay, and a cosine to 0.</p>\n",
          out);
}

/* How many heads have gone how far. */
static void put_ridges(FILE *out, const graft_results *r, int kind)
{
    static const double limits[] = { 1000, 300, 100, 30, 10 };
    const int64_t all = r->plan->config->layers * r->plan->config->heads_q;
    const double *ridge = graft_result_of(r, graft_run_of(r->plan, kind, 0)).ridge;
    fprintf(out, "<h2>Learned ridges%s</h2>\n<p>Of %" PRId64 " heads (the first seed)",
            kind == GRAFT_BOTH ? " beside temperatures" : "", all);
    for (size_t n = 0; n < sizeof limits / sizeof *limits; n++) {
        int64_t count = 0;
        for (int64_t i = 0; i < all; i++)
            count += ridge[i] < limits[n];
        fprintf(out, "%s %" PRId64 " have one below %g", n ? "," : "", count, limits[n]);
    }
    fputs(".</p>\n", out);
}

static void put_negative(FILE *out, const graft_results *r)
{
    const double *negative = graft_result_of(r, graft_run_of(r->plan, GRAFT_PARALLAX, 0)).negative;
    double mean = 0, most = 0;
    int64_t at = 0;
    const int64_t layers = r->plan->config->layers;
    for (int64_t layer = 0; layer < layers; layer++) {
        mean += negative[layer] / (double)layers;
        if (negative[layer] > most) most = negative[layer], at = layer;
    }
    fprintf(
        out,
        "<h2>Negative weights of Parallax</h2>\n<p>%.2g %% of the weights of the last windows held out are "
        "negative, most of them in layer %" PRId64 ", %.2g %% (the first seed).</p>\n",
        100 * mean, at, 100 * most);
}

static void put_picture(FILE *out, const char *name, const char *alt)
{
    fprintf(out, "<a href=\"%s\"><img src=\"%s\" alt=\"%s\"/></a>\n", name, name, alt);
}

static void put_pictures(FILE *out, const graft_plan *p)
{
    fputs("<h2>Pictures</h2>\n<div class=\"row\">\n", out);
    put_picture(out, "steps.svg", "losses against steps");
    for (int kind = 0; kind < GRAFT_KINDS; kind++) {
        char name[64];
        snprintf(name, sizeof name, "%s.svg", graft_name(kind));
        if (p->choice.kinds[kind] && graft_has_ridges(kind))
            put_picture(out, name, "ridges by layer and head");
        snprintf(name, sizeof name, "%s%s.svg", graft_name(kind), kind == GRAFT_BOTH ? "-temperatures" : "");
        if (p->choice.kinds[kind] && graft_has_temperatures(kind))
            put_picture(out, name, "temperatures by layer and head");
    }
    fputs("</div>\n", out);
}

static void put_run(FILE *out, const graft_report *r)
{
    const graft_plan *p = r->results->plan;
    const bool heads = graft_has_heads(p);
    fputs("<h2>What was run</h2>\n<p>", out);
    html_escape(out, r->model);
    fputs(": ", out);
    html_escape(out, r->description);
    fputs(".</p>\n<p>Texts held out:", out);
    for (int i = 0; i < p->text_count; i++)
        fputc(' ', out), html_escape(out, p->names[i]);
    fprintf(out,
            ".</p>\n<p>Tables: <a href=\"nll.csv\">nll.csv</a>, %s%s<a href=\"curves.csv\">curves.csv</a>, "
            "<a href=\"times.csv\">times.csv</a>.</p>\n</body>\n</html>\n",
            heads ? "<a href=\"heads.csv\">heads.csv</a>, " : "",
            p->choice.kinds[GRAFT_PARALLAX] ? "<a href=\"probe.csv\">probe.csv</a>, " : "");
}

int graft_page_write(const graft_report *r, const claim *claims, int count, const char *path, io_error *error)
{
    const graft_plan *p = r->results->plan;
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    FILE *out = out_stream(file);
    html_head(out, "Trained on top of a pretrained model");
    html_claims(out, "What is expected", "about", claims, count);
    put_table(out, r->results);
    for (int kind = 0; kind < GRAFT_KINDS; kind++)
        if (p->choice.kinds[kind] && graft_has_ridges(kind)) put_ridges(out, r->results, kind);
    if (p->choice.kinds[GRAFT_PARALLAX]) put_negative(out, r->results);
    if (r->drawn) put_pictures(out, p);
    put_run(out, r);
    return out_commit(file, error);
}
