/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/bench/shape.h"

#include "cli/bench/generated.h"
#include "cli/names.h"
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char BLANKS[] = " \t\r\n";

enum { MOST_LENGTH = INT32_MAX / 4, MOST_COUNT = 1 << 20 };

static const char *layout_name(int index)
{
    static const char *const names[] = { "bhtd", "bthd", NULL };
    return names[index];
}

static const char *data_name(int index) { return bench_data_names[index]; }

static bool is_recurrent(const loam_problem *p)
{
    const loam_mechanism_info form = names_form(p->mechanism);
    return names_is_recurrent(&form);
}

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

static int set_choice(const reader *r, const char *field, const char *word, names_word *names, int *choice)
{
    char text[NAMES_BYTES];
    *choice = names_find(names, word);
    return *choice >= 0 ? 0 : fail(r, "%s: '%s', expected %s", field, word, names_list(text, names, " or "));
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

static int set_name(const reader *r, const char *field, const char *word, char *into, size_t room)
{
    if (strlen(word) == 0 || strlen(word) >= room)
        return fail(r, "%s: '%.60s', expected 1 to %zu characters", field, word, room - 1);
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
    FLAG_COUNT,
    FLAG_LAYOUT,
    FLAG_DATA,
    FLAG_KERNEL
};
static const char *const FLAGS[] = { "causal",   "full",  "window", "ridge", "unit",   "score", "scale",
                                     "soft_cap", "slope", "sink",   "saved", "decay",  "path",  "normalise",
                                     "features", "count", "layout", "data",  "kernel", NULL };

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
        return fail(r, "saved: %s leaves nothing for its backward", loam_mechanism_name(p->mechanism));
    else if (flag == FLAG_SAVED && p->pass == LOAM_DECODE)
        return fail(r, "saved: only a forward has it to leave, not decode");
    else if (flag == FLAG_SAVED)
        r->shape->saved = true;
    else
        p->causal = flag == FLAG_CAUSAL;
    return 0;
}

static int set_word(const reader *r, enum flag flag, const char *value, names_word *names)
{
    int choice;
    const int status = set_choice(r, FLAGS[flag], value, names, &choice);
    if (status) return status;
    if (flag == FLAG_UNIT)
        r->shape->problem.ridge_unit = (loam_ridge_unit)choice;
    else if (flag == FLAG_SCORE)
        r->shape->problem.score = (loam_score)choice;
    else if (flag == FLAG_FEATURES)
        r->shape->problem.feature_map = (loam_feature_map)choice;
    else
        r->shape->tokens_first = choice == 1;
    return 0;
}

/* Whatever is no word begins the paths of files. */
static int set_data(const reader *r, const char *value)
{
    bench_shape *s = r->shape;
    char text[NAMES_BYTES];
    const int word = names_find(data_name, value);
    s->data = word >= 0 ? (bench_data)word : BENCH_FILES;
    if (word >= 0) return 0;
    if (is_recurrent(&s->problem))
        return fail(r, "data: '%s', expected %s; files are for the local family, not for %s", value,
                    names_list(text, data_name, " or "), loam_mechanism_name(s->problem.mechanism));
    return set_name(r, "data", value, s->files, sizeof s->files);
}

static int set_value(const reader *r, enum flag flag, const char *value)
{
    loam_problem *p = &r->shape->problem;
    if (!value) return fail(r, "%s: expected a value, as in %s=...", FLAGS[flag], FLAGS[flag]);
    if (flag == FLAG_RIDGE || flag == FLAG_UNIT) {
        names_test *has = flag == FLAG_RIDGE ? names_has_ridge : names_has_units;
        const loam_mechanism_info form = names_form(p->mechanism);
        char text[NAMES_BYTES];
        if (!has(&form))
            return fail(r, "%s: is for %s, not for %s", FLAGS[flag],
                        names_mechanisms(text, has, NULL, " and "), form.name);
    }
    switch (flag) {
    case FLAG_WINDOW: return set_size(r, FLAGS[flag], value, MOST_LENGTH, &p->window);
    case FLAG_RIDGE: return set_real(r, FLAGS[flag], value, &p->ridge);
    case FLAG_SCALE: return set_real(r, FLAGS[flag], value, &p->scale);
    case FLAG_SOFT_CAP: return set_real(r, FLAGS[flag], value, &p->soft_cap);
    case FLAG_UNIT: return set_word(r, flag, value, names_ridge_unit);
    case FLAG_SCORE: return set_word(r, flag, value, names_score);
    case FLAG_FEATURES: return set_word(r, flag, value, names_feature_map);
    case FLAG_COUNT: return set_size(r, FLAGS[flag], value, LOAM_MAX_DIM, &p->features);
    case FLAG_LAYOUT: return set_word(r, flag, value, layout_name);
    case FLAG_DATA: return set_data(r, value);
    default: return set_name(r, FLAGS[flag], value, r->shape->kernel, BENCH_NAME_BYTES);
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
    names_word *const names[] = { names_mechanism, names_pass, names_dtype };
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
    const loam_mechanism_info form = names_form(r->shape->problem.mechanism);
    r->shape->saved = r->shape->problem.pass == LOAM_BACKWARD &&
                      (!names_is_recurrent(&form) || form.ridge_axes);
    return 0;
}

static int set_recurrent_sizes(const reader *r)
{
    loam_problem *p = &r->shape->problem;
    if (p->heads_kv % p->heads_q)
        return fail(r, "Hkv: %lld, expected a multiple of Hq %lld for %s", (long long)p->heads_kv,
                    (long long)p->heads_q, loam_mechanism_name(p->mechanism));
    if (p->len_kv != p->len_q)
        return fail(r, "Lkv: %lld, expected Lq %lld for %s", (long long)p->len_kv, (long long)p->len_q,
                    loam_mechanism_name(p->mechanism));
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
    int status = set_name(r, "name", name, r->shape->name, BENCH_NAME_BYTES);
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

static int read_lines(bench_shapes *shapes, const char *const *lines, const char *source, io_error *error)
{
    int status = 0;
    for (int i = 0; lines[i] && !status; i++) {
        char *line = strdup(lines[i]);
        status = line ? read_line(shapes, line, source, i + 1, error)
                      : io_fail(error, EXIT_INTERNAL, "out of memory for the shapes");
        free(line);
    }
    return status;
}

int bench_shapes_default(bench_shapes *shapes, bool all, io_error *error)
{
    const int status = read_lines(shapes, BENCH_DEFAULT, "default.txt", error);
    return status || !all ? status : read_lines(shapes, BENCH_RECURRENT, "recurrent.txt", error);
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
            loam_mechanism_name(p->mechanism), loam_pass_name(p->pass), loam_dtype_name(p->dtype),
            (long long)p->batch, (long long)p->heads_q,
            (long long)(is_recurrent(p) ? p->heads_v : p->heads_kv), (long long)p->len_q,
            (long long)p->len_kv, (long long)p->dim_qk, (long long)p->dim_v, *s->flags ? " " : "", s->flags);
}
