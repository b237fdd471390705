# SPDX-License-Identifier: MIT
"""Models of Hugging Face's transformers on Loam: after register() they take
attn_implementation="loam_softmax", "loam_lla" or "loam_parallax", in from_pretrained, from_config and
set_attn_implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from loam_attn import local

# A padded key has no weight beside any other; finite, so that a row of them alone has numbers.
_PADDED = -1e30


def padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    **options: Any,
) -> Tensor | None:
    """Which keys are no padding, [B, S], or None: all. What is causal, and windows, the library knows."""
    if not allow_is_causal_skip:
        raise ValueError("attention_mask: Loam has causal masks, windows and padding, no others")
    if int(q_offset) + q_length != kv_offset + kv_length:
        raise ValueError(
            f"past_key_values: {kv_length} keys, and the last is not of the last query; Loam has no "
            "static caches"
        )
    if attention_mask is None:
        return None
    mask = attention_mask[:, -kv_length:].bool()
    return None if bool(mask.all()) else mask


def _score_options(
    module: nn.Module, query: Tensor, mask: Tensor | None, scaling: float | None, options: dict[str, Any]
) -> dict[str, Any]:
    """The options of a function of the local family, from those of transformers."""
    for name, value in (("dropout", options.get("dropout")), ("position_bias", options.get("position_bias"))):
        if value is not None and not (isinstance(value, (int, float)) and value == 0):
            raise ValueError(f"{name}: {value}, but Loam's attention has none")
    causal = options.get("is_causal")
    found = dict(scale=scaling, soft_cap=options.get("softcap"), window_size=options.get("sliding_window"))
    found["causal"] = bool(getattr(module, "is_causal", True)) if causal is None else causal
    if mask is not None:
        if mask.dim() != 2:
            raise ValueError(f"attention_mask: shape {list(mask.shape)}, expected that of padding, [B, S]")
        real = torch.float64 if query.dtype == torch.float64 else torch.float32
        bias = torch.zeros(mask.shape, dtype=real, device=mask.device).masked_fill_(~mask, _PADDED)
        found["key_bias"] = bias[:, :, None].expand(-1, -1, query.shape[1])
    return found


def _by_tokens(*heads_first: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.transpose(1, 2) for x in heads_first)


def _softmax(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    found = _score_options(module, query, attention_mask, scaling, options)
    if options.get("s_aux") is not None:
        found["sink_bias"] = options["s_aux"].to(torch.float32)
    return local.softmax_attention(*_by_tokens(query, key, value), **found), None


def _parallax(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    maps = getattr(module, "loam_probe", None)
    if maps is None:
        raise ValueError(f"{type(module).__name__}: has no probe; call loam_attn.hf.add_probes(model) before")
    found = _score_options(module, query, attention_mask, scaling, options)
    q, k, v, probe = _by_tokens(query, key, value, query @ maps.to(query.dtype))
    return local.parallax(q, k, v, probe, **found), None


def _lla(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    found = _score_options(module, query, attention_mask, scaling, options)
    config = getattr(module, "config", None)
    ridge, unit = getattr(config, "loam_ridge", 1.0), getattr(config, "loam_ridge_unit", None)
    return local.lla(*_by_tokens(query, key, value), ridge, ridge_unit=unit, **found), None


def register() -> None:
    """Adds loam_softmax, loam_lla and loam_parallax to transformers' attention implementations.

    loam_lla has the ridge that a model's config says as `loam_ridge` and `loam_ridge_unit`, or 1: the larger,
    the nearer is softmax attention. Masks may be causal, of windows, and of padding; caches may grow.
    Attention dropout must be 0.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> register()
    >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
    ...                      num_attention_heads=2, attn_implementation="loam_softmax")
    >>> LlamaForCausalLM(config)(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 16])
    """
    functions = dict(loam_softmax=_softmax, loam_lla=_lla, loam_parallax=_parallax)
    for name, function in functions.items():
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, padding_mask)


def add_probes(model: PreTrainedModel) -> None:
    """Gives each attention layer a parameter loam_probe [H, D, D], by which loam_parallax makes probes of
    queries: probe = q P. They begin at 0, as softmax attention.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=16, n_layer=1, n_head=2))
    >>> add_probes(model)
    >>> [tuple(p.shape) for name, p in model.named_parameters() if "loam" in name]
    [(2, 8, 8)]
    """
    heads = model.config.num_attention_heads
    dim = getattr(model.config, "head_dim", None) or model.config.hidden_size // heads
    found = [m for m in model.modules() if type(m).__name__.endswith("Attention") and hasattr(m, "layer_idx")]
    if not found:
        raise ValueError(f"{type(model).__name__}: has no attention layers with a layer_idx")
    for layer in found:
        like = next(layer.parameters())
        layer.loam_probe = nn.Parameter(torch.zeros(heads, dim, dim, device=like.device, dtype=like.dtype))
