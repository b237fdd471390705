/* SPDX-License-Identifier: MIT
 * The predictions as CSV and the summary for a person. */
#include "cli/regress/data.h"

#include <stdlib.h>
#include <string.h>

/* The fewest digits, from 15, that read back as the same number. */
static void print_exact(char *text, size_t size, double value)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, size, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
}

static void write_exact(FILE *stream, double value)
{
    char text[40];
    print_exact(text, sizeof text, value);
    fputs(text, stream);
}

/* A field, quoted as in RFC 4180 where it has to be; a reader would take spaces at its ends for padding. */
static void write_field(FILE *stream, const char *prefix, const char *name)
{
    const size_t length = strlen(name);
    const bool padded = length && (name[0] == ' ' || name[length - 1] == ' ');
    if (!padded && !strpbrk(name, ",;\t\"\r\n")) {
        fprintf(stream, "%s%s", prefix, name);
        return;
    }
    fprintf(stream, "\"%s", prefix);
    for (; *name; name++) {
        if (*name == '"') fputc('"', stream);
        fputc(*name, stream);
    }
    fputc('"', stream);
}

static void write_header(const regress_data *data, FILE *stream)
{
    const regress_settings *set = data->models[0].set;
    const int columns = data->models[0].columns;
    if (data->raw.label_column) {
        write_field(stream, "", data->raw.label_column);
        fputc(',', stream);
    }
    for (int c = 0; c < columns; c++) {
        write_field(stream, "", data->raw.names[c]);
        fputc(',', stream);
    }
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        if (!set->wanted[e]) continue;
        const char *name = regress_names[e];
        fprintf(stream, "%s_fit,", name);
        if (set->errors) fprintf(stream, "%s_se,%s_lower,%s_upper,", name, name, name);
        for (int c = 0; e == REGRESS_LINEAR && set->slopes && c < columns; c++) {
            write_field(stream, "linear_slope_", data->raw.names[c]);
            fputc(',', stream);
        }
    }
    fputs("note\n", stream);
}

static void write_commas(int count, FILE *stream)
{
    for (int i = 0; i < count; i++)
        fputc(',', stream);
}

static void write_slopes(const regress_model *model, const regress_points *points, int64_t i, FILE *stream)
{
    for (int c = 0; c < model->columns; c++) {
        const double slope = points->slopes[c * points->count + i];
        if (isfinite(slope)) fprintf(stream, "%.12g", slope);
        fputc(',', stream);
    }
}

static void write_fit(const regress_model *model, const regress_points *points, regress_estimator e,
                      int64_t i, FILE *stream)
{
    const regress_fit *fit = &points->fits[e][i];
    const bool slopes = e == REGRESS_LINEAR && points->slopes;
    if (!regress_has_data(points, e, i)) {
        write_commas(1 + 3 * model->set->errors + (slopes ? model->columns : 0), stream);
        return;
    }
    const double error = regress_standard_error(model, e, fit);
    fprintf(stream, "%.12g,", fit->value);
    if (model->set->errors && error < 0) write_commas(3, stream);
    if (error >= 0)
        fprintf(stream, "%.6g,%.12g,%.12g,", error, fit->value - model->set->reach * error,
                fit->value + model->set->reach * error);
    if (slopes) write_slopes(model, points, i, stream);
}

/* "linear singular; linear far": what a reader should know before trusting the line. */
static void write_note(const regress_points *points, int64_t i, FILE *stream)
{
    const char *between = "";
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        if (!points->fits[e]) continue;
        const bool empty = !regress_has_data(points, e, i);
        const struct {
            bool is;
            const char *word;
        } notes[] = { { empty, "no data" },
                      { !empty && points->fits[e][i].singular, "singular" },
                      { !empty && points->fits[e][i].far, "far" } };
        for (int n = 0; n < 3; n++) {
            if (!notes[n].is) continue;
            fprintf(stream, "%s%s %s", between, regress_names[e], notes[n].word);
            between = "; ";
        }
    }
    fputc('\n', stream);
}

static void write_points(const regress_model *model, const regress_points *points, FILE *stream)
{
    for (int64_t i = 0; i < points->count; i++) {
        if (model->group) {
            write_field(stream, "", model->group);
            fputc(',', stream);
        }
        for (int c = 0; c < model->columns; c++) {
            write_exact(stream, points->x[c * points->count + i]);
            fputc(',', stream);
        }
        for (int e = 0; e < REGRESS_ESTIMATORS; e++)
            if (points->fits[e]) write_fit(model, points, (regress_estimator)e, i, stream);
        write_note(points, i, stream);
    }
}

void regress_write_csv(const regress_data *data, const regress_points *points, FILE *stream)
{
    write_header(data, stream);
    for (int g = 0; g < data->count; g++)
        write_points(&data->models[g], &points[g], stream);
}

/* ---- the summary */

typedef double summary_value(const regress_model *model, int estimator, int column);

static double deviations_value(const regress_model *model, int estimator, int column)
{
    return regress_bandwidth_of(model, estimator, column) / model->table.deviation[column];
}

