/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "lm/items.h"

#include <csv.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line that is read. */
typedef struct line {
    const json_t *root;
    const char *name;    /* of the file */
    const char *subject; /* NULL: as the line says */
    int64_t number;
    item *to;
    io_error *error;
} line;

static int wrong(const line *l, const char *format, ...)
{
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return io_fail(l->error, EXIT_INPUT, "%s, line %lld: %s", l->name, (long long)l->number, text);
}

/* malloc's, or NULL. */
static char *print(const char *format, ...)
{
    va_list list, again;
    va_start(list, format);
    va_copy(again, list);
    const int bytes = vsnprintf(NULL, 0, format, list);
    char *text = bytes >= 0 ? malloc((size_t)bytes + 1) : NULL;
    if (text) vsnprintf(text, (size_t)bytes + 1, format, again);
    va_end(again);
    va_end(list);
    return text;
}

/* ---- values of a line */

static int text_of(const line *l, const json_t *from, const char *key, const char **text)
{
    const json_t *value = json_object_get(from, key);
    *text = json_string_value(value);
    return *text ? 0 : wrong(l, "%s: expected a text", key);
}

static int number_of(const line *l, const json_t *from, const char *key, int64_t most, int64_t *number)
{
    const json_t *value = json_object_get(from, key);
    if (json_is_boolean(value)) {
        *number = json_is_true(value);
        return 0;
    }
    *number = json_integer_value(value);
    return json_is_integer(value) && *number >= 0 && *number <= most
               ? 0
               : wrong(l, "%s: expected a number 0 to %lld", key, (long long)most);
}

/* Texts of a list of *count, or, where that is 0, of 2 .. ITEM_CHOICES, and then *count is their number. */
static int texts_of(const line *l, const json_t *list, const char *key, const char *text[ITEM_CHOICES],
                    int *count)
{
    const size_t size = json_array_size(list);
    if (!json_is_array(list) || size < 2 || size > ITEM_CHOICES || (*count && (int)size != *count))
        return wrong(l, "%s: expected a list of %s", key, *count == 2 ? "2" : *count == 4 ? "4" : "2 to 8");
    *count = (int)size;
    for (int i = 0; i < *count; i++) {
        text[i] = json_string_value(json_array_get(list, (size_t)i));
        if (!text[i]) return wrong(l, "%s: element %d is no text", key, i + 1);
    }
    return 0;
}

/* ---- items */

