/* SPDX-License-Identifier: MIT
 * What is measured of a layer, against sums over rows and keys from the layer's queries, keys, values, probes
 * and ridges; and stable ranks of matrices whose singular values are known. */
#include "tests/train/fixture.h"
#include "tests/train/scene.h"
#include "train/probe.h"

#include <lapacke.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 2, SIDE = 8, LONGEST = 12, LAYER = 1, MODEL = 1 };

static const uint64_t seeds[SCENE_MODELS] = { 3, 8, 1, 5 };

/* A query of a head. */
typedef struct row {
    const mixer_layer *layer;
    int64_t begin, query, head; /* the row of token 0, of the query */
    int64_t keys;
    double p[LONGEST], kbar[SIDE], vbar[SIDE], rho[SIDE];
} row;

static double at(const row *r, activation which, int64_t token, int64_t c)
{
    const matrix a = r->layer->value[which];
    const int64_t part = a.width / HEADS;
    return fixture_get(a, MODEL * a.model + token * a.row + r->head * part + c);
}

static void fit_softmax(row *r)
{
    double sum = 0;
    for (int64_t j = 0; j < r->keys; j++) {
        double s = 0;
        for (int c = 0; c < SIDE; c++)
            s += at(r, ACTIVE_Q, r->query, c) * at(r, ACTIVE_K, r->begin + j, c) / sqrt(SIDE);
        sum += r->p[j] = exp(s);
    }
    for (int64_t j = 0; j < r->keys; j++) {
        r->p[j] /= sum;
        for (int c = 0; c < SIDE; c++) {
            r->kbar[c] += r->p[j] * at(r, ACTIVE_K, r->begin + j, c);
            r->vbar[c] += r->p[j] * at(r, ACTIVE_V, r->begin + j, c);
        }
    }
}

/* (Cov + ridge) rho = kbar - q. */
static void solve(row *r)
{
    double cov[SIDE][SIDE] = { { 0 } };
    for (int a = 0; a < SIDE; a++) {
        for (int64_t j = 0; j < r->keys; j++)
            for (int b = 0; b < SIDE; b++)
                cov[a][b] += r->p[j] * (at(r, ACTIVE_K, r->begin + j, a) - r->kbar[a]) *
                             (at(r, ACTIVE_K, r->begin + j, b) - r->kbar[b]);
        cov[a][a] += at(r, ACTIVE_RIDGE, r->query, 0);
        r->rho[a] = r->kbar[a] - at(r, ACTIVE_Q, r->query, a);
    }
    assert_int_equal(LAPACKE_dposv(LAPACK_ROW_MAJOR, 'U', SIDE, 1, &cov[0][0], SIDE, r->rho, 1), 0);
}

typedef struct sums {
    double correction, mean, squares, negative, seen, entropy, first, rows;
} sums;

static void add_row(row *r, loam_mechanism mechanism, sums *to)
{
    double miss = 0, mean = 0;
    fit_softmax(r);
    if (mechanism == LOAM_LLA) solve(r);
    for (int c = 0; c < SIDE; c++) {
        if (mechanism == LOAM_PARALLAX) r->rho[c] = at(r, ACTIVE_PROBE, r->query, c);
        miss += pow(at(r, ACTIVE_O, r->query, c) - r->vbar[c], 2);
        mean += pow(r->vbar[c], 2);
        to->squares += pow(r->rho[c], 2);
    }
    to->correction += sqrt(miss), to->mean += sqrt(mean);
    for (int64_t j = 0; j < r->keys; j++) {
        double u = 0;
        for (int c = 0; c < SIDE; c++)
            u += r->rho[c] * (at(r, ACTIVE_K, r->begin + j, c) - r->kbar[c]);
        to->negative += r->p[j] * (1 - u) < 0;
        to->entropy -= r->p[j] * log(r->p[j]);
    }
    to->seen += (double)r->keys, to->first += r->p[0], to->rows++;
}

static void expect(const char *name, const char *what, double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * fmax(1, fabs(want))))
        fail_msg("%s: %s %.12g, expected %.12g", name, what, got, want);
}

/* Weights large enough that the probe matters. */
static void open_stirred(scene *s, const char *name, const mixer_options *how, const model_shape *shape)
{
    scene_open_with(s, how, LOAM_F64, 2, name, shape, seeds, 1);
    scene_stir(s);
    scene_pass(s, false);
}

