/* SPDX-License-Identifier: MIT
 * Whole models on a GPU: losses and gradients beside the CPU's, steps of training, stacks and recordings. */
#include "tests/support/memory.h"
#include "tests/train/course.h"
#include "tests/train/fixture.h"
#include "train/model.h"
#include "train/optimiser.h"
#include "train/probe.h"

#include "cli/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SKIPPED = 77, MODELS = 3, STEPS = 10 };

static const uint64_t seeds[MODELS] = { 3, 8, 1 };
static const mixer_options usual = { .ridge_least = 0.01, .ridge_most = 1 };

static int misses;

static void miss(const char *what, const char *name, const char *array, double off, double bound)
{
    misses++;
    printf("MISS %-24s %-14s %-16s off by %.3g, bound %.3g\n", what, name, array, off, bound);
}

/* ---- a model with its data and its optimiser */

typedef struct rig {
    machine on;
    model_shape shape;
    train_model *net;
    train_batch data;
    optimiser o;
    parameter *list;
    int count;
    const char *name;
} rig;

static model_shape words_shape(int64_t models, int64_t batch, int64_t length, int64_t words)
{
    return (model_shape){ .from = { .task = TRAIN_RECALL,
                                    .recall = { .length = length, .words = words, .fill = true },
                                    .part = { { length / 8, { 40, 3 } }, { length / 4, { 1 << 20, 3 } } } },
                          .models = models,
                          .batch = batch,
                          .layers = 2,
                          .width = 128,
                          .heads = 2 };
}

static model_shape pairs_shape(int64_t models, int64_t batch)
{
    return (model_shape){
        .from = { .task = TRAIN_REGRESSION, .regression = { 32, 16, 16, 16, 8, 0.1 } },
        .models = models,
        .batch = batch,
        .layers = 2,
        .width = 128,
        .heads = 2,
    };
}

/* Windows of a text, in which every token has a target. */
static model_shape text_shape_of(int64_t models, int64_t width)
{
    return (model_shape){ .from = course_text("softmax", 1).each[0].from,
                          .models = models,
                          .batch = 40,
                          .layers = 2,
                          .width = width,
                          .heads = width / 64 };
}

/* dtype LOAM_F64: float32 on the CPU, the measure. */
static bool rig_open(rig *r, loam_dtype dtype, const char *name, const model_shape *shape,
                     const mixer_options *options, const uint64_t *from)
{
    static const double peak[MODELS] = { 3e-3, 3e-3, 3e-3 };
    const optimiser_options how = { .warm = 4, .steps = 100, .decay = 0.1, .clip = 1 };
    loam_error error = { LOAM_OK, "" };
    *r = (rig){ .shape = *shape, .name = name };
    if (dtype == LOAM_F64)
        r->on = machine_cpu(LOAM_F32, 0);
    else if (machine_cuda(&r->on, dtype, &error))
        fail_msg("%s", error.text);
    if (model_create(&r->net, &r->on, mixer_find(name), shape, options, from, &error)) {
        misses++;
        printf("MISS %s: %s\n", name, error.text);
        machine_close(&r->on);
        return false;
    }
    r->list = model_parameters(r->net, &r->count);
    assert_true(batch_open(&r->data, &r->on, &shape->from, shape->models, shape->batch));
    assert_true(optimiser_open(&r->o, &r->on, r->list, r->count, &how, peak, NULL));
    return true;
}

static void rig_close(rig *r)
{
    optimiser_close(&r->o);
    batch_close(&r->data);
    model_destroy(r->net);
    machine_close(&r->on);
}

static void rig_fill(rig *r, const uint64_t *from, int step)
{
    int32_t *examples = memory_zeroed((size_t)r->shape.batch, sizeof *examples);
    for (int64_t i = 0; i < r->shape.batch; i++)
        examples[i] = (int32_t)(step * r->shape.batch + i);
    for (int64_t m = 0; m < r->shape.models; m++)
        batch_fill(&r->data, m, &r->data.from, from[m], TRAIN_SPLIT_TRAIN, examples);
    batch_send(&r->data);
    free(examples);
}

