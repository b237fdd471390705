/* SPDX-License-Identifier: MIT
 * loam COMMAND ...: finds the command, and sees to it that what was printed has arrived. */
#define _POSIX_C_SOURCE 200809L
#include "cli/command.h"
#include "cli/options.h"
#include "loam.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} command;

static const command COMMANDS[] = {
    { "attend", command_attend, "attention, local or recurrent, of arrays in files" },
    { "regress", command_regress, "local regression on a table" },
    { "experiment", command_experiment, "two regression tasks at test time: who predicts best" },
    { "lm", command_lm, "language models: what they are, predict and write" },
    { "dof", command_dof, "how many features the heads of a language model need" },
    { "distill", command_distill, "a language model with features in the place of softmax" },
    { "convert", command_convert, "a language model into the files of the Hugging Face library" },
    { "bench", command_bench, "the speed of the kernels against what the machine can do" },
    { "list", command_list, "the kernels of this build, or the mechanisms as fits" },
    { "info", command_info, "machine, features, threads, versions" },
};
enum { COMMAND_COUNT = sizeof COMMANDS / sizeof *COMMANDS };

static void print_help(void)
{
    printf("usage: loam COMMAND ...\n\nAttention as local regression.\n\ncommands:\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        printf("  %-12s %s\n", COMMANDS[i].name, COMMANDS[i].help);
    printf("\nloam COMMAND --help tells the options; loam --version the version.\n"
           "Exit status: 0 done, 1 a bug or too little memory, 2 wrong options, 3 wrong input, 4 output not "
           "written.\n");
}

static int unknown_command(const char *word)
{
    const char *names[COMMAND_COUNT + 1] = { NULL };
    for (int i = 0; i < COMMAND_COUNT; i++)
        names[i] = COMMANDS[i].name;
    const char *nearest = options_nearest(word, names);
    if (nearest)
        fprintf(stderr, "loam: unknown command '%s'; did you mean '%s'?\n", word, nearest);
    else
        fprintf(stderr, "loam: unknown command '%s'; see loam --help\n", word);
    return EXIT_USAGE;
}

static int run_command(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "loam: say which command; see loam --help\n");
        return EXIT_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_help();
        return EXIT_OK;
    }
    if (strcmp(word, "--version") == 0) {
        printf("loam %s\n", loam_version());
        return EXIT_OK;
    }
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(word, COMMANDS[i].name) == 0) return COMMANDS[i].run(argc - 1, argv + 1);
    return unknown_command(word);
}

/* A file opened while descriptor 1 is closed would get that number, and be printed into. */
static void occupy_standard_descriptors(void)
{
    int descriptor;
    do
        descriptor = open("/dev/null", O_RDONLY);
    while (descriptor >= 0 && descriptor <= STDERR_FILENO);
    if (descriptor > STDERR_FILENO) close(descriptor);
}

/* Printed text that did not arrive is a failure, also where the reader of a pipe has gone. Why an earlier
 * write failed is not kept: another one fails alike. */
static int check_stdout(int status)
{
    int failed = ferror(stdout);
    if (failed) putchar('\n');
    errno = 0;
    failed |= fflush(stdout);
    if (!failed || status) return status;
    fprintf(stderr, "loam: cannot write standard output: %s\n", errno ? strerror(errno) : "write error");
    return EXIT_OUTPUT;
}

int main(int argc, char **argv)
{
    occupy_standard_descriptors();
    signal(SIGPIPE, SIG_IGN);
    return check_stdout(run_command(argc, argv));
}
