"""The invocation whose entries are committed, and what becomes of an entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql.work import VIOLATION, Work
from durable_invocations.runtime.store.outcomes import Refused


@dataclass(kw_only=True, slots=True)
class Driven:
    """Mutable: grows with each entry of the transaction."""

    number: int
    id: str
    service: str
    key: str
    length: int
    canceled: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Acted:
    """The entry is to be stored; without a result, a completable one is open."""

    result: Result | None = None
    child: str | None = None


ACTED = Acted()

Action = Callable[[Work, Driven, Any], Acted | Refused]
"""Does what the next entry, with this message, says; refused: nothing was done."""


def violation(driven: Driven, what: str) -> Refused:
    return Refused(code=VIOLATION, message=f"Entry {driven.length} of {driven.id}: {what}")
