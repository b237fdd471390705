/* SPDX-License-Identifier: MIT
 * Arrays of more than 2^31 elements: offsets are 64 bits wide. Small problems whose
 * batch, head or token stride is huge, and one problem that has that many elements. */
#include "tests/cuda/scene.h"

#include "cli/device.h"
#include "tests/support/element.h"
#include "tests/support/memory.h"

#include <stdlib.h>
#include <string.h>

enum { SKIPPED = 77, BATCH_AXIS = 0, HEAD_AXIS, TOKEN_AXIS, AXES };
static const int64_t BEYOND = (int64_t)1 << 31;

static void *room(size_t bytes)
{
    void *memory;
    const char *failed = device_alloc(&memory, bytes);
    if (failed) fail_msg("%zu bytes: %s", bytes, failed);
    return memory;
}

static void need_memory(double bytes)
{
    device_info info;
    if (device_describe(0, &info) || (double)info.free_memory < bytes) {
        print_message("skipped: needs %.0f GiB of free device memory\n", bytes / 0x1p30);
        skip();
    }
}

/* ---------------------------------------------------------------- huge strides */

typedef struct wide {
    unsigned char *memory;
    int64_t stride[AXES]; /* in elements; the huge one is the outermost */
    shape shape;
    loam_dtype dtype;
} wide;

static wide wide_make(const values *v, slot which, int axis)
{
    wide w = { .shape = slot_shape(v, which), .dtype = slot_dtype(&v->spec, which) };
    const int64_t count[AXES] = { w.shape.batch, w.shape.heads, w.shape.tokens };
    int64_t next = w.shape.channels, last = w.shape.channels;
    for (int i = AXES - 1; i >= 0; i--) {
        if (i != axis) {
            w.stride[i] = next;
            next *= count[i];
        }
    }
    w.stride[axis] = (BEYOND / (count[axis] - 1) + 64) / 64 * 64; /* its last entry lies beyond 2^31 */
    for (int i = 0; i < AXES; i++)
        last += (count[i] - 1) * w.stride[i];
    w.memory = room((size_t)last * element_bytes(w.dtype));
    return w;
}

/* Copies rows of channels between x (dense, double) and the device. */
static void wide_copy(const wide *w, double *x, int upload)
{
    const shape a = w->shape;
    const size_t each = element_bytes(w->dtype);
    unsigned char *row = memory_zeroed((size_t)a.channels, each);
    for (int64_t n = 0; n < a.batch * a.heads * a.tokens; n++) {
        const int64_t at[AXES] = { n / a.tokens / a.heads, n / a.tokens % a.heads, n % a.tokens };
        int64_t offset = 0;
        for (int i = 0; i < AXES; i++)
            offset += at[i] * w->stride[i];
        unsigned char *place = w->memory + (size_t)offset * each;
        for (int64_t c = 0; upload && c < a.channels; c++)
            element_set(row, w->dtype, c, x[n * a.channels + c]);
        CUDA(upload ? cudaMemcpy(place, row, (size_t)a.channels * each, cudaMemcpyHostToDevice)
                    : cudaMemcpy(row, place, (size_t)a.channels * each, cudaMemcpyDeviceToHost));
        for (int64_t c = 0; !upload && c < a.channels; c++)
            x[n * a.channels + c] = element_get(row, w->dtype, c);
    }
    free(row);
}

static loam_const_view wide_input(const wide *w)
{
    return (loam_const_view){ w->memory, w->stride[0], w->stride[1], w->stride[2] };
}
static loam_view wide_output(const wide *w)
{
    return (loam_view){ w->memory, w->stride[0], w->stride[1], w->stride[2] };
}

static const slot wide_slots[] = { SLOT_Q, SLOT_K,      SLOT_V,      SLOT_PROBE,  SLOT_GRAD_O,
                                   SLOT_O, SLOT_GRAD_Q, SLOT_GRAD_K, SLOT_GRAD_V, SLOT_GRAD_PROBE };
enum { WIDE = sizeof wide_slots / sizeof wide_slots[0] };

static void connect(loam_args *args, slot which, const wide *w)
{
    switch (which) {
    case SLOT_Q: args->q = wide_input(w); break;
    case SLOT_K: args->k = wide_input(w); break;
    case SLOT_V: args->v = wide_input(w); break;
    case SLOT_PROBE: args->probe = wide_input(w); break;
    case SLOT_GRAD_O: args->grad_o = wide_input(w); break;
    case SLOT_O: args->o = wide_output(w); break;
    case SLOT_GRAD_Q: args->grad_q = wide_output(w); break;
    case SLOT_GRAD_K: args->grad_k = wide_output(w); break;
    case SLOT_GRAD_V: args->grad_v = wide_output(w); break;
    default: args->grad_probe = wide_output(w); break;
    }
}

/* The arrays of 16 bits with one huge stride give what they give dense. */
static void check_strides(const spec *s, int axis)
{
    scene dense;
    wide w[WIDE] = { 0 };
    scene_make(&dense, s);
    loam_args args = dense.m.args;
    scene_launch(&dense, NULL);
    scene_finish(&dense);
    for (int i = 0; i < WIDE; i++) {
        if (dense.m.array[wide_slots[i]].map) {
            w[i] = wide_make(&dense.v, wide_slots[i], axis);
            if (wide_slots[i] < SLOT_FIRST_OUTPUT) wide_copy(&w[i], dense.v.x[wide_slots[i]], 1);
            connect(&args, wide_slots[i], &w[i]);
        }
    }
    values got = values_like(s, &dense.v);
    loam_error error;
    if (loam_run(dense.plan, &args, &error)) fail_msg("%s", error.text);
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < WIDE; i++) {
        if (w[i].memory && wide_slots[i] >= SLOT_FIRST_OUTPUT) {
            wide_copy(&w[i], got.x[wide_slots[i]], 0);
            expect_same("a stride beyond 2^31", &got, wide_slots[i], dense.v.x[wide_slots[i]]);
        }
        device_free(w[i].memory);
    }
    values_free(&got);
    scene_free(&dense);
}

