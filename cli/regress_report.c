/* SPDX-License-Identifier: MIT
 * The predictions as CSV and the summary for a person. */
#include "cli/regress_model.h"

#include <stdlib.h>
#include <string.h>

/* The fewest digits that read back as the same number. */
static void write_exact(FILE *stream, double value)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    fputs(text, stream);
}

/* Quoted as in RFC 4180 where it has to be. */
static void write_name(FILE *stream, const char *name)
{
    if (!strpbrk(name, ",\"\r\n")) {
        fputs(name, stream);
        return;
    }
    fputc('"', stream);
    for (; *name; name++) {
        if (*name == '"') fputc('"', stream);
        fputc(*name, stream);
    }
    fputc('"', stream);
}

static void write_header(const regress_model *model, FILE *stream)
{
    for (int c = 0; c < model->columns; c++) {
        write_name(stream, model->raw.names[c]);
        fputc(',', stream);
    }
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        if (model->wanted[e])
            fprintf(stream, "%s_fit,%s_se,%s_lower,%s_upper,", regress_names[e], regress_names[e],
                    regress_names[e], regress_names[e]);
    fputs("note\n", stream);
}

static void write_fit(const regress_model *model, regress_estimator e, const regress_fit *fit, FILE *stream)
{
    const double error = regress_standard_error(model, e, fit);
    if (error < 0)
        fprintf(stream, "%.12g,,,,", fit->value);
    else
        fprintf(stream, "%.12g,%.6g,%.12g,%.12g,", fit->value, error, fit->value - model->reach * error,
                fit->value + model->reach * error);
}

/* "linear singular; linear far": what a reader should know before trusting the line. */
static void write_note(const regress_points *points, int64_t i, FILE *stream)
{
    const char *between = "";
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        if (!points->fits[e]) continue;
        const struct {
            bool is;
            const char *word;
        } notes[] = { { points->fits[e][i].singular, "singular" }, { points->fits[e][i].far, "far" } };
        for (int n = 0; n < 2; n++) {
            if (!notes[n].is) continue;
            fprintf(stream, "%s%s %s", between, regress_names[e], notes[n].word);
            between = "; ";
        }
    }
    fputc('\n', stream);
}

void regress_write_csv(const regress_model *model, const regress_points *points, FILE *stream)
{
    write_header(model, stream);
    for (int64_t i = 0; i < points->count; i++) {
        for (int c = 0; c < model->columns; c++) {
            write_exact(stream, points->x[c * points->count + i]);
            fputc(',', stream);
        }
        for (int e = 0; e < REGRESS_ESTIMATORS; e++)
            if (points->fits[e]) write_fit(model, (regress_estimator)e, &points->fits[e][i], stream);
        write_note(points, i, stream);
    }
}

/* ---- the summary */

typedef double summary_value(const regress_model *model, int estimator, int column);

static double bandwidth_value(const regress_model *model, int estimator, int column)
{
    (void)column;
    return model->with[estimator].bandwidth;
}

static double column_bandwidth_value(const regress_model *model, int estimator, int column)
{
    return model->with[estimator].bandwidth * model->table.deviation[column];
}

static double score_value(const regress_model *model, int estimator, int column)
{
    (void)column;
    return sqrt(model->noise[estimator].score);
}

static double noise_value(const regress_model *model, int estimator, int column)
{
    (void)column;
    const double variance = model->noise[estimator].variance;
    return variance < 0 ? -1 : sqrt(variance);
}

static double parameters_value(const regress_model *model, int estimator, int column)
{
    (void)column;
    return model->noise[estimator].parameters;
}

static void print_line(const regress_model *model, FILE *to, const char *label, const char *name,
                       summary_value *value, int column)
{
    char text[64];
    snprintf(text, sizeof text, "%s%s", label, name);
    fprintf(to, "  %-36.36s", text);
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        if (!model->wanted[e]) continue;
        const double number = value(model, e, column);
        if (number < 0)
            fprintf(to, " %12s", "unknown");
        else
            fprintf(to, " %12.4g", number);
    }
    fputc('\n', to);
}

static void print_warnings(const regress_model *model, const regress_points *points, FILE *to)
{
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        if (!model->wanted[e]) continue;
        const char *name = regress_names[e];
        int64_t far = 0, singular = 0;
        for (int64_t i = 0; i < points->count; i++)
            far += points->fits[e][i].far, singular += points->fits[e][i].singular;
        if (singular)
            fprintf(to,
                    "  %s: at %lld points too few distinct rows are in reach; the constant stands there\n",
                    name, (long long)singular);
        if (far)
            fprintf(to, "  %s: %lld points are more than about 6 bandwidths from any row\n", name,
                    (long long)far);
        if (model->chosen && model->choice[e].smallest)
            fprintf(to, "  %s: the bandwidth is the smallest that was tried\n", name);
        if (model->chosen && model->choice[e].largest)
            fprintf(to, "  %s: the bandwidth is the largest that was tried: no local structure was found\n",
                    name);
    }
}

void regress_print_summary(const regress_model *model, const regress_points *points, const char *path,
                           FILE *to)
{
    const csv_table *raw = &model->raw;
    fprintf(to, "%s: %s by ", path, raw->names[model->columns]);
    for (int c = 0; c < model->columns; c++)
        fprintf(to, "%s%s", c ? ", " : "", raw->names[c]);
    fprintf(to, ", %lld rows", (long long)raw->rows);
    if (raw->dropped) fprintf(to, " (%lld more had missing values)", (long long)raw->dropped);
    fprintf(to, "\n  %-36s", "");
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        if (model->wanted[e]) fprintf(to, " %12s", regress_names[e]);
    fputc('\n', to);
    print_line(model, to, "bandwidth, standard deviations", "", bandwidth_value, 0);
    for (int c = 0; c < model->columns; c++)
        print_line(model, to, "  in units of ", raw->names[c], column_bandwidth_value, c);
    print_line(model, to, "leave-one-out error (root mean sq.)", "", score_value, 0);
    print_line(model, to, "noise (standard deviation)", "", noise_value, 0);
    print_line(model, to, "effective parameters", "", parameters_value, 0);
    if (model->sample.count < raw->rows)
        fprintf(to, "  (the last three%s from a random sample of %lld rows)\n",
                model->chosen ? " and the choice of the bandwidth are" : " are",
                (long long)model->sample.count);
    print_warnings(model, points, to);
}
