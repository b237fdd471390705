# SPDX-License-Identifier: MIT
"""Attention to keys that lie in several places: states of parts of the keys, which merge; and what the plan
of a call says of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from loam_attn import _core, _run
from loam_attn._types import Array


class Part:
    """What some of the keys are to the queries, for softmax attention, Parallax and LLA: parts without a key
    in common merge, in any order, and all keys give the result. On CPUs, without gradients.

    array [B, H, T, doubles] float64 is the state: for another process it is all that this one has to say.
    """

    def __init__(self, mechanism: str, values: dict[str, Any], array: Array):
        self._mechanism, self._values, self.array = mechanism, values, array

    def merge(self, other: Part | Array) -> Part:
        """The part of both."""
        states = self.array.copy() if isinstance(self.array, np.ndarray) else self.array.clone()
        from_ = other.array if isinstance(other, Part) else other
        given = {**self._values, "states": states, "states_from": from_}
        _run.plain(_core.part_merge, self._mechanism, given)
        return Part(self._mechanism, self._values, states)

    def finish(self, **wanted: bool) -> Any:
        """o, and what is wanted of return_lse, return_probe and return_info; of all keys."""
        given = {**self._values, **wanted, "states": self.array}
        return _run.plain(_core.part_finish, self._mechanism, given)


def part(
    function: Callable[..., Any],
    q: Array,
    k: Array,
    v: Array,
    *args: Any,
    first: int,
    keys: int,
    **options: Any,
) -> Part:
    """What function(q, k, v, *args, **options) makes of keys first .. first + P - 1 of `keys`.

    k [B, P, H, K], v [B, P, H, V] and key_bias [B, P, HQ] are of these keys alone; all else, g, w and beta of
    all tokens too, is as in the call with all keys.

    >>> import loam_attn
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> call = lambda a, b: part(loam_attn.lla, q, k[:, a:b], v[:, a:b], ridge=0.5, first=a, keys=16)
    >>> o = call(0, 10).merge(call(10, 16)).finish()
    >>> bool(np.allclose(o, loam_attn.lla(q, k, v, ridge=0.5), atol=1e-4))
    True
    """
    mechanism, values = _run.asked(function, q, k, v, *args, **options)
    values.update(first=first, total=keys)
    return Part(mechanism, values, _run.plain(_core.part_states, mechanism, values))


class Plan(NamedTuple):
    """name says the problem; kernel is the row of kernels() that runs it, and fallback the one for arrays it
    cannot read; work_bytes is memory beside the arrays, saved_bytes what a forward keeps for backward.
    """

    name: str
    kernel: str
    fallback: str | None
    work_bytes: int
    saved_bytes: int


def plan(function: Callable[..., Any], q: Array, *args: Any, pass_: str = "forward", **options: Any) -> Plan:
    """What the library would do for function(q, *args, **options): nothing is computed. pass_ is "forward",
    "backward" or "decode".

    >>> import loam_attn
    >>> q = np.zeros((1, 16, 4, 8), "float32")
    >>> plan(loam_attn.lla, q, q, q, backend="reference").name
    'lla forward f32 local_forward_ref b1 h4/4 q16 k16 d8/8 causal'
    """
    mechanism, values = _run.asked(function, q, *args, **options)
    found = _run.plain(lambda name, given: _core.plan(name, given, pass_), mechanism, values)
    return Plan(*found)
