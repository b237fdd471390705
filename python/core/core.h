/* SPDX-License-Identifier: MIT
 * The extension module loam_attn._core: one call of loam.h on arrays of NumPy or tensors of PyTorch, told
 * apart by their names alone; what a mechanism does not have, the library refuses. Arrays are read where they
 * lie, but those whose channels are not contiguous, which are copied. Plans are cached by problem; the GIL
 * guards the cache and is released while a plan runs. Beside it, local regression on tables.
 */
#ifndef LOAM_PYTHON_CORE_H
#define LOAM_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdbool.h>

#include "loam.h"
#include "python/core/dlpack.h"

enum { AXES = 4, SHOWN = 8, PLANS = 64 };

/* Places in PARAMETERS that code names. Inputs with gradients come first, outputs last. */
enum {
    Q,
    K,
    V,
    PROBE,
    W,
    G,
    BETA,
    KEY_BIAS,
    SLOPE,
    SINK,
    RIDGE_OF_ROWS,
    STATE_IN,
    LINEAR_G,
    LINEAR_BETA,
    LINEAR_RIDGE,
    Z,
    LOG_ALPHA,
    GAIN,
    SCALE,
    INPUTS, /* how many have gradients */
    SHIFT = INPUTS,
    BALANCE,
    BALANCE_KEYS,
    NEAR_KEYS,
    NEAR_VALUES,
    GRAD_O,
    GRAD_STATE,
    ARRAYS, /* how many are arrays of numbers */
    CU_SEQLENS = ARRAYS,
    CU_SEQLENS_K,
    KEY_LENGTHS,
    SEEN,
    SAVED_IN,
    STATES,
    STATES_FROM,
    WANTED_GRADIENTS,
    POSITIONS,
    LINEAR,
    OPTIONS, /* where those of loam_problem begin */
    BACKEND = OPTIONS + 7,
    KEYS,
    TOTAL = OPTIONS + 16,
    O,
    STATE_OUT,
    NEAR_KEYS_OUT,
    NEAR_VALUES_OUT,
    LSE,
    PROBE_USED,
    WEIGHTS,
    INFO,
    LINEAR_INFO,
    SAVED_OUT,
    COUNT
};

typedef enum parameter_kind {
    ARRAY,       /* of loam_args: a view, of the problem's dtype */
    REAL_ARRAY,  /* likewise, of real */
    REAL_VECTOR, /* a pointer, to real */
    RIDGE,       /* a number or a view */
    NUMBER,      /* of the problem; an array of one number has a gradient */
    SPECIAL,     /* read by its own function */
    REAL,
    SIZE,
    FLAG,
    NAME, /* an enumerator, by its name */
    WANTED
} parameter_kind;

/* Axes: B batch, T tokens of queries, S of keys, H heads of queries, G of keys, V of recurrent values, F, M
 * heads and number of random features, E one feature more, K, D channels of keys and values, J a second axis
 * of K's size, N sequences, R rows of a state, P keys of a part, Y those that a hybrid keeps. The first array
 * with an axis says its size. `?` stands for what the mechanism says (log_decay) or the array (ridge). A
 * state comes as [.., K, R]. */
typedef struct parameter {
    const char *name, *member; /* in Python; in loam.h where that is another */
    parameter_kind kind;
    size_t offset;                            /* in `call` */
    const char *local, *recurrent, *features; /* axes of both families, and of random features */
    size_t gradient;                          /* offset of the view of its gradient */
    const char *(*named)(int);
} parameter;

extern const parameter PARAMETERS[COUNT];

/* Of interpolation `linear` is the recurrent problem; else it is zeros. */
typedef struct cached_plan {
    loam_problem problem, linear;
    loam_plan *plan;
    int64_t sinks, window;             /* of a hybrid; else 0 */
    loam_interpolation *interpolation; /* in place of `plan`, as is a hybrid */
    loam_hybrid *hybrid;
    size_t work_bytes, saved_bytes;
    int64_t state_rows;
    uint64_t used; /* when last */
    int owners;    /* the cache, and each run */
} cached_plan;

/* What makes arrays of one kind. */
typedef struct maker {
    PyObject *type;       /* numpy.ndarray, torch.Tensor; NULL: PyTorch is not in use */
    PyObject *empty;      /* numpy.empty, torch.empty */
    PyObject *empty_like; /* torch.empty_like; NumPy: NULL */
    PyObject *element[4]; /* dtypes by loam_dtype; bfloat16 of NumPy: NULL, it is ml_dtypes' */
    PyObject *int32, *int64, *bytes;
    PyObject *row_info; /* dtype of info: loam_row_info; PyTorch: int32, of which a row has four */
} maker;

/* Attributes of arrays, interned. */
typedef struct attributes {
    PyObject *dtype, *device, *is_cuda, *shape, *stride, *data_ptr, *contiguous, *transpose, *swapaxes,
        *requires_grad, *new_empty;
} attributes;

typedef struct module_state {
    PyObject *names[COUNT]; /* interned */
    attributes attribute;
    maker numpy, torch;
    PyObject *torch_threads;     /* torch.get_num_threads */
    const dl_exchange *exchange; /* of PyTorch; NULL: attributes say what a tensor is */
    cached_plan *plans[PLANS];
    uint64_t clock;
    int threads;
    bool forked;
} module_state;

/* An array as it lies in memory; strides count bytes. */
typedef struct array {
    const char *data;
    int axes;
    Py_ssize_t bytes; /* of an element */
    Py_ssize_t shape[SHOWN], stride[SHOWN];
} array;

