# SPDX-License-Identifier: MIT
"""Recurrences: linear attention to MesaNet, (o, state) each.

Shapes, dtypes and the options that functions share: help(loam_attn).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loam_attn._run import run as _run
from loam_attn.cache import Cache
from loam_attn._types import Array, retnet_decay


def _features(unit: bool, feature_map: str | None) -> str | None:
    if unit and feature_map not in (None, "unit"):
        raise ValueError(f"feature_map: {feature_map!r}, expected None with use_qk_l2norm_in_kernel")
    return "unit" if unit else feature_map


def linear_attention(
    q: Array,
    k: Array,
    v: Array,
    scale: float | None = None,
    *,
    normalize: bool = True,
    feature_map: str | None = None,
    z: Array | None = None,
    log_alpha: Array | None = None,
    shift: Array | None = None,
    balance: Array | None = None,
    balance_keys: Array | None = None,
    features_shared: bool = False,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    cu_seqlens: Array | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Any, ...]:
    """Linear attention: S_t = S_{t-1} + v_t k_t^T, o_t = S_t q_t, over (sum of keys) . q with `normalize`.

    q, k [B, T, H, K], v [B, T, HV, V], HV a multiple of H -> (o [B, T, HV, V], state). feature_map, of q
    and k: "identity", "elu" (elu(x) + 1), "unit" (x / |x|) or "positive".

    "positive" are random features, an estimate of softmax attention: q [B, T, HQ, K], k [B, T, H, K],
    v [B, T, H, V], HQ a multiple of H -> (o [B, T, HQ, V], state [N, HZ, M, V + 2]). HZ is HQ, or H with
    features_shared; z [HZ, M, K] (see `projection`); log_alpha [HZ, M], the logarithm of each feature's
    weight; shift [HZ, K] is subtracted from the keys; balance and balance_keys [HZ, K, K] are applied to
    queries and keys. z and log_alpha have gradients. scale as of softmax attention.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> o, state = linear_attention(q, k, v, feature_map="elu", output_final_state=True)
    >>> o.shape, state.shape
    ((2, 16, 4, 8), (2, 4, 8, 9))
    >>> import loam_attn
    >>> z = loam_attn.projection(heads=4, features=512, channels=8)
    >>> o, _ = linear_attention(q / 2, k / 2, v, feature_map="positive", z=z)
    >>> bool(abs(o - loam_attn.softmax_attention(q / 2, k / 2, v)).mean() < 0.02)
    True
    """
    return _run(
        "linear",
        {
            "q": q,
            "k": k,
            "v": v,
            "scale": scale,
            "normalize": normalize,
            "feature_map": feature_map,
            "z": z,
            "log_alpha": log_alpha,
            "shift": shift,
            "balance": balance,
            "balance_keys": balance_keys,
            "features_shared": features_shared or None,
            "initial_state": initial_state,
            "output_final_state": output_final_state,
            "cu_seqlens": cu_seqlens,
            "backend": backend,
            "return_info": return_info,
        },
        cache,
    )


def retention(
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    scale: float | None = None,
    *,
    normalize: bool = False,
    feature_map: str | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    cu_seqlens: Array | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Any, ...]:
    """Retention (RetNet): linear attention with a fixed decay of each head.

    g [HV]; None: log(1 - 2^(-5 - h)), RetNet's. feature_map "identity", "elu" or "unit", as of all below;
    shapes and results as of linear_attention.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> o, _ = retention(q, k, v)
    >>> o.shape
    (2, 16, 4, 8)
    """
    if g is None:
        g = retnet_decay(v.shape[2], q)
    return _run(
        "retention",
        {
            "q": q,
            "k": k,
            "v": v,
            "g": g,
            "scale": scale,
            "normalize": normalize,
            "feature_map": feature_map,
            "initial_state": initial_state,
            "output_final_state": output_final_state,
            "cu_seqlens": cu_seqlens,
            "backend": backend,
            "return_info": return_info,
        },
        cache,
    )


def ssd(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    scale: float | None = None,
    *,
    normalize: bool = False,
    feature_map: str | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    cu_seqlens: Array | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Any, ...]:
    """State space duality (Mamba-2): S_t = e^{g_t} S_{t-1} + beta_t v_t k_t^T.

    g [B, T, HV], beta [B, T, HV] >= 0 (Mamba's Delta). Shapes and results as of linear_attention.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> g = -rng.random((2, 16, 4), "float32")
    >>> beta = rng.random((2, 16, 4), "float32")
    >>> o, _ = ssd(q, k, v, g, beta, scale=1.0)
    >>> o.shape
    (2, 16, 4, 8)
    """
    return _run(
        "ssd",
        {
            "q": q,
            "k": k,
            "v": v,
            "g": g,
            "beta": beta,
            "scale": scale,
            "normalize": normalize,
            "feature_map": feature_map,
            "initial_state": initial_state,
            "output_final_state": output_final_state,
            "cu_seqlens": cu_seqlens,
            "backend": backend,
            "return_info": return_info,
        },
        cache,
    )


def gla(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    scale: float | None = None,
    *,
    normalize: bool = False,
    feature_map: str | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    cu_seqlens: Array | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Any, ...]:
    """Gated linear attention: S_t = S_{t-1} Diag(e^{g_t}) + v_t k_t^T, a decay for each channel.

    g [B, T, HV, K]. Shapes and results as of linear_attention.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> g = -rng.random((2, 16, 4, 8), "float32")
    >>> first, state = gla(q[:, :8], k[:, :8], v[:, :8], g[:, :8], output_final_state=True)
    >>> second, _ = gla(q[:, 8:], k[:, 8:], v[:, 8:], g[:, 8:], initial_state=state)
    >>> whole, _ = gla(q, k, v, g)
    >>> bool(np.allclose(whole[:, 8:], second, atol=1e-5))
    True
    """
    return _run(
        "gla",
        {
            "q": q,
            "k": k,
            "v": v,
            "g": g,
            "scale": scale,
            "normalize": normalize,
            "feature_map": feature_map,
            "initial_state": initial_state,
            "output_final_state": output_final_state,
            "cu_seqlens": cu_seqlens,
            "backend": backend,
            "return_info": return_info,
        },
        cache,
    )


def delta_rule(
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    scale: float | None = None,
    *,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    feature_map: str | None = None,
    cu_seqlens: Array | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Any, ...]:
    """DeltaNet: S_t = S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T.

    beta [B, T, HV] in 0 .. 2; keys should have length 1, which use_qk_l2norm_in_kernel gives them and q.
    Shapes and results as of linear_attention.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> beta = rng.random((2, 16, 4), "float32")
    >>> o, _ = delta_rule(q, k, v, beta, use_qk_l2norm_in_kernel=True)
    >>> o.shape
    (2, 16, 4, 8)
    """
    return _run(
        "delta",
        {
            "q": q,
            "k": k,
            "v": v,
            "beta": beta,
            "scale": scale,
            "initial_state": initial_state,
            "output_final_state": output_final_state,
            "feature_map": _features(use_qk_l2norm_in_kernel, feature_map),
            "cu_seqlens": cu_seqlens,
            "backend": backend,
            "return_info": return_info,
        },
        cache,
    )


def gated_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    scale: float | None = None,
    *,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    feature_map: str | None = None,
    cu_seqlens: Array | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Any, ...]:
    """Gated DeltaNet: the delta rule on a state that decays, S_{t-1} e^{g_t}.

    g [B, T, HV]; all else as in delta_rule.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> g = -rng.random((2, 16, 4), "float32")
    >>> beta = rng.random((2, 16, 4), "float32")
    >>> o, _ = gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)
    >>> o.shape
    (2, 16, 4, 8)
    """
    return _run(
        "gated-delta",
        {
            "q": q,
            "k": k,
            "v": v,
            "g": g,
            "beta": beta,
            "scale": scale,
            "initial_state": initial_state,
            "output_final_state": output_final_state,
            "feature_map": _features(use_qk_l2norm_in_kernel, feature_map),
            "cu_seqlens": cu_seqlens,
            "backend": backend,
            "return_info": return_info,
        },
        cache,
    )


def kda(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    scale: float | None = None,
    *,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    feature_map: str | None = None,
    cu_seqlens: Array | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Any, ...]:
    """Kimi delta attention: the delta rule on a state whose channels decay each by its own gate.

    g [B, T, HV, K]; all else as in delta_rule.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> g = -rng.random((2, 16, 4, 8), "float32")
    >>> beta = rng.random((2, 16, 4), "float32")
    >>> o, _ = kda(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)
    >>> o.shape
    (2, 16, 4, 8)
    """
    return _run(
        "kda",
        {
            "q": q,
            "k": k,
            "v": v,
            "g": g,
            "beta": beta,
            "scale": scale,
            "initial_state": initial_state,
            "output_final_state": output_final_state,
            "feature_map": _features(use_qk_l2norm_in_kernel, feature_map),
            "cu_seqlens": cu_seqlens,
            "backend": backend,
            "return_info": return_info,
        },
        cache,
    )


def mesa(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    ridge: float | Array | None = None,
    scale: float | None = None,
    *,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    feature_map: str | None = None,
    cu_seqlens: Array | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Any, ...]:
    """MesaNet: reads with the minimiser of the regularised, decayed squared error, o = S (H + ridge)^-1 q.

    H_t = e^{g_t} H_{t-1} + beta_t k_t k_t^T. g, beta [B, T, HV]; ridge > 0 is a number (None: 0.1), [HV] or
    [HV, K]; scale None: 1. Shapes and results as of linear_attention, with the state [S^T, H] of R = V + K.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> g = -rng.random((2, 16, 4), "float32")
    >>> beta = rng.random((2, 16, 4), "float32")
    >>> o, state = mesa(q, k, v, g, beta, output_final_state=True)
    >>> o.shape, state.shape
    ((2, 16, 4, 8), (2, 4, 8, 16))
    """
    return _run(
        "mesa",
        {
            "q": q,
            "k": k,
            "v": v,
            "g": g,
            "beta": beta,
            "ridge": ridge,
            "scale": scale,
            "initial_state": initial_state,
            "output_final_state": output_final_state,
            "feature_map": _features(use_qk_l2norm_in_kernel, feature_map),
            "cu_seqlens": cu_seqlens,
            "backend": backend,
            "return_info": return_info,
        },
        cache,
    )
