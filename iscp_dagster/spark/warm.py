"""Uses a fresh Spark Connect server once, so that a person's first commit finds it warm.

A cold server takes seconds for its first task: classes are loaded, a session is made and Python
starts. Most iterations ask no more of Spark than tasks in Python's workers, so that is what is
warmed; its own reader of Delta, which `verify` uses, would take longer than all else that comes up.
Run as `python -m iscp_dagster.spark.warm` with SPARK_REMOTE set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from iscp_dagster.model.variables import SPARK_REMOTE
from iscp_dagster.spark.session import disconnect, shared

_TASKS, _TIMES = 2, 5
"""So often that Java has compiled the most of what a small iteration runs through."""


def main() -> None:
    """In the session that runs will share: its workers are warm for the first of them."""
    try:
        warm(shared(os.environ[SPARK_REMOTE]))
    finally:
        disconnect()


def warm(spark: Any) -> None:
    """Have tasks in Python's workers, as iterations have them."""
    for _ in range(_TIMES):
        spark.range(0, _TASKS, 1, _TASKS).mapInArrow(_same, "id bigint").collect()


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


if __name__ == "__main__":
    main()
