/* SPDX-License-Identifier: MIT */
#include "tests/support/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const slot_names[SLOT_COUNT] = {
    "q",
    "k",
    "v",
    "probe",
    "ridge",
    "slope",
    "key_bias",
    "sink",
    "grad_o",
    "log_decay",
    "beta",
    "state_in",
    "grad_state_out",
    "w",
    "z",
    "log_alpha",
    "shift",
    "balance",
    "balance_keys",
    "o",
    "lse",
    "rho",
    "weights",
    "info",
    "grad_q",
    "grad_k",
    "grad_v",
    "grad_probe",
    "grad_ridge",
    "grad_scale",
    "grad_slope",
    "grad_key_bias",
    "grad_sink",
    "state_out",
    "grad_log_decay",
    "grad_beta",
    "grad_state_in",
    "grad_w",
    "grad_z",
    "grad_log_alpha",
};

/* The words of an enumeration, those of the library where it has them. */
typedef const char *words_fn(int64_t value);
#define WORDS_OF(member) \
    static const char *member##_words(int64_t value) { return loam_##member##_name((loam_##member)value); }
WORDS_OF(mechanism)
WORDS_OF(pass)
WORDS_OF(dtype)
WORDS_OF(backend)
WORDS_OF(score)
WORDS_OF(ridge_axes)
WORDS_OF(ridge_unit)
WORDS_OF(feature_map)

static const char *data_words(int64_t value)
{
    static const char *const words[DATA_KINDS] = { "normal", "steep", "equal", "repeated", "dominant", "far",
                                                   "tiny",   "large", "self",  "real",     "huge" };
    return value >= 0 && value < DATA_KINDS ? words[value] : NULL;
}

typedef struct field {
    const char *name;
    size_t offset;
    words_fn *words; /* NULL: a number */
    int real;
} field;

#define NUMBER(name, member) \
    { \
        name, offsetof(spec, member), NULL, 0 \
    }
#define REAL(name, member) \
    { \
        name, offsetof(spec, member), NULL, 1 \
    }
#define WORD(name, member) \
    { \
        name, offsetof(spec, member), member##_words, 0 \
    }

#define MAP_FIELD(name, member, ...) REAL(name, member),

