"""How much longer a calculation takes as its input grows, on any processor."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SLACK = 3
"""What the best of a few measurements may be off by; a step that copies all before it is 8 x 8."""


def time_growth(calculate: Callable[[int], Any], small: int, large: int) -> float:
    """Return how many times as much processor time `large` takes as `small`: the best of three."""
    return _seconds(calculate, large) / _seconds(calculate, small)


def _seconds(calculate: Callable[[int], Any], size: int) -> float:
    def measure() -> float:
        begin = time.process_time()
        calculate(size)
        return time.process_time() - begin

    return min(measure() for _ in range(3))
