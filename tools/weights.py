#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws docs/pictures/weights-NAME.svg: the weights that each mechanism gives every earlier token, computed by `loam attend` with
the unit vectors as values, so that the output of a token is its row of weights.

    pip install numpy && tools/weights.py [--loam build/loam]

The example: 32 tokens, a cycle of eight keys shown four times, each time a little different; each token asks for the key that
came five tokens before it, and therefore 13, 21 and 29 before it too.
Where gates depend on the token, token 16 forgets; where on the channel, the first channels forget fast and the last ones
slowly."""

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
        "q": basis[(np.arange(TOKENS) + KEYS - 5) % KEYS], "k": keys, "v": np.eye(TOKENS), "log_decay": token, "beta": np.ones(TOKENS),
        "half": np.full(TOKENS, 0.5), "log_decay_channel": np.tile(-np.geomspace(1, 0.01, DIM), (TOKENS, 1)),
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


def colour(weight):
    """White at 0; towards blue for weights above, orange below (Okabe and Ito's), full at 1 and -1."""
    full = np.array([0, 114, 178] if weight > 0 else [213, 94, 0])
    return "#%02x%02x%02x" % tuple(np.round(255 + (full - 255) * min(1, abs(weight))).astype(int))


def draw(weights, path):
    """Rows are queries, columns keys; what lies ahead is left out."""
    side, margin = TOKENS * CELL, 34
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{side + 2 * margin}" height="{side + margin + 10}" font-family="sans-serif" font-size="13">',
             f'<rect width="{side + 2 * margin}" height="{side + margin + 10}" fill="#ffffff"/>']
    # One path a shade: 16 of each colour.
    shades = np.round(np.clip(weights, -1, 1) * 16).astype(int)
    for shade in sorted(set(shades[np.tril_indices(TOKENS)]) - {0}):
        cells = zip(*np.nonzero(np.tril(shades == shade)))
        squares = "".join(f"M{margin + j * CELL} {10 + i * CELL}h{CELL}v{CELL}h-{CELL}z" for i, j in cells)
        lines.append(f'<path fill="{colour(shade / 16)}" d="{squares}"/>')
    lines.append(f'<path d="M{margin} 10v{side}h{side}L{margin} 10" fill="none" stroke="#5a5a5a"/>')
    lines += [f'<text x="{margin + side / 2}" y="{side + margin - 4}" text-anchor="middle">key</text>',
              f'<text transform="translate(20 {10 + side / 2}) rotate(-90)" text-anchor="middle">query</text>', "</svg>"]
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loam", default=ROOT / "build/loam", type=pathlib.Path, help="the program; default build/loam")
    loam = parser.parse_args().loam.resolve()
    example = make_example() | {"retention": np.array([np.log1p(-(2.0**-4))])}
    with tempfile.TemporaryDirectory() as folder:
        for name, value in example.items():
            np.save(f"{folder}/{name}.npy", value)
        for name, call in CALLS.items():
            subprocess.run([loam, "attend", *call.split(), *"--q q.npy --k k.npy --v v.npy --dtype f64 --out o.npy".split()], cwd=folder, check=True)
            draw(np.load(f"{folder}/o.npy"), ROOT / f"docs/pictures/weights-{name}.svg")


if __name__ == "__main__":
    main()
