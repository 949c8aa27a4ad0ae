"""Wait until a commit is searchable in every index of its table.

A job with a consumer of the user's own counts as an index: the consumer must have the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from iscp_dagster.api.names import explains_remedy, format_names, get_remedy_verb, suggest_command
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.history import Bookmark
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model import errors
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.tables import REBUILD, SourceTable
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.model.moment import START
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.effective import compute_effective_jobs
from iscp_dagster.planning.table_problems import check_sole
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.writing.serving import find_unserved

POLL_SECONDS = 0.2
"""The first pause, and the one after something happened."""
LONGEST_POLL_SECONDS = 1.0
GROWTH = 1.5
"""The factor by which pauses grow while nothing happens."""
MOST_NAMED = 3
"""The most tenants of an index, indexes at one position, and positions that a message lists."""

RequiredIndexes = Mapping[str, Collection[str]]
"""The indexes that must have a job, by tenant."""


@dataclass(frozen=True, kw_only=True)
class LaggingIndex:
    """An index or consumer of a tenant that lacks the commit; `job` is None when it has none."""

    tenant: str
    index: str
    job: Job | None
    unserved: bool = False
    """Whether readers still see an earlier generation of the index."""

    @property
    def title(self) -> str:
        """The job's name, with its kind unless it is an index."""
        kind = None if self.job is None else get_consumer_kind(self.job.spec.detail.consumer.type)
        return f"the {kind.noun} {self.index!r}" if kind and kind.declare else repr(self.index)

    @property
    def broken(self) -> bool:
        return self.job is not None and self.job.state is JobState.ERROR

    @property
    def remedied(self) -> bool:
        """Whether the job's error message says how to fix it."""
        return self.job is not None and explains_remedy(self.job.status)

    @property
    def paused(self) -> bool:
        """Whether it is paused, without an iteration under way."""
        return self.job is not None and self.job.paused_at is not None and not self.job.active

    def describe_position(self, *, many: bool = False) -> str:
        """The predicate of a sentence about the index, or about `many` like it."""
        be = "are" if many else "is"
        if self.job is None:
            return f"{be} not registered"
        job, status = self.job, self.job.status
        if self.unserved:
            return f"{be} being rebuilt, and will be served once every tenant is built"
        unbuilt = job.watermark == START
        position = f"{be} not built yet" if unbuilt else f"{be} at version {job.watermark.version}"
        paused = ", paused" if job.paused_at else ""
        error = f", error {status.code}: {status.message}" if status.code else ""
        return f"{position} ({job.state.label}{paused}{error})"


