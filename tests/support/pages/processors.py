"""What differs from processor to processor: the last digits of floats, and how long things take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

FLOAT32_ERROR = 1e-6
"""What processors may make different of a distance that is calculated in 32-bit floats."""
SLACK = 3
"""What the best of a few measurements may be off by; a step that copies all before it is 8 x 8."""


def approximate(value: Any) -> Any:
    """Return the JSON value with numbers that equal those within FLOAT32_ERROR; texts are exact."""
    if isinstance(value, dict):
        return {name: approximate(item) for name, item in value.items()}
    if isinstance(value, list):
        return [approximate(item) for item in value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return pytest.approx(value, rel=FLOAT32_ERROR, abs=FLOAT32_ERROR) if is_number else value


def time_growth(calculate: Callable[[int], Any], small: int, large: int) -> float:
    """Return how many times as much processor time `large` takes as `small`: the best of three."""
    return _seconds(calculate, large) / _seconds(calculate, small)


def _seconds(calculate: Callable[[int], Any], size: int) -> float:
    def measure() -> float:
        begin = time.process_time()
        calculate(size)
        return time.process_time() - begin

    return min(measure() for _ in range(3))
