"""An iteration from claim to watermark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace

from iscp_dagster.clickhouse.tables.indexes import DoubledRowsError, IndexStore, LostRowsError
from iscp_dagster.delta.feed import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Claim, Iteration
from iscp_dagster.model.batch import WRITES, Action, Range
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import (
    BatchError,
    ConfigError,
    FenceError,
    IscpError,
    UnrepeatableError,
)
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.sync.consumers import is_index
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.ledger import Ledger, recalled
from iscp_dagster.sync.reader import Reader, Reading
from iscp_dagster.sync.scan import Written, clear, scan
from iscp_dagster.sync.serving import serve_when_built
from iscp_dagster.sync.sink import Sink, check_held

LOGGER = logging.getLogger(__name__)

MISMATCH = (
    "Job {claim.key}: the range {claim.range} lies before its recorded batch "
    "{claim.previous.range}, as when the ISCP log alone was put back to an earlier state. "
    "`iscp job repair` reads its rows again; with ISCP_TOLERATE_STATE_MISMATCH=true what is "
    "recorded as written is passed over."
)
SKIPPED = ReadPlan(kind=ReadKind.TAIL, reason="written before, nothing read")
ASIDE = ReadPlan(kind=ReadKind.TAIL, reason="cannot be read again, set aside as a dead letter")


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One job's rows, as the scan wrote them: `publish` makes them count."""

    claim: Claim
    written: Written
    ledger: Ledger

    @property
    def tenant(self) -> str:
        return self.claim.key.account

    @property
    def store(self) -> IndexStore | None:
        return self.written.store

    @property
    def plan(self) -> ReadPlan:
        return self.written.reading.plan

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
    def counts(self) -> dict[str, int]:
        """What the job's status keeps of the iteration."""
        return {"inserted": self.inserted, "deleted": self.deleted, "bytes": self.written.bytes}


@dataclass(frozen=True, kw_only=True)
class Failed:
    """One job's part of an iteration that failed; the log has it, its siblings go on."""

    claim: Claim
    code: int
    message: str


def iterate(
    deployment: Deployment,
    source: SourceTable,
    iteration: Iteration,
    *,
    run_id: str,
    queued_as: str | None = None,
) -> Generator[Delivery | Failed, None, None]:
    """Claim the iteration's jobs, scan once for all of them, and give each one's outcome.

    A Delivery is published by then; one that cannot be is Failed, and stops no sibling. The lease
    of `run_id` is the caller's to keep (`sync.lease`). Steps left over from a run that died are
    replayed first. Raises FenceError when another run holds one of the jobs.
    """
    with closing(
        deliveries(deployment, source, iteration, run_id=run_id, queued_as=queued_as)
    ) as found:
        for outcome in found:
            yield _published(deployment, outcome)


def _published(deployment: Deployment, outcome: Delivery | Failed) -> Delivery | Failed:
    if isinstance(outcome, Failed):
        return outcome
    try:
        publish(deployment, outcome)
    except IscpError as error:
        return Failed(claim=outcome.claim, code=error.code, message=str(error))
    return outcome


def deliveries(
    deployment: Deployment,
    source: SourceTable,
    iteration: Iteration,
    *,
    run_id: str,
    queued_as: str | None = None,
) -> Generator[Delivery | Failed, None, None]:
    """What `iterate` publishes: each Delivery must be, before the next one is asked for."""
    reader = Reader(deployment, source, iteration.tenants)
    layout = reader.layout(iteration.range)
    ledger, recall, unread = recalled(reader, iteration)
    claims = deployment.log.begin(iteration, run_id, layout, queued_as=queued_as, recall=recall)
    open_ = list(claims)
    with _settled(deployment, open_):
        if unread is not None:
            raise unread
        for claim in _mismatched(claims):
            open_.remove(claim)
            yield _failed(deployment, claim, BatchError.code, MISMATCH.format(claim=claim))
        ledger.before(open_)
        consumers = tuple(dict.fromkeys(claim.spec.detail.consumer for claim in open_))
        reader = reader.but(consumers=consumers)
        while open_:
            group = _next_group(open_)
            settled: dict[JobKey, Claim | None] = {}
            for claim, outcome in _delivered(reader, group, ledger, settled):
                open_.remove(claim)
                whole = _whole(outcome)
                if isinstance(whole, Failed) or whole.claim.last:
                    yield whole
                    continue
                try:
                    open_.append(_stepped(deployment, whole, settled))
                except IscpError as error:
                    yield _failed(deployment, claim, error.code, str(error))


def _mismatched(claims: Sequence[Claim]) -> list[Claim]:
    return [claim for claim in claims if claim.step.action is Action.REJECT]


def _whole(outcome: Delivery | Failed) -> Delivery | Failed:
    """A snapshot has what all steps of its claim would bring: none of them follows."""
    if isinstance(outcome, Failed) or outcome.plan.kind is not ReadKind.SNAPSHOT:
        return outcome
    claim = outcome.claim
    if claim.last or outcome.to.version < claim.range.to.version:
        return outcome
    return replace(outcome, claim=replace(claim, steps=claim.steps[-1:]))


