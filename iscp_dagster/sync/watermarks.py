"""Moves the watermarks of rows that are in place, and records failures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from iscp_dagster.joblog.iterations import Claim, FailedStep, WrittenStep
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.errors import FenceError, IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.sync.iteration.commands import WatermarksMoved
from iscp_dagster.sync.iteration.outcomes import RowDelivery, make_failure
from iscp_dagster.sync.ledger import BatchLedger

Answers = Mapping[JobKey, FenceError] | Mapping[JobKey, Claim | FenceError]


def move_watermarks(
    log: SqlLog, ledger: BatchLedger, deliveries: Sequence[RowDelivery]
) -> WatermarksMoved:
    """Move the watermarks of the jobs that the run still holds. The state store goes first.

    `deliveries` are all at their claim's last step, which completes the jobs, or all before it,
    which advances them.
    """
    errors: dict[JobKey, IscpError] = {}
    claims: list[Claim] = []
    try:
        errors |= ledger.record_after([delivery.claim for delivery in deliveries])
        remaining = [delivery for delivery in deliveries if delivery.claim.key not in errors]
        move: Callable[[Collection[WrittenStep]], Answers]
        move = log.complete if deliveries[0].claim.last else log.advance
        for key, outcome in move([delivery.done for delivery in remaining]).items():
            if isinstance(outcome, Claim):
                claims.append(outcome)
            else:
                errors[key] = outcome
    except IscpError as error:
        errors |= {
            delivery.claim.key: error for delivery in deliveries if delivery.claim.key not in errors
        }
    return WatermarksMoved(tuple(deliveries), tuple(claims), errors)


def record_failures(log: SqlLog, failures: Sequence[FailedStep]) -> list[FailedStep]:
    """Record the failures in the log. A job taken meanwhile fails with the FenceError instead.

    The run that took a job is responsible for its state.
    """
    fence_errors = log.fail(list(failures))
    return [
        make_failure(failure.claim, fence_errors[failure.claim.key], failure.reported)
        if failure.claim.key in fence_errors and failure.code != FenceError.code
        else failure
        for failure in failures
    ]
