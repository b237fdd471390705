/* SPDX-License-Identifier: MIT
 * Which arguments a problem uses. All others must be left out: whoever gives one expects something of it. */
#include "src/core/plan.h"

#include <string.h>

enum { FORWARD = 1 << LOAM_FORWARD, BACKWARD = 1 << LOAM_BACKWARD, DECODE = 1 << LOAM_DECODE };
enum { NONE = 0, OUTPUT = FORWARD | DECODE, TRAINING = FORWARD | BACKWARD, EVERY = TRAINING | DECODE };

static bool probed(const loam_problem *p) { return p->mechanism == LOAM_PARALLAX; }
static bool ridged(const loam_problem *p) { return p->mechanism == LOAM_LLA || p->mechanism == LOAM_MESA; }
static bool sloped(const loam_problem *p) { return p->slope; }
static bool biased(const loam_problem *p) { return p->key_bias; }
static bool sunk(const loam_problem *p) { return p->sink; }
static bool turned(const loam_problem *p) { return p->path; }
static bool unpacked(const loam_problem *p) { return !sequence_packed(p); }
static bool on_device(const loam_problem *p) { return p->backend == LOAM_BACKEND_CUDA; }

static bool decays(const loam_problem *p)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    return form ? form->gate != GATE_NONE : p->decay;
}

static bool writes(const loam_problem *p)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    return form ? form->beta : p->path;
}

typedef bool used_fn(const loam_problem *problem);

typedef struct argument {
    const char *name;
    size_t offset;           /* of a pointer: views begin with theirs */
    int local, recurrent;    /* the passes of each family that use it */
    used_fn *used;           /* by which problems; NULL: by all */
    const char *local_lacks; /* why not, after "given, but "; NULL: the mechanism has none */
    const char *recurrent_lacks;
} argument;

#define VIEW(member, ...) \
    { \
#member, offsetof(loam_args, member.data), __VA_ARGS__ \
    }
#define POINTER(member, ...) \
    { \
#member, offsetof(loam_args, member), __VA_ARGS__ \
    }

static const char NO_SLOPE[] = "the problem has no slope", NO_BIAS[] = "the problem has no key bias",
                  NO_SINK[] = "the problem has no sink", NO_DECAY[] = "the problem has no decay",
                  NO_PATH[] = "the problem has no path", NO_STATE[] = "only the recurrent family has one",
                  NOT_PACKED[] = "the problem is not packed (total_q is -1)",
                  PACKED[] = "the problem is packed; use cu_kv", HOST[] = "the arrays are in host memory",
                  ONE_LENGTH[] = "q and k have one length here; cu_q is for both";

static const argument arguments[] = {
    VIEW(q, EVERY, EVERY, NULL, NULL, NULL),
    VIEW(k, EVERY, EVERY, NULL, NULL, NULL),
    VIEW(v, EVERY, EVERY, NULL, NULL, NULL),
    VIEW(probe, EVERY, NONE, probed, NULL, NULL),
    VIEW(ridge, EVERY, EVERY, ridged, NULL, NULL),
    POINTER(slope, EVERY, NONE, sloped, NO_SLOPE, NULL),
    VIEW(key_bias, EVERY, NONE, biased, NO_BIAS, NULL),
    POINTER(sink, EVERY, NONE, sunk, NO_SINK, NULL),
    POINTER(cu_q, EVERY, EVERY, sequence_packed, NOT_PACKED, NOT_PACKED),
    POINTER(cu_kv, EVERY, NONE, sequence_packed, NOT_PACKED, ONE_LENGTH),
    POINTER(lens_kv, EVERY, NONE, unpacked, PACKED, ONE_LENGTH),
    VIEW(o, OUTPUT, OUTPUT, NULL, NULL, NULL),
    VIEW(lse, OUTPUT, NONE, NULL, NULL, NULL),
    VIEW(rho, OUTPUT, NONE, NULL, NULL, NULL),
    VIEW(weights, FORWARD, NONE, NULL, NULL, NULL),
    VIEW(info, OUTPUT, OUTPUT, NULL, NULL, NULL),
    POINTER(saved, TRAINING, TRAINING, NULL, NULL, NULL), /* recurrent: of 0 bytes */
    VIEW(grad_o, BACKWARD, BACKWARD, NULL, NULL, NULL),
    VIEW(grad_q, BACKWARD, BACKWARD, NULL, NULL, NULL),
    VIEW(grad_k, BACKWARD, BACKWARD, NULL, NULL, NULL),
    VIEW(grad_v, BACKWARD, BACKWARD, NULL, NULL, NULL),
    VIEW(grad_probe, BACKWARD, NONE, probed, NULL, NULL),
    VIEW(grad_ridge, BACKWARD, BACKWARD, ridged, NULL, NULL),
    POINTER(grad_scale, BACKWARD, BACKWARD, NULL, NULL, NULL),
    POINTER(grad_slope, BACKWARD, NONE, sloped, NO_SLOPE, NULL),
    VIEW(grad_key_bias, BACKWARD, NONE, biased, NO_BIAS, NULL),
    POINTER(grad_sink, BACKWARD, NONE, sunk, NO_SINK, NULL),
    POINTER(stream, EVERY, EVERY, on_device, HOST, HOST),
    VIEW(log_decay, EVERY, EVERY, decays, NO_DECAY, NULL),
    VIEW(beta, EVERY, EVERY, writes, NO_PATH, NULL),
    VIEW(state_in, NONE, EVERY, NULL, NO_STATE, NULL),
    VIEW(state_out, NONE, OUTPUT, NULL, NO_STATE, NULL),
    VIEW(grad_state_out, NONE, BACKWARD, NULL, NO_STATE, NULL),
    VIEW(grad_log_decay, BACKWARD, BACKWARD, decays, NO_DECAY, NULL),
    VIEW(grad_beta, BACKWARD, BACKWARD, writes, NO_PATH, NULL),
    VIEW(grad_state_in, NONE, BACKWARD, NULL, NO_STATE, NULL),
    VIEW(w, EVERY, NONE, turned, NO_PATH, NULL),
    VIEW(grad_w, BACKWARD, NONE, turned, NO_PATH, NULL),
};

static loam_status refuse(const loam_problem *p, const argument *x, int passes, loam_error *error)
{
    const char *lacks = plan_recurrent(p) ? x->recurrent_lacks : x->local_lacks;
    const char *name = loam_mechanism_name(p->mechanism);
    if (passes != NONE && (!x->used || x->used(p))) {
        return loam_fail(error, LOAM_EARG, "%s: given, but %s neither reads nor writes it", x->name,
                         loam_pass_name(p->pass));
    }
    return lacks ? loam_fail(error, LOAM_EARG, "%s: given, but %s", x->name, lacks)
                 : loam_fail(error, LOAM_EARG, "%s: given, but %s has none", x->name, name);
}

loam_status args_check_used(const loam_problem *p, const loam_args *a, loam_error *error)
{
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
        const argument *x = &arguments[i];
        const int passes = plan_recurrent(p) ? x->recurrent : x->local;
        const void *given;
        memcpy(&given, (const char *)a + x->offset, sizeof given);
        if (given && !((passes >> p->pass & 1) && (!x->used || x->used(p)))) {
            return refuse(p, x, passes, error);
        }
    }
    return LOAM_OK;
}

void loam_args_keep(loam_args *a, loam_pass pass)
{
    const void *const none = NULL;
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
        if (!((arguments[i].local | arguments[i].recurrent) >> pass & 1)) {
            memcpy((char *)a + arguments[i].offset, &none, sizeof none);
        }
    }
}
