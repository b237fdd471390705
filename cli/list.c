/* SPDX-License-Identifier: MIT */
#include "cli/command.h"
#include "cli/options.h"
#include "loam.h"

#include <stdio.h>

static const char ABOUT[] =
    "The kernels of this build, slowest first within each pass: what each computes, its element types, back "
    "end and instruction set, and whether this machine can run it.";

static const char NOTATION[] =
    "Local: p_j the softmax weights of the query q over the keys k_j, fitted anew for each query. Recurrent: one step "
    "from the\ndecayed state D = S a, a = e^(log decay): S = argmin <grad J(D), S - D> + R / beta; mesa is the minimiser "
    "of J + R, w_i the\nweights that decay and beta leave. Cost: operations of one more token, d channels, after t "
    "tokens; n steps of conjugate\ngradients. Scores of the local family: q.k; with decay (FoX) plus the log decays "
    "between; with path (PaTH) the key\nreflected by the tokens between; after a rotation (RoPE).\n";

static void print_kernels(void)
{
    static const char format[] = "%-28s %-9s %-52s %-18s %-10s %-10s %s\n";
    printf(format, "kernel", "pass", "mechanisms", "types", "back end", "isa", "available");
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++)
        printf(format, row.name, row.pass, row.mechanisms, row.dtypes, row.backend, row.isa,
               row.available ? "yes" : "no");
}

static void print_mechanisms(void)
{
    static const char format[] = "%-11s %-39s %-21s %-42s %-36s %s\n";
    printf(format, "mechanism", "objective J", "regulariser R", "update", "output", "cost");
    loam_mechanism_info row;
    for (int i = 0; loam_mechanism_at(i, &row) == LOAM_OK; i++)
        printf(format, row.name, row.objective, row.regulariser, row.update, row.output, row.cost);
    printf("\n%s", NOTATION);
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
    if (!help) (table ? print_mechanisms : print_kernels)();
    return EXIT_OK;
}
