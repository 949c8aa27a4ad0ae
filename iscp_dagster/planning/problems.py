"""A problem of one source table, which stops no other table."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import IscpError, NoTableError, UnavailableError

DIGEST_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A message about the table, reported once as long as its `fingerprint` stays the same."""

    table: str
    message: str
    fingerprint: str
    severe: bool = True
    """Whether the table's indexes cannot follow it."""
    missing: bool = False
    """Whether the table is not there."""
    code: int = 0
    """The code of the error (docs/errors.md); 0 for a remark."""
    facts: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Numbers to show."""

    def __str__(self) -> str:
        return f"{self.table}: {self.message}"


def make_problem(source: SourceTable, error: Exception) -> Problem:
    """The problem for an error that the table raised, expected or not."""
    if isinstance(error, IscpError):
        # A store's message differs from look to look.
        fingerprint = type(error).__name__ if isinstance(error, UnavailableError) else str(error)
        missing = isinstance(error, NoTableError)
        return Problem(
            table=source.name,
            message=str(error),
            fingerprint=fingerprint,
            severe=not missing,
            missing=missing,
            code=error.code,
        )
    return Problem(
        table=source.name,
        message=str(to_iscp_error(error)),
        fingerprint=type(error).__name__,
        code=IscpError.code,
    )


def to_iscp_error(error: Exception) -> IscpError:
    """The error itself if it is one of ours, else one that says what was raised and where."""
    if isinstance(error, IscpError):
        return error
    return IscpError(
        f"An unexpected error, {type(error).__name__}: {error} ({_format_raise_site(error)})."
    )


def hash_problems(problems: Collection[Problem]) -> str:
    """A short digest, the same for the same problems."""
    fingerprints = "\n".join(sorted(problem.fingerprint for problem in problems))
    return hashlib.blake2b(fingerprints.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _format_raise_site(error: Exception) -> str:
    """Where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
