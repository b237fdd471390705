/* SPDX-License-Identifier: MIT
 * The switches of a model: gradients, counts of parameters, what a switch must leave as it is, and queries
 * that no token sees. */
#include "tests/train/course.h"
#include "tests/train/differences.h"
#include "tests/train/fixture.h"
#include "tests/train/scene.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define USUAL .ridge_least = 0.01, .ridge_most = 1
#define COUNT(rows) (sizeof(rows) / sizeof *(rows))

static const uint64_t seeds[SCENE_MODELS] = { 3, 8, 1, 5 };

/* With regression where it is blind, else with words. */
typedef struct switch_case {
    const char *mixer;
    mixer_options how;
} switch_case;

static const switch_case cases[] = {
    { "softmax", { USUAL, .mlp = true } },
    { "hyena", { USUAL, .mlp = true, .layer_norm = true } },
    { "softmax", { USUAL, .qk_norm = true } },
    { "gated-delta", { USUAL, .qk_norm = true } },
    { "parallax", { USUAL, .qk_norm = true, .probe_gate = true, .positions = POSITIONS_ROPE } },
    { "parallax", { USUAL, .probe_gate = true } },
    { "parallax", { USUAL, .blind = true, .qk_norm = true, .probe_gate = true, .mlp = true } },
    { "gla", { USUAL, .short_filter = true } },
    { "gla", { USUAL, .published_dims = true, .positions = POSITIONS_ROPE } },
    { "gated-delta", { USUAL, .short_filter = true, .published_dims = true, .mlp = true } },
    { "gated-delta-2", { USUAL, .published_dims = true } },
    { "mesa", { USUAL, .short_filter = true, .blind = true } },
    { "delta", { USUAL, .short_filter = true, .no_silu = true } },
    { "kda", { USUAL, .short_filter = true, .qk_norm = true } },
    { "gated-delta", { USUAL, .no_silu = true } },
    { "mamba-2", { USUAL, .short_filter = true } },
    { "mamba-2", { USUAL, .short_filter = true, .no_silu = true, .blind = true } },
    { "hyena", { USUAL, .short_filter = true } },
    { "hyena", { USUAL, .short_filter = true, .blind = true } },
};

static model_shape shape_of(const mixer_options *how, int64_t models, int64_t batch)
{
    return how->blind ? scene_regression(models, batch) : scene_words(models, batch);
}

/* A ridge of heads is one for rows of both kinds, whose gradients no call adds up: it is refused. So
 * are positive features: a key of any value has a weight. */
static bool may_be_blind(const mixer *row) { return row->ridge != MIXER_RIDGE_HEAD && !row->positive; }

/* Every mixer with blind queries, turned where they can be. */
static mixer_options blind_of(const mixer *row)
{
    mixer_options how = scene_options;
    how.blind = true;
    if (row->block == MIXER_PLAIN) how.positions = POSITIONS_ROPE;
    return how;
}

static void test_gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const model_shape shape = shape_of(&cases[i].how, 2, 3);
        differences_check(cases[i].mixer, &cases[i].how, &shape, seeds);
    }
    for (const mixer *row = mixers; row->name; row++) {
        const mixer_options how = blind_of(row);
        if (!may_be_blind(row)) continue;
        const model_shape shape = shape_of(&how, 2, 3);
        differences_check(row->name, &how, &shape, seeds);
    }
}

static void test_float(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const model_shape shape = shape_of(&cases[i].how, 2, 6);
        differences_check_float(cases[i].mixer, &cases[i].how, &shape, seeds);
    }
    for (const mixer *row = mixers; row->name; row++) {
        const mixer_options how = blind_of(row);
        if (!may_be_blind(row)) continue;
        const model_shape shape = shape_of(&how, 2, 6);
        differences_check_float(row->name, &how, &shape, seeds);
    }
}

