#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Inputs and expected results of tests/cli/test_scores.c: FoX, PaTH and RoPE by their definitions in float64
NumPy, gradients by central differences. Writes scores.safetensors beside itself.

    pip install numpy && python3 make_scores.py
"""
import numpy as np

from make_fixtures import HERE, save

RANDOM = np.random.default_rng(20261123)
B, HQ, HK, TQ, TK, D, DV = 1, 4, 2, 4, 6, 4, 2


def rotate(x, base, positions, interleaved, dim):
    """The first dim channels, pair by pair, by position * base^(-2 c / dim)."""
    out = np.array(x)
    half = dim // 2
    for c in range(half):
        i, j = (2 * c, 2 * c + 1) if interleaved else (c, c + half)
        angle = positions * base ** (-2 * c / dim)
        out[..., i] = x[..., i] * np.cos(angle) - x[..., j] * np.sin(angle)
        out[..., j] = x[..., i] * np.sin(angle) + x[..., j] * np.cos(angle)
    return out


def attend(x, rope=None):
    q, k, v = x["q"], x["k"], x["v"]
    if rope:
        base, offset, interleaved, dim = rope
        q = rotate(q, base, offset + TK - TQ + np.arange(TQ), interleaved, dim)
        k = rotate(k, base, offset + np.arange(TK), interleaved, dim)
    o = np.zeros((B, HQ, TQ, DV))
    for b, h, i in np.ndindex(B, HQ, TQ):
        kv, last = h // (HQ // HK), i + TK - TQ
        scores = np.full(TK, -np.inf)
        for j in range(last + 1):
            key, bias = k[b, kv, j], 0
            for t in range(j + 1, last + 1):
                if "w" in x:
                    w = x["w"][b, kv, t]
                    key = key - x["beta"][b, kv, t] * w * (w @ key)
                if "log_decay" in x:
                    bias += x["log_decay"][b, h, t]
            scores[j] = x["scale"] * (q[b, h, i] @ key) + bias
        p = np.exp(scores - scores.max())
        o[b, h, i] = p / p.sum() @ v[b, kv]
    return o


def gradients(x, grad_out, **options):
    step, result = 1e-5, {}
    for name, value in x.items():
        grad = np.zeros(np.shape(value))
        for place in np.ndindex(grad.shape):
            def loss(shift):
                moved = np.array(value, float)
                moved[place] += shift
                return (attend({**x, name: moved}, **options) * grad_out).sum()
            grad[place] = (8 * (loss(step) - loss(-step)) - loss(2 * step) + loss(-2 * step)) / (12 * step)
        result[name] = grad
    return result


def main():
    def draw(*shape):
        return RANDOM.standard_normal(shape).astype(np.float32)

    w = draw(B, HK, TK, D)
    inputs = {
        "q": draw(B, HQ, TQ, D), "k": draw(B, HK, TK, D), "v": draw(B, HK, TK, DV),
        "grad_out": draw(B, HQ, TQ, DV), "log_decay": -np.abs(draw(B, HQ, TK)),
        "beta": 1 + np.tanh(draw(B, HK, TK)),
        "w": w / np.linalg.norm(w, axis=-1, keepdims=True),
    }
    x = {name: value.astype(float) for name, value in inputs.items()}
    qkv = {**{name: x[name] for name in ("q", "k", "v")}, "scale": np.float64(1 / np.sqrt(D))}
    path = {"w": x["w"], "beta": x["beta"]}
    cases = {
        "fox": ({**qkv, "log_decay": x["log_decay"]}, {}),
        "path": ({**qkv, **path}, {}),
        "path_fox": ({**qkv, **path, "log_decay": x["log_decay"]}, {}),
        "rope": (qkv, dict(rope=(100.0, 0, False, D))),
        "rope_part": (qkv, dict(rope=(10000.0, 7, True, 2))),
    }
    expected = {}
    for case, (values, options) in cases.items():
        expected[f"{case}.o"] = attend(values, **options)
        for name, value in gradients(values, x["grad_out"], **options).items():
            expected[f"{case}.d{name}"] = value
    save(HERE / "scores.safetensors", {**inputs, **expected})


if __name__ == "__main__":
    main()
