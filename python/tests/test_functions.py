# SPDX-License-Identifier: MIT
"""Every function against the equations in NumPy (float64, by the reference), every dtype against float64, and
what must not change a result: strides, threads, packing, a call in two halves."""

import copy
import threading

import numpy as np
import pytest

import loam_attn as la

B, T, H, G, K, V, M = 2, 23, 4, 2, 8, 6, 12


class Data:
    """Random arguments of one dtype, the same numbers for all; `real` is what gates have."""

    def __init__(self, dtype="f8", heads_kv=H, tokens=T, batch=B):
        rng = np.random.default_rng(7)
        self.dtype, self.real = np.dtype(dtype), np.dtype("f8" if dtype == "f8" else "f4")
        heads = {"q": H, "k": heads_kv, "v": heads_kv, "probe": H, "w": heads_kv}
        for name, count in heads.items():
            x = rng.standard_normal((batch, tokens, count, V if name == "v" else K))
            # Numbers that float16 has, so that dtypes differ by their arithmetic alone.
            setattr(self, name, x.astype("f2").astype(self.dtype))
        self.w = (self.w / np.linalg.norm(self.w.astype("f8"), axis=-1, keepdims=True)).astype(self.dtype)
        real = lambda x: x.astype("f4").astype(self.real)
        self.g = real(-rng.random((batch, tokens, H)))
        self.gk = real(-rng.random((batch, tokens, H, K)))
        self.beta = real(rng.random((batch, tokens, H)))
        self.beta_kv = self.beta[:, :, :heads_kv]
        self.key_bias = real(rng.standard_normal((batch, tokens, H)))
        self.slope, self.sink = real(rng.random(H)), real(rng.standard_normal(H))
        self.ridge = [
            real(0.1 + rng.random(shape))
            for shape in [(H,), (batch, tokens, H), (batch, tokens, H, K), (H, K)]
        ]
        self.z, self.log_alpha = real(rng.standard_normal((H, M, K))), real(rng.standard_normal((H, M)))
        # What has no gradients: shift, balance and balance_keys.
        balance = np.eye(K) + rng.standard_normal((H, K, K)) / 8
        self.fixed = [real(rng.standard_normal((H, K))), real(balance)]
        self.fixed.append(real(np.linalg.inv(balance).swapaxes(1, 2)))
        self.gain = real(rng.standard_normal(H))
        self.scale = real(np.array(0.6))

    def features(self):
        shift, balance, balance_keys = self.fixed
        return dict(log_alpha=self.log_alpha, shift=shift, balance=balance, balance_keys=balance_keys)


def keys_of(d, b, h, i, w=None, beta=None):
    """The keys of a row's head; with w and beta as its query sees them."""
    g = h // (H // d.k.shape[2])
    k = d.k[b, :, g]
    if w is None:
        return k
    turned, at = k.copy(), i + len(k) - d.q.shape[1]
    for j in range(at + 1):
        for t in range(j + 1, at + 1):
            turned[j] -= beta[b, t, g] * w[b, t, g] * (w[b, t, g] @ turned[j])
    return turned


def scores(
    d,
    b,
    h,
    i,
    scale=K**-0.5,
    causal=True,
    window_size=None,
    soft_cap=None,
    slope=None,
    key_bias=None,
    g=None,
    score="dot",
    w=None,
    beta=None,
):
    """Scores of the keys of one row, -inf where they are not seen."""
    q, k = d.q[b, i, h], keys_of(d, b, h, i, w, beta)
    at = i + len(k) - d.q.shape[1]
    s = scale * k @ q if score == "dot" else -scale / 2 * ((q - k) ** 2).sum(-1)
    if soft_cap:
        s = soft_cap * np.tanh(s / soft_cap)
    distance = at - np.arange(len(k))
    if slope is not None:
        s = s - slope[h] * abs(distance)
    if key_bias is not None:
        s = s + key_bias[b, :, h]
    if g is not None:
        c = np.cumsum(g[b, :, h])
        s = s + c[at] - c
    seen = (distance >= 0) | (not causal)
    if window_size:
        seen &= abs(distance) < window_size
    return np.where(seen, s, -np.inf)