static void rig_pass(rig *r)
{
    loam_error error;
    if (!model_gradients(r->net, &r->data, &error)) return;
    misses++;
    printf("MISS %s: %s\n", r->name, error.text);
}

static void rig_step(rig *r, const uint64_t *from, int step)
{
    rig_fill(r, from, step);
    rig_pass(r);
    optimiser_step(&r->o);
}

/* A dense array of float32, in host memory. */
static matrix fetched(const rig *r, matrix a)
{
    loam_error error;
    matrix here = fixture_matrix(&(machine){ .dtype = LOAM_F32 }, a.models, a.rows, a.width);
    if (machine_download(&r->on, here.data, a.data, (size_t)matrix_elements(a) * sizeof(float), &error)) {
        misses++;
        printf("MISS %s: %s\n", r->name, error.text);
    }
    return here;
}

static double rig_loss(const rig *r, int64_t model)
{
    matrix each = fetched(r, model_results(r->net));
    const bool words = source_words(&r->shape.from) > 0;
    double sum = 0;
    for (int64_t i = 0; i < each.rows; i++)
        sum += fixture_get(each, (model * each.rows + i) * each.width);
    free(each.data);
    return sum / (double)(words ? r->data.here.counts[model] : each.rows);
}

/* What starts constant or small gets normal numbers added, on the CPU; the GPU takes its weights. */
static void stir(rig *cpu, const rig *gpu, double deviation)
{
    for (int n = 0; n < cpu->count; n++) {
        const matrix x = cpu->list[n].x;
        matrix noise = fixture_matrix(&cpu->on, x.models, x.rows, x.width);
        fixture_fill(noise, 100 + (uint64_t)n);
        cpu->on.op->combine(&cpu->on, x, 1, x, deviation, noise);
        free(noise.data);
        machine_upload(&gpu->on, gpu->list[n].x.data, x.data, (size_t)matrix_elements(x) * sizeof(float));
    }
}

/* ---- gradients */

static void check_gradients(const char *what, const rig *gpu, const rig *cpu, double loss, double gradient)
{
    double worst = 0;
    for (int64_t m = 0; m < gpu->shape.models; m++) {
        const double want = rig_loss(cpu, m), got = rig_loss(gpu, m);
        if (!(fabs(got - want) <= loss * fabs(want))) miss(what, gpu->name, "loss", got / want - 1, loss);
    }
    for (int n = 0; n < gpu->count; n++) {
        if (gpu->list[n].fixed) continue;
        matrix got = fetched(gpu, gpu->list[n].g);
        const double off = fixture_distance(got, cpu->list[n].g);
        if (!(off <= gradient)) miss(what, gpu->name, gpu->list[n].name, off, gradient);
        if (!(off <= worst)) worst = off;
        free(got.data);
    }
    printf("%-24s %-14s loss %.6f, worst gradient off by %.2g\n", what, gpu->name, rig_loss(gpu, 0), worst);
}

/* Without unit queries and keys, the output of a first token is a number, q . k, times its value, and the
 * norm of heads takes the number out again: its gradient is 0 but for the norm's eps, and where q . k is near
 * 0 it is large, and turns with the last bits of q and k. A float64 model of pairs_shape in which q, k and v
 * alone are rounded to bfloat16 has gradients of the first layer's W_q and W_k that are off by 0.80 (linear),
 * 0.50 (GLA) and 0.45 (retention); with those of first tokens left as they are, by 0.005, 0.002 and 0.007.
 * With all operands rounded, linear is off by 1.03. */
static bool cancels(const mixer *row) { return row->head_norm && !row->unit && row->block == MIXER_PLAIN; }

/* Of gradients, relative to the norm of each array. Where there is a norm of heads a float64 model with
 * operands rounded to bfloat16 is off by up to 0.046 (Mesa), 0.033 (linear, words), 0.021 (gated delta to 2).
 * Positive features are exponentials of what was rounded. */
static double bound_of(loam_dtype operand, const mixer *row, const model_shape *shape)
{
    if (operand == LOAM_F32) return 1e-3;
    if (cancels(row) && source_words(&shape->from) == 0) return INFINITY;
    return row->mechanism == LOAM_LLA || row->head_norm || row->positive ? 0.1 : 0.03;
}

