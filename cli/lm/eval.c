/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/lm/lm.h"

#include "cli/lm/choose.h"
#include "cli/progress.h"
#include "io/out_file.h"
#include "lm/score.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char USAGE[] = "loam lm eval MODEL --text FILE[,FILE..] | --choices FILE --form FORM [options]";
static const char ABOUT[] =
    "How well a model predicts texts: the mean of -log p of each token, in nats, and bits for each byte. "
    "Texts are read in windows of --context tokens, which score each token once. Standard errors are those "
    "of the mean over windows. Or how many questions with choices it gets right: the choice whose tokens "
    "have the largest sum of log p after the question, or, by characters, the largest mean.";

typedef struct request {
    const char *texts, *out, *choices, *form, *subject, *teacher;
    int64_t context, most, positions; /* positions: a result for so many each; 0: none */
    lm_words against; /* mechanism and teacher NULL: nothing is compared; sharpen 0: not given */
} request;

/* Over windows, of a sum x over the tokens of each, of which there are n. */
typedef struct total {
    double x, xx, nx;
} total;

/* The windows of a text, or of all. */
typedef struct result {
    int64_t tokens, bytes, windows;
    double nn;
    total nll, change, divergence; /* from what it is measured against */
} result;

static void add_sum(total *t, double n, double x) { t->x += x, t->xx += x * x, t->nx += n * x; }

static void add_total(total *to, const total *t) { to->x += t->x, to->xx += t->xx, to->nx += t->nx; }

/* Sums over a window. */
typedef struct sums {
    double nll, against, divergence;
} sums;

static void add_window(result *r, int64_t scored, sums s)
{
    const double n = (double)scored;
    r->tokens += scored, r->windows++, r->nn += n * n;
    add_sum(&r->nll, n, s.nll);
    add_sum(&r->change, n, s.nll - s.against);
    add_sum(&r->divergence, n, s.divergence);
}

static void add_result(result *to, const result *r)
{
    to->tokens += r->tokens, to->bytes += r->bytes, to->windows += r->windows, to->nn += r->nn;
    add_total(&to->nll, &r->nll);
    add_total(&to->change, &r->change);
    add_total(&to->divergence, &r->divergence);
}

static double mean_of(const result *r, const total *t) { return t->x / (double)r->tokens; }

/* Of the mean: a ratio of two sums over windows; NaN with one window. */
static double error_of(const result *r, const total *t)
{
    const double m = mean_of(r, t), w = (double)r->windows;
    const double squares = t->xx - 2 * m * t->nx + m * m * r->nn;
    return r->windows < 2 ? (double)NAN : sqrt(fmax(squares, 0) * w / (w - 1)) / (double)r->tokens;
}

/* NaN of positions, whose bytes are not counted. */
static double bits_of(const result *r)
{
    return r->bytes > 0 ? r->nll.x / ((double)r->bytes * log(2)) : (double)NAN;
}

typedef struct evaluation {
    lm_session session;
    lm_model *other;          /* NULL: nothing is compared */
    lm_files *files;          /* its own, where it is another model, */
    tokenizer *tokens;        /* and its tokenizer */
    scorer *scorer, *against; /* against: of the other */
    int64_t length;
    int32_t bos;
    int32_t *inputs;
    double *nll;         /* [3][length] */
    int64_t positions;   /* in a window that have a result of their own, of all texts; 0: none */
    result *by_position; /* [length / positions rounded up] */
    io_error *error;
} evaluation;

static double sum_of(const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i];
    return sum;
}

/* Of targets first .. end - 1 of those that are scored. */
static sums sums_of(const score_pair *pair, int64_t first, int64_t end)
{
    return (sums){ sum_of(pair->nll + first, end - first), sum_of(pair->teacher + first, end - first),
                   sum_of(pair->divergence + first, end - first) };
}

/* The place of a target is how many tokens of the window were read before the one that predicts it. */
static void add_positions(const evaluation *e, const score_pair *pair, const score_window *w)
{
    const int64_t before = w->inputs - w->scored, width = e->positions;
    for (int64_t first = 0, end; first < w->scored; first = end) {
        const int64_t index = (before + first) / width, next = (index + 1) * width - before;
        end = next < w->scored ? next : w->scored;
        add_window(&e->by_position[index], end - first, sums_of(pair, first, end));
    }
}

