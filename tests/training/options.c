/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/training/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

int option_words(char *text, char *argv[OPTION_WORDS])
{
    char *rest;
    int argc = 0;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        assert_true(argc < OPTION_WORDS);
        argv[argc++] = word;
    }
    return argc;
}

void read_options(request *r, train_task task, const char *options)
{
    char text[512], *argv[OPTION_WORDS];
    bool help;
    io_error error;
    snprintf(text, sizeof text, "%s", options);
    const int argc = option_words(text, argv);
    if (request_read(r, task, argc, argv, &help, &error) != EXIT_OK) fail_msg("%s", error.text);
    assert_false(help);
}
