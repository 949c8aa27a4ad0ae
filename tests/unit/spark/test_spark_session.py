"""A missing Spark is reported at once, without its token."""

import time
import traceback

import pytest

from iscp_dagster.delta.spark_errors import summarize_message, translate_error, wrap_spark_errors
from iscp_dagster.model.errors import ConfigError, ReadError, SourceError, UnavailableError
from iscp_dagster.spark.remote import SparkRemote
from iscp_dagster.spark.session import get_shared_session
from support.errors import assert_names, raises_naming


def test_a_server_that_is_not_there_is_named_at_once_without_its_token():
    started = time.monotonic()
    with raises_naming(UnavailableError, "sc://127.0.0.1:9", "SPARK_REMOTE") as caught:
        get_shared_session("sc://127.0.0.1:9/;token=hidden")
    assert time.monotonic() - started < 30
    assert "hidden" not in str(caught.value)


def test_an_address_is_read_as_pyspark_reads_it():
    from pyspark.sql.connect.client import DefaultChannelBuilder

    for address in (
        "sc://localhost",
        "sc://localhost:7/;token=a%2Fb%3D;user_id=me;x-tenant=t",
        "sc://127.0.0.1:7/;token=a",
        "sc://host/;use_ssl=True",
        "sc://[::1]:7",
    ):
        ours, theirs = SparkRemote.parse(address, {}), DefaultChannelBuilder(address)
        bearer = [("authorization", f"Bearer {theirs.token}")] if theirs.token else []
        assert ours.place == theirs.endpoint
        assert list(ours.headers) == [*theirs.metadata(), *bearer]
        local = theirs.host == "localhost" and not theirs.use_ssl
        assert ours.secure == (theirs.secure and not local)


def test_a_token_of_the_environment_goes_with_an_address_without_one():
    environ = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": "theirs"}
    for address, token in (("sc://localhost", "theirs"), ("sc://localhost/;token=mine", "mine")):
        remote = SparkRemote.parse(address, environ)
        assert remote.headers == (("authorization", f"Bearer {token}"),)
        assert token not in repr(remote)


@pytest.mark.parametrize(
    "address",
    [
        "sc://host:7/;token=hidden=",
        "sc://host:7/;token=hidden/",
        "sc://host:7/;hidden",
        "sc://host:hidden",
        "sc://host:7/hidden",
        "host:7/;token=hidden",
        "sc://;token=hidden",
        "sc://host;token=hidden",
        "sc://host:7;token=hidden",
    ],
)
def test_a_malformed_address_is_refused_without_its_token(address):
    with raises_naming(ConfigError, "SPARK_REMOTE") as caught:
        get_shared_session(address)
    text = "".join(traceback.format_exception(caught.value))
    assert "hidden" not in text.replace("host:hidden", "host")


def make_error(kind, condition=None, message="no"):
    """Return an exception of Spark Connect's client."""
    from pyspark.errors.exceptions import connect

    return getattr(connect, kind)(message=message, errorClass=condition)


def make_client_error(condition, **parameters):
    from pyspark.errors import PySparkRuntimeError

    return PySparkRuntimeError(errorClass=condition, messageParameters=parameters)


def make_retry_error():
    from pyspark.sql.connect.client.retries import RetryException

    return RetryException()


GRPC = "SparkConnectGrpcException"
SHUT_DOWN = "(java.lang.IllegalStateException) Cannot call methods on a stopped SparkContext."
NO_SESSION = {"error_type": "INVALID_HANDLE.SESSION_NOT_FOUND"}


GONE = {
    "the server is going down": lambda: make_error("UnknownException", message=SHUT_DOWN),
    "the server is new": lambda: make_client_error("RESPONSE_ALREADY_RECEIVED", **NO_SESSION),
    "no session is active": lambda: make_client_error("NO_ACTIVE_SESSION"),
    "the client gave up": make_retry_error,
    "another session": lambda: make_error(GRPC, "INVALID_HANDLE.SESSION_CHANGED"),
    "an unknown session": lambda: make_error(GRPC, "INVALID_HANDLE.SESSION_NOT_FOUND"),
    "an unknown operation": lambda: make_error(GRPC, "INVALID_HANDLE.OPERATION_ABANDONED"),
}


