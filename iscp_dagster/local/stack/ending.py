"""What the end of a stack means for the iterations that were under way."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.local.services.settings import DAGSTER, StackSettings
from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.states import ACTIVE

LOGGER = logging.getLogger(__name__)


def cancel_iterations(settings: StackSettings) -> int:
    """Cancel whatever is queued or runs, now that its Dagster has ended; how many jobs.

    In a log that others may share, those of this stack's runs. Their next iterations replay what
    was begun. A log that does not answer, or a Dagster's storage, is left to the next look.
    """
    shared = settings.log_url is not None
    if DAGSTER not in settings.services or not (shared or _own_log(settings).exists()):
        return 0
    log = SqlLog(settings.log, who="iscp down")
    try:
        active = [job for state in ACTIVE for job in log.jobs(state=state)]
        if shared:
            mine = _runs_here(settings, log.active_runs())
            active = [job for job in active if job.run_id in mine]
        return len(log.cancel(job.key for job in active))
    except IscpError as error:
        LOGGER.warning("The iterations under way were not canceled: %s", error)
        return 0


def _runs_here(settings: StackSettings, names: Collection[str]) -> set[str]:
    """Those that name a run of this stack's Dagster, by its id or its dispatch."""
    if not names or not (settings.dagster_home / "dagster.yaml").exists():
        return set()
    # Dagster takes a second to import, which nothing else in this process needs.
    from iscp_dagster.runs.named import known_to

    return known_to(str(settings.dagster_home), names)


def _own_log(settings: StackSettings) -> Path:
    return settings.home / "iscp_log.sqlite"
