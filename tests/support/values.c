/* SPDX-License-Identifier: MIT */
#include "tests/support/values.h"

#include "tests/support/data.h"
#include "tests/support/memory.h"

#include <stdlib.h>
#include <string.h>

static values values_empty(const spec *s)
{
    values v;
    memset(&v, 0, sizeof v);
    v.spec = *s;
    const size_t batch = (size_t)s->batch;
    if (s->packed) {
        v.cu_q = memory_zeroed(batch + 1, sizeof *v.cu_q);
        v.cu_kv = memory_zeroed(batch + 1, sizeof *v.cu_kv);
    }
    if (s->lens) v.lens_kv = memory_zeroed(batch, sizeof *v.lens_kv);
    return v;
}

static void values_allocate(values *v)
{
    for (int a = 0; a < SLOT_COUNT; a++)
        if (a != SLOT_INFO && slot_used(&v->spec, (slot)a))
            v->x[a] = memory_zeroed((size_t)slot_size(v, (slot)a), sizeof(double));
    if (slot_used(&v->spec, SLOT_INFO))
        v->info = memory_zeroed((size_t)slot_size(v, SLOT_INFO), sizeof *v->info);
}

values values_make(const spec *s)
{
    values v = values_empty(s);
    data_lengths(&v);
    values_allocate(&v);
    data_fill(&v);
    return v;
}

values values_like(const spec *s, const values *from)
{
    values v = values_empty(s);
    const size_t batch = (size_t)s->batch;
    if (s->packed) {
        memcpy(v.cu_q, from->cu_q, (batch + 1) * sizeof *v.cu_q);
        memcpy(v.cu_kv, from->cu_kv, (batch + 1) * sizeof *v.cu_kv);
    }
    if (s->lens) memcpy(v.lens_kv, from->lens_kv, batch * sizeof *v.lens_kv);
    values_allocate(&v);
    for (int a = 0; a < SLOT_FIRST_OUTPUT; a++)
        if (v.x[a] && from->x[a] && slot_size(&v, (slot)a) == slot_size(from, (slot)a))
            memcpy(v.x[a], from->x[a], (size_t)slot_size(&v, (slot)a) * sizeof(double));
    return v;
}

void values_free(values *v)
{
    for (int a = 0; a < SLOT_COUNT; a++)
        free(v->x[a]);
    free(v->cu_q);
    free(v->cu_kv);
    free(v->lens_kv);
    free(v->info);
    memset(v, 0, sizeof *v);
}

loam_problem values_problem(const values *v)
{
    loam_problem p = spec_problem(&v->spec);
    if (v->spec.packed) {
        p.total_q = v->cu_q[v->spec.batch];
        p.total_kv = v->cu_kv[v->spec.batch];
    }
    return p;
}

sequence values_sequence(const values *v, int64_t b)
{
    const spec *s = &v->spec;
    if (s->packed) {
        return (sequence){ 0, v->cu_q[b], v->cu_q[b + 1] - v->cu_q[b], v->cu_kv[b],
                           v->cu_kv[b + 1] - v->cu_kv[b] };
    }
    return (sequence){ b, 0, s->len_q, 0, s->lens ? v->lens_kv[b] : s->len_kv };
}