static void strides_beyond_two_to_the_31(void **state)
{
    (void)state;
    need_memory(10 * 2.5 * (double)BEYOND);
    for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
        for (int mechanism = LOAM_SOFTMAX; mechanism <= LOAM_LLA; mechanism++) {
            for (int axis = BATCH_AXIS; axis < AXES; axis++) {
                spec s = scene_spec((loam_mechanism)mechanism, (loam_pass)pass, 1);
                s.heads_q = s.heads_kv;
                s.len_q = s.len_kv = 70;
                s.lens = s.slope = s.key_bias = 0;
                check_strides(&s, axis);
            }
        }
    }
}

/* ---------------------------------------------------------------- that many elements */

/* `sequences` of these, all the same but the last. */
static void *repeat(const guard *one, const guard *last, int64_t sequences)
{
    const size_t each = one->bytes;
    unsigned char *all = room(each * (size_t)sequences);
    CUDA(cudaMemcpy(all, one->data, each, cudaMemcpyHostToDevice));
    for (int64_t have = 1; have < sequences; have *= 2) {
        const int64_t more = have < sequences - have ? have : sequences - have;
        CUDA(cudaMemcpy(all + (size_t)have * each, all, (size_t)more * each, cudaMemcpyDeviceToDevice));
    }
    CUDA(cudaMemcpy(all + (size_t)(sequences - 1) * each, last->data, each, cudaMemcpyHostToDevice));
    return all;
}

static void check_elements(loam_mechanism mechanism)
{
    spec s = spec_default(mechanism, LOAM_FORWARD, 1024, 128, 128);
    s.backend = LOAM_BACKEND_CUDA;
    s.dtype = LOAM_BF16;
    s.heads_q = s.heads_kv = 2;
    s.omit = ~spec_omit(SLOT_O);
    s.ridge = 1;
    scene one, last;
    scene_make(&one, &s);
    s.seed++;
    scene_make(&last, &s);
    scene *const both[] = { &one, &last };
    for (int i = 0; i < 2; i++) {
        scene_launch(both[i], NULL);
        scene_finish(both[i]);
    }
    const int64_t sequences = BEYOND / slot_size(&one.v, SLOT_O) + 2;
    loam_problem problem = values_problem(&one.v);
    problem.batch = sequences;
    loam_plan *plan;
    loam_error error;
    if (loam_plan_create(&plan, &problem, &error)) fail_msg("%s", error.text);
    need_memory((double)loam_plan_work_bytes(plan) + 4.5 * 2 * (double)BEYOND);
    loam_args args = { .work = room(loam_plan_work_bytes(plan)) };
    void *const q = repeat(&one.m.array[SLOT_Q], &last.m.array[SLOT_Q], sequences);
    void *const k = repeat(&one.m.array[SLOT_K], &last.m.array[SLOT_K], sequences);
    void *const v = repeat(&one.m.array[SLOT_V], &last.m.array[SLOT_V], sequences);
    const size_t each = one.m.array[SLOT_O].bytes;
    unsigned char *const o = room(each * (size_t)sequences);
    args.q = loam_dense(q, s.heads_q, s.len_q, s.dim_qk);
    args.k = loam_dense(k, s.heads_kv, s.len_kv, s.dim_qk);
    args.v = loam_dense(v, s.heads_kv, s.len_kv, s.dim_v);
    args.o = loam_dense_out(o, s.heads_q, s.len_q, s.dim_v);
    if (loam_run(plan, &args, &error)) fail_msg("%s", error.text);
    CUDA(cudaDeviceSynchronize());
    unsigned char *got = memory_zeroed(each, 1);
    unsigned char *want = memory_zeroed(each, 1);
    const int64_t places[] = { 0, sequences / 2, sequences - 2, sequences - 1 };
    for (int i = 0; i < 4; i++) {
        const scene *like = places[i] == sequences - 1 ? &last : &one;
        for (int64_t n = 0; n < slot_size(&like->v, SLOT_O); n++)
            element_set(want, LOAM_BF16, n, like->v.x[SLOT_O][n]);
        CUDA(cudaMemcpy(got, o + (size_t)places[i] * each, each, cudaMemcpyDeviceToHost));
        if (memcmp(got, want, each) != 0) {
            fail_msg("%s: sequence %lld of %lld differs from itself alone", loam_plan_name(plan),
                     (long long)places[i], (long long)sequences);
        }
    }
    void *const all[] = { q, k, v, o, args.work };
    for (int i = 0; i < 5; i++)
        device_free(all[i]);
    free(got);
    free(want);
    loam_plan_destroy(plan);
    scene_free(&one);
    scene_free(&last);
}

static void elements_beyond_two_to_the_31(void **state)
{
    (void)state;
    check_elements(LOAM_SOFTMAX);
    check_elements(LOAM_LLA);
}

int main(void)
{
    if (!device_count()) {
        print_message("skipped: no CUDA device\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strides_beyond_two_to_the_31),
        cmocka_unit_test(elements_beyond_two_to_the_31),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
