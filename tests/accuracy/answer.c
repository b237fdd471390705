/* SPDX-License-Identifier: MIT */
#include "tests/accuracy/answer.h"

#include "cli/device_set.h"
#include "tests/accuracy/processor_time.h"
#include "tests/support/element.h"
#include "tests/support/kernels.h"
#include "tests/support/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const part_names[PARTS] = { "o", "dq", "dk", "dv", "dprobe", "dridge", "dscale" };

int64_t part_rows(const sample *s, part which)
{
    return which == PART_DK || which == PART_DV ? s->len_kv : which == PART_DSCALE ? 1 : s->len_q;
}

int64_t part_width(const sample *s, part which)
{
    return which == PART_DRIDGE || which == PART_DSCALE ? 1 : s->dim;
}

static bool has_part(const question *ask, part which)
{
    return which == PART_O || (ask->gradients && (which != PART_DPROBE || ask->mechanism == LOAM_PARALLAX) &&
                               (which != PART_DRIDGE || ask->mechanism == LOAM_LLA));
}

const char *answer_isa(loam_dtype dtype, int index)
{
    loam_kernel_info info;
    for (int at = 0, found = 0; loam_kernel_at(at, &info) == LOAM_OK; at++)
        if (strcmp(info.pass, "forward") == 0 && strcmp(info.backend, "cpu") == 0 && info.available &&
            kernel_lists(info.mechanisms, "lla") && kernel_lists(info.dtypes, loam_dtype_name(dtype)) &&
            found++ == index)
            return info.isa;
    return NULL;
}

static void fail(const loam_error *error)
{
    fprintf(stderr, "loam-accuracy: %s\n", error->text);
    exit(EXIT_FAILURE);
}

/* The arrays as the library gets them. */
typedef struct storage {
    loam_dtype dtype;
    void *q, *k, *v, *probe, *grad_o, *ridge, *out[PARTS];
    void *saved, *work;
    bool device;    /* the kernels are CUDA's */
    device_set set; /* and this is where the arrays are for them */
} storage;

static void must(const char *failed)
{
    if (failed) {
        fprintf(stderr, "loam-accuracy: CUDA: %s\n", failed);
        exit(EXIT_FAILURE);
    }
}

static void *stored(loam_dtype dtype, const double *x, int64_t count)
{
    void *out = memory_zeroed((size_t)count, element_bytes(dtype));
    for (int64_t i = 0; x && i < count; i++)
        element_set(out, dtype, i, x[i]);
    return out;
}

static loam_dtype part_dtype(loam_dtype dtype, part which)
{
    return which == PART_DRIDGE || which == PART_DSCALE ? element_real(dtype) : dtype;
}

static storage store(const sample *s, const question *ask)
{
    const int64_t queries = s->len_q * s->dim, keys = s->len_kv * s->dim;
    storage m = { .dtype = ask->dtype };
    m.q = stored(m.dtype, s->q, queries);
    m.k = stored(m.dtype, s->k, keys);
    m.v = stored(m.dtype, s->v, keys);
    m.probe = ask->mechanism == LOAM_PARALLAX ? stored(m.dtype, s->probe, queries) : NULL;
    m.grad_o = stored(m.dtype, s->grad_o, queries);
    const loam_dtype real = element_real(m.dtype);
    m.ridge = ask->mechanism == LOAM_LLA ? stored(real, NULL, s->len_q) : NULL;
    for (int64_t i = 0; m.ridge && i < s->len_q; i++) {
        /* The reference sees the number that float32 holds. */
        element_set(m.ridge, real, i, (double)(float)ask->ridge);
    }
    for (int which = 0; which < PARTS; which++) {
        if (has_part(ask, (part)which)) {
            m.out[which] = stored(part_dtype(m.dtype, (part)which), NULL,
                                  part_rows(s, (part)which) * part_width(s, (part)which));
        }
    }
    return m;
}

static void storage_free(storage *m)
{
    void *all[] = { m->q, m->k, m->v, m->probe, m->grad_o, m->ridge, m->saved, m->work };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    for (int which = 0; which < PARTS; which++)
        free(m->out[which]);
}

static loam_args arguments(const sample *s, const storage *m, const answer *a)
{
    const int64_t d = s->dim;
    loam_args args = {
        .q = loam_dense(m->q, 1, s->len_q, d),
        .k = loam_dense(m->k, 1, s->len_kv, d),
        .v = loam_dense(m->v, 1, s->len_kv, d),
        .probe = loam_dense(m->probe, 1, s->len_q, d),
        .ridge = loam_dense(m->ridge, 1, s->len_q, 1),
        .grad_o = loam_dense(m->grad_o, 1, s->len_q, d),
        .o = loam_dense_out(m->out[PART_O], 1, s->len_q, d),
        .info = loam_dense_out(a->info, 1, s->len_q, 1),
        .grad_q = loam_dense_out(m->out[PART_DQ], 1, s->len_q, d),
        .grad_k = loam_dense_out(m->out[PART_DK], 1, s->len_kv, d),
        .grad_v = loam_dense_out(m->out[PART_DV], 1, s->len_kv, d),
        .grad_probe = loam_dense_out(m->out[PART_DPROBE], 1, s->len_q, d),
        .grad_ridge = loam_dense_out(m->out[PART_DRIDGE], 1, s->len_q, 1),
        .grad_scale = m->out[PART_DSCALE],
    };
    return args;
}

