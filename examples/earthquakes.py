#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fits a table of earthquakes near Fiji (data/quakes.csv) by local lines, with standard errors: how many
stations report one of a magnitude, and how deep they are by place.

    pip install matplotlib && examples/earthquakes.py
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot

import loam_attn
from loam_attn import plot

TABLE = Path(__file__).resolve().parents[1] / "data" / "quakes.csv"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--quick", action="store_true", help="every fifth row: does it run?")
    parser.add_argument("--out", default="earthquakes.png", help="the picture")
    arguments = parser.parse_args()
    table = np.genfromtxt(arguments.table, delimiter=",", names=True)[:: 5 if arguments.quick else 1]
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for ax, columns, y in zip(axes, (["mag"], ["long", "lat"]), ("stations", "depth")):
        X = np.stack([table[name] for name in columns], 1)
        models = {name: loam_attn.Regressor(name).fit(X, table[y]) for name in ("constant", "linear")}
        for name, model in models.items():
            widths = ", ".join(f"{c} {h:.3g}" for c, h in zip(columns, model.bandwidth_))
            print(f"{y} by local {name}: bandwidth {widths}; left-out error {model.leave_one_out_error_:.4g}")
        centre = np.median(X, 0)[None]
        value, error = models["linear"].predict(centre, return_std=True)
        print(f"{y} at {centre[0].tolist()}: {value[0]:.4g} +- {error[0]:.2g}")
        plot.fit(models["linear"], X, table[y], ax=ax, title=f"{y} by {', '.join(columns)}")
        ax.set(xlabel=columns[0], ylabel=y)
    figure.savefig(arguments.out)
    print(arguments.out)


if __name__ == "__main__":
    main()
