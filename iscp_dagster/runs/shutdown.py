"""Whether a code server is about to end, so that sensor ticks stop waiting."""

from __future__ import annotations

import os
from pathlib import Path

ENDING_VARIABLE = "ISCP_ENDING_FILE"
"""Names a file that exists once the process is to end."""


def is_ending() -> bool:
    path = os.environ.get(ENDING_VARIABLE)
    return path is not None and Path(path).exists()
