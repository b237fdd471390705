/* SPDX-License-Identifier: MIT */
#include "cli/attend/attend.h"

#include "cli/command.h"
#include "cli/options.h"

void attend_free(attend_run *run)
{
    for (int i = 0; i < IN_COUNT; i++)
        array_free(&run->in[i]);
    for (int i = 0; i < OUT_COUNT; i++)
        array_free(&run->out[i]);
    attend_packed_free(run);
}

int command_attend(int argc, char **argv)
{
    attend_options options;
    io_error error;
    int status = attend_parse(&options, argc, argv, &error);
    if (status) return options_report("attend", &error);
    if (options.help) return EXIT_OK;
    attend_run run = { .options = &options };
    status = attend_read(&run, &error);
    if (!status) status = attend_rope_inputs(&run, &error);
    if (!status) status = attend_prepare(&run, &error);
    if (!status) status = (options.linear ? attend_interpolate : attend_compute)(&run, &error);
    if (!status) status = attend_rope_gradients(&run, &error);
    if (!status) status = attend_write(&run, &error);
    attend_free(&run);
    return status ? options_report("attend", &error) : EXIT_OK;
}
