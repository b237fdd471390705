/* SPDX-License-Identifier: MIT */
#include "distill/checkpoint.h"

#include "distill/training_gpu.h"
#include "io/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME = 48, LINE = 512 };

/* What is saved, where it lies: `step`, then arrays of each layer. The first FIXED of these are
 * calibration, which a run must have before it goes on. */
enum { OF_LAYER = 9, OF_UNTIED_LAYER = 12, FIXED = 3 };
typedef struct pieces {
    size_t count, each; /* of a layer */
    char (*text)[NAME];
    const char **names;
    array *arrays; /* of the run's own memory */
    double step;
} pieces;

static void add(pieces *p, const char *name, int64_t layer, double *data, int64_t heads, int64_t rows,
                int64_t columns)
{
    snprintf(p->text[p->count], NAME, "layer%" PRId64 ".%s", layer, name);
    p->names[p->count] = p->text[p->count];
    p->arrays[p->count++] = (array){ .dtype = LOAM_F64,
                                     .rank = 3,
                                     .shape = { heads, rows, columns },
                                     .count = heads * rows * columns,
                                     .data = data };
}

static void add_layer(pieces *p, const training *t, int64_t i)
{
    const student_layer *l = &t->s->layer[i];
    const int64_t heads = t->s->heads, M = l->features, d = t->s->channels;
    add(p, "shift", i, l->shift, heads, 1, d);
    add(p, "balance", i, l->balance, heads, d, d);
    add(p, "balance_keys", i, l->balance_keys, heads, d, d);
    add(p, "z", i, l->z, heads, M, d);
    add(p, "z.m", i, t->z[i].m.data, heads, M, d);
    add(p, "z.v", i, t->z[i].v.data, heads, M, d);
    add(p, "log_alpha", i, l->log_alpha, heads, 1, M);
    add(p, "log_alpha.m", i, t->log_alpha[i].m.data, heads, 1, M);
    add(p, "log_alpha.v", i, t->log_alpha[i].v.data, heads, 1, M);
    if (!t->untied) return;
    add(p, "z_keys", i, l->z_keys, heads, M, d);
    add(p, "z_keys.m", i, t->z_keys[i].m.data, heads, M, d);
    add(p, "z_keys.v", i, t->z_keys[i].v.data, heads, M, d);
}

static void close_pieces(pieces *p)
{
    free(p->text);
    free(p->names);
    free(p->arrays);
}

static int open_pieces(pieces *p, const training *t, const char *path, io_error *error)
{
    const size_t each = t->untied ? OF_UNTIED_LAYER : OF_LAYER, most = 1 + each * (size_t)t->s->layers;
    *p = (pieces){ .each = each, .step = (double)training_taken(t) };
    p->text = calloc(most, sizeof *p->text);
    p->names = calloc(most, sizeof *p->names);
    p->arrays = calloc(most, sizeof *p->arrays);
    if (!p->text || !p->names || !p->arrays) {
        close_pieces(p);
        return io_fail(error, EXIT_INTERNAL, "out of memory for the checkpoint %s", path);
    }
    p->names[0] = "step";
    p->arrays[0] = (array){ .dtype = LOAM_F64, .rank = 1, .shape = { 1 }, .count = 1, .data = &p->step };
    p->count = 1;
    for (int64_t i = 0; i < t->s->layers; i++)
        add_layer(p, t, i);
    return 0;
}

/* What the bits depend on besides the arrays. */
static void describe(const training *t, char line[LINE])
{
    const training_options *o = &t->options;
    char name[MACHINE_NAME];
    int64_t unused = 0; /* a sum that changes where features go to other heads */
    for (int64_t i = 0; i < t->s->layers * t->s->heads; i++)
        unused += (i + 1) * (t->s->layer[i / t->s->heads].features -
                             t->s->layer[i / t->s->heads].used[i % t->s->heads]);
    const int used = snprintf(
        line, LINE,
        "loam %s; %s; loss %d; steps %" PRId64 "; batch %" PRId64 " of %" PRId64 " windows of %" PRId64
        "; rates %.17g %.17g; seed %" PRIu64 "; queries %" PRId64 "; unused %" PRId64,
        loam_version(), machine_name(t->gpu ? t->options.gpu : &t->on, name), (int)o->loss, o->steps,
        o->batch, t->a->windows, t->a->tokens, o->rate, o->rate_log_alpha, o->seed, t->s->queries, unused);
    if (o->window > 0)
        snprintf(line + used, LINE - (size_t)used, "; beside %" PRId64 " and %" PRId64, o->sinks, o->window);
    else if (t->untied)
        snprintf(line + used, LINE - (size_t)used, "; untied");
}

