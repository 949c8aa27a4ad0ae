"""Moves the watermarks of rows that are in place, and records failures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from iscp_dagster.joblog.iterations import Claim, Done, Failed
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.errors import FenceError, IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.sync.iteration.commands import Moved
from iscp_dagster.sync.iteration.outcomes import Delivery, failed
from iscp_dagster.sync.ledger import Ledger

Answers = Mapping[JobKey, FenceError] | Mapping[JobKey, Claim | FenceError]


def moved(log: SqlLog, ledger: Ledger, deliveries: Sequence[Delivery]) -> Moved:
    """Move the watermarks, all after a last step or all before another, as far as the run holds
    the jobs. The state store goes first.
    """
    wrong: dict[JobKey, IscpError] = {}
    claims: list[Claim] = []
    try:
        wrong |= ledger.after([each.claim for each in deliveries])
        left = [each for each in deliveries if each.claim.key not in wrong]
        move: Callable[[Collection[Done]], Answers]
        move = log.complete if deliveries[0].claim.last else log.advance
        for key, answer in move([each.done for each in left]).items():
            if isinstance(answer, Claim):
                claims.append(answer)
            else:
                wrong[key] = answer
    except IscpError as error:
        wrong |= {e.claim.key: error for e in deliveries if e.claim.key not in wrong}
    return Moved(tuple(deliveries), tuple(claims), wrong)


def refuse(log: SqlLog, wrong: Sequence[Failed]) -> list[Failed]:
    """Record the failures in the log. A job taken meanwhile fails with the FenceError instead.

    Whoever took a job is responsible for its state.
    """
    taken = log.fail(list(wrong))
    return [
        failed(each.claim, taken[each.claim.key], each.told)
        if each.claim.key in taken and each.code != FenceError.code
        else each
        for each in wrong
    ]
