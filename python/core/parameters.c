/* SPDX-License-Identifier: MIT
 * Which arguments a call may have, and where each goes. */
#include "python/core/core.h"

static const char *name_score(int i) { return loam_score_name((loam_score)i); }
static const char *name_ridge_unit(int i) { return loam_ridge_unit_name((loam_ridge_unit)i); }
static const char *name_feature_map(int i) { return loam_feature_map_name((loam_feature_map)i); }

#define ARGS(member) offsetof(call, args.member)
#define LINEAR_ARGS(member) offsetof(call, linear_args.member)
#define PROBLEM(member) offsetof(call, problem.member)
#define INPUT(name, member, kind, local, recurrent, features) \
    { \
        name, #member, kind, ARGS(member), local, recurrent, features, ARGS(grad_##member), NULL \
    }
#define LINEAR_INPUT(name, member, kind, axes) \
    { \
        name, #member, kind, LINEAR_ARGS(member), axes, axes, axes, LINEAR_ARGS(grad_##member), NULL \
    }
#define FIXED(name, member, axes) \
    { \
        name, #member, REAL_ARRAY, ARGS(member), axes, axes, axes, 0, NULL \
    }
#define OPTION(name, member, kind, named) \
    { \
        name, #member, kind, PROBLEM(member), NULL, NULL, NULL, 0, named \
    }
#define OTHER(name, member, kind, offset) \
    { \
        name, member, kind, offset, NULL, NULL, NULL, 0, NULL \
    }

