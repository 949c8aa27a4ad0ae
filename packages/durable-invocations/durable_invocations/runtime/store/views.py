"""What people and programs are shown of invocations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum

from durable_invocations.protocol.failures import ErrorReport
from durable_invocations.protocol.frames import Frame
from durable_invocations.protocol.results import Result


class Status(IntEnum):
    """Where an invocation stands."""

    SCHEDULED = 0
    """To begin at a later time."""
    INBOX = 1
    """Waits for an earlier one of its key."""
    READY = 2
    RUNNING = 3
    SUSPENDED = 4
    BACKING_OFF = 5
    PAUSED = 6
    COMPLETED = 7
    """Has ended, also with a failure."""

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


def target(service: str, key: str, handler: str) -> str:
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
    """Empty: not begun."""
    idempotency_key: str | None
    headers: tuple[tuple[str, str], ...]
    parent: str
    """The invocation that called it; empty: none."""
    created: int
    changed: int
    ended: int | None
    next_at: int | None
    """Of one that is scheduled or backs off."""
    attempts: int
    entries: int
    """In its journal."""
    waits: tuple[int, ...]
    """The entries that a suspended one waits for."""
    owner: str
    """The runtime that drives it; empty: none."""
    canceled: bool
    """A cancellation that no entry has met yet."""
    error: ErrorReport | None
    """Of the last attempt that failed."""
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
    """The invocation that a call made; empty: none."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Which invocations; empty: any."""

    statuses: Collection[Status] = ()
    failed: bool = False
    """Only those that ended with a failure."""
    service: str = ""
    handler: str = ""
    key: str | None = None
    idempotency_key: str | None = None
    parent: str = ""
    before: int | None = None
    """Of a smaller number, to list on."""
    limit: int = 100


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a runtime asks for again and again."""

    ready: bool
    """There is something to claim."""
    news: bool
    """`TakeNews` has something."""
    next_at: int | None
    """The earliest sleep, delay or retry."""
    ended: Mapping[str, Result]
    """Of those that were asked for."""
    gone: Collection[str] = ()
    """Those that were asked for, and are not there or no longer."""
