"""Spark's failures to read a table, translated into this project's errors.

The conditions are those observed with Spark 4.2 and Delta 4.4: see the acceptance tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from iscp_dagster.delta.log.files import LOG_FOLDER
from iscp_dagster.model.errors import (
    FeedGoneError,
    IscpError,
    ReadError,
    SourceError,
    UnavailableError,
)

CONDITIONS: Mapping[str, type[IscpError]] = MappingProxyType(
    {
        # the feed was off in the range, or is off now
        "DELTA_MISSING_CHANGE_DATA": FeedGoneError,
        "DELTA_CHANGE_TABLE_FEED_DISABLED": FeedGoneError,
        # a column was renamed, dropped or retyped
        "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_DATA_SCHEMA": FeedGoneError,
        "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE": FeedGoneError,
        "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH": FeedGoneError,
        # log clean-up, or another table at the same path
        "DELTA_LOG_FILE_NOT_FOUND": FeedGoneError,
        "DELTA_TRUNCATED_TRANSACTION_LOG": FeedGoneError,
        "DELTA_VERSION_NOT_FOUND": FeedGoneError,
        "DELTA_VERSIONS_NOT_CONTIGUOUS": FeedGoneError,
        "DELTA_CDC_START_VERSION_AFTER_LATEST": FeedGoneError,
        # VACUUM
        "FAILED_READ_FILE.FILE_NOT_EXIST": FeedGoneError,
        # there is no such table, or no such column
        "PATH_NOT_FOUND": SourceError,
        "DELTA_PATH_DOES_NOT_EXIST": SourceError,
        "DELTA_TABLE_NOT_FOUND": SourceError,
        "DELTA_MISSING_DELTA_TABLE": SourceError,
        "UNRESOLVED_COLUMN.WITH_SUGGESTION": SourceError,
        "UNRESOLVED_COLUMN.WITHOUT_SUGGESTION": SourceError,
        # the server is another one, or forgot the session
        "RESPONSE_ALREADY_RECEIVED": UnavailableError,
        "NO_ACTIVE_SESSION": UnavailableError,
    }
)
"""Our error for each of Spark's conditions; any other is a ReadError, in Spark's words."""
HANDLE_GONE = "INVALID_HANDLE."
"""Prefix of every condition for a session or an operation that the server does not know."""
STOPPED = ("stopped SparkContext", "SparkContext was shut down", "SparkContext has been shutdown")
"""Messages of a server that is shutting down, which has no condition for it."""
CLIENT_MODULES = ("grpc.", "pyspark.sql.connect.client.")
"""Modules whose exceptions mean that the client gave up on a request."""
NO_SERVER = ("UNAVAILABLE", "failed to connect", "Connection refused", "Socket closed")
STORE_DOWN = (
    "java.net.ConnectException",
    "java.net.NoRouteToHostException",
    "java.net.SocketTimeoutException",
    "java.net.UnknownHostException",
    "SdkClientException",
)
"""Java's exceptions for a store, HDFS or S3, that does not answer."""
FEED_TOO_LARGE = "java.io.UTFDataFormatException"
"""Java's exception for a commit that deletes so many rows of a file by a deletion vector that Delta
cannot hand them to its feed's readers, which it does in one text of at most 64 KiB.
"""
NO_READER = (
    "UnsupportedFileSystemException",
    "ClassNotFoundException: Class org.apache.hadoop.fs.",
)
"""Hadoop's errors for a kind of store that it has no module for."""
LACKING = (
    "Spark lacks Hadoop's module for this kind of store. The stack's own Spark has the module for "
    "S3 if it was started with such a table declared (`iscp down`, `iscp up`); for another Spark "
    "see docs/production.md, The lake"
)
NO_FILE = "java.io.FileNotFoundException"
STACK = "JVM stacktrace:"
TRACE = "Traceback (most recent call last):"
WORDS_END = re.compile(rf"{STACK}|Driver stacktrace:|SQLSTATE: \w+|;?\n\s*(at |[+:]- |'[A-Z])")
"""Where Spark's message ends and states, plans and stacks follow."""
DETAILS = re.compile(r'RPC that terminated with:.*?\bdetails = "(?P<said>.*?)"(?:\s|$)', re.DOTALL)
"""What gRPC says of a call that failed, among what it shows of the call."""
MOST_SHOWN = 500
PACKAGE = "iscp_dagster."


