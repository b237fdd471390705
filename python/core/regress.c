/* SPDX-License-Identifier: MIT
 * loam_attn.Regressor: a model of `loam regress` in a capsule, and its fits at points. The arrays are
 * Regressor's own, dense and of float64. */
#include "python/core/core.h"
#include "regress/model.h"

#include <stdlib.h>

static const char CAPSULE[] = "loam.regress";

typedef struct fitted {
    regress_settings set;
    regress_model model;
    regress_estimator estimator;
} fitted;

static void free_fitted(fitted *f)
{
    regress_model_free(&f->model);
    free(f);
}

static void free_capsule(PyObject *capsule) { free_fitted(PyCapsule_GetPointer(capsule, CAPSULE)); }

static PyObject *raise_io(const io_error *error)
{
    PyErr_SetString(error->exit_status == EXIT_INTERNAL ? PyExc_MemoryError : PyExc_ValueError, error->text);
    return NULL;
}

static int threads_of(PyObject *module)
{
    const int threads = ((module_state *)PyModule_GetState(module))->threads;
    return threads ? threads : loam_max_threads();
}

/* Whether a buffer, which may be absent, holds so many numbers. */
static bool holds(const Py_buffer *buffer, Py_ssize_t rows, Py_ssize_t columns)
{
    const Py_ssize_t cell = (Py_ssize_t)sizeof(double);
    if (!buffer->buf || (buffer->len % (cell * columns) == 0 && buffer->len / (cell * columns) == rows))
        return true;
    PyErr_Format(PyExc_ValueError, "buffer: %zd bytes, expected %zd x %zd numbers", buffer->len, columns,
                 rows);
    return false;
}

static bool read_names(PyObject *tuple, int count, const char **names)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "names: %R, expected a tuple of %d", tuple, count);
        return false;
    }
    for (int i = 0; i < count; i++)
        if (!(names[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(tuple, i), NULL))) return false;
    return true;
}

/* Makes the model and estimates what is to be estimated. */
static bool estimate(fitted *f)
{
    io_error error = { 0 };
    int status;
    Py_BEGIN_ALLOW_THREADS status = regress_model_make(&f->model, &error);
    if (!status && regress_is_fitted(&f->model)) status = regress_model_estimate(&f->model, &error);
    Py_END_ALLOW_THREADS if (!status && regress_is_fitted(&f->model)) return true;
    raise_io(status ? &error : &f->model.why);
    return false;
}

static double known(double number) { return number < 0 ? (double)NAN : number; }

static PyObject *describe(fitted *f)
{
    const regress_noise *noise = &f->model.noise[f->estimator];
    const regress_choice *choice = &f->model.choice[f->estimator];
    const char *limit = choice->smallest ? "smallest" : choice->largest ? "largest" : NULL;
    PyObject *bandwidths = PyTuple_New(f->model.columns);
    for (int c = 0; bandwidths && c < f->model.columns; c++) {
        PyObject *number = PyFloat_FromDouble(regress_bandwidth_of(&f->model, f->estimator, c));
        if (!number || PyTuple_SetItem(bandwidths, c, number)) Py_CLEAR(bandwidths);
    }
    PyObject *capsule = bandwidths ? PyCapsule_New(f, CAPSULE, free_capsule) : NULL;
    if (!capsule) {
        Py_XDECREF(bandwidths);
        free_fitted(f);
        return NULL;
    }
    return Py_BuildValue("(NNddddLz)", capsule, bandwidths, f->model.with[f->estimator].bandwidth,
                         known(noise->score), noise->variance, known(noise->parameters),
                         (long long)f->model.sample.count, limit);
}

/* set: all but the bandwidths and the threads. */
static PyObject *fit(PyObject *module, const double *values, int64_t rows, int columns,
                     const char *const *names, const Py_buffer *bandwidth, regress_settings set)
{
    fitted *f = calloc(1, sizeof *f);
    if (!f) return PyErr_NoMemory();
    f->estimator = set.wanted[REGRESS_LINEAR] ? REGRESS_LINEAR : REGRESS_CONSTANT;
    set.chosen = !bandwidth->buf;
    if (!set.chosen) memcpy(set.bandwidth, bandwidth->buf, (size_t)columns * sizeof(double));
    set.threads = threads_of(module);
    f->set = set;
    f->model.set = &f->set;
    f->model.names = names;
    f->model.values = values;
    f->model.rows = rows;
    f->model.columns = columns;
    if (!estimate(f)) {
        free_fitted(f);
        return NULL;
    }
    /* They are the caller's. */
    f->model.names = NULL;
    f->model.values = NULL;
    return describe(f);
}

