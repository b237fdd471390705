/* SPDX-License-Identifier: MIT */
#include "cli/command.h"
#include "cli/options.h"
#include "loam.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char ABOUT[] =
    "The kernels of this build, slowest first within each pass: what each computes, its element types, back "
    "end and instruction set, and whether this machine can run it.";

static const char NOTATION[] =
    "Local: p_j the softmax weights of the query q over the keys k_j, fitted anew for each query. "
    "Recurrent: one step from the\ndecayed state D = S a, a = e^(log decay): S = argmin <grad J(D), S - D> "
    "+ R / beta; mesa is the minimiser of J + R, w_i the\nweights that decay and beta leave. Cost: "
    "operations of one more token, d channels, after t tokens; n steps of conjugate\ngradients. Scores of "
    "the local family: q.k; with decay (FoX) plus the log decays between; with path (PaTH) the "
    "key\nreflected by the tokens between; after a rotation (RoPE).\n";

enum { COLUMNS = 7 };

typedef struct table_row {
    const char *cell[COLUMNS]; /* as many as the table has columns; NULL beyond */
} table_row;

/* Row `index` of a table, its heading at 0; false beyond the last. */
typedef bool row_at(int index, table_row *row);

static bool kernel_row(int index, table_row *row)
{
    loam_kernel_info k;
    *row = (table_row){ { "kernel", "pass", "mechanisms", "types", "back end", "isa", "available" } };
    if (index == 0) return true;
    if (loam_kernel_at(index - 1, &k)) return false;
    *row = (table_row){ { k.name, k.pass, k.mechanisms, k.dtypes, k.backend, k.isa,
                          k.available ? "yes" : "no" } };
    return true;
}

static bool mechanism_row(int index, table_row *row)
{
    loam_mechanism_info m;
    *row = (table_row){ { "mechanism", "objective J", "regulariser R", "update", "output", "cost", NULL } };
    if (index == 0) return true;
    if (loam_mechanism_at(index - 1, &m)) return false;
    *row = (table_row){ { m.name, m.objective, m.regulariser, m.update, m.output, m.cost, NULL } };
    return true;
}

/* Columns as wide as their longest cell, two blanks between; the last is not filled up. */
static void print_table(row_at *at)
{
    int width[COLUMNS] = { 0 };
    table_row row;
    for (int i = 0; at(i, &row); i++)
        for (int c = 0; c < COLUMNS && row.cell[c]; c++)
            width[c] = (int)strlen(row.cell[c]) > width[c] ? (int)strlen(row.cell[c]) : width[c];
    for (int i = 0; at(i, &row); i++)
        for (int c = 0; c < COLUMNS && row.cell[c]; c++) {
            const bool last = c + 1 == COLUMNS || !row.cell[c + 1];
            printf("%-*s%s", last ? 0 : width[c], row.cell[c], last ? "\n" : "  ");
        }
}

int command_list(int argc, char **argv)
{
    bool help, table = false;
    const option_row rows[] = {
        { "table", OPTION_FLAG, &table, 0, 0, NULL,
          "the mechanisms instead, each as a fit: objective, regulariser, update, output and cost" },
        { 0 }
    };
    io_error error;
    int status = options_parse(&argc, argv, rows, "loam list [--table]", ABOUT, &help, &error);
    if (!status && !help && argc > 1)
        status = io_fail(&error, EXIT_USAGE, "unexpected argument '%s'", argv[1]);
    if (status) return options_report("list", &error);
    if (help) return EXIT_OK;
    print_table(table ? mechanism_row : kernel_row);
    if (table) printf("\n%s", NOTATION);
    return EXIT_OK;
}
