# SPDX-License-Identifier: MIT
"""The operators of torch.library, loam::forward and loam::backward, for all mechanisms: with gradients, with
fakes for torch.compile, and with rules for torch.func.vmap, which folds its axis into the batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loam_attn import _core
from loam_attn._torch import (
    FIXED,
    LENGTHS,
    RECURRENT,
    NUMBERS,
    gradients,
    has_state,
    heads_of,
    needs_gradients,
    on_device,
)
from loam_attn.gradients import INPUTS

OPTIONS = {
    "ridge_number": "float?",
    "linear_ridge_number": "float?",
    "scale_number": "float?",
    "soft_cap": "float?",
    "window_size": "int?",
    "causal": "bool?",
    "normalize": "bool?",
    "score": "str?",
    "ridge_unit": "str?",
    "feature_map": "str?",
    "features_shared": "bool?",
    "linear": "str?",
    "sinks": "int?",
    "linear_scale": "float?",
    "backend": "str?",
}
# Tensors without gradients.
_READ = (*FIXED, *LENGTHS)
_CALL = ", ".join(
    ["str mechanism"]
    + [f"Tensor{'' if name in 'qkv' else '?'} {name}" for name in INPUTS]
    + [f"Tensor? {name}" for name in _READ]
    + [f"{kind} {name}" for name, kind in OPTIONS.items()]
)
_NAMES = (*INPUTS, *_READ, *OPTIONS)
_TENSORS = len(INPUTS) + len(_READ)
_ARGS = 1 + len(_NAMES)
_FLAGS = ("output_final_state", "return_lse", "return_probe", "return_weights", "return_info", "save")

_library = torch.library.Library("loam", "DEF")
_library.define(
    f"forward({_CALL}, bool state, bool lse, bool rho, bool weights, bool info, bool save) -> Tensor[]"
)
_library.define(
    f"backward({_CALL}, Tensor? saved, Tensor grad_o, Tensor? grad_state, bool[] wanted) -> Tensor[]"
)


def _values(args: tuple[Any, ...]) -> dict[str, Any]:
    values = dict(zip(_NAMES, args[1:_ARGS]))
    for name in NUMBERS:
        number = values.pop(f"{name}_number")
        if number is not None:
            values[name] = number
    return values


def _saved_bytes(mechanism: str, values: dict[str, Any]) -> int:
    """Room for what a row leaves for backward, whatever its alignment: a mean value and a log-sum-exp; of
    Parallax the probe's mean and what it takes from o, of LLA a mean key and the probe, of hybrids the near
    keys' share. On a recurrence keys are values too, and where it is read is kept. A plan would say no more
    than is needed, but only for sizes that are numbers, and not for symbols of torch.compile."""
    q, v = values["q"], values["v"]
    real = 8 if q.dtype == torch.float64 else 4
    batch, tokens, heads, channels = q.shape
    read = 0 if values["linear"] is None else channels
    width = v.shape[3] + read
    own = {"parallax": 2 + width, "lla": 2 * channels}.get(mechanism, 1)
    return batch * tokens * heads * (1 + width + own + read) * real + 1024


def _forward(*args: Any) -> list[Tensor]:
    """o, state, log-sum-exp, probe, weights, info, saved: those that are wanted."""
    values = {**_values(args), **dict(zip(_FLAGS, args[_ARGS:]))}
    if values["save"] and args[0] not in RECURRENT:
        values["save"] = _saved_bytes(args[0], values)
    results = on_device(_core.run, args[0], values)
    return [x for x in (results if isinstance(results, tuple) else (results,)) if x is not None]


def _backward(*args: Any) -> list[Tensor]:
    saved, grad_o, grad_state, wanted = args[_ARGS:]
    grads = gradients(args[0], _values(args), saved, grad_o, grad_state, tuple(wanted))
    return [grad for grad in grads if grad is not None]


for _kind in "CPU", "CUDA":
    _library.impl("forward", _forward, _kind)
    _library.impl("backward", _backward, _kind)


def _state_shape(mechanism: str, values: dict[str, Any]) -> tuple[int, int, int]:
    """Heads, rows and channels of a state, as the library lays it out."""
    z, channels, rows = values["z"], values["k"].shape[3], values["v"].shape[3]
    if z is not None:
        return z.shape[0], rows + 2, z.shape[1]
    if "mesa" in (mechanism, values["linear"]):
        rows += channels
    return heads_of(mechanism, values), rows + (1 if values["normalize"] else 0), channels


@torch.library.register_fake("loam::forward", lib=_library)
def _(*args: Any) -> list[Tensor]:
    mechanism, values, (state, lse, probe, weights, info, save) = args[0], _values(args), args[_ARGS:]
    q, v = values["q"], values["v"]
    batch, tokens = q.shape[:2]
    rows = (batch, tokens, heads_of(mechanism, values))
    real = torch.float64 if q.dtype == torch.float64 else torch.float32
    results = [q.new_empty((*rows, v.shape[3]))]
    if state:
        ends = values["cu_seqlens"]
        n = batch if ends is None else ends.shape[0] - 1
        results.append(q.new_empty((n, *_state_shape(mechanism, values)), dtype=real).transpose(2, 3))
    if lse:
        results.append(q.new_empty(rows, dtype=real))
    if probe:
        results.append(q.new_empty(q.shape, dtype=real))
    if weights:
        results.append(q.new_empty((*rows, values["k"].shape[1]), dtype=real))
    if info:
        for _ in range(1 if values["linear"] is None else 2):
            results.append(q.new_empty((*rows, 4), dtype=torch.int32))
    if save and mechanism not in RECURRENT:
        results.append(q.new_empty((_saved_bytes(mechanism, values),), dtype=torch.uint8))
    return results


def _new_like(name: str, x: Tensor) -> Tensor:
    if name != "initial_state":
        return x.new_empty(x.shape)
    return x.new_empty((*x.shape[:2], x.shape[3], x.shape[2])).transpose(2, 3)


@torch.library.register_fake("loam::backward", lib=_library)
def _(*args: Any) -> list[Tensor]:
    values, wanted = _values(args), args[-1]
    return [_new_like(name, values[name]) for name, want in zip(INPUTS, wanted) if want]


class Operation(torch.autograd.Function):
    """loam::forward with gradients, for what traces: torch.compile and torch.func."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        return tuple(torch.ops.loam.forward(*args))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        mechanism, state, save = inputs[0], inputs[_ARGS], inputs[-1]
        saved = output[-1] if save and mechanism not in RECURRENT else None
        ctx.save_for_backward(*inputs[1 : 1 + _TENSORS], saved)
        ctx.mark_non_differentiable(*output[2 if state else 1 :])
        ctx.mechanism, ctx.options, ctx.state = mechanism, inputs[1 + _TENSORS : _ARGS], state

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, saved = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[1 : 1 + len(INPUTS)])
        call = (ctx.mechanism, *tensors, *ctx.options)
        grad_state = grads[1] if ctx.state else None
        found = iter(torch.ops.loam.backward(*call, saved, grads[0], grad_state, wanted))
        inputs = [next(found) if want else None for want in wanted]
        return (None, *inputs, *[None] * (len(_READ) + len(OPTIONS) + len(_FLAGS)))


