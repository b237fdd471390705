#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Where the time of a kernel goes: samples loam bench with perf and adds up the samples by what the code
there does.

    cmake --preset release -B build/profile -DCMAKE_C_FLAGS=-g
    cmake --build build/profile --target loam_program
    bench/hot_spots.py --out bench/results/profile.csv

The processor's clock is sampled, not its counters, so that this works in virtual machines too. A sample
counts for the innermost function that is not one of src/simd/vec.h, but for exp and tanh; products are told
apart by the strides of the call: over channels (scores), or over keys or queries (sums)."""

import argparse
import collections
import csv
import fnmatch
import functools
import json
import os
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPES = ["softmax-f32-d64", "softmax-bf16-d64", "softmax-grad-f32-d64", "parallax-f32-d64",
          "parallax-grad-f32-d64", "lla-f32-d64", "lla-grad-f32-d64", "decode-n65536", "decode-lla-n65536"]
RUN = ["machine", "features", "threads", "compiler", "commit", "date"]
COPIES = re.compile(r"mem(cpy|move|set)")


@functools.lru_cache(maxsize=None)
def product_kind(place):
    """What the call of panel_product at file:line sums over."""
    path, line = place.rsplit(":", 1)
    lines = pathlib.Path(path).read_text().splitlines()[int(line) - 1:]
    call = re.search(r"panel_product\w*\((.*?)\);", " ".join(lines[:4]))
    if not call:
        return "product"
    return "product: scores" if [x.strip() for x in call[1].split(",")][4] == "1" else "product: sums"


def classify(frames):
    """frames: (function, file:line), innermost first; None where no kernel is among them."""
    if not any("/src/local/" in place for _, place in frames):
        return None
    for at, (function, place) in enumerate(frames):
        if function in ("v_exp", "v_tanh"):
            return function[2:]
        if function.startswith("panel_product"):
            callers = [p for f, p in frames[at:] if not f.startswith("panel_product")]
            return product_kind(callers[0]) if callers else "product"
        if COPIES.search(function):
            return "copies"
        if "/src/" in place and "/simd/vec.h" not in place:
            return function
    return "other"


def resolve(program, addresses):
    """address: its frames, innermost first, with functions that were inlined."""
    command = ["addr2line", "-a", "-f", "-i", "-e", program, *addresses]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    found, at = collections.defaultdict(list), None
    lines = iter(text)
    for line in lines:
        if line.startswith("0x"):
            at = int(line, 16)
        else:
            place = next(lines).split(" (discriminator")[0]
            found[at].append((re.sub(r"\..*", "", line), place))
    return found


def read_samples(program, data):
    """The stacks of all samples, as lists of (offset in the program or None, symbol)."""
    text = subprocess.run(["perf", "script", "-i", data, "--no-inline", "-F", "ip,sym,symoff,dso"],
                          check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    symbols = {}
    names = subprocess.run(["nm", program], check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in names.splitlines():
        words = line.split()
        if len(words) == 3:
            symbols[words[2]] = int(words[0], 16)
    for block in text.split("\n\n"):
        stack = []
        for line in block.splitlines():
            match = re.match(r"\s*[0-9a-f]+ (\S+?)(?:\+0x([0-9a-f]+))? \((.*)\)", line)
            if match:
                name, offset, owner = match.groups()
                inside = owner.endswith("/loam") and name in symbols and offset
                # A caller's address is that of the instruction after the call.
                back = 1 if stack else 0
                stack.append((symbols[name] + int(offset, 16) - back if inside else None, name))
        if stack:
            yield stack


def profile(options, shape):
    with tempfile.NamedTemporaryFile(suffix=".perf") as data:
        record = ["perf", "record", "-q", "-F", "997", "-e", "cpu-clock:u", "--call-graph", "dwarf,2048",
                  "-o", data.name]
        bench = [options.loam, "bench", "--shape", shape, "--threads", "1", "--seconds", str(options.seconds),
                 "--no-roof", "--no-error", "--format", "json"]
        ran = subprocess.run(record + bench, check=True, stdout=subprocess.PIPE)
        stacks = list(read_samples(options.loam, data.name))
    addresses = sorted({hex(a) for stack in stacks for a, _ in stack if a is not None})
    frames = resolve(options.loam, addresses)
    count = collections.Counter()
    for stack in stacks:
        flat = []
        for address, name in stack:
            flat += frames[address] if address is not None else [(name, "")]
        count[classify(flat)] += 1
    del count[None]
    return count, json.loads(ran.stdout)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loam", default=str(ROOT / "build/profile/loam"), help="a program with -g")
    parser.add_argument("--shape", default="*", metavar="GLOB", help=f"of {' '.join(SHAPES)}")
    parser.add_argument("--seconds", type=float, default=2, metavar="X", help="of each kernel; default 2")
    parser.add_argument("--out", metavar="F.csv", help="also write the results there")
    return parser.parse_args()


def write_csv(rows, path):
    """Beside its place, then renamed: whole or not at all."""
    part = f"{path}.{os.getpid()}.tmp"
    with open(part, "w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["profiled", "doing", "share", *RUN])
        writer.writerows(rows)
    os.replace(part, path)


def main():
    options = parse()
    rows = []
    for shape in fnmatch.filter(SHAPES, options.shape):
        count, report = profile(options, shape)
        total, run = sum(count.values()), [report[name] for name in RUN]
        rows += [(shape, doing, f"{n / total:.4f}", *run) for doing, n in count.most_common()
                 if n >= 0.01 * total]
        print(f"{shape}, {total} samples:",
              ", ".join(f"{d} {100 * n / total:.0f} %" for d, n in count.most_common(8)), flush=True)
    if options.out:
        write_csv(rows, options.out)


if __name__ == "__main__":
    main()
