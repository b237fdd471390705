/* SPDX-License-Identifier: MIT */
#include "cli/ridge/results.h"

#include "io/out_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char first_line[] = "loam experiment ridge 1\n";

int ridge_results_open(ridge_results *r, const ridge_plan *p, io_error *error)
{
    const size_t count = (size_t)p->window_count * (size_t)p->arm_count;
    *r = (ridge_results){ .plan = p };
    r->values = calloc(count, sizeof *r->values), r->seconds = calloc(count, sizeof *r->seconds);
    if (!r->values || !r->seconds) return io_fail(error, EXIT_INTERNAL, "out of memory for results");
    for (size_t i = 0; i < count; i++)
        r->values[i] = NAN;
    return 0;
}

void ridge_results_close(ridge_results *r)
{
    free(r->values);
    free(r->seconds);
    *r = (ridge_results){ 0 };
}

/* ---- the file */

static int damaged(const char *path, io_error *error)
{
    return io_fail(error, EXIT_INPUT, "%s is damaged; --restart discards it", path);
}

static int read_values(ridge_results *r, FILE *file, const char *path, io_error *error)
{
    const int64_t arms = r->plan->arm_count;
    int64_t window, arm;
    double value, seconds;
    char end[8];
    int got;
    while ((got = fscanf(file, "%" SCNd64 " %" SCNd64 " %la %la", &window, &arm, &value, &seconds)) == 4) {
        if (window < 0 || window >= r->plan->window_count || arm < 0 || arm >= arms || !isfinite(value) ||
            !(seconds >= 0))
            return damaged(path, error);
        r->values[window * arms + arm] = value, r->seconds[window * arms + arm] = seconds;
    }
    return got == 0 && fscanf(file, "%7s", end) == 1 && strcmp(end, "end") == 0 ? 0 : damaged(path, error);
}

static int read_checked(ridge_results *r, FILE *file, const char *path, const char *line, io_error *error)
{
    char text[2 * RIDGE_LINE];
    if (!fgets(text, sizeof text, file) || strcmp(text, first_line) != 0 || !fgets(text, sizeof text, file))
        return damaged(path, error);
    text[strcspn(text, "\n")] = '\0';
    if (strcmp(text, line) != 0)
        return io_fail(error, EXIT_INPUT,
                       "%s is of a run with another model, text, options or version: --restart discards it",
                       path);
    return read_values(r, file, path, error);
}

int ridge_results_load(ridge_results *r, const char *path, const char *line, io_error *error)
{
    FILE *file = fopen(path, "r");
    if (!file && errno == ENOENT) return 0;
    if (!file) return io_fail(error, EXIT_INPUT, "%s: %s", path, strerror(errno));
    const int status = read_checked(r, file, path, line, error);
    fclose(file);
    return status;
}

int ridge_results_save(const ridge_results *r, const char *path, const char *line, io_error *error)
{
    const int64_t arms = r->plan->arm_count;
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status) return status;
    fprintf(out_stream(file), "%s%s\n", first_line, line);
    for (int64_t i = 0; i < r->plan->window_count * arms; i++)
        if (!isnan(r->values[i]))
            fprintf(out_stream(file), "%" PRId64 " %" PRId64 " %a %a\n", i / arms, i % arms, r->values[i],
                    r->seconds[i]);
    fputs("end\n", out_stream(file));
    return out_commit(file, error);
}

/* ---- what is shown */

const char *paired_text(paired x, char text[64])
{
    if (isnan(x.mean))
        *text = '\0';
    else if (isnan(x.error))
        snprintf(text, 64, "%+.3g", x.mean);
    else
        snprintf(text, 64, "%+.3g ± %.2g", x.mean, x.error);
    return text;
}

paired paired_of(const double *values, const int64_t *scored, int64_t windows)
{
    paired out = { 0 };
    double sum = 0, squares = 0;
    for (int64_t n = 0; n < windows; n++)
        if (!isnan(values[n])) sum += values[n], out.tokens += scored[n], out.windows++;
    out.mean = sum / (double)out.tokens;
    for (int64_t n = 0; n < windows; n++)
        if (!isnan(values[n])) squares += pow(values[n] - out.mean * (double)scored[n], 2);
    const double w = (double)out.windows;
    out.error = out.windows < 2 ? (double)NAN : sqrt(squares * w / (w - 1)) / (double)out.tokens;
    return out;
}

static double value_of(const ridge_results *r, int64_t window, int arm)
{
    return r->values[window * r->plan->arm_count + arm];
}

paired ridge_difference(const ridge_results *r, int a, int b, int text)
{
    const ridge_plan *p = r->plan;
    double *values = calloc((size_t)p->window_count, sizeof *values);
    int64_t *scored = calloc((size_t)p->window_count, sizeof *scored);
    paired out = { NAN, NAN, 0, 0 };
    for (int64_t n = 0; values && scored && n < p->window_count; n++) {
        const bool in = text < 0 || p->windows[n].text == text;
        values[n] = !in ? NAN : value_of(r, n, a) - (b < 0 ? 0 : value_of(r, n, b));
        scored[n] = p->windows[n].at.scored;
    }
    if (values && scored) out = paired_of(values, scored, p->window_count);
    free(values);
    free(scored);
    return out;
}

double ridge_law(const ridge_results *r, int a, int b)
{
    const ridge_plan *p = r->plan;
    double apart = 0, whole = 0;
    for (int64_t n = 0; n < p->window_count; n++) {
        const double softmax = value_of(r, n, 0);
        const double at_b = (value_of(r, n, b) - softmax) * p->arms[b].ridge;
        apart += pow((value_of(r, n, a) - softmax) * p->arms[a].ridge - at_b, 2);
        whole += at_b * at_b;
    }
    return sqrt(apart / whole);
}

double ridge_seconds(const ridge_results *r, int arm, int64_t *read)
{
    double seconds = 0;
    *read = 0;
    for (int64_t n = 0; n < r->plan->window_count; n++)
        if (ridge_has(r->plan, n, arm)) {
            seconds += r->seconds[n * r->plan->arm_count + arm];
            *read += r->plan->windows[n].at.inputs;
        }
    return seconds;
}
