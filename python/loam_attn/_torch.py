# SPDX-License-Identifier: MIT
"""Tensors of PyTorch. Plain ones go to the library by an autograd.Function; those of torch.compile,
torch.func and other modes by the operators loam::forward and loam::backward (loam_attn._operators)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from loam_attn import _core
from loam_attn.gradients import INPUTS

PLACES = {name: i for i, name in enumerate(INPUTS)}
# Arrays or numbers.
NUMBERS = ("ridge", "linear_ridge", "scale")
# Arrays without gradients.
FIXED = ("shift", "balance", "balance_keys")
# Integers of each sequence, which may be in host memory, and the option that says the longest.
LENGTHS = {"cu_seqlens": "max_seqlen", "cu_seqlens_k": "max_seqlen_k", "key_lengths": None}

_core.use_torch(torch)
_PLAIN = (Tensor, torch.nn.Parameter)
_LOW = ("q", "k", "v", "probe", "w")
RECURRENT = ("linear", "retention", "ssd", "gla", "delta", "gated-delta", "kda", "mesa")


class Info(NamedTuple):
    """How each row was solved: int32, and the residual float32."""

    code: Tensor
    solver: Tensor
    iterations: Tensor
    residual: Tensor


def info_of(rows: Tensor) -> Info:
    code, solver, iterations, residual = rows.unbind(-1)
    return Info(code, solver, iterations, residual.view(torch.float32))


def has_state(mechanism: str, values: dict[str, Any]) -> bool:
    """Whether a state is the second of the results: of recurrences, and of interpolation on one."""
    return mechanism in RECURRENT or values.get("linear") is not None


def heads_of(mechanism: str, values: dict[str, Any]) -> int:
    """How many heads o has."""
    of = "v" if mechanism in RECURRENT and values.get("z") is None else "q"
    return values[of].shape[2]


def _with_lengths_on(device: torch.device, values: dict[str, Any]) -> dict[str, Any]:
    """Lengths as kernels read them, and the longest sequence where it is known without waiting; else it is on
    the device, and all tokens are taken as an upper bound."""
    values = dict(values)
    for name, longest in LENGTHS.items():
        x = values.get(name)
        if x is None:
            continue
        if longest and not x.is_cuda:
            values[longest] = int(x.diff().max()) if x.numel() > 1 else 0
        values[name] = x.to(device, torch.int64, non_blocking=True).contiguous()
    return values


def on_device(pass_: Any, mechanism: str, values: dict[str, Any]) -> Any:
    """A pass of the library, on the current stream of a GPU where the tensors are there."""
    q = values["q"]
    if not (isinstance(q, Tensor) and q.is_cuda):
        return pass_(mechanism, values)
    device = q.get_device()
    if values.get("cu_seqlens") is not None or values.get("key_lengths") is not None:
        values = _with_lengths_on(q.device, values)
    values["stream"] = torch._C._cuda_getCurrentRawStream(device)
    if device == torch._C._cuda_getDevice():
        return pass_(mechanism, values)
    with torch.cuda.device(device):
        return pass_(mechanism, values)


class Attention(torch.autograd.Function):
    """A forward that keeps what its backward needs."""

    @staticmethod
    def forward(ctx: Any, mechanism: str, values: dict[str, Any], names: list[str], *inputs: Tensor) -> Any:
        """`inputs` are those of `values` with these names, which alone are kept, as PyTorch keeps tensors."""
        values["save"] = True
        *results, saved = on_device(_core.run, mechanism, values)
        for name in names:
            del values[name]
        ctx.mechanism, ctx.options, ctx.names = mechanism, values, names
        ctx.save_for_backward(*inputs, saved)
        ctx.set_materialize_grads(False)
        first = 2 if has_state(mechanism, values) else 1
        if len(results) > first:
            ctx.mark_non_differentiable(*results[first:])
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_o: Tensor | None, *rest: Tensor | None) -> Any:
        *inputs, saved = ctx.saved_tensors
        grad_state = rest[0] if has_state(ctx.mechanism, ctx.options) else None
        values = {**ctx.options, **dict(zip(ctx.names, inputs))}
        asked = dict(zip(ctx.names, ctx.needs_input_grad[3:]))
        wanted = tuple(asked.get(name, False) for name in INPUTS)
        grads = gradients(ctx.mechanism, values, saved, grad_o, grad_state, wanted)
        return None, None, None, *(grads[PLACES[name]] for name in ctx.names)


def gradients(
    mechanism: str,
    values: dict[str, Any],
    saved: Tensor | None,
    grad_o: Tensor | None,
    grad_state: Tensor | None,
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    if grad_o is None:
        q, v = values["q"], values["v"]
        grad_o = q.new_zeros((*q.shape[:2], heads_of(mechanism, values), v.shape[3]))
    values.update(saved=saved, grad_o=grad_o, grad_final_state=grad_state, wanted=wanted)
    grads = on_device(_core.backward, mechanism, values)
    of_scale, scale = grads[PLACES["scale"]], values.get("scale")
    if of_scale is None:
        return grads
    # The number may be in host memory, where all else is not.
    return (*grads[:-1], of_scale.to(scale).reshape(scale.shape))


def _cast(values: dict[str, Any], kind: str) -> dict[str, Any]:
    """What autocast makes of arguments: attention in its dtype, gates in float32."""
    low, cast = torch.get_autocast_dtype(kind), dict(values)
    for name, x in values.items():
        if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64:
            cast[name] = x.to(low if name in _LOW else torch.float32)
    return cast


def needs_gradients(values: dict[str, Any]) -> bool:
    needing = [n for n, x in values.items() if x is not None and isinstance(x, Tensor) and x.requires_grad]
    for name in FIXED:
        if name in needing:
            raise ValueError(f"{name}: requires a gradient and has none, expected a tensor without")
    return bool(needing)


def _is_traced(q: Any) -> bool:
    return (
        torch.compiler.is_compiling()
        or type(q) not in _PLAIN
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )


def without_gradients(values: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a call with a cache, as autocast has them."""
    if torch.is_grad_enabled() and needs_gradients(values):
        raise ValueError("cache: has no gradients; call under torch.no_grad() or torch.inference_mode()")
    kind = values["q"].device.type
    return _cast(values, kind) if torch.is_autocast_enabled(kind) else values


def _as_asked(results: Any, values: dict[str, Any]) -> Any:
    if values.get("return_info"):
        rows = 1 if values.get("linear") is None else 2
        results = (*results[:-rows], *map(info_of, results[-rows:]))
    return results[0] if isinstance(results, tuple) and len(results) == 1 else results


def run(mechanism: str, values: dict[str, Any]) -> Any:
    q = values["q"]
    if not isinstance(q, Tensor):
        return _core.run(mechanism, values)
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(q.device.type):
        values = _cast(values, q.device.type)
    if _is_traced(q):
        from loam_attn import _operators

        return _as_asked(_operators.run(mechanism, values), values)
    names = _core.differentiable(values) if torch.is_grad_enabled() else None
    if names is not None:
        inputs = [values[name] for name in names]
        return _as_asked(Attention.apply(mechanism, values, names, *inputs), values)
    return _as_asked(on_device(_core.run, mechanism, values), values)


def plain(pass_: Any, mechanism: str, values: dict[str, Any]) -> Any:
    return _as_asked(on_device(pass_, mechanism, values), values)
