/* SPDX-License-Identifier: MIT
 * The arguments of a call: which of them a problem uses, and their checks. */
#include "src/core/args.h"

#include "src/core/check.h"

#include <string.h>

enum { FORWARD = 1 << LOAM_FORWARD, BACKWARD = 1 << LOAM_BACKWARD, DECODE = 1 << LOAM_DECODE };
enum { NONE = 0, OUTPUT = FORWARD | DECODE, TRAINING = FORWARD | BACKWARD, EVERY = TRAINING | DECODE };

static bool probed(const loam_problem *p, const loam_mechanism_info *m) { return (void)p, m->probe; }
static bool ridged(const loam_problem *p, const loam_mechanism_info *m)
{
    return (void)p, m->ridge_axes != 0;
}
static bool sloped(const loam_problem *p, const loam_mechanism_info *m) { return (void)m, p->slope; }
static bool biased(const loam_problem *p, const loam_mechanism_info *m) { return (void)m, p->key_bias; }
static bool sunk(const loam_problem *p, const loam_mechanism_info *m) { return (void)m, p->sink; }
static bool turned(const loam_problem *p, const loam_mechanism_info *m) { return (void)m, p->path; }
static bool featured(const loam_problem *p, const loam_mechanism_info *m)
{
    return (void)m, p->feature_map == LOAM_FEATURES_POSITIVE;
}
static bool scaled(const loam_problem *p, const loam_mechanism_info *m) { return !featured(p, m); }
static bool packed(const loam_problem *p, const loam_mechanism_info *m)
{
    return (void)m, sequence_packed(p);
}
static bool unpacked(const loam_problem *p, const loam_mechanism_info *m) { return !packed(p, m); }
static bool launches(const loam_problem *p, const loam_mechanism_info *m) { return (void)m, on_device(p); }
static bool writes(const loam_problem *p, const loam_mechanism_info *m) { return p->path || m->beta; }

static bool decays(const loam_problem *p, const loam_mechanism_info *m)
{
    return p->decay || m->log_decay != LOAM_DECAY_NONE;
}

typedef bool used_fn(const loam_problem *problem, const loam_mechanism_info *mechanism);

enum { FAMILIES = LOAM_FAMILY_RECURRENT + 1 };

typedef struct argument {
    const char *name;
    size_t offset;               /* of a pointer: views begin with theirs */
    int passes[FAMILIES];        /* the passes of each family that use it */
    used_fn *used;               /* by which problems; NULL: by all */
    const char *lacks[FAMILIES]; /* why not, after "given, but "; NULL: the mechanism has none */
} argument;

#define ARGUMENT(member, pointer, local, recurrent, used, local_lacks, recurrent_lacks) \
    { \
#member, offsetof(loam_args, pointer), { local, recurrent }, used, { local_lacks, recurrent_lacks } \
    }
#define VIEW(member, ...) ARGUMENT(member, member.data, __VA_ARGS__)
#define POINTER(member, ...) ARGUMENT(member, member, __VA_ARGS__)

static const char NO_SLOPE[] = "the problem has no slope", NO_BIAS[] = "the problem has no key bias",
                  NO_SINK[] = "the problem has no sink", NO_DECAY[] = "the problem has no decay",
                  NO_FEATURES[] = "the feature map is not positive",
                  FEATURES[] = "positive features have no gradient of the scale",
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
    POINTER(cu_q, EVERY, EVERY, packed, NOT_PACKED, NOT_PACKED),
    POINTER(cu_kv, EVERY, NONE, packed, NOT_PACKED, ONE_LENGTH),
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
    POINTER(grad_scale, BACKWARD, BACKWARD, scaled, NULL, FEATURES),
    POINTER(grad_slope, BACKWARD, NONE, sloped, NO_SLOPE, NULL),
    VIEW(grad_key_bias, BACKWARD, NONE, biased, NO_BIAS, NULL),
    POINTER(grad_sink, BACKWARD, NONE, sunk, NO_SINK, NULL),
    POINTER(stream, EVERY, EVERY, launches, HOST, HOST),
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
    VIEW(z, NONE, EVERY, featured, NO_FEATURES, NO_FEATURES),
    VIEW(log_alpha, NONE, EVERY, featured, NO_FEATURES, NO_FEATURES),
    VIEW(shift, NONE, EVERY, featured, NO_FEATURES, NO_FEATURES),
    VIEW(balance, NONE, EVERY, featured, NO_FEATURES, NO_FEATURES),
    VIEW(balance_keys, NONE, EVERY, featured, NO_FEATURES, NO_FEATURES),
    VIEW(grad_z, NONE, BACKWARD, featured, NO_FEATURES, NO_FEATURES),
    VIEW(grad_log_alpha, NONE, BACKWARD, featured, NO_FEATURES, NO_FEATURES),
};

static loam_status refuse(const loam_plan *plan, const argument *x, bool used, loam_error *error)
{
    const loam_problem *p = &plan->problem;
    const char *lacks = x->lacks[plan->family->id];
    if (used) {
        return loam_fail(error, LOAM_EARG, "%s: given, but %s neither reads nor writes it", x->name,
                         loam_pass_name(p->pass));
    }
    return lacks ? loam_fail(error, LOAM_EARG, "%s: given, but %s", x->name, lacks)
                 : loam_fail(error, LOAM_EARG, "%s: given, but %s has none", x->name,
                             loam_mechanism_name(p->mechanism));
}

/* Refuses what is given and not used: whoever gives an argument expects something of it. */
static loam_status check_used(const loam_plan *plan, const loam_args *a, loam_error *error)
{
    const loam_problem *p = &plan->problem;
    loam_mechanism_info info;
    loam_mechanism_at((int)p->mechanism, &info);
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
        const argument *x = &arguments[i];
        const int passes = x->passes[plan->family->id];
        const bool used = !x->used || x->used(p, &info);
        const void *given;
        memcpy(&given, (const char *)a + x->offset, sizeof given);
        if (given && !(used && passes >> p->pass & 1)) return refuse(plan, x, used && passes != NONE, error);
    }
    return LOAM_OK;
}

loam_status args_check(const loam_plan *plan, const loam_args *a, args_use use, loam_error *error)
{
    const loam_problem *p = &plan->problem;
    REQUIRE(a, error, LOAM_EARG, "args: NULL");
    REQUIRE(a->work || plan->work_bytes == 0, error, LOAM_EARG, "work: NULL, expected %zu bytes",
            plan->work_bytes);
    REQUIRE((uintptr_t)a->work % LOAM_ALIGN == 0, error, LOAM_EARG, "work: %p, expected a multiple of %d",
            a->work, LOAM_ALIGN);
    REQUIRE((uintptr_t)a->saved % LOAM_ALIGN == 0, error, LOAM_EARG, "saved: %p, expected a multiple of %d",
            a->saved, LOAM_ALIGN);
    TRY(check_used(plan, a, error));
    return plan->family->check_args(p, a, use, error);
}

void loam_args_keep(loam_args *a, loam_pass pass)
{
    const void *const none = NULL;
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
        const int *passes = arguments[i].passes;
        if (!((passes[LOAM_FAMILY_LOCAL] | passes[LOAM_FAMILY_RECURRENT]) >> pass & 1))
            memcpy((char *)a + arguments[i].offset, &none, sizeof none);
    }
}
