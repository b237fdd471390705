# SPDX-License-Identifier: MIT
"""What pages of the documentation show of Python runs: each block by itself."""

import re
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "features.md", *sorted(DOCS.glob("mechanisms/*.md"))]
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