static loam_plan *plan_of(const sample *s, const question *ask, loam_pass pass)
{
    char kernel[64];
    snprintf(kernel, sizeof kernel, "local_%s_%s", pass == LOAM_FORWARD ? "forward" : "backward",
             ask->dtype == LOAM_F64 ? "ref"
             : ask->isa             ? ask->isa
                                    : "");
    loam_problem p = loam_problem_default(ask->mechanism, pass);
    p.dtype = ask->dtype;
    p.len_q = s->len_q, p.len_kv = s->len_kv;
    p.dim_qk = p.dim_v = s->dim;
    p.causal = s->causal, p.window = s->window;
    p.ridge_axes = ask->mechanism == LOAM_LLA ? LOAM_RIDGE_TOKEN : LOAM_RIDGE_NUMBER;
    p.kernel = ask->dtype == LOAM_F64 || ask->isa ? kernel : NULL;
    p.threads = ask->threads;
    loam_plan *plan;
    loam_error error;
    if (loam_plan_create(&plan, &p, &error)) fail(&error);
    return plan;
}

/* Pointers of the arguments become the device's. */
static void send(const sample *s, storage *m, loam_args *a)
{
    const loam_dtype real = element_real(m->dtype);
    const size_t each = element_bytes(m->dtype), queries = (size_t)(s->len_q * s->dim) * each;
    const size_t keys = (size_t)(s->len_kv * s->dim) * each, rows = (size_t)s->len_q * element_bytes(real);
    must(device_set_input(&m->set, &a->q.data, queries));
    must(device_set_input(&m->set, &a->k.data, keys));
    must(device_set_input(&m->set, &a->v.data, keys));
    must(device_set_input(&m->set, &a->probe.data, queries));
    must(device_set_input(&m->set, &a->grad_o.data, queries));
    must(device_set_input(&m->set, &a->ridge.data, rows));
    must(device_set_output(&m->set, &a->o.data, queries));
    must(device_set_output(&m->set, &a->grad_q.data, queries));
    must(device_set_output(&m->set, &a->grad_k.data, keys));
    must(device_set_output(&m->set, &a->grad_v.data, keys));
    must(device_set_output(&m->set, &a->grad_probe.data, queries));
    must(device_set_output(&m->set, &a->grad_ridge.data, rows));
    must(device_set_output(&m->set, &a->grad_scale, element_bytes(real)));
    must(device_set_output(&m->set, &a->info.data, (size_t)s->len_q * sizeof(loam_row_info)));
}

static void *aligned(size_t bytes)
{
    void *p = aligned_alloc(LOAM_ALIGN, bytes + LOAM_ALIGN);
    if (!p) {
        fprintf(stderr, "loam-accuracy: no memory for %zu bytes\n", bytes);
        exit(EXIT_FAILURE);
    }
    memset(p, 0, bytes);
    return p;
}

static double run_pass(const sample *s, const question *ask, loam_pass pass, storage *m, loam_args *args)
{
    loam_plan *plan = plan_of(s, ask, pass);
    loam_error error;
    if (m->device) {
        must(device_set_scratch(&m->set, &args->work, loam_plan_work_bytes(plan)));
    } else {
        free(m->work);
        m->work = args->work = aligned(loam_plan_work_bytes(plan));
    }
    if (pass == LOAM_FORWARD && ask->gradients && m->device)
        must(device_set_scratch(&m->set, &args->saved, loam_plan_saved_bytes(plan)));
    else if (pass == LOAM_FORWARD && ask->gradients)
        m->saved = args->saved = aligned(loam_plan_saved_bytes(plan));
    loam_args own = *args;
    loam_args_keep(&own, pass);
    const double begin = processor_seconds();
    if (loam_run(plan, &own, &error)) fail(&error);
    const double seconds = processor_seconds() - begin;
    loam_plan_destroy(plan);
    return seconds;
}

answer answer_make(const sample *s, const question *ask)
{
    answer a = { .info = memory_zeroed((size_t)s->len_q, sizeof *a.info) };
    storage m = store(s, ask);
    loam_args args = arguments(s, &m, &a);
    m.device = ask->isa && !kernel_lists("portable avx2 avx512 avx512bf16 amxbf16", ask->isa);
    if (m.device) send(s, &m, &args);
    a.seconds = run_pass(s, ask, LOAM_FORWARD, &m, &args);
    if (ask->gradients) run_pass(s, ask, LOAM_BACKWARD, &m, &args);
    if (m.device) {
        must(device_set_fetch(&m.set));
        device_set_free(&m.set);
    }
    for (int which = 0; which < PARTS; which++) {
        const int64_t count = part_rows(s, (part)which) * part_width(s, (part)which);
        a.x[which] = m.out[which] ? memory_zeroed((size_t)count, sizeof(double)) : NULL;
        for (int64_t i = 0; a.x[which] && i < count; i++)
            a.x[which][i] = element_get(m.out[which], part_dtype(m.dtype, (part)which), i);
    }
    storage_free(&m);
    return a;
}

void answer_free(answer *a)
{
    for (int which = 0; which < PARTS; which++)
        free(a->x[which]);
    free(a->info);
}
