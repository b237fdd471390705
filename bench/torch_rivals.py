#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times loam_attn on the current GPU where PyTorch calls it, beside flash-linear-attention and PyTorch's
scaled_dot_product_attention: calls of the forward, one after another, and training steps of a language model
compiled by torch.compile.

    PYTHONPATH=build/python bench/torch_rivals.py forward step
    PYTHONPATH=build/python bench/torch_rivals.py step --only 'softmax*'

Each row has three times. `ms` is what one takes among many, GPU and host together; `GPU` what the device
alone takes, which is held up until everything is launched; `host` until a call returns that finds the device
idle. Medians. Each row runs in a process of its own. All compile at once, and what is ready is timed while
the others stand still. Triton tries dozens of configurations of a kernel of flash-linear-attention: --helpers
compile them beside the row that waits, into the cache of TRITON_CACHE_DIR. A row that fails, or is not ready
after --seconds, says so, and the others go on.

The model: layers of loam_attn.nn and of an MLP of four times the width with GELU, RMSNorm before both,
AdamW; bfloat16 by torch.autocast. Rows of one mechanism differ in the call of the mechanism alone."""

import argparse
import contextlib
import fnmatch
import gc
import importlib
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time

import torch
from torch import nn
from torch.nn import functional

import loam_attn as la
from loam_attn import nn as layers

# ---------------------------------------------------------------- time


def event():
    return torch.cuda.Event(enable_timing=True)


def device_time(run, cycles, times):
    """The median time of a run on the device, in seconds, launches left out."""
    found = []
    for _ in range(times):
        begun, ended = event(), event()
        torch.cuda._sleep(cycles)
        begun.record()
        run()
        ended.record()
        torch.cuda.synchronize()
        found.append(begun.elapsed_time(ended) * 1e-3)
    return statistics.median(found)


def host_time(run, times):
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run()
        found.append(time.perf_counter() - begun)
    torch.cuda.synchronize()
    return statistics.median(found)


def time_of_many(run, runs, times):
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(runs):
            run()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begun) / runs)
    return statistics.median(found)


def measure(run, runs, times):
    for _ in range(3):
        run()
    host = host_time(run, times)
    cycles = int(2e9 * 1.5 * host) + 100_000  # of at most 2 GHz
    return {"ms": time_of_many(run, runs, times) * 1e3, "GPU": device_time(run, cycles, times) * 1e3,
            "host": host * 1e3}


# ---------------------------------------------------------------- calls of a forward


def arrays(batch=1, tokens=512, heads=8, channels=64):
    torch.manual_seed(1)
    make = lambda *sizes: torch.randn(batch, tokens, heads, *sizes, device="cuda")
    q, k, v = (make(channels).bfloat16() for _ in range(3))
    decay = lambda *sizes: -torch.exp(make(*sizes) - 3.5)
    return q, k, v, decay(), decay(channels), torch.sigmoid(make())


def loam_forwards():
    q, k, v, g, gc, beta = arrays()
    unit = dict(use_qk_l2norm_in_kernel=True)
    return {
        "linear": lambda: la.linear_attention(q, k, v, normalize=False)[0],
        "gated-delta": lambda: la.gated_delta_rule(q, k, v, g, beta, **unit)[0],
        "kda": lambda: la.kda(q, k, v, gc, beta, **unit)[0],
        "softmax": lambda: la.softmax_attention(q, k, v),
    }


def fla_forwards():
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.kda import chunk_kda
    from fla.ops.linear_attn import chunk_linear_attn

    q, k, v, g, gc, beta = arrays()
    unit = dict(use_qk_l2norm_in_kernel=True)
    return {
        "linear": lambda: chunk_linear_attn(q, k, v, normalize=False)[0],
        "gated-delta": lambda: chunk_gated_delta_rule(q, k, v, g, beta, **unit)[0],
        "kda": lambda: chunk_kda(q, k, v, gc, beta, **unit)[0],
    }


def sdpa_forwards():
    q, k, v = (x.transpose(1, 2) for x in arrays()[:3])
    return {"softmax": lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)}


FORWARDS = {
    "linear loam": loam_forwards,
    "gated-delta loam": loam_forwards,
    "kda loam": loam_forwards,
    "softmax loam": loam_forwards,
    "softmax sdpa": sdpa_forwards,
    "linear fla": fla_forwards,
    "gated-delta fla": fla_forwards,
    "kda fla": fla_forwards,
}


def forward(row, options):
    """A call, made once, and what there is to say after all."""
    torch.set_grad_enabled(False)
    run = FORWARDS[row]()[row.split()[0]]
    run()
    return run, dict


# ---------------------------------------------------------------- steps of training


class SdpaAttention(layers.SoftmaxAttention):
    """PyTorch alone: positions too are as transformers has them, by tables in the dtype of x."""

    def __init__(self, width, heads, most_tokens=1 << 14):
        super().__init__(width, heads)
        frequencies = self.rope_base ** -(torch.arange(0, self.head_dim, 2) / self.head_dim)
        angles = torch.outer(torch.arange(most_tokens), frequencies).repeat(1, 2)[:, None]
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def turn(self, x, cache):
        cosines, sines = (y[: x.shape[1]].to(x.dtype) for y in (self.cosines, self.sines))
        first, second = x.chunk(2, -1)
        return x * cosines + torch.cat((-second, first), -1) * sines

    def attend(self, x, q, k, v, **call):
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class FlaForgetting(layers.ForgettingAttention):
    @torch.compiler.disable  # as chunk_kda is
    def attend(self, x, q, k, v, **call):
        from fla.ops.forgetting_attn import parallel_forgetting_attn

        return parallel_forgetting_attn(q, k, v, functional.logsigmoid(self.f_proj(x).float() + 4))


class FlaKimi(layers.KimiDeltaAttention):
    @staticmethod
    def rule(q, k, v, g, beta, use_qk_l2norm_in_kernel, **call):
        from fla.ops.kda import chunk_kda

        return chunk_kda(q, k, v, g, beta, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel)


MIXERS = {
    "softmax loam": layers.SoftmaxAttention,
    "softmax cudnn": SdpaAttention,
    "lla loam": lambda width, heads: layers.LocalLinearAttention(width, heads, qk_norm=True),
    "fox loam": lambda width, heads: layers.ForgettingAttention(width, heads, rope_base=None),
    "kda loam": layers.KimiDeltaAttention,
    "fox fla": lambda width, heads: FlaForgetting(width, heads, rope_base=None),
    "kda fla": FlaKimi,
}


class Block(nn.Module):
    def __init__(self, width, mixer):
        super().__init__()
        self.before, self.between, self.mixer = nn.RMSNorm(width), nn.RMSNorm(width), mixer
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.mixer(self.before(x))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Model(nn.Module):
    def __init__(self, row, options):
        super().__init__()
        width = options.width
        self.embedding = nn.Embedding(options.vocabulary, width)
        mixers = [MIXERS[row](width, options.heads) for _ in range(options.layers)]
        self.blocks = nn.ModuleList(Block(width, mixer) for mixer in mixers)
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, options.vocabulary, bias=False)

    def loss(self, x, targets):
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.loss(x, targets)

    def compile_parts(self):
        """Blocks are alike and compiled once, which takes a twelfth of the time for the same speed."""
        for block in self.blocks:
            block.compile()
        self.loss = torch.compile(self.loss)


def step(row, options):
    """A step, made once, and what the loss has become after all."""
    torch.manual_seed(1)
    for refuse in "flash", "mem_efficient", "math":  # cuDNN is left
        getattr(torch.backends.cuda, f"enable_{refuse}_sdp")(False)
    model = Model(row, options).cuda()
    if options.part is None:
        model.compile_parts()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tokens = torch.randint(options.vocabulary, (options.batch, options.tokens + 1), device="cuda")

    def run():
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss

    first = float(run().detach())
    return run, lambda: {"loss": f"{first:.4f} to {float(run().detach()):.4f}"}


# ---------------------------------------------------------------- a process for each


def tuners():
    importlib.import_module("fla.ops")
    return [x for x in gc.get_objects() if any(base.__name__ == "Autotuner" for base in type(x).__mro__)]


def keep_one_configuration():
    """Of each of Triton's kernels, instead of trying them all."""
    for tuner in tuners():
        tuner.configs = tuner.configs[:1]


