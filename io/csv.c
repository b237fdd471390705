/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* strtod_l */
#include "io/csv.h"

#include "io/csv_delimiter.h"
#include "io/nearest.h"

#include <csv.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <search.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { CHUNK_BYTES = 1 << 16, COLUMNS_MAX = 1 << 16 };

/* Growing array of doubles or of pointers. */
typedef struct list {
    void *items;
    size_t count, room;
} list;

/* A first field to last field pass over the file; libcsv calls back for each field and each row. */
typedef struct csv_pass {
    const char *name; /* of the file, for messages */
    const csv_request *request;
    io_error *error;
    locale_t locale;

    bool in_rows; /* past the first line */
    int status;
    char delimiter;
    int64_t line;      /* of the byte being parsed, from 1 */
    int64_t open_line; /* the last that did not begin within quotes */

    list first;      /* char *: the fields of the first line */
    list names;      /* char *: of all columns */
    int *slot_first; /* [names.count] first of the chosen that read this column, or -1 */
    int *slot_next;  /* [column_count] the next that reads the same column, or -1 */
    list values;     /* double: row-major, column_count per row */

    int64_t label_column; /* index, or -1 */
    list labels;          /* char *: the different texts */
    list label;           /* int32_t: one a row */
    struct hsearch_data label_index;

    size_t field;      /* index in the present row */
    bool drop;         /* the present row has a missing value */
    int32_t row_label; /* of the present row */
    int64_t rows, dropped;
} csv_pass;

static int fail_memory(csv_pass *pass)
{
    return io_fail(pass->error, EXIT_INTERNAL, "out of memory reading %s, line %lld", pass->name,
                   (long long)pass->line);
}

/* The place for one more item, or NULL. */
static void *list_push(list *items, size_t item_size)
{
    if (items->count == items->room) {
        size_t room = items->room ? items->room * 2 : 64, bytes;
        if (room < items->room || __builtin_mul_overflow(room, item_size, &bytes)) return NULL;
        void *grown = realloc(items->items, bytes);
        if (!grown) return NULL;
        items->items = grown, items->room = room;
    }
    return (char *)items->items + item_size * items->count++;
}

static char *text_at(const list *texts, size_t index) { return ((char **)texts->items)[index]; }

