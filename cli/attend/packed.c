/* SPDX-License-Identifier: MIT
 * Packed sequences: q, k and v hold the tokens of several sequences one after the other, --cu-seqlens says
 * where each begins. Everything that follows tokens is packed likewise; states, one for each sequence, have
 * the sequences for a batch. */
#include "cli/attend/attend.h"

#include "io/npy.h"

#include <stdlib.h>
#include <string.h>

void attend_packed_free(attend_run *run)
{
    if (run->cu_kv.at != run->cu_q.at) free(run->cu_kv.at);
    free(run->cu_q.at);
    run->cu_q = run->cu_kv = (attend_offsets){ 0 };
}

/* From 0, never falling, to the number of tokens. */
static int check_offsets(const attend_run *run, const char *option, const attend_offsets *offsets,
                         enum attend_input tokens_of, io_error *error)
{
    const int64_t tokens = attend_sizes_of(run, &run->in[tokens_of]).tokens, *at = offsets->at;
    if (offsets->count < 1)
        return io_fail(error, EXIT_INPUT, "%s %s is empty: expected where each sequence begins, and the end",
                       option, offsets->path);
    if (at[0] != 0)
        return io_fail(error, EXIT_INPUT, "%s %s: the offset at (0,) is %lld: expected 0", option,
                       offsets->path, (long long)at[0]);
    for (int64_t b = 1; b < offsets->count; b++)
        if (at[b] < at[b - 1])
            return io_fail(error, EXIT_INPUT,
                           "%s %s: the offset at (%lld,) is %lld: expected at least the one before, %lld",
                           option, offsets->path, (long long)b, (long long)at[b], (long long)at[b - 1]);
    if (at[offsets->count - 1] != tokens)
        return io_fail(error, EXIT_INPUT, "%s %s: the last offset is %lld: expected %lld, the tokens of %s",
                       option, offsets->path, (long long)at[offsets->count - 1], (long long)tokens,
                       attend_input_option(tokens_of));
    return 0;
}

static int check_both(const attend_run *run, io_error *error)
{
    const bool own = run->cu_kv.at != run->cu_q.at;
    const array *q = &run->in[IN_Q];
    char text[ARRAY_TEXT];
    if (q->rank > 3)
        return io_fail(error, EXIT_INPUT, "--q %s has shape %s: with --cu-seqlens expected %s or (T,D)",
                       run->options->in[IN_Q], array_shape_text(text, q->rank, q->shape),
                       run->tokens_first ? "(T,H,D)" : "(H,T,D)");
    if (run->cu_kv.count != run->cu_q.count)
        return io_fail(error, EXIT_INPUT,
                       "--cu-seqlens-k %s has shape (%lld,): expected (%lld,), that of --cu-seqlens",
                       run->cu_kv.path, (long long)run->cu_kv.count, (long long)run->cu_q.count);
    const int status = check_offsets(run, "--cu-seqlens", &run->cu_q, IN_Q, error);
    return status ? status
                  : check_offsets(run, own ? "--cu-seqlens-k" : "--cu-seqlens", &run->cu_kv, IN_K, error);
}

int attend_packed_read(attend_run *run, io_error *error)
{
    const attend_options *o = run->options;
    attend_offsets *q = &run->cu_q, *k = &run->cu_kv;
    if (!o->cu_seqlens) return 0;
    q->path = o->cu_seqlens;
    int status = npy_read_integers(&q->at, &q->count, q->path, error);
    *k = *q;
    if (!status && o->cu_seqlens_k) {
        k->path = o->cu_seqlens_k;
        status = npy_read_integers(&k->at, &k->count, k->path, error);
    }
    return status ? status : check_both(run, error);
}

static int64_t longest(const attend_offsets *offsets)
{
    int64_t most = 0;
    for (int64_t b = 0; b + 1 < offsets->count; b++) {
        const int64_t length = offsets->at[b + 1] - offsets->at[b];
        most = length > most ? length : most;
    }
    return most;
}

void attend_packed_sizes(attend_run *run)
{
    loam_problem *p = &run->problem;
    if (!run->cu_q.at) return;
    p->batch = run->cu_q.count - 1;
    p->total_q = p->len_q, p->total_kv = p->len_kv;
    p->len_q = longest(&run->cu_q), p->len_kv = longest(&run->cu_kv);
}

/* The keys of a sequence count from --rope-offset; its last query stands where its last key does. */
int64_t *attend_packed_positions(const attend_run *run, bool keys)
{
    const attend_offsets *own = keys ? &run->cu_kv : &run->cu_q, *last = &run->cu_kv;
    int64_t *positions = malloc((size_t)own->at[own->count - 1] * sizeof *positions + 1);
    for (int64_t b = 0; positions && b + 1 < own->count; b++)
        for (int64_t t = own->at[b]; t < own->at[b + 1]; t++)
            positions[t] = run->options->rope_offset + last->at[b + 1] - last->at[b] - (own->at[b + 1] - t);
    return positions;
}
