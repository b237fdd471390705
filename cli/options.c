/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* getopt_long */
#include "cli/options.h"

#include "io/nearest.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMN = 26, LINE_WIDTH = 100, HELP_VALUE = 'h', FIRST_VALUE = 256 };

/* A bound of this size or more is none, and is not told. */
static const double UNBOUNDED = 1e18;

static size_t count_rows(const option_row *rows)
{
    size_t count = 0;
    while (rows[count].name)
        count++;
    return count;
}

/* Text broken at spaces, each line after the first begun at `column`. */
static void print_wrapped(const char *text, int at, int column)
{
    while (*text) {
        size_t word = strcspn(text, " \n");
        if (at > column && at + 1 + (int)word > LINE_WIDTH)
            printf("\n%*s", column, ""), at = column;
        else if (at > column)
            putchar(' '), at++;
        printf("%.*s", (int)word, text);
        at += (int)word;
        text += word;
        if (*text == '\n') printf("\n%*s", column, ""), at = column;
        text += *text != '\0';
    }
    putchar('\n');
}

static void print_row(const char *name, const char *argument, const char *help)
{
    int width = printf("  --%s%s%s", name, argument ? " " : "", argument ? argument : "");
    if (width + 2 > HELP_COLUMN) putchar('\n'), width = 0;
    printf("%*s", HELP_COLUMN - width, "");
    print_wrapped(help, HELP_COLUMN, HELP_COLUMN);
}

static void print_group(const option_row *row)
{
    printf("\n%s:\n", row->name);
    if (row->help) print_wrapped(row->help, 0, 0);
    if (row->argument) printf("  %s\n", row->argument);
}

static void print_help(const option_row *rows, const char *usage, const char *about)
{
    printf("usage: %s\n\n", usage);
    print_wrapped(about, 0, 0);
    if (rows->kind != OPTION_GROUP) printf("\noptions:\n");
    for (; rows->name; rows++)
        if (rows->kind == OPTION_GROUP)
            print_group(rows);
        else
            print_row(rows->name, rows->argument, rows->help);
    print_row("help", NULL, "this text");
}

/* "a whole number from 1 to 64", "a finite number of at least 0" */
static int out_of_range(const option_row *row, const char *text, io_error *error)
{
    const char *kind = row->kind == OPTION_INT ? "a whole number" : "a finite number";
    bool below = row->min > -UNBOUNDED, above = row->max < UNBOUNDED;
    if (below && above)
        return io_fail(error, EXIT_USAGE, "--%s %s: expected %s from %.15g to %.15g", row->name, text, kind,
                       row->min, row->max);
    if (below)
        return io_fail(error, EXIT_USAGE, "--%s %s: expected %s of at least %.15g", row->name, text, kind,
                       row->min);
    if (above)
        return io_fail(error, EXIT_USAGE, "--%s %s: expected %s of at most %.15g", row->name, text, kind,
                       row->max);
    return io_fail(error, EXIT_USAGE, "--%s %s: expected %s", row->name, text, kind);
}

static int set_int(const option_row *row, const char *text, io_error *error)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || (double)value < row->min || (double)value > row->max)
        return out_of_range(row, text, error);
    *(int64_t *)row->value = value;
    return 0;
}

static int set_real(const option_row *row, const char *text, io_error *error)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < row->min || value > row->max)
        return out_of_range(row, text, error);
    *(double *)row->value = value;
    return 0;
}

static int set_row(const option_row *row, bool *given, const char *text, io_error *error)
{
    if (*given) return io_fail(error, EXIT_USAGE, "--%s: given twice", row->name);
    *given = true;
    switch (row->kind) {
    case OPTION_FLAG: *(bool *)row->value = true; return 0;
    case OPTION_TEXT: *(const char **)row->value = text; return 0;
    case OPTION_INT: return set_int(row, text, error);
    case OPTION_REAL: return set_real(row, text, error);
    case OPTION_GROUP: break;
    }
    return io_fail(error, EXIT_INTERNAL, "--%s has no kind", row->name);
}