@pytest.mark.parametrize("case", GONE)
def test_an_error_of_a_server_that_is_gone_or_new_is_tried_again(case):
    error = translate_error("/lake/orders", GONE[case]())
    assert type(error) is UnavailableError
    assert not error.permanent


@pytest.mark.parametrize(
    "cause",
    [
        '(org.apache.hadoop.fs.UnsupportedFileSystemException) No FileSystem for scheme "s3"',
        (
            "(java.lang.RuntimeException) java.lang.ClassNotFoundException: "
            "Class org.apache.hadoop.fs.gs.GoogleHadoopFileSystem not found"
        ),
    ],
)
def test_a_store_that_spark_has_no_module_for_is_tried_again_when_it_has(cause):
    message = f"{cause}\n\nJVM stacktrace:\n{TRACE}"
    error = translate_error("s3://lake/orders", make_error("UnknownException", message=message))
    assert type(error) is UnavailableError
    assert_names(str(error), "s3://lake/orders", cause, "docs/production.md")
    assert "scala" not in str(error)


PLAN = "\n'Project ['nope]\n+- SubqueryAlias spark_catalog.default.orders\n"
PYTHON = 'Traceback (most recent call last):\n  File "worker.py", line 3, in main\n    process()\n'
TRACE = "\tat org.apache.spark.sql.errors.QueryErrors.fail(QueryErrors.scala:9)\n" * 40


@pytest.mark.parametrize(
    ("condition", "message", "summary", "kind"),
    [
        (
            "UNRESOLVED_COLUMN.WITH_SUGGESTION",
            f"A column with name `nope` cannot be resolved. SQLSTATE: 42703;{PLAN}",
            "A column with name `nope` cannot be resolved.",
            SourceError,
        ),
        (
            "NOBODY_KNOWS_IT",
            f"[NOBODY_KNOWS_IT] There is one. SQLSTATE: XX000{PLAN}\n\nJVM stacktrace:\n{TRACE}",
            "[NOBODY_KNOWS_IT] There is one.",
            ReadError,
        ),
        (
            None,
            f"Lost task 0.0: java.lang.OutOfMemoryError: Java heap space\n{TRACE}{TRACE}",
            "java.lang.OutOfMemoryError: Java heap space",
            ReadError,
        ),
        (
            None,
            f"Thrown from the Python worker:\n{PYTHON}ValueError: 1 is not 2\n{TRACE}",
            "Python, ValueError: 1 is not 2",
            ReadError,
        ),
    ],
)
def test_any_other_error_of_spark_is_one_of_ours_with_spark_s_message_alone(
    condition, message, summary, kind
):
    with raises_naming(kind, "/lake/orders", summary) as caught, wrap_spark_errors("/lake/orders"):
        raise make_error("AnalysisException", condition, message)
    for part in ("\n", "Project", "scala", "SQLSTATE", "stacktrace"):
        assert part not in str(caught.value)
    assert caught.value.permanent


def test_an_error_of_ours_that_an_executor_raised_is_that_error():
    text = "ClickHouse at http://h did not answer."
    cause = f"{PYTHON}OSError: [Errno 111]\n\nThe above exception was the direct cause:\n\n"
    own = f"{PYTHON}iscp_dagster.model.errors.UnavailableError: {text}\n"
    message = f"Thrown from the Python worker:\n{cause}{own}{TRACE}"
    error = translate_error("/lake/orders", make_error("PythonException", message=message))
    assert type(error) is UnavailableError
    assert str(error) == text


def test_a_failed_call_is_summarized_by_its_details():
    details = "failed to connect to all addresses; last error: Connection refused (111)"
    call = (
        "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE"
        f'\n\tdetails = "{details}"\n\tdebug_error_string = "UNKNOWN:{details}"\n>'
    )
    assert summarize_message(call) == details
