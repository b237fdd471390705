/* SPDX-License-Identifier: MIT
 * The module: its functions, and what it knows of NumPy and, once told, of PyTorch. */
#include "python/core/core.h"

#include <limits.h>

static module_state *state_of(PyObject *module) { return PyModule_GetState(module); }

static PyObject *set_num_threads(PyObject *module, PyObject *value)
{
    const long threads = PyLong_AsLong(value);
    if (PyErr_Occurred()) return NULL;
    if (threads < 1 || threads > INT_MAX)
        return PyErr_Format(PyExc_ValueError, "threads: %ld, expected 1 or more", threads);
    if (threads > 1 && state_of(module)->forked)
        return PyErr_Format(PyExc_ValueError, "threads: %ld, expected 1 in a child of os.fork", threads);
    state_of(module)->threads = (int)threads;
    return Py_NewRef(Py_None);
}

/* In a child of fork: OpenMP's threads are not there, and it would wait for them. */
static PyObject *forked(PyObject *module, PyObject *unused)
{
    (void)unused;
    state_of(module)->forked = true;
    state_of(module)->threads = 1;
    return Py_NewRef(Py_None);
}

static PyObject *get_num_threads(PyObject *module, PyObject *unused)
{
    (void)unused;
    const int threads = state_of(module)->threads;
    return PyLong_FromLong(threads ? threads : loam_max_threads());
}

/* The table by which PyTorch shows its tensors, where it has one that is known here. */
static const dl_exchange *exchange_of(PyObject *type)
{
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    const dl_exchange *found = NULL;
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_XDECREF(capsule);
    PyErr_Clear();
    while (found && found->major != DL_MAJOR)
        found = found->older;
    return found && found->look ? found : NULL;
}

/* Its type of tensors, its dtypes, how it makes a tensor, and its number of threads. */
static PyObject *use_torch(PyObject *module, PyObject *torch)
{
    module_state *state = state_of(module);
    static const char *const names[] = { "float32", "bfloat16", "float16", "float64" };
    maker *m = &state->torch;
    if (m->type) return Py_NewRef(Py_None);
    maker new = { 0 };
    for (int i = 0; i < 4; i++)
        new.element[i] = PyObject_GetAttrString(torch, names[i]);
    new.empty = PyObject_GetAttrString(torch, "empty");
    new.empty_like = PyObject_GetAttrString(torch, "empty_like");
    new.int32 = PyObject_GetAttrString(torch, "int32");
    new.row_info = PyObject_GetAttrString(torch, "int32");
    new.int64 = PyObject_GetAttrString(torch, "int64");
    new.bytes = PyObject_GetAttrString(torch, "uint8");
    new.type = PyObject_GetAttrString(torch, "Tensor");
    state->torch_threads = PyObject_GetAttrString(torch, "get_num_threads");
    *m = new;
    if (m->type) state->exchange = exchange_of(m->type);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static void free_maker(maker *m)
{
    PyObject *owned[] = { m->type, m->empty, m->empty_like, m->int32, m->int64, m->bytes, m->row_info };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        Py_XDECREF(owned[i]);
    for (int i = 0; i < 4; i++)
        Py_XDECREF(m->element[i]);
}

static void free_module(void *module)
{
    module_state *state = state_of(module);
    if (!state) return;
    for (int i = 0; i < COUNT; i++)
        Py_XDECREF(state->names[i]);
    for (size_t i = 0; i < sizeof state->attribute / sizeof(PyObject *); i++)
        Py_XDECREF(((PyObject **)&state->attribute)[i]);
    free_maker(&state->numpy);
    free_maker(&state->torch);
    Py_XDECREF(state->torch_threads);
    for (int i = 0; i < PLANS; i++)
        release_plan(state->plans[i]);
}

static bool intern_names(module_state *state)
{
    for (int i = 0; i < COUNT; i++)
        if (!(state->names[i] = PyUnicode_InternFromString(PARAMETERS[i].name))) return false;
    static const char *const names[] = { "dtype",    "device",        "is_cuda",    "shape",
                                         "stride",   "data_ptr",      "contiguous", "transpose",
                                         "swapaxes", "requires_grad", "new_empty" };
    PyObject **attribute = (PyObject **)&state->attribute;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(attribute[i] = PyUnicode_InternFromString(names[i]))) return false;
    return true;
}

