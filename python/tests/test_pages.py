# SPDX-License-Identifier: MIT
"""What pages of the documentation show of Python runs: each block by itself."""

import re
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "features.md", DOCS / "migration.md", *sorted(DOCS.glob("mechanisms/*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{n}")
    for page in PAGES
    for n, block in enumerate(re.findall("```python\n(.*?)```", page.read_text(), re.S))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs(block):
    if "torch" in block:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    names = {}
    exec(block, names)
    o = names["o"]
    assert np.isfinite(np.asarray(o)).all()


def test_the_tour_runs():
    page = (DOCS / "tour.md").read_text()
    names = {}
    exec("\n".join(re.findall("```python\n(.*?)```", page, re.S)), names)
    # What the text says of the pictures.
    errors = list(names["errors"].values())
    assert all(x >= y >= z for x, y, z in zip(errors[0][1:], errors[1][1:], errors[2][1:]))
    assert max(errors[2][:6]) < 0.02 and max(errors[3]) < 1e-3
    curve = np.sin(2 * names["grid"]) + names["grid"]
    off = [np.abs(names[name].ravel() - curve).mean() for name in ("constant", "line")]
    assert off[1] < 0.7 * off[0]
    for drawn in names["drawn"].values():
        assert all(x > y for x, y in zip(drawn, drawn[1:]))
