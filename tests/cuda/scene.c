/* SPDX-License-Identifier: MIT */
#include "tests/cuda/scene.h"

#include "tests/support/kernels.h"

#include <string.h>

enum { NUMBERS = 2, TURNED = NUMBERS };

/* Keys of length 1 where a rule takes back what the state says of them. */
static spec recurrent_scene(loam_mechanism mechanism, loam_pass pass, int number)
{
    spec s = spec_default(mechanism, pass, number ? 200 : 77, number ? 64 : 40, number ? 64 : 24);
    s.backend = LOAM_BACKEND_CUDA;
    s.dtype = number ? LOAM_BF16 : LOAM_F32;
    s.batch = 2;
    s.heads_q = s.heads_kv = 2;
    s.heads_v = 4;
    s.state = 1;
    s.omit = 0;
    s.feature_map = mechanism >= LOAM_DELTA ? LOAM_FEATURES_UNIT : LOAM_FEATURES_IDENTITY;
    s.seed = 5 + number;
    return s;
}

spec scene_spec(loam_mechanism mechanism, loam_pass pass, int number)
{
    if (mechanism >= LOAM_LINEAR) return recurrent_scene(mechanism, pass, number);
    spec s = spec_default(mechanism, pass, number ? 200 : 77, number ? 64 : 40, number ? 64 : 24);
    s.backend = LOAM_BACKEND_CUDA;
    s.dtype = number ? LOAM_BF16 : LOAM_F32;
    s.batch = 2;
    s.heads_q = 4;
    s.heads_kv = 2;
    s.slope = s.key_bias = s.decay = 1;
    s.window = number ? 0 : 50;
    s.lens = number;
    s.ridge_axes = mechanism == LOAM_LLA ? LOAM_RIDGE_TOKEN : LOAM_RIDGE_NUMBER;
    s.seed = 5 + number;
    if (number == TURNED) kernel_take_path(&s);
    return s;
}

static void create(scene *x, const spec *s)
{
    values like = x->v;
    like.spec = *s;
    const loam_problem problem = values_problem(&like);
    loam_error error;
    if (loam_plan_create(&x->plan, &problem, &error)) fail_msg("%s", error.text);
    arrays_work(&x->m, x->plan);
    if (s->pass == LOAM_FORWARD) arrays_saved(&x->m, x->plan);
}

void scene_make(scene *x, const spec *s)
{
    memset(x, 0, sizeof *x);
    x->v = values_make(s);
    arrays_make(&x->m, &x->v);
    if (s->pass == LOAM_BACKWARD && !spec_recurrent(s)) {
        spec forward = *s;
        guard o = guard_make((size_t)slot_size(&x->v, SLOT_O) * 8, 1);
        const shape a = slot_shape(&x->v, SLOT_O);
        guard_to_device(&o, 1);
        forward.pass = LOAM_FORWARD;
        create(x, &forward);
        x->m.args.o = loam_dense_out(guard_address(&o), a.heads, a.tokens, a.channels);
        scene_launch(x, NULL);
        CUDA(cudaDeviceSynchronize());
        x->m.args.o.data = NULL;
        guard_free(&o);
        loam_plan_destroy(x->plan);
    }
    create(x, s);
}

void scene_launch(scene *x, cudaStream_t stream)
{
    loam_error error;
    x->m.args.stream = stream;
    loam_args args = x->m.args;
    loam_args_keep(&args, loam_plan_problem(x->plan)->pass);
    if (loam_run(x->plan, &args, &error)) fail_msg("%s: %s", loam_plan_name(x->plan), error.text);
}

void scene_finish(scene *x)
{
    char misuse[160];
    const char *failed = arrays_settle(&x->m);
    if (failed) fail_msg("%s: %s", loam_plan_name(x->plan), failed);
    arrays_read(&x->m, &x->v);
    if (arrays_misuse(&x->m, misuse, sizeof misuse)) fail_msg("%s: %s", loam_plan_name(x->plan), misuse);
}

void scene_free(scene *x)
{
    loam_plan_destroy(x->plan);
    arrays_free(&x->m);
    values_free(&x->v);
}

void scene_expect_same(const char *what, const values *got, const values *want)
{
    for (int which = SLOT_FIRST_OUTPUT; which < SLOT_COUNT; which++)
        if (got->x[which] && spec_wants(&got->spec, (slot)which))
            expect_same(what, got, (slot)which, want->x[which]);
    if (got->info)
        assert_memory_equal(got->info, want->info, (size_t)slot_size(got, SLOT_INFO) * sizeof *got->info);
}

void scene_for_all(void (*fn)(const spec *s))
{
    for (int pass = LOAM_FORWARD; pass <= LOAM_DECODE; pass++) {
        for (int mechanism = pass == LOAM_DECODE ? LOAM_LINEAR : LOAM_SOFTMAX; mechanism < spec_mechanisms();
             mechanism++) {
            for (int number = 0; number <= (mechanism == LOAM_SOFTMAX ? TURNED : NUMBERS - 1); number++) {
                const spec s = scene_spec((loam_mechanism)mechanism, (loam_pass)pass, number);
                fn(&s);
            }
        }
    }
}
