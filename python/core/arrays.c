/* SPDX-License-Identifier: MIT
 * What NumPy and PyTorch do each in their way: where an array lies, and how a new one is made. Arrays of
 * NumPy come by the buffer protocol, tensors by their data pointer. */
#include "python/core/core.h"

#include <stdlib.h>

static bool raise_no_array(const call *c, int i)
{
    PyObject *value = c->value[i] ? (PyObject *)Py_TYPE(c->value[i]) : Py_None;
    return refuse_type(i, value, c->maker && is_tensors(c) ? "a tensor of PyTorch" : "an array of NumPy");
}

/* The dtype of an array; a new reference. */
static PyObject *dtype_of(const call *c, int i)
{
    PyObject *dtype = PyObject_GetAttr(c->value[i], c->module->attribute.dtype);
    if (!dtype) raise_no_array(c, i);
    return dtype;
}

/* A tensor as DLPack has it; false, and no exception, where its attributes must say what it is. */
static bool look_at(const call *c, PyObject *tensor, dl_tensor *to)
{
    const dl_exchange *exchange = c->module->exchange;
    if (!exchange) return false;
    if (exchange->look(tensor, to)) {
        PyErr_Clear();
        return false;
    }
    return to->axes <= SHOWN && (to->stride || to->axes == 0);
}

/* Where q is, for those who have to name it. */
PyObject *device_of(call *c)
{
    if (!c->device) c->device = PyObject_GetAttr(c->value[Q], c->module->attribute.device);
    return c->device;
}

static bool read_device(call *c)
{
    const attributes *name = &c->module->attribute;
    PyObject *cuda = PyObject_GetAttr(c->value[Q], name->is_cuda);
    if (!cuda) return false;
    c->on_device = cuda == Py_True;
    Py_DECREF(cuda);
    dl_tensor q;
    if (look_at(c, c->value[Q], &q)) c->device_kind = q.device_kind, c->device_index = q.device;
    return true;
}

/* A tensor like none of the arguments. */
static PyObject *make_tensor(call *c, PyObject *sizes, PyObject *element)
{
    const attributes *name = &c->module->attribute;
    PyObject *device = device_of(c), *args = device ? PyTuple_Pack(1, sizes) : NULL,
             *options = args ? PyDict_New() : NULL, *made = NULL;
    if (options && PyDict_SetItem(options, name->device, device) == 0 &&
        PyDict_SetItem(options, name->dtype, element) == 0)
        made = PyObject_Call(c->maker->empty, args, options);
    Py_XDECREF(args);
    Py_XDECREF(options);
    return made;
}

/* Bytes of an element of tensors, and whether DLPack says the same of `x`. */
static Py_ssize_t bytes_of(const maker *m, PyObject *element, const dl_tensor *x, bool *same)
{
    const struct {
        PyObject *element;
        int kind;
        Py_ssize_t bytes;
    } known[] = { { m->element[LOAM_F32], DL_FLOAT, 4 },
                  { m->element[LOAM_BF16], DL_BFLOAT, 2 },
                  { m->element[LOAM_F16], DL_FLOAT, 2 },
                  { m->element[LOAM_F64], DL_FLOAT, 8 },
                  { m->int32, DL_INT, 4 },
                  { m->int64, DL_INT, 8 },
                  { m->bytes, DL_UNSIGNED, 1 } };
    size_t i = 0;
    while (known[i].element != element)
        i++;
    *same = x && x->kind == known[i].kind && x->bits == 8 * known[i].bytes && x->lanes == 1;
    return known[i].bytes;
}

/* bfloat16 of NumPy is not its own, and known by its name. */
static bool is_bfloat16(PyObject *dtype)
{
    PyObject *name = PyObject_GetAttrString(dtype, "name");
    const bool is = name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "bfloat16") == 0;
    Py_XDECREF(name);
    PyErr_Clear();
    return is;
}