@dataclass(frozen=True, kw_only=True)
class CommitWait:
    """One caller's wait for a commit of `source` to reach all its tenants, or only `tenant`."""

    deployment: Deployment
    source: SourceTable
    tenant: str | None
    sleep: Callable[[float], None]
    monotonic: Callable[[], float]
    index: str | None = None
    """The one index to wait for; None: all."""
    report: Callable[[str], None] = lambda _: None
    """Called before each pause with what is still to come."""

    def wait_for_version(self, version: int | None, timeout: float) -> int:
        """Return the version once every index has it (None: the latest).

        Looks at once, then for `timeout` seconds whenever a commit or an event of the table's jobs
        may have changed something. Raises WaitError, ConfigError.
        """
        deadline = self.monotonic() + timeout
        table_id = self.delta_log.get_table_id()
        check_sole(self.deployment, self.source, table_id)
        goal = self.delta_log.get_latest_moment().version if version is None else version
        if goal < 0:
            raise errors.ConfigError(
                f"There is no version {goal} of {self.source.name}; versions begin at 0."
            )
        timer = self._make_timer(deadline)
        while (latest := self._get_latest_version(table_id)) < goal:
            self.report(f"version {goal} is to be committed; the latest is {latest}")
            timer.pause(
                f"version {goal} does not exist; the latest is {latest}. Name a version that was "
                "committed",
            )
        self._wait_until_searchable(goal, table_id, deadline)
        return goal

    @cached_property
    def delta_log(self) -> DeltaLog:
        return self.deployment.make_delta_log(self.source)

    def _wait_until_searchable(self, goal: int, table_id: str, deadline: float) -> None:
        self._refuse_unknown()
        detector, timer = self._make_detector(table_id), self._make_timer(deadline)
        detector.detect_change()
        required, tenants = self._list_required(goal), None
        while lagging := self._find_lags(goal, table_id, required, tenants):
            self._refuse_stuck(goal, lagging)
            self._pause_until_changed(goal, lagging, detector, timer)
            # Tenants that already have the commit are not checked again.
            tenants = {lag.tenant for lag in lagging}

    def _pause_until_changed(
        self, goal: int, lagging: Collection[LaggingIndex], signs: ChangeDetector, pauses: PollTimer
    ) -> None:
        """Return when another look may differ, or at the deadline.

        Raises WaitError if the deadline has already passed.
        """
        # Which generation readers see is kept in ClickHouse, which `signs` do not cover.
        changed, unserved = False, any(lag.unserved for lag in lagging)
        while not changed:
            self.report(
                f"version {goal} is still to come in {_format_count(lagging)}: "
                f"{_describe_lags(lagging)}"
            )
            pauses.pause(
                f"version {goal} is not searchable in every index: {_describe_lags(lagging)}. Wait "
                "longer, "
                "check `iscp job list`, and see whether the sensor iscp_runner is on"
            )
            if signs.detect_change():
                pauses.seconds, changed = POLL_SECONDS, True
            changed = changed or unserved or pauses.ended

    def _make_timer(self, deadline: float) -> PollTimer:
        return PollTimer(
            name=self.source.name, deadline=deadline, sleep=self.sleep, monotonic=self.monotonic
        )

    def _make_detector(self, table_id: str) -> ChangeDetector:
        log, source = self.deployment.log, self.source
        ids = {table_id, *log.find_table_ids(source.database, source.table)}
        return ChangeDetector(log=log, delta_log=self.delta_log, table_ids=ids)

    def _find_lags(
        self, goal: int, table_id: str, required: RequiredIndexes, tenants: Collection[str] | None
    ) -> list[LaggingIndex]:
        """The indexes of `tenants` (None: all) that lack the commit."""
        self._get_latest_version(table_id)
        log = self.deployment.log
        jobs = log.list_jobs(table_id=table_id, tenant=self.tenant, tenants=tenants)
        jobs = [job for job in jobs if self._is_awaited(job.key.job_name)]
        if not jobs and not self._indexes:
            raise self._make_no_index_error()
        effective_jobs = compute_effective_jobs(
            self.delta_log, jobs, self.delta_log.get_latest_moment()
        )
        behind = [job for job in effective_jobs if job.watermark.version < goal]
        lags = [
            LaggingIndex(tenant=job.key.tenant, index=job.key.job_name, job=job) for job in behind
        ]
        registered = {(job.key.tenant, job.key.job_name) for job in jobs}
        expected = (
            required
            if tenants is None
            else {tenant: required.get(tenant, ()) for tenant in tenants}
        )
        missing = {
            (tenant, index) for tenant, names in expected.items() for index in names
        } - registered
        unregistered = self._find_unregistered(table_id, missing)
        if unregistered == missing and unregistered and not self._is_registered(table_id):
            raise self._make_unregistered_error(goal, unregistered)
        lags += self._match_earlier_jobs(missing - unregistered, self._list_earlier_jobs(table_id))
        lags += [] if lags else self._find_unserved(jobs)
        return sorted(lags, key=lambda lag: (lag.tenant, lag.index))

    def _is_registered(self, table_id: str) -> bool:
        """Whether any awaited job is registered."""
        jobs = self.deployment.log.list_jobs(table_id=table_id, tenant=self.tenant)
        return any(self._is_awaited(job.key.job_name) for job in jobs)

    def _find_unregistered(
        self, table_id: str, missing: Collection[tuple[str, str]]
    ) -> set[tuple[str, str]]:
        """The missing jobs that a person unregistered: the runner does not register them again."""
        if not missing:
            return set()
        tenants = {tenant for tenant, _ in missing}
        rows = self.deployment.log.list_jobs(
            table_id=table_id, tenants=tenants, include_dropped=True
        )
        unregistered = {
            (row.key.tenant, row.key.job_name) for row in rows if row.drop_at is not None
        }
        return unregistered.intersection(missing)

    def _list_earlier_jobs(self, table_id: str) -> list[Job]:
        """The jobs of earlier tables of that name."""
        log = self.deployment.log
        ids = log.find_table_ids(self.source.database, self.source.table) - {table_id}
        return [job for earlier in sorted(ids) for job in log.list_jobs(table_id=earlier)]

    def _match_earlier_jobs(
        self, missing: Collection[tuple[str, str]], earlier: Collection[Job]
    ) -> list[LaggingIndex]:
        """Indexes without a job, with the earlier table's job that blocks them, if any; and indexes
        that still serve rows of an earlier table.
        """
        stranded = {
            job.key.job_name: job
            for job in earlier
            if job.status.code == errors.TableGoneError.code
        }
        return [
            *(
                LaggingIndex(tenant=tenant, index=index, job=stranded.get(index))
                for tenant, index in missing
            ),
            *(
                LaggingIndex(tenant=job.key.tenant, index=job.key.job_name, job=job)
                for job in earlier
                if self._is_awaited(job.key.job_name)
                and self.tenant in {None, job.key.tenant}
                and (job.key.tenant, job.key.job_name) not in missing
            ),
        ]

    def _find_unserved(self, jobs: Collection[Job]) -> list[LaggingIndex]:
        try:
            unserved = find_unserved(self.deployment, jobs)
        except errors.UnavailableError:
            # A server that does not answer serves nothing; wait for it.
            unserved = frozenset(job.name for job in jobs)
        return [
            LaggingIndex(tenant=job.key.tenant, index=job.key.job_name, job=job, unserved=True)
            for job in jobs
            if job.name in unserved
        ]

    def _list_required(self, goal: int) -> RequiredIndexes:
        tenants = self.delta_log.list_tenants(goal) if self.tenant is None else [self.tenant]
        return dict.fromkeys(tenants, self._indexes)

    @cached_property
    def _indexes(self) -> frozenset[str]:
        """The indexes that every tenant gets: by standing registration or `auto_register`."""
        of_table = (self.source.database, self.source.table)
        standing = self.deployment.log.list_standing()
        registered = [name.job for name in standing if (name.db, name.table) == of_table]
        declared = [consumer.name for consumer in self.source.consumers if consumer.auto_register]
        return frozenset(filter(self._is_awaited, [*registered, *declared]))

    def _is_awaited(self, index: str) -> bool:
        return self.index in {None, index}

    def _get_latest_version(self, table_id: str) -> int:
        latest = self.delta_log.get_latest_moment().version
        if self.delta_log.get_table_id() == table_id:
            return latest
        rebuilds = self.source.on_replace == REBUILD
        raise errors.WaitError(
            f"{self.source.name} was dropped or recreated during the wait; "
            f"{'' if rebuilds else 'register its jobs again, and '}"
            "wait for a version of the new table."
        )

    def _refuse_unknown(self) -> None:
        """Raises NoSuchJobError for a tenant that has neither rows nor a job."""
        tenant, of_table = self.tenant, (self.source.database, self.source.table)
        if tenant is None or tenant in (tenants := set(self.delta_log.list_tenants())):
            return
        jobs = [
            job
            for job in self.deployment.log.list_jobs()
            if (job.name.db, job.name.table) == of_table
        ]
        tenants |= {job.key.tenant for job in jobs}
        if tenant not in tenants:
            raise errors.NoSuchJobError(
                f"{self.source.name} has neither rows nor a job of tenant {tenant!r}; its "
                f"tenants are: {format_names(tenants, tenant)}."
            )

    def _refuse_stuck(self, goal: int, lagging: Collection[LaggingIndex]) -> None:
        broken = [lag for lag in lagging if lag.broken]
        if broken:
            raise errors.WaitError(
                f"{self.source.name} will not become searchable at version {goal}: "
                f"{_describe_lags(broken)}.{self._describe_remedies(broken)}"
            )
        if paused := [lag for lag in lagging if lag.paused]:
            raise errors.WaitError(
                f"{self.source.name} will not become searchable at version {goal}: "
                f"{_describe_lags(paused)}. To resume, run {self._list_remedies(paused)}."
            )

    def _make_unregistered_error(
        self, goal: int, unregistered: Collection[tuple[str, str]]
    ) -> errors.WaitError:
        lags = [
            LaggingIndex(tenant=tenant, index=index, job=None)
            for tenant, index in sorted(unregistered)
        ]
        be, them = ("are", "them") if len(lags) > 1 else ("is", "it")
        return errors.WaitError(
            f"{self.source.name} will not become searchable at version {goal}: "
            f"{_format_lags(lags)} {be} "
            f"unregistered. To register {them} again, run {self._list_remedies(lags)}."
        )

    def _describe_remedies(self, broken: Collection[LaggingIndex]) -> str:
        """The commands that fix them, unless their messages already name them."""
        instructions = {True: "Run", False: "Remove the cause, then run"}
        by_remedied: dict[bool, list[LaggingIndex]] = {}
        for lag in broken:
            if _get_remedy_verb(lag):
                by_remedied.setdefault(lag.remedied, []).append(lag)
        return "".join(
            f" {instructions[remedied]} {self._list_remedies(lags)}."
            for remedied, lags in by_remedied.items()
        )

    def _list_remedies(self, lagging: Collection[LaggingIndex]) -> str:
        """One command per index, for every tenant if several need it."""
        tenants: dict[tuple[str, str], list[str]] = {}
        for lag in lagging:
            tenants.setdefault((_get_remedy_verb(lag), lag.index), []).append(lag.tenant)
        of_table = {"db": self.source.database, "table": self.source.table}
        return " and ".join(
            suggest_command(verb, names, JobID(**of_table, job=index))
            for (verb, index), names in tenants.items()
        )

    def _make_no_index_error(self) -> errors.ConfigError:
        return errors.ConfigError(
            f"{self.source.name} has no index to wait for: none registers itself, and no job is "
            "registered. Register one (`iscp job register`)."
        )


