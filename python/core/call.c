/* SPDX-License-Identifier: MIT
 * One call: its arguments by name, its problem, its plan, and the run. */
#include "python/core/core.h"

#include <limits.h>
#include <stdlib.h>

static bool read_saved(call *c)
{
    PyObject *saved = c->value[SAVED_IN];
    if (!saved) return true;
    if (!is_tensors(c)) {
        c->args.saved = PyCapsule_GetPointer(saved, "loam.saved");
        return c->args.saved;
    }
    array x;
    if (!hold_array(c, SAVED_IN, c->maker->bytes, &x)) return false;
    memcpy(&c->args.saved, &x.data, sizeof x.data);
    return true;
}

static bool read_ridge(call *c)
{
    PyObject *value = c->value[RIDGE_OF_ROWS];
    const bool is_number = PyFloat_Check(value) || PyLong_Check(value);
    return is_number ? read_real(c, RIDGE_OF_ROWS, &c->problem.ridge) : read_array(c, RIDGE_OF_ROWS);
}

static bool read_inputs(call *c)
{
    if (c->packed) c->size['B'] = 1;
    for (int i = 0; i < ARRAYS; i++) {
        if (i <= V && !c->value[i])
            return refuse_type(i, Py_None, is_tensors(c) ? "a tensor of PyTorch" : "an array of NumPy");
        /* A state's rows are known when there is a plan. */
        if (!c->value[i] || i == STATE_IN || i == GRAD_STATE) continue;
        if (!(i == RIDGE_OF_ROWS ? read_ridge(c) : read_array(c, i))) return false;
        if (i == Q && !c->packed) c->size['N'] = c->size['B'];
    }
    return true;
}

/* The longest of packed sequences; what does not ascend is refused by the run, whatever that is. */
static int64_t longest(const call *c, int64_t total)
{
    /* The lengths are on the device, and this is an upper bound. */
    if (!c->lengths) return c->max_seqlen ? c->max_seqlen : total;
    int64_t most = 0;
    for (Py_ssize_t n = 0; n < c->size['N']; n++) {
        const int64_t first = c->lengths[n], end = c->lengths[n + 1];
        if (first >= 0 && end <= total && end - first > most) most = end - first;
    }
    return most;
}

static bool choose_backend(call *c)
{
    loam_backend *backend = &c->problem.backend;
    if (!c->on_device && *backend == LOAM_BACKEND_CUDA) {
        PyErr_SetString(PyExc_ValueError, "backend: 'cuda', expected one of auto, reference, cpu: "
                                          "arrays are in host memory");
        return false;
    }
    if (c->on_device && *backend != LOAM_BACKEND_AUTO && *backend != LOAM_BACKEND_CUDA) {
        PyErr_Format(PyExc_ValueError, "backend: %R, expected one of auto, cuda: tensors are on %S",
                     c->value[OPTIONS + 8], c->device);
        return false;
    }
    if (c->on_device) *backend = LOAM_BACKEND_CUDA;
    return true;
}

bool choose_threads(call *c)
{
    c->problem.threads = c->module->threads;
    if (c->problem.threads || !is_tensors(c) || c->on_device) return true;
    PyObject *threads = PyObject_CallNoArgs(c->module->torch_threads);
    c->problem.threads = threads ? (int)PyLong_AsLong(threads) : 0;
    Py_XDECREF(threads);
    return !PyErr_Occurred();
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
    if (recurrent) {
        p->heads_v = size['V'];
    } else {
        p->decay = c->value[G] != NULL, p->path = c->value[W] != NULL;
        p->slope = c->value[SLOPE] != NULL, p->key_bias = c->value[KEY_BIAS] != NULL;
        p->sink = c->value[SINK] != NULL;
    }
    if (!c->packed) return;
    p->total_q = p->len_q, p->total_kv = p->len_kv;
    p->len_q = p->len_kv = longest(c, p->total_q);
    if (!recurrent) c->args.cu_kv = c->args.cu_q;
}

