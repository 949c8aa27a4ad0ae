"""Puts in place what an iteration wrote, and moves the watermarks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.delta.feed import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Claim, Done, Failed
from iscp_dagster.model.batch import Range
from iscp_dagster.model.consumers import Told, together
from iscp_dagster.model.errors import FenceError, IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.moment import Moment
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.ledger import Ledger
from iscp_dagster.sync.scan import Written
from iscp_dagster.sync.serving import serve_when_built
from iscp_dagster.sync.sink import lost

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One job's rows as a scan wrote them; they count once published."""

    claim: Claim
    written: Written
    ledger: Ledger
    published: datetime | None = None
    """When the watermark moved; None before."""
    earlier: Told = field(default_factory=dict)
    """What the consumer reported of the claim's earlier steps."""

    @property
    def tenant(self) -> str:
        return self.claim.key.tenant

    @property
    def job_name(self) -> str:
        return self.claim.key.job_name

    @property
    def store(self) -> IndexStore | None:
        return self.written.store

    @property
    def plan(self) -> ReadPlan:
        return self.written.reading.plan

    @property
    def replaces(self) -> bool:
        """Whether its rows are staged, to replace those of the tenant."""
        return self.plan.kind is ReadKind.SNAPSHOT and self.store is not None

    @property
    def range(self) -> Range:
        """The range that was read: the claim's step, or for a snapshot up to a later version."""
        return self.written.reading.range

    @property
    def to(self) -> Moment:
        return self.range.to

    @property
    def inserted(self) -> int:
        return self.written.inserted.get(self.tenant, 0)

    @property
    def deleted(self) -> int:
        return self.written.deleted.get(self.tenant, 0)

    @property
    def told(self) -> Told:
        """What the consumer reported besides rows."""
        return self.written.told.get(self.tenant, {})

    @property
    def told_in_all(self) -> Told:
        """The same of all steps so far."""
        return together(self.earlier, self.told)

    @property
    def gap(self) -> str:
        """The versions whose changes its history will not have, and why; empty: there are none."""
        return self.written.reading.gap

    @property
    def data_version(self) -> int:
        """The Delta version as of which its rows are delivered."""
        return self.to.version

    @property
    def bytes(self) -> int:
        return self.written.bytes.get(self.tenant, 0)

    @property
    def done(self) -> Done:
        """The claim as done, with the counts that the job's status keeps."""
        counts = {"inserted": self.inserted, "deleted": self.deleted, "bytes": self.bytes}
        told = {name: each for name, each in self.told.items() if isinstance(each, int)}
        return Done(claim=self.claim, to=self.to, counts=counts | told)


Moved = Mapping[JobKey, FenceError] | Mapping[JobKey, Claim | FenceError]


def publish(deployment: Deployment, deliveries: Sequence[Delivery]) -> list[Delivery | Failed]:
    """Serve the rows written to one index and move the watermarks.

    Jobs are independent. A job that another writer took is not served; if it is taken while its
    snapshot is put in place, it starts over. Leaves alone what a consumer settled in its own
    transaction.
    """
    unsettled = [each for each in deliveries if not each.written.settled]
    moved = _confirmed(deployment, unsettled, deployment.log.complete)
    served = [each for each in unsettled if each.claim.key not in moved]
    if served:
        _serve(deployment, served[0])
    now = deployment.clock()
    return [_outcome(replace(each, published=now), moved) for each in deliveries]


def step(deployment: Deployment, deliveries: Sequence[Delivery]) -> list[Claim | Failed]:
    """Serve the rows of these steps; returns the claims of the next ones."""
    moved = _confirmed(deployment, deliveries, deployment.log.advance)
    claims = {key: each for key, each in moved.items() if isinstance(each, Claim)}
    late = recorded(deployment, deliveries[0].ledger, list(claims.values()))
    for each in late:
        del claims[each.claim.key]
    told = {each.claim.key: each.told_in_all for each in deliveries}
    late = [replace(each, told=told[each.claim.key]) for each in late]
    return [*claims.values(), *late, *(each for each in moved.values() if isinstance(each, Failed))]


def recorded(deployment: Deployment, ledger: Ledger, claims: Sequence[Claim]) -> list[Failed]:
    """Record the claims' steps as BEFORE; returns those refused, failed in the log too."""
    try:
        errors: dict[JobKey, IscpError] = dict(ledger.before(claims))
    except IscpError as error:
        errors = {claim.key: error for claim in claims}
    return refuse(deployment, [failed(c, errors[c.key]) for c in claims if c.key in errors])


def refuse(deployment: Deployment, wrong: list[Failed]) -> list[Failed]:
    """Record the failures in the log. A job taken meanwhile fails with the FenceError instead.

    Whoever took a job is responsible for its state.
    """
    taken = deployment.log.fail(wrong)
    return [
        replace(failed(each.claim, taken[each.claim.key]), told=each.told)
        if each.claim.key in taken and each.code != FenceError.code
        else each
        for each in wrong
    ]


def failed(claim: Claim, error: IscpError) -> Failed:
    """The claim, failed with this error."""
    return Failed(claim=claim, code=error.code, message=str(error))


def _undelivered(delivery: Delivery, error: IscpError) -> Failed:
    return replace(failed(delivery.claim, error), told=delivery.told_in_all)


def _outcome(delivery: Delivery, moved: Mapping[JobKey, Claim | Failed]) -> Delivery | Failed:
    outcome = moved.get(delivery.claim.key)
    return outcome if isinstance(outcome, Failed) else delivery


def _confirmed(
    deployment: Deployment,
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
        late: dict[JobKey, IscpError] = dict(_ledger_after(_left(deliveries, outcomes)))
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
        key: each if isinstance(each, Claim) else _undelivered(ours[key], each)
        for key, each in outcomes.items()
    }
    # The log itself may be down.
    with suppress(IscpError):
        wrong = refuse(deployment, [each for each in found.values() if isinstance(each, Failed)])
        found |= {each.claim.key: each for each in wrong}
    return found


def _left(deliveries: Sequence[Delivery], outcomes: Collection[JobKey]) -> list[Delivery]:
    return [each for each in deliveries if each.claim.key not in outcomes]


def _ledger_after(deliveries: Sequence[Delivery]) -> Mapping[JobKey, FenceError]:
    claims = [each.claim for each in deliveries]
    return deliveries[0].ledger.after(claims) if deliveries else {}


def _start_over(
    deployment: Deployment, deliveries: Sequence[Delivery], late: Collection[JobKey]
) -> None:
    """Rebuild jobs lost while their snapshot was put in place: it may have replaced a later one."""
    whole = [each for each in deliveries if each.plan.kind is ReadKind.SNAPSHOT]
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
