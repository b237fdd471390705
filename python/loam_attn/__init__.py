# SPDX-License-Identifier: MIT
"""Attention as local regression, for arrays of NumPy on the CPU: Loam's C library in the conventions of
flash-linear-attention.

Arrays are [B, T, H, D]: batch, tokens, heads, channels. q, k and v have one dtype, float32, float16,
bfloat16 (of ml_dtypes) or float64; float64 is computed by the slow reference. Gates and other small arrays
are float32, with float64 they are float64. Gates `g` are natural logarithms, <= 0. Results are new arrays.

Options that functions share:

scale               factor of q.k (of q in recurrences); None: 1 / sqrt(K), where not said otherwise.
cu_seqlens          [N + 1] int32 or int64: N sequences packed in arrays with B = 1; where each begins, and T.
initial_state       [N, HV, K, R]: where a recurrence begins, N = B where not packed. R = V, one more with
                    `normalize`, K more for mesa. None: 0.
output_final_state  recurrences return (o, state) always; the state is None without this.
return_lse          one more result: log sum exp of each row's scores, [B, T, H].
return_info         one more result: how each row was solved, [B, T, H], with fields code (0: well,
                    1: no visible key, 2: singular), solver, iterations, residual.
backend             "auto", "cpu" or "reference" (float64 from the equations, slow).

ValueError says which argument is wrong, what was found and what was expected; TypeError likewise of types.
"""

from __future__ import annotations

import numpy as np

from loam_attn import _core
from loam_attn._core import get_num_threads, set_num_threads

__version__: str = _core.version
__all__ = [
    "delta_rule",
    "forgetting_attention",
    "gated_delta_rule",
    "get_num_threads",
    "gla",
    "kda",
    "linear_attention",
    "lla",
    "mesa",
    "parallax",
    "path_attention",
    "retention",
    "set_num_threads",
    "softmax_attention",
    "ssd",
]

Array = np.ndarray
_run = _core.run


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
    backend: str | None = None,
    return_lse: bool = False,
    return_info: bool = False,
) -> Array | tuple[Array, ...]:
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
        q=q,
        k=k,
        v=v,
        scale=scale,
        causal=causal,
        window_size=window_size,
        soft_cap=soft_cap,
        slope=slope,
        key_bias=key_bias,
        sink_bias=sink_bias,
        g=g,
        score=score,
        cu_seqlens=cu_seqlens,
        backend=backend,
        return_lse=return_lse,
        return_info=return_info,
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
    score: str | None = None,
    cu_seqlens: Array | None = None,
    backend: str | None = None,
    return_lse: bool = False,
    return_info: bool = False,
) -> Array | tuple[Array, ...]:
    """Parallax: softmax attention with a correction by `probe`, the slope of a line that is given.

    probe [B, T, HQ, K]; all else as in softmax_attention. o_i = sum_j p_ij (1 - probe_i . (k_j - kbar_i))
    v_j.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> zero = np.zeros_like(q)
    >>> bool(np.array_equal(parallax(q, k, v, zero), softmax_attention(q, k, v)))
    True
    """
    return _run(
        "parallax",
        q=q,
        k=k,
        v=v,
        probe=probe,
        scale=scale,
        causal=causal,
        window_size=window_size,
        soft_cap=soft_cap,
        slope=slope,
        key_bias=key_bias,
        g=g,
        score=score,
        cu_seqlens=cu_seqlens,
        backend=backend,
        return_lse=return_lse,
        return_info=return_info,
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
    score: str | None = None,
    ridge_unit: str | None = None,
    cu_seqlens: Array | None = None,
    backend: str | None = None,
    return_lse: bool = False,
    return_info: bool = False,
) -> Array | tuple[Array, ...]:
    """Local Linear Attention: fits an affine function around each query, by a solve for each row.

    ridge >= 0 is a number (None: 0.1), or [HQ], [B, T, HQ] or [B, T, HQ, K]; ridge_unit is what it is
    relative to, "normalised", "max" or "trace". All else as in softmax_attention.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> o, info = lla(q, k, v, ridge=0.5, return_info=True)
    >>> o.shape, info.shape, int(info["code"].max())
    ((2, 16, 4, 8), (2, 16, 4), 0)
    """
    return _run(
        "lla",
        q=q,
        k=k,
        v=v,
        ridge=ridge,
        scale=scale,
        causal=causal,
        window_size=window_size,
        soft_cap=soft_cap,
        slope=slope,
        key_bias=key_bias,
        g=g,
        score=score,
        ridge_unit=ridge_unit,
        cu_seqlens=cu_seqlens,
        backend=backend,
        return_lse=return_lse,
        return_info=return_info,
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
    backend: str | None = None,
    return_lse: bool = False,
) -> Array | tuple[Array, ...]:
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
        q=q,
        k=k,
        v=v,
        g=g,
        scale=scale,
        window_size=window_size,
        soft_cap=soft_cap,
        slope=slope,
        key_bias=key_bias,
        cu_seqlens=cu_seqlens,
        backend=backend,
        return_lse=return_lse,
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
    backend: str | None = None,
    return_lse: bool = False,
) -> Array | tuple[Array, ...]:
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
        q=q,
        k=k,
        v=v,
        w=w,
        beta=beta,
        g=g,
        scale=scale,
        cu_seqlens=cu_seqlens,
        backend=backend,
        return_lse=return_lse,
    )


