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
    if (!hold_bytes(c, SAVED_IN, &x)) return false;
    memcpy(&c->args.saved, &x.data, sizeof x.data);
    return true;
}

static bool read_ridge(call *c, int i, double *number)
{
    PyObject *value = c->value[i];
    const bool is_number = PyFloat_Check(value) || PyLong_Check(value);
    return is_number ? read_real(c, i, number) : read_array(c, i);
}

static bool read_input(call *c, int i)
{
    if (i == SCALE) {
        c->axes[i] = PARAMETERS[i].local;
        return read_real(c, i, &c->problem.scale);
    }
    if (i == RIDGE_OF_ROWS) return read_ridge(c, i, &c->problem.ridge);
    if (i == LINEAR_RIDGE) return read_ridge(c, i, &c->linear.ridge);
    return read_array(c, i);
}

/* Sizes that are others. */
static void share_sizes(call *c, int i)
{
    Py_ssize_t *size = c->size;
    if (i == Q && !c->packed) size['N'] = size['B'];
    if (i == Q && is_interpolation(c)) size['S'] = size['T'], size['G'] = size['V'] = size['H'];
    if (i == Q && is_part(c)) size['S'] = (Py_ssize_t)c->total;
    if (i == Q && c->hybrid) size['Y'] = (Py_ssize_t)(c->sinks + c->problem.window);
    if (i == K && has_features(c)) {
        size['F'] = c->problem.features_shared ? size['G'] : size['H'];
        size['J'] = size['K'];
    }
}

static bool read_inputs(call *c)
{
    if (c->packed) c->size['B'] = 1;
    for (int i = 0; i < ARRAYS; i++) {
        if (i <= V && !c->value[i])
            return refuse_type(i, Py_None, is_tensors(c) ? "a tensor of PyTorch" : "an array of NumPy");
        /* A state's rows are known when there is a plan. */
        if (!c->value[i] || i == STATE_IN || i == GRAD_STATE) continue;
        if (!read_input(c, i)) return false;
        share_sizes(c, i);
    }
    return true;
}

/* The longest of packed sequences; what does not ascend is refused by the run, whatever that is. */
static int64_t longest(const call *c, const int64_t *ends, int64_t given, int64_t total)
{
    /* The lengths are on the device, and this is an upper bound. */
    if (!ends) return given ? given : total;
    int64_t most = 0;
    for (Py_ssize_t n = 0; n < c->size['N']; n++) {
        const int64_t first = ends[n], end = ends[n + 1];
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
                     c->value[BACKEND], device_of(c));
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
    p->heads_q = size['H'], p->heads_kv = recurrent && !has_features(c) ? size['H'] : size['G'];
    p->len_q = size['T'], p->len_kv = recurrent ? size['T'] : size['S'];
    p->dim_qk = size['K'], p->dim_v = size['D'];
    if (has_features(c)) {
        p->features = c->value[Z] ? size['M'] : 0;
        if (c->hybrid) c->window = p->window, p->window = 0;
    } else if (recurrent) {
        p->heads_v = size['V'];
    } else {
        p->decay = c->value[G] != NULL, p->path = c->value[W] != NULL;
        p->slope = c->value[SLOPE] != NULL, p->key_bias = c->value[KEY_BIAS] != NULL;
        p->sink = c->value[SINK] != NULL;
    }
    if (!c->packed) return;
    p->total_q = p->len_q, p->total_kv = p->len_kv;
    p->len_q = p->len_kv = longest(c, c->ends[CU_SEQLENS], c->max_seqlen, p->total_q);
    if (c->value[CU_SEQLENS_K])
        p->len_kv = longest(c, c->ends[CU_SEQLENS_K], c->max_seqlen_k, p->total_kv);
    else if (!recurrent)
        c->args.cu_kv = c->args.cu_q;
}

/* The recurrence of an interpolation has the sizes of the local mechanism. */
static void describe_linear(call *c)
{
    if (!is_interpolation(c)) return;
    loam_problem *p = &c->linear;
    const loam_problem *local = &c->problem;
    p->dtype = local->dtype, p->batch = local->batch;
    p->heads_q = p->heads_kv = local->heads_q;
    p->len_q = p->len_kv = local->len_q;
    p->dim_qk = local->dim_qk, p->dim_v = local->dim_v;
    p->total_q = p->total_kv = local->total_q;
    p->backend = local->backend, p->threads = local->threads;
}

/* States are of the recurrence, whatever reads and makes them. */
static void move_states(call *c)
{
    if (!is_interpolation(c)) return;
    loam_args *from = &c->args, *to = &c->linear_args;
    to->state_in = from->state_in, to->state_out = from->state_out;
    to->grad_state_in = from->grad_state_in, to->grad_state_out = from->grad_state_out;
    const loam_const_view none = { 0 };
    const loam_view nowhere = { 0 };
    from->state_in = from->grad_state_out = none;
    from->state_out = from->grad_state_in = nowhere;
}

/* How many keys are in use, the same for all sequences. */
static bool fill_in_use(call *c)
{
    if (!c->value[KEYS]) return true;
    const size_t n = (size_t)c->size['B'];
    c->in_use = malloc((n ? n : 1) * sizeof *c->in_use);
    if (!c->in_use) return PyErr_NoMemory();
    for (size_t b = 0; b < n; b++)
        c->in_use[b] = c->keys;
    c->args.lens_kv = c->in_use;
    return true;
}

