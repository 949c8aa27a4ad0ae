"""The runs in the ISCP log: by run id, or by the dispatch that they were started for."""

from __future__ import annotations

import secrets
from collections.abc import Collection

from dagster import DagsterError, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from sqlalchemy.exc import SQLAlchemyError

from iscp_dagster.joblog.sql.statements import split_for_statements
from iscp_dagster.model.errors import UnavailableError

DISPATCH_TAG = "iscp/dispatch"
"""Names the iteration that a run was started for; the log's `run_id` until the run begins."""
BY_HAND_TAG = "iscp/by_hand"
"""Marks the runs of iterations that were started by a person, a schedule or a backfill."""
ACTIVE_STATUSES = (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)
"""The statuses of runs that have begun and not ended."""
_IDENTITY = "iscp/identity"


def ensure_instance_name(instance: DagsterInstance) -> str:
    """A unique name for this instance, made at first use and kept in its storage."""
    storage = instance.run_storage
    if _IDENTITY not in storage.get_cursor_values({_IDENTITY}):
        storage.set_cursor_values({_IDENTITY: f"Dagster {secrets.token_hex(8)}"})
    return storage.get_cursor_values({_IDENTITY})[_IDENTITY]


def find_runs(instance: DagsterInstance, names: Collection[str]) -> list[DagsterRun]:
    """The instance's runs with these names; a run named twice is listed twice."""
    runs: list[DagsterRun] = []
    for portion in split_for_statements(sorted(names)):
        runs += instance.get_runs(RunsFilter(run_ids=portion))
        runs += instance.get_runs(RunsFilter(tags={DISPATCH_TAG: portion}))
    return runs


def tag_if_by_hand(instance: DagsterInstance, run: DagsterRun) -> None:
    """Have `is_iteration_run` recognize a run that the runner did not start. Idempotent."""
    if not is_iteration_run(run):
        instance.add_run_tags(run.run_id, {BY_HAND_TAG: "true"})


def is_iteration_run(run: DagsterRun) -> bool:
    return not {DISPATCH_TAG, BY_HAND_TAG}.isdisjoint(run.tags)


def is_first(instance: DagsterInstance, run: DagsterRun, dispatch: str) -> bool:
    """Whether the run is the first one for the dispatch, not a later copy."""
    filters = RunsFilter(tags={DISPATCH_TAG: dispatch})
    return [first.run_id for first in instance.get_runs(filters, limit=1, ascending=True)] in (
        [],
        [run.run_id],
    )


def get_run_names(run: DagsterRun) -> set[str]:
    """All names by which the log may know the run."""
    return {run.run_id, run.tags.get(DISPATCH_TAG, run.run_id)}


def find_run_names(dagster_home: str, names: Collection[str]) -> set[str]:
    """All names of the runs with these names in that home's Dagster, which may be down.

    Raises UnavailableError when its storage does not answer.
    """
    try:
        with DagsterInstance.from_config(dagster_home) as instance:
            return {name for run in find_runs(instance, names) for name in get_run_names(run)}
    except (DagsterError, SQLAlchemyError, OSError) as error:
        raise UnavailableError(
            f"The runs of Dagster in {dagster_home} cannot be read: {error}"
        ) from error