/* How many keys are in use, the same for all sequences. */
static bool fill_in_use(call *c)
{
    if (!c->value[OPTIONS + 9]) return true;
    const size_t n = (size_t)c->size['B'];
    c->in_use = malloc((n ? n : 1) * sizeof *c->in_use);
    if (!c->in_use) return PyErr_NoMemory();
    for (size_t b = 0; b < n; b++)
        c->in_use[b] = c->keys;
    c->args.lens_kv = c->in_use;
    return true;
}

static bool make_work(call *c, size_t bytes)
{
    if (!bytes) return true;
    if (c->on_device) {
        /* Of PyTorch's allocator, which gives it to the same stream again. */
        const Py_ssize_t shape[] = { (Py_ssize_t)bytes };
        c->contiguous[O] = make_array(c, shape, 1, c->maker->bytes, &c->work);
        return c->contiguous[O];
    }
    c->work = aligned_alloc(LOAM_ALIGN, bytes);
    return c->work || PyErr_NoMemory();
}

static bool run_plan(call *c, const loam_plan *plan)
{
    c->size['R'] = loam_plan_state_rows(plan);
    for (int i = STATE_IN; i <= GRAD_STATE; i += GRAD_STATE - STATE_IN)
        if (c->value[i] && !read_array(c, i)) return false;
    const bool made = c->problem.pass == LOAM_BACKWARD ? make_gradients(c) : make_outputs(c, plan);
    if (!made || !make_work(c, loam_plan_work_bytes(plan))) return false;
    c->args.work = c->work;
    c->args.stream = (void *)(uintptr_t)c->stream;
    loam_error error;
    loam_status status;
    Py_BEGIN_ALLOW_THREADS status = loam_run(plan, &c->args, &error);
    Py_END_ALLOW_THREADS return !status || raise_status(c, &error);
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
    if (i == COUNT || i == O || i == POSITIONS) {
        PyErr_Format(PyExc_TypeError, "run() has no argument %R", name);
        return false;
    }
    c->value[i] = value == Py_None ? NULL : value;
    return true;
}

static cached_plan *read_call(call *c)
{
    if (!read_element(c)) return NULL;
    for (int i = OPTIONS; i < O; i++)
        if (c->value[i] && !read_option(c, i)) return NULL;
    if (c->value[CU_SEQLENS] && !read_lengths(c)) return NULL;
    if (!choose_backend(c) || !choose_threads(c) || !read_inputs(c)) return NULL;
    if (!read_saved(c) || !fill_in_use(c)) return NULL;
    describe_problem(c);
    return find_plan(c);
}

static bool begin(call *c, PyObject *module, loam_pass pass, PyObject *const *args, Py_ssize_t count,
                  PyObject *names)
{
    memset(c, 0, sizeof *c);
    c->module = PyModule_GetState(module);
    int mechanism;
    if (count != 1) {
        PyErr_SetString(PyExc_TypeError, "run() has one argument without a name: the mechanism");
        return false;
    }
    if (!read_name("mechanism", args[0], (const char *(*)(int))loam_mechanism_name, &mechanism)) return false;
    c->problem = loam_problem_default((loam_mechanism)mechanism, pass);
    loam_mechanism_at(mechanism, &c->info);
    for (size_t a = 0; a < sizeof c->size / sizeof *c->size; a++)
        c->size[a] = -1;
    const Py_ssize_t n = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t a = 0; a < n; a++)
        if (!keep_value(c, PyTuple_GetItem(names, a), args[1 + a])) return false;
    return true;
}

static PyObject *run(PyObject *module, loam_pass pass, PyObject *const *args, Py_ssize_t count,
                     PyObject *names)
{
    call c;
    if (!begin(&c, module, pass, args, count, names)) return NULL;
    PyObject *result = NULL;
    cached_plan *plan = read_call(&c);
    if (plan && run_plan(&c, plan->plan)) result = pass == LOAM_BACKWARD ? gradients(&c) : results(&c);
    release_plan(plan);
    let_go(&c);
    return result;
}

PyObject *run_forward(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    return run(module, LOAM_FORWARD, args, count, names);
}

PyObject *run_decode(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    return run(module, LOAM_DECODE, args, count, names);
}

PyObject *run_backward(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    return run(module, LOAM_BACKWARD, args, count, names);
}
