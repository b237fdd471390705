/* SPDX-License-Identifier: MIT */
#include "cli/lm/choose.h"

#include "cli/names.h"
#include "cli/progress.h"
#include "io/out_file.h"
#include "lm/items.h"
#include "lm/score.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A choice as tokens: what is read, and how many at its end are scored with the one after them. */
typedef struct choice {
    tokens whole;
    int64_t scored;
} choice;

/* How many questions are right, by it and, of those that are not by both, by it or the other alone. */
typedef struct tally {
    int64_t right, gained, lost;
} tally;

typedef struct chooser {
    lm_session *session;
    scorer *scorer, *against; /* against: NULL, or of the other attention */
    int64_t length;           /* tokens that are read at most */
    double *nll;
    FILE *csv;
    io_error *error;
    int64_t count, answers[ITEM_CHOICES];
    tally plain, normed;
    bool has_normed;
} chooser;

/* Tokens of a choice are those of the whole but for as many as its context has; blanks at the end of the
 * context are the choice's. A context without tokens is the model's first token. */
static int encode_choice(const chooser *c, const item *from, int i, choice *out)
{
    const tokenizer *t = c->session->tokens;
    const int32_t bos = lm_model_config(c->session->model)->bos;
    const size_t context = strlen(from->context[i]), rest = strlen(from->rest[i]);
    size_t kept = context;
    while (kept > 0 && from->context[i][kept - 1] == ' ')
        kept--;
    char *text = malloc(context + rest + 1);
    tokens before = { 0 };
    *out = (choice){ 0 };
    if (!text) return io_fail(c->error, EXIT_INTERNAL, "out of memory for questions");
    memcpy(text, from->context[i], context);
    memcpy(text + context, from->rest[i], rest + 1);
    int status = tokenizer_encode(t, text, kept, false, &before, c->error);
    if (!status) status = tokenizer_encode(t, text, context + rest, false, &out->whole, c->error);
    free(text);
    out->scored = out->whole.count - before.count;
    if (!status && before.count == 0 && out->whole.count > 0) {
        int32_t *more = realloc(out->whole.id, (size_t)(out->whole.count + 1) * sizeof *more);
        if (!more) status = io_fail(c->error, EXIT_INTERNAL, "out of memory for questions");
        if (more) {
            memmove(more + 1, more, (size_t)out->whole.count * sizeof *more);
            more[0] = bos < 0 ? 0 : bos;
            out->whole.id = more, out->whole.count++;
        }
    }
    tokens_free(&before);
    if (!status && out->scored < 1)
        status = io_fail(c->error, EXIT_INPUT, "question %lld: choice %d has no tokens of its own",
                         (long long)c->count + 1, i + 1);
    return status;
}

/* The sum of log p of a choice. Contexts are cut from the left. */
static int score_choice(chooser *c, scorer *by, const choice *x, double *sum)
{
    const int64_t scored = x->scored < c->length ? x->scored : c->length, all = x->whole.count - 1;
    const int64_t inputs = all < c->length ? all : c->length;
    const int32_t *const end = x->whole.id + x->whole.count;
    const int status = scorer_run(by, end - 1 - inputs, inputs, end - scored, scored, c->nll, c->error);
    *sum = 0;
    for (int64_t i = 0; !status && i < scored; i++)
        *sum -= c->nll[i];
    return status;
}

