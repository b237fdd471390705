/* SPDX-License-Identifier: MIT
 * Rules of local/hopper/order.cuh. */
#include "src/local/hopper/order.cuh"

/* Blocks of short sequences end soon after they begin: thread blocks that stay copy the next one meanwhile.
 * Where there are few, the scheduler shares them out better. */
loam_status local_blocks_stay_hopper(bool *stay, int64_t tokens, int64_t blocks, loam_error *error)
{
    int multiprocessors = 0;
    TRY(cuda_multiprocessors(&multiprocessors, error));
    *stay = tokens <= (blocks < 4 * multiprocessors ? 1024 : 2048);
    return LOAM_OK;
}

/* Bytes of a group: half of the L2 cache of an H100. */
enum { GROUP_BYTES = 24 << 20 };

/* `bytes` of each head are read many times. The group's double divides the multiprocessors, so that rounds of
 * thread blocks that stay, every other one of which runs backwards, begin at all groups alike: other groups
 * take up to half as long again. */
static loam_status order_make(block_order *order, int64_t heads, int64_t blocks, int64_t bytes,
                              loam_error *error)
{
    int multiprocessors = 0;
    TRY(cuda_multiprocessors(&multiprocessors, error));
    int group = multiprocessors / 2;
    while (group > 1 && (multiprocessors % (2 * group) != 0 || group * bytes > GROUP_BYTES))
        group--;
    const bool all = heads * bytes <= GROUP_BYTES;
    *order = block_order{ (unsigned)heads, all ? (unsigned)heads : (unsigned)group,
                          (unsigned)(heads > 0 ? blocks / heads : 0) };
    return LOAM_OK;
}

/* A head's rows read its share of the keys and values of its group. */
loam_status local_row_order_hopper(block_order *order, const loam_problem *p, int64_t blocks,
                                   loam_error *error)
{
    const int64_t bytes = p->len_kv * (p->dim_qk + p->dim_v) * 2 * p->heads_kv / p->heads_q;
    return order_make(order, p->batch * p->heads_q, blocks, bytes, error);
}

/* A head's keys read the queries, gradients and probes of its group. */
loam_status local_key_order_hopper(block_order *order, const loam_problem *p, int64_t blocks,
                                   loam_error *error)
{
    const int64_t probes = p->mechanism == LOAM_SOFTMAX ? 0 : p->dim_qk,
                  bytes = p->len_q * (p->dim_qk + p->dim_v + probes) * 2 * p->heads_q / p->heads_kv;
    return order_make(order, p->batch * p->heads_kv, blocks, bytes, error);
}
