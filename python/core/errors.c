/* SPDX-License-Identifier: MIT
 * Exceptions with the library's texts, in the names of Python. */
#include "python/core/core.h"

#include <stdio.h>

/* The parameter whose member of loam.h this is; of those of an interpolation's two parts, one that is given,
 * or else that of the recurrence, which needs what it has not got more often. */
static int parameter_of(const call *c, const char *member, size_t length)
{
    int found = COUNT;
    for (int i = 0; i < COUNT; i++) {
        const char *own = PARAMETERS[i].member;
        if (strlen(own) != length || strncmp(own, member, length) != 0) continue;
        if (found == COUNT || (is_interpolation(c) && !c->value[found])) found = i;
    }
    return found;
}

bool raise_status(const call *c, const loam_error *error)
{
    PyObject *type = PyExc_RuntimeError;
    if (error->status == LOAM_EMEMORY) type = PyExc_MemoryError;
    if (error->status == LOAM_EARG || error->status == LOAM_ESHAPE || error->status == LOAM_EVALUE)
        type = PyExc_ValueError;
    /* The text begins with the argument, which has another name here. */
    size_t length = strcspn(error->text, " :[=,");
    const int i = c ? parameter_of(c, error->text, length) : COUNT;
    if (i == COUNT)
        PyErr_SetString(type, error->text);
    else
        PyErr_Format(type, "%s%s", PARAMETERS[i].name, error->text + length);
    return false;
}

bool refuse_type(int i, PyObject *value, const char *expected)
{
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s: %R, expected %s", PARAMETERS[i].name, value, expected);
    return false;
}

void write_shape(char text[static 96], const call *c, const char *axes, const Py_ssize_t *shape, int n)
{
    int at = snprintf(text, 96, "[");
    for (int a = 0; a < n && at < 90; a++) {
        const Py_ssize_t size = shape ? shape[a] : c->size[(int)axes[a]];
        const char *comma = a ? ", " : "";
        at += size < 0 ? snprintf(text + at, 96 - (size_t)at, "%s%c", comma, axes[a])
                       : snprintf(text + at, 96 - (size_t)at, "%s%zd", comma, size);
    }
    if (at < 95) snprintf(text + at, 96 - (size_t)at, "]");
}