static void gradients(const char *what, loam_dtype dtype, const char *name, const model_shape *shape,
                      const mixer_options *options)
{
    const bool narrow = dtype == LOAM_BF16;
    rig cpu, gpu;
    if (!rig_open(&cpu, LOAM_F64, name, shape, options, seeds)) return;
    if (rig_open(&gpu, dtype, name, shape, options, seeds)) {
        stir(&cpu, &gpu, 0.03);
        rig_fill(&cpu, seeds, 0), rig_fill(&gpu, seeds, 0);
        rig_pass(&cpu), rig_pass(&gpu);
        check_gradients(what, &gpu, &cpu, narrow ? 1e-2 : 1e-5,
                        bound_of(gpu.on.operand, mixer_find(name), shape));
        rig_close(&gpu);
    }
    rig_close(&cpu);
}

/* Of each query head, shared, and in one layer of two. */
static void featured_gradients(const char *what, loam_dtype dtype, model_shape shape, mixer_options how)
{
    static const int16_t first[] = { 48, 0 }, other[] = { 16, 96 };
    how.features = 32;
    gradients(what, dtype, "features", &shape, &how);
    shape.features = first;
    gradients(what, dtype, "features", &shape, &how);
    shape.features = other, how.features_shared = true;
    gradients(what, dtype, "features", &shape, &how);
}

/* What pretrained models have, and what is put beside their attention; key heads for two query heads. */
static void grafted_gradients(loam_dtype dtype)
{
    model_shape shape = words_shape(2, 6, 24, 64);
    mixer_options how = usual;
    const char *const what = dtype == LOAM_BF16 ? "grafted bf16" : "grafted f32";
    shape.heads_kv = 1;
    how.mlp = how.mlp_gate = true, how.mlp_inner = 320;
    how.positions = POSITIONS_ROPE, how.rope_base = 1e5;
    how.low = 1 << LOW_Q | 1 << LOW_V | 1 << LOW_OUT, how.rank = 8;
    gradients(what, dtype, "softmax", &shape, &how);
    how.low = 1 << LOW_PROBE;
    gradients(what, dtype, "parallax", &shape, &how);
    how.low = 1 << LOW_Q | 1 << LOW_OUT;
    featured_gradients(what, dtype, shape, how);
    how.low = 0, how.temperature = true;
    gradients(what, dtype, "softmax", &shape, &how);
    gradients(what, dtype, "lla-heads", &shape, &how);
    shape.heads_kv = 0, shape.head_dim = 32;
    how.mlp_gate = how.temperature = false, how.layer_norm = how.biases = true, how.activation = MLP_GELU_ERF;
    /* What a bias of keys does is almost nothing, and less than bfloat16 shows. */
    if (dtype == LOAM_F32) gradients(what, dtype, "softmax", &shape, &how);
}

/* A model of softmax on the rig's own machine, whose weights other rigs' teachers have too. */
static train_model *teacher_of(rig *r, const mixer_options *how)
{
    static const uint64_t others[MODELS] = { 11, 12, 13 };
    train_model *teacher;
    loam_error error;
    if (model_create(&teacher, &r->on, mixer_find("softmax"), &r->shape, how, others, &error) ||
        model_teach(r->net, teacher, 0.5, &error))
        fail_msg("%s", error.text);
    return teacher;
}

static void taught_gradients(loam_dtype dtype, const model_shape *shape, const mixer_options *how)
{
    const bool narrow = dtype == LOAM_BF16;
    mixer_options own = *how;
    rig cpu, gpu;
    own.features = 32;
    if (!rig_open(&cpu, LOAM_F64, "features", shape, &own, seeds)) return;
    if (rig_open(&gpu, dtype, "features", shape, &own, seeds)) {
        train_model *here = teacher_of(&cpu, how), *there = teacher_of(&gpu, how);
        stir(&cpu, &gpu, 0.03);
        rig_fill(&cpu, seeds, 0), rig_fill(&gpu, seeds, 0);
        rig_pass(&cpu), rig_pass(&gpu);
        check_gradients(narrow ? "taught bf16" : "taught f32", &gpu, &cpu, narrow ? 1e-2 : 1e-5,
                        bound_of(dtype, mixer_find("features"), shape));
        matrix got = fetched(&gpu, model_divergence(gpu.net));
        const double off = fixture_distance(got, model_divergence(cpu.net)), bound = narrow ? 0.05 : 1e-3;
        if (!(off <= bound)) miss("taught", "features", "divergence", off, bound);
        free(got.data);
        model_destroy(here), model_destroy(there);
        rig_close(&gpu);
    }
    rig_close(&cpu);
}

