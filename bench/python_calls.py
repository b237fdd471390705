#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a call of loam_attn costs: one token, one head, 8 channels, one thread, microseconds: the median of
200 loops of 200 calls, and the best of them; on a GPU, where the host's time counts alone, of 50 of 100,
which fit the queue of launches. A second of calls that do not count comes first, and a tenth of one before
each row.

    OMP_NUM_THREADS=1 PYTHONPATH=build/python python3 bench/python_calls.py [cpu|cuda]

What C takes of it says loam-calls."""
import statistics
import sys
import time

import numpy as np

import loam_attn as la

try:
    import torch
except ImportError:
    torch = None


def loop(call, calls, wait):
    wait()
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begun) / calls


def warm_up(call, seconds, calls=200, wait=lambda: None):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        loop(call, calls, wait)


def usual(call, calls=200, loops=200, wait=lambda: None):
    warm_up(call, 0.1, calls, wait)
    times = [loop(call, calls, wait) * 1e6 for _ in range(loops)]
    return f"{statistics.median(times):7.2f} (best {min(times):6.2f}) us"


def row(name, softmax, gated_delta, **how):
    times = usual(softmax, **how), usual(gated_delta, **how)
    print(f"{name:32} softmax {times[0]}   gated delta {times[1]}", flush=True)


def functions(q, k, v, g, beta):
    return (
        lambda: la.softmax_attention(q, k, v),
        lambda: la.gated_delta_rule(q, k, v, g, beta)[0],
    )


def with_backward(call, inputs, grad):
    return lambda: torch.autograd.grad(call(), inputs, grad)


def measure_torch(arrays, device, **how):
    plain = [torch.tensor(x, device=device) for x in arrays]
    row(f"PyTorch {device}", *functions(*plain), **how)
    leaves = [x.clone().requires_grad_() for x in plain]
    row(f"PyTorch {device}, autograd", *functions(*leaves), **how)
    softmax, gated_delta = functions(*leaves)
    grad = torch.ones_like(leaves[2])
    there_and_back = with_backward(softmax, leaves[:3], grad), with_backward(gated_delta, leaves, grad)
    row(f"PyTorch {device}, and backward", *there_and_back, **how)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (x.detach().transpose(1, 2) for x in leaves[:3])
    print(f"{f'PyTorch {device}, its own SDPA':32} softmax {usual(lambda: sdpa(q, k, v), **how)}")


def main():
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 1, 1, 8), "float32")
    g, beta = -rng.random((1, 1, 1), "float32"), rng.random((1, 1, 1), "float32")
    arrays = q, k, v, g, beta
    la.set_num_threads(1)
    warm_up(functions(*arrays)[0], 1)
    row("NumPy", *functions(*arrays))
    wanted = sys.argv[1:] or ["cpu", "cuda"]
    if torch:
        if "cpu" in wanted:
            measure_torch(arrays, "cpu")
        if "cuda" in wanted and torch.cuda.is_available():
            measure_torch(arrays, "cuda", calls=100, loops=50, wait=torch.cuda.synchronize)


if __name__ == "__main__":
    main()
