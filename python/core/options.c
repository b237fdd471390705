/* SPDX-License-Identifier: MIT
 * Options: numbers, flags and names, as members of loam_problem. */
#include "python/core/core.h"

#include <stdio.h>

static const char *name_backend(int i) { return loam_backend_name((loam_backend)i); }
static const char *name_mechanism(int i) { return loam_mechanism_name((loam_mechanism)i); }

bool read_real(const call *c, int i, double *to)
{
    const double number = PyFloat_AsDouble(c->value[i]);
    if (PyErr_Occurred()) return refuse_type(i, c->value[i], "a number");
    if (number == 0 && (to == &c->problem.scale || to == &c->linear.scale)) {
        PyErr_Format(PyExc_ValueError, "%s: 0, expected another number, or None", PARAMETERS[i].name);
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

static bool is_text(PyObject *value, const char *text)
{
    return PyUnicode_CompareWithASCIIString(value, text) == 0;
}

/* A back end, or a row of the registry, which is for its own pass: others choose as without it. */
bool read_backend(call *c)
{
    PyObject *value = c->value[BACKEND];
    loam_kernel_info row;
    for (int i = 0; PyUnicode_Check(value) && loam_kernel_at(i, &row) == LOAM_OK; i++) {
        if (!is_text(value, row.name)) continue;
        if ((strcmp(row.backend, "cuda") == 0) != c->on_device) {
            PyErr_Format(PyExc_ValueError, "backend: %R is of %s, expected one that reads where q is", value,
                         row.backend);
            return false;
        }
        if (strcmp(row.pass, loam_pass_name(c->problem.pass)) == 0) c->problem.kernel = row.name;
        return true;
    }
    int index;
    if (!read_name("backend", value, name_backend, &index)) return false;
    c->problem.backend = (loam_backend)index;
    return true;
}

/* The two mechanisms of an interpolation; the recurrence's problem begins as its default. */
bool read_linear(call *c)
{
    int mechanism;
    if (!read_name("linear", c->value[LINEAR], name_mechanism, &mechanism)) return false;
    loam_mechanism_at(mechanism, &c->linear_info);
    if (is_recurrent(c) || c->linear_info.family != LOAM_FAMILY_RECURRENT) {
        PyErr_Format(PyExc_ValueError,
                     "local, linear: '%s' and '%s', expected a local mechanism and a recurrence",
                     c->info.name, c->linear_info.name);
        return false;
    }
    c->linear = loam_problem_default((loam_mechanism)mechanism, c->problem.pass);
    return true;
}
