#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws the weights of one head of a language model (SmolLM2, data/smollm2) under softmax and under Local
Linear Attention, whose weights may be negative.

    pip install matplotlib && examples/weights_of_a_head.py
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot

import loam_attn
from loam_attn import plot

DATA = Path(__file__).resolve().parents[1] / "data" / "smollm2"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layer", type=int, choices=(3, 20), default=20)
    parser.add_argument("--head", type=int, choices=(0, 1, 2), default=0)
    parser.add_argument("--tokens", type=int, default=96, help="of the text's beginning")
    parser.add_argument("--ridge", type=float, default=1.0, help="of LLA; the larger, the closer to softmax")
    parser.add_argument("--quick", action="store_true", help="24 tokens: does it run?")
    parser.add_argument("--out", default="weights_of_a_head.png", help="the picture")
    arguments = parser.parse_args()
    tokens = 24 if arguments.quick else arguments.tokens
    files = [DATA / f"layer{arguments.layer}-{name}.npy" for name in "qkv"]
    # [H, T, D] in the files, [B, T, H, D] here.
    q, k, v = (np.load(file)[:, :tokens].swapaxes(0, 1)[None].astype("f4") for file in files)
    q = q[:, :, arguments.head : arguments.head + 1]
    weights = {
        "softmax": loam_attn.softmax_attention(q, k, v, return_weights=True)[1],
        "LLA": loam_attn.lla(q, k, v, ridge=arguments.ridge, return_weights=True)[1],
    }
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for ax, (name, shown) in zip(axes, weights.items()):
        plot.head(shown, ax=ax, title=name)
        negative = float(np.maximum(-shown, 0).sum()) / tokens
        print(f"{name}: weights below 0 sum to {negative:.3f} a query")
    plot.row(weights, ax=axes[2], title="the last query")
    figure.savefig(arguments.out)
    print(arguments.out)


if __name__ == "__main__":
    main()
