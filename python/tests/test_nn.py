# SPDX-License-Identifier: MIT
"""Layers: causal, trainable, the same in parts by a cache and in packed sequences, and kept whole."""

import copy
import doctest
import importlib
import io

import pytest

import loam_attn as la

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from loam_attn import nn as layers  # noqa: E402

C, H, T = 32, 4, 21
LAYERS = {
    "softmax": lambda **o: layers.SoftmaxAttention(C, H, num_kv_heads=2, qk_norm=True, **o),
    "softmax_window": lambda **o: layers.SoftmaxAttention(C, H, window_size=5, bias=True, **o),
    "parallax": lambda **o: layers.ParallaxAttention(C, H, **o),
    "lla": lambda **o: layers.LocalLinearAttention(C, H, num_kv_heads=2, qk_norm=True, **o),
    "lla_plain": lambda **o: layers.LocalLinearAttention(C, H, head_dim=16, rope_base=None, **o),
    "forgetting": lambda **o: layers.ForgettingAttention(C, H, num_kv_heads=1, **o),
    "path": lambda **o: layers.PaTHAttention(C, H, num_kv_heads=2, forget_gate=True, **o),
    "gated_delta": lambda **o: layers.GatedDeltaNet(C, 2, num_v_heads=4, v_head_dim=12, **o),
    "kda": lambda **o: layers.KimiDeltaAttention(C, H, beta_most=2.0, **o),
    "mesa": lambda **o: layers.MesaNet(C, H, gate=False, **o),
    "gla": lambda **o: layers.GatedLinearAttention(C, H, **o),
}


def made(name, **options):
    torch.manual_seed(1)
    layer = LAYERS[name](**options)
    with torch.no_grad():
        # Nothing stays at a start of 0.
        for p in layer.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return layer


def tokens(batch=2, dtype=torch.float32):
    return torch.randn(batch, T, C, generator=torch.Generator().manual_seed(2)).to(dtype)


@pytest.mark.parametrize("name", LAYERS)
def test_the_future_changes_nothing(name):
    layer, x = made(name), tokens()
    y = x.clone()
    y[:, 13:] = 1
    with torch.no_grad():
        first, second = layer(x), layer(y)
    assert first.shape == x.shape and torch.equal(first[:, :13], second[:, :13])
    assert not torch.allclose(first[:, 13:], second[:, 13:])


@pytest.mark.parametrize("name", LAYERS)
def test_every_parameter_learns(name):
    layer, x = made(name), tokens()
    layer(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_differences(name):
    layer, x = made(name, dtype=torch.float64).double(), tokens(1, torch.float64)[:, :5]
    assert torch.autograd.gradcheck(layer, x.requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("name", LAYERS)
def test_a_cache_has_the_tokens_before(name):
    layer, x, cache = made(name), tokens(), la.Cache()
    with torch.no_grad():
        parts = [layer(x[:, a:b], cache) for a, b in ((0, 12), (12, 13), (13, 14), (14, T))]
        assert torch.allclose(torch.cat(parts, 1), layer(x), atol=2e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_packed_sequences_are_each_alone(name):
    layer, x = made(name), tokens(1)
    with torch.no_grad():
        packed = layer(x, cu_seqlens=torch.tensor([0, 8, 8, T]))
        alone = torch.cat([layer(x[:, :8]), layer(x[:, 8:])], 1)
    assert torch.allclose(packed, alone, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_compile_and_autocast(name):
    torch._dynamo.reset()
    layer, x = made(name), tokens()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), layer(x), atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        low = layer(x)
    low.float().sum().backward()
    assert low.dtype == torch.bfloat16 and (low.float() - layer(x)).abs().max() < 0.15
    assert layer.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", LAYERS)
def test_kept_whole(name):
    layer, x = made(name), tokens()
    other = LAYERS[name]()
    other.load_state_dict(layer.state_dict())
    kept = io.BytesIO()
    torch.save(layer, kept)
    kept.seek(0)
    for again in other, copy.deepcopy(layer), torch.load(kept, weights_only=False):
        assert torch.equal(again(x), layer(x))


@pytest.mark.parametrize("name", ["local", "recurrent"])
def test_examples_of_docstrings(name):
    found = doctest.testmod(importlib.import_module(f"loam_attn.nn.{name}"))
    assert found.attempted > 3 and found.failed == 0


def test_special_cases():
    x = tokens()
    torch.manual_seed(0)
    soft = layers.SoftmaxAttention(C, H)
    # A probe of 0, and a ridge beyond all covariance, are softmax attention.
    for layer, bound in (
        (layers.ParallaxAttention(C, H), 1e-6),
        (layers.LocalLinearAttention(C, H, ridge_least=1e6, ridge_most=1e6), 1e-4),
    ):
        layer.load_state_dict(soft.state_dict(), strict=False)
        assert torch.allclose(layer(x), soft(x), atol=bound)
    # RoPE sees differences of positions alone: a first token that no later one sees changes none.
    window = layers.SoftmaxAttention(C, H, window_size=3)
    assert torch.allclose(window(x)[:, 10:], window(x[:, 4:])[:, 6:], atol=1e-5)


def test_the_ridge_is_that_of_the_equation():
    layer, x = layers.LocalLinearAttention(C, H, rope_base=None, ridge_least=0.2, ridge_most=0.9), tokens()
    heads = lambda projection: projection(x).unflatten(-1, (H, C // H))
    ridge = 0.2 + 0.7 / (1 + torch.exp(-layer.ridge_proj(x)))
    o = la.lla(heads(layer.q_proj), heads(layer.k_proj), heads(layer.v_proj), ridge)
    assert torch.allclose(layer(x), layer.o_proj(o.flatten(-2)), atol=1e-6)


def test_decays_are_those_of_the_equations():
    x = tokens()
    a, rate, bias = layers.GatedDeltaNet(C, H), torch.rand(H), torch.randn(H)
    with torch.no_grad():
        a.decay.rate.copy_(rate), a.decay.bias.copy_(bias)
    want = -rate.exp() * torch.log1p(torch.exp(a.a_proj(x) + bias))
    assert torch.allclose(a.decay(a.a_proj(x)), want, atol=1e-5)
    start = layers.KimiDeltaAttention(512, 64).decay
    step = torch.nn.functional.softplus(start.bias)
    assert 0.0009 < step.min() < 0.002 and 0.05 < step.max() < 0.11
    assert 0.9 < start.rate.exp().min() < 3 and 13 < start.rate.exp().max() < 16.1


def test_refused():
    for text, call in {
        "hidden_size: 32, expected a multiple of num_heads 5": lambda: layers.SoftmaxAttention(C, 5),
        "rope_base: 100.0, but PaTH has none": lambda: layers.PaTHAttention(C, H, rope_base=100.0),
        "ridge_least: 2, expected": lambda: layers.LocalLinearAttention(C, H, ridge_least=2),
        "beta_most: 3, expected": lambda: layers.KimiDeltaAttention(C, H, beta_most=3),
        "cache: has no gradients": lambda: layers.GatedDeltaNet(C, H)(tokens(), la.Cache()),
    }.items():
        with pytest.raises(ValueError, match=text):
            call()
