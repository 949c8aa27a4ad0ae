"""Cleans up after runs that are gone: ends them in Dagster and frees their jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from iscp_dagster.location.assets.maintenance import COLLECT, FLUSH, PRUNE, REPORT
from iscp_dagster.location.names import (
    TABLE_TAG,
    job_key,
    source_key,
    sync_job_name,
    tenants_job_name,
)
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import RunGoneError
from iscp_dagster.model.states import JobState
from iscp_dagster.runs.cancel import end
from iscp_dagster.runs.named import WORKED, names_of, runs_named
from iscp_dagster.sync.deployment import Deployment

GONE = "This run's process is gone or hangs. The next iteration continues its work."
UNBEGUN = "Run {run} failed before its work began; its page in Dagster says why."


@dataclass(frozen=True, kw_only=True)
class Ours:
    """Tells which of an instance's runs belong to a location: those that run nothing else."""

    tables: frozenset[str]
    jobs: frozenset[str]
    assets: frozenset[AssetKey]
    location: str | None = None
    """Its name, if known; another location may have Dagster jobs of the same names."""

    @classmethod
    def of(cls, sources: Sequence[SourceTable], location: str | None = None) -> Ours:
        names = {FLUSH, COLLECT, PRUNE, REPORT}
        names |= {name(source) for source in sources for name in (sync_job_name, tenants_job_name)}
        keys = {source_key(source) for source in sources}
        keys |= {job_key(source, each.name) for source in sources for each in source.consumers}
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
        chosen = checked | set(run.asset_selection or ())
        return bool(chosen) and chosen <= self.assets


@dataclass
class Recovery:
    """Looks for what dead runs left behind; ends nothing that may be alive.

    Runs cannot renew their leases while the log is away. So after an outage, and after a start,
    which may follow one, they first get as long as a lease lasts to renew them.
    """

    deployment: Deployment
    ours: Ours
    monotonic: Callable[[], float] = time.monotonic
    _since: float | None = None

    def look(self, instance: DagsterInstance) -> None:
        """End orphans, then free the jobs of all runs that are gone."""
        try:
            self._look(instance)
        except Exception:
            self._since = None
            raise

    def _look(self, instance: DagsterInstance) -> None:
        now = self.monotonic()
        self._since = now if self._since is None else self._since
        sure = now - self._since >= self.deployment.log.leases.run
        self._end_runs(instance, sure=sure)
        self._settle_queued(instance)
        self.deployment.log.reclaim(None if sure else self._finished(instance))

    def _finished(self, instance: DagsterInstance) -> list[str]:
        """Runs of this instance that hold jobs though Dagster says that they have finished."""
        running = self.deployment.log.active_runs(JobState.RUNNING)
        found = instance.get_runs(RunsFilter(run_ids=list(running))) if running else ()
        return [run.run_id for run in found if run.is_finished]

    def _end_runs(self, instance: DagsterInstance, *, sure: bool) -> None:
        """End orphans: Dagster's default launcher does not notice them; they block the queue."""
        log = self.deployment.log
        runs = {run.run_id: run for run in instance.get_runs(RunsFilter(statuses=list(WORKED)))}
        mine = [run_id for run_id, run in runs.items() if self.ours.has(run)]
        lapsed = log.lapsed(mine, log.leases.unseen)
        for run_id in sorted(lapsed) if sure else ():
            run = instance.get_run_by_id(run_id)
            if run is not None and run.status in WORKED:
                end(instance, run, GONE)

    def _settle_queued(self, instance: DagsterInstance) -> None:
        """Keep jobs that wait for a run of this instance; free those whose run has ended.

        A run that this instance does not know is another's, or was never submitted: the lease of
        the jobs that wait for it decides.
        """
        log = self.deployment.log
        queued = log.active_runs(JobState.PENDING)
        if not queued:
            return
        runs = runs_named(instance, queued)
        awaited = [name for run in runs if not run.is_finished for name in names_of(run) & queued]
        log.keep(awaited, log.leases.queued)
        for run in runs:
            if run.is_finished:
                self._free(run, names_of(run) & queued - set(awaited))

    def _free(self, run: DagsterRun, names: set[str]) -> None:
        log = self.deployment.log
        if run.status is DagsterRunStatus.FAILURE:
            for name in sorted(names):
                log.refuse(name, RunGoneError.code, UNBEGUN.format(run=run.run_id))
        else:
            log.recover(names)
