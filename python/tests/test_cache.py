# SPDX-License-Identifier: MIT
"""Generation by a cache: prompts and tokens in any parts are the whole call."""

import pickle

import numpy as np
import pytest
from test_functions import ALL, LOCAL, RECURRENT, B, Data, T, cut, far, output

import loam_attn as la

CAUSAL = [name for name in LOCAL if name != "all_keys"]
PARTS = {"tokens": range(1, T + 1), "prompt": [14, 15, 16, 18, T], "few": [3, 6, 7, T]}


def generate(call, d, ends, cache, **options):
    """o of the calls with these ends, one after another."""
    parts, first = [], 0
    for end in ends:
        parts.append(output(call(cut(d, first, end), cache=cache, **options)))
        first = end
    return np.concatenate(parts, 1)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", [*CAUSAL, *RECURRENT, "hybrid"])
def test_parts_are_the_whole(name, parts):
    # Room for two tokens only, so that it grows.
    call, d, cache = ALL[name], Data(), la.Cache(2)
    assert far(generate(call, d, PARTS[parts], cache), output(call(d))) < 1e-9
    assert len(cache) == T


@pytest.mark.parametrize("dtype, bound", [("f4", 3e-4), ("f2", 1e-2)])
@pytest.mark.parametrize("name", [*CAUSAL, *RECURRENT, "hybrid"])
def test_dtypes(name, dtype, bound):
    d = Data(dtype)
    o = generate(ALL[name], d, PARTS["prompt"], la.Cache())
    assert o.dtype == dtype and far(o, output(ALL[name](d))) < bound


@pytest.mark.parametrize("name", ["softmax", "lla", "kda", "hybrid"])
def test_tensors(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from test_torch import Tensors

    d, cache, parts = Tensors(), la.Cache(), []
    for first, end in zip((0, 14, 15, 16), (14, 15, 16, T)):
        part = Tensors()
        for member, x in vars(d).items():
            of_tokens = isinstance(x, torch.Tensor) and x.dim() > 2 and member != "z"
            setattr(part, member, x[:, first:end] if of_tokens else x)
        parts.append(output(ALL[name](part, cache=cache)))
    assert (torch.cat(parts, 1) - output(ALL[name](d))).abs().max() < 1e-4
    if name == "softmax":
        cache.reorder(torch.tensor([1, 1]))
        assert torch.equal(cache.arrays()["k"][0], d.k[1])


def test_results_beside_o():
    d, cache = Data("f4"), la.Cache()
    o, lse, info = la.lla(d.q, d.k, d.v, return_lse=True, return_info=True, cache=cache)
    more, lse, info = la.lla(
        d.q[:, :1], d.k[:, :1], d.v[:, :1], return_lse=True, return_info=True, cache=cache
    )
    assert lse.shape == info.shape == (B, 1, 4)
    cache = la.Cache()
    for first, end in (0, 9), (9, 10):
        o, info = ALL["hybrid"](cut(d, first, end), return_info=True, cache=cache)
        assert info.shape == o.shape[:3] and not info["code"].any()
    cache = la.Cache()
    _, none = la.gla(d.q, d.k, d.v, d.gk, cache=cache)
    _, state = la.gla(d.q[:, :1], d.k[:, :1], d.v[:, :1], d.gk[:, :1], cache=cache, output_final_state=True)
    assert none is None and state is cache.state


@pytest.mark.parametrize("name", ["lla", "gated_delta", "hybrid"])
def test_kept_whole(name):
    d, cache = Data("f4"), la.Cache()
    ALL[name](cut(d, 0, 9), cache=cache)
    again = pickle.loads(pickle.dumps(cache))
    for c in again, cache:
        assert far(output(ALL[name](cut(d, 9, T), cache=c)), output(ALL[name](d))[:, 9:]) < 1e-4


def test_crop_and_reorder():
    d, cache = Data("f4"), la.Cache()
    la.softmax_attention(d.q, d.k, d.v, cache=cache)
    cache.crop(9)
    cache.reorder(np.array([1, 0]))
    part = cut(d, 9, 10)
    o = la.softmax_attention(part.q[::-1], part.k[::-1], part.v[::-1], cache=cache)
    assert far(o[::-1], la.softmax_attention(d.q, d.k, d.v)[:, 9:10]) < 1e-5
    for name in "kda", "hybrid":
        cache = la.Cache()
        ALL[name](cut(d, 0, 9), cache=cache)
        cache.reorder(np.array([1, 1]))
        o = output(ALL[name](cut(d, 9, T), cache=cache))
        # The second sequence goes on from its own state, the first does not.
        want = output(ALL[name](d))[:, 9:]
        assert far(o[1], want[1]) < 1e-4 and far(o[0], want[0]) > 1e-2


def test_refused():
    d, cache = Data("f4"), la.Cache()
    la.softmax_attention(d.q, d.k, d.v, cache=cache)
    with pytest.raises(ValueError, match="cache: has k, v, and not k, v, g"):
        la.forgetting_attention(d.q, d.k, d.v, d.g, cache=cache)
    with pytest.raises(
        ValueError, match=r"k: shape \[1, 23, 4, 8\], expected \[2, 64, 4, 8\] but for tokens"
    ):
        la.softmax_attention(d.q[:1], d.k[:1], d.v[:1], cache=cache)
    with pytest.raises(ValueError, match="soft_cap: -1"):
        la.softmax_attention(d.q, d.k, d.v, soft_cap=-1, cache=cache)
    assert len(cache) == T
    with pytest.raises(ValueError, match="cu_seqlens: given, but"):
        la.softmax_attention(d.q, d.k, d.v, cu_seqlens=np.array([0, T]), cache=cache)
    with pytest.raises(ValueError, match="tokens: 24, expected 0"):
        cache.crop(24)
    with pytest.raises(ValueError, match="capacity: 0, expected 1 or more"):
        la.Cache(0)
    cache = la.Cache()
    _, state = la.gla(d.q, d.k, d.v, d.gk, output_final_state=True, cache=cache)
    with pytest.raises(ValueError, match="initial_state: given, but"):
        la.gla(d.q, d.k, d.v, d.gk, initial_state=state, cache=cache)
    with pytest.raises(ValueError, match="there is a state"):
        cache.crop(1)
