# SPDX-License-Identifier: MIT
"""What functions take: arrays of NumPy, or tensors of PyTorch, which nobody needs to have; and a decay
that has a default."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Union

import numpy as np

if TYPE_CHECKING:
    import torch

    Array = Union[np.ndarray, torch.Tensor]
else:
    Array = np.ndarray


def retnet_decay(heads: int, q: Array) -> Array:
    """RetNet's log decay of each head, of the kind of q."""
    g = [math.log1p(-(2.0 ** (-5 - h))) for h in range(heads)]
    if isinstance(q.dtype, np.dtype):
        return np.array(g, "f8" if q.dtype == "f8" else "f4")
    import torch

    return q.new_tensor(g, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