bool make_work(call *c, size_t bytes)
{
    if (!bytes) return true;
    if (c->on_device) {
        /* Of PyTorch's allocator, which gives it to the same stream again. */
        c->contiguous[O] = make_bytes(c, bytes, &c->work);
        return c->contiguous[O];
    }
    c->work = aligned_alloc(LOAM_ALIGN, bytes);
    return c->work || PyErr_NoMemory();
}

static loam_status run_either(const cached_plan *plan, const call *c, loam_error *error)
{
    if (plan->hybrid) return loam_hybrid_run(plan->hybrid, &c->args, &c->hybrid_args, error);
    if (plan->plan) return loam_run(plan->plan, &c->args, error);
    return loam_interpolation_run(plan->interpolation, &c->args, &c->linear_args, error);
}

/* A hybrid's step goes on in the memory of its state: an array that was copied would be read, and lost. */
static bool go_on(call *c)
{
    for (int i = 0; i < ARRAYS; i++) {
        if (i != STATE_IN && i != NEAR_KEYS && i != NEAR_VALUES) continue;
        if (c->value[i] && !c->copy[i] && !c->contiguous[i]) continue;
        PyErr_Format(PyExc_ValueError, "%s: expected as a step before left it", PARAMETERS[i].name);
        return false;
    }
    memcpy(&c->args.state_out, &c->args.state_in, sizeof c->args.state_out);
    return true;
}

static bool run_plan(call *c, const cached_plan *plan)
{
    c->size['R'] = plan->state_rows;
    c->size['E'] = c->size['M'] + 1;
    for (int i = STATE_IN; i <= GRAD_STATE; i += GRAD_STATE - STATE_IN)
        if (c->value[i] && !read_array(c, i)) return false;
    if (c->hybrid && c->problem.pass == LOAM_DECODE && !go_on(c)) return false;
    const bool made = c->problem.pass == LOAM_BACKWARD ? make_gradients(c) : make_outputs(c, plan);
    if (!made || !make_work(c, plan->work_bytes)) return false;
    move_states(c);
    c->args.work = c->work;
    c->args.stream = (void *)(uintptr_t)c->stream;
    loam_error error;
    loam_status status;
    Py_BEGIN_ALLOW_THREADS status = run_either(plan, c, &error);
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
    if (i == COUNT || i == O || i == POSITIONS || i == LINEAR_INFO || i == NEAR_KEYS_OUT ||
        i == NEAR_VALUES_OUT) {
        PyErr_Format(PyExc_TypeError, "run() has no argument %R", name);
        return false;
    }
    c->value[i] = value == Py_None ? NULL : value;
    return true;
}

cached_plan *read_call(call *c)
{
    if (!read_element(c) || (is_interpolation(c) && !read_linear(c))) return NULL;
    if (c->value[BACKEND] && !read_backend(c)) return NULL;
    for (int i = OPTIONS; i < O; i++)
        if (c->value[i] && !read_option(c, i)) return NULL;
    if (!read_lengths(c) || !choose_backend(c) || !choose_threads(c) || !read_inputs(c)) return NULL;
    if (!read_counts(c, KEY_LENGTHS) || !read_counts(c, SEEN) || !read_saved(c) || !fill_in_use(c))
        return NULL;
    describe_problem(c);
    describe_linear(c);
    return find_plan(c);
}

bool begin(call *c, PyObject *module, loam_pass pass, PyObject *const *args, Py_ssize_t count)
{
    memset(c, 0, sizeof *c);
    c->module = PyModule_GetState(module);
    if (count != 2 || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "run() has two arguments: the mechanism, and a dict");
        return false;
    }
    int mechanism = LOAM_LINEAR;
    c->hybrid = PyUnicode_Check(args[0]) && PyUnicode_CompareWithASCIIString(args[0], "hybrid") == 0;
    if (!c->hybrid && !read_name("mechanism", args[0], (const char *(*)(int))loam_mechanism_name, &mechanism))
        return false;
    c->problem = loam_problem_default((loam_mechanism)mechanism, pass);
    if (c->hybrid) c->problem.feature_map = LOAM_FEATURES_POSITIVE, c->problem.normalise = 1;
    loam_mechanism_at(mechanism, &c->info);
    for (size_t a = 0; a < sizeof c->size / sizeof *c->size; a++)
        c->size[a] = -1;
    Py_ssize_t at = 0;
    PyObject *name, *value;
    while (PyDict_Next(args[1], &at, &name, &value))
        if (!keep_value(c, name, value)) return false;
    return true;
}

static PyObject *run(PyObject *module, loam_pass pass, PyObject *const *args, Py_ssize_t count)
{
    call c;
    if (!begin(&c, module, pass, args, count)) return NULL;
    PyObject *result = NULL;
    cached_plan *plan = read_call(&c);
    if (plan && run_plan(&c, plan)) result = pass == LOAM_BACKWARD ? gradients(&c) : results(&c);
    release_plan(plan);
    let_go(&c);
    return result;
}

PyObject *run_forward(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    return run(module, LOAM_FORWARD, args, count);
}

PyObject *run_decode(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    return run(module, LOAM_DECODE, args, count);
}

PyObject *run_backward(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    return run(module, LOAM_BACKWARD, args, count);
}