static bool use_numpy(maker *m)
{
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (!numpy) return false;
    m->type = PyObject_GetAttrString(numpy, "ndarray");
    m->empty = PyObject_GetAttrString(numpy, "empty");
    m->element[LOAM_F32] = PyObject_CallMethod(numpy, "dtype", "s", "float32");
    m->element[LOAM_F16] = PyObject_CallMethod(numpy, "dtype", "s", "float16");
    m->element[LOAM_F64] = PyObject_CallMethod(numpy, "dtype", "s", "float64");
    m->int32 = PyObject_CallMethod(numpy, "dtype", "s", "int32");
    m->int64 = PyObject_CallMethod(numpy, "dtype", "s", "int64");
    /* loam_row_info */
    m->row_info = PyObject_CallMethod(numpy, "dtype", "[(ss)(ss)(ss)(ss)]", "code", "int32", "solver",
                                      "int32", "iterations", "int32", "residual", "float32");
    Py_DECREF(numpy);
    return !PyErr_Occurred();
}

#define CALL(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL

static PyMethodDef METHODS[] = {
    { "run", CALL(run_forward), "run(mechanism, values): a forward of loam.h." },
    { "decode", CALL(run_decode), "decode(mechanism, values): a step of decoding." },
    { "backward", CALL(run_backward), "backward(mechanism, values): the gradients of the inputs." },
    { "part_states", CALL(part_states), "part_states(mechanism, values): states of some keys." },
    { "part_merge", CALL(part_merge), "part_merge(mechanism, values): states_from into states." },
    { "part_finish", CALL(part_finish), "part_finish(mechanism, values): the results of states." },
    { "plan", CALL(describe_plan), "plan(mechanism, values, pass): what the plan of a call says of itself." },
    { "rope", (PyCFunction)(void (*)(void))rope, METH_FASTCALL,
      "rope(x, positions, offset, dim, base, interleaved, inverse, stream): x, turned." },
    { "projection", (PyCFunction)(void (*)(void))projection, METH_FASTCALL,
      "projection(kind, seed, heads, features, channels, double): random rows." },
    { "kernels", kernels, METH_NOARGS, "The rows of the registry." },
    { "mechanisms", mechanisms, METH_NOARGS, "What loam.h says of each mechanism." },
    { "cpu_features", cpu_features, METH_NOARGS, "Instruction sets of this CPU that have kernels." },
    { "regress_fit", regress_fit_table, METH_VARARGS,
      "regress_fit(values, rows, columns, names, linear, bandwidth, deviations, ridge, errors, bins, seed)" },
    { "regress_predict", regress_fits_at, METH_VARARGS,
      "regress_predict(model, x, count, variance, value, error, slopes): into those of the three given." },
    { "differentiable", differentiable, METH_O,
      "differentiable(values): names of the inputs that are tensors, if one of them requires a gradient." },
    { "use_torch", use_torch, METH_O, "use_torch(torch): tensors are taken from now on." },
    { "set_num_threads", set_num_threads, METH_O, "Threads of each call from now on." },
    { "forked", forked, METH_NOARGS, "One thread for each call from now on, in a child of os.fork." },
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

static const char *name_row_code(int i) { return loam_row_code_name((loam_row_code)i); }
static const char *name_solver(int i) { return loam_solver_name((loam_solver)i); }

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&MODULE);
    if (!module) return NULL;
    module_state *state = state_of(module);
    memset(state, 0, sizeof *state);
    if (!intern_names(state) || !use_numpy(&state->numpy) ||
        PyModule_AddStringConstant(module, "version", loam_version()) ||
        PyModule_AddObject(module, "row_codes", names_of(name_row_code)) ||
        PyModule_AddObject(module, "solvers", names_of(name_solver))) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
