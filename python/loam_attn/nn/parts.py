# SPDX-License-Identifier: MIT
"""What several layers are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def by_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, H D] -> [B, T, H, D]."""
    return x.unflatten(-1, (heads, x.shape[-1] // heads))


def real(x: Tensor) -> Tensor:
    """As gates are: float32, or float64."""
    return x if x.dtype == torch.float64 else x.float()


class LowRank(nn.Sequential):
    """x W_1 W_2."""

    def __init__(self, inside: int, rank: int, outside: int, device: object, dtype: object):
        super().__init__(
            nn.Linear(inside, rank, bias=False, device=device, dtype=dtype),
            nn.Linear(rank, outside, bias=False, device=device, dtype=dtype),
        )


class DecayRate(nn.Module):
    """The log decay -e^rate softplus(a + bias): rates of heads begin in 1 .. 16, steps in 0.001 .. 0.1."""

    def __init__(self, heads: int, channels: int, device: object):
        super().__init__()
        self.heads = heads
        self.rate = nn.Parameter(torch.empty(heads, device=device))
        self.bias = nn.Parameter(torch.empty(heads * channels, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.rate.uniform_(1, 16).log_()
            step = self.bias.uniform_(-6.9078, -2.3026).exp_()
            self.bias.copy_(step.expm1().log())

    def forward(self, a: Tensor) -> Tensor:
        """a [B, T, H] or [B, T, H K] -> likewise, by heads."""
        step = functional.softplus(real(a) + self.bias)
        if self.bias.numel() == self.heads:
            return -self.rate.exp() * step
        return -self.rate.exp()[:, None] * by_heads(step, self.heads)
