/* SPDX-License-Identifier: MIT */
#include "tests/support/arrays.h"

#include "cli/device.h"
#include "tests/support/element.h"
#include "tests/support/kernels.h"

#include <stdio.h>
#include <string.h>

static size_t slot_bytes(const spec *s, slot which)
{
    return which == SLOT_INFO ? sizeof(loam_row_info) : element_bytes(slot_dtype(s, which));
}

static int wanted(const spec *s, slot which)
{
    return slot_used(s, which) && (which < SLOT_FIRST_OUTPUT || spec_wants(s, which));
}

/* Where token t of head h of batch entry b begins. */
static unsigned char *place(const arrays *m, slot which, int64_t b, int64_t h, int64_t t)
{
    const size_t each = slot_bytes(&m->values->spec, which);
    return m->array[which].data + (size_t)layout_at(&m->layout[which], b, h, t) * each;
}

typedef void row_fn(const arrays *m, slot which, unsigned char *row, int64_t index, void *context);

/* Calls fn for each row of channels; index is that of the row's first element in a dense array. */
static void for_each_row(const arrays *m, slot which, row_fn *fn, void *context)
{
    const shape a = m->layout[which].shape;
    for (int64_t row = 0; row < a.batch * a.heads * a.tokens; row++) {
        const int64_t t = row % a.tokens, h = row / a.tokens % a.heads, b = row / a.tokens / a.heads;
        fn(m, which, place(m, which, b, h, t), row * a.channels, context);
    }
}

static void store_row(const arrays *m, slot which, unsigned char *row, int64_t index, void *context)
{
    (void)context;
    for (int64_t c = 0; c < m->layout[which].shape.channels; c++)
        element_set(row, slot_dtype(&m->values->spec, which), c, m->values->x[which][index + c]);
}

static void load_row(const arrays *m, slot which, unsigned char *row, int64_t index, void *context)
{
    values *to = context;
    const int64_t channels = m->layout[which].shape.channels;
    if (which == SLOT_INFO) {
        memcpy(&to->info[index], row, sizeof(loam_row_info));
        return;
    }
    for (int64_t c = 0; c < channels; c++)
        to->x[which][index + c] = element_get(row, slot_dtype(&m->values->spec, which), c);
}

/* Counts the elements that still hold poison, and poisons the others. */
static void clear_row(const arrays *m, slot which, unsigned char *row, int64_t index, void *context)
{
    (void)index;
    const size_t each = slot_bytes(&m->values->spec, which);
    const unsigned char poison[sizeof(loam_row_info)] = { 255, 255, 255, 255, 255, 255, 255, 255,
                                                          255, 255, 255, 255, 255, 255, 255, 255 };
    for (int64_t c = 0; c < m->layout[which].shape.channels; c++) {
        *(int64_t *)context += memcmp(row + (size_t)c * each, poison, each) == 0;
        memcpy(row + (size_t)c * each, poison, each);
    }
}

static guard index_array(const int64_t *from, int64_t count)
{
    const size_t bytes = (size_t)count * sizeof *from;
    guard g = guard_make(bytes, 1);
    memcpy(g.data, from, bytes);
    return g;
}

static loam_const_view input_view(const arrays *m, slot which)
{
    const layout *l = &m->layout[which];
    return (loam_const_view){ guard_address(&m->array[which]), l->batch, l->head, l->token };
}

static loam_view output_view(const arrays *m, slot which)
{
    const layout *l = &m->layout[which];
    return (loam_view){ guard_address(&m->array[which]), l->batch, l->head, l->token };
}

static void connect(arrays *m)
{
    m->args = (loam_args){
        .q = input_view(m, SLOT_Q),
        .k = input_view(m, SLOT_K),
        .v = input_view(m, SLOT_V),
        .probe = input_view(m, SLOT_PROBE),
        .ridge = input_view(m, SLOT_RIDGE),
        .slope = guard_address(&m->array[SLOT_SLOPE]),
        .key_bias = input_view(m, SLOT_KEY_BIAS),
        .sink = guard_address(&m->array[SLOT_SINK]),
        .grad_o = input_view(m, SLOT_GRAD_O),
        .cu_q = guard_address(&m->cu_q),
        .cu_kv = guard_address(&m->cu_kv),
        .lens_kv = guard_address(&m->lens_kv),
        .o = output_view(m, SLOT_O),
        .lse = output_view(m, SLOT_LSE),
        .rho = output_view(m, SLOT_RHO),
        .weights = output_view(m, SLOT_WEIGHTS),
        .info = output_view(m, SLOT_INFO),
        .grad_q = output_view(m, SLOT_GRAD_Q),
        .grad_k = output_view(m, SLOT_GRAD_K),
        .grad_v = output_view(m, SLOT_GRAD_V),
        .grad_probe = output_view(m, SLOT_GRAD_PROBE),
        .grad_ridge = output_view(m, SLOT_GRAD_RIDGE),
        .grad_scale = guard_address(&m->array[SLOT_GRAD_SCALE]),
        .grad_slope = guard_address(&m->array[SLOT_GRAD_SLOPE]),
        .grad_key_bias = output_view(m, SLOT_GRAD_KEY_BIAS),
        .grad_sink = guard_address(&m->array[SLOT_GRAD_SINK]),
        .log_decay = input_view(m, SLOT_LOG_DECAY),
        .beta = input_view(m, SLOT_BETA),
        .state_in = input_view(m, SLOT_STATE_IN),
        .state_out = output_view(m, SLOT_STATE_OUT),
        .grad_state_out = input_view(m, SLOT_GRAD_STATE_OUT),
        .grad_log_decay = output_view(m, SLOT_GRAD_LOG_DECAY),
        .grad_beta = output_view(m, SLOT_GRAD_BETA),
        .grad_state_in = output_view(m, SLOT_GRAD_STATE_IN),
        .w = input_view(m, SLOT_W),
        .grad_w = output_view(m, SLOT_GRAD_W),
        .z = input_view(m, SLOT_Z),
        .log_alpha = input_view(m, SLOT_LOG_ALPHA),
        .shift = input_view(m, SLOT_SHIFT),
        .balance = input_view(m, SLOT_BALANCE),
        .balance_keys = input_view(m, SLOT_BALANCE_KEYS),
        .grad_z = output_view(m, SLOT_GRAD_Z),
        .grad_log_alpha = output_view(m, SLOT_GRAD_LOG_ALPHA),
    };
}

