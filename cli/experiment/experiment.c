/* SPDX-License-Identifier: MIT
 * loam experiment NAME ...: finds the experiment. */
#include "cli/command.h"

#include "cli/experiment/options.h"
#include "cli/names.h"
#include "cli/options.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    experiment_run *run;
    const char *help;
} experiments[] = {
    { "regression", experiment_regression, "linear maps that change from segment to segment, without noise" },
    { "smooth", experiment_smooth, "one smooth map, seen through noise" },
    { "rates", experiment_rates, "how fast errors fall with the number of pairs" },
    { "memory", experiment_memory, "the working memory of Local Linear Attention" },
    { "context", experiment_context, "small models learn regression in context" },
    { "recall", experiment_recall, "small models learn associative recall" },
    { "swaps", experiment_swaps, "small models learn to follow swaps" },
    { "probe", experiment_probe, "what Parallax's probe becomes under AdamW and Muon" },
    { "ridge", experiment_ridge, "a pretrained model with Local Linear Attention in softmax's place" },
    { "graft", experiment_graft, "ridges, probes and LoRA trained on top of a pretrained model" },
    { "distill", experiment_distill, "pretrained models with positive features in softmax's place" },
};
enum { EXPERIMENTS = sizeof experiments / sizeof *experiments };

static const char *name_at(int index) { return index < EXPERIMENTS ? experiments[index].name : NULL; }

static void print_help(void)
{
    printf("usage: loam experiment NAME [options]\n\n"
           "Without training: regression at test time, in which each estimator predicts\n"
           "values of keys from pairs that it is shown, and what that takes. With training:\n"
           "small models whose attention is any mechanism learn a task.\n\nexperiments:\n");
    for (int i = 0; i < EXPERIMENTS; i++)
        printf("  %-12s %s\n", experiments[i].name, experiments[i].help);
    printf("\nloam experiment NAME --help tells the options.\n");
}

static int run_experiment(experiment_run *run, int argc, char **argv)
{
    io_error error;
    const char *out = NULL;
    if (run(argc, argv, &out, &error) != EXIT_OK) return options_report("experiment", &error);
    if (out) printf("\nResults and pictures are in %s\n", out);
    return EXIT_OK;
}

int command_experiment(int argc, char **argv)
{
    io_error error;
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_help();
        return EXIT_OK;
    }
    for (int i = 0; i < EXPERIMENTS && argc > 1; i++)
        if (strcmp(argv[1], experiments[i].name) == 0)
            return run_experiment(experiments[i].run, argc - 1, argv + 1);
    char names[NAMES_BYTES];
    io_fail(&error, EXIT_USAGE, "%s%s; expected %s", argc < 2 ? "no experiment named" : "unknown argument ",
            argc < 2 ? "" : argv[1], names_list(names, name_at, " or "));
    return options_report("experiment", &error);
}
