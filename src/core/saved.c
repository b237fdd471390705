/* SPDX-License-Identifier: MIT
 * The stamp of `saved` in host memory: LOAM_ALIGN bytes before what kernels save. Forward writes it last,
 * backward checks it first. What is saved depends neither on the kernel nor on the number of threads. */
#include "src/core/saved.h"

#include "src/local/local.h"

#include <stdbool.h>
#include <string.h>

typedef struct saved_stamp {
    char magic[8];
    uint64_t version, problem;
} saved_stamp;

_Static_assert(sizeof(saved_stamp) <= LOAM_ALIGN, "room for the stamp");

/* FNV-1a, one byte after another. */
static uint64_t hash_add(uint64_t hash, uint64_t word)
{
    for (int byte = 0; byte < 8; byte++)
        hash = (hash ^ (word >> 8 * byte & 0xff)) * UINT64_C(0x100000001b3);
    return hash;
}

/* 0 and -0 are one number. */
static uint64_t word_of(double x)
{
    uint64_t word;
    x += 0.0;
    memcpy(&word, &x, sizeof word);
    return word;
}

#define MAP_MEMBER(member, ...) p->member,

/* Of all that determines the layout of `saved` and the meaning of its numbers. */
static saved_stamp stamp_of(const loam_problem *p, uint64_t more)
{
    const bool solved = p->mechanism == LOAM_LLA;
    const int64_t whole[] = { p->mechanism,   p->dtype,     p->batch,      p->heads_q,   p->heads_kv,
                              p->len_q,       p->len_kv,    p->dim_qk,     p->dim_v,     p->total_q,
                              p->total_kv,    p->score,     p->causal,     p->window,    p->slope,
                              p->key_bias,    p->sink,      p->decay,      p->path,      p->heads_v,
                              p->feature_map, p->normalise, p->ridge_axes, p->ridge_unit };
    const double real[] = { p->scale, LOCAL_MAPS(MAP_MEMBER) solved ? p->ridge : 0 };
    saved_stamp stamp = { "saved 1", LOAM_VERSION_NUMBER, hash_add(UINT64_C(0xcbf29ce484222325), more) };
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        stamp.problem = hash_add(stamp.problem, (uint64_t)whole[i]);
    for (size_t i = 0; i < sizeof real / sizeof real[0]; i++)
        stamp.problem = hash_add(stamp.problem, word_of(real[i]));
    return stamp;
}

size_t saved_stamp_bytes(const loam_problem *p) { return p->backend == LOAM_BACKEND_CUDA ? 0 : LOAM_ALIGN; }

uint64_t saved_identity(const loam_problem *p) { return stamp_of(p, 0).problem; }

void saved_write(const loam_problem *p, uint64_t more, void *saved)
{
    if (saved && saved_stamp_bytes(p) > 0) {
        const saved_stamp stamp = stamp_of(p, more);
        memcpy(saved, &stamp, sizeof stamp);
    }
}

loam_status saved_check(const loam_problem *p, uint64_t more, const void *saved, loam_error *error)
{
    const saved_stamp expected = stamp_of(p, more);
    saved_stamp found;
    if (!saved || saved_stamp_bytes(p) == 0) return LOAM_OK;
    memcpy(&found, saved, sizeof found);
    REQUIRE(memcmp(found.magic, expected.magic, sizeof found.magic) == 0, error, LOAM_EARG,
            "saved: nothing that a forward wrote, expected what a forward of the same problem left there");
    REQUIRE(found.version == expected.version, error, LOAM_EARG,
            "saved: of a library of version number %llu, expected this one's, %llu",
            (unsigned long long)found.version, (unsigned long long)expected.version);
    REQUIRE(found.problem == expected.problem, error, LOAM_EARG,
            "saved: of another problem (identity %016llx), expected what a forward of this one left there "
            "(%016llx)",
            (unsigned long long)found.problem, (unsigned long long)expected.problem);
    return LOAM_OK;
}
