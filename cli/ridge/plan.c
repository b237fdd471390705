/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/ridge/plan.h"

#include "cli/lm/lm.h"
#include "cli/training/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tokens that a GPU reads at once: with fewer, of a small model, it is not full. */
enum { GPU_TOKENS = 8192 };

static bool equal(double a, double b) { return !(a < b) && !(a > b); }

/* ---- arms */

static void add_parts(ridge_plan *p, int64_t layer, int64_t head)
{
    for (int i = 0; i < p->choice.parts.count; i++)
        p->arms[p->arm_count++] = (ridge_arm){ .kind = head < 0 ? ARM_LAYER : ARM_HEAD,
                                               .ridge = p->choice.parts.items[i],
                                               .unit = LOAM_RIDGE_NORMALISED,
                                               .inverse_temperature = 1,
                                               .layer = layer,
                                               .head = head };
}

static void add_curve(ridge_plan *p, const ridge_list *ridges, loam_ridge_unit unit)
{
    for (int i = 0; i < ridges->count; i++) {
        ridge_arm a = { .kind = ARM_LLA,
                        .ridge = ridges->items[i],
                        .unit = unit,
                        .inverse_temperature = 1,
                        .layer = -1,
                        .head = -1 };
        p->arms[p->arm_count++] = a;
        if (unit != LOAM_RIDGE_NORMALISED) continue;
        a.kind = ARM_CONTROL;
        a.inverse_temperature = 1 + sqrt((double)p->head_dim) / a.ridge;
        p->arms[p->arm_count++] = a;
    }
}

static int make_arms(ridge_plan *p, io_error *error)
{
    const int64_t parts = p->layers * (p->heads + 1) * p->choice.parts.count;
    p->arms = calloc((size_t)(1 + 3 * RIDGES + parts), sizeof *p->arms);
    if (!p->arms) return io_fail(error, EXIT_INTERNAL, "out of memory for the plan");
    p->arms[p->arm_count++] = (ridge_arm){
        .kind = ARM_SOFTMAX, .ridge = INFINITY, .inverse_temperature = 1, .layer = -1, .head = -1
    };
    add_curve(p, &p->choice.normalised, LOAM_RIDGE_NORMALISED);
    add_curve(p, &p->choice.trace, LOAM_RIDGE_TRACE);
    p->curve_count = p->arm_count;
    for (int64_t layer = 0; layer < p->layers; layer++) {
        if (p->choice.layers) add_parts(p, layer, -1);
        for (int64_t head = 0; p->choice.heads && head < p->heads; head++)
            add_parts(p, layer, head);
    }
    return 0;
}

lm_options ridge_options(const ridge_arm *a)
{
    lm_options o = lm_options_default();
    o.mechanism = a->kind == ARM_SOFTMAX || a->kind == ARM_CONTROL ? LOAM_SOFTMAX : LOAM_LLA;
    o.ridge = a->ridge, o.ridge_unit = a->unit;
    o.inverse_temperature = a->inverse_temperature;
    o.only = a->layer, o.only_head = a->head;
    return o;
}

int ridge_find(const ridge_plan *p, arm_kind kind, double ridge, loam_ridge_unit unit, int64_t layer,
               int64_t head)
{
    for (int i = 0; i < p->arm_count; i++) {
        const ridge_arm *a = &p->arms[i];
        if (a->kind == kind && equal(a->ridge, ridge) && a->unit == unit && a->layer == layer &&
            a->head == head)
            return i;
    }
    return -1;
}

bool ridge_has(const ridge_plan *p, int64_t window, int arm)
{
    const ridge_window *w = &p->windows[window];
    return arm < p->curve_count || (p->arms[arm].kind == ARM_LAYER ? w->layers : w->heads);
}

int64_t ridge_group(const ridge_plan *p, int64_t first)
{
    const ridge_window *w = &p->windows[first];
    int64_t count = 1;
    while (count < p->together && first + count < p->window_count && w[count].at.inputs == w->at.inputs &&
           w[count].layers == w->layers && w[count].heads == w->heads)
        count++;
    return count;
}

const char *ridge_arm_text(const ridge_arm *a, char text[64])
{
    if (a->kind == ARM_SOFTMAX)
        snprintf(text, 64, "softmax");
    else if (a->kind == ARM_CONTROL)
        snprintf(text, 64, "scores x %.5g", a->inverse_temperature);
    else
        snprintf(text, 64, "ridge %g%s", a->ridge, a->unit == LOAM_RIDGE_TRACE ? " of the trace" : "");
    return text;
}

const char *ridge_measure(const ridge_plan *p) { return p->encoder ? "1 - cosine" : "NLL"; }

/* ---- texts and windows */