static int push_text(csv_pass *pass, list *texts, const char *text, size_t length)
{
    if (texts->count >= COLUMNS_MAX)
        return io_fail(pass->error, EXIT_INPUT, "%s: more than %d columns", pass->name, COLUMNS_MAX);
    char *copy = malloc(length + 1);
    char **place = copy ? list_push(texts, sizeof *place) : NULL;
    if (!place) {
        free(copy);
        return fail_memory(pass);
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    *place = copy;
    return 0;
}

static bool is_missing(const char *text)
{
    static const char *const words[] = { "", "na", "n/a", "nan", "null", NULL };
    for (int i = 0; words[i]; i++)
        if (strcasecmp(text, words[i]) == 0) return true;
    return false;
}

/* True where the whole of text, but for spaces around it, is a number. */
static bool parse_number(const csv_pass *pass, const char *text, size_t length, double *value)
{
    char *end;
    *value = strtod_l(text, &end, pass->locale);
    if (end == text) return false;
    while (*end == ' ' || *end == '\t')
        end++;
    return (size_t)(end - text) == length;
}

/* ---------------------------------------------------------------- the first line */

static bool first_is_header(const csv_pass *pass)
{
    for (size_t i = 0; i < pass->first.count; i++) {
        const char *text = text_at(&pass->first, i);
        double value;
        if (!is_missing(text) && !parse_number(pass, text, strlen(text), &value)) return true;
    }
    return false;
}

static int number_names(csv_pass *pass)
{
    for (size_t i = 0; i < pass->first.count; i++) {
        char number[24];
        int length = snprintf(number, sizeof number, "%zu", i + 1);
        int status = push_text(pass, &pass->names, number, (size_t)length);
        if (status) return status;
    }
    return 0;
}

/* Index of a column by name, else by number; -1 where there is none. */
static int64_t find_column(const csv_pass *pass, const char *column)
{
    for (size_t i = 0; i < pass->names.count; i++)
        if (strcmp(text_at(&pass->names, i), column) == 0) return (int64_t)i;
    char *end;
    errno = 0;
    long long number = strtoll(column, &end, 10);
    bool is_number = end != column && !*end && !errno;
    return is_number && number >= 1 && number <= (long long)pass->names.count ? number - 1 : -1;
}

static int unknown_column(csv_pass *pass, const char *column)
{
    size_t count = pass->names.count;
    char **place = list_push(&pass->names, sizeof *place);
    if (!place) return fail_memory(pass);
    *place = NULL;
    pass->names.count = count;
    const char *nearest = nearest_name(column, (const char *const *)pass->names.items);
    if (nearest)
        return io_fail(pass->error, EXIT_INPUT, "%s has no column '%s'; did you mean '%s'?", pass->name,
                       column, nearest);
    return io_fail(pass->error, EXIT_INPUT,
                   "%s has no column '%s'; it has %zu columns, the first '%s' (separator: %s)", pass->name,
                   column, count, text_at(&pass->names, 0), csv_delimiter_name(pass->delimiter));
}

static int choose_label(csv_pass *pass)
{
    pass->label_column = -1;
    if (!pass->request->label) return 0;
    pass->label_column = find_column(pass, pass->request->label);
    if (pass->label_column < 0) return unknown_column(pass, pass->request->label);
    return hcreate_r(2 * CSV_LABELS_MOST, &pass->label_index) ? 0 : fail_memory(pass);
}

static int choose_columns(csv_pass *pass)
{
    size_t columns = pass->names.count, chosen = (size_t)pass->request->column_count;
    pass->slot_first = malloc(columns * sizeof *pass->slot_first);
    pass->slot_next = malloc((chosen + 1) * sizeof *pass->slot_next);
    if (!pass->slot_first || !pass->slot_next) return fail_memory(pass);
    for (size_t i = 0; i < columns; i++)
        pass->slot_first[i] = -1;
    for (int slot = 0; slot < pass->request->column_count; slot++) {
        int64_t column = find_column(pass, pass->request->columns[slot]);
        if (column < 0) return unknown_column(pass, pass->request->columns[slot]);
        pass->slot_next[slot] = pass->slot_first[column];
        pass->slot_first[column] = slot;
    }
    return choose_label(pass);
}

/* ---------------------------------------------------------------- rows */

static int64_t column_number(const csv_pass *pass) { return (int64_t)pass->field + 1; }

/* "FILE, line 3, column 2 ('b'): " and what is wrong there. */
static int fail_field(const csv_pass *pass, const char *wrong)
{
    return io_fail(pass->error, EXIT_INPUT, "%s, line %lld, column %lld ('%s'): %s", pass->name,
                   (long long)pass->line, (long long)column_number(pass), text_at(&pass->names, pass->field),
                   wrong);
}

static int take_missing(csv_pass *pass)
{
    pass->drop = true;
    return pass->request->missing == CSV_DROP_ROW ? 0 : fail_field(pass, "the value is missing");
}

static int add_label(csv_pass *pass, const char *text)
{
    if (pass->labels.count == CSV_LABELS_MOST)
        return fail_field(pass, "more different values than the 1000 that groups may have");
    const size_t index = pass->labels.count;
    int status = push_text(pass, &pass->labels, text, strlen(text));
    if (status) return status;
    ENTRY entry = { .key = text_at(&pass->labels, index), .data = (void *)(uintptr_t)index }, *found;
    if (!hsearch_r(entry, ENTER, &found, &pass->label_index)) return fail_memory(pass);
    pass->row_label = (int32_t)index;
    return 0;
}

static int take_label(csv_pass *pass, const char *text, size_t length)
{
    if (strlen(text) != length) return fail_field(pass, "a zero byte in a text");
    if (is_missing(text)) return take_missing(pass);
    ENTRY entry = { .key = (char *)(uintptr_t)text }, *found; /* looked for, not kept */
    if (!hsearch_r(entry, FIND, &found, &pass->label_index)) return add_label(pass, text);
    pass->row_label = (int32_t)(uintptr_t)found->data;
    return 0;
}

static int take_number(csv_pass *pass, const char *text, size_t length, int slot)
{
    double value = 0;
    if (is_missing(text) && strlen(text) == length) {
        int status = take_missing(pass);
        if (status) return status;
    } else if (!parse_number(pass, text, length, &value) || !isfinite(value)) {
        char wrong[100];
        snprintf(wrong, sizeof wrong, "'%.40s' is not a finite number%s", text,
                 strchr(text, ',') ? " (decimals have a point)" : "");
        return fail_field(pass, wrong);
    }
    double *row = (double *)pass->values.items + (size_t)pass->rows * (size_t)pass->request->column_count;
    for (; slot >= 0; slot = pass->slot_next[slot])
        row[slot] = value;
    return 0;
}

static int take_field(csv_pass *pass, const char *text, size_t length)
{
    if (pass->field >= pass->names.count)
        return io_fail(pass->error, EXIT_INPUT,
                       "%s, line %lld, column %lld: more than the %zu fields of the first line", pass->name,
                       (long long)pass->line, (long long)column_number(pass), pass->names.count);
    int status = (int64_t)pass->field == pass->label_column ? take_label(pass, text, length) : 0;
    const int slot = pass->slot_first[pass->field];
    return status || slot < 0 ? status : take_number(pass, text, length, slot);
}

/* Room for the row to come, so that take_field cannot run out of it. */
static int begin_row(csv_pass *pass)
{
    pass->field = 0;
    pass->drop = false;
    pass->values.count = (size_t)pass->rows * (size_t)pass->request->column_count;
    for (int i = 0; i < pass->request->column_count; i++)
        if (!list_push(&pass->values, sizeof(double))) return fail_memory(pass);
    return 0;
}

static int keep_label(csv_pass *pass)
{
    int32_t *place = list_push(&pass->label, sizeof *place);
    if (!place) return fail_memory(pass);
    *place = pass->row_label;
    return 0;
}

static int end_row(csv_pass *pass)
{
    if (pass->field < pass->names.count)
        return io_fail(pass->error, EXIT_INPUT,
                       "%s, line %lld, column %lld: the row ends, but the first line has %zu fields",
                       pass->name, (long long)pass->line, (long long)column_number(pass), pass->names.count);
    if (pass->drop) {
        pass->dropped++;
        return begin_row(pass);
    }
    int status = pass->label_column >= 0 ? keep_label(pass) : 0;
    pass->rows++;
    return status ? status : begin_row(pass);
}

/* The first line again, as data. */
static int replay_first(csv_pass *pass)
{
    for (size_t i = 0; i < pass->first.count; i++) {
        const char *text = text_at(&pass->first, i);
        int status = take_field(pass, text, strlen(text));
        if (status) return status;
        pass->field++;
    }
    return end_row(pass);
}

static int end_first_line(csv_pass *pass)
{
    bool header = first_is_header(pass);
    if (header) {
        pass->names = pass->first;
        pass->first = (list){ 0 };
    }
    int status = header ? 0 : number_names(pass);
    pass->in_rows = true;
    if (!status) status = choose_columns(pass);
    if (!status) status = begin_row(pass);
    if (!status && !header) status = replay_first(pass);
    return status;
}

/* ---------------------------------------------------------------- libcsv */

static void on_field(void *text, size_t length, void *data)
{
    csv_pass *pass = data;
    if (pass->status) return;
    if (pass->in_rows)
        pass->status = take_field(pass, text ? text : "", length);
    else
        pass->status = push_text(pass, &pass->first, text ? text : "", length);
    pass->field++;
}

static void on_row(int terminator, void *data)
{
    (void)terminator;
    csv_pass *pass = data;
    if (pass->status) return;
    pass->status = pass->in_rows ? end_row(pass) : end_first_line(pass);
}

static int parse_failed(csv_pass *pass, struct csv_parser *parser)
{
    if (csv_error(parser) == CSV_EPARSE)
        return io_fail(pass->error, EXIT_INPUT, "%s, line %lld, column %lld: a quote in the wrong place",
                       pass->name, (long long)pass->line, (long long)column_number(pass));
    return fail_memory(pass);
}

/* Line by line, so that messages can tell where they are. */
static int parse_chunk(csv_pass *pass, struct csv_parser *parser, const char *bytes, size_t count)
{
    while (count && !pass->status) {
        if (!parser->quoted) pass->open_line = pass->line;
        const char *newline = memchr(bytes, '\n', count);
        size_t length = newline ? (size_t)(newline - bytes) + 1 : count;
        if (csv_parse(parser, bytes, length, on_field, on_row, pass) != length)
            return pass->status ? pass->status : parse_failed(pass, parser);
        pass->line += newline != NULL;
        bytes += length, count -= length;
    }
    return pass->status;
}

/* Reads the first chunk; returns the length of a byte order mark. */
static size_t begin_stream(csv_pass *pass, struct csv_parser *parser, FILE *stream, char *bytes,
                           size_t *count)
{
    *count = fread(bytes, 1, CHUNK_BYTES, stream);
    const size_t mark = *count >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    const char *last = *count == CHUNK_BYTES ? memrchr(bytes, '\n', *count) : NULL; /* of whole lines */
    const size_t end = last ? (size_t)(last - bytes) : *count;
    pass->delimiter = pass->request->delimiter;
    if (!pass->delimiter) pass->delimiter = csv_guess_delimiter(bytes + mark, end > mark ? end - mark : 0);
    csv_set_delim(parser, (unsigned char)pass->delimiter);
    return mark;
}

static int parse_stream(csv_pass *pass, struct csv_parser *parser, FILE *stream, char *bytes)
{
    size_t count;
    size_t skipped = begin_stream(pass, parser, stream, bytes, &count);
    int status = parse_chunk(pass, parser, bytes + skipped, count - skipped);
    while (!status && count) {
        count = fread(bytes, 1, CHUNK_BYTES, stream);
        status = parse_chunk(pass, parser, bytes, count);
    }
    if (status) return status;
    if (ferror(stream))
        return io_fail(pass->error, EXIT_INPUT, "cannot read %s: %s", pass->name, strerror(errno));
    if (csv_fini(parser, on_field, on_row, pass) && !pass->status)
        return io_fail(pass->error, EXIT_INPUT, "%s, line %lld, column %lld: a quoted field never ends",
                       pass->name, (long long)pass->open_line, (long long)column_number(pass));
    if (!pass->status && !pass->in_rows) return io_fail(pass->error, EXIT_INPUT, "%s is empty", pass->name);
    return pass->status;
}

static int run_pass(csv_pass *pass, FILE *stream)
{
    pass->line = 1;
    char *bytes = malloc(CHUNK_BYTES);
    if (!bytes) return fail_memory(pass);
    pass->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    struct csv_parser parser;
    unsigned char strict = CSV_STRICT | CSV_STRICT_FINI | CSV_APPEND_NULL;
    bool ready = pass->locale && csv_init(&parser, strict) == 0;
    int status = ready ? parse_stream(pass, &parser, stream, bytes) : fail_memory(pass);
    if (ready) csv_free(&parser);
    if (pass->locale) freelocale(pass->locale);
    free(bytes);
    return status;
}

static void free_texts(list *texts)
{
    for (size_t i = 0; i < texts->count; i++)
        free(text_at(texts, i));
    free(texts->items);
}

static void end_pass(csv_pass *pass)
{
    free_texts(&pass->first);
    free_texts(&pass->names);
    free_texts(&pass->labels);
    free(pass->label.items);
    hdestroy_r(&pass->label_index);
    free(pass->slot_first);
    free(pass->slot_next);
    free(pass->values.items);
}

/* ---------------------------------------------------------------- the table */

static char *copy_name(csv_pass *pass, int64_t column)
{
    char *copy = strdup(text_at(&pass->names, (size_t)column));
    if (!copy) fail_memory(pass);
    return copy;
}

/* The lists change hands. */
static int move_labels(csv_table *table, csv_pass *pass)
{
    if (pass->label_column < 0) return 0;
    table->label_column = copy_name(pass, pass->label_column);
    if (!table->label_column) return EXIT_INTERNAL;
    table->labels = pass->labels.items, table->label_count = (int)pass->labels.count;
    table->label = pass->label.items;
    pass->labels = pass->label = (list){ 0 };
    return 0;
}

static int make_table(csv_table *table, csv_pass *pass)
{
    const size_t rows = (size_t)pass->rows, columns = (size_t)pass->request->column_count;
    if (!rows)
        return io_fail(pass->error, EXIT_INPUT, "%s has no rows%s", pass->name,
                       pass->dropped ? " without a missing value" : "");
    table->rows = pass->rows, table->dropped = pass->dropped, table->delimiter = pass->delimiter;
    table->names = calloc(columns, sizeof *table->names);
    table->values = malloc(rows * columns * sizeof *table->values);
    if (!table->names || !table->values) return fail_memory(pass);
    table->columns = pass->request->column_count;
    const double *row = pass->values.items;
    for (size_t r = 0; r < rows; r++, row += columns)
        for (size_t c = 0; c < columns; c++)
            table->values[c * rows + r] = row[c];
    for (int slot = 0; slot < table->columns; slot++)
        if (!(table->names[slot] = copy_name(pass, find_column(pass, pass->request->columns[slot]))))
            return EXIT_INTERNAL;
    return move_labels(table, pass);
}

int csv_read_stream(csv_table *table, FILE *stream, const char *name, const csv_request *request,
                    io_error *error)
{
    *table = (csv_table){ 0 };
    if (!request->columns || request->column_count < 1)
        return io_fail(error, EXIT_USAGE, "%s: no column is chosen", name);
    csv_pass pass = { .name = name, .request = request, .error = error };
    int status = run_pass(&pass, stream);
    if (!status) status = make_table(table, &pass);
    end_pass(&pass);
    if (status) csv_table_free(table);
    return status;
}

static FILE *open_csv(const char *path, io_error *error)
{
    FILE *stream = fopen(path, "rb");
    if (!stream) io_fail(error, EXIT_INPUT, "cannot read %s: %s", path, strerror(errno));
    return stream;
}

int csv_read(csv_table *table, const char *path, const csv_request *request, io_error *error)
{
    *table = (csv_table){ 0 };
    if (!strcmp(path, "-")) return csv_read_stream(table, stdin, "standard input", request, error);
    FILE *stream = open_csv(path, error);
    if (!stream) return EXIT_INPUT;
    int status = csv_read_stream(table, stream, path, request, error);
    fclose(stream);
    return status;
}

static void free_names(char **names, int count)
{
    for (int i = 0; names && i < count; i++)
        free(names[i]);
    free(names);
}

void csv_table_free(csv_table *table)
{
    free_names(table->names, table->columns);
    free_names(table->labels, table->label_count);
    free(table->values);
    free(table->label_column);
    free(table->label);
    *table = (csv_table){ 0 };
}
