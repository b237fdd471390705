/* SPDX-License-Identifier: MIT */
#include "cli/lm/lm.h"

#include "lm/chat.h"
#include "lm/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char USAGE[] = "loam lm generate MODEL --prompt TEXT [options]";
static const char ABOUT[] =
    "Writes on after a prompt, token by token, until the model ends the text. The text goes to standard "
    "output as it comes, speeds to standard error.";

/* Tokens of a prompt that are read at a time. */
enum { CHUNK = 512 };

typedef struct request {
    const char *model, *prompt, *prompt_file, *system;
    bool chat;
    int64_t tokens, seed, top_k;
    double temperature, top_p;
} request;

typedef struct writer {
    lm_session session;
    lm_text *text;
    sampler *sampler;
    token_stream stream;
    char *out;
    memory room;
    matrix row;    /* logits of one token, in the machine's memory */
    float *logits; /* the same in host memory */
} writer;

static matrix take_row(writer *w)
{
    return memory_matrix(&w->room, w->session.on.dtype, 1, 1, lm_model_config(w->session.model)->vocabulary);
}

static int open_writer(writer *w, const request *r, int64_t room, io_error *error)
{
    const lm_config *c = lm_model_config(w->session.model);
    const sampling how = { r->temperature, r->top_k, r->top_p, (uint64_t)r->seed };
    if (c->architecture == LM_BERT)
        return io_fail(error, EXIT_INPUT, "a bert model reads whole texts, it does not write");
    if (room > c->context)
        return io_fail(error, EXIT_INPUT, "%lld tokens, prompt and --tokens: the model reads at most %lld",
                       (long long)room, (long long)c->context);
    (void)take_row(w);
    const bool there = memory_open(&w->room, &w->session.on);
    if (there) w->row = take_row(w);
    w->logits = w->session.on.gpu ? calloc((size_t)c->vocabulary, sizeof *w->logits) : w->row.data;
    w->out = malloc(token_stream_room(w->session.tokens));
    w->stream = token_stream_of(w->session.tokens);
    if (!there || !w->out || !w->logits) return io_fail(error, EXIT_INTERNAL, "out of memory for a text");
    const int status = sampler_open(&w->sampler, &how, c->vocabulary, error);
    return status ? status
                  : lm_text_open(&w->text, w->session.model, room, room < CHUNK ? room : CHUNK, error);
}

static void close_writer(writer *w)
{
    lm_text_close(w->text);
    sampler_close(w->sampler);
    if (w->session.on.gpu) free(w->logits);
    memory_close(&w->room);
    free(w->out);
    lm_session_close(&w->session);
}

/* Reads the prompt; `hidden` is of its last token. */
static int read_prompt(writer *w, const tokens *prompt, matrix *hidden, io_error *error)
{
    int status = 0;
    for (int64_t first = 0; !status && first < prompt->count; first += CHUNK) {
        const int64_t left = prompt->count - first, count = left < CHUNK ? left : CHUNK;
        status = lm_text_read(w->text, prompt->id + first, count, hidden, error);
        if (!status) *hidden = matrix_rows(*hidden, count - 1, 1);
    }
    return status;
}

static bool ends(const lm_config *c, int32_t token)
{
    for (int i = 0; i < c->stops; i++)
        if (c->stop[i] == token) return true;
    return false;
}

static int next_token(writer *w, matrix hidden, int64_t number, int32_t *token, io_error *error)
{
    lm_text_logits(w->text, hidden, w->row);
    const int status = lm_model_fetch(w->session.model, w->logits, w->row, error);
    if (status) return status;
    /* The model may have more rows than the tokenizer has tokens: they are never written. */
    for (int64_t i = tokenizer_size(w->session.tokens); i < w->row.width; i++)
        w->logits[i] = -INFINITY;
    *token = sampler_next(w->sampler, w->logits, number);
    return *token < 0 ? io_fail(error, EXIT_INPUT, "the model has no finite logits after %lld tokens",
                                (long long)lm_text_length(w->text))
                      : 0;
}

static void put(size_t bytes, const char *text)
{
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}

/* Writes up to `most` tokens after the prompt; *written of them, the first at *first: then a GPU has read
 * all of the prompt. */
static int write_text(writer *w, matrix hidden, int64_t most, int64_t *written, double *first,
                      io_error *error)
{
    int status = 0;
    for (*written = 0; !status && *written < most;) {
        int32_t token = -1;
        status = next_token(w, hidden, *written, &token, error);
        if (*written == 0) *first = lm_seconds();
        if (status || ends(lm_model_config(w->session.model), token)) break;
        put(token_stream_put(&w->stream, token, w->out), w->out);
        if (++*written < most) status = lm_text_read(w->text, &token, 1, &hidden, error);
    }
    put(token_stream_end(&w->stream, w->out), w->out);
    put(1, "\n");
    return status;
}

