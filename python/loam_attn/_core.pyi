# SPDX-License-Identifier: MIT
from types import ModuleType
from typing import Any

import numpy as np

version: str
row_codes: tuple[str, ...]
solvers: tuple[str, ...]

def run(mechanism: str, values: dict[str, object], /) -> Any: ...
def decode(mechanism: str, values: dict[str, object], /) -> Any: ...
def part_states(mechanism: str, values: dict[str, object], /) -> Any: ...
def part_merge(mechanism: str, values: dict[str, object], /) -> None: ...
def part_finish(mechanism: str, values: dict[str, object], /) -> Any: ...
def plan(
    mechanism: str, values: dict[str, object], pass_: str, /
) -> tuple[str, str, str | None, int, int]: ...
def backward(mechanism: str, values: dict[str, object], /) -> tuple[Any, ...]: ...
def rope(
    x: Any,
    positions: Any,
    offset: int,
    dim: int,
    base: float,
    interleaved: bool,
    inverse: bool,
    stream: int,
    /,
) -> Any: ...
def regress_fit(
    values: np.ndarray,
    rows: int,
    columns: int,
    names: tuple[str, ...],
    linear: bool,
    bandwidth: np.ndarray | None,
    deviations: bool,
    ridge: float,
    errors: bool,
    bins: int,
    seed: int,
    /,
) -> tuple[object, tuple[float, ...], float, float, float, float, int, str | None]: ...
def regress_predict(
    model: object,
    x: np.ndarray,
    count: int,
    variance: float,
    value: np.ndarray | None,
    error: np.ndarray | None,
    slopes: np.ndarray | None,
    /,
) -> None: ...
def differentiable(values: dict[str, object], /) -> list[str] | None: ...
def use_torch(torch: ModuleType, /) -> None: ...
def set_num_threads(threads: int, /) -> None: ...
def get_num_threads() -> int: ...
def forked() -> None: ...
def projection(
    kind: str, seed: int, heads: int, features: int, channels: int, double: bool, /
) -> np.ndarray: ...
def kernels() -> list[tuple[str, str, str, str, str, str, bool]]: ...
def mechanisms() -> list[tuple[Any, ...]]: ...
def cpu_features() -> str: ...
