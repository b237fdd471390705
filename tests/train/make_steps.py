#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes golden_steps.inc beside itself: the losses of ten steps of training, from the equations in float64
with gradients by autograd. Blind rows are trained on regression, the others on recall. Data, AdamW, schedule
and clipping are those of tasks.py of the folder that is named.

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
PAST = onp.tril(onp.ones((LENGTH, LENGTH)))
# Of regression: pairs, of a segment, channels of x and y.
CONTEXT, SEGMENT, DIM_X, DIM_Y = 12, 3, 4, 3


class Rows:
    """Which rows others see as keys, and which pairs of rows that makes."""

    def see(self, count):
        self.seen = onp.arange(LENGTH) < count
        self.pairs = onp.where(self.seen, PAST, 0)


ROWS = Rows()


def uniforms(number, count):
    w = t.words(SEED, t.stream(t.WEIGHTS, 0, 1, number), count)[0]
    return ((w >> onp.uint64(12)).astype(float) + 0.5) * 2.0 ** -52


class Start:
    """Arrays in the order of their numbers; with `fan_in` weights are N(0, 1/rows), else N(0, 0.02^2)."""

    def __init__(self, fan_in):
        self.arrays = []
        self.fan_in = fan_in

    def normal(self, *shape, deviation=None):
        if deviation is None:
            deviation = shape[0] ** -0.5 if self.fan_in else 0.02
        x = t.normals(SEED, t.stream(t.WEIGHTS, 0, 0, len(self.arrays)), int(onp.prod(shape)))[0]
        self.arrays.append(deviation * x.reshape(shape))

    def last(self, *shape):
        """Weights whose result is added to e: smaller."""
        self.normal(*shape, deviation=0.5 * shape[0] ** -0.5 if self.fan_in else 0.01)

    def taps(self, count, width):
        u = uniforms(len(self.arrays), count * width).reshape(count, width)
        self.arrays.append(count ** -0.5 * (2 * u - 1))

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


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(onp.sqrt(2 / onp.pi) * (x + 0.044715 * x ** 3)))


def seen(x):
    """x [batch, heads, token, channels], 0 in rows that no other sees"""
    return x * ROWS.seen[:, None]


def filtered(x, taps):
    """y_t = sum_k taps_k x_{t-k}; of rows that are not seen the row itself alone"""
    y, shown = taps[0] * x, x * ROWS.seen[:, None]
    for k in range(1, len(taps)):
        y = y + taps[k] * np.concatenate([onp.zeros((BATCH, k, x.shape[2])), shown[:, :-k]], 1)
    return y


def weights(q, k):
    s = np.where(ROWS.pairs > 0, np.matmul(q, np.swapaxes(k, 2, 3)) / onp.sqrt(SIDE), -1e30)
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


def parallax_gated(x, w_q, w_k, w_v, w_r, gain_q, gain_k, gain_r, w_g):
    q, k, v = attended(x, w_q, w_k, w_v)
    probe = norm(heads(x @ w_r), gain_r) * sigmoid(heads(x @ w_g))
    q, k, probe = turned(norm(q, gain_q)), turned(norm(k, gain_k)), turned(probe)
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


def delta_rule(x, q, k, v, w_b, a, w_a, c, gain, w_z):
    q, k = (y / np.sqrt(np.sum(y * y, -1, keepdims=True)) for y in (q, k))
    beta = seen(sigmoid(heads(x @ w_b)))
    keep = np.exp(seen(-np.exp(a)[:, None, None] * heads(np.log1p(np.exp(x @ w_a + c)))))
    state, out = onp.zeros((BATCH, HEADS, v.shape[3], SIDE)), []
    for i in range(LENGTH):
        state = state * keep[:, :, i, :, None]
        miss = v[:, :, i] - np.einsum('bhvk,bhk->bhv', state, k[:, :, i])
        state = state + np.einsum('bhv,bhk->bhvk', beta[:, :, i] * miss, k[:, :, i])
        out.append(np.einsum('bhvk,bhk->bhv', state, q[:, :, i]) / onp.sqrt(SIDE))
    z = x @ w_z
    return tokens(norm(np.stack(out, 2), gain)) * z * sigmoid(z)


def gated_delta(x, w_q, w_k, w_v, *rest):
    return delta_rule(x, *(silu(y) for y in attended(x, w_q, w_k, w_v)), *rest)


