"""What a user declares: source tables and their indexes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.kinds import check_kind
from iscp_dagster.model.declared.names import (
    check_database,
    check_excluded,
    check_identifier,
    check_lists,
    check_no_shard,
    check_view,
    view_name,
)
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.sharding import Sharding, parse_sharding, strip_shard_suffix
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.specs import check_priority

DEFAULT_TENANT = "default"
"""The one partition of a table without a tenant column."""

MOST_BUCKETS = 1_024
"""ClickHouse advises at most some thousands of partitions a table, and each bucket is one."""

ERRORS = ("stop", "dead_letter")
"""What to do with a row that an index cannot take."""

REBUILD = "rebuild"
ON_REPLACE = ("strand", REBUILD)
"""What to do with the jobs of a table that is recreated under its name."""

_NOT_IN_DEFINITION = {
    "name",
    "types",
    "description",
    "owners",
    "tags",
    "priority",
    "auto_register",
    "errors",
    "sharding",
    "exclude",
    "nulls",
}


@dataclass(frozen=True)
class Index:
    """One ClickHouse index table of a source table, all tenants in it."""

    _: KW_ONLY
    name: str = ""
    columns: Sequence[str] | None = None
    """The source columns it carries; key and tenant are always included. None: all."""
    exclude: Sequence[str] = ()
    """The source columns that it leaves out, instead of `columns`; later ones are carried."""
    types: Mapping[str, str] = field(default_factory=dict)
    """By column, ClickHouse types other than the default (docs/types.md)."""
    nulls: str | Mapping[str, str] | None = None
    """What it has for null arrays, maps and structs, by column or for all; None: as the table."""
    description: str | None = None
    owners: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    """Higher runs first."""
    auto_register: bool = True
    """Register a job automatically for every tenant that is found."""
    append: bool = False
    """For a table without a key, whose rows are only added: each row is stored exactly once."""
    errors: str = "stop"
    """What to do with a row that ClickHouse cannot take: `stop` the job, or `dead_letter`."""
    sharding: Sharding | Mapping[str, Any] | None = None
    """Which of the deployment's ClickHouse servers a row lies on; None: all rows on the first."""
    kind: ClassVar[str] = ""
    of_images: ClassVar[bool] = False
    """Whether it keeps both images of each changed row, rather than the last row of each key."""
    view_suffixes: ClassVar[tuple[str, ...]] = ()
    """Each index view that the kind has beside its first is named `<index view>_<one of these>`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", check_identifier(self.name or self.kind, "index"))
        if self.errors not in ERRORS:
            raise ConfigError(
                f"Index {self.name!r}: errors={self.errors!r} is not one of: {', '.join(ERRORS)}."
            )
        check_lists(self.name, self.columns, self.exclude)
        is_mapping = isinstance(self.types, Mapping)
        if not is_mapping or not all(
            isinstance(part, str) for pair in self.types.items() for part in pair
        ):
            raise ConfigError(
                f"Index {self.name!r}: types={self.types!r} does not map columns to types; write "
                "types={'column': 'UInt64'}."
            )
        try:
            check_priority(self.priority)
        except ConfigError as error:
            raise ConfigError(f"Index {self.name!r}: {error}") from error
        if self.sharding is not None:
            object.__setattr__(self, "sharding", parse_sharding(self.name, self.sharding))

    def check(self, option: str, type_: type, called: str) -> None:
        """Reject an option of another type. Raises ConfigError."""
        value = getattr(self, option)
        if not isinstance(value, type_) or isinstance(value, bool):
            raise ConfigError(f"Index {self.name!r}: {option}={value!r} is not {called}.")

    @property
    def placement(self) -> Sharding | None:
        """Its sharding, if it is one shard of several."""
        is_shard = isinstance(self.sharding, Sharding) and self.sharding.shards
        return self.sharding if is_shard and isinstance(self.sharding, Sharding) else None

    @property
    def shard(self) -> int:
        """Which of the deployment's ClickHouse servers it lies on."""
        return self.placement.shard if self.placement else 0

    @property
    def shown(self) -> str:
        """Its name for users in ClickHouse; of a shard, the index's."""
        return strip_shard_suffix(self.name, self.placement.shard) if self.placement else self.name

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """The columns that the index needs besides the key."""
        return ()

    def check_available(self, where: str, available: Sequence[str]) -> None:
        """Reject a source with columns that the index cannot have. Raises ConfigError."""

    @property
    def definition(self) -> dict[str, Any]:
        """What determines its tables, besides the columns' types; a change makes another index."""
        options = {field_.name for field_ in fields(self)} - _NOT_IN_DEFINITION
        definition = {"kind": self.kind} | {
            option: _to_plain_json(getattr(self, option)) for option in sorted(options)
        }
        # Left out where it says nothing, as tables that were made without it do not name it.
        definition |= {"exclude": _to_plain_json(self.exclude)} if self.exclude else {}
        return definition | ({"sharding": self.placement.to_json()} if self.placement else {})


