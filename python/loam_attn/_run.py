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


_tensors: Any = None


def _torch() -> Any:
    """The module of tensors, once there is PyTorch. Importing it again would take a part of a microsecond."""
    global _tensors
    if _tensors is None and "torch" in sys.modules:
        import loam_attn._torch

        _tensors = loam_attn._torch
    return _tensors


def run(mechanism: str, values: dict[str, Any], cache: Any = None) -> Any:
    if cache is not None:
        return cache.step(mechanism, values)
    kind = type(values["q"])
    if kind is ndarray:
        return _core.run(mechanism, values)
    if kind is _Asked:
        values["q"] = values["q"].q
        return mechanism, values
    tensors = _tensors or _torch()
    return (tensors or _core).run(mechanism, values)


def plain(pass_: Callable[..., Any], mechanism: str, values: dict[str, Any]) -> Any:
    """A pass of _core, without gradients."""
    if isinstance(values["q"], ndarray):
        return pass_(mechanism, values)
    tensors = _torch()
    return tensors.plain(pass_, mechanism, values) if tensors else pass_(mechanism, values)