/* What one call holds. */
typedef struct call {
    module_state *module;
    const maker *maker;
    bool on_device; /* CUDA tensors */
    loam_mechanism_info info;
    loam_problem problem;
    loam_args args;
    /* Interpolation: of the recurrence. Its states are read into `args`, and moved before the run. */
    loam_mechanism_info linear_info;
    loam_problem linear;
    loam_args linear_args;
    bool hybrid; /* then `problem` is of the features, and these are its own */
    int64_t sinks, window;
    loam_hybrid_args hybrid_args;
    PyObject *value[COUNT];
    PyObject *element, *device;        /* of q; the second once it was asked for */
    bool q_is_dense;                   /* in the order of its axes */
    int32_t device_kind, device_index; /* of q, where DLPack has said it */
    Py_ssize_t size[128];
    const char *axes[COUNT];
    Py_buffer buffer[COUNT];
    PyObject *contiguous[COUNT];
    void *copy[COUNT];
    bool packed;
    int64_t *ends[COUNT];                   /* of integers in host memory: cu_seqlens, and so on */
    int64_t *in_use;                        /* of each sequence's keys, where the number is one for all */
    int64_t keys, max_seqlen, max_seqlen_k; /* options of that name */
    int64_t first, total;                   /* a part of the keys: its first one, and how many there are */
    int64_t stream;
    void *work;
    PyObject *out[COUNT];
} call;

static inline bool is_recurrent(const call *c) { return c->info.family == LOAM_FAMILY_RECURRENT; }
static inline bool is_interpolation(const call *c) { return c->value[LINEAR]; }
static inline bool has_features(const call *c)
{
    return is_recurrent(c) && c->problem.feature_map == LOAM_FEATURES_POSITIVE;
}
/* Whether k, v and key_bias are of some keys alone. */
static inline bool is_part(const call *c) { return c->value[TOTAL]; }
static inline bool is_tensors(const call *c) { return c->maker == &c->module->torch; }

/* plans.c: the plan of the call's problem, which the caller releases. */
cached_plan *find_plan(const call *c);
void release_plan(cached_plan *plan);

/* errors.c */
bool raise_status(const call *c, const loam_error *error);
bool refuse_type(int i, PyObject *value, const char *expected);
/* "[2, 7, H, 8]": sizes that are known, and names of axes that are not; `shape` where it is given. */
void write_shape(char text[static 96], const call *c, const char *axes, const Py_ssize_t *shape, int n);

/* arrays.c: what NumPy and PyTorch do each in their way. */
bool read_element(call *c); /* the kind of arrays, and their dtype and device */
PyObject *device_of(call *c);
bool hold_array(call *c, int i, PyObject *element, array *to);
bool make_contiguous(call *c, int i, PyObject *element, array *to);
/* A new dense array; `*data` is where it lies. */
PyObject *make_array(call *c, const Py_ssize_t *shape, int axes, PyObject *element, void **data);
/* A tensor of so many bytes or a few more, of q's dtype, which PyTorch makes in half the time. */
PyObject *make_bytes(call *c, size_t bytes, void **data);
/* A tensor that make_bytes or a caller of its own made: of q's dtype, or of bytes. */
bool hold_bytes(call *c, int i, array *to);
PyObject *swap_last_axes(const call *c, PyObject *state);
void let_go(call *c);
PyObject *differentiable(PyObject *module, PyObject *values);

/* views.c: arrays by the names of their axes, as views of loam_args. */
PyObject *element_of(const call *c, parameter_kind kind);
const char *named_axes(const call *c, int i);
bool read_array(call *c, int i);
bool read_lengths(call *c);       /* ends of packed sequences */
bool read_counts(call *c, int i); /* a number of each sequence, such as its keys in use */
loam_const_view dense_view(const call *c, const char *axes, const void *data);

/* options.c */
bool read_name(const char *what, PyObject *value, const char *(*named)(int), int *to);
bool read_real(const call *c, int i, double *to);
bool read_option(call *c, int i);
bool read_linear(call *c);
bool read_backend(call *c);

/* results.c */
bool make_outputs(call *c, const cached_plan *plan);
bool make_gradients(call *c);
PyObject *results(call *c);
PyObject *gradients(call *c);

/* call.c */
bool begin(call *c, PyObject *module, loam_pass pass, PyObject *const *args, Py_ssize_t count);
cached_plan *read_call(call *c); /* the plan, which the caller releases */
bool make_work(call *c, size_t bytes);
PyObject *run_forward(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *run_decode(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *run_backward(PyObject *module, PyObject *const *args, Py_ssize_t count);

bool choose_threads(call *c);

/* parts.c: states of parts of the keys, and what a plan says of itself. */
PyObject *part_states(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *part_merge(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *part_finish(PyObject *module, PyObject *const *args, Py_ssize_t count);
/* (mechanism, values, pass): (name, kernel, fallback, bytes of work, bytes of saved) */
PyObject *describe_plan(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* rope.c */
PyObject *rope(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* listing.c: what there is, and random projections. */
PyObject *names_of(const char *(*named)(int)); /* all of an enumeration, a tuple */
PyObject *kernels(PyObject *module, PyObject *unused);
PyObject *mechanisms(PyObject *module, PyObject *unused);
PyObject *cpu_features(PyObject *module, PyObject *unused);
PyObject *projection(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* regress.c */
PyObject *regress_fit_table(PyObject *module, PyObject *args);
PyObject *regress_fits_at(PyObject *module, PyObject *args);

#endif