static void all_gradients(loam_dtype dtype)
{
    const model_shape words = words_shape(2, 6, 24, 64), pairs = pairs_shape(2, 3),
                      long_words = words_shape(1, 32, 64, 512);
    const model_shape text = text_shape_of(2, 128), wide = text_shape_of(1, 512);
    mixer_options other = usual, neox = usual, llama = usual, gpt = usual;
    gpt.mlp = gpt.layer_norm = true;
    other.layer_norm = true, other.positions = POSITIONS_ROPE;
    neox.mlp = neox.parallel = neox.untied = neox.layer_norm = true;
    neox.positions = POSITIONS_ROPE, neox.rope_dim = 16;
    llama.mlp = llama.mlp_gate = true;
    llama.positions = POSITIONS_ROPE, llama.mlp_inner = 320;
    misses = 0;
    for (int i = 0; i < 5; i++) {
        static const char *const names[] = { "softmax", "lla", "parallax", "fox", "gated-delta" };
        gradients(dtype == LOAM_BF16 ? "neox bf16" : "neox f32", dtype, names[i], &words, &neox);
        gradients(dtype == LOAM_BF16 ? "llama bf16" : "llama f32", dtype, names[i], &words, &llama);
    }
    for (const mixer *row = mixers; row->name; row++) {
        gradients(dtype == LOAM_BF16 ? "words bf16" : "words f32", dtype, row->name, &words, &usual);
        gradients(dtype == LOAM_BF16 ? "pairs bf16" : "pairs f32", dtype, row->name, &pairs, &usual);
        if (row->block != MIXER_PLAIN) continue;
        gradients(dtype == LOAM_BF16 ? "rope bf16" : "rope f32", dtype, row->name, &words, &other);
    }
    gradients(dtype == LOAM_BF16 ? "text bf16" : "text f32", dtype, "softmax", &text, &gpt);
    gradients(dtype == LOAM_BF16 ? "wide bf16" : "wide f32", dtype, "softmax", &wide, &gpt);
    gradients(dtype == LOAM_BF16 ? "long bf16" : "long f32", dtype, "softmax", &long_words, &usual);
    grafted_gradients(dtype);
    taught_gradients(dtype, &text, &gpt);
    assert_int_equal(misses, 0);
}

static void test_float(void **state)
{
    (void)state;
    all_gradients(LOAM_F32);
}

static void test_narrow(void **state)
{
    (void)state;
    all_gradients(LOAM_BF16);
}

/* ---- steps */

static void check_steps(loam_dtype dtype, const char *name, double bound)
{
    const model_shape shape = words_shape(2, 16, 24, 64);
    double worst = 0, first = 0, last = 0;
    rig cpu, gpu;
    if (!rig_open(&cpu, LOAM_F64, name, &shape, &usual, seeds)) return;
    if (rig_open(&gpu, dtype, name, &shape, &usual, seeds)) {
        for (int step = 0; step < STEPS; step++) {
            rig_step(&cpu, seeds, step), rig_step(&gpu, seeds, step);
            for (int64_t m = 0; m < shape.models; m++) {
                const double off = fabs(rig_loss(&gpu, m) / rig_loss(&cpu, m) - 1);
                if (!(off <= worst)) worst = off;
            }
            last = rig_loss(&gpu, 0);
            if (step == 0) first = last;
        }
        printf("%d steps %s %-14s loss %.5f to %.5f, off by %.2g\n", STEPS, loam_dtype_name(dtype), name,
               first, last, worst);
        if (!(worst <= bound)) miss("steps", name, "loss", worst, bound);
        rig_close(&gpu);
    }
    rig_close(&cpu);
}

