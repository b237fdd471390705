# SPDX-License-Identifier: MIT
"""Gradients of calls on arrays of NumPy; PyTorch's tensors have its own backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy import ndarray

from loam_attn import _core
from loam_attn._run import asked
from loam_attn._types import Array

INPUTS = (
    "q",
    "k",
    "v",
    "probe",
    "w",
    "g",
    "beta",
    "key_bias",
    "slope",
    "sink_bias",
    "ridge",
    "initial_state",
    "linear_g",
    "linear_beta",
    "linear_ridge",
    "z",
    "log_alpha",
    "gain",
    "scale",
)
_RESULTS = ("output_final_state", "return_lse", "return_probe", "return_weights", "return_info")


def vjp(
    function: Callable[..., Any], q: Array, *args: Any, **options: Any
) -> tuple[Any, Callable[..., dict[str, Array]]]:
    """The result of function(q, *args, **options), and the function of its gradients.

    The second is called with the gradient of o, [B, T, H, D], and for a recurrence perhaps that of the final
    state; it returns the gradient of each array that the call had, by the name of the argument. A scale that
    is an array, of one number, has one too.

    >>> import numpy as np, loam_attn
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> o, pullback = vjp(loam_attn.softmax_attention, q, k, v, window_size=4)
    >>> {name: x.shape for name, x in pullback(np.ones_like(o)).items()}
    {'q': (2, 16, 4, 8), 'k': (2, 16, 4, 8), 'v': (2, 16, 4, 8)}
    """
    mechanism, values = asked(function, q, *args, **options)
    *kept, saved = _core.run(mechanism, {**values, "save": True})
    wanted = tuple(isinstance(values.get(name), ndarray) for name in INPUTS)
    inputs = {name: x for name, x in values.items() if name not in _RESULTS}

    def pullback(grad_o: Array, grad_final_state: Array | None = None) -> dict[str, Array]:
        given = dict(saved=saved, grad_o=grad_o, grad_final_state=grad_final_state, wanted=wanted)
        grads = _core.backward(mechanism, {**inputs, **given})
        return {name: grad for name, grad in zip(INPUTS, grads) if grad is not None}

    return kept[0] if len(kept) == 1 else tuple(kept), pullback
