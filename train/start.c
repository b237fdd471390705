/* SPDX-License-Identifier: MIT */
#include "train/start.h"

#include "train/data.h"

#include <math.h>

enum { FOR_NORMALS, FOR_UNIFORMS };
enum { AT_ONCE = 1024 };

/* Of element `at`, from a uniform u in (0, 1), or a normal deviate. */
static double first_value(const parameter *p, double drawn, int64_t at)
{
    switch (p->start) {
    case START_NORMAL: return p->deviation * drawn;
    case START_UNIFORM: return p->value * (2 * drawn - 1);
    case START_DECAY_RATE: return log(1 + 15 * drawn);
    case START_DECAY_DELTA: return log(expm1(exp(log(0.001) + drawn * log(0.1 / 0.001))));
    case START_IDENTITY: return at / p->x.width % p->x.width == at % p->x.width;
    default: return p->value;
    }
}

static void start_model(const machine *on, const parameter *p, int64_t model, int64_t number, uint64_t seed)
{
    const int64_t count = p->x.rows * p->x.width;
    const bool normal = p->start == START_NORMAL;
    const random_stream from = train_stream(seed, TRAIN_WEIGHTS, TRAIN_SPLIT_TRAIN,
                                            normal ? FOR_NORMALS : FOR_UNIFORMS, number);
    for (int64_t first = 0; first < count; first += AT_ONCE) {
        double x[AT_ONCE];
        const int64_t part = count - first < AT_ONCE ? count - first : AT_ONCE;
        if (normal)
            random_normals(from, (uint64_t)first, part, x);
        else
            random_uniforms(from, (uint64_t)first, part, x);
        for (int64_t i = 0; i < part; i++)
            x[i] = first_value(p, x[i], first + i);
        machine_set(on, p->x, model * p->x.model + first, x, part);
    }
}

void start_parameter(const machine *on, const parameter *p, int64_t number, const uint64_t *seeds)
{
    for (int64_t model = 0; model < p->x.models; model++)
        start_model(on, p, model, number, seeds[model]);
}
