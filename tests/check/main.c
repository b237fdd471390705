/* SPDX-License-Identifier: MIT
 *
 * loam-check [-k PATTERN] [-n CASES] [--seed SEED] [--budget B]
 * [--case TEXT] [--against ROW] [--rows NAMES] [--list] [-v]
 *
 * Runs every row of the registry on random cases against the float64 reference, or
 * against another row within the same bounds. A failure prints the command that
 * repeats it. --list names the rows of PATTERN that this machine can run instead. Exit
 * status: 0 all is well, 1 something is not, 2 bad usage, 77 no row to run here. */
#define _POSIX_C_SOURCE 200809L
#include "tests/check/condition.h"
#include "tests/check/full.h"
#include "tests/check/generate.h"
#include "tests/check/judge.h"
#include "tests/support/kernels.h"
#include "tests/support/run.h"

#include <fnmatch.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NO_ROW = 77, WARN_PERCENT = 50 };

typedef struct options {
    const char *pattern, *text, *rows, *against;
    long cases;
    uint64_t seed;
    double budget;
    int verbose, list, full;
} options;

typedef struct tally {
    long cases, failures, unsupported;
    double worst;
    verdict where;
    spec worst_spec;
} tally;

/* What a signal handler may print: the command that repeats the case under way. */
static char under_way[900];

static void on_crash(int signal_number)
{
    static const char head[] = "\nFAIL crashed (signal); rerun: ";
    ssize_t wrote = write(STDERR_FILENO, head, sizeof head - 1);
    wrote += write(STDERR_FILENO, under_way, strlen(under_way));
    wrote += write(STDERR_FILENO, "\n", 1);
    _exit(wrote > 0 ? 128 + signal_number : 128);
}

static void trap_crashes(void)
{
    static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
    struct sigaction action = { .sa_handler = on_crash };
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaction(signals[i], &action, NULL);
}

/* The same case on the reference: float64, dense, nothing left out. */
static values reference_of(const values *v, outcome *r)
{
    spec s = v->spec;
    s.dtype = LOAM_F64;
    s.backend = LOAM_BACKEND_REFERENCE;
    s.layout = 0;
    s.omit &= spec_omit(SLOT_WEIGHTS);
    s.kernel[0] = '\0';
    values want = values_like(&s, v);
    *r = run_values(&want);
    return want;
}

/* The outputs of another row on the same case, in the place of the reference's. */
static void replace_outputs(values *want, const values *got, const char *row, outcome *r)
{
    spec s = got->spec;
    snprintf(s.kernel, sizeof s.kernel, "%s", row);
    values other = values_like(&s, got);
    *r = run_values(&other);
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++)
        if (want->x[which] && other.x[which])
            memcpy(want->x[which], other.x[which], (size_t)slot_size(&other, (slot)which) * sizeof(double));
    if (want->info && other.info)
        memcpy(want->info, other.info, (size_t)slot_size(&other, SLOT_INFO) * sizeof *other.info);
    values_free(&other);
}

/* The probes that the mechanism uses, from a forward of the reference where the pass itself gives none. */
static values probes_of(const values *want)
{
    spec s = want->spec;
    s.pass = LOAM_FORWARD;
    s.omit = spec_omit(SLOT_WEIGHTS);
    values forward = values_like(&s, want);
    run_values(&forward);
    return forward;
}

/* The largest weight of a row decides the ridge; where two are the largest its derivative is not unique. */
static void avoid_ties(spec *s)
{
    if (s->mechanism != LOAM_LLA || s->ridge_unit != LOAM_RIDGE_MAX || s->pass != LOAM_BACKWARD) return;
    values v = values_make(s);
    condition x = condition_of(&v, NULL);
    s->ridge_unit = x.tied ? LOAM_RIDGE_NORMALISED : s->ridge_unit;
    condition_free(&x);
    values_free(&v);
}

static void report(const spec *s, const outcome *r, const verdict *v, const values *got, const values *want)
{
    char command[900];
    run_repeat_command(s, command, sizeof command);
    printf("FAIL %s: ", s->kernel);
    if (r->status) {
        printf("%s: %s", loam_status_text(r->status), r->error.text);
    } else if (r->misuse[0]) {
        printf("%s", r->misuse);
    } else if (v->text[0]) {
        printf("%s", v->text);
    } else {
        const shape a = slot_shape(want, v->worst);
        const int64_t row = ((v->at[0] * a.heads + v->at[1]) * a.tokens + v->at[2]) * a.channels;
        const double *w = want->x[v->worst] + row, *g = got->x[v->worst] + row;
        int64_t at = 0;
        for (int64_t c = 1; c < a.channels; c++)
            at = fabs(g[c] - w[c]) > fabs(g[at] - w[at]) ? c : at;
        printf("%s at [%lld,%lld,%lld,%lld] is %.9g, reference %.9g; the row is %.3g of its tolerance",
               slot_names[v->worst], (long long)v->at[0], (long long)v->at[1], (long long)v->at[2],
               (long long)at, g[at], w[at], v->fraction);
    }
    printf("; rerun: %s\n", command);
}

