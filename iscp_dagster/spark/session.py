"""A Spark Connect session."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from iscp_dagster.core.errors import UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_PORT = 15002
ANSWER_SECONDS = 10.0
RETRIES = 6
LONGEST_WAIT = 2_000
"""Milliseconds between retries. PySpark's own policy asks a dead server for over ten minutes."""


def connected(remote: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session at `remote` (`sc://host:port`), new or, if it still answers, the process's own.

    Raises UnavailableError, which shows no token, when nothing answers.
    """
    try:
        _reach(remote)
        try:
            session = _answering(remote, settings or {})
        except Exception:  # noqa: BLE001 - its server has gone, or has come anew
            disconnect()
            session = _answering(remote, settings or {})
    except Exception as error:
        address = remote.partition(";")[0]
        raise UnavailableError(
            f"Spark at {address} does not answer. Start it (`iscp up`), or set SPARK_REMOTE."
        ) from error
    return session


def _answering(remote: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    builder = SparkSession.builder.remote(remote)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    policy = DefaultPolicy(max_retries=RETRIES, max_backoff=LONGEST_WAIT)
    session.client.set_retry_policies([policy])
    # One request: what a session knows of itself it does not ask again.
    session.conf.get("spark.sql.session.timeZone")
    return session


def disconnect() -> None:
    """End the process's session, if it has one, while its server is there to hear of it."""
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()


def _reach(remote: str) -> None:
    """Open and close a connection: building a session to nowhere would retry for minutes."""
    place = urlsplit(remote)
    address = place.hostname or "", place.port or DEFAULT_PORT
    socket.create_connection(address, timeout=ANSWER_SECONDS).close()