static int unknown_option(const char *given, const option_row *rows, io_error *error)
{
    const char *names[64] = { "help" };
    size_t name_length = strcspn(given, "=");
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)(name_length < 63 ? name_length : 63), given);
    const char *first = NULL;
    bool several = false;
    for (int count = 1; rows->name && count < 63; rows++) {
        if (rows->kind == OPTION_GROUP) continue;
        names[count++] = rows->name;
        if (strncmp(rows->name, word, strlen(word)) == 0) {
            several = first != NULL;
            first = first ? first : rows->name;
        }
    }
    if (several)
        return io_fail(error, EXIT_USAGE, "option --%s fits several options; did you mean --%s?", word,
                       first);
    const char *nearest = nearest_name(word, names);
    if (nearest) return io_fail(error, EXIT_USAGE, "unknown option --%s; did you mean --%s?", word, nearest);
    return io_fail(error, EXIT_USAGE, "unknown option --%s; see --help", word);
}

static int wrong_option(int result, char *const *argv, const option_row *rows, io_error *error)
{
    size_t count = count_rows(rows);
    if (optopt >= FIRST_VALUE && (size_t)(optopt - FIRST_VALUE) < count) {
        const option_row *row = &rows[optopt - FIRST_VALUE];
        if (result == ':')
            return io_fail(error, EXIT_USAGE, "--%s needs an argument: --%s %s", row->name, row->name,
                           row->argument ? row->argument : "VALUE");
        return io_fail(error, EXIT_USAGE, "--%s takes no argument", row->name);
    }
    if (optopt) return io_fail(error, EXIT_USAGE, "unknown option -%c; options are long: see --help", optopt);
    return unknown_option(argv[optind - 1] + 2, rows, error);
}

static struct option *long_options(const option_row *rows)
{
    size_t count = count_rows(rows);
    struct option *options = calloc(count + 2, sizeof *options), *next = options;
    if (!options) return NULL;
    for (size_t i = 0; i < count; i++) {
        int has_argument = rows[i].kind == OPTION_FLAG ? no_argument : required_argument;
        if (rows[i].kind != OPTION_GROUP)
            *next++ = (struct option){ rows[i].name, has_argument, NULL, FIRST_VALUE + (int)i };
    }
    *next = (struct option){ "help", no_argument, NULL, HELP_VALUE };
    return options;
}

/* The leading '-' makes getopt hand over positional arguments in order, whatever the environment says. */
static int parse_all(int *argc, char **argv, const option_row *rows, const struct option *options,
                     bool *given, bool *help, io_error *error)
{
    int positional = 0, result;
    optind = 0; /* makes glibc start afresh */
    opterr = 0;
    while ((result = getopt_long(*argc, argv, "-:h", options, NULL)) != -1) {
        int status = 0;
        if (result == '?' || result == ':')
            status = wrong_option(result, argv, rows, error);
        else if (result == HELP_VALUE)
            *help = true;
        else if (result == 1)
            argv[1 + positional++] = optarg;
        else
            status = set_row(&rows[result - FIRST_VALUE], &given[result - FIRST_VALUE], optarg, error);
        if (status) return status;
    }
    while (optind < *argc)
        argv[1 + positional++] = argv[optind++];
    *argc = 1 + positional;
    return 0;
}

int options_parse(int *argc, char **argv, const option_row *rows, const char *usage, const char *about,
                  bool *help, io_error *error)
{
    *help = false;
    struct option *options = long_options(rows);
    bool *given = calloc(count_rows(rows) + 1, sizeof *given);
    int status = options && given ? parse_all(argc, argv, rows, options, given, help, error)
                                  : io_fail(error, EXIT_INTERNAL, "out of memory for the options");
    free(options);
    free(given);
    if (!status && *help) print_help(rows, usage, about);
    return status;
}

const char *options_nearest(const char *word, const char *const *names) { return nearest_name(word, names); }

int options_choice(const char *word, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(word, names[i]) == 0) return i;
    return -1;
}

int options_report(const char *command, const io_error *error)
{
    fprintf(stderr, "loam %s: %s\n", command, error->text);
    return error->exit_status;
}