/* Its tokens become `inputs`, and what they predict begins `scored` before their end. */
static int run_window(evaluation *e, const tokens *text, const score_window *w, result *r)
{
    const int32_t *const targets = text->id + w->begin + 1 + w->inputs - w->scored;
    const score_pair pair = { e->nll, e->nll + e->length, e->nll + 2 * e->length };
    for (int64_t i = 0; i < w->inputs; i++)
        e->inputs[i] = w->begin + i < 0 ? e->bos : text->id[w->begin + i];
    const int status = e->against ? scorer_run_pair(e->scorer, e->against, e->inputs, w->inputs, targets,
                                                    w->scored, pair, e->error)
                                  : scorer_run(e->scorer, e->inputs, w->inputs, targets, w->scored, e->nll,
                                               e->error);
    if (status) return status;
    add_window(r, w->scored, sums_of(&pair, 0, w->scored));
    if (e->positions > 0) add_positions(e, &pair, w);
    return 0;
}

static int64_t windows_of(const evaluation *e, const tokens *text)
{
    score_window w;
    int64_t count = 0;
    while (score_window_at(&w, text->count, e->length, e->bos >= 0, count))
        count++;
    return count;
}

static int run_text(evaluation *e, const char *name, const tokens *text, result *r)
{
    progress bar;
    score_window w;
    int status = 0;
    const int64_t windows = windows_of(e, text);
    progress_begin(&bar, name, windows);
    for (int64_t n = 0; !status && n < windows; n++) {
        score_window_at(&w, text->count, e->length, e->bos >= 0, n);
        status = run_window(e, text, &w, r);
        progress_add(&bar, 1);
    }
    progress_end(&bar);
    return status;
}

/* Both models must read the same tokens. */
static int check_tokens(evaluation *e, const char *path, const char *text, size_t bytes, const tokens *own)
{
    tokens other = { 0 };
    int status = tokenizer_encode(e->tokens, text, bytes, false, &other, e->error);
    if (!status && (other.count != own->count ||
                    (own->count > 0 && memcmp(other.id, own->id, (size_t)own->count * sizeof *own->id) != 0)))
        status = io_fail(e->error, EXIT_INPUT, "--against-model: its tokenizer makes other tokens of %s",
                         path);
    tokens_free(&other);
    return status;
}

/* The tokens of a file, at most `most`, and the bytes of those that are scored. */
static int text_tokens(evaluation *e, const char *path, int64_t most, tokens *out, int64_t *bytes)
{
    const int64_t unscored = e->bos >= 0 ? 0 : 1;
    char *text = NULL, *again = NULL;
    size_t count = 0;
    int status = lm_text_file(&text, &count, path, e->error);
    if (!status) status = tokenizer_encode(e->session.tokens, text, count, false, out, e->error);
    if (!status && e->tokens) status = check_tokens(e, path, text, count, out);
    if (!status && most > 0 && out->count > most) out->count = most;
    if (!status && out->count <= unscored)
        status = io_fail(e->error, EXIT_INPUT, "%s: %lld tokens, too few to predict", path,
                         (long long)out->count);
    if (!status)
        status = tokenizer_decode(e->session.tokens, out->id + unscored, out->count - unscored, true, &again,
                                  &count, e->error);
    *bytes = (int64_t)count;
    free(text);
    free(again);
    return status;
}

static void print_result(const evaluation *e, const char *name, const result *r)
{
    printf("%-32s %10lld %10.4f %8.4f %10.4f", name, (long long)r->tokens, mean_of(r, &r->nll),
           error_of(r, &r->nll), bits_of(r));
    if (e->against)
        printf(" %+10.4f %8.4f %10.3g %8.2g", mean_of(r, &r->change), error_of(r, &r->change),
               mean_of(r, &r->divergence), error_of(r, &r->divergence));
    printf("\n");
    fflush(stdout);
}

static void write_result(const evaluation *e, FILE *csv, const char *name, const result *r)
{
    fprintf(csv, "%s,%lld,%lld,%.9g,%.3g,%.9g", name, (long long)r->tokens, (long long)r->bytes,
            mean_of(r, &r->nll), error_of(r, &r->nll), bits_of(r));
    if (e->against)
        fprintf(csv, ",%.6g,%.3g,%.6g,%.3g", mean_of(r, &r->change), error_of(r, &r->change),
                mean_of(r, &r->divergence), error_of(r, &r->divergence));
    fprintf(csv, "\n");
}

static void print_header(const evaluation *e, FILE *csv)
{
    printf("%-32s %10s %10s %8s %10s%s\n", "text", "tokens", "nll", "+-", "bits/byte",
           e->against ? "     change       +-         KL       +-" : "");
    if (csv)
        fprintf(csv, "text,tokens,bytes,nll,nll_error,bits_per_byte%s\n",
                e->against ? ",change,change_error,kl,kl_error" : "");
}

