"""Carries out what an iteration's machine asks for."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import assert_never

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import IscpError
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration import commands
from iscp_dagster.sync.iteration.machine import State, step
from iscp_dagster.sync.iteration.outcomes import Outcome
from iscp_dagster.sync.ledger import Ledger, recalled
from iscp_dagster.sync.moving import moved, refuse
from iscp_dagster.sync.planning import planned
from iscp_dagster.sync.reading.reader import Reader
from iscp_dagster.sync.writing.writer import IndexWriter


def iterate(
    deployment: Deployment,
    source: SourceTable,
    iteration: Iteration,
    *,
    run_id: str,
    queued_as: str | None = None,
    delta_log: DeltaLog | None = None,
    writer: IndexWriter | None = None,
) -> Generator[Outcome, None, None]:
    """Claim the iteration's jobs, scan once for all of them, and give each one's outcome.

    Each Delivery is already published; a job that cannot be is Failed, and stops no other. The
    caller renews the lease of `run_id` (`joblog.renewal`). Steps left over from a run that died
    are replayed first. With the caller's `delta_log` the table is not opened again. `writer` is the
    IO manager's in a run of Dagster. Raises FenceError when another run holds one of the jobs.
    """
    # Joined while the jobs are claimed and the tables made ready.
    reader = Reader(
        deployment.joining_spark(),
        source,
        iteration.tenants,
        delta_log or deployment.delta_log(source),
    )
    interpreter = Interpreter(reader=reader, writer=writer or IndexWriter(deployment))
    with closing(interpreter.outcomes(iteration, run_id, queued_as)) as found:
        for outcomes in found:
            yield from outcomes


@dataclass(kw_only=True)
class Interpreter:
    """One iteration's machine, with the services that carry out its commands."""

    reader: Reader
    writer: IndexWriter
    ledger: Ledger = field(default_factory=lambda: Ledger(None))
    _state: State = field(default_factory=State)
    _written: commands.Scanned | None = None
    """The scan whose staged rows are not discarded yet."""

    def outcomes(
        self, iteration: Iteration, run_id: str, queued_as: str | None = None
    ) -> Generator[Sequence[Outcome], None, None]:
        """Claim the jobs, and give their outcomes index by index, until no claim is left."""
        claimed, unread = self._claim(iteration, run_id, queued_as)
        waiting = self._next(claimed)
        if unread is not None:
            # None of the jobs is the cause; all fail for now.
            waiting = [commands.Stop(unread)]
        try:
            while waiting := waiting or self._next(commands.Idle()):
                command = waiting.pop(0)
                if isinstance(command, commands.Give):
                    yield command.outcomes
                else:
                    waiting[:0] = self._next(self.carried_out(command))
        except Exception as error:
            self._discard()
            for command in self._next(commands.Broken(error)):
                if isinstance(command, commands.Give):
                    yield command.outcomes
                else:
                    # The log itself may be down.
                    with suppress(IscpError):
                        self.carried_out(command)
            raise
        except BaseException:
            self._discard()
            for command in self._next(commands.Interrupted()):
                self.carried_out(command)
            raise

    def carried_out(self, command: commands.Command) -> commands.Event:  # noqa: C901, PLR0911, PLR0912 - a table
        """Do what the command says; returns what happened. Raises IscpError."""
        deployment = self.reader.deployment
        match command:
            case commands.Record(claims):
                return self._recorded(claims)
            case commands.Plan():
                return self._planned(command)
            case commands.Scan(trial):
                found = self.writer.write(self.reader, trial)
                self._written = found if isinstance(found, commands.Scanned) else None
                return found
            case commands.Check(part):
                return self.writer.check(self.reader, part)
            case commands.Place(deliveries):
                return self.writer.place(deliveries)
            case commands.Move(deliveries):
                return moved(deployment.log, self.ledger, deliveries)
            case commands.Serve(deliveries):
                return self.writer.serve(deliveries)
            case commands.Discard():
                self._discard()
                return commands.Discarded()
            case commands.Fail(failures, rebuild):
                refused = refuse(deployment.log, failures)
                if rebuild:
                    deployment.log.rebuild(sorted(rebuild))
                return commands.Refused(tuple(refused))
            case commands.Stop(error):
                raise error
            case commands.Release(claims):
                held = {claim.key: claim.fence for claim in claims}
                deployment.log.cancel(held, seen=held)
                return commands.Discarded()
            case commands.Give():
                raise TypeError("outcomes are given by the caller of carried_out")
        assert_never(command)

    def _next(self, event: commands.Event) -> list[commands.Command]:
        self._state, following = step(self._state, event)
        return list(following)

    def _claim(
        self, iteration: Iteration, run_id: str, queued_as: str | None
    ) -> tuple[commands.Claimed, IscpError | None]:
        """Claim the jobs; returns the claims too where the state store cannot be read."""
        reader = self.reader
        layout = reader.layout(iteration.range)
        self.ledger, recall, unread = recalled(reader, iteration)
        claims = reader.deployment.log.begin(
            iteration,
            run_id,
            layout,
            layouts=reader.snapshot_layouts(iteration.range, layout),
            queued_as=queued_as,
            recall=recall,
        )
        return commands.Claimed(tuple(claims)), unread

    def _recorded(self, claims: commands.Claims) -> commands.Recorded:
        try:
            return commands.Recorded(self.ledger.before(claims))
        except IscpError as error:
            return commands.Recorded(dict.fromkeys((claim.key for claim in claims), error))

    def _planned(self, wanted: commands.Plan) -> commands.Planned:
        if not self.reader.consumers:
            consumers = dict.fromkeys(claim.consumer for claim in self._state.open.values())
            self.reader = replace(self.reader, consumers=tuple(consumers))
        return planned(self.reader, wanted)

    def _discard(self) -> None:
        if self._written is not None:
            self.writer.discard(self._written)
            self._written = None
