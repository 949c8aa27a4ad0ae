"""Warms up a fresh Spark Connect server, so that a person's first commit does not wait for it.

A cold server takes seconds for its first task: classes are loaded, a session is made and Python
starts. Most iterations need only tasks in Python workers, so only those are warmed; Spark's own
Delta reader, which `verify` uses, would take longer than everything else that starts.
Run as `python -m iscp_dagster.spark.warm` with SPARK_REMOTE set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from iscp_dagster.model.variables import SPARK_REMOTE
from iscp_dagster.spark.session import disconnect, get_shared_session

_TASKS, _TIMES = 2, 5
"""Enough for Java to compile most of the code that a small iteration runs."""


def main() -> None:
    """Warm up the session that runs will share, so that its workers are ready for the first run."""
    try:
        warm(get_shared_session(os.environ[SPARK_REMOTE]))
    finally:
        disconnect()


def warm(spark: Any) -> None:
    """Run tasks in Python workers, as iterations do."""
    for _ in range(_TIMES):
        spark.range(0, _TASKS, 1, _TASKS).mapInArrow(_pass_batches, "id bigint").collect()


def _pass_batches(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


if __name__ == "__main__":
    main()
