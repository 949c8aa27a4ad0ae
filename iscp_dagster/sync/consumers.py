"""Consumers by type: index kinds and user classes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, cast

from iscp_dagster.clickhouse.kinds.kind import IndexKind
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.clickhouse.write.consumer import IndexConsumer
from iscp_dagster.model.consumers import Consumer
from iscp_dagster.model.declared.kinds import kind_names, kinds
from iscp_dagster.model.declared.services import SERVICE
from iscp_dagster.model.declared.sharding import SHARD
from iscp_dagster.model.declared.tables import Index, SourceTable, check_index
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.imports import load_object
from iscp_dagster.model.specs import ConsumerInfo

GROUP = "iscp_dagster.consumers"
"""The entry point group in which packages offer consumers."""


def is_index(info: ConsumerInfo) -> bool:
    """Whether the consumer is an index."""
    return info.type in kind_names()


def index_of(source: SourceTable, info: ConsumerInfo) -> IndexKind:
    """The index that a job keeps: as declared, with the changes that its spec makes.

    Raises ConfigError for options that the kind does not have.
    """
    declared = next((each for each in source.indexes if each.name == info.job), None)
    changes: dict[str, Any] = dict(info.options)
    shard = changes.pop(SHARD, None)
    if shard is not None and declared is not None and declared.kind != info.type:
        raise ConfigError(
            f"{_head(source, info)}: it keeps a shard of a {declared.kind} index, and only "
            f"a declared {info.type} index can be spread over servers. Declare it as one, and "
            f"rebuild its shards ({_rebuild(source, info)})."
        )
    if info.columns:
        changes |= {"columns": info.columns, "exclude": changes.get("exclude", ())}
    elif "exclude" in changes:
        changes["columns"] = None
    kind = _kind(info.type)
    known = {each.name for each in fields(kind)} - {"sharding"}
    if unknown := sorted(set(changes) - known):
        raise ConfigError(
            f"{_head(source, info)}: a {info.type} index has no option "
            f"{unknown[0]!r}; it has: {', '.join(sorted(known - {'name'}))}."
        )
    try:
        if isinstance(declared, kind):
            index = replace(declared, **changes)
        elif declared is not None and not changes:
            raise ConfigError(
                f"{_head(source, info)}: the index is declared as a {declared.kind} index, and its "
                f"jobs keep a {info.type} index. Rebuild it as declared "
                f"({_rebuild(source, info)}), or declare it as a {info.type} index."
            )
        else:
            _check_whole(source, info, kind, changes)
            index = kind(**{**changes, "name": info.job})
    except TypeError as error:
        raise ConfigError(
            f"{_head(source, info)}: an option of the {info.type} index has a value of the wrong "
            f"type: {error}."
        ) from error
    if shard is not None and (shard != index.shard or index.placement is None):
        raise ConfigError(
            f"{_head(source, info)}: it keeps shard {shard} of an index, but the location declares "
            "no such shard. Declare the index as it was, or unregister the job."
        )
    check_index(source, index)
    return index


def _head(source: SourceTable, info: ConsumerInfo) -> str:
    return f"Job {source.name}/{info.job}"


def _rebuild(source: SourceTable, info: ConsumerInfo) -> str:
    return f"`iscp job rebuild {source.name}/{info.job} --tenant '*'`"


def _kind(name: str) -> type[IndexKind]:
    """Raises ConfigError for a kind that does not derive from IndexKind."""
    kind = kinds()[name]
    if not issubclass(kind, IndexKind):
        raise ConfigError(f"The index kind {name!r} is a {kind!r}; derive it from IndexKind.")
    return kind


def _check_whole(
    source: SourceTable, info: ConsumerInfo, kind: type[IndexKind], given: Collection[str]
) -> None:
    """Raises ConfigError for a required option of the kind that is not given."""
    needed = [each.name for each in fields(kind) if each.default is each.default_factory is MISSING]
    if missing := [name for name in needed if name not in given]:
        asked = " ".join(f"--option {name}=..." for name in missing)
        raise ConfigError(
            f"{_head(source, info)}: a {info.type} index needs "
            f"{' and '.join(missing)}; give {asked}, or declare the index."
        )


def columns_of(
    source: SourceTable, info: ConsumerInfo, available: Sequence[str]
) -> tuple[str, ...]:
    """The source columns that a consumer gets, in the source's order.

    Raises ConfigError for a column that is not `available` in the source.
    """
    if is_index(info):
        return source.columns_of(index_of(source, info), available)
    columns = info.columns
    if info.type == SERVICE:
        columns = tuple(source.service(info.job).columns)
    return source.columns_of(Index(name=info.job, columns=columns or None), available)


def load_consumer(info: ConsumerInfo) -> Callable[[SourceTable, ConsumerInfo], Any]:
    """What makes a user's consumer: an entry point of `GROUP`, or `module:Name`.

    Raises ConfigError.
    """
    found = load_object(info.type, GROUP, "consumer type")
    if not callable(found):
        raise ConfigError(f"The consumer type {info.type!r} is {found!r}, which makes no consumer.")
    return cast("Callable[[SourceTable, ConsumerInfo], Any]", found)


def new_consumer(
    source: SourceTable,
    info: ConsumerInfo,
    *,
    store: IndexStore | None = None,
    staged: bool = False,
) -> Consumer:
    """The consumer of `info.type`: an index kind, an entry point of `GROUP`, or `module:Name`.

    For an index kind it is an IndexConsumer that writes to the served table of `store`, or with
    `staged` to its staging table. Raises ConfigError for a consumer that cannot be made.
    """
    if is_index(info):
        if store is None:
            raise ConfigError(f"Job {info.job!r}: a {info.type} index needs tables; pass `store`.")
        target = store.target(staged=staged)
        return IndexConsumer(endpoint=store.endpoint, target=target, placement=store.placement)
    factory = load_consumer(info)
    try:
        consumer = factory(source, info)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"Consumer {info.type!r} of job {info.job!r}: {reason}") from error
    if not isinstance(consumer, Consumer):
        raise ConfigError(f"Consumer {info.type!r} of job {info.job!r} has no method consume.")
    return consumer
