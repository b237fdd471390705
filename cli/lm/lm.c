/* SPDX-License-Identifier: MIT
 * loam lm NAME ...: finds the command. */
#include "cli/lm/lm.h"

#include "cli/command.h"
#include "cli/names.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    lm_command *run;
    const char *help;
} commands[] = {
    { "info", lm_info, "what a model is" },
    { "eval", lm_eval, "how well it predicts texts" },
    { "generate", lm_generate, "what it writes after a prompt" },
    { "embed", lm_embed, "vectors of sentences, one a line" },
    { "data", lm_data, "shards of tokens from texts, to train on" },
    { "items", lm_make_items, "questions with choices from held-out text" },
    { "train", lm_train, "trains one from nothing" },
    { "tune", lm_tune, "trains on: features of a student, LoRA or all weights" },
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static const char *name_at(int index) { return index < COMMANDS ? commands[index].name : NULL; }

static void print_help(void)
{
    printf("usage: loam lm COMMAND [options]\n\n"
           "Pretrained Transformers: GPT-2, GPT-NeoX, Llama and BERT. MODEL is a folder with\n"
           "config.json, model.safetensors (or its shards) and tokenizer.json, or a .gguf file.\n"
           "Their attention can be any mechanism of the library.\n\ncommands:\n");
    for (int i = 0; i < COMMANDS; i++)
        printf("  %-12s %s\n", commands[i].name, commands[i].help);
    printf("\nloam lm COMMAND --help tells the options.\n");
}

int command_lm(int argc, char **argv)
{
    io_error error;
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_help();
        return EXIT_OK;
    }
    for (int i = 0; i < COMMANDS && argc > 1; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1, &error) ? options_report("lm", &error) : EXIT_OK;
    char names[NAMES_BYTES];
    io_fail(&error, EXIT_USAGE, "%s%s; expected %s", argc < 2 ? "no command named" : "unknown argument ",
            argc < 2 ? "" : argv[1], names_list(names, name_at, " or "));
    return options_report("lm", &error);
}
