"""What an iteration wrote is put in place of what was there, and the watermarks move."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.delta.feed import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Claim, Done, Failed
from iscp_dagster.model.batch import Range
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
    """One job's rows, as the scan wrote them: `publish` makes them count."""

    claim: Claim
    written: Written
    ledger: Ledger
    published: datetime | None = None
    """When its watermark moved; None before."""

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
        """Whether its rows are staged, to replace the tenant's."""
        return self.plan.kind is ReadKind.SNAPSHOT and self.store is not None

    @property
    def range(self) -> Range:
        """What was read: the claim's step, or up to a later version where that is read whole."""
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
    def data_version(self) -> int:
        """The version that its rows are delivered as."""
        return self.to.version

    @property
    def bytes(self) -> int:
        return self.written.bytes.get(self.tenant, 0)

    @property
    def done(self) -> Done:
        """What the job's status keeps of it."""
        counts = {"inserted": self.inserted, "deleted": self.deleted, "bytes": self.bytes}
        return Done(claim=self.claim, to=self.to, counts=counts)


Moved = Mapping[JobKey, FenceError] | Mapping[JobKey, Claim | FenceError]


def publish(deployment: Deployment, deliveries: Sequence[Delivery]) -> list[Delivery | Failed]:
    """Serve what was written to one index and move the watermarks; nothing else moves them.

    Jobs are independent: one whose row was taken by another writer is not served; when it is taken
    in the very moment of serving, it starts over. What a consumer has settled in its own
    transaction is left as it is.
    """
    unsettled = [each for each in deliveries if not each.written.settled]
    moved = _confirmed(deployment, unsettled, deployment.log.complete)
    served = [each for each in unsettled if each.claim.key not in moved]
    if served:
        _serve(deployment, served[0])
    now = deployment.clock()
    return [_outcome(replace(each, published=now), moved) for each in deliveries]


def step(deployment: Deployment, deliveries: Sequence[Delivery]) -> list[Claim | Failed]:
    """The claims of the next steps, the rows of these ones served."""
    moved = _confirmed(deployment, deliveries, deployment.log.advance)
    claims = {key: each for key, each in moved.items() if isinstance(each, Claim)}
    late = recorded(deployment, deliveries[0].ledger, list(claims.values()))
    for each in late:
        del claims[each.claim.key]
    return [*claims.values(), *late, *(each for each in moved.values() if isinstance(each, Failed))]


def recorded(deployment: Deployment, ledger: Ledger, claims: Sequence[Claim]) -> list[Failed]:
    """Record the claims' steps as about to be written; of which it was refused, as the log has."""
    try:
        errors: dict[JobKey, IscpError] = dict(ledger.before(claims))
    except IscpError as error:
        errors = {claim.key: error for claim in claims}
    return refuse(deployment, [failed(c, errors[c.key]) for c in claims if c.key in errors])


def refuse(deployment: Deployment, wrong: list[Failed]) -> list[Failed]:
    """Note in the log what went wrong; of jobs that were taken meanwhile that is what did.

    Whoever took one answers for its state.
    """
    taken = deployment.log.fail(wrong)
    return [
        failed(each.claim, taken[each.claim.key])
        if each.claim.key in taken and each.code != FenceError.code
        else each
        for each in wrong
    ]


def failed(claim: Claim, error: IscpError) -> Failed:
    """The claim, with what went wrong."""
    return Failed(claim=claim, code=error.code, message=str(error))


def _outcome(delivery: Delivery, moved: Mapping[JobKey, Claim | Failed]) -> Delivery | Failed:
    outcome = moved.get(delivery.claim.key)
    return outcome if isinstance(outcome, Failed) else delivery


def _confirmed(
    deployment: Deployment,
    deliveries: Sequence[Delivery],
    move: Callable[[Collection[Done]], Moved],
) -> dict[JobKey, Claim | Failed]:
    """What `move` says of the jobs whose rows are in place; the others have failed in the log."""
    outcomes: dict[JobKey, Claim | IscpError] = {}
    try:
        outcomes |= lost(deployment.log, [each.claim for each in deliveries])
        outcomes |= _put_in_place(_left(deliveries, outcomes))
        late: dict[JobKey, IscpError] = dict(_ledger_after(_left(deliveries, outcomes)))
        outcomes |= late
        moved = move([each.done for each in _left(deliveries, outcomes)])
        outcomes |= moved
        late |= {key: each for key, each in moved.items() if isinstance(each, FenceError)}
        # Those that have moved have moved, whatever comes of this.
        with suppress(IscpError):
            _start_over(deployment, deliveries, late)
    except IscpError as error:
        outcomes |= dict.fromkeys((each.claim.key for each in _left(deliveries, outcomes)), error)
    claims = {each.claim.key: each.claim for each in deliveries}
    found = {
        key: each if isinstance(each, Claim) else failed(claims[key], each)
        for key, each in outcomes.items()
    }
    # The log may be what does not answer.
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
    """Claims lost in the very moment of serving: a later snapshot may have been replaced."""
    whole = [each for each in deliveries if each.plan.kind is ReadKind.SNAPSHOT]
    keys = [each.claim.key for each in whole if each.claim.key in late]
    if keys:
        deployment.log.rebuild(keys)


def _put_in_place(deliveries: Sequence[Delivery]) -> dict[JobKey, IscpError]:
    """Those that could not be. All are of one index, and of one reading."""
    staged = {each.tenant: each for each in deliveries if each.replaces}
    if not staged:
        return {}
    first = next(iter(staged.values()))
    assert first.store is not None
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
        LOGGER.warning("%s is served with a later iteration: %s", delivery.claim.name, error)
