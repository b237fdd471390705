/* SPDX-License-Identifier: MIT
 * tokenizer.json: normalizer, pre_tokenizer and decoder. A Sequence is its members one after another. */
#include "text/parts.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Sequences within sequences. */
enum { NESTING_MAX = 8 };

static bool is(const char *type, const char *name) { return strcmp(type, name) == 0; }

/* GPT-2's split. */
static const char GPT2_PATTERN[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef int part_reader(tokenizer *t, const reader *r, const json_t *part, int depth);

static int read_sequence(tokenizer *t, const reader *r, const json_t *part, const char *where,
                         const char *members, part_reader *read, int depth)
{
    const char *const keys[] = { "type", members, NULL };
    int status = reader_keys(r, part, where, keys);
    const json_t *list = json_object_get(part, members);
    if (!status && !json_is_array(list)) status = reader_fail(r, "%s: a Sequence without %s", where, members);
    if (!status && depth == NESTING_MAX)
        status = reader_fail(r, "%s: too many Sequences in each other", where);
    for (size_t i = 0; i < json_array_size(list) && !status; i++)
        status = read(t, r, json_array_get(list, i), depth + 1);
    return status;
}

/* ---------------------------------------------------------------- normalizer */

static const char NORMALIZER[] = "the normalizer";

static int next_normal_step(tokenizer *t, const reader *r, normal_kind kind, normal_step **step)
{
    if (t->normaliser.steps == NORMAL_STEPS)
        return reader_fail(r, "the normalizer has more than %d steps", NORMAL_STEPS);
    *step = &t->normaliser.step[t->normaliser.steps++];
    (*step)->kind = kind;
    return 0;
}

static int read_bert_normaliser(const reader *r, const json_t *part, normal_step *step)
{
    static const char *const keys[] = { "type",          "clean_text", "handle_chinese_chars",
                                        "strip_accents", "lowercase",  NULL };
    int status = reader_keys(r, part, NORMALIZER, keys);
    if (!status) status = reader_flag(r, part, NORMALIZER, "clean_text", true, &step->clean);
    if (!status) status = reader_flag(r, part, NORMALIZER, "handle_chinese_chars", true, &step->chinese);
    if (!status) status = reader_flag(r, part, NORMALIZER, "lowercase", true, &step->lowercase);
    if (!status)
        status = reader_flag(r, part, NORMALIZER, "strip_accents", step->lowercase, &step->strip_accents);
    return status;
}

static int read_replacement(const reader *r, const json_t *part, const char *where, matcher **pattern,
                            char **content)
{
    static const char *const keys[] = { "type", "pattern", "content", NULL };
    int status = reader_keys(r, part, where, keys);
    if (!status) status = reader_text(r, part, where, "content", NULL, content);
    if (!status) status = reader_pattern(r, part, where, pattern);
    return status;
}

static int read_normal_step(tokenizer *t, const reader *r, const json_t *part, int depth)
{
    static const char *const type_only[] = { "type", NULL }, *const prepend[] = { "type", "prepend", NULL };
    int status;
    normal_step *step = NULL;
    const char *type = reader_type(r, part, NORMALIZER, &status);
    if (status) return status;
    if (is(type, "Sequence"))
        return read_sequence(t, r, part, NORMALIZER, "normalizers", read_normal_step, depth);
    if (is(type, "NFC") || is(type, "NFD") || is(type, "NFKC") || is(type, "NFKD")) {
        status = next_normal_step(t, r, NORMAL_UNICODE, &step);
        if (status) return status;
        step->compose = type[strlen(type) - 1] == 'C';
        step->compatible = type[2] == 'K';
        return reader_keys(r, part, NORMALIZER, type_only);
    }
    if (is(type, "Lowercase")) {
        status = next_normal_step(t, r, NORMAL_LOWERCASE, &step);
        return status ? status : reader_keys(r, part, NORMALIZER, type_only);
    }
    if (is(type, "BertNormalizer")) {
        status = next_normal_step(t, r, NORMAL_BERT, &step);
        return status ? status : read_bert_normaliser(r, part, step);
    }
    if (is(type, "Prepend")) {
        status = next_normal_step(t, r, NORMAL_PREPEND, &step);
        if (!status) status = reader_keys(r, part, NORMALIZER, prepend);
        return status ? status : reader_text(r, part, NORMALIZER, "prepend", NULL, &step->content);
    }
    if (is(type, "Replace")) {
        status = next_normal_step(t, r, NORMAL_REPLACE, &step);
        return status ? status : read_replacement(r, part, NORMALIZER, &step->pattern, &step->content);
    }
    return reader_fail(r, "the normalizer '%.60s' is not known here", type);
}

int read_normaliser(tokenizer *t, const reader *r, const json_t *part)
{
    return !part || json_is_null(part) ? 0 : read_normal_step(t, r, part, 0);
}

/* ---------------------------------------------------------------- pre_tokenizer */

static const char PRE_TOKENIZER[] = "the pre_tokenizer";

static int next_piece_step(tokenizer *t, const reader *r, piece_kind kind, piece_behaviour behaviour,
                           piece_step **step)
{
    if (t->splitter.steps == PIECE_STEPS)
        return reader_fail(r, "the pre_tokenizer has more than %d steps", PIECE_STEPS);
    *step = &t->splitter.step[t->splitter.steps++];
    **step = (piece_step){ .kind = kind, .behaviour = behaviour };
    return 0;
}

static int add_pattern(tokenizer *t, const reader *r, piece_behaviour behaviour, const char *pattern,
                       bool literal)
{
    piece_step *step = NULL;
    const int status = next_piece_step(t, r, PIECE_PATTERN, behaviour, &step);
    return status ? status : matcher_make(&step->pattern, pattern, literal, r->name, r->error);
}

static int add_class(tokenizer *t, const reader *r, piece_behaviour behaviour, bool (*in_class)(int32_t))
{
    piece_step *step = NULL;
    const int status = next_piece_step(t, r, PIECE_CLASS, behaviour, &step);
    if (!status) step->in_class = in_class;
    return status;
}

static int read_behaviour(const reader *r, const json_t *part, const char *missing, piece_behaviour *out)
{
    static const char *const names[] = { [PIECE_REMOVED] = "Removed",
                                         [PIECE_ISOLATED] = "Isolated",
                                         [PIECE_MERGED_PREVIOUS] = "MergedWithPrevious",
                                         [PIECE_MERGED_NEXT] = "MergedWithNext",
                                         [PIECE_CONTIGUOUS] = "Contiguous" };
    char *name;
    int status = reader_text(r, part, PRE_TOKENIZER, "behavior", missing, &name);
    if (status) return status;
    int i = PIECE_REMOVED;
    while (i <= PIECE_CONTIGUOUS && !is(name, names[i]))
        i++;
    *out = (piece_behaviour)i;
    if (i > PIECE_CONTIGUOUS) status = reader_fail(r, "the behavior '%.60s' is not known here", name);
    free(name);
    return status;
}

static int read_byte_level(tokenizer *t, const reader *r, const json_t *part)
{
    static const char *const keys[] = { "type", "add_prefix_space", "trim_offsets", "use_regex", NULL };
    bool prefix, trim, use_regex;
    int status = reader_keys(r, part, PRE_TOKENIZER, keys);
    if (!status) status = reader_flag(r, part, PRE_TOKENIZER, "add_prefix_space", true, &prefix);
    /* Offsets are not reported here. */
    if (!status) status = reader_flag(r, part, PRE_TOKENIZER, "trim_offsets", true, &trim);
    if (!status) status = reader_flag(r, part, PRE_TOKENIZER, "use_regex", true, &use_regex);
    piece_step *step = NULL;
    if (!status && prefix) status = next_piece_step(t, r, PIECE_PREFIX_SPACE, PIECE_ISOLATED, &step);
    if (!status && use_regex) status = add_pattern(t, r, PIECE_ISOLATED, GPT2_PATTERN, false);
    t->bpe.by_bytes = true;
    return status;
}

static int read_split(tokenizer *t, const reader *r, const json_t *part)
{
    static const char *const keys[] = { "type", "pattern", "behavior", "invert", NULL };
    piece_behaviour behaviour;
    piece_step *step = NULL;
    int status = reader_keys(r, part, PRE_TOKENIZER, keys);
    if (!status) status = read_behaviour(r, part, NULL, &behaviour);
    if (!status) status = next_piece_step(t, r, PIECE_PATTERN, behaviour, &step);
    if (!status) status = reader_flag(r, part, PRE_TOKENIZER, "invert", false, &step->invert);
    return status ? status : reader_pattern(r, part, PRE_TOKENIZER, &step->pattern);
}

/* {replacement, prepend_scheme}, or add_prefix_space as older files have it. */
static int read_metaspace_marks(const reader *r, const json_t *part, const char *where, char mark[8],
                                metaspace_prepend *prepend)
{
    char *text = NULL, *scheme = NULL;
    bool prefix;
    int status = reader_text(r, part, where, "replacement", NULL, &text);
    if (!status) status = reader_flag(r, part, where, "add_prefix_space", true, &prefix);
    if (!status) status = reader_text(r, part, where, "prepend_scheme", prefix ? "always" : "never", &scheme);
    size_t length = 0;
    if (!status && *text) utf8_first(text, &length);
    if (!status && (!length || text[length]))
        status = reader_fail(r, "%s: the replacement is not one character", where);
    if (!status) strcpy(mark, text);
    if (!status && !is(scheme, "always") && !is(scheme, "first") && !is(scheme, "never"))
        status = reader_fail(r, "%s: the prepend_scheme '%.60s' is not known here", where, scheme);
    if (!status) {
        *prepend = is(scheme, "always")  ? METASPACE_ALWAYS
                   : is(scheme, "first") ? METASPACE_FIRST
                                         : METASPACE_NEVER;
        if (!prefix && *prepend != METASPACE_NEVER)
            status = reader_fail(r, "%s: add_prefix_space contradicts prepend_scheme", where);
    }
    free(text);
    free(scheme);
    return status;
}

static const char *const metaspace_keys[] = {
    "type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep", NULL
};

static int read_metaspace(tokenizer *t, const reader *r, const json_t *part)
{
    bool split;
    piece_step *step = NULL;
    int status = reader_keys(r, part, PRE_TOKENIZER, metaspace_keys);
    if (!status) status = reader_flag(r, part, PRE_TOKENIZER, "split", true, &split);
    if (!status) status = next_piece_step(t, r, PIECE_METASPACE, PIECE_ISOLATED, &step);
    if (!status) status = read_metaspace_marks(r, part, PRE_TOKENIZER, step->mark, &step->prepend);
    return status || !split ? status : add_pattern(t, r, PIECE_MERGED_NEXT, step->mark, true);
}

static int read_digits(tokenizer *t, const reader *r, const json_t *part)
{
    static const char *const keys[] = { "type", "individual_digits", NULL };
    bool individual;
    int status = reader_keys(r, part, PRE_TOKENIZER, keys);
    if (!status) status = reader_flag(r, part, PRE_TOKENIZER, "individual_digits", false, &individual);
    return status ? status : add_class(t, r, individual ? PIECE_ISOLATED : PIECE_CONTIGUOUS, is_number);
}

static int read_punctuation(tokenizer *t, const reader *r, const json_t *part)
{
    static const char *const keys[] = { "type", "behavior", NULL };
    piece_behaviour behaviour;
    int status = reader_keys(r, part, PRE_TOKENIZER, keys);
    if (!status) status = read_behaviour(r, part, "Isolated", &behaviour);
    return status ? status : add_class(t, r, behaviour, is_punctuation);
}

static int read_plain_splitter(tokenizer *t, const reader *r, const json_t *part, const char *type)
{
    static const char *const keys[] = { "type", NULL };
    int status = reader_keys(r, part, PRE_TOKENIZER, keys);
    if (status) return status;
    if (is(type, "Whitespace")) {
        status = add_pattern(t, r, PIECE_REMOVED, "\\w+|[^\\w\\s]+", false);
        if (!status) t->splitter.step[t->splitter.steps - 1].invert = true;
        return status;
    }
    status = add_class(t, r, PIECE_REMOVED, is_white_space);
    return status || is(type, "WhitespaceSplit") ? status : add_class(t, r, PIECE_ISOLATED, is_punctuation);
}

static int read_piece_step(tokenizer *t, const reader *r, const json_t *part, int depth)
{
    int status;
    const char *type = reader_type(r, part, PRE_TOKENIZER, &status);
    if (status) return status;
    if (is(type, "Sequence"))
        return read_sequence(t, r, part, PRE_TOKENIZER, "pretokenizers", read_piece_step, depth);
    /* From there on the model takes bytes. */
    if (t->bpe.by_bytes) return reader_fail(r, "the pre_tokenizer has '%.60s' after ByteLevel", type);
    if (is(type, "ByteLevel")) return read_byte_level(t, r, part);
    if (is(type, "Split")) return read_split(t, r, part);
    if (is(type, "Metaspace")) return read_metaspace(t, r, part);
    if (is(type, "Digits")) return read_digits(t, r, part);
    if (is(type, "Punctuation")) return read_punctuation(t, r, part);
    if (is(type, "BertPreTokenizer") || is(type, "Whitespace") || is(type, "WhitespaceSplit"))
        return read_plain_splitter(t, r, part, type);
    return reader_fail(r, "the pre_tokenizer '%.60s' is not known here", type);
}

int read_splitter(tokenizer *t, const reader *r, const json_t *part)
{
    return !part || json_is_null(part) ? 0 : read_piece_step(t, r, part, 0);
}

/* ---------------------------------------------------------------- decoder */

static const char DECODER[] = "the decoder";

static int read_strip(const reader *r, const json_t *part, decode_step *step)
{
    static const char *const keys[] = { "type", "content", "start", "stop", NULL };
    int status = reader_keys(r, part, DECODER, keys);
    if (!status) status = reader_text(r, part, DECODER, "content", NULL, &step->content);
    const json_t *start = json_object_get(part, "start"), *stop = json_object_get(part, "stop");
    if (!status && (!json_is_integer(start) || json_integer_value(start) != 1 || !json_is_integer(stop) ||
                    json_integer_value(stop) != 0))
        status = reader_fail(r, "the decoder Strip is known with start 1 and stop 0 only");
    return status;
}

static int read_wordpiece_decoder(const reader *r, const json_t *part, decode_step *step)
{
    static const char *const keys[] = { "type", "prefix", "cleanup", NULL };
    int status = reader_keys(r, part, DECODER, keys);
    if (!status) status = reader_flag(r, part, DECODER, "cleanup", true, &step->cleanup);
    return status ? status : reader_text(r, part, DECODER, "prefix", "##", &step->content);
}

static int read_metaspace_decoder(const reader *r, const json_t *part, decode_step *step)
{
    char mark[8];
    metaspace_prepend prepend;
    int status = reader_keys(r, part, DECODER, metaspace_keys);
    if (!status) status = read_metaspace_marks(r, part, DECODER, mark, &prepend);
    step->keep_first = !status && prepend == METASPACE_NEVER;
    return status ? status : reader_text(r, part, DECODER, "replacement", NULL, &step->content);
}

static int read_decode_kind(const reader *r, const json_t *part, const char *type, decode_step *step)
{
    static const char *const type_only[] = { "type", NULL };
    static const char *const byte_level[] = { "type", "add_prefix_space", "trim_offsets", "use_regex", NULL };
    if (is(type, "ByteLevel")) {
        step->kind = DECODE_BYTE_LEVEL;
        return reader_keys(r, part, DECODER, byte_level);
    }
    if (is(type, "ByteFallback")) {
        step->kind = DECODE_BYTE_FALLBACK;
        return reader_keys(r, part, DECODER, type_only);
    }
    if (is(type, "WordPiece")) {
        step->kind = DECODE_WORDPIECE;
        return read_wordpiece_decoder(r, part, step);
    }
    if (is(type, "Metaspace")) {
        step->kind = DECODE_METASPACE;
        return read_metaspace_decoder(r, part, step);
    }
    if (is(type, "Replace")) {
        step->kind = DECODE_REPLACE;
        return read_replacement(r, part, DECODER, &step->pattern, &step->content);
    }
    if (is(type, "Strip")) {
        step->kind = DECODE_STRIP;
        return read_strip(r, part, step);
    }
    return reader_fail(r, "the decoder '%.60s' is not known here", type);
}

/* Fuse is no step of its own: tokens are decoded one by one, and Strip behind it acts on the first. */
static int read_decode_step(tokenizer *t, const reader *r, const json_t *part, int depth)
{
    decoder *d = &t->decoder;
    int status;
    const char *type = reader_type(r, part, DECODER, &status);
    if (status) return status;
    if (is(type, "Sequence")) return read_sequence(t, r, part, DECODER, "decoders", read_decode_step, depth);
    const bool strips = is(type, "Strip");
    if (is(type, "Fuse")) {
        d->fused = true;
        return 0;
    }
    if ((d->fused || d->made_bytes) && !strips)
        return reader_fail(r, "the decoder has '%.60s' after Fuse or after what makes bytes", type);
    if (d->steps == DECODE_STEPS) return reader_fail(r, "the decoder has more than %d steps", DECODE_STEPS);
    decode_step *step = &d->step[d->steps++];
    step->first_only = d->fused;
    d->made_bytes = d->made_bytes || is(type, "ByteLevel") || is(type, "ByteFallback");
    return read_decode_kind(r, part, type, step);
}

int read_decoder(tokenizer *t, const reader *r, const json_t *part)
{
    t->decoder.spaced = !part || json_is_null(part);
    return t->decoder.spaced ? 0 : read_decode_step(t, r, part, 0);
}
