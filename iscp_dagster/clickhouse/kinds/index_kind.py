"""Jobs that keep an index: which index, as it is declared and as the job's spec changes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from typing import Any, ClassVar

from iscp_dagster.clickhouse.kinds.kind import IndexKind
from iscp_dagster.model.consumers.kinds import ConsumerKind, ScanContext
from iscp_dagster.model.consumers.protocol import Consumer
from iscp_dagster.model.declared.images import ImageSource
from iscp_dagster.model.declared.kinds import load_kinds
from iscp_dagster.model.declared.sharding import SHARD
from iscp_dagster.model.declared.tables import SourceTable, check_index
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import HistoryStart
from iscp_dagster.model.specs import ConsumerInfo


class IndexConsumerKind(ConsumerKind):
    """Indexes of all kinds: rows in tables of ClickHouse, which Spark's executors write."""

    noun: ClassVar[str] = "index"
    keeps_index: ClassVar[bool] = True

    def check(self, source: SourceTable, info: ConsumerInfo) -> None:
        from iscp_dagster.clickhouse.types.declared_types import check_types

        check_types(source, resolve_index(source, info))

    @property
    def of_images(self) -> bool:  # type: ignore[override] # each kind of index says so itself
        # If a package's kind cannot be loaded, each of its jobs fails later, by itself.
        with suppress(ConfigError):
            return bool(load_kinds()[self.type].of_images)
        return False

    def get_image_source(self, source: SourceTable, info: ConsumerInfo) -> ImageSource | None:
        return resolve_index(source, info).image_source if self.of_images else None

    def list_columns(
        self, source: SourceTable, info: ConsumerInfo, available: Sequence[str]
    ) -> tuple[str, ...]:
        return source.select_columns(resolve_index(source, info), available)

    def make_consumer(self, source: SourceTable, info: ConsumerInfo, scan: ScanContext) -> Consumer:
        """Raise ConfigError: the writer of index tables takes the rows, in Spark's executors."""
        del source, scan
        raise ConfigError(f"Job {info.job!r}: a {info.type} index needs tables to be written to.")

    def find_history_start(
        self, source: SourceTable, job: Job, deployment: Any
    ) -> HistoryStart | None:
        if not self.of_images:
            return None
        info, schema = (
            job.spec.detail.consumer,
            deployment.make_delta_log(source).get_facts().fields,
        )
        store = deployment.make_index_store(
            source, resolve_index(source, info), schema, info.generation
        )
        beginnings: Mapping[str, HistoryStart] = store.read_beginnings([job.key.tenant])
        return beginnings.get(job.key.tenant)


def resolve_index(source: SourceTable, info: ConsumerInfo) -> IndexKind:
    """Return the index that a job keeps: as declared, with the changes in its spec.

    Raises ConfigError for options that the kind does not have.
    """
    declared = next((index for index in source.indexes if index.name == info.job), None)
    changes: dict[str, Any] = dict(info.options)
    shard = changes.pop(SHARD, None)
    if shard is not None and declared is not None and declared.kind != info.type:
        raise ConfigError(
            f"{_format_job(source, info)}: it keeps a shard of a {declared.kind} index, and only "
            f"a declared {info.type} index can be spread over servers. Declare it as one, and "
            f"rebuild its shards ({_format_rebuild_command(source, info)})."
        )
    if info.columns:
        changes |= {"columns": info.columns, "exclude": changes.get("exclude", ())}
    elif "exclude" in changes:
        changes["columns"] = None
    kind = _get_kind(info.type)
    options = {field.name for field in fields(kind)} - {"sharding"}
    if unknown := sorted(set(changes) - options):
        raise ConfigError(
            f"{_format_job(source, info)}: a {info.type} index has no option "
            f"{unknown[0]!r}; it has: {', '.join(sorted(options - {'name'}))}."
        )
    try:
        if isinstance(declared, kind):
            index = replace(declared, **changes)
        elif declared is not None and not changes:
            raise ConfigError(
                f"{_format_job(source, info)}: the index is declared as a {declared.kind} index, "
                "and its "
                f"jobs keep a {info.type} index. Rebuild it as declared "
                f"({_format_rebuild_command(source, info)}), or declare it as a {info.type} index."
            )
        else:
            _check_required_options(source, info, kind, changes)
            index = kind(**{**changes, "name": info.job})
    except TypeError as error:
        raise ConfigError(
            f"{_format_job(source, info)}: an option of the {info.type} index has a value of the "
            "wrong "
            f"type: {error}."
        ) from error
    if shard is not None and (shard != index.shard or index.placement is None):
        raise ConfigError(
            f"{_format_job(source, info)}: it keeps shard {shard} of an index, but the location "
            "declares "
            "no such shard. Declare the index as it was, or unregister the job."
        )
    check_index(source, index)
    return index


def _format_job(source: SourceTable, info: ConsumerInfo) -> str:
    return f"Job {source.name}/{info.job}"


def _format_rebuild_command(source: SourceTable, info: ConsumerInfo) -> str:
    return f"`iscp job rebuild {source.name}/{info.job} --tenant '*'`"


def _get_kind(name: str) -> type[IndexKind]:
    """Raises ConfigError for a kind that does not derive from IndexKind."""
    kind = load_kinds()[name]
    if not issubclass(kind, IndexKind):
        raise ConfigError(f"The index kind {name!r} is a {kind!r}; derive it from IndexKind.")
    return kind


def _check_required_options(
    source: SourceTable, info: ConsumerInfo, kind: type[IndexKind], options: Collection[str]
) -> None:
    """Raises ConfigError for a required option of the kind that is missing."""
    required = [
        field.name for field in fields(kind) if field.default is field.default_factory is MISSING
    ]
    if missing := [name for name in required if name not in options]:
        arguments = " ".join(f"--option {name}=..." for name in missing)
        raise ConfigError(
            f"{_format_job(source, info)}: a {info.type} index needs "
            f"{' and '.join(missing)}; give {arguments}, or declare the index."
        )