static int64_t characters_of(const char *text)
{
    int64_t count = 0;
    for (; *text; text++)
        count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

static int check_memory(const line *l)
{
    for (int i = 0; i < l->to->choices; i++)
        if (!l->to->context[i] || !l->to->rest[i])
            return io_fail(l->error, EXIT_INTERNAL, "out of memory for questions");
    return 0;
}

/* The usual item: one context, choices after a blank. Takes `context`. */
static int put_item(const line *l, char *context, const char *const text[], int count, int64_t answer)
{
    item *to = l->to;
    to->choices = count, to->answer = (int)answer, to->normed = true;
    for (int i = 0; i < count; i++) {
        to->context[i] = context ? strdup(context) : NULL;
        to->rest[i] = print(" %s", text[i]);
        to->characters[i] = characters_of(text[i]);
    }
    free(context);
    return check_memory(l);
}

/* A sentence that two choices complete: what stands before them, and the rest, which is scored. Takes
 * `rest`. */
static int put_sentence(const line *l, const char *sentence, size_t before, const char *const text[2],
                        char *rest, int64_t answer)
{
    item *to = l->to;
    to->choices = 2, to->answer = (int)answer;
    for (int i = 0; i < 2; i++) {
        to->context[i] = print("%.*s%s", (int)before, sentence, text[i]);
        to->rest[i] = rest ? strdup(rest) : NULL;
        to->characters[i] = characters_of(text[i]);
    }
    free(rest);
    return check_memory(l);
}

/* Without the white space around it, malloc's. */
static char *stripped(const char *text)
{
    static const char white[] = " \t\r\n\v\f";
    text += strspn(text, white);
    size_t length = strlen(text);
    while (length > 0 && strchr(white, text[length - 1]))
        length--;
    return strndup(text, length);
}

/* Wherever `from` stands there is `to` now, which is no longer. */
static void replace(char *text, const char *from, const char *to)
{
    const size_t old = strlen(from), new = strlen(to);
    for (char *at = text; (at = strstr(at, from)); at += new) {
        memcpy(at, to, new);
        memmove(at + new, at + old, strlen(at + old) + 1);
    }
}

/* ---- forms, with the prompts of lm-eval 0.4, so that accuracies can be compared with those in papers */

static int read_piqa(const line *l)
{
    const char *goal, *text[2];
    int64_t label;
    int status = text_of(l, l->root, "goal", &goal);
    if (!status) status = text_of(l, l->root, "sol1", &text[0]);
    if (!status) status = text_of(l, l->root, "sol2", &text[1]);
    if (!status) status = number_of(l, l->root, "label", 1, &label);
    return status ? status : put_item(l, print("Question: %s\nAnswer:", goal), text, 2, label);
}

/* Texts and labels, of either nesting. */
static int arc_choices(const line *l, const char **question, const char *text[ITEM_CHOICES],
                       const char *label[ITEM_CHOICES], int *count)
{
    const json_t *inner = json_object_get(l->root, "question"), *list;
    int status;
    if (json_is_string(inner)) {
        *question = json_string_value(inner);
        list = json_object_get(l->root, "choices");
        status = texts_of(l, json_object_get(list, "text"), "choices.text", text, count);
        return status ? status : texts_of(l, json_object_get(list, "label"), "choices.label", label, count);
    }
    if (!json_is_object(inner)) return wrong(l, "question: expected a text or an object");
    list = json_object_get(inner, "choices");
    *count = (int)json_array_size(list);
    if ((status = text_of(l, inner, "stem", question))) return status;
    if (*count < 2 || *count > ITEM_CHOICES) return wrong(l, "choices: expected a list of 2 to 8");
    for (int i = 0; !status && i < *count; i++) {
        status = text_of(l, json_array_get(list, (size_t)i), "text", &text[i]);
        if (!status) status = text_of(l, json_array_get(list, (size_t)i), "label", &label[i]);
    }
    return status;
}

static int read_arc(const line *l)
{
    const char *question = NULL, *key, *text[ITEM_CHOICES], *label[ITEM_CHOICES];
    int count = 0, answer = -1;
    int status = arc_choices(l, &question, text, label, &count);
    if (!status) status = text_of(l, l->root, "answerKey", &key);
    if (status) return status;
    for (int i = 0; i < count; i++)
        if (strcmp(label[i], key) == 0) answer = i;
    return answer < 0 ? wrong(l, "answerKey: '%.20s' is the label of no choice", key)
                      : put_item(l, print("Question: %s\nAnswer:", question), text, count, answer);
}

/* "A. first\nB. second\n...", malloc's. */
static char *lettered(const char *const text[], int count)
{
    char *all = strdup("");
    for (int i = 0; all && i < count; i++) {
        char *more = print("%s%c. %s\n", all, 'A' + i, text[i]);
        free(all);
        all = more;
    }
    return all;
}

static int read_logiqa(const line *l)
{
    const char *passage, *question, *label, *text[ITEM_CHOICES];
    int count = 4;
    int status = text_of(l, l->root, "context", &passage);
    if (!status) status = text_of(l, l->root, "question", &question);
    if (!status) status = text_of(l, l->root, "label", &label);
    if (!status) status = texts_of(l, json_object_get(l->root, "options"), "options", text, &count);
    if (status) return status;
    if (label[0] < 'a' || label[0] > 'd' || label[1]) return wrong(l, "label: expected a, b, c or d");
    char *list = lettered(text, count);
    char *context = list ? print("Passage: %s\nQuestion: %s\nChoices:\n%sAnswer:", passage, question, list)
                         : NULL;
    free(list);
    return put_item(l, context, text, count, label[0] - 'a');
}

static int read_winogrande(const line *l)
{
    const char *sentence, *answer, *text[2];
    int status = text_of(l, l->root, "sentence", &sentence);
    if (!status) status = text_of(l, l->root, "option1", &text[0]);
    if (!status) status = text_of(l, l->root, "option2", &text[1]);
    if (!status) status = text_of(l, l->root, "answer", &answer);
    if (status) return status;
    const char *gap = strchr(sentence, '_');
    if (!gap || strchr(gap + 1, '_')) return wrong(l, "sentence: expected one _");
    if (strcmp(answer, "1") != 0 && strcmp(answer, "2") != 0)
        return wrong(l, "answer: expected \"1\" or \"2\"");
    char *end = stripped(gap + 1), *rest = end ? print(" %s", end) : NULL;
    free(end);
    return put_sentence(l, sentence, (size_t)(gap - sentence), text, rest, answer[0] - '1');
}

/* The byte at which character n of a text begins; its length in bytes where n is beyond it. */
static size_t byte_of(const char *text, int64_t n)
{
    size_t at = 0;
    for (; text[at]; at++)
        if (((unsigned char)text[at] & 0xc0) != 0x80 && n-- == 0) break;
    return at;
}

static bool is_one_of(const char *const list[], const char *word, size_t bytes)
{
    while (*list && (strlen(*list) != bytes || memcmp(*list, word, bytes) != 0))
        list++;
    return *list != NULL;
}

/* A choice in the place of the pronoun: "the cat" within a sentence, "Ann's" for "her"; malloc's. */
static char *in_place(const char *choice, const char *pronoun, bool begins)
{
    static const char *const owners[] = { "my",  "his", "her", "our",   "their", "My",
                                          "His", "Her", "Our", "Their", NULL };
    static const char *const words[] = { "A",    "An", "The", "She", "He",    "It",
                                         "They", "My", "His", "Her", "Their", NULL };
    char *text = print("%s%s", choice, is_one_of(owners, pronoun, strlen(pronoun)) ? "'s" : "");
    if (text && !begins && is_one_of(words, text, strcspn(text, " "))) *text = (char)(*text - 'A' + 'a');
    return text;
}

/* Doubled blanks are single ones; before the rest there is one more. */
static int put_schema(const line *l, const char *sentence, size_t before, const char *pronoun,
                      const char *const text[2], int64_t answer)
{
    const bool begins = before >= 2 && sentence[before - 2] == '.';
    char *first = strndup(sentence, before), *rest = strdup(sentence + before + strlen(pronoun));
    char *choice[2] = { in_place(text[0], pronoun, begins), in_place(text[1], pronoun, begins) };
    int status = 0;
    if (first && rest && choice[0] && choice[1]) {
        replace(first, "  ", " ");
        replace(rest, "  ", " ");
        status = put_sentence(l, first, strlen(first), (const char *const *)choice, print(" %s", rest),
                              answer);
    } else {
        status = io_fail(l->error, EXIT_INTERNAL, "out of memory for questions");
    }
    free(first);
    free(rest);
    free(choice[0]);
    free(choice[1]);
    return status;
}

static int read_wsc273(const line *l)
{
    const char *sentence, *pronoun, *text[ITEM_CHOICES];
    int64_t place, label;
    int count = 2;
    int status = text_of(l, l->root, "text", &sentence);
    if (!status) status = text_of(l, l->root, "pronoun", &pronoun);
    if (!status) status = number_of(l, l->root, "pronoun_loc", INT32_MAX, &place);
    if (!status) status = number_of(l, l->root, "label", 1, &label);
    if (!status) status = texts_of(l, json_object_get(l->root, "options"), "options", text, &count);
    if (status) return status;
    const size_t before = byte_of(sentence, place);
    if (strncmp(sentence + before, pronoun, strlen(pronoun)) != 0)
        return wrong(l, "pronoun_loc: there is no '%.40s' at %lld", pronoun, (long long)place);
    return put_schema(l, sentence, before, pronoun, text, label);
}

/* The byte at which word n of a text, words apart by blanks, begins; beyond it, its length. */
static size_t word_of(const char *text, int64_t n)
{
    size_t at = strspn(text, " ");
    for (; n > 0 && text[at]; n--)
        at += strcspn(text + at, " "), at += strspn(text + at, " ");
    return at;
}

/* The texts have blanks between all tokens; this takes them from around marks. */
static void join_marks(char *text)
{
    static const char *const marks[][2] = { { " n't", "n't" }, { " )", ")" }, { "( ", "(" }, { "\" ", "\"" },
                                            { " \"", "\"" },   { " '", "'" }, { " .", "." }, { " ,", "," } };
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        replace(text, marks[i][0], marks[i][1]);
}

static int read_wsc(const line *l)
{
    static const char *const answers[] = { "no", "yes" };
    const json_t *target = json_object_get(l->root, "target");
    const char *sentence, *noun, *pronoun;
    int64_t place, label;
    int status = text_of(l, l->root, "text", &sentence);
    if (!status) status = text_of(l, target, "span1_text", &noun);
    if (!status) status = text_of(l, target, "span2_text", &pronoun);
    if (!status) status = number_of(l, target, "span2_index", INT32_MAX, &place);
    if (!status) status = number_of(l, l->root, "label", 1, &label);
    if (status) return status;
    const size_t before = word_of(sentence, place), length = strlen(pronoun);
    if (strncmp(sentence + before, pronoun, length) != 0)
        return wrong(l, "span2_index: word %lld is not '%.40s'", (long long)place, pronoun);
    char *passage = print("%.*s*%s*%s", (int)before, sentence, pronoun, sentence + before + length);
    if (passage) join_marks(passage);
    char *context = passage
                        ? print(
                              "Passage: %s\nQuestion: In the passage above, does the pronoun \"*%s*\" refer "
                              "to \"*%s*\"?\nAnswer:",
                              passage, pronoun, noun)
                        : NULL;
    free(passage);
    return put_item(l, context, answers, 2, label);
}

/* "... about high school physics.", malloc's; files write a subject as high_school_physics. */
static char *mmlu_header(const char *subject)
{
    static const char about[] = "The following are multiple choice questions (with answers)";
    char *header = subject ? print("%s about %s.", about, subject) : print("%s.", about);
    for (char *at = header; at && (at = strchr(at, '_'));)
        *at = ' ';
    return header;
}

static int read_mmlu(const line *l)
{
    static const char *const letters[] = { "A", "B", "C", "D" };
    const char *question, *text[ITEM_CHOICES], *own = json_string_value(json_object_get(l->root, "subject"));
    int64_t answer;
    int count = 4;
    int status = text_of(l, l->root, "question", &question);
    if (!status) status = number_of(l, l->root, "answer", 3, &answer);
    if (!status) status = texts_of(l, json_object_get(l->root, "choices"), "choices", text, &count);
    if (status) return status;
    char *header = mmlu_header(l->subject ? l->subject : own), *asked = stripped(question),
         *list = lettered(text, count);
    char *context = header && asked && list ? print("%s\n\n%s\n%sAnswer:", header, asked, list) : NULL;
    free(header);
    free(asked);
    free(list);
    return put_item(l, context, letters, 4, answer);
}

static const struct {
    const char *name;
    int (*read)(const line *l);
} forms[ITEM_FORMS] = {
    [ITEM_PIQA] = { "piqa", read_piqa },       [ITEM_ARC] = { "arc", read_arc },
    [ITEM_LOGIQA] = { "logiqa", read_logiqa }, [ITEM_WINOGRANDE] = { "winogrande", read_winogrande },
    [ITEM_WSC273] = { "wsc273", read_wsc273 }, [ITEM_WSC] = { "wsc", read_wsc },
    [ITEM_MMLU] = { "mmlu", read_mmlu },
};

const char *item_form_name(int form) { return form < ITEM_FORMS ? forms[form].name : NULL; }

/* ---- files */

/* Takes `root`. */
static int add_item(items *out, json_t *root, item_form form, line *l)
{
    item *more = realloc(out->list, (size_t)(out->count + 1) * sizeof *more);
    int status = more ? 0 : io_fail(l->error, EXIT_INTERNAL, "out of memory for questions");
    if (more) {
        out->list = more;
        l->to = &more[out->count++];
        *l->to = (item){ 0 };
        l->root = root;
        status = json_is_object(root) ? forms[form].read(l) : wrong(l, "expected a JSON object");
    }
    json_decref(root);
    return status;
}

static int read_line(items *out, const char *text, size_t bytes, item_form form, line *l)
{
    json_error_t reason;
    json_t *root = json_loadb(text, bytes, 0, &reason);
    return root ? add_item(out, root, form, l) : wrong(l, "not JSON: %.100s", reason.text);
}

/* What has no questions is wrong, and on failure nothing is kept. */
static int end_items(items *out, int status, const char *name, io_error *error)
{
    if (!status && out->count == 0) status = io_fail(error, EXIT_INPUT, "%s: no questions", name);
    if (status) items_free(out);
    return status;
}

int items_read(items *out, const char *text, size_t bytes, item_form form, const char *subject,
               const char *name, io_error *error)
{
    line l = { .name = name, .subject = subject, .error = error };
    int status = 0;
    *out = (items){ 0 };
    for (size_t at = 0; !status && at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t length = end ? (size_t)(end - text) - at : bytes - at;
        l.number++;
        if (strspn(text + at, " \t\r") < length) status = read_line(out, text + at, length, form, &l);
        at += length + 1;
    }
    return end_items(out, status, name, error);
}

/* ---- CSV */

enum { QUESTION, ANSWER = 5, FIELDS };

/* A row becomes the JSON object that a line of the other kind is. */
typedef struct csv_rows {
    items *out;
    line *line;
    char *field[FIELDS];
    int count; /* of the row's fields, those beyond FIELDS too */
    int64_t rows;
    int status;
} csv_rows;

static void on_field(void *text, size_t bytes, void *data)
{
    csv_rows *r = data;
    if (r->status || r->count++ >= FIELDS) return;
    char **place = &r->field[r->count - 1];
    if (bytes > 0 && memchr(text, 0, bytes))
        r->status = wrong(r->line, "field %d has a byte 0", r->count);
    else if (!(*place = strndup(bytes > 0 ? text : "", bytes)))
        r->status = io_fail(r->line->error, EXIT_INTERNAL, "out of memory for questions");
}

static bool is_header(char *const field[FIELDS])
{
    static const char *const names[FIELDS] = { "question", "A", "B", "C", "D", "answer" };
    bool header = true;
    for (int i = 0; i < FIELDS; i++)
        header = header && strcmp(field[i], names[i]) == 0;
    return header;
}

static int add_row(csv_rows *r)
{
    char *const *f = r->field;
    if (r->count != FIELDS)
        return wrong(r->line, "%d fields; expected 6: question, A, B, C, D, answer", r->count);
    if (r->rows++ == 0 && is_header(f)) return 0;
    const char *letter = f[ANSWER];
    if (letter[0] < 'A' || letter[0] > 'D' || letter[1])
        return wrong(r->line, "the answer is '%.20s'; expected A, B, C or D", letter);
    json_t *root = json_pack("{s:s, s:[ssss], s:i}", "question", f[QUESTION], "choices", f[1], f[2], f[3],
                             f[4], "answer", letter[0] - 'A');
    return root ? add_item(r->out, root, ITEM_MMLU, r->line) : wrong(r->line, "not UTF-8");
}

static void on_row(int end, void *data)
{
    csv_rows *r = data;
    (void)end;
    if (!r->status) r->status = add_row(r);
    for (int i = 0; i < FIELDS; i++) {
        free(r->field[i]);
        r->field[i] = NULL;
    }
    r->count = 0;
}

/* Blanks around a field belong to it. */
static int is_no_space(unsigned char byte)
{
    (void)byte;
    return 0;
}

/* Line by line, so that messages can tell where a row begins. */
static int parse_rows(csv_rows *r, const char *text, size_t bytes)
{
    struct csv_parser parser;
    int64_t lines = 0;
    if (csv_init(&parser, CSV_STRICT | CSV_STRICT_FINI) != 0)
        return io_fail(r->line->error, EXIT_INTERNAL, "out of memory for questions");
    csv_set_space_func(&parser, is_no_space);
    for (size_t at = 0, length; !r->status && at < bytes; at += length) {
        const char *end = memchr(text + at, '\n', bytes - at);
        length = end ? (size_t)(end - text) + 1 - at : bytes - at;
        lines++;
        if (!parser.quoted) r->line->number = lines;
        if (csv_parse(&parser, text + at, length, on_field, on_row, r) != length && !r->status)
            r->status = wrong(r->line, "%s", csv_strerror(csv_error(&parser)));
    }
    if (!r->status && csv_fini(&parser, on_field, on_row, r) != 0)
        r->status = wrong(r->line, "a quoted field never ends");
    csv_free(&parser);
    return r->status;
}

/* "some/anatomy_test.csv": anatomy, malloc's. */
static char *subject_of(const char *name)
{
    static const char *const ends[] = { ".csv", "_test", "_dev", "_val" };
    const char *slash = strrchr(name, '/');
    char *subject = strdup(slash ? slash + 1 : name);
    for (size_t i = 0; subject && i < sizeof ends / sizeof *ends; i++) {
        const size_t length = strlen(subject), end = strlen(ends[i]);
        if (length > end && strcmp(subject + length - end, ends[i]) == 0) subject[length - end] = 0;
    }
    return subject;
}

int items_read_csv(items *out, const char *text, size_t bytes, const char *subject, const char *name,
                   io_error *error)
{
    const size_t mark = bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    char *own = subject ? NULL : subject_of(name);
    line l = { .name = name, .subject = subject ? subject : own, .error = error };
    csv_rows rows = { .out = out, .line = &l };
    *out = (items){ 0 };
    int status = l.subject ? parse_rows(&rows, text + mark, bytes - mark)
                           : io_fail(error, EXIT_INTERNAL, "out of memory for questions");
    for (int i = 0; i < FIELDS; i++)
        free(rows.field[i]);
    free(own);
    return end_items(out, status, name, error);
}

void items_free(items *list)
{
    for (int64_t n = 0; n < list->count; n++)
        for (int i = 0; i < ITEM_CHOICES; i++) {
            free(list->list[n].context[i]);
            free(list->list[n].rest[i]);
        }
    free(list->list);
    *list = (items){ 0 };
}
