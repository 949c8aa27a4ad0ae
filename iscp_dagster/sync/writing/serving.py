"""Serves a generation of an index that was built beside the served one, once it is complete."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.kinds.index_kind import resolve_index
from iscp_dagster.clickhouse.tables.generations import find_outdated_views
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.declared.sharding import format_suffix
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.sync.deployment import Deployment


@dataclass(kw_only=True)
class ServeResult:
    """The indexes whose latest generation is served from now on, and the problems met."""

    indexes: list[JobID] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def serve_when_built(deployment: Deployment, name: JobID, store: IndexStore) -> bool:
    """Serve the store's generation instead of an earlier one, if every tenant is built in it.

    Does not wait for new tenants that have no rows in the earlier generation. Atomic for the
    readers of each view; drops the earlier tables. False if nothing new is served. Idempotent,
    and may be interrupted.
    """
    data, generation = store.data, store.shape.generation
    served = data.find_served_generation() if generation else None
    if served is None or served > generation:
        return False
    earlier = [
        table
        for table, table_generation in data.list_tables().items()
        if table_generation < generation
    ]
    if not earlier or data.has_rows(
        served, store.shape.source.tenant, deployment.log.find_unbuilt_tenants(name)
    ):
        return False
    if served < generation:
        # The source may have gained columns since.
        store.ensure()
        store.ensure_views()
    data.drop_before(generation)
    return served < generation


def find_unserved(deployment: Deployment, jobs: Collection[Job]) -> frozenset[JobID]:
    """The indexes whose readers still see an earlier generation than the jobs write."""
    consumers = {
        job.name: job.spec.detail.consumer
        for job in jobs
        if is_index(job.spec.detail.consumer) and job.spec.detail.consumer.generation
    }
    return frozenset(
        name
        for name, info in consumers.items()
        if (served := _get_generation(deployment, info)) is not None and served < info.generation
    )


def _get_generation(deployment: Deployment, info: ConsumerInfo) -> int | None:
    data = deployment.get_index_data(info)
    return None if data is None else data.find_served_generation()


def serve_all(deployment: Deployment, sources: Sequence[SourceTable]) -> ServeResult:
    """Serve every complete generation whose run died before it was fully served.

    Renews views that another version of this package made. If there is nothing to do, queries
    ClickHouse only once per database.
    """
    result = ServeResult()
    for endpoint, database in _list_databases(deployment, sources):
        try:
            waiting = find_outdated_views(endpoint, database)
        except Exception as error:  # noqa: BLE001 - any error stops only this database
            result.problems.append(f"{database}: {error}")
            continue
        for source in sources:
            if endpoint.resolve_database(source.database) == database:
                for name in _list_job_names(deployment, source, endpoint, sorted(waiting)):
                    _serve_latest(deployment, source, name, result)
    return result


def _list_databases(
    deployment: Deployment, sources: Sequence[SourceTable]
) -> Iterator[tuple[ClickHouseEndpoint, str]]:
    """Every database, on every endpoint, that holds indexes of the sources."""
    for endpoint in deployment.endpoints:
        for database in sorted({endpoint.resolve_database(source.database) for source in sources}):
            yield endpoint, database


def _list_job_names(
    deployment: Deployment,
    source: SourceTable,
    endpoint: ClickHouseEndpoint,
    views: Collection[str],
) -> Iterator[str]:
    """The names of the jobs whose indexes these views of an endpoint show."""
    shard, head = deployment.endpoints.index(endpoint), f"{source.table}_"
    for view in views:
        if view.startswith(head):
            name = view.removeprefix(head)
            yield from (f"{name}{format_suffix(shard)}", *([] if shard else [name]))


def _serve_latest(
    deployment: Deployment, source: SourceTable, name: str, result: ServeResult
) -> None:
    job = JobID(db=source.database, table=source.table, job=name)
    try:
        store = _find_store(deployment, source, job)
        if store is not None and serve_when_built(deployment, job, store):
            result.indexes.append(job)
        elif store is not None:
            store.renew_views()
    except Exception as error:  # noqa: BLE001 - any error stops only this index
        result.problems.append(f"{source.name}/{name}: {error}")


def _find_store(deployment: Deployment, source: SourceTable, name: JobID) -> IndexStore | None:
    """The tables of the index's latest generation; None if it has no jobs."""
    info = next((job.spec.detail.consumer for job in deployment.log.list_jobs(name=name)), None)
    if info is None or not is_index(info):
        return None
    schema = deployment.make_delta_log(source).get_facts().fields
    return deployment.make_index_store(source, resolve_index(source, info), schema, info.generation)
