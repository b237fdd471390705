/* SPDX-License-Identifier: MIT */
#include "cli/distill/report.h"

#include "cli/distill/arms.h"
#include "cli/distill/page.h"
#include "cli/distill/pictures.h"
#include "cli/distill/verdicts.h"
#include "io/out_file.h"

#include <inttypes.h>
#include <math.h>

/* ---- CSV */

static void put_number(FILE *out, double x)
{
    fputc(',', out);
    if (isfinite(x)) fprintf(out, "%.9g", x);
}

/* model, strategy, loss, seed, arm; empty where a cell has none. */
static void put_words(FILE *out, const cells *c, const cell *one)
{
    fprintf(out, "%s,%s,%s,", c->model, one->strategy < 0 ? "" : strategy_name(one->strategy),
            one->loss < 0 ? "" : course_loss(one->loss));
    if (one->seed > 0) fprintf(out, "%" PRId64, one->seed);
    fprintf(out, ",%s", distill_arm_at(one->arm)->name);
}

static void put_results(FILE *out, const cells *c)
{
    series list[SERIES];
    const int count = cells_series(c, list);
    for (int i = 0; i < c->count; i++) {
        const series own = { .cell = { &c->list[i] }, .seeds = 1 };
        if (!c->list[i].chosen) continue;
        const paired nll = series_difference(c, &own, NULL), more = series_difference(c, &own, &list[0]);
        put_words(out, c, &c->list[i]);
        fprintf(out, ",%" PRId64, nll.tokens);
        put_number(out, nll.mean), put_number(out, more.mean), put_number(out, more.error);
        put_number(out, series_gap(c, list, count, &own));
        fputc('\n', out);
    }
}

static void put_windows(FILE *out, const cells *c)
{
    for (int i = 0; i < c->count; i++)
        for (int64_t n = 0; c->list[i].chosen && n < c->windows; n++) {
            put_words(out, c, &c->list[i]);
            fprintf(out, ",%" PRId64 ",%d,%" PRId64 ",%.17g\n", n, c->text[n], c->tokens[n],
                    c->list[i].nll[n]);
        }
}

static void put_dimensions(FILE *out, const cells *c)
{
    for (int how = 0; strategy_name(how); how++) {
        const cell *one = distill_shared(c, how);
        for (int64_t layer = 0; one && layer < c->layers; layer++)
            fprintf(out, "%s,%s,%" PRId64 ",%.0f\n", c->model, strategy_name(how), layer,
                    one->features[layer]);
    }
}

/* Of windows that are longer than those of the calibration, by the place of a token in them. */
static void put_positions(FILE *out, const cells *c)
{
    for (int i = 0; i < c->count; i++) {
        if (!c->list[i].chosen || !cell_has_far(&c->list[i])) continue;
        for (int place = 0; place < TRIAL_PLACES; place++) {
            const paired nll = cell_far(c, &c->list[i], NULL, place),
                         more = cell_far(c, &c->list[i], &c->list[0], place);
            if (nll.tokens == 0) continue;
            put_words(out, c, &c->list[i]);
            fprintf(out, ",%" PRId64 ",%" PRId64 ",%" PRId64, place * c->length / TRIAL_PLACES,
                    (place + 1) * c->length / TRIAL_PLACES, nll.tokens);
            put_number(out, nll.mean), put_number(out, more.mean), put_number(out, more.error);
            fputc('\n', out);
        }
    }
}

static void put_speeds(FILE *out, const cells *c)
{
    static const char *const names[] = { "keys and values", "states" };
    for (int form = 0; form < 2; form++)
        for (int i = 0; i < SPEEDS && c->behind[i] > 0 && !isnan(c->speeds[form][i]); i++)
            fprintf(out, "%s,%s,%" PRId64 ",%.6g,%.6g,%" PRId64 "\n", c->model, names[form], c->behind[i],
                    1e3 * c->speeds[form][i], 1 / c->speeds[form][i],
                    c->bytes[form] * (form == 0 ? c->behind[i] : 1));
}

typedef void table(FILE *out, const cells *c);

static int write_table(const distill_report *r, const char *directory, const char *name, const char *head,
                       table *put, io_error *error)
{
    char path[EXPERIMENT_PATH];
    out_file *file;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    const int status = out_open(&file, path, error);
    if (status) return status;
    fprintf(out_stream(file), "%s\n", head);
    for (int i = 0; i < r->count; i++)
        put(out_stream(file), &r->models[i]);
    return out_commit(file, error);
}

/* ---- standard output */

static void print_model(FILE *out, const cells *c)
{
    series list[SERIES];
    claim claims[VERDICTS];
    char label[CELL_LABEL], text[64];
    const int count = cells_series(c, list), judged = verdicts_of(c, claims);
    fprintf(out, "\n%s\n%-26s %6s %10s %7s  %s\n", c->model, "attention", "seeds", cells_measure(c), "gap",
            "more than softmax");
    for (int i = 0; i < count; i++)
        fprintf(out, "%-26s %6d %10.4f %7.3f  %s\n", cell_label(list[i].cell[0], label), list[i].seeds,
                series_difference(c, &list[i], NULL).mean, series_gap(c, list, count, &list[i]),
                paired_text(series_difference(c, &list[i], &list[0]), text));
    for (int i = 0; i < judged; i++)
        fprintf(out, "\n%s\n  %s: %s\n", claims[i].text, verdict_names[claims[i].verdict], claims[i].numbers);
}

static int print(const distill_report *r, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, "-", error);
    for (int i = 0; !status && i < r->count; i++)
        print_model(out_stream(file), &r->models[i]);
    return status ? status : out_commit(file, error);
}

int distill_report_write(const distill_report *r, const char *directory, io_error *error)
{
    char path[EXPERIMENT_PATH];
    int status = write_table(r, directory, "windows.csv",
                             "model,strategy,loss,seed,arm,window,text,tokens,nll", put_windows, error);
    if (!status)
        status = write_table(r, directory, "dimensions.csv", "model,strategy,layer,features", put_dimensions,
                             error);
    if (!status)
        status = write_table(r, directory, "positions.csv",
                             "model,strategy,loss,seed,arm,first,end,tokens,nll,more,error", put_positions,
                             error);
    if (!status)
        status = write_table(r, directory, "speed.csv", "model,text,tokens,milliseconds,per_second,bytes",
                             put_speeds, error);
    for (int i = 0; !status && r->drawn && i < r->count; i++)
        status = distill_draw(&r->models[i], r->texts, i + 1, directory, error);
    snprintf(path, sizeof path, "%s/index.html", directory);
    if (!status) status = distill_page_write(r, path, error);
    if (!status)
        status = write_table(r, directory, "results.csv",
                             "model,strategy,loss,seed,arm,tokens,nll,more,error,gap", put_results, error);
    return status ? status : print(r, error);
}
