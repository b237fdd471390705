# SPDX-License-Identifier: MIT
"""Regressor: against weighted least squares, the program, statsmodels' KernelReg, and what scikit-learn asks
of an estimator."""

import copy
import csv
import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest

import loam_attn as la

DATA = Path(__file__).parents[2] / "data"


def table(name, columns, y):
    """X [rows, columns] and y of a table in data/."""
    with open(DATA / name, newline="") as file:
        rows = list(csv.DictReader(file))
    number = lambda column: np.array([float(row[column]) for row in rows])
    return np.stack([number(c) for c in columns], 1), number(y)


def random_table(rows=60, columns=2, seed=3):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 3, (rows, columns)) * [1, 50][:columns]
    return X, np.sin(X[:, 0]) + 0.02 * X[:, -1] + 0.3 * rng.standard_normal(rows)


def weights(X, at, h, ridge, linear):
    """l [points, rows], of which fits are l y, and the slopes' matrix, by least squares with a penalty."""
    rows, slopes = [], []
    for q in at:
        z = (X - q) / h
        w = np.exp(-0.5 * (z**2).sum(1))
        p = w / w.sum()
        if not linear:
            rows.append(p)
            continue
        A = np.hstack([np.ones((len(X), 1)), z])
        inverse = np.linalg.inv(A.T @ (p[:, None] * A) + np.diag([0] + [ridge] * X.shape[1]))
        line = inverse @ (A.T * p)
        rows.append(line[0])
        slopes.append(line[1:] / np.reshape(h, (-1, 1)))
    return np.array(rows), np.array(slopes)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("estimator", ["linear", "constant"])
def test_least_squares(columns, estimator):
    X, y = random_table(columns=columns)
    h, ridge = np.array([0.7, 40.0][:columns]), 0.05
    at = X[:20] + 0.1
    model = la.Regressor(estimator, list(h), ridge=ridge).fit(X, y)
    linear = estimator == "linear"
    l, slopes = weights(X, at, h, ridge, linear)
    L, _ = weights(X, X, h, ridge, linear)
    left = y - L @ y
    freedom = (1 - 2 * np.diag(L) + (L**2).sum(1)).sum()
    noise = np.sqrt((left**2).sum() / freedom)
    value, error = model.predict(at, return_std=True)
    np.testing.assert_allclose(value, l @ y, rtol=1e-9)
    np.testing.assert_allclose(error, noise * np.sqrt((l**2).sum(1)), rtol=1e-9)
    np.testing.assert_allclose(model.noise_, noise, rtol=1e-9)
    np.testing.assert_allclose(model.effective_parameters_, np.trace(L), rtol=1e-9)
    np.testing.assert_array_equal(model.bandwidth_, h)
    others = [weights(np.delete(X, i, 0), X[i : i + 1], h, ridge, linear)[0] for i in range(len(X))]
    lost = [y[i] - (l @ np.delete(y, i))[0] for i, l in enumerate(others)]
    np.testing.assert_allclose(model.leave_one_out_error_, np.sqrt(np.mean(np.square(lost))), rtol=1e-8)
    np.testing.assert_allclose(
        model.score(X, y), 1 - (left**2).sum() / ((y - y.mean()) ** 2).sum(), rtol=1e-9
    )
    if linear:
        np.testing.assert_allclose(model.slopes(at), slopes @ y, rtol=1e-8)


def test_the_chosen_bandwidth_is_best():
    X, y = random_table(columns=1)
    chosen = la.Regressor().fit(X, y)
    assert chosen.bandwidth_limit_ is None
    for factor in (0.5, 0.8, 0.95, 1.05, 1.25, 2):
        other = la.Regressor(bandwidth=chosen.bandwidth_ * factor).fit(X, y)
        assert other.leave_one_out_error_ > 0.9999 * chosen.leave_one_out_error_
    again = la.Regressor(bandwidth=chosen.bandwidth_).fit(X, y)
    np.testing.assert_allclose(again.predict(X), chosen.predict(X), rtol=1e-12)
    sd = la.Regressor(bandwidth=chosen.bandwidth_[0] / X.std(ddof=1), unit="sd").fit(X, y)
    np.testing.assert_allclose(sd.predict(X), chosen.predict(X), rtol=1e-12)


CALLS = [
    ("mcycle.csv", ["times"], "accel", ["--bandwidth", "1.3"], {"bandwidth": 1.3}),
    ("mcycle.csv", ["times"], "accel", ["--ridge", "0.2"], {"ridge": 0.2}),
    ("quakes.csv", ["mag"], "stations", ["--bins", "4"], {"bins": 4}),
    ("quakes.csv", ["lat", "long"], "depth", ["--bandwidth", "lat=2,long=3"], {"bandwidth": [2, 3]}),
    ("quakes.csv", ["lat", "long"], "depth", ["--bandwidth", "0.4sd"], {"bandwidth": 0.4, "unit": "sd"}),
]