PyObject *regress_fit_table(PyObject *module, PyObject *args)
{
    Py_buffer values, bandwidth;
    PyObject *texts, *result = NULL;
    regress_settings set = { 0 };
    const char *names[REGRESS_COLUMNS_MAX + 1];
    Py_ssize_t rows;
    int columns, linear, deviations, errors;
    unsigned long long seed;
    if (!PyArg_ParseTuple(args, "y*niOpz*pdpiK", &values, &rows, &columns, &texts, &linear, &bandwidth,
                          &deviations, &set.ridge, &errors, &set.bins, &seed))
        return NULL;
    set.errors = errors;
    set.seed = seed;
    set.wanted[linear ? REGRESS_LINEAR : REGRESS_CONSTANT] = true;
    for (int c = 0; c < REGRESS_COLUMNS_MAX; c++)
        set.deviations[c] = deviations;
    if (columns < 1 || columns > REGRESS_COLUMNS_MAX)
        PyErr_Format(PyExc_ValueError, "X: %d columns, expected 1 .. %d", columns, REGRESS_COLUMNS_MAX);
    else if (columns > 1 && set.bins > 0)
        PyErr_Format(PyExc_ValueError, "bins: %d with %d columns in X, expected 0 or None", set.bins,
                     columns);
    else if (holds(&values, rows, columns + 1) && holds(&bandwidth, columns, 1) &&
             read_names(texts, columns + 1, names))
        result = fit(module, values.buf, rows, columns, names, &bandwidth, set);
    PyBuffer_Release(&values);
    PyBuffer_Release(&bandwidth);
    return result;
}

/* value [count], error [count] and slopes [columns, count], those that are wanted. */
static bool predict(PyObject *module, const fitted *f, const double *x, int64_t count, double variance,
                    double *const wanted[3])
{
    regress_settings set = f->set;
    regress_model model = f->model;
    set.errors = wanted[1] != NULL;
    set.slopes = wanted[2] != NULL;
    model.set = &set;
    model.with[f->estimator].threads = threads_of(module);
    model.noise[f->estimator].variance = variance;
    regress_points points;
    io_error error = { 0 };
    int status = regress_points_make(&points, &model, count, &error);
    if (!status) {
        const size_t cells = (size_t)count * (size_t)model.columns;
        memcpy(points.x, x, cells * sizeof(double));
        Py_BEGIN_ALLOW_THREADS status = regress_predict(&model, &points, "prediction", &error);
        Py_END_ALLOW_THREADS for (int64_t i = 0; !status && i < count; i++)
        {
            const regress_fit *at = &points.fits[f->estimator][i];
            if (wanted[0]) wanted[0][i] = at->value;
            if (wanted[1]) wanted[1][i] = known(regress_standard_error(&model, f->estimator, at));
        }
        if (!status && wanted[2]) memcpy(wanted[2], points.slopes, cells * sizeof(double));
        regress_points_free(&points);
    }
    if (status) raise_io(&error);
    return !status;
}

PyObject *regress_fits_at(PyObject *module, PyObject *args)
{
    PyObject *capsule;
    Py_buffer x, out[3];
    Py_ssize_t count;
    double variance;
    if (!PyArg_ParseTuple(args, "Oy*ndz*z*z*", &capsule, &x, &count, &variance, &out[0], &out[1], &out[2]))
        return NULL;
    const fitted *f = PyCapsule_GetPointer(capsule, CAPSULE);
    bool done = f && holds(&x, count, f->model.columns) && holds(&out[0], count, 1) &&
                holds(&out[1], count, 1) && holds(&out[2], count, f->model.columns);
    if (done && out[2].buf && f->estimator != REGRESS_LINEAR) {
        PyErr_SetString(PyExc_ValueError, "slopes: expected of a linear fit");
        done = false;
    }
    for (int i = 0; done && i < 3; i++) {
        done = !out[i].buf || !out[i].readonly;
        if (!done) PyErr_SetString(PyExc_ValueError, "buffer: read-only");
    }
    double *wanted[] = { out[0].buf, out[1].buf, out[2].buf };
    done = done && predict(module, f, x.buf, count, variance, wanted);
    PyBuffer_Release(&x);
    for (int i = 0; i < 3; i++)
        PyBuffer_Release(&out[i]);
    return done ? Py_NewRef(Py_None) : NULL;
}
