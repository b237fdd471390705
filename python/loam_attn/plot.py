# SPDX-License-Identifier: MIT
"""Pictures of weights and of fits, by matplotlib, which nothing else here needs.

Each function draws into `ax`, or into axes of its own, and returns the axes; ax.figure.savefig keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from loam_attn._types import Array
from loam_attn.regression import Regressor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    Axes = Any

# Of the project's pictures: a constant, a line, then whatever else there is.
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#882255")
_LINE, _ROWS = "#0072B2", "#999999"


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as why:
        raise ImportError(f"loam_attn.plot draws by matplotlib: pip install matplotlib ({why})") from None
    return pyplot.subplots(figsize=(6, 4.5), layout="constrained")[1]


def _head(weights: Array, batch: int, head: int) -> np.ndarray:
    """[T, S] of one head."""
    if hasattr(weights, "detach"):
        weights = weights.detach().cpu().double().numpy()
    weights = np.asarray(weights).astype(np.float64)
    if weights.ndim not in (2, 4):
        raise ValueError(f"weights: shape {list(weights.shape)}, expected [B, T, H, S] or [T, S]")
    if weights.ndim == 2:
        return weights
    for name, index, size in (("batch", batch, weights.shape[0]), ("head", head, weights.shape[2])):
        if not 0 <= index < size:
            raise ValueError(f"{name}: {index}, expected 0 .. {size - 1}")
    return weights[batch, :, head]


def head(
    weights: Array, *, batch: int = 0, head: int = 0, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """The weights of one head: rows are queries, columns keys; blue above 0, red below, as those of Parallax
    and LLA may be.

    weights [B, T, H, S], of return_weights=True, or [T, S].

    >>> import loam_attn
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 16, 2, 8), "float32")
    >>> _, weights = loam_attn.lla(q, k, v, return_weights=True)
    >>> head(weights, head=1).get_xlabel()
    'key'
    """
    shown = _head(weights, batch, head)
    ax = _axes(ax)
    # White is 0 whatever the weights are.
    most = float(np.abs(shown).max(initial=0)) or 1.0
    image = ax.imshow(shown, cmap="RdBu", vmin=-most, vmax=most, interpolation="nearest", aspect="auto")
    ax.set(xlabel="key", ylabel="query", title=title or f"weights of head {head}")
    ax.figure.colorbar(image, ax=ax, label="weight")
    return ax


def row(
    weights: Mapping[str, Array],
    query: int = -1,
    *,
    batch: int = 0,
    head: int = 0,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """The weights of one query over the places of the keys, a line for each mechanism.

    weights: by name, [B, T, H, S] each, of return_weights=True, or [T, S]; query counts from the end below 0.

    >>> import loam_attn
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 16, 2, 8), "float32")
    >>> both = {"softmax": loam_attn.softmax_attention, "LLA": loam_attn.lla}
    >>> ax = row({name: f(q, k, v, return_weights=True)[1] for name, f in both.items()})
    >>> [line.get_label() for line in ax.lines if line.get_label()[0] != "_"]
    ['softmax', 'LLA']
    """
    if not isinstance(weights, Mapping) or not weights:
        raise TypeError(f"weights: {type(weights)}, expected arrays by name")
    rows = {}
    for name, x in weights.items():
        shown = _head(x, batch, head)
        if not -len(shown) <= query < len(shown):
            raise ValueError(f"query: {query}, expected {-len(shown)} .. {len(shown) - 1}")
        rows[name] = shown[query]
    place = query % len(shown)
    ax = _axes(ax)
    ax.axhline(0, color=_ROWS, linewidth=0.8)
    for i, (name, shown) in enumerate(rows.items()):
        ax.plot(shown, color=_COLOURS[i % len(_COLOURS)], marker=".", linewidth=1.2, label=name)
    ax.set(xlabel="key", ylabel="weight", title=title or f"weights of query {place}, head {head}")
    ax.legend()
    return ax


def fit(
    model: Regressor,
    X: Any,
    y: Any,
    *,
    column: int = 0,
    points: int = 200,
    level: float = 0.95,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """A fitted Regressor along one column of X, the others at their medians, with a band of its standard
    errors, and the rows.

    X [rows, columns] and y [rows] are what is drawn as points, and say how far the curve goes. The band is
    pointwise, of the mean, and is left out where the model has no standard errors. Of several columns there
    are gaps where the fit is less certain than the y of a single row.

    >>> from loam_attn import Regressor
    >>> x = np.linspace(0, 6, 50)[:, None]
    >>> fit(Regressor().fit(x, np.sin(x[:, 0])), x, np.sin(x[:, 0])).get_ylabel()
    'y'
    """
    names = getattr(X, "columns", None)
    table, target = np.asarray(X, np.float64), np.asarray(y, np.float64)
    if table.ndim != 2 or target.shape != table.shape[:1]:
        shapes = f"{list(table.shape)} and {list(target.shape)}"
        raise ValueError(f"X, y: shapes {shapes}, expected [rows, columns] and [rows]")
    if not 0 <= column < table.shape[1]:
        raise ValueError(f"column: {column}, expected 0 .. {table.shape[1] - 1}")
    if not 0 < level < 1:
        raise ValueError(f"level: {level}, expected a number between 0 and 1")
    if points < 2:
        raise ValueError(f"points: {points}, expected 2 or more")
    at = np.tile(np.median(table, 0), (points, 1))
    at[:, column] = np.linspace(table[:, column].min(), table[:, column].max(), points)
    errors = bool(np.isfinite(getattr(model, "noise_", np.nan)))
    found = model.predict(at, return_std=errors)
    value, error = found if errors else (found, None)
    if error is not None and table.shape[1] > 1:
        # As the program's grids: no fit where it is less certain than the y of one row.
        value[error > model.noise_] = np.nan
    ax = _axes(ax)
    ax.plot(table[:, column], target, ".", color=_ROWS, markersize=3, label="rows")
    if error is not None:
        reach = NormalDist().inv_cdf(0.5 + level / 2)
        ax.fill_between(
            at[:, column],
            value - reach * error,
            value + reach * error,
            color=_LINE,
            alpha=0.25,
            linewidth=0,
            label=f"{100 * level:g} % band",
        )
    ax.plot(at[:, column], value, color=_LINE, label=f"local {model.estimator}")
    ax.set(xlabel=f"column {column}" if names is None else str(names[column]), title=title or "")
    ax.set_ylabel(str(getattr(y, "name", None) or "y"))
    ax.legend()
    return ax
