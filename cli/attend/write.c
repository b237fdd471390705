/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/attend/attend.h"

#include "io/npy.h"
#include "io/out_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const GRADIENT_FILES[OUT_COUNT] = { [OUT_DQ] = "dq.npy",
                                                       [OUT_DK] = "dk.npy",
                                                       [OUT_DV] = "dv.npy",
                                                       [OUT_DPROBE] = "dprobe.npy",
                                                       [OUT_DRIDGE] = "dridge.npy",
                                                       [OUT_DSCALE] = "dscale.npy",
                                                       [OUT_DSLOPE] = "dslope.npy",
                                                       [OUT_DKEY_BIAS] = "dkey_bias.npy",
                                                       [OUT_DSINK] = "dsink.npy",
                                                       [OUT_DLOG_DECAY] = "dlog_decay.npy",
                                                       [OUT_DBETA] = "dbeta.npy",
                                                       [OUT_DW] = "dw.npy",
                                                       [OUT_DSTATE] = "dstate.npy",
                                                       [OUT_DZ] = "dz.npy",
                                                       [OUT_DLOG_ALPHA] = "dlog_alpha.npy" };

/* Head `head` of sequence b begins at this row of all, and has `count` of them. */
static int64_t rows_of(const attend_run *run, int64_t b, int64_t head, int64_t heads, int64_t *count)
{
    const int64_t *cu = run->cu_q.at, tokens = attend_tokens_q(run);
    *count = cu ? cu[b + 1] - cu[b] : tokens;
    return cu ? head * tokens + cu[b] : (b * heads + head) * tokens;
}

static const char *known(const char *name) { return name ? name : "unknown"; }

static void write_info(FILE *stream, const attend_run *run)
{
    const loam_problem *p = &run->problem;
    const int64_t heads = p->heads_v ? p->heads_v : p->heads_q;
    fprintf(stream, "batch,head,token,code,solver,iterations,residual\n");
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t count;
            const loam_row_info *row = run->out[OUT_INFO].data;
            row += rows_of(run, b, h, heads, &count);
            for (int64_t i = 0; i < count; i++, row++)
                fprintf(stream, "%lld,%lld,%lld,%s,%s,%d,%.9g\n", (long long)b, (long long)h, (long long)i,
                        known(loam_row_code_name((loam_row_code)row->code)),
                        known(loam_solver_name((loam_solver)row->solver)), row->iterations,
                        (double)row->residual);
        }
}

int attend_gradient_path(char **path, const char *directory, enum attend_output which, io_error *error)
{
    const size_t room = strlen(directory) + 1 + strlen(GRADIENT_FILES[which]) + 1;
    *path = malloc(room);
    if (!*path) return io_fail(error, EXIT_INTERNAL, "out of memory for a name in %s", directory);
    snprintf(*path, room, "%s/%s", directory, GRADIENT_FILES[which]);
    return 0;
}

static int open_output(const attend_run *run, int which, out_file **file, io_error *error)
{
    char *path;
    if (which < OUT_DQ) return out_open(file, run->options->out[which], error);
    int status = attend_gradient_path(&path, run->options->grad_dir, (enum attend_output)which, error);
    if (!status) status = out_open(file, path, error);
    free(path);
    return status;
}

/* All complete under temporary names before the first gets its own. */
static int write_files(const attend_run *run, out_file *files[OUT_COUNT], io_error *error)
{
    int status = 0;
    for (int i = 0; i < OUT_COUNT && !status; i++) {
        if (!run->out[i].data) continue;
        status = open_output(run, i, &files[i], error);
        if (status) break;
        if (i == OUT_INFO)
            write_info(out_stream(files[i]), run);
        else
            npy_write_stream(out_stream(files[i]), &run->out[i]);
        status = out_finish(files[i], error);
    }
    for (int i = 0; i < OUT_COUNT && !status; i++)
        if (files[i]) {
            out_file *file = files[i];
            files[i] = NULL;
            status = out_commit(file, error);
        }
    return status;
}

int attend_write(const attend_run *run, io_error *error)
{
    const char *directory = run->options->grad_dir;
    bool made = directory && mkdir(directory, 0777) == 0;
    if (directory && !made && errno != EEXIST)
        return io_fail(error, EXIT_OUTPUT, "cannot make the directory %s: %s", directory, strerror(errno));
    out_file *files[OUT_COUNT] = { NULL };
    int status = write_files(run, files, error);
    for (int i = 0; i < OUT_COUNT; i++)
        out_discard(files[i]);
    if (status && made) rmdir(directory);
    return status;
}
