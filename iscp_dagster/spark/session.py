"""Spark Connect sessions: one that all processes share, and private ones.

Spark keeps separate Python workers per session: each session that runs Python gets its own daemon
and workers, which the server does not end with the session. So every process of a deployment joins
one session for the project's own reads, whose workers are then warm for all of them.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from iscp_dagster.model.errors import IscpError, UnavailableError
from iscp_dagster.spark.remote import SparkRemote, redact_address
from iscp_dagster.spark.shared_name import compute_session_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANSWER_SECONDS = 10.0
RETRIES = 6
LONGEST_WAIT = 2_000
"""Milliseconds between retries. PySpark's own policy asks a dead server for over ten minutes."""
CLOSED = "INVALID_HANDLE.SESSION_CLOSED"
"""The condition of a session that timed out or was released: its name cannot be used again."""
SILENT = "does not answer. Start it (`iscp up`), or set SPARK_REMOTE."
REFUSED = (
    "got no token, or a wrong one. Set SPARK_REMOTE to an address with its token; for the stack "
    "of `iscp up`, `iscp env` prints it."
)
GENERATIONS = 2**20
CORES = "SELECT max(n) + 1 FROM (SELECT spark_partition_id() AS n FROM range(65536))"
"""Spark deals a range out to all of its cores."""
UNAUTHENTICATED = "UNAUTHENTICATED"
"""gRPC's status for a request without a token, or with a wrong one."""
SESSION_PARAMETER = "session_id"
"""The parameter of an address that names the session."""

Settings = Mapping[str, str]

_lock = threading.RLock()
_joined: dict[tuple[str, frozenset[tuple[str, str]]], SparkSession] = {}


def get_shared_session(remote: str, settings: Settings | None = None) -> SparkSession:
    """The session that all processes with this code and these settings share at `remote`.

    Whatever is set in it applies to all of them, so set only constants. Stopping it closes only
    this process's connection. Raises UnavailableError when nothing answers or the token is
    refused, and ConfigError for an invalid address; neither shows the token.
    """
    session_settings = settings or {}
    key = (remote, frozenset(session_settings.items()))
    with _lock, _translate_errors(remote):
        _check_reachable(remote)
        session = _joined.get(key)
        if session is None or not _is_alive(session):
            _leave_session(key)
            _joined[key] = _join_session(remote, session_settings)
        return _joined[key]


def create_private_session(remote: str, settings: Settings | None = None) -> SparkSession:
    """A new session, for code that sets, names or caches things freely; the caller stops it.

    Raises as `get_shared_session` does.
    """
    with _translate_errors(remote):
        _check_reachable(remote)
        return _open_session(remote, settings or {})


def count_cores(session: SparkSession) -> int:
    """The cores that Spark has now, or the `spark.default.parallelism` that it was started with.

    Runs a query without rows to read, of one short task a core.
    """
    return int(session.sql(CORES).collect()[0][0])


@lru_cache(maxsize=8)
def has_speculation(session: SparkSession) -> bool:
    """Whether Spark may run a task twice in parallel and end one of the two."""
    return str(session.conf.get("spark.speculation", "false")).lower() == "true"


def disconnect() -> None:
    """Leave the shared sessions while their servers are up; others keep using them."""
    with _lock:
        for key in list(_joined):
            _leave_session(key)


def _join_session(remote: str, settings: Settings) -> SparkSession:
    """The shared session of the first generation that its server has not closed."""
    if f"{SESSION_PARAMETER}=" in remote:
        return _disable_release(_open_session(remote, settings))
    for generation in _iter_generations():
        address = _add_session_name(remote, compute_session_name(settings, generation))
        try:
            return _disable_release(_open_session(address, settings))
        except Exception as error:
            if not _is_closed(error):
                raise
    raise UnavailableError(
        f"Spark has closed every shared session tried, up to number {GENERATIONS}. Restart Spark."
    )


def _iter_generations() -> Iterator[int]:
    """0, 1, 2, 4, 8, …: few requests to a server that has closed many."""
    yield 0
    generation = 1
    while generation <= GENERATIONS:
        yield generation
        generation *= 2


def _add_session_name(remote: str, name: str) -> str:
    base = remote if ";" in remote else f"{remote.rstrip('/')}/"
    return f"{base.rstrip(';')};{SESSION_PARAMETER}={name}"


def _disable_release(session: SparkSession) -> SparkSession:
    """The session, set so that stopping it closes the connection and leaves it to the others."""
    session.release_session_on_close = False
    return session


def _open_session(address: str, settings: Settings) -> SparkSession:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session = SparkSession.builder.remote(address).create()
    try:
        policy = DefaultPolicy(max_retries=RETRIES, max_backoff=LONGEST_WAIT)
        session.client.set_retry_policies([policy])
        for name, value in settings.items():
            session.conf.set(name, value)
        _ping_session(session)
    except BaseException:
        _drop_session(session)
        raise
    return session


def _ping_session(session: SparkSession) -> None:
    """Make one request, for a setting that the session does not cache."""
    session.conf.get("spark.sql.session.timeZone")


def _is_alive(session: SparkSession) -> bool:
    try:
        _ping_session(session)
    except Exception:  # noqa: BLE001 - its server is gone or was restarted
        return False
    return True


def _leave_session(key: tuple[str, frozenset[tuple[str, str]]]) -> None:
    session = _joined.pop(key, None)
    if session is not None:
        session.stop()


def _drop_session(session: SparkSession) -> None:
    """Close the connection without a request to the server, which may be gone."""
    _disable_release(session).stop()


def _is_closed(error: Exception) -> bool:
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) and error.getCondition() == CLOSED


@contextmanager
def _translate_errors(remote: str) -> Iterator[None]:
    """Report any failure as a server that does not answer or refuses; hide its token."""
    try:
        yield
    except IscpError:
        raise
    except Exception as error:
        # PySpark is not imported for a server that cannot be reached.
        status = getattr(error, "getGrpcStatusCode", None)
        refused = status is not None and status().name == UNAUTHENTICATED
        problem = REFUSED if refused else SILENT
        raise UnavailableError(f"Spark at {redact_address(remote)} {problem}") from error


def _check_reachable(remote: str) -> None:
    """Open and close a connection: building a session to nowhere would retry for minutes."""
    server = SparkRemote.parse(remote)
    socket.create_connection((server.host, server.port), timeout=ANSWER_SECONDS).close()
