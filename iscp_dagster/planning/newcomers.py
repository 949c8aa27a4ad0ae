"""Tenants that first appear while a job is there: a trigger's begins before their first commit.

Their rows were not there before the trigger, so the first ones fire, each from its own commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import NewJob
from iscp_dagster.model.moment import START, Moment


def reached(log: SqlLog, delta_log: DeltaLog, table_id: str) -> Mapping[str, Moment]:
    """By job name, the latest moment that some tenant's job has reached.

    A look registers a tenant's jobs before it has any job take the tenant's first commit: who has
    no job by then had no rows as of that moment.
    """
    versions: dict[str, int] = {}
    for name, version, _ in log.places(table_id):
        versions[name] = max(version, versions.get(name, START.version))
    found: dict[str, Moment] = {}
    for name, version in versions.items():
        # The log of a table that was restored may lack the version.
        with suppress(IscpError):
            if version > START.version and delta_log.has(delta_log.moment(version)):
                found[name] = delta_log.moment(version)
    return found


def begun_before(
    rows: Sequence[NewJob], log: SqlLog, delta_log: DeltaLog, after: Mapping[str, Moment]
) -> list[NewJob]:
    """The rows; of a trigger's job whose tenant had no rows as of `after`, beginning there.

    `after` is by job name. Asks nothing where no row is a trigger's.
    """
    mine = [row for row in rows if _begins_early(row) and row.name.job in after]
    if not mine:
        return list(rows)
    tenants = {row.tenant for row in mine}
    held = {job.key for job in log.jobs(table_id=mine[0].table_id, tenants=tenants)}
    new = {row.key: after[row.name.job] for row in mine if row.key not in held}
    there = {at: _tenants(delta_log, at, tenants) for at in set(new.values())}
    begun = {key: at for key, at in new.items() if key.tenant not in there[at]}
    return [replace(row, watermark=begun.get(row.key, row.watermark)) for row in rows]


def _begins_early(row: NewJob) -> bool:
    return consumer_kind(row.spec.detail.consumer.type).begins_before_first_commit


def _tenants(delta_log: DeltaLog, at: Moment, among: Collection[str]) -> frozenset[str]:
    """The tenants with rows as of then; all of them where that cannot be read."""
    with suppress(IscpError):
        return frozenset(delta_log.tenants(at.version))
    return frozenset(among)
