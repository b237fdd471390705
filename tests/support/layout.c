/* SPDX-License-Identifier: MIT */
#include "tests/support/layout.h"

#include "tests/support/random.h"

/* Arrays that loam_args takes as a bare pointer. */
static int always_dense(slot which)
{
    return which == SLOT_SLOPE || which == SLOT_SINK || which == SLOT_GRAD_SLOPE || which == SLOT_GRAD_SINK ||
           which == SLOT_GRAD_SCALE;
}

static int may_broadcast(slot which) { return which < SLOT_FIRST_OUTPUT; }

static void dense(layout *l)
{
    l->token = l->shape.channels;
    l->head = l->token * l->shape.tokens;
    l->batch = l->head * l->shape.heads;
    l->elements = shape_size(l->shape);
}

/* Axes from the inside out in a random order, most often one of the two usual ones. */
static void axis_order(rng *r, int order[3])
{
    static const int orders[4][3] = { { 2, 1, 0 }, { 1, 2, 0 }, { 2, 0, 1 }, { 0, 1, 2 } };
    const int64_t which = rng_int(r, 0, 9);
    const int *chosen = orders[which < 4 ? 0 : which < 8 ? 1 : which - 6];
    for (int i = 0; i < 3; i++)
        order[i] = chosen[i];
}

int64_t layout_unit(const spec *s) { return s->layout % 4 == 3 ? 8 : 1; }

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

layout layout_make(const values *v, slot which)
{
    layout l = { .shape = slot_shape(v, which), .at_end = 1 };
    if (v->spec.layout == 0 || always_dense(which)) {
        dense(&l);
        return l;
    }
    rng r = rng_make((uint64_t)v->spec.layout, (uint64_t)which);
    const int64_t size[3] = { l.shape.batch, l.shape.heads, l.shape.tokens };
    int64_t *const stride[3] = { &l.batch, &l.head, &l.token };
    const int gaps = rng_one_in(&r, 2), thin = may_broadcast(which) && rng_one_in(&r, 6);
    int order[3];
    axis_order(&r, order);
    const int64_t unit = layout_unit(&v->spec);
    int64_t next = round_up(l.shape.channels + (gaps ? rng_int(&r, 0, 5) : 0), unit), last = l.shape.channels;
    for (int i = 0; i < 3; i++) {
        const int axis = order[i];
        const int once = thin && rng_one_in(&r, axis == 2 ? 4 : 2);
        *stride[axis] = once ? 0 : next;
        if (!once && size[axis] > 0) {
            last += (size[axis] - 1) * next;
            next = round_up(next * size[axis] + (gaps ? rng_int(&r, 0, 3) : 0), unit);
        }
    }
    l.elements = shape_size(l.shape) ? round_up(last, unit) : 0;
    l.at_end = !rng_one_in(&r, 3);
    return l;
}
