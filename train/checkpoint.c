/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "train/checkpoint.h"

#include "io/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what the bits depend on, in fields that are told apart by "; " */

static void name_source(FILE *to, const train_source *from)
{
    const regression_shape *pairs = &from->regression;
    const recall_shape *recall = &from->recall;
    switch (from->task) {
    case TRAIN_REGRESSION:
        fprintf(to, "regression length %" PRId64 " segment %" PRId64 " of %" PRId64 " and %" PRId64,
                pairs->length, pairs->segment, pairs->dim_x, pairs->dim_y);
        fprintf(to, " queries %" PRId64 " noise %.17g", pairs->queries, pairs->noise);
        break;
    case TRAIN_SWAPS:
        fprintf(to, "swaps places %" PRId64 " items %" PRId64, from->swaps.places, from->swaps.items);
        break;
    case TRAIN_TEXT:
        fprintf(to,
                "text length %" PRId64 " words %" PRId64 " tokens %" PRId64 " and %" PRId64 " sum %" PRIx64,
                from->text.length, from->text.words, from->text.count[TRAIN_SPLIT_TRAIN],
                from->text.count[TRAIN_SPLIT_TEST], from->text.sum);
        break;
    default:
        fprintf(to, "recall length %" PRId64 " words %" PRId64 " fill %d", recall->length, recall->words,
                recall->fill);
    }
    for (int i = 0; i < RECALL_PARTS; i++)
        fprintf(to, " (%" PRId64 " %" PRId64 " %" PRId64 ")", from->part[i].pairs,
                from->part[i].examples[TRAIN_SPLIT_TRAIN], from->part[i].examples[TRAIN_SPLIT_TEST]);
}

static void name_options(FILE *to, const trainer_options *o)
{
    const mixer_options *how = &o->mixing;
    fprintf(to,
            "mlp %d; mlp_gate %d; mlp_inner %" PRId64 "; parallel %d; untied %d; rope_dim %" PRId64
            "; qk_norm %d; blind %d; probe_gate %d; short_filter %d; published_dims %d; no_silu %d; ",
            how->mlp, how->mlp_gate, how->mlp_inner, how->parallel, how->untied, how->rope_dim, how->qk_norm,
            how->blind, how->probe_gate, how->short_filter, how->published_dims, how->no_silu);
    fprintf(to, "mixer %s; ridge %.17g to %.17g unit %d; probe_zero %d; positions %d; layer_norm %d",
            o->row->name, how->ridge_least, how->ridge_most, how->ridge_unit, how->probe_zero, how->positions,
            how->layer_norm);
    fprintf(to, "; layers %" PRId64 "; width %" PRId64 "; heads %" PRId64 "; batch %" PRId64, o->shape.layers,
            o->shape.width, o->shape.heads, o->shape.batch);
    fprintf(to, "; batches %" PRId64 "; steps %" PRId64 "; warm %" PRId64 "; test_every %" PRId64, o->batches,
            o->steps, o->warm, o->test_every);
    fprintf(to, "; least %.17g; beta_v %.17g; decay %.17g; clip %.17g; muon %d rms %d; stop %.17g", o->least,
            o->beta_v, o->decay, o->clip, o->muon, o->muon_rms, o->stop);
}

/* What pretrained models have, and what is put beside their attention. */
static void name_pretrained(FILE *to, const trainer_options *o)
{
    const mixer_options *how = &o->mixing;
    fprintf(to, "; heads_kv %" PRId64 "; head_dim %" PRId64, o->shape.heads_kv, o->shape.head_dim);
    fprintf(to, "; activation %d; rope_base %.17g; norm_eps %.17g; biases %d; low %u; rank %" PRId64,
            how->activation, how->rope_base, how->norm_eps, how->biases, how->low, how->rank);
    fprintf(to, "; temperature %d; ridge_start %.17g; moving%s", how->temperature, how->ridge_start,
            o->shape.moving ? "" : " all");
    for (const char *const *name = o->shape.moving; name && *name; name++)
        fprintf(to, " %s", *name);
    fprintf(to, "; features %" PRId64 " shared %d", how->features, how->features_shared);
    for (int64_t l = 0; o->shape.features && l < o->shape.layers; l++)
        fprintf(to, " %d", o->shape.features[l]);
    fprintf(to, "; from %s", o->pretrained ? o->pretrained : "seeds");
}