static void run_case(spec s, const options *o, tally *t)
{
    avoid_ties(&s);
    run_repeat_command(&s, under_way, sizeof under_way);
    values got = values_make(&s);
    outcome r = run_values(&got), reference = { LOAM_OK, { LOAM_OK, "" }, "" };
    if (r.status == LOAM_EUNSUPPORTED) {
        t->unsupported++;
        values_free(&got);
        return;
    }
    values want = reference_of(&got, &reference);
    values probes = probes_of(&want);
    if (o->against && !reference.status) replace_outputs(&want, &got, o->against, &reference);
    verdict v = { 0, SLOT_O, { 0, 0, 0 }, "" };
    if (!r.status && !reference.status) v = judge(&got, &want, probes.x[SLOT_RHO]);
    const outcome *bad = r.status || !reference.status ? &r : &reference;
    const int failed = bad->status || bad->misuse[0] || v.text[0] || !(v.fraction <= 1);
    t->cases++;
    t->failures += failed;
    if (failed || o->verbose) {
        if (failed && t->failures <= 20) report(&s, bad, &v, &got, &want);
        if (o->verbose) printf("%.3g %s %s\n", v.fraction, slot_names[v.worst], under_way);
    }
    if (!(v.fraction <= t->worst)) {
        t->worst = v.fraction;
        t->where = v;
        t->worst_spec = s;
    }
    values_free(&got);
    values_free(&want);
    values_free(&probes);
}

static int run_row(const loam_kernel_info *row, const options *o)
{
    tally t = { 0 };
    spec s;
    if (o->text) {
        if (spec_parse(&s, o->text)) return 1;
        snprintf(s.kernel, sizeof s.kernel, "%s", row->name);
        run_case(s, o, &t);
    }
    spec full[FULL_MOST];
    const int count = o->full ? full_specs(row, full) : 0;
    for (int n = 0; n < count; n++)
        run_case(full[n], o, &t);
    for (long n = 0; !o->text && !o->full && n < o->cases; n++)
        run_case(generate_spec(row, o->seed, (uint64_t)n, o->budget), o, &t);
    char command[900];
    run_repeat_command(&t.worst_spec, command, sizeof command);
    printf("%-28s %ld cases, %ld failed, %ld unsupported, seed %llu, worst %.3g of tolerance in %s at "
           "[%lld,%lld,%lld]\n",
           row->name, t.cases, t.failures, t.unsupported, (unsigned long long)o->seed, t.worst,
           slot_names[t.where.worst], (long long)t.where.at[0], (long long)t.where.at[1],
           (long long)t.where.at[2]);
    if (t.worst * 100 > WARN_PERCENT)
        printf("%s: %s\n", t.worst > 1 ? "worst" : "warning, close to the tolerance", command);
    /* A row that declines much of what is asked is not tested. */
    const int declines = t.unsupported * 10 > t.cases;
    if (declines)
        printf("FAIL %s: declined %ld of %ld cases\n", row->name, t.unsupported, t.cases + t.unsupported);
    return t.failures > 0 || declines;
}

/* Every row of the registry must be among `names`, each of which is a test of its own. */
static int check_rows(const char *names)
{
    loam_kernel_info row;
    int missing = 0;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++) {
        if (!kernel_lists(names, row.name)) {
            printf("FAIL %s is in the registry but has no test\n", row.name);
            missing = 1;
        }
    }
    return missing;
}

/* Can this machine run the row `against`, and does it the same pass? */
static int is_comparable(const loam_kernel_info *row, const char *against)
{
    loam_kernel_info other;
    return !against || (loam_kernel_at(kernel_find(against), &other) == LOAM_OK && other.available &&
                        strcmp(other.pass, row->pass) == 0);
}

static int parse(int argc, char **argv, options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "-v") == 0 || strcmp(argv[i], "--list") == 0 || strcmp(argv[i], "--full") == 0) {
            *(argv[i][1] == 'v' ? &o->verbose : argv[i][2] == 'l' ? &o->list : &o->full) = 1;
            continue;
        }
        if (!value) return -1;
        if (strcmp(argv[i], "-k") == 0)
            o->pattern = value;
        else if (strcmp(argv[i], "-n") == 0)
            o->cases = strtol(value, NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0)
            o->seed = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--budget") == 0)
            o->budget = strtod(value, NULL);
        else if (strcmp(argv[i], "--case") == 0)
            o->text = value;
        else if (strcmp(argv[i], "--against") == 0)
            o->against = value;
        else if (strcmp(argv[i], "--rows") == 0)
            o->rows = value;
        else
            return -1;
        i++;
    }
    return 0;
}

/* By the row's name, or all rows of a back end by the back end's. */
static int is_asked_for(const loam_kernel_info *row, const char *pattern)
{
    return fnmatch(pattern, row->name, 0) == 0 || strcmp(pattern, row->backend) == 0;
}

int main(int argc, char **argv)
{
    options o = { .pattern = "*", .cases = 500, .seed = 1, .budget = 1e7 };
    if (parse(argc, argv, &o)) {
        fprintf(stderr,
                "usage: %s [-k PATTERN] [-n CASES] [--seed SEED] [--budget B] [--case TEXT] [--against ROW] "
                "[--rows NAMES] [--full] [--list] [-v]\n",
                argv[0]);
        return 2;
    }
    if (o.rows) return check_rows(o.rows);
    setvbuf(stdout, NULL, _IOLBF, 0);
    trap_crashes();
    loam_kernel_info row;
    int ran = 0, failed = 0;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++) {
        if (row.available && is_comparable(&row, o.against) && is_asked_for(&row, o.pattern)) {
            ran = 1;
            if (o.list)
                printf("%s\n", row.name);
            else
                failed |= run_row(&row, &o);
        }
    }
    if (!ran) {
        printf("no row '%s' that this machine can run\n", o.pattern);
        return NO_ROW;
    }
    return failed;
}