static int largest(const double *x, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static int score_item(chooser *c, scorer *by, const item *x, double sum[ITEM_CHOICES])
{
    int status = 0;
    for (int i = 0; !status && i < x->choices; i++) {
        choice one;
        status = encode_choice(c, x, i, &one);
        if (!status) status = score_choice(c, by, &one, &sum[i]);
        tokens_free(&one.whole);
    }
    return status;
}

/* Is the likeliest choice the answer? */
static bool is_right(const item *x, const double *sum, bool normed)
{
    double of[ITEM_CHOICES];
    for (int i = 0; i < x->choices; i++)
        of[i] = !normed ? sum[i] : x->characters[i] > 0 ? sum[i] / (double)x->characters[i] : -INFINITY;
    return largest(of, x->choices) == x->answer;
}

static void count_item(tally *t, const item *x, const double *sum, const double *other, bool normed)
{
    const bool right = is_right(x, sum, normed), before = is_right(x, other, normed);
    t->right += right, t->gained += right && !before, t->lost += before && !right;
}

static int run_item(chooser *c, const item *x)
{
    double sum[ITEM_CHOICES], other[ITEM_CHOICES];
    int status = score_item(c, c->scorer, x, sum);
    if (!status && c->against) status = score_item(c, c->against, x, other);
    if (status) return status;
    c->count++, c->answers[x->answer]++, c->has_normed = x->normed;
    count_item(&c->plain, x, sum, c->against ? other : sum, false);
    count_item(&c->normed, x, sum, c->against ? other : sum, true);
    if (!c->csv) return 0;
    fprintf(c->csv, "%lld,%d", (long long)c->count, x->answer);
    for (int i = 0; i < x->choices; i++)
        fprintf(c->csv, ",%.9g", sum[i]);
    for (int i = 0; c->against && i < x->choices; i++)
        fprintf(c->csv, ",%.9g", other[i]);
    fprintf(c->csv, "\n");
    return 0;
}

/* McNemar's test: how probable it is that the questions of which only one is right are shared out at least so
 * unevenly, were each as likely either way. */
static double chance_of(int64_t gained, int64_t lost)
{
    const int64_t count = gained + lost, fewer = gained < lost ? gained : lost;
    double p = 0;
    for (int64_t k = 0; k <= fewer; k++)
        p += exp(lgamma((double)count + 1) - lgamma((double)k + 1) - lgamma((double)(count - k) + 1) -
                 (double)count * log(2));
    return fmin(1, 2 * p);
}

static void print_share(const chooser *c, const char *label, const tally *t)
{
    const double n = (double)c->count, p = (double)t->right / n;
    printf("%-24s %.4f +- %.4f", label, p, sqrt(p * (1 - p) / n));
    if (c->against) {
        const double change = (double)(t->gained - t->lost) / n, only = (double)(t->gained + t->lost) / n;
        printf("   change %+.4f +- %.4f: %lld gained, %lld lost, p = %.2g", change,
               sqrt(fmax(only - change * change, 0) / n), (long long)t->gained, (long long)t->lost,
               chance_of(t->gained, t->lost));
    }
    printf("\n");
}

static void print_shares(const chooser *c)
{
    int64_t most = 0;
    for (int i = 0; i < ITEM_CHOICES; i++)
        most = c->answers[i] > most ? c->answers[i] : most;
    printf("%-24s %lld\n", "questions", (long long)c->count);
    print_share(c, "accuracy", &c->plain);
    if (c->has_normed) print_share(c, "accuracy by characters", &c->normed);
    printf("%-24s %.4f\n", "the commonest answer", (double)most / (double)c->count);
}

static int run_items(chooser *c, const items *list, const char *name)
{
    progress bar;
    int status = 0;
    progress_begin(&bar, name, list->count);
    for (int64_t n = 0; !status && n < list->count; n++) {
        status = run_item(c, &list->list[n]);
        progress_add(&bar, 1);
    }
    progress_end(&bar);
    return status;
}

static int open_chooser(chooser *c, const lm_model *other)
{
    const lm_config *config = lm_model_config(c->session->model);
    if (config->architecture == LM_BERT)
        return io_fail(c->error, EXIT_INPUT, "a bert model predicts no next token");
    c->length = config->context < 1024 ? config->context : 1024;
    c->nll = calloc((size_t)c->length, sizeof *c->nll);
    const int status = c->nll ? scorer_open(&c->scorer, c->session->model, c->length, c->error)
                              : io_fail(c->error, EXIT_INTERNAL, "out of memory for scores");
    return status || !other ? status : scorer_open(&c->against, other, c->length, c->error);
}

static bool is_csv(const char *path)
{
    const size_t length = strlen(path);
    return length >= 4 && strcmp(path + length - 4, ".csv") == 0;
}

static int read_items(items *list, const choose_request *r, io_error *error)
{
    int form = ITEM_FORMS;
    char *text = NULL, names[NAMES_BYTES];
    size_t bytes = 0;
    int status = names_choose("form", r->form, item_form_name, &form, error);
    if (!status && form == ITEM_FORMS)
        status = io_fail(error, EXIT_USAGE, "--choices wants --form: %s",
                         names_list(names, item_form_name, " or "));
    if (!status && r->subject && form != ITEM_MMLU)
        status = io_fail(error, EXIT_USAGE, "--subject is for --form mmlu");
    if (!status) status = lm_text_file(&text, &bytes, r->path, error);
    if (!status && form == ITEM_MMLU && is_csv(r->path))
        status = items_read_csv(list, text, bytes, r->subject, r->path, error);
    else if (!status)
        status = items_read(list, text, bytes, (item_form)form, r->subject, r->path, error);
    free(text);
    return status;
}

int choose_run(lm_session *s, const choose_request *r, io_error *error)
{
    chooser c = { .session = s, .error = error };
    items list = { 0 };
    out_file *out = NULL;
    int status = read_items(&list, r, error);
    if (!status) status = open_chooser(&c, r->other);
    if (!status && r->out) status = out_open(&out, r->out, error);
    if (out) {
        c.csv = out_stream(out);
        fprintf(c.csv, "question,answer,sums%s\n", r->other ? ",sums of the other attention" : "");
    }
    if (!status) status = run_items(&c, &list, r->path);
    if (!status) print_shares(&c);
    if (out && status)
        out_discard(out);
    else if (out)
        status = out_commit(out, error);
    scorer_close(c.scorer);
    scorer_close(c.against);
    free(c.nll);
    items_free(&list);
    return status;
}
