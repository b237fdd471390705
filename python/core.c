/* SPDX-License-Identifier: MIT
 * The extension module loam_attn._core. One call, run(mechanism, name=value, ...), is a forward of loam.h on
 * arrays of NumPy, told apart by their names alone; what a mechanism does not have, the library refuses.
 * Arrays come by the buffer protocol and are read where they lie, but those whose channels are not
 * contiguous, which are copied. Plans are cached by problem; the GIL guards the cache and is released while a
 * plan runs.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "loam.h"

enum { AXES = 4, PLANS = 64 };

/* ---------------------------------------------------------------- names */

typedef enum parameter_kind {
    ARRAY,       /* of loam_args: a view, of the problem's dtype */
    REAL_ARRAY,  /* likewise, of real */
    REAL_VECTOR, /* a pointer, to real */
    LENGTHS,     /* cu_seqlens */
    RIDGE,       /* a number or a view */
    REAL,        /* of loam_problem */
    SIZE,
    FLAG,
    NAME, /* an enumerator, by its name */
    WANTED
} parameter_kind;

static const char *name_score(int i) { return loam_score_name((loam_score)i); }
static const char *name_ridge_unit(int i) { return loam_ridge_unit_name((loam_ridge_unit)i); }
static const char *name_feature_map(int i) { return loam_feature_map_name((loam_feature_map)i); }
/* Arrays of NumPy are host memory. */
static const char *name_backend(int i)
{
    return i < LOAM_BACKEND_CUDA ? loam_backend_name((loam_backend)i) : NULL;
}
static const char *name_mechanism(int i) { return loam_mechanism_name((loam_mechanism)i); }

/* Axes: B batch, T tokens of queries, S of keys, H heads of queries, G of keys, V of recurrent values, K and
 * D channels of keys and values, N sequences, R rows of a state. The first array with an axis says its size.
 * `?` stands for what the mechanism says (log_decay) or the array (ridge). A state comes as [.., K, R]. */
typedef struct parameter {
    const char *name, *member; /* in Python; in loam.h where that is another */
    parameter_kind kind;
    size_t offset;
    const char *local, *recurrent; /* axes; NULL: the library refuses it */
    const char *(*named)(int);
} parameter;

#define ARGS(member) offsetof(loam_args, member)
#define PROBLEM(member) offsetof(loam_problem, member)

static const parameter PARAMETERS[] = {
    { "q", "q", ARRAY, ARGS(q), "BTHK", "BTHK", NULL },
    { "k", "k", ARRAY, ARGS(k), "BSGK", "BTHK", NULL },
    { "v", "v", ARRAY, ARGS(v), "BSGD", "BTVD", NULL },
    { "probe", "probe", ARRAY, ARGS(probe), "BTHK", "BTHK", NULL },
    { "w", "w", ARRAY, ARGS(w), "BSGK", "BTHK", NULL },
    { "g", "log_decay", REAL_ARRAY, ARGS(log_decay), "BSH", "?", NULL },
    { "beta", "beta", REAL_ARRAY, ARGS(beta), "BSG", "BTV", NULL },
    { "key_bias", "key_bias", REAL_ARRAY, ARGS(key_bias), "BSH", "BTH", NULL },
    { "slope", "slope", REAL_VECTOR, ARGS(slope), "H", "H", NULL },
    { "sink_bias", "sink", REAL_VECTOR, ARGS(sink), "H", "H", NULL },
    { "ridge", "ridge", RIDGE, ARGS(ridge), "?", "?", NULL },
    { "initial_state", "state_in", REAL_ARRAY, ARGS(state_in), "NHRK", "NVRK", NULL },
    { "cu_seqlens", "cu_q", LENGTHS, 0, "", "", NULL },
    { "scale", "scale", REAL, PROBLEM(scale), NULL, NULL, NULL },
    { "soft_cap", "soft_cap", REAL, PROBLEM(soft_cap), NULL, NULL, NULL },
    { "window_size", "window", SIZE, PROBLEM(window), NULL, NULL, NULL },
    { "causal", "causal", FLAG, PROBLEM(causal), NULL, NULL, NULL },
    { "normalize", "normalise", FLAG, PROBLEM(normalise), NULL, NULL, NULL },
    { "score", "score", NAME, PROBLEM(score), NULL, NULL, name_score },
    { "ridge_unit", "ridge_unit", NAME, PROBLEM(ridge_unit), NULL, NULL, name_ridge_unit },
    { "feature_map", "feature_map", NAME, PROBLEM(feature_map), NULL, NULL, name_feature_map },
    { "backend", "backend", NAME, PROBLEM(backend), NULL, NULL, name_backend },
    { "o", "o", WANTED, ARGS(o), "BTHD", "BTVD", NULL },
    { "output_final_state", "state_out", WANTED, ARGS(state_out), "NHRK", "NVRK", NULL },
    { "return_lse", "lse", WANTED, ARGS(lse), "BTH", "BTH", NULL },
    { "return_info", "info", WANTED, ARGS(info), "BTH", "BTV", NULL },
};
enum {
    COUNT = sizeof PARAMETERS / sizeof *PARAMETERS,
    STATE_IN = 11,
    CU_SEQLENS,
    O = COUNT - 4, /* the first of the outputs, which is always wanted */
    STATE_OUT,
    LSE,
    INFO
};

