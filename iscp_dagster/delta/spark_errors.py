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
"""This project's error for each of Spark's; any other is a ReadError with Spark's message."""
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
"""Java's exception for a commit whose deletion vector deletes so many rows of a file that Delta
cannot pass it to the feed's readers, in one string of at most 64 KiB.
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
DETAILS = re.compile(r'RPC that terminated with:.*?\bdetails = "(?P<text>.*?)"(?:\s|$)', re.DOTALL)
"""The message within gRPC's description of a call that failed."""
MOST_SHOWN = 500
PACKAGE = "iscp_dagster."


@contextmanager
def wrap_spark_errors(location: str) -> Iterator[None]:
    """Wrap every Spark action that reads `location`: turn its failures into this project's errors.

    FeedGoneError: read a snapshot instead (a newer one, if this was one). SourceError: a person
    must repair it. UnavailableError: retry with a new session. Other errors pass unchanged.
    """
    try:
        yield
    except IscpError:
        raise
    except Exception as error:
        translated = translate_error(location, error)
        if translated is None:
            raise
        raise translated from error


def translate_error(location: str, error: Exception) -> IscpError | None:
    """The project's error for one of Spark's; None for one that is not Spark's."""
    from pyspark.errors import PySparkException

    text = str(error).strip()
    if type(error).__module__.startswith(CLIENT_MODULES):
        return UnavailableError(_format_message(location, "Spark does not answer", text))
    if not isinstance(error, PySparkException):
        return None
    condition = error.getCondition() or ""
    missing_file = text.partition("\n")[0] if NO_FILE in text.partition("\n")[0] else ""
    error_class = CONDITIONS.get(condition)
    if error_class is FeedGoneError or (missing_file and LOG_FOLDER not in missing_file):
        return FeedGoneError(_format_message(location, "this range cannot be read", text))
    if error_class is SourceError or missing_file:
        return SourceError(_format_message(location, "the table cannot be read", text))
    is_gone = error_class is UnavailableError or condition.startswith(HANDLE_GONE)
    if is_gone or _is_unreachable(error, text) or _is_stopping(text):
        return UnavailableError(_format_message(location, "the Spark session is gone", text))
    return _translate_unknown(location, error, text)


def _translate_unknown(location: str, error: Exception, text: str) -> IscpError:
    """The error for a condition that `CONDITIONS` lacks."""
    if (own_error := _parse_own_error(text)) is not None:
        return own_error
    message = text.partition(STACK)[0]
    if FEED_TOO_LARGE in message:
        return FeedGoneError(_format_message(location, "its deletion vectors are too large", text))
    if any(sign in message for sign in NO_READER):
        return UnavailableError(
            f"{_format_message(location, 'its store cannot be read', text)}. {LACKING}"
        )
    if any(sign in message for sign in STORE_DOWN):
        return UnavailableError(_format_message(location, "its store does not answer", text))
    summary = _format_message(
        location, f"Spark could not read the table ({type(error).__name__})", text
    )
    return ReadError(f"{summary.rstrip('.')}. Spark's log has the details (`iscp logs spark`).")


def _is_unreachable(error: Exception, text: str) -> bool:
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    return type(error) is SparkConnectGrpcException and any(sign in text for sign in NO_SERVER)


def _is_stopping(text: str) -> bool:
    return any(sign in text for sign in STOPPED)


def _format_message(location: str, problem: str, text: str) -> str:
    return f"{location}: {problem}: {summarize_message(text)}"


def _find_python_error(text: str) -> str:
    """The exception at the end of the last Python traceback; empty without one."""
    _, header, trace = text.rpartition(TRACE)
    lines = [line for line in trace.splitlines() if line and not line[0].isspace()]
    return lines[0] if header and lines else ""


def _parse_own_error(text: str) -> IscpError | None:
    """The error that the project's own code raised in an executor."""
    qualified_name, _, message = _find_python_error(text).partition(": ")
    module, _, name = qualified_name.rpartition(".")
    classes = _list_error_classes(IscpError) if module.startswith(PACKAGE) else {}
    return classes[name](message) if name in classes else None


def _list_error_classes(error_class: type[IscpError]) -> dict[str, type[IscpError]]:
    classes = {error_class.__name__: error_class}
    for subclass in error_class.__subclasses__():
        classes |= _list_error_classes(subclass)
    return classes


def summarize_message(text: str) -> str:
    """Spark's message on one line; for a failure in Python or gRPC, theirs."""
    python_error, details = _find_python_error(text), DETAILS.search(text)
    message = f"in Python, {python_error}" if python_error else details["text"] if details else text
    summary = " ".join(WORDS_END.split(message, 1)[0].split())
    return f"{summary[:MOST_SHOWN]}..." if len(summary) > MOST_SHOWN else summary
