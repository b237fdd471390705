/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/training/state.h"

#include "io/out_file.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 4096 };

static int damaged(const char *path, io_error *error)
{
    return io_fail(error, EXIT_INPUT, "%s is damaged; --restart discards it", path);
}

/* ---- the line of options */

static void plan_path(const char *directory, char path[STATE_PATH])
{
    snprintf(path, STATE_PATH, "%s/plan", directory);
}

static int compare(FILE *file, const char *path, const char *line, int *drops, io_error *error)
{
    char text[LINE];
    if (!fgets(text, sizeof text, file)) return damaged(path, error);
    text[strcspn(text, "\n")] = '\0';
    if (strcmp(text, line) != 0)
        return io_fail(error, EXIT_INPUT,
                       "%s is of a run with other options or version: --restart discards it", path);
    return fscanf(file, "%d", drops) == 1 && *drops >= 0 ? EXIT_OK : damaged(path, error);
}

int training_state_open(const char *directory, const char *line, bool *found, int *drops, io_error *error)
{
    char path[STATE_PATH];
    plan_path(directory, path);
    FILE *file = fopen(path, "r");
    *found = file != NULL;
    *drops = 0;
    if (!file && errno == ENOENT) return EXIT_OK;
    if (!file) return io_fail(error, EXIT_INPUT, "%s: %s", path, strerror(errno));
    const int status = compare(file, path, line, drops, error);
    fclose(file);
    return status;
}

int training_state_begin(const char *directory, const char *line, int drops, io_error *error)
{
    char path[STATE_PATH];
    out_file *file;
    plan_path(directory, path);
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    fprintf(out_stream(file), "%s\n%d\n", line, drops);
    return out_commit(file, error);
}

static bool ends_in(const char *name, const char *ending)
{
    const size_t length = strlen(name), tail = strlen(ending);
    return length > tail && strcmp(name + length - tail, ending) == 0;
}

void training_state_remove(const char *directory)
{
    DIR *entries = opendir(directory);
    if (!entries) return;
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;)
        if (ends_in(entry->d_name, ".safetensors") || ends_in(entry->d_name, ".done") ||
            ends_in(entry->d_name, ".probe") || ends_in(entry->d_name, ".tmp") ||
            strcmp(entry->d_name, "plan") == 0)
            unlinkat(dirfd(entries), entry->d_name, 0);
    closedir(entries);
    rmdir(directory);
}

/* ---- stacks */

static void stack_path(const char *directory, const plan *p, plan_stack stack, const char *ending,
                       char path[STATE_PATH])
{
    char name[64];
    plan_stack_name(p, stack, name);
    snprintf(path, STATE_PATH, "%s/%s.%s", directory, name, ending);
}

void training_state_checkpoint(const char *directory, const plan *p, plan_stack stack, char path[STATE_PATH])
{
    stack_path(directory, p, stack, "safetensors", path);
}

void training_state_probe(const char *directory, const plan *p, plan_stack stack, char path[STATE_PATH])
{
    stack_path(directory, p, stack, "probe", path);
}

static bool read_number(FILE *file, double *x) { return fscanf(file, "%la", x) == 1; }

/* For each run the count, then a line for each record, with the time of the stack at its end. */
static bool read_runs(FILE *file, results *r, plan_stack stack)
{
    for (int64_t run = stack.first; run < stack.first + stack.count; run++) {
        int64_t count;
        if (fscanf(file, "%" SCNd64, &count) != 1 || count < 1 || count > r->most) return false;
        r->counts[run] = count;
        for (int64_t test = 0; test < count; test++) {
            double *row = (double *)results_record(r, run, test);
            for (int i = 0; i < RECORD_NUMBERS; i++)
                if (!read_number(file, row + i)) return false;
            if (!read_number(file, &r->times[run * r->most + test])) return false;
        }
    }
    char end[8];
    return fscanf(file, "%7s", end) == 1 && strcmp(end, "end") == 0;
}

bool training_state_has(const char *directory, const plan *p, plan_stack stack)
{
    char path[STATE_PATH];
    stack_path(directory, p, stack, "done", path);
    return access(path, F_OK) == 0;
}

int training_state_load(const char *directory, results *r, plan_stack stack, bool *found, io_error *error)
{
    char path[STATE_PATH];
    stack_path(directory, r->plan, stack, "done", path);
    FILE *file = fopen(path, "r");
    *found = file != NULL;
    if (!file && errno == ENOENT) return EXIT_OK;
    if (!file) return io_fail(error, EXIT_INPUT, "%s: %s", path, strerror(errno));
    const bool whole = read_runs(file, r, stack);
    fclose(file);
    return whole ? EXIT_OK : damaged(path, error);
}

static void write_runs(FILE *out, const results *r, plan_stack stack)
{
    for (int64_t run = stack.first; run < stack.first + stack.count; run++) {
        fprintf(out, "%" PRId64 "\n", r->counts[run]);
        for (int64_t test = 0; test < r->counts[run]; test++) {
            const double *row = (const double *)results_record(r, run, test);
            for (int i = 0; i < RECORD_NUMBERS; i++)
                fprintf(out, "%a ", row[i]);
            fprintf(out, "%a\n", r->times[run * r->most + test]);
        }
    }
    fputs("end\n", out);
}

static void take_records(results *r, plan_stack stack, const trainer *t)
{
    for (int64_t m = 0; m < stack.count; m++) {
        const int64_t run = stack.first + m;
        r->counts[run] = t->tested[m];
        for (int64_t test = 0; test < t->tested[m]; test++) {
            *results_record(r, run, test) = *trainer_record(t, m, test);
            r->times[run * r->most + test] = t->times[test];
        }
    }
}

int training_state_save(const char *directory, results *r, plan_stack stack, const trainer *t,
                        io_error *error)
{
    char path[STATE_PATH];
    out_file *file;
    take_records(r, stack, t);
    stack_path(directory, r->plan, stack, "done", path);
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    write_runs(out_stream(file), r, stack);
    return out_commit(file, error);
}
