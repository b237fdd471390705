#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A step of training in PyTorch, what loam-train times of Loam: recall with 8192 words, two layers 128 wide
with two heads, no MLP, 256 examples of T tokens, bfloat16 products, AdamW, gradients clipped.

    bench/recall.py                 # softmax by scaled_dot_product_attention, 64 and 512 tokens
    bench/recall.py --mixer gla     # flash-linear-attention's chunk_gla

The model is compiled by torch.compile; the whole step, optimiser too, is a CUDA graph that is replayed, so
that no launch of the host is in a time. Logits are made at answers alone: there is room for T / 4 of them
in a sequence, and 0.177 of the tokens are one."""

import argparse

import torch
from torch.nn import functional

WORDS, WIDTH, HEADS, LAYERS, BATCH = 8192, 128, 2, 2, 256
ANSWERS = 0.177  # of the tokens


def norm(x, gain=None):
    return functional.rms_norm(x, (x.shape[-1],), gain, 1e-5)


class Layer(torch.nn.Module):
    """The projections of a mixer, by one product, and what follows."""

    def __init__(self, mixer):
        super().__init__()
        self.gla = mixer == "gla"
        self.gain = torch.nn.Parameter(torch.ones(WIDTH))
        self.project = torch.nn.Linear(WIDTH, (4 if self.gla else 3) * WIDTH, bias=False)
        self.out = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        if self.gla:
            self.low = torch.nn.Linear(WIDTH, 16, bias=False)
            self.decay = torch.nn.Linear(16, WIDTH)
            self.head_gain = torch.nn.Parameter(torch.ones(WIDTH // HEADS))

    def forward(self, e):
        x = norm(e, self.gain)
        q, k, v, *gate = (part.unflatten(-1, (HEADS, -1)) for part in self.project(x).split(WIDTH, -1))
        if not self.gla:
            heads = (a.transpose(1, 2) for a in (q, k, v))
            o = functional.scaled_dot_product_attention(*heads, is_causal=True)
            return e + self.out(o.transpose(1, 2).flatten(2))
        from fla.ops.gla import chunk_gla
        decay = functional.logsigmoid(self.decay(self.low(x))).unflatten(-1, (HEADS, -1)) / 16
        o, _ = chunk_gla(q, k, v, decay)
        return e + self.out((norm(o, self.head_gain) * functional.silu(gate[0])).flatten(2))


class Model(torch.nn.Module):
    def __init__(self, mixer, length):
        super().__init__()
        self.words = torch.nn.Parameter(0.02 * torch.randn(WORDS, WIDTH))
        self.places = torch.nn.Parameter(0.02 * torch.randn(length, WIDTH))
        self.layers = torch.nn.ModuleList(Layer(mixer) for _ in range(LAYERS))
        self.gain = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, tokens, at, targets):
        with torch.autocast("cuda", torch.bfloat16):
            e = self.words[tokens] + self.places
            for layer in self.layers:
                e = layer(e)
            found = norm(e.flatten(0, 1)[at], self.gain)
            return functional.cross_entropy(found @ self.words.T, targets, ignore_index=-1)


def batch(length):
    tokens = torch.randint(WORDS, (BATCH, length), device="cuda")
    room = BATCH * length // 4
    at = torch.randperm(BATCH * length, device="cuda")[:room].sort().values
    targets = torch.randint(WORDS, (room,), device="cuda")
    targets[torch.rand(room, device="cuda") > 4 * ANSWERS] = -1
    return tokens, at, targets


def recorded_step(mixer, length):
    """A step as a CUDA graph."""
    model = Model(mixer, length).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1, fused=True, capturable=True)
    loss_of, data = torch.compile(model), batch(length)

    def step():
        optimiser.zero_grad(set_to_none=False)
        loss_of(*data).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(4):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def milliseconds(graph, replays=40):
    for _ in range(3):
        graph.replay()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(20_000_000)
    begun.record()
    for _ in range(replays):
        graph.replay()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / replays


def main():
    options = argparse.ArgumentParser(description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mixer", choices=("softmax", "gla"), default="softmax")
    options.add_argument("--length", type=int, nargs="+", default=[64, 512],
                         help="tokens of an example (64 512)")
    asked = options.parse_args()
    torch.manual_seed(1)
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    for length in asked.length:
        took = milliseconds(recorded_step(asked.mixer, length))
        print(f"{asked.mixer:14} recall T {length:4}, models  1: {took:8.3f} ms a step, "
              f"{1e-3 * BATCH * length / took:7.2f} M tokens/s", flush=True)


if __name__ == "__main__":
    main()
