/* SPDX-License-Identifier: MIT */
#include "lm/encoder.h"

#include <assert.h>
#include <string.h>

/* Logarithms of features are held above -2^24 (loam.h): such a key has none that is left beside any other.
 * e^-65536 is 0 in float32; in bfloat16 the number is the same. */
static const float no_log_alpha = -0x1p25F, no_key = -65536;

void encoder_close(encoder_room *r)
{
    memory_close(&r->room);
    *r = (encoder_room){ 0 };
}

static void take(encoder_room *r, const machine *on, int64_t count)
{
    r->states = memory_take(&r->room, count, sizeof *r->states);
    r->log_alpha = memory_take(&r->room, LOAM_MAX_DIM, sizeof *r->log_alpha);
    r->key = memory_matrix(&r->room, on->operand, 1, 1, LOAM_MAX_DIM).data;
}

static void fill(const encoder_room *r, const machine *on)
{
    float logs[LOAM_MAX_DIM], keys[LOAM_MAX_DIM];
    uint16_t narrow[LOAM_MAX_DIM];
    uint32_t bits;
    assert(on->operand == LOAM_F32 || on->operand == LOAM_BF16);
    memcpy(&bits, &no_key, sizeof bits);
    for (int i = 0; i < LOAM_MAX_DIM; i++)
        logs[i] = no_log_alpha, keys[i] = no_key, narrow[i] = (uint16_t)(bits >> 16);
    machine_upload(on, r->log_alpha, logs, sizeof logs);
    if (on->operand == LOAM_BF16)
        machine_upload(on, r->key, narrow, sizeof narrow);
    else
        machine_upload(on, r->key, keys, sizeof keys);
}

static int open_room(encoder_room *r, const machine *on, int64_t count, io_error *error)
{
    if (count <= r->count) return 0;
    encoder_close(r);
    take(r, on, count);
    if (!memory_open(&r->room, on)) {
        *r = (encoder_room){ 0 };
        return io_fail(error, EXIT_INTERNAL, "out of memory for states of a text");
    }
    take(r, on, count);
    fill(r, on);
    r->count = count;
    return 0;
}

int encoder_attend(encoder_room *r, const machine *on, const loam_plan *plan, const loam_args *args,
                   io_error *error)
{
    const loam_problem *p = loam_plan_problem(plan);
    const bool positive = p->feature_map == LOAM_FEATURES_POSITIVE;
    const int64_t heads = p->features_shared ? p->heads_kv : p->heads_q,
                  width = positive ? p->features : p->dim_qk, rows = loam_plan_state_rows(plan);
    const int status = open_room(r, on, p->batch * heads * rows * width, error);
    if (status) return status;
    loam_args sum = *args, read = *args;
    loam_error reason;
    sum.state_out = loam_dense_out(r->states, heads, rows, width);
    read.state_in = loam_dense(r->states, heads, rows, width);
    if (positive)
        read.log_alpha = (loam_const_view){ r->log_alpha, 0, 0, 1 };
    else
        read.k = (loam_const_view){ r->key, 0, 0, 0 };
    if (loam_run(plan, &sum, &reason) || loam_run(plan, &read, &reason))
        return io_fail(error, EXIT_INTERNAL, "%s", reason.text);
    return 0;
}