/* ---------------------------------------------------------------- the module */

typedef struct cached_plan {
    loam_problem problem;
    loam_plan *plan;
    uint64_t used; /* when last */
    int owners;    /* the cache, and each run */
} cached_plan;

typedef struct module_state {
    PyObject *names[COUNT]; /* interned */
    PyObject *empty;        /* numpy.empty */
    PyObject *element[4];   /* numpy.dtype of each loam_dtype; bfloat16: NULL, it is ml_dtypes' */
    PyObject *int32, *int64, *info;
    cached_plan *plans[PLANS];
    uint64_t clock;
    int threads;
} module_state;

/* What one call holds. */
typedef struct call {
    module_state *module;
    loam_mechanism_info info;
    loam_problem problem;
    loam_args args;
    PyObject *value[COUNT];
    PyObject *element; /* numpy.dtype of q */
    Py_ssize_t size[128];
    Py_buffer buffer[COUNT];
    void *copy[COUNT];
    int64_t *lengths;
    void *work;
    PyObject *out[COUNT];
} call;

static bool is_recurrent(const call *c) { return c->info.family == LOAM_FAMILY_RECURRENT; }

static bool raise_status(const call *c, const loam_error *error)
{
    PyObject *type = PyExc_RuntimeError;
    if (error->status == LOAM_EMEMORY) type = PyExc_MemoryError;
    if (error->status == LOAM_EARG || error->status == LOAM_ESHAPE || error->status == LOAM_EVALUE)
        type = PyExc_ValueError;
    /* The text begins with the argument, which has another name here. */
    size_t length = strcspn(error->text, " :[=,");
    for (int i = 0; c && i < COUNT; i++) {
        const char *member = PARAMETERS[i].member;
        if (strlen(member) == length && strncmp(member, error->text, length) == 0) {
            PyErr_Format(type, "%s%s", PARAMETERS[i].name, error->text + length);
            return false;
        }
    }
    PyErr_SetString(type, error->text);
    return false;
}

/* ---------------------------------------------------------------- plans */

static void release_plan(cached_plan *plan)
{
    if (!plan || --plan->owners > 0) return;
    loam_plan_destroy(plan->plan);
    free(plan);
}

/* The plan of the call's problem, which the caller releases. */
static cached_plan *find_plan(const call *c)
{
    module_state *module = c->module;
    int oldest = 0;
    for (int i = 0; i < PLANS; i++) {
        cached_plan *plan = module->plans[i];
        if (!plan) {
            oldest = i;
            break;
        }
        /* Unlike padding would only make a plan once more. */
        if (memcmp((const char *)&plan->problem, (const char *)&c->problem, sizeof plan->problem) == 0) {
            plan->used = ++module->clock;
            plan->owners++;
            return plan;
        }
        if (plan->used < module->plans[oldest]->used) oldest = i;
    }
    cached_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return (cached_plan *)PyErr_NoMemory();
    loam_error error;
    if (loam_plan_create(&plan->plan, &c->problem, &error)) {
        free(plan);
        raise_status(c, &error);
        return NULL;
    }
    memcpy(&plan->problem, &c->problem, sizeof plan->problem);
    plan->used = ++module->clock;
    plan->owners = 2;
    release_plan(module->plans[oldest]);
    module->plans[oldest] = plan;
    return plan;
}

