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
LEARNED, ROPE, NONE = range(3)  # enum positions
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

    def zeros(self, n):
        self.arrays.append(onp.zeros(n))

    def rate(self, count):
        self.arrays.append(onp.log(1 + 15 * uniforms(len(self.arrays), count)))

    def delta(self, count):
        u = uniforms(len(self.arrays), count)
        self.arrays.append(onp.log(onp.expm1(onp.exp(onp.log(.001) + u * onp.log(100)))))


def norm(x, gain):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5) * gain


def layer_norm(x, gain, bias):
    x = x - np.mean(x, -1, keepdims=True)
    return norm(x, gain) + bias


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


def attended(x, w_q, w_k, w_v):
    return heads(x @ w_q), heads(x @ w_k), heads(x @ w_v)


def turned(x):
    """planes of channels c and c + SIDE / 2"""
    angle = onp.arange(LENGTH)[:, None] * 10000. ** (-2 * onp.arange(SIDE // 2) / SIDE)
    a, b = x[..., :SIDE // 2], x[..., SIDE // 2:]
    cos, sin = onp.cos(angle), onp.sin(angle)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def softmax(x, *w):
    q, k, v = attended(x, *w)
    return tokens(np.matmul(weights(q, k), v))


def parallax_rope(x, *w):
    q, k, v = attended(x, *w[:3])
    q, k, probe = turned(q), turned(k), turned(heads(x @ w[3]))
    return tokens(probed(weights(q, k), probe, k, v))


def parallax(x, *w):
    q, k, v = attended(x, *w[:3])
    return tokens(probed(weights(q, k), heads(x @ w[3]), k, v))


def lla(x, *w):
    q, k, v = attended(x, *w[:3])
    ridge = 0.01 + 0.99 * sigmoid(heads(x @ w[3]))
    p = weights(q, k)
    kbar = np.matmul(p, k)
    centred = k[:, :, None] - kbar[:, :, :, None]
    cov = np.einsum('bhij,bhijc,bhijd->bhicd', p, centred, centred)
    probe = np.linalg.solve(cov + ridge[..., None] * onp.eye(SIDE), (kbar - q)[..., None])[..., 0]
    return tokens(probed(p, probe, k, v))


def gated_delta(x, w_q, w_k, w_v, w_b, a, w_a, c, gain, w_z):
    q, k, v = (y * sigmoid(y) for y in attended(x, w_q, w_k, w_v))
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


def linear(x, w_q, w_k, w_v, gain):
    q, k, v = attended(x, w_q, w_k, w_v)
    s = np.matmul(q, np.swapaxes(k, 2, 3)) / onp.sqrt(SIDE) * SEEN
    return tokens(norm(np.matmul(s, v), gain))


def log_sigmoid(x):
    return -np.log1p(np.exp(-x))


def gla(x, w_q, w_k, w_v, w_1, w_2, b, gain, w_z):
    q, k, v = attended(x, w_q, w_k, w_v)
    keep = np.exp(heads(log_sigmoid(x @ w_1 @ w_2 + b) / 16))
    state, out = onp.zeros((BATCH, HEADS, SIDE, SIDE)), []
    for i in range(LENGTH):
        write = np.einsum('bhv,bhk->bhvk', v[:, :, i], k[:, :, i])
        state = state * keep[:, :, i, None, :] + write
        out.append(np.einsum('bhvk,bhk->bhv', state, q[:, :, i]) / onp.sqrt(SIDE))
    z = x @ w_z
    return tokens(norm(np.stack(out, 2), gain)) * z * sigmoid(z)


def mesa(x, w_q, w_k, w_v, w_b, b, w_a, a, p, gain):
    q, k, v = attended(x, w_q, w_k, w_v)
    q, k = (y / np.sqrt(np.sum(y * y, -1, keepdims=True)) for y in (q, k))
    beta = heads(sigmoid(x @ w_b + b))
    past = onp.tril(onp.ones((LENGTH, LENGTH)))
    total = np.einsum('ij,bhj->bhi', past, heads(log_sigmoid(x @ w_a + a))[..., 0])
    keep = np.exp(np.where(SEEN > 0, total[..., :, None] - total[..., None, :], -1e30))
    keep = keep * beta[:, :, None, :, 0]
    gram = np.einsum('bhij,bhjc,bhjd->bhicd', keep, k, k)
    ridge = np.reshape(0.25 + np.log1p(np.exp(p)), (HEADS, 1, SIDE, 1)) * onp.eye(SIDE)
    read = np.linalg.solve(gram + ridge, q[..., None])[..., 0]
    return tokens(norm(np.matmul(keep * np.matmul(read, np.swapaxes(k, 2, 3)), v), gain))


def fox(x, w_q, w_k, w_v, w_f):
    q, k, v = attended(x, w_q, w_k, w_v)
    total = np.einsum('ij,bhj->bhi', SEEN, heads(log_sigmoid(x @ w_f + 4))[..., 0])
    s = np.matmul(q, np.swapaxes(k, 2, 3)) / onp.sqrt(SIDE) + total[..., :, None] - total[..., None, :]
    p = np.exp(np.where(SEEN > 0, s, -1e30))
    return tokens(np.matmul(p / np.sum(p, -1, keepdims=True), v))


def path(x, w_q, w_k, w_v, w_1, w_2, w_b):
    q, k, v = attended(x, w_q, w_k, w_v)
    w = heads(x @ w_1 @ w_2)
    w = w / np.sqrt(np.sum(w * w, -1, keepdims=True))
    beta, out = 2 * sigmoid(heads(x @ w_b)), []
    for i in range(LENGTH):
        turned = k[:, :, :i + 1]
        for n in range(1, i + 1):
            along = np.einsum('bhjc,bhc->bhj', turned, w[:, :, n])
            after = onp.arange(i + 1) < n
            turn = np.einsum('bh,bhj,bhc->bhjc', beta[:, :, n, 0], along, w[:, :, n])
            turned = turned - after[:, None] * turn
        s = np.einsum('bhc,bhjc->bhj', q[:, :, i], turned) / onp.sqrt(SIDE)
        p = np.exp(s)
        out.append(np.einsum('bhj,bhjc->bhc', p / np.sum(p, -1, keepdims=True), v[:, :, :i + 1]))
    return tokens(np.stack(out, 2))


def mamba(x, w_in, c, a, skip, gain):
    y, inner = x @ w_in, 2 * WIDTH
    z, y, t_in = y[..., :inner], y[..., inner:2 * inner + 2 * SIDE], y[..., 2 * inner + 2 * SIDE:]
    y = y * sigmoid(y)
    v = np.reshape(y[..., :inner], (BATCH, LENGTH, 2 * HEADS, SIDE))
    k, q = y[..., inner:inner + SIDE], y[..., inner + SIDE:]
    delta = np.log1p(np.exp(t_in + c))
    keep = np.exp(-np.exp(a) * delta)
    state, out = onp.zeros((BATCH, 2 * HEADS, SIDE, SIDE)), []
    for i in range(LENGTH):
        write = np.einsum('bh,bhv,bk->bhvk', delta[:, i], v[:, i], k[:, i])
        state = state * keep[:, i, :, None, None] + write
        out.append(np.einsum('bhvk,bk->bhv', state, q[:, i]))
    o = np.reshape(np.stack(out, 1) + skip[:, None] * v, (BATCH, LENGTH, inner))
    return norm(o * z * sigmoid(z), gain)


def hyena(x, w_in, w_1, b_1, w_2, b_2, w_3, b_3, w_4, f, skip):
    j = onp.arange(LENGTH)[:, None]
    time, angle = j / (LENGTH - 1), 1e-4 * 2 * onp.pi * j / LENGTH
    y = onp.concatenate([time, onp.cos(angle), -onp.sin(angle)], 1)
    for w, b in ((w_1, b_1), (w_2, b_2), (w_3, b_3)):
        y = np.sin(f * (y @ w + b))
    h = (y @ w_4) * onp.exp(-time * onp.linspace(onp.log(100) / 1.5, onp.log(100) / 0.3, WIDTH))
    first, second, v = (np.reshape(x @ w_in, (BATCH, LENGTH, 3, WIDTH))[:, :, i] for i in range(3))
    u = first * v
    shift = onp.stack([onp.eye(LENGTH, k=-lag) for lag in range(LENGTH)])
    return (np.einsum('lts,lc,bsc->btc', shift, h, u) + skip * u) * second


def start_attention(start):
    for _ in range(3):
        start.normal(WIDTH, WIDTH)


def start_parallax(start):
    start_attention(start)
    start.normal(WIDTH, WIDTH)


def start_lla(start):
    start_attention(start)
    start.normal(WIDTH, HEADS)


def start_gated_delta(start):
    start_attention(start)
    start.normal(WIDTH, HEADS)
    start.rate(HEADS)
    start.normal(WIDTH, HEADS)
    start.delta(HEADS)
    start.ones(SIDE)
    start.normal(WIDTH, WIDTH)


def start_linear(start):
    start_attention(start)
    start.ones(SIDE)


def start_gla(start):
    start_attention(start)
    start.normal(WIDTH, 16)
    start.normal(16, WIDTH)
    start.zeros(WIDTH)
    start.ones(SIDE)
    start.normal(WIDTH, WIDTH)


def start_mesa(start):
    start_attention(start)
    start.normal(WIDTH, HEADS)
    start.zeros(HEADS)
    start.normal(WIDTH, HEADS)
    start.arrays.append(onp.full(HEADS, 4.))
    start.arrays.append(onp.full(WIDTH, onp.log(onp.expm1(0.75))))
    start.ones(SIDE)


def start_path(start):
    start_attention(start)
    start.normal(WIDTH, 32)
    start.normal(32, WIDTH)
    start.normal(WIDTH, HEADS)


def start_mamba(start):
    start.normal(WIDTH, 4 * WIDTH + 2 * SIDE + 2 * HEADS)
    start.delta(2 * HEADS)
    start.rate(2 * HEADS)
    start.ones(2 * HEADS)
    start.ones(2 * WIDTH)


def start_hyena(start):
    start.normal(WIDTH, 3 * WIDTH)
    for rows in (3, 64, 64):
        start.normal(rows, 64)
        start.zeros(64)
    start.normal(64, WIDTH)
    start.ones(64)
    start.normal(1, WIDTH, deviation=1)
    start.arrays[-1] = start.arrays[-1][0]


def begin(add, inner, positions, layer):
    start = Start()
    start.normal(WORDS, WIDTH)
    if positions == LEARNED:
        start.normal(LENGTH, WIDTH)
    layers = []
    for _ in range(LAYERS):
        first = len(start.arrays)
        start.ones(WIDTH)
        if layer:
            start.zeros(WIDTH)
        add(start)
        start.normal(inner, WIDTH, deviation=0.01)
        layers.append(slice(first, len(start.arrays)))
    start.ones(WIDTH)
    if layer:
        start.zeros(WIDTH)
    return start.arrays, layers


def loss(arrays, layers, mix, layer, k, rows, targets):
    e = arrays[0][k]
    if layers[0].start == 2:
        e = e + arrays[1]
    of_norm = 2 if layer else 1
    normed = layer_norm if layer else norm
    for which in layers:
        *inside, w_o = arrays[which]
        e = e + mix(normed(e, *inside[:of_norm]), *inside[of_norm:]) @ w_o
    y = np.dot(normed(e[rows], *arrays[-of_norm:]), arrays[0].T)
    y = y - np.max(y, -1, keepdims=True)
    return np.mean(np.log(np.sum(np.exp(y), -1)) - y[onp.arange(len(targets)), targets])


def train(positions, layer, mix, add, inner=WIDTH):
    arrays, layers = begin(add, inner, positions, layer)
    m, v = [0 * a for a in arrays], [0 * a for a in arrays]
    for step in range(STEPS):
        batch = onp.arange(step * BATCH, (step + 1) * BATCH)
        k, targets = t.recall(SEED, t.TRAIN, batch, LENGTH, PAIRS, WORDS)
        rows = onp.nonzero(targets >= 0)
        value, g = value_and_grad(loss)(arrays, layers, mix, layer, k, rows, targets[rows])
        factor, rate = t.clip(g), t.rate(step, 2 * STEPS, 3, 0.002)
        for i, a in enumerate(arrays):
            decay = 0.1 if a.ndim > 1 else 0
            arrays[i], m[i], v[i] = t.adamw(a, factor * g[i], m[i], v[i], step + 1, rate, decay)
        yield f'{value:.17g}'


rows = [('softmax', LEARNED, 0, softmax, start_attention), ('parallax', LEARNED, 0, parallax, start_parallax),
        ('lla', LEARNED, 0, lla, start_lla), ('gated-delta', LEARNED, 0, gated_delta, start_gated_delta),
        ('mamba-2', LEARNED, 0, mamba, start_mamba, 2 * WIDTH), ('hyena', LEARNED, 0, hyena, start_hyena),
        ('linear', LEARNED, 0, linear, start_linear), ('gla', LEARNED, 0, gla, start_gla),
        ('mesa', LEARNED, 0, mesa, start_mesa), ('fox', LEARNED, 0, fox, start_lla),
        ('path', LEARNED, 0, path, start_path), ('parallax', ROPE, 0, parallax_rope, start_parallax),
        ('linear', NONE, 0, linear, start_linear), ('softmax', LEARNED, 1, softmax, start_attention)]
lines = ['/* SPDX-License-Identifier: MIT', ' * Written by make_steps.py. */', 'static const struct {',
         f'const char *mixer; int positions, layer_norm; double loss[{STEPS}];', '} golden_steps[] = {',
         *(f'{{ "{name}", {how[0]}, {how[1]}, {{ {", ".join(train(*how))} }} }},' for name, *how in rows),
         '};']
(HERE / 'golden_steps.inc').write_text('\n'.join(lines) + '\n')
