/* SPDX-License-Identifier: MIT */
#include "cli/command.h"
#include "cli/options.h"
#include "loam.h"

#include <stdio.h>

static const char ABOUT[] =
    "The kernels of this build, slowest first within each pass: what each computes, its element types, back "
    "end and instruction set, and whether this machine can run it.";

static void print_kernels(void)
{
    static const char format[] = "%-28s %-9s %-52s %-18s %-10s %-10s %s\n";
    printf(format, "kernel", "pass", "mechanisms", "types", "back end", "isa", "available");
    loam_kernel_info row;
    for (int i = 0; loam_kernel_at(i, &row) == LOAM_OK; i++)
        printf(format, row.name, row.pass, row.mechanisms, row.dtypes, row.backend, row.isa,
               row.available ? "yes" : "no");
}

int command_list(int argc, char **argv)
{
    const option_row rows[] = { { 0 } };
    bool help;
    io_error error;
    int status = options_parse(&argc, argv, rows, "loam list", ABOUT, &help, &error);
    if (!status && !help && argc > 1)
        status = io_fail(&error, EXIT_USAGE, "unexpected argument '%s'", argv[1]);
    if (status) return options_report("list", &error);
    if (!help) print_kernels();
    return EXIT_OK;
}
