#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes golden_data.inc and golden_optimiser.inc beside itself: what the tests expect of the data of the
trained experiments and of the optimisers, by an independent implementation of them in NumPy, tasks.py of
the folder that is named.

    pip install numpy && python3 make_golden.py FOLDER && clang-format -i golden_*.inc
"""
import pathlib
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])
import tasks as t  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
BATCH = np.arange(256)


def mix(numbers):
    """FNV-1a, a number at a time"""
    h = 0xcbf29ce484222325
    for x in np.asarray(numbers).ravel():
        h = (h ^ (int(x) & 0xffffffffffffffff)) * 0x100000001b3 & 0xffffffffffffffff
    return f'0x{h:016x}'


def answers(targets):
    """positions and values of the targets of each example; recall gives them by pairs, here by position"""
    rows = [np.flatnonzero(row >= 0) for row in targets]
    return mix([[i, row[i]] for row, at in zip(targets, rows) for i in at])


def sums(x):
    x = x.ravel()
    weights = np.arange(x.size) * 7919 % 1009
    return f'{{ {np.sum(x * x):.17g}, {np.sum(x * weights):.17g} }}'


def table(name, members, rows):
    yield f'static const struct {{ {members} }} {name}[] = {{'
    yield from (f'    {{ {row} }},' for row in rows)
    yield '};'


def recall_rows():
    for seed, split, length, pairs, vocab, fill in [(1, 0, 64, 4, 8192, 1), (1, 1, 64, 16, 8192, 1),
                                                    (2, 0, 512, 32, 8192, 1), (3, 0, 256, 64, 8192, 0),
                                                    (1 << 40, 0, 16, 4, 64, 1)]:
        k, v = t.recall(seed, split, BATCH, length, pairs, vocab, bool(fill))
        yield f'{seed}u, {split}, {length}, {pairs}, {vocab}, {fill}, {mix(k)}u, {answers(v)}u'


def swaps_rows():
    for seed, split, places, items in [(1, 0, 16, 8192), (1, 1, 24, 8192), (5, 0, 96, 8192), (2, 0, 8, 16)]:
        k, v, _, _ = t.swaps(seed, split, BATCH, places, items=items)
        yield f'{seed}u, {split}, {places}, {items}, {mix(k)}u, {answers(v)}u'


def regression_rows():
    for seed, split, length, segment, dim, n, noise in [
            (1, 0, 64, 8, 32, 16, 0.1), (1, 1, 64, 64, 32, 16, 0), (4, 0, 128, 16, 32, 16, 0.1),
            (2, 1, 32, 8, 4, 8, 0)]:
        x, y, _ = t.regression(seed, split, BATCH[:16], length, segment, dim, dim, n, noise)
        yield f'{seed}u, {split}, {length}, {segment}, {dim}, {n}, {noise}, {sums(x)}, {sums(y)}'


def order_rows():
    for seed, task, epoch, n in [(1, t.RECALL, 0, 120000), (7, t.SWAPS, 3, 1000)]:
        yield f'{seed}u, {task}, {epoch}, {n}, {mix(t.epoch_order(seed, task, epoch, n))}u'


def filled(stream, *shape):
    """fixture_fill of fixture.c"""
    x = t.normals(20261123, [stream], int(np.prod(shape)))[0]
    return x.astype(np.float32).astype(float).reshape(shape)


def adamw_rows():
    p, m, v = filled(1, 6), np.zeros(6), np.zeros(6)
    for step in range(3):
        p, m, v = t.adamw(p, filled(2 + step, 6), m, v, step + 1, t.rate(step, 8, 2, 0.05), 0.1)
        yield ', '.join(f'{x:.17g}' for x in p)


def muon_rows():
    """of [in, out], which is [out, in] in tasks.py"""
    for rows, width in [(16, 16), (16, 40), (40, 16)]:
        p, m = filled(1, rows, width).T, np.zeros((width, rows))
        for step in range(3):
            p, m = t.muon(p, filled(2 + step, rows, width).T, m, t.rate(step, 8, 2, 0.02), 0.1)
            values = ', '.join(f'{x:.17g}' for x in [p[0, 0], p[-1, 0], p[3, 7], p[-1, -1]])
            yield f'{rows}, {width}, {step}, {{ {values} }}'


def write(name, *lines):
    head = ['/* SPDX-License-Identifier: MIT', ' * Written by make_golden.py. */']
    (HERE / name).write_text('\n'.join([*head, *lines]) + '\n')


x, y, _ = t.regression(3, t.TRAIN, [7], 8, 2, 3, 2, 3, 0.1)
write('golden_data.inc',
      *table('golden_recall',
             'uint64_t seed; int split, length, pairs, words, fill; uint64_t tokens, targets;',
             recall_rows()),
      *table('golden_swaps',
             'uint64_t seed; int split, places, items; uint64_t tokens, targets;', swaps_rows()),
      *table('golden_regression', 'uint64_t seed; int split, length, segment, dim, queries; '
             'double noise, x[2], y[2];', regression_rows()),
      *table('golden_order', 'uint64_t seed; int task, epoch, n; uint64_t order;', order_rows()),
      '/* Of seed 3, training example 7, length 8, segments of 2, dimensions 3 and 2, 3 queries. */',
      'static const double golden_x[] = { ' + ',\n    '.join(f'{v:.17g}' for v in x.ravel()) + ' };',
      'static const double golden_y[] = { ' + ',\n    '.join(f'{v:.17g}' for v in y.ravel()) + ' };')
write('golden_optimiser.inc',
      *table('golden_rate', 'int64_t step, warm, steps; double rate;',
             (f'{n}, {w}, {s}, {t.rate(n, s, w, 0.001):.17g}' for n, w, s in
              [(0, 10, 100), (9, 10, 100), (10, 10, 100), (55, 10, 100), (99, 10, 100),
               (400, 150, 14976)])),
      'static const double golden_adamw[3][6] = {', *(f'{{ {row} }},' for row in adamw_rows()), '};',
      '/* The corners of the first row, row 7 column 3, and the last element. */',
      *table('golden_muon', 'int64_t rows, width, step; double x[4];', muon_rows()))
