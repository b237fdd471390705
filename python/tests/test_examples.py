# SPDX-License-Identifier: MIT
"""Examples run, in seconds, and leave a picture."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# What each needs beside NumPy and matplotlib, and what it says.
SAID = {
    "train_regression": ("torch", r"softmax: [\d.]+ of .*\nParallax: [\d.]+ of .*\nLLA: [\d.]+ of"),
    "generate": ("torch", r"40 bytes: [\d.]+ s with a cache, [\d.]+ s without; the same\n"),
    "weights_of_a_head": (
        "matplotlib",
        r"^softmax: weights below 0 sum to 0.000 .*\nLLA: weights below 0 sum to 0.*[1-9]",
    ),
    "earthquakes": ("matplotlib", r"stations by local linear: bandwidth mag 0[\d.]+; left-out error 9\.57"),
}


def run(name, *words):
    call = [sys.executable, EXAMPLES / f"{name}.py", *words]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", SAID)
def test_it_runs(name, tmp_path):
    needs, said = SAID[name]
    for module in needs, "matplotlib":
        pytest.importorskip(module, reason=f"{module} is not installed")
    picture = tmp_path / "picture.png"
    out = run(name, "--quick", "--out", picture)
    assert re.search(said, out), out
    assert out.splitlines()[-1] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "--quick" in run(name, "--help")


def test_all_are_here():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")} - {"progress"}
    assert scripts == set(SAID)