/* ---------------------------------------------------------------- arrays in */

static PyObject *element_of(const call *c, parameter_kind kind)
{
    if (kind == ARRAY) return c->element;
    return c->module->element[c->problem.dtype == LOAM_F64 ? LOAM_F64 : LOAM_F32];
}

/* The dtype of an array; a new reference. */
static PyObject *dtype_of(const char *name, PyObject *array)
{
    PyObject *dtype = PyObject_GetAttrString(array, "dtype");
    if (!dtype) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s: %R, expected an array of NumPy", name, (PyObject *)Py_TYPE(array));
    }
    return dtype;
}

/* The loam_dtype of q's elements: of NumPy's own, or bfloat16 by its name. */
static bool read_dtype(call *c)
{
    if (!c->value[0]) {
        PyErr_SetString(PyExc_TypeError, "q: None, expected an array of NumPy");
        return false;
    }
    PyObject *dtype = dtype_of("q", c->value[0]);
    if (!dtype) return false;
    c->element = dtype;
    for (int i = 0; i < 4; i++) {
        const int equal = c->module->element[i]
                              ? PyObject_RichCompareBool(dtype, c->module->element[i], Py_EQ)
                              : 0;
        if (equal < 0) return false;
        if (equal) {
            c->problem.dtype = (loam_dtype)i;
            return true;
        }
    }
    PyObject *name = PyObject_GetAttrString(dtype, "name");
    if (!name) return false;
    const bool is_bf16 = PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "bfloat16") == 0;
    Py_DECREF(name);
    c->problem.dtype = LOAM_BF16;
    if (!is_bf16)
        PyErr_Format(PyExc_TypeError, "q: dtype %S, expected float16, float32, float64 or bfloat16", dtype);
    return is_bf16;
}

static bool hold_array(call *c, int i, PyObject *element)
{
    PyObject *array = c->value[i];
    PyObject *dtype = dtype_of(PARAMETERS[i].name, array);
    if (!dtype) return false;
    const int equal = dtype == element ? 1 : PyObject_RichCompareBool(dtype, element, Py_EQ);
    if (equal == 0)
        PyErr_Format(PyExc_TypeError, "%s: dtype %S, expected %S", PARAMETERS[i].name, dtype, element);
    Py_DECREF(dtype);
    if (equal != 1) return false;
    if (PyObject_GetBuffer(array, &c->buffer[i], PyBUF_STRIDES)) {
        c->buffer[i].obj = NULL;
        return false;
    }
    return true;
}

/* "[2, 7, H, 8]": sizes that are known, and names of axes that are not; `shape` where it is given. */
static void write_shape(char text[static 96], const call *c, const char *axes, const Py_ssize_t *shape, int n)
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