static double root(double square) { return square < 0 ? -1 : sqrt(square); }

static double score_value(const regress_model *model, int estimator, int column)
{
    (void)column;
    return root(model->noise[estimator].score);
}

static double noise_value(const regress_model *model, int estimator, int column)
{
    (void)column;
    return root(model->noise[estimator].variance);
}

static double parameters_value(const regress_model *model, int estimator, int column)
{
    (void)column;
    return model->noise[estimator].parameters;
}

static double bins_value(const regress_model *model, int estimator, int column)
{
    (void)column;
    return (double)regress_bins_count(&model->table.sorted, model->with[estimator].bandwidth,
                                      model->table.bins);
}

static void print_line(const regress_model *model, FILE *to, const char *label, const char *name,
                       summary_value *value, bool exact, int column)
{
    char text[64];
    snprintf(text, sizeof text, "%s%s", label, name);
    fprintf(to, "  %-32.32s", text);
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        if (!model->set->wanted[e]) continue;
        const double number = value(model, e, column);
        if (number < 0)
            snprintf(text, sizeof text, "unknown");
        else if (exact)
            print_exact(text, sizeof text, number);
        else
            snprintf(text, sizeof text, "%.4g", number);
        fprintf(to, " %22s", text);
    }
    fputc('\n', to);
}

static void print_warnings(const regress_model *model, const regress_points *points, FILE *to)
{
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        if (!model->set->wanted[e]) continue;
        const char *name = regress_names[e];
        const regress_tally tally = regress_count_points(points, e);
        if (tally.singular)
            fprintf(to,
                    "  %s: at %lld points too few distinct rows are in reach; the constant stands there\n",
                    name, (long long)tally.singular);
        if (tally.far)
            fprintf(to, "  %s: %lld points are more than about 6 bandwidths from any row\n", name,
                    (long long)tally.far);
        if (tally.empty)
            fprintf(to, "  %s: %lld of %lld points have no data around them and are left empty\n", name,
                    (long long)tally.empty, (long long)points->count);
        if (model->set->chosen && model->choice[e].smallest)
            fprintf(to, "  %s: the bandwidth is the smallest that was tried\n", name);
        if (model->set->chosen && model->choice[e].largest)
            fprintf(to, "  %s: the bandwidth is the largest that was tried: no local structure was found\n",
                    name);
    }
}

static void print_estimates(const regress_model *model, FILE *to)
{
    for (int c = 0; c < model->columns; c++) {
        print_line(model, to, "bandwidth of ", model->names[c], regress_bandwidth_of, true, c);
        print_line(model, to, "  in standard deviations", "", deviations_value, false, c);
    }
    if (model->set->chosen || model->set->errors)
        print_line(model, to, "leave-one-out error (rms)", "", score_value, false, 0);
    if (model->set->errors) {
        print_line(model, to, "noise (standard deviation)", "", noise_value, false, 0);
        print_line(model, to, "effective parameters", "", parameters_value, false, 0);
    }
    if (model->table.bins) print_line(model, to, "bins", "", bins_value, false, 0);
}

/* Which of the figures come from a sample of the rows. */
static void print_sample(const regress_model *model, FILE *to)
{
    const bool chosen = model->set->chosen, errors = model->set->errors;
    if (model->sample.count == model->rows || !(chosen || errors)) return;
    const char *what = !chosen  ? "errors and parameters"
                       : errors ? "bandwidth, errors and parameters"
                                : "bandwidth and leave-one-out error";
    fprintf(to, "  (%s are from a random sample of %lld rows)\n", what, (long long)model->sample.count);
}

static void print_model(const regress_model *model, const regress_points *points, FILE *to)
{
    if (!regress_is_fitted(model)) {
        fprintf(to, "%s: not fitted: %s\n", model->group, model->why.text);
        return;
    }
    if (model->group) fprintf(to, "%s: %lld rows\n", model->group, (long long)model->rows);
    fprintf(to, "  %-32s", "");
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        if (model->set->wanted[e]) fprintf(to, " %22s", regress_names[e]);
    fputc('\n', to);
    print_estimates(model, to);
    print_sample(model, to);
    if (model->table.bins)
        fprintf(to, "  (fits through bins, %d per bandwidth; --bins 0 uses the rows themselves)\n",
                model->table.bins);
    print_warnings(model, points, to);
}

void regress_print_summary(const regress_data *data, const regress_points *points, const char *path, FILE *to)
{
    const csv_table *raw = &data->raw;
    fprintf(to, "%s: %s by ", path, raw->names[raw->columns - 1]);
    for (int c = 0; c < raw->columns - 1; c++)
        fprintf(to, "%s%s", c ? ", " : "", raw->names[c]);
    fprintf(to, ", %lld rows", (long long)raw->rows);
    if (raw->dropped) fprintf(to, " (%lld more had missing values)", (long long)raw->dropped);
    if (raw->label_column) fprintf(to, ", one fit for each of %d %s", data->count, raw->label_column);
    fputc('\n', to);
    for (int g = 0; g < data->count; g++)
        print_model(&data->models[g], &points[g], to);
}