bool read_element(call *c)
{
    if (!c->value[Q]) return raise_no_array(c, Q);
    const maker *torch = &c->module->torch;
    c->maker = &c->module->numpy;
    if (torch->type && PyObject_IsInstance(c->value[Q], torch->type) == 1) c->maker = torch;
    PyObject *dtype = dtype_of(c, Q);
    if (!dtype) return false;
    c->element = dtype;
    if (is_tensors(c) && !read_device(c)) return false;
    for (int i = 0; i < 4; i++) {
        PyObject *known = c->maker->element[i];
        const int equal = !known ? 0 : known == dtype ? 1 : PyObject_RichCompareBool(dtype, known, Py_EQ);
        if (equal < 0) return false;
        if (equal) {
            c->problem.dtype = (loam_dtype)i;
            return true;
        }
    }
    c->problem.dtype = LOAM_BF16;
    if (is_bfloat16(dtype)) return true;
    PyErr_Format(PyExc_TypeError, "q: dtype %S, expected float16, float32, float64 or bfloat16", dtype);
    return false;
}

static bool check_element(const call *c, int i, PyObject *element)
{
    PyObject *dtype = dtype_of(c, i);
    if (!dtype) return false;
    const int equal = dtype == element ? 1 : PyObject_RichCompareBool(dtype, element, Py_EQ);
    if (equal == 0)
        PyErr_Format(PyExc_TypeError, "%s: dtype %S, expected %S", PARAMETERS[i].name, dtype, element);
    Py_DECREF(dtype);
    return equal == 1;
}

static bool hold_buffer(call *c, int i, array *to)
{
    Py_buffer *buffer = &c->buffer[i];
    if (PyObject_GetBuffer(c->value[i], buffer, PyBUF_STRIDES)) {
        buffer->obj = NULL;
        return false;
    }
    to->data = buffer->buf;
    to->bytes = buffer->itemsize;
    to->axes = buffer->ndim;
    for (int a = 0; a < to->axes && a < SHOWN; a++)
        to->shape[a] = buffer->shape[a], to->stride[a] = buffer->strides[a];
    return true;
}

static bool read_sizes(PyObject *tuple, Py_ssize_t *to, Py_ssize_t factor)
{
    const Py_ssize_t n = tuple ? PyTuple_Size(tuple) : -1;
    for (Py_ssize_t a = 0; a < n && a < SHOWN; a++)
        to[a] = factor * PyLong_AsSsize_t(PyTuple_GetItem(tuple, a));
    Py_XDECREF(tuple);
    return n >= 0 && !PyErr_Occurred();
}

static bool check_device(call *c, int i)
{
    PyObject *device = PyObject_GetAttr(c->value[i], c->module->attribute.device);
    if (!device) return false;
    PyObject *expected = device_of(c);
    const int equal = expected ? PyObject_RichCompareBool(device, expected, Py_EQ) : -1;
    if (equal == 0)
        PyErr_Format(PyExc_ValueError, "%s: on device %S, expected %S, where q is", PARAMETERS[i].name,
                     device, expected);
    Py_DECREF(device);
    return equal == 1;
}

/* Reads a tensor by DLPack; false, and no exception, where something is not as it should be or not known. */
static bool read_tensor(const call *c, PyObject *tensor, PyObject *element, array *to)
{
    dl_tensor x;
    bool same;
    if (!look_at(c, tensor, &x)) return false;
    to->bytes = bytes_of(c->maker, element, &x, &same);
    if (!same || x.device_kind != c->device_kind || x.device != c->device_index) return false;
    to->data = x.data + x.offset;
    to->axes = x.axes;
    for (int a = 0; a < x.axes; a++)
        to->shape[a] = x.shape[a], to->stride[a] = x.stride[a] * to->bytes;
    return true;
}