@dataclass(kw_only=True)
class PollTimer:
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

    def pause(self, reason: str) -> None:
        """Sleep. Raises WaitError with `reason` at the deadline."""
        if self.ended:
            raise errors.WaitError(f"{self.name}: timed out: {reason}.", late=True)
        self.sleep(min(self.seconds, self.deadline - self.monotonic()))
        self.seconds = min(self.seconds * GROWTH, LONGEST_POLL_SECONDS)


@dataclass(kw_only=True)
class ChangeDetector:
    """Detects cheaply whether a table's jobs may have moved since the last look."""

    log: SqlLog
    delta_log: DeltaLog
    table_ids: Collection[str]
    _bookmark: Bookmark | None = None
    _latest: tuple[int, int, str] | None = None

    def detect_change(self) -> bool:
        """Whether there was a commit, or an event of the table's jobs, since the last call."""
        touched, moment = (
            self.log.read_changed_tenants(self._bookmark, beginnings=True),
            self.delta_log.get_latest_moment(),
        )
        # Moments of one version are equal, also those of a table that took another's place.
        latest = (moment.version, moment.micros, self.delta_log.get_table_id(moment.version))
        has_events = any(table_id in self.table_ids for table_id, _ in touched.tenants)
        changed = latest != self._latest or has_events or not touched.complete
        self._bookmark, self._latest = touched.upto, latest
        return changed


