"""What went wrong while Spark read a table, in this project's terms.

The conditions are those that Spark 4.2 with Delta 4.4 was seen to raise: see the acceptance tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from iscp_dagster.core.errors import FeedGoneError, IscpError, SourceError, UnavailableError
from iscp_dagster.lake.files import LOG_FOLDER

FEED_GONE = frozenset(
    {
        # the feed was off in the range, or is off now
        "DELTA_MISSING_CHANGE_DATA",
        "DELTA_CHANGE_TABLE_FEED_DISABLED",
        # a column was renamed, dropped or retyped
        "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_DATA_SCHEMA",
        "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE",
        "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH",
        # log clean-up, or another table at the same path
        "DELTA_LOG_FILE_NOT_FOUND",
        "DELTA_TRUNCATED_TRANSACTION_LOG",
        "DELTA_VERSION_NOT_FOUND",
        "DELTA_VERSIONS_NOT_CONTIGUOUS",
        "DELTA_CDC_START_VERSION_AFTER_LATEST",
        # VACUUM
        "FAILED_READ_FILE.FILE_NOT_EXIST",
    }
)
NO_TABLE = frozenset(
    {
        "PATH_NOT_FOUND",
        "DELTA_PATH_DOES_NOT_EXIST",
        "DELTA_TABLE_NOT_FOUND",
        "DELTA_MISSING_DELTA_TABLE",
        "UNRESOLVED_COLUMN.WITH_SUGGESTION",
        "UNRESOLVED_COLUMN.WITHOUT_SUGGESTION",
    }
)
SESSION_GONE = frozenset({"RESPONSE_ALREADY_RECEIVED", "NO_ACTIVE_SESSION"})
HANDLE_GONE = "INVALID_HANDLE."
"""Begins every condition of a session or an operation that the server does not know."""
STOPPED = ("stopped SparkContext", "SparkContext was shut down", "SparkContext has been shutdown")
"""What a server that is going down says, without a condition of its own."""
CLIENT_MODULES = ("grpc.", "pyspark.sql.connect.client.")
"""Whose exceptions say that a request was given up."""
NO_SERVER = ("UNAVAILABLE", "failed to connect", "Connection refused", "Socket closed")
NO_FILE = "java.io.FileNotFoundException"
FIRST_LINE = 500


@contextmanager
def reading(location: str) -> Iterator[None]:
    """Around every Spark action that reads `location`: its failures become this tree's errors.

    FeedGoneError: read a snapshot instead (a newer one, if this was one). SourceError: a person
    repairs. UnavailableError: try again with a new session. Other errors pass as they are.
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
    """The error in this tree, None for one that says nothing of the source or the server."""
    from pyspark.errors import PySparkException

    text = str(error).strip()
    if type(error).__module__.startswith(CLIENT_MODULES):
        return UnavailableError(_message(location, "Spark does not answer", text))
    if not isinstance(error, PySparkException):
        return None
    condition = error.getCondition() or ""
    lost = text.partition("\n")[0] if NO_FILE in text.partition("\n")[0] else ""
    if condition in FEED_GONE or (lost and LOG_FOLDER not in lost):
        return FeedGoneError(_message(location, "this range cannot be read", text))
    if condition in NO_TABLE or lost:
        return SourceError(_message(location, "the table cannot be read", text))
    if _is_gone(condition) or _is_unreachable(error, text) or _is_stopping(text):
        return UnavailableError(_message(location, "the Spark session is gone", text))
    return None


def _is_gone(condition: str) -> bool:
    return condition in SESSION_GONE or condition.startswith(HANDLE_GONE)


def _is_unreachable(error: Exception, text: str) -> bool:
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    return type(error) is SparkConnectGrpcException and any(sign in text for sign in NO_SERVER)


def _is_stopping(text: str) -> bool:
    return any(sign in text for sign in STOPPED)


def _message(location: str, what: str, text: str) -> str:
    first = text.partition("JVM stacktrace:")[0].strip()
    return f"{location}: {what}: {first[:FIRST_LINE]}"
