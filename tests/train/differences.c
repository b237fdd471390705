/* SPDX-License-Identifier: MIT */
#include "tests/train/differences.h"

#include "tests/train/fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DIRECTIONS = 2 };

static double total_loss(scene *s)
{
    double sum = 0;
    scene_pass(s, false);
    for (int64_t m = 0; m < s->shape.models; m++)
        sum += scene_loss(s, m);
    return sum;
}

static double moved_loss(scene *s, const parameter *p, matrix kept, matrix along, double step)
{
    s->on.op->combine(&s->on, p->x, 1, kept, step, along);
    return total_loss(s);
}

void differences_check_array(scene *s, const char *name, const parameter *p, matrix g, uint64_t direction)
{
    const double step = 1e-5;
    matrix along = fixture_matrix(&s->on, p->x.models, p->x.rows, p->x.width);
    matrix kept = fixture_matrix(&s->on, p->x.models, p->x.rows, p->x.width);
    fixture_fill(along, direction);
    s->on.op->copy(&s->on, kept, p->x);
    const double near = moved_loss(s, p, kept, along, step) - moved_loss(s, p, kept, along, -step);
    const double far = moved_loss(s, p, kept, along, 2 * step) - moved_loss(s, p, kept, along, -2 * step);
    const double want = (8 * near - far) / (12 * step), got = fixture_dot(along, g);
    const double norm = sqrt(fixture_dot(g, g));
    s->on.op->copy(&s->on, p->x, kept);
    if (!(fabs(got - want) <= 1e-6 * norm) || !(norm > 1e-6))
        fail_msg("%s, %s: derivative %.12g, by differences %.12g, norm %g", name, p->name, got, want, norm);
    free(along.data), free(kept.data);
}

void differences_check(const char *name, const mixer_options *options, const model_shape *shape,
                       const uint64_t *seeds)
{
    scene s;
    int count;
    scene_open_with(&s, options, LOAM_F64, 1, name, shape, seeds, 1);
    scene_stir(&s);
    scene_pass(&s, true);
    const parameter *list = model_parameters(s.net, &count);
    for (int n = 0; n < count; n++)
        for (uint64_t direction = 0; direction < DIRECTIONS && !list[n].fixed; direction++)
            differences_check_array(&s, name, &list[n], list[n].g, direction);
    scene_close(&s);
}

void differences_check_float(const char *name, const mixer_options *options, const model_shape *shape,
                             const uint64_t *seeds)
{
    scene s, exact;
    int count;
    scene_open_with(&s, options, LOAM_F32, 2, name, shape, seeds, 1);
    scene_open_with(&exact, options, LOAM_F64, 2, name, shape, seeds, 1);
    scene_stir(&s), scene_stir(&exact);
    scene_pass(&s, true), scene_pass(&exact, true);
    for (int64_t m = 0; m < shape->models; m++) {
        const double want = scene_loss(&exact, m), got = scene_loss(&s, m);
        if (!(fabs(got - want) <= 1e-5 * want)) fail_msg("%s: loss %.9g, expected %.9g", name, got, want);
    }
    const parameter *list = model_parameters(s.net, &count), *want = model_parameters(exact.net, &count);
    for (int n = 0; n < count; n++) {
        const double miss = list[n].fixed ? 0 : fixture_distance(list[n].g, want[n].g);
        if (!(miss < 1e-3)) fail_msg("%s, %s: gradient off by %g", name, list[n].name, miss);
    }
    scene_close(&s), scene_close(&exact);
}

void differences_expect_same(const char *name, const scene *a, int64_t m, const scene *b, int64_t n)
{
    int count;
    const parameter *one = model_parameters(a->net, &count), *other = model_parameters(b->net, &count);
    for (int i = 0; i < count; i++) {
        const size_t bytes = (size_t)one[i].g.model * sizeof(float);
        if (one[i].fixed) continue;
        if (memcmp((char *)one[i].g.data + (size_t)m * bytes, (char *)other[i].g.data + (size_t)n * bytes,
                   bytes) != 0)
            fail_msg("%s, %s: other bits", name, one[i].name);
    }
}
