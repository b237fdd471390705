# SPDX-License-Identifier: MIT
"""Pictures say what they were given: colours, lines and bands, read back from matplotlib."""

import doctest
import subprocess
import sys

import numpy as np
import pytest

import loam_attn as la
from loam_attn import plot

RNG = np.random.default_rng(4)
Q, K, V = RNG.standard_normal((3, 2, 12, 4, 8), "float32")


@pytest.fixture(autouse=True)
def agg(request):
    if request.node.name == "test_without_matplotlib":
        yield
        return
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def test_examples():
    found = doctest.testmod(plot)
    assert found.attempted > 6 and found.failed == 0


def test_a_head(tmp_path):
    _, weights = la.lla(Q, K, V, ridge=0.01, return_weights=True)
    assert weights.min() < 0
    ax = plot.head(weights, batch=1, head=2)
    image = ax.images[0]
    np.testing.assert_allclose(image.get_array(), weights[1, :, 2])
    # 0 is white, and signs are told by colours.
    red, _, blue, _ = image.cmap(image.norm(np.array([-1.0, 0.0, 1.0]) * np.abs(weights[1, :, 2]).max())).T
    assert red[1] > 0.95 and blue[1] > 0.95 and red[0] > blue[0] and blue[2] > red[2]
    ax.figure.savefig(tmp_path / "head.png")
    assert (tmp_path / "head.png").stat().st_size > 1000
    assert plot.head(weights[0, :, 0], ax=ax) is ax
    plot.head(np.zeros((3, 3)))


def test_a_row():
    both = {
        "softmax": la.softmax_attention(Q, K, V, return_weights=True)[1],
        "LLA": la.lla(Q, K, V, return_weights=True)[1],
    }
    ax = plot.row(both, 7, batch=1, head=3)
    lines = {line.get_label(): line for line in ax.lines}
    for name, weights in both.items():
        np.testing.assert_allclose(lines[name].get_ydata(), weights[1, 7, 3])
    assert lines["softmax"].get_color() != lines["LLA"].get_color()
    assert ax.get_title() == "weights of query 7, head 3"
    assert plot.row(both).get_title() == "weights of query 11, head 0"


def test_tensors():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q, k, v = (torch.tensor(x, dtype=torch.bfloat16, requires_grad=True) for x in (Q, K, V))
    _, weights = la.softmax_attention(q, k, v, return_weights=True)
    shown = plot.head(weights, head=1).images[0].get_array()
    np.testing.assert_allclose(shown, weights[0, :, 1].detach().double().numpy())


@pytest.mark.parametrize("columns", [1, 2])
def test_a_fit(columns):
    X = RNG.uniform(0, 5, (80, columns))
    y = np.sin(X[:, -1]) + 0.1 * RNG.standard_normal(80)
    model = la.Regressor().fit(X, y)
    ax = plot.fit(model, X, y, column=columns - 1, points=40, level=0.9)
    rows, curve = ax.lines
    np.testing.assert_array_equal(rows.get_ydata(), y)
    at = np.tile(np.median(X, 0), (40, 1))
    at[:, -1] = curve.get_xdata()
    value, error = model.predict(at, return_std=True)
    if columns == 2:
        value[error > model.noise_] = np.nan
    np.testing.assert_array_equal(curve.get_ydata(), value)
    band = ax.collections[0].get_paths()[0].vertices
    # 1.645 standard errors hold 90 %.
    np.testing.assert_allclose(band[:, 1].max(), np.nanmax(value + 1.6448536 * error), rtol=1e-6)
    np.testing.assert_allclose(band[:, 1].min(), np.nanmin(value - 1.6448536 * error), rtol=1e-6)
    plain = la.Regressor(standard_errors=False).fit(X, y)
    assert not plot.fit(plain, X, y).collections


def test_a_fit_has_gaps_where_there_are_no_rows():
    # Two bars that leave a corner empty, through which the medians lead.
    t = np.linspace(0, 1, 100)
    X = np.concatenate([np.stack([t, 0 * t + 5], 1), np.stack([10 + 0 * t, 5 * t], 1)])
    y = X.sum(1) + 0.1 * RNG.standard_normal(200)
    curve = plot.fit(la.Regressor(bandwidth=[0.3, 0.3]).fit(X, y), X, y, points=50).lines[1]
    known = np.isfinite(curve.get_ydata())
    assert known.any() and not known.all()


REFUSED = {
    "weights: shape [3], expected": lambda: plot.head(np.zeros(3)),
    "head: 4, expected 0 .. 3": lambda: plot.head(np.zeros((2, 3, 4, 3)), head=4),
    "batch: 2, expected 0 .. 1": lambda: plot.head(np.zeros((2, 3, 4, 3)), batch=2),
    "query: 3, expected -3 .. 2": lambda: plot.row({"a": np.zeros((3, 3))}, 3),
    "X, y: shapes [3] and [3], expected": lambda: plot.fit(la.Regressor(), np.zeros(3), np.zeros(3)),
    "column: 1, expected 0 .. 0": lambda: plot.fit(la.Regressor(), np.zeros((3, 1)), np.zeros(3), column=1),
    "level: 95, expected": lambda: plot.fit(la.Regressor(), np.zeros((3, 1)), np.zeros(3), level=95),
    "points: 1, expected": lambda: plot.fit(la.Regressor(), np.zeros((3, 1)), np.zeros(3), points=1),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text):
    with pytest.raises(ValueError) as caught:
        REFUSED[text]()
    assert str(caught.value).startswith(text)


def test_weights_without_names():
    with pytest.raises(TypeError, match="^weights: .*expected arrays by name"):
        plot.row(np.zeros((3, 3)))


def test_without_matplotlib():
    code = """
import sys
sys.modules["matplotlib"] = None
import numpy, loam_attn.plot
try:
    loam_attn.plot.head(numpy.zeros((2, 2)))
except ImportError as why:
    print(why)
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.startswith("loam_attn.plot draws by matplotlib: pip install matplotlib")
