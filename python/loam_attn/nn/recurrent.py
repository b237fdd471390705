# SPDX-License-Identifier: MIT
"""Layers of the recurrent family: Gated DeltaNet, Kimi delta attention, MesaNet and gated linear
attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from loam_attn import recurrent
from loam_attn.cache import Cache
from loam_attn.nn.parts import DecayRate, LowRank, by_heads, real


class RecurrentLayer(nn.Module):
    """Projections around a recurrence; the classes below say which.

    num_heads heads of queries and keys, num_v_heads of values (None: as many, else a multiple), of head_dim
    channels (None: hidden_size / num_heads) and v_head_dim (None: head_dim). Each head's output goes through
    an RMSNorm and, with `gate`, is multiplied by silu(x W_z). bias: of the projections. There is no short
    convolution. Packed sequences each begin from 0.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_v_heads: int | None = None,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        gate: bool = True,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if head_dim is None and hidden_size % num_heads:
            raise ValueError(f"hidden_size: {hidden_size}, expected a multiple of num_heads {num_heads}")
        self.hidden_size, self.num_heads = hidden_size, num_heads
        self.num_v_heads = num_heads if num_v_heads is None else num_v_heads
        self.head_dim = hidden_size // num_heads if head_dim is None else head_dim
        self.v_head_dim = self.head_dim if v_head_dim is None else v_head_dim
        self._made = dict(device=device, dtype=dtype)
        inside, out = num_heads * self.head_dim, self.num_v_heads * self.v_head_dim
        self.q_proj = nn.Linear(hidden_size, inside, bias=bias, **self._made)
        self.k_proj = nn.Linear(hidden_size, inside, bias=bias, **self._made)
        self.v_proj = nn.Linear(hidden_size, out, bias=bias, **self._made)
        self.z_proj = nn.Linear(hidden_size, out, bias=bias, **self._made) if gate else None
        self.norm = nn.RMSNorm(self.v_head_dim, eps=1e-5, **self._made)
        self.o_proj = nn.Linear(out, hidden_size, bias=bias, **self._made)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, num_v_heads={self.num_v_heads}, head_dim={self.head_dim}"

    def forward(self, x: Tensor, cache: Cache | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        q = by_heads(self.q_proj(x), self.num_heads)
        k = by_heads(self.k_proj(x), self.num_heads)
        v = by_heads(self.v_proj(x), self.num_v_heads)
        o = self.norm(self.recur(x, q, k, v, cache=cache, cu_seqlens=cu_seqlens)).flatten(-2)
        if self.z_proj is not None:
            o = o * functional.silu(self.z_proj(x))
        return self.o_proj(o)

    def recur(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, **call: Any) -> Tensor:
        raise NotImplementedError


class _Delta(RecurrentLayer):
    """Delta rules: silu of q, k, v, length 1 of q and k, strengths beta_most sigmoid(x W_b)."""

    def __init__(self, hidden_size: int, num_heads: int, *, beta_most: float = 1.0, **options: Any):
        super().__init__(hidden_size, num_heads, **options)
        if not 0 < beta_most <= 2:
            raise ValueError(f"beta_most: {beta_most}, expected 0 .. 2")
        self.beta_most = beta_most
        self.b_proj = nn.Linear(hidden_size, self.num_v_heads, bias=False, **self._made)

    def recur(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, **call: Any) -> Tensor:
        q, k, v = functional.silu(q), functional.silu(k), functional.silu(v)
        beta = self.beta_most * torch.sigmoid(real(self.b_proj(x)))
        g = self.decay(self.a_proj(x))
        return self.rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True, **call)[0]


class GatedDeltaNet(_Delta):
    """Gated DeltaNet: the log decay of a head and token is -e^rate softplus(x W_a + bias).

    >>> layer = GatedDeltaNet(32, 2, num_v_heads=4)
    >>> layer(torch.randn(2, 16, 32)).shape
    torch.Size([2, 16, 32])
    """

    rule = staticmethod(recurrent.gated_delta_rule)

    def __init__(self, hidden_size: int, num_heads: int, **options: Any):
        super().__init__(hidden_size, num_heads, **options)
        self.a_proj = nn.Linear(hidden_size, self.num_v_heads, bias=False, **self._made)
        self.decay = DecayRate(self.num_v_heads, 1, self._made["device"])


class KimiDeltaAttention(_Delta):
    """Kimi delta attention: as GatedDeltaNet, with a log decay for each channel, of rank decay_rank.

    >>> layer = KimiDeltaAttention(32, 4)
    >>> layer(torch.randn(2, 16, 32)).shape
    torch.Size([2, 16, 32])
    """

    rule = staticmethod(recurrent.kda)

    def __init__(self, hidden_size: int, num_heads: int, *, decay_rank: int = 16, **options: Any):
        super().__init__(hidden_size, num_heads, **options)
        channels = self.num_v_heads * self.head_dim
        self.a_proj = LowRank(hidden_size, decay_rank, channels, **self._made)
        self.decay = DecayRate(self.num_v_heads, self.head_dim, self._made["device"])


class GatedLinearAttention(RecurrentLayer):
    """Gated linear attention: the log decay of a channel is log sigmoid(x W_1 W_2 + b) / 16.

    >>> layer = GatedLinearAttention(32, 4)
    >>> layer(torch.randn(2, 16, 32)).shape
    torch.Size([2, 16, 32])
    """

    def __init__(self, hidden_size: int, num_heads: int, *, decay_rank: int = 16, **options: Any):
        super().__init__(hidden_size, num_heads, **options)
        channels = self.num_v_heads * self.head_dim
        self.a_proj = LowRank(hidden_size, decay_rank, channels, **self._made)
        self.decay_bias = nn.Parameter(torch.zeros(channels, device=self._made["device"]))

    def recur(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, **call: Any) -> Tensor:
        g = functional.logsigmoid(real(self.a_proj(x)) + self.decay_bias) / 16
        return recurrent.gla(q, k, v, by_heads(g, self.num_v_heads), **call)[0]


class MesaNet(RecurrentLayer):
    """MesaNet: beta = sigmoid(x W_b + b), the log decay log sigmoid(x W_a + a), a from 4, and a ridge 0.25 +
    softplus(p) for each channel of a head, from 1.

    >>> layer = MesaNet(32, 4)
    >>> layer(torch.randn(2, 16, 32)).shape
    torch.Size([2, 16, 32])
    """

    def __init__(self, hidden_size: int, num_heads: int, **options: Any):
        super().__init__(hidden_size, num_heads, **options)
        self.b_proj = nn.Linear(hidden_size, self.num_v_heads, **self._made)
        self.a_proj = nn.Linear(hidden_size, self.num_v_heads, **self._made)
        nn.init.zeros_(self.b_proj.bias)
        nn.init.constant_(self.a_proj.bias, 4)
        device = self._made["device"]
        # softplus(p) = 0.75.
        self.ridge = nn.Parameter(torch.full((self.num_v_heads, self.head_dim), 0.1106, device=device))

    def recur(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, **call: Any) -> Tensor:
        beta = torch.sigmoid(real(self.b_proj(x)))
        g = functional.logsigmoid(real(self.a_proj(x)))
        ridge = 0.25 + functional.softplus(real(self.ridge))
        return recurrent.mesa(q, k, v, g, beta, ridge, use_qk_l2norm_in_kernel=True, **call)[0]
