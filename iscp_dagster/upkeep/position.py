"""The position of every index of a source table, tenant by tenant."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.planning.effective import compute_effective_jobs, is_in_step
from iscp_dagster.planning.table_problems import check_sole
from iscp_dagster.sync.deployment import Deployment


@dataclass(frozen=True, kw_only=True)
class JobPosition:
    """One job, compared with its source."""

    job: Job
    latest: Moment
    watermark: Moment
    """The effective watermark: up to here the index agrees with its source."""
    in_step: bool

    @property
    def tenant(self) -> str:
        return self.job.key.tenant

    @property
    def job_name(self) -> str:
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


def read_positions(
    deployment: Deployment,
    source: SourceTable,
    *,
    tenants: Collection[str] | None = None,
    job_names: Collection[str] | None = None,
) -> list[JobPosition]:
    """All jobs of the table as it is now, or those of some tenants or indexes, by tenant.

    Reads the Delta log and the ISCP log only. Raises SourceError when there is no such table,
    ConfigError where it is declared twice.
    """
    delta_log = deployment.make_delta_log(source)
    latest = delta_log.get_latest_moment()
    table_id = delta_log.get_table_id(latest.version)
    check_sole(deployment, source, table_id)
    jobs = deployment.log.list_jobs(table_id=table_id, tenants=tenants)
    selected = [job for job in jobs if job_names is None or job.key.job_name in job_names]
    return [
        JobPosition(
            job=job,
            latest=latest,
            watermark=effective.watermark,
            in_step=is_in_step(effective, latest),
        )
        for job, effective in zip(
            selected, compute_effective_jobs(delta_log, selected, latest), strict=True
        )
    ]
