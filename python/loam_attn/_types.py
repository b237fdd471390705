# SPDX-License-Identifier: MIT
"""What functions take: arrays of NumPy, or tensors of PyTorch, which nobody needs to have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import numpy as np

if TYPE_CHECKING:
    import torch

    Array = Union[np.ndarray, torch.Tensor]
else:
    Array = np.ndarray
