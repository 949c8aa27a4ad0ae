"""The kinds of consumer: what jobs of one type have in common, for whoever plans, runs or shows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, cast

from iscp_dagster.model.consumers.protocol import Consumer
from iscp_dagster.model.declared.eventtriggers import TRIGGER
from iscp_dagster.model.declared.images import Transitions
from iscp_dagster.model.declared.kinds import kind_names
from iscp_dagster.model.declared.services import SERVICE
from iscp_dagster.model.declared.tables import Consuming, Index, SourceTable
from iscp_dagster.model.errors import ConfigError, IscpError
from iscp_dagster.model.imports import load_object
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import Beginning
from iscp_dagster.model.specs import ConsumerInfo

CONSUMERS = "iscp_dagster.consumers"
"""The entry point group in which packages offer consumers that need no kind of their own."""
GROUP = "iscp_dagster.consumer_kinds"
"""The entry point group in which packages offer kinds; an entry's name is the type of its jobs."""
INDEX = "iscp_dagster.clickhouse.kinds.indexes:Indexes"
DECLARED = {
    TRIGGER: "iscp_dagster.eventtriggers.kind:EventTriggers",
    SERVICE: "iscp_dagster.serviceconsumers.kind:ServiceConsumers",
}


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What a consumer may know of the scan that brings its rows."""

    table_id: str
    columns: tuple[str, ...]
    """The columns that it gets."""
    reason: str
    """Why it gets all rows, or only changes, as people are told."""
    repairs: Mapping[str, int]
    """By tenant, how often its job was repaired since its range began."""
    lost: Callable[[str], IscpError | None]
    """Why nothing more may be done for a tenant; None: it may."""
    deployment: Any
    """The location's log, clock and services (`sync.deployment.Deployment`)."""


@dataclass(frozen=True)
class ConsumerKind(ABC):
    """How jobs of one type read, run, commit and are shown.

    A kind overrides what differs. Whoever plans asks its attributes, so its module imports what is
    heavy in its methods only.
    """

    type: str
    """The type that the jobs' specs name."""
    called: ClassVar[str] = "consumer"
    """What people call one of its consumers, in sentences."""
    declare: ClassVar[str] = ""
    """How one named `{name}` is declared, where only a declaration makes it."""
    keeps_index: ClassVar[bool] = False
    """Whether Spark's executors write its rows into index tables, which are closed to late writers;
    else the run itself has `consumer` take them, which commits as it likes."""
    of_images: ClassVar[bool] = False
    """Whether it gets both images of each changed row; else the last change of each key."""
    iterates_alone: ClassVar[bool] = False
    """Whether its iterations share no scan, since they may wait for others for long."""
    begins_before_first_commit: ClassVar[bool] = False
    """Whether the job of a tenant that appears later begins before the tenant's first commit, so
    that these rows are changes; else it begins with all rows."""
    renews_generation: ClassVar[bool] = False
    """Whether a rebuild delivers everything as new: in the job's next generation."""
    io_manager: ClassVar[str] = "clickhouse"
    """The key of the IO manager that shows in Dagster what iterations did."""
    see: ClassVar[str] = ""
    """Where to look for what it keeps elsewhere than in tables."""

    @property
    def title(self) -> str:
        """The type as tables of jobs show it."""
        return self.type

    def declared(self, source: SourceTable) -> Sequence[Consuming]:
        """Return what the table declares of the kind."""
        del source
        return ()

    def check(self, source: SourceTable, info: ConsumerInfo) -> None:  # noqa: B027 - most need none
        """Raise ConfigError for a job that could never run."""

    def check_importable(self, info: ConsumerInfo) -> None:  # noqa: B027
        """Raise ConfigError for a consumer that cannot be imported here."""

    def transitions(self, source: SourceTable, info: ConsumerInfo) -> Transitions | None:
        """Return what its image rows are read of; None: it gets none. Raises ConfigError."""
        del source, info
        return None

    def columns(
        self, source: SourceTable, info: ConsumerInfo, available: Sequence[str]
    ) -> tuple[str, ...]:
        """Return the source columns that it gets, in the source's order; not asked for images.

        Raises ConfigError for a column that is not `available`.
        """
        return source.columns_of(Index(name=info.job, columns=info.columns or None), available)

    @abstractmethod
    def consumer(self, source: SourceTable, info: ConsumerInfo, scan: Scan) -> Consumer:
        """Make the consumer of one scan. Raises ConfigError for one that cannot be made."""

    def history(self, source: SourceTable, job: Job, deployment: Any) -> Beginning | None:
        """Return where a tenant's history begins; None: it keeps none, or is not built.

        Raises IscpError.
        """
        del source, job, deployment
        return None

    def describe(self, source: SourceTable, declared: Any) -> tuple[str, Mapping[str, Any]]:
        """Say what a declared one does in a sentence, and its settings, for its asset."""
        return f"The {self.called} {declared.name!r} of {source.name!r}.", {}


