# SPDX-License-Identifier: MIT
"""Rotary positions."""

from __future__ import annotations

import sys
from typing import Any

from numpy import ndarray

from loam_attn import _core
from loam_attn._types import Array


def rope(
    x: Array,
    positions: Array | None = None,
    *,
    offset: int = 0,
    dim: int | None = None,
    base: float = 10000.0,
    interleaved: bool = False,
    inverse: bool = False,
) -> Any:
    """RoPE: turns plane c of token t by the angle position_t base^(-2 c / dim).

    x [B, T, H, K], of queries or keys -> the same. positions [T] or [B, T], int64; None: offset + t. The
    first `dim` channels turn (None: all); a plane is channels c and c + dim / 2, or with `interleaved` 2 c
    and 2 c + 1. inverse: back by the same angles.

    >>> import numpy as np
    >>> x = np.ones((1, 4, 1, 8), "float32")
    >>> turned = rope(x)
    >>> bool(np.allclose(turned[:, 0], x[:, 0])), bool(np.allclose(turned[:, 1:], rope(x[:, 1:], offset=1)))
    (True, True)
    """
    numbers: tuple[Any, ...] = (offset, dim or 0, base, interleaved, inverse)
    if not isinstance(x, ndarray) and "torch" in sys.modules:
        from loam_attn import _operators

        return _operators.rope(x, positions, *numbers)
    return _core.rope(x, positions, *numbers, 0)