def tune_in_less_time():
    from triton.testing import do_bench

    for tuner in tuners():
        tuner.do_bench = lambda call, quantiles: do_bench(call, warmup=5, rep=30, quantiles=quantiles)


def run_once(call, quantiles):
    call()
    return [1.0] * len(quantiles)


def compile_part(row, options):
    """Every --helpers-th configuration, of what one layer runs."""
    os.environ["FLA_CACHE_RESULTS"] = "0"
    for tuner in tuners():
        tuner.configs = tuner.configs[options.part :: options.helpers] or tuner.configs[:1]
        tuner.do_bench = run_once
    options.layers = 1
    TABLES[options.table][1](row, options)


def helpers_of(row, options):
    """In the group of this process, which is stopped as one."""
    if not row.endswith("fla") or options.untuned:
        return []
    command = [sys.executable, __file__, *sys.argv[1:], "--part"]
    quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return [subprocess.Popen([*command, str(i)], **quiet) for i in range(options.helpers)]


def serve(row, options):
    """Compiles, says so, waits for its turn, and says its times."""
    if options.part is not None:
        compile_part(row, options)
        return
    helpers = helpers_of(row, options)
    if row.endswith("fla"):
        keep_one_configuration() if options.untuned else tune_in_less_time()
    make, runs = TABLES[options.table][1:]
    run, more = make(row, options)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    for helper in helpers:
        helper.kill()
    print(READY, flush=True)
    sys.stdin.readline()
    print(json.dumps(measure(run, *runs) | more()), flush=True)


