"""What the end of a stack means for the iterations that were under way (seed 001, "Scheduler")."""

from __future__ import annotations

import logging

from iscp_dagster.core.errors import IscpError
from iscp_dagster.core.states import ACTIVE
from iscp_dagster.log.sql import SqlLog
from iscp_dagster.stack.settings import DAGSTER, StackSettings

LOGGER = logging.getLogger(__name__)


def cancel_iterations(settings: StackSettings) -> int:
    """Cancel whatever is queued or runs, now that its Dagster has ended; how many jobs.

    Only in a log of this stack's own: others may run the jobs of a shared one. Their next
    iterations replay what was begun. A log that does not answer is left to the next look.
    """
    if DAGSTER not in settings.services or settings.log_url is not None:
        return 0
    if not (settings.home / "iscp_log.sqlite").exists():
        return 0
    log = SqlLog(settings.log, who="iscp down")
    try:
        active = [job.key for state in ACTIVE for job in log.jobs(state=state)]
        return len(log.cancel(active))
    except IscpError as error:
        LOGGER.warning("The iterations under way were not canceled: %s", error)
        return 0
