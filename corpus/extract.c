/* SPDX-License-Identifier: MIT */
#include "corpus/extract.h"

#include "corpus/paragraph.h"

#include <string.h>

static const struct {
    const char *name, *endings[3];
    void (*extract)(paragraph *p, const char *text, size_t bytes);
} kinds[] = {
    [TEXT_HTML] = { "html", { ".html", ".htm", ".xhtml" }, extract_html },
    [TEXT_PLAIN] = { "txt", { ".txt" }, extract_plain },
    [TEXT_POD] = { "pod", { ".pod" }, extract_pod },
    [TEXT_DICTIONARY] = { "dictionary", { ".dictionary" }, extract_dictionary },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

const char *text_kind_name(int kind) { return kind < KINDS ? kinds[kind].name : NULL; }

int text_kind_of(const char *path)
{
    const size_t bytes = strlen(path);
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < 3 && kinds[kind].endings[i]; i++) {
            const size_t ending = strlen(kinds[kind].endings[i]);
            if (bytes > ending && strcmp(path + bytes - ending, kinds[kind].endings[i]) == 0) return kind;
        }
    return -1;
}

int extract_paragraphs(text_kind kind, const char *text, size_t bytes, paragraph_sink *sink, void *context,
                       io_error *error)
{
    paragraph p = { .sink = sink, .context = context, .error = error };
    kinds[kind].extract(&p, text, bytes);
    paragraph_end(&p);
    buffer_free(&p.text);
    return p.status;
}
