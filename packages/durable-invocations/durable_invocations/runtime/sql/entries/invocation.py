"""The invocation whose entries are committed, and the outcome of an entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from durable_invocations.protocol.results import Result
from durable_invocations.runtime.sql.transaction import VIOLATION, UnitOfWork
from durable_invocations.runtime.store.outcomes import OperationRefusal


@dataclass(kw_only=True, slots=True)
class CommittingInvocation:
    """Mutable: grows with each entry of the transaction."""

    number: int
    id: str
    service: str
    key: str
    length: int
    canceled: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryOutcome:
    """The entry is to be stored; a completable one without a result is open."""

    result: Result | None = None
    child: str | None = None


WITHOUT_RESULT = EntryOutcome()

EntryAction = Callable[[UnitOfWork, CommittingInvocation, Any], EntryOutcome | OperationRefusal]
"""Executes the next entry, with this message; if refused, nothing was done."""


def make_violation(invocation: CommittingInvocation, problem: str) -> OperationRefusal:
    return OperationRefusal(
        code=VIOLATION, message=f"Entry {invocation.length} of {invocation.id}: {problem}"
    )