/* Owned by the caller; NULL without memory. */
static char *inputs_of(const trainer *t)
{
    char *line = NULL, name[MACHINE_NAME];
    size_t length;
    FILE *to = open_memstream(&line, &length);
    if (!to) return NULL;
    fprintf(to, "loam %s; %s %s %s; ", loam_version(), loam_dtype_name(t->on->dtype),
            loam_dtype_name(t->on->operand), machine_name(t->on, name));
    name_options(to, &t->options);
    name_pretrained(to, &t->options);
    fprintf(to, "; %s; %s", model_kernel(t->net, LOAM_FORWARD), model_kernel(t->net, LOAM_BACKWARD));
    for (int64_t m = 0; m < t->options.shape.models; m++) {
        const trainee *one = &t->each[m];
        fprintf(to, "; model %" PRId64 " seed %" PRIu64 " rate %.17g %.17g ", m, one->seed, one->rate,
                one->muon_rate);
        name_source(to, &one->from);
    }
    if (fclose(to) == 0) return line;
    free(line);
    return NULL;
}

/* ---- what is saved */

enum { OF_RECORDS, OF_TIMES, OF_STATE, OF_MACHINE, PIECES = OF_MACHINE + 1 + 3 * MODEL_MAX_PARAMETERS };

/* Of the host first: records [models][most][RECORD_NUMBERS]; times [most + 1], the last one the seconds since
 * the last test; state [1 + 2 models], the step, the records of each model, its answers since the last test.
 * Then the arrays of the machine. */
typedef struct pieces {
    size_t count;
    char text[PIECES][48];
    const char *name[PIECES];
    array held[PIECES];
    matrix place[PIECES]; /* on the machine */
} pieces;

static array *add_piece(pieces *p, const char *name, const char *ending, loam_dtype dtype)
{
    snprintf(p->text[p->count], sizeof p->text[0], "%s%s", name, ending);
    p->name[p->count] = p->text[p->count];
    p->held[p->count].dtype = dtype;
    return &p->held[p->count++];
}

static void set_shape(array *a, int rank, int64_t first, int64_t second, int64_t third)
{
    a->rank = rank;
    a->shape[0] = first, a->shape[1] = second, a->shape[2] = third;
}

static void add_matrix(pieces *p, const char *name, const char *ending, matrix x)
{
    p->place[p->count] = x;
    set_shape(add_piece(p, name, ending, x.dtype), 3, x.models, x.rows, x.width);
}

/* NULL without memory. Contents are not there yet. */
static pieces *pieces_of(const trainer *t)
{
    const int64_t models = t->options.shape.models;
    int count;
    const parameter *list = model_parameters(t->net, &count);
    pieces *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    set_shape(add_piece(p, "records", "", LOAM_F64), 3, models, t->most, RECORD_NUMBERS);
    set_shape(add_piece(p, "times", "", LOAM_F64), 1, t->most + 1, 0, 0);
    set_shape(add_piece(p, "state", "", LOAM_F64), 1, 1 + 2 * models, 0, 0);
    add_matrix(p, "sums", "", t->sums);
    for (int i = 0; i < count; i++) {
        if (!list[i].m.data) continue; /* frozen since it was made */
        add_matrix(p, list[i].name, "", list[i].x);
        add_matrix(p, list[i].name, ".m", list[i].m);
        add_matrix(p, list[i].name, ".v", list[i].v);
    }
    return p;
}

static void free_pieces(pieces *p)
{
    for (size_t i = 0; p && i < p->count; i++)
        array_free(&p->held[i]);
    free(p);
}

static size_t bytes_of(const array *a) { return (size_t)a->count * array_dtype_bytes(a->dtype); }