@pytest.mark.parametrize("file, columns, y, words, options", CALLS)
def test_the_program_says_the_same(file, columns, y, words, options, tmp_path):
    loam = os.environ.get("LOAM")
    if not loam or not os.path.exists(loam):
        pytest.skip("LOAM does not name the program")
    X, target = table(file, columns, y)
    at = X[::10] + 0.05
    np.savetxt(tmp_path / "at.csv", at, fmt="%.17g", delimiter=",", header=",".join(columns), comments="")
    call = [loam, "regress", DATA / file, "--x", ",".join(columns), "--y", y, "--at", tmp_path / "at.csv"]
    call += [*words, "--slopes", "--out", tmp_path / "fit.csv"]
    subprocess.run(call, check=True, capture_output=True)
    with open(tmp_path / "fit.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    said = lambda name: np.array([float(row[name]) for row in rows])
    for estimator in "constant", "linear":
        model = la.Regressor(estimator, **options).fit(X, target)
        value, error = model.predict(at, return_std=True)
        np.testing.assert_allclose(value, said(f"{estimator}_fit"), rtol=1e-9)
        # Which the program writes with 6 digits.
        np.testing.assert_allclose(error, said(f"{estimator}_se"), rtol=1e-5)
        if estimator == "linear":
            slopes = np.stack([said(f"linear_slope_{c}") for c in columns], 1)
            np.testing.assert_allclose(model.slopes(at), slopes, rtol=1e-8)


@pytest.mark.parametrize("columns, h", [(["mag"], [0.3]), (["lat", "long"], [0.8, 1.1])])
@pytest.mark.parametrize("estimator, kind", [("linear", "ll"), ("constant", "lc")])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_statsmodels(columns, h, estimator, kind):
    nonparametric = pytest.importorskip(
        "statsmodels.nonparametric.api", reason="statsmodels is not installed"
    )
    X, y = table("quakes.csv", columns, "stations")
    at = X[::9] + 0.01
    theirs = nonparametric.KernelReg(y, X, "c" * len(columns), reg_type=kind, bw=h).fit(at)[0]
    ours = la.Regressor(estimator, h).fit(X, y).predict(at)
    # Measured: 1e-12.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_bins_change_little():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((3000, 1))
    y = X[:, 0] ** 2 + rng.standard_normal(3000)
    (a, e), (b, f) = (la.Regressor(bins=n).fit(X, y).predict(X[:50], return_std=True) for n in (0, 4))
    assert np.all(abs(a - b) < 1e-6 * e)
    np.testing.assert_allclose(e, f, rtol=1e-4)
    assert not np.array_equal(a, b)


def test_a_large_table_is_sampled():
    rng = np.random.default_rng(6)
    X = rng.uniform(0, 6, (30000, 1))
    y = np.sin(X[:, 0]) + 0.2 * rng.standard_normal(30000)
    model = la.Regressor().fit(X, y)
    assert model.sampled_rows_ < 30000
    value, error = model.predict(X[:100], return_std=True)
    assert np.mean(abs(value - np.sin(X[:100, 0])) < 3 * error) > 0.9
    assert la.Regressor(seed=2).fit(X, y).noise_ != model.noise_


def test_threads_change_nothing():
    X, y = random_table(500)
    before = la.get_num_threads()
    results = []
    for n in 1, 3:
        la.set_num_threads(n)
        results.append(la.Regressor().fit(X, y).predict(X, return_std=True))
    la.set_num_threads(before)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("options", [{}, {"bandwidth": [0.5, 30]}, {"bandwidth": 0.4, "unit": "sd"}])
def test_kept_whole(options):
    X, y = random_table()
    model = la.Regressor(**options).fit(X, y)
    for same in pickle.loads(pickle.dumps(model)), copy.deepcopy(model):
        np.testing.assert_array_equal(
            same.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
        )
        np.testing.assert_array_equal(same.slopes(X), model.slopes(X))
        assert same.noise_ == model.noise_ and same.get_params() == model.get_params()
    pickle.loads(pickle.dumps(la.Regressor())).fit(X, y)


def test_what_is_not_known_is_nan():
    X, y = random_table()
    plain = la.Regressor(bandwidth=[0.5, 30], standard_errors=False).fit(X, y)
    assert np.isnan([plain.noise_, plain.leave_one_out_error_, plain.effective_parameters_]).all()
    with pytest.raises(ValueError, match="^return_std: True, expected False"):
        plain.predict(X, return_std=True)
    # Through every row: nothing is left for the noise.
    through = la.Regressor("constant", 1e-5).fit([[0], [1], [2]], [3, 1, 2])
    value, error = through.predict([[1]], return_std=True)
    assert value[0] == 1 and np.isnan(error[0]) and np.isnan(through.noise_)
    # Far from all rows, and where one row alone is in reach.
    far = la.Regressor(bandwidth=0.01).fit([[0], [1], [2]], [3, 1, 2])
    assert np.isfinite(far.predict([[1e4]])).all()
    assert np.isnan(far.slopes([[1]])).all() == (far.predict([[1]])[0] == 1)


X, Y = random_table()
HOLE = X.copy()
HOLE[4, 1] = np.nan
FITTED = la.Regressor(bandwidth=1.0).fit(X, Y)
VALUE = {
    "X: shape [60], expected [rows, columns]": lambda: la.Regressor().fit(X[:, 0], Y),
    "X: shape [1, 2], expected 2 rows": lambda: la.Regressor().fit(X[:1], Y[:1]),
    "X: shape [0, 2], expected rows": lambda: la.Regressor().fit(X[:0], Y[:0]),
    "X: 0 feature(s) (shape=(60, 0))": lambda: la.Regressor().fit(X[:, :0], Y),
    "X: 17 columns, expected 1 .. 16": lambda: la.Regressor().fit(np.random.rand(60, 17), Y),
    "X: nan at [4, 1], expected finite": lambda: la.Regressor().fit(HOLE, Y),
    "X: inf at [0, 0], expected finite": lambda: FITTED.predict([[np.inf, 0]]),
    "X: shape [60, 1], expected [points, 2]": lambda: FITTED.predict(X[:, :1]),
    "X: dtype <U1, expected numbers": lambda: la.Regressor().fit([["a"], ["b"]], [1, 2]),
    "X: dtype complex128, expected real": lambda: la.Regressor().fit(X + 1j, Y),
    "column 'X[:, 1]' is constant": lambda: la.Regressor().fit(X * [1, 0], Y),
    "y: shape [59], expected [60]": lambda: la.Regressor().fit(X, Y[:59]),
    "y: shape [60, 2], expected [60]": lambda: la.Regressor().fit(X, X),
    "y: None, expected [rows]": lambda: la.Regressor().fit(X, None),
    "y: nan at [4], expected finite": lambda: la.Regressor().fit(X, HOLE[:, 1]),
    "y: shape [1], expected 2 rows": lambda: FITTED.score(X[:1], Y[:1]),
    "estimator: 'cubic', expected one of linear, constant": lambda: la.Regressor("cubic").fit(X, Y),
    "unit: 'm', expected one of x, sd": lambda: la.Regressor(unit="m").fit(X, Y),
    "bandwidth: 'best', expected 'auto'": lambda: la.Regressor(bandwidth="best").fit(X, Y),
    "bandwidth: -1, expected numbers above 0": lambda: la.Regressor(bandwidth=-1).fit(X, Y),
    "bandwidth: shape [3], expected a number or [2]": lambda: la.Regressor(bandwidth=[1] * 3).fit(X, Y),
    "bandwidth: 1e-200 for column 'X[:, 0]' is not within": lambda: la.Regressor(bandwidth=1e-200).fit(X, Y),
    "ridge: -1, expected": lambda: la.Regressor(ridge=-1).fit(X, Y),
    "bins: 65, expected": lambda: la.Regressor(bins=65).fit(X, Y),
    "bins: 4 with 2 columns": lambda: la.Regressor(bins=4).fit(X, Y),
    "seed: -1, expected": lambda: la.Regressor(seed=-1).fit(X, Y),
    "slopes: of estimator 'constant'": lambda: la.Regressor("constant", 1.0).fit(X, Y).slopes(X),
    "this Regressor is not fitted yet": lambda: la.Regressor().predict(X),
    "width: Invalid parameter": lambda: la.Regressor().set_params(width=1),
}


@pytest.mark.parametrize("text", VALUE)
def test_refused(text):
    with pytest.raises(ValueError) as caught:
        VALUE[text]()
    assert str(caught.value).startswith(text)


def test_a_refused_fit_leaves_the_model_before():
    model = la.Regressor(bandwidth=1.0).fit(X, Y)
    before = model.predict(X)
    with pytest.raises(ValueError):
        model.fit(X * [1, 0], Y)
    np.testing.assert_array_equal(model.predict(X), before)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), before)


