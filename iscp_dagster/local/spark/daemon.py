"""PySpark's daemon, which forks Python workers; preloads their imports and ends when idle.

Without the preload, imports in a new worker would double the time of the first small iteration
after each quiet minute. Spark starts a daemon for every session that runs Python, keeps it until
the executor ends, and starts it again when it is needed; daemons that did not end when idle would
pile up. Set as `spark.python.daemon.module`.
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
"""The modules that an iteration's tasks import. None of them starts a Python thread."""


def main(idle_seconds: float = IDLE_SECONDS, look_seconds: float = LOOK_SECONDS) -> None:
    """Fork workers as Spark requests them; end after `idle_seconds` without any."""
    from pyspark.daemon import manager

    import_modules()
    end_when_idle(idle_seconds, look_seconds)
    manager()


def import_modules() -> None:
    """Import what workers will need; a module that cannot be imported fails where it is used."""
    for name in PRELOADED:
        with suppress(ImportError):
            import_module(name)
    with suppress(ImportError):
        # Otherwise all workers would draw the same random numbers.
        os.register_at_fork(after_in_child=import_module("numpy.random").seed)


def end_when_idle(idle_seconds: float, look_seconds: float) -> None:
    """Send this process SIGTERM once it is idle, from a timer, which children do not inherit."""
    busy_at = time.monotonic()

    def look(_signal: int, _frame: Any) -> None:
        nonlocal busy_at
        if has_children():
            busy_at = time.monotonic()
        elif time.monotonic() - busy_at >= idle_seconds:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, look_seconds, look_seconds)


def has_children() -> bool:
    """Whether this process has a child, alive or not yet reaped; reaps none."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    main()
