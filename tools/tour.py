#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws docs/pictures/tour-*.svg from what the code of docs/tour.md computes, which it runs:

make test && PYTHONPATH=build/python tools/tour.py"""

import math
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 56, 14, 14, 46
# Those of tools/weights.py, where one is of a mechanism.
CONSTANT, LINE, MESA, SUMS, DELTA = "#D55E00", "#0072B2", "#009E73", "#E69F00", "#CC79A7"


class Chart:
    """Lines and points in a frame, in the units of the data; logarithmic where `log` has the axis."""

    def __init__(self, x, y, xlabel, ylabel, ticks, log=""):
        self.ends, self.log, self.parts, self.entries = {"x": x, "y": y}, log, [], []
        for at in ticks[0]:
            left = self.place("x", at)
            self.parts.append(f'<path d="M{left} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
            self.text(left, HEIGHT - BOTTOM + 16, f"{at:g}", "middle")
        for at in ticks[1]:
            top = self.place("y", at)
            self.parts.append(f'<path d="M{LEFT} {top}H{WIDTH - RIGHT}" stroke="#eee"/>')
            self.text(LEFT - 6, top + 4, f"{at:g}", "end")
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, xlabel, "middle")
        middle = (TOP + HEIGHT - BOTTOM) / 2
        self.parts.append(
            f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{ylabel}</text>'
        )

    def place(self, axis, value):
        first, last = self.ends[axis]
        if axis in self.log:
            first, last, value = math.log(first), math.log(last), math.log(max(value, first))
        share = (value - first) / (last - first)
        if axis == "x":
            return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    def text(self, x, y, text, anchor):
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>')

    def line(self, x, y, colour, name, dots=False):
        points = [(self.place("x", a), self.place("y", b)) for a, b in zip(x, y)]
        path = " ".join(f"{a},{b}" for a, b in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if dots:
            self.parts += [f'<circle cx="{a}" cy="{b}" r="3" fill="{colour}"/>' for a, b in points]
        self.entries.append((colour, name))

    def points(self, x, y):
        for a, b in zip(x, y):
            left, top = self.place("x", a), self.place("y", b)
            self.parts.append(f'<circle cx="{left}" cy="{top}" r="3" fill="none" stroke="#555"/>')

    def save(self, name, legend):
        left, top = legend
        for row, (colour, entry) in enumerate(self.entries):
            y = top + 18 * row
            self.parts.append(f'<path d="M{left} {y - 4}h22" stroke="{colour}" stroke-width="2"/>')
            self.text(left + 28, y, entry, "start")
        frame = (
            f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}"'
            ' fill="none" stroke="#999"/>'
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
            f' height="{HEIGHT}" font-family="sans-serif" font-size="12">'
            '<rect width="100%" height="100%" fill="white"/>'
        )
        (ROOT / "docs" / "pictures" / name).write_text("\n".join([head, *self.parts, frame, "</svg>\n"]))


def main():
    page = (ROOT / "docs" / "tour.md").read_text()
    names = {}
    exec("\n".join(re.findall("```python\n(.*?)```", page, re.S)), names)

    chart = Chart((-0.3, 3.3), (-0.6, 4.2), "key", "value", ([0, 1, 2, 3], [0, 1, 2, 3, 4]))
    chart.points(names["keys"], names["values"])
    for name, colour, label in (("constant", CONSTANT, "softmax: a constant"), ("line", LINE, "LLA: a line")):
        chart.line(names["grid"], names[name].ravel(), colour, label)
    chart.save("tour-fit.svg", (LEFT + 16, TOP + 24))

    chart = Chart(
        (0, 66),
        (0, 2.2),
        "pairs in the state",
        "mean squared error",
        ([0, 16, 32, 48, 64], [0, 0.5, 1, 1.5, 2]),
    )
    for (name, errors), colour in zip(names["errors"].items(), (SUMS, DELTA, MESA, CONSTANT)):
        chart.line(names["counts"], errors, colour, name, dots=True)
    chart.save("tour-recall.svg", (LEFT + 16, TOP + 24))

    ticks = (names["features"], [0.1, 0.2, 0.4])
    chart = Chart((14, 590), (0.1, 0.65), "features", "relative error", ticks, log="xy")
    for (name, errors), colour in zip(names["drawn"].items(), (SUMS, LINE)):
        chart.line(names["features"], errors, colour, name, dots=True)
    chart.save("tour-features.svg", (WIDTH - 160, TOP + 24))


if __name__ == "__main__":
    main()
