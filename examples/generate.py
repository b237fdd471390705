#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a small model of bytes with Local Linear Attention, and lets it write, with a cache and without: the
bytes are the same, and the cache saves going through all of them for each.

    pip install torch matplotlib && examples/generate.py --text FILE
"""

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot
from progress import steps

import loam_attn
from loam_attn import nn

WIDTH, HEADS, LAYERS, TOKENS = 64, 4, 2, 128
DOCS = Path(__file__).resolve().parents[1] / "docs"


class Model(torch.nn.Module):
    """Bytes [B, T] -> logits of the next, [B, T, 256]."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(256, WIDTH)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2 * LAYERS))
        self.layers = torch.nn.ModuleList(nn.LocalLinearAttention(WIDTH, HEADS) for _ in range(LAYERS))
        self.mlps = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)
            )
            for _ in range(LAYERS)
        )
        self.read = torch.nn.Sequential(torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 256))

    def forward(self, tokens, caches=(None,) * LAYERS):
        e = self.embed(tokens)
        for i, (layer, mlp, cache) in enumerate(zip(self.layers, self.mlps, caches)):
            e = e + layer(self.norms[2 * i](e), cache=cache)
            e = e + mlp(self.norms[2 * i + 1](e))
        return self.read(e)


def train(model, text, arguments):
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = torch.Generator().manual_seed(arguments.seed)
    losses = []
    for _ in steps(arguments.steps, "training"):
        starts = torch.randint(len(text) - TOKENS - 1, (16,), generator=data)
        windows = torch.stack([text[s : s + TOKENS + 1] for s in starts])
        logits = model(windows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def write(model, prompt, count, cached):
    """The likeliest byte, count times."""
    caches = [loam_attn.Cache() for _ in range(LAYERS)] if cached else (None,) * LAYERS
    tokens, new = prompt, prompt
    begun = time.perf_counter()
    for _ in range(count):
        new = model(new if cached else tokens, caches)[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, new], 1)
    return tokens, time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="what to learn from; default: this project's pages")
    parser.add_argument("--prompt", default="The weights of ")
    parser.add_argument("--bytes", type=int, default=200, help="how many to write")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="10 steps, 40 bytes: does it run?")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="generate.png", help="the picture, of the training")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.bytes = 10, 40
    torch.manual_seed(arguments.seed)
    files = [arguments.text] if arguments.text else sorted(DOCS.glob("*.md"))
    text = torch.tensor(list(b"".join(file.read_bytes() for file in files)))
    model = Model()
    losses = train(model, text, arguments)
    prompt = torch.tensor([list(arguments.prompt.encode())])
    written, seconds = write(model, prompt, arguments.bytes, True)
    again, longer = write(model, prompt, arguments.bytes, False)
    print(bytes(written[0].tolist()).decode(errors="replace"))
    print(f"{arguments.bytes} bytes: {seconds:.2f} s with a cache, {longer:.2f} s without", end="; ")
    print("the same" if torch.equal(written, again) else "not the same")
    figure, ax = pyplot.subplots(layout="constrained")
    ax.plot(losses)
    ax.set(xlabel="step", ylabel="nats a byte")
    figure.savefig(arguments.out)
    print(arguments.out)


if __name__ == "__main__":
    main()
