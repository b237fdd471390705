# SPDX-License-Identifier: MIT
"""Rotary positions against their angles, and what PyTorch does with them."""

import numpy as np
import pytest

import loam_attn as la

X = np.random.default_rng(0).standard_normal((2, 7, 3, 10))


def turned(x, positions, dim, base, interleaved):
    planes = np.arange(dim // 2)
    first, second = (2 * planes, 2 * planes + 1) if interleaved else (planes, planes + dim // 2)
    angle = (positions[..., None] * base ** (-2.0 * planes / dim))[:, :, None]
    o = x.copy()
    o[..., first] = x[..., first] * np.cos(angle) - x[..., second] * np.sin(angle)
    o[..., second] = x[..., first] * np.sin(angle) + x[..., second] * np.cos(angle)
    return o


@pytest.mark.parametrize("dtype, bound", [("f8", 1e-12), ("f4", 1e-5), ("f2", 1e-2)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_angles(dtype, bound, interleaved):
    x, t = X.astype("f2").astype(dtype), np.arange(7)[None]
    options = dict(dim=6, base=100.0, interleaved=interleaved)
    for positions, want in (
        (None, t),
        (np.array([5, 3, 0, 9, 1, 1, 2]), None),
        (np.stack([t[0], t[0] + 3]), None),
    ):
        want = positions.reshape(-1, 7) if want is None else want
        o = la.rope(x, positions, **options)
        assert o.dtype == dtype
        assert abs(o.astype("f8") - turned(x.astype("f8"), want, **options)).max() < bound
    wide = np.stack([np.stack([t[0], t[0] + 3]), np.zeros((2, 7), "i8")], -1)[..., 0]
    assert np.array_equal(la.rope(x, wide), la.rope(x, wide.copy()))
    assert abs(la.rope(x, offset=4) - la.rope(x, 4 + t[0])).max() < bound


def test_refused():
    with pytest.raises(ValueError, match=r"positions: shape \[6\], expected \[7\] or \[2, 7\]"):
        la.rope(X, np.arange(6))
    with pytest.raises(TypeError, match="positions: dtype float64, expected int64"):
        la.rope(X, np.arange(7.0))
    with pytest.raises(ValueError, match="dim: 3"):
        la.rope(X, dim=3)
    with pytest.raises(TypeError, match="^x: <class 'list'>"):
        la.rope([1])
    with pytest.raises(ValueError, match=r"^x: shape \[7, 3, 10\], expected \[B, T, H, K\]"):
        la.rope(X[0])
    with pytest.raises(TypeError, match="^x: dtype int64, expected float16"):
        la.rope(X.astype("i8"))


def test_tensors():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.tensor(X, requires_grad=True)
    positions = torch.tensor([5, 3, 0, 9, 1, 1, 2])
    call = lambda x: la.rope(x, positions, interleaved=True)
    assert np.array_equal(call(x).detach().numpy(), la.rope(X, positions.numpy(), interleaved=True))
    assert torch.autograd.gradcheck(call, x)
    y = x.detach().clone().requires_grad_()
    call(x).sin().sum().backward()
    torch.compile(lambda x: call(x).sin().sum(), fullgraph=True, backend="aot_eager")(y).backward()
    assert torch.allclose(x.grad, y.grad)
    many = torch.stack([x.detach(), 2 * x.detach()])
    assert torch.equal(torch.func.vmap(call)(many)[1], call(many[1]))
    grad = torch.func.vmap(torch.func.grad(lambda x: call(x).sin().sum()))(many)
    assert torch.allclose(grad[0], x.grad)