def local(d, kind="softmax", ridge=0.1, unit="normalised", sink=None, **options):
    """o and log-sum-exp of the local family, row by row."""
    o, lse = np.zeros(d.q.shape[:3] + d.v.shape[3:]), np.zeros(d.q.shape[:3])
    for b, i, h in np.ndindex(lse.shape):
        s = scores(d, b, h, i, **options)
        top = s.max()
        e = np.exp(s - top)
        mass = e.sum() + (np.exp(sink[h] - top) if sink is not None else 0)
        p = e / mass
        lse[b, i, h] = top + np.log(mass)
        k = keys_of(d, b, h, i, options.get("w"), options.get("beta"))
        v = d.v[b, :, h // (H // d.v.shape[2])]
        mean = p @ k
        rho = np.zeros(K)
        if kind == "parallax":
            rho = d.probe[b, i, h]
        if kind == "lla":
            covariance = (k - mean).T @ (p[:, None] * (k - mean))
            factor = {"normalised": 1, "max": p.max(), "trace": np.trace(covariance) / K + 1e-3}[unit]
            row = ridge if np.ndim(ridge) == 0 else ridge[h] if ridge.ndim == 1 else ridge[b, i, h]
            rho = np.linalg.solve(covariance + factor * row * np.eye(K), mean - d.q[b, i, h])
        o[b, i, h] = (p * (1 - (k - mean) @ rho)) @ v
    return o, lse


def recurrence(d, g=None, beta=None, delta=False, scale=K**-0.5, normalize=False, ridge=None, features=None):
    """o and final state [.., K, R] of the recurrent family, token by token."""
    rows = V + normalize + (K if ridge is not None else 0)
    o, state = np.zeros(d.v.shape), np.zeros((len(d.q), H, K, rows))
    for b, h in np.ndindex(len(d.q), H):
        s = np.zeros((rows, K))
        for t in range(d.q.shape[1]):
            q, k, v = d.q[b, t, h // (H // d.q.shape[2])], d.k[b, t, h // (H // d.q.shape[2])], d.v[b, t, h]
            if features:
                q, k = features(q), features(k)
            if g is not None:
                s = s * np.exp(g[h] if g.ndim == 1 else g[b, t, h])
            new = np.concatenate([v, np.ones(int(normalize)), k if ridge is not None else []])
            rate = 1 if beta is None else beta[b, t, h]
            s = s + rate * np.outer(new - (s @ k if delta else 0), k)
            x = scale * q
            if ridge is not None:
                row = ridge if np.ndim(ridge) == 0 else ridge[h]
                x = np.linalg.solve(s[V:] + np.diag(np.broadcast_to(row, K)), x)
            o[b, t, h] = s[:V] @ x / (s[V] @ x if normalize else 1)
        state[b, h] = s.T
    return o, state


def interpolated(d, near, far):
    """o and final state of an interpolation, by the equations of its parts."""
    keys, at = copy.copy(d), copy.copy(d)
    keys.v = d.k
    at.q = d.q - local(keys, **near)[0]
    o, state = recurrence(at, **{"scale": 1, **far})
    return local(d, **near)[0] + o, state


def estimated(d, z, log_alpha=None, shift=None, balance=None, balance_keys=None):
    """o of positive random features: the sum over all pairs."""
    o = np.zeros(d.q.shape[:3] + d.v.shape[3:])
    for b, h in np.ndindex(len(d.q), d.q.shape[2]):
        of, g = h // (d.q.shape[2] // len(z)), h // (d.q.shape[2] // d.k.shape[2])
        x, y = K**-0.25 * d.q[b, :, h], K**-0.25 * (d.k[b, :, g] - (0 if shift is None else shift[of]))
        if balance is not None:
            x, y = x @ balance[of].T, y @ balance_keys[of].T
        keys = y @ z[of].T - (y * y).sum(-1, keepdims=True) / 2 + (0 if log_alpha is None else log_alpha[of])
        weights = np.tril(np.exp(x @ z[of].T) @ np.exp(keys).T)
        o[b, :, h] = weights / weights.sum(-1, keepdims=True) @ d.v[b, :, g]
    return o


def hybrid(d, sinks, window, gain, z, log_alpha=None, shift=None, balance=None, balance_keys=None):
    """o where the first and the last keys have their own weights, and those between an estimate of them."""
    o = np.zeros(d.q.shape[:3] + d.v.shape[3:])
    for b, h in np.ndindex(len(d.q), d.q.shape[2]):
        of, g = h // (d.q.shape[2] // len(z)), h // (d.q.shape[2] // d.k.shape[2])
        q, k = K**-0.25 * d.q[b, :, h], K**-0.25 * d.k[b, :, g]
        origin = K**-0.25 * (shift[of] if shift is not None else np.zeros(K))
        x, y = q, k - origin
        if balance is not None:
            x, y = x @ balance[of].T, y @ balance_keys[of].T
        half = lambda x: (x * x).sum(-1, keepdims=True) / 2
        keys = np.exp(y @ z[of].T - half(y) + (0 if log_alpha is None else log_alpha[of]))
        far = np.exp(gain[h] + q @ origin)[:, None] * (np.exp(x @ z[of].T - half(x)) @ keys.T) / z.shape[1]
        i, j = np.ogrid[: len(q), : len(k)]
        weights = np.tril(np.where((j < sinks) | (i - j < window), np.exp(q @ k.T), far))
        o[b, :, h] = weights / weights.sum(-1, keepdims=True) @ d.v[b, :, g]
    return o


def elu(x):
    return np.where(x > 0, x + 1, np.exp(x))


def unit(x):
    return x / np.linalg.norm(x)


# name: (the call, what the equations say it is); each of the arguments `d`.
LOCAL = {
    "softmax": (lambda d, **o: la.softmax_attention(d.q, d.k, d.v, **o), dict()),
    "scale": (lambda d, **o: la.softmax_attention(d.q, d.k, d.v, 0.7, **o), dict(scale=0.7)),
    "all_keys": (lambda d, **o: la.softmax_attention(d.q, d.k, d.v, causal=False, **o), dict(causal=False)),
    "window": (lambda d, **o: la.softmax_attention(d.q, d.k, d.v, window_size=5, **o), dict(window_size=5)),
    "cap": (lambda d, **o: la.softmax_attention(d.q, d.k, d.v, soft_cap=1.5, **o), dict(soft_cap=1.5)),
    "slope": (lambda d, **o: la.softmax_attention(d.q, d.k, d.v, slope=d.slope, **o), "slope"),
    "key_bias": (lambda d, **o: la.softmax_attention(d.q, d.k, d.v, key_bias=d.key_bias, **o), "key_bias"),
    "sink": (lambda d, **o: la.softmax_attention(d.q, d.k, d.v, sink_bias=d.sink, **o), "sink"),
    "rbf": (lambda d, **o: la.softmax_attention(d.q, d.k, d.v, score="rbf", **o), dict(score="rbf")),
    "gated": (lambda d, **o: la.softmax_attention(d.q, d.k, d.v, g=d.g, **o), "g"),
    "forgetting": (lambda d, **o: la.forgetting_attention(d.q, d.k, d.v, d.g, **o), "g"),
    "path": (lambda d, **o: la.path_attention(d.q, d.k, d.v, d.w, d.beta_kv, **o), ("w", "beta_kv")),
    "path_g": (
        lambda d, **o: la.path_attention(d.q, d.k, d.v, d.w, d.beta_kv, d.g, **o),
        ("w", "beta_kv", "g"),
    ),
    "parallax": (lambda d, **o: la.parallax(d.q, d.k, d.v, d.probe, **o), dict(kind="parallax")),
    "lla": (lambda d, **o: la.lla(d.q, d.k, d.v, **o), dict(kind="lla")),
    "lla_max": (
        lambda d, **o: la.lla(d.q, d.k, d.v, 0.3, ridge_unit="max", **o),
        dict(kind="lla", ridge=0.3, unit="max"),
    ),
    "lla_trace": (
        lambda d, **o: la.lla(d.q, d.k, d.v, 1, ridge_unit="trace", **o),
        dict(kind="lla", ridge=1, unit="trace"),
    ),
    "lla_head": (lambda d, **o: la.lla(d.q, d.k, d.v, d.ridge[0], **o), 0),
    "lla_token": (lambda d, **o: la.lla(d.q, d.k, d.v, d.ridge[1], **o), 1),
    "lla_channel": (lambda d, **o: la.lla(d.q, d.k, d.v, d.ridge[2], **o), 2),
    "lla_scale": (
        lambda d, **o: la.lla(d.q, d.k, d.v, 0.3, d.scale, **o),
        lambda d: dict(kind="lla", ridge=0.3, scale=d.scale),
    ),
    "lla_path": (
        lambda d, **o: la.lla(d.q, d.k, d.v, w=d.w, beta=d.beta_kv, **o),
        lambda d: dict(kind="lla", w=d.w, beta=d.beta_kv),
    ),
    "parallax_path": (
        lambda d, **o: la.parallax(d.q, d.k, d.v, d.probe, g=d.g, w=d.w, beta=d.beta_kv, **o),
        lambda d: dict(kind="parallax", g=d.g, w=d.w, beta=d.beta_kv),
    ),
}
RECURRENT = {
    "linear": (
        lambda d, **o: la.linear_attention(d.q, d.k, d.v, feature_map="elu", **o),
        lambda d: dict(normalize=True, features=elu),
    ),
    "linear_sum": (
        lambda d, **o: la.linear_attention(d.q, d.k, d.v, 0.3, normalize=False, **o),
        lambda d: dict(scale=0.3),
    ),
    "retention": (
        lambda d, **o: la.retention(d.q, d.k, d.v, **o),
        lambda d: dict(g=np.log(1 - 2.0 ** (-5 - np.arange(H)))),
    ),
    "retention_g": (lambda d, **o: la.retention(d.q, d.k, d.v, -d.slope, **o), lambda d: dict(g=-d.slope)),
    "ssd": (lambda d, **o: la.ssd(d.q, d.k, d.v, d.g, d.beta, **o), lambda d: dict(g=d.g, beta=d.beta)),
    "gla": (lambda d, **o: la.gla(d.q, d.k, d.v, d.gk, **o), lambda d: dict(g=d.gk)),
    "gla_unit": (
        lambda d, **o: la.gla(d.q, d.k, d.v, d.gk, feature_map="unit", **o),
        lambda d: dict(g=d.gk, features=unit),
    ),
    "ssd_scale": (
        lambda d, **o: la.ssd(d.q, d.k, d.v, d.g, d.beta, d.scale, feature_map="elu", **o),
        lambda d: dict(g=d.g, beta=d.beta, scale=d.scale, features=elu),
    ),
    "delta": (
        lambda d, **o: la.delta_rule(d.q, d.k, d.v, d.beta, use_qk_l2norm_in_kernel=True, **o),
        lambda d: dict(beta=d.beta, delta=True, features=unit),
    ),
    "gated_delta": (
        lambda d, **o: la.gated_delta_rule(d.q, d.k, d.v, d.g, d.beta, use_qk_l2norm_in_kernel=True, **o),
        lambda d: dict(g=d.g, beta=d.beta, delta=True, features=unit),
    ),
    "kda": (
        lambda d, **o: la.kda(d.q, d.k, d.v, d.gk, d.beta, use_qk_l2norm_in_kernel=True, **o),
        lambda d: dict(g=d.gk, beta=d.beta, delta=True, features=unit),
    ),
    "mesa": (
        lambda d, **o: la.mesa(d.q, d.k, d.v, d.g, d.beta, **o),
        lambda d: dict(g=d.g, beta=d.beta, ridge=0.1, scale=1),
    ),
    "mesa_number": (
        lambda d, **o: la.mesa(d.q, d.k, d.v, d.g, d.beta, 0.5, **o),
        lambda d: dict(g=d.g, beta=d.beta, ridge=0.5, scale=1),
    ),
    "mesa_head": (
        lambda d, **o: la.mesa(d.q, d.k, d.v, d.g, d.beta, d.ridge[0], **o),
        lambda d: dict(g=d.g, beta=d.beta, ridge=d.ridge[0], scale=1),
    ),
    "mesa_channel": (
        lambda d, **o: la.mesa(d.q, d.k, d.v, d.g, d.beta, d.ridge[3], **o),
        lambda d: dict(g=d.g, beta=d.beta, ridge=d.ridge[3], scale=1),
    ),
}
# On softmax attention, LLA and Parallax: the call, and the options of the two parts.
OVER = {
    "over_linear": (
        lambda d, **o: la.interpolation(d.q, d.k, d.v, window_size=5, **o),
        lambda d: (dict(window_size=5), dict()),
    ),
    "over_mesa": (
        lambda d, **o: la.interpolation(
            d.q, d.k, d.v, "mesa", linear_g=d.g, linear_beta=d.beta, linear_ridge=d.ridge[0], **o
        ),
        lambda d: (dict(), dict(g=d.g, beta=d.beta, ridge=d.ridge[0])),
    ),
    "over_gla": (
        lambda d, **o: la.interpolation(
            d.q, d.k, d.v, "gla", 0.7, linear_g=d.gk, linear_scale=0.5, local="lla", ridge=d.ridge[1], **o
        ),
        lambda d: (dict(kind="lla", ridge=d.ridge[1], scale=0.7), dict(g=d.gk, scale=0.5)),
    ),
    "over_ssd": (
        lambda d, **o: la.interpolation(
            d.q, d.k, d.v, "ssd", linear_g=d.g, linear_beta=d.beta, local="parallax", probe=d.probe, **o
        ),
        lambda d: (dict(kind="parallax"), dict(g=d.g, beta=d.beta)),
    ),
}
FEATURES = {
    "features": lambda d, **o: la.linear_attention(d.q, d.k, d.v, feature_map="positive", z=d.z, **o),
    "features_all": lambda d, **o: la.linear_attention(
        d.q, d.k, d.v, feature_map="positive", z=d.z, **d.features(), **o
    ),
}
HYBRID = {
    "hybrid": lambda d, **o: la.hybrid_attention(d.q, d.k, d.v, d.z, 2, 5, gain=d.gain, **d.features(), **o),
}
ALL = {name: call for table in (LOCAL, RECURRENT, OVER) for name, (call, _) in table.items()} | FEATURES
# Those that may be packed, and have results beside o.
USUAL = list(ALL)
ALL |= HYBRID


def local_options(d, expected):
    if isinstance(expected, int):
        return dict(kind="lla", ridge=d.ridge[expected])
    if isinstance(expected, dict):
        return expected
    if callable(expected):
        return expected(d)
    names = (expected,) if isinstance(expected, str) else expected
    return {name.removesuffix("_kv"): getattr(d, name) for name in names}


def output(result):
    return result[0] if isinstance(result, tuple) else result


def far(a, b):
    """The distance of two arrays, relative to the larger numbers of the second."""
    return np.abs(np.asarray(a, "f8") - np.asarray(b, "f8")).max() / np.abs(np.asarray(b, "f8")).max()


@pytest.mark.parametrize("heads_kv", [H, G])
@pytest.mark.parametrize("name", LOCAL)
def test_local_is_the_equations(name, heads_kv):
    d = Data(heads_kv=heads_kv)
    call, expected = LOCAL[name]
    o, lse = call(d, return_lse=True)
    want_o, want_lse = local(d, **local_options(d, expected))
    assert far(o, want_o) < 1e-9 and far(lse, want_lse) < 1e-10


@pytest.mark.parametrize("heads_qk", [H, G])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrence_is_the_equations(name, heads_qk):
    d = Data()
    if heads_qk == G:
        d.q, d.k = d.q[:, :, :G].copy(), d.k[:, :, :G].copy()
    call, expected = RECURRENT[name]
    o, state = call(d, output_final_state=True)
    want_o, want_state = recurrence(d, **expected(d))
    assert far(o, want_o) < 1e-9 and far(state, want_state) < 1e-10
    assert call(d)[1] is None


@pytest.mark.parametrize("dtype, bound", [("f4", 2e-4), ("f2", 5e-3)])
@pytest.mark.parametrize("name", ALL)
def test_dtypes_are_near_float64(name, dtype, bound):
    # Eight times the rounding of float16; float32 has sums of 23 terms, and solves with a ridge of 0.1.
    o = output(ALL[name](Data(dtype)))
    assert o.dtype == dtype
    assert far(o, output(ALL[name](Data()))) < bound
    reference = output(ALL[name](Data(dtype), backend="reference"))
    assert reference.dtype == dtype and far(o, reference) < bound


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    d = Data("f4")
    for name in "q", "k", "v":
        setattr(d, name, getattr(d, name).astype(ml_dtypes.bfloat16))
    o = la.softmax_attention(d.q, d.k, d.v)
    assert o.dtype == ml_dtypes.bfloat16
    want = la.softmax_attention(*(x.astype("f4") for x in (d.q, d.k, d.v)))
    assert far(o.astype("f4"), want) < 2e-2


def strange(x, how):
    """The same numbers, otherwise in memory."""
    if x.ndim == 0:
        return x
    if how == "fortran":
        return np.asfortranarray(x)
    if how == "backwards":
        return x[::-1].copy()[::-1]
    if how == "sliced":
        room = np.zeros(x.shape[:-1] + (2 * x.shape[-1],), x.dtype)
        room[..., ::2] = x
        return room[..., ::2]
    if how == "heads_first" and x.ndim > 2:
        return np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    if how == "record":
        room = np.zeros(x.shape, [("x", x.dtype), ("pad", "u1")])
        room["x"] = x
        return room["x"]
    if how == "odd":
        room = np.zeros(x.nbytes + 1, "u1")
        room[1:] = np.frombuffer(x.tobytes(), "u1")
        return room[1:].view(x.dtype).reshape(x.shape)
    return x


@pytest.mark.parametrize("how", ["fortran", "backwards", "sliced", "heads_first", "record", "odd"])
@pytest.mark.parametrize("name", ALL)
def test_strides_change_no_bit(name, how):
    d = Data("f4")
    want = output(ALL[name](d))
    for member, x in vars(d).items():
        if isinstance(x, np.ndarray):
            setattr(d, member, strange(x, how))
    d.ridge, d.fixed = [strange(x, how) for x in d.ridge], [strange(x, how) for x in d.fixed]
    assert np.array_equal(output(ALL[name](d)), want)


def test_broadcast_input():
    d = Data("f4")
    k = np.broadcast_to(d.k[:1], d.k.shape)
    assert np.array_equal(la.softmax_attention(d.q, k, d.v), la.softmax_attention(d.q, k.copy(), d.v))


def cut(d, first, end):
    """Arguments of some tokens alone."""
    part = Data(str(d.dtype))
    for name, x in vars(d).items():
        if isinstance(x, np.ndarray):
            setattr(part, name, x[:, first:end] if x.ndim > 2 and name != "z" else x)
    part.ridge = [x[:, first:end] if x.ndim > 2 else x for x in d.ridge]
    part.fixed = d.fixed
    return part


@pytest.mark.parametrize("name", OVER)
def test_interpolation_is_the_equations(name):
    d = Data()
    call, parts = OVER[name]
    o, state, info, read = call(d, output_final_state=True, return_info=True)
    want_o, want_state = interpolated(d, *parts(d))
    assert far(o, want_o) < 1e-9 and far(state, want_state) < 1e-10
    assert info.shape == read.shape == (B, T, H) and not info["code"].any() and not read["code"].any()
    assert call(d)[1] is None


def test_interpolation_on_a_delta_rule():
    d = Data()
    d.k = d.w
    o, _ = la.interpolation(
        d.q, d.k, d.v, "kda", linear_g=d.gk, linear_beta=d.beta, g=d.g, key_bias=d.key_bias, soft_cap=3
    )
    want, _ = interpolated(
        d, dict(g=d.g, key_bias=d.key_bias, soft_cap=3), dict(g=d.gk, beta=d.beta, delta=True)
    )
    assert far(o, want) < 1e-9
    assert np.array_equal(
        la.interpolation(d.q, d.k, d.v, "retention")[0],
        la.interpolation(d.q, d.k, d.v, "retention", linear_g=np.log(1 - 2.0 ** (-5 - np.arange(H))))[0],
    )


@pytest.mark.parametrize("heads_kv, shared", [(H, False), (G, False), (G, True)])
@pytest.mark.parametrize("name", FEATURES)
def test_features_are_the_equations(name, heads_kv, shared):
    d = Data(heads_kv=heads_kv)
    if shared:
        d.z, d.log_alpha, d.fixed = d.z[:G], d.log_alpha[:G], [x[:G] for x in d.fixed]
    o, state = FEATURES[name](d, features_shared=shared, output_final_state=True)
    assert far(o, estimated(d, d.z, **(d.features() if name == "features_all" else {}))) < 1e-9
    assert state.shape == (B, len(d.z), M, V + 2)


@pytest.mark.parametrize("heads_kv, shared", [(H, False), (G, False), (G, True)])
def test_hybrid_is_the_equation(heads_kv, shared):
    d = Data(heads_kv=heads_kv)
    z, options = (d.z[:G] if shared else d.z), d.features()
    if shared:
        options = {name: x[:G] for name, x in options.items()}
    found = la.hybrid_attention(d.q, d.k, d.v, z, 2, 5, gain=d.gain, features_shared=shared, **options)
    assert far(found, hybrid(d, 2, 5, d.gain, z, **options)) < 1e-9
    plain = la.hybrid_attention(d.q, d.k, d.v, z, 0, 1, features_shared=shared)
    assert far(plain, hybrid(d, 0, 1, np.zeros(H), z)) < 1e-9


def test_many_features_are_softmax():
    d = Data(tokens=12)
    d.q, d.k = d.q / 2, d.k / 2
    want = la.softmax_attention(d.q, d.k, d.v)
    for kind in "normal", "orthogonal":
        z = np.concatenate([la.projection(H, 512, K, kind, seed=s, dtype="f8") for s in range(8)], 1)[:, ::8]
        o, _ = la.linear_attention(d.q, d.k, d.v, feature_map="positive", z=z)
        # The mean of 512 terms, whose deviation is near 1.
        assert abs(o - want).mean() < 0.05


@pytest.mark.parametrize("kind", ["normal", "orthogonal", "dct"])
def test_projections(kind):
    z = la.projection(3, 2 * K, K, kind, seed=5)
    assert z.shape == (3, 2 * K, K) and z.dtype == np.float32
    # A head depends on the seed and its number alone.
    assert np.array_equal(la.projection(2, 2 * K, K, kind, seed=5), z[:2])
    assert far(z, la.projection(3, 2 * K, K, kind, seed=5, dtype="f8")) < 1e-6
    assert not np.array_equal(la.projection(3, 2 * K, K, kind, seed=6), z)
    if kind != "normal":
        products = z[0, :K] @ z[0, :K].T
        assert abs(products - np.diag(np.diag(products))).max() < 1e-4


def test_listing():
    rows = la.kernels()
    assert len({row.name for row in rows}) == len(rows) > 20
    assert {row.pass_ for row in rows} == {"forward", "backward", "decode"}
    assert all(row.available for row in rows if row.backend == "reference")
    named = {m.name: m for m in la.mechanisms()}
    assert named["mesa"].ridge and named["kda"].log_decay == "channel" and named["delta"].beta_most == 2
    assert named["lla"].probe is False and named["parallax"].probe and named["softmax"].sink
    assert named["mesa"].ridge_positive and named["mesa"].ridge_axes == ("number", "head", "head-channel")
    assert named["lla"].ridge_units == ("normalised", "max", "trace") and named["kda"].delta
    assert la.ROW_CODES == ("solved", "empty", "singular") and la.SOLVERS[1] == "cg"
    assert named["lla"].family == "local" and named["gla"].normalize and not named["gla"].beta


def test_a_kernel_by_its_name():
    d = Data("f4")
    reference = la.softmax_attention(d.q, d.k, d.v, backend="reference")
    o, pullback = la.vjp(la.softmax_attention, d.q, d.k, d.v, backend="local_forward_ref")
    assert np.array_equal(o, reference) and not np.array_equal(o, la.softmax_attention(d.q, d.k, d.v))
    # It is of the forward, and the backward chooses its own.
    assert far(pullback(o)["v"], la.vjp(la.softmax_attention, d.q, d.k, d.v)[1](o)["v"]) < 1e-5
    with pytest.raises(RuntimeError, match="kernel: recurrent_forward_ref does not do softmax"):
        la.softmax_attention(d.q, d.k, d.v, backend="recurrent_forward_ref")
    if any(row.name == "local_forward_cuda" for row in la.kernels()):
        with pytest.raises(ValueError, match="backend: 'local_forward_cuda' is of cuda, expected one"):
            la.softmax_attention(d.q, d.k, d.v, backend="local_forward_cuda")


def test_two_halves_of_an_interpolation():
    # What the local part sees is cut too: with a window of 1 it is each token itself.
    d = Data()
    call = lambda d, **o: la.interpolation(d.q, d.k, d.v, "gla", linear_g=d.gk, window_size=1, **o)
    whole, last = call(d, output_final_state=True)
    first, state = call(cut(d, 0, 9), output_final_state=True)
    second, end = call(cut(d, 9, T), initial_state=state, output_final_state=True)
    assert far(np.concatenate([first, second], 1), whole) < 1e-9 and far(end, last) < 1e-10


@pytest.mark.parametrize("name", [*RECURRENT, *FEATURES])
def test_two_halves_are_the_whole(name):
    call, d = ALL[name], Data()
    whole, last = call(d, output_final_state=True)
    first, state = call(cut(d, 0, 9), output_final_state=True)
    second, end = call(cut(d, 9, T), initial_state=state, output_final_state=True)
    assert far(np.concatenate([first, second], 1), whole) < 1e-9 and far(end, last) < 1e-10
    dense, _ = call(cut(d, 9, T), initial_state=np.ascontiguousarray(state))
    assert np.array_equal(dense, second)


@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("name", USUAL)
def test_packed_sequences_are_each_alone(name, index):
    d = Data("f4", batch=1)
    ends = [0, 5, 5, 14, T]
    result = ALL[name](d, cu_seqlens=np.array(ends, index))
    for first, end in zip(ends, ends[1:]):
        if end > first:
            alone = output(ALL[name](cut(d, first, end)))
            assert np.array_equal(output(result)[:, first:end], alone)


BY_KEYS = ["softmax", "window", "key_bias", "forgetting", "path_g", "parallax", "lla"]


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("name", BY_KEYS)
def test_keys_that_are_not_in_use(name, dtype):
    call, d, used = ALL[name], Data(dtype), [T - 4, T]
    # Queries are the last that the keys in use have.
    d.q, d.probe = d.q[:, -5:], d.probe[:, -5:]
    o = call(d, key_lengths=np.array(used, "i4"))
    for b, n in enumerate(used):
        part = copy.copy(d)
        for key in "q", "k", "v", "w", "g", "beta", "beta_kv", "key_bias", "probe":
            x = getattr(d, key)[b : b + 1]
            setattr(part, key, x if key in ("q", "probe") else x[:, :n])
        assert np.array_equal(o[b : b + 1], call(part))


@pytest.mark.parametrize("name", ["softmax", "lla", "all_keys"])
def test_packed_keys_of_other_lengths(name):
    call, d, part = ALL[name], Data("f4", batch=1), Data("f4", batch=1)
    d.q, ends, ends_k = d.q[:, :9], [0, 4, 4, 9], np.array([0, 11, 15, T])
    o = call(d, cu_seqlens=np.array(ends), cu_seqlens_k=ends_k)
    for n in 0, 2:
        part.q = d.q[:, ends[n] : ends[n + 1]]
        part.k, part.v = (x[:, ends_k[n] : ends_k[n + 1]] for x in (d.k, d.v))
        assert np.array_equal(o[:, ends[n] : ends[n + 1]], call(part))


def test_packed_states():
    d = Data(batch=1)
    _, states = la.gla(d.q, d.k, d.v, d.gk, cu_seqlens=np.array([0, 9, T]), output_final_state=True)
    assert states.shape == (2, H, K, V)
    part = cut(d, 9, T)
    _, state = la.gla(part.q, part.k, part.v, part.gk, output_final_state=True)
    assert far(states[1:], state) < 1e-12


def test_queries_at_the_end_of_keys():
    d = Data("f4")
    whole = la.softmax_attention(d.q, d.k, d.v)
    assert far(la.softmax_attention(d.q[:, -3:], d.k, d.v), whole[:, -3:]) < 1e-6


@pytest.mark.parametrize("name", ["softmax", "lla", "gla", "mesa", "kda"])
def test_threads_change_no_bit(name):
    d = Data("f4", tokens=200)
    before = la.get_num_threads()
    try:
        results = []
        for threads in 1, 2, 3:
            la.set_num_threads(threads)
            assert la.get_num_threads() == threads
            results.append(output(ALL[name](d)))
    finally:
        la.set_num_threads(before)
    assert all(np.array_equal(x, results[0]) for x in results)


def test_calls_from_threads_at_once():
    # More shapes than plans are kept, so that threads evict each other's.
    d = Data("f4", tokens=100)
    call = lambda n: la.softmax_attention(d.q[:, :n], d.k[:, :n], d.v[:, :n])
    want, wrong = {n: call(n) for n in range(1, 101)}, []

    def work(seed):
        for n in np.random.default_rng(seed).integers(1, 101, 100):
            if not np.array_equal(call(n), want[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_info():
    d = Data("f4")
    o, info = la.lla(d.q, d.k, d.v, return_info=True)
    assert info.dtype.names == ("code", "solver", "iterations", "residual")
    assert info.shape == (B, T, H) and not info["code"].any() and (info["solver"] > 0).any()
    _, state, info = la.mesa(d.q, d.k, d.v, d.g, d.beta, return_info=True)
    assert state is None and info.shape == (B, T, H) and (info["code"] == 0).all()
    # Ridge 0 with fewer keys than channels has no solution.
    _, info = la.lla(d.q, d.k, d.v, 0, return_info=True)
    assert (info["code"][:, 0] == 2).all() and (info["code"][:, -1] == 0).all()
    # No query sees a key before the first.
    _, info = la.softmax_attention(d.q, d.k[:, :20], d.v[:, :20], return_info=True)
    assert (info["code"][:, :3] == 1).all() and (info["code"][:, 3:] == 0).all()


@pytest.mark.parametrize("name", [*LOCAL, "over_gla"])
def test_weights_are_what_values_count(name):
    d = Data()
    if name == "over_gla":
        call = lambda **o: la.interpolation(d.q, d.k, d.v, "gla", linear_g=0 * d.gk - 99, **o)
        _, _, weights = call(return_weights=True)
        want = la.softmax_attention(d.q, d.k, d.v, return_weights=True)[1]
        assert far(weights, want) < 1e-12
        return
    o, weights = ALL[name](d, return_weights=True)
    assert weights.shape == (B, T, H, T) and far(np.einsum("bthj,bjhd->bthd", weights, d.v), o) < 1e-9
    if "path" not in name and name != "sink":
        assert far(weights.sum(-1), 1) < 1e-9


def test_the_probe_that_was_used():
    d = Data()
    o, probe = la.lla(d.q, d.k, d.v, 0.3, return_probe=True)
    assert probe.shape == (B, T, H, K) and far(la.parallax(d.q, d.k, d.v, probe), o) < 1e-9
    d = Data(batch=1)
    with pytest.raises(ValueError, match="return_weights: True, expected False with cu_seqlens"):
        la.lla(d.q, d.k, d.v, cu_seqlens=np.array([0, 9, T]), return_weights=True)


def test_nothing_in_nothing_out():
    empty = np.zeros((0, 5, H, K), "f4")
    assert la.softmax_attention(empty, empty, empty).shape == (0, 5, H, K)
    empty = np.zeros((2, 0, H, K), "f4")
    o, state = la.delta_rule(empty, empty, empty, empty[..., 0], output_final_state=True)
    assert o.shape == (2, 0, H, K) and not state.any()
