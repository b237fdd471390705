# SPDX-License-Identifier: MIT
"""The one way from a function to the library: arrays of NumPy go straight to it, tensors by way of
PyTorch."""

from __future__ import annotations

import sys
from typing import Any

from numpy import ndarray

from loam_attn import _core


class Taped:
    """Stands for q where a call shall keep what its backward needs (loam_attn.vjp)."""

    def __init__(self, q: ndarray):
        self.q, self.dtype = q, q.dtype


def run(mechanism: str, cache: Any = None, **values: Any) -> Any:
    if cache is not None:
        return cache.step(mechanism, values)
    q = values["q"]
    if isinstance(q, ndarray):
        return _core.run(mechanism, values)
    if isinstance(q, Taped):
        values["q"] = q.q
        return _core.run(mechanism, {**values, "save": True}), mechanism, values
    if "torch" in sys.modules:
        # From the package it would take a microsecond of each call.
        import loam_attn._torch as tensors

        return tensors.run(mechanism, values)
    return _core.run(mechanism, values)


def decode(mechanism: str, values: dict[str, Any]) -> Any:
    """A few tokens more: with `keys` of room for more, or from a state."""
    if isinstance(values["q"], ndarray):
        return _core.decode(mechanism, values)
    from loam_attn import _torch

    return _torch.decode(mechanism, values)
