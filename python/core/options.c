/* SPDX-License-Identifier: MIT
 * Options: numbers, flags and names, as members of loam_problem. */
#include "python/core/core.h"

#include <stdio.h>

bool read_real(const call *c, int i, double *to)
{
    const double number = PyFloat_AsDouble(c->value[i]);
    if (PyErr_Occurred()) return refuse_type(i, c->value[i], "a number");
    if (number == 0 && to == &c->problem.scale) {
        PyErr_SetString(PyExc_ValueError, "scale: 0, expected another number, or None");
        return false;
    }
    *to = number;
    return true;
}

static bool read_size(const call *c, int i, int64_t *to)
{
    const long long number = PyLong_AsLongLong(c->value[i]);
    if (PyErr_Occurred()) return refuse_type(i, c->value[i], "an integer");
    *to = number;
    return true;
}

static bool read_flag(const call *c, int i, int *to)
{
    *to = PyObject_IsTrue(c->value[i]);
    return *to >= 0;
}

bool read_name(const char *what, PyObject *value, const char *(*named)(int), int *to)
{
    if (!PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s: %R, expected a name", what, value);
        return false;
    }
    char all[160] = "";
    for (*to = 0; named(*to); ++*to) {
        if (PyUnicode_CompareWithASCIIString(value, named(*to)) == 0) return true;
        const size_t length = strlen(all);
        snprintf(all + length, sizeof all - length, "%s%s", *to ? ", " : "", named(*to));
    }
    PyErr_Format(PyExc_ValueError, "%s: %R, expected one of %s", what, value, all);
    return false;
}

bool read_option(call *c, int i)
{
    const parameter *p = &PARAMETERS[i];
    char *member = (char *)c + p->offset;
    switch (p->kind) {
    case REAL: return read_real(c, i, (double *)(void *)member);
    case SIZE: return read_size(c, i, (int64_t *)(void *)member);
    case FLAG: return read_flag(c, i, (int *)(void *)member);
    case NAME: {
        int index;
        if (!read_name(p->name, c->value[i], p->named, &index)) return false;
        memcpy(member, &index, sizeof index);
        return true;
    }
    default: return true;
    }
}
