# SPDX-License-Identifier: MIT
"""What is refused: the exception, and a text that names the argument, what was found, what was expected."""

import gc
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import loam_attn as la

B, T, H, K = 2, 5, 4, 8
X = np.ones((B, T, H, K), "f4")
G = np.full((B, T, H), -0.5, "f4")


def softmax(q=X, k=X, v=X, **options):
    return la.softmax_attention(q, k, v, **options)


def kda(q=X, k=X, v=X, g=np.full(X.shape, -0.5, "f4"), beta=-G, **options):
    return la.kda(q, k, v, g, beta, **options)


def features(z=np.ones((H, 3, K), "f4"), **options):
    return la.linear_attention(X, X, X, feature_map="positive", z=z, **options)


def over_mesa(linear="mesa", linear_beta=-G, **options):
    return la.interpolation(X, X, X, linear, linear_g=G, linear_beta=linear_beta, **options)


VALUE = {
    "z: shape [2, 3, 8], expected [4, M, 8]": lambda: features(np.ones((2, 3, 8), "f4")),
    "z: NULL": lambda: features(None),
    "z: given": lambda: la.linear_attention(X, X, X, z=np.ones((H, 3, K), "f4")),
    "log_alpha: shape [4, 2], expected [4, 3]": lambda: features(log_alpha=np.ones((4, 2), "f4")),
    "balance: shape [4, 8, 3], expected [4, 8, 8]": lambda: features(balance=np.ones((4, 8, 3), "f4")),
    "balance, balance_keys: one of them is given": lambda: features(balance=np.ones((4, 8, 8), "f4")),
    "features: 600, expected 1 to 512": lambda: la.projection(1, 600, 8),
    "heads: -1, expected 0 to": lambda: la.projection(-1, 6, 8),
    "kind: 'even', expected one of normal, orthogonal, dct": lambda: la.projection(1, 6, 8, "even"),
    "local, linear: 'softmax' and 'lla', expected a local mechanism": lambda: over_mesa("lla"),
    "local, linear: 'gla' and 'mesa', expected a local mechanism": lambda: over_mesa(local="gla"),
    "linear: 'mess', expected one of": lambda: over_mesa("mess"),
    "linear_beta: NULL": lambda: over_mesa(linear_beta=None),
    "linear_beta: -1": lambda: over_mesa(linear_beta=2 * G),
    "linear_ridge: 0, expected": lambda: over_mesa(linear_ridge=0),
    "linear_scale: 0, expected": lambda: over_mesa(linear_scale=0),
    "g: shape [2, 5, 3], expected [2, 5, 4]": lambda: over_mesa(g=G[..., :3]),
    "probe: NULL": lambda: over_mesa(local="parallax"),
    "window_size: 0, expected 1": lambda: la.hybrid_attention(X, X, X, np.ones((H, 3, K), "f4"), 1, 0),
    "gain: shape [3], expected [4]": lambda: la.hybrid_attention(
        X, X, X, np.ones((H, 3, K), "f4"), gain=np.ones(3, "f4")
    ),
    "key_lengths: shape [3], expected [2]": lambda: softmax(key_lengths=np.array([1, 2, 3])),
    "key_lengths[1]: 6, expected 0 to 5": lambda: softmax(key_lengths=np.array([1, 6])),
    "key_lengths: expected [B] numbers": lambda: softmax(key_lengths=np.array([[1, 2]])),
    "cu_seqlens_k: given, expected cu_seqlens too": lambda: softmax(cu_seqlens_k=np.array([0, 5])),
    "k: shape [2, 3, 4, 8], expected [2, 5, 4, 8]": lambda: la.interpolation(X, X[:, :3], X[:, :3]),
    "q: shape [5, 4, 8], expected [B, T, H, K]": lambda: softmax(q=X[0]),
    "k: shape [2, 5, 4, 4], expected [2, S, G, 8]": lambda: softmax(k=X[..., :4]),
    "v: shape [2, 5, 2, 8], expected [2, 5, 4, D]": lambda: softmax(v=X[:, :, :2]),
    "g: shape [2, 5, 4], expected [2, 5, 4, 8]": lambda: kda(g=G),
    "beta: shape [2, 5, 3], expected [2, 5, 4]": lambda: kda(beta=-G[..., :3]),
    "beta: 3 at batch 0": lambda: kda(beta=-6 * G),
    "g: 0.5 at batch 0": lambda: softmax(g=-G),
    "initial_state: shape [2, 4, 8, 9], expected [2, 4, 8, 8]": lambda: kda(
        initial_state=np.zeros((B, H, K, K + 1), "f4")
    ),
    "slope: shape [3], expected [4]": lambda: softmax(slope=np.ones(3, "f4")),
    "slope[0]: nan, expected a finite number": lambda: softmax(slope=np.full(4, np.nan, "f4")),
    "scale: 0, expected": lambda: softmax(scale=0),
    "scale: nan": lambda: softmax(scale=np.nan),
    "window_size: -1, expected >= 0": lambda: softmax(window_size=-1),
    "soft_cap: -2, expected >= 0": lambda: softmax(soft_cap=-2),
    "ridge: -1, expected": lambda: la.lla(X, X, X, -1),
    "ridge: 0, expected": lambda: la.mesa(X, X, X, G, -G, 0),
    "ridge: shape [2, 4], expected [4, 8]": lambda: la.lla(X, X, X, np.ones((2, 4), "f4")),
    "ridge_unit: 'mean', expected one of normalised, max, trace": lambda: la.lla(X, X, X, ridge_unit="mean"),
    # Arrays of NumPy are no memory of a GPU.
    "backend: 'cuda', expected one of auto, reference, cpu": lambda: softmax(backend="cuda"),
    "heads_q: 4": lambda: softmax(k=X[:, :, :3], v=X[:, :, :3]),
    "g: NULL": lambda: kda(g=None),
    "w: length 2.82": lambda: la.path_attention(X, X, X, X, -G),
    "cu_seqlens: expected [N + 1]": lambda: softmax(X[:1], X[:1], X[:1], cu_seqlens=np.zeros((2, 2), "i8")),
    "q: shape [2, 5, 4, 8], expected [1, T, H, K]": lambda: softmax(cu_seqlens=np.array([0, 5])),
    "cu_seqlens[1]: 4, expected the total 5": lambda: softmax(
        X[:1], X[:1], X[:1], cu_seqlens=np.array([0, 4])
    ),
    "cu_seqlens[2]: 2 after 3, expected": lambda: softmax(
        X[:1], X[:1], X[:1], cu_seqlens=np.array([0, 3, 2, 5])
    ),
    "cu_seqlens[0]: -4611686018427387904, expected 0": lambda: softmax(
        X[:1], X[:1], X[:1], cu_seqlens=np.array([-(2**62), 2**62, 5])
    ),
    "threads: 0, expected 1 or more": lambda: la.set_num_threads(0),
}
TYPE = {
    "q: <class 'list'>, expected an array": lambda: softmax(q=[1.0]),
    "q: None, expected an array": lambda: softmax(q=None),
    "k: None, expected an array": lambda: softmax(k=None),
    "q: dtype int64, expected float16, float32, float64 or bfloat16": lambda: softmax(q=X.astype("i8")),
    "q: dtype >f4, expected": lambda: softmax(q=X.astype(">f4")),
    "k: dtype float64, expected float32": lambda: softmax(k=X.astype("f8")),
    "g: dtype float64, expected float32": lambda: softmax(g=G.astype("f8")),
    "cu_seqlens: dtype float64, expected int64": lambda: softmax(
        X[:1], X[:1], X[:1], cu_seqlens=np.array([0.0, 5])
    ),
    "scale: 'big', expected a number": lambda: softmax(scale="big"),
    "window_size: 2.5, expected an integer": lambda: softmax(window_size=2.5),
    "dtype: int64, expected float32 or float64": lambda: la.projection(1, 2, 3, dtype="i8"),
    "backend: 3, expected a name": lambda: softmax(backend=3),
}
CASES = [
    (kind, text, call)
    for kind, table in ((ValueError, VALUE), (TypeError, TYPE))
    for text, call in table.items()
]