static int add_window(ridge_plan *p, ridge_window w, io_error *error)
{
    if ((p->window_count & (p->window_count - 1)) == 0) {
        const size_t room = p->window_count ? 2 * (size_t)p->window_count : 1;
        ridge_window *more = realloc(p->windows, room * sizeof *more);
        if (!more) return io_fail(error, EXIT_INTERNAL, "out of memory for windows");
        p->windows = more;
    }
    p->windows[p->window_count++] = w;
    return 0;
}

/* What of these tokens one text has. */
static int64_t share_of(const ridge_plan *p, int64_t of_all)
{
    return (of_all + p->text_count - 1) / p->text_count;
}

/* Of a window with so many tokens of its text before it. */
static void set_parts(const ridge_plan *p, ridge_window *w, int64_t before)
{
    w->layers = before < share_of(p, p->choice.layer_tokens);
    w->heads = before < share_of(p, p->choice.head_tokens);
}

/* Of a text that is read on: the share of tokens of each, in whole windows where there are any. */
static int cut_text(ridge_plan *p, int text, io_error *error)
{
    const int64_t share = share_of(p, p->choice.tokens);
    const int64_t length = p->choice.context, unscored = p->bos >= 0 ? 0 : 1;
    const int64_t there = p->texts[text].count - unscored, wanted = there < share ? there : share;
    const int64_t most = unscored + (there > share && share > length ? share - share % length : wanted);
    ridge_window w = { .text = text };
    int64_t scored = 0;
    int status = 0;
    for (int64_t n = 0; !status && score_window_at(&w.at, most, length, p->bos >= 0, n); n++) {
        set_parts(p, &w, scored);
        scored += w.at.scored;
        status = add_window(p, w, error);
    }
    if (!status && scored == 0)
        status = io_fail(error, EXIT_INPUT, "%s: %" PRId64 " tokens, too few to predict", p->names[text],
                         p->texts[text].count);
    return status;
}

/* The tokens of a line after those of the lines before it, cut to the context. */
static int add_line(ridge_plan *p, int text, const tokenizer *t, const char *line, size_t bytes,
                    io_error *error)
{
    tokens *all = &p->texts[text], one = { 0 };
    int status = tokenizer_encode(t, line, bytes, true, &one, error);
    const int64_t count = one.count < p->choice.context ? one.count : p->choice.context;
    int32_t *more = status ? NULL : realloc(all->id, (size_t)(all->count + count) * sizeof *more);
    if (!status && !more) status = io_fail(error, EXIT_INTERNAL, "out of memory for tokens");
    if (more) {
        memcpy(more + all->count, one.id, (size_t)count * sizeof *more);
        all->id = more, all->count += count;
    }
    tokens_free(&one);
    return status;
}

/* Each line that is not blank is a window of an encoder. */
static int cut_lines(ridge_plan *p, int text, const tokenizer *t, const char *from, io_error *error)
{
    const int64_t share = share_of(p, p->choice.tokens);
    int status = 0;
    while (!status && *from && p->texts[text].count < share) {
        const size_t bytes = strcspn(from, "\n");
        ridge_window w = { .text = text };
        set_parts(p, &w, p->texts[text].count);
        w.at.begin = p->texts[text].count, w.at.scored = 1;
        if (strspn(from, " \t\r") < bytes) {
            status = add_line(p, text, t, from, bytes, error);
            w.at.inputs = p->texts[text].count - w.at.begin;
            if (!status) status = add_window(p, w, error);
        }
        from += bytes + (from[bytes] == '\n');
    }
    if (!status && p->texts[text].count == 0)
        status = io_fail(error, EXIT_INPUT, "%s: no lines", p->names[text]);
    return status;
}

static int add_text(ridge_plan *p, int text, const tokenizer *t, io_error *error)
{
    char *all = NULL;
    size_t bytes = 0;
    int status = lm_text_file(&all, &bytes, p->names[text], error);
    if (!status && p->encoder) status = cut_lines(p, text, t, all, error);
    if (!status && !p->encoder) {
        status = tokenizer_encode(t, all, bytes, false, &p->texts[text], error);
        if (!status) status = cut_text(p, text, error);
    }
    free(all);
    return status;
}

/* Those that are read at once stand together: with the same parts, of one length. */
static int compare_windows(const void *a, const void *b)
{
    const ridge_window *x = a, *y = b;
    if (x->heads != y->heads) return x->heads ? -1 : 1;
    if (x->layers != y->layers) return x->layers ? -1 : 1;
    if (x->at.inputs != y->at.inputs) return x->at.inputs > y->at.inputs ? -1 : 1;
    if (x->text != y->text) return x->text < y->text ? -1 : 1;
    return x->at.begin < y->at.begin ? -1 : x->at.begin > y->at.begin;
}