def _format_count(lagging: Collection[LaggingIndex]) -> str:
    return f"{len(lagging):,} job{'' if len(lagging) == 1 else 's'}"


def _get_remedy_verb(lag: LaggingIndex) -> str:
    if lag.job is None:
        return "register"
    return get_remedy_verb(lag.job.status) if lag.broken else "resume"


def _describe_lags(lagging: Collection[LaggingIndex]) -> str:
    """What lags, and why; indexes with the same reason are named together."""
    by_position: dict[str, list[LaggingIndex]] = {}
    for lag in lagging:
        by_position.setdefault(lag.describe_position(), []).append(lag)
    groups = [
        f"{_format_lags(lags)} {lags[0].describe_position(many=len(lags) > 1)}"
        for lags in by_position.values()
    ]
    return _join_some(groups, "; ")


def _format_lags(lagging: Collection[LaggingIndex]) -> str:
    tenants: dict[str, list[str]] = {}
    for lag in lagging:
        tenants.setdefault(lag.title, []).append(repr(lag.tenant))
    texts = [f"{name} of {_format_tenants(names)}" for name, names in tenants.items()]
    return _join_some(texts, " and ")


def _format_tenants(names: Sequence[str]) -> str:
    """All names if few, otherwise their number and some examples."""
    if len(names) > MOST_NAMED:
        return f"{len(names):,} tenants (such as {', '.join(names[:MOST_NAMED])})"
    return f"tenant{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _join_some(texts: Sequence[str], between: str) -> str:
    """The first few, and how many more there are."""
    more = len(texts) - MOST_NAMED
    return between.join(texts[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
