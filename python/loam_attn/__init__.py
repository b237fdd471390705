# SPDX-License-Identifier: MIT
"""Attention as local regression, for arrays of NumPy and tensors of PyTorch: Loam's C library in the
conventions of flash-linear-attention.

Arrays are [B, T, H, D]: batch, tokens, heads, channels. q, k and v have one dtype, float32, float16, bfloat16
(of PyTorch or ml_dtypes) or float64; float64 is computed by the slow reference. Gates and other small arrays
are float32, with float64 they are float64. Gates `g` are natural logarithms, <= 0. Results are new arrays of
the same kind, on the same device; tensors have gradients, arrays of NumPy have them by `vjp`.

Options that functions share:

scale               factor of q.k (of q in recurrences); None: 1 / sqrt(K), where not said otherwise. An array
                    or tensor of one number has a gradient, but with positive features.
cu_seqlens          [N + 1] int32 or int64: N sequences packed in arrays with B = 1; where each begins, and T.
cu_seqlens_k        likewise of keys, where they have other lengths. None: those of the queries.
key_lengths         [B] int32 or int64: keys of each sequence that are in use. Others are not read; the last
                    query is beside the last key in use.
cache               a Cache: the call has new tokens alone, and sees those of the calls before.
initial_state       [N, HV, K, R]: where a recurrence begins, N = B where not packed. R = V, one more with
                    `normalize`, K more for mesa. None: 0.
output_final_state  recurrences return (o, state) always; the state is None without this.
return_lse          one more result: log sum exp of each row's scores, [B, T, H], without gradients.
return_probe        one more result: the probe that each row used, [B, T, H, K].
return_weights      one more result: the weight of each key in each row, [B, T, H, S]; for small inputs.
return_info         one more result: how each row was solved, [B, T, H], with fields code (0: well,
                    1: no visible key, 2: singular; ROW_CODES), solver (SOLVERS), iterations, residual.
backend             "auto", "cpu", "reference" (float64 from the equations, slow); on a GPU "auto" or "cuda";
                    or the name of one of kernels(), for its pass.

ValueError says which argument is wrong, what was found and what was expected; TypeError likewise of types.
"""

from __future__ import annotations

import os

from loam_attn import _core
from loam_attn._core import get_num_threads, set_num_threads
from loam_attn.cache import Cache
from loam_attn.gradients import vjp
from loam_attn.listing import (
    ROW_CODES,
    SOLVERS,
    Kernel,
    Mechanism,
    cpu_features,
    kernels,
    mechanisms,
)
from loam_attn.local import (
    forgetting_attention,
    hybrid_attention,
    interpolation,
    lla,
    parallax,
    path_attention,
    softmax_attention,
)
from loam_attn.parts import Part, Plan, part, plan
from loam_attn.positions import rope
from loam_attn.projections import projection
from loam_attn.recurrent import (
    delta_rule,
    gated_delta_rule,
    gla,
    kda,
    linear_attention,
    mesa,
    retention,
    ssd,
)
from loam_attn.regression import Regressor

__version__: str = _core.version
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_core.forked)
__all__ = [
    "Cache",
    "Kernel",
    "Mechanism",
    "Part",
    "Plan",
    "ROW_CODES",
    "Regressor",
    "SOLVERS",
    "cpu_features",
    "delta_rule",
    "forgetting_attention",
    "gated_delta_rule",
    "get_num_threads",
    "gla",
    "hybrid_attention",
    "interpolation",
    "kda",
    "kernels",
    "linear_attention",
    "lla",
    "mechanisms",
    "mesa",
    "parallax",
    "part",
    "path_attention",
    "plan",
    "projection",
    "retention",
    "rope",
    "set_num_threads",
    "softmax_attention",
    "ssd",
    "vjp",
]