/* The prompt as a user's turn, by the model's chat template. */
static int chat_prompt(char **text, const request *r, const char *prompt, const tokenizer *t, io_error *error)
{
    char *template;
    lm_chat chat = { 0 };
    int status = lm_chat_template(&template, r->model, error);
    if (!status && !template)
        status = io_fail(error, EXIT_INPUT, "--chat: %s has no chat template", r->model);
    if (!status) status = lm_chat_parse(&chat, template, r->model, error);
    if (!status && (tokenizer_id(t, "<|im_start|>") < 0 || tokenizer_id(t, "<|im_end|>") < 0))
        status = io_fail(error, EXIT_INPUT, "--chat: the model has no tokens <|im_start|> and <|im_end|>");
    if (!status) status = lm_chat_prompt(text, &chat, r->system, prompt, error);
    lm_chat_free(&chat);
    free(template);
    return status;
}

/* The tokens of the prompt, after the model's first token where the tokenizer does not give it. */
static int encode_prompt(tokens *out, const writer *w, const char *text, size_t bytes, io_error *error)
{
    const int status = tokenizer_encode(w->session.tokens, text, bytes, true, out, error);
    const int32_t bos = lm_model_config(w->session.model)->bos;
    if (status || out->count > 0) return status;
    if (bos < 0) return io_fail(error, EXIT_INPUT, "the prompt is empty, and the model has no first token");
    out->id = malloc(sizeof *out->id);
    if (!out->id) return io_fail(error, EXIT_INTERNAL, "out of memory for the prompt");
    out->id[0] = bos, out->count = 1;
    return 0;
}

static int prompt_tokens(tokens *out, const writer *w, const request *r, io_error *error)
{
    char *text = NULL, *chat = NULL;
    size_t bytes = 0;
    int status = 0;
    if (r->prompt_file) status = lm_text_file(&text, &bytes, r->prompt_file, error);
    if (!status && r->chat) {
        if (text && strlen(text) != bytes)
            status = io_fail(error, EXIT_INPUT, "--chat: the prompt has a byte 0");
        else
            status = chat_prompt(&chat, r, text ? text : r->prompt, w->session.tokens, error);
    }
    const char *const from = chat ? chat : text ? text : r->prompt;
    if (!status) status = encode_prompt(out, w, from, text && !chat ? bytes : strlen(from), error);
    free(text);
    free(chat);
    return status;
}

static int generate(writer *w, const request *r, const tokens *prompt, io_error *error)
{
    matrix hidden = { 0 };
    int64_t written = 0;
    int status = open_writer(w, r, prompt->count + r->tokens, error);
    const double begun = lm_seconds();
    if (!status) status = read_prompt(w, prompt, &hidden, error);
    double first = 0;
    if (!status) status = write_text(w, hidden, r->tokens, &written, &first, error);
    const double end = lm_seconds();
    if (status) return status;
    fprintf(stderr, "%lld tokens read, %.1f a second; %lld written", (long long)prompt->count,
            (double)prompt->count / (first - begun), (long long)written);
    const double speed = (double)(written - 1) / (end - first);
    if (written > 1)
        fprintf(stderr, ", %.1f a second: %.1f GB/s of weights", speed,
                speed * (double)lm_model_bytes(w->session.model) / 1e9);
    fprintf(stderr, "\n");
    return 0;
}

int lm_generate(int argc, char **argv, io_error *error)
{
    lm_words words = lm_words_default();
    request r = { .tokens = 100, .top_p = 1 };
    bool help = false;
    const option_row rows[] = {
        { "prompt", OPTION_TEXT, &r.prompt, 0, 0, "TEXT", "what the text begins with" },
        { "prompt-file", OPTION_TEXT, &r.prompt_file, 0, 0, "FILE",
          "the same from a file; - standard input" },
        { "chat", OPTION_FLAG, &r.chat, 0, 0, NULL, "the prompt is a user's turn, by the chat template" },
        { "system", OPTION_TEXT, &r.system, 0, 0, "TEXT",
          "with --chat: what the system's turn says; default: as the template has it" },
        { "tokens", OPTION_INT, &r.tokens, 1, 1e9, "N", "at most; default 100" },
        { "temperature", OPTION_REAL, &r.temperature, 0, 1e3, "X", "default 0: always the likeliest token" },
        { "top-k", OPTION_INT, &r.top_k, 1, 1e9, "K", "one of the K likeliest; default all" },
        { "top-p", OPTION_REAL, &r.top_p, 1e-9, 1, "P", "of those that have probability P; default 1" },
        { "seed", OPTION_INT, &r.seed, 0, 1e18, "N", "default 0" },
        LM_OPTION_ROWS(words),
        { .name = NULL },
    };
    int status = options_parse(&argc, argv, rows, USAGE, ABOUT, &help, error);
    if (status || help) return status;
    if (argc != 2) return io_fail(error, EXIT_USAGE, "expected one model; usage: %s", USAGE);
    if (!r.prompt == !r.prompt_file)
        return io_fail(error, EXIT_USAGE, "expected either --prompt or --prompt-file");
    if (r.system && !r.chat) return io_fail(error, EXIT_USAGE, "--system is for --chat");
    r.model = argv[1];
    writer w = { 0 };
    tokens prompt = { 0 };
    status = lm_session_open(&w.session, argv[1], &words, error);
    if (!status) status = prompt_tokens(&prompt, &w, &r, error);
    if (!status) status = generate(&w, &r, &prompt, error);
    tokens_free(&prompt);
    close_writer(&w);
    return status;
}