/* Of all texts, at positions first .. of windows. */
static void print_positions(const evaluation *e, FILE *csv)
{
    for (int64_t first = 0; e->positions > 0 && first < e->length; first += e->positions) {
        const int64_t end = e->length - first < e->positions ? e->length : first + e->positions;
        const result *r = &e->by_position[first / e->positions];
        char name[64];
        snprintf(name, sizeof name, "positions %lld to %lld", (long long)first, (long long)end - 1);
        if (r->tokens == 0) continue;
        print_result(e, name, r);
        if (csv) write_result(e, csv, name, r);
    }
}

static int run_texts(evaluation *e, const request *r, char *list, FILE *csv)
{
    result all = { 0 };
    int files = 0, status = 0;
    const double begun = lm_seconds();
    print_header(e, csv);
    for (char *path = strtok(list, ","); !status && path; path = strtok(NULL, ","), files++) {
        result one = { 0 };
        tokens text = { 0 };
        status = text_tokens(e, path, r->most, &text, &one.bytes);
        if (!status) status = run_text(e, path, &text, &one);
        tokens_free(&text);
        if (status) break;
        print_result(e, path, &one);
        if (csv) write_result(e, csv, path, &one);
        add_result(&all, &one);
    }
    if (status) return status;
    if (files > 1) print_result(e, "all", &all);
    print_positions(e, csv);
    fprintf(stderr, "%.1f tokens a second\n", (double)all.tokens / (lm_seconds() - begun));
    return 0;
}

/* Texts that were trained on follow this token; a first token that begins a user's turn does not do. */
int32_t lm_prefix(const tokenizer *t, const lm_config *c)
{
    const int32_t end = tokenizer_id(t, "<|endoftext|>");
    return end >= 0 ? end : c->bos;
}

/* Does it predict, and how many tokens of a window can it read? */
static int check_model(evaluation *e, const lm_model *m, int64_t wanted, io_error *error)
{
    const lm_config *c = lm_model_config(m);
    if (c->architecture == LM_BERT)
        return io_fail(error, EXIT_INPUT, "a bert model predicts no next token; see loam lm embed");
    if (wanted > c->context)
        return io_fail(error, EXIT_USAGE, "--context %lld: the model reads at most %lld tokens",
                       (long long)wanted, (long long)c->context);
    e->length = c->context < e->length ? c->context : e->length;
    return 0;
}

static int open_evaluation(evaluation *e, const request *r, io_error *error)
{
    e->length = r->context > 0 ? r->context : 1024;
    int status = check_model(e, e->session.model, r->context, error);
    if (!status && e->other) status = check_model(e, e->other, r->context, error);
    if (status) return status;
    e->bos = lm_prefix(e->session.tokens, lm_model_config(e->session.model));
    e->inputs = calloc((size_t)e->length, sizeof *e->inputs),
    e->nll = calloc((size_t)e->length, 3 * sizeof *e->nll);
    e->positions = r->positions;
    if (e->positions > 0)
        e->by_position = calloc((size_t)((e->length + e->positions - 1) / e->positions),
                                sizeof *e->by_position);
    if (!e->inputs || !e->nll || (e->positions > 0 && !e->by_position))
        return io_fail(error, EXIT_INTERNAL, "out of memory for a window");
    status = scorer_open(&e->scorer, e->session.model, e->length, error);
    return status || !e->other ? status : scorer_open(&e->against, e->other, e->length, error);
}

static void print_other(const evaluation *e, const request *r)
{
    char text[LM_ATTENTION];
    printf("change, and KL of its predictions from: %s%s%s\n", r->teacher ? r->teacher : "",
           r->teacher && r->against.mechanism ? ", " : "",
           r->teacher && !r->against.mechanism ? "" : lm_session_attention(&e->session, &r->against, text));
}

static int evaluate(evaluation *e, const request *r, const lm_words *words, io_error *error)
{
    char text[LM_ATTENTION], *list = strdup(r->texts);
    out_file *out = NULL;
    int status = list ? open_evaluation(e, r, error)
                      : io_fail(error, EXIT_INTERNAL, "out of memory for names");
    if (!status && r->out) status = out_open(&out, r->out, error);
    if (!status) {
        printf("attention: %s; windows of %lld tokens\n", lm_session_attention(&e->session, words, text),
               (long long)e->length);
        if (e->other) print_other(e, r);
        printf("\n");
        status = run_texts(e, r, list, out ? out_stream(out) : NULL);
    }
    if (out && status)
        out_discard(out);
    else if (out)
        status = out_commit(out, error);
    free(list);
    return status;
}

