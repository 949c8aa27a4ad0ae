"""What follows from an attempt's stream: what the store is told, and what the handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from durable_invocations.errors import UnavailableError
from durable_invocations.journal import runtime_events as events
from durable_invocations.journal.runtime_side import begun, step
from durable_invocations.protocol.failures import INTERNAL, MOST_RUN_NAME, ErrorReport, RunAttempts
from durable_invocations.protocol.frames import Frame
from durable_invocations.runtime.driving.tools import Tools
from durable_invocations.runtime.settings import MS
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.outcomes import Claimed, Refused

MOST_PENDING = 64
"""Entries of an attempt that wait for their commit before no more are read."""
MOST_TOLD, MOST_LOGGED = 10_000, 2_000
"""Characters of an error that are kept, and logged."""
MOST_RUNS, MOST_SAID = 1_000, 1_000
"""Runs whose failed executions are kept, and characters of a failure of one."""

logger = logging.getLogger(__name__)


class Course:
    """Applies the runtime's side of the protocol to one claimed invocation.

    `notify` sends a frame to the handler; `abort` breaks the stream off. Belongs to one event loop.
    """

    def __init__(
        self,
        claimed: Claimed,
        tools: Tools,
        *,
        version: int,
        duplex: bool,
        notify: Callable[[Frame], None],
        abort: Callable[[str], None],
    ) -> None:
        self._claimed, self._tools = claimed, tools
        self._notify, self._abort = notify, abort
        self._state = begun(claimed.journal, duplex=duplex, version=version)
        self._leaving: asyncio.Future[Any] | None = None
        self._progress = False
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
        """Whether the handler sent its last message, or nothing more is to be taken from it."""
        return self._state.last is not None or self._over.done()

    def step(self, event: events.InEvent) -> None:
        """Take an event in, and do what follows."""
        if self._over.done():
            return
        self._state, out = step(self._state, event)
        for each in out:
            self._do(each)
        if self._leaving is None and isinstance(self._state.last, (events.Suspend, events.Finish)):
            # In one transaction with the entries before it; if one is refused, so is this.
            self._leaving = self._put(self._leave(self._state.last))
            self._leaving.add_done_callback(take_error)

    def broken(self, report: ErrorReport) -> None:
        self.step(events.Broken(report=report))

    def drop(self, why: str) -> None:
        """Record nothing more: the invocation is not this attempt's."""
        self._end()
        self._abort(why)

    async def over(self) -> None:
        """Wait until the store knows how the attempt ended, or somebody else drives it."""
        await self._over

    async def room(self) -> None:
        """Wait while too many entries are being stored."""
        while self._state.length - self._state.stored > MOST_PENDING and not self._over.done():
            self._room.clear()
            await self._room.wait()

    def _do(self, out: events.OutEvent) -> None:
        if isinstance(out, events.Commit):
            self._commit(out)
        elif isinstance(out, events.Notify):
            self._notify(out.frame)
        elif isinstance(out, (events.Suspend, events.Finish)):
            self._leaving = self._leaving or self._put(self._leave(out))
            self._leaving.add_done_callback(self._left)
        else:
            if isinstance(out, events.Violation):
                self._abort(out.report.message)
            self._failed(out.report)

    def _commit(self, out: events.Commit) -> None:
        claimed = self._claimed
        operation = op.Commit(id=claimed.id, fence=claimed.fence, index=out.index, frame=out.entry)
        self._put(operation).add_done_callback(partial(self._stored, out))

    def _stored(self, out: events.Commit, future: asyncio.Future[Any]) -> None:
        self._room.set()
        outcome = self._outcome(future)
        if isinstance(outcome, Refused):
            self.step(events.Refused(index=out.index, report=_refusal(out, outcome)))
            self._abort(outcome.message)
        elif outcome is not None:
            self._progress = True
            self.step(events.Committed(index=out.index))
            if outcome.result is not None:
                self.step(events.CompletionReady(index=out.index, result=outcome.result))

    def _failed(self, report: ErrorReport) -> None:
        """Try again later, or leave it to a person."""
        claimed, policy = self._claimed, self._tools.settings.policy
        report = replace(
            report,
            message=report.message[:MOST_TOLD],
            description=report.description[:MOST_TOLD],
            run_attempts=_bounded(report, claimed),
        )
        failed = 1 if self._progress else claimed.retries + 1
        asked = None if report.retry_after is None else report.retry_after / MS
        wait = policy.wait(failed, asked)
        _log(claimed, failed, report, paused=wait is None)
        if wait is None:
            last = self._put(op.Pause(id=claimed.id, fence=claimed.fence, error=report))
        else:
            at = self._tools.clock() + round(wait * MS)
            last = self._put(op.Fail(id=claimed.id, fence=claimed.fence, error=report, next_at=at))
        last.add_done_callback(self._recorded)

    def _recorded(self, future: asyncio.Future[Any]) -> None:
        """The failure is recorded, or cannot be."""
        self._outcome(future)
        self._end()

    def _leave(self, out: events.Suspend | events.Finish) -> op.Suspend | op.Finish:
        claimed, length = self._claimed, self._state.length
        if isinstance(out, events.Finish):
            return op.Finish(id=claimed.id, fence=claimed.fence)
        return op.Suspend(id=claimed.id, fence=claimed.fence, indexes=out.indexes, length=length)

    def _left(self, future: asyncio.Future[Any]) -> None:
        outcome = self._outcome(future)
        if isinstance(outcome, Refused):
            self._failed(ErrorReport(code=outcome.code, message=outcome.message))
        else:
            self._end()

    def _outcome(self, future: asyncio.Future[Any]) -> Any:
        """The outcome; None if the attempt is over: taken by others, or the database is away."""
        if future.cancelled():
            return self.drop("the runtime stops")
        error = future.exception()
        if error is not None and not isinstance(error, UnavailableError):
            # It would be the same again: the attempt has failed, and its invocation is told so.
            return Refused(code=INTERNAL, message=f"the database refuses it: {_first(error)}")
        if error is not None:
            logger.warning("%s: its attempt is dropped: %s", self._claimed.id, error)
            return self.drop(str(error))
        outcome = future.result()
        if isinstance(outcome, Refused) and outcome.fenced:
            return self.drop(outcome.message)
        return outcome

    def _put(self, operation: op.Operation[Any]) -> asyncio.Future[Any]:
        return self._tools.put(operation)

    def _end(self) -> None:
        self._room.set()
        if not self._over.done():
            self._over.set_result(None)