/* The same by a tensor's attributes. */
static bool hold_tensor(call *c, int i, PyObject *tensor, PyObject *element, array *to)
{
    const attributes *name = &c->module->attribute;
    bool same;
    to->bytes = bytes_of(c->maker, element, NULL, &same);
    PyObject *shape = PyObject_GetAttr(tensor, name->shape);
    to->axes = shape ? (int)PyTuple_Size(shape) : 0;
    if (!read_sizes(shape, to->shape, 1) ||
        !read_sizes(PyObject_CallMethodObjArgs(tensor, name->stride, NULL), to->stride, to->bytes))
        return false;
    to->data = NULL;
    if (i != Q && !check_device(c, i)) return false;
    PyObject *address = PyObject_CallMethodObjArgs(tensor, name->data_ptr, NULL);
    if (!address) return false;
    to->data = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    return !PyErr_Occurred();
}

bool hold_array(call *c, int i, PyObject *element, array *to)
{
    const int fits = PyObject_IsInstance(c->value[i], c->maker->type);
    if (fits < 0) return false;
    if (!fits) return raise_no_array(c, i);
    if (is_tensors(c) && read_tensor(c, c->value[i], element, to)) return true;
    if (!check_element(c, i, element)) return false;
    return is_tensors(c) ? hold_tensor(c, i, c->value[i], element, to) : hold_buffer(c, i, to);
}

/* Elements one after another, in the order of `shape`. */
static void gather(char *to, const char *from, const Py_ssize_t *shape, const Py_ssize_t *stride, int n,
                   size_t bytes)
{
    size_t inner = bytes;
    for (int a = 1; a < n; a++)
        inner *= (size_t)shape[a];
    for (Py_ssize_t x = 0; x < shape[0]; x++, to += inner, from += stride[0])
        if (n == 1)
            memcpy(to, from, bytes);
        else
            gather(to, from, shape + 1, stride + 1, n - 1, bytes);
}

bool make_contiguous(call *c, int i, PyObject *element, array *to)
{
    if (is_tensors(c)) {
        c->contiguous[i] = PyObject_CallMethodObjArgs(c->value[i], c->module->attribute.contiguous, NULL);
        return c->contiguous[i] && hold_tensor(c, i, c->contiguous[i], element, to);
    }
    size_t bytes = (size_t)to->bytes;
    Py_ssize_t dense[AXES];
    for (int a = to->axes - 1; a >= 0; a--) {
        dense[a] = (Py_ssize_t)bytes;
        /* The product with a size of 0 is 0, as is that of the array. */
        if (__builtin_mul_overflow(bytes, (size_t)to->shape[a], &bytes)) return PyErr_NoMemory();
    }
    c->copy[i] = malloc(bytes ? bytes : 1);
    if (!c->copy[i]) return PyErr_NoMemory();
    if (bytes) gather(c->copy[i], to->data, to->shape, to->stride, to->axes, (size_t)to->bytes);
    memcpy(to->stride, dense, sizeof *dense * (size_t)to->axes);
    to->data = c->copy[i];
    return true;
}

static void *data_of(const call *c, PyObject *made)
{
    dl_tensor x;
    if (is_tensors(c)) {
        if (look_at(c, made, &x)) return x.data + x.offset;
        PyObject *address = PyObject_CallMethodObjArgs(made, c->module->attribute.data_ptr, NULL);
        void *data = address ? PyLong_AsVoidPtr(address) : NULL;
        Py_XDECREF(address);
        return data;
    }
    /* Nobody else knows the array yet: it stays where it is. */
    Py_buffer buffer;
    if (PyObject_GetBuffer(made, &buffer, PyBUF_WRITABLE)) return NULL;
    void *data = buffer.buf;
    PyBuffer_Release(&buffer);
    return data;
}

static bool is_like_q(const call *c, const Py_ssize_t *shape, int axes, PyObject *element)
{
    const Py_ssize_t *size = c->size;
    return c->q_is_dense && element == c->element && axes == 4 && shape[0] == size['B'] &&
           shape[1] == size['T'] && shape[2] == size['H'] && shape[3] == size['K'];
}