DeclaredConsumer = Index | Trigger | ServiceConsumer
"""What is declared to consume a table's rows."""

T = TypeVar("T", bound=DeclaredConsumer)


@dataclass(frozen=True)
class SourceTable:
    """A Delta table, named `database.table`, and the indexes kept in step with it."""

    name: str
    _: KW_ONLY
    key: str | Sequence[str] = ()
    """The primary key's columns, unique within a tenant; none: every index has `append=True`."""
    path: str | None = None
    """Where the Delta table is; None: `database/table` below the lake's root."""
    tenant: str | None = None
    """The partition column that names the tenant; None: one partition, `default`."""
    buckets: int | None = None
    """How many partitions of its index tables share its tenants; None: each tenant has its own."""
    indexes: Sequence[Index] = ()
    triggers: Sequence[Trigger] = ()
    """The event triggers on it and its views; `attach_to_tables` fills it in."""
    services: Sequence[ServiceConsumer] = ()
    """The service consumers that get its changes."""
    load: Callable[..., Any] | None = None
    """Called with a `Load` when a person materializes the source; None: others write it."""
    tenants: Callable[[], Sequence[str]] | None = None
    """Tenants that `load` can load before the table has them."""
    load_config: type[Any] | None = None
    """A pydantic model, such as a `dagster.Config`, that the launchpad offers for `load`."""
    on_replace: str = "strand"
    """When the table is dropped and recreated, or replaced: `strand` its jobs until a person
    registers them again, or `rebuild` their indexes from the new table."""
    nulls: str | Mapping[str, str] = "empty"
    """What its indexes have for null arrays, maps and structs (docs/types.md)."""
    left_out: Sequence[ConfigError] = field(default=(), compare=False)
    """Why declarations for it, or with its name, are left out; set by `select_consistent`."""
    description: str | None = None
    owners: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        database, dot, table = str(self.name).partition(".")
        if not dot:
            raise ConfigError(f"Source table {self.name!r}: name it database.table.")
        check_database(database)
        check_identifier(table, "table")
        if self.on_replace not in ON_REPLACE:
            raise ConfigError(
                f"Source table {self.name!r}: on_replace={self.on_replace!r} is not one of: "
                f"{', '.join(ON_REPLACE)}."
            )
        _check_lists(self)
        _check_buckets(self)
        for index in self.indexes:
            check_index(self, index)
            check_sharding(self, index)
        _refuse_repeats(self.name, "key column", self.keys)
        _refuse_repeats(self.name, "index", [index.name for index in self.indexes])
        _refuse_repeats(self.name, "job", [consumer.name for consumer in self.consumers])

    @property
    def database(self) -> str:
        return self.name.partition(".")[0]

    @property
    def table(self) -> str:
        return self.name.partition(".")[2]

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)

    @property
    def consumers(self) -> tuple[DeclaredConsumer, ...]:
        """All that is declared to get a job for each tenant: indexes, triggers, services."""
        return (*self.indexes, *self.triggers, *self.services)

    @property
    def source(self) -> SourceTable:
        """The table itself, as a view's `source` is its underlying table."""
        return self

    @property
    def chain(self) -> tuple[()]:
        """The views between it and the source: none."""
        return ()

    @property
    def definition(self) -> list[dict[str, Any]]:
        """What determines its rows, as for a view; empty: all rows."""
        return []

    def get_index(self, name: str) -> Index:
        """The index of that name. Raises ConfigError naming the declared ones."""
        return self._find_declared(name, "index", self.indexes)

    def get_trigger(self, name: str) -> Trigger:
        """The event trigger of that name. Raises ConfigError naming the declared ones."""
        return self._find_declared(name, "trigger", self.triggers)

    def get_service(self, name: str) -> ServiceConsumer:
        """The service consumer of that name. Raises ConfigError naming the declared ones."""
        return self._find_declared(name, "service consumer", self.services)

    def _find_declared(self, name: str, what: str, declared: Sequence[T]) -> T:
        for declaration in declared:
            if declaration.name == name:
                return declaration
        names = ", ".join(declaration.name for declaration in declared) or "none"
        raise ConfigError(f"Source table {self.name!r} has no {what} {name!r}; it has: {names}.")

    def select_columns(self, index: Index, available: Sequence[str]) -> tuple[str, ...]:
        """The source columns that `index` carries, in the source's order.

        Raises ConfigError for a column that the source lacks.
        """
        tenant = (self.tenant,) if self.tenant else ()
        # What the index leaves out may come and go.
        selected = [name for name in available if name not in index.exclude]
        selected = list(index.columns) if index.columns is not None else selected
        required = {*tenant, *self.keys, *index.needed_columns}
        columns = {*required, *selected}
        missing = sorted(columns - set(available))
        if missing:
            # A table of rows is made from these columns; the others come and go.
            rebuilt = type(index) is not Index and not required.isdisjoint(missing)
            raise ConfigError(
                f"Index {self.name}/{index.name}: the source has no column "
                f"{', '.join(map(repr, missing))}; it has: {', '.join(available)}."
                f"{_RENAMED.format(name=f'{self.name}/{index.name}') if rebuilt else ''}"
            )
        index.check_available(f"Index {self.name}/{index.name}", available)
        return tuple(column for column in available if column in columns)


