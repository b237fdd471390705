# SPDX-License-Identifier: MIT
"""What generation keeps of the tokens before: keys and values, in room that grows, or a recurrence's
state."""

from __future__ import annotations

from typing import Any

import numpy as np

from loam_attn import _core, _run
from loam_attn._types import Array

_BY_KEYS = ("k", "v", "w", "g", "beta", "key_bias")
_LENGTHS = ("cu_seqlens", "cu_seqlens_k", "key_lengths")
_LOCAL = ("softmax", "parallax", "lla")
# A decode goes through all keys for each query; from so many queries on, tiles of a forward pay.
_FEW_QUERIES = 8


def _room(x: Array, tokens: int) -> Array:
    shape = (x.shape[0], tokens, *x.shape[2:])
    return np.empty(shape, x.dtype) if isinstance(x, np.ndarray) else x.new_empty(shape)


def _dense(x: Array) -> Array:
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x.contiguous()


class Cache:
    """The tokens that one layer has seen. Each function takes one as `cache`: the call then has the new
    tokens alone, and sees all before them. Local mechanisms keep keys, values and what else goes with keys,
    in arrays [B, capacity, H, D] that double when they are full; recurrences keep their state, a hybrid its
    first and last tokens besides. There are no gradients.

    >>> import numpy as np, loam_attn
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> cache = Cache()
    >>> steps = [loam_attn.lla(*(x[:, t : t + 1] for x in (q, k, v)), cache=cache) for t in range(16)]
    >>> len(cache), bool(np.allclose(np.concatenate(steps, 1), loam_attn.lla(q, k, v), atol=1e-4))
    (16, True)
    """

    def __init__(self, capacity: int = 64):
        if capacity < 1:
            raise ValueError(f"capacity: {capacity}, expected 1 or more")
        self.capacity = capacity
        self.state: Array | None = None
        self._arrays: dict[str, Array] = {}
        self._near: dict[str, Array] = {}
        self._tokens = 0

    def __len__(self) -> int:
        return self._tokens

    def arrays(self) -> dict[str, Array]:
        """What is kept by keys, [B, len(self), ..] each, as views."""
        return {name: x[:, : self._tokens] for name, x in self._arrays.items()}

    def crop(self, tokens: int) -> None:
        """Forgets all but the first `tokens`; a state cannot."""
        if self.state is not None or not 0 <= tokens <= self._tokens:
            kept = "a state" if self.state is not None else f"{self._tokens} tokens"
            raise ValueError(f"tokens: {tokens}, expected 0 .. the length of keys; there is {kept}")
        self._tokens = tokens

    def reorder(self, index: Array) -> None:
        """Sequence b becomes what sequence index[b] was, as beam search does."""
        self._arrays = {name: x[index] for name, x in self._arrays.items()}
        self._near = {name: x[index] for name, x in self._near.items()}
        if self.state is not None:
            # Each state stays as the library lays it out, [.., R, K].
            self.state = self.state.swapaxes(2, 3)[index].swapaxes(2, 3)

    def _append(self, values: dict[str, Any], tokens: int) -> None:
        end = self._tokens + tokens
        while self.capacity < end:
            self.capacity *= 2
        given = {name: values[name] for name in _BY_KEYS if values.get(name) is not None}
        if self._tokens and given.keys() != self._arrays.keys():
            raise ValueError(f"cache: has {', '.join(self._arrays)}, and not {', '.join(given)}")
        rooms = {}
        for name, x in given.items():
            room = self._arrays.get(name)
            if self._tokens and (room.shape[:1] + room.shape[2:] != x.shape[:1] + x.shape[2:]):
                raise ValueError(f"{name}: shape {list(x.shape)}, expected {list(room.shape)} but for tokens")
            if self._tokens == 0 or room.shape[1] < self.capacity:
                grown = _room(x, self.capacity)
                if self._tokens:
                    grown[:, : self._tokens] = room[:, : self._tokens]
                room = grown
            room[:, self._tokens : end] = x
            rooms[name] = room
        self._arrays, self._tokens = rooms, end

    def step(self, mechanism: str, values: dict[str, Any]) -> Any:
        """One call of a function with this cache."""
        q, k = values["q"], values["k"]
        for name in _LENGTHS:
            if values.pop(name, None) is not None:
                raise ValueError(f"{name}: given, but a cache has sequences of one length")
        if not isinstance(q, np.ndarray):
            from loam_attn import _torch

            values = _torch.without_gradients(values)
        few = k.shape[1] <= _FEW_QUERIES and not getattr(q, "is_cuda", False)
        if mechanism == "hybrid":
            return self._go_on(values)
        if mechanism not in _LOCAL:
            return self._advance(mechanism, values, few)
        before = self._tokens
        self._append(values, k.shape[1])
        try:
            if few:
                given = {**values, **self._arrays, "keys": self._tokens}
                return _run.plain(_core.decode, mechanism, given)
            return _run.run(mechanism, {**values, **self.arrays()})
        except BaseException:
            # A refused call leaves the cache as it was.
            self._tokens = before
            raise

    def _advance(self, mechanism: str, values: dict[str, Any], few: bool) -> Any:
        if values.get("initial_state") is not None:
            raise ValueError("initial_state: given, but the cache has the state")
        wanted = values.get("output_final_state")
        values = {**values, "initial_state": self.state, "output_final_state": True}
        run = _core.decode if few else _core.run
        o, self.state, *rest = _run.plain(run, mechanism, values)
        self._tokens += values["k"].shape[1]
        return (o, self.state if wanted else None, *rest)

    def _seen(self, k: Array) -> Array:
        if isinstance(k, np.ndarray):
            return np.full(k.shape[0], self._tokens, "i8")
        import torch

        return k.new_full((k.shape[0],), self._tokens, dtype=torch.int64)

    def _go_on(self, values: dict[str, Any]) -> Any:
        """A hybrid: its state, the first tokens and a ring of the last ones stay where they lie."""
        if self.state is None:
            given = {**values, "output_final_state": True}
            o, self.state, keys, near_values, *rest = _run.plain(_core.run, "hybrid", given)
            self._near = {"near_keys": keys, "near_values": near_values}
        else:
            # A copy that was made elsewhere, by pickle say, has its axes in another order.
            self.state = _dense(self.state.swapaxes(2, 3)).swapaxes(2, 3)
            given = {**values, **self._near, "initial_state": self.state, "seen": self._seen(values["k"])}
            found = _run.plain(_core.decode, "hybrid", given)
            o, *rest = found if isinstance(found, tuple) else (found,)
        self._tokens += values["k"].shape[1]
        return (o, *rest) if rest else o
