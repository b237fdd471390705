/* SPDX-License-Identifier: MIT */
#include "tests/path/scene.h"

#include "tests/support/element.h"
#include "tests/support/memory.h"
#include "tests/support/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct axes {
    int64_t heads, tokens, channels;
    int real; /* of type real, else of the problem's */
} axes;

static axes axes_of(const loam_problem *p, part which)
{
    const int64_t q = p->heads_q, kv = p->heads_kv, d = p->dim_qk, dv = p->dim_v, nq = p->len_q,
                  nk = p->len_kv;
    switch (which) {
    case Q:
    case PROBE:
    case DQ:
    case DPROBE: return (axes){ q, nq, d, 0 };
    case K:
    case W:
    case DK:
    case DW: return (axes){ kv, nk, d, 0 };
    case V:
    case DV: return (axes){ kv, nk, dv, 0 };
    case GRAD_O:
    case O: return (axes){ q, nq, dv, 0 };
    case RIDGE:
    case LSE:
    case DRIDGE: return (axes){ q, nq, 1, 1 };
    case BETA:
    case DBETA: return (axes){ kv, nk, 1, 1 };
    case DECAY:
    case DDECAY: return (axes){ q, nk, 1, 1 };
    default: return (axes){ 1, 1, 1, 1 };
    }
}

static loam_dtype type_of(const loam_problem *p, part which)
{
    const loam_dtype real = p->dtype == LOAM_F64 ? LOAM_F64 : LOAM_F32;
    return axes_of(p, which).real ? real : p->dtype;
}

static int64_t size_of_part(const loam_problem *p, part which)
{
    const axes a = axes_of(p, which);
    return (which == DSCALE ? 1 : p->batch) * a.heads * a.tokens * a.channels;
}

static void unit_rows(double *x, int64_t rows, int64_t channels)
{
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t c = 0; c < channels; c++)
            sum += x[r * channels + c] * x[r * channels + c];
        for (int64_t c = 0; c < channels; c++)
            x[r * channels + c] /= sqrt(sum);
    }
}

scene scene_make(const loam_problem *p, uint64_t seed)
{
    scene s = { .p = *p };
    for (int which = 0; which < SCENE_PARTS; which++) {
        rng r = rng_make(seed, (uint64_t)which);
        s.size[which] = size_of_part(p, (part)which);
        s.x[which] = memory_zeroed((size_t)s.size[which] + 1, sizeof(double));
        for (int64_t e = 0; which < SCENE_INPUTS && e < s.size[which]; e++) {
            s.x[which][e] = which == BETA    ? 2 * rng_uniform(&r)
                            : which == DECAY ? -0.6 * rng_uniform(&r)
                            : which == RIDGE ? 0.2 + rng_uniform(&r)
                                             : rng_normal(&r);
        }
    }
    unit_rows(s.x[W], s.size[W] / p->dim_qk, p->dim_qk);
    for (int which = 0; which < SCENE_INPUTS; which++) { /* as the library will read them */
        for (int64_t e = 0; e < s.size[which]; e++) {
            double here;
            element_set(&here, type_of(p, (part)which), 0, s.x[which][e]);
            s.x[which][e] = element_get(&here, type_of(p, (part)which), 0);
        }
    }
    return s;
}

scene scene_copy(const scene *from)
{
    scene s = *from;
    for (int which = 0; which < SCENE_PARTS; which++) {
        s.x[which] = memory_zeroed((size_t)s.size[which] + 1, sizeof(double));
        memcpy(s.x[which], from->x[which], (size_t)s.size[which] * sizeof(double));
    }
    return s;
}

void scene_free(scene *s)
{
    for (int which = 0; which < SCENE_PARTS; which++)
        free(s->x[which]);
}

static loam_const_view input(const loam_problem *p, void *const *data, part which)
{
    const axes a = axes_of(p, which);
    return loam_dense(data[which], a.heads, a.tokens, a.channels);
}

static loam_view output(const loam_problem *p, void *const *data, part which)
{
    const axes a = axes_of(p, which);
    return loam_dense_out(data[which], a.heads, a.tokens, a.channels);
}

static void connect(const loam_problem *p, void *const *data, loam_pass pass, loam_args *a)
{
    const int probed = p->mechanism == LOAM_PARALLAX, solved = p->mechanism == LOAM_LLA;
    a->q = input(p, data, Q), a->k = input(p, data, K), a->v = input(p, data, V);
    if (probed) a->probe = input(p, data, PROBE);
    if (solved) a->ridge = input(p, data, RIDGE);
    if (p->path) a->w = input(p, data, W), a->beta = input(p, data, BETA);
    if (p->decay) a->log_decay = input(p, data, DECAY);
    if (pass != LOAM_BACKWARD) {
        a->o = output(p, data, O), a->lse = output(p, data, LSE);
        return;
    }
    a->grad_o = input(p, data, GRAD_O);
    a->grad_q = output(p, data, DQ), a->grad_k = output(p, data, DK), a->grad_v = output(p, data, DV);
    a->grad_scale = data[DSCALE];
    if (probed) a->grad_probe = output(p, data, DPROBE);
    if (solved) a->grad_ridge = output(p, data, DRIDGE);
    if (p->path) a->grad_w = output(p, data, DW), a->grad_beta = output(p, data, DBETA);
    if (p->decay) a->grad_log_decay = output(p, data, DDECAY);
}