/* A model beside another, and alone with another number of threads. */
static void check_stack(const char *name, const mixer_options *how, const model_shape *stack)
{
    model_shape single = *stack;
    scene all, alone;
    single.models = 1;
    scene_open_with(&all, how, LOAM_F32, 3, name, stack, seeds, 1);
    scene_pass(&all, true);
    for (int64_t m = 0; m < 2; m++) {
        scene_open_with(&alone, how, LOAM_F32, 1, name, &single, seeds + m, 1);
        scene_pass(&alone, true);
        differences_expect_same(name, &alone, 0, &all, m);
        scene_close(&alone);
    }
    scene_close(&all);
}

static void test_stack(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const model_shape shape = shape_of(&cases[i].how, 2, 4);
        check_stack(cases[i].mixer, &cases[i].how, &shape);
    }
    for (const mixer *row = mixers; row->name; row++) {
        const mixer_options how = blind_of(row);
        const model_shape shape = shape_of(&how, 2, 4);
        if (may_be_blind(row)) check_stack(row->name, &how, &shape);
    }
}

/* Text has a target at every token; with an MLP the last rows are then judged where they lie. */
static void test_text(void **state)
{
    static const mixer_options how[] = { { USUAL, .mlp = true, .layer_norm = true }, { USUAL } };
    const course text = course_text("softmax", 1);
    model_shape shape = scene_words(2, 3);
    (void)state;
    shape.from = text.each[0].from;
    for (size_t i = 0; i < COUNT(how); i++) {
        differences_check("softmax", &how[i], &shape, seeds);
        differences_check_float("softmax", &how[i], &shape, seeds);
        check_stack("softmax", &how[i], &shape);
    }
}

/* Parameters of a layer of full size beyond those of the mixer without switches. */
static int64_t added(const char *name, const mixer_options *how)
{
    const model_shape shape = { .from = { .task = TRAIN_REGRESSION,
                                          .regression = { 64, 8, 32, 32, 16, 0.1 } },
                                .models = 1,
                                .batch = 1,
                                .layers = 1,
                                .width = 128,
                                .heads = 2 };
    int64_t sum = 0;
    for (int with = 0; with < 2; with++) {
        scene s;
        int count;
        scene_open_with(&s, with ? how : &scene_options, LOAM_F32, 1, name, &shape, seeds, 0);
        const parameter *list = model_parameters(s.net, &count);
        for (int n = 0; n < count; n++)
            sum += (with ? 1 : -1) * list[n].x.rows * list[n].x.width;
        scene_close(&s);
    }
    return sum;
}

/* The blocks of GPT-2, GPT-NeoX in a row and in parallel, and Llama, with all attention that language models
 * are trained with. */
static void test_block_gradients(void **state)
{
    static const mixer_options blocks[] = {
        { USUAL, .mlp = true, .layer_norm = true },
        { USUAL, .mlp = true, .layer_norm = true, .positions = POSITIONS_ROPE, .rope_dim = 2,
          .untied = true },
        { USUAL, .mlp = true, .layer_norm = true, .positions = POSITIONS_ROPE, .rope_dim = 2,
          .parallel = true, .untied = true },
        { USUAL, .mlp = true, .mlp_gate = true, .mlp_inner = 40, .positions = POSITIONS_ROPE },
    };
    static const char *const names[] = { "softmax", "lla", "parallax", "fox", "gated-delta" };
    (void)state;
    const model_shape words = scene_words(1, 3);
    for (size_t i = 0; i < COUNT(blocks); i++)
        for (size_t n = 0; n < COUNT(names); n++)
            differences_check(names[n], &blocks[i], &words, seeds);
}

static void copy_arrays(const scene *from, const scene *to);

/* The blocks of pretrained models, with what is put beside or into their attention. Where keys are not turned
 * or normed, a bias of theirs changes nothing. */