static int take_names(ridge_plan *p, const char *texts, io_error *error)
{
    for (const char *at = texts;; at++) {
        const size_t bytes = strcspn(at, ",");
        if (bytes == 0 || p->text_count == RIDGE_TEXTS)
            return io_fail(error, EXIT_USAGE, "--text %s: expected 1 to %d files, as in a.txt,b.txt", texts,
                           RIDGE_TEXTS);
        if (!(p->names[p->text_count] = strndup(at, bytes)))
            return io_fail(error, EXIT_INTERNAL, "out of memory for names");
        p->text_count++;
        at += bytes;
        if (*at == '\0') return 0;
    }
}

int ridge_plan_open(ridge_plan *p, const ridge_choice *choice, const lm_model *m, const tokenizer *t,
                    const char *texts, io_error *error)
{
    const lm_config *c = lm_model_config(m);
    *p = (ridge_plan){ .choice = *choice, .encoder = c->architecture == LM_BERT };
    p->bos = lm_prefix(t, c);
    p->layers = c->layers, p->heads = c->heads_q, p->head_dim = c->head_dim;
    if (choice->context > c->context)
        return io_fail(error, EXIT_USAGE, "--context %" PRId64 ": the model reads at most %" PRId64 " tokens",
                       choice->context, c->context);
    if (choice->context == 0) p->choice.context = c->context < 512 ? c->context : 512;
    p->together = lm_model_machine(m)->gpu ? GPU_TOKENS / p->choice.context : 1;
    if (p->together < 1) p->together = 1;
    if (!choice->layers && !choice->heads) p->choice.parts.count = 0;
    int status = make_arms(p, error);
    if (!status) status = take_names(p, texts, error);
    for (int text = 0; !status && text < p->text_count; text++)
        status = add_text(p, text, t, error);
    if (status)
        ridge_plan_close(p);
    else
        qsort(p->windows, (size_t)p->window_count, sizeof *p->windows, compare_windows);
    return status;
}

void ridge_plan_close(ridge_plan *p)
{
    for (int i = 0; i < p->text_count; i++) {
        free(p->names[i]);
        tokens_free(&p->texts[i]);
    }
    free(p->arms);
    free(p->windows);
    *p = (ridge_plan){ 0 };
}

void ridge_inputs(const ridge_plan *p, const ridge_window *w, int32_t *out)
{
    for (int64_t i = 0; i < w->at.inputs; i++)
        out[i] = w->at.begin + i < 0 ? p->bos : p->texts[w->text].id[w->at.begin + i];
}

const int32_t *ridge_targets(const ridge_plan *p, const ridge_window *w)
{
    return p->texts[w->text].id + w->at.begin + 1 + w->at.inputs - w->at.scored;
}

/* ---- what results depend on */

static void add_ridges(char *line, const char *name, const ridge_list *list)
{
    text_add(line, RIDGE_LINE, "; %s", name);
    for (int i = 0; i < list->count; i++)
        text_add(line, RIDGE_LINE, " %g", list->items[i]);
}

/* FNV-1a of the ids that are read, text after text. */
static uint64_t checksum(const ridge_plan *p)
{
    uint64_t sum = 14695981039346656037u;
    for (int64_t n = 0; n < p->window_count; n++) {
        const ridge_window *w = &p->windows[n];
        const int64_t first = w->at.begin < 0 ? 0 : w->at.begin;
        const int64_t end = w->at.begin + w->at.inputs + (p->encoder ? 0 : 1);
        for (int64_t i = first; i < end; i++)
            sum = (sum ^ (uint32_t)p->texts[w->text].id[i]) * 1099511628211u;
    }
    return sum;
}

void ridge_describe(const ridge_plan *p, char line[RIDGE_LINE])
{
    snprintf(line, RIDGE_LINE, "%" PRId64 " windows of at most %" PRId64 " tokens of %d texts, %016" PRIx64,
             p->window_count, p->choice.context, p->text_count, checksum(p));
    add_ridges(line, "ridges", &p->choice.normalised);
    if (p->choice.trace.count) add_ridges(line, "of the trace", &p->choice.trace);
    if (!p->choice.parts.count) return;
    int64_t layers = 0, heads = 0;
    for (int64_t n = 0; n < p->window_count; n++)
        layers += p->windows[n].layers, heads += p->windows[n].heads;
    add_ridges(line, "of parts", &p->choice.parts);
    if (p->choice.layers) text_add(line, RIDGE_LINE, "; layers in %" PRId64 " windows", layers);
    if (p->choice.heads) text_add(line, RIDGE_LINE, "; heads in %" PRId64 " windows", heads);
}
