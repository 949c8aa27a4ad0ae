"""The tables in which tenants are built, one for each attempt.

Only the attempt knows the table's name, so only its rows are in it. Once the table is dropped, a
delayed statement that would publish it fails.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection

ATTEMPT = r"r(?P<run>[0-9a-f]{8})_[0-9a-f]{8}"
_ATTEMPT = re.compile(rf".*_{ATTEMPT}")


def make_attempt_id(run_id: str) -> str:
    """Return the end of the table's name, which identifies the run and its attempt."""
    return f"r{_hash_run_id(run_id)}_{secrets.token_hex(4)}"


def repeat_attempt_id(attempt: str) -> str:
    """Return the end of another table's name for the run of an attempt."""
    return f"{attempt.partition('_')[0]}_{secrets.token_hex(4)}"


def find_leftover_tables(tables: Collection[str], alive: Collection[str]) -> list[str]:
    """Return the staging tables that belong to none of the runs `alive`."""
    hashes = {_hash_run_id(run) for run in alive}
    return sorted(
        table
        for table in tables
        if (match := _ATTEMPT.fullmatch(table)) and match["run"] not in hashes
    )


def _hash_run_id(run_id: str) -> str:
    return hashlib.blake2b(run_id.encode(), digest_size=4).hexdigest()