_RENAMED = (
    " Correct the declaration. If the column was renamed after the index was built, then rebuild "
    "it (`iscp job rebuild {name} --tenant '*'`); the old rows are served until then."
)


def _check_lists(source: SourceTable) -> None:
    keys = [source.key] if isinstance(source.key, str) else source.key
    if not (isinstance(keys, list | tuple) and all(isinstance(key, str) for key in keys)):
        raise ConfigError(
            f"Source table {source.name!r}: key={source.key!r} names no columns; give one "
            "name, or a list of names."
        )
    indexes = source.indexes
    if not (
        isinstance(indexes, list | tuple) and all(isinstance(index, Index) for index in indexes)
    ):
        raise ConfigError(
            f"Source table {source.name!r}: indexes={indexes!r} is not a list of indexes; write "
            "indexes=[Mirror()], for example."
        )
    services = source.services
    if not (
        isinstance(services, list | tuple)
        and all(isinstance(service, ServiceConsumer) for service in services)
    ):
        raise ConfigError(
            f"Source table {source.name!r}: services={services!r} is not a list of service "
            "consumers; write services=[ServiceConsumer(...)]."
        )


def _check_buckets(source: SourceTable) -> None:
    buckets = source.buckets
    if buckets is None:
        return
    if (
        not isinstance(buckets, int)
        or isinstance(buckets, bool)
        or not 1 <= buckets <= MOST_BUCKETS
    ):
        raise ConfigError(
            f"Source table {source.name!r}: buckets={buckets!r} is not a number from 1 to "
            f"{MOST_BUCKETS:,}; each bucket is a partition of every index table. Try buckets=64."
        )
    if source.tenant is None:
        raise ConfigError(
            f"Source table {source.name!r}: buckets={buckets}, but it has no tenants to share "
            "them. Declare tenant=, or leave buckets= out."
        )