/* Memory whose contents must not matter: NaN. */
static void *poisoned(size_t bytes)
{
    const size_t room = (bytes / LOAM_ALIGN + 1) * LOAM_ALIGN;
    void *memory = aligned_alloc(LOAM_ALIGN, room);
    if (!memory) abort();
    return memset(memory, 255, room);
}

/* The states of keys first .. first + count - 1. */
static loam_status partial(const loam_plan *plan, loam_args a, int64_t first, int64_t count, size_t bytes,
                           double *states, loam_error *error)
{
    const loam_problem *p = loam_plan_problem(plan);
    a.k.data = (const char *)a.k.data + (size_t)(first * p->dim_qk) * bytes;
    a.v.data = (const char *)a.v.data + (size_t)(first * p->dim_v) * bytes;
    return loam_state_partial(plan, &a, first, count, states, error);
}

static loam_status run_slices(const loam_plan *plan, const loam_args *a, int64_t cut, loam_error *error)
{
    const loam_problem *p = loam_plan_problem(plan);
    const size_t count = loam_states_doubles(plan), bytes = element_bytes(p->dtype);
    double *early = memory_zeroed(count + 1, sizeof *early), *late = memory_zeroed(count + 1, sizeof *late);
    loam_status status = partial(plan, *a, 0, cut, bytes, early, error);
    status = status ? status : partial(plan, *a, cut, p->len_kv - cut, bytes, late, error);
    status = status ? status : loam_state_merge(plan, early, late, error);
    status = status ? status : loam_state_finish(plan, a, early, error);
    free(early);
    free(late);
    return status;
}

/* One pass of one kernel. */
static int run_pass(const scene *s, void *const *data, loam_pass pass, void *saved)
{
    loam_problem p = s->p;
    loam_args a = { .saved = saved };
    loam_plan *plan;
    loam_error error;
    p.pass = pass;
    if (loam_plan_create(&plan, &p, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 0;
    }
    connect(&p, data, pass, &a);
    a.work = poisoned(loam_plan_work_bytes(plan));
    const loam_status status = pass == LOAM_DECODE && s->cut > 0 ? run_slices(plan, &a, s->cut, &error)
                                                                 : loam_run(plan, &a, &error);
    if (status) fprintf(stderr, "%s\n", error.text);
    free(a.work);
    loam_plan_destroy(plan);
    return !status;
}

static void *saved_for(const scene *s)
{
    loam_problem p = s->p;
    loam_plan *plan;
    loam_error error;
    p.pass = LOAM_FORWARD;
    if (loam_plan_create(&plan, &p, &error)) return NULL;
    void *saved = poisoned(loam_plan_saved_bytes(plan));
    loam_plan_destroy(plan);
    return saved;
}

int scene_run(scene *s, loam_pass pass)
{
    void *data[SCENE_PARTS];
    for (int which = 0; which < SCENE_PARTS; which++) {
        const loam_dtype type = type_of(&s->p, (part)which);
        data[which] = memory_zeroed((size_t)s->size[which] + 1, element_bytes(type));
        for (int64_t e = 0; which < SCENE_INPUTS && e < s->size[which]; e++)
            element_set(data[which], type, e, s->x[which][e]);
    }
    void *saved = pass == LOAM_BACKWARD ? saved_for(s) : NULL;
    const int good = (pass != LOAM_BACKWARD || run_pass(s, data, LOAM_FORWARD, saved)) &&
                     run_pass(s, data, pass, saved);
    for (int which = SCENE_INPUTS; which < SCENE_PARTS; which++)
        for (int64_t e = 0; e < s->size[which]; e++)
            s->x[which][e] = element_get(data[which], type_of(&s->p, (part)which), e);
    for (int which = 0; which < SCENE_PARTS; which++)
        free(data[which]);
    free(saved);
    return good;
}

double scene_error(const scene *got, const scene *want, part which)
{
    double wrong = 0, size = 0;
    for (int64_t e = 0; e < want->size[which]; e++) {
        const double w = want->x[which][e], g = got->x[which][e];
        wrong += (w - g) * (w - g);
        size += w * w;
    }
    return size > 0 ? sqrt(wrong / size) : sqrt(wrong);
}
