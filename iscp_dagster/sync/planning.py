"""How the step that several claims share is read: it may differ by tenant and by job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from iscp_dagster.delta.plans import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Claim
from iscp_dagster.model.batch import Action
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.sync.iteration.commands import Claims, Plan, Planned
from iscp_dagster.sync.iteration.machine import by_job
from iscp_dagster.sync.iteration.narrowing import tenants_of
from iscp_dagster.sync.reading.reader import Reader
from iscp_dagster.sync.reading.readings import Reading
from iscp_dagster.sync.reading.transitions import by_view

UNKNOWN = ReadPlan(kind=ReadKind.SNAPSHOT, reason="it is unknown what was written before")
REPLACED = ReadPlan(kind=ReadKind.SNAPSHOT, reason="a later snapshot is already in place")


def planned(reader: Reader, wanted: Plan) -> Planned:
    """The readings of the claims' step: one for all claims that get the same rows.

    Raises SourceError, KeyColumnError for a table that cannot be read as declared.
    """
    plans = {wanted.plan: wanted.claims} if wanted.plan else _plans(reader, wanted.claims)
    return Planned(
        tuple(
            reading
            for plan, claims in plans.items()
            for some in (by_job(claims).values() if wanted.apart else [claims])
            for reading in _readings(reader, plan, some)
        )
    )


def _readings(reader: Reader, plan: ReadPlan, claims: Claims) -> Iterable[tuple[Reading, Claims]]:
    """A reading of the source's rows, and of each view's changes."""
    step = claims[0].step
    for transitions, some in by_view(reader.source, claims):
        yield (
            Reading(plan=plan, range=step.range, layout=step.layout or {}, transitions=transitions),
            tuple(some),
        )


def _plans(reader: Reader, claims: Claims) -> dict[ReadPlan, Claims]:
    """How the log says that the claims' step is to be read."""
    by_tenant = _by_tenant(replace(reader, tenants=tenants_of(claims)), claims)
    plans = {each.key: by_tenant[each.key.tenant] for each in claims}
    plans |= _of_images(reader, claims, plans)
    tails = [each for each in claims if plans[each.key].kind is ReadKind.TAIL]
    if not reader.source.keys:
        # A repair may have deleted the record of a batch that was begun.
        forgotten = tenants_of([claim for claim in claims if claim.previous is None])
        plans |= {each.key: UNKNOWN for each in tails if each.key.tenant in forgotten}
    plans |= dict.fromkeys(_replaced(reader, tails), REPLACED)
    found: dict[ReadPlan, list[Claim]] = {}
    for claim in claims:
        found.setdefault(plans[claim.key], []).append(claim)
    return {plan: tuple(some) for plan, some in found.items()}


def _by_tenant(reader: Reader, claims: Sequence[Claim]) -> dict[str, ReadPlan]:
    plans = reader.plans(claims[0].step.range)
    return {tenant: plan for plan, some in plans.items() for tenant in some}


def _of_images(
    reader: Reader, claims: Sequence[Claim], plans: Mapping[JobKey, ReadPlan]
) -> dict[JobKey, ReadPlan]:
    """How to read for views and triggers where others need a snapshot: what only an index lacks is
    no gap for them.
    """
    found: dict[JobKey, ReadPlan] = {}
    staged = [each for each in claims if plans[each.key].kind is ReadKind.SNAPSHOT]
    for type_ in {each.consumer.type for each in filter(_is_of_images, staged)}:
        some = [each for each in staged if each.consumer.type == type_]
        if not some[0].step.range.initial:
            infos = tuple(dict.fromkeys(each.consumer for each in some))
            alone = replace(reader, tenants=tenants_of(some), consumers=infos)
            by_tenant = _by_tenant(alone, some)
            found |= {each.key: by_tenant[each.key.tenant] for each in some}
    return found


def _is_of_images(claim: Claim) -> bool:
    return consumer_kind(claim.consumer.type).of_images


def _replaced(reader: Reader, tails: Sequence[Claim]) -> list[JobKey]:
    """The claims of tenants for which an earlier attempt already put a snapshot in place.

    A tail cannot tell there which of its keys existed before its range.
    """
    histories = list(filter(_is_of_images, tails))
    others = [each for each in tails if not _is_of_images(each)]
    # What another index lost is no gap in a history.
    apart = [others, *by_job(histories).values()]
    return [
        claim.key
        for claims in apart
        for gone in [_with_later_snapshots(reader, claims)]
        for claim in claims
        if claim.key.tenant in gone
    ]


def _with_later_snapshots(reader: Reader, claims: Sequence[Claim]) -> frozenset[str]:
    """The tenants for which some index of these has a snapshot of a version after the range."""
    if not reader.source.keys:
        return frozenset()
    found: frozenset[str] = frozenset()
    replayed = [claim for claim in claims if claim.step.action is Action.REPLAY]
    for members in by_job(replayed).values():
        range_, tenants = members[0].step.range, [claim.key.tenant for claim in members]
        # An index that fails here fails in its own part of the scan.
        with suppress(IscpError):
            store = reader.index_store(members[0].consumer, range_.to.version)
            if store is not None:
                found |= store.replaced_after(tenants, range_.from_.version)
    return found
