"""The jobs that follow from a declaration."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from iscp_dagster.model.declared.sharding import SHARD
from iscp_dagster.model.declared.tables import DeclaredConsumer, SourceTable
from iscp_dagster.model.digest import compute_digest
from iscp_dagster.model.jobs import JobID, NewJob
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec


def make_job_name(source: SourceTable, consumer: DeclaredConsumer) -> JobID:
    """The name by which users refer to the job of the index or trigger."""
    return JobID(db=source.database, table=source.table, job=consumer.name)


def make_job_spec(source: SourceTable, consumer: DeclaredConsumer) -> JobSpec:
    """The spec of a self-registering job; empty columns and options mean: as declared."""
    info = ConsumerInfo(
        type=consumer.kind,
        db=source.database,
        table=source.table,
        job=consumer.name,
        options={SHARD: consumer.placement.shard} if consumer.placement else {},
    )
    return JobSpec(detail=IterationDetail(priority=consumer.priority, consumer=info))


def add_shard(source: SourceTable, spec: JobSpec) -> JobSpec:
    """The spec with its shard, where the location declares the job as one of a shard."""
    consumer = spec.detail.consumer
    for index in source.indexes:
        if index.name == consumer.job and index.placement:
            options = {**consumer.options, SHARD: index.shard}
            detail = replace(spec.detail, consumer=replace(consumer, options=options))
            return replace(spec, detail=detail)
    return spec


def make_job_specs(
    source: SourceTable, consumers: Iterable[DeclaredConsumer]
) -> dict[JobID, JobSpec]:
    """The name and spec that each index and trigger is registered with."""
    return {
        make_job_name(source, consumer): make_job_spec(source, consumer) for consumer in consumers
    }


def list_table_specs(
    source: SourceTable, standing: Mapping[JobID, JobSpec]
) -> dict[JobID, JobSpec]:
    """The jobs of every tenant of the table: self-registering ones and standing registrations."""
    auto = [consumer for consumer in source.consumers if consumer.auto_register]
    requested = {
        name: spec
        for name, spec in standing.items()
        if (name.db, name.table) == (source.database, source.table)
    }
    return make_job_specs(source, auto) | requested


def hash_table_jobs(source: SourceTable, standing: Mapping[JobID, JobSpec]) -> str:
    """A digest of what determines the table's tenants and the jobs of each."""
    specs = {str(name): spec.to_json() for name, spec in list_table_specs(source, standing).items()}
    return compute_digest(json.dumps([source.path, source.tenant, specs], sort_keys=True))


def make_new_jobs(
    table_id: str, tenants: Collection[str], specs: Mapping[JobID, JobSpec]
) -> list[NewJob]:
    """One job per spec and tenant."""
    return [
        NewJob(tenant=tenant, name=name, table_id=table_id, spec=spec)
        for name, spec in specs.items()
        for tenant in tenants
    ]
