"""The invocations of one tenant's chunks, from the request for each to its end."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from durable_invocations.client.errors import truncate_reason
from durable_invocations.protocol.failures import TOO_LARGE
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.errors import IscpError, SchemaError
from iscp_dagster.serviceconsumers.chunks import Chunk, JobIdentity
from iscp_dagster.serviceconsumers.errors import InvocationFailedError, InvocationRefusedError
from iscp_dagster.serviceconsumers.runtime_protocol import (
    INVOKED,
    PAUSED,
    InvocationRuntime,
    InvocationState,
    InvocationUnsettledError,
)

LOOK_SECONDS = 1.0
"""How long one look at an invocation may take; between looks, the fence is checked."""
SHOWN = 50
"""The most invocations of a tenant and range that are shown: the latest."""


@dataclass
class StallTimer:
    """Ends the waiting once no invocation of the iteration has succeeded for `seconds`."""

    seconds: float
    monotonic: Callable[[], float]
    last_success: float = field(init=False)
    """When one last succeeded."""

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.last_success = self.monotonic()

    @property
    def expired(self) -> bool:
        return self.monotonic() - self.last_success > self.seconds


@dataclass(kw_only=True)
class TenantInvoker:
    """Invokes one tenant's chunks, and counts what it did."""

    declared: ServiceConsumer
    runtime: InvocationRuntime
    tenant: str
    job_identity: JobIdentity
    find_claim_error: Callable[[], IscpError | None]
    """Why the run may do nothing more for the tenant; None: it may."""
    stall_timer: StallTimer
    keys: Sequence[str] = ()
    """The columns that name a row in messages."""
    repairs: int = 0
    """How often the job was repaired since its range began; the same when that is replayed."""
    invocation_count: int = 0
    attached_count: int = 0
    latest_chunks: dict[int, tuple[Chunk, InvocationState]] = field(default_factory=dict)
    """The latest chunks by number, with their invocations as last seen."""

    def invoke(self, chunks: Iterable[Chunk]) -> None:
        """Invoke all in order, at most `at_once` at a time.

        Raises the error of one that does not succeed: InvocationUnsettledError,
        InvocationFailedError, what `find_claim_error` returns, and what the runtime raises.
        """
        waiting = deque[tuple[Chunk, InvocationState]]()
        for chunk in chunks:
            if len(waiting) >= self.declared.at_once:
                self._await_end(*waiting.popleft())
            waiting.append((chunk, self._send_chunk(chunk)))
        while waiting:
            self._await_end(*waiting.popleft())

    def _send_chunk(self, chunk: Chunk) -> InvocationState:
        """The chunk's invocation: the existing one, even if it has failed since.

        After a repair of the job, an invocation that failed before it is tried anew.
        """
        declared, runtime = self.declared, self.runtime
        service, handler = declared.service, declared.method
        self._check_fence()
        keyed = runtime.ensure_handler(declared.url, service, handler)
        key = self.tenant if keyed else None
        names = [
            chunk.compute_key(self.job_identity, repairs=repairs)
            for repairs in range(self.repairs + 1)
        ]
        existing = (
            name
            for name in names[:-1]
            if runtime.has_invocation(service, handler, key=key, idempotency_key=name)
        )
        name = next(existing, names[-1])
        self._check_fence()
        try:
            invoked = runtime.send(service, handler, chunk.body, key=key, idempotency_key=name)
        except InvocationRefusedError as error:
            raise (self._make_size_error(chunk) if error.status == TOO_LARGE else error) from error
        self.invocation_count += 1
        self.attached_count += not invoked.is_new
        self._keep_latest(chunk, invoked)
        return invoked

    def _await_end(self, chunk: Chunk, invoked: InvocationState) -> None:
        while True:
            latest = self.runtime.poll_invocation(
                invoked, min(LOOK_SECONDS, self.stall_timer.seconds)
            )
            invoked = replace(latest, is_new=invoked.is_new)
            self._keep_latest(chunk, invoked)
            if invoked.ended or invoked.status == PAUSED:
                break
            self._check_fence()
            if self.stall_timer.expired:
                break
        if not invoked.ended:
            raise InvocationUnsettledError(self._describe_ongoing(chunk, invoked))
        if invoked.failed:
            raise InvocationFailedError(self._describe_failure(chunk, invoked))
        self.stall_timer.restart()

    def _check_fence(self) -> None:
        if (error := self.find_claim_error()) is not None:
            raise error

    def _keep_latest(self, chunk: Chunk, invoked: InvocationState) -> None:
        self.latest_chunks[chunk.number] = chunk, invoked
        self.latest_chunks.pop(chunk.number - SHOWN, None)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts to show of the invocations so far; without any, only their number."""
        invocations = [
            _describe_invocation(chunk, invoked) for chunk, invoked in self.latest_chunks.values()
        ]
        counts = {"invocations": self.invocation_count, "attached": self.attached_count}
        return {**counts, **({INVOKED: invocations} if invocations else {})}

    def _format_head(self, chunk: Chunk, invoked: InvocationState) -> str:
        declared, changes = self.declared, chunk.changes
        return (
            f"Service consumer {declared.name!r}: invocation {invoked.id} of {declared.handler} "
            f"with chunk {chunk.number} of ({changes.from_}, {changes.to}] ({invoked.link})"
        )

    def _make_size_error(self, chunk: Chunk) -> SchemaError:
        row = max(json.loads(chunk.body)["rows"], key=lambda row: len(json.dumps(row)))
        key = {name: row[name] for name in self.keys}
        return SchemaError(
            f"Service consumer {self.declared.name!r}: chunk {chunk.number} has "
            f"{len(chunk.body):,} bytes, more than the runtime of invocations takes; its largest "
            f"row is {key}. Leave large columns out (columns=[...]), or make the row smaller and "
            "repair the job."
        )

    def _describe_failure(self, chunk: Chunk, invoked: InvocationState) -> str:
        return (
            f"{self._format_head(chunk, invoked)} failed: {_format_failure(invoked)}. Correct the "
            "handler or the cause, then repair the job (`iscp job repair`), which invokes it anew."
        )

    def _describe_ongoing(self, chunk: Chunk, invoked: InvocationState) -> str:
        failure = f", last {_format_failure(invoked)}" if invoked.failure else ""
        advice = (
            f"resume it (`iscp invocations resume {invoked.id}`)"
            if invoked.status == PAUSED
            else f"it continues (an iteration waits {self.declared.patience:g} s for it)"
        )
        return (
            f"{self._format_head(chunk, invoked)} is {invoked.status}{failure}; {advice}. The next "
            "iteration "
            "attaches to it."
        )


def _describe_invocation(chunk: Chunk, invoked: InvocationState) -> dict[str, Any]:
    outcome = "failed" if invoked.failed else "completed"
    return {
        "versions": f"({chunk.changes.from_}, {chunk.changes.to}]",
        "chunk": chunk.number,
        "rows": chunk.rows,
        "id": invoked.id,
        "status": outcome if invoked.ended else invoked.status,
        "attached": not invoked.is_new,
        "link": invoked.link,
    }


def _format_failure(invoked: InvocationState) -> str:
    """The failure, to be continued in a sentence."""
    return truncate_reason(invoked.failure).rstrip(".")
