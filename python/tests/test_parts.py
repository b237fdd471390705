# SPDX-License-Identifier: MIT
"""States of parts of the keys are, merged, the call with all keys; and what plans say of themselves."""

import copy
import pickle

import numpy as np
import pytest
from test_functions import ALL, LOCAL, H, K, B, Data, T, V, far, output

import loam_attn as la


def part(name, d, first, end):
    """The part of keys first .. end - 1: k, v and key_bias are theirs alone."""

    def call(q, k, v):
        cut = copy.copy(d)
        cut.q, cut.k, cut.v, cut.key_bias = q, k, v, d.key_bias[:, first:end]
        return ALL[name](cut)

    return la.part(call, d.q, d.k[:, first:end], d.v[:, first:end], first=first, keys=T)


@pytest.mark.parametrize("heads_kv", [H, 2])
@pytest.mark.parametrize("name", LOCAL)
def test_parts_are_the_whole(name, heads_kv):
    d = Data(heads_kv=heads_kv)
    first, second, third, none = (part(name, d, a, b) for a, b in ((0, 7), (7, 8), (8, T), (8, 8)))
    o, lse = third.merge(first).merge(none).merge(second).finish(return_lse=True)
    want_o, want_lse = ALL[name](d, return_lse=True)
    assert far(o, want_o) < 1e-9 and far(lse, want_lse) < 1e-10
    # Merging makes a new part.
    assert np.array_equal(first.array, part(name, d, 0, 7).array)


@pytest.mark.parametrize("name", ["softmax", "parallax", "lla", "path_g"])
def test_dtypes(name):
    d = Data("f4")
    merged = part(name, d, 0, 9).merge(part(name, d, 9, T))
    o, probe, info = merged.finish(return_probe=True, return_info=True)
    assert o.dtype == "f4" and far(o, output(ALL[name](d))) < 3e-4
    assert probe.shape == d.q.shape and info.shape == (B, T, H) and not info["code"].any()


def test_what_travels_is_an_array():
    d = Data("f4")
    here, there = part("lla", d, 0, 9), pickle.loads(pickle.dumps(part("lla", d, 9, T)))
    # m, omega, kbar, vbar, the lower triangle of the keys' covariance, and that of values and keys.
    assert here.array.shape == (B, H, T, 2 + K + V + K * (K + 1) // 2 + V * K)
    assert here.array.dtype == "f8"
    o = here.merge(there.array).finish()
    assert np.array_equal(o, here.merge(there).finish()) and far(o, ALL["lla"](d)) < 3e-4


def test_tensors():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from test_torch import Tensors

    d = Tensors()
    o, info = part("lla", d, 0, 9).merge(part("lla", d, 9, T)).finish(return_info=True)
    n = Data("f4")
    assert isinstance(o, torch.Tensor) and not info.code.any()
    assert np.array_equal(o.numpy(), part("lla", n, 0, 9).merge(part("lla", n, 9, T)).finish())


def test_refused():
    d = Data("f4")
    with pytest.raises(ValueError, match="first, count: keys 20 to 20 . 9, expected within 0 to 23"):
        la.part(la.softmax_attention, d.q, d.k[:, :9], d.v[:, :9], first=20, keys=T)
    with pytest.raises(ValueError, match="v: shape .2, 8, 4, 6., expected .2, 9, 4, D."):
        la.part(la.softmax_attention, d.q, d.k[:, :9], d.v[:, :8], first=0, keys=T)
    with pytest.raises(ValueError, match="total: given, but only softmax attention, Parallax and LLA have"):
        la.part(lambda q, k, v: la.gla(q, k, v, d.gk), d.q, d.k, d.v, first=0, keys=T)
    with pytest.raises(ValueError, match="cache: given, expected None"):
        la.part(la.softmax_attention, d.q, d.k, d.v, first=0, keys=T, cache=la.Cache())
    one = part("softmax", d, 0, 9)
    with pytest.raises(ValueError, match=r"states_from: shape \[2, 4, 23, 7\], expected \[2, 4, 23, 8\]"):
        one.merge(one.array[..., :7])
    with pytest.raises(TypeError, match="states_from: dtype float32, expected float64"):
        one.merge(one.array.astype("f4"))
    with pytest.raises(ValueError, match="weights: given, but decode"):
        one.finish(return_weights=True)


def test_plans():
    d = Data("f4")
    found = la.plan(la.lla, d.q, d.k, d.v, 0.5, backend="local_forward_ref")
    assert found.kernel == "local_forward_ref" and found.name.startswith(
        "lla forward f32 local_forward_ref b2"
    )
    assert found.fallback is None and found.saved_bytes > B * T * H * 4
    passes = {
        pass_: la.plan(la.kda, d.q, d.k, d.v, d.gk, d.beta, pass_=pass_) for pass_ in ("backward", "decode")
    }
    assert all(pass_ in plan.kernel and plan.saved_bytes == 0 for pass_, plan in passes.items())
    over = la.plan(la.interpolation, d.q, d.k, d.v, "gla", linear_g=d.gk)
    assert over.name.startswith("softmax forward")
    # One feature more, two channels and a value.
    assert "d10/7" in la.plan(la.hybrid_attention, d.q, d.k, d.v, d.z).name
    with pytest.raises(ValueError, match="pass_: 'sideways', expected one of forward, backward, decode"):
        la.plan(la.lla, d.q, d.k, d.v, pass_="sideways")
