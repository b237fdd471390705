/* SPDX-License-Identifier: MIT
 * Arrays by the names of their axes, as views of loam_args. */
#include "python/core/core.h"

#include <stdlib.h>

PyObject *element_of(const call *c, parameter_kind kind)
{
    if (kind == ARRAY) return c->element;
    return c->maker->element[c->problem.dtype == LOAM_F64 ? LOAM_F64 : LOAM_F32];
}

/* Fits the array to the axes, in the order of `axes`: a state's last two change places. */
static bool read_shape(call *c, int i, const char *axes, array *x)
{
    const int n = (int)strlen(axes);
    char shown[AXES + 1] = "", expected[96], found[96];
    memcpy(shown, axes, (size_t)n);
    const bool is_state = strchr(axes, 'R');
    if (is_state) shown[n - 2] = axes[n - 1], shown[n - 1] = axes[n - 2];
    const array given = *x;
    bool fits = given.axes == n;
    for (int a = 0; fits && a < n; a++) {
        const int from = is_state && a >= n - 2 ? 2 * n - 3 - a : a;
        x->shape[a] = given.shape[from], x->stride[a] = given.stride[from];
        const Py_ssize_t size = c->size[(int)axes[a]];
        fits = size < 0 || size == x->shape[a];
    }
    if (!fits) {
        write_shape(expected, c, shown, NULL, n);
        write_shape(found, c, shown, given.shape, given.axes < SHOWN ? given.axes : SHOWN);
        PyErr_Format(PyExc_ValueError, "%s: shape %s, expected %s", PARAMETERS[i].name, found, expected);
        return false;
    }
    for (int a = 0; a < n; a++)
        c->size[(int)axes[a]] = x->shape[a];
    return true;
}

/* Channels and vectors are contiguous, and elements are aligned. */
static bool is_readable(const array *x, bool contiguous)
{
    const int n = x->axes;
    bool fits = (uintptr_t)x->data % (size_t)x->bytes == 0;
    for (int a = 0; a < n; a++)
        fits = fits && (x->shape[a] <= 1 || x->stride[a] % x->bytes == 0);
    if (contiguous && n) fits = fits && (x->shape[n - 1] <= 1 || x->stride[n - 1] == x->bytes);
    return fits;
}

static bool is_dense(const array *x)
{
    Py_ssize_t stride = x->bytes;
    bool dense = true;
    for (int a = x->axes - 1; a >= 0; stride *= x->shape[a--])
        dense = dense && x->stride[a] == stride;
    return dense;
}

/* View of axes: where the strides go follows from their names. */
static loam_const_view view_of(const void *data, const char *axes, const Py_ssize_t *stride, Py_ssize_t bytes)
{
    loam_const_view view = { data, 0, 0, 0 };
    for (int a = 0; axes[a]; a++) {
        const int64_t elements = stride[a] / bytes;
        if (strchr("BN", axes[a])) view.batch = elements;
        if (strchr("HGVF", axes[a])) view.head = elements;
        /* Features are rows of z and channels of all else; keys are channels of the weights. */
        if (strchr("TRJPY", axes[a]) || (strchr("SM", axes[a]) && axes[a + 1])) view.token = elements;
    }
    return view;
}

loam_const_view dense_view(const call *c, const char *axes, const void *data)
{
    Py_ssize_t stride[AXES], elements = 1;
    for (int a = (int)strlen(axes) - 1; a >= 0; a--) {
        stride[a] = elements;
        elements *= c->size[(int)axes[a]];
    }
    return view_of(data, axes, stride, 1);
}

const char *named_axes(const call *c, int i)
{
    const parameter *p = &PARAMETERS[i];
    if (is_part(c) && (i == K || i == V || i == KEY_BIAS)) return i == K ? "BPGK" : i == V ? "BPGD" : "BPH";
    if (c->hybrid && (i == STATE_IN || i == STATE_OUT)) return "NFRE";
    return has_features(c) ? p->features : is_recurrent(c) ? p->recurrent : p->local;
}

/* Axes of a ridge by its number of axes, and of a log decay by the mechanism. */
static const char *axes_of(call *c, int i, int n)
{
    const char *axes = named_axes(c, i);
    if (*axes != '?') return axes;
    const bool is_linear = i == LINEAR_G || i == LINEAR_RIDGE;
    if (PARAMETERS[i].kind != RIDGE) {
        const char *of_decay[] = { "BTV", "V", "BTV", "BTVK" };
        return of_decay[is_linear ? c->linear_info.log_decay : c->info.log_decay];
    }
    static const struct {
        const char *axes;
        loam_ridge_axes name;
    } local[] = { { "", LOAM_RIDGE_NUMBER },
                  { "H", LOAM_RIDGE_HEAD },
                  { "HK", LOAM_RIDGE_HEAD_CHANNEL },
                  { "BTH", LOAM_RIDGE_TOKEN },
                  { "BTHK", LOAM_RIDGE_CHANNEL } };
    const int row = n > AXES ? 1 : n;
    loam_problem *of = is_linear ? &c->linear : &c->problem;
    of->ridge_axes = local[row].name;
    if (!is_linear && !is_recurrent(c)) return local[row].axes;
    return row == 1 ? "V" : row == 2 ? "VK" : local[row].axes;
}

