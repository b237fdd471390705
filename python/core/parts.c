/* SPDX-License-Identifier: MIT
 * States of parts of the keys, [B, H, T, doubles] in float64, merged and finished; and what a plan says of
 * itself. */
#include "python/core/core.h"

enum { STATE_AXES = 4 };

static void shape_of_states(const call *c, const cached_plan *plan, Py_ssize_t shape[static STATE_AXES])
{
    shape[0] = c->size['B'], shape[1] = c->size['H'], shape[2] = c->size['T'];
    shape[3] = (Py_ssize_t)loam_state_doubles(plan->plan);
}

/* States that an earlier call made, or what another process did of them. */
static double *hold_states(call *c, const cached_plan *plan, int i)
{
    array x;
    Py_ssize_t shape[STATE_AXES];
    if (!c->value[i]) {
        refuse_type(i, Py_None, "states");
        return NULL;
    }
    if (!hold_array(c, i, c->maker->element[LOAM_F64], &x)) return NULL;
    shape_of_states(c, plan, shape);
    bool fits = x.axes == STATE_AXES;
    Py_ssize_t dense = x.bytes;
    for (int a = STATE_AXES - 1; fits && a >= 0; dense *= shape[a--])
        fits = x.shape[a] == shape[a] && (shape[a] <= 1 || x.stride[a] == dense);
    if (fits) return (double *)(uintptr_t)x.data;
    char expected[96], found[96];
    write_shape(expected, c, "", shape, STATE_AXES);
    write_shape(found, c, "", x.shape, x.axes < SHOWN ? x.axes : SHOWN);
    PyErr_Format(PyExc_ValueError, "%s: shape %s, expected %s, contiguous", PARAMETERS[i].name, found,
                 expected);
    return NULL;
}

static PyObject *make_states(call *c, const cached_plan *plan)
{
    Py_ssize_t shape[STATE_AXES];
    shape_of_states(c, plan, shape);
    void *data;
    PyObject *states = make_array(c, shape, STATE_AXES, c->maker->element[LOAM_F64], &data);
    if (!states || !make_work(c, plan->work_bytes)) {
        Py_XDECREF(states);
        return NULL;
    }
    c->args.work = c->work;
    loam_error error;
    loam_status status;
    Py_BEGIN_ALLOW_THREADS status = loam_state_partial(plan->plan, &c->args, c->first, c->size['P'], data,
                                                       &error);
    Py_END_ALLOW_THREADS if (!status) return states;
    Py_DECREF(states);
    raise_status(c, &error);
    return NULL;
}

static PyObject *merge(call *c, const cached_plan *plan)
{
    double *into = hold_states(c, plan, STATES), *from = into ? hold_states(c, plan, STATES_FROM) : NULL;
    if (!from) return NULL;
    loam_error error;
    loam_status status;
    Py_BEGIN_ALLOW_THREADS status = loam_state_merge(plan->plan, into, from, &error);
    Py_END_ALLOW_THREADS if (!status) return Py_NewRef(Py_None);
    raise_status(c, &error);
    return NULL;
}

static PyObject *finish(call *c, const cached_plan *plan)
{
    const double *states = hold_states(c, plan, STATES);
    if (!states || !make_outputs(c, plan) || !make_work(c, plan->work_bytes)) return NULL;
    c->args.work = c->work;
    loam_error error;
    loam_status status;
    Py_BEGIN_ALLOW_THREADS status = loam_state_finish(plan->plan, &c->args, states, &error);
    Py_END_ALLOW_THREADS if (!status) return results(c);
    raise_status(c, &error);
    return NULL;
}

static PyObject *with_plan(PyObject *module, PyObject *const *args, Py_ssize_t count, loam_pass pass,
                           PyObject *(*task)(call *c, const cached_plan *plan))
{
    call c;
    if (!begin(&c, module, pass, args, count)) return NULL;
    cached_plan *plan = NULL;
    if (is_part(&c) && (is_recurrent(&c) || is_interpolation(&c)))
        PyErr_SetString(PyExc_ValueError, "total: given, but only softmax attention, Parallax and LLA have "
                                          "states of parts of the keys");
    else
        plan = read_call(&c);
    PyObject *result = plan ? task(&c, plan) : NULL;
    release_plan(plan);
    let_go(&c);
    return result;
}

PyObject *part_states(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    return with_plan(module, args, count, LOAM_DECODE, make_states);
}

PyObject *part_merge(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    return with_plan(module, args, count, LOAM_DECODE, merge);
}

PyObject *part_finish(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    return with_plan(module, args, count, LOAM_DECODE, finish);
}

static PyObject *describe(call *c, const cached_plan *plan)
{
    const loam_plan *main = plan->plan;
    if (plan->interpolation) main = loam_interpolation_local(plan->interpolation);
    if (plan->hybrid) main = loam_hybrid_read(plan->hybrid);
    return Py_BuildValue("(sszKK)", loam_plan_name(main), loam_plan_kernel_for(main, &c->args),
                         loam_plan_fallback(main), (unsigned long long)plan->work_bytes,
                         (unsigned long long)plan->saved_bytes);
}

PyObject *describe_plan(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    int pass;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "plan() has 3 arguments");
    if (!read_name("pass_", args[2], (const char *(*)(int))loam_pass_name, &pass)) return NULL;
    return with_plan(module, args, 2, (loam_pass)pass, describe);
}
