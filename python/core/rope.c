/* SPDX-License-Identifier: MIT
 * Rotary positions of one array. */
#include "python/core/core.h"

/* [T], or [B, T]; in memory one after another. */
static bool read_positions(call *c, loam_rope *turn)
{
    if (!c->value[POSITIONS]) return true;
    array x;
    if (!hold_array(c, POSITIONS, c->maker->int64, &x)) return false;
    const int n = x.axes;
    const bool fits = (n == 1 || (n == 2 && x.shape[0] == turn->batch)) && x.shape[n - 1] == turn->tokens;
    if (!fits) {
        char found[96];
        write_shape(found, c, "", x.shape, n < SHOWN ? n : SHOWN);
        PyErr_Format(PyExc_ValueError, "positions: shape %s, expected [%lld] or [%lld, %lld]", found,
                     (long long)turn->tokens, (long long)turn->batch, (long long)turn->tokens);
        return false;
    }
    if ((x.stride[n - 1] != x.bytes && x.shape[n - 1] > 1) || (uintptr_t)x.data % (size_t)x.bytes != 0)
        if (!make_contiguous(c, POSITIONS, c->maker->int64, &x)) return false;
    turn->positions = (const int64_t *)(const void *)x.data;
    turn->positions_batch = n == 2 ? x.stride[0] / x.bytes : 0;
    return true;
}

static bool read_numbers(loam_rope *turn, PyObject *const *args)
{
    turn->offset = PyLong_AsLongLong(args[2]);
    turn->dim = PyLong_AsLongLong(args[3]);
    turn->base = PyFloat_AsDouble(args[4]);
    turn->layout = PyObject_IsTrue(args[5]) ? LOAM_ROPE_INTERLEAVED : LOAM_ROPE_HALF;
    turn->inverse = PyObject_IsTrue(args[6]);
    turn->stream = PyLong_AsVoidPtr(args[7]);
    return !PyErr_Occurred();
}

static PyObject *turned(call *c, PyObject *const *args)
{
    if (!read_element(c) || !read_array(c, Q) || !choose_threads(c)) return NULL;
    loam_rope turn = loam_rope_default(c->problem.dtype);
    const Py_ssize_t shape[] = { c->size['B'], c->size['T'], c->size['H'], c->size['K'] };
    turn.batch = shape[0], turn.tokens = shape[1], turn.heads = shape[2], turn.channels = shape[3];
    turn.threads = c->problem.threads;
    if (c->on_device) turn.backend = LOAM_BACKEND_CUDA;
    if (!read_numbers(&turn, args) || !read_positions(c, &turn)) return NULL;
    void *data;
    PyObject *made = make_array(c, shape, 4, c->element, &data);
    if (!made) return NULL;
    const loam_const_view dense = dense_view(c, "BTHK", data);
    const loam_view to = { data, dense.batch, dense.head, dense.token };
    loam_error error;
    loam_status status;
    Py_BEGIN_ALLOW_THREADS status = loam_rope_apply(&turn, &c->args.q, &to, &error);
    Py_END_ALLOW_THREADS if (!status) return made;
    Py_DECREF(made);
    raise_status(NULL, &error);
    return NULL;
}

/* The array is x in Python, and q to what reads it. */
static void name_x(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    if (text && PyUnicode_ReadChar(text, 0) == 'q' && PyUnicode_ReadChar(text, 1) == ':') {
        PyObject *rest = PyUnicode_Substring(text, 1, PyUnicode_GetLength(text));
        PyErr_Format(type, "x%U", rest);
        Py_XDECREF(rest);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    } else {
        PyErr_Restore(type, value, trace);
    }
    Py_XDECREF(text);
}

PyObject *rope(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 8) return PyErr_Format(PyExc_TypeError, "rope() has 8 arguments");
    call c;
    memset(&c, 0, sizeof c);
    c.module = PyModule_GetState(module);
    for (size_t a = 0; a < sizeof c.size / sizeof *c.size; a++)
        c.size[a] = -1;
    c.value[Q] = args[0];
    c.value[POSITIONS] = args[1] == Py_None ? NULL : args[1];
    PyObject *result = turned(&c, args);
    if (!result) name_x();
    let_go(&c);
    return result;
}
