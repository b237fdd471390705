# SPDX-License-Identifier: MIT
"""Gradients of arrays of NumPy: every function against differences of its own results in float64."""

import numpy as np
import pytest
from test_functions import ALL, Data, far

import loam_attn as la


def differences(call, d, name, weight):
    """d sum(weight * o) / d member, by central differences along a few directions: (there, direction)."""
    rng = np.random.default_rng(3)
    x = d.ridge[int(name[-1])] if name.startswith("ridge") else getattr(d, name)
    for _ in range(2):
        direction = rng.standard_normal(x.shape)
        values = []
        for sign in 1, -1:
            x += sign * 1e-5 * direction
            o = call(d)
            values.append(((o[0] if isinstance(o, tuple) else o) * weight).sum())
            x -= sign * 1e-5 * direction
        yield (values[0] - values[1]) / 2e-5, direction


@pytest.mark.parametrize("name", ALL)
def test_gradients_are_differences(name):
    d = Data(tokens=11)
    # Room for differences at both ends.
    d.g, d.gk, d.beta, d.slope = d.g - 0.01, d.gk - 0.01, 0.9 * d.beta + 0.01, d.slope + 0.01
    d.beta_kv = d.beta.copy()
    call = ALL[name]
    taped = lambda q: la.vjp(lambda q, *_: call(replaced(d, q)), q)
    result, pullback = taped(d.q)
    o = result[0] if isinstance(result, tuple) else result
    weight = np.random.default_rng(5).standard_normal(o.shape)
    grads = pullback(weight)
    assert {"q", "k", "v"} <= grads.keys()
    for argument, grad in grads.items():
        member = member_of(d, argument, grad, name)
        if member is None or (argument == "w" and "path" in name):
            continue
        for there, direction in differences(call, d, member, weight):
            assert abs((grad * direction).sum() - there) < 1e-5 * (1 + abs(there)), argument


def replaced(d, q):
    other = Data(tokens=11)
    vars(other).update(vars(d))
    other.q = q
    return other


def member_of(d, argument, grad, name):
    """The member of Data that was this argument."""
    argument = argument.removeprefix("linear_")
    if argument == "ridge":
        return f"ridge{[x.shape for x in d.ridge].index(grad.shape)}"
    if argument == "g":
        # -slope of a case is its own array, and RetNet's decay is none of the data's.
        return None if name.startswith("retention") else "g" if grad.ndim == 3 else "gk"
    if argument == "beta":
        return "beta_kv" if "path" in name else "beta"
    return {"sink_bias": "sink"}.get(argument, argument)


def test_gradients_of_states():
    d = Data(tokens=9)
    first = np.random.default_rng(0).standard_normal((2, 4, 8, 6))
    call = lambda x: la.gla(d.q, d.k, d.v, d.gk, initial_state=x, output_final_state=True)
    (o, last), pullback = la.vjp(
        lambda q: la.gla(q, d.k, d.v, d.gk, initial_state=first, output_final_state=True), d.q
    )
    weight = np.random.default_rng(1).standard_normal(last.shape)
    grads = pullback(np.zeros_like(o), weight)
    direction = np.random.default_rng(2).standard_normal(first.shape)
    # Linear in the state.
    there = ((call(first + direction)[1] - call(first)[1]) * weight).sum()
    assert grads["initial_state"].shape == first.shape
    assert abs((grads["initial_state"] * direction).sum() - there) < 1e-9 * abs(there)


@pytest.mark.parametrize("name", ["softmax", "lla", "mesa", "kda"])
def test_float32_is_near_the_reference(name):
    found = []
    for dtype in "f4", "f8":
        d = Data(dtype)
        result, pullback = la.vjp(lambda q: ALL[name](replaced(d, q)), d.q)
        o = result[0] if isinstance(result, tuple) else result
        found.append(pullback(np.ones_like(o)))
    for argument in found[0]:
        assert far(found[0][argument], found[1][argument]) < 1e-3


def test_saved_of_another_problem_is_refused():
    d = Data("f4")
    _, pullback = la.vjp(la.softmax_attention, d.q, d.k, d.v)
    with pytest.raises(ValueError, match="grad_o: shape"):
        pullback(np.ones((1, 2, 3, 4), "f4"))
    with pytest.raises(TypeError, match="grad_o: dtype float64, expected float32"):
        pullback(np.ones(d.v.shape))
