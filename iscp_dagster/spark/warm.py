"""Uses a fresh Spark Connect server once, so that a person's first query finds it warm.

A cold server takes more than ten seconds for its first query: classes are loaded, code is
generated and the first Python worker starts. Run as `python -m iscp_dagster.spark.warm FOLDER`
with SPARK_REMOTE set; the folder is removed again.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iscp_dagster.spark.quoting import ident
from iscp_dagster.spark.session import disconnect, shared

_ROWS = 1000


def main(folder: Path) -> None:
    """Write, change and read back a small Delta table the way an iteration does."""
    folder.mkdir(parents=True, exist_ok=True)
    table = tempfile.mkdtemp(dir=folder, prefix="warm-")
    try:
        # The session that runs will share: its workers are warm for the first of them.
        warm(shared(os.environ["SPARK_REMOTE"]), table)
    finally:
        disconnect()
        shutil.rmtree(table, ignore_errors=True)


def warm(spark: Any, table: str) -> None:
    """Touch what an iteration touches: Delta writes, its change feed, and a Python worker."""
    name = ident("delta", table)
    spark.sql(
        f"CREATE TABLE {name} (k BIGINT, tenant STRING, v STRING) USING delta "
        "PARTITIONED BY (tenant) TBLPROPERTIES "
        "(delta.enableChangeDataFeed = true, delta.enableInCommitTimestamps = true)"
    )
    rows = spark.range(_ROWS).selectExpr("id AS k", "'t' AS tenant", "CAST(id AS STRING) AS v")
    rows.write.format("delta").mode("append").save(table)
    spark.sql(f"DELETE FROM {name} WHERE k < 10")
    reader = spark.read.format("delta")
    changes = reader.option("readChangeFeed", "true").option("startingVersion", 1).load(table)
    sorted_rows = changes.repartition(2, "k").sortWithinPartitions("k")
    sorted_rows.select("k").mapInArrow(_same, "k bigint").collect()


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


if __name__ == "__main__":
    main(Path(sys.argv[1]))
