#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes golden_steps.inc beside itself: the losses of ten steps of training, from the equations in float64
with gradients by autograd. Data, AdamW, schedule and clipping are those of tasks.py of the folder that is
named.

    pip install numpy autograd && python3 make_steps.py FOLDER && clang-format -i golden_steps.inc
"""
import pathlib
import sys

import autograd.numpy as np
import numpy as onp
from autograd import value_and_grad

sys.path.insert(0, sys.argv[1])
import tasks as t  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
WORDS, LENGTH, PAIRS, WIDTH, HEADS, BATCH, LAYERS, SEED, STEPS = 64, 16, 4, 32, 2, 8, 2, 1, 10
SIDE = WIDTH // HEADS
SEEN = onp.tril(onp.ones((LENGTH, LENGTH)))


def uniforms(number, count):
    w = t.words(SEED, t.stream(t.WEIGHTS, 0, 1, number), count)[0]
    return ((w >> onp.uint64(12)).astype(float) + 0.5) * 2.0 ** -52


class Start:
    """Arrays in the order of their numbers."""

    def __init__(self):
        self.arrays = []

    def normal(self, *shape, deviation=0.02):
        x = t.normals(SEED, t.stream(t.WEIGHTS, 0, 0, len(self.arrays)), int(onp.prod(shape)))[0]
        self.arrays.append(deviation * x.reshape(shape))

    def ones(self, n):
        self.arrays.append(onp.ones(n))

    def rate(self):
        self.arrays.append(onp.log(1 + 15 * uniforms(len(self.arrays), HEADS)))

    def delta(self):
        u = uniforms(len(self.arrays), HEADS)
        self.arrays.append(onp.log(onp.expm1(onp.exp(onp.log(.001) + u * onp.log(100)))))


def norm(x, gain):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5) * gain


def heads(x):
    return np.swapaxes(np.reshape(x, (BATCH, LENGTH, HEADS, -1)), 1, 2)


def tokens(x):
    return np.reshape(np.swapaxes(x, 1, 2), (BATCH, LENGTH, -1))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def weights(q, k):
    s = np.where(SEEN > 0, np.matmul(q, np.swapaxes(k, 2, 3)) / onp.sqrt(SIDE), -1e30)
    p = np.exp(s - np.max(s, -1, keepdims=True))
    return p / np.sum(p, -1, keepdims=True)


def probed(p, probe, k, v):
    """sum_j p_ij (1 - probe_i . (k_j - kbar_i)) v_j"""
    kbar = np.matmul(p, k)
    u = np.matmul(probe, np.swapaxes(k, 2, 3)) - np.sum(probe * kbar, -1, keepdims=True)
    return np.matmul(p * (1 - u), v)


def softmax(x, q, k, v):
    return tokens(np.matmul(weights(q, k), v))


def parallax(x, q, k, v, w_r):
    return tokens(probed(weights(q, k), heads(x @ w_r), k, v))


def lla(x, q, k, v, w_lambda):
    ridge = 0.01 + 0.99 * sigmoid(heads(x @ w_lambda))
    p = weights(q, k)
    kbar = np.matmul(p, k)
    centred = k[:, :, None] - kbar[:, :, :, None]
    cov = np.einsum('bhij,bhijc,bhijd->bhicd', p, centred, centred)
    probe = np.linalg.solve(cov + ridge[..., None] * onp.eye(SIDE), (kbar - q)[..., None])[..., 0]
    return tokens(probed(p, probe, k, v))


def gated_delta(x, q, k, v, w_b, a, w_a, c, gain, w_z):
    q, k, v = (y * sigmoid(y) for y in (q, k, v))
    q, k = (y / np.sqrt(np.sum(y * y, -1, keepdims=True)) for y in (q, k))
    beta = sigmoid(heads(x @ w_b))
    keep = np.exp(-np.exp(a) * np.log1p(np.exp(x @ w_a + c)))
    keep = np.swapaxes(keep, 1, 2)[..., None]
    state, out = onp.zeros((BATCH, HEADS, SIDE, SIDE)), []
    for i in range(LENGTH):
        state = state * keep[:, :, i, :, None]
        miss = v[:, :, i] - np.einsum('bhvk,bhk->bhv', state, k[:, :, i])
        state = state + np.einsum('bhv,bhk->bhvk', beta[:, :, i] * miss, k[:, :, i])
        out.append(np.einsum('bhvk,bhk->bhv', state, q[:, :, i]) / onp.sqrt(SIDE))
    z = x @ w_z
    return tokens(norm(np.stack(out, 2), gain)) * z * sigmoid(z)


def no_more(start):
    pass


def more_parallax(start):
    start.normal(WIDTH, WIDTH)


def more_lla(start):
    start.normal(WIDTH, HEADS)


def more_gated_delta(start):
    start.normal(WIDTH, HEADS)
    start.rate()
    start.normal(WIDTH, HEADS)
    start.delta()
    start.ones(SIDE)
    start.normal(WIDTH, WIDTH)


def begin(more):
    start = Start()
    start.normal(WORDS, WIDTH)
    start.normal(LENGTH, WIDTH)
    layers = []
    for _ in range(LAYERS):
        first = len(start.arrays)
        start.ones(WIDTH)
        for _ in range(3):
            start.normal(WIDTH, WIDTH)
        more(start)
        start.normal(WIDTH, WIDTH, deviation=0.01)
        layers.append(slice(first, len(start.arrays)))
    start.ones(WIDTH)
    return start.arrays, layers


def loss(arrays, layers, mix, k, rows, targets):
    e = arrays[0][k] + arrays[1]
    for layer in layers:
        gain, w_q, w_k, w_v, *rest, w_o = arrays[layer]
        x = norm(e, gain)
        e = e + mix(x, heads(x @ w_q), heads(x @ w_k), heads(x @ w_v), *rest) @ w_o
    y = np.dot(norm(e[rows], arrays[-1]), arrays[0].T)
    y = y - np.max(y, -1, keepdims=True)
    return np.mean(np.log(np.sum(np.exp(y), -1)) - y[onp.arange(len(targets)), targets])


def train(mix, more):
    arrays, layers = begin(more)
    m, v = [0 * a for a in arrays], [0 * a for a in arrays]
    for step in range(STEPS):
        batch = onp.arange(step * BATCH, (step + 1) * BATCH)
        k, targets = t.recall(SEED, t.TRAIN, batch, LENGTH, PAIRS, WORDS)
        rows = onp.nonzero(targets >= 0)
        value, g = value_and_grad(loss)(arrays, layers, mix, k, rows, targets[rows])
        factor, rate = t.clip(g), t.rate(step, 2 * STEPS, 3, 0.01)
        for i, a in enumerate(arrays):
            decay = 0.1 if a.ndim > 1 else 0
            arrays[i], m[i], v[i] = t.adamw(a, factor * g[i], m[i], v[i], step + 1, rate, decay)
        yield f'{value:.17g}'


rows = [('softmax', softmax, no_more), ('parallax', parallax, more_parallax), ('lla', lla, more_lla),
        ('gated-delta', gated_delta, more_gated_delta)]
lines = ['/* SPDX-License-Identifier: MIT', ' * Written by make_steps.py. */',
         f'static const struct {{ const char *mixer; double loss[{STEPS}]; }} golden_steps[] = {{',
         *(f'    {{ "{name}", {{ {", ".join(train(mix, more))} }} }},' for name, mix, more in rows), '};']
(HERE / 'golden_steps.inc').write_text('\n'.join(lines) + '\n')
