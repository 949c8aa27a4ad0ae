"""Cleans up after runs that are gone: ends them in Dagster and frees their jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from iscp_dagster.location.assets.maintenance import COLLECT, FLUSH, PRUNE, REPORT
from iscp_dagster.location.names import (
    TABLE_TAG,
    get_batch_sync_job_name,
    get_job_asset_key,
    get_source_asset_key,
    get_sync_job_name,
)
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import RunGoneError
from iscp_dagster.model.states import JobState
from iscp_dagster.runs.cancel import report_orphan
from iscp_dagster.runs.run_names import ACTIVE_STATUSES, find_runs, get_run_names
from iscp_dagster.sync.deployment import Deployment

GONE = "This run's process is gone or hangs. The next iteration continues its work."
UNBEGUN = "Run {run} failed before its work began; its page in Dagster says why."


@dataclass(frozen=True, kw_only=True)
class LocationRuns:
    """Recognizes the runs of a location among an instance's: they run nothing else."""

    tables: frozenset[str]
    jobs: frozenset[str]
    assets: frozenset[AssetKey]
    location: str | None = None
    """Its name, if known; another location may have Dagster jobs with the same names."""

    @classmethod
    def from_sources(
        cls, sources: Sequence[SourceTable], location: str | None = None
    ) -> LocationRuns:
        names = {FLUSH, COLLECT, PRUNE, REPORT}
        names |= {
            name(source)
            for source in sources
            for name in (get_sync_job_name, get_batch_sync_job_name)
        }
        keys = {get_source_asset_key(source) for source in sources}
        keys |= {
            get_job_asset_key(source, consumer.name)
            for source in sources
            for consumer in source.consumers
        }
        return cls(
            tables=frozenset(source.name for source in sources),
            jobs=frozenset(names),
            assets=frozenset(keys),
            location=location,
        )

    def has(self, run: DagsterRun) -> bool:
        origin = run.remote_job_origin
        if origin is not None and self.location not in {None, origin.location_name}:
            return False
        # An earlier version of the package may have had other names for its Dagster jobs.
        if run.job_name in self.jobs or run.tags.get(TABLE_TAG) in self.tables:
            return True
        checked = {check.asset_key for check in run.asset_check_selection or ()}
        selected = checked | set(run.asset_selection or ())
        return bool(selected) and selected <= self.assets


@dataclass
class Recovery:
    """Cleans up after dead runs; ends nothing that may be alive.

    Runs cannot renew their leases while the log is down. So after an outage, and after a start,
    which may follow one, they first get the duration of a lease to renew them.
    """

    deployment: Deployment
    own_runs: LocationRuns
    monotonic: Callable[[], float] = time.monotonic
    _since: float | None = None

    def clean_up_runs(self, instance: DagsterInstance) -> None:
        """End orphans, then free the jobs of all runs that are gone."""
        try:
            self._recover_runs(instance)
        except Exception:
            self._since = None
            raise

    def _recover_runs(self, instance: DagsterInstance) -> None:
        now = self.monotonic()
        self._since = now if self._since is None else self._since
        grace_over = now - self._since >= self.deployment.log.leases.run
        self._report_orphans(instance, grace_over=grace_over)
        self._process_queued_jobs(instance)
        self.deployment.log.expire_unleased_jobs(
            None if grace_over else self._list_finished_runs(instance)
        )

    def _list_finished_runs(self, instance: DagsterInstance) -> list[str]:
        """Runs of this instance that hold jobs although Dagster has recorded their end."""
        running = self.deployment.log.list_active_runs(JobState.RUNNING)
        runs = instance.get_runs(RunsFilter(run_ids=list(running))) if running else ()
        return [run.run_id for run in runs if run.is_finished]

    def _report_orphans(self, instance: DagsterInstance, *, grace_over: bool) -> None:
        """End orphans: Dagster's default launcher does not detect them; they block the queue."""
        log = self.deployment.log
        runs = {
            run.run_id: run for run in instance.get_runs(RunsFilter(statuses=list(ACTIVE_STATUSES)))
        }
        run_ids = [run_id for run_id, run in runs.items() if self.own_runs.has(run)]
        lapsed = log.check_or_grant_leases(run_ids, log.leases.unseen)
        for run_id in sorted(lapsed) if grace_over else ():
            run = instance.get_run_by_id(run_id)
            if run is not None and run.status in ACTIVE_STATUSES:
                report_orphan(instance, run, GONE)

    def _process_queued_jobs(self, instance: DagsterInstance) -> None:
        """Keep jobs that wait for a run of this instance; free those whose run has ended.

        A run that this instance does not know belongs to another, or was never submitted: its
        lease decides.
        """
        log = self.deployment.log
        queued = log.list_active_runs(JobState.PENDING)
        if not queued:
            return
        runs = find_runs(instance, queued)
        awaited = [
            name for run in runs if not run.is_finished for name in get_run_names(run) & queued
        ]
        log.renew_leases(awaited, log.leases.queued)
        for run in runs:
            if run.is_finished:
                self._end_queued_jobs(run, get_run_names(run) & queued - set(awaited))

    def _end_queued_jobs(self, run: DagsterRun, names: set[str]) -> None:
        log = self.deployment.log
        if run.status is DagsterRunStatus.FAILURE:
            for name in sorted(names):
                log.fail_queued_jobs(name, RunGoneError.code, UNBEGUN.format(run=run.run_id))
        else:
            log.recover_run_jobs(names)