class Job:
    """One row."""

    def __init__(self, table, row):
        self.table, self.row, self.lines = table, row, queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--table", table, "--row", row], text=True,
            start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.complaints = []
        for stream, keep in (self.process.stdout, self.lines.put), (self.process.stderr, self.complain):
            threading.Thread(target=lambda s=stream, k=keep: [k(line) for line in s] + [k("")],
                             daemon=True).start()

    def complain(self, line):
        self.complaints += line.split("\n")[:1] if line.strip() else []

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)  # and what it compiles with

    def line(self, begins, seconds):
        """The next line that begins so; "" where it ended without one, None where it is not there yet."""
        try:
            while line := self.lines.get(timeout=seconds):
                if line.startswith(begins):
                    return line
            self.process.wait()
            self.complaints = self.complaints or [f"exit code {self.process.returncode}"]
            return ""
        except queue.Empty:
            return None

    def times(self, others):
        """Its times, while nothing else runs; None where it has none."""
        for other in others:
            other.signal(signal.SIGSTOP)
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        answer = self.line("{", 30)
        for other in others:
            other.signal(signal.SIGCONT)
        return json.loads(answer) if answer else None


# ---------------------------------------------------------------- the table

READY = "ready"
TABLES = {"forward": (FORWARDS, forward, (200, 9)), "step": (MIXERS, step, (4, 5))}


def print_row(job, found):
    name = f"{job.table} {job.row}"
    if not found:
        errors = [line for line in job.complaints if "Error" in line]
        print(f"{name:25} {(errors or job.complaints or ['no end in time'])[-1]}", flush=True)
        return
    times = "".join(f"{found[key]:10.3f}" for key in ("ms", "GPU", "host"))
    print(f"{name:25}{times}  {found.get('loss', '')}", flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", choices=TABLES, nargs="+")
    parser.add_argument("--only", default="*", metavar="GLOBS", help="rows so named, with commas between")
    parser.add_argument("--seconds", type=float, default=600, metavar="X", help="for all rows; default 600")
    parser.add_argument("--untuned", action="store_true",
                        help="forwards of Triton by the first of their configurations: enough where "
                        "launches take the time, and compiled in seconds")
    parser.add_argument("--helpers", type=int, default=4, metavar="N", help="of a row of fla; default 4")
    for name, kind in ("table", str), ("row", str), ("part", int):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    sizes = dict(layers=12, width=768, heads=12, vocabulary=16384, batch=8, tokens=2048)
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size, metavar="N", help=f"default {size}")
    options = parser.parse_args()
    options.untuned &= options.table == "forward"
    return options


def chosen(options):
    wanted = options.only.split(",")
    rows = [(table, row) for table in options.tables for row in TABLES[table][0]]
    return [(table, row) for table, row in rows if any(fnmatch.fnmatch(row, x) for x in wanted)]


def main():
    options = parse()
    if options.row:
        serve(options.row, options)
        return
    until = time.monotonic() + options.seconds
    jobs = [Job(*names) for names in chosen(options)]
    print(f"{torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}")
    print(f"{'':25}{'ms':>10}{'GPU':>10}{'host':>10}", flush=True)
    while jobs:
        late = time.monotonic() > until
        for job in list(jobs):
            ready = job.line(READY, 0.01)
            if ready is None and not late:
                continue
            jobs.remove(job)
            print_row(job, job.times(jobs) if ready else None)
            job.signal(signal.SIGKILL)


if __name__ == "__main__":
    main()