def gated_delta_plain(x, w_q, w_k, w_v, *rest):
    return delta_rule(x, *attended(x, w_q, w_k, w_v), *rest)


def gated_delta_filtered(x, w_q, w_k, w_v, t_q, t_k, t_v, *rest):
    q, k, v = (heads(silu(filtered(x @ w, taps))) for w, taps in ((w_q, t_q), (w_k, t_k), (w_v, t_v)))
    return delta_rule(x, q, k, v, *rest)


def linear(x, w_q, w_k, w_v, gain):
    q, k, v = attended(x, w_q, w_k, w_v)
    s = np.matmul(q, np.swapaxes(k, 2, 3)) / onp.sqrt(SIDE) * ROWS.pairs
    return tokens(norm(np.matmul(s, v), gain))


def log_sigmoid(x):
    return -np.log1p(np.exp(-x))


def gla(x, w_q, w_k, w_v, w_1, w_2, b, gain, w_z):
    q, k, v = attended(x, w_q, w_k, w_v)
    return gated_linear(x, q, k, v, w_1, w_2, b, gain, w_z)


def gla_filtered(x, w_q, w_k, w_v, t_q, t_k, t_v, *rest):
    q, k, v = (heads(silu(filtered(x @ w, taps))) for w, taps in ((w_q, t_q), (w_k, t_k), (w_v, t_v)))
    return gated_linear(x, q, k, v, *rest)


def gated_linear(x, q, k, v, w_1, w_2, b, gain, w_z):
    side, v = k.shape[3], seen(v)
    keep = np.exp(seen(heads(log_sigmoid(x @ w_1 @ w_2 + b) / 16)))
    state, out = onp.zeros((BATCH, HEADS, SIDE, side)), []
    for i in range(LENGTH):
        write = np.einsum('bhv,bhk->bhvk', v[:, :, i], k[:, :, i])
        state = state * keep[:, :, i, None, :] + write
        out.append(np.einsum('bhvk,bhk->bhv', state, q[:, :, i]) / onp.sqrt(side))
    z = x @ w_z
    return tokens(norm(np.stack(out, 2), gain)) * z * sigmoid(z)


def mesa(x, w_q, w_k, w_v, w_b, b, w_a, a, p, gain):
    q, k, v = attended(x, w_q, w_k, w_v)
    q, k = (y / np.sqrt(np.sum(y * y, -1, keepdims=True)) for y in (q, k))
    beta = seen(heads(sigmoid(x @ w_b + b)))
    total = np.einsum('ij,bhj->bhi', PAST, seen(heads(log_sigmoid(x @ w_a + a)))[..., 0])
    keep = np.exp(np.where(PAST > 0, total[..., :, None] - total[..., None, :], -1e30))
    keep = keep * beta[:, :, None, :, 0]
    gram = np.einsum('bhij,bhjc,bhjd->bhicd', keep, k, k)
    ridge = np.reshape(0.25 + np.log1p(np.exp(p)), (HEADS, 1, SIDE, 1)) * onp.eye(SIDE)
    read = np.linalg.solve(gram + ridge, q[..., None])[..., 0]
    return tokens(norm(np.matmul(keep * np.matmul(read, np.swapaxes(k, 2, 3)), v), gain))


def fox(x, w_q, w_k, w_v, w_f):
    q, k, v = attended(x, w_q, w_k, w_v)
    total = np.einsum('ij,bhj->bhi', PAST, seen(heads(log_sigmoid(x @ w_f + 4)))[..., 0])
    s = np.matmul(q, np.swapaxes(k, 2, 3)) / onp.sqrt(SIDE) + total[..., :, None] - total[..., None, :]
    p = np.exp(np.where(ROWS.pairs > 0, s, -1e30))
    return tokens(np.matmul(p / np.sum(p, -1, keepdims=True), v))


