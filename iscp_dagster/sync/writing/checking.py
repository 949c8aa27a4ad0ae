"""What became of a part of a scan: its rows are counted, and steps that write none are settled."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from iscp_dagster.clickhouse.connect.failures import DoubledRowsError, LostRowsError
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.delta.plans import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Claim
from iscp_dagster.model.batch import WRITES, Action
from iscp_dagster.model.errors import ConfigError, IscpError, UnrepeatableError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.sync.iteration.commands import Checked, Part
from iscp_dagster.sync.iteration.narrowing import tenants_of
from iscp_dagster.sync.iteration.outcomes import Delivery, Outcome, Written, failed
from iscp_dagster.sync.reading.reader import Reader
from iscp_dagster.sync.reading.readings import Reading
from iscp_dagster.sync.writing.sink import Sink

LOGGER = logging.getLogger(__name__)
SKIPPED = ReadPlan(kind=ReadKind.TAIL, reason="written before, nothing read")
ASIDE = ReadPlan(kind=ReadKind.TAIL, reason="cannot be read again, set aside as a dead letter")


def checked(reader: Reader, part: Part) -> Checked:
    """Settle the part's steps that write nothing, and find the jobs whose rows are wrong."""
    aside = [each for each in part.claims if each.step.action is Action.DEAD_LETTER]
    skipped = [each for each in part.claims if each.step.action is Action.SKIP]
    passed = [*_set_aside(reader, aside, part.written), *(_skipped(reader, e) for e in skipped)]
    written = [each for each in part.claims if each.step.action in WRITES]
    wrong = _wrong(written, part.written)
    return Checked(
        part=part,
        passed={each.claim.key: each for each in passed},
        wrong=wrong,
        rebuild=frozenset(key for key, each in wrong.items() if _starts_over(part.written, each)),
    )


def _starts_over(written: Written, error: IscpError) -> bool:
    """Whether the job is rebuilt, as ClickHouse would drop a replay by its tokens.

    A snapshot that lost rows needs no rebuild: its tokens are new each time.
    """
    lost = isinstance(error, LostRowsError) and not written.reading.staged
    return lost or isinstance(error, DoubledRowsError)


def _wrong(claims: Sequence[Claim], written: Written) -> dict[JobKey, IscpError]:
    """The jobs, of one index and reading, whose rows in ClickHouse are not exactly those sent."""
    store, range_ = written.store, written.reading.range
    well = [each for each in claims if written.error_of(each.key.tenant) is None]
    if store is None or not well:
        return {}
    rows = {each.key.tenant: written.inserted.get(each.key.tenant, 0) for each in well}
    wrong: Mapping[str, IscpError]
    try:
        if written.reading.staged:
            wrong = store.check_staged(rows, version=range_.to.version)
        else:
            wrong = store.check_appended(rows, range_=range_)
    except IscpError as error:
        wrong = dict.fromkeys(rows, error)
    return {each.key: wrong[each.key.tenant] for each in well if each.key.tenant in wrong}


def _skipped(reader: Reader, claim: Claim) -> Outcome:
    """The outcome of a step that was written before."""
    try:
        return _unread(reader, claim, SKIPPED)
    except IscpError as error:
        return failed(claim, error)


def _unread(reader: Reader, claim: Claim, plan: ReadPlan) -> Delivery:
    """The outcome of a step for which nothing is read."""
    range_ = claim.step.range
    store = reader.index_store(claim.consumer, range_.to.version)
    return Delivery(
        claim=claim, written=Written(reading=Reading(plan=plan, range=range_), store=store)
    )


def _set_aside(reader: Reader, claims: Sequence[Claim], written: Written) -> list[Outcome]:
    """Write only a dead letter for each claim of an index, which says what may be missing."""
    try:
        return _aside(reader, claims, written) if claims else []
    except IscpError as error:
        return [failed(claim, error) for claim in claims]


def _aside(reader: Reader, claims: Sequence[Claim], written: Written) -> list[Outcome]:
    range_ = claims[0].step.range
    # Reject inserts still in flight, or the index could get rows after the letter is written.
    sink = Sink(log=reader.deployment.log, claims=claims)
    store = _own_store(reader, claims[0]).take_over(tenants_of(claims), sink.alive)
    lost = sink.lost()
    errors = {
        tenant: UnrepeatableError(
            f"Index {reader.source.name}/{claims[0].consumer.job}, tenant {tenant}: a run died "
            f"writing versions {range_}, which cannot be read again "
            f"({written.reading.plan.reason}). The index may have only some of their rows. Replay "
            "this letter to rebuild the tenant, or drop it to leave the index as it is."
        )
        for tenant in sorted(tenants_of(claims) - lost.keys())
    }
    if errors:
        store.set_aside(errors, registrations=sink.registrations, range_=range_)
    for each in errors.values():
        LOGGER.warning("%s", each)
    return [
        failed(claim, lost[claim.key.tenant])
        if claim.key.tenant in lost
        else _unread(reader, claim, ASIDE)
        for claim in claims
    ]


def _own_store(reader: Reader, claim: Claim) -> IndexStore:
    store = reader.index_store(claim.consumer, claim.step.range.to.version)
    if store is None:
        name = f"{reader.source.name}/{claim.consumer.job}"
        raise ConfigError(f"Job {name} keeps no index, and has no dead letters.")
    return store
