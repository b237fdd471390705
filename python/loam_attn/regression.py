# SPDX-License-Identifier: MIT
"""Local regression on tables, the estimator that attention is, as an estimator of scikit-learn (which nobody
needs to have)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from loam_attn import _core

_PARAMETERS = ("estimator", "bandwidth", "unit", "ridge", "standard_errors", "bins", "seed")


def _of_sklearn(name: str, other: type) -> type:
    """An exception of scikit-learn where that is in use, else the one that it derives from."""
    exceptions = sys.modules.get("sklearn.exceptions")
    return other if exceptions is None else getattr(exceptions, name)


def _numbers(x: Any, name: str) -> np.ndarray:
    if hasattr(x, "tocsr"):
        raise TypeError(f"{name}: a sparse matrix, expected a dense array")
    x = np.asarray(x)
    if x.dtype.kind == "c":
        raise ValueError(f"{name}: dtype {x.dtype}, expected real numbers. Complex data not supported")
    try:
        x = x.astype(np.float64)
    except ValueError as why:
        raise ValueError(f"{name}: dtype {x.dtype}, expected numbers: {why}") from None
    if not np.isfinite(x).all():
        at = [int(i) for i in np.argwhere(~np.isfinite(x))[0]]
        raise ValueError(
            f"{name}: {x[tuple(at)]} at {at}, expected finite numbers (no NaN, no inf); leave such rows out"
        )
    return x


def _table(X: Any) -> np.ndarray:
    """[rows, columns] of float64."""
    X = _numbers(X, "X")
    shape = list(X.shape)
    if X.ndim != 2:
        raise ValueError(
            f"X: shape {shape}, expected [rows, columns]. Expected 2D array, got {X.ndim}D array instead. "
            "Reshape your data with X.reshape(-1, 1) if it has one column"
        )
    if X.shape[0] == 0:
        raise ValueError(f"X: shape {shape}, expected rows. Found array with 0 sample(s)")
    if X.shape[1] == 0:
        raise ValueError(f"X: 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
    return X


def _column(y: Any, rows: int) -> np.ndarray:
    if y is None:
        raise ValueError("y: None, expected [rows]. It requires y to be passed, but the target y is None")
    y = _numbers(y, "y")
    if y.ndim == 2 and y.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected: y has shape "
            f"{list(y.shape)}, expected [{rows}]",
            _of_sklearn("DataConversionWarning", UserWarning),
            stacklevel=3,
        )
        y = y[:, 0]
    if y.shape != (rows,):
        raise ValueError(f"y: shape {list(y.shape)}, expected [{rows}] as X has rows")
    return y


def _names(X: Any) -> np.ndarray | None:
    """Of the columns of a data frame."""
    names = getattr(X, "columns", None)
    if names is None or not all(isinstance(name, str) for name in names):
        return None
    return np.array(list(names), dtype=object)


def _model_of(
    values: np.ndarray,
    names: Sequence[str] | None,
    settings: tuple[bool, float, int, int],
    bandwidth: np.ndarray | None,
    deviations: bool,
    errors: bool,
) -> tuple[Any, ...]:
    """The model of values [columns + 1, rows], X and then y, and what it estimates."""
    columns, rows = values.shape[0] - 1, values.shape[1]
    if names is None:
        names = [f"X[:, {c}]" for c in range(columns)]
    linear, ridge, bins, seed = settings
    return _core.regress_fit(
        values, rows, columns, (*names, "y"), linear, bandwidth, deviations, ridge, errors, bins, seed
    )


class Regressor:
    """Local regression: at each point a constant (softmax attention with a Gaussian kernel) or a line (Local
    Linear Attention with it) is fitted to the rows around. What `loam regress` computes, by its code.

    estimator        "linear", or "constant" (Nadaraya-Watson).
    bandwidth        "auto": chosen by leave-one-out cross-validation, one for all columns in their standard
                     deviations; or a number for all columns, or [columns] numbers.
    unit             of a given bandwidth: "x", that of the column, or "sd", its standard deviation.
    ridge            shrinks the slope of the line; >= 0, in squared bandwidths.
    standard_errors  whether fit also estimates the noise: rows^2 work, as "auto" is.
    bins             for one column, bins per bandwidth, 0: none. None: 4 above 10,000 rows, else none. Fits
                     differ by less than 1e-6 standard errors, and large tables take a hundredth of the time.
    seed             of the rows that are looked at for bandwidth and noise, where there are over 20,000.

    fit(X, y) takes X [rows, columns], up to 16 columns, and y [rows], which may be NumPy's, a data frame or
    lists, and sets

    bandwidth_               [columns], in the units of the columns
    leave_one_out_error_     root mean squared error of rows predicted from the others
    noise_                   standard deviation of y around the curve; NaN where it cannot be known
    effective_parameters_    trace of the matrix that makes fits of y
    sampled_rows_            how many rows those three come from
    bandwidth_limit_         "smallest" or "largest" where "auto" chose the end of what it tries, else None
    n_features_in_, feature_names_in_ (of data frames)

    Without standard_errors all three are NaN, but for the error that "auto" has made least.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 6, (200, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(200)
    >>> model = Regressor().fit(X, y)
    >>> value, error = model.predict([[1.0], [2.0]], return_std=True)
    >>> bool(np.all(abs(value - np.sin([1, 2])) < 3 * error)), round(model.score(X, y), 1)
    (True, 1.0)
    """

    _estimator_type = "regressor"

    def __init__(
        self,
        estimator: str = "linear",
        bandwidth: str | float | Sequence[float] = "auto",
        *,
        unit: str = "x",
        ridge: float = 0.0,
        standard_errors: bool = True,
        bins: int | None = None,
        seed: int = 1,
    ):
        self.estimator = estimator
        self.bandwidth = bandwidth
        self.unit = unit
        self.ridge = ridge
        self.standard_errors = standard_errors
        self.bins = bins
        self.seed = seed

    # ---- what scikit-learn asks of an estimator

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments by name.

        >>> Regressor(ridge=0.1).get_params()["ridge"]
        0.1
        """
        return {name: getattr(self, name) for name in _PARAMETERS}

    def set_params(self, **params: Any) -> Regressor:
        """Sets arguments of the constructor, for the next fit.

        >>> Regressor().set_params(bandwidth=2.0).bandwidth
        2.0
        """
        for name, value in params.items():
            if name not in _PARAMETERS:
                raise ValueError(
                    f"{name}: Invalid parameter {name!r} for estimator {self}, expected one of "
                    f"{', '.join(_PARAMETERS)}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        default = Regressor()
        given = (
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if repr(value) != repr(getattr(default, name))
        )
        return f"{type(self).__name__}({', '.join(given)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=True),
            regressor_tags=RegressorTags(),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_model"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "_again" in state:
            self._model = _model_of(*self._again)[0]

    # ---- arguments

    def _given_bandwidth(self, columns: int) -> np.ndarray | None:
        if isinstance(self.bandwidth, str):
            if self.bandwidth == "auto":
                return None
            raise ValueError(f"bandwidth: {self.bandwidth!r}, expected 'auto' or numbers")
        given = np.asarray(self.bandwidth, np.float64)
        if given.ndim > 1 or (given.ndim == 1 and given.shape != (columns,)):
            raise ValueError(f"bandwidth: shape {list(given.shape)}, expected a number or [{columns}]")
        if not (np.isfinite(given) & (given > 0)).all():
            raise ValueError(f"bandwidth: {self.bandwidth!r}, expected numbers above 0")
        return np.full(columns, given)

    def _check_parameters(self) -> None:
        for name, names in (("estimator", ("linear", "constant")), ("unit", ("x", "sd"))):
            value = getattr(self, name)
            if value not in names:
                raise ValueError(f"{name}: {value!r}, expected one of {', '.join(names)}")
        if not (np.isfinite(self.ridge) and self.ridge >= 0):
            raise ValueError(f"ridge: {self.ridge!r}, expected a number >= 0")
        if self.bins is not None and not 0 <= self.bins <= 64:
            raise ValueError(f"bins: {self.bins!r}, expected None or 0 .. 64")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed: {self.seed!r}, expected 0 .. 2^64 - 1")

    def _points(self, X: Any) -> np.ndarray:
        """[columns, points] of X, of a fitted model."""
        if not hasattr(self, "_model"):
            raise _of_sklearn("NotFittedError", ValueError)(f"this {type(self).__name__} is not fitted yet")
        names, fitted = _names(X), getattr(self, "feature_names_in_", None)
        if names is not None and fitted is not None and list(names) != list(fitted):
            raise ValueError(f"X: columns {list(names)}, expected {list(fitted)}")
        X = _table(X)
        if X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X: shape {list(X.shape)}, expected [points, {self.n_features_in_}]. X has {X.shape[1]} "
                f"features, but {type(self).__name__} is expecting {self.n_features_in_} features as input"
            )
        return np.ascontiguousarray(X.T)

    # ---- fits

    def fit(self, X: Any, y: Any) -> Regressor:
        """X [rows, columns], y [rows] -> itself, fitted. Two rows are the fewest, and no column is constant.

        >>> Regressor(bandwidth=1.0).fit([[0], [1], [2]], [0, 1, 2]).predict([[1.5]]).round(9)
        array([1.5])
        """
        self._check_parameters()
        names = _names(X)
        X = _table(X)
        y = _column(y, X.shape[0])
        rows, columns = X.shape
        if rows < 2:
            raise ValueError(f"X: shape {[rows, columns]}, expected 2 rows or more, not 1 sample")
        bandwidth = self._given_bandwidth(columns)
        values = np.empty((columns + 1, rows))
        values[:columns], values[columns] = X.T, y
        bins = -1 if self.bins is None else int(self.bins)
        settings = (self.estimator == "linear", float(self.ridge), bins, int(self.seed))
        deviations, errors = self.unit == "sd", bool(self.standard_errors)
        found = _model_of(values, names, settings, bandwidth, deviations, errors)
        self._model, widths, width, score, variance, parameters, sampled, limit = found
        # What makes the same model again, without a choice.
        if bandwidth is None:
            bandwidth, deviations = np.full(columns, width), True
        self._again = (values, names, settings, bandwidth, deviations, False)
        self._variance, self._has_errors, self._is_linear = variance, errors, settings[0]
        self.bandwidth_ = np.array(widths)
        self.leave_one_out_error_ = float(np.sqrt(score))
        self.noise_ = float(np.sqrt(variance)) if variance >= 0 else float("nan")
        self.effective_parameters_ = parameters
        self.sampled_rows_ = sampled
        self.bandwidth_limit_ = limit
        self.n_features_in_ = columns
        vars(self).pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = names
        return self

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """X [points, columns] -> fits [points], and with return_std their standard errors [points].

        These are of the mean, not of a new row, take one variance for all rows, and know of no bias. They
        are NaN where the noise cannot be known.

        >>> model = Regressor("constant", 0.5).fit([[0], [1], [2], [3]], [0, 1, 0, 1])
        >>> value, error = model.predict([[0.5], [1.5]], return_std=True)
        >>> value.round(3), error.shape
        (array([0.495, 0.5  ]), (2,))
        """
        points = self._points(X)
        if return_std and not self._has_errors:
            raise ValueError("return_std: True, expected False: fitted with standard_errors=False")
        value = np.empty(points.shape[1])
        error = np.empty_like(value) if return_std else None
        _core.regress_predict(self._model, points, len(value), self._variance, value, error, None)
        return (value, error) if error is not None else value

    def slopes(self, X: Any) -> np.ndarray:
        """X [points, columns] -> slopes [points, columns] of the local lines, in y per unit of the column;
        NaN where too few rows are in reach for a line.

        >>> model = Regressor(bandwidth=1.0).fit([[0], [1], [2]], [0, 2, 4])
        >>> model.slopes([[0.5]]).round(9)
        array([[2.]])
        """
        points = self._points(X)
        if not self._is_linear:
            raise ValueError("slopes: of estimator 'constant', expected 'linear'")
        found = np.empty_like(points)
        _core.regress_predict(self._model, points, points.shape[1], -1.0, None, None, found)
        return np.ascontiguousarray(found.T)

    def score(self, X: Any, y: Any) -> float:
        """R^2 of predict(X), X [rows, columns], as a prediction of y [rows]; 1 - sum (y - fit)^2 /
        sum (y - mean)^2.

        >>> Regressor(bandwidth=1.0).fit([[0], [1], [2]], [0, 2, 4]).score([[0.5], [1.5]], [1, 3])
        1.0
        """
        fits = self.predict(X)
        y = _column(y, len(fits))
        if len(y) < 2:
            raise ValueError(f"y: shape {list(y.shape)}, expected 2 rows or more for R^2")
        left, all_of_it = float(((y - fits) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
        # Of a constant y, as scikit-learn has it: all or nothing.
        return 1 - left / all_of_it if all_of_it > 0 else float(left == 0)