/* FNV-1a, eight bytes at a time. */
static uint64_t add_sum(uint64_t sum, const array *a)
{
    const size_t bytes = bytes_of(a);
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, (const char *)a->data + i, bytes - i < 8 ? bytes - i : 8);
        sum = (sum ^ word) * 1099511628211u;
    }
    return sum;
}

static void checksum_of(const pieces *p, char text[17])
{
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < p->count; i++)
        sum = add_sum(sum, &p->held[i]);
    snprintf(text, 17, "%016" PRIx64, sum);
}

/* ---- save */

static int no_memory(const char *path, io_error *error)
{
    return io_fail(error, EXIT_INTERNAL, "out of memory for the checkpoint %s", path);
}

static void take_host(const trainer *t, pieces *p)
{
    const int64_t models = t->options.shape.models;
    double *times = p->held[OF_TIMES].data, *state = p->held[OF_STATE].data;
    memcpy(p->held[OF_RECORDS].data, t->records, bytes_of(&p->held[OF_RECORDS]));
    memcpy(times, t->times, (size_t)t->most * sizeof *times);
    times[t->most] = t->seconds;
    state[0] = (double)t->step;
    for (int64_t m = 0; m < models; m++) {
        state[1 + m] = (double)t->tested[m];
        state[1 + models + m] = (double)t->answers[m];
    }
}

static int take_pieces(const trainer *t, pieces *p, io_error *error)
{
    loam_error reason;
    int status = 0;
    for (size_t i = 0; i < p->count && !status; i++) {
        const array want = p->held[i];
        array *a = &p->held[i];
        status = array_create(a, want.dtype, want.rank, want.shape, p->name[i], error);
        if (!status && i >= OF_MACHINE &&
            machine_download(t->on, a->data, p->place[i].data, bytes_of(a), &reason))
            status = io_fail(error, EXIT_INTERNAL, "%s", reason.text);
    }
    if (!status) take_host(t, p);
    return status;
}

static int save(const trainer *t, pieces *p, const char *inputs, const char *path, io_error *error)
{
    char sum[17];
    const char *const texts[] = { "inputs", inputs, "checksum", sum, NULL };
    const safetensors_contents contents = { p->count, p->name, p->held, texts };
    const int status = take_pieces(t, p, error);
    if (status) return status;
    checksum_of(p, sum);
    return safetensors_write(path, &contents, error);
}

int checkpoint_save(const trainer *t, const char *path, io_error *error)
{
    char *inputs = inputs_of(t);
    pieces *p = pieces_of(t);
    const int status = inputs && p ? save(t, p, inputs, path, error) : no_memory(path, error);
    free_pieces(p);
    free(inputs);
    return status;
}

/* ---- load */

/* The first field in which the lines differ. */
static int other_run(const char *path, const char *theirs, const char *ours, io_error *error)
{
    size_t a = strcspn(theirs, ";"), b = strcspn(ours, ";");
    while (theirs[a] && strncmp(theirs, ours, a + 2) == 0) {
        theirs += a + 2, ours += b + 2;
        a = strcspn(theirs, ";"), b = strcspn(ours, ";");
    }
    return io_fail(error, EXIT_INPUT, "%s is of another run: it has '%.*s', this one '%.*s'", path, (int)a,
                   theirs, (int)b, ours);
}

static int damaged(const char *path, io_error *error)
{
    return io_fail(error, EXIT_INPUT, "%s is damaged: its checksum is not that of its tensors", path);
}

/* The tensor in the place of `want`, which has its type and shape. */
static int load_piece(safetensors *file, const char *path, const char *name, array *want, io_error *error)
{
    array got;
    char a[ARRAY_TEXT], b[ARRAY_TEXT];
    const int status = safetensors_tensor(file, &got, name, error);
    if (status) return status;
    if (got.dtype != want->dtype || got.rank != want->rank ||
        memcmp(got.shape, want->shape, (size_t)want->rank * sizeof *want->shape) != 0) {
        io_fail(error, EXIT_INPUT, "%s: tensor '%s' is %s %s; expected %s %s", path, name,
                array_dtype_name(got.dtype), array_shape_text(a, got.rank, got.shape),
                array_dtype_name(want->dtype), array_shape_text(b, want->rank, want->shape));
        array_free(&got);
        return EXIT_INPUT;
    }
    *want = got;
    return 0;
}

