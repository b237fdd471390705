# SPDX-License-Identifier: MIT
"""What the library has: its kernels and mechanisms, as loam.h lists them."""

from __future__ import annotations

from typing import NamedTuple

from loam_attn import _core

#: Names of the codes of rows in info.
ROW_CODES: tuple[str, ...] = _core.row_codes
#: Names of the solvers in info.
SOLVERS: tuple[str, ...] = _core.solvers


class Kernel(NamedTuple):
    """A row of the registry. A function takes its name as `backend`, and then runs it and no other."""

    name: str
    mechanisms: str
    pass_: str
    dtypes: str
    backend: str
    isa: str
    available: bool


class Mechanism(NamedTuple):
    """A mechanism as a fit: what it minimises, keeps, reads and costs, and what it takes besides q, k, v."""

    name: str
    family: str
    objective: str
    regulariser: str
    update: str
    output: str
    cost: str
    log_decay: str
    ridge: bool
    beta: bool
    beta_most: float
    normalize: bool
    delta: bool
    probe: bool
    sink: bool
    ridge_axes: tuple[str, ...]
    ridge_units: tuple[str, ...]
    ridge_positive: bool


def kernels() -> list[Kernel]:
    """All kernels, slowest first within each pass; `available` where this machine can run them.

    >>> [row.name for row in kernels() if row.pass_ == "decode" and "lla" in row.mechanisms][0]
    'local_decode_ref'
    """
    return [Kernel(*row) for row in _core.kernels()]


def mechanisms() -> list[Mechanism]:
    """All mechanisms.

    >>> {m.name: m.objective for m in mechanisms()}["delta"]
    '|S k - v|^2 / 2'
    """
    return [Mechanism(*row) for row in _core.mechanisms()]


def cpu_features() -> str:
    """The instruction sets of this CPU that there are kernels for, as "avx2 avx512".

    >>> isinstance(cpu_features(), str)
    True
    """
    return _core.cpu_features()
