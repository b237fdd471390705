#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Inputs and expected results of tests/cli/test_attend.c: the equations in float64 NumPy, gradients by
central differences. Writes inputs.safetensors, expected.safetensors and a few .npy files beside itself.

    pip install numpy && python3 make_fixtures.py
"""
import json
import pathlib
import struct

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
RANDOM = np.random.default_rng(20261121)
B, HQ, HK, TQ, TK, D, DV = 2, 4, 2, 4, 6, 3, 2


def draw(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def attend(x, mechanism, ridge=0.1, unit="normalised", score="dot", scale=None, soft_cap=0.0,
           causal=True, window=0):
    """x: q, k, v and optionally probe, ridge, slope, key_bias, sink, scale, all (B,H,T,D)-like float64."""
    q, k, v = x["q"], x["k"], x["v"]
    b, hq, tq, d = q.shape
    hk, tk = k.shape[1:3]
    scale = x.get("scale", scale if scale is not None else 1 / np.sqrt(d))
    ridge = np.broadcast_to(per_row(x.get("ridge", ridge), b, hq, tq), (b, hq, tq, d))
    o = np.zeros((b, hq, tq, v.shape[3]))
    lse, rho, weights = np.zeros((b, hq, tq)), np.zeros(q.shape), np.zeros((b, hq, tq, tk))
    for n, h, i in np.ndindex(b, hq, tq):
        keys, values = k[n, h // (hq // hk)], v[n, h // (hq // hk)]
        distance = i + tk - tq - np.arange(tk)
        seen = (distance >= 0) if causal else np.ones(tk, bool)
        if window:
            seen &= np.abs(distance) < window
        qi = q[n, h, i]
        s = scale * (keys @ qi) if score == "dot" else -scale / 2 * ((qi - keys) ** 2).sum(1)
        if soft_cap:
            s = soft_cap * np.tanh(s / soft_cap)
        if "slope" in x:
            s = s - x["slope"][h] * np.abs(distance)
        if "key_bias" in x:
            s = s + x["key_bias"][n, h]
        e = np.where(seen, np.exp(s), 0)
        total = e.sum() + (np.exp(x["sink"][h]) if "sink" in x else 0)
        p = e / total
        lse[n, h, i] = np.log(total)
        kbar = p @ keys
        centred = keys - kbar
        if mechanism == "parallax":
            rho[n, h, i] = x["probe"][n, h, i]
        elif mechanism == "lla":
            cov = (p[:, None] * centred).T @ centred
            units = {"normalised": 1, "max": p.max(), "trace": np.trace(cov) / d + 1e-3}
            rho[n, h, i] = np.linalg.solve(cov + np.diag(ridge[n, h, i] * units[unit]), kbar - qi)
        weights[n, h, i] = p * (1 - centred @ rho[n, h, i])
        o[n, h, i] = weights[n, h, i] @ values
    return o, lse, rho, weights


def per_row(ridge, b, hq, tq):
    """A ridge of any shape as [B or 1, H or 1, T or 1, D or 1]."""
    ridge = np.asarray(ridge, float)
    return ridge.reshape({0: (1, 1, 1, 1), 1: (1, -1, 1, 1), 3: (b, hq, tq, 1)}.get(ridge.ndim, ridge.shape))


def gradients(x, grad_out, **options):
    """Central differences of sum(o * grad_out) with respect to everything in x."""
    step, result = 1e-5, {}
    for name, value in x.items():
        grad = np.zeros(np.shape(value))
        for place in np.ndindex(grad.shape):
            def loss(shift):
                moved = np.array(value, float)
                moved[place] += shift
                return (attend({**x, name: moved}, **options)[0] * grad_out).sum()
            grad[place] = (8 * (loss(step) - loss(-step)) - loss(2 * step) + loss(-2 * step)) / (12 * step)
        result[name] = grad
    return result


def save(path, tensors):
    """A .safetensors file, written here so that NumPy is all that is needed."""
    types = {"float16": "F16", "float32": "F32", "float64": "F64", "uint16": "BF16"}
    header, data = {}, b""
    for name, value in tensors.items():
        value = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
        header[name] = {"dtype": types[value.dtype.name], "shape": list(value.shape),
                        "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def to_bfloat16(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def main():
    inputs = {
        "q": draw(B, HQ, TQ, D), "k": draw(B, HK, TK, D), "v": draw(B, HK, TK, DV),
        "probe": draw(B, HQ, TQ, D), "slope": np.abs(draw(HQ)), "key_bias": draw(B, HQ, TK),
        "sink": draw(HQ), "grad_out": draw(B, HQ, TQ, DV),
        "ridge_head": np.abs(draw(HQ)) + np.float32(0.1),
        "ridge_token": np.abs(draw(B, HQ, TQ)) + np.float32(0.1),
        "ridge_channel": np.abs(draw(B, HQ, TQ, D)) + np.float32(0.1),
    }
    x = {name: value.astype(float) for name, value in inputs.items()}
    qkv = {name: x[name] for name in ("q", "k", "v")}
    ridge = {name: {**qkv, "ridge": x["ridge_" + name]} for name in ("head", "token", "channel")}
    scaled = {"scale": np.float64(1 / np.sqrt(D))}
    cases = {  # name: (inputs that have a gradient, options)
        "softmax": ({**qkv, "slope": x["slope"], "key_bias": x["key_bias"], "sink": x["sink"],
                     "scale": np.float64(0.75)}, dict(mechanism="softmax", soft_cap=2.0, window=3)),
        "parallax": ({**qkv, "probe": x["probe"], **scaled},
                     dict(mechanism="parallax", score="rbf", causal=False)),
        "lla": ({**qkv, "ridge": np.float64(0.1), **scaled}, dict(mechanism="lla")),
        "lla_head": ({**ridge["head"], **scaled}, dict(mechanism="lla", unit="max")),
        "lla_token": ({**ridge["token"], **scaled}, dict(mechanism="lla", unit="trace")),
        "lla_channel": ({**ridge["channel"], **scaled}, dict(mechanism="lla", score="rbf", causal=False)),
    }
    expected = {}
    for case, (values, options) in cases.items():
        for name, value in zip(("o", "lse", "rho", "weights"), attend(values, **options)):
            expected[f"{case}.{name}"] = value
        for name, value in gradients(values, x["grad_out"], **options).items():
            expected[f"{case}.d{name}"] = value
    rounded = {"f16": lambda a: a.astype(np.float16).astype(float),
               "bf16": lambda a: from_bfloat16(to_bfloat16(a)).astype(float)}
    for kind, narrow in rounded.items():
        expected[f"{kind}.o"] = attend({name: narrow(inputs[name]) for name in qkv}, "lla")[0]

    for name in ("q", "k", "v"):
        inputs[name + "_f16"] = inputs[name].astype(np.float16)
        inputs[name + "_bf16"] = to_bfloat16(inputs[name])
        inputs[name + "_f64"] = inputs[name].astype(float)
        np.save(HERE / f"{name}.npy", inputs[name])
    save(HERE / "inputs.safetensors", inputs)
    save(HERE / "expected.safetensors", expected)


if __name__ == "__main__":
    main()
