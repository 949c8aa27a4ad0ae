"""The runs that the ISCP log knows: by run id, or by the dispatch that they were started for."""

from __future__ import annotations

import secrets
from collections.abc import Collection

from dagster import DagsterError, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from sqlalchemy.exc import SQLAlchemyError

from iscp_dagster.joblog.sql.statements import portions
from iscp_dagster.model.errors import UnavailableError

DISPATCH_TAG = "iscp/dispatch"
"""Names the iteration that a run was started for; the log's `run_id` until the run begins."""
BY_HAND_TAG = "iscp/by_hand"
"""Marks the runs of iterations that were started by a person, a schedule or a backfill."""
WORKED = (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)
"""The statuses of runs that have begun and not ended."""
_IDENTITY = "iscp/identity"


def identity(instance: DagsterInstance) -> str:
    """A unique name for this instance, made at first use and kept in its storage."""
    storage = instance.run_storage
    if _IDENTITY not in storage.get_cursor_values({_IDENTITY}):
        storage.set_cursor_values({_IDENTITY: f"Dagster {secrets.token_hex(8)}"})
    return storage.get_cursor_values({_IDENTITY})[_IDENTITY]


def runs_named(instance: DagsterInstance, names: Collection[str]) -> list[DagsterRun]:
    """The instance's runs with these names; a run named twice is listed twice."""
    found: list[DagsterRun] = []
    for some in portions(sorted(names)):
        found += instance.get_runs(RunsFilter(run_ids=some))
        found += instance.get_runs(RunsFilter(tags={DISPATCH_TAG: some}))
    return found


def mark_by_hand(instance: DagsterInstance, run: DagsterRun) -> None:
    """Have `is_iteration` recognize a run that the runner did not start. Idempotent."""
    if not is_iteration(run):
        instance.add_run_tags(run.run_id, {BY_HAND_TAG: "true"})


def is_iteration(run: DagsterRun) -> bool:
    return not {DISPATCH_TAG, BY_HAND_TAG}.isdisjoint(run.tags)


def is_first(instance: DagsterInstance, run: DagsterRun, dispatch: str) -> bool:
    """Whether the run is the first one for the dispatch, not a later copy."""
    wanted = RunsFilter(tags={DISPATCH_TAG: dispatch})
    return [each.run_id for each in instance.get_runs(wanted, limit=1, ascending=True)] in (
        [],
        [run.run_id],
    )


def names_of(run: DagsterRun) -> set[str]:
    """All names by which the log may know the run."""
    return {run.run_id, run.tags.get(DISPATCH_TAG, run.run_id)}


def known_to(dagster_home: str, names: Collection[str]) -> set[str]:
    """All names of the runs with these names in the Dagster of that home, which may be down.

    Raises UnavailableError when its storage does not answer.
    """
    try:
        with DagsterInstance.from_config(dagster_home) as instance:
            return {name for run in runs_named(instance, names) for name in names_of(run)}
    except (DagsterError, SQLAlchemyError, OSError) as error:
        raise UnavailableError(
            f"The runs of Dagster in {dagster_home} cannot be read: {error}"
        ) from error
