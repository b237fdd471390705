# SPDX-License-Identifier: MIT
"""Local estimators: softmax attention, Parallax and Local Linear Attention, and scores of FoX and PaTH.

Shapes, dtypes and the options that functions share: help(loam_attn).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loam_attn._run import run as _run
from loam_attn.cache import Cache
from loam_attn._types import Array, retnet_decay


def softmax_attention(
    q: Array,
    k: Array,
    v: Array,
    scale: float | None = None,
    *,
    causal: bool = True,
    window_size: int | None = None,
    soft_cap: float | None = None,
    slope: Array | None = None,
    key_bias: Array | None = None,
    sink_bias: Array | None = None,
    g: Array | None = None,
    score: str | None = None,
    cu_seqlens: Array | None = None,
    cu_seqlens_k: Array | None = None,
    key_lengths: Array | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
    return_info: bool = False,
) -> Any:
    """Softmax attention: fits a constant around each query.

    q [B, T, HQ, K], k [B, S, H, K], v [B, S, H, V], HQ a multiple of H -> o [B, T, HQ, V]. Query i sees
    keys j <= i + S - T; all with causal=False, and of those the last `window_size`. soft_cap c makes scores
    c tanh(s / c); slope [HQ] subtracts slope |i - j| (ALiBi); key_bias [B, S, HQ] is added; sink_bias [HQ]
    is a logit that takes mass and has no value; g [B, S, HQ] adds its sum over the tokens between. score is
    "dot", or "rbf": a Gaussian kernel, -scale / 2 |q - k|^2.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> softmax_attention(q, k, v, window_size=4).shape
    (2, 16, 4, 8)
    """
    return _run(
        "softmax",
        {
            "q": q,
            "k": k,
            "v": v,
            "scale": scale,
            "causal": causal,
            "window_size": window_size,
            "soft_cap": soft_cap,
            "slope": slope,
            "key_bias": key_bias,
            "sink_bias": sink_bias,
            "g": g,
            "score": score,
            "cu_seqlens": cu_seqlens,
            "cu_seqlens_k": cu_seqlens_k,
            "key_lengths": key_lengths,
            "backend": backend,
            "return_lse": return_lse,
            "return_weights": return_weights,
            "return_info": return_info,
        },
        cache,
    )


def parallax(
    q: Array,
    k: Array,
    v: Array,
    probe: Array,
    scale: float | None = None,
    *,
    causal: bool = True,
    window_size: int | None = None,
    soft_cap: float | None = None,
    slope: Array | None = None,
    key_bias: Array | None = None,
    g: Array | None = None,
    w: Array | None = None,
    beta: Array | None = None,
    score: str | None = None,
    cu_seqlens: Array | None = None,
    cu_seqlens_k: Array | None = None,
    key_lengths: Array | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
    return_lse: bool = False,
    return_probe: bool = False,
    return_weights: bool = False,
    return_info: bool = False,
) -> Any:
    """Parallax: softmax attention with a correction by `probe`, the slope of a line that is given.

    probe [B, T, HQ, K]; w and beta as in path_attention, all else as in softmax_attention. o_i = sum_j p_ij
    (1 - probe_i . (k_j - kbar_i)) v_j.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> zero = np.zeros_like(q)
    >>> bool(np.array_equal(parallax(q, k, v, zero), softmax_attention(q, k, v)))
    True
    """
    return _run(
        "parallax",
        {
            "q": q,
            "k": k,
            "v": v,
            "probe": probe,
            "scale": scale,
            "causal": causal,
            "window_size": window_size,
            "soft_cap": soft_cap,
            "slope": slope,
            "key_bias": key_bias,
            "g": g,
            "w": w,
            "beta": beta,
            "score": score,
            "cu_seqlens": cu_seqlens,
            "cu_seqlens_k": cu_seqlens_k,
            "key_lengths": key_lengths,
            "backend": backend,
            "return_lse": return_lse,
            "return_probe": return_probe,
            "return_weights": return_weights,
            "return_info": return_info,
        },
        cache,
    )


def lla(
    q: Array,
    k: Array,
    v: Array,
    ridge: float | Array | None = None,
    scale: float | None = None,
    *,
    causal: bool = True,
    window_size: int | None = None,
    soft_cap: float | None = None,
    slope: Array | None = None,
    key_bias: Array | None = None,
    g: Array | None = None,
    w: Array | None = None,
    beta: Array | None = None,
    score: str | None = None,
    ridge_unit: str | None = None,
    cu_seqlens: Array | None = None,
    cu_seqlens_k: Array | None = None,
    key_lengths: Array | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
    return_lse: bool = False,
    return_probe: bool = False,
    return_weights: bool = False,
    return_info: bool = False,
) -> Any:
    """Local Linear Attention: fits an affine function around each query, by a solve for each row.

    ridge >= 0 is a number (None: 0.1), or [HQ], [B, T, HQ] or [B, T, HQ, K]; ridge_unit is what it is
    relative to, "normalised", "max" or "trace". w and beta as in path_attention, all else as in
    softmax_attention.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> o, weights, info = lla(q, k, v, ridge=0.5, return_weights=True, return_info=True)
    >>> o.shape, weights.shape, info.shape, int(info["code"].max())
    ((2, 16, 4, 8), (2, 16, 4, 16), (2, 16, 4), 0)
    >>> bool(np.allclose(weights.sum(-1), 1, atol=1e-4))
    True
    """
    return _run(
        "lla",
        {
            "q": q,
            "k": k,
            "v": v,
            "ridge": ridge,
            "scale": scale,
            "causal": causal,
            "window_size": window_size,
            "soft_cap": soft_cap,
            "slope": slope,
            "key_bias": key_bias,
            "g": g,
            "w": w,
            "beta": beta,
            "score": score,
            "ridge_unit": ridge_unit,
            "cu_seqlens": cu_seqlens,
            "cu_seqlens_k": cu_seqlens_k,
            "key_lengths": key_lengths,
            "backend": backend,
            "return_lse": return_lse,
            "return_probe": return_probe,
            "return_weights": return_weights,
            "return_info": return_info,
        },
        cache,
    )


def forgetting_attention(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    scale: float | None = None,
    *,
    window_size: int | None = None,
    soft_cap: float | None = None,
    slope: Array | None = None,
    key_bias: Array | None = None,
    cu_seqlens: Array | None = None,
    cu_seqlens_k: Array | None = None,
    key_lengths: Array | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
    return_info: bool = False,
) -> Any:
    """Forgetting attention (FoX): softmax whose scores decay by the gates between key and query.

    g [B, S, HQ] adds its sum over tokens j + 1 .. i to the score of query i and key j. Causal; all else as in
    softmax_attention.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> g = -rng.random((2, 16, 4), "float32")
    >>> forgetting_attention(q, k, v, g).shape
    (2, 16, 4, 8)
    """
    return _run(
        "softmax",
        {
            "q": q,
            "k": k,
            "v": v,
            "g": g,
            "scale": scale,
            "window_size": window_size,
            "soft_cap": soft_cap,
            "slope": slope,
            "key_bias": key_bias,
            "cu_seqlens": cu_seqlens,
            "cu_seqlens_k": cu_seqlens_k,
            "key_lengths": key_lengths,
            "backend": backend,
            "return_lse": return_lse,
            "return_weights": return_weights,
            "return_info": return_info,
        },
        cache,
    )


def path_attention(
    q: Array,
    k: Array,
    v: Array,
    w: Array,
    beta: Array,
    g: Array | None = None,
    scale: float | None = None,
    *,
    cu_seqlens: Array | None = None,
    cu_seqlens_k: Array | None = None,
    key_lengths: Array | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
    return_info: bool = False,
) -> Any:
    """PaTH attention: softmax whose keys are reflected by the tokens between, I - beta w w^T of each.

    w [B, S, H, K] of length 1 (or 0: no reflection), beta [B, S, H] in 0 .. 2; g [B, S, HQ] as in
    forgetting_attention. Causal.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> beta = rng.random((2, 16, 4), "float32")
    >>> w = k / np.linalg.norm(k, axis=-1, keepdims=True)
    >>> path_attention(q, k, v, w, beta).shape
    (2, 16, 4, 8)
    """
    return _run(
        "softmax",
        {
            "q": q,
            "k": k,
            "v": v,
            "w": w,
            "beta": beta,
            "g": g,
            "scale": scale,
            "cu_seqlens": cu_seqlens,
            "cu_seqlens_k": cu_seqlens_k,
            "key_lengths": key_lengths,
            "backend": backend,
            "return_lse": return_lse,
            "return_weights": return_weights,
            "return_info": return_info,
        },
        cache,
    )


def interpolation(
    q: Array,
    k: Array,
    v: Array,
    linear: str = "linear",
    scale: float | None = None,
    *,
    linear_g: Array | None = None,
    linear_beta: Array | None = None,
    linear_ridge: float | Array | None = None,
    linear_scale: float | None = None,
    local: str = "softmax",
    probe: Array | None = None,
    ridge: float | Array | None = None,
    ridge_unit: str | None = None,
    causal: bool = True,
    window_size: int | None = None,
    soft_cap: float | None = None,
    slope: Array | None = None,
    key_bias: Array | None = None,
    sink_bias: Array | None = None,
    g: Array | None = None,
    w: Array | None = None,
    beta: Array | None = None,
    score: str | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    cu_seqlens: Array | None = None,
    backend: str | None = None,
    return_lse: bool = False,
    return_probe: bool = False,
    return_weights: bool = False,
    return_info: bool = False,
) -> tuple[Any, ...]:
    """Local attention on what a recurrence leaves over: o_i = sum_j p_ij (v_j - W_i k_j) + W_i q_i, with W_i
    the linear map that the recurrence `linear` has after token i.

    q, k [B, T, H, K], v [B, T, H, V], K + V <= 512 -> (o [B, T, H, V], state). linear is "linear",
    "retention", "ssd", "gla", "delta", "gated-delta", "kda" or "mesa"; its gates linear_g, linear_beta and
    linear_ridge, and its states, are those of the function of that name; linear_scale None: 1. local is
    "softmax", "parallax" (with probe) or "lla" (with ridge and ridge_unit); scale and all that follows are
    its own, w and beta as in path_attention. With return_info there are two more results, of the rows of
    `local` and of the recurrence.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> beta = rng.random((2, 16, 4), "float32")
    >>> k /= np.linalg.norm(k, axis=-1, keepdims=True)
    >>> o, state = interpolation(q, k, v, "delta", linear_beta=beta, window_size=4, output_final_state=True)
    >>> o.shape, state.shape
    ((2, 16, 4, 8), (2, 4, 8, 8))
    """
    if linear == "retention" and linear_g is None:
        linear_g = retnet_decay(v.shape[2], q)
    return _run(
        local,
        {
            "q": q,
            "k": k,
            "v": v,
            "linear": linear,
            "scale": scale,
            "linear_g": linear_g,
            "linear_beta": linear_beta,
            "linear_ridge": linear_ridge,
            "linear_scale": linear_scale,
            "probe": probe,
            "ridge": ridge,
            "ridge_unit": ridge_unit,
            "causal": causal,
            "window_size": window_size,
            "soft_cap": soft_cap,
            "slope": slope,
            "key_bias": key_bias,
            "sink_bias": sink_bias,
            "g": g,
            "w": w,
            "beta": beta,
            "score": score,
            "initial_state": initial_state,
            "output_final_state": output_final_state,
            "cu_seqlens": cu_seqlens,
            "backend": backend,
            "return_lse": return_lse,
            "return_probe": return_probe,
            "return_weights": return_weights,
            "return_info": return_info,
        },
    )


def hybrid_attention(
    q: Array,
    k: Array,
    v: Array,
    z: Array,
    sinks: int = 4,
    window_size: int = 64,
    scale: float | None = None,
    *,
    gain: Array | None = None,
    log_alpha: Array | None = None,
    shift: Array | None = None,
    balance: Array | None = None,
    balance_keys: Array | None = None,
    features_shared: bool = False,
    cache: Cache | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> Any:
    """Softmax attention that is exact for the first `sinks` tokens and the last `window_size`, and estimated
    by positive random features for all between, under one normaliser.

    q [B, T, HQ, K], k [B, T, H, K], v [B, T, H, V], HQ a multiple of H -> o [B, T, HQ, V]. gain [HQ], of
    each head, is added to the scores of what is far (-inf: nothing far); None: 0. z, log_alpha, shift,
    balance, balance_keys and features_shared as in linear_attention.

    >>> import loam_attn
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 64, 4, 8), "float32")
    >>> z = loam_attn.projection(heads=4, features=510, channels=8)
    >>> o = hybrid_attention(q / 2, k / 2, v, z, sinks=2, window_size=8)
    >>> bool(abs(o - loam_attn.softmax_attention(q / 2, k / 2, v)).mean() < 0.02)
    True
    """
    return _run(
        "hybrid",
        {
            "q": q,
            "k": k,
            "v": v,
            "z": z,
            "sinks": sinks,
            "window_size": window_size,
            "scale": scale,
            "gain": gain,
            "log_alpha": log_alpha,
            "shift": shift,
            "balance": balance,
            "balance_keys": balance_keys,
            "features_shared": features_shared,
            "backend": backend,
            "return_info": return_info,
        },
        cache,
    )
