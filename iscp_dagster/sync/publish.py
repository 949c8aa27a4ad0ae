"""Puts in place what an iteration wrote, and moves the watermarks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from iscp_dagster.joblog.iterations import Claim, Done, Failed
from iscp_dagster.model.errors import FenceError, IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.commands import Advanced
from iscp_dagster.sync.iteration.outcomes import Delivery, Outcome, failed
from iscp_dagster.sync.ledger import Ledger
from iscp_dagster.sync.serving import serve_when_built
from iscp_dagster.sync.sink import lost

LOGGER = logging.getLogger(__name__)


Moved = Mapping[JobKey, FenceError] | Mapping[JobKey, Claim | FenceError]


def publish(
    deployment: Deployment, ledger: Ledger, deliveries: Sequence[Delivery]
) -> list[Outcome]:
    """Serve the rows written to one index and move the watermarks.

    Jobs are independent. A job that another writer took is not served; if it is taken while its
    snapshot is put in place, it starts over. Leaves alone what a consumer settled in its own
    transaction. A second call finds the work done.
    """
    left = [each for each in deliveries if each.published is None]
    unsettled = [each for each in left if each.written.settled is None]
    moved = _moved(deployment, ledger, unsettled, deployment.log.complete)
    served = [each for each in unsettled if each.claim.key not in moved]
    if served:
        _serve(deployment, served[0])
    now = deployment.clock()
    done = [each if each.published else replace(each, published=now) for each in deliveries]
    return [_outcome(each, moved) for each in done]


def advance(deployment: Deployment, ledger: Ledger, deliveries: Sequence[Delivery]) -> Advanced:
    """Serve the rows of these steps, and go on to the claims' next ones."""
    moved = _moved(deployment, ledger, deliveries, deployment.log.advance)
    return Advanced(
        tuple(each for each in moved.values() if isinstance(each, Claim)),
        tuple(each for each in moved.values() if isinstance(each, Failed)),
    )


def refuse(deployment: Deployment, wrong: Sequence[Failed]) -> list[Failed]:
    """Record the failures in the log. A job taken meanwhile fails with the FenceError instead.

    Whoever took a job is responsible for its state.
    """
    taken = deployment.log.fail(list(wrong))
    return [
        failed(each.claim, taken[each.claim.key], each.told)
        if each.claim.key in taken and each.code != FenceError.code
        else each
        for each in wrong
    ]


def _outcome(delivery: Delivery, moved: Mapping[JobKey, Claim | Failed]) -> Outcome:
    outcome = moved.get(delivery.claim.key)
    return outcome if isinstance(outcome, Failed) else delivery


def _moved(
    deployment: Deployment,
    ledger: Ledger,
    deliveries: Sequence[Delivery],
    move: Callable[[Collection[Done]], Moved],
) -> dict[JobKey, Claim | Failed]:
    """Put the rows in place and `move` the watermarks; the other jobs have failed in the log.

    Returns what `move` answered, and the failures.
    """
    outcomes: dict[JobKey, Claim | IscpError] = {}
    try:
        outcomes |= lost(deployment.log, [each.claim for each in deliveries])
        outcomes |= _put_in_place(_left(deliveries, outcomes))
        late: dict[JobKey, IscpError] = dict(
            ledger.after([each.claim for each in _left(deliveries, outcomes)])
        )
        outcomes |= late
        moved = move([each.done for each in _left(deliveries, outcomes)])
        outcomes |= moved
        late |= {key: each for key, each in moved.items() if isinstance(each, FenceError)}
        # An error here must not fail the jobs whose watermarks have moved.
        with suppress(IscpError):
            _start_over(deployment, deliveries, late)
    except IscpError as error:
        outcomes |= dict.fromkeys((each.claim.key for each in _left(deliveries, outcomes)), error)
    ours = {each.claim.key: each for each in deliveries}
    found = {
        key: each
        if isinstance(each, Claim)
        else failed(ours[key].claim, each, ours[key].told_in_all)
        for key, each in outcomes.items()
    }
    # The log itself may be down.
    with suppress(IscpError):
        wrong = refuse(deployment, [each for each in found.values() if isinstance(each, Failed)])
        found |= {each.claim.key: each for each in wrong}
    return found


def _left(deliveries: Sequence[Delivery], outcomes: Collection[JobKey]) -> list[Delivery]:
    return [each for each in deliveries if each.claim.key not in outcomes]


def _start_over(
    deployment: Deployment, deliveries: Sequence[Delivery], late: Collection[JobKey]
) -> None:
    """Rebuild jobs lost while their snapshot was put in place: it may have replaced a later one."""
    whole = [each for each in deliveries if each.written.reading.staged]
    keys = [each.claim.key for each in whole if each.claim.key in late]
    if keys:
        deployment.log.rebuild(keys)


def _put_in_place(deliveries: Sequence[Delivery]) -> dict[JobKey, IscpError]:
    """Put the staged tenants in place; returns the errors. All are of one index and one reading."""
    staged = {each.tenant: each for each in deliveries if each.replaces}
    if not staged:
        return {}
    first = next(iter(staged.values()))
    assert first.store is not None
    reading = first.written.reading
    if reading.transitions is not None:
        first.store.begin(staged, first.to, [reading.gap] if reading.gap else [])
    refused = first.store.replace(
        {tenant: each.inserted for tenant, each in staged.items()},
        version=first.to.version,
        registrations={tenant: each.claim.registration for tenant, each in staged.items()},
    )
    return {staged[tenant].claim.key: error for tenant, error in refused.items()}


def _serve(deployment: Deployment, delivery: Delivery) -> None:
    if delivery.store is None:
        return
    try:
        serve_when_built(deployment, delivery.claim.name, delivery.store)
    except IscpError as error:
        LOGGER.warning("%s will be served by a later iteration: %s", delivery.claim.name, error)
