"""The jobs that follow from a declaration."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from iscp_dagster.model.declared.sharding import SHARD
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.digest import short
from iscp_dagster.model.jobs import JobID, NewJob
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec


def name_of(source: SourceTable, index: Index) -> JobID:
    """The name by which users refer to the index's job."""
    return JobID(db=source.database, table=source.table, job=index.name)


def job_spec(source: SourceTable, index: Index) -> JobSpec:
    """The spec of a self-registering job; columns and options follow the declaration."""
    consumer = ConsumerInfo(
        type=index.kind,
        db=source.database,
        table=source.table,
        job=index.name,
        options={SHARD: index.shard} if index.placement else {},
    )
    return JobSpec(detail=IterationDetail(priority=index.priority, consumer=consumer))


def placed(source: SourceTable, spec: JobSpec) -> JobSpec:
    """The spec with its shard, where the location declares the job as one of a shard."""
    consumer = spec.detail.consumer
    for index in source.indexes:
        if index.name == consumer.job and index.placement:
            options = {**consumer.options, SHARD: index.shard}
            detail = replace(spec.detail, consumer=replace(consumer, options=options))
            return replace(spec, detail=detail)
    return spec


def declared(source: SourceTable, indexes: Iterable[Index]) -> dict[JobID, JobSpec]:
    """The name and spec that each index is registered with."""
    return {name_of(source, index): job_spec(source, index) for index in indexes}


def registering(source: SourceTable, standing: Mapping[JobID, JobSpec]) -> dict[JobID, JobSpec]:
    """The jobs of every tenant of the table: self-registering ones and standing registrations."""
    auto = [index for index in source.indexes if index.auto_register]
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