def _stepped(
    deployment: Deployment, delivery: Delivery, settled: Mapping[JobKey, Claim | None]
) -> Claim:
    """The claim of the next step, this one's rows served."""
    claim = delivery.claim
    moved = settled.get(claim.key)
    if delivery.written.settled and moved is not None:
        return moved
    check_held(deployment.log, claim)
    _put_in_place(delivery)
    with _starting_over_when_late(deployment, delivery):
        delivery.ledger.after(claim)
        following = deployment.log.advance(claim, delivery.counts)
        delivery.ledger.before([following])
        return following


def publish(deployment: Deployment, delivery: Delivery) -> None:
    """Serve what was written and move the watermark; nothing else moves it.

    Raises FenceError, and serves nothing, when the job's row was taken by another writer; when
    that happens in the very moment of serving, the job starts over. What a consumer has settled
    in its own transaction is left as it is.
    """
    if delivery.written.settled:
        return
    check_held(deployment.log, delivery.claim)
    try:
        _put_in_place(delivery)
    except IscpError as error:
        check_held(deployment.log, delivery.claim)
        _fail(deployment, delivery.claim, error.code, str(error))
        raise
    try:
        with _starting_over_when_late(deployment, delivery):
            delivery.ledger.after(delivery.claim)
            deployment.log.complete(delivery.claim, delivery.to, delivery.counts)
    except FenceError:
        raise
    except IscpError as error:
        # The log may be what does not answer.
        with suppress(IscpError):
            _fail(deployment, delivery.claim, error.code, str(error))
        raise
    if delivery.store is not None:
        try:
            serve_when_built(deployment, delivery.claim.name, delivery.store)
        except IscpError as error:
            LOGGER.warning("%s is served with a later iteration: %s", delivery.claim.name, error)


@contextmanager
def _starting_over_when_late(deployment: Deployment, delivery: Delivery) -> Iterator[None]:
    """A claim lost in the very moment of serving: a later snapshot may have been replaced."""
    try:
        yield
    except FenceError:
        if delivery.plan.kind is ReadKind.SNAPSHOT:
            deployment.log.rebuild([delivery.claim.key])
        raise


def _put_in_place(delivery: Delivery) -> None:
    if delivery.plan.kind is ReadKind.SNAPSHOT and delivery.store is not None:
        delivery.store.replace(
            delivery.tenant,
            rows=delivery.inserted,
            version=delivery.to.version,
            registration=delivery.claim.registration,
        )


def _next_group(claims: Sequence[Claim]) -> list[Claim]:
    """Claims on one range, to be cut alike; of those with one name, whose table is one, all with
    one consumer.
    """
    first = min((claim.step for claim in claims), key=lambda step: _span(step.range))
    consumers: dict[str, ConsumerInfo] = {}
    return [
        claim
        for claim in claims
        if (claim.step.range, claim.step.layout) == (first.range, first.layout)
        and consumers.setdefault(claim.key.job_name, claim.consumer) == claim.consumer
    ]


def _span(range_: Range) -> tuple[int, int]:
    return range_.from_.version, range_.to.version


def _delivered(
    reader: Reader,
    group: Sequence[Claim],
    ledger: Ledger,
    settled: dict[JobKey, Claim | None],
) -> Iterator[tuple[Claim, Delivery | Failed]]:
    """Scan the step that the claims of `group` have in common, for their tenants alone."""
    range_ = group[0].step.range
    reader = reader.but(tenants=frozenset(claim.key.account for claim in group))
    plan = reader.plan(range_)
    if plan.kind is ReadKind.TAIL and not reader.source.keys and _forgotten(group):
        plan = ReadPlan(kind=ReadKind.SNAPSHOT, reason="nobody knows what of it was written before")
    reading = [claim for claim in group if claim.step.action in WRITES]
    if plan.kind is ReadKind.TAIL and any(_replaced(reader, claim) for claim in reading):
        plan = ReadPlan(kind=ReadKind.SNAPSHOT, reason="rows of a later snapshot are there already")
    wanted = Reading(plan=plan, range=range_, layout=group[0].step.layout or {})
    sinks = _sinks(reader.deployment, reading, settled)
    scanned = scan(reader, wanted, sinks) if sinks else {}
    try:
        for claim in group:
            written = scanned.get(claim.key.job_name, Written(reading=wanted))
            try:
                found = _ENDS.get(claim.step.action, _outcome)(reader, claim, written, ledger)
            except IscpError as error:
                found = _failed(reader.deployment, claim, error.code, str(error))
            yield claim, found
    finally:
        clear(scanned)


