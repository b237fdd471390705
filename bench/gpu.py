#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times the CUDA rows of Loam on the current GPU, and what stands beside them there: PyTorch's
scaled_dot_product_attention by cuDNN and by FlashAttention, the functions of flash-linear-attention, and the
matrix product of cuBLAS.

    bench/gpu.py bench/shapes/gpu-rivals.txt --out rivals.csv
    bench/gpu.py bench/shapes/gpu-scaling.txt --rivals none

All are timed by one rule, `time_runs` here and cli/bench/device.c for Loam: the device is held up until
everything is launched, then a buffer of twice the L2 cache is written, then comes the first event; medians.
So no launch of the host is in a time.

Each rival runs in a process of its own. All compile at once; then one after another has the GPU to itself,
tunes anew and is timed, forward, and forward and backward in one. One that is missing, refuses, fails or does
not come to an end within --minutes says so in one line, and the others go on. What was compiled stays in
Triton's cache for the next time.

A shape NAME-train (a forward that leaves what the backward reads) and NAME-grad make one line more for Loam,
NAME-step, the sum of the two. Operations are those of `loam bench`. The roof is a product of 8192^3; `scores`
is what cuBLAS reaches, in TFLOP/s, on the scores of a shape, whole and written out."""

import argparse
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from sdpa import DTYPES, ROOT, has_direct_form, make_input, write_csv

LOCAL = ("softmax", "parallax", "lla")  # those with scores
SDPA = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
RIVALS = (*SDPA, "fla")
COMPILE_SHARE = 0.6  # of --minutes

# ---------------------------------------------------------------- the rule of time


def time_runs(run, seconds):
    """The median time of a run on the device, in seconds."""
    flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8,
                        device="cuda")
    run()
    cycles, times = 20_000_000, []  # 10 ms
    stop = time.monotonic() + 20
    while len(times) < 5 or (sum(times) < seconds and len(times) < 50 and time.monotonic() < stop):
        held, begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        torch.cuda._sleep(cycles)
        held.record()
        flush.zero_()
        begun.record()
        run()
        ended.record()
        ahead = not held.query()
        ended.synchronize()
        if ahead:
            times.append(begun.elapsed_time(ended) * 1e-3)
        elif cycles > 1_000_000_000:
            raise RuntimeError("waits for the device, so that its launches cannot be ahead of it")
        else:
            cycles *= 2
    return statistics.median(times)


# ---------------------------------------------------------------- what is timed


def is_unit(shape):
    return "data=unit" in shape["flags"].split()


def flag_value(shape, name, default):
    return float(dict(flag.split("=") for flag in shape["flags"].split() if "=" in flag).get(name, default))


def normal(*sizes, dtype=torch.float32, unit=False):
    x = torch.randn(*sizes, device="cuda")
    return (x / x.norm(dim=-1, keepdim=True) if unit else x).to(dtype)


def log_decays(*sizes):
    """Gates that keep some tens of tokens, those of `loam bench`."""
    return -torch.exp(normal(*sizes) - 3.5)


def sdpa_call(shape, backend):
    """A call and the inputs that get gradients; arrays are (B, H, T, D)."""
    sizes = [("heads_q", "len_q", "dim_qk"), ("heads_kv", "len_kv", "dim_qk"),
             ("heads_kv", "len_kv", "dim_v")]
    inputs = [make_input(shape, shape[h], shape[n], shape[d]).cuda() for h, n, d in sizes]
    causal = "full" not in shape["flags"].split() and shape["len_q"] > 1
    grouped = shape["heads_q"] != shape["heads_kv"]

    def call():
        with sdpa_kernel(SDPA[backend]):
            return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal,
                                                                    enable_gqa=grouped)

    return call, inputs


def fla_kind(shape):
    """Which function of flash-linear-attention a shape has there, None where it has none."""
    flags = {flag.split("=")[0] for flag in shape["flags"].split()} - {"causal", "data", "ridge"}
    if shape["mechanism"] == "softmax":
        return {("decay",): "fox", ("path",): "path"}.get(tuple(flags))
    if shape["pass"] == "decode":
        return "gated-delta-decode" if shape["mechanism"] == "gated-delta" and not flags else None
    return shape["mechanism"] if shape["mechanism"] in FLA and not flags else None


# Where each is, and how it is called; g are log decays, one a head or, with c, one a channel.
FLA = {
    "linear": ("linear_attn", "chunk_linear_attn", "q k v", {"normalize": False}),
    "ssd": ("simple_gla", "chunk_simple_gla", "q k v g", {}),
    "gla": ("gla", "chunk_gla", "q k v gc", {}),
    "delta": ("delta_rule", "chunk_delta_rule", "q k v beta", {}),
    "gated-delta": ("gated_delta_rule", "chunk_gated_delta_rule", "q k v g beta", {}),
    "kda": ("kda", "chunk_kda", "q k v gc beta", {}),
    "mesa": ("mesa_net", "chunk_mesa_net", "q k v g beta lamb", {}),
    "fox": ("forgetting_attn", "parallel_forgetting_attn", "q k v g", {}),
    "path": ("path_attn", "parallel_path_attn", "q k v w beta", {}),
    "gated-delta-decode": ("gated_delta_rule", "fused_recurrent_gated_delta_rule",
                           "q k v g beta initial_state",
                           {"output_final_state": True}),
}


def fla_input(name, shape):
    """An array of flash-linear-attention, (B, T, H, D)."""
    b, t, h, d, dv = (shape[key] for key in ("batch", "len_q", "heads_q", "dim_qk", "dim_v"))
    make = {
        "q": lambda: normal(b, t, h, d, dtype=DTYPES[shape["dtype"]], unit=is_unit(shape)),
        "k": lambda: normal(b, t, h, d, dtype=DTYPES[shape["dtype"]], unit=is_unit(shape)),
        "v": lambda: normal(b, t, h, dv, dtype=DTYPES[shape["dtype"]]),
        "g": lambda: log_decays(b, t, h),
        "gc": lambda: log_decays(b, t, h, d),
        "beta": lambda: torch.sigmoid(normal(b, t, h)),
        "w": lambda: normal(b, t, h, d, unit=True),
        "lamb": lambda: torch.full((h, d), flag_value(shape, "ridge", 0.1), device="cuda"),
        "initial_state": lambda: normal(b, h, d, dv),
    }
    return make[name]()


def fla_call(shape):
    module, function, names, options = FLA[fla_kind(shape)]
    call = getattr(importlib.import_module(f"fla.ops.{module}"), function)
    inputs = {name: fla_input(name, shape) for name in names.split()}

    def run():
        result = call(**{"g" if name == "gc" else name: x for name, x in inputs.items()}, **options)
        return result[0] if isinstance(result, tuple) else result

    return run, list(inputs.values())


def make_run(rival, shape, both):
    """A function of no arguments: the forward, or the forward and all gradients."""
    call, inputs = fla_call(shape) if rival == "fla" else sdpa_call(shape, rival)
    if not both:
        return torch.no_grad()(call)
    for x in inputs:
        x.requires_grad_()
    with torch.no_grad():
        grad_o = torch.randn_like(call())
    return lambda: torch.autograd.grad(call(), inputs, grad_o, allow_unused=True)


def takes(rival, shape):
    if rival == "fla":
        return fla_kind(shape) is not None
    return has_direct_form(shape | {"flags": shape["flags"].replace("saved", "")})


# ---------------------------------------------------------------- a process for each


def first_line(reason):
    return next(iter(str(reason).strip().splitlines()), "") or type(reason).__name__


def forget_tuning():
    """What Triton's kernels chose while others had the GPU too."""
    for tuner in gc.get_objects():
        if any(base.__name__ == "Autotuner" for base in type(tuner).__mro__):
            tuner.cache.clear()


