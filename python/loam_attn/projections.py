# SPDX-License-Identifier: MIT
"""Random projections, the start of positive random features."""

from __future__ import annotations

import numpy as np

from loam_attn import _core


def projection(
    heads: int,
    features: int,
    channels: int,
    kind: str = "orthogonal",
    *,
    seed: int = 0,
    dtype: str | type | np.dtype = "float32",
) -> np.ndarray:
    """Rows z [heads, features, channels] for linear_attention with feature_map="positive".

    kind is "normal" (independent N(0, I)), "orthogonal" (orthogonal in blocks of `channels`, with the same
    lengths) or "dct" (after DiJiang). A head depends on the seed and its number alone. dtype is float32 or
    float64. An array of NumPy: torch.from_numpy(..) makes a tensor of it.

    >>> z = projection(4, 16, 8, seed=1)
    >>> z.shape, bool(abs(z[0, 0] @ z[0, 1]) < 1e-5), bool((projection(2, 16, 8, seed=1) == z[:2]).all())
    ((4, 16, 8), True, True)
    """
    real = np.dtype(dtype)
    if real not in (np.float32, np.float64):
        raise TypeError(f"dtype: {real}, expected float32 or float64")
    return _core.projection(kind, seed, heads, features, channels, real == np.float64)