def linear_attention(
    q: Array,
    k: Array,
    v: Array,
    scale: float | None = None,
    *,
    normalize: bool = True,
    feature_map: str | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    cu_seqlens: Array | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Array | None, ...]:
    """Linear attention: S_t = S_{t-1} + v_t k_t^T, o_t = S_t q_t, over (sum of keys) . q with `normalize`.

    q, k [B, T, H, K], v [B, T, HV, V], HV a multiple of H -> (o [B, T, HV, V], state). feature_map, of q
    and k: "identity", "elu" (elu(x) + 1) or "unit" (x / |x|).

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> o, state = linear_attention(q, k, v, feature_map="elu", output_final_state=True)
    >>> o.shape, state.shape
    ((2, 16, 4, 8), (2, 4, 8, 9))
    """
    return _run(
        "linear",
        q=q,
        k=k,
        v=v,
        scale=scale,
        normalize=normalize,
        feature_map=feature_map,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
        return_info=return_info,
    )


def retention(
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    scale: float | None = None,
    *,
    normalize: bool = False,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    cu_seqlens: Array | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Array | None, ...]:
    """Retention (RetNet): linear attention with a fixed decay of each head.

    g [HV]; None: log(1 - 2^(-5 - h)), RetNet's. Shapes and results as of linear_attention.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 16, 4, 8), "float32")
    >>> o, _ = retention(q, k, v)
    >>> o.shape
    (2, 16, 4, 8)
    """
    if g is None:
        g = np.log1p(-np.exp2(-5.0 - np.arange(v.shape[2]))).astype("f8" if q.dtype == "f8" else "f4")
    return _run(
        "retention",
        q=q,
        k=k,
        v=v,
        g=g,
        scale=scale,
        normalize=normalize,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
        return_info=return_info,
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
    initial_state: Array | None = None,
    output_final_state: bool = False,
    cu_seqlens: Array | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Array | None, ...]:
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
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        scale=scale,
        normalize=normalize,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
        return_info=return_info,
    )


def gla(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    scale: float | None = None,
    *,
    normalize: bool = False,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    cu_seqlens: Array | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Array | None, ...]:
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
        q=q,
        k=k,
        v=v,
        g=g,
        scale=scale,
        normalize=normalize,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
        return_info=return_info,
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
    cu_seqlens: Array | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Array | None, ...]:
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
        q=q,
        k=k,
        v=v,
        beta=beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        feature_map="unit" if use_qk_l2norm_in_kernel else None,
        cu_seqlens=cu_seqlens,
        backend=backend,
        return_info=return_info,
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
    cu_seqlens: Array | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Array | None, ...]:
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
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        feature_map="unit" if use_qk_l2norm_in_kernel else None,
        cu_seqlens=cu_seqlens,
        backend=backend,
        return_info=return_info,
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
    cu_seqlens: Array | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Array | None, ...]:
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
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        feature_map="unit" if use_qk_l2norm_in_kernel else None,
        cu_seqlens=cu_seqlens,
        backend=backend,
        return_info=return_info,
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
    cu_seqlens: Array | None = None,
    backend: str | None = None,
    return_info: bool = False,
) -> tuple[Array | None, ...]:
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
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        ridge=ridge,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        feature_map="unit" if use_qk_l2norm_in_kernel else None,
        cu_seqlens=cu_seqlens,
        backend=backend,
        return_info=return_info,
    )
