"""One source table as the runner watches it: its log, and the tenants that may be due.

It can be rebuilt from the cursor, the table's log and the ISCP log; it is kept between looks so
that a look's cost depends on what changed, not on how much there is.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from iscp_dagster.delta.feed import ChangeFeed
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.log.facts import TenantSize
from iscp_dagster.delta.log.mark import LogMark
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.declared.tables import REBUILD, SourceTable
from iscp_dagster.model.errors import ConfigError, TableGoneError
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.portions import split_into_portions
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.planning import table_problems
from iscp_dagster.planning.effective import compute_effective_jobs, flush_jobs, is_in_step
from iscp_dagster.planning.job_specs import hash_table_jobs, list_table_specs, make_new_jobs
from iscp_dagster.planning.joining import DueIteration, bound_iteration
from iscp_dagster.planning.newcomers import find_latest_moments, set_first_watermarks
from iscp_dagster.planning.problems import Problem, make_problem
from iscp_dagster.planning.triggers.plan import plan_iterations
from iscp_dagster.sync.deployment import Deployment

GONE = "Table {name} was dropped or recreated: its id was {old} and is now {new}. Register the \
job again to build its index from the new table (`iscp job register`); until then the old rows \
stay."

LOST = "The log of table %s was restored or replaced: %d jobs are rebuilt, because their \
indexes have commits that it lacks (version@microseconds %s)."
LOGGER = logging.getLogger(__name__)

MOST_REGISTERED = 20_000
"""Tenants registered in one look; Dagster limits a tick to a minute."""
MOST_PLANNED = 20_000
"""Tenants planned in one look, as many as a scan reads where they share buckets."""

TenantsByTable = Mapping[str, frozenset[str]]
"""By table id, shortened as in marks, the tenants with an event of one of their jobs."""


@dataclass(frozen=True)
class UnregisteredTenants:
    """Tenants to register, and by job name the moment as of which those without it had no rows."""

    tenants: Sequence[str]
    after: Mapping[str, Moment]


@dataclass
class TableWatch:
    """The watch over `source`; `open_tenants` may have something due."""

    deployment: Deployment
    source: SourceTable
    delta_log: DeltaLog
    mark: LogMark | None = None
    jobs_digest: str = ""
    """The terms (`planning.declared`) under which it was begun."""
    open_tenants: set[str] = field(default_factory=set)
    found_tenants: tuple[str, ...] | None = None
    """The tenants that the last `refresh` found; None when nothing happened."""
    unregistered: list[UnregisteredTenants] = field(default_factory=list)
    """The tenants whose jobs later looks register."""
    planned_last: str = ""
    """The last tenant of the last look's portion; the next look begins after it."""
    problems: list[Problem] = field(default_factory=list)
    tenantless_size: TenantSize | None = None
    """The rows without a tenant."""
    oldest_written: int | None = None
    """A lower bound of the written watermarks of jobs in step; None: not looked up yet."""
    earlier_ids: frozenset[str] = frozenset()
    """The ids of earlier tables of that name that have stranded jobs."""

    @property
    def at_rest(self) -> bool:
        """Whether nothing comes due before something happens to the table or one of its jobs."""
        return self.mark is not None and not (
            self.open_tenants or self.unregistered or self.problems or self.earlier_ids
        )

    def resume(self, mark: LogMark, terms: str) -> None:
        """Continue from a look in which the table was `at_rest`, as if this watch had been kept."""
        self.mark, self.jobs_digest = mark, terms

    def refresh(
        self,
        last_mark: LogMark | None,
        touched: TenantsByTable,
        standing: Mapping[JobID, JobSpec],
        *,
        poll: bool = True,
    ) -> LogMark:
        """Take in the table's log, unless `poll` is false, and the tenants that were touched."""
        unpolled = not poll and self.mark is not None and self.mark == last_mark
        mark = self.mark if unpolled and self.mark else self.delta_log.poll(last_mark)
        self.found_tenants = None
        self.problems = table_problems.list_mistakes(self.source)
        earlier_touched = any(
            touched.get(LogMark.hash_table_id(earlier)) for earlier in self.earlier_ids
        )
        # What is remembered holds only if the cursor agrees with it.
        if (
            earlier_touched
            or self.mark is None
            or self.mark != last_mark
            or not self._has_only_grown(self.mark, mark)
        ):
            self._examine_table(mark, standing)
        elif mark != self.mark:
            self._follow_commits(self.mark, mark, standing)
        self._register_next(mark, standing)
        if self.delta_log.files.local or mark != self.mark:
            self._flush_before_cleanup(mark)
        # Tenants of another table with the same shortened id have no jobs in this one.
        self.open_tenants |= touched.get(mark.table, frozenset())
        self.mark = mark
        self.problems += table_problems.find_tenantless_problem(
            self.source, self.delta_log.location, self.tenantless_size
        )
        if self.earlier_ids:
            table_id = self.delta_log.get_table_id(mark.moment.version)
            self.problems += table_problems.find_stranded_problem(
                self.deployment, self.source, table_id
            )
        return mark

    def plan_due(self) -> list[DueIteration]:
        """The iterations due, each of one tenant; removes tenants that rest from `open_tenants`.

        If something is due for some of very many tenants, the next look continues after them.
        """
        # A tenant's trigger begins before its first commit, which no job may take before.
        if not self.open_tenants or self.mark is None or self.unregistered:
            return []
        latest = self.mark.moment.version
        startable = self.deployment.log.find_startable_tenants(
            self.delta_log.get_table_id(latest), latest, self.open_tenants
        )
        # Of the others no job can start before something happens to it.
        self.open_tenants = set(startable)
        due: list[DueIteration] = []
        for tenants in self._take_turns(sorted(startable)):
            due, resting_tenants = self._plan_tenants(tenants)
            self.open_tenants -= resting_tenants
            if due:
                self.planned_last = tenants[-1]
                break
        return due

    def _take_turns(self, tenants: Sequence[str]) -> Iterator[Sequence[str]]:
        """The sorted tenants in portions, beginning after those of the last look."""
        start = bisect_right(tenants, self.planned_last) if len(tenants) > MOST_PLANNED else 0
        return split_into_portions([*tenants[start:], *tenants[:start]], most=MOST_PLANNED)

    def _plan_tenants(self, tenants: Collection[str]) -> tuple[list[DueIteration], set[str]]:
        """The iterations due for these tenants, each of one, and the tenants that rest."""
        assert self.mark is not None
        table_id = self.delta_log.get_table_id(self.mark.moment.version)
        stored = self.deployment.log.list_jobs(table_id=table_id, tenants=tenants)
        effective = compute_effective_jobs(self.delta_log, stored, self.mark.moment)
        stored_by_key = {job.key: job for job in stored}
        due: list[DueIteration] = []
        resting_tenants = set(tenants)
        feed = ChangeFeed(log=self.delta_log)
        for tenant, group in groupby(sorted(effective, key=_get_tenant), key=_get_tenant):
            members = list(group)
            planned = self._plan_tenant(members)
            for iteration in planned:
                step = bound_iteration(self.deployment, feed, iteration, members)
                jobs = [stored_by_key[key] for key in step.jobs]
                is_partial = step.to < iteration.to
                due.append(DueIteration(iteration=step, jobs=jobs, is_partial=is_partial))
            if planned or not all(map(self._is_at_rest, members)):
                resting_tenants.discard(tenant)
        return due, resting_tenants

    def _plan_tenant(self, members: Collection[Job]) -> list[Iteration]:
        """The iterations due for one tenant's jobs."""
        assert self.mark is not None
        latest, now = self.mark.moment, self.deployment.clock()
        return [
            self._extend_to_latest(iteration)
            for iteration in plan_iterations(members, latest, now, refuse=self._add_problem)
        ]

    def _extend_to_latest(self, iteration: Iteration) -> Iteration:
        """The iteration; a first one up to the latest commit if the columns have changed meanwhile.

        Columns that it is declared with may not exist yet at the other jobs' version.
        """
        assert self.mark is not None
        to, latest = iteration.to.version, self.mark.moment
        if not iteration.range.initial or to >= latest.version:
            return iteration
        changed = self.delta_log.find_first_column_change(to, latest.version) is not None
        return replace(iteration, to=latest) if changed else iteration

    def _examine_table(self, mark: LogMark, standing: Mapping[JobID, JobSpec]) -> None:
        """Start over: find the tenants, register their jobs, open what may be due."""
        self.jobs_digest = hash_table_jobs(self.source, standing)
        table_id = self.delta_log.get_table_id(mark.moment.version)
        tenants = self.delta_log.list_tenants(mark.moment.version)
        self.tenantless_size = self.delta_log.get_unnamed_size(mark.moment.version)
        table_problems.check_sole(self.deployment, self.source, table_id)
        self._handle_earlier_jobs(table_id)
        self.unregistered = []
        after = find_latest_moments(self.deployment.log, self.delta_log, table_id)
        known_jobs = self.deployment.log.list_known_jobs(table_id)
        self._await_registration(tenants, standing, after, known_jobs)
        self._rebuild_lost_jobs(table_id)
        self.open_tenants = set(self.deployment.log.find_unsettled_tenants(table_id))
        job_versions = self.deployment.log.list_watermark_versions(table_id)
        versions_behind = [
            version
            for _, version, _ in job_versions
            if START.version < version < mark.moment.version
        ]
        self.oldest_written = min(versions_behind, default=mark.moment.version)
        if versions_behind:
            changed = self._find_changed_tenants(min(versions_behind), mark.moment.version)
            self.open_tenants |= self._list_all_tenants(tenants) if changed is None else changed
        self.found_tenants = tuple(tenants)

    def _follow_commits(
        self, before: LogMark, mark: LogMark, standing: Mapping[JobID, JobSpec]
    ) -> None:
        """Take in the commits since `before`, each read once, whatever the number of tenants."""
        table_id = self.delta_log.get_table_id(mark.moment.version)
        changed, after, upto = None, before.moment.version, mark.moment.version
        if after < upto:
            changed = self._find_changed_tenants(after, upto)
        if after >= upto or self.delta_log.has_unnamed_changes(after, upto):
            self.tenantless_size = self.delta_log.get_unnamed_size(upto)
        tenants = sorted(self.delta_log.list_tenants() if changed is None else changed)
        table_problems.check_sole(self.deployment, self.source, table_id, tenants)
        known_jobs = self.deployment.log.list_known_jobs(table_id, tenants)
        names = [name.job for name in list_table_specs(self.source, standing)]
        self._await_registration(tenants, standing, dict.fromkeys(names, before.moment), known_jobs)
        if self.oldest_written is None:
            job_versions = self.deployment.log.list_watermark_versions(table_id)
            self.oldest_written = min(
                (v for _, v, _ in job_versions if v > START.version), default=upto
            )
        self.open_tenants |= self._list_all_tenants(tenants) if changed is None else set(tenants)
        self.found_tenants = tuple(tenants)

    def _flush_before_cleanup(self, mark: LogMark) -> None:
        """Flush jobs in step whose next commit the log has lost, and open the tenants behind.

        Other processes see a job's written watermark, and not what this watch remembers.
        """
        upto = mark.moment.version
        if (
            self.oldest_written is None
            or self.oldest_written >= upto
            or self.delta_log.has_commit(self.oldest_written + 1)
        ):
            return
        log, table_id = self.deployment.log, self.delta_log.get_table_id(upto)
        behind = log.list_tenants(table_id, behind=upto)
        jobs = log.list_jobs(table_id=table_id, tenants=behind)
        flush_jobs(log, jobs, compute_effective_jobs(self.delta_log, jobs, mark.moment))
        self.open_tenants |= behind
        self.oldest_written = upto

    def _find_changed_tenants(self, after: int, upto: int) -> set[str] | None:
        """The tenants whose rows read otherwise since `after`; None: maybe all of them."""
        if self.delta_log.find_first_column_change(after, upto) is not None:
            return None
        return self.delta_log.list_changed_tenants(after, upto)

    def _has_only_grown(self, before: LogMark, mark: LogMark) -> bool:
        """Whether what is remembered from `before` holds: the table's log has only grown since."""
        if before == mark:
            return True
        return before.is_same_table(mark) and self.delta_log.can_continue_from(before)

    def _rebuild_lost_jobs(self, table_id: str) -> None:
        """Rebuild jobs whose watermark is no longer in the log, which was restored or replaced."""
        log = self.deployment.log
        lost_watermarks = {
            str(watermark)
            for watermark in log.list_watermarks(table_id)
            if not self.delta_log.has_moment(watermark)
        }
        jobs = log.list_jobs(table_id=table_id) if lost_watermarks else []
        keys = [job.key for job in jobs if str(job.watermark) in lost_watermarks]
        if keys:
            LOGGER.warning(LOST, self.source.name, len(keys), ", ".join(sorted(lost_watermarks)))
            log.rebuild(keys)

    def _list_all_tenants(self, tenants: Collection[str]) -> set[str]:
        """These tenants, and those with jobs, which may have no rows any more."""
        return {*tenants, *self.deployment.log.list_tenants(self.delta_log.get_table_id())}

    def _await_registration(
        self,
        tenants: Collection[str],
        standing: Mapping[JobID, JobSpec],
        after: Mapping[str, Moment],
        known_jobs: Collection[tuple[str, str]],
    ) -> None:
        """Put the tenants that lack a job behind those that wait for their registration."""
        names = {name.job for name in self._list_registered_specs(standing)}
        counts = Counter(tenant for tenant, name in known_jobs if name in names)
        waiting = {tenant for waiting in self.unregistered for tenant in waiting.tenants}
        new_tenants = sorted(
            tenant for tenant in tenants if counts[tenant] < len(names) and tenant not in waiting
        )
        if new_tenants:
            self.unregistered.append(UnregisteredTenants(new_tenants, after))

    def _register_next(self, mark: LogMark, standing: Mapping[JobID, JobSpec]) -> None:
        """Register the jobs of as many new tenants as one look does, and open these tenants."""
        left = MOST_REGISTERED
        while self.unregistered and left > 0:
            table_id = self.delta_log.get_table_id(mark.moment.version)
            first = self.unregistered.pop(0)
            tenants, later_tenants = first.tenants[:left], first.tenants[left:]
            left -= len(tenants)
            if later_tenants:
                self.unregistered.insert(0, replace(first, tenants=later_tenants))
            self._register_jobs(table_id, tenants, standing, first.after)
            self.open_tenants |= set(tenants)

    def _register_jobs(
        self,
        table_id: str,
        tenants: Collection[str],
        standing: Mapping[JobID, JobSpec],
        after: Mapping[str, Moment],
    ) -> None:
        """Register the self-registering and standing jobs that do not exist.

        `after`, by job name, is the moment as of which tenants without the job had no rows.
        """
        new_jobs = make_new_jobs(table_id, tenants, self._list_registered_specs(standing))
        new_jobs = set_first_watermarks(new_jobs, self.deployment.log, self.delta_log, after)
        # What a person has unregistered stays unregistered.
        self.deployment.log.register_many(new_jobs, revive=False)

    def _list_registered_specs(self, standing: Mapping[JobID, JobSpec]) -> dict[JobID, JobSpec]:
        """The specs of jobs that every tenant gets.

        Skips indexes with stranded jobs: a person decides whether they continue.
        """
        stranded_names = table_problems.find_stranded_names(self.deployment, self.earlier_ids)
        specs = list_table_specs(self.source, standing)
        return {name: spec for name, spec in specs.items() if name.job not in stranded_names}

    def _handle_earlier_jobs(self, table_id: str) -> None:
        """Carry over or strand the jobs of earlier tables of that name, as `on_replace` says."""
        for earlier in sorted(
            table_problems.find_earlier_ids(self.deployment, self.source, table_id)
        ):
            if self.source.on_replace == REBUILD:
                self.deployment.log.reregister_jobs(earlier, table_id)
            else:
                message = GONE.format(name=self.source.name, old=earlier, new=table_id)
                self.deployment.log.mark_stranded(earlier, TableGoneError.code, message)
        self.earlier_ids = table_problems.find_earlier_ids(self.deployment, self.source, table_id)

    def _is_at_rest(self, job: Job) -> bool:
        """Whether nothing comes due for the job before something happens to it or its tenant.

        What is queued or runs ends with an event, which opens its tenant again.
        """
        assert self.mark is not None
        stopped = job.active or job.state is JobState.ERROR or job.paused_at is not None
        return stopped or is_in_step(job, self.mark.moment)

    def _add_problem(self, error: ConfigError) -> None:
        self.problems.append(make_problem(self.source, error))


def _get_tenant(job: Job) -> str:
    return job.key.tenant
