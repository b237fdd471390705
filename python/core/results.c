/* SPDX-License-Identifier: MIT
 * New arrays for what a pass writes, and what a call returns of them. */
#include "python/core/core.h"

#include <stdlib.h>

/* A new array with these axes, as a view at `offset`; a vector is a pointer. */
static bool make_output(call *c, int i, const char *axes, PyObject *element, size_t offset, bool is_vector)
{
    Py_ssize_t shape[AXES + 1];
    int n = 0;
    for (; axes[n]; n++)
        shape[n] = c->size[(int)axes[n]];
    if ((i == INFO || i == LINEAR_INFO) && is_tensors(c))
        shape[n++] = sizeof(loam_row_info) / sizeof(int32_t);
    void *data;
    c->out[i] = make_array(c, shape, n, element, &data);
    if (!c->out[i]) return false;
    char *member = (char *)c + offset;
    if (is_vector) {
        memcpy(member, &data, sizeof data);
    } else {
        const loam_const_view view = dense_view(c, axes, data);
        memcpy(member, &view, sizeof view);
    }
    return true;
}

static void free_saved(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, "loam.saved")); }

/* What a forward keeps for its backward: a tensor of bytes, or memory in a capsule. */
static bool make_saved(call *c, size_t bytes)
{
    /* A size that the caller knows without a plan. */
    const bool is_told = bytes && !PyBool_Check(c->value[SAVED_OUT]);
    if (is_told) {
        const size_t room = PyLong_AsSize_t(c->value[SAVED_OUT]);
        if (PyErr_Occurred()) return false;
        if (room < bytes) {
            PyErr_Format(PyExc_RuntimeError, "save: %zu bytes, expected at least %zu", room, bytes);
            return false;
        }
        bytes = room;
    }
    if (bytes == 0) return (c->out[SAVED_OUT] = Py_NewRef(Py_None));
    void *data;
    if (is_tensors(c)) {
        const Py_ssize_t shape[] = { (Py_ssize_t)bytes };
        c->out[SAVED_OUT] = is_told ? make_array(c, shape, 1, c->maker->bytes, &data)
                                    : make_bytes(c, bytes, &data);
        if (!c->out[SAVED_OUT]) return false;
    } else {
        data = aligned_alloc(LOAM_ALIGN, bytes);
        if (!data) return PyErr_NoMemory();
        c->out[SAVED_OUT] = PyCapsule_New(data, "loam.saved", free_saved);
        if (!c->out[SAVED_OUT]) {
            free(data);
            return false;
        }
    }
    c->args.saved = data;
    return true;
}

/* What the data of an output are. */
static PyObject *element_of_output(const call *c, int i)
{
    if (i == O || i == NEAR_KEYS_OUT || i == NEAR_VALUES_OUT) return c->element;
    return i == INFO || i == LINEAR_INFO ? c->maker->row_info : element_of(c, REAL_ARRAY);
}

bool make_outputs(call *c, const cached_plan *plan)
{
    if (is_interpolation(c)) c->value[LINEAR_INFO] = c->value[INFO];
    if (c->hybrid) c->value[NEAR_KEYS_OUT] = c->value[NEAR_VALUES_OUT] = c->value[STATE_OUT];
    for (int i = O; i < COUNT; i++) {
        const int wanted = i == O ? 1 : c->value[i] ? PyObject_IsTrue(c->value[i]) : 0;
        if (wanted < 0) return false;
        if (!wanted) continue;
        if (i == WEIGHTS && c->packed) {
            PyErr_SetString(PyExc_ValueError, "return_weights: True, expected False with cu_seqlens");
            return false;
        }
        if (i == SAVED_OUT) {
            if (!make_saved(c, plan->saved_bytes)) return false;
            continue;
        }
        if (!make_output(c, i, named_axes(c, i), element_of_output(c, i), PARAMETERS[i].offset, false))
            return false;
    }
    return true;
}

bool make_gradients(call *c)
{
    PyObject *wanted = c->value[WANTED_GRADIENTS];
    if (!wanted || !PyTuple_Check(wanted) || PyTuple_Size(wanted) != INPUTS)
        return refuse_type(WANTED_GRADIENTS, wanted ? wanted : Py_None, "a flag for each input");
    for (int i = 0; i < INPUTS; i++) {
        const parameter *p = &PARAMETERS[i];
        if (PyTuple_GetItem(wanted, i) != Py_True || !c->axes[i]) continue;
        const bool is_pointer = p->kind == REAL_VECTOR || p->kind == NUMBER;
        if (!make_output(c, i, c->axes[i], element_of(c, p->kind), p->gradient, is_pointer)) return false;
    }
    return true;
}

static bool turn_state(call *c, int i)
{
    PyObject *state = c->out[i];
    if (!state) return true;
    c->out[i] = swap_last_axes(c, state);
    Py_DECREF(state);
    return c->out[i] != NULL;
}

/* o alone, or a tuple of it and what else was wanted; recurrences always have a final state, or None. */
PyObject *results(call *c)
{
    if (!turn_state(c, STATE_OUT)) return NULL;
    if (!c->out[STATE_OUT] && ((is_recurrent(c) && !c->hybrid) || is_interpolation(c)))
        c->out[STATE_OUT] = Py_NewRef(Py_None);
    Py_ssize_t n = 0;
    for (int i = O; i < COUNT; i++)
        n += c->out[i] != NULL;
    if (n == 1) return Py_NewRef(c->out[O]);
    PyObject *tuple = PyTuple_New(n);
    n = 0;
    for (int i = O; tuple && i < COUNT; i++)
        if (c->out[i]) PyTuple_SetItem(tuple, n++, Py_NewRef(c->out[i]));
    return tuple;
}

/* The gradient of each input, or None. */
PyObject *gradients(call *c)
{
    if (!turn_state(c, STATE_IN)) return NULL;
    PyObject *tuple = PyTuple_New(INPUTS);
    for (int i = 0; tuple && i < INPUTS; i++)
        PyTuple_SetItem(tuple, i, Py_NewRef(c->out[i] ? c->out[i] : Py_None));
    return tuple;
}
