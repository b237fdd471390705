/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "lm/chat.h"

#include "io/gguf.h"
#include "io/in_file.h"
#include "io/json.h"
#include "lm/path.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int fail_memory(io_error *error) { return io_fail(error, EXIT_INTERNAL, "out of memory for a chat"); }

static int keep(char **text, const char *from, size_t bytes, const char *name, io_error *error)
{
    if (memchr(from, 0, bytes)) return io_fail(error, EXIT_INPUT, "%s: the chat template has a byte 0", name);
    *text = strndup(from, bytes);
    return *text ? 0 : fail_memory(error);
}

/* ---------------------------------------------------------------- where templates are */

static int template_gguf(char **text, const char *path, io_error *error)
{
    static const char KEY[] = "tokenizer.chat_template";
    gguf *g;
    gguf_text found;
    int status = gguf_open(&g, path, error);
    if (!status && gguf_has(g, KEY)) {
        status = gguf_string(g, KEY, &found, error);
        if (!status) status = keep(text, found.at, found.bytes, path, error);
    }
    gguf_close(g);
    return status;
}

static int template_jinja(char **text, const char *path, io_error *error)
{
    FILE *stream = in_open(path, error);
    int64_t size = 0;
    if (!stream) return error->exit_status;
    int status = in_size(stream, path, &size, error);
    char *all = status ? NULL : malloc((size_t)size + 1);
    if (!status && !all) status = fail_memory(error);
    if (!status) status = in_read(stream, path, all, (size_t)size, error);
    if (!status) status = keep(text, all, (size_t)size, path, error);
    fclose(stream);
    free(all);
    return status;
}

/* A text, or a list of {name, template}, of which "default" is meant. */
static int template_config(char **text, const char *path, io_error *error)
{
    json_t *root;
    int status = json_object_in(&root, path, error);
    if (status) return status;
    const json_t *value = json_object_get(root, "chat_template");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && strcmp(name, "default") == 0) value = json_object_get(one, "template");
    }
    if (json_is_string(value))
        status = keep(text, json_string_value(value), json_string_length(value), path, error);
    json_decref(root);
    return status;
}

int lm_chat_template(char **text, const char *path, io_error *error)
{
    static const struct {
        const char *name;
        int (*read)(char **text, const char *path, io_error *error);
    } places[] = { { "chat_template.jinja", template_jinja }, { "tokenizer_config.json", template_config } };
    struct stat told;
    int status = 0;
    *text = NULL;
    if (stat(path, &told) != 0 || !S_ISDIR(told.st_mode)) return template_gguf(text, path, error);
    for (size_t i = 0; !status && !*text && i < sizeof places / sizeof *places; i++) {
        char *file;
        status = lm_path(&file, path, places[i].name, error);
        if (!status && stat(file, &told) == 0) status = places[i].read(text, file, error);
        free(file);
    }
    return status;
}

/* ---------------------------------------------------------------- what they say */

/* A template in one spelling: tags without blanks and without the dashes that take white space away, line
 * ends in texts as such, neighbouring texts joined. */
typedef struct spelling {
    const char *from; /* the template */
    char *text;
    size_t count;
} spelling;

static void put(spelling *to, char c)
{
    to->text[to->count++] = c;
    static const char joint[] = "'+'";
    const size_t length = sizeof joint - 1;
    if (to->count >= length && memcmp(to->text + to->count - length, joint, length) == 0) to->count -= length;
}

/* The inside of a tag up to its end; returns what follows it, or NULL where it has none or a text in it has
 * what is not known here. */
static const char *spell_tag(spelling *to, const char *at, const char *end)
{
    for (; *at && strncmp(at, end, 2) != 0; at++) {
        const char quote = *at;
        if (quote == ' ' || quote == '\n' || quote == '\t') continue;
        if (quote != '\'' && quote != '"') {
            put(to, quote);
            continue;
        }
        put(to, '\'');
        for (at++; *at && *at != quote; at++) {
            if (*at == '\'' || *at == '"' || (*at == '\\' && at[1] != 'n')) return NULL;
            to->text[to->count++] = *at == '\\' ? '\n' : *at;
            at += *at == '\\';
        }
        if (!*at) return NULL;
        put(to, '\'');
    }
    return *at ? at + 2 : NULL;
}

/* The text before a tag, less what tags take away: the line end after a block, blanks that begin the line of
 * one, and with dashes all white space. */