/* Whole numbers that the trainer can have. */
static bool state_fits(const trainer *t, const double *state)
{
    const int64_t models = t->options.shape.models;
    bool fits = state[0] >= 0 && state[0] <= (double)t->options.steps;
    for (int64_t m = 0; m < models; m++)
        fits = fits && state[1 + m] >= 0 && state[1 + m] <= (double)t->most && state[1 + models + m] >= 0;
    return fits;
}

static int load_pieces(const trainer *t, pieces *p, safetensors *file, const char *path, io_error *error)
{
    int status = 0;
    char sum[17];
    const char *told = safetensors_text(file, "checksum");
    for (size_t i = 0; i < p->count && !status; i++)
        status = load_piece(file, path, p->name[i], &p->held[i], error);
    if (status) return status;
    if (safetensors_count(file) != p->count)
        return io_fail(error, EXIT_INPUT, "%s has %zu tensors; expected %zu", path, safetensors_count(file),
                       p->count);
    checksum_of(p, sum);
    if (!told || strcmp(told, sum) != 0 || !state_fits(t, p->held[OF_STATE].data))
        return damaged(path, error);
    return 0;
}

static void give_pieces(trainer *t, const pieces *p)
{
    const int64_t models = t->options.shape.models;
    const double *times = p->held[OF_TIMES].data, *state = p->held[OF_STATE].data;
    memcpy(t->records, p->held[OF_RECORDS].data, bytes_of(&p->held[OF_RECORDS]));
    memcpy(t->times, times, (size_t)t->most * sizeof *times);
    t->seconds = times[t->most];
    t->step = (int64_t)state[0];
    for (int64_t m = 0; m < models; m++) {
        t->tested[m] = (int64_t)state[1 + m];
        t->answers[m] = (int64_t)state[1 + models + m];
    }
    for (size_t i = OF_MACHINE; i < p->count; i++)
        machine_upload(t->on, p->place[i].data, p->held[i].data, bytes_of(&p->held[i]));
    trainer_resume(t);
}

static int load(trainer *t, pieces *p, const char *inputs, const char *path, io_error *error)
{
    safetensors *file;
    int status = safetensors_open(&file, path, error);
    if (status) return status;
    const char *theirs = safetensors_text(file, "inputs");
    if (!theirs)
        status = io_fail(error, EXIT_INPUT, "%s is not a checkpoint: it has no text 'inputs'", path);
    else if (strcmp(theirs, inputs) != 0)
        status = other_run(path, theirs, inputs, error);
    else
        status = load_pieces(t, p, file, path, error);
    if (!status) give_pieces(t, p);
    safetensors_close(file);
    return status;
}

int checkpoint_load(trainer *t, const char *path, bool *found, io_error *error)
{
    assert(t->step == 0);
    *found = access(path, F_OK) == 0 || errno != ENOENT;
    if (!*found) return EXIT_OK;
    char *inputs = inputs_of(t);
    pieces *p = pieces_of(t);
    const int status = inputs && p ? load(t, p, inputs, path, error) : no_memory(path, error);
    free_pieces(p);
    free(inputs);
    return status;
}

/* ---- run */

int checkpoint_run(trainer *t, const char *path, double interval, double seconds, io_error *error)
{
    const double end = trainer_clock() + seconds;
    bool found;
    loam_error reason;
    int status = checkpoint_load(t, path, &found, error);
    while (!status && !trainer_finished(t) && trainer_clock() < end) {
        const double left = end - trainer_clock();
        if (trainer_advance(t, INT64_MAX, left < interval ? left : interval, &reason))
            status = io_fail(error, EXIT_INTERNAL, "%s", reason.text);
        if (!status) status = checkpoint_save(t, path, error);
    }
    return status;
}
