#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Inputs and expected results of tests/cli/test_recurrent.c: the recurrences token by token in float64 NumPy,
gradients by central differences. Writes recurrent.safetensors beside itself.

    pip install numpy && python3 make_recurrent.py
"""
import numpy as np

from make_fixtures import HERE, save

RANDOM = np.random.default_rng(20261122)
B, H, HV, T, D, DV = 2, 2, 4, 5, 3, 2
FEATURES = {
    "identity": lambda x: x,
    "elu": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
    "unit": lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
}


def run(x, delta=False, features="identity", normalise=False, heads=HV):
    """Outputs and states after the last token.

    x may hold log_decay (any axes), beta, state, ridge (then MesaNet), scale."""
    q, k = (np.repeat(FEATURES[features](x[name]), heads // H, axis=1) for name in ("q", "k"))
    decay = np.asarray(x.get("log_decay", 0.0), float)
    decay = {0: lambda: decay, 1: lambda: decay[None, :, None, None], 3: lambda: decay[..., None],
             4: lambda: decay}[decay.ndim]()
    decay = np.broadcast_to(decay, k.shape)
    beta = np.broadcast_to(x.get("beta", 1.0), k.shape[:3])
    solved = "ridge" in x
    rows = DV + normalise + D * solved
    state = np.array(x.get("state", np.zeros((B, heads, rows, D))), float)
    out = np.zeros((B, heads, T, DV))
    for b, h, t in np.ndindex(B, heads, T):
        key, value = k[b, h, t], x["v"][b, h, t]
        if normalise:
            value = np.append(value, 1)
        if solved:
            value = np.append(value, key)
        decayed = state[b, h] * np.exp(decay[b, h, t])
        told = decayed @ key if delta else 0
        state[b, h] = decayed + beta[b, h, t] * np.outer(value - told, key)
        read = x["scale"] * q[b, h, t]
        if solved:
            hessian = state[b, h, DV:]
            ridge = np.broadcast_to(x["ridge"], (HV, D))[h]
            read = np.linalg.solve((hessian + hessian.T) / 2 + np.diag(ridge), read)
        y = state[b, h] @ read
        out[b, h, t] = y[:DV] / y[DV] if normalise else y[:DV]
    return out, state


def interpolate(x, delta=False):
    """sum_j p_ij (v_j - W_i k_j) + W_i q_i, with W_i the recurrence read at the unit vectors.

    One head of values for each of keys."""
    of_values = [name for name in ("v", "log_decay", "beta", "state") if name in x]
    heads = {**x, **{name: x[name][:, :H] for name in of_values}}
    maps = np.zeros((B, H, T, DV, D))
    for c in range(D):
        unit = np.broadcast_to(np.eye(D)[c], (B, H, T, D))
        maps[..., c] = run({**heads, "q": unit, "scale": 1.0}, delta, heads=H)[0]
    scores = np.where(np.tri(T) > 0, x["scale"] * x["q"] @ x["k"].swapaxes(2, 3), -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    left = heads["v"][:, :, None] - np.einsum("bhtvd,bhjd->bhtjv", maps, x["k"])
    return np.einsum("bhtj,bhtjv->bhtv", p, left) + np.einsum("bhtvd,bhtd->bhtv", maps, x["q"])


def gradients(x, grad_out, grad_state, **options):
    step, result = 1e-5, {}
    for name, value in x.items():
        grad = np.zeros(np.shape(value))
        for place in np.ndindex(grad.shape):
            def loss(shift):
                moved = np.array(value, float)
                moved[place] += shift
                out, state = run({**x, name: moved}, **options)
                return (out * grad_out).sum() + (state * grad_state).sum()
            grad[place] = (8 * (loss(step) - loss(-step)) - loss(2 * step) + loss(-2 * step)) / (12 * step)
        result[name] = grad
    return result


def main():
    def draw(*shape):
        return RANDOM.standard_normal(shape).astype(np.float32)

    rows = {"": DV, "_normalised": DV + 1, "_mesa": DV + D}
    inputs = {
        "q": draw(B, H, T, D), "k": draw(B, H, T, D), "v": draw(B, HV, T, DV),
        "log_decay_head": -np.abs(draw(HV)), "log_decay": -np.abs(draw(B, HV, T)),
        "log_decay_channel": -np.abs(draw(B, HV, T, D)), "beta": np.abs(np.tanh(draw(B, HV, T))),
        "ridge_head": np.abs(draw(HV)) + np.float32(0.5),
        "ridge_channel": np.abs(draw(HV, D)) + np.float32(0.5),
        "grad_out": draw(B, HV, T, DV),
    }
    for kind, count in rows.items():
        inputs["state" + kind] = draw(B, HV, count, D)
        inputs["grad_state" + kind] = draw(B, HV, count, D)
    half = inputs["state_mesa"][:, :, DV:]
    inputs["state_mesa"][:, :, DV:] = half @ half.swapaxes(2, 3)
    inputs["state_normalised"] = inputs["state_normalised"] ** 2  # s . x stays above 0
    x = {name: value.astype(float) for name, value in inputs.items()}
    qkv = {**{name: x[name] for name in ("q", "k", "v")}, "scale": np.float64(1 / np.sqrt(D))}
    one = {**qkv, "scale": np.float64(1)}
    retention = np.log1p(-np.exp2(-5.0 - np.arange(HV)))
    state = {"state": x["state"]}
    cases = {  # name: (inputs that have a gradient, which state, options)
        "linear": (qkv, None, {}),
        "linear_normalised": ({**one, "state": x["state_normalised"]}, "_normalised",
                              dict(features="elu", normalise=True)),
        "retention": ({**qkv, "log_decay": retention}, None, {}),
        "retention_given": ({**qkv, "log_decay": x["log_decay_head"]}, None, {}),
        "ssd": ({**qkv, **state, "log_decay": x["log_decay"], "beta": x["beta"]}, "", {}),
        "gla": ({**qkv, **state, "log_decay": x["log_decay_channel"]}, "", {}),
        "delta": ({**qkv, "beta": x["beta"]}, None, dict(delta=True, features="unit")),
        "gated_delta": ({**qkv, **state, "log_decay": x["log_decay"], "beta": x["beta"]}, "",
                        dict(delta=True, features="unit")),
        "kda": ({**qkv, **state, "log_decay": x["log_decay_channel"], "beta": x["beta"]}, "",
                dict(delta=True, features="unit")),
        "mesa": ({**one, "ridge": np.float64(0.5), "log_decay": np.zeros((B, HV, T)),
                  "beta": np.ones((B, HV, T))}, None, {}),
        "mesa_head": ({**one, "ridge": x["ridge_head"][:, None], "log_decay": x["log_decay"],
                       "beta": x["beta"]}, None, {}),
        "mesa_channel": ({**one, "ridge": x["ridge_channel"], "log_decay": x["log_decay"], "beta": x["beta"],
                          "state": x["state_mesa"]}, "_mesa", {}),
    }
    expected = {}
    for case, (values, kind, options) in cases.items():
        grad_state = 0 if kind is None else x["grad_state" + kind]
        out, after = run(values, **options)
        expected[f"{case}.o"], expected[f"{case}.state"] = out, after
        for name, value in gradients(values, x["grad_out"], grad_state, **options).items():
            expected[f"{case}.d{name}"] = value[:, 0] if case == "mesa_head" and name == "ridge" else value
    pair = {**qkv, "log_decay": x["log_decay"], "beta": x["beta"], "state": x["state"]}
    expected["interpolation.o"] = interpolate(pair, delta=True)
    for name, value in pair.items():
        if name not in "qk" and np.ndim(value):
            value = value[:, :H]
        inputs[f"pair_{name}"] = value.astype(np.float32)
    save(HERE / "recurrent.safetensors", {**inputs, **expected})


if __name__ == "__main__":
    main()
