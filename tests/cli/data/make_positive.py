#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Inputs and expected results of tests/cli/test_positive.c: positive random features over all pairs of
tokens in float64 NumPy, gradients by central differences. Writes positive.safetensors beside itself.

    pip install numpy && python3 make_positive.py
"""
import numpy as np

from make_fixtures import HERE, save

RANDOM = np.random.default_rng(20261123)
B, HQ, HK, T, D, DV, M = 2, 4, 2, 5, 3, 2, 6


def run(x):
    """o_t = sum_j w_tj v_j / sum_j w_tj, w_tj = sum_m e^{z_m.x_t + z_m.y_j - |y_j|^2/2 + log alpha_m}."""
    def of_queries(a, axis):
        return np.repeat(a, HQ // a.shape[axis], axis)

    z, alpha, shift, A = (of_queries(x[name], 0) for name in ("z", "log_alpha", "shift", "balance"))
    keys = np.linalg.inv(A).swapaxes(1, 2)
    k, v = of_queries(x["k"], 1), of_queries(x["v"], 1)
    root = D ** -0.25
    q = root * np.einsum("hcd,bhtd->bhtc", A, x["q"])
    k = root * np.einsum("hcd,bhtd->bhtc", keys, k - shift[:, None])
    to_q = np.einsum("hmc,bhtc->bhtm", z, q)
    to_k = np.einsum("hmc,bhtc->bhtm", z, k) - (k * k).sum(-1, keepdims=True) / 2 + alpha[:, None]
    w = np.exp(to_q[:, :, :, None] + to_k[:, :, None]).sum(-1) * np.tri(T)
    return w @ v / w.sum(-1, keepdims=True)


def gradients(x, names, grad_out):
    step, result = 1e-4, {}
    for name in names:
        grad = np.zeros(x[name].shape)
        for place in np.ndindex(grad.shape):
            def loss(by):
                moved = x[name].copy()
                moved[place] += by
                return (run({**x, name: moved}) * grad_out).sum()
            grad[place] = (8 * (loss(step) - loss(-step)) - loss(2 * step) + loss(-2 * step)) / (12 * step)
        result[name] = grad
    return result


def main():
    def draw(*shape):
        return RANDOM.standard_normal(shape).astype(np.float32)

    inputs = {"q": draw(B, HQ, T, D), "k": draw(B, HK, T, D), "v": draw(B, HK, T, DV),
              "grad_out": draw(B, HQ, T, DV)}
    for name, heads in (("", HQ), ("_shared", HK)):
        inputs |= {"z" + name: draw(heads, M, D), "log_alpha" + name: draw(heads, M),
                   "shift" + name: draw(heads, D),
                   "balance" + name: np.eye(D, dtype=np.float32) + np.float32(0.25) * draw(heads, D, D)}
        inputs["balance_keys" + name] = np.linalg.inv(inputs["balance" + name].astype(float)).swapaxes(1, 2)
    expected = {}
    for name in ("", "_shared"):
        x = {key: inputs[key].astype(float) for key in "qkv"}
        x |= {key: inputs[key + name].astype(float) for key in ("z", "log_alpha", "shift", "balance")}
        case = "each" if not name else "shared"
        expected[case + ".o"] = run(x)
        for key, value in gradients(x, ("q", "k", "v", "z", "log_alpha"), inputs["grad_out"]).items():
            expected[f"{case}.d{key}"] = value
    save(HERE / "positive.safetensors", {**inputs, **expected})


if __name__ == "__main__":
    main()
