"""Cancels the iterations that were under way when a stack ends."""

from __future__ import annotations

import logging
from collections.abc import Collection

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.local.services.settings import DAGSTER, StackSettings
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.states import ACTIVE

LOGGER = logging.getLogger(__name__)


def cancel_iterations(settings: StackSettings) -> int:
    """Cancel queued and running iterations once Dagster has ended; return the number of jobs.

    In an ISCP log that others may share, cancels only those of this stack's runs. The next
    iterations replay the ranges that were begun. If the log or Dagster's storage does not answer,
    logs a warning and leaves the iterations to the next look.
    """
    shared, own_log = settings.log_url is not None, settings.home / "iscp_log.sqlite"
    if DAGSTER not in settings.services or not (shared or own_log.exists()):
        return 0
    log = SqlLog(settings.log, actor="iscp down")
    try:
        active = [job for state in ACTIVE for job in log.list_jobs(state=state)]
        if shared:
            own_runs = _find_own_runs(settings, log.list_active_runs())
            active = [job for job in active if job.run_id in own_runs]
        return len(log.cancel(job.key for job in active))
    except IscpError as error:
        LOGGER.warning("The iterations under way were not canceled: %s", error)
        return 0


def _find_own_runs(settings: StackSettings, names: Collection[str]) -> set[str]:
    """The `names` that belong to this stack's runs; a name is a run's id or its dispatch."""
    if not names or not (settings.dagster_home / "dagster.yaml").exists():
        return set()
    # Importing Dagster takes a second, and nothing else in this process needs it.
    from iscp_dagster.runs.run_names import find_run_names

    return find_run_names(str(settings.dagster_home), names)
