# SPDX-License-Identifier: MIT
"""Layers of PyTorch around Loam's functions: projections, norms, gates and positions are PyTorch's and
Loam's, the attention between is one call of the library.

All are made alike, Layer(hidden_size, num_heads, *, options), and called alike, layer(x, cache=None,
cu_seqlens=None): x [B, T, hidden_size] -> the same. Their options are documented at LocalLayer and
RecurrentLayer. With a loam_attn.Cache of its own a layer takes new tokens alone.
"""

from loam_attn.nn.local import (
    ForgettingAttention,
    LocalLayer,
    LocalLinearAttention,
    ParallaxAttention,
    PaTHAttention,
    SoftmaxAttention,
)
from loam_attn.nn.recurrent import (
    GatedDeltaNet,
    GatedLinearAttention,
    KimiDeltaAttention,
    MesaNet,
    RecurrentLayer,
)

__all__ = [
    "ForgettingAttention",
    "GatedDeltaNet",
    "GatedLinearAttention",
    "KimiDeltaAttention",
    "LocalLayer",
    "LocalLinearAttention",
    "MesaNet",
    "ParallaxAttention",
    "PaTHAttention",
    "RecurrentLayer",
    "SoftmaxAttention",
]
