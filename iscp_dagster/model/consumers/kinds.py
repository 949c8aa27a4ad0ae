"""The kinds of consumer: what jobs of one type have in common when planned, run and shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, cast

from iscp_dagster.model.consumers.protocol import Consumer
from iscp_dagster.model.declared.eventtriggers import TRIGGER
from iscp_dagster.model.declared.images import ImageSource
from iscp_dagster.model.declared.kinds import list_kind_names
from iscp_dagster.model.declared.services import SERVICE
from iscp_dagster.model.declared.tables import DeclaredConsumer, Index, SourceTable
from iscp_dagster.model.errors import ConfigError, IscpError
from iscp_dagster.model.imports import load_object
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import HistoryStart
from iscp_dagster.model.specs import ConsumerInfo

CONSUMERS = "iscp_dagster.consumers"
"""The entry point group in which packages offer consumers that need no kind of their own."""
GROUP = "iscp_dagster.consumer_kinds"
"""The entry point group in which packages offer kinds; an entry's name is the type of its jobs."""
INDEX = "iscp_dagster.clickhouse.kinds.index_kind:IndexConsumerKind"
DECLARED = {
    TRIGGER: "iscp_dagster.eventtriggers.kind:EventTriggerKind",
    SERVICE: "iscp_dagster.serviceconsumers.kind:ServiceConsumerKind",
}


@dataclass(frozen=True, kw_only=True)
class ScanContext:
    """What a consumer may know about the scan that delivers its rows."""

    table_id: str
    columns: tuple[str, ...]
    """The columns that it gets."""
    reason: str
    """Why it gets all rows or only changes, as shown to people."""
    repairs: Mapping[str, int]
    """By tenant, how often its job was repaired since its range began."""
    lost: Callable[[str], IscpError | None]
    """The error that ends the work for a tenant; None: it continues."""
    deployment: Any
    """The location's log, clock and services (`sync.deployment.Deployment`)."""


@dataclass(frozen=True)
class ConsumerKind(ABC):
    """How jobs of one type read, run, commit and are shown.

    A kind overrides what differs. Planning reads its attributes, so its module imports heavy
    packages only in its methods.
    """

    type: str
    """The type that the jobs' specs name."""
    noun: ClassVar[str] = "consumer"
    """What people call one of its consumers, in sentences."""
    declare: ClassVar[str] = ""
    """How a consumer named `{name}` is declared, if only a declaration makes it."""
    keeps_index: ClassVar[bool] = False
    """Whether Spark's executors write its rows into index tables, which reject late writers; else
    the consumer of `make_consumer` takes them in the run's process and commits as it likes."""
    of_images: ClassVar[bool] = False
    """Whether it gets both images of each changed row; else the last change of each key."""
    iterates_alone: ClassVar[bool] = False
    """Whether its iterations share no scan, since they may wait long for others."""
    begins_before_first_commit: ClassVar[bool] = False
    """Whether the job of a tenant that appears later begins before the tenant's first commit, so
    that these rows are changes; else it begins with all rows."""
    renews_generation: ClassVar[bool] = False
    """Whether a rebuild delivers everything as new: in the job's next generation."""
    io_manager: ClassVar[str] = "clickhouse"
    """The key of the IO manager that shows in Dagster what iterations did."""
    see: ClassVar[str] = ""
    """Where to look for what it keeps outside tables."""

    @property
    def title(self) -> str:
        """The type as tables of jobs show it."""
        return self.type

    def list_declared(self, source: SourceTable) -> Sequence[DeclaredConsumer]:
        """Return what the table declares of the kind."""
        del source
        return ()

    def check(self, source: SourceTable, info: ConsumerInfo) -> None:  # noqa: B027 - most need none
        """Raise ConfigError for a job that could never run."""

    def check_importable(self, info: ConsumerInfo) -> None:  # noqa: B027
        """Raise ConfigError for a consumer that cannot be imported here."""

    def get_image_source(self, source: SourceTable, info: ConsumerInfo) -> ImageSource | None:
        """Return what its image rows are read from; None: it gets none. Raises ConfigError."""
        del source, info
        return None

    def list_columns(
        self, source: SourceTable, info: ConsumerInfo, available: Sequence[str]
    ) -> tuple[str, ...]:
        """Return the source columns that it gets, in the source's order; not called for images.

        Raises ConfigError for a column that is not `available`.
        """
        return source.select_columns(Index(name=info.job, columns=info.columns or None), available)

    @abstractmethod
    def make_consumer(self, source: SourceTable, info: ConsumerInfo, scan: ScanContext) -> Consumer:
        """Make the consumer of one scan. Raises ConfigError for one that cannot be made."""

    def find_history_start(
        self, source: SourceTable, job: Job, deployment: Any
    ) -> HistoryStart | None:
        """Return where a tenant's history begins; None: it keeps none, or is not built.

        Raises IscpError.
        """
        del source, job, deployment
        return None

    def describe(self, source: SourceTable, declared: Any) -> tuple[str, Mapping[str, Any]]:
        """Describe a declared consumer in a sentence, with its settings, for its asset."""
        return f"The {self.noun} {declared.name!r} of {source.name!r}.", {}