const parameter PARAMETERS[COUNT] = {
    [Q] = INPUT("q", q, ARRAY, "BTHK", "BTHK", "BTHK"),
    [K] = INPUT("k", k, ARRAY, "BSGK", "BTHK", "BTGK"),
    [V] = INPUT("v", v, ARRAY, "BSGD", "BTVD", "BTGD"),
    [PROBE] = INPUT("probe", probe, ARRAY, "BTHK", "BTHK", "BTHK"),
    [W] = INPUT("w", w, ARRAY, "BSGK", "BTHK", "BTGK"),
    [G] = INPUT("g", log_decay, REAL_ARRAY, "BSH", "?", "?"),
    [BETA] = INPUT("beta", beta, REAL_ARRAY, "BSG", "BTV", "BTH"),
    [KEY_BIAS] = INPUT("key_bias", key_bias, REAL_ARRAY, "BSH", "BTH", "BTH"),
    [SLOPE] = INPUT("slope", slope, REAL_VECTOR, "H", "H", "H"),
    [SINK] = INPUT("sink_bias", sink, REAL_VECTOR, "H", "H", "H"),
    [RIDGE_OF_ROWS] = INPUT("ridge", ridge, RIDGE, "?", "?", "?"),
    [STATE_IN] = INPUT("initial_state", state_in, REAL_ARRAY, "NHRK", "NVRK", "NFRM"),
    [LINEAR_G] = LINEAR_INPUT("linear_g", log_decay, REAL_ARRAY, "?"),
    [LINEAR_BETA] = LINEAR_INPUT("linear_beta", beta, REAL_ARRAY, "BTV"),
    [LINEAR_RIDGE] = LINEAR_INPUT("linear_ridge", ridge, RIDGE, "?"),
    [Z] = INPUT("z", z, REAL_ARRAY, "FMK", "FMK", "FMK"),
    [LOG_ALPHA] = INPUT("log_alpha", log_alpha, REAL_ARRAY, "FM", "FM", "FM"),
    [GAIN] = { "gain", "gain", REAL_VECTOR, offsetof(call, hybrid_args.gain), "H", "H", "H",
               offsetof(call, hybrid_args.grad_gain), NULL },
    [SCALE] = { "scale", "scale", NUMBER, PROBLEM(scale), "", "", "", ARGS(grad_scale), NULL },
    [SHIFT] = FIXED("shift", shift, "FK"),
    [BALANCE] = FIXED("balance", balance, "FJK"),
    [BALANCE_KEYS] = FIXED("balance_keys", balance_keys, "FJK"),
    [NEAR_KEYS] = { "near_keys", "keys", ARRAY, offsetof(call, hybrid_args.keys), "BYGK", "BYGK", "BYGK", 0,
                    NULL },
    [NEAR_VALUES] = { "near_values", "values", ARRAY, offsetof(call, hybrid_args.values), "BYGD", "BYGD",
                      "BYGD", 0, NULL },
    [GRAD_O] = { "grad_o", "grad_o", ARRAY, ARGS(grad_o), "BTHD", "BTVD", "BTHD", 0, NULL },
    [GRAD_STATE] = { "grad_final_state", "grad_state_out", REAL_ARRAY, ARGS(grad_state_out), "NHRK", "NVRK",
                     "NFRM", 0, NULL },
    [CU_SEQLENS] = OTHER("cu_seqlens", "cu_q", SPECIAL, ARGS(cu_q)),
    [CU_SEQLENS_K] = OTHER("cu_seqlens_k", "cu_kv", SPECIAL, ARGS(cu_kv)),
    [KEY_LENGTHS] = OTHER("key_lengths", "lens_kv", SPECIAL, ARGS(lens_kv)),
    [SEEN] = OTHER("seen", "seen", SPECIAL, offsetof(call, hybrid_args.seen)),
    [STATES] = OTHER("states", "states", SPECIAL, 0),
    [STATES_FROM] = OTHER("states_from", "from", SPECIAL, 0),
    [SAVED_IN] = OTHER("saved", "saved", SPECIAL, 0),
    [WANTED_GRADIENTS] = OTHER("wanted", "wanted", SPECIAL, 0),
    [POSITIONS] = OTHER("positions", "positions", SPECIAL, 0),
    [LINEAR] = OTHER("linear", "linear", SPECIAL, 0),
    [OPTIONS] = OPTION("soft_cap", soft_cap, REAL, NULL),
    OPTION("window_size", window, SIZE, NULL),
    OPTION("causal", causal, FLAG, NULL),
    OPTION("normalize", normalise, FLAG, NULL),
    OPTION("score", score, NAME, name_score),
    OPTION("ridge_unit", ridge_unit, NAME, name_ridge_unit),
    OPTION("feature_map", feature_map, NAME, name_feature_map),
    [BACKEND] = OPTION("backend", backend, SPECIAL, NULL),
    [KEYS] = OTHER("keys", "keys", SIZE, offsetof(call, keys)),
    OTHER("max_seqlen", "max_seqlen", SIZE, offsetof(call, max_seqlen)),
    OTHER("max_seqlen_k", "max_seqlen_k", SIZE, offsetof(call, max_seqlen_k)),
    OTHER("stream", "stream", SIZE, offsetof(call, stream)),
    OPTION("features_shared", features_shared, FLAG, NULL),
    OTHER("sinks", "sinks", SIZE, offsetof(call, sinks)),
    OTHER("linear_scale", "scale", REAL, offsetof(call, linear.scale)),
    OTHER("first", "first", SIZE, offsetof(call, first)),
    [TOTAL] = OTHER("total", "total", SIZE, offsetof(call, total)),
    [O] = { "o", "o", WANTED, ARGS(o), "BTHD", "BTVD", "BTHD", 0, NULL },
    [STATE_OUT] = { "output_final_state", "state_out", WANTED, ARGS(state_out), "NHRK", "NVRK", "NFRM", 0,
                    NULL },
    [NEAR_KEYS_OUT] = { "near_keys_out", "keys", WANTED, offsetof(call, hybrid_args.keys), "BYGK", "BYGK",
                        "BYGK", 0, NULL },
    [NEAR_VALUES_OUT] = { "near_values_out", "values", WANTED, offsetof(call, hybrid_args.values), "BYGD",
                          "BYGD", "BYGD", 0, NULL },
    [LSE] = { "return_lse", "lse", WANTED, ARGS(lse), "BTH", "BTH", "BTH", 0, NULL },
    [PROBE_USED] = { "return_probe", "rho", WANTED, ARGS(rho), "BTHK", "BTHK", "BTHK", 0, NULL },
    [WEIGHTS] = { "return_weights", "weights", WANTED, ARGS(weights), "BTHS", "BTHT", "BTHT", 0, NULL },
    [INFO] = { "return_info", "info", WANTED, ARGS(info), "BTH", "BTV", "BTH", 0, NULL },
    [LINEAR_INFO] = { "linear_info", "info", WANTED, LINEAR_ARGS(info), "BTH", NULL, NULL, 0, NULL },
    [SAVED_OUT] = OTHER("save", "saved", WANTED, ARGS(saved)),
};
