"""The jobs that follow from a declaration."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from iscp_dagster.model.declared.sharding import SHARD
from iscp_dagster.model.declared.tables import Consuming, SourceTable
from iscp_dagster.model.digest import short
from iscp_dagster.model.jobs import JobID, NewJob
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec


def name_of(source: SourceTable, each: Consuming) -> JobID:
    """The name by which users refer to the job of the index or trigger."""
    return JobID(db=source.database, table=source.table, job=each.name)


def job_spec(source: SourceTable, each: Consuming) -> JobSpec:
    """The spec of a self-registering job; columns and options follow the declaration."""
    consumer = ConsumerInfo(
        type=each.kind,
        db=source.database,
        table=source.table,
        job=each.name,
        options={SHARD: each.placement.shard} if each.placement else {},
    )
    return JobSpec(detail=IterationDetail(priority=each.priority, consumer=consumer))


def placed(source: SourceTable, spec: JobSpec) -> JobSpec:
    """The spec with its shard, where the location declares the job as one of a shard."""
    consumer = spec.detail.consumer
    for index in source.indexes:
        if index.name == consumer.job and index.placement:
            options = {**consumer.options, SHARD: index.shard}
            detail = replace(spec.detail, consumer=replace(consumer, options=options))
            return replace(spec, detail=detail)
    return spec


def declared(source: SourceTable, consumers: Iterable[Consuming]) -> dict[JobID, JobSpec]:
    """The name and spec that each index and trigger is registered with."""
    return {name_of(source, each): job_spec(source, each) for each in consumers}


def registering(source: SourceTable, standing: Mapping[JobID, JobSpec]) -> dict[JobID, JobSpec]:
    """The jobs of every tenant of the table: self-registering ones and standing registrations."""
    auto = [each for each in source.consumers if each.auto_register]
    asked = {
        name: spec
        for name, spec in standing.items()
        if (name.db, name.table) == (source.database, source.table)
    }
    return declared(source, auto) | asked


def terms(source: SourceTable, standing: Mapping[JobID, JobSpec]) -> str:
    """A digest of what determines the table's tenants and the jobs of each."""
    specs = {str(name): spec.to_json() for name, spec in registering(source, standing).items()}
    return short(json.dumps([source.path, source.tenant, specs], sort_keys=True))


def new_jobs(
    table_id: str,
    tenants: Collection[str],
    specs: Mapping[JobID, JobSpec],
    *,
    but: Collection[tuple[str, str]] = (),
) -> list[NewJob]:
    """One job per spec and tenant, except the (tenant, job name) pairs in `but`."""
    return [
        NewJob(tenant=tenant, name=name, table_id=table_id, spec=spec)
        for name, spec in specs.items()
        for tenant in tenants
        if (tenant, name.job) not in but
    ]
