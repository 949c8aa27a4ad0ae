"""How long soaks last."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

VARIABLE = "ISCP_SOAK_SECONDS"


def soak_seconds(otherwise: float) -> float:
    """Return how long a soak lasts: ISCP_SOAK_SECONDS, or `otherwise` where that is not set."""
    return float(os.environ.get(VARIABLE) or otherwise)


def rounds(most: int | None, seconds: float) -> Iterator[int]:
    """Count `most` rounds; without a number, those that begin within the seconds."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end if most is None else number < most:
        yield number
        number += 1