PyObject *make_array(call *c, const Py_ssize_t *shape, int axes, PyObject *element, void **data)
{
    if (is_tensors(c) && is_like_q(c, shape, axes, element)) {
        PyObject *like = PyObject_CallFunctionObjArgs(c->maker->empty_like, c->value[Q], NULL);
        if (like) *data = data_of(c, like);
        return like;
    }
    PyObject *sizes = PyTuple_New(axes), *made;
    for (int a = 0; sizes && a < axes; a++)
        PyTuple_SetItem(sizes, a, PyLong_FromSsize_t(shape[a]));
    if (!sizes) return NULL;
    made = is_tensors(c) ? make_tensor(c, sizes, element)
                         : PyObject_CallFunctionObjArgs(c->maker->empty, sizes, element, NULL);
    Py_DECREF(sizes);
    if (made) *data = data_of(c, made);
    if (made && PyErr_Occurred()) Py_CLEAR(made);
    return made;
}

PyObject *make_bytes(call *c, size_t bytes, void **data)
{
    const size_t each = c->problem.dtype == LOAM_F64 ? 8 : c->problem.dtype == LOAM_F32 ? 4 : 2;
    PyObject *count = PyLong_FromSize_t(bytes / each + (bytes % each != 0));
    if (!count) return NULL;
    PyObject *made = PyObject_CallMethodObjArgs(c->value[Q], c->module->attribute.new_empty, count, NULL);
    Py_DECREF(count);
    if (made) *data = data_of(c, made);
    return made;
}

bool hold_bytes(call *c, int i, array *to)
{
    PyObject *dtype = dtype_of(c, i);
    if (!dtype) return false;
    Py_DECREF(dtype);
    return hold_array(c, i, dtype == c->element ? c->element : c->maker->bytes, to);
}

PyObject *swap_last_axes(const call *c, PyObject *state)
{
    const attributes *name = &c->module->attribute;
    PyObject *second = PyLong_FromLong(2), *third = PyLong_FromLong(3), *swapped = NULL;
    if (second && third)
        swapped = PyObject_CallMethodObjArgs(state, is_tensors(c) ? name->transpose : name->swapaxes, second,
                                             third, NULL);
    Py_XDECREF(second);
    Py_XDECREF(third);
    return swapped;
}

void let_go(call *c)
{
    for (int i = 0; i < COUNT; i++) {
        if (c->buffer[i].obj) PyBuffer_Release(&c->buffer[i]);
        free(c->copy[i]);
        free(c->ends[i]);
        Py_XDECREF(c->contiguous[i]);
        Py_XDECREF(c->out[i]);
    }
    free(c->in_use);
    if (!c->on_device) free(c->work);
    Py_XDECREF(c->element);
    Py_XDECREF(c->device);
}

/* Whether a tensor is among the inputs that requires a gradient, -1 after an error; `names` gets those of all
 * that are tensors and can have one. */
static int list_tensors(const module_state *module, PyObject *values, PyObject *names)
{
    int required = 0;
    for (int i = 0; i < GRAD_O; i++) {
        PyObject *value = PyDict_GetItemWithError(values, module->names[i]);
        if (!value && PyErr_Occurred()) return -1;
        if (!value || value == Py_None || PyObject_IsInstance(value, module->torch.type) != 1) continue;
        PyObject *requires = PyObject_GetAttr(value, module->attribute.requires_grad);
        const bool wants = requires == Py_True;
        Py_XDECREF(requires);
        if (wants && i >= INPUTS) {
            PyErr_Format(PyExc_ValueError, "%s: requires a gradient and has none, expected a tensor without",
                         PARAMETERS[i].name);
            return -1;
        }
        if (!requires || (i < INPUTS && PyList_Append(names, module->names[i]))) return -1;
        required |= wants;
    }
    return required;
}

PyObject *differentiable(PyObject *module, PyObject *values)
{
    PyObject *names = PyList_New(0);
    const int required = names ? list_tensors(PyModule_GetState(module), values, names) : -1;
    if (required > 0) return names;
    Py_XDECREF(names);
    return required < 0 ? NULL : Py_NewRef(Py_None);
}