def serve(rival, shape, both, seconds, parent):
    """Compiles, says so, waits for its turn, and sends times and refusals, both by pass."""
    os.environ["FLA_CACHE_RESULTS"] = "0"  # read when fla is imported: what it tunes now is not to last
    torch.manual_seed(1)
    runs, times, refusals = {}, {}, {}
    for name in ("forward", "both") if both else ("forward",):
        try:
            run = make_run(rival, shape, name == "both")
            run()
            torch.cuda.synchronize()
            runs[name] = run
        except Exception as reason:  # whatever a rival raises is its refusal
            refusals[name] = first_line(reason)
    parent.send("compiled")
    parent.recv()
    forget_tuning()
    for name, run in runs.items():
        try:
            times[name] = time_runs(run, seconds)
        except Exception as reason:
            refusals[name] = first_line(reason)
    parent.send((times, refusals))


class Job:
    """One rival on one shape."""

    def __init__(self, rival, shape, both, seconds):
        self.rival, self.shape, self.both = rival, shape, both
        self.times, self.refusal = {}, None
        context = multiprocessing.get_context("spawn")
        self.connection, child = context.Pipe()
        self.process = context.Process(target=serve, args=(rival, shape, both, seconds, child), daemon=True)
        self.process.start()
        child.close()

    def receive(self, until, doing):
        """What the process sends next, or None, and then `refusal` says why."""
        try:
            if self.connection.poll(max(0, until - time.monotonic())):
                return self.connection.recv()
            self.refusal = f"still {doing} when its time was up"
        except EOFError:
            self.process.join()
            self.refusal = f"ended while {doing}, exit code {self.process.exitcode}"
        self.process.kill()
        self.process.join()
        return None

    def measure(self, until):
        self.connection.send("go")
        answer = self.receive(until, "measuring")
        if answer:
            self.process.join(10)
            self.times, refusals = answer
            self.refusal = "; ".join(f"{name}: {reason}" for name, reason in refusals.items()) or None