static const struct {
    const char *mixer;
    int64_t heads_kv, head_dim;
    mixer_options how;
} pretrained[] = {
    { "softmax",
      2,
      8,
      { USUAL, .mlp = true, .layer_norm = true, .biases = true, .norm_eps = 0.1,
        .positions = POSITIONS_ROPE } },
    { "softmax",
      2,
      12,
      { USUAL, .mlp = true, .layer_norm = true, .biases = true, .activation = MLP_GELU_ERF, .parallel = true,
        .positions = POSITIONS_ROPE, .rope_dim = 4 } },
    { "softmax", 1, 8, { USUAL, .mlp = true, .biases = true, .qk_norm = true } },
    { "softmax",
      1,
      6,
      { USUAL, .mlp = true, .mlp_gate = true, .positions = POSITIONS_ROPE, .rope_base = 20,
        .low = 1 << LOW_Q | 1 << LOW_K | 1 << LOW_V | 1 << LOW_OUT, .rank = 3 } },
    { "parallax",
      1,
      8,
      { USUAL, .mlp = true, .mlp_gate = true, .positions = POSITIONS_ROPE, .low = 1 << LOW_PROBE,
        .rank = 5 } },
    { "softmax", 1, 8, { USUAL, .mlp = true, .positions = POSITIONS_ROPE, .temperature = true } },
    { "lla-heads", 1, 8, { USUAL, .mlp = true, .positions = POSITIONS_ROPE, .ridge_start = 3 } },
    { "lla", 1, 8, { USUAL, .short_filter = true } },
    { "features",
      1,
      8,
      { USUAL, .mlp = true, .mlp_gate = true, .positions = POSITIONS_ROPE, .rope_base = 20,
        .low = 1 << LOW_Q | 1 << LOW_K | 1 << LOW_V | 1 << LOW_OUT, .rank = 3, .features = 5 } },
    { "features",
      1,
      6,
      { USUAL, .mlp = true, .layer_norm = true, .biases = true, .features = 7, .features_shared = true } },
};

static model_shape pretrained_shape(size_t i, int64_t models)
{
    model_shape shape = scene_words(models, 3);
    shape.heads_kv = pretrained[i].heads_kv, shape.head_dim = pretrained[i].head_dim;
    return shape;
}

static void test_pretrained_gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(pretrained); i++) {
        const model_shape shape = pretrained_shape(i, 2);
        differences_check(pretrained[i].mixer, &pretrained[i].how, &shape, seeds);
        differences_check_float(pretrained[i].mixer, &pretrained[i].how, &shape, seeds);
    }
}

/* What moves has the gradients, bit for bit, that it has where all moves; of the rest matrices have none. */
static void test_frozen(void **state)
{
    (void)state;
    static const char *const moving[] = { "layer*.[AB]_[qv]", "layer1.s", "layer?.t",
                                          "layer0.W_q",       "bias",     NULL };
    for (size_t i = 0; i < COUNT(pretrained); i++) {
        model_shape shape = pretrained_shape(i, 1);
        scene whole, part;
        int count, moved = 0;
        scene_open_with(&whole, &pretrained[i].how, LOAM_F32, 2, pretrained[i].mixer, &shape, seeds, 1);
        shape.moving = moving;
        scene_open_with(&part, &pretrained[i].how, LOAM_F32, 2, pretrained[i].mixer, &shape, seeds, 1);
        scene_stir(&whole);
        copy_arrays(&whole, &part);
        scene_pass(&whole, true), scene_pass(&part, true);
        const parameter *all = model_parameters(whole.net, &count),
                        *some = model_parameters(part.net, &count);
        for (int n = 0; n < count; n++) {
            assert_true(some[n].frozen == !some[n].m.data);
            assert_true(!some[n].frozen || some[n].x.rows <= 4 || !some[n].g.data);
            assert_true(all[n].frozen == all[n].fixed);
            if (some[n].frozen) continue;
            moved++;
            assert_memory_equal(all[n].g.data, some[n].g.data,
                                (size_t)matrix_elements(all[n].g) * sizeof(float));
        }
        assert_true(moved >= 1 && moved <= 9);
        scene_close(&whole), scene_close(&part);
    }
}

