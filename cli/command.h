/* SPDX-License-Identifier: MIT
 * The subcommands of the program. Each gets argv with its own name at argv[0] and returns an exit status
 * of io/error.h, having said on stderr in one line what went wrong. */
#ifndef LOAM_CLI_COMMAND_H
#define LOAM_CLI_COMMAND_H

int command_attend(int argc, char **argv);
int command_regress(int argc, char **argv);
int command_experiment(int argc, char **argv);
int command_convert(int argc, char **argv);
int command_distill(int argc, char **argv);
int command_dof(int argc, char **argv);
int command_lm(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_list(int argc, char **argv);
int command_info(int argc, char **argv);

#endif
