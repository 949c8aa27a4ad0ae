"""What follows from an attempt's stream, for the store and for the handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from durable_invocations.errors import UnavailableError
from durable_invocations.journal import runtime_events as events
from durable_invocations.journal.runtime_side import begin_attempt, step
from durable_invocations.protocol.failures import (
    INTERNAL,
    MOST_RUN_NAME,
    ErrorReport,
    FailedExecutions,
)
from durable_invocations.protocol.frames import Frame
from durable_invocations.runtime.driving.shared_services import AttemptContext
from durable_invocations.runtime.settings import MS
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.outcomes import Claimed, OperationRefusal

MOST_PENDING = 64
"""The most entries of an attempt that wait for their commit; then reading stops."""
MOST_TOLD, MOST_LOGGED = 10_000, 2_000
"""Characters of an error that are kept, and that are logged."""
MOST_RUNS, MOST_SAID = 1_000, 1_000
"""Runs whose failed executions are kept, and characters of each failure."""

logger = logging.getLogger(__name__)


class AttemptProgress:
    """Applies the runtime's side of the protocol to one claimed invocation.

    `notify` sends a frame to the handler; `abort` aborts the stream. Belongs to one event loop.
    """

    def __init__(
        self,
        claimed: Claimed,
        context: AttemptContext,
        *,
        version: int,
        duplex: bool,
        notify: Callable[[Frame], None],
        abort: Callable[[str], None],
    ) -> None:
        self._claimed, self._context = claimed, context
        self._notify, self._abort = notify, abort
        self._state = begin_attempt(claimed.journal, duplex=duplex, version=version)
        self._leaving: asyncio.Future[Any] | None = None
        self._made_progress = False
        self._room = asyncio.Event()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def length(self) -> int:
        return self._state.length

    @property
    def storing(self) -> bool:
        return self._state.stored < self._state.length

    @property
    def ending(self) -> bool:
        """Whether the handler sent its last message, or no more frames are accepted."""
        return self._state.last is not None or self._over.done()

    def step(self, event: events.InEvent) -> None:
        """Process an event and its effects."""
        if self._over.done():
            return
        self._state, out = step(self._state, event)
        for output in out:
            self._handle_output(output)
        if self._leaving is None and isinstance(
            self._state.last, (events.SuspendInvocation, events.FinishInvocation)
        ):
            # In one transaction with the entries before it; if one is refused, this is too.
            self._leaving = self._put_operation(self._build_leave_operation(self._state.last))
            self._leaving.add_done_callback(take_error)

    def handle_broken(self, report: ErrorReport) -> None:
        self.step(events.Broken(report=report))

    def drop(self, why: str) -> None:
        """Stop recording: this attempt no longer drives the invocation."""
        self._end()
        self._abort(why)

    async def wait_until_over(self) -> None:
        """Wait until the store knows how the attempt ended, or another runtime drives it."""
        await self._over

    async def wait_for_room(self) -> None:
        """Wait while too many entries are being stored."""
        while self._state.length - self._state.stored > MOST_PENDING and not self._over.done():
            self._room.clear()
            await self._room.wait()

    def _handle_output(self, out: events.OutEvent) -> None:
        if isinstance(out, events.StoreEntry):
            self._commit_entry(out)
        elif isinstance(out, events.Notify):
            self._notify(out.frame)
        elif isinstance(out, (events.SuspendInvocation, events.FinishInvocation)):
            self._leaving = self._leaving or self._put_operation(self._build_leave_operation(out))
            self._leaving.add_done_callback(self._handle_left)
        else:
            if isinstance(out, events.Violation):
                self._abort(out.report.message)
            self._record_failure(out.report)

    def _commit_entry(self, out: events.StoreEntry) -> None:
        claimed = self._claimed
        operation = op.CommitEntry(
            id=claimed.id, fence=claimed.fence, index=out.index, frame=out.entry
        )
        self._put_operation(operation).add_done_callback(partial(self._handle_stored, out))

    def _handle_stored(self, out: events.StoreEntry, future: asyncio.Future[Any]) -> None:
        self._room.set()
        outcome = self._resolve_outcome(future)
        if isinstance(outcome, OperationRefusal):
            self.step(
                events.EntryRefused(index=out.index, report=_make_refusal_report(out, outcome))
            )
            self._abort(outcome.message)
        elif outcome is not None:
            self._made_progress = True
            self.step(events.EntryCommitted(index=out.index))
            if outcome.result is not None:
                self.step(events.CompletionReady(index=out.index, result=outcome.result))

    def _record_failure(self, report: ErrorReport) -> None:
        """Schedule the next attempt, or pause the invocation."""
        claimed, policy = self._claimed, self._context.settings.policy
        report = replace(
            report,
            message=report.message[:MOST_TOLD],
            description=report.description[:MOST_TOLD],
            run_attempts=_bound_run_attempts(report, claimed),
        )
        failed_attempts = 1 if self._made_progress else claimed.retries + 1
        delay = None if report.retry_after is None else report.retry_after / MS
        wait = policy.compute_wait(failed_attempts, delay)
        _log_failure(claimed, failed_attempts, report, paused=wait is None)
        if wait is None:
            future = self._put_operation(op.Pause(id=claimed.id, fence=claimed.fence, error=report))
        else:
            next_at = self._context.clock() + round(wait * MS)
            future = self._put_operation(
                op.Fail(id=claimed.id, fence=claimed.fence, error=report, next_at=next_at)
            )
        future.add_done_callback(self._handle_recorded)

    def _handle_recorded(self, future: asyncio.Future[Any]) -> None:
        """The failure is recorded, or cannot be."""
        self._resolve_outcome(future)
        self._end()

    def _build_leave_operation(
        self, out: events.SuspendInvocation | events.FinishInvocation
    ) -> op.Suspend | op.Finish:
        claimed, length = self._claimed, self._state.length
        if isinstance(out, events.FinishInvocation):
            return op.Finish(id=claimed.id, fence=claimed.fence)
        return op.Suspend(id=claimed.id, fence=claimed.fence, indexes=out.indexes, length=length)

    def _handle_left(self, future: asyncio.Future[Any]) -> None:
        outcome = self._resolve_outcome(future)
        if isinstance(outcome, OperationRefusal):
            self._record_failure(ErrorReport(code=outcome.code, message=outcome.message))
        else:
            self._end()

    def _resolve_outcome(self, future: asyncio.Future[Any]) -> Any:
        """The outcome; None if the attempt is over: taken over, or without a database."""
        if future.cancelled():
            return self.drop("the runtime stops")
        error = future.exception()
        if error is not None and not isinstance(error, UnavailableError):
            # A retry would fail as well: the attempt has failed, and the error is recorded.
            return OperationRefusal(
                code=INTERNAL, message=f"the database refuses it: {_get_first_line(error)}"
            )
        if error is not None:
            logger.warning("%s: its attempt is dropped: %s", self._claimed.id, error)
            return self.drop(str(error))
        outcome = future.result()
        if isinstance(outcome, OperationRefusal) and outcome.fenced:
            return self.drop(outcome.message)
        return outcome

    def _put_operation(self, operation: op.StoreOperation[Any]) -> asyncio.Future[Any]:
        return self._context.put(operation)

    def _end(self) -> None:
        self._room.set()
        if not self._over.done():
            self._over.set_result(None)


def _bound_run_attempts(report: ErrorReport, claimed: Claimed) -> tuple[FailedExecutions, ...]:
    """The failed executions to keep; earlier attempts' if this one reports none."""
    if report.run_attempts is None:
        return claimed.run_attempts
    return tuple(_cut_run(run) for run in report.run_attempts[:MOST_RUNS])


def _cut_run(run: FailedExecutions) -> FailedExecutions:
    failure = run.failure and replace(run.failure, message=run.failure.message[:MOST_SAID])
    return replace(run, name=run.name[:MOST_RUN_NAME], failure=failure)


def _get_first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _log_failure(
    claimed: Claimed, failed_attempts: int, report: ErrorReport, *, paused: bool
) -> None:
    """Log the first failure in a row, and the one that pauses it."""
    label = f"{claimed.id} ({claimed.target})"
    # A service's text must stay one line, without terminal escapes.
    message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in report.message[:MOST_LOGGED])
    if paused:
        logger.warning(
            "%s is paused after %s attempts, until it is resumed: %s",
            label,
            failed_attempts,
            message,
        )
    elif failed_attempts == 1:
        logger.warning("%s: an attempt failed and is retried: %s", label, message)


def take_error(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from reporting an error that is reported elsewhere."""
    if not future.cancelled():
        future.exception()


def _make_refusal_report(out: events.StoreEntry, outcome: OperationRefusal) -> ErrorReport:
    kind = out.entry.kind
    message = f"Entry {out.index}, {kind}, is refused: {outcome.message}"
    return ErrorReport(code=outcome.code, message=message, index=out.index, kind=kind.code)
