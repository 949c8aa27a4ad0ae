"""Which consumers get the changes of a view as image rows, and from which view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.log.files import to_spark_path
from iscp_dagster.joblog.iterations import Claim
from iscp_dagster.model import errors
from iscp_dagster.model.batch import Range
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.images import (
    CONDITION_COLUMNS,
    IMAGE_COLUMNS,
    ImageSource,
    TriggerConditions,
)
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.spark.quoting import quote_identifier

ENABLED = "delta.enableInCommitTimestamps"
SINCE = "delta.inCommitTimestampEnablementVersion"
"""Missing if the table had in-commit timestamps from its first commit."""
DELTA_RS = "the `deltalake` package, at least up to 1.6"
"""A writer that does not support in-commit timestamps."""


def get_image_source(source: SourceTable, info: ConsumerInfo) -> ImageSource | None:
    """What the consumer's image rows are read from; None if it gets other rows.

    Raises ConfigError for a consumer that cannot be made.
    """
    return get_consumer_kind(info.type).get_image_source(source, info)


def list_image_columns(
    source: SourceTable, info: ConsumerInfo, image_source: ImageSource, available: Sequence[str]
) -> tuple[str, ...]:
    """The columns that the consumer gets. Raises ConfigError and SchemaError."""
    needed = [*source.keys, *([source.tenant] if source.tenant else [])]
    required = [*needed, *(image_source.columns or ())]
    where = f"Job {source.name}/{info.job}"
    if missing := [name for name in required if name not in available]:
        raise errors.ConfigError(
            f"{where}: the source has no column {missing[0]!r}; it has: {', '.join(available)}."
        )
    columns = image_source.select_columns(available, needed)
    if reserved := [name for name in columns if name in {*IMAGE_COLUMNS, *CONDITION_COLUMNS}]:
        raise errors.SchemaError(
            f"{where}: the source has a column {reserved[0]!r}, a name that every change has; "
            "rename it, or leave it out with columns=[...]."
        )
    return (*columns, *IMAGE_COLUMNS, *(CONDITION_COLUMNS if image_source.conditions else ()))


def group_by_view(
    source: SourceTable, claims: Iterable[Claim]
) -> list[tuple[ImageSource | None, list[Claim]]]:
    """The claims that share a reading, with the view and all conditions to evaluate on it."""
    by_view: dict[ImageSource | None, list[Claim]] = {}
    conditions: dict[ImageSource | None, dict[str, TriggerConditions]] = {}
    for claim in claims:
        image_source = None
        # A consumer that cannot be made fails on its own.
        with suppress(errors.IscpError):
            image_source = get_image_source(source, claim.consumer)
        view = image_source and image_source.view
        by_view.setdefault(view, []).append(claim)
        view_conditions = image_source.conditions if image_source else ()
        conditions.setdefault(view, {}).update(
            {condition.name: condition for condition in view_conditions}
        )
    return [
        (view and view.replace_conditions(conditions[view].values()), members)
        for view, members in by_view.items()
    ]


def check_timestamps(log: DeltaLog, range_: Range, *, staged: bool) -> None:
    """Refuse a range whose commits have no times of their own.

    Raises SourceError, and UntimedError if the job must be rebuilt. A file's time changes when a
    log is copied, and events are identified by their times.
    """
    properties = log.get_facts(range_.to.version).metadata.configuration
    table = f"delta.{quote_identifier(to_spark_path(log.location))}"
    alter = f"ALTER TABLE {table} SET TBLPROPERTIES ('{ENABLED}' = 'true')"
    if properties.get(ENABLED, "false").lower() != "true":
        raise errors.SourceError(
            f"{log.location} has no in-commit timestamps, which identify changes: the time of a "
            "commit's file changes when the log is copied. If nothing but Spark writes the table, "
            f"turn them on: {alter}. delta-rs ({DELTA_RS}) cannot write such a table: producers "
            "that use it would fail. Move them to Spark first, or do without the job."
        )
    since = int(properties.get(SINCE, "-1"))
    first = range_.to.version if staged else range_.from_.version + 1
    if first < since:
        raise errors.UntimedError(
            f"{log.location} has in-commit timestamps since version {since} only ({alter}), and "
            f"version {first} is before it. Rebuild the job (`iscp job rebuild`): its history then "
            "begins anew."
        )
