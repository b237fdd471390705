# SPDX-License-Identifier: MIT
"""The one way from a function to the library: arrays of NumPy go straight to it, tensors by way of
PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from numpy import ndarray

from loam_attn import _core


class _Asked:
    """Stands for q where a call is not made, but told."""

    def __init__(self, q: Any):
        self.q = q

    def __getattr__(self, name: str) -> Any:
        return getattr(self.q, name)


def asked(function: Callable[..., Any], q: Any, *args: Any, **options: Any) -> tuple[str, dict[str, Any]]:
    """The mechanism and the arguments of function(q, *args, **options)."""
    if options.get("cache") is not None:
        raise ValueError("cache: given, expected None")
    return function(_Asked(q), *args, **options)


def run(mechanism: str, cache: Any = None, **values: Any) -> Any:
    if cache is not None:
        return cache.step(mechanism, values)
    q = values["q"]
    if isinstance(q, ndarray):
        return _core.run(mechanism, values)
    if isinstance(q, _Asked):
        values["q"] = q.q
        return mechanism, values
    if "torch" in sys.modules:
        # From the package it would take a microsecond of each call.
        import loam_attn._torch as tensors

        return tensors.run(mechanism, values)
    return _core.run(mechanism, values)


def plain(pass_: Callable[..., Any], mechanism: str, values: dict[str, Any]) -> Any:
    """A pass of _core, without gradients."""
    if isinstance(values["q"], ndarray):
        return pass_(mechanism, values)
    from loam_attn import _torch

    return _torch.plain(pass_, mechanism, values)
