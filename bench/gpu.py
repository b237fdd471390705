#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times the CUDA rows of Loam on the current GPU, and in the same run what stands beside them there: the matrix
product of PyTorch (cuBLAS) and, on softmax problems, its scaled_dot_product_attention by cuDNN and by FlashAttention.

    bench/gpu.py --out bench/results/gpu.csv
    bench/gpu.py bench/shapes/gpu-recurrent.txt bench/shapes/gpu-scores.txt

Loam is timed by `loam bench`, PyTorch in the same way: by events on the device, after writing a buffer of twice the
L2 cache, at least three runs after an untimed one, medians. Operations are those of `loam bench`, the same for both. The roof is a
product of 8192^3; `scores` is what cuBLAS reaches, in TFLOP/s, on the scores of the shape, whole and written out. A
shape NAME-train (a forward that leaves what the backward reads) and NAME-grad make one line more: a training step."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from sdpa import ROOT, has_direct_form, make_input, write_csv

LOCAL = ("softmax", "parallax", "lla")  # those with scores
RIVALS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def time_runs(run, seconds):
    """The median in seconds."""
    properties = torch.cuda.get_device_properties(0)
    flush = torch.empty(2 * properties.L2_cache_size, dtype=torch.uint8, device="cuda")
    run()
    times = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 1000):
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.zero_()
        begun.record()
        run()
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended) * 1e-3)
    return statistics.median(times)


def product_rate(size, seconds):
    """FLOP/s of a bf16 product of random size x size matrices."""
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return 2 * size**3 / time_runs(lambda: a @ b, seconds)


def score_rate(shape, seconds):
    """FLOP/s of cuBLAS on the scores of all heads, whole and written out: the same product, bound by its output."""
    heads = shape["batch"] * shape["heads_q"]
    q, k = (torch.randn(heads, n, shape["dim_qk"], dtype=torch.bfloat16, device="cuda") for n in (shape["len_q"], shape["len_kv"]))
    return 2 * heads * shape["len_q"] * shape["len_kv"] * shape["dim_qk"] / time_runs(lambda: q @ k.mT, seconds)


def make_run(shape):
    """A function of no arguments that does the pass once; a forward with `saved` keeps what its backward needs."""
    sizes = [("heads_q", "len_q", "dim_qk"), ("heads_kv", "len_kv", "dim_qk"), ("heads_kv", "len_kv", "dim_v")]
    q, k, v = (make_input(shape, shape[h], shape[n], shape[d]).cuda() for h, n, d in sizes)
    flags = shape["flags"].split()
    causal = "full" not in flags and shape["len_q"] > 1
    grouped = shape["heads_q"] != shape["heads_kv"]

    def attend():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    if shape["pass"] == "forward" and "saved" not in flags:
        return torch.no_grad()(attend)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    if shape["pass"] == "forward":
        return attend
    o = attend()
    grad_o = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, inputs, grad_o, retain_graph=True)


def time_rivals(shape, seconds):
    """Seconds of each rival; None where it does not take the problem."""
    times = dict.fromkeys(RIVALS)
    if not has_direct_form(shape | {"flags": shape["flags"].replace("saved", "")}):
        return times
    for name, backend in RIVALS.items():
        try:
            with sdpa_kernel(backend):
                times[name] = time_runs(make_run(shape), seconds)
        except RuntimeError as reason:
            print(f"gpu.py: {shape['shape']}: {name}: {reason}", file=sys.stderr)
    return times


def run_loam(options):
    command = [options.loam, "bench", *map(str, options.shapes), "--backend", "cuda", "--shape", options.shape, "--seconds",
               str(options.seconds), "--format", "json"] + ["--no-error"] * options.no_error
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def training_steps(rows):
    """Sums of the forwards and backwards that belong together."""
    by_name = {row["shape"]: row for row in rows}
    for name, row in by_name.items():
        grad = by_name.get(name.removesuffix("-train") + "-grad")
        if not name.endswith("-train") or not grad:
            continue
        step = dict.fromkeys(row) | {"shape": name.removesuffix("-train") + "-step", "pass": "step"}
        for key in ["loam_s", "flop", *(f"{rival}_s" for rival in RIVALS)]:
            step[key] = None if row[key] is None or grad[key] is None else row[key] + grad[key]
        yield step


def cell(value, scale, width, digits):
    return f"{'' if value is None else f'{value * scale:.{digits}f}':>{width}}"


def print_row(row, rate):
    speed = row["flop"] / row["loam_s"]
    scores = row["score_flops"] and row["score_flops"] * 1e-12
    error = "" if row["error"] is None else f"{row['error']:.1e}"
    print(f"{row['shape']:26}" + cell(row["loam_s"], 1e3, 10, 3) + cell(row["cudnn_s"], 1e3, 10, 3) + cell(row["flash_s"], 1e3, 10, 3)
          + cell(speed, 1e-12, 10, 1) + cell(speed / rate, 100, 8, 1) + cell(scores, 1, 8, 0) + cell(row["iterations"], 1, 7, 2) + f"{error:>9}", flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=[ROOT / "bench/shapes/gpu.txt"], type=pathlib.Path)
    parser.add_argument("--loam", default=str(ROOT / "build/loam"), help="the program; default build/loam")
    parser.add_argument("--shape", default="*", metavar="GLOB", help="only shapes so named")
    parser.add_argument("--seconds", type=float, default=0.1, metavar="X", help="for each measurement; default 0.1")
    parser.add_argument("--no-error", action="store_true", help="leave out the comparison with float64")
    parser.add_argument("--out", metavar="F.csv", help="also write the results there")
    return parser.parse_args()


def main():
    options = parse()
    torch.manual_seed(1)
    rate = product_rate(8192, options.seconds)
    report = run_loam(options)
    print(f"{torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}: "
          f"product of 8192^3 in bf16 {rate * 1e-12:.0f} TFLOP/s, copy {report['device_copy_gbs'] or 0:.0f} GB/s")
    print(f"{'shape':26}{'Loam ms':>10}{'cuDNN ms':>10}{'flash ms':>10}{'TFLOP/s':>10}{'% roof':>8}{'scores':>8}{'iter':>7}{'error':>9}")
    rows, scores = [], {}
    for result in report["results"]:
        keys = ["shape", "kernel", "mechanism", "pass", "dtype", "batch", "heads_q", "heads_kv", "len_q", "len_kv", "dim_qk", "dim_v",
                "flags", "flop", "iterations", "error", "work_bytes"]
        row = {key: result[key] for key in keys} | {"loam_s": result["median_s"]}
        rivals = time_rivals(row, options.seconds)
        row |= {f"{name}_s": seconds for name, seconds in rivals.items()}
        size = tuple(row[key] for key in ("batch", "heads_q", "len_q", "len_kv", "dim_qk"))
        fits = row["mechanism"] in LOCAL and row["batch"] * row["heads_q"] * row["len_q"] * row["len_kv"] <= 2**31
        if fits and size not in scores:
            scores[size] = score_rate(row, options.seconds)
        row["score_flops"] = scores.get(size)
        rows.append(row)
        print_row(row, rate)
    for step in training_steps(rows):
        rows.append(step)
        print_row(step, rate)
    if options.out:
        write_csv([row | {"product_flops": rate, "copy_gbs": report["device_copy_gbs"], "commit": report["commit"]} for row in rows], options.out)


if __name__ == "__main__":
    main()
