#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times PyTorch's scaled_dot_product_attention on the CPU beside Loam, on the softmax problems of shape
files.

    python3 -m venv /somewhere/else && /somewhere/else/bin/pip install torch
    /somewhere/else/bin/python bench/sdpa.py --out bench/results/sdpa.csv

Each shape is run by Loam, by PyTorch and by Loam again, on the same number of threads; the mean of Loam's two
medians counts, so that a machine whose speed drifts favours neither. Problems that PyTorch has no direct form
for (windows, slopes, sinks, caps, RBF scores, causal masks of unequal lengths) are left out, and so are
shapes that name kernels. The CSV has columns of `loam bench`, by the same names, and those of the
comparison."""

import argparse
import csv
import datetime
import fnmatch
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = ["batch", "heads_q", "heads_kv", "len_q", "len_kv", "dim_qk", "dim_v"]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}


def read_shapes(path):
    """The shapes of a file that loam bench has accepted, as dictionaries."""
    for line in path.read_text().splitlines():
        words = line.split("#")[0].split()
        if words:
            shape = dict(zip(["shape", "mechanism", "pass", "dtype"], words))
            shape.update(zip(SIZES, map(int, words[4:11])))
            yield shape | {"flags": " ".join(words[11:])}


def has_direct_form(shape):
    flags = {flag.split("=")[0] for flag in shape["flags"].split()}
    square = shape["len_q"] == shape["len_kv"] or shape["len_q"] == 1 or "full" in flags
    return shape["mechanism"] == "softmax" and square and flags <= {"causal", "full", "layout"}


def make_input(shape, heads, length, dim):
    """(B, H, T, D), as a view of (B, T, H, D) where the shape says so."""
    if "layout=bthd" in shape["flags"]:
        return torch.randn(shape["batch"], length, heads, dim).to(DTYPES[shape["dtype"]]).transpose(1, 2)
    return torch.randn(shape["batch"], heads, length, dim).to(DTYPES[shape["dtype"]])


def make_run(shape):
    """A function of no arguments that does the pass once."""
    q = make_input(shape, shape["heads_q"], shape["len_q"], shape["dim_qk"])
    k = make_input(shape, shape["heads_kv"], shape["len_kv"], shape["dim_qk"])
    v = make_input(shape, shape["heads_kv"], shape["len_kv"], shape["dim_v"])
    # One query sees all keys either way, and PyTorch aligns its causal mask at the first key.
    causal = "full" not in shape["flags"].split() and shape["len_q"] > 1
    grouped = shape["heads_q"] != shape["heads_kv"]

    def attend():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    if shape["pass"] != "backward":
        return torch.no_grad()(attend)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    o = attend()
    grad_o = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, inputs, grad_o, retain_graph=True)


def time_runs(run, seconds):
    """At least 3 runs after an untimed one, as loam bench does."""
    run()
    times = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 1000):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return times


def run_loam(options, path, shape):
    """One result of loam bench, with what it says of the run."""
    command = [options.loam, "bench", path, "--shape", shape["shape"], "--no-roof", "--no-error",
               "--format", "json", "--threads", str(options.threads), "--seconds", str(options.seconds)]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return report["results"][-1], report


def compare(options, path, shape):
    before, report = run_loam(options, path, shape)
    times = time_runs(make_run(shape), options.seconds)
    after, _ = run_loam(options, path, shape)
    median = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    loam = (before["median_s"] + after["median_s"]) / 2
    return {
        "shape": shape["shape"], "kernel": f"torch-{torch.__version__}-sdpa", **shape, "runs": len(times),
        "median_s": median, "quartile1_s": low, "quartile3_s": high, "min_s": min(times),
        "gflops": before["flop"] / median * 1e-9, "gbs": before["bytes"] / median * 1e-9,
        "loam_kernel": before["kernel"], "loam_s": loam, "torch_over_loam": median / loam,
        **{name: report[name] for name in ("machine", "features", "compiler", "commit", "threads")},
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def write_csv(rows, path):
    """Beside its place, then renamed: whole or not at all."""
    part = f"{path}.{os.getpid()}.tmp"
    with open(part, "w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
                         for row in rows)
    os.replace(part, path)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=[ROOT / "bench/shapes/default.txt"], type=pathlib.Path)
    parser.add_argument("--loam", default=str(ROOT / "build/loam"), help="the program; default build/loam")
    parser.add_argument("--shape", default="*", metavar="GLOB", help="only shapes so named")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N", help="default: all")
    parser.add_argument("--seconds", type=float, default=1, metavar="X",
                        help="for each measurement; default 1")
    parser.add_argument("--out", metavar="F.csv", help="also write the results there")
    return parser.parse_args()


def main():
    options = parse()
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    print(f"{'shape':26} {'Loam ms':>10} {'PyTorch ms':>10} {'iqr %':>6} {'GFLOP/s':>8} {'GB/s':>7} "
          f"{'ratio':>6}")
    rows = []
    for path in options.shapes:
        for shape in filter(has_direct_form, read_shapes(path)):
            if not fnmatch.fnmatch(shape["shape"], options.shape):
                continue
            row = compare(options, path, shape)
            rows.append(row)
            spread = 100 * (row["quartile3_s"] - row["quartile1_s"]) / row["median_s"]
            print(f"{row['shape']:26} {1e3 * row['loam_s']:10.3f} {1e3 * row['median_s']:10.3f} "
                  f"{spread:6.1f} {row['gflops']:8.1f} {row['gbs']:7.2f} {row['torch_over_loam']:6.2f}",
                  flush=True)
    if not rows:
        sys.exit(f"sdpa.py: no shape named {options.shape} that PyTorch has a direct form for")
    if options.out:
        write_csv(rows, options.out)
    mean = math.exp(statistics.fmean(math.log(row["torch_over_loam"]) for row in rows))
    print(f"ratio: time of PyTorch {torch.__version__} / time of Loam; geometric mean {mean:.2f}")


if __name__ == "__main__":
    main()
