"""Wait until a commit is searchable in every index of its table.

A job with a consumer of the user's own counts as an index: the consumer must have the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from iscp_dagster.api.names import command_for, has_remedy, listed, mending_verb
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.history import Bookmark
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model import errors
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.declared.tables import REBUILD, SourceTable
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.model.moment import START
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.effective import effective
from iscp_dagster.planning.table_problems import check_sole
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.writing.serving import unserved

POLL_SECONDS = 0.2
"""The first pause, and the one after something happened."""
LONGEST_POLL_SECONDS = 1.0
GROWTH = 1.5
"""Of the pauses while nothing happens."""
MOST_NAMED = 3
"""Of the tenants of an index, the indexes that stand alike, and the places where they stand."""

Wanted = Mapping[str, Collection[str]]
"""The indexes that must have a job, by tenant."""


@dataclass(frozen=True, kw_only=True)
class Lag:
    """An index or consumer of a tenant that lacks the commit; `job` is None when it has none."""

    tenant: str
    index: str
    job: Job | None
    unserved: bool = False
    """Whether readers still see an earlier generation of the index."""

    @property
    def what(self) -> str:
        """The job's name, and what it is if it is no index."""
        kind = None if self.job is None else consumer_kind(self.job.spec.detail.consumer.type)
        return f"the {kind.called} {self.index!r}" if kind and kind.declare else repr(self.index)

    @property
    def broken(self) -> bool:
        return self.job is not None and self.job.state is JobState.ERROR

    @property
    def remedied(self) -> bool:
        """Whether what the job says about its error is enough to mend it."""
        return self.job is not None and has_remedy(self.job.status)

    @property
    def held(self) -> bool:
        """Whether it is paused, and no iteration of it is under way."""
        return self.job is not None and self.job.paused_at is not None and not self.job.active

    def where(self, *, many: bool = False) -> str:
        """The predicate of a sentence about the index, or about `many` like it."""
        be = "are" if many else "is"
        if self.job is None:
            return f"{be} not registered"
        job, status = self.job, self.job.status
        if self.unserved:
            return f"{be} being rebuilt, and will be served once every tenant is built"
        unbuilt = job.watermark == START
        place = f"{be} not built yet" if unbuilt else f"{be} at version {job.watermark.version}"
        paused = ", paused" if job.paused_at else ""
        error = f", error {status.code}: {status.message}" if status.code else ""
        return f"{place} ({job.state.label}{paused}{error})"


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One caller's wait for a commit of `source` to reach all its tenants, or `tenant` alone."""

    deployment: Deployment
    source: SourceTable
    tenant: str | None
    sleep: Callable[[float], None]
    monotonic: Callable[[], float]
    index: str | None = None
    """The one index to wait for; None: all."""
    tell: Callable[[str], None] = lambda _: None
    """Called before each pause with what is still to come."""

    def until(self, version: int | None, timeout: float) -> int:
        """Return the version once every index has it (None: the latest).

        Looks at once, then for `timeout` seconds whenever a commit or an event of the table's jobs
        may have changed something. Raises WaitError, ConfigError.
        """
        deadline = self.monotonic() + timeout
        table_id = self.delta_log.table_id()
        check_sole(self.deployment, self.source, table_id)
        goal = self.delta_log.latest().version if version is None else version
        if goal < 0:
            raise errors.ConfigError(
                f"There is no version {goal} of {self.source.name}; versions begin at 0."
            )
        pauses = self._pauses(deadline)
        while (latest := self._latest(table_id)) < goal:
            self.tell(f"version {goal} is to be committed; the latest is {latest}")
            pauses.pause(
                f"version {goal} does not exist; the latest is {latest}. Name a version that was "
                "committed",
            )
        self._until_searchable(goal, table_id, deadline)
        return goal

    @cached_property
    def delta_log(self) -> DeltaLog:
        return self.deployment.delta_log(self.source)

    def _until_searchable(self, goal: int, table_id: str, deadline: float) -> None:
        self._refuse_unknown()
        signs, pauses = self._signs(table_id), self._pauses(deadline)
        signs.changed()
        wanted, tenants = self._wanted(goal), None
        while lagging := self._lagging(goal, table_id, wanted, tenants):
            self._refuse_broken(goal, lagging)
            self._pause_until_changed(goal, lagging, signs, pauses)
            # Tenants that already have the commit are not checked again.
            tenants = {lag.tenant for lag in lagging}

    def _pause_until_changed(
        self, goal: int, lagging: Collection[Lag], signs: Signs, pauses: Pauses
    ) -> None:
        """Return when another look may find something else, or at the deadline.

        Raises WaitError if that has come before.
        """
        # Which generation readers see is in ClickHouse, of which no sign tells.
        changed, unserved = False, any(lag.unserved for lag in lagging)
        while not changed:
            self.tell(f"version {goal} is still to come in {_count(lagging)}: {_named(lagging)}")
            pauses.pause(
                f"version {goal} is not searchable in every index: {_named(lagging)}. Wait longer, "
                "check `iscp job list`, and see whether the sensor iscp_runner is on"
            )
            if signs.changed():
                pauses.seconds, changed = POLL_SECONDS, True
            changed = changed or unserved or pauses.ended

    def _pauses(self, deadline: float) -> Pauses:
        return Pauses(
            name=self.source.name, deadline=deadline, sleep=self.sleep, monotonic=self.monotonic
        )

    def _signs(self, table_id: str) -> Signs:
        log, source = self.deployment.log, self.source
        ids = {table_id, *log.table_ids(source.database, source.table)}
        return Signs(log=log, delta_log=self.delta_log, table_ids=ids)

    def _lagging(
        self, goal: int, table_id: str, wanted: Wanted, tenants: Collection[str] | None
    ) -> list[Lag]:
        """The indexes of `tenants` (None: all) that lack the commit."""
        self._latest(table_id)
        log = self.deployment.log
        jobs = log.jobs(table_id=table_id, tenant=self.tenant, tenants=tenants)
        jobs = [each for each in jobs if self._counts(each.key.job_name)]
        if not jobs and not self._indexes:
            raise self._nothing()
        placed = effective(self.delta_log, jobs, self.delta_log.latest())
        late = [job for job in placed if job.watermark.version < goal]
        found = [Lag(tenant=job.key.tenant, index=job.key.job_name, job=job) for job in late]
        named = {(job.key.tenant, job.key.job_name) for job in jobs}
        chosen = wanted if tenants is None else {each: wanted.get(each, ()) for each in tenants}
        lacking = {(a, i) for a, names in chosen.items() for i in names} - named
        ended = self._unregistered(table_id, lacking)
        if ended == lacking and ended and not self._registered(table_id):
            raise self._all_unregistered(goal, ended)
        found += self._beside_earlier(lacking - ended, self._earlier(table_id))
        found += [] if found else self._unserved(jobs)
        return sorted(found, key=lambda lag: (lag.tenant, lag.index))

    def _registered(self, table_id: str) -> bool:
        """Whether some job that counts is there."""
        jobs = self.deployment.log.jobs(table_id=table_id, tenant=self.tenant)
        return any(self._counts(each.key.job_name) for each in jobs)

    def _unregistered(
        self, table_id: str, lacking: Collection[tuple[str, str]]
    ) -> set[tuple[str, str]]:
        """Those that a person has unregistered: the runner does not register them again."""
        if not lacking:
            return set()
        tenants = {tenant for tenant, _ in lacking}
        rows = self.deployment.log.jobs(table_id=table_id, tenants=tenants, include_dropped=True)
        ended = {(row.key.tenant, row.key.job_name) for row in rows if row.drop_at is not None}
        return ended.intersection(lacking)

    def _earlier(self, table_id: str) -> list[Job]:
        """The jobs of earlier tables of that name."""
        log = self.deployment.log
        ids = log.table_ids(self.source.database, self.source.table) - {table_id}
        return [job for earlier in sorted(ids) for job in log.jobs(table_id=earlier)]

    def _beside_earlier(
        self, missing: Collection[tuple[str, str]], earlier: Collection[Job]
    ) -> list[Lag]:
        """What has no job, with that of an earlier table which blocks it, if any; and what still
        serves rows of an earlier table.
        """
        stranded = {
            job.key.job_name: job
            for job in earlier
            if job.status.code == errors.TableGoneError.code
        }
        return [
            *(Lag(tenant=a, index=i, job=stranded.get(i)) for a, i in missing),
            *(
                Lag(tenant=job.key.tenant, index=job.key.job_name, job=job)
                for job in earlier
                if self._counts(job.key.job_name)
                and self.tenant in {None, job.key.tenant}
                and (job.key.tenant, job.key.job_name) not in missing
            ),
        ]

    def _unserved(self, jobs: Collection[Job]) -> list[Lag]:
        try:
            waiting = unserved(self.deployment, jobs)
        except errors.UnavailableError:
            # A server that does not answer serves nothing; wait for it.
            waiting = frozenset(job.name for job in jobs)
        return [
            Lag(tenant=job.key.tenant, index=job.key.job_name, job=job, unserved=True)
            for job in jobs
            if job.name in waiting
        ]

    def _wanted(self, goal: int) -> Wanted:
        tenants = self.delta_log.tenants(goal) if self.tenant is None else [self.tenant]
        return dict.fromkeys(tenants, self._indexes)

    @cached_property
    def _indexes(self) -> frozenset[str]:
        """What every tenant gets a job for: by standing registration or by `auto_register`."""
        of_table = (self.source.database, self.source.table)
        standing = self.deployment.log.standing()
        stood = [name.job for name in standing if (name.db, name.table) == of_table]
        auto = [each.name for each in self.source.consumers if each.auto_register]
        return frozenset(filter(self._counts, [*stood, *auto]))

    def _counts(self, index: str) -> bool:
        return self.index in {None, index}

    def _latest(self, table_id: str) -> int:
        latest = self.delta_log.latest().version
        if self.delta_log.table_id() == table_id:
            return latest
        anew = self.source.on_replace == REBUILD
        raise errors.WaitError(
            f"{self.source.name} was dropped or recreated during the wait; "
            f"{'' if anew else 'register its jobs again, and '}wait for a version of the new table."
        )

    def _refuse_unknown(self) -> None:
        """Raises NoSuchJobError for a tenant that has neither rows nor a job."""
        tenant, of_table = self.tenant, (self.source.database, self.source.table)
        if tenant is None or tenant in (tenants := set(self.delta_log.tenants())):
            return
        jobs = [j for j in self.deployment.log.jobs() if (j.name.db, j.name.table) == of_table]
        tenants |= {job.key.tenant for job in jobs}
        if tenant not in tenants:
            raise errors.NoSuchJobError(
                f"{self.source.name} has neither rows nor a job of tenant {tenant!r}; its "
                f"tenants are: {listed(tenants, tenant)}."
            )

    def _refuse_broken(self, goal: int, lagging: Collection[Lag]) -> None:
        broken = [lag for lag in lagging if lag.broken]
        if broken:
            raise errors.WaitError(
                f"{self.source.name} will not become searchable at version {goal}: "
                f"{_named(broken)}.{self._mended(broken)}"
            )
        if held := [lag for lag in lagging if lag.held]:
            raise errors.WaitError(
                f"{self.source.name} will not become searchable at version {goal}: "
                f"{_named(held)}. To resume, run {self._remedies(held)}."
            )

    def _all_unregistered(self, goal: int, ended: Collection[tuple[str, str]]) -> errors.WaitError:
        lags = [Lag(tenant=tenant, index=index, job=None) for tenant, index in sorted(ended)]
        be, them = ("are", "them") if len(lags) > 1 else ("is", "it")
        return errors.WaitError(
            f"{self.source.name} will not become searchable at version {goal}: {_those(lags)} {be} "
            f"unregistered. To register {them} again, run {self._remedies(lags)}."
        )

    def _mended(self, broken: Collection[Lag]) -> str:
        """What mends them, as far as their messages do not say it."""
        said = {True: "Run", False: "Remove the cause, then run"}
        alike: dict[bool, list[Lag]] = {}
        for lag in broken:
            if _verb(lag):
                alike.setdefault(lag.remedied, []).append(lag)
        return "".join(
            f" {said[remedied]} {self._remedies(its)}." for remedied, its in alike.items()
        )

    def _remedies(self, lagging: Collection[Lag]) -> str:
        """One command per index, for every tenant if several need it."""
        tenants: dict[tuple[str, str], list[str]] = {}
        for lag in lagging:
            tenants.setdefault((_verb(lag), lag.index), []).append(lag.tenant)
        of_table = {"db": self.source.database, "table": self.source.table}
        return " and ".join(
            command_for(verb, its, JobID(**of_table, job=index))
            for (verb, index), its in tenants.items()
        )

    def _nothing(self) -> errors.ConfigError:
        return errors.ConfigError(
            f"{self.source.name} has no index to wait for: none registers itself, and no job is "
            "registered. Register one (`iscp job register`)."
        )


