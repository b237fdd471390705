/* SPDX-License-Identifier: MIT */
#include "cli/ridge/report.h"

#include "cli/experiment/options.h"
#include "cli/ridge/claims.h"
#include "cli/ridge/page.h"
#include "cli/ridge/pictures.h"
#include "io/out_file.h"

#include <inttypes.h>
#include <math.h>

static const char *const kinds[] = { "softmax", "lla", "control", "layer", "head" };

/* ---- CSV */

static void write_number(FILE *out, double x)
{
    fputc(',', out);
    if (isfinite(x)) fprintf(out, "%.9g", x);
}

/* Of a text, or of all. */
static void write_row(FILE *out, const ridge_results *r, int index, int text)
{
    const ridge_plan *p = r->plan;
    const ridge_arm *a = &p->arms[index];
    const paired value = ridge_difference(r, index, -1, text), to = ridge_difference(r, index, 0, text);
    fprintf(out, "%s,", kinds[a->kind]);
    if (a->kind != ARM_SOFTMAX) fprintf(out, "%g,%s", a->ridge, loam_ridge_unit_name(a->unit));
    if (a->kind == ARM_SOFTMAX) fputc(',', out);
    fputc(',', out);
    if (a->layer >= 0) fprintf(out, "%" PRId64, a->layer);
    fputc(',', out);
    if (a->head >= 0) fprintf(out, "%" PRId64, a->head);
    fprintf(out, ",%.9g,%s,%" PRId64 ",%" PRId64, a->inverse_temperature, text < 0 ? "all" : p->names[text],
            value.windows, value.tokens);
    write_number(out, value.mean);
    write_number(out, value.error);
    write_number(out, to.mean);
    write_number(out, to.error);
    const int control = a->kind == ARM_LLA ? ridge_find(p, ARM_CONTROL, a->ridge, a->unit, -1, -1) : -1;
    const paired rest = control < 0 ? (paired){ NAN, NAN, 0, 0 } : ridge_difference(r, index, control, text);
    write_number(out, rest.mean);
    write_number(out, rest.error);
    fputc('\n', out);
}

/* Arms first .. end - 1. */
static int write_arms(const ridge_results *r, const char *path, int first, int end, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    fprintf(out_stream(file),
            "attention,ridge,unit,layer,head,inverse_temperature,text,windows,tokens,%s,%s_se,minus_softmax,"
            "minus_softmax_se,minus_control,minus_control_se\n",
            r->plan->encoder ? "away" : "nll", r->plan->encoder ? "away" : "nll");
    for (int index = first; index < end; index++)
        for (int text = r->plan->text_count > 1 ? -1 : 0; text < r->plan->text_count; text++)
            write_row(out_stream(file), r, index, text);
    return out_commit(file, error);
}

static int write_law(const ridge_report *r, const char *path, io_error *error)
{
    const int64_t layers = r->results->plan->layers;
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    fputs("layer,ridge,left_of_first_order\n", out_stream(file));
    for (int64_t layer = 0; layer <= layers; layer++)
        for (int n = 0; n < LAW_RIDGES; n++) {
            if (layer < layers)
                fprintf(out_stream(file), "%" PRId64, layer);
            else
                fputs("all", out_stream(file));
            fprintf(out_stream(file), ",%g,%.6g\n", law_ridges[n], r->law[layer][n]);
        }
    return out_commit(file, error);
}

static int write_times(const ridge_results *r, const char *path, io_error *error)
{
    const ridge_plan *p = r->plan;
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    fputs("attention,ridge,unit,layer,head,tokens,seconds,tokens_per_second\n", out_stream(file));
    for (int index = 0; index < p->arm_count; index++) {
        const ridge_arm *a = &p->arms[index];
        int64_t read;
        const double seconds = ridge_seconds(r, index, &read);
        fprintf(out_stream(file), "%s,%g,%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%.4g,%.4g\n", kinds[a->kind],
                a->ridge, loam_ridge_unit_name(a->unit), a->layer, a->head, read, seconds,
                (double)read / seconds);
    }
    return out_commit(file, error);
}

/* ---- the table */

/* In 20 columns; the sign takes two bytes. */
static void print_value(FILE *out, paired x)
{
    char text[64];
    fprintf(out, isnan(x.error) ? "  %20s" : "  %21s", paired_text(x, text));
}

static void print_curve(FILE *out, const ridge_results *r)
{
    const ridge_plan *p = r->plan;
    const paired softmax = ridge_difference(r, 0, -1, -1);
    char text[64];
    int64_t read;
    (void)ridge_seconds(r, 0, &read);
    fprintf(out, "\n%" PRId64 " windows, %" PRId64 " tokens\n%-22s %10s  %20s  %20s  %20s\n", softmax.windows,
            read, "attention", ridge_measure(p), "minus softmax", "control minus softmax", "minus control");
    fprintf(out, "%-22s %10.5f\n", "softmax", softmax.mean);
    for (int index = 1; index < p->curve_count; index++) {
        const ridge_arm *a = &p->arms[index];
        if (a->kind != ARM_LLA) continue;
        const int control = ridge_find(p, ARM_CONTROL, a->ridge, a->unit, -1, -1);
        const paired nothing = { NAN, NAN, 0, 0 };
        fprintf(out, "%-22s %10.5f", ridge_arm_text(a, text), ridge_difference(r, index, -1, -1).mean);
        print_value(out, ridge_difference(r, index, 0, -1));
        print_value(out, control < 0 ? nothing : ridge_difference(r, control, 0, -1));
        print_value(out, control < 0 ? nothing : ridge_difference(r, index, control, -1));
        fputc('\n', out);
    }
}

static int print_table(const ridge_results *r, const claim *claims, int count, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, "-", error);
    if (status) return status;
    FILE *out = out_stream(file);
    print_curve(out, r);
    for (int i = 0; i < count; i++)
        fprintf(out, "\n%s\n  %s: %s\n", claims[i].text, verdict_names[claims[i].verdict], claims[i].numbers);
    return out_commit(file, error);
}

static int write_tables(const ridge_report *r, const char *directory, io_error *error)
{
    const ridge_plan *p = r->results->plan;
    char path[EXPERIMENT_PATH];
    snprintf(path, sizeof path, "%s/curve.csv", directory);
    int status = write_arms(r->results, path, 0, p->curve_count, error);
    snprintf(path, sizeof path, "%s/parts.csv", directory);
    if (!status && p->arm_count > p->curve_count)
        status = write_arms(r->results, path, p->curve_count, p->arm_count, error);
    snprintf(path, sizeof path, "%s/law.csv", directory);
    if (!status) status = write_law(r, path, error);
    snprintf(path, sizeof path, "%s/times.csv", directory);
    return status ? status : write_times(r->results, path, error);
}

int ridge_report_write(const ridge_report *r, const char *directory, io_error *error)
{
    claim claims[RIDGE_CLAIMS];
    char path[EXPERIMENT_PATH];
    const int count = ridge_judge(r->results, r->law, claims);
    const ridge_page page = { r->results, r->model, r->description, claims, count, r->drawn };
    int status = write_tables(r, directory, error);
    if (!status && r->drawn) status = ridge_draw(r->results, directory, error);
    snprintf(path, sizeof path, "%s/index.html", directory);
    if (!status) status = ridge_page_write(&page, path, error);
    return status ? status : print_table(r->results, claims, count, error);
}