def _bounded(report: ErrorReport, claimed: Claimed) -> tuple[RunAttempts, ...]:
    """The failed executions to keep; of an attempt that tells none, those of the ones before."""
    if report.run_attempts is None:
        return claimed.run_attempts
    return tuple(_cut(each) for each in report.run_attempts[:MOST_RUNS])


def _cut(run: RunAttempts) -> RunAttempts:
    failure = run.failure and replace(run.failure, message=run.failure.message[:MOST_SAID])
    return replace(run, name=run.name[:MOST_RUN_NAME], failure=failure)


def _first(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _log(claimed: Claimed, failed: int, report: ErrorReport, *, paused: bool) -> None:
    """Log the first failure in a row, and the last; others are told by `show`."""
    told = f"{claimed.id} ({claimed.target})"
    # Whatever a service says, it is one line, and commands no terminal.
    said = "".join(c if c.isprintable() else repr(c)[1:-1] for c in report.message[:MOST_LOGGED])
    if paused:
        logger.warning(
            "%s is paused after %s attempts, until it is resumed: %s", told, failed, said
        )
    elif failed == 1:
        logger.warning("%s: an attempt failed, and is made again: %s", told, said)


def take_error(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from reporting an error of which something else tells."""
    if not future.cancelled():
        future.exception()


def _refusal(out: events.Commit, outcome: Refused) -> ErrorReport:
    kind = out.entry.kind
    message = f"Entry {out.index}, {kind}, is refused: {outcome.message}"
    return ErrorReport(code=outcome.code, message=message, index=out.index, kind=kind.code)