static void check_rows(const char *name, const mixer_options *how)
{
    const model_shape shape = how->blind ? scene_regression(2, 3) : scene_words(2, 3);
    const int64_t length = source_length(&shape.from), context = shape.from.regression.length;
    const loam_mechanism mechanism = mixer_find(name)->mechanism;
    scene s;
    sums all = { 0 };
    probe_rows got;
    loam_error error;
    open_stirred(&s, name, how, &shape);
    for (int64_t i = 0; i < shape.batch * length * HEADS; i++) {
        const int64_t token = i / HEADS % length, query = i / HEADS;
        row r = { .layer = model_layer(s.net, LAYER), .begin = query - token, .query = query };
        r.head = i % HEADS;
        r.keys = how->blind && token >= context ? context : token + 1;
        add_row(&r, mechanism, &all);
    }
    if (probe_measure(s.net, MODEL, LAYER, &got, &error)) fail_msg("%s", error.text);
    expect(name, "correction", got.correction, all.correction / all.mean);
    expect(name, "probe", got.probe, sqrt(all.squares / all.rows / SIDE));
    expect(name, "negative", got.negative, all.negative / all.seen);
    expect(name, "entropy", got.entropy, all.entropy / all.rows);
    expect(name, "first", got.first, all.first / all.rows);
    if (mechanism == LOAM_SOFTMAX)
        assert_true(got.probe == 0 && got.negative == 0);
    else
        assert_true(got.probe > 0.1 && got.correction > 0.01);
    scene_close(&s);
}

static void test_rows(void **state)
{
    (void)state;
    mixer_options how = scene_options;
    check_rows("softmax", &how);
    check_rows("parallax", &how);
    check_rows("lla", &how);
    how.blind = true;
    check_rows("softmax", &how);
    check_rows("lla", &how);
    how.probe_gate = true;
    how.qk_norm = true;
    how.positions = POSITIONS_ROPE;
    check_rows("parallax", &how);
}

/* Some weights are below 0. */
static void test_negative(void **state)
{
    (void)state;
    const model_shape words = scene_words(2, 3);
    scene s;
    probe_rows rows;
    open_stirred(&s, "parallax", &scene_options, &words);
    assert_int_equal(probe_measure(s.net, MODEL, LAYER, &rows, NULL), LOAM_OK);
    assert_true(rows.negative > 0.01 && rows.negative < 0.5);
    assert_true(isnan(rows.gate));
    scene_close(&s);
}

static void test_gate(void **state)
{
    (void)state;
    const model_shape words = scene_words(2, 3);
    mixer_options how = scene_options;
    how.probe_gate = true;
    scene s;
    probe_rows rows;
    open_stirred(&s, "parallax", &how, &words);
    const matrix gate = model_layer(s.net, LAYER)->value[ACTIVE_PROBE_GATE];
    double sum = 0;
    for (int64_t i = 0; i < gate.model; i++)
        sum += fixture_get(gate, MODEL * gate.model + i);
    assert_int_equal(probe_measure(s.net, MODEL, LAYER, &rows, NULL), LOAM_OK);
    assert_true(fabs(rows.gate - sum / (double)gate.model) < 1e-12);
    scene_close(&s);
}

/* Of model 1 each of the eight lines of a head has one number: 1, but for a 2 in head 1. */
static void set_lines(matrix w, bool by_rows)
{
    memset(w.data, 0, (size_t)matrix_elements(w) * sizeof(double));
    for (int64_t i = 0; i < HEADS * SIDE; i++) {
        const int64_t across = (i + 3) % SIDE;
        fixture_set(w, MODEL * w.model + (by_rows ? i * w.row + across : across * w.row + i),
                    i == SIDE + 5 ? 2 : 1);
    }
}

static void test_ranks(void **state)
{
    (void)state;
    static const role which[] = { ROLE_Q, ROLE_K, ROLE_PROBE, ROLE_OUT };
    const model_shape words = scene_words(2, 1);
    scene s;
    double ranks[HEADS];
    open_stirred(&s, "parallax", &scene_options, &words);
    for (int i = 0; i < 4; i++) {
        set_lines(model_layer(s.net, LAYER)->array[which[i]]->x, which[i] == ROLE_OUT);
        assert_int_equal(probe_stable_ranks(s.net, MODEL, LAYER, which[i], ranks, NULL), LOAM_OK);
        assert_true(fabs(ranks[0] - 8) < 1e-12);
        assert_true(fabs(ranks[1] - (4 + 7) / 4.0) < 1e-12);
        assert_int_equal(probe_stable_ranks(s.net, 0, LAYER, which[i], ranks, NULL), LOAM_OK);
        assert_true(ranks[0] == 0 && ranks[1] == 0);
    }
    assert_int_equal(probe_stable_ranks(s.net, 0, LAYER, ROLE_GATE, ranks, NULL), LOAM_OK);
    assert_true(isnan(ranks[0]) && isnan(ranks[1]));
    scene_close(&s);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const names[] = { "fox", "path", "gla", "hyena" };
    const model_shape words = scene_words(2, 1);
    for (int i = 0; i < 4; i++) {
        scene s;
        probe_rows rows;
        loam_error error;
        open_stirred(&s, names[i], &scene_options, &words);
        assert_int_equal(probe_measure(s.net, 0, 0, &rows, &error), LOAM_EUNSUPPORTED);
        assert_non_null(strstr(error.text, "softmax, Parallax and LLA"));
        scene_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),  cmocka_unit_test(test_negative), cmocka_unit_test(test_gate),
        cmocka_unit_test(test_ranks), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
