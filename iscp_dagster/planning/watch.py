"""One source table as the runner watches it: its log, and the tenants that may be due.

It can be rebuilt from the cursor, the table's log and the ISCP log; it is kept between looks so
that a look's cost depends on what changed, not on how much there is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from iscp_dagster.delta.feed import Feed
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.log.facts import TenantSize
from iscp_dagster.delta.log.mark import LogMark
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.declared.tables import REBUILD, SourceTable
from iscp_dagster.model.errors import ConfigError, TableGoneError
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.model.specs import JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.planning import table_problems
from iscp_dagster.planning.declared import new_jobs, registering, terms
from iscp_dagster.planning.effective import effective, flush_jobs, in_step
from iscp_dagster.planning.joining import Due, bounded
from iscp_dagster.planning.newcomers import begun_before, reached
from iscp_dagster.planning.problems import Problem, problem_of
from iscp_dagster.planning.triggers.plan import plan
from iscp_dagster.sync.deployment import Deployment

GONE = "Table {name} was dropped or recreated: its id was {old} and is now {new}. Register the \
job again to build its index from the new table (`iscp job register`); until then the old rows \
stay."

LOST = "The log of table %s was restored or replaced: %d jobs are rebuilt, because their \
indexes have commits that it lacks (version@microseconds %s)."
LOGGER = logging.getLogger(__name__)

Touches = Mapping[str, frozenset[str]]
"""By table id, shortened as in marks, the tenants with an event of one of their jobs."""


@dataclass
class Watch:
    """The watch over `source`; `open` are the tenants that may have something due."""

    deployment: Deployment
    source: SourceTable
    delta_log: DeltaLog
    mark: LogMark | None = None
    terms: str = ""
    """The terms (`planning.declared`) under which it was begun."""
    open: set[str] = field(default_factory=set)
    found: tuple[str, ...] | None = None
    """The tenants that the last `take_in` found; None when nothing happened."""
    problems: list[Problem] = field(default_factory=list)
    unnamed: TenantSize | None = None
    """The rows without a tenant."""
    oldest_written: int | None = None
    """No job in step has a written watermark before this version; None: not looked up yet."""
    earlier: frozenset[str] = frozenset()
    """The ids of earlier tables of that name that have stranded jobs."""

    @property
    def at_rest(self) -> bool:
        """Whether nothing comes due before something happens to the table or one of its jobs."""
        return self.mark is not None and not (self.open or self.problems or self.earlier)

    def resume(self, mark: LogMark, terms: str) -> None:
        """Go on from a look in which the table was `at_rest`, as if this watch had been kept."""
        self.mark, self.terms = mark, terms

    def take_in(
        self,
        seen: LogMark | None,
        touched: Touches,
        standing: Mapping[JobID, JobSpec],
        *,
        poll: bool = True,
    ) -> LogMark:
        """Take in the table's log, unless `poll` is false, and the tenants that were touched."""
        spared = not poll and self.mark is not None and self.mark == seen
        mark = self.mark if spared and self.mark else self.delta_log.poll(seen)
        self.found = None
        self.problems = table_problems.mistaken(self.source)
        taken_up = any(touched.get(LogMark.shortened(each)) for each in self.earlier)
        # What is remembered holds only if the cursor agrees with it.
        if taken_up or self.mark is None or self.mark != seen or not self._goes_on(self.mark, mark):
            self._begin(mark, standing)
        elif mark != self.mark:
            self._follow(self.mark, mark, standing)
        if self.delta_log.files.local or mark != self.mark:
            self._flush_before_cleanup(mark)
        # Tenants of another table with the same shortened id have no jobs in this one.
        self.open |= touched.get(mark.table, frozenset())
        self.mark = mark
        self.problems += table_problems.nameless(self.source, self.delta_log.location, self.unnamed)
        if self.earlier:
            table_id = self.delta_log.table_id(mark.moment.version)
            self.problems += table_problems.stranded(self.deployment, self.source, table_id)
        return mark

    def due(self) -> Iterator[Due]:
        """The iterations due, each of one tenant; removes tenants that rest from `open`."""
        if not self.open or self.mark is None:
            return
        table_id = self.delta_log.table_id(self.mark.moment.version)
        held = self.deployment.log.jobs(table_id=table_id, tenants=self.open)
        placed = effective(self.delta_log, held, self.mark.moment)
        as_held = {job.key: job for job in held}
        still_open: set[str] = set()
        feed = Feed(log=self.delta_log)
        for tenant, group in groupby(sorted(placed, key=_tenant), key=_tenant):
            members = list(group)
            planned = self._planned(members)
            for iteration in planned:
                step = bounded(self.deployment, feed, iteration, members)
                jobs = [as_held[key] for key in step.jobs]
                yield Due(iteration=step, jobs=jobs, cut=step.to < iteration.to)
            if planned or not all(map(self._rests, members)):
                still_open.add(tenant)
        self.open = still_open

    def _planned(self, members: Collection[Job]) -> list[Iteration]:
        """The iterations due for one tenant's jobs."""
        assert self.mark is not None
        latest, now = self.mark.moment, self.deployment.clock()
        return [
            self._up_to_latest(each) for each in plan(members, latest, now, refuse=self._refuse)
        ]

    def _up_to_latest(self, iteration: Iteration) -> Iteration:
        """The iteration; a first one up to the latest commit if the columns have changed meanwhile.

        What it is declared with may not be there yet where the other jobs are.
        """
        assert self.mark is not None
        to, latest = iteration.to.version, self.mark.moment
        if not iteration.range.initial or to >= latest.version:
            return iteration
        changed = self.delta_log.first_column_change(to, latest.version) is not None
        return replace(iteration, to=latest) if changed else iteration

    def _begin(self, mark: LogMark, standing: Mapping[JobID, JobSpec]) -> None:
        """Start over: find the tenants, register their jobs, open what may be due."""
        self.terms = terms(self.source, standing)
        table_id = self.delta_log.table_id(mark.moment.version)
        tenants = self.delta_log.tenants(mark.moment.version)
        self.unnamed = self.delta_log.unnamed(mark.moment.version)
        table_problems.check_sole(self.deployment, self.source, table_id)
        self._take_over(table_id)
        there = self.deployment.log.registered(table_id)
        after = reached(self.deployment.log, self.delta_log, table_id)
        self._register(table_id, tenants, standing, after, but=there)
        self._start_over(table_id)
        self.open = set(self.deployment.log.waiting(table_id))
        held = self.deployment.log.places(table_id)
        behind = [v for _, v, _ in held if START.version < v < mark.moment.version]
        self.oldest_written = min(behind, default=mark.moment.version)
        if behind:
            changed = self._changed(min(behind), mark.moment.version)
            self.open |= self._everyone(tenants) if changed is None else changed
        self.found = tuple(tenants)

    def _follow(self, before: LogMark, mark: LogMark, standing: Mapping[JobID, JobSpec]) -> None:
        """Take in the commits since; each is read once, whatever the number of tenants."""
        table_id = self.delta_log.table_id(mark.moment.version)
        changed, after, upto = None, before.moment.version, mark.moment.version
        if after < upto:
            changed = self._changed(after, upto)
        if after >= upto or self.delta_log.changed_unnamed(after, upto):
            self.unnamed = self.delta_log.unnamed(upto)
        found = sorted(self.delta_log.tenants() if changed is None else changed)
        table_problems.check_sole(self.deployment, self.source, table_id, found)
        names = [name.job for name in registering(self.source, standing)]
        self._register(table_id, found, standing, dict.fromkeys(names, before.moment))
        if self.oldest_written is None:
            held = self.deployment.log.places(table_id)
            self.oldest_written = min((v for _, v, _ in held if v > START.version), default=upto)
        self.open |= self._everyone(found) if changed is None else set(found)
        self.found = tuple(found)

    def _flush_before_cleanup(self, mark: LogMark) -> None:
        """Flush jobs in step whose next commit the log has lost; open what it can no longer tell.

        Others know a job by its written watermark, and not what this watch remembers.
        """
        upto = mark.moment.version
        if (
            self.oldest_written is None
            or self.oldest_written >= upto
            or self.delta_log.holds(self.oldest_written + 1)
        ):
            return
        log, table_id = self.deployment.log, self.delta_log.table_id(upto)
        behind = log.tenants(table_id, behind=upto)
        jobs = log.jobs(table_id=table_id, tenants=behind)
        flush_jobs(log, jobs, effective(self.delta_log, jobs, mark.moment))
        self.open |= behind
        self.oldest_written = upto

    def _changed(self, after: int, upto: int) -> set[str] | None:
        """The tenants whose rows read otherwise since `after`; None: maybe those of all do."""
        if self.delta_log.first_column_change(after, upto) is not None:
            return None
        return self.delta_log.changed_tenants(after, upto)

    def _goes_on(self, before: LogMark, mark: LogMark) -> bool:
        """Whether what is remembered from `before` holds: the table's log has only grown since."""
        if before == mark:
            return True
        return before.same_table(mark) and self.delta_log.goes_on_from(before)

    def _start_over(self, table_id: str) -> None:
        """Rebuild jobs whose watermark is no longer in the log, which was restored or replaced."""
        log = self.deployment.log
        lost = {str(each) for each in log.watermarks(table_id) if not self.delta_log.has(each)}
        jobs = log.jobs(table_id=table_id) if lost else []
        gone = [job.key for job in jobs if str(job.watermark) in lost]
        if gone:
            LOGGER.warning(LOST, self.source.name, len(gone), ", ".join(sorted(lost)))
            log.rebuild(gone)

    def _everyone(self, tenants: Collection[str]) -> set[str]:
        """These tenants, and those with jobs, which may have no rows any more."""
        return {*tenants, *self.deployment.log.tenants(self.delta_log.table_id())}

    def _register(
        self,
        table_id: str,
        tenants: Collection[str],
        standing: Mapping[JobID, JobSpec],
        after: Mapping[str, Moment],
        *,
        but: Collection[tuple[str, str]] = (),
    ) -> None:
        """Register the self-registering and standing jobs, except the (tenant, job) pairs in `but`.

        `after`, by job name, is the moment as of which tenants without the job had no rows.
        Skips indexes with stranded jobs: a person decides whether they go on.
        """
        waiting = table_problems.stranded_names(self.deployment, self.earlier)
        found = registering(self.source, standing)
        specs = {name: spec for name, spec in found.items() if name.job not in waiting}
        wanted = new_jobs(table_id, tenants, specs, but=but)
        wanted = begun_before(wanted, self.deployment.log, self.delta_log, after)
        # What a person has unregistered stays unregistered.
        self.deployment.log.register_many(wanted, revive=False)

    def _take_over(self, table_id: str) -> None:
        """Carry over or strand the jobs of earlier tables of that name, as `on_replace` says."""
        for earlier in sorted(table_problems.earlier_ids(self.deployment, self.source, table_id)):
            if self.source.on_replace == REBUILD:
                self.deployment.log.carry_over(earlier, table_id)
            else:
                message = GONE.format(name=self.source.name, old=earlier, new=table_id)
                self.deployment.log.strand(earlier, TableGoneError.code, message)
        self.earlier = table_problems.earlier_ids(self.deployment, self.source, table_id)

    def _rests(self, job: Job) -> bool:
        """Whether nothing comes due for the job before something happens to it or its tenant."""
        assert self.mark is not None
        stopped = job.state is JobState.ERROR or (job.paused_at is not None and not job.active)
        return stopped or in_step(job, self.mark.moment)

    def _refuse(self, error: ConfigError) -> None:
        self.problems.append(problem_of(self.source, error))


def _tenant(job: Job) -> str:
    return job.key.tenant