bool read_array(call *c, int i)
{
    const parameter *p = &PARAMETERS[i];
    PyObject *element = element_of(c, p->kind);
    array x;
    if (!hold_array(c, i, element, &x)) return false;
    const char *axes = c->axes[i] = axes_of(c, i, x.axes);
    if (!read_shape(c, i, axes, &x)) return false;
    if (i == Q) c->q_is_dense = is_dense(&x);
    const size_t n = strlen(axes);
    const bool contiguous = p->kind == REAL_VECTOR || (n && strchr("KDME", axes[n - 1]));
    if (!is_readable(&x, contiguous)) {
        if (is_tensors(c) && strchr(axes, 'R')) {
            /* A contiguous copy has the order of the tensor, not that of the rows. */
            PyObject *swapped = swap_last_axes(c, c->value[i]);
            if (!swapped) return false;
            PyObject *dense = PyObject_CallMethodObjArgs(swapped, c->module->attribute.contiguous, NULL);
            Py_DECREF(swapped);
            if (!dense) return false;
            c->value[i] = swap_last_axes(c, dense);
            Py_DECREF(dense);
            c->contiguous[i] = c->value[i];
            return c->value[i] && read_array(c, i);
        }
        if (!make_contiguous(c, i, element, &x)) return false;
    }
    char *member = (char *)c + p->offset;
    if (p->kind == REAL_VECTOR) {
        memcpy(member, &x.data, sizeof x.data);
    } else {
        const loam_const_view view = view_of(x.data, axes, x.stride, x.bytes);
        memcpy(member, &view, sizeof view);
    }
    return true;
}

/* Integers of int32 or int64 in host memory, as int64. */
static int64_t *copy_integers(const array *x)
{
    const Py_ssize_t n = x->shape[0];
    int64_t *copy = malloc((size_t)(n ? n : 1) * sizeof *copy);
    if (!copy) return (int64_t *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++) {
        const char *from = x->data + i * x->stride[0];
        int32_t narrow;
        if (x->bytes == 4) {
            memcpy(&narrow, from, sizeof narrow);
            copy[i] = narrow;
        } else {
            memcpy(&copy[i], from, sizeof *copy);
        }
    }
    return copy;
}

/* Integers of each sequence, into the member of loam_args: in host memory a copy, on a GPU where they lie. */
static bool read_integers(call *c, int i, Py_ssize_t *count)
{
    PyObject *element = c->maker->int64, *found = PyObject_GetAttr(c->value[i], c->module->attribute.dtype);
    if (!found) PyErr_Clear();
    if (found && !c->on_device && PyObject_RichCompareBool(found, c->maker->int32, Py_EQ) == 1)
        element = c->maker->int32;
    Py_XDECREF(found);
    array x;
    if (!hold_array(c, i, element, &x)) return false;
    const bool are_ends = i == CU_SEQLENS || i == CU_SEQLENS_K;
    if (x.axes != 1 || (x.shape[0] < 1 && are_ends)) {
        PyErr_Format(PyExc_ValueError, "%s: expected %s", PARAMETERS[i].name,
                     are_ends ? "[N + 1] ends, from 0" : "[B] numbers of keys");
        return false;
    }
    *count = x.shape[0];
    const int64_t *data = (const int64_t *)(const void *)x.data;
    if (!c->on_device && !(data = c->ends[i] = copy_integers(&x))) return false;
    memcpy((char *)c + PARAMETERS[i].offset, &data, sizeof data);
    return true;
}

bool read_lengths(call *c)
{
    Py_ssize_t count = 0, other;
    if (c->value[CU_SEQLENS]) {
        if (!read_integers(c, CU_SEQLENS, &count)) return false;
        c->packed = true;
        c->size['N'] = count - 1;
    }
    if (!c->value[CU_SEQLENS_K]) return true;
    if (!c->packed) {
        PyErr_SetString(PyExc_ValueError, "cu_seqlens_k: given, expected cu_seqlens too");
        return false;
    }
    if (!read_integers(c, CU_SEQLENS_K, &other)) return false;
    if (other != count)
        PyErr_Format(PyExc_ValueError, "cu_seqlens_k: shape [%zd], expected [%zd], that of cu_seqlens", other,
                     count);
    return other == count;
}

bool read_counts(call *c, int i)
{
    Py_ssize_t count;
    if (!c->value[i]) return true;
    if (!read_integers(c, i, &count)) return false;
    if (count != c->size['B'])
        PyErr_Format(PyExc_ValueError, "%s: shape [%zd], expected [%zd]", PARAMETERS[i].name, count,
                     c->size['B']);
    return count == c->size['B'];
}
