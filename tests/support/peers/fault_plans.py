"""Which faults occur while an invocation is driven, and what each invocation has recorded."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.peers.wire import Packet, Result


@dataclass(kw_only=True)
class Plan:
    """Faults, by the index of the journal's entry that they concern."""

    cuts: dict[int, bool] = field(default_factory=dict)
    """The stream breaks off after this entry, which is stored (True) or lost (False); once each."""
    order: tuple[int, ...] = ()
    """These completions are sent in this order, each only after those before it."""
    lost: frozenset[int] = frozenset()
    """These completions are not sent while the stream lives; the request ends instead."""
    twice: frozenset[int] = frozenset()
    """These completions and acknowledgements are sent twice."""
    piece: int = 0
    """Bytes that are written at a time; 0 writes all at once."""
    eager: Callable[[bytes], bool] | None = lambda _: True
    """Which keys of the state StartMessage carries; None for a partial map."""
    attempts: int = 30
    """After so many attempts the invocation counts as hung."""


class FailedError(Exception):
    """The invocation ended with this failure."""

    def __init__(self, failure: dict[str, Any]) -> None:
        super().__init__(f"{failure['code']}: {failure['message']}")
        self.code, self.message = failure["code"], failure["message"]


@dataclass(kw_only=True, eq=False)
class Invocation:
    id: bytes
    service: str
    handler: str
    key: str
    alone: bool
    """Whether no other invocation that writes its key's state runs beside it."""
    plan: Plan
    journal: list[Packet]
    output: asyncio.Future[Result]
    errors: list[dict[str, Any]] = field(default_factory=list)
    """The ErrorMessages of its attempts; empty for a stream that broke off."""
    attempts: int = 0
    retries: int = 0
    """Failed attempts since an entry was stored."""
    suspended: list[tuple[int, ...]] = field(default_factory=list)
    children: dict[int, Invocation] = field(default_factory=dict)
    canceled: bool = False
    on_completion: Callable[[int], None] = lambda _: None
    """Called with each entry that is completed while a stream lives."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return "inv_1" + base64.urlsafe_b64encode(self.id).decode().rstrip("=")

    def complete(self, index: int, result: Result) -> None:
        """Complete an entry; a completed one stays as it is."""
        if not self.journal[index].completed:
            self.journal[index] = self.journal[index].with_result(result)
            self.changed.set()
            self.on_completion(index)


def parse_awakeable(awakeable: str) -> tuple[bytes, int]:
    """Return the invocation's id and the entry's index that an awakeable's id holds."""
    assert awakeable.startswith("prom_1"), awakeable
    text = awakeable.removeprefix("prom_1")
    packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return packed[:-4], int.from_bytes(packed[-4:], "big")
