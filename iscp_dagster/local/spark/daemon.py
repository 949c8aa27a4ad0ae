"""PySpark's daemon, which forks Python workers, with what tasks import and with an end.

A worker that imported it all by itself would hold up the first commit after each quiet minute, for
as long as everything else of a small iteration takes. Idle for a while, the daemon goes: Spark
starts one for each session that runs Python and keeps it until the executor ends, so one stayed
for every session that ever was. One that is gone is started again when it is needed. Named by
`spark.python.daemon.module`.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from importlib import import_module
from typing import Any

IDLE_SECONDS = 60.0
"""Counted from the last worker's end; Spark ends workers a minute after their last task."""
LOOK_SECONDS = 10.0
PRELOADED = (
    "clickhouse_connect",
    "iscp_dagster.clickhouse.write.consumer",
    "iscp_dagster.delta.feedscan",
    "iscp_dagster.delta.filescan",
    "iscp_dagster.sync.executors.writer",
    "pandas",
    "pyarrow.dataset",
    "pyspark.worker",
)
"""What the tasks of an iteration import. None of it starts a thread of Python's."""


def main(idle_seconds: float = IDLE_SECONDS, look_seconds: float = LOOK_SECONDS) -> None:
    """Fork workers as Spark asks for them, until nobody has for `idle_seconds`."""
    from pyspark.daemon import manager

    preload()
    end_when_idle(idle_seconds, look_seconds)
    manager()


def preload() -> None:
    """Import what workers will need; what cannot be imported here fails where it is needed."""
    for name in PRELOADED:
        with suppress(ImportError):
            import_module(name)
    with suppress(ImportError):
        # Else all workers would draw the same numbers.
        os.register_at_fork(after_in_child=import_module("numpy.random").seed)


def end_when_idle(idle_seconds: float, look_seconds: float) -> None:
    """Have this process end itself by SIGTERM; by a timer, which its children do not inherit."""
    busy = time.monotonic()

    def look(_signal: int, _frame: Any) -> None:
        nonlocal busy
        if has_children():
            busy = time.monotonic()
        elif time.monotonic() - busy >= idle_seconds:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, look_seconds, look_seconds)


def has_children() -> bool:
    """Whether a child lives; those that have ended are left as they are."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    main()