static void test_counts(void **state)
{
    (void)state;
    static const struct {
        const char *mixer;
        mixer_options how;
        int64_t added;
    } rows[] = {
        { "softmax", { USUAL, .mlp = true }, 8 * 128 * 128 + 128 },
        { "softmax", { USUAL, .mlp = true, .layer_norm = true }, 8 * 128 * 128 + 128 + 2 * 128 },
        { "softmax", { USUAL, .mlp = true, .mlp_gate = true, .mlp_inner = 320 }, 3 * 320 * 128 + 128 },
        { "softmax", { USUAL, .mlp = true, .parallel = true }, 8 * 128 * 128 + 128 },
        { "softmax", { USUAL, .qk_norm = true }, 2 * 64 },
        { "softmax", { USUAL, .temperature = true }, 2 },
        { "softmax", { USUAL, .low = 1 << LOW_Q, .rank = 8 }, 2 * 8 * 128 },
        { "parallax", { USUAL, .low = 1 << LOW_PROBE, .rank = 8 }, 2 * 8 * 128 - 128 * 128 },
        { "parallax", { USUAL, .qk_norm = true }, 3 * 64 },
        { "parallax", { USUAL, .probe_gate = true }, 128 * 2 },
        { "softmax", { USUAL, .probe_gate = true, .short_filter = true, .published_dims = true }, 0 },
        { "gated-delta", { USUAL, .short_filter = true }, 3 * 4 * 128 },
        { "gated-delta", { USUAL, .published_dims = true }, 3 * 128 * 128 + 64 },
        { "gated-delta",
          { USUAL, .published_dims = true, .short_filter = true },
          3 * 128 * 128 + 64 + 4 * (128 + 128 + 256) },
        { "gla", { USUAL, .published_dims = true }, -2 * 128 * 64 - 16 * 64 - 64 },
        { "gla", { USUAL, .short_filter = true }, 3 * 4 * 128 },
        { "mamba-2", { USUAL, .short_filter = true }, 4 * (256 + 64 + 64) },
        { "hyena", { USUAL, .short_filter = true }, 3 * 3 * 128 },
        { "lla", { USUAL, .blind = true }, 0 },
        { "gated-delta", { USUAL, .no_silu = true }, 0 },
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const int64_t got = added(rows[i].mixer, &rows[i].how);
        if (got != rows[i].added)
            fail_msg("case %d, %s: %lld parameters more, expected %lld", (int)i, rows[i].mixer,
                     (long long)got, (long long)rows[i].added);
    }
}

/* ---- what a switch leaves as it is */

static parameter *array_of(const scene *s, const char *name)
{
    int count;
    parameter *list = model_parameters(s->net, &count);
    for (int n = 0; n < count; n++)
        if (strcmp(list[n].name, name) == 0) return &list[n];
    return NULL;
}

static void set_all(const scene *s, const char *name, double x)
{
    const matrix a = array_of(s, name)->x;
    for (int64_t i = 0; i < matrix_elements(a); i++)
        fixture_set(a, i, x);
}

/* The arrays that both have. */
static void copy_arrays(const scene *from, const scene *to)
{
    int count;
    const parameter *list = model_parameters(from->net, &count);
    for (int n = 0; n < count; n++) {
        const parameter *same = array_of(to, list[n].name);
        if (same) to->on.op->copy(&to->on, same->x, list[n].x);
    }
}

typedef void prepare_function(const scene *without, const scene *with);

/* Losses with and without a switch; `prepare` makes them equal. */
static void check_neutral(const char *name, const mixer_options *without, const mixer_options *with,
                          prepare_function *prepare, double tolerance)
{
    const model_shape words = scene_words(1, 6);
    scene a, b;
    scene_open_with(&a, without, LOAM_F64, 1, name, &words, seeds, 1);
    scene_open_with(&b, with, LOAM_F64, 1, name, &words, seeds, 1);
    scene_stir(&a), scene_stir(&b);
    copy_arrays(&a, &b);
    scene_pass(&a, false), scene_pass(&b, false);
    assert_true(fabs(scene_loss(&a, 0) - scene_loss(&b, 0)) > 1e-6);
    prepare(&a, &b);
    scene_pass(&a, false), scene_pass(&b, false);
    if (!(fabs(scene_loss(&a, 0) - scene_loss(&b, 0)) <= tolerance))
        fail_msg("%s: loss %.15g, with the switch %.15g", name, scene_loss(&a, 0), scene_loss(&b, 0));
    scene_close(&a), scene_close(&b);
}

static void empty_mlp(const scene *without, const scene *with)
{
    (void)without;
    set_all(with, "layer0.mlp_2", 0), set_all(with, "layer1.mlp_2", 0);
}

