"""What Dagster shows of a bucket of tenants: one materialization for each index and scan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import dagster as dg

from iscp_dagster.location.assets.iterations import (
    InStepJob,
    ServedOutcome,
    get_agreed_version,
)
from iscp_dagster.location.assets.reports.data_versions import read_latest_versions
from iscp_dagster.location.assets.reports.provenance import Provenance
from iscp_dagster.location.internals import DATA_VERSION_TAG
from iscp_dagster.location.names import get_job_asset_key
from iscp_dagster.location.partitions import get_partition
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.moment import START
from iscp_dagster.model.states import JobState
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.outcomes import RowDelivery

FEW = 20
"""The most tenants of which a materialization shows each."""


@dataclass(frozen=True, kw_only=True)
class UnsettledJobs:
    """The jobs of a table that are not in step, by index and bucket."""

    jobs: Mapping[tuple[str, str], Sequence[tuple[JobState, int]]]
    """Each one's state and its watermark's version."""

    @classmethod
    def read_log(
        cls,
        deployment: Deployment,
        source: SourceTable,
        table_id: str,
        range_: tuple[int, int],
    ) -> UnsettledJobs:
        """Read the log: its cost follows the tenants that changed in the range of versions."""
        by_bucket: dict[tuple[str, str], list[tuple[JobState, int]]] = defaultdict(list)
        jobs = [
            *deployment.log.list_unsettled_versions(table_id),
            *_list_waiting_jobs(deployment, source, table_id, range_),
        ]
        for name, tenant, state, version in jobs:
            by_bucket[name, get_partition(source, tenant)].append((state, version))
        return cls(jobs=by_bucket)

    def describe(self, job_name: str, bucket: str, upto: int) -> Mapping[str, Any]:
        """How many of the bucket's tenants are in error or behind, and the oldest watermark."""
        jobs = self.jobs.get((job_name, bucket), ())
        in_error = sum(state is JobState.ERROR for state, _ in jobs)
        return {
            "tenants_in_error": in_error,
            "tenants_behind": len(jobs) - in_error,
            "oldest_watermark": min([upto, *(version for _, version in jobs)]),
        }


def _list_waiting_jobs(
    deployment: Deployment, source: SourceTable, table_id: str, range_: tuple[int, int]
) -> Iterator[tuple[str, str, JobState, int]]:
    """The jobs that later looks queue: their tenants changed in the range, after their watermarks.

    A look queues only some of very many. Those that only an earlier commit changed are left out,
    and so are all if the Delta log no longer has the range.
    """
    after, upto = range_
    if after >= upto:
        return
    delta_log = deployment.make_delta_log(source)

    @cache
    def list_maybe_changed(version: int) -> Collection[str]:
        if version > START.version:
            changed = delta_log.list_changed_tenants(version, upto)
            if changed is not None:
                return changed
        return frozenset(delta_log.list_tenants(upto))

    with suppress(IscpError):
        idle = deployment.log.list_idle_versions(table_id, upto, list_maybe_changed(after))
        for name, tenant, version in idle:
            if tenant in list_maybe_changed(version):
                yield name, tenant, JobState.COMPLETED, version


