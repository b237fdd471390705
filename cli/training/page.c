/* SPDX-License-Identifier: MIT */
#include "cli/training/page.h"

#include "cli/training/html.h"
#include "cli/training/pictures.h"
#include "io/out_file.h"

#include <inttypes.h>

static const char *title_of(const plan *p)
{
    return p->task == TRAIN_REGRESSION ? "Regression in context"
           : p->task == TRAIN_SWAPS    ? "Swaps"
                                       : "Associative recall";
}

static void write_values(FILE *out, const results *r)
{
    const plan *p = r->plan;
    const char *size = p->task == TRAIN_REGRESSION ? "S" : "N";
    fprintf(out,
            "<h2>%s after the last step, at the best learning rate</h2>\n<div class=\"wide\"><table>\n"
            "<tr><th>L</th><th>%s</th>",
            results_are_errors(p) ? "Mean squared error" : "Accuracy", size);
    for (int m = 0; m < p->mechanism_count; m++)
        fprintf(out, "<th>%s</th>", picture_mechanism(p->mechanisms[m].row->name));
    fputs("</tr>\n", out);
    for (int cell = 0; cell < p->cell_count; cell++)
        for (int part = 0; part < plan_parts(p, &p->cells[cell]); part++) {
            fprintf(out, "<tr><td>%" PRId64 "</td><td>%" PRId64 "</td>", p->cells[cell].length,
                    plan_size(p, &p->cells[cell], part));
            for (int m = 0; m < p->mechanism_count; m++) {
                const result_value at = results_part(r, m, cell, part);
                fprintf(out, "<td>%.3f ± %.3f%s</td>", at.mean, at.error,
                        results_on_plateau(r, m, cell, part) ? ", on the plateau" : "");
            }
            fputs("</tr>\n", out);
        }
    fputs("</table></div>\n", out);
    fprintf(out, "<p>± is the standard error over %s.%s</p>\n",
            p->seed_count > 1 ? "seeds" : "test examples of the one seed",
            results_are_errors(p)
                ? " Saying 0 has the error 1."
                : " On the plateau: right about 1/N of the time, as one is who knows which answers "
                  "occur but not whose they are; more steps may end it.");
}

static void write_pictures(FILE *out, const plan *p)
{
    picture list[PICTURES];
    const int count = pictures_list(p, list);
    fputs("<h2>Pictures</h2>\n<div class=\"row\">\n", out);
    for (int i = 0; i < count; i++)
        fprintf(out, "<a href=\"%s\"><img src=\"%s\" alt=\"%s, against %s\"/></a>\n", list[i].name,
                list[i].name, list[i].title,
                list[i].curve                 ? "steps"
                : p->task == TRAIN_REGRESSION ? "S / L"
                                              : "N");
    fputs("</div>\n", out);
}

static void write_notes(FILE *out, const char *description, const char *left_out)
{
    fputs("<h2>What was run</h2>\n<p>", out);
    html_escape(out, description);
    fputs("</p>\n", out);
    if (*left_out) {
        fputs("<p>Left out to save time: ", out);
        html_escape(out, left_out);
        fputs(".</p>\n", out);
    }
    fputs("<p>Mamba-1 is left out: it decays each pair of a channel and a state by itself, which no "
          "recurrence of Loam does. Mamba-2 stands for it.</p>\n"
          "<p>Tables: <a href=\"best.csv\">best.csv</a>, <a href=\"runs.csv\">runs.csv</a>, <a "
          "href=\"times.csv\">times.csv</a>.</p>\n</body>\n</html>\n",
          out);
}

int page_write(const results *r, const claim *claims, int count, const char *description,
               const char *left_out, bool drawn, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    FILE *out = out_stream(file);
    html_head(out, title_of(r->plan));
    html_claims(out, "What the paper says", "Zuo et al. 2025", claims, count);
    write_values(out, r);
    if (drawn) write_pictures(out, r->plan);
    write_notes(out, description, left_out);
    return out_commit(file, error);
}