class DeclaredKind(ConsumerKind):
    """A kind whose consumers the location declares."""

    def check(self, source: SourceTable, info: ConsumerInfo) -> None:
        declared = self.list_declared(source)
        head = f"Job {source.name}/{info.job}"
        if all(consumer.name != info.job for consumer in declared):
            names = ", ".join(consumer.name for consumer in declared) or "none"
            raise ConfigError(
                f"{head}: no {self.noun} of that name is declared on the table or its views "
                f"(there are: {names}); declare {self.declare.format(name=repr(info.job))}."
            )
        if info.columns or info.options:
            raise ConfigError(
                f"{head}: a {self.noun}'s columns and options are those of its declaration; "
                "change them there."
            )


class CustomConsumerKind(ConsumerKind):
    """Classes of users and other packages, by their import paths or as entry points."""

    def check(self, source: SourceTable, info: ConsumerInfo) -> None:
        del source
        names = {entry_point.name for entry_point in entry_points(group=CONSUMERS)}
        if info.type not in names and ":" not in info.type:
            known_types = [*list_kind_names(), *sorted(names | _list_offered())]
            raise ConfigError(
                f"The consumer type {info.type!r} is unknown; use one of {', '.join(known_types)}, "
                "or the import path of your own, such as package.module:Name."
            )

    def check_importable(self, info: ConsumerInfo) -> None:
        _load_factory(info)

    def make_consumer(self, source: SourceTable, info: ConsumerInfo, scan: ScanContext) -> Consumer:
        del scan
        factory = _load_factory(info)
        try:
            consumer = factory(source, info)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"Consumer {info.type!r} of job {info.job!r}: {reason}") from error
        if not isinstance(consumer, Consumer):
            raise ConfigError(f"Consumer {info.type!r} of job {info.job!r} has no method consume.")
        return consumer


@dataclass(frozen=True)
class BrokenKind(ConsumerKind):
    """A kind that cannot be loaded: its methods raise the error, so only its jobs fail."""

    error: ConfigError

    def check(self, source: SourceTable, info: ConsumerInfo) -> None:
        del source, info
        raise self.error

    def get_image_source(self, source: SourceTable, info: ConsumerInfo) -> ImageSource | None:
        del source, info
        raise self.error

    def make_consumer(self, source: SourceTable, info: ConsumerInfo, scan: ScanContext) -> Consumer:
        del source, info, scan
        raise self.error


@cache
def get_consumer_kind(type_: str) -> ConsumerKind:
    """Return the kind of a job type."""
    if type_ in list_kind_names():
        return _load_kind(INDEX)(type_)
    if type_ in DECLARED:
        return _load_kind(DECLARED[type_])(type_)
    if type_ not in _list_offered():
        return CustomConsumerKind(type_)
    try:
        return _load_kind(type_)(type_)
    except ConfigError as error:
        return BrokenKind(type_, error)


def list_declared_kinds() -> Iterator[ConsumerKind]:
    """Yield the kinds of declared consumers other than indexes."""
    yield from map(get_consumer_kind, DECLARED)


def is_index(info: ConsumerInfo) -> bool:
    """Whether the consumer is an index."""
    return get_consumer_kind(info.type).keeps_index


def _list_offered() -> frozenset[str]:
    return frozenset(entry_point.name for entry_point in entry_points(group=GROUP))


def _load_kind(name: str) -> type[ConsumerKind]:
    kind = load_object(name, GROUP, "consumer kind")
    if not (isinstance(kind, type) and issubclass(kind, ConsumerKind)):
        raise ConfigError(f"The consumer kind {name!r} is {kind!r}; derive it from ConsumerKind.")
    return kind


def _load_factory(info: ConsumerInfo) -> Callable[[SourceTable, ConsumerInfo], Any]:
    """Load what makes a user's consumer: an entry point of `CONSUMERS`, or `module:Name`."""
    factory = load_object(info.type, CONSUMERS, "consumer type")
    if not callable(factory):
        raise ConfigError(f"The consumer type {info.type!r} is {factory!r}, which is not callable.")
    return cast("Callable[[SourceTable, ConsumerInfo], Any]", factory)
