"""A run's lease, renewed for as long as the run works (joblog.leases)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.errors import IscpError


@contextmanager
def kept(log: SqlLog, run_id: str) -> Iterator[None]:
    """Renew the run's lease, in a thread, until the block ends.

    If the log does not answer, the next beat tries again. A run that hung for longer than
    its lease may have lost its jobs; it learns that from its claims, not here.
    """
    over = threading.Event()

    def beat() -> None:
        while True:
            with suppress(IscpError):
                log.keep([run_id], log.leases.run)
            if over.wait(log.leases.beat):
                return

    heart = threading.Thread(target=beat, name="lease", daemon=True)
    heart.start()
    try:
        yield
    finally:
        over.set()
        # A log that hangs must not hold up a run that has ended.
        heart.join(log.leases.beat)
