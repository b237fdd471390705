# SPDX-License-Identifier: MIT
"""A bar of progress on standard error, with the time left; silent where that is no terminal."""

import sys
import time


def steps(count, label):
    """range(count), with a bar."""
    begun = time.monotonic()
    for step in range(count):
        yield step
        if not sys.stderr.isatty():
            continue
        share = (step + 1) / count
        left = (time.monotonic() - begun) * (1 - share) / share
        cells = "#" * int(30 * share)
        end = "\r\033[K" if step + 1 == count else ""
        print(f"\r\033[K{label} [{cells:.<30}] {share:4.0%}, {left:.0f} s left", end=end, file=sys.stderr)
