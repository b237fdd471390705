#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""make_degrees.py: writes data/*.npy and data/expected.csv, which test_degrees.c holds dof/degrees.c to.

Degrees of freedom from their definition: tr G (G + lambda)^-1 with G = K / J by mpmath with 1500 digits, for
exp(|x|^2) is too much for float64, and where it is not by NumPy's eigenvalues, which must agree; and
sum s^2 / (s^2 + lambda sum s^2) by NumPy's singular values. Needs numpy, mpmath; takes half a minute."""
import os

import mpmath
import numpy as np

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data')
LAMBDAS = {'small': 2.0**-8, 'clusters': 2.0**-8, 'outliers': 2.0**-8, 'twins': 2.0**-4}
rows = []


def by_eigenvalues(x, lam, mode):
    x = x.astype(np.float64)
    count = len(x)
    if mode == 'gauss':
        kernel = np.exp(-((x[:, None] - x[None])**2).sum(2) / 2)
    else:
        kernel = np.exp(x @ x.T)
    gram = kernel / count
    if mode == 'rel':
        lam = lam * np.trace(gram)
    values = np.linalg.eigvalsh(gram)
    return (values / (values + lam)).sum()


def exactly(x, lam, mode):
    """The same with 1500 digits, by the inverse; and the leverage scores."""
    mpmath.mp.dps = 1500 if mode != 'gauss' else 60
    count = len(x)
    points = [[mpmath.mpf(float(c)) for c in row] for row in x]

    def gram(a, b):
        if mode == 'gauss':
            return mpmath.exp(-sum((p - q)**2 for p, q in zip(a, b)) / 2) / count
        return mpmath.exp(sum(p * q for p, q in zip(a, b))) / count

    g = mpmath.matrix(count, count)
    for i in range(count):
        for j in range(i + 1):
            g[i, j] = g[j, i] = gram(points[i], points[j])
    ridge = mpmath.mpf(lam) * (sum(g[i, i] for i in range(count)) if mode == 'rel' else 1)
    inverse = (g + ridge * mpmath.eye(count))**-1
    leverage = [1 - ridge * inverse[i, i] for i in range(count)]
    return float(sum(leverage)), np.array([float(value) for value in leverage])


def add_sample(name, x):
    x = x.astype(np.float32)
    lam = LAMBDAS[name]
    np.save(os.path.join(OUT, name + '.npy'), x)
    for mode in ('rel', 'gauss', 'abs'):
        whole, leverage = exactly(x, lam, mode)
        half, _ = exactly(x[:len(x) // 2], lam, mode)
        if name in ('small', 'clusters'):
            assert abs(by_eigenvalues(x, lam, mode) - whole) < 1e-6 * whole, (name, mode)
        np.save(os.path.join(OUT, f'{name}-{mode}.npy'), leverage)
        rows.append((name, mode, lam, whole, half))


def add_text(name, rng, count, dim, causal):
    q, k = (rng.normal(0, 1.5, (count, dim)).astype(np.float32) for _ in range(2))
    np.save(os.path.join(OUT, name + '-q.npy'), q)
    np.save(os.path.join(OUT, name + '-k.npy'), k)

    def degrees(n):
        scores = q[:n].astype(np.float64) @ k[:n].astype(np.float64).T / np.sqrt(dim)
        if causal:
            scores[np.triu_indices(n, 1)] = -np.inf
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        squares = np.linalg.svd(weights, compute_uv=False)**2
        return (squares / (squares + 2.0**-8 * squares.sum())).sum()

    rows.append((name, 'attn', 2.0**-8, degrees(count), degrees(count // 2) if causal else 0))


def main():
    rng = np.random.default_rng(17)
    os.makedirs(OUT, exist_ok=True)
    add_sample('small', rng.normal(0, 0.4, (40, 6)))
    centres = rng.normal(0, 1, (4, 6))
    add_sample('clusters', centres[rng.integers(4, size=40)] + rng.normal(0, 0.2, (40, 6)))
    # A few rows whose kernel is beyond float64: each is one degree of freedom, and hides the others of `rel`.
    outliers = rng.normal(0, 2, (40, 6))
    outliers[::9] *= 35 / np.linalg.norm(outliers[::9], axis=1, keepdims=True)
    add_sample('outliers', outliers)
    # Each row twice: they share what one has.
    twins = rng.normal(0, 1, (20, 6)).astype(np.float32)
    add_sample('twins', np.concatenate([twins[:10], twins[:10], twins[10:], twins[10:]]))
    add_text('causal', rng, 33, 5, True)
    add_text('whole', rng, 33, 5, False)
    with open(os.path.join(OUT, 'expected.csv'), 'w', encoding='ascii') as file:
        file.write('name,mode,lambda,whole,half\n')
        for name, mode, lam, whole, half in rows:
            file.write(f'{name},{mode},{float(lam)!r},{float(whole)!r},{float(half)!r}\n')


main()
