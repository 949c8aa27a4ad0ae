"""How a code server hears that it is to end, so that no tick of a sensor waits any longer."""

from __future__ import annotations

import os
from pathlib import Path

ENDING_VARIABLE = "ISCP_ENDING_FILE"
"""Names a file that is there once the process is to end."""


def is_ending() -> bool:
    path = os.environ.get(ENDING_VARIABLE)
    return path is not None and Path(path).exists()