def check_index(source: SourceTable, index: Index) -> None:
    """Reject an index that the table cannot have. Raises ConfigError."""
    check_kind(f"{source.name}/{index.name}", index)
    check_append_in_buckets(source, index)
    check_append(source, index)
    needed = {*source.keys, *index.needed_columns, *([source.tenant] if source.tenant else [])}
    check_excluded(f"{source.name}/{index.name}", index.exclude, needed)
    check_view(source.name, source.table, index.shown)
    if index.placement is None:
        check_no_shard(source.name, index.name)


def check_append(source: SourceTable, index: Index) -> None:
    """Reject an index with both `append=True` and a key, or neither. Raises ConfigError."""
    if index.append and source.keys:
        raise ConfigError(
            f"Index {source.name}/{index.name} has append=True, but its source has the key "
            f"{', '.join(source.keys)}; remove one of the two."
        )
    if not index.append and not source.keys:
        raise ConfigError(
            f"Source table {source.name!r}: declare at least one key column, or append=True on "
            f"index {index.name!r} if rows are only ever added to it."
        )


def check_append_in_buckets(source: SourceTable, index: Index) -> None:
    """Reject rows without a key in buckets, where new rows replace old ones by key.

    Raises ConfigError.
    """
    if index.append and source.buckets is not None:
        raise ConfigError(
            f"Index {source.name}/{index.name} has append=True, but with buckets={source.buckets} "
            "a tenant is rebuilt by replacing its rows by key. Declare the table's key=, or leave "
            "buckets= out."
        )


def check_sharding(source: SourceTable, index: Index) -> None:
    """Reject sharding by columns that can change or that the index does not store.

    Rows of an append-only index never change: if some do, their tenant is built again. Raises
    ConfigError.
    """
    allowed = dict.fromkeys((*([source.tenant] if source.tenant else []), *source.keys))
    key = index.sharding.key if isinstance(index.sharding, Sharding) else ()
    if index.append:
        stored_columns = {*(index.columns or key), *index.needed_columns, *allowed} - {
            *index.exclude
        }
        if missing := [column for column in key if column not in stored_columns]:
            raise ConfigError(
                f"Index {source.name}/{index.name}: the sharding key has {missing[0]!r}, which is "
                "not one of its columns. Have it carry that column, or shard by other columns."
            )
        return
    if mutable := [column for column in key if column not in allowed]:
        raise ConfigError(
            f"Index {source.name}/{index.name}: the sharding key has {mutable[0]!r}, which is "
            "neither the tenant nor a key column: its value may change, but a row cannot change "
            f"its shard. Choose from: {', '.join(allowed) or 'there are none'}."
        )


def expand_shards(source: SourceTable, shards: int) -> SourceTable:
    """Replace each sharded index by one index per shard, named `<index>_shard_<i>`."""
    if not any(index.sharding for index in source.indexes):
        return source
    indexes = [shard for index in source.indexes for shard in _expand_index(index, shards)]
    return replace(source, indexes=indexes)


def _expand_index(index: Index, shards: int) -> list[Index]:
    if not isinstance(index.sharding, Sharding) or index.sharding.shards:
        return [index]
    return [
        replace(index, name=f"{index.name}{sharding.suffix}", sharding=sharding)
        for sharding in index.sharding.make_shards(shards)
    ]


def format_unique_view_name(table: SourceTable, index: Index, databases: Sequence[str] = ()) -> str:
    """A name for the index view, unique among the deployment's ClickHouse servers."""
    where = f" on shard {index.shard}" if index.shard else ""
    return f"{qualify_view_name(table, index, databases)}{where}"


def qualify_view_name(table: SourceTable, index: Index, databases: Sequence[str] = ()) -> str:
    """The index view, in the database named for its shard, else in the table's own."""
    database = databases[index.shard] if databases else ""
    return f"{database or table.database}.{view_name(table.table, index.shown)}"


def _refuse_repeats(where: str, what: str, names: Sequence[str]) -> None:
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise ConfigError(
            f"{where}: {what} {', '.join(map(repr, repeated))} is declared twice; "
            "give each its own name."
        )


def _to_plain_json(value: Any) -> Any:
    """The value as JSON; the order of columns does not matter."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple) and any(isinstance(entry, Mapping) for entry in value):
        return [dict(entry) for entry in value]
    return value if value is None or isinstance(value, str | int) else sorted(value)