def path(x, w_q, w_k, w_v, w_1, w_2, w_b):
    q, k, v = attended(x, w_q, w_k, w_v)
    w = heads(x @ w_1 @ w_2)
    w = w / np.sqrt(np.sum(w * w, -1, keepdims=True))
    beta, out = seen(2 * sigmoid(heads(x @ w_b))), []
    for i in range(LENGTH):
        turned = k[:, :, :i + 1]
        for n in range(1, i + 1):
            along = np.einsum('bhjc,bhc->bhj', turned, w[:, :, n])
            after = onp.arange(i + 1) < n
            turn = np.einsum('bh,bhj,bhc->bhjc', beta[:, :, n, 0], along, w[:, :, n])
            turned = turned - after[:, None] * turn
        s = np.einsum('bhc,bhjc->bhj', q[:, :, i], turned) / onp.sqrt(SIDE)
        p = np.exp(s) * ROWS.seen[:i + 1]
        out.append(np.einsum('bhj,bhjc->bhc', p / np.sum(p, -1, keepdims=True), v[:, :, :i + 1]))
    return tokens(np.stack(out, 2))


def mamba_filtered(x, w_in, taps, *rest):
    y, inner, end = x @ w_in, 2 * WIDTH, 4 * WIDTH + 2 * SIDE
    parts = [y[..., :inner], filtered(y[..., inner:end], taps), y[..., end:]]
    return state_space(np.concatenate(parts, 2), *rest)


def mamba(x, w_in, *rest):
    return state_space(x @ w_in, *rest)


def state_space(y, c, a, skip, gain):
    inner = 2 * WIDTH
    z, y, t_in = y[..., :inner], y[..., inner:2 * inner + 2 * SIDE], y[..., 2 * inner + 2 * SIDE:]
    y = y * sigmoid(y)
    v = np.reshape(y[..., :inner], (BATCH, LENGTH, 2 * HEADS, SIDE))
    k, q = y[..., inner:inner + SIDE], y[..., inner + SIDE:]
    delta = np.log1p(np.exp(t_in + c)) * ROWS.seen[:, None]
    keep = np.exp(-np.exp(a) * delta)
    state, out = onp.zeros((BATCH, 2 * HEADS, SIDE, SIDE)), []
    for i in range(LENGTH):
        write = np.einsum('bh,bhv,bk->bhvk', delta[:, i], v[:, i], k[:, i])
        state = state * keep[:, i, :, None, None] + write
        out.append(np.einsum('bhvk,bk->bhv', state, q[:, i]))
    o = np.reshape(np.stack(out, 1) + skip[:, None] * v, (BATCH, LENGTH, inner))
    return norm(o * z * sigmoid(z), gain)


def hyena_filtered(x, w_in, taps, *rest):
    return long_filter(filtered(x @ w_in, taps), *rest)


def hyena(x, w_in, *rest):
    return long_filter(x @ w_in, *rest)


def long_filter(xs, w_1, b_1, w_2, b_2, w_3, b_3, w_4, f, skip):
    j = onp.arange(LENGTH)[:, None]
    time, angle = j / (LENGTH - 1), 1e-4 * 2 * onp.pi * j / LENGTH
    y = onp.concatenate([time, onp.cos(angle), -onp.sin(angle)], 1)
    for w, b in ((w_1, b_1), (w_2, b_2), (w_3, b_3)):
        y = np.sin(f * (y @ w + b))
    h = (y @ w_4) * onp.exp(-time * onp.linspace(onp.log(100) / 1.5, onp.log(100) / 0.3, WIDTH))
    first, second, v = (np.reshape(xs, (BATCH, LENGTH, 3, WIDTH))[:, :, i] for i in range(3))
    u = first * v
    shift = onp.stack([onp.eye(LENGTH, k=-lag) for lag in range(LENGTH)])
    return (np.einsum('lts,lc,bsc->btc', shift, h, u * ROWS.seen[:, None]) + skip * u) * second


def start_attention(start):
    for _ in range(3):
        start.normal(WIDTH, WIDTH)


def start_filters(start):
    for _ in range(3):
        start.taps(4, WIDTH)


def start_parallax_gated(start):
    start_parallax(start)
    for _ in range(3):
        start.ones(SIDE)
    start.normal(WIDTH, HEADS, deviation=0.02)


def start_parallax(start):
    start_attention(start)
    start.normal(WIDTH, WIDTH)


def start_lla(start):
    start_attention(start)
    start.normal(WIDTH, HEADS, deviation=0.02)


def start_fox(start):
    start_attention(start)
    start.normal(WIDTH, HEADS)


