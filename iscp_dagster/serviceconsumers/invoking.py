"""The invocations of one tenant's chunks, from the request for each to its end."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from durable_invocations.client.errors import shown
from durable_invocations.protocol.failures import TOO_LARGE
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.errors import IscpError, SchemaError
from iscp_dagster.serviceconsumers.chunks import Chunk, Owner
from iscp_dagster.serviceconsumers.errors import InvocationFailedError, InvocationRefusedError
from iscp_dagster.serviceconsumers.services import (
    INVOKED,
    PAUSED,
    InvocationGoingError,
    Invoked,
    Services,
)

LOOK_SECONDS = 1.0
"""How long one look at an invocation may take; between looks, the fence is asked for."""
SHOWN = 50
"""The latest invocations of a tenant and range that are shown."""


@dataclass
class Patience:
    """How long all wait: only as long as invocations of the iteration end well."""

    seconds: float
    monotonic: Callable[[], float]
    moved: float = field(init=False)
    """When one last did."""

    def __post_init__(self) -> None:
        self.move()

    def move(self) -> None:
        self.moved = self.monotonic()

    @property
    def over(self) -> bool:
        return self.monotonic() - self.moved > self.seconds


@dataclass(kw_only=True)
class Invoking:
    """Invokes one tenant's chunks, and counts what it did."""

    declared: ServiceConsumer
    services: Services
    tenant: str
    owner: Owner
    lost: Callable[[], IscpError | None]
    """Why the run may do nothing more for the tenant; None: it may."""
    patience: Patience
    keys: Sequence[str] = ()
    """The columns that name a row in messages."""
    repairs: int = 0
    """How often the job was repaired since its range began; the same when that is replayed."""
    begun: int = 0
    attached: int = 0
    seen: dict[int, tuple[Chunk, Invoked]] = field(default_factory=dict)
    """The latest chunks by number, with their invocations as last seen."""

    def invoke(self, chunks: Iterable[Chunk]) -> None:
        """Invoke all, each once earlier ones have ended.

        Raises why one has not ended well: InvocationGoingError, InvocationFailedError, what `lost`
        says, and what the services raise.
        """
        waiting = deque[tuple[Chunk, Invoked]]()
        for chunk in chunks:
            if len(waiting) >= self.declared.at_once:
                self._end(*waiting.popleft())
            waiting.append((chunk, self._sent(chunk)))
        while waiting:
            self._end(*waiting.popleft())

    def _sent(self, chunk: Chunk) -> Invoked:
        """The chunk's invocation: the one that there is, also if it has failed since.

        Whoever repaired the job has one that failed before that tried anew.
        """
        declared, services = self.declared, self.services
        service, handler = declared.service, declared.method
        self._check()
        keyed = services.keyed(declared.url, service, handler)
        key = self.tenant if keyed else None
        names = [chunk.key(self.owner, repairs=each) for each in range(self.repairs + 1)]
        standing = (
            each
            for each in names[:-1]
            if services.stands(service, handler, key=key, idempotency_key=each)
        )
        name = next(standing, names[-1])
        self._check()
        try:
            invoked = services.send(service, handler, chunk.body, key=key, idempotency_key=name)
        except InvocationRefusedError as error:
            raise (self._too_large(chunk) if error.status == TOO_LARGE else error) from error
        self.begun += 1
        self.attached += not invoked.is_new
        self._see(chunk, invoked)
        return invoked

    def _end(self, chunk: Chunk, invoked: Invoked) -> None:
        while True:
            seen = self.services.look(invoked, min(LOOK_SECONDS, self.patience.seconds))
            invoked = replace(seen, is_new=invoked.is_new)
            self._see(chunk, invoked)
            if invoked.ended or invoked.status == PAUSED:
                break
            self._check()
            if self.patience.over:
                break
        if not invoked.ended:
            raise InvocationGoingError(self._going(chunk, invoked))
        if invoked.failed:
            raise InvocationFailedError(self._failed(chunk, invoked))
        self.patience.move()

    def _check(self) -> None:
        if (error := self.lost()) is not None:
            raise error

    def _see(self, chunk: Chunk, invoked: Invoked) -> None:
        self.seen[chunk.number] = chunk, invoked
        self.seen.pop(chunk.number - SHOWN, None)

    @property
    def facts(self) -> dict[str, Any]:
        """What is shown of the invocations so far; with none, only their number."""
        shown = [_shown(chunk, invoked) for chunk, invoked in self.seen.values()]
        counts = {"invocations": self.begun, "attached": self.attached}
        return {**counts, **({INVOKED: shown} if shown else {})}

    def _head(self, chunk: Chunk, invoked: Invoked) -> str:
        declared, part = self.declared, chunk.part
        return (
            f"Service consumer {declared.name!r}: invocation {invoked.id} of {declared.handler} "
            f"with chunk {chunk.number} of ({part.from_}, {part.to}] ({invoked.link})"
        )

    def _too_large(self, chunk: Chunk) -> SchemaError:
        row = max(json.loads(chunk.body)["rows"], key=lambda each: len(json.dumps(each)))
        key = {name: row[name] for name in self.keys}
        return SchemaError(
            f"Service consumer {self.declared.name!r}: chunk {chunk.number} has "
            f"{len(chunk.body):,} bytes, more than the runtime of invocations takes; its largest "
            f"row is {key}. Leave large columns out (columns=[...]), or make the row smaller and "
            "repair the job."
        )

    def _failed(self, chunk: Chunk, invoked: Invoked) -> str:
        return (
            f"{self._head(chunk, invoked)} failed: {_why(invoked)}. Correct the handler or what "
            "it met, then repair the job (`iscp job repair`), which invokes it anew."
        )

    def _going(self, chunk: Chunk, invoked: Invoked) -> str:
        last = f", last {_why(invoked)}" if invoked.failure else ""
        then = (
            f"resume it (`iscp invocations resume {invoked.id}`)"
            if invoked.status == PAUSED
            else f"it goes on ({self.declared.patience:g} s are waited for it at a time)"
        )
        return (
            f"{self._head(chunk, invoked)} is {invoked.status}{last}; {then}. The next iteration "
            "attaches to it."
        )


def _shown(chunk: Chunk, invoked: Invoked) -> dict[str, Any]:
    ended = "failed" if invoked.failed else "completed"
    return {
        "versions": f"({chunk.part.from_}, {chunk.part.to}]",
        "chunk": chunk.number,
        "rows": chunk.rows,
        "id": invoked.id,
        "status": ended if invoked.ended else invoked.status,
        "attached": not invoked.is_new,
        "link": invoked.link,
    }


def _why(invoked: Invoked) -> str:
    """What goes on in a sentence."""
    return shown(invoked.failure).rstrip(".")
