"""Where every index of a source table stands, tenant by tenant."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from iscp_dagster.core.jobs import Job
from iscp_dagster.core.moment import START, Moment
from iscp_dagster.core.specs import ConsumerInfo
from iscp_dagster.core.states import JobState
from iscp_dagster.core.tables import SourceTable
from iscp_dagster.engine.context import Engine
from iscp_dagster.engine.effective import effective
from iscp_dagster.lake.deltalog import DeltaLog


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One job against its source."""

    job: Job
    latest: Moment
    watermark: Moment
    """The effective one: up to it the index agrees with its source."""
    in_step: bool

    @property
    def tenant(self) -> str:
        return self.job.key.account

    @property
    def index(self) -> str:
        return self.job.key.job_name

    @property
    def consumer(self) -> ConsumerInfo:
        return self.job.spec.detail.consumer

    @property
    def lag(self) -> float | None:
        """In seconds of source time; 0 when in step, None before the first synchronization."""
        if self.in_step:
            return 0.0
        return max(self.latest.micros - self.watermark.micros, 0) / 1e6 if self.built else None

    @property
    def built(self) -> bool:
        """Whether the first synchronization has been served."""
        return self.watermark.version > START.version


def standings(
    engine: Engine,
    source: SourceTable,
    *,
    tenant: str | None = None,
    indexes: Collection[str] | None = None,
) -> list[Standing]:
    """All jobs of the table as it is now, or those of one tenant or some indexes, by tenant.

    Reads the Delta log and the job log only. Raises SourceError when there is no such table.
    """
    log = engine.delta_log(source)
    latest = log.latest()
    jobs = engine.log.jobs(table_id=log.table_id(), account=tenant)
    chosen = [job for job in jobs if indexes is None or job.key.job_name in indexes]
    return list(_stand(log, latest, chosen))


def _stand(log: DeltaLog, latest: Moment, jobs: Collection[Job]) -> Iterator[Standing]:
    changed = {
        version: _changed(log, version, latest)
        for version in {job.watermark.version for job in jobs}
    }
    held = list(jobs)
    for job, moved in zip(held, effective(log, held, latest), strict=True):
        behind = changed[job.watermark.version]
        touched = behind is None or job.key.account in behind
        in_step = job.state is JobState.COMPLETED and not touched
        yield Standing(job=job, latest=latest, watermark=moved.watermark, in_step=in_step)


def _changed(log: DeltaLog, version: int, latest: Moment) -> set[str] | None:
    if version >= latest.version:
        return set()
    return None if version == START.version else log.changed_tenants(version, latest.version)