static const char *spell_text(spelling *to, const char *at, bool after_block, bool after_dash)
{
    static const char white[] = " \t\r\n";
    const char *next = strchr(at, '{');
    while (next && next[1] != '{' && next[1] != '%')
        next = strchr(next + 1, '{');
    const char *end = next ? next : at + strlen(at);
    if (!next && end > at && end[-1] == '\n') end--;
    if (after_dash) at += strspn(at, white);
    if (after_block && at < end && *at == '\n') at++;
    const char *kept = end;
    while (next && kept > at && strchr(next[2] == '-' ? white : " \t", kept[-1]))
        kept--;
    const bool begins = kept == to->from || kept[-1] == '\n';
    if (next && (next[2] == '-' || (next[1] == '%' && begins))) end = kept;
    for (; at < end; at++)
        to->text[to->count++] = *at;
    return next;
}

static bool spell(spelling *to)
{
    const char *at = to->from;
    bool block = false, dash = false;
    while ((at = spell_text(to, at, block, dash))) {
        block = at[1] == '%';
        to->text[to->count++] = '{', to->text[to->count++] = at[1];
        at = spell_tag(to, at + 2 + (at[2] == '-'), block ? "%}" : "}}");
        if (!at) return false;
        dash = at[-3] == '-';
        to->count -= dash && to->text[to->count - 1] == '-';
        to->text[to->count++] = block ? '%' : '}', to->text[to->count++] = '}';
    }
    to->text[to->count] = 0;
    return true;
}

static bool skip(const char **at, const char *text)
{
    const size_t length = strlen(text);
    const bool there = strncmp(*at, text, length) == 0;
    if (there) *at += length;
    return there;
}

/* One of the two spellings of a member. */
static bool skip_either(const char **at, const char *one, const char *other)
{
    return skip(at, one) || skip(at, other);
}

/* In the one spelling. *system, of `bytes`, is what it says by itself; NULL: nothing. */
static bool understand(const char *at, const char **system, size_t *bytes)
{
    static const char ends[] = "<|im_end|>\n'}}{%endif%}";
    *system = NULL, *bytes = 0;
    skip(&at, "{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}{%endif%}");
    if (!skip(&at, "{%formessageinmessages%}")) return false;
    if (skip_either(&at, "{%ifloop.firstandmessages[0]['role']!='system'%}{{'<|im_start|>system\n",
                    "{%ifloop.firstandmessages[0].role!='system'%}{{'<|im_start|>system\n")) {
        const char *const end = strstr(at, ends);
        if (!end || memchr(at, '\'', (size_t)(end - at))) return false;
        *system = at, *bytes = (size_t)(end - at);
        at = end + sizeof ends - 1;
    }
    return skip(&at, "{{'<|im_start|>'+") && skip_either(&at, "message['role']", "message.role") &&
           skip(&at, "+'\n'+") && skip_either(&at, "message['content']", "message.content") &&
           skip(&at, "+'<|im_end|>\n'}}{%endfor%}{%ifadd_generation_prompt%}{{'<|im_start|>assistant\n'}}"
                     "{%endif%}") &&
           !*at;
}

int lm_chat_parse(lm_chat *out, const char *text, const char *name, io_error *error)
{
    const char *system;
    size_t bytes;
    spelling one = { text, malloc(strlen(text) + 1), 0 };
    int status = 0;
    *out = (lm_chat){ 0 };
    if (!one.text) return fail_memory(error);
    if (!spell(&one) || !understand(one.text, &system, &bytes))
        status = io_fail(error, EXIT_INPUT,
                         "%s: the chat template '%.60s%s' is not known here; expected ChatML", name, text,
                         strlen(text) > 60 ? "..." : "");
    else if (system && !(out->system = strndup(system, bytes)))
        status = fail_memory(error);
    free(one.text);
    return status;
}

void lm_chat_free(lm_chat *chat)
{
    free(chat->system);
    *chat = (lm_chat){ 0 };
}

int lm_chat_prompt(char **text, const lm_chat *chat, const char *system, const char *user, io_error *error)
{
    static const char begin[] = "<|im_start|>", end[] = "<|im_end|>\n";
    const char *const says = system ? system : chat->system;
    *text = malloc((says ? strlen(says) : 0) + strlen(user) + 3 * sizeof begin + 2 * sizeof end + 24);
    if (!*text) return fail_memory(error);
    char *at = *text;
    if (says) at = stpcpy(stpcpy(stpcpy(stpcpy(at, begin), "system\n"), says), end);
    at = stpcpy(stpcpy(stpcpy(stpcpy(at, begin), "user\n"), user), end);
    stpcpy(stpcpy(at, begin), "assistant\n");
    return 0;
}
