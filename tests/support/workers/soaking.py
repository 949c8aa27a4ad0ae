"""How long soaks go on."""

from __future__ import annotations

import os

VARIABLE = "ISCP_SOAK_SECONDS"


def soak_seconds(otherwise: float) -> float:
    """Return for how long a soak is asked to go on; `otherwise` unless somebody asked."""
    return float(os.environ.get(VARIABLE) or otherwise)