@dataclass(kw_only=True)
class Pauses:
    """Pauses that grow, to the deadline of a wait."""

    name: str
    deadline: float
    sleep: Callable[[float], None]
    monotonic: Callable[[], float]
    seconds: float = POLL_SECONDS

    @property
    def ended(self) -> bool:
        """Whether the deadline has come."""
        return self.monotonic() >= self.deadline

    def pause(self, late: str) -> None:
        """Sleep. Raises WaitError with `late` at the deadline."""
        if self.ended:
            raise errors.WaitError(f"{self.name}: timed out: {late}.", late=True)
        self.sleep(min(self.seconds, self.deadline - self.monotonic()))
        self.seconds = min(self.seconds * GROWTH, LONGEST_POLL_SECONDS)


@dataclass(kw_only=True)
class Signs:
    """What tells cheaply whether a table's jobs may stand elsewhere than at the last look."""

    log: SqlLog
    delta_log: DeltaLog
    table_ids: Collection[str]
    _bookmark: Bookmark | None = None
    _latest: tuple[int, int, str] | None = None

    def changed(self) -> bool:
        """Whether there was a commit, or an event of the table's jobs, since the last call."""
        touched, moment = self.log.touched(self._bookmark), self.delta_log.latest()
        # Moments of one version are equal, also those of a table that took another's place.
        latest = (moment.version, moment.micros, self.delta_log.table_id(moment.version))
        ours = any(table_id in self.table_ids for table_id, _ in touched.tenants)
        changed = latest != self._latest or ours or not touched.whole
        self._bookmark, self._latest = touched.upto, latest
        return changed


