"""Plans how the step that several claims share is read: this may differ by tenant and job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Claim
from iscp_dagster.model.batch import BatchAction
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.sync.iteration.commands import Claims, PlanReads, ReadsPlanned
from iscp_dagster.sync.iteration.machine import group_by_job
from iscp_dagster.sync.iteration.narrowing import get_tenants
from iscp_dagster.sync.reading.reader import SourceReader
from iscp_dagster.sync.reading.requests import ReadRequest
from iscp_dagster.sync.reading.views import group_by_view

UNKNOWN = ReadPlan(kind=ReadKind.SNAPSHOT, reason="it is unknown what was written before")
REPLACED = ReadPlan(kind=ReadKind.SNAPSHOT, reason="a later snapshot is already in place")


def plan_reads(reader: SourceReader, command: PlanReads) -> ReadsPlanned:
    """The readings of the claims' step: one for all claims that get the same rows.

    Raises SourceError, KeyColumnError for a table that cannot be read as declared.
    """
    plans = {command.plan: command.claims} if command.plan else _plan_claims(reader, command.claims)
    return ReadsPlanned(
        tuple(
            request
            for plan, claims in plans.items()
            for group in (group_by_job(claims).values() if command.split_by_job else [claims])
            for request in _make_requests(reader, plan, group)
        )
    )


def _make_requests(
    reader: SourceReader, plan: ReadPlan, claims: Claims
) -> Iterable[tuple[ReadRequest, Claims]]:
    """A reading of the source's rows, and of each view's changes."""
    step = claims[0].step
    for image_source, members in group_by_view(reader.source, claims):
        yield (
            ReadRequest(
                plan=plan, range=step.range, layout=step.layout or {}, image_source=image_source
            ),
            tuple(members),
        )


def _plan_claims(reader: SourceReader, claims: Claims) -> dict[ReadPlan, Claims]:
    """How to read the claims' step according to the log."""
    by_tenant = _plan_tenants(replace(reader, tenants=get_tenants(claims)), claims)
    plans = {claim.key: by_tenant[claim.key.tenant] for claim in claims}
    plans |= _plan_image_reads(reader, claims, plans)
    tails = [claim for claim in claims if plans[claim.key].kind is ReadKind.TAIL]
    if not reader.source.keys:
        # A repair may have deleted the record of a batch that was begun.
        forgotten = get_tenants([claim for claim in claims if claim.previous is None])
        plans |= {claim.key: UNKNOWN for claim in tails if claim.key.tenant in forgotten}
    plans |= dict.fromkeys(_find_replaced(reader, tails), REPLACED)
    by_plan: dict[ReadPlan, list[Claim]] = {}
    for claim in claims:
        by_plan.setdefault(plans[claim.key], []).append(claim)
    return {plan: tuple(members) for plan, members in by_plan.items()}


def _plan_tenants(reader: SourceReader, claims: Sequence[Claim]) -> dict[str, ReadPlan]:
    plans = reader.plan_reads_by_tenant(claims[0].step.range)
    return {tenant: plan for plan, tenants in plans.items() for tenant in tenants}


def _plan_image_reads(
    reader: SourceReader, claims: Sequence[Claim], plans: Mapping[JobKey, ReadPlan]
) -> dict[JobKey, ReadPlan]:
    """How to read for views and triggers where others need a snapshot: changes that only an index
    lacks are no gap for them.
    """
    image_plans: dict[JobKey, ReadPlan] = {}
    staged = [claim for claim in claims if plans[claim.key].kind is ReadKind.SNAPSHOT]
    for type_ in {claim.consumer.type for claim in filter(_needs_images, staged)}:
        group = [claim for claim in staged if claim.consumer.type == type_]
        if not group[0].step.range.initial:
            infos = tuple(dict.fromkeys(claim.consumer for claim in group))
            group_reader = replace(reader, tenants=get_tenants(group), consumers=infos)
            by_tenant = _plan_tenants(group_reader, group)
            image_plans |= {claim.key: by_tenant[claim.key.tenant] for claim in group}
    return image_plans


def _needs_images(claim: Claim) -> bool:
    return get_consumer_kind(claim.consumer.type).of_images


def _find_replaced(reader: SourceReader, tails: Sequence[Claim]) -> list[JobKey]:
    """The claims of tenants for which an earlier attempt already put a snapshot in place.

    Where a later snapshot is in place, a replayed tail cannot tell which of its keys existed before
    its range.
    """
    histories = list(filter(_needs_images, tails))
    others = [claim for claim in tails if not _needs_images(claim)]
    # Changes that another index lost are no gap in a history.
    groups = [others, *group_by_job(histories).values()]
    return [
        claim.key
        for claims in groups
        for replaced in [_find_later_snapshots(reader, claims)]
        for claim in claims
        if claim.key.tenant in replaced
    ]


def _find_later_snapshots(reader: SourceReader, claims: Sequence[Claim]) -> frozenset[str]:
    """The tenants for which one of the indexes has a snapshot of a version after the range."""
    if not reader.source.keys:
        return frozenset()
    replaced: frozenset[str] = frozenset()
    replayed = [claim for claim in claims if claim.step.action is BatchAction.REPLAY]
    for members in group_by_job(replayed).values():
        range_, tenants = members[0].step.range, [claim.key.tenant for claim in members]
        # An index that fails here fails in its own part of the scan.
        with suppress(IscpError):
            store = reader.make_index_store_if_any(members[0].consumer, range_.to.version)
            if store is not None:
                replaced |= store.find_replaced_tenants(tenants, range_.from_.version)
    return replaced
