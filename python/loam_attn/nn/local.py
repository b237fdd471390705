# SPDX-License-Identifier: MIT
"""Layers of the local family: softmax attention, Parallax, Local Linear Attention, FoX and PaTH."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from loam_attn import local
from loam_attn.cache import Cache
from loam_attn.nn.parts import LowRank, by_heads, real
from loam_attn.positions import rope


class LocalLayer(nn.Module):
    """Projections around a local estimator; the classes below say which.

    num_heads heads of queries and num_kv_heads of keys and values (None: as many), of head_dim channels
    (None: hidden_size / num_heads). qk_norm: an RMSNorm of queries and keys by heads. rope_base: rotary
    positions with this base (None: none). window_size: the last tokens that a query sees (None: all). bias:
    of the projections.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        qk_norm: bool = False,
        rope_base: float | None = 10000.0,
        window_size: int | None = None,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if head_dim is None and hidden_size % num_heads:
            raise ValueError(f"hidden_size: {hidden_size}, expected a multiple of num_heads {num_heads}")
        self.hidden_size, self.num_heads = hidden_size, num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = hidden_size // num_heads if head_dim is None else head_dim
        self.rope_base, self.window_size = rope_base, window_size
        self._made = dict(device=device, dtype=dtype)
        inside, kv = num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(hidden_size, inside, bias=bias, **self._made)
        self.k_proj = nn.Linear(hidden_size, kv, bias=bias, **self._made)
        self.v_proj = nn.Linear(hidden_size, kv, bias=bias, **self._made)
        self.o_proj = nn.Linear(inside, hidden_size, bias=bias, **self._made)
        norm = (lambda: nn.RMSNorm(self.head_dim, eps=1e-5, **self._made)) if qk_norm else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"

    def turn(self, x: Tensor, cache: Cache | None) -> Tensor:
        """Rotary positions of queries, keys or probes. Their differences count: packed sequences go on."""
        if self.rope_base is None:
            return x
        return rope(x, offset=0 if cache is None else len(cache), base=self.rope_base)

    def forward(self, x: Tensor, cache: Cache | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        q = self.turn(self.q_norm(by_heads(self.q_proj(x), self.num_heads)), cache)
        k = self.turn(self.k_norm(by_heads(self.k_proj(x), self.num_kv_heads)), cache)
        v = by_heads(self.v_proj(x), self.num_kv_heads)
        o = self.attend(x, q, k.to(q.dtype), v.to(q.dtype), cache=cache, cu_seqlens=cu_seqlens)
        return self.o_proj(o.flatten(-2))

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, **call: Any) -> Tensor:
        raise NotImplementedError


class SoftmaxAttention(LocalLayer):
    """Softmax attention.

    >>> layer = SoftmaxAttention(32, 4, num_kv_heads=2)
    >>> layer(torch.randn(2, 16, 32)).shape
    torch.Size([2, 16, 32])
    """

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, **call: Any) -> Tensor:
        return local.softmax_attention(q, k, v, window_size=self.window_size, **call)


class ParallaxAttention(LocalLayer):
    """Parallax: the probe is x W_R by heads, turned as queries are. W_R begins at 0: as softmax attention.

    >>> layer = ParallaxAttention(32, 4)
    >>> layer(torch.randn(2, 16, 32)).shape
    torch.Size([2, 16, 32])
    """

    def __init__(self, hidden_size: int, num_heads: int, **options: Any):
        super().__init__(hidden_size, num_heads, **options)
        self.probe_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False, **self._made)
        nn.init.zeros_(self.probe_proj.weight)

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, **call: Any) -> Tensor:
        probe = self.turn(by_heads(self.probe_proj(x), self.num_heads), call["cache"])
        return local.parallax(q, k, v, probe.to(q.dtype), window_size=self.window_size, **call)


class LocalLinearAttention(LocalLayer):
    """Local Linear Attention, with a ridge for each head and token, ridge_least + (ridge_most - ridge_least)
    sigmoid(x W_lambda), as in Zuo et al. 2025, eq. 27; ridge_unit is what it is relative to.

    >>> layer = LocalLinearAttention(32, 4, qk_norm=True)
    >>> layer(torch.randn(2, 16, 32)).shape
    torch.Size([2, 16, 32])
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        ridge_least: float = 0.01,
        ridge_most: float = 1.0,
        ridge_unit: str = "normalised",
        **options: Any,
    ):
        super().__init__(hidden_size, num_heads, **options)
        if not 0 <= ridge_least <= ridge_most:
            raise ValueError(f"ridge_least: {ridge_least}, expected 0 .. ridge_most {ridge_most}")
        self.ridge_least, self.ridge_most, self.ridge_unit = ridge_least, ridge_most, ridge_unit
        self.ridge_proj = nn.Linear(hidden_size, num_heads, bias=False, **self._made)

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, **call: Any) -> Tensor:
        share = torch.sigmoid(real(self.ridge_proj(x)))
        ridge = self.ridge_least + (self.ridge_most - self.ridge_least) * share
        return local.lla(q, k, v, ridge, ridge_unit=self.ridge_unit, window_size=self.window_size, **call)


class ForgettingAttention(LocalLayer):
    """Forgetting attention (FoX): the log gate of a head and token is log sigmoid(x W_f + 4 + b), b from 0.

    >>> layer = ForgettingAttention(32, 4, rope_base=None)
    >>> layer(torch.randn(2, 16, 32)).shape
    torch.Size([2, 16, 32])
    """

    def __init__(self, hidden_size: int, num_heads: int, **options: Any):
        super().__init__(hidden_size, num_heads, **options)
        self.f_proj = nn.Linear(hidden_size, num_heads, **self._made)
        nn.init.zeros_(self.f_proj.bias)

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, **call: Any) -> Tensor:
        # A shift of 4 keeps 0.98 of a token at the start.
        g = functional.logsigmoid(real(self.f_proj(x)) + 4)
        return local.forgetting_attention(q, k, v, g, window_size=self.window_size, **call)


class PaTHAttention(LocalLayer):
    """PaTH attention: keys are reflected along w = x W_1 W_2 of length 1, of rank w_rank, with strengths 2
    sigmoid(x W_b), by heads of keys; forget_gate adds FoX's. The reflections are its positions: it has no
    RoPE and no window.

    >>> layer = PaTHAttention(32, 4, num_kv_heads=2, forget_gate=True)
    >>> layer(torch.randn(2, 16, 32)).shape
    torch.Size([2, 16, 32])
    """

    def __init__(
        self, hidden_size: int, num_heads: int, *, w_rank: int = 32, forget_gate: bool = False, **options: Any
    ):
        for name in "rope_base", "window_size":
            if options.get(name) is not None:
                raise ValueError(f"{name}: {options[name]}, but PaTH has none")
        super().__init__(hidden_size, num_heads, **{**options, "rope_base": None})
        self.w_proj = LowRank(hidden_size, w_rank, self.num_kv_heads * self.head_dim, **self._made)
        self.b_proj = nn.Linear(hidden_size, self.num_kv_heads, **self._made)
        self.f_proj = nn.Linear(hidden_size, num_heads, **self._made) if forget_gate else None

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, **call: Any) -> Tensor:
        w = functional.normalize(real(by_heads(self.w_proj(x), self.num_kv_heads)), dim=-1, eps=1e-6)
        beta = 2 * torch.sigmoid(real(self.b_proj(x)))
        g = None if self.f_proj is None else functional.logsigmoid(real(self.f_proj(x)) + 4)
        return local.path_attention(q, k, v, w.to(q.dtype), beta, g, **call)
