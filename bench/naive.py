#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times the recurrences written naively in PyTorch, one token after another, beside Loam, on the CPU.

    python3 -m venv /somewhere/else && /somewhere/else/bin/pip install torch
    /somewhere/else/bin/python bench/naive.py --out bench/results/naive.csv

This is what a reference implementation in PyTorch does: for each token a handful of operations on the states
of all sequences and heads, which are float32, and backward what autograd makes of them. Each shape of
bench/shapes/recurrent.txt (forward and backward, one head of values for each of keys) is run by Loam, by
PyTorch and by Loam again, as in bench/sdpa.py; PyTorch once after an untimed run of 64 tokens, since it takes
seconds, on one thread and on all, of which the faster counts. The results of the two are compared on small
inputs first, by `loam attend`."""

import argparse
import datetime
import fnmatch
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch

from sdpa import ROOT, read_shapes, run_loam, write_csv

DECAYS = {"retention": "head", "ssd": "token", "gated-delta": "token", "mesa": "token", "gla": "channel",
          "kda": "channel"}
BETAS = {"ssd", "delta", "gated-delta", "kda", "mesa"}
DELTAS = {"delta", "gated-delta", "kda"}


def recur(mechanism, q, k, v, log_decay=None, beta=None, ridge=1.0):
    """o [B, H, T, dv]; q and k are scaled, or of length 1, already. The state is S^T, [B, H, d, dv]."""
    batch, heads, tokens, dim = q.shape
    state = v.new_zeros(batch, heads, dim, v.shape[-1])
    gram = v.new_zeros(batch, heads, dim, dim)
    eye = ridge * torch.eye(dim, dtype=v.dtype)
    outputs = []
    for t in range(tokens):
        q_t, k_t, v_t = q[:, :, t], k[:, :, t], v[:, :, t]
        if log_decay is not None:
            g_t = (log_decay[:, None, None] if log_decay.dim() == 1
                   else log_decay[:, :, t].reshape(batch, heads, -1, 1))
            state = state * g_t.exp()
        if mechanism in DELTAS:
            v_t = v_t - (state * k_t[..., None]).sum(-2)
        w_t = k_t if beta is None else k_t * beta[:, :, t, None]
        state = state + w_t[..., None] * v_t[..., None, :]
        if mechanism == "mesa":
            gram = gram * g_t.exp() + w_t[..., None] * k_t[..., None, :]
            q_t = torch.linalg.solve(gram + eye, q_t)
        outputs.append((q_t[..., None] * state).sum(-2))
    return torch.stack(outputs, 2)


def make_inputs(mechanism, batch, heads, tokens, dim, dim_v, dtype=torch.float32):
    """As loam bench draws them: gates that keep some tens of tokens, betas around 1/2."""
    x = {"q": torch.randn(batch, heads, tokens, dim), "k": torch.randn(batch, heads, tokens, dim),
         "v": torch.randn(batch, heads, tokens, dim_v)}
    if mechanism in DELTAS | {"mesa"}:
        x["q"], x["k"] = (torch.nn.functional.normalize(x[name], dim=-1) for name in "qk")
    shape = {"head": [heads], "token": [batch, heads, tokens],
             "channel": [batch, heads, tokens, dim]}.get(DECAYS.get(mechanism))
    if shape:
        x["log_decay"] = -torch.exp(torch.randn(shape) - 3.5)
    if mechanism in BETAS:
        x["beta"] = torch.sigmoid(torch.randn(batch, heads, tokens))
    return {name: value.to(dtype) for name, value in x.items()}


def scaled(mechanism, x):
    return x if mechanism == "mesa" else x | {"q": x["q"] * x["q"].shape[-1] ** -0.5}


def check(loam, mechanism):
    """The recurrence above is what Loam computes: in float64, on a small problem."""
    import numpy

    x = make_inputs(mechanism, 2, 3, 17, 8, 5, torch.float64)
    with tempfile.TemporaryDirectory() as folder:
        options = []
        for name, value in x.items():
            numpy.save(f"{folder}/{name}.npy", value.numpy())
            options += ["--" + name.replace("_", "-"), f"{folder}/{name}.npy"]
        ridge = ["--ridge", "1"] if mechanism == "mesa" else []
        subprocess.run([loam, "attend", mechanism, *options, *ridge, "--dtype", "f64",
                        "--out", f"{folder}/o.npy"], check=True)
        wanted = recur(mechanism, **scaled(mechanism, x))
        difference = torch.from_numpy(numpy.load(f"{folder}/o.npy")) - wanted
    if not difference.abs().max() < 1e-12:
        sys.exit(f"naive.py: {mechanism}: results differ by {difference.abs().max():.1e}")


def time_pass(shape, x):
    """Seconds of one pass, the forward that autograd needs included where it is the backward."""
    for value in x.values():
        value.requires_grad_(shape["pass"] == "backward")
    begun = time.perf_counter()
    with torch.set_grad_enabled(shape["pass"] == "backward"):
        o = recur(shape["mechanism"], **scaled(shape["mechanism"], x))
    if shape["pass"] == "backward":
        torch.autograd.grad(o, list(x.values()), torch.ones_like(o))
    return time.perf_counter() - begun


def time_naive(shape, threads):
    """Operations this small may be faster on one thread: the better of one and all counts."""
    sizes = [shape[name] for name in ("batch", "heads_q", "len_q", "dim_qk", "dim_v")]
    times = []
    for count in sorted({1, threads}):
        torch.set_num_threads(count)
        time_pass(shape, make_inputs(shape["mechanism"], *sizes[:2], 64, *sizes[3:]))
        times.append(time_pass(shape, make_inputs(shape["mechanism"], *sizes)))
    return min(times)


def is_plain(shape):
    flags = {flag.split("=")[0] for flag in shape["flags"].split()}
    return (shape["mechanism"] not in ("softmax", "parallax", "lla") and shape["pass"] != "decode"
            and shape["dtype"] == "f32" and shape["heads_q"] == shape["heads_kv"]
            and flags <= {"data", "ridge"})


def compare(options, path, shape):
    before, report = run_loam(options, path, shape)
    naive = time_naive(shape, options.threads)
    after, _ = run_loam(options, path, shape)
    loam = (before["median_s"] + after["median_s"]) / 2
    return {"shape": shape["shape"], "kernel": f"torch-{torch.__version__}-naive", **shape,
            "naive_s": naive, "loam_kernel": before["kernel"], "loam_s": loam,
            "naive_over_loam": naive / loam,
            **{name: report[name] for name in ("machine", "features", "compiler", "commit", "threads")},
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=[ROOT / "bench/shapes/recurrent.txt"], type=pathlib.Path)
    parser.add_argument("--loam", default=str(ROOT / "build/loam"), help="the program; default build/loam")
    parser.add_argument("--shape", default="*", metavar="GLOB", help="only shapes so named")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N", help="default: all")
    parser.add_argument("--seconds", type=float, default=0.5, metavar="X",
                        help="for each measurement of Loam; default 0.5")
    parser.add_argument("--out", metavar="F.csv", help="also write the results there")
    return parser.parse_args()


def main():
    options = parse()
    torch.manual_seed(1)
    for mechanism in ["linear", *DECAYS, "delta"]:
        check(options.loam, mechanism)
    print(f"{'shape':26} {'Loam ms':>10} {'PyTorch ms':>10} {'ratio':>8}")
    rows = []
    for path in options.shapes:
        for shape in filter(is_plain, read_shapes(path)):
            if fnmatch.fnmatch(shape["shape"], options.shape):
                rows.append(row := compare(options, path, shape))
                print(f"{row['shape']:26} {1e3 * row['loam_s']:10.3f} {1e3 * row['naive_s']:10.1f} "
                      f"{row['naive_over_loam']:8.1f}", flush=True)
    if not rows:
        sys.exit(f"naive.py: no forward or backward of a recurrence is named {options.shape}")
    if options.out:
        write_csv(rows, options.out)
    mean = math.exp(statistics.fmean(math.log(row["naive_over_loam"]) for row in rows))
    print(f"ratio: time of PyTorch {torch.__version__}, naive / time of Loam; geometric mean {mean:.1f}")


if __name__ == "__main__":
    main()
