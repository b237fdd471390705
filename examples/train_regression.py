#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains two layers of softmax, Parallax and Local Linear Attention on regression in context, and draws their
losses: each sequence has a linear map of its own, and shows pairs (x, y) of it before it asks for a y.

    pip install torch matplotlib && examples/train_regression.py
"""

import argparse

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot
from progress import steps

from loam_attn import nn

X, PAIRS, WIDTH, HEADS = 4, 16, 64, 4
LAYERS = {
    "softmax": nn.SoftmaxAttention,
    "Parallax": nn.ParallaxAttention,
    "LLA": nn.LocalLinearAttention,
}


class Model(torch.nn.Module):
    """Tokens [B, 2 PAIRS, X + 2] -> a y for each, [B, 2 PAIRS]."""

    def __init__(self, layer):
        super().__init__()
        self.embed = torch.nn.Linear(X + 2, WIDTH)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.layers = torch.nn.ModuleList(layer(WIDTH, HEADS, qk_norm=True) for _ in range(2))
        self.read = torch.nn.Sequential(torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 1))

    def forward(self, tokens):
        e = self.embed(tokens)
        for norm, layer in zip(self.norms, self.layers):
            e = e + layer(norm(e))
        return self.read(e)[..., 0]


def batch(size, generator):
    """A question (x, 0, 1) and its answer (x, y, 0) for each pair, and the y."""
    x = torch.randn(size, PAIRS, X, generator=generator)
    w = torch.randn(size, X, 1, generator=generator) / X**0.5
    y = x @ w
    question = torch.cat([x, torch.zeros_like(y), torch.ones_like(y)], -1)
    answer = torch.cat([x, y, torch.zeros_like(y)], -1)
    return torch.stack([question, answer], 2).flatten(1, 2), y[..., 0]


def loss_of(model, tokens, y):
    """The mean squared error at questions of the second half, where a line can be known."""
    return ((model(tokens)[:, ::2] - y)[:, PAIRS // 2 :] ** 2).mean()


def train(name, arguments):
    torch.manual_seed(arguments.seed)
    model = Model(LAYERS[name])
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=arguments.steps)
    data = torch.Generator().manual_seed(arguments.seed)
    test = batch(256, torch.Generator().manual_seed(arguments.seed + 1))
    curve = []
    for step in steps(arguments.steps, name):
        optimiser.zero_grad()
        loss_of(model, *batch(64, data)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if (step + 1) % max(1, arguments.steps // 40) == 0:
            with torch.no_grad():
                curve.append((step + 1, float(loss_of(model, *test))))
    return curve


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--quick", action="store_true", help="20 steps: does it run?")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="train_regression.png", help="the picture")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps = 20
    figure, ax = pyplot.subplots(layout="constrained")
    for name in LAYERS:
        curve = train(name, arguments)
        print(f"{name}: {curve[-1][1]:.4f} of a variance of 1 is left after {arguments.steps} steps")
        ax.plot(*zip(*curve), label=name)
    ax.set(xlabel="step", ylabel="squared error of held-out sequences", yscale="log")
    ax.legend()
    figure.savefig(arguments.out)
    print(arguments.out)


if __name__ == "__main__":
    main()
