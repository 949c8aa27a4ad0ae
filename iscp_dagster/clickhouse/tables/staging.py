"""The tables in which tenants are built, one for each attempt at building some.

Nobody else knows its name, so nobody else's rows are in it; and when it is gone, whatever a run
sent to put it in place finds nothing.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection

ATTEMPT = r"r(?P<run>[0-9a-f]{8})_[0-9a-f]{8}"
_ATTEMPT = re.compile(rf".*_{ATTEMPT}")


def new_attempt(run_id: str) -> str:
    """What the table's name ends in: which run's it is, and which of the run's."""
    return f"r{_mark(run_id)}_{secrets.token_hex(4)}"


def left(tables: Collection[str], alive: Collection[str]) -> list[str]:
    """Those of the staging tables that are of none of the runs."""
    marks = {_mark(run) for run in alive}
    return sorted(
        table for table in tables if (it := _ATTEMPT.fullmatch(table)) and it["run"] not in marks
    )


def _mark(run_id: str) -> str:
    return hashlib.blake2b(run_id.encode(), digest_size=4).hexdigest()