def _has_batch(name: str, axes: int) -> bool:
    if name in ("slope", "sink_bias", "linear_ridge", "z", "log_alpha", "gain", "scale", *FIXED):
        return False
    return name not in ("g", "ridge", "linear_g") or axes > 2


def _fold(name: str, x: Tensor, axis: int | None, n: int) -> Tensor:
    if axis is None:
        return x.expand(n, *x.shape).flatten(0, 1) if _has_batch(name, x.dim()) else x
    if not _has_batch(name, x.dim() - 1):
        raise ValueError(f"{name}: has no batch axis, which vmap would need")
    return x.movedim(axis, 0).flatten(0, 1)


def _fold_call(n: int, in_dims: Any, args: tuple[Any, ...]) -> list[Any]:
    if args[1 + _NAMES.index("cu_seqlens")] is not None:
        raise ValueError("cu_seqlens: packed sequences have no batch axis, which vmap would need")
    folded = list(args)
    for i, name in enumerate((*INPUTS, *_READ), 1):
        if args[i] is not None:
            folded[i] = _fold(name, args[i], in_dims[i], n)
    return folded


def _unfold(x: Tensor, n: int) -> Tensor:
    return x.unflatten(0, (n, x.shape[0] // n))


@torch.library.register_vmap("loam::forward", lib=_library)
def _(info: Any, in_dims: Any, *args: Any) -> Any:
    n = info.batch_size
    *results, last = torch.ops.loam.forward(*_fold_call(n, in_dims, args))
    # What is saved is of the folded batch, and goes as it is to the folded backward.
    is_saved = args[-1] and args[0] not in RECURRENT
    unfolded = [_unfold(x, n) for x in results] + [last if is_saved else _unfold(last, n)]
    return unfolded, [0] * len(results) + [None if is_saved else 0]


@torch.library.register_vmap("loam::backward", lib=_library)
def _(info: Any, in_dims: Any, *args: Any) -> Any:
    n, wanted = info.batch_size, args[-1]
    folded = _fold_call(n, in_dims, args)
    for i, name in ((_ARGS + 1, "grad_o"), (_ARGS + 2, "grad_state")):
        if args[i] is not None:
            folded[i] = _fold(name, args[i], in_dims[i], n)
    for name, want, x in zip(INPUTS, wanted, folded[1:]):
        if want and not _has_batch(name, x.dim()):
            raise ValueError(f"{name}: has no batch axis, and no gradient under vmap")
    grads = torch.ops.loam.backward(*folded)
    return [_unfold(x, n) for x in grads], [0] * len(grads)


def run(mechanism: str, values: dict[str, Any]) -> tuple[Any, ...]:
    """A call through the operator, with its results as those of _core.run."""
    values = dict(values)
    for name in NUMBERS:
        ridge = values.get(name)
        if ridge is not None and not isinstance(ridge, Tensor):
            values[name], values[f"{name}_number"] = None, float(ridge)
    differentiable = torch.is_grad_enabled() and (
        needs_gradients(values) or torch._C._are_functorch_transforms_active()
    )
    flags = [bool(values.get(name)) for name in _FLAGS[:-1]]
    call = [values.get(name) for name in _NAMES]
    operation = Operation.apply if differentiable else torch.ops.loam.forward
    results = list(operation(mechanism, *call, *flags, differentiable))
    if differentiable and mechanism not in RECURRENT:
        results.pop()
    if has_state(mechanism, values) and not flags[0]:
        results.insert(1, None)
    return tuple(results)


_library.define(
    "rope(Tensor x, Tensor? positions, int offset, int dim, float base, bool interleaved, bool inverse)"
    " -> Tensor"
)


def _rope(x: Tensor, *options: Any) -> Tensor:
    if not x.is_cuda:
        return _core.rope(x, *options, 0)
    with torch.cuda.device(x.device):
        return _core.rope(x, *options, torch.cuda.current_stream().cuda_stream)


for _kind in "CPU", "CUDA":
    _library.impl("rope", _rope, _kind)


@torch.library.register_fake("loam::rope", lib=_library)
def _(x: Tensor, *options: Any) -> Tensor:
    return x.new_empty(x.shape)


class Rope(torch.autograd.Function):
    """loam::rope; gradients are turned back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *options: Any) -> Tensor:
        return torch.ops.loam.rope(x, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.options = inputs[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *options, inverse = ctx.options
        return torch.ops.loam.rope(grad, *options, not inverse), *[None] * 6


@torch.library.register_vmap("loam::rope", lib=_library)
def _(info: Any, in_dims: Any, x: Tensor, positions: Tensor | None, *options: Any) -> tuple[Tensor, int]:
    n = info.batch_size
    if positions is not None and (positions.dim() > 1 or in_dims[1] is not None):
        raise ValueError("positions: one for each sequence, expected [T] under vmap")
    return _unfold(torch.ops.loam.rope(_fold("x", x, in_dims[0], n), positions, *options), n), 0


def rope(x: Tensor, *options: Any) -> Tensor:
    if not isinstance(x, Tensor):
        return _core.rope(x, *options, 0)
    if torch.is_grad_enabled() and (x.requires_grad or torch._C._are_functorch_transforms_active()):
        return Rope.apply(x, *options)
    return torch.ops.loam.rope(x, *options)
