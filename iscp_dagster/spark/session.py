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
from iscp_dagster.spark.remote import Remote, shown
from iscp_dagster.spark.shared_name import shared_name

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
NAMED = "session_id"
"""The parameter of an address that names the session."""

Settings = Mapping[str, str]

_lock = threading.RLock()
_joined: dict[tuple[str, frozenset[tuple[str, str]]], SparkSession] = {}


def shared(remote: str, settings: Settings | None = None) -> SparkSession:
    """The session that all processes with this code and these settings share at `remote`.

    Whatever is set in it applies to all of them, so set only constants. Stopping it closes only
    this process's connection. Raises UnavailableError when nothing answers or the token is
    refused, and ConfigError for an invalid address; neither shows the token.
    """
    wanted = settings or {}
    name = (remote, frozenset(wanted.items()))
    with _lock, _unavailable(remote):
        _reach(remote)
        held = _joined.get(name)
        if held is None or not _answers(held):
            _leave(name)
            _joined[name] = _join(remote, wanted)
        return _joined[name]


def private(remote: str, settings: Settings | None = None) -> SparkSession:
    """A new session, for code that sets, names or caches things freely; the caller stops it.

    Raises as `shared`.
    """
    with _unavailable(remote):
        _reach(remote)
        return _opened(remote, settings or {})


def count_cores(session: SparkSession) -> int:
    """The cores that Spark has now, or the `spark.default.parallelism` that it was started with.

    Runs a query without rows to read, of one short task a core.
    """
    return int(session.sql(CORES).collect()[0][0])


@lru_cache(maxsize=8)
def speculates(session: SparkSession) -> bool:
    """Whether Spark may run a task twice in parallel and end one of the two."""
    return str(session.conf.get("spark.speculation", "false")).lower() == "true"


def disconnect() -> None:
    """Leave the shared sessions while their servers are up; others keep using them."""
    with _lock:
        for name in list(_joined):
            _leave(name)


def _join(remote: str, settings: Settings) -> SparkSession:
    """The shared session of the first generation that its server has not closed."""
    if f"{NAMED}=" in remote:
        return _held_open(_opened(remote, settings))
    for generation in _generations():
        address = _with_session(remote, shared_name(settings, generation))
        try:
            return _held_open(_opened(address, settings))
        except Exception as error:
            if not _is_closed(error):
                raise
    raise UnavailableError(
        f"Spark has closed every shared session tried, up to number {GENERATIONS}. Restart Spark."
    )


def _generations() -> Iterator[int]:
    """0, 1, 2, 4, 8, …: few requests to a server that has closed many."""
    yield 0
    generation = 1
    while generation <= GENERATIONS:
        yield generation
        generation *= 2


def _with_session(remote: str, name: str) -> str:
    base = remote if ";" in remote else f"{remote.rstrip('/')}/"
    return f"{base.rstrip(';')};{NAMED}={name}"


def _held_open(session: SparkSession) -> SparkSession:
    """The session, set so that stopping it closes the connection and leaves it to the others."""
    session.release_session_on_close = False
    return session


def _opened(address: str, settings: Settings) -> SparkSession:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session = SparkSession.builder.remote(address).create()
    try:
        policy = DefaultPolicy(max_retries=RETRIES, max_backoff=LONGEST_WAIT)
        session.client.set_retry_policies([policy])
        for name, value in settings.items():
            session.conf.set(name, value)
        _ask(session)
    except BaseException:
        _dropped(session)
        raise
    return session


def _ask(session: SparkSession) -> None:
    """Make one request, for a setting that the session does not cache."""
    session.conf.get("spark.sql.session.timeZone")


def _answers(session: SparkSession) -> bool:
    try:
        _ask(session)
    except Exception:  # noqa: BLE001 - its server is gone or was restarted
        return False
    return True


def _leave(name: tuple[str, frozenset[tuple[str, str]]]) -> None:
    held = _joined.pop(name, None)
    if held is not None:
        held.stop()


def _dropped(session: SparkSession) -> None:
    """Close the connection without asking the server, which may be gone, for anything."""
    _held_open(session).stop()


def _is_closed(error: Exception) -> bool:
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) and error.getCondition() == CLOSED


@contextmanager
def _unavailable(remote: str) -> Iterator[None]:
    """Report any failure as a server that does not answer or rejects; hide its token."""
    try:
        yield
    except IscpError:
        raise
    except Exception as error:
        # PySpark is not imported for a server that cannot be reached.
        status = getattr(error, "getGrpcStatusCode", None)
        refused = status is not None and status().name == UNAUTHENTICATED
        problem = REFUSED if refused else SILENT
        raise UnavailableError(f"Spark at {shown(remote)} {problem}") from error


def _reach(remote: str) -> None:
    """Open and close a connection: building a session to nowhere would retry for minutes."""
    found = Remote.parse(remote)
    socket.create_connection((found.host, found.port), timeout=ANSWER_SECONDS).close()
