"""Declared keys against real rows: a key is never null and there is one row for each."""

from __future__ import annotations

from typing import Any

from iscp_dagster.core.errors import KeyColumnError
from iscp_dagster.lake.checks import DELETED, REPEATS
from iscp_dagster.lake.reader import Selection

_COUNT = "_count"


def check_keys(frame: Any, selection: Selection) -> None:
    """Raises KeyColumnError that names a null or repeated key of a frame of `reader`. One query.

    Of `changes` it reads the frame; of a snapshot it groups it, which shuffles the keys.
    """
    bad = bad_keys(frame, selection).limit(1).collect()
    if not bad:
        return
    row = bad[0].asDict()
    key = ", ".join(f"{name}={row[name]!r}" for name in selection.identity)
    null = next((name for name in selection.keys if row[name] is None), None)
    if null is not None:
        message = f"Key column {null!r} of {selection.path} is null in a row ({key})."
        raise KeyColumnError(f"{message} Fill it in or delete the row, or declare another key.")
    raise KeyColumnError(
        f"The key of {selection.path} is repeated: more than one row has {key}. "
        "Delete all but one of them, or declare more key columns."
    )


def bad_keys(frame: Any, selection: Selection) -> Any:
    """The identities that are null in part or repeated; of deletes none is bad."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - the name everyone knows

    names = [F.col("`" + name.replace("`", "``") + "`") for name in selection.identity]
    keys = [F.col("`" + name.replace("`", "``") + "`") for name in selection.keys]
    null = F.lit(False)
    for key in keys:
        null |= key.isNull()
    if REPEATS in frame.columns:
        repeated = F.col(REPEATS) | null
        return frame.filter(~F.col(DELETED) & repeated).select(*names)
    counted = frame.groupBy(*names).agg(F.count(F.lit(1)).alias(_COUNT))
    return counted.filter((F.col(_COUNT) > 1) | null).select(*names)