def start_delta_rule(start, values=WIDTH):
    start.normal(WIDTH, HEADS)
    start.rate(HEADS)
    start.normal(WIDTH, HEADS)
    start.delta(HEADS)
    start.ones(values // HEADS)
    start.normal(WIDTH, values)


def start_gated_delta(start):
    start_attention(start)
    start_delta_rule(start)


def start_gated_delta_filtered(start):
    start_attention(start)
    start_filters(start)
    start_delta_rule(start)


def start_gated_delta_published(start):
    start.normal(WIDTH, WIDTH)
    start.normal(WIDTH, WIDTH)
    start.normal(WIDTH, 2 * WIDTH)
    start_delta_rule(start, 2 * WIDTH)


def start_linear(start):
    start_attention(start)
    start.ones(SIDE)


def start_gated_linear(start, keys=WIDTH):
    start.normal(WIDTH, 16)
    start.normal(16, keys)
    start.zeros(keys)
    start.ones(SIDE)
    start.normal(WIDTH, WIDTH)


def start_gla(start):
    start_attention(start)
    start_gated_linear(start)


def start_gla_filtered(start):
    start_attention(start)
    start_filters(start)
    start_gated_linear(start)


def start_gla_published(start):
    start.normal(WIDTH, WIDTH // 2)
    start.normal(WIDTH, WIDTH // 2)
    start.normal(WIDTH, WIDTH)
    start_gated_linear(start, WIDTH // 2)


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


def start_mamba(start, taps=0):
    start.normal(WIDTH, 4 * WIDTH + 2 * SIDE + 2 * HEADS)
    if taps:
        start.taps(taps, 2 * WIDTH + 2 * SIDE)
    start.delta(2 * HEADS)
    start.rate(2 * HEADS)
    start.ones(2 * HEADS)
    start.ones(2 * WIDTH)


def start_mamba_filtered(start):
    start_mamba(start, 4)


def start_hyena_filtered(start):
    start_hyena(start, 3)


def start_hyena(start, taps=0):
    start.normal(WIDTH, 3 * WIDTH)
    if taps:
        start.taps(taps, 3 * WIDTH)
    for rows in (3, 64, 64):
        start.normal(rows, 64)
        start.zeros(64)
    start.normal(64, WIDTH)
    start.ones(64)
    start.normal(1, WIDTH, deviation=1)
    start.arrays[-1] = start.arrays[-1][0]


class Model:
    """A mixer with its switches, which are members of mixer_options."""

    def __init__(self, mixer, mix, add, inner=WIDTH, **how):
        self.mixer, self.mix, self.add, self.inner, self.how = mixer, mix, add, inner, how
        self.learned = how.get('positions', 'POSITIONS_LEARNED') == 'POSITIONS_LEARNED'
        self.layer_norm, self.mlp, self.blind = (how.get(name) for name in ('layer_norm', 'mlp', 'blind'))
        ROWS.see(CONTEXT if self.blind else LENGTH)
        self.begin()

    def gain(self, start):
        start.ones(WIDTH)
        if self.layer_norm:
            start.zeros(WIDTH)

    def begin(self):
        start = Start(fan_in=self.blind)
        start.normal(DIM_X + DIM_Y if self.blind else WORDS, WIDTH)
        if self.learned:
            start.normal(LENGTH, WIDTH, deviation=0.02)
        self.layers = []
        for _ in range(LAYERS):
            first = len(start.arrays)
            self.gain(start)
            self.add(start)
            start.last(self.inner, WIDTH)
            if self.mlp:
                self.gain(start)
                start.normal(WIDTH, 4 * WIDTH)
                start.last(4 * WIDTH, WIDTH)
            self.layers.append(slice(first, len(start.arrays)))
        if self.blind:
            start.normal(WIDTH, DIM_Y)
        else:
            self.gain(start)
        self.arrays = start.arrays

    def normed(self, e, arrays):
        """The norm of e, and the arrays after its own."""
        if self.layer_norm:
            return layer_norm(e, *arrays[:2]), arrays[2:]
        return norm(e, arrays[0]), arrays[1:]

    def layer(self, e, arrays):
        if self.mlp:
            count = 4 if self.layer_norm else 3
            arrays, (*gain, w_1, w_2) = arrays[:-count], arrays[-count:]
        x, (*inside, w_o) = self.normed(e, arrays)
        e = e + self.mix(x, *inside) @ w_o
        return e + gelu(self.normed(e, gain)[0] @ w_1) @ w_2 if self.mlp else e

    def loss(self, arrays, batch):
        e = np.dot(batch[0], arrays[0]) if self.blind else arrays[0][batch[0]]
        if self.learned:
            e = e + arrays[1]
        for which in self.layers:
            e = self.layer(e, arrays[which])
        if self.blind:
            return np.mean((np.dot(e[:, CONTEXT:], arrays[-1]) - batch[1]) ** 2)
        rows, targets = batch[1:]
        y = np.dot(self.normed(e[rows], arrays[-2 if self.layer_norm else -1:])[0], arrays[0].T)
        y = y - np.max(y, -1, keepdims=True)
        return np.mean(np.log(np.sum(np.exp(y), -1)) - y[onp.arange(len(targets)), targets])

    def batch(self, examples):
        if self.blind:
            return t.regression(SEED, t.TRAIN, examples, CONTEXT, SEGMENT, DIM_X, DIM_Y, LENGTH - CONTEXT)[:2]
        k, targets = t.recall(SEED, t.TRAIN, examples, LENGTH, PAIRS, WORDS)
        rows = onp.nonzero(targets >= 0)
        return k, rows, targets[rows]

    def train(self):
        arrays = self.arrays
        m, v = [0 * a for a in arrays], [0 * a for a in arrays]
        for step in range(STEPS):
            batch = self.batch(onp.arange(step * BATCH, (step + 1) * BATCH))
            value, g = value_and_grad(self.loss)(arrays, batch)
            factor, rate = t.clip(g), t.rate(step, 2 * STEPS, 3, 0.002)
            for i, a in enumerate(arrays):
                decay = 0.1 if a.ndim > 1 else 0
                arrays[i], m[i], v[i] = t.adamw(a, factor * g[i], m[i], v[i], step + 1, rate, decay)
            yield f'{value:.17g}'

    def line(self):
        how = ', '.join(f'.{name} = {str(value).lower() if value is True else value}'
                        for name, value in {'ridge_least': 0.01, 'ridge_most': 1, **self.how}.items())
        return f'{{ "{self.mixer}", {{ {how} }}, {{ {", ".join(self.train())} }} }},'


rows = [('softmax', softmax, start_attention), ('parallax', parallax, start_parallax),
        ('lla', lla, start_lla), ('gated-delta', gated_delta, start_gated_delta),
        ('mamba-2', mamba, start_mamba, 2 * WIDTH), ('hyena', hyena, start_hyena),
        ('linear', linear, start_linear), ('gla', gla, start_gla), ('mesa', mesa, start_mesa),
        ('fox', fox, start_fox), ('path', path, start_path)]
switched = [(('parallax', parallax_rope, start_parallax), {'positions': 'POSITIONS_ROPE'}),
            (('linear', linear, start_linear), {'positions': 'POSITIONS_NONE'}),
            (('softmax', softmax, start_attention), {'layer_norm': True}),
            (('softmax', softmax, start_attention), {'mlp': True}),
            (('lla', lla, start_lla), {'mlp': True, 'layer_norm': True}),
            (('parallax', parallax_gated, start_parallax_gated),
             {'qk_norm': True, 'probe_gate': True, 'positions': 'POSITIONS_ROPE'}),
            (('gated-delta', gated_delta_plain, start_gated_delta), {'no_silu': True}),
            (('gated-delta', gated_delta_filtered, start_gated_delta_filtered), {'short_filter': True}),
            (('gated-delta', gated_delta, start_gated_delta_published, 2 * WIDTH), {'published_dims': True}),
            (('gla', gla_filtered, start_gla_filtered), {'short_filter': True}),
            (('gla', gla, start_gla_published), {'published_dims': True}),
            (('mamba-2', mamba_filtered, start_mamba_filtered, 2 * WIDTH), {'short_filter': True}),
            (('hyena', hyena_filtered, start_hyena_filtered), {'short_filter': True}),
            (('gated-delta', gated_delta_filtered, start_gated_delta_filtered),
             {'short_filter': True, 'blind': True})]
lines = ['/* SPDX-License-Identifier: MIT', ' * Written by make_steps.py. */', 'static const struct {',
         f'const char *mixer; mixer_options how; double loss[{STEPS}];', '} golden_steps[] = {',
         *(Model(*row).line() for row in rows), *(Model(*row, **how).line() for row, how in switched),
         *(Model(*row, blind=True).line() for row in rows), '};']
(HERE / 'golden_steps.inc').write_text('\n'.join(lines) + '\n')