@dataclass(frozen=True, kw_only=True)
class BucketReports:
    """Builds the materializations of `source` as `provenance` and the log know it."""

    instance: dg.DagsterInstance
    deployment: Deployment
    source: SourceTable
    provenance: Provenance
    tables: Mapping[str, Mapping[str, Any]]
    """What the metadata say of each index's table, by the index's name."""

    def build_materializations(
        self, outcomes: Sequence[ServedOutcome]
    ) -> Iterator[dg.AssetMaterialization]:
        """One for each index and bucket.

        The bucket is stale for Dagster until none of its tenants is behind.
        """
        if not outcomes:
            return
        unsettled = UnsettledJobs.read_log(
            self.deployment, self.source, _get_table_id(outcomes[0]), _get_range(outcomes)
        )
        by_name: dict[str, dict[str, list[ServedOutcome]]] = defaultdict(lambda: defaultdict(list))
        for outcome in outcomes:
            bucket = get_partition(self.source, outcome.tenant)
            by_name[outcome.job_name][bucket].append(outcome)
        for name, by_bucket in sorted(by_name.items()):
            reported = self._read_reported_versions(name, by_bucket)
            for bucket, group in sorted(by_bucket.items()):
                yield self._build_materialization(name, bucket, group, unsettled, reported)

    def _build_materialization(
        self,
        name: str,
        bucket: str,
        outcomes: Sequence[ServedOutcome],
        unsettled: UnsettledJobs,
        reported: Mapping[str, int],
    ) -> dg.AssetMaterialization:
        upto = max(map(get_agreed_version, outcomes))
        complete = not unsettled.jobs.get((name, bucket))
        is_declared = name in {consumer.name for consumer in self.source.consumers}
        tags = self.provenance.build_tags(name, bucket, upto, complete=complete)
        latest = max([reported.get(bucket, 0), *(outcome.data_version for outcome in outcomes)])
        return dg.AssetMaterialization(
            asset_key=get_job_asset_key(self.source, name),
            partition=bucket,
            metadata={
                **summarize_outcomes(outcomes),
                **unsettled.describe(name, bucket, upto),
                **self.tables.get(name, {}),
            },
            tags={**(tags if is_declared else {}), DATA_VERSION_TAG: str(latest)},
        )

    def _read_reported_versions(self, name: str, buckets: Collection[str]) -> Mapping[str, int]:
        """The versions last reported of the index, by bucket."""
        key, kind = get_job_asset_key(self.source, name), dg.DagsterEventType.ASSET_MATERIALIZATION
        versions = read_latest_versions(self.instance, key, kind, buckets)
        return {bucket: int(text) for bucket, text in versions.items() if text.isdigit()}


def summarize_outcomes(outcomes: Collection[ServedOutcome]) -> dict[str, Any]:
    """How many tenants and rows were moved; each tenant where they are few."""
    delivered = [outcome for outcome in outcomes if isinstance(outcome, RowDelivery)]
    reads = Counter(delivery.plan.kind.value for delivery in delivered)
    lags = [
        (delivery.published - delivery.to.at).total_seconds()
        for delivery in delivered
        if delivery.published is not None
    ]
    return {
        "tenants": len({outcome.tenant for outcome in outcomes}),
        "rows_inserted": sum(delivery.inserted for delivery in delivered),
        "rows_deleted": sum(delivery.deleted for delivery in delivered),
        "bytes": sum(delivery.bytes for delivery in delivered),
        "to_version": max(map(get_agreed_version, outcomes)),
        "read": ", ".join(f"{kind}: {count} tenants" for kind, count in sorted(reads.items()))
        or "nothing: already in step with the source",
        **({"lag_seconds": round(max(lags), 3)} if lags else {}),
        **({"by_tenant": _tabulate(outcomes)} if len(outcomes) <= FEW else {}),
    }


def _tabulate(outcomes: Collection[ServedOutcome]) -> dg.MetadataValue[Any]:
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "tenant": outcome.tenant,
                    "to_version": get_agreed_version(outcome),
                    "rows_inserted": outcome.inserted if isinstance(outcome, RowDelivery) else 0,
                    "rows_deleted": outcome.deleted if isinstance(outcome, RowDelivery) else 0,
                }
            )
            for outcome in outcomes
        ]
    )


def _get_range(outcomes: Collection[ServedOutcome]) -> tuple[int, int]:
    """The versions after which, and up to which, the outcomes' tenants were read."""
    upto = max(map(get_agreed_version, outcomes))
    starts = [o.range.from_.version for o in outcomes if isinstance(o, RowDelivery)]
    return min(starts, default=upto), upto


def _get_table_id(outcome: ServedOutcome) -> str:
    job = outcome.job if isinstance(outcome, InStepJob) else outcome.claim
    return job.key.table_id
