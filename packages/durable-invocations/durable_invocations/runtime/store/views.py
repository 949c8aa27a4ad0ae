"""Invocations as people and programs see them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum

from durable_invocations.protocol.failures import ErrorReport
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.results import Result


class Status(IntEnum):
    """The status of an invocation."""

    SCHEDULED = 0
    """Begins at a later time."""
    INBOX = 1
    """Waits for an earlier one of its key."""
    READY = 2
    RUNNING = 3
    SUSPENDED = 4
    BACKING_OFF = 5
    PAUSED = 6
    COMPLETED = 7
    """Has ended, with a value or a failure."""

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


def format_target(service: str, key: str, handler: str) -> str:
    """A handler as one text: `Service/handler` or `Object/key/handler`."""
    return "/".join(filter(None, (service, key, handler)))


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """An invocation; times are milliseconds since 1970."""

    number: int
    """Grows with each submission."""
    id: str
    service: str
    handler: str
    key: str
    status: Status
    deployment: str
    """Empty if it has not begun."""
    idempotency_key: str | None
    headers: tuple[tuple[str, str], ...]
    parent: str
    """The invocation that called it, if any."""
    created: int
    changed: int
    ended: int | None
    next_at: int | None
    """Set while it is scheduled or backs off."""
    attempts: int
    entries: int
    """In its journal."""
    waits: tuple[int, ...]
    """The entries that it waits for while suspended."""
    owner: str
    """The runtime that drives it, if any."""
    canceled: bool
    """Canceled, and no entry has failed for it yet."""
    error: ErrorReport | None
    """Of the last failed attempt."""
    error_at: int | None
    result: Result | None


@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """An entry as it is stored."""

    index: int
    frame: Frame
    """With its result, if it is completed."""
    name: str
    created: int
    completed_at: int | None
    child: str
    """The invocation that a call began, if any."""


@dataclass(frozen=True, kw_only=True)
class InvocationFilter:
    """A filter of invocations; empty matches any."""

    statuses: Collection[Status] = ()
    failed: bool = False
    """Only those that ended with a failure."""
    service: str = ""
    handler: str = ""
    key: str | None = None
    idempotency_key: str | None = None
    parent: str = ""
    before: int | None = None
    """Only smaller numbers, for the next page."""
    limit: int = 100


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a runtime polls for."""

    ready: bool
    """There is something to claim."""
    news: bool
    """`TakeNews` has something."""
    next_at: int | None
    """The earliest sleep, delay or retry."""
    ended: Mapping[str, Result]
    """Of the watched invocations."""
    gone: Collection[str] = ()
    """Watched invocations that do not exist, or no longer."""