def test_scikit_learn():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.base import clone, is_regressor
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = random_table(120)
    model = la.Regressor(ridge=0.01)
    assert is_regressor(model) and clone(model).get_params() == model.get_params()
    assert repr(clone(model)) == "Regressor(ridge=0.01)"
    pipeline = make_pipeline(StandardScaler(), model).fit(X, y)
    assert pipeline.score(X, y) > 0.8 and cross_val_score(model, X, y).mean() > 0.6
    grid = GridSearchCV(la.Regressor(unit="sd"), {"bandwidth": [0.05, 0.3, 20]}, cv=3).fit(X, y)
    assert grid.best_params_ == {"bandwidth": 0.3}


@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks():
    checks = pytest.importorskip("sklearn.utils.estimator_checks", reason="scikit-learn is not installed")
    checks.check_estimator(la.Regressor())


def test_data_frames():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.read_csv(DATA / "quakes.csv")
    model = la.Regressor(bandwidth=[2, 3]).fit(frame[["lat", "long"]], frame["depth"])
    assert list(model.feature_names_in_) == ["lat", "long"]
    value = model.predict(frame[["lat", "long"]][:5])
    np.testing.assert_array_equal(value, model.predict(frame[["lat", "long"]].to_numpy()[:5]))
    with pytest.raises(ValueError, match=r"X: columns \['long', 'lat'\], expected \['lat', 'long'\]"):
        model.predict(frame[["long", "lat"]])
    with pytest.raises(ValueError, match="column 'zero' is constant"):
        la.Regressor().fit(frame[["lat"]].assign(zero=0), frame["depth"])
