"""What differs from processor to processor: the last digits of floats."""

from __future__ import annotations

from typing import Any

import pytest

FLOAT32_ERROR = 1e-6
"""What processors may make different of a distance that is calculated in 32-bit floats."""


def approximate(value: Any) -> Any:
    """Return the JSON value, whose numbers equal others within FLOAT32_ERROR; texts are exact."""
    if isinstance(value, dict):
        return {name: approximate(item) for name, item in value.items()}
    if isinstance(value, list):
        return [approximate(item) for item in value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return pytest.approx(value, rel=FLOAT32_ERROR, abs=FLOAT32_ERROR) if is_number else value