@contextmanager
def reading(location: str) -> Iterator[None]:
    """Wrap every Spark action that reads `location`: turn its failures into this project's errors.

    FeedGoneError: read a snapshot instead (a newer one, if this was one). SourceError: a person
    must repair it. UnavailableError: retry with a new session. Other errors pass unchanged.
    """
    try:
        yield
    except IscpError:
        raise
    except Exception as error:
        known = translated(location, error)
        if known is None:
            raise
        raise known from error


def translated(location: str, error: Exception) -> IscpError | None:
    """The project's error for one of Spark's; None for one that is not Spark's."""
    from pyspark.errors import PySparkException

    text = str(error).strip()
    if type(error).__module__.startswith(CLIENT_MODULES):
        return UnavailableError(_message(location, "Spark does not answer", text))
    if not isinstance(error, PySparkException):
        return None
    condition = error.getCondition() or ""
    lost = text.partition("\n")[0] if NO_FILE in text.partition("\n")[0] else ""
    known = CONDITIONS.get(condition)
    if known is FeedGoneError or (lost and LOG_FOLDER not in lost):
        return FeedGoneError(_message(location, "this range cannot be read", text))
    if known is SourceError or lost:
        return SourceError(_message(location, "the table cannot be read", text))
    gone = known is UnavailableError or condition.startswith(HANDLE_GONE)
    if gone or _is_unreachable(error, text) or _is_stopping(text):
        return UnavailableError(_message(location, "the Spark session is gone", text))
    return _unknown(location, error, text)


def _unknown(location: str, error: Exception, text: str) -> IscpError:
    """The error for a condition that nothing above recognizes."""
    if (ours := _ours(text)) is not None:
        return ours
    said = text.partition(STACK)[0]
    if FEED_TOO_LARGE in said:
        return FeedGoneError(_message(location, "its deletion vectors are too large", text))
    if any(sign in said for sign in NO_READER):
        return UnavailableError(
            f"{_message(location, 'its store cannot be read', text)}. {LACKING}"
        )
    if any(sign in said for sign in STORE_DOWN):
        return UnavailableError(_message(location, "its store does not answer", text))
    failed = _message(location, f"Spark could not read the table ({type(error).__name__})", text)
    return ReadError(f"{failed.rstrip('.')}. Spark's log has the details (`iscp logs spark`).")


def _is_unreachable(error: Exception, text: str) -> bool:
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    return type(error) is SparkConnectGrpcException and any(sign in text for sign in NO_SERVER)


def _is_stopping(text: str) -> bool:
    return any(sign in text for sign in STOPPED)


def _message(location: str, what: str, text: str) -> str:
    return f"{location}: {what}: {spoken(text)}"


def _raised(text: str) -> str:
    """The exception at the end of the last Python traceback; empty without one."""
    _, found, trace = text.rpartition(TRACE)
    lines = [line for line in trace.splitlines() if line and not line[0].isspace()]
    return lines[0] if found and lines else ""


def _ours(text: str) -> IscpError | None:
    """The error that the project's own code raised in an executor."""
    place, _, said = _raised(text).partition(": ")
    module, _, name = place.rpartition(".")
    kinds = _kinds(IscpError) if module.startswith(PACKAGE) else {}
    return kinds[name](said) if name in kinds else None


def _kinds(kind: type[IscpError]) -> dict[str, type[IscpError]]:
    found = {kind.__name__: kind}
    for each in kind.__subclasses__():
        found |= _kinds(each)
    return found


def spoken(text: str) -> str:
    """Spark's message on one line; of a failure in Python, Python's; in gRPC, its details."""
    raised, details = _raised(text), DETAILS.search(text)
    words = f"in Python, {raised}" if raised else details["said"] if details else text
    shown = " ".join(WORDS_END.split(words, 1)[0].split())
    return f"{shown[:MOST_SHOWN]}..." if len(shown) > MOST_SHOWN else shown