def missing_rivals(wanted):
    """Those that cannot run at all here, with the reason."""
    absent = "fla" in wanted and not importlib.util.find_spec("fla")
    return {"fla": "flash-linear-attention is not installed"} if absent else {}


def time_rivals(rows, options):
    """Times by rival and shape name: {"forward": seconds, "both": seconds}."""
    wanted = [] if options.rivals == "none" else options.rivals.split(",")
    missing = missing_rivals(wanted)
    for rival, reason in missing.items():
        print(f"gpu.py: {rival}: {reason}", file=sys.stderr)
    names = {row["shape"] for row in rows}
    start = time.monotonic()
    jobs = []
    for row in rows:
        alone = (row["pass"] != "backward" and "saved" not in row["flags"].split()
                 and not row["shape"].endswith("-train"))
        both = {row["shape"] + "-train", row["shape"] + "-grad"} <= names
        jobs += [Job(rival, row, both, options.seconds) for rival in wanted
                 if alone and rival not in missing and takes(rival, row)]
    compiled = [job for job in jobs if job.receive(start + 60 * options.minutes * COMPILE_SHARE, "compiling")]
    for job in compiled:
        job.measure(start + 60 * options.minutes)
    for job in jobs:
        if job.refusal:
            print(f"gpu.py: {job.shape['shape']}: {job.rival}: {job.refusal}", file=sys.stderr)
    return {(job.rival, job.shape["shape"]): job.times for job in jobs}


# ---------------------------------------------------------------- roofs, Loam, the table