static int open_teacher(evaluation *e, const char *path, const lm_words *words, io_error *error)
{
    int status = lm_files_open(&e->files, path, error);
    if (!status) status = tokenizer_open(&e->tokens, words->tokenizer ? words->tokenizer : path, error);
    if (status) return status;
    const int64_t its = lm_files_config(e->files)->vocabulary,
                  own = lm_files_config(e->session.files)->vocabulary;
    return its == own ? 0
                      : io_fail(error, EXIT_INPUT, "--against-model %s: %lld words, the other has %lld", path,
                                (long long)its, (long long)own);
}

/* What it is measured against: another model, or the same one with other attention. In the words, that and
 * the inverse temperature are its own. */
static int open_other(evaluation *e, const lm_words *words, request *r, io_error *error)
{
    const lm_words of = r->against;
    int status = r->teacher ? open_teacher(e, r->teacher, words, error) : 0;
    r->against = *words;
    r->against.mechanism = of.mechanism, r->against.sharpen = of.sharpen > 0 ? of.sharpen : 1;
    if (!status)
        status = lm_session_other(&e->other, &e->session, e->files ? e->files : e->session.files, &r->against,
                                  "against", error);
    return status;
}

static int check_request(const request *r, io_error *error)
{
    if (r->positions > 0 && r->choices) return io_fail(error, EXIT_USAGE, "--positions is for --text");
    if (r->subject && !r->choices) return io_fail(error, EXIT_USAGE, "--subject is for --choices");
    if (r->teacher && r->choices) return io_fail(error, EXIT_USAGE, "--against-model is for --text");
    if (r->against.sharpen > 0 && !r->against.mechanism && !r->teacher)
        return io_fail(error, EXIT_USAGE, "--against-sharpen is for --against");
    return 0;
}

static int run_request(evaluation *e, request *r, const char *model, const lm_words *words, io_error *error)
{
    int status = lm_session_open(&e->session, model, words, error);
    if (!status && (r->against.mechanism || r->teacher)) status = open_other(e, words, r, error);
    const choose_request choose = { r->choices, r->form, r->out, r->subject, e->other };
    if (status) return status;
    return r->choices ? choose_run(&e->session, &choose, error) : evaluate(e, r, words, error);
}

int lm_eval(int argc, char **argv, io_error *error)
{
    lm_words words = lm_words_default();
    request r = { 0 };
    bool help = false;
    const option_row rows[] = {
        { "text", OPTION_TEXT, &r.texts, 0, 0, "FILE,..", "texts, scored one after another" },
        { "choices", OPTION_TEXT, &r.choices, 0, 0, "FILE",
          "questions, a JSON object a line; of mmlu also .csv" },
        { "form", OPTION_TEXT, &r.form, 0, 0, "FORM",
          "of these: piqa, arc, logiqa, winogrande, wsc273, wsc or mmlu" },
        { "subject", OPTION_TEXT, &r.subject, 0, 0, "TEXT",
          "of mmlu's questions; default: as the lines say, of a .csv its name" },
        { "context", OPTION_INT, &r.context, 1, 1e9, "N",
          "tokens of a window; default 1024, or the model's" },
        { "most", OPTION_INT, &r.most, 1, 1e15, "N", "the first N tokens of each text; default all" },
        { "positions", OPTION_INT, &r.positions, 1, 1e9, "N",
          "also of all texts by the place of tokens in their windows, N places in a row" },
        { "out", OPTION_TEXT, &r.out, 0, 0, "FILE.csv", "the table, or the sums of all choices, as a file" },
        { "against", OPTION_TEXT, &r.against.mechanism, 0, 0, "NAME",
          "also by this attention: what --mechanism changes, and the divergence of what is predicted" },
        { "against-model", OPTION_TEXT, &r.teacher, 0, 0, "MODEL",
          "also by this model, of the same tokenizer; its attention: --against, or its own" },
        { "against-sharpen", OPTION_REAL, &r.against.sharpen, 1e-3, 1e3, "X",
          "there scores are multiplied by X; default 1" },
        LM_OPTION_ROWS(words),
        { .name = NULL },
    };
    int status = options_parse(&argc, argv, rows, USAGE, ABOUT, &help, error);
    if (status || help) return status;
    if (argc != 2 || !r.texts == !r.choices)
        return io_fail(error, EXIT_USAGE, "expected one model, and --text or --choices; usage: %s", USAGE);
    if ((status = check_request(&r, error))) return status;
    evaluation e = { .error = error };
    status = run_request(&e, &r, argv[1], &words, error);
    scorer_close(e.scorer);
    scorer_close(e.against);
    lm_model_close(e.other);
    tokenizer_close(e.tokens);
    lm_files_close(e.files);
    free(e.inputs);
    free(e.nll);
    free(e.by_position);
    lm_session_close(&e.session);
    return status;
}