int training_save(training *t, const char *path, io_error *error)
{
    char line[LINE];
    pieces p;
    int status = training_fetch(t, error);
    if (!status) status = open_pieces(&p, t, path, error);
    if (status) return status;
    describe(t, line);
    const char *const texts[] = { "inputs", line, NULL };
    const safetensors_contents contents = { p.count, p.names, p.arrays, texts };
    status = safetensors_write(path, &contents, error);
    close_pieces(&p);
    return status;
}

/* ---- load */

static bool is_calibration(const pieces *p, size_t piece)
{
    return piece > 0 && (piece - 1) % p->each < FIXED;
}

static int load_piece(safetensors *file, const char *path, const pieces *p, size_t i, array *got,
                      io_error *error)
{
    const array *want = &p->arrays[i];
    char a[ARRAY_TEXT], b[ARRAY_TEXT];
    const int status = safetensors_tensor(file, got, p->names[i], error);
    if (status) return status;
    if (got->dtype != want->dtype || got->rank != want->rank ||
        memcmp(got->shape, want->shape, (size_t)want->rank * sizeof *want->shape) != 0)
        return io_fail(error, EXIT_INPUT, "%s: tensor '%s' is %s %s; expected %s %s", path, p->names[i],
                       array_dtype_name(got->dtype), array_shape_text(a, got->rank, got->shape),
                       array_dtype_name(want->dtype), array_shape_text(b, want->rank, want->shape));
    if (is_calibration(p, i) && memcmp(got->data, want->data, (size_t)want->count * sizeof(double)) != 0)
        return io_fail(error, EXIT_INPUT, "%s is of another run: its '%s' is not that of these texts", path,
                       p->names[i]);
    return 0;
}

/* All that is in the file is looked at before anything is changed. */
static int load(training *t, const pieces *p, safetensors *file, const char *path, io_error *error)
{
    array *got = calloc(p->count, sizeof *got);
    int status = got ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for the checkpoint %s", path);
    for (size_t i = 0; !status && i < p->count; i++)
        status = load_piece(file, path, p, i, &got[i], error);
    const double step = status ? 0 : array_get(&got[0], 0);
    if (!status && !(step >= 0 && step <= (double)t->options.steps))
        status = io_fail(error, EXIT_INPUT, "%s: step %g: expected 0 to %" PRId64, path, step,
                         t->options.steps);
    for (size_t i = 1; !status && i < p->count; i++)
        memcpy(p->arrays[i].data, got[i].data, (size_t)got[i].count * sizeof(double));
    if (!status) {
        if (t->gpu) training_gpu_send(t);
        optimiser_resume(&t->of_z, (int64_t)step);
        optimiser_resume(&t->of_log_alpha, (int64_t)step);
    }
    for (size_t i = 0; got && i < p->count; i++)
        array_free(&got[i]);
    free(got);
    return status;
}

int training_load(training *t, const char *path, bool *found, io_error *error)
{
    *found = access(path, F_OK) == 0 || errno != ENOENT;
    if (!*found) return 0;
    safetensors *file;
    char line[LINE];
    pieces p;
    int status = safetensors_open(&file, path, error);
    if (status) return status;
    const char *theirs = safetensors_text(file, "inputs");
    describe(t, line);
    if (!theirs || strcmp(theirs, line) != 0)
        status = io_fail(error, EXIT_INPUT, "%s is of another run: it has '%.150s', this one '%.150s'", path,
                         theirs ? theirs : "", line);
    if (!status) status = open_pieces(&p, t, path, error);
    if (!status) {
        status = load(t, &p, file, path, error);
        close_pieces(&p);
    }
    safetensors_close(file);
    return status;
}