static const field fields[] = {
    WORD("mech", mechanism),
    WORD("pass", pass),
    WORD("dtype", dtype),
    WORD("backend", backend),
    NUMBER("b", batch),
    NUMBER("hq", heads_q),
    NUMBER("hkv", heads_kv),
    NUMBER("q", len_q),
    NUMBER("k", len_kv),
    NUMBER("d", dim_qk),
    NUMBER("dv", dim_v),
    NUMBER("packed", packed),
    NUMBER("lens", lens),
    WORD("score", score),
    NUMBER("causal", causal),
    NUMBER("window", window),
    NUMBER("slope", slope),
    NUMBER("bias", key_bias),
    NUMBER("sink", sink),
    NUMBER("decay", decay),
    NUMBER("path", path),
    REAL("scale", scale),
    SPEC_MAPS(MAP_FIELD) REAL("ridge", ridge),
    WORD("axes", ridge_axes),
    WORD("unit", ridge_unit),
    NUMBER("ridge_array", ridge_array),
    NUMBER("threads", threads),
    WORD("data", data),
    NUMBER("layout", layout),
    NUMBER("omit", omit),
    NUMBER("seed", seed),
    NUMBER("hv", heads_v),
    WORD("features", feature_map),
    NUMBER("normalise", normalise),
    NUMBER("state", state),
    NUMBER("m", features),
    NUMBER("shared", features_shared),
    NUMBER("alpha", with_alpha),
    NUMBER("shift", with_shift),
    NUMBER("balance", with_balance),
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

spec spec_default(loam_mechanism mechanism, loam_pass pass, int64_t len, int64_t dim_qk, int64_t dim_v)
{
    spec s = { .mechanism = mechanism, .pass = pass, .dtype = LOAM_F64, .backend = LOAM_BACKEND_REFERENCE };
    s.batch = s.heads_q = s.heads_kv = 1;
    s.len_q = s.len_kv = len;
    s.dim_qk = dim_qk;
    s.dim_v = dim_v;
    s.causal = 1;
    s.ridge = 0.1;
    s.omit = spec_omit(SLOT_WEIGHTS);
    s.seed = 1;
    return s;
}

int spec_mechanisms(void)
{
    loam_mechanism_info info;
    int count = 0;
    while (loam_mechanism_at(count, &info) == LOAM_OK)
        count++;
    return count;
}

static const spec_recurrence recurrences[] = {
    [LOAM_LINEAR] = { "linear", SPEC_NO_GATE, 0, 0 },
    [LOAM_RETENTION] = { "retention", SPEC_GATE_HEAD, 0, 0 },
    [LOAM_SSD] = { "ssd", SPEC_GATE_TOKEN, 1, 0 },
    [LOAM_GLA] = { "gla", SPEC_GATE_CHANNEL, 0, 0 },
    [LOAM_DELTA] = { "delta", SPEC_NO_GATE, 1, 1 },
    [LOAM_GATED_DELTA] = { "gated-delta", SPEC_GATE_TOKEN, 1, 1 },
    [LOAM_KDA] = { "kda", SPEC_GATE_CHANNEL, 1, 1 },
    [LOAM_MESA] = { "mesa", SPEC_GATE_TOKEN, 1, 0 },
};

spec_recurrence spec_recurrence_of(const spec *s)
{
    const int64_t known = sizeof recurrences / sizeof recurrences[0];
    return s->mechanism < known ? recurrences[s->mechanism] : (spec_recurrence){ 0 };
}

int64_t spec_state_rows(const spec *s)
{
    return s->dim_v + (s->mechanism == LOAM_MESA ? s->dim_qk : s->normalise ? 1 : 0) + spec_positive(s);
}

static int64_t *field_number(spec *s, const field *f) { return (int64_t *)(void *)((char *)s + f->offset); }
static double *field_real(spec *s, const field *f) { return (double *)(void *)((char *)s + f->offset); }

void spec_print(const spec *s, char *text, size_t bytes)
{
    spec copy = *s;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < FIELDS && used < bytes; i++) {
        const field *f = &fields[i];
        const char *space = used ? " " : "";
        int wrote = 0;
        if (f->words) {
            wrote = snprintf(text + used, bytes - used, "%s%s=%s", space, f->name,
                             f->words(*field_number(&copy, f)));
        } else if (f->real && *field_real(&copy, f) != 0) {
            wrote = snprintf(text + used, bytes - used, "%s%s=%.17g", space, f->name, *field_real(&copy, f));
        } else if (!f->real && *field_number(&copy, f) != 0) {
            wrote = snprintf(text + used, bytes - used, "%s%s=%lld", space, f->name,
                             (long long)*field_number(&copy, f));
        }
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

static int parse_value(spec *s, const field *f, const char *value)
{
    char *end = NULL;
    if (f->words) {
        for (int64_t i = 0; f->words(i); i++) {
            if (strcmp(value, f->words(i)) == 0) {
                *field_number(s, f) = i;
                return 0;
            }
        }
        return -1;
    }
    if (f->real)
        *field_real(s, f) = strtod(value, &end);
    else
        *field_number(s, f) = strtoll(value, &end, 10);
    return *value && !*end ? 0 : -1;
}

int spec_parse(spec *s, const char *text)
{
    memset(s, 0, sizeof *s);
    char word[96];
    int used;
    for (; sscanf(text, " %95s%n", word, &used) == 1; text += used) {
        char *value = strchr(word, '=');
        int known = -1;
        if (value) {
            *value++ = '\0';
            for (int i = 0; i < FIELDS; i++)
                if (strcmp(word, fields[i].name) == 0) known = parse_value(s, &fields[i], value);
        }
        if (known != 0) {
            fprintf(stderr, "case: cannot read '%s'\n", word);
            return -1;
        }
    }
    return 0;
}

loam_problem spec_problem(const spec *s)
{
    loam_problem p = loam_problem_default((loam_mechanism)s->mechanism, (loam_pass)s->pass);
    p.dtype = (loam_dtype)s->dtype;
    p.backend = (loam_backend)s->backend;
    p.kernel = s->kernel[0] ? s->kernel : NULL;
    p.batch = s->batch;
    p.heads_q = s->heads_q;
    p.heads_kv = s->heads_kv;
    p.len_q = s->len_q;
    p.len_kv = s->len_kv;
    p.dim_qk = s->dim_qk;
    p.dim_v = s->dim_v;
    p.score = (loam_score)s->score;
    p.scale = s->scale;
#define SET_MAP(name, member, ...) p.member = s->member;
    SPEC_MAPS(SET_MAP)
    p.causal = (int)s->causal;
    p.window = s->window;
    p.slope = (int)s->slope;
    p.key_bias = (int)s->key_bias;
    p.sink = (int)s->sink;
    p.decay = (int)s->decay;
    p.path = (int)s->path;
    p.ridge = s->ridge;
    p.ridge_axes = (loam_ridge_axes)s->ridge_axes;
    p.ridge_unit = (loam_ridge_unit)s->ridge_unit;
    p.threads = (int)s->threads;
    p.heads_v = s->heads_v;
    p.feature_map = (loam_feature_map)s->feature_map;
    p.normalise = (int)s->normalise;
    p.features = s->features;
    p.features_shared = (int)s->features_shared;
    return p;
}