@pytest.mark.parametrize("kind, text, call", CASES, ids=[text for _, text, _ in CASES])
def test_refused(kind, text, call):
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith(text)


def test_unsupported_is_a_runtime_error():
    x = X.astype("f8")
    with pytest.raises(RuntimeError, match="f64"):
        softmax(x, x, x, backend="cpu")


def test_a_refused_call_leaves_nothing():
    gc.collect()
    before = [sys.getrefcount(x) for x in (X, G, X.dtype)]
    for _ in range(100):
        for _, _, call in CASES:
            with pytest.raises((TypeError, ValueError)):
                call()
        softmax(), kda()
    # What pytest keeps of exceptions are circles.
    gc.collect()
    assert [sys.getrefcount(x) for x in (X, G, X.dtype)] == before
    # Owned by their names alone, beside the tuple, the loop and the call here.
    alone = softmax()
    o, lse, info = softmax(return_lse=True, return_info=True)
    _, state = kda(output_final_state=True)
    counts = [sys.getrefcount(x) for x in (alone, o, lse, info, state, state.base)]
    assert counts == [4] * 6
    x = bytearray(4)
    y = np.frombuffer(x, "f4").reshape(1, 1, 1, 1)
    softmax(y, y, y)
    del y
    # A view that were still held would forbid this.
    x.append(0)


