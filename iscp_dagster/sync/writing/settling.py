"""Checks a part of a scan: counts its rows, and settles steps that write none."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from iscp_dagster.clickhouse.connect.failures import DoubledRowsError, LostRowsError
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Claim
from iscp_dagster.model.batch import WRITES, BatchAction
from iscp_dagster.model.errors import ConfigError, IscpError, UnrepeatableError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.sync.iteration.commands import ScanResult, ScanSettled
from iscp_dagster.sync.iteration.narrowing import get_tenants
from iscp_dagster.sync.iteration.outcomes import Outcome, RowDelivery, WriteResult, make_failure
from iscp_dagster.sync.reading.reader import SourceReader
from iscp_dagster.sync.reading.requests import ReadRequest
from iscp_dagster.sync.writing.consumer_claims import ConsumerClaims

LOGGER = logging.getLogger(__name__)
SKIPPED = ReadPlan(kind=ReadKind.TAIL, reason="written before, nothing read")
ASIDE = ReadPlan(kind=ReadKind.TAIL, reason="cannot be read again, set aside as a dead letter")


def settle_scan(reader: SourceReader, result: ScanResult) -> ScanSettled:
    """Settle the part's steps that write nothing, and find the jobs whose rows are wrong."""
    unrepeatable = [
        claim for claim in result.claims if claim.step.action is BatchAction.DEAD_LETTER
    ]
    skipped = [claim for claim in result.claims if claim.step.action is BatchAction.SKIP]
    outcomes = [
        *_set_steps_aside(reader, unrepeatable, result.written),
        *(_skip_step(reader, claim) for claim in skipped),
    ]
    written = [claim for claim in result.claims if claim.step.action in WRITES]
    errors = _find_wrong(written, result.written)
    return ScanSettled(
        result=result,
        outcomes={outcome.claim.key: outcome for outcome in outcomes},
        errors=errors,
        rebuild=frozenset(
            key for key, error in errors.items() if _needs_rebuild(result.written, error)
        ),
    )


def _needs_rebuild(written: WriteResult, error: IscpError) -> bool:
    """Whether to rebuild the job, since ClickHouse would drop a replay by its tokens.

    A snapshot that lost rows needs no rebuild: its tokens are new each time.
    """
    lost = isinstance(error, LostRowsError) and not written.request.is_snapshot
    return lost or isinstance(error, DoubledRowsError)


def _find_wrong(claims: Sequence[Claim], written: WriteResult) -> dict[JobKey, IscpError]:
    """The jobs, of one index and reading, whose rows in ClickHouse are not exactly those sent."""
    store, range_ = written.store, written.request.range
    succeeded = [claim for claim in claims if written.get_error(claim.key.tenant) is None]
    if store is None or not succeeded:
        return {}
    row_counts = {
        claim.key.tenant: written.inserted.get(claim.key.tenant, 0) for claim in succeeded
    }
    errors: Mapping[str, IscpError]
    try:
        if written.request.is_snapshot:
            errors = store.find_staged_errors(row_counts, version=range_.to.version)
        else:
            errors = store.find_appended_errors(row_counts, range_=range_)
    except IscpError as error:
        errors = dict.fromkeys(row_counts, error)
    return {
        claim.key: errors[claim.key.tenant] for claim in succeeded if claim.key.tenant in errors
    }


def _skip_step(reader: SourceReader, claim: Claim) -> Outcome:
    """The outcome of a step that was written before."""
    try:
        return _make_unread_delivery(reader, claim, SKIPPED)
    except IscpError as error:
        return make_failure(claim, error)


def _make_unread_delivery(reader: SourceReader, claim: Claim, plan: ReadPlan) -> RowDelivery:
    """The outcome of a step for which nothing is read."""
    range_ = claim.step.range
    store = reader.make_index_store_if_any(claim.consumer, range_.to.version)
    return RowDelivery(
        claim=claim, written=WriteResult(request=ReadRequest(plan=plan, range=range_), store=store)
    )


def _set_steps_aside(
    reader: SourceReader, claims: Sequence[Claim], written: WriteResult
) -> list[Outcome]:
    """Write for each claim of an index only a dead letter, which says what may be missing."""
    try:
        return _write_dead_letters(reader, claims, written) if claims else []
    except IscpError as error:
        return [make_failure(claim, error) for claim in claims]


def _write_dead_letters(
    reader: SourceReader, claims: Sequence[Claim], written: WriteResult
) -> list[Outcome]:
    range_ = claims[0].step.range
    # Reject inserts still in flight, or the index could get rows after the letter is written.
    consumer_claims = ConsumerClaims(log=reader.deployment.log, claims=claims)
    store = _get_index_store(reader, claims[0]).take_over(
        get_tenants(claims), consumer_claims.list_live_runs
    )
    claim_errors = consumer_claims.find_lost_tenants()
    errors = {
        tenant: UnrepeatableError(
            f"Index {reader.source.name}/{claims[0].consumer.job}, tenant {tenant}: a run died "
            f"writing versions {range_}, which cannot be read again "
            f"({written.request.plan.reason}). The index may have only some of their rows. Replay "
            "this letter to rebuild the tenant, or drop it to leave the index as it is."
        )
        for tenant in sorted(get_tenants(claims) - claim_errors.keys())
    }
    if errors:
        store.write_range_letters(
            errors, registrations=consumer_claims.registrations, range_=range_
        )
    for error in errors.values():
        LOGGER.warning("%s", error)
    return [
        make_failure(claim, claim_errors[claim.key.tenant])
        if claim.key.tenant in claim_errors
        else _make_unread_delivery(reader, claim, ASIDE)
        for claim in claims
    ]


def _get_index_store(reader: SourceReader, claim: Claim) -> IndexStore:
    store = reader.make_index_store_if_any(claim.consumer, claim.step.range.to.version)
    if store is None:
        name = f"{reader.source.name}/{claim.consumer.job}"
        raise ConfigError(f"Job {name} keeps no index, so it has no dead letters.")
    return store