static void test_empty_mlp(void **state)
{
    (void)state;
    const mixer_options with = { USUAL, .mlp = true };
    check_neutral("lla", &scene_options, &with, empty_mlp, 0);
}

/* A gate of one half at x w_g = 0. */
static void halve_probes(const scene *without, const scene *with)
{
    const char *names[] = { "layer0.W_r", "layer1.W_r" };
    set_all(with, "layer0.w_g", 0), set_all(with, "layer1.w_g", 0);
    for (int i = 0; i < 2; i++) {
        const matrix half = array_of(without, names[i])->x, whole = array_of(with, names[i])->x;
        with->on.op->combine(&with->on, half, 0.5, whole, 0, whole);
    }
}

static void test_half_gate(void **state)
{
    (void)state;
    const mixer_options with = { USUAL, .probe_gate = true };
    check_neutral("parallax", &scene_options, &with, halve_probes, 1e-14);
}

/* Filters of 1, 0, 0, ... */
static void open_filters(const scene *without, const scene *with)
{
    static const char *const names[] = { "in", "q", "k", "v" };
    (void)without;
    for (int i = 0; i < 8; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer%d.taps_%s", i / 4, names[i % 4]);
        if (!array_of(with, name)) continue;
        set_all(with, name, 0);
        const matrix taps = array_of(with, name)->x;
        for (int64_t c = 0; c < taps.width; c++)
            fixture_set(taps, c, 1);
    }
}

static void test_open_filter(void **state)
{
    (void)state;
    const mixer_options plain = { USUAL, .no_silu = true };
    mixer_options with = { USUAL, .short_filter = true };
    check_neutral("hyena", &scene_options, &with, open_filters, 0);
    check_neutral("mamba-2", &scene_options, &with, open_filters, 0);
    check_neutral("gated-delta", &scene_options, &with, open_filters, 0);
    with.no_silu = true;
    check_neutral("gla", &plain, &with, open_filters, 0);
}

/* Of normed queries, keys and probes the size of their weights does not matter, but for eps. */
static void test_norm_of_size(void **state)
{
    (void)state;
    static const char *const names[] = { "layer1.W_q", "layer1.W_k", "layer1.W_r" };
    const mixer_options how = { USUAL, .qk_norm = true };
    const model_shape words = scene_words(1, 6);
    for (int i = 0; i < 3; i++) {
        scene s;
        scene_open_with(&s, &how, LOAM_F64, 1, "parallax", &words, seeds, 1);
        scene_stir(&s);
        const matrix w = array_of(&s, names[i])->x;
        s.on.op->combine(&s.on, w, 100, w, 0, w);
        scene_pass(&s, false);
        const double loss = scene_loss(&s, 0);
        s.on.op->combine(&s.on, w, 7, w, 0, w);
        scene_pass(&s, false);
        assert_true(fabs(scene_loss(&s, 0) - loss) < 1e-6);
        scene_close(&s);
    }
}

/* ---- queries that no token sees */

/* Whether a query row that is altered changes other answers. */
static void check_alone(const char *name, const mixer_options *how, int64_t query, bool alone)
{
    enum { BATCH = 3 };
    const model_shape pairs = scene_regression(1, BATCH);
    const regression_shape *shape = &pairs.from.regression;
    const int64_t length = shape->length + shape->queries;
    scene s;
    scene_open_with(&s, how, LOAM_F32, 2, name, &pairs, seeds, 1);
    scene_stir(&s);
    scene_pass(&s, false);
    float before[BATCH * 4];
    const matrix results = model_results(s.net), x = s.data.here.x;
    assert_int_equal(matrix_elements(results), BATCH * 4);
    memcpy(before, results.data, sizeof before);
    /* Of the second sequence. */
    for (int64_t c = 0; c < x.width; c++)
        fixture_set(x, (length + shape->length + query) * x.width + c, 1.5 + (double)c);
    scene_pass(&s, false);
    const float *after = results.data;
    int changed = 0;
    for (int i = 0; i < BATCH * 4; i++)
        if (memcmp(&before[i], &after[i], sizeof *after) != 0 && i != 4 + query) changed++;
    if (before[4 + query] == after[4 + query]) fail_msg("%s: a query has no part in its answer", name);
    if (alone != (changed == 0)) fail_msg("%s: %d other answers change", name, changed);
    scene_close(&s);
}