static void test_steps(void **state)
{
    (void)state;
    misses = 0;
    for (const mixer *row = mixers; row->name; row++) {
        check_steps(LOAM_F32, row->name, cancels(row) ? 1e-2 : 1e-3);
        check_steps(LOAM_BF16, row->name, 0.02);
    }
    assert_int_equal(misses, 0);
}

/* ---- stacks: each model has the bits that it has alone */

static void expect_same(const char *what, const rig *all, int64_t m, const rig *alone)
{
    for (int n = 0; n < all->count; n++) {
        matrix a = fetched(all, all->list[n].x), b = fetched(alone, alone->list[n].x);
        const float *x = (const float *)a.data + m * a.model, *y = b.data;
        int64_t first = 0;
        while (first < b.model && memcmp(&x[first], &y[first], sizeof *x) == 0)
            first++;
        if (first < b.model) {
            misses++;
            printf("MISS %s %s %s, %s: model %d has other bits from element %d of %d on, %.9g and %.9g\n",
                   what, loam_dtype_name(all->on.operand), all->name, all->list[n].name, (int)m, (int)first,
                   (int)b.model, (double)x[first], (double)y[first]);
        }
        free(a.data), free(b.data);
    }
}

static void check_stack(loam_dtype dtype, const char *name, const model_shape *shape)
{
    model_shape single = *shape;
    rig all, alone;
    single.models = 1;
    if (!rig_open(&all, dtype, name, shape, &usual, seeds)) return;
    for (int step = 0; step < 3; step++)
        rig_step(&all, seeds, step);
    for (int64_t m = 0; m < shape->models; m++) {
        if (!rig_open(&alone, dtype, name, &single, &usual, seeds + m)) continue;
        for (int step = 0; step < 3; step++)
            rig_step(&alone, seeds + m, step);
        expect_same("stack", &all, m, &alone);
        rig_close(&alone);
    }
    rig_close(&all);
}

static void test_stack(void **state)
{
    const model_shape words = words_shape(MODELS, 10, 24, 64), many = words_shape(MODELS, 64, 64, 512),
                      pairs = pairs_shape(MODELS, 6);
    (void)state;
    misses = 0;
    for (int dtype = LOAM_F32; dtype <= LOAM_BF16; dtype++) {
        for (const mixer *row = mixers; row->name; row++)
            check_stack((loam_dtype)dtype, row->name, &words);
        check_stack((loam_dtype)dtype, "softmax", &many);
        check_stack((loam_dtype)dtype, "lla", &many);
        check_stack((loam_dtype)dtype, "softmax", &pairs);
    }
    printf("stacks: %d misses\n", misses);
    assert_int_equal(misses, 0);
}

/* ---- a step that is recorded gives the bits of one that is not */

static void check_recording(loam_dtype dtype, const char *name)
{
    const model_shape shape = words_shape(2, 16, 24, 64);
    machine_recording *step = NULL;
    loam_error error;
    rig plain, recorded;
    if (!rig_open(&plain, dtype, name, &shape, &usual, seeds)) return;
    if (!rig_open(&recorded, dtype, name, &shape, &usual, seeds)) return;
    for (int n = 0; n < 4; n++)
        rig_step(&plain, seeds, n);
    rig_step(&recorded, seeds, 0);
    machine_record_begin(&recorded.on);
    rig_pass(&recorded);
    optimiser_step(&recorded.o);
    if (machine_record_end(&recorded.on, &step, &error)) {
        misses++;
        printf("MISS recording %s: %s\n", name, error.text);
    }
    for (int n = 1; n < 4 && step; n++) {
        rig_fill(&recorded, seeds, n);
        machine_replay(&recorded.on, step);
    }
    for (int64_t m = 0; m < shape.models && step; m++) {
        rig one = plain;
        one.list = memory_zeroed((size_t)plain.count, sizeof *one.list);
        for (int n = 0; n < plain.count; n++) {
            one.list[n] = plain.list[n];
            one.list[n].x = matrix_dense((float *)plain.list[n].x.data + m * plain.list[n].x.model, LOAM_F32,
                                         1, plain.list[n].x.rows, plain.list[n].x.width);
        }
        expect_same("recording", &recorded, m, &one);
        free(one.list);
    }
    machine_forget(step);
    rig_close(&recorded);
    rig_close(&plain);
}

