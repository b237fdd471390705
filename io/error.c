/* SPDX-License-Identifier: MIT */
#include "io/error.h"

#include <stdarg.h>
#include <stdio.h>

int io_fail(io_error *error, int exit_status, const char *format, ...)
{
    if (!error) return exit_status;
    error->exit_status = exit_status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    /* One line for a person: names from files and arguments may hold anything. */
    for (char *c = error->text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
    return exit_status;
}