static void test_blind(void **state)
{
    (void)state;
    for (const mixer *row = mixers; row->name; row++) {
        mixer_options how = scene_options;
        check_alone(row->name, &how, 0, false);
        how.blind = how.short_filter = how.mlp = true;
        for (int64_t query = 0; query < 4 && may_be_blind(row); query++)
            check_alone(row->name, &how, query, true);
    }
}

/* The first query of four is answered as where it is the only one. */
static void test_first_query(void **state)
{
    (void)state;
    const model_shape many = scene_regression(1, 3);
    model_shape one = many;
    one.from.regression.queries = 1;
    for (const mixer *row = mixers; row->name; row++) {
        mixer_options how = scene_options;
        how.blind = true;
        /* Hyena's filter knows the length. */
        if (row->block == MIXER_HYENA || !may_be_blind(row)) continue;
        scene a, b;
        scene_open_with(&a, &how, LOAM_F64, 1, row->name, &many, seeds, 1);
        scene_open_with(&b, &how, LOAM_F64, 1, row->name, &one, seeds, 1);
        scene_pass(&a, false), scene_pass(&b, false);
        for (int64_t i = 0; i < 3; i++) {
            const double got = fixture_get(model_results(a.net), i * 4);
            assert_true(fabs(got - fixture_get(model_results(b.net), i)) < 1e-12 * got);
        }
        scene_close(&a), scene_close(&b);
    }
}

/* W_q, W_k, W_v, W_R, W_z and W_o, of whatever shape; not the arrays of Hyena's filter, where they are
 * square. */
static void test_muon(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool published;
        int taken; /* of a layer */
    } wanted[] = { { "softmax", false, 4 }, { "parallax", false, 5 }, { "hyena", false, 1 },
                   { "gla", false, 5 },     { "gla", true, 5 },       { "gated-delta", true, 5 } };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        mixer_options how = scene_options;
        how.published_dims = wanted[i].published;
        model_shape words = scene_words(1, 1);
        words.width = HYENA_FILTER;
        scene s;
        int count, taken = 0;
        scene_open_with(&s, &how, LOAM_F32, 1, wanted[i].name, &words, seeds, 1);
        const parameter *list = model_parameters(s.net, &count);
        for (int n = 0; n < count; n++)
            taken += list[n].muon;
        assert_int_equal(taken, words.layers * wanted[i].taken);
        scene_close(&s);
    }
}

static void expect_refused(const char *name, const mixer_options *how, const char *text)
{
    const machine on = machine_cpu(LOAM_F32, 1);
    const model_shape words = scene_words(1, 2);
    train_model *net;
    loam_error error;
    assert_int_equal(model_create(&net, &on, mixer_find(name), &words, how, seeds, &error),
                     LOAM_EUNSUPPORTED);
    assert_null(net);
    assert_non_null(strstr(error.text, text));
}

static void test_refused(void **state)
{
    (void)state;
    const mixer_options blind = { USUAL, .blind = true }, normed = { USUAL, .qk_norm = true };
    expect_refused("softmax", &blind, "only regression has query rows");
    expect_refused("mamba-2", &normed, "mamba-2: a block has no queries and keys by heads to norm");
    expect_refused("hyena", &normed, "hyena: a block");
    const mixer_options biased = { USUAL, .mlp = true, .biases = true }, low = { USUAL, .low = 1 << LOW_OUT };
    expect_refused("hyena", &biased, "hyena: a block has no biases");
    expect_refused("softmax", &low, "softmax: A and B of W_o only with an MLP behind");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_float),
        cmocka_unit_test(test_stack),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_block_gradients),
        cmocka_unit_test(test_pretrained_gradients),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_empty_mlp),
        cmocka_unit_test(test_half_gate),
        cmocka_unit_test(test_open_filter),
        cmocka_unit_test(test_norm_of_size),
        cmocka_unit_test(test_blind),
        cmocka_unit_test(test_first_query),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_muon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