class DeclaredKind(ConsumerKind):
    """A kind whose consumers are those that the location declares."""

    def check(self, source: SourceTable, info: ConsumerInfo) -> None:
        there = self.declared(source)
        head = f"Job {source.name}/{info.job}"
        if all(each.name != info.job for each in there):
            known = ", ".join(each.name for each in there) or "none"
            raise ConfigError(
                f"{head}: no {self.called} of that name is declared on the table or its views "
                f"(there are: {known}); declare {self.declare.format(name=repr(info.job))}."
            )
        if info.columns or info.options:
            raise ConfigError(
                f"{head}: a {self.called}'s columns and options are those of its declaration; "
                "change them there."
            )


class OwnConsumers(ConsumerKind):
    """Classes of users and other packages, by their import paths or as entry points."""

    def check(self, source: SourceTable, info: ConsumerInfo) -> None:
        del source
        offered = {each.name for each in entry_points(group=CONSUMERS)}
        if info.type not in offered and ":" not in info.type:
            known = [*kind_names(), *sorted(offered | _offered())]
            raise ConfigError(
                f"The consumer type {info.type!r} is unknown; use one of {', '.join(known)}, or "
                "the import path of your own, such as package.module:Name."
            )

    def check_importable(self, info: ConsumerInfo) -> None:
        _load(info)

    def consumer(self, source: SourceTable, info: ConsumerInfo, scan: Scan) -> Consumer:
        del scan
        factory = _load(info)
        try:
            made = factory(source, info)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"Consumer {info.type!r} of job {info.job!r}: {reason}") from error
        if not isinstance(made, Consumer):
            raise ConfigError(f"Consumer {info.type!r} of job {info.job!r} has no method consume.")
        return made


@dataclass(frozen=True)
class BrokenKind(ConsumerKind):
    """A kind that cannot be loaded: what its jobs need of it raises why, and they fail alone."""

    error: ConfigError

    def check(self, source: SourceTable, info: ConsumerInfo) -> None:
        del source, info
        raise self.error

    def transitions(self, source: SourceTable, info: ConsumerInfo) -> Transitions | None:
        del source, info
        raise self.error

    def consumer(self, source: SourceTable, info: ConsumerInfo, scan: Scan) -> Consumer:
        del source, info, scan
        raise self.error


@cache
def consumer_kind(type_: str) -> ConsumerKind:
    """Return the kind of the jobs of a type."""
    if type_ in kind_names():
        return _loaded(INDEX)(type_)
    if type_ in DECLARED:
        return _loaded(DECLARED[type_])(type_)
    if type_ not in _offered():
        return OwnConsumers(type_)
    try:
        return _loaded(type_)(type_)
    except ConfigError as error:
        return BrokenKind(type_, error)


def declared_kinds() -> Iterator[ConsumerKind]:
    """Yield the kinds of what a location declares beside indexes."""
    yield from map(consumer_kind, DECLARED)


def is_index(info: ConsumerInfo) -> bool:
    """Whether the consumer is an index."""
    return consumer_kind(info.type).keeps_index


def _offered() -> frozenset[str]:
    return frozenset(each.name for each in entry_points(group=GROUP))


def _loaded(name: str) -> type[ConsumerKind]:
    found = load_object(name, GROUP, "consumer kind")
    if not (isinstance(found, type) and issubclass(found, ConsumerKind)):
        raise ConfigError(f"The consumer kind {name!r} is {found!r}; derive it from ConsumerKind.")
    return found


def _load(info: ConsumerInfo) -> Callable[[SourceTable, ConsumerInfo], Any]:
    """Load what makes a user's consumer: an entry point of `CONSUMERS`, or `module:Name`."""
    found = load_object(info.type, CONSUMERS, "consumer type")
    if not callable(found):
        raise ConfigError(f"The consumer type {info.type!r} is {found!r}, which makes no consumer.")
    return cast("Callable[[SourceTable, ConsumerInfo], Any]", found)
