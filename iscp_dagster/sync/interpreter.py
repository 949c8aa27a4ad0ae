"""Executes the commands of an iteration's machine."""

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
from iscp_dagster.sync.iteration.machine import IterationState, handle_event
from iscp_dagster.sync.iteration.outcomes import Outcome
from iscp_dagster.sync.ledger import BatchLedger, load_ledger
from iscp_dagster.sync.reading.reader import SourceReader
from iscp_dagster.sync.scan_plans import plan_reads
from iscp_dagster.sync.watermarks import move_watermarks, record_failures
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
    """Claim the iteration's jobs, scan once for all of them, and yield each one's outcome.

    Each RowDelivery is already published; a job that cannot be is a FailedStep, and stops no
    other. The caller renews the lease of `run_id` (`joblog.renewal`). Steps left over from a run
    that died are replayed first. With the caller's `delta_log` the table is not opened again.
    `writer` is the IO manager's in a run of Dagster. Raises FenceError when another run holds one
    of the jobs.
    """
    # Joined while the jobs are claimed and the tables made ready.
    reader = SourceReader(
        deployment.join_spark_early(),
        source,
        iteration.tenants,
        delta_log or deployment.make_delta_log(source),
    )
    interpreter = Interpreter(reader=reader, writer=writer or IndexWriter(deployment))
    with closing(interpreter.yield_outcomes(iteration, run_id, queued_as)) as groups:
        for outcomes in groups:
            yield from outcomes


@dataclass(kw_only=True)
class Interpreter:
    """One iteration's machine, with the services that execute its commands."""

    reader: SourceReader
    writer: IndexWriter
    ledger: BatchLedger = field(default_factory=lambda: BatchLedger(None))
    _state: IterationState = field(default_factory=IterationState)
    _staged_scan: commands.ScanFinished | None = None
    """The scan whose staged rows are not discarded yet."""

    def yield_outcomes(
        self, iteration: Iteration, run_id: str, queued_as: str | None = None
    ) -> Generator[Sequence[Outcome], None, None]:
        """Claim the jobs, and yield their outcomes index by index, until no claim is left."""
        claimed, store_error = self._claim_jobs(iteration, run_id, queued_as)
        pending = self._advance_state(claimed)
        if store_error is not None:
            # None of the jobs is the cause; all fail for now.
            pending = [commands.AbortIteration(store_error)]
        try:
            while pending := pending or self._advance_state(commands.CommandsDone()):
                command = pending.pop(0)
                if isinstance(command, commands.ReturnOutcomes):
                    yield command.outcomes
                else:
                    pending[:0] = self._advance_state(self.execute_command(command))
        except Exception as error:
            self._drop_staging()
            for command in self._advance_state(commands.IterationFailed(error)):
                if isinstance(command, commands.ReturnOutcomes):
                    yield command.outcomes
                else:
                    # The log itself may be down.
                    with suppress(IscpError):
                        self.execute_command(command)
            raise
        except BaseException:
            self._drop_staging()
            for command in self._advance_state(commands.RunInterrupted()):
                self.execute_command(command)
            raise

    def execute_command(self, command: commands.Command) -> commands.IterationEvent:  # noqa: C901, PLR0911, PLR0912 - a table
        """Execute the command and return what happened. Raises IscpError."""
        deployment = self.reader.deployment
        match command:
            case commands.RecordSteps(claims):
                return self._record_steps(claims)
            case commands.PlanReads():
                return self._plan_reads(command)
            case commands.ScanClaims(group):
                scanned = self.writer.write(self.reader, group)
                self._staged_scan = scanned if isinstance(scanned, commands.ScanFinished) else None
                return scanned
            case commands.SettleScan(result):
                return self.writer.settle(self.reader, result)
            case commands.PlaceRows(deliveries):
                return self.writer.place(deliveries)
            case commands.MoveWatermarks(deliveries):
                return move_watermarks(deployment.log, self.ledger, deliveries)
            case commands.ServeIndex(deliveries):
                return self.writer.serve(deliveries)
            case commands.DropStaging():
                self._drop_staging()
                return commands.CleanupDone()
            case commands.RecordFailures(failures, rebuild):
                recorded = record_failures(deployment.log, failures)
                if rebuild:
                    deployment.log.rebuild(sorted(rebuild))
                return commands.FailuresRecorded(tuple(recorded))
            case commands.AbortIteration(error):
                raise error
            case commands.ReleaseClaims(claims):
                fences = {claim.key: claim.fence for claim in claims}
                deployment.log.cancel(fences, expected_seqs=fences)
                return commands.CleanupDone()
            case commands.ReturnOutcomes():
                raise TypeError("ReturnOutcomes is handled by Interpreter.yield_outcomes.")
        assert_never(command)

    def _advance_state(self, event: commands.IterationEvent) -> list[commands.Command]:
        self._state, following = handle_event(self._state, event)
        return list(following)

    def _claim_jobs(
        self, iteration: Iteration, run_id: str, queued_as: str | None
    ) -> tuple[commands.JobsClaimed, IscpError | None]:
        """Claim the jobs, even if the state store cannot be read; that error is returned too."""
        reader = self.reader
        layout = reader.plan_layout(iteration.range)
        self.ledger, earlier, store_error = load_ledger(reader, iteration)
        claims = reader.deployment.log.claim_jobs(
            iteration,
            run_id,
            layout,
            layouts=reader.plan_snapshot_layouts(iteration.range, layout),
            queued_as=queued_as,
            earlier=earlier,
        )
        return commands.JobsClaimed(tuple(claims)), store_error

    def _record_steps(self, claims: commands.Claims) -> commands.StepsRecorded:
        try:
            return commands.StepsRecorded(self.ledger.record_before(claims))
        except IscpError as error:
            return commands.StepsRecorded(dict.fromkeys((claim.key for claim in claims), error))

    def _plan_reads(self, command: commands.PlanReads) -> commands.ReadsPlanned:
        if not self.reader.consumers:
            consumers = dict.fromkeys(claim.consumer for claim in self._state.open_claims.values())
            self.reader = replace(self.reader, consumers=tuple(consumers))
        return plan_reads(self.reader, command)

    def _drop_staging(self) -> None:
        if self._staged_scan is not None:
            self.writer.discard(self._staged_scan)
            self._staged_scan = None