def product_rate(size, seconds):
    """FLOP/s of a bf16 product of random size x size matrices."""
    a, b = (normal(size, size, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / time_runs(lambda: a @ b, seconds)


def score_rate(shape, seconds):
    """FLOP/s of cuBLAS on the scores of all heads, whole and written out: the same product, bound by its
    output."""
    heads = shape["batch"] * shape["heads_q"]
    q, k = (normal(heads, n, shape["dim_qk"], dtype=torch.bfloat16)
            for n in (shape["len_q"], shape["len_kv"]))
    flops = 2 * heads * shape["len_q"] * shape["len_kv"] * shape["dim_qk"]
    return flops / time_runs(lambda: q @ k.mT, seconds)


def score_rates(rows, seconds):
    """Of each size that the local family has here, where all scores fit."""
    rates = {}
    for row in rows:
        size = score_size(row)
        scores = row["batch"] * row["heads_q"] * row["len_q"] * row["len_kv"]
        if row["mechanism"] in LOCAL and size not in rates and scores <= 2**31:
            rates[size] = score_rate(row, seconds)
    return rates


def score_size(row):
    return tuple(row[key] for key in ("batch", "heads_q", "len_q", "len_kv", "dim_qk"))


def run_loam(options):
    command = [options.loam, "bench", *map(str, options.shapes), "--backend", "cuda",
               "--shape", options.shape, "--seconds", str(options.seconds), "--format", "json"]
    command += ["--no-error"] * options.no_error
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def loam_row(result):
    keys = ["shape", "kernel", "mechanism", "pass", "dtype", "batch", "heads_q", "heads_kv", "len_q",
            "len_kv", "dim_qk", "dim_v", "flags", "flop", "iterations", "error", "work_bytes"]
    return {key: result[key] for key in keys} | {"loam_s": result["median_s"]}


def training_steps(rows, times):
    """Sums of Loam's forwards and backwards that belong together, beside what the rivals take for both in
    one."""
    by_name = {row["shape"]: row for row in rows}
    for name, row in by_name.items():
        base = name.removesuffix("-train")
        grad = by_name.get(base + "-grad")
        if name == base or not grad:
            continue
        step = dict.fromkeys(row) | {"shape": base + "-step", "pass": "step", "mechanism": row["mechanism"],
                                     "flags": row["flags"]}
        for key in ("loam_s", "flop"):
            step[key] = row[key] + grad[key]
        yield step | {f"{rival}_s": times.get((rival, base), {}).get("both") for rival in RIVALS}


def cell(value, scale, width, digits):
    return f"{'' if value is None else f'{value * scale:.{digits}f}':>{width}}"


def print_row(row, rate):
    speed = row["flop"] / row["loam_s"]
    scores = row["score_flops"] and row["score_flops"] * 1e-12
    error = "" if row["error"] is None else f"{row['error']:.1e}"
    print(f"{row['shape']:29}" + cell(row["loam_s"], 1e3, 10, 3)
          + "".join(cell(row[f"{rival}_s"], 1e3, 10, 3) for rival in RIVALS)
          + cell(speed, 1e-12, 10, 1) + cell(speed / rate, 100, 8, 1) + cell(scores, 1, 8, 0)
          + cell(row["iterations"], 1, 7, 2) + f"{error:>9}", flush=True)


def version(*packages):
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return "missing"


def print_head(rate, report):
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, triton {version('triton')}, "
          f"fla {version('fla-core', 'flash-linear-attention')}, cuDNN {torch.backends.cudnn.version()}: "
          f"product of 8192^3 in bf16 {rate * 1e-12:.0f} TFLOP/s, "
          f"copy {report['device_copy_gbs'] or 0:.0f} GB/s")
    print(f"{'shape':29}{'Loam ms':>10}" + "".join(f"{rival + ' ms':>10}" for rival in RIVALS)
          + f"{'TFLOP/s':>10}{'% roof':>8}{'scores':>8}{'iter':>7}{'error':>9}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=[ROOT / "bench/shapes/gpu.txt"], type=pathlib.Path)
    parser.add_argument("--loam", default=str(ROOT / "build/loam"), help="the program; default build/loam")
    parser.add_argument("--shape", default="*", metavar="GLOB", help="only shapes so named")
    parser.add_argument("--seconds", type=float, default=0.1, metavar="X",
                        help="for each measurement; default 0.1")
    parser.add_argument("--rivals", default=",".join(RIVALS), metavar="LIST",
                        help=f"some of {','.join(RIVALS)}, or none; default all")
    parser.add_argument("--minutes", type=float, default=4, metavar="X",
                        help="for all rivals together; default 4")
    parser.add_argument("--no-error", action="store_true", help="leave out the comparison with float64")
    parser.add_argument("--out", metavar="F.csv", help="also write the results there")
    options = parser.parse_args()
    unknown = set(options.rivals.split(",")) - {*RIVALS, "none"}
    if unknown:
        parser.error(f"--rivals {','.join(sorted(unknown))}: expected some of {','.join(RIVALS)}, or none")
    return options


def main():
    options = parse()
    torch.manual_seed(1)
    report = run_loam(options)
    rate = product_rate(8192, options.seconds)
    rows = [loam_row(result) for result in report["results"]]
    rates = score_rates(rows, options.seconds)
    torch.cuda.empty_cache()
    times = time_rivals(rows, options)
    rows = [row | {f"{rival}_s": times.get((rival, row["shape"]), {}).get("forward") for rival in RIVALS}
            | {"score_flops": rates.get(score_size(row))} for row in rows]
    rows += training_steps(rows, times)
    print_head(rate, report)
    for row in rows:
        print_row(row, rate)
    if options.out:
        versions = {"torch": torch.__version__, "triton": version("triton"),
                    "fla": version("fla-core", "flash-linear-attention")}
        about = {"product_flops": rate, "copy_gbs": report["device_copy_gbs"],
                 "device": torch.cuda.get_device_name(0), "commit": report["commit"]}
        write_csv([row | about | versions for row in rows], options.out)


if __name__ == "__main__":
    main()
