/* SPDX-License-Identifier: MIT
 * Which arguments a call may have, and where each goes. */
#include "python/core/core.h"

static const char *name_score(int i) { return loam_score_name((loam_score)i); }
static const char *name_ridge_unit(int i) { return loam_ridge_unit_name((loam_ridge_unit)i); }
static const char *name_feature_map(int i) { return loam_feature_map_name((loam_feature_map)i); }
static const char *name_backend(int i) { return loam_backend_name((loam_backend)i); }

#define ARGS(member) offsetof(call, args.member)
#define PROBLEM(member) offsetof(call, problem.member)
#define INPUT(name, member, kind, local, recurrent) \
    { \
        name, #member, kind, ARGS(member), local, recurrent, ARGS(grad_##member), NULL \
    }
#define OPTION(name, member, kind, named) \
    { \
        name, #member, kind, PROBLEM(member), NULL, NULL, 0, named \
    }

const parameter PARAMETERS[COUNT] = {
    [Q] = INPUT("q", q, ARRAY, "BTHK", "BTHK"),
    [K] = INPUT("k", k, ARRAY, "BSGK", "BTHK"),
    [V] = INPUT("v", v, ARRAY, "BSGD", "BTVD"),
    [PROBE] = INPUT("probe", probe, ARRAY, "BTHK", "BTHK"),
    [W] = INPUT("w", w, ARRAY, "BSGK", "BTHK"),
    [G] = INPUT("g", log_decay, REAL_ARRAY, "BSH", "?"),
    [BETA] = INPUT("beta", beta, REAL_ARRAY, "BSG", "BTV"),
    [KEY_BIAS] = INPUT("key_bias", key_bias, REAL_ARRAY, "BSH", "BTH"),
    [SLOPE] = INPUT("slope", slope, REAL_VECTOR, "H", "H"),
    [SINK] = INPUT("sink_bias", sink, REAL_VECTOR, "H", "H"),
    [RIDGE_OF_ROWS] = INPUT("ridge", ridge, RIDGE, "?", "?"),
    [STATE_IN] = INPUT("initial_state", state_in, REAL_ARRAY, "NHRK", "NVRK"),
    [GRAD_O] = { "grad_o", "grad_o", ARRAY, ARGS(grad_o), "BTHD", "BTVD", 0, NULL },
    [GRAD_STATE] = { "grad_final_state", "grad_state_out", REAL_ARRAY, ARGS(grad_state_out), "NHRK", "NVRK",
                     0, NULL },
    [CU_SEQLENS] = { "cu_seqlens", "cu_q", SPECIAL, 0, NULL, NULL, 0, NULL },
    [SAVED_IN] = { "saved", "saved", SPECIAL, 0, NULL, NULL, 0, NULL },
    [WANTED_GRADIENTS] = { "wanted", "wanted", SPECIAL, 0, NULL, NULL, 0, NULL },
    [POSITIONS] = { "positions", "positions", SPECIAL, 0, NULL, NULL, 0, NULL },
    [OPTIONS] = OPTION("scale", scale, REAL, NULL),
    OPTION("soft_cap", soft_cap, REAL, NULL),
    OPTION("window_size", window, SIZE, NULL),
    OPTION("causal", causal, FLAG, NULL),
    OPTION("normalize", normalise, FLAG, NULL),
    OPTION("score", score, NAME, name_score),
    OPTION("ridge_unit", ridge_unit, NAME, name_ridge_unit),
    OPTION("feature_map", feature_map, NAME, name_feature_map),
    OPTION("backend", backend, NAME, name_backend),
    { "keys", "keys", SIZE, offsetof(call, keys), NULL, NULL, 0, NULL },
    { "max_seqlen", "max_seqlen", SIZE, offsetof(call, max_seqlen), NULL, NULL, 0, NULL },
    { "stream", "stream", SIZE, offsetof(call, stream), NULL, NULL, 0, NULL },
    [O] = { "o", "o", WANTED, ARGS(o), "BTHD", "BTVD", 0, NULL },
    [STATE_OUT] = { "output_final_state", "state_out", WANTED, ARGS(state_out), "NHRK", "NVRK", 0, NULL },
    [LSE] = { "return_lse", "lse", WANTED, ARGS(lse), "BTH", "BTH", 0, NULL },
    [INFO] = { "return_info", "info", WANTED, ARGS(info), "BTH", "BTV", 0, NULL },
    [SAVED_OUT] = { "save", "saved", WANTED, ARGS(saved), NULL, NULL, 0, NULL },
};
