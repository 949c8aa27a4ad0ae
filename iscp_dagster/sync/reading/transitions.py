"""Which consumers get the changes of a view as image rows, and of which view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.delta.log.files import spark_path
from iscp_dagster.joblog.iterations import Claim
from iscp_dagster.model import errors
from iscp_dagster.model.batch import Range
from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.declared.images import (
    CONDITION_COLUMNS,
    IMAGE_COLUMNS,
    Condition,
    Transitions,
)
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.spark.quoting import ident

ENABLED = "delta.enableInCommitTimestamps"
SINCE = "delta.inCommitTimestampEnablementVersion"
"""Missing where the table had in-commit timestamps from its first commit."""
DELTA_RS = "the `deltalake` package, at least up to 1.6"
"""A writer that lacks the feature of in-commit timestamps."""


def transitions_of(source: SourceTable, info: ConsumerInfo) -> Transitions | None:
    """What the consumer's image rows are read of; None for one that gets other rows.

    Raises ConfigError for one that cannot be made.
    """
    return consumer_kind(info.type).transitions(source, info)


def columns_of_images(
    source: SourceTable, info: ConsumerInfo, transitions: Transitions, available: Sequence[str]
) -> tuple[str, ...]:
    """The columns that the consumer gets. Raises ConfigError and SchemaError."""
    needed = [*source.keys, *([source.tenant] if source.tenant else [])]
    asked = [*needed, *(transitions.columns or ())]
    where = f"Job {source.name}/{info.job}"
    if missing := [name for name in asked if name not in available]:
        raise errors.ConfigError(
            f"{where}: the source has no column {missing[0]!r}; it has: {', '.join(available)}."
        )
    carried = transitions.carried(available, needed)
    if taken := [name for name in carried if name in {*IMAGE_COLUMNS, *CONDITION_COLUMNS}]:
        raise errors.SchemaError(
            f"{where}: the source has a column {taken[0]!r}, a name that every change has; rename "
            "it, or leave it out with columns=[...]."
        )
    return (*carried, *IMAGE_COLUMNS, *(CONDITION_COLUMNS if transitions.conditions else ()))


def by_view(
    source: SourceTable, claims: Iterable[Claim]
) -> list[tuple[Transitions | None, list[Claim]]]:
    """The claims that share a reading, with the view and all conditions that it is read for."""
    found: dict[Transitions | None, list[Claim]] = {}
    conditions: dict[Transitions | None, dict[str, Condition]] = {}
    for claim in claims:
        transitions = None
        # A consumer that cannot be made fails on its own.
        with suppress(errors.IscpError):
            transitions = transitions_of(source, claim.consumer)
        view = transitions and transitions.view
        found.setdefault(view, []).append(claim)
        asked = transitions.conditions if transitions else ()
        conditions.setdefault(view, {}).update({each.name: each for each in asked})
    return [
        (view and view.with_conditions(conditions[view].values()), some)
        for view, some in found.items()
    ]


def check_timestamps(log: DeltaLog, range_: Range, *, staged: bool) -> None:
    """Refuse a range whose commits have no times of their own.

    Raises SourceError, and UntimedError if the job must be rebuilt. A file's time changes when a
    log is copied, and events are told apart by their times.
    """
    properties = log.facts(range_.to.version).metadata.configuration
    table = f"delta.{ident(spark_path(log.location))}"
    alter = f"ALTER TABLE {table} SET TBLPROPERTIES ('{ENABLED}' = 'true')"
    if properties.get(ENABLED, "false").lower() != "true":
        raise errors.SourceError(
            f"{log.location} has no in-commit timestamps, and changes are told apart by them: the "
            "time of a commit's file changes when the log is copied. If nothing but Spark writes "
            f"the table, turn them on: {alter}. delta-rs ({DELTA_RS}) cannot write such a table: "
            "producers that use it would fail. Move them to Spark first, or do without the job."
        )
    since = int(properties.get(SINCE, "-1"))
    first = range_.to.version if staged else range_.from_.version + 1
    if first < since:
        raise errors.UntimedError(
            f"{log.location} has in-commit timestamps since version {since} only ({alter}), and "
            f"version {first} is before it. Rebuild the job (`iscp job rebuild`): its history then "
            "begins anew."
        )
