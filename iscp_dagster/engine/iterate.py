"""An iteration from claim to watermark (seed 001, "Iteration"; DESIGN, "Exactly once")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from iscp_dagster.clickhouse.chunks import ROWS_PER_CHUNK
from iscp_dagster.clickhouse.indexes import IndexStore
from iscp_dagster.core.batch import Action, Range
from iscp_dagster.core.errors import FenceError, IscpError
from iscp_dagster.core.iterations import Claim, Iteration
from iscp_dagster.core.moment import Moment
from iscp_dagster.core.tables import SourceTable
from iscp_dagster.engine.context import Engine
from iscp_dagster.engine.scan import Scanned, Sink, Written, scan
from iscp_dagster.engine.source import Source
from iscp_dagster.lake.feed import ReadKind, ReadPlan

LAYOUT = {"rows_per_chunk": ROWS_PER_CHUNK}


SKIPPED = ReadPlan(kind=ReadKind.TAIL, reason="written before, nothing read")


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One job's rows, written by the scan: `publish` makes them count."""

    claim: Claim
    store: IndexStore
    plan: ReadPlan
    range: Range
    """What was read: the claim's step, or up to a later version where that is read whole."""
    written: Written

    @property
    def tenant(self) -> str:
        return self.claim.key.account

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
    engine: Engine,
    table: SourceTable,
    iteration: Iteration,
    *,
    run_id: str,
    queued_as: str | None = None,
) -> Iterator[Delivery | Failed]:
    """Claim the iteration's jobs, scan once for all of them, and give each one's outcome.

    Each Delivery must go to `publish` before the next is asked for. Steps left over from a run
    that died are replayed first. Raises FenceError when another run holds one of the jobs.
    """
    claims = engine.log.begin(iteration, run_id, LAYOUT, queued_as=queued_as)
    open_ = list(claims)
    with _settled(engine, open_):
        source = Source(engine, table, iteration.tenants)
        while open_:
            group = _next_group(open_)
            for claim, outcome in _delivered(source, group):
                open_.remove(claim)
                if isinstance(outcome, Delivery) and not claim.last:
                    _check_held(engine, claim)
                    _put_in_place(outcome)
                    with _starting_over_when_late(engine, outcome):
                        open_.append(engine.log.advance(claim))
                else:
                    yield outcome


def publish(engine: Engine, delivery: Delivery) -> None:
    """Serve what was written and move the watermark; nothing else moves it.

    Raises FenceError, and serves nothing, when the job's row was taken by another writer; when
    that happens in the very moment of serving, the job starts over.
    """
    _check_held(engine, delivery.claim)
    try:
        _put_in_place(delivery)
    except IscpError as error:
        _check_held(engine, delivery.claim)
        _fail(engine, delivery.claim, error.code, str(error))
        raise
    with _starting_over_when_late(engine, delivery):
        engine.log.complete(delivery.claim, delivery.to, delivery.counts)


@contextmanager
def _starting_over_when_late(engine: Engine, delivery: Delivery) -> Iterator[None]:
    """A claim lost in the very moment of serving: a later snapshot may have been replaced."""
    try:
        yield
    except FenceError:
        if delivery.plan.kind is ReadKind.SNAPSHOT:
            _start_over(engine, delivery.claim)
        raise


def _start_over(engine: Engine, claim: Claim) -> None:
    """Build again from the first version."""
    if engine.log.job(claim.key) is not None:
        engine.log.unregister(claim.key.account, claim.name, claim.key.table_id)
        engine.log.register(claim.key.account, claim.name, claim.key.table_id, claim.spec)


def _put_in_place(delivery: Delivery) -> None:
    if delivery.plan.kind is ReadKind.SNAPSHOT:
        delivery.store.replace(delivery.tenant, rows=delivery.inserted)


def _next_group(claims: Sequence[Claim]) -> list[Claim]:
    first = min((claim.step.range for claim in claims), key=_span)
    return [claim for claim in claims if claim.step.range == first]


def _span(range_: Range) -> tuple[int, int]:
    return range_.from_.version, range_.to.version


def _delivered(source: Source, group: Sequence[Claim]) -> Iterator[tuple[Claim, Delivery | Failed]]:
    """Scan the step that the claims of `group` have in common."""
    range_ = group[0].step.range
    plan = source.plan(range_)
    reading = [claim for claim in group if claim.step.action is not Action.SKIP]
    scanned = Scanned(plan=plan, range=range_, written={})
    if reading:
        sinks = _sinks(reading)
        rebuild_to = min(claim.range.to for claim in reading)
        scanned = scan(source, plan, range_, sinks, rebuild_to=rebuild_to)
    for claim in group:
        if claim in reading:
            yield claim, _outcome(source, claim, scanned)
        else:
            yield claim, _skipped(source, claim)


def _sinks(claims: Sequence[Claim]) -> list[Sink]:
    """One an index, whose tables all its tenants share."""
    by_job: dict[str, list[Claim]] = {}
    for claim in claims:
        by_job.setdefault(claim.key.job_name, []).append(claim)
    return [
        Sink(
            job=job,
            job_id=min(claim.job_id for claim in members),
            takes_over=any(claim.takes_over for claim in members),
        )
        for job, members in sorted(by_job.items())
    ]


def _skipped(source: Source, claim: Claim) -> Delivery:
    range_ = claim.step.range
    store = source.store(claim.key.job_name, range_.to.version)
    return Delivery(claim=claim, store=store, plan=SKIPPED, range=range_, written=Written())


def _outcome(source: Source, claim: Claim, scanned: Scanned) -> Delivery | Failed:
    engine, written = source.engine, scanned.written[claim.key.job_name]
    if written.code:
        return _failed(engine, claim, written.code, written.message)
    store = source.store(claim.key.job_name, scanned.range.to.version)
    delivery = Delivery(
        claim=claim, store=store, plan=scanned.plan, range=scanned.range, written=written
    )
    try:
        _check(delivery)
    except IscpError as error:
        return _failed(engine, claim, error.code, str(error))
    return delivery


def _check(delivery: Delivery) -> None:
    if delivery.plan.kind is ReadKind.SNAPSHOT:
        delivery.store.check_staged(
            delivery.tenant, version=delivery.to.version, rows=delivery.inserted
        )


def _failed(engine: Engine, claim: Claim, code: int, message: str) -> Failed:
    _fail(engine, claim, code, message)
    return Failed(claim=claim, code=code, message=message)


def _fail(engine: Engine, claim: Claim, code: int, message: str) -> None:
    # Whoever took the job meanwhile answers for its state.
    with suppress(FenceError):
        engine.log.fail(claim, code, message)


def _check_held(engine: Engine, claim: Claim) -> None:
    if not _holds(engine, claim):
        raise FenceError(
            f"Job {claim.key} was taken from run {claim.run_id} by another writer; "
            "nothing of this run is served. The next iteration continues."
        )


def _holds(engine: Engine, claim: Claim) -> bool:
    job = engine.log.job(claim.key)
    return job is not None and job.seq == claim.fence


@contextmanager
def _settled(engine: Engine, open_: list[Claim]) -> Iterator[None]:
    """Whatever ends the iteration early is written to the log for the jobs still open."""
    try:
        yield
    except Exception as error:
        code = error.code if isinstance(error, IscpError) else IscpError.code
        text = str(error) if isinstance(error, IscpError) else f"{type(error).__name__}: {error}"
        for claim in open_:
            _fail(engine, claim, code, text)
        raise
    except BaseException:
        engine.log.cancel([claim.key for claim in open_ if _holds(engine, claim)])
        raise
