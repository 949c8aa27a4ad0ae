"""A run's lease, renewed for as long as the run works (joblog.leases)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.errors import IscpError


@contextmanager
def renew_lease(log: SqlLog, run_id: str) -> Iterator[None]:
    """Renew the run's lease, in a thread, until the block ends.

    If the log does not answer, the next beat tries again. A run that hung for longer than its lease
    may have lost its jobs; its claims report that, not this function.
    """
    ended = threading.Event()

    def renew_repeatedly() -> None:
        while True:
            with suppress(IscpError):
                log.renew_leases([run_id], log.leases.run)
            if ended.wait(log.leases.beat):
                return

    thread = threading.Thread(target=renew_repeatedly, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # A log that hangs must not delay a run that has ended.
        thread.join(log.leases.beat)
