"""Serves a generation of an index that was built beside the served one, once it is complete."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.clickhouse.kinds.indexes import index_of
from iscp_dagster.clickhouse.tables.generations import unsettled_views
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.model.consumers.kinds import is_index
from iscp_dagster.model.declared.sharding import suffix
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.sync.deployment import Deployment


@dataclass(kw_only=True)
class Served:
    """The indexes whose latest generation is served from now on, and the problems met."""

    indexes: list[JobID] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def serve_when_built(deployment: Deployment, name: JobID, store: IndexStore) -> bool:
    """Serve the store's generation instead of an earlier one, if every tenant is built in it.

    Does not wait for new tenants that have no rows in the earlier generation. Atomic for the
    readers of each view; drops the earlier tables. False when nothing new is served. Idempotent,
    and may be interrupted.
    """
    data, mine = store.data, store.shape.generation
    served = data.served() if mine else None
    if served is None or served > mine:
        return False
    left = [table for table, its in data.tables().items() if its < mine]
    if not left or data.shows(served, store.shape.source.tenant, deployment.log.unbuilt(name)):
        return False
    if served < mine:
        # The source may have gained columns since.
        store.ensure()
        store.ensure_views()
    data.drop_before(mine)
    return served < mine


def unserved(deployment: Deployment, jobs: Collection[Job]) -> frozenset[JobID]:
    """The indexes whose readers still see an earlier generation than the one the jobs keep."""
    wanted = {
        job.name: job.spec.detail.consumer
        for job in jobs
        if is_index(job.spec.detail.consumer) and job.spec.detail.consumer.generation
    }
    return frozenset(
        name
        for name, info in wanted.items()
        if (served := _served(deployment, info)) is not None and served < info.generation
    )


def _served(deployment: Deployment, info: ConsumerInfo) -> int | None:
    data = deployment.data(info)
    return None if data is None else data.served()


def serve_all(deployment: Deployment, sources: Sequence[SourceTable]) -> Served:
    """Serve every complete generation whose run died before it was fully served.

    Renews views that another version of this package made. Where there is nothing to do, asks
    ClickHouse only once per database.
    """
    found = Served()
    for endpoint, database in _places(deployment, sources):
        try:
            waiting = unsettled_views(endpoint, database)
        except Exception as error:  # noqa: BLE001 - whatever a database raises stops it alone
            found.problems.append(f"{database}: {error}")
            continue
        for source in sources:
            if endpoint.holds(source.database) == database:
                for name in _names(deployment, source, endpoint, sorted(waiting)):
                    _serve(deployment, source, name, found)
    return found


def _places(
    deployment: Deployment, sources: Sequence[SourceTable]
) -> Iterator[tuple[Endpoint, str]]:
    """Every database, on every endpoint, that holds indexes of the sources."""
    for endpoint in deployment.endpoints:
        for database in sorted({endpoint.holds(source.database) for source in sources}):
            yield endpoint, database


def _names(
    deployment: Deployment, source: SourceTable, endpoint: Endpoint, views: Collection[str]
) -> Iterator[str]:
    """The names of the jobs whose indexes these views of an endpoint show."""
    shard, head = deployment.endpoints.index(endpoint), f"{source.table}_"
    for view in views:
        if view.startswith(head):
            name = view.removeprefix(head)
            yield from (f"{name}{suffix(shard)}", *([] if shard else [name]))


def _serve(deployment: Deployment, source: SourceTable, name: str, found: Served) -> None:
    job = JobID(db=source.database, table=source.table, job=name)
    try:
        store = _store(deployment, source, job)
        if store is not None and serve_when_built(deployment, job, store):
            found.indexes.append(job)
        elif store is not None:
            store.renew_views()
    except Exception as error:  # noqa: BLE001 - whatever an index raises stops it alone
        found.problems.append(f"{source.name}/{name}: {error}")


def _store(deployment: Deployment, source: SourceTable, name: JobID) -> IndexStore | None:
    """The tables of the index's latest generation; None where it has no jobs."""
    info = next((job.spec.detail.consumer for job in deployment.log.jobs(name=name)), None)
    if info is None or not is_index(info):
        return None
    schema = deployment.delta_log(source).facts().fields
    return deployment.store(source, index_of(source, info), schema, info.generation)
