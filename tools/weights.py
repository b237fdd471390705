#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws docs/pictures/weights-NAME.svg: the weights that each mechanism gives every earlier token, computed
by `loam attend` with the unit vectors as values, so that the output of a token is its row of weights.

    pip install numpy && tools/weights.py [--loam build/loam]

The example: 32 tokens, a cycle of eight keys shown four times, each time a little different; each token asks
for the key that came five tokens before it, and therefore 13, 21 and 29 before it too. Where gates depend on
the token, token 16 forgets; where on the channel, the first channels forget fast and the last ones slowly."""

import argparse
import pathlib
import subprocess
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS, KEYS, DIM, CELL = 32, 8, 8, 12


def make_example():
    random = np.random.default_rng(5)
    basis = np.linalg.qr(random.standard_normal((DIM, DIM)))[0][:KEYS]
    keys = basis[np.arange(TOKENS) % KEYS] + 0.12 * random.standard_normal((TOKENS, DIM))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    token = np.full(TOKENS, -0.05)
    token[16] = -2.5
    return {
        "q": basis[(np.arange(TOKENS) + KEYS - 5) % KEYS], "k": keys, "v": np.eye(TOKENS),
        "log_decay": token, "beta": np.ones(TOKENS), "half": np.full(TOKENS, 0.5),
        "log_decay_channel": np.tile(-np.geomspace(1, 0.01, DIM), (TOKENS, 1)),
    }


PLAIN, SHARP = "--scale 1", "--scale 8"
TOKEN, CHANNEL = "--log-decay log_decay.npy", "--log-decay log_decay_channel.npy"
CALLS = {
    "softmax": f"softmax {SHARP}",
    "parallax": f"parallax --probe q.npy {SHARP}",
    "lla": f"lla --ridge 0.05 {SHARP}",
    "fox": f"fox {TOKEN} {SHARP}",
    "path": f"path --w k.npy --beta beta.npy {SHARP}",
    "rope": f"softmax --rope 10000 --rope-dim 4 {SHARP}",
    "linear": f"linear {PLAIN}",
    "retention": f"retention --log-decay retention.npy {PLAIN}",
    "ssd": f"ssd {TOKEN} --beta half.npy {PLAIN}",
    "gla": f"gla {CHANNEL} {PLAIN}",
    "delta": f"delta --beta beta.npy {PLAIN}",
    "gated_delta": f"gated_delta {TOKEN} --beta beta.npy {PLAIN}",
    "kda": f"kda {CHANNEL} --beta beta.npy {PLAIN}",
    "mesa": f"mesa --ridge 0.05 {PLAIN}",
}


# The colours of cli/plot.h: one a fit, whatever its gates and scores.
CONSTANT, LINE, MESA = "#D55E00", "#0072B2", "#009E73"
SUMS, DELTA, GATED, KDA = "#E69F00", "#CC79A7", "#56B4E9", "#882255"
COLOURS = {
    "softmax": CONSTANT, "fox": CONSTANT, "path": CONSTANT, "rope": CONSTANT, "parallax": LINE, "lla": LINE,
    "mesa": MESA, "linear": SUMS, "retention": SUMS, "ssd": SUMS, "gla": SUMS, "delta": DELTA,
    "gated_delta": GATED, "kda": KDA,
}


def shade_of(weight, colour):
    """White at 0; the mechanism's colour at 1 and above, black at -1 and below."""
    full = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)] if weight > 0 else [0, 0, 0])
    return "#%02x%02x%02x" % tuple(np.round(255 + (full - 255) * min(1, abs(weight))).astype(int))


def draw(weights, colour, path):
    """Rows are queries, columns keys; what lies ahead is left out. Tokens count from 1."""
    side, left, top, bottom = TOKENS * CELL, 66, 10, 66
    width, height = left + side + 14, top + side + bottom
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="28" fill="#1e1e1e">',
             f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
    # One path a shade: 16 of each sign.
    shades = np.round(np.clip(weights, -1, 1) * 16).astype(int)
    for shade in sorted(set(shades[np.tril_indices(TOKENS)]) - {0}):
        cells = zip(*np.nonzero(np.tril(shades == shade)))
        squares = "".join(f"M{left + j * CELL} {top + i * CELL}h{CELL}v{CELL}h-{CELL}z" for i, j in cells)
        lines.append(f'<path fill="{shade_of(shade / 16, colour)}" d="{squares}"/>')
    lines.append(f'<path d="M{left} {top}v{side}h{side}L{left} {top}" fill="none" stroke="#5a5a5a"/>')
    for token in (8, 16, 24, 32):
        at = (token - 0.5) * CELL
        lines += [f'<text x="{left + at}" y="{top + side + 27}" text-anchor="middle">{token}</text>',
                  f'<text x="{left - 6}" y="{top + at + 10}" text-anchor="end">{token}</text>']
    lines += [f'<text x="{left + side / 2}" y="{top + side + 56}" text-anchor="middle">key (token)</text>',
              f'<text transform="translate(24 {top + side / 2}) rotate(-90)" text-anchor="middle">'
              f'query (token)</text>', "</svg>"]
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loam", default=ROOT / "build/loam", type=pathlib.Path,
                        help="the program; default build/loam")
    loam = parser.parse_args().loam.resolve()
    example = make_example() | {"retention": np.array([np.log1p(-(2.0**-4))])}
    with tempfile.TemporaryDirectory() as folder:
        for name, value in example.items():
            np.save(f"{folder}/{name}.npy", value)
        for name, call in CALLS.items():
            files = "--q q.npy --k k.npy --v v.npy --dtype f64 --out o.npy"
            subprocess.run([loam, "attend", *call.split(), *files.split()], cwd=folder, check=True)
            draw(np.load(f"{folder}/o.npy"), COLOURS[name], ROOT / f"docs/pictures/weights-{name}.svg")


if __name__ == "__main__":
    main()
