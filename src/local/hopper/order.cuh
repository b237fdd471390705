/* SPDX-License-Identifier: MIT
 * The order of blocks where a probe is given, and in the pass over keys, and whether thread blocks stay there.
 * All rows of a head read its keys, and all keys its rows. Where these of all heads together do not stay in
 * the L2 cache, blocks come in groups of heads. */
#ifndef LOAM_LOCAL_HOPPER_ORDER_CUH
#define LOAM_LOCAL_HOPPER_ORDER_CUH

#include "src/gpu/blocks.cuh"
#include "src/local/local.h"

/* Each of `heads` heads, of the whole batch, has `each` blocks; block n is of head n modulo their number. In
 * turn come the blocks of `group` heads, then those of the next. */
struct block_order {
    unsigned heads, group, each;
};

/* The number of the block that comes in place n. */
static __device__ __forceinline__ unsigned block_in_order(const block_order &order, unsigned n)
{
    if (order.group >= order.heads) return n;
    const unsigned whole = order.group * order.each, first = n / whole * order.group,
                   count = min(order.group, order.heads - first), rest = n % whole;
    return rest / count * order.heads + first + rest % count;
}

/* Whether thread blocks stay, for `blocks` blocks of sequences of `tokens`. */
loam_status local_blocks_stay_hopper(bool *stay, int64_t tokens, int64_t blocks, loam_error *error);
/* Of `blocks` blocks of rows, and of keys. */
loam_status local_row_order_hopper(block_order *order, const loam_problem *p, int64_t blocks,
                                   loam_error *error);
loam_status local_key_order_hopper(block_order *order, const loam_problem *p, int64_t blocks,
                                   loam_error *error);

#endif