def test_the_tour_of_the_page_runs(monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "python.md"
    monkeypatch.chdir(page.parents[1])
    blocks = re.findall("```python\n(.*?)```", page.read_text(), re.S)
    # Those of PyTorch are a test of their own (test_torch.py).
    exec("\n".join(block for block in blocks if "torch" not in block), {})


def test_threads_are_those_that_were_set():
    # Beside those that NumPy has; in a process of its own, since OpenMP keeps its threads.
    code = """
import os, numpy, loam_attn
x = numpy.ones((1, 256, 4, 8), "f4")
before = len(os.listdir("/proc/self/task"))
for n in 1, 3:
    loam_attn.set_num_threads(n)
    loam_attn.softmax_attention(x, x, x)
    print(len(os.listdir("/proc/self/task")) - before)
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.split() == ["0", "2"]


def test_a_child_of_fork_computes_by_one_thread():
    code = """
import multiprocessing, numpy, loam_attn
x = numpy.ones((1, 256, 4, 8), "f4")
loam_attn.set_num_threads(3)

def call(_):
    tables = numpy.linspace(0, 1, 50)[:, None], numpy.linspace(0, 1, 50)
    loam_attn.Regressor(bandwidth=0.2).fit(*tables).predict(tables[0])
    try:
        loam_attn.set_num_threads(2)
    except ValueError as error:
        return loam_attn.softmax_attention(x, x, x), loam_attn.get_num_threads(), str(error)

want = call(0) or loam_attn.softmax_attention(x, x, x)
with multiprocessing.get_context("fork").Pool(2) as pool:
    for found, threads, error in pool.map(call, range(4)):
        print(numpy.array_equal(found, want), threads, error)
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert out.stdout == 4 * "True 1 threads: 2, expected 1 in a child of os.fork\n"


def test_import_needs_numpy_alone():
    code = "import numpy, sys; n = set(sys.modules); import loam_attn; print(*sorted(set(sys.modules) - n))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    others = {name.split(".")[0] for name in out.split()} - set(sys.stdlib_module_names)
    assert others == {"loam_attn"}
