"""Tenants that first appear once a trigger is registered.

Its job for such a tenant begins before the tenant's first commit, so that its first rows fire, each
from its own commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import NewJob
from iscp_dagster.model.moment import START, Moment


def find_latest_moments(log: SqlLog, delta_log: DeltaLog, table_id: str) -> Mapping[str, Moment]:
    """By job name, the latest moment that some tenant's job has reached.

    A look registers a tenant's jobs before any job takes the tenant's first commit: a tenant
    without a job by then had no rows as of that moment.
    """
    versions: dict[str, int] = {}
    for name, version, _ in log.list_watermark_versions(table_id):
        versions[name] = max(version, versions.get(name, START.version))
    moments: dict[str, Moment] = {}
    for name, version in versions.items():
        # The log of a table that was restored may lack the version.
        with suppress(IscpError):
            if version > START.version and delta_log.has_moment(delta_log.get_moment(version)):
                moments[name] = delta_log.get_moment(version)
    return moments


def set_first_watermarks(
    rows: Sequence[NewJob], log: SqlLog, delta_log: DeltaLog, after: Mapping[str, Moment]
) -> list[NewJob]:
    """The rows; a trigger's job whose tenant had no rows as of `after` begins there.

    `after` is by job name. Reads nothing if no row is a trigger's.
    """
    early = [row for row in rows if _should_begin_early(row) and row.name.job in after]
    if not early:
        return list(rows)
    tenants = {row.tenant for row in early}
    registered = {job.key for job in log.list_jobs(table_id=early[0].table_id, tenants=tenants)}
    new = {row.key: after[row.name.job] for row in early if row.key not in registered}
    tenants_by_moment = {
        moment: _read_tenants(delta_log, moment, tenants) for moment in set(new.values())
    }
    beginnings = {
        key: moment for key, moment in new.items() if key.tenant not in tenants_by_moment[moment]
    }
    return [replace(row, watermark=beginnings.get(row.key, row.watermark)) for row in rows]


def _should_begin_early(row: NewJob) -> bool:
    return get_consumer_kind(row.spec.detail.consumer.type).begins_before_first_commit


def _read_tenants(delta_log: DeltaLog, moment: Moment, among: Collection[str]) -> frozenset[str]:
    """The tenants with rows at `moment`; all of `among` if they cannot be read."""
    with suppress(IscpError):
        return frozenset(delta_log.list_tenants(moment.version))
    return frozenset(among)
