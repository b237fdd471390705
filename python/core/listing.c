/* SPDX-License-Identifier: MIT
 * What the library has, as tuples in the order of the members of loam.h, and random projections. */
#include "python/core/core.h"

/* A list of what `row` makes of 0, 1, ... until it has none: NULL without an exception. */
static PyObject *list_of(PyObject *(*row)(int))
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list; i++) {
        PyObject *one = row(i);
        if (!one && !PyErr_Occurred()) return list;
        if (!one || PyList_Append(list, one)) Py_CLEAR(list);
        Py_XDECREF(one);
    }
    return NULL;
}

static PyObject *kernel(int i)
{
    loam_kernel_info k;
    if (loam_kernel_at(i, &k)) return NULL;
    return Py_BuildValue("(ssssssN)", k.name, k.mechanisms, k.pass, k.dtypes, k.backend, k.isa,
                         PyBool_FromLong(k.available));
}

/* Names of the bits that are set. */
static PyObject *names_of_bits(unsigned bits, const char *(*named)(int))
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && named(i); i++) {
        PyObject *name = bits >> i & 1 ? PyUnicode_FromString(named(i)) : NULL;
        if (name && PyList_Append(list, name)) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    PyObject *names = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return names;
}

PyObject *names_of(const char *(*named)(int)) { return names_of_bits(~0u, named); }

static const char *name_ridge_axes(int i) { return loam_ridge_axes_name((loam_ridge_axes)i); }
static const char *name_ridge_unit(int i) { return loam_ridge_unit_name((loam_ridge_unit)i); }

static PyObject *mechanism(int i)
{
    loam_mechanism_info m;
    if (loam_mechanism_at(i, &m)) return NULL;
    static const char *const axes[] = { "none", "head", "token", "channel" };
    return Py_BuildValue("(ssssssssNNdNNNNNNN)", m.name, loam_family_name(m.family), m.objective,
                         m.regulariser, m.update, m.output, m.cost, axes[m.log_decay],
                         PyBool_FromLong(m.ridge_axes != 0), PyBool_FromLong(m.beta), m.beta_most,
                         PyBool_FromLong(m.normalise), PyBool_FromLong(m.delta), PyBool_FromLong(m.probe),
                         PyBool_FromLong(m.sink), names_of_bits(m.ridge_axes, name_ridge_axes),
                         names_of_bits(m.ridge_units, name_ridge_unit), PyBool_FromLong(m.ridge_positive));
}

PyObject *kernels(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return list_of(kernel);
}

PyObject *mechanisms(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return list_of(mechanism);
}

PyObject *cpu_features(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyUnicode_FromString(loam_cpu_features());
}

static const char *name_projection(int i) { return loam_projection_name((loam_projection)i); }

static bool is_size(long long x) { return x >= 1 && x <= LOAM_MAX_DIM; }

/* The rows of z as an array of NumPy; sizes that are none are refused by the library. */
static PyObject *drawn(call *c, int kind, uint64_t seed, const long long *size)
{
    c->maker = &c->module->numpy;
    const bool fits = size[0] >= 0 && size[0] <= INT32_MAX && is_size(size[1]) && is_size(size[2]);
    const Py_ssize_t shape[] = { fits ? (Py_ssize_t)size[0] : 0, fits ? (Py_ssize_t)size[1] : 1,
                                 fits ? (Py_ssize_t)size[2] : 1 };
    void *data;
    PyObject *made = make_array(c, shape, 3, c->maker->element[c->problem.dtype], &data);
    if (!made) return NULL;
    const loam_view z = loam_dense_out(data, size[0], fits ? size[1] : 1, fits ? size[2] : 1);
    loam_error error;
    loam_status status;
    Py_BEGIN_ALLOW_THREADS status = loam_projection_draw((loam_projection)kind, seed, size[0], size[1],
                                                         size[2], c->problem.dtype, &z, &error);
    Py_END_ALLOW_THREADS if (!status) return made;
    Py_DECREF(made);
    raise_status(NULL, &error);
    return NULL;
}

PyObject *projection(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 6) return PyErr_Format(PyExc_TypeError, "projection() has 6 arguments");
    call c;
    memset(&c, 0, sizeof c);
    c.module = PyModule_GetState(module);
    int kind;
    if (!read_name("kind", args[0], name_projection, &kind)) return NULL;
    const unsigned long long seed = PyLong_AsUnsignedLongLong(args[1]);
    long long size[3];
    for (int i = 0; i < 3; i++)
        size[i] = PyErr_Occurred() ? 0 : PyLong_AsLongLong(args[2 + i]);
    c.problem.dtype = PyObject_IsTrue(args[5]) ? LOAM_F64 : LOAM_F32;
    return PyErr_Occurred() ? NULL : drawn(&c, kind, seed, size);
}