/* The strides of the axes, of which a state's last two change places. False: the shape is another. */
static bool read_shape(call *c, int i, const char *axes, Py_ssize_t shape[AXES], Py_ssize_t stride[AXES])
{
    const Py_buffer *buffer = &c->buffer[i];
    const int n = (int)strlen(axes);
    char shown[AXES + 1] = "", expected[96], found[96];
    memcpy(shown, axes, (size_t)n);
    const bool is_state = strchr(axes, 'R');
    if (is_state) shown[n - 2] = axes[n - 1], shown[n - 1] = axes[n - 2];
    write_shape(expected, c, shown, NULL, n);
    bool fits = buffer->ndim == n;
    for (int a = 0; fits && a < n; a++) {
        const int from = is_state && a >= n - 2 ? 2 * n - 3 - a : a;
        shape[a] = buffer->shape[from], stride[a] = buffer->strides[from];
        Py_ssize_t *size = &c->size[(int)axes[a]];
        if (*size < 0) *size = shape[a];
        fits = *size == shape[a];
    }
    if (!fits) {
        write_shape(found, c, shown, buffer->shape, buffer->ndim < 8 ? buffer->ndim : 8);
        PyErr_Format(PyExc_ValueError, "%s: shape %s, expected %s", PARAMETERS[i].name, found, expected);
    }
    return fits;
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

/* The data as the library reads it, copied where they lie otherwise: channels and vectors are contiguous, and
 * elements are aligned. */
static const void *readable(call *c, int i, bool contiguous, const Py_ssize_t *shape, Py_ssize_t *stride,
                            int n)
{
    const Py_buffer *buffer = &c->buffer[i];
    bool fits = (uintptr_t)buffer->buf % (size_t)buffer->itemsize == 0;
    for (int a = 0; a < n; a++)
        fits = fits && (shape[a] <= 1 || stride[a] % buffer->itemsize == 0);
    if (contiguous) fits = fits && (shape[n - 1] <= 1 || stride[n - 1] == buffer->itemsize);
    if (fits) return buffer->buf;
    size_t bytes = (size_t)buffer->itemsize;
    Py_ssize_t dense[AXES];
    for (int a = n - 1; a >= 0; a--) {
        dense[a] = (Py_ssize_t)bytes;
        /* The product with a size of 0 is 0, as is that of the array. */
        if (__builtin_mul_overflow(bytes, (size_t)shape[a], &bytes)) return PyErr_NoMemory();
    }
    c->copy[i] = malloc(bytes ? bytes : 1);
    if (!c->copy[i]) return PyErr_NoMemory();
    if (bytes) gather(c->copy[i], buffer->buf, shape, stride, n, (size_t)buffer->itemsize);
    memcpy(stride, dense, sizeof *stride * (size_t)n);
    return c->copy[i];
}

/* View of axes: where the strides go follows from their names. */
static loam_const_view view_of(const void *data, const char *axes, const Py_ssize_t *stride, Py_ssize_t bytes)
{
    loam_const_view view = { data, 0, 0, 0 };
    for (int a = 0; axes[a]; a++) {
        const int64_t elements = stride[a] / bytes;
        if (strchr("BN", axes[a])) view.batch = elements;
        if (strchr("HGV", axes[a])) view.head = elements;
        if (strchr("TSR", axes[a])) view.token = elements;
    }
    return view;
}

/* Axes of a ridge by its number of axes, and of a log decay by the mechanism. */
static const char *axes_of(call *c, int i)
{
    const parameter *p = &PARAMETERS[i];
    const char *axes = is_recurrent(c) ? p->recurrent : p->local;
    if (*axes != '?') return axes;
    if (p->kind != RIDGE) {
        const char *of_decay[] = { "BTV", "V", "BTV", "BTVK" };
        return of_decay[c->info.log_decay];
    }
    static const struct {
        const char *axes;
        loam_ridge_axes name;
    } local[] = { { "H", LOAM_RIDGE_HEAD },
                  { "HK", LOAM_RIDGE_HEAD_CHANNEL },
                  { "BTH", LOAM_RIDGE_TOKEN },
                  { "BTHK", LOAM_RIDGE_CHANNEL } };
    const int n = c->buffer[i].ndim;
    const int row = n < 1 || n > AXES ? 0 : n - 1;
    c->problem.ridge_axes = local[row].name;
    if (!is_recurrent(c)) return local[row].axes;
    return row == 0 ? "V" : row == 1 ? "VK" : local[row].axes;
}

static bool read_array(call *c, int i)
{
    const parameter *p = &PARAMETERS[i];
    if (!hold_array(c, i, element_of(c, p->kind))) return false;
    const char *axes = axes_of(c, i);
    Py_ssize_t shape[AXES], stride[AXES];
    if (!read_shape(c, i, axes, shape, stride)) return false;
    const int n = (int)strlen(axes);
    const bool contiguous = p->kind == REAL_VECTOR || strchr("KD", axes[n - 1]);
    const void *data = readable(c, i, contiguous, shape, stride, n);
    if (!data) return false;
    char *member = (char *)&c->args + p->offset;
    if (p->kind == REAL_VECTOR) {
        memcpy(member, &data, sizeof data);
    } else {
        const loam_const_view view = view_of(data, axes, stride, c->buffer[i].itemsize);
        memcpy(member, &view, sizeof view);
    }
    return true;
}

/* The ends of packed sequences, of int32 or int64, and the longest. */
static bool read_lengths(call *c)
{
    const int i = CU_SEQLENS;
    PyObject *dtype = dtype_of("cu_seqlens", c->value[i]);
    if (!dtype) return false;
    const int narrow = PyObject_RichCompareBool(dtype, c->module->int32, Py_EQ);
    Py_DECREF(dtype);
    if (narrow < 0 || !hold_array(c, i, narrow ? c->module->int32 : c->module->int64)) return false;
    const Py_buffer *buffer = &c->buffer[i];
    if (buffer->ndim != 1 || buffer->shape[0] < 1) {
        PyErr_SetString(PyExc_ValueError, "cu_seqlens: expected [N + 1] ends, from 0");
        return false;
    }
    const Py_ssize_t n = buffer->shape[0];
    c->lengths = malloc((size_t)n * sizeof *c->lengths);
    if (!c->lengths) return PyErr_NoMemory();
    for (Py_ssize_t x = 0; x < n; x++) {
        const char *from = (const char *)buffer->buf + x * buffer->strides[0];
        int32_t small;
        memcpy(narrow ? (void *)&small : &c->lengths[x], from, narrow ? sizeof small : sizeof *c->lengths);
        if (narrow) c->lengths[x] = small;
    }
    c->size['N'] = n - 1;
    return true;
}

/* ---------------------------------------------------------------- options */

static bool refuse(int i, PyObject *value, const char *expected)
{
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s: %R, expected %s", PARAMETERS[i].name, value, expected);
    return false;
}

static bool read_real(const call *c, int i, double *to)
{
    const double number = PyFloat_AsDouble(c->value[i]);
    if (PyErr_Occurred()) return refuse(i, c->value[i], "a number");
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
    if (PyErr_Occurred()) return refuse(i, c->value[i], "an integer");
    *to = number;
    return true;
}

static bool read_flag(const call *c, int i, int *to)
{
    *to = PyObject_IsTrue(c->value[i]);
    return *to >= 0;
}

/* The enumerator with this name. */
static bool read_name(const char *what, PyObject *value, const char *(*named)(int), int *to)
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

static bool read_option(call *c, int i)
{
    const parameter *p = &PARAMETERS[i];
    char *member = (char *)&c->problem + p->offset;
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

/* ---------------------------------------------------------------- a call */

static PyObject *given(const call *c, const char *name)
{
    for (int i = 0; i < COUNT; i++)
        if (strcmp(PARAMETERS[i].name, name) == 0) return c->value[i];
    return NULL;
}

static bool read_arrays(call *c)
{
    const bool packed = c->lengths;
    if (packed) c->size['B'] = 1;
    for (int i = 0; i < O; i++) {
        const parameter_kind kind = PARAMETERS[i].kind;
        if (i < 3 && !c->value[i]) return refuse(i, Py_None, "an array of NumPy");
        if (!c->value[i] || kind > RIDGE || kind == LENGTHS || i == STATE_IN) continue;
        const bool is_number = kind == RIDGE && (PyFloat_Check(c->value[i]) || PyLong_Check(c->value[i]));
        if (!(is_number ? read_real(c, i, &c->problem.ridge) : read_array(c, i))) return false;
        if (i == 0 && !packed) c->size['N'] = c->size['B'];
    }
    return true;
}

static void describe_problem(call *c)
{
    loam_problem *p = &c->problem;
    const Py_ssize_t *size = c->size;
    const bool recurrent = is_recurrent(c);
    p->batch = size['N'];
    p->heads_q = size['H'], p->heads_kv = recurrent ? size['H'] : size['G'];
    p->len_q = size['T'], p->len_kv = recurrent ? size['T'] : size['S'];
    p->dim_qk = size['K'], p->dim_v = size['D'];
    p->threads = c->module->threads;
    if (recurrent) {
        p->heads_v = size['V'];
    } else {
        p->decay = given(c, "g") != NULL, p->path = given(c, "w") != NULL;
        p->slope = c->args.slope != NULL, p->key_bias = c->args.key_bias.data != NULL;
        p->sink = c->args.sink != NULL;
    }
    if (!c->lengths) return;
    int64_t longest = 0;
    for (int64_t n = 0; n < p->batch; n++) {
        /* What does not ascend is refused by the run, whatever the longest is. */
        const int64_t first = c->lengths[n], end = c->lengths[n + 1];
        if (first >= 0 && end <= p->len_q && end - first > longest) longest = end - first;
    }
    p->total_q = p->len_q, p->total_kv = p->len_kv;
    p->len_q = p->len_kv = longest;
    c->args.cu_q = c->lengths;
    if (!recurrent) c->args.cu_kv = c->lengths;
}

/* A new array for output `i`, and its view in args. */
static bool make_output(call *c, int i)
{
    const parameter *p = &PARAMETERS[i];
    const char *axes = is_recurrent(c) ? p->recurrent : p->local;
    const Py_ssize_t n = (Py_ssize_t)strlen(axes);
    PyObject *shape = PyTuple_New(n);
    for (Py_ssize_t a = 0; shape && a < n; a++)
        PyTuple_SetItem(shape, a, PyLong_FromSsize_t(c->size[(int)axes[a]]));
    if (!shape) return false;
    PyObject *element = i == O ? c->element : i == INFO ? c->module->info : element_of(c, REAL_ARRAY);
    c->out[i] = PyObject_CallFunctionObjArgs(c->module->empty, shape, element, NULL);
    Py_DECREF(shape);
    if (!c->out[i]) return false;
    Py_buffer *buffer = &c->buffer[i];
    if (PyObject_GetBuffer(c->out[i], buffer, PyBUF_STRIDES | PyBUF_WRITABLE)) {
        buffer->obj = NULL;
        return false;
    }
    const loam_const_view view = view_of(buffer->buf, axes, buffer->strides, buffer->itemsize);
    memcpy((char *)&c->args + p->offset, &view, sizeof view);
    return true;
}

static bool run_plan(call *c, const loam_plan *plan)
{
    c->size['R'] = loam_plan_state_rows(plan);
    if (c->value[STATE_IN] && !read_array(c, STATE_IN)) return false;
    for (int i = O; i < COUNT; i++) {
        const int wanted = i == O ? 1 : c->value[i] ? PyObject_IsTrue(c->value[i]) : 0;
        if (wanted < 0 || (wanted && !make_output(c, i))) return false;
    }
    const size_t bytes = loam_plan_work_bytes(plan);
    if (bytes) {
        c->work = aligned_alloc(LOAM_ALIGN, bytes);
        if (!c->work) return PyErr_NoMemory();
    }
    c->args.work = c->work;
    loam_error error;
    loam_status status;
    Py_BEGIN_ALLOW_THREADS status = loam_run(plan, &c->args, &error);
    Py_END_ALLOW_THREADS return !status || raise_status(c, &error);
}

/* o alone, or a tuple of it and what else was wanted; recurrences always have a final state, or None. */
static PyObject *results(call *c)
{
    if (c->out[STATE_OUT]) {
        PyObject *turned = PyObject_CallMethod(c->out[STATE_OUT], "swapaxes", "ii", 2, 3);
        if (!turned) return NULL;
        Py_DECREF(c->out[STATE_OUT]);
        c->out[STATE_OUT] = turned;
    } else if (is_recurrent(c)) {
        c->out[STATE_OUT] = Py_NewRef(Py_None);
    }
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

static void finish(call *c)
{
    for (int i = 0; i < COUNT; i++) {
        if (c->buffer[i].obj) PyBuffer_Release(&c->buffer[i]);
        free(c->copy[i]);
        Py_XDECREF(c->out[i]);
    }
    free(c->lengths);
    free(c->work);
    Py_XDECREF(c->element);
}

/* Which parameter has this name; None is as good as not given. */
static bool keep_value(call *c, PyObject *name, PyObject *value)
{
    int i = 0;
    while (i < COUNT && c->module->names[i] != name)
        i++;
    /* Names in source code are interned, as those of the module are; others need not be. */
    for (int k = 0; i == COUNT && k < COUNT; k++)
        if (PyUnicode_Compare(c->module->names[k], name) == 0) i = k;
    if (i == COUNT || i == O) {
        PyErr_Format(PyExc_TypeError, "run() has no argument %R", name);
        return false;
    }
    c->value[i] = value == Py_None ? NULL : value;
    return true;
}

static PyObject *run_call(call *c)
{
    if (!read_dtype(c)) return NULL;
    for (int i = 0; i < COUNT; i++)
        if (c->value[i] && !read_option(c, i)) return NULL;
    if (c->value[CU_SEQLENS] && !read_lengths(c)) return NULL;
    if (!read_arrays(c)) return NULL;
    describe_problem(c);
    cached_plan *plan = find_plan(c);
    if (!plan) return NULL;
    const bool done = run_plan(c, plan->plan);
    release_plan(plan);
    return done ? results(c) : NULL;
}

static PyObject *run(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    call c;
    memset(&c, 0, sizeof c);
    c.module = PyModule_GetState(module);
    int mechanism;
    if (count != 1)
        return PyErr_Format(PyExc_TypeError, "run() has one argument without a name: the mechanism");
    if (!read_name("mechanism", args[0], name_mechanism, &mechanism)) return NULL;
    c.problem = loam_problem_default((loam_mechanism)mechanism, LOAM_FORWARD);
    loam_mechanism_at(mechanism, &c.info);
    for (size_t a = 0; a < sizeof c.size / sizeof *c.size; a++)
        c.size[a] = -1;
    const Py_ssize_t n = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t a = 0; a < n; a++)
        if (!keep_value(&c, PyTuple_GetItem(names, a), args[1 + a])) return NULL;
    PyObject *result = run_call(&c);
    finish(&c);
    return result;
}

/* ---------------------------------------------------------------- threads, and the module */

static PyObject *set_num_threads(PyObject *module, PyObject *value)
{
    const long threads = PyLong_AsLong(value);
    if (PyErr_Occurred()) return NULL;
    if (threads < 1 || threads > INT_MAX)
        return PyErr_Format(PyExc_ValueError, "threads: %ld, expected 1 or more", threads);
    ((module_state *)PyModule_GetState(module))->threads = (int)threads;
    return Py_NewRef(Py_None);
}

static PyObject *get_num_threads(PyObject *module, PyObject *unused)
{
    (void)unused;
    const int threads = ((module_state *)PyModule_GetState(module))->threads;
    return PyLong_FromLong(threads ? threads : loam_max_threads());
}

static void free_module(void *module)
{
    module_state *state = PyModule_GetState(module);
    if (!state) return;
    PyObject *owned[] = { state->empty, state->int32, state->int64, state->info };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        Py_XDECREF(owned[i]);
    for (int i = 0; i < COUNT; i++)
        Py_XDECREF(state->names[i]);
    for (int i = 0; i < 4; i++)
        Py_XDECREF(state->element[i]);
    for (int i = 0; i < PLANS; i++)
        release_plan(state->plans[i]);
}

static bool fill_state(module_state *state)
{
    for (int i = 0; i < COUNT; i++)
        if (!(state->names[i] = PyUnicode_InternFromString(PARAMETERS[i].name))) return false;
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (!numpy) return false;
    state->empty = PyObject_GetAttrString(numpy, "empty");
    state->element[LOAM_F32] = PyObject_CallMethod(numpy, "dtype", "s", "float32");
    state->element[LOAM_F16] = PyObject_CallMethod(numpy, "dtype", "s", "float16");
    state->element[LOAM_F64] = PyObject_CallMethod(numpy, "dtype", "s", "float64");
    state->int32 = PyObject_CallMethod(numpy, "dtype", "s", "int32");
    state->int64 = PyObject_CallMethod(numpy, "dtype", "s", "int64");
    /* loam_row_info */
    state->info = PyObject_CallMethod(numpy, "dtype", "[(ss)(ss)(ss)(ss)]", "code", "int32", "solver",
                                      "int32", "iterations", "int32", "residual", "float32");
    Py_DECREF(numpy);
    return !PyErr_Occurred();
}

static PyMethodDef METHODS[] = {
    { "run", (PyCFunction)(void (*)(void))run, METH_FASTCALL | METH_KEYWORDS,
      "run(mechanism, name=value, ...): a forward of loam.h." },
    { "set_num_threads", set_num_threads, METH_O, "Threads of each call from now on." },
    { "get_num_threads", get_num_threads, METH_NOARGS, "Threads of each call." },
    { NULL, NULL, 0, NULL },
};

static PyModuleDef MODULE = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "loam_attn._core",
    .m_size = sizeof(module_state),
    .m_methods = METHODS,
    .m_free = free_module,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&MODULE);
    if (!module) return NULL;
    module_state *state = PyModule_GetState(module);
    memset(state, 0, sizeof *state);
    if (!fill_state(state) || PyModule_AddStringConstant(module, "version", loam_version())) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
