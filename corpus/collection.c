/* SPDX-License-Identifier: MIT */
#include "corpus/collection.h"

#include "io/sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM_MIN = 1024, ENTRIES = 64 };

const char *corpus_split_name(int split)
{
    static const char *const names[SPLITS] = { "train", "valid", "held" };
    return names[split];
}

corpus_split corpus_split_of(uint64_t seed, const char *corpus, const char *path)
{
    char number[24];
    unsigned char digest[SHA256_BYTES];
    uint64_t value = 0;
    sha256 s = sha256_begin();
    sha256_add(&s, number, (size_t)snprintf(number, sizeof number, "%llu\n", (unsigned long long)seed));
    sha256_add(&s, corpus, strlen(corpus));
    sha256_add(&s, "\n", 1);
    sha256_add(&s, path, strlen(path));
    sha256_end(&s, digest);
    for (int i = 0; i < 8; i++)
        value = value << 8 | digest[i];
    return value % 100 < 2 ? SPLIT_HELD : value % 100 == 2 ? SPLIT_VALID : SPLIT_TRAIN;
}

static int no_memory(io_error *error) { return io_fail(error, EXIT_INTERNAL, "out of memory for documents"); }

/* ---------------------------------------------------------------- paragraphs */

static size_t *slot_of(const collection *c, const char *text, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    size_t slot = (hash ^ hash >> 32) & (c->slots - 1);
    for (; c->slot[slot]; slot = (slot + 1) & (c->slots - 1)) {
        const corpus_paragraph *p = &c->paragraph[c->slot[slot] - 1];
        if (p->bytes == bytes && memcmp(c->text.at + p->at, text, bytes) == 0) break;
    }
    return &c->slot[slot];
}

static bool enlarge_paragraphs(collection *c)
{
    if (c->paragraphs < c->slots / 2) return true;
    const size_t slots = c->slots ? 2 * c->slots : ROOM_MIN;
    corpus_paragraph *more = realloc(c->paragraph, slots * sizeof *more);
    if (more) c->paragraph = more;
    size_t *slot = more ? calloc(slots, sizeof *slot) : NULL;
    if (!slot) return false;
    free(c->slot);
    c->slot = slot;
    c->slots = slots;
    for (size_t i = 0; i < c->paragraphs; i++)
        *slot_of(c, c->text.at + c->paragraph[i].at, c->paragraph[i].bytes) = i + 1;
    return true;
}

static bool contains(const char *text, size_t bytes, const char *part)
{
    const size_t length = strlen(part);
    for (const char *at = text; (at = memchr(at, *part, bytes - (size_t)(at - text))); at++)
        if (bytes - (size_t)(at - text) < length)
            return false;
        else if (memcmp(at, part, length) == 0)
            return true;
    return false;
}

/* ---------------------------------------------------------------- documents */

typedef struct adding {
    collection *c;
    int corpus;
    text_kind kind;
    const char *path;
    int64_t entries; /* told so far */
} adding;

/* The lines of a dictionary are documents of their own, called PATH#N. */
static int begin_document(const adding *a, int64_t entry, io_error *error)
{
    collection *c = a->c;
    const char *const name = c->corpora[a->corpus].name;
    if (c->documents == c->document_room) {
        const size_t room = c->document_room ? 2 * c->document_room : ROOM_MIN;
        corpus_document *more = realloc(c->document, room * sizeof *more);
        if (!more) return no_memory(error);
        c->document = more, c->document_room = room;
    }
    corpus_split split = SPLIT_TRAIN;
    if (a->kind == TEXT_DICTIONARY) {
        const size_t room = strlen(a->path) + 24;
        char *path = malloc(room);
        if (!path) return no_memory(error);
        snprintf(path, room, "%s#%lld", a->path, (long long)(entry / ENTRIES));
        split = corpus_split_of(c->seed, name, path);
        free(path);
    } else {
        split = corpus_split_of(c->seed, name, a->path);
    }
    c->document[c->documents++] = (corpus_document){ a->corpus, split, a->kind == TEXT_DICTIONARY,
                                                     c->paragraphs, 0 };
    return 0;
}

static int add_paragraph(void *context, const char *text, size_t bytes, io_error *error)
{
    adding *a = context;
    collection *c = a->c;
    const bool entry = a->kind == TEXT_DICTIONARY;
    if (entry && a->entries++ % ENTRIES == 0) {
        const int status = begin_document(a, a->entries - 1, error);
        if (status) return status;
    }
    prose_verdict verdict = entry ? prose_judge_entry(text, bytes) : prose_judge(text, bytes);
    if (!verdict && contains(text, bytes, c->end)) verdict = PROSE_END_TOKEN;
    if (!verdict) {
        if (!enlarge_paragraphs(c)) return no_memory(error);
        size_t *slot = slot_of(c, text, bytes);
        if (*slot) verdict = PROSE_REPEAT;
        if (!*slot) {
            c->paragraph[c->paragraphs] = (corpus_paragraph){ c->text.count, bytes, true };
            buffer_put(&c->text, text, bytes);
            if (c->text.failed) return no_memory(error);
            *slot = ++c->paragraphs;
            c->document[c->documents - 1].count++;
        }
    }
    c->corpora[a->corpus].paragraphs[verdict]++;
    return 0;
}

int collection_add(collection *c, int corpus, text_kind kind, const char *path, const char *text,
                   size_t bytes, io_error *error)
{
    adding a = { c, corpus, kind, path, 0 };
    c->corpora[corpus].files++;
    const int status = kind == TEXT_DICTIONARY ? 0 : begin_document(&a, 0, error);
    return status ? status : extract_paragraphs(kind, text, bytes, add_paragraph, &a, error);
}

void collection_free(collection *c)
{
    buffer_free(&c->text);
    free(c->paragraph);
    free(c->document);
    free(c->slot);
    *c = (collection){ 0 };
}

void collection_text(const collection *c, const corpus_document *d, buffer *out)
{
    bool any = false;
    for (size_t i = d->first; i < d->first + d->count; i++) {
        const corpus_paragraph *p = &c->paragraph[i];
        if (!p->kept) continue;
        if (any) buffer_put(out, "\n\n", d->lines ? 1 : 2);
        buffer_put(out, c->text.at + p->at, p->bytes);
        any = true;
    }
}