/* Calls fn for each guard of the case. */
static void for_each_guard(arrays *m, void (*fn)(guard *g))
{
    for (int a = 0; a < SLOT_COUNT; a++)
        fn(&m->array[a]);
    guard *const rest[] = { &m->saved, &m->work, &m->cu_q, &m->cu_kv, &m->lens_kv };
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++)
        fn(rest[i]);
}

static void send(guard *g)
{
    if (g->map) guard_to_device(g, 0);
}

void arrays_make(arrays *m, const values *v)
{
    memset(m, 0, sizeof *m);
    m->values = v;
    m->device = kernel_on_device(&v->spec);
    for (int a = 0; a < SLOT_COUNT; a++) {
        if (!wanted(&v->spec, (slot)a)) continue;
        m->layout[a] = layout_make(v, (slot)a);
        m->array[a] = guard_make((size_t)m->layout[a].elements * slot_bytes(&v->spec, (slot)a),
                                 m->layout[a].at_end);
        if (a < SLOT_FIRST_OUTPUT) for_each_row(m, (slot)a, store_row, NULL);
    }
    if (v->cu_q) {
        m->cu_q = index_array(v->cu_q, v->spec.batch + 1);
        if (!spec_recurrent(&v->spec)) m->cu_kv = index_array(v->cu_kv, v->spec.batch + 1);
    }
    if (v->lens_kv) m->lens_kv = index_array(v->lens_kv, v->spec.batch);
    if (m->device) for_each_guard(m, send);
    connect(m);
}

/* A buffer whose contents are the library's own. */
static void *scratch(const arrays *m, guard *g, size_t bytes)
{
    guard_free(g);
    *g = guard_make(bytes, 1);
    if (m->device) guard_to_device(g, 1);
    return guard_address(g);
}

void arrays_work(arrays *m, const loam_plan *plan)
{
    m->args.work = scratch(m, &m->work, loam_plan_work_bytes(plan));
}

void arrays_saved(arrays *m, const loam_plan *plan)
{
    m->args.saved = scratch(m, &m->saved, loam_plan_saved_bytes(plan));
}

const char *arrays_settle(arrays *m)
{
    const char *failed = m->device ? device_wait() : NULL;
    if (!failed) for_each_guard(m, guard_from_device);
    return failed;
}

void arrays_read(const arrays *m, values *v)
{
    for (int a = SLOT_FIRST_OUTPUT; a < SLOT_COUNT; a++)
        if (m->array[a].data) for_each_row(m, (slot)a, load_row, v);
}

/* Are the elements of an input, and the gaps between them, what they were? */
static int input_intact(arrays *m, slot which)
{
    const guard now = m->array[which];
    guard *then = &m->array[which];
    *then = guard_make(now.bytes, m->layout[which].at_end);
    for_each_row(m, which, store_row, NULL);
    const int same = guard_intact(&now) && (now.bytes == 0 || memcmp(now.data, then->data, now.bytes) == 0);
    guard_free(then);
    *then = now;
    return same;
}

static const char *slot_misuse(arrays *m, slot which)
{
    if (!m->array[which].data) return NULL;
    if (which < SLOT_FIRST_OUTPUT) return input_intact(m, which) ? NULL : "input or its surroundings changed";
    int64_t unwritten = 0;
    for_each_row(m, which, clear_row, &unwritten);
    return unwritten                           ? "output has elements that were not written (or are NaN)"
           : guard_untouched(&m->array[which]) ? (guard_intact(&m->array[which]) ? NULL : "written outside")
                                               : "gaps of the output were written";
}

const char *arrays_misuse(arrays *m, char *text, size_t bytes)
{
    text[0] = '\0';
    for (int a = 0; a < SLOT_COUNT; a++) {
        const char *what = slot_misuse(m, (slot)a);
        if (what && !text[0]) snprintf(text, bytes, "%s: %s", slot_names[a], what);
    }
    if (!text[0] && m->work.map && !guard_intact(&m->work)) snprintf(text, bytes, "work: written outside");
    if (!text[0] && m->saved.map && !guard_intact(&m->saved)) snprintf(text, bytes, "saved: written outside");
    return text[0] ? text : NULL;
}

void arrays_free(arrays *m)
{
    for_each_guard(m, guard_free);
    memset(m, 0, sizeof *m);
}
