/* SPDX-License-Identifier: MIT */
#include "train/start.h"

#include "train/data.h"

#include <math.h>

enum { FOR_NORMALS, FOR_UNIFORMS };

/* From a uniform u in (0, 1), or a normal deviate. */
static double first_value(const parameter *p, double drawn)
{
    switch (p->start) {
    case START_NORMAL: return p->deviation * drawn;
    case START_DECAY_RATE: return log(1 + 15 * drawn);
    case START_DECAY_DELTA: return log(expm1(exp(log(0.001) + drawn * log(0.1 / 0.001))));
    default: return p->value;
    }
}

static void start_model(const parameter *p, int64_t model, int64_t number, uint64_t seed)
{
    const int64_t count = p->x.rows * p->x.width;
    const bool normal = p->start == START_NORMAL;
    const random_stream from = train_stream(seed, TRAIN_WEIGHTS, TRAIN_SPLIT_TRAIN,
                                            normal ? FOR_NORMALS : FOR_UNIFORMS, number);
    for (int64_t i = 0; i < count; i++) {
        double drawn;
        if (normal)
            random_normals(from, (uint64_t)i, 1, &drawn);
        else
            random_uniforms(from, (uint64_t)i, 1, &drawn);
        const double x = first_value(p, drawn);
        matrix_set(p->x, model * p->x.model + i, &x, 1);
    }
}

void start_parameter(const parameter *p, int64_t number, const uint64_t *seeds)
{
    for (int64_t model = 0; model < p->x.models; model++)
        start_model(p, model, number, seeds[model]);
}