static void test_recording(void **state)
{
    (void)state;
    misses = 0;
    for (const mixer *row = mixers; row->name; row++) {
        check_recording(LOAM_F32, row->name);
        check_recording(LOAM_BF16, row->name);
    }
    printf("recordings: %d misses\n", misses);
    assert_int_equal(misses, 0);
}

/* ---- what is measured of a probe is what the CPU measures */

static void expect_near(const char *name, const char *what, double got, double want, double bound)
{
    const double off = fabs(got - want) / fmax(fabs(want), 1e-3);
    if (!(off <= bound) && !(isnan(got) && isnan(want))) miss("probe", name, what, off, bound);
}

static void compare_probes(const rig *r, const rig *host, int64_t model, int64_t layer, double bound)
{
    static const role roles[] = { ROLE_Q, ROLE_PROBE, ROLE_OUT };
    probe_rows got, want;
    double rank[2], other[2];
    loam_error error;
    if (probe_measure(r->net, model, layer, &got, &error)) fail_msg("%s", error.text);
    if (probe_measure(host->net, model, layer, &want, &error)) fail_msg("%s", error.text);
    expect_near(r->name, "correction", got.correction, want.correction, bound);
    expect_near(r->name, "probe", got.probe, want.probe, bound);
    expect_near(r->name, "negative", got.negative, want.negative, bound);
    expect_near(r->name, "entropy", got.entropy, want.entropy, bound);
    expect_near(r->name, "first", got.first, want.first, bound);
    expect_near(r->name, "gate", got.gate, want.gate, bound);
    for (int i = 0; i < 3; i++) {
        if (probe_stable_ranks(r->net, model, layer, roles[i], rank, &error)) fail_msg("%s", error.text);
        assert_int_equal(probe_stable_ranks(host->net, model, layer, roles[i], other, &error), LOAM_OK);
        expect_near(r->name, "rank of head 1", rank[0], other[0], 1e-6);
        expect_near(r->name, "rank of head 2", rank[1], other[1], 1e-6);
    }
}

static void check_probe(loam_dtype dtype, const char *name, const mixer_options *how,
                        const model_shape *shape, double bound)
{
    rig r, host;
    if (!rig_open(&r, dtype, name, shape, how, seeds)) return;
    if (!rig_open(&host, LOAM_F64, name, shape, how, seeds)) return;
    rig_fill(&r, seeds, 0), rig_fill(&host, seeds, 0);
    rig_pass(&r), rig_pass(&host);
    for (int64_t m = 0; m < shape->models; m++)
        for (int64_t layer = 0; layer < shape->layers; layer++)
            compare_probes(&r, &host, m, layer, bound);
    rig_close(&r);
    rig_close(&host);
}

static void test_probe(void **state)
{
    static const char *const names[] = { "softmax", "parallax", "lla" };
    const model_shape words = words_shape(2, 10, 24, 64), pairs = pairs_shape(2, 6);
    mixer_options gated = usual, blind = usual;
    gated.probe_gate = gated.qk_norm = true;
    blind.blind = true;
    (void)state;
    misses = 0;
    for (int i = 0; i < 3; i++) {
        check_probe(LOAM_F32, names[i], &usual, &words, 1e-3);
        check_probe(LOAM_F32, names[i], &blind, &pairs, 1e-3);
        check_probe(LOAM_BF16, names[i], &usual, &pairs, 0.1);
    }
    check_probe(LOAM_F32, "parallax", &gated, &words, 1e-3);
    check_probe(LOAM_BF16, "parallax", &gated, &words, 0.1);
    printf("probes: %d misses\n", misses);
    assert_int_equal(misses, 0);
}

/* Of all its tests, or of those that the argument, a pattern, names. */
int main(int argc, char **argv)
{
    if (!device_count()) {
        print_message("skipped: no CUDA device\n");
        return SKIPPED;
    }
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float), cmocka_unit_test(test_narrow),    cmocka_unit_test(test_steps),
        cmocka_unit_test(test_stack), cmocka_unit_test(test_recording), cmocka_unit_test(test_probe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
