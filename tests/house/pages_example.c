/* SPDX-License-Identifier: MIT
 * An example of a page, the file EXAMPLE, and what it takes as given: the caller's arrays. It returns where a
 * call fails. */
#include <loam.h>

#include <stdio.h>
#include <stdlib.h>

enum { ROOM = 1 << 21 };
float q[ROOM], k[ROOM], v[ROOM], o[ROOM], vk[ROOM], probe[ROOM], w[ROOM], g[ROOM], gates[ROOM], beta[ROOM],
    state[ROOM];
float q1[1024], k1[1024], v1[1024], o1[1024], g1[1024], beta1[1024]; /* one token */
void *stream;
int cudaMalloc(void **memory, size_t bytes);

/* Scattered numbers in [-1, 1); w has length 1 where rows have 64 channels. */
static void fill_arrays(void)
{
    unsigned seed = 1;
    for (int index = 0; index < ROOM; index++) {
        seed = seed * 1664525u + 1013904223u;
        const float x = (float)(seed >> 8) / 8388608.0f - 1;
        q[index] = x, k[index] = x * x - 0.5f, v[index] = -x, vk[index] = x, probe[index] = x / 8;
        w[index] = x > 0 ? 0.125f : -0.125f, g[index] = gates[index] = -x * x, beta[index] = x * x;
    }
    for (int index = 0; index < 1024; index++)
        q1[index] = q[index], k1[index] = k[index], v1[index] = v[index], g1[index] = g[index],
        beta1[index] = beta[index];
}

static int example(void)
{
#include EXAMPLE
    return 0;
}

int main(void)
{
    fill_arrays();
    return example();
}
