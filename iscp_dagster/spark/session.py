"""A Spark Connect session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from iscp_dagster.core.errors import UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def connected(remote: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session at `remote` (`sc://host:port`), new or, if it still answers, the process's own.

    Raises UnavailableError, which shows no token, when nothing answers.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(remote)
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
        _ = session.version
    except Exception as error:
        address = remote.partition(";")[0]
        raise UnavailableError(
            f"Spark at {address} does not answer. Start it (`iscp up`), or set SPARK_REMOTE."
        ) from error
    return session