def _replaced(reader: Reader, claim: Claim) -> bool:
    """Whether an earlier attempt has put a snapshot in place, whose keys no tail can tell apart."""
    step = claim.step
    if step.action is not Action.REPLAY or not reader.source.keys:
        return False
    try:
        store = _store(reader, claim, step.range.to.version)
        since = step.range.from_.version
        return store is not None and store.replaced_after(claim.key.account, since)
    except IscpError:
        return False  # its own part of the scan fails, then


def _forgotten(claims: Sequence[Claim]) -> bool:
    """Whether a batch may have been begun that a repair made forgotten."""
    return any(claim.previous is None for claim in claims)


def _sinks(
    deployment: Deployment, claims: Sequence[Claim], settled: dict[JobKey, Claim | None]
) -> list[Sink]:
    """One a job name, whose table all its tenants share."""
    by_job: dict[str, list[Claim]] = {}
    for claim in claims:
        by_job.setdefault(claim.key.job_name, []).append(claim)
    return [Sink(log=deployment.log, claims=by_job[job], settled=settled) for job in sorted(by_job)]


def _skipped(
    reader: Reader, claim: Claim, _: Written, ledger: Ledger, plan: ReadPlan = SKIPPED
) -> Delivery:
    range_ = claim.step.range
    store = _store(reader, claim, range_.to.version)
    written = Written(reading=Reading(plan=plan, range=range_), store=store)
    return Delivery(claim=claim, written=written, ledger=ledger)


def _set_aside(reader: Reader, claim: Claim, written: Written, ledger: Ledger) -> Delivery:
    """Nothing is written but a dead letter, which says what may be missing."""
    range_, name = claim.step.range, claim.consumer.job
    store = _store(reader, claim, range_.to.version)
    if store is None:
        raise ConfigError(f"Job {claim.key} keeps no index, and has no dead letters.")
    # What of the batch is still on its way stays out, or more than the letter says were there.
    sink = Sink(log=reader.deployment.log, claims=[claim])
    store = store.take_over([claim.key.account], sink.alive)
    sink.check_held()
    error = UnrepeatableError(
        f"Index {reader.source.name}/{name}, tenant {claim.key.account}: a run died over versions "
        f"{range_}, which cannot be read again ({written.reading.plan.reason}). The index may "
        "have their rows in part. Replay this letter to build the tenant anew, or drop it to leave "
        "that so."
    )
    store.set_aside(claim.key.account, registration=claim.registration, range_=range_, error=error)
    LOGGER.warning("%s", error)
    return _skipped(reader, claim, written, ledger, plan=ASIDE)


def _outcome(reader: Reader, claim: Claim, written: Written, ledger: Ledger) -> Delivery | Failed:
    deployment = reader.deployment
    if written.code:
        return _failed(deployment, claim, written.code, written.message)
    delivery = Delivery(claim=claim, written=written, ledger=ledger)
    try:
        _check(delivery)
    except IscpError as error:
        failed = _failed(deployment, claim, error.code, str(error))
        # Its chunks come again under tokens that ClickHouse knows.
        lost = isinstance(error, LostRowsError) and not written.reading.staged
        if lost or isinstance(error, DoubledRowsError):
            deployment.log.rebuild([claim.key])
        return failed
    return delivery


_ENDS: Mapping[Action, Callable[[Reader, Claim, Written, Ledger], Delivery]] = {
    Action.SKIP: _skipped,
    Action.DEAD_LETTER: _set_aside,
}
"""What the outcome is of a step for which nothing is read."""


def _store(reader: Reader, claim: Claim, version: int) -> IndexStore | None:
    return reader.store(claim.consumer, version) if is_index(claim.consumer) else None


def _check(delivery: Delivery) -> None:
    if delivery.store is None:
        return
    if delivery.plan.kind is ReadKind.SNAPSHOT:
        delivery.store.check_staged(
            delivery.tenant, version=delivery.to.version, rows=delivery.inserted
        )
    else:
        delivery.store.check_appended(
            delivery.tenant, range_=delivery.range, rows=delivery.inserted
        )


def _failed(deployment: Deployment, claim: Claim, code: int, message: str) -> Failed:
    _fail(deployment, claim, code, message)
    return Failed(claim=claim, code=code, message=message)


def _fail(deployment: Deployment, claim: Claim, code: int, message: str) -> None:
    # Whoever took the job meanwhile answers for its state.
    with suppress(FenceError):
        deployment.log.fail(claim, code, message)


@contextmanager
def _settled(deployment: Deployment, open_: list[Claim]) -> Iterator[None]:
    """Whatever ends the iteration early is written to the log for the jobs still open."""
    try:
        yield
    except Exception as error:
        code = error.code if isinstance(error, IscpError) else IscpError.code
        text = str(error) if isinstance(error, IscpError) else f"{type(error).__name__}: {error}"
        for claim in open_:
            _fail(deployment, claim, code, text)
        raise
    except BaseException:
        held = {claim.key: claim.fence for claim in open_}
        deployment.log.cancel(held, seen=held)
        raise
