/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/bench_shape.h"

#include "cli/bench_generated.h"
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *const bench_mechanisms[] = { "softmax", "parallax", "lla",         "linear", "retention", "ssd",
                                         "gla",     "delta",    "gated-delta", "kda",    "mesa",      NULL };
const char *const bench_passes[] = { "forward", "backward", "decode", NULL };
const char *const bench_dtypes[] = { "f32", "bf16", "f16", "f64", NULL };

static const char *const SCORES[] = { "dot", "rbf", NULL };
static const char *const UNITS[] = { "normalised", "max", "trace", NULL };
static const char *const FEATURES[] = { "identity", "elu", "unit", NULL };
static const char *const LAYOUTS[] = { "bhtd", "bthd", NULL };
static const char BLANKS[] = " \t\r\n";

enum { MOST_LENGTH = INT32_MAX / 4, MOST_COUNT = 1 << 20 };

static bool is_recurrent(const loam_problem *p) { return p->mechanism >= LOAM_LINEAR; }

/* The line that is being read, for messages and results. */
typedef struct reader {
    bench_shape *shape;
    unsigned given; /* flags, one bit each */
    io_error *error;
} reader;

static int fail(const reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int fail(const reader *r, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return io_fail(r->error, EXIT_INPUT, "%s:%d: %s", r->shape->source, r->shape->line, text);
}

/* ---------------------------------------------------------------- single fields */

static int set_choice(const reader *r, const char *field, const char *word, const char *const *names,
                      int *choice)
{
    *choice = options_choice(word, names);
    if (*choice >= 0) return 0;
    char list[160] = "";
    for (int i = 0; names[i]; i++) {
        strncat(list, i == 0 ? "" : names[i + 1] ? ", " : " or ", sizeof list - strlen(list) - 1);
        strncat(list, names[i], sizeof list - strlen(list) - 1);
    }
    return fail(r, "%s: '%s', expected %s", field, word, list);
}

static int set_size(const reader *r, const char *field, const char *word, int64_t most, int64_t *size)
{
    char *end;
    errno = 0;
    const long long value = strtoll(word, &end, 10);
    if (end == word || *end || errno || value < 1 || value > most)
        return fail(r, "%s: '%s', expected a whole number from 1 to %lld", field, word, (long long)most);
    *size = value;
    return 0;
}

static int set_real(const reader *r, const char *field, const char *word, double *real)
{
    char *end;
    const double value = strtod(word, &end);
    if (end == word || *end || !isfinite(value) || value < 0)
        return fail(r, "%s: '%s', expected a finite number of at least 0", field, word);
    *real = value;
    return 0;
}

static int set_name(const reader *r, const char *field, const char *word, char *into)
{
    if (strlen(word) == 0 || strlen(word) >= BENCH_NAME_BYTES)
        return fail(r, "%s: '%.60s', expected 1 to %d characters", field, word, BENCH_NAME_BYTES - 1);
    for (const char *c = word; *c; c++)
        if (*c < '!' || *c > '~' || strchr(",\"|", *c))
            return fail(r, "%s: '%s', expected no comma, quote, bar or character beyond ASCII", field, word);
    memcpy(into, word, strlen(word) + 1);
    return 0;
}

/* ---------------------------------------------------------------- flags */

enum flag {
    FLAG_CAUSAL,
    FLAG_FULL,
    FLAG_WINDOW,
    FLAG_RIDGE,
    FLAG_UNIT,
    FLAG_SCORE,
    FLAG_SCALE,
    FLAG_SOFT_CAP,
    FLAG_SLOPE,
    FLAG_SINK,
    FLAG_SAVED,
    FLAG_DECAY,
    FLAG_PATH,
    FLAG_NORMALISE,
    FLAG_FEATURES,
    FLAG_LAYOUT,
    FLAG_DATA,
    FLAG_KERNEL
};
static const char *const FLAGS[] = { "causal",   "full",   "window", "ridge",  "unit",  "score", "scale",
                                     "soft_cap", "slope",  "sink",   "saved",  "decay", "path",  "normalise",
                                     "features", "layout", "data",   "kernel", NULL };

static int set_switch(const reader *r, enum flag flag, const char *value)
{
    loam_problem *p = &r->shape->problem;
    if (value) return fail(r, "%s: takes no value, got '%s'", FLAGS[flag], value);
    if (flag == FLAG_SLOPE)
        p->slope = 1;
    else if (flag == FLAG_SINK)
        p->sink = 1;
    else if (flag == FLAG_DECAY)
        p->decay = 1;
    else if (flag == FLAG_PATH)
        p->path = 1;
    else if (flag == FLAG_NORMALISE)
        p->normalise = 1;
    else if (flag == FLAG_SAVED && is_recurrent(p))
        return fail(r, "saved: %s leaves nothing for its backward", bench_mechanisms[p->mechanism]);
    else if (flag == FLAG_SAVED && p->pass == LOAM_DECODE)
        return fail(r, "saved: only a forward has it to leave, not decode");
    else if (flag == FLAG_SAVED)
        r->shape->saved = true;
    else
        p->causal = flag == FLAG_CAUSAL;
    return 0;
}

static int set_word(const reader *r, enum flag flag, const char *value, const char *const *names)
{
    int choice;
    const int status = set_choice(r, FLAGS[flag], value, names, &choice);
    if (status) return status;
    if (flag == FLAG_UNIT)
        r->shape->problem.ridge_unit = (loam_ridge_unit)choice;
    else if (flag == FLAG_SCORE)
        r->shape->problem.score = (loam_score)choice;
    else if (flag == FLAG_DATA)
        r->shape->data = (bench_data)choice;
    else if (flag == FLAG_FEATURES)
        r->shape->problem.feature_map = (loam_feature_map)choice;
    else
        r->shape->tokens_first = choice == 1;
    return 0;
}

static int set_value(const reader *r, enum flag flag, const char *value)
{
    loam_problem *p = &r->shape->problem;
    if (!value) return fail(r, "%s: expected a value, as in %s=...", FLAGS[flag], FLAGS[flag]);
    const bool solved = p->mechanism == LOAM_LLA || (flag == FLAG_RIDGE && p->mechanism == LOAM_MESA);
    if ((flag == FLAG_RIDGE || flag == FLAG_UNIT) && !solved)
        return fail(r, "%s: only lla has a ridge and its unit, and mesa a ridge, not %s", FLAGS[flag],
                    bench_mechanisms[p->mechanism]);
    switch (flag) {
    case FLAG_WINDOW: return set_size(r, FLAGS[flag], value, MOST_LENGTH, &p->window);
    case FLAG_RIDGE: return set_real(r, FLAGS[flag], value, &p->ridge);
    case FLAG_SCALE: return set_real(r, FLAGS[flag], value, &p->scale);
    case FLAG_SOFT_CAP: return set_real(r, FLAGS[flag], value, &p->soft_cap);
    case FLAG_UNIT: return set_word(r, flag, value, UNITS);
    case FLAG_SCORE: return set_word(r, flag, value, SCORES);
    case FLAG_FEATURES: return set_word(r, flag, value, FEATURES);
    case FLAG_LAYOUT: return set_word(r, flag, value, LAYOUTS);
    case FLAG_DATA: return set_word(r, flag, value, bench_data_names);
    default: return set_name(r, FLAGS[flag], value, r->shape->kernel);
    }
}

static int keep_text(const reader *r, const char *word)
{
    char *flags = r->shape->flags;
    const size_t used = strlen(flags);
    if (used + strlen(word) + 2 > BENCH_FLAGS_BYTES)
        return fail(r, "flags: more than %d characters", BENCH_FLAGS_BYTES - 2);
    snprintf(flags + used, BENCH_FLAGS_BYTES - used, "%s%s", used ? " " : "", word);
    return 0;
}

static int set_flag(reader *r, char *word)
{
    int status = keep_text(r, word);
    if (status) return status;
    char *value = strchr(word, '=');
    if (value) *value++ = '\0';
    const int flag = options_choice(word, FLAGS);
    if (flag < 0) {
        const char *nearest = options_nearest(word, FLAGS);
        return nearest ? fail(r, "flag: unknown '%s'; did you mean '%s'?", word, nearest)
                       : fail(r, "flag: unknown '%s'", word);
    }
    const unsigned bit = 1u << (flag == FLAG_FULL ? FLAG_CAUSAL : flag);
    if (r->given & bit)
        return fail(r, "%s: given twice%s", word, bit == 1u << FLAG_CAUSAL ? " (causal or full)" : "");
    r->given |= bit;
    const bool is_switch = flag <= FLAG_FULL || (flag >= FLAG_SLOPE && flag <= FLAG_NORMALISE);
    return is_switch ? set_switch(r, (enum flag)flag, value) : set_value(r, (enum flag)flag, value);
}

/* ---------------------------------------------------------------- lines */

static int next_word(const reader *r, char **rest, const char *field, char **word)
{
    *word = strtok_r(NULL, BLANKS, rest);
    return *word
               ? 0
               : fail(r, "%s: missing (a line is: name mechanism pass dtype B Hq Hkv Lq Lkv Dqk Dv flags...)",
                      field);
}

static int read_kind(const reader *r, char **rest)
{
    static const char *const fields[] = { "mechanism", "pass", "dtype" };
    const char *const *names[] = { bench_mechanisms, bench_passes, bench_dtypes };
    int choice[3];
    for (int i = 0; i < 3; i++) {
        char *word;
        int status = next_word(r, rest, fields[i], &word);
        if (!status) status = set_choice(r, fields[i], word, names[i], &choice[i]);
        if (status) return status;
    }
    r->shape->problem = loam_problem_default((loam_mechanism)choice[0], (loam_pass)choice[1]);
    r->shape->problem.dtype = (loam_dtype)choice[2];
    /* MesaNet's saves nothing, but tells how each row was solved. */
    r->shape->saved = r->shape->problem.pass == LOAM_BACKWARD &&
                      (!is_recurrent(&r->shape->problem) || r->shape->problem.mechanism == LOAM_MESA);
    return 0;
}

static int set_recurrent_sizes(const reader *r)
{
    loam_problem *p = &r->shape->problem;
    if (p->heads_kv % p->heads_q)
        return fail(r, "Hkv: %lld, expected a multiple of Hq %lld for %s", (long long)p->heads_kv,
                    (long long)p->heads_q, bench_mechanisms[p->mechanism]);
    if (p->len_kv != p->len_q)
        return fail(r, "Lkv: %lld, expected Lq %lld for %s", (long long)p->len_kv, (long long)p->len_q,
                    bench_mechanisms[p->mechanism]);
    p->heads_v = p->heads_kv;
    p->heads_kv = p->heads_q;
    return 0;
}

static int read_sizes(const reader *r, char **rest)
{
    loam_problem *p = &r->shape->problem;
    const struct {
        const char *field;
        int64_t most, *size;
    } sizes[] = {
        { "B", MOST_COUNT, &p->batch },      { "Hq", MOST_COUNT, &p->heads_q },
        { "Hkv", MOST_COUNT, &p->heads_kv }, { "Lq", MOST_LENGTH, &p->len_q },
        { "Lkv", MOST_LENGTH, &p->len_kv },  { "Dqk", LOAM_MAX_DIM, &p->dim_qk },
        { "Dv", LOAM_MAX_DIM, &p->dim_v },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *word;
        int status = next_word(r, rest, sizes[i].field, &word);
        if (!status) status = set_size(r, sizes[i].field, word, sizes[i].most, sizes[i].size);
        if (status) return status;
    }
    if (is_recurrent(p)) return set_recurrent_sizes(r);
    if (p->heads_q % p->heads_kv)
        return fail(r, "Hq: %lld, expected a multiple of Hkv %lld", (long long)p->heads_q,
                    (long long)p->heads_kv);
    return 0;
}

static int read_fields(reader *r, const char *name, char **rest)
{
    int status = set_name(r, "name", name, r->shape->name);
    if (!status) status = read_kind(r, rest);
    if (!status) status = read_sizes(r, rest);
    char *word;
    while (!status && (word = strtok_r(NULL, BLANKS, rest)))
        status = set_flag(r, word);
    return status;
}

static int append(bench_shapes *shapes, const reader *r)
{
    for (size_t i = 0; i < shapes->count; i++)
        if (strcmp(shapes->at[i].name, r->shape->name) == 0)
            return fail(r, "name: '%s' is taken by %s:%d", r->shape->name, shapes->at[i].source,
                        shapes->at[i].line);
    if (shapes->count == shapes->room) {
        const size_t room = shapes->room ? 2 * shapes->room : 32;
        bench_shape *at = realloc(shapes->at, room * sizeof *at);
        if (!at) return io_fail(r->error, EXIT_INTERNAL, "out of memory for the shapes");
        shapes->at = at;
        shapes->room = room;
    }
    shapes->at[shapes->count++] = *r->shape;
    return 0;
}

static int read_line(bench_shapes *shapes, char *line, const char *source, int number, io_error *error)
{
    line[strcspn(line, "#")] = '\0';
    char *rest, *name = strtok_r(line, BLANKS, &rest);
    if (!name) return 0;
    bench_shape shape = { .source = source, .line = number };
    reader r = { &shape, 0, error };
    const int status = read_fields(&r, name, &rest);
    return status ? status : append(shapes, &r);
}

int bench_shapes_read(bench_shapes *shapes, FILE *stream, const char *source, io_error *error)
{
    char *line = NULL;
    size_t room = 0;
    int status = 0, number = 0;
    errno = 0;
    while (!status && getline(&line, &room, stream) >= 0)
        status = read_line(shapes, line, source, ++number, error);
    if (!status && !feof(stream))
        status = io_fail(error, errno == ENOMEM ? EXIT_INTERNAL : EXIT_INPUT, "%s: cannot read: %s", source,
                         errno ? strerror(errno) : "read error");
    free(line);
    return status;
}

int bench_shapes_load(bench_shapes *shapes, const char *path, io_error *error)
{
    FILE *stream = fopen(path, "r");
    if (!stream) return io_fail(error, EXIT_INPUT, "%s: cannot open: %s", path, strerror(errno));
    const int status = bench_shapes_read(shapes, stream, path, error);
    fclose(stream);
    return status;
}

int bench_shapes_default(bench_shapes *shapes, io_error *error)
{
    int status = 0;
    for (int i = 0; BENCH_DEFAULT[i] && !status; i++) {
        char *line = strdup(BENCH_DEFAULT[i]);
        status = line ? read_line(shapes, line, "default.txt", i + 1, error)
                      : io_fail(error, EXIT_INTERNAL, "out of memory for the shapes");
        free(line);
    }
    return status;
}

void bench_shapes_free(bench_shapes *shapes)
{
    free(shapes->at);
    *shapes = (bench_shapes){ 0 };
}

void bench_shape_print(const bench_shape *s, FILE *stream)
{
    const loam_problem *p = &s->problem;
    fprintf(stream, "%-26s %-11s %-8s %-4s %lld %lld %lld %lld %lld %lld %lld%s%s\n", s->name,
            bench_mechanisms[p->mechanism], bench_passes[p->pass], bench_dtypes[p->dtype],
            (long long)p->batch, (long long)p->heads_q,
            (long long)(is_recurrent(p) ? p->heads_v : p->heads_kv), (long long)p->len_q,
            (long long)p->len_kv, (long long)p->dim_qk, (long long)p->dim_v, *s->flags ? " " : "", s->flags);
}