def _count(lagging: Collection[Lag]) -> str:
    return f"{len(lagging):,} job{'' if len(lagging) == 1 else 's'}"


def _verb(lag: Lag) -> str:
    if lag.job is None:
        return "register"
    return mending_verb(lag.job.status) if lag.broken else "resume"


def _named(lagging: Collection[Lag]) -> str:
    """What lags, and why; those with the same reason are named together."""
    alike: dict[str, list[Lag]] = {}
    for lag in lagging:
        alike.setdefault(lag.where(), []).append(lag)
    groups = [f"{_those(its)} {its[0].where(many=len(its) > 1)}" for its in alike.values()]
    return _some(groups, "; ")


def _those(lagging: Collection[Lag]) -> str:
    tenants: dict[str, list[str]] = {}
    for lag in lagging:
        tenants.setdefault(lag.what, []).append(repr(lag.tenant))
    each = [f"{what} of {_tenants(its)}" for what, its in tenants.items()]
    return _some(each, " and ")


def _tenants(names: Sequence[str]) -> str:
    """All of a few; of many how many they are, and some examples."""
    if len(names) > MOST_NAMED:
        return f"{len(names):,} tenants (such as {', '.join(names[:MOST_NAMED])})"
    return f"tenant{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _some(texts: Sequence[str], between: str) -> str:
    """The first few, and how many more there are."""
    more = len(texts) - MOST_NAMED
    return between.join(texts[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
