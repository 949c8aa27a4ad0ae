"""A missing Spark is reported at once, without its token."""

import time
import traceback

import pytest

from iscp_dagster.delta.failures import summarize_message, translate_error, wrap_spark_errors
from iscp_dagster.model.errors import ConfigError, ReadError, SourceError, UnavailableError
from iscp_dagster.spark.remote import SparkRemote
from iscp_dagster.spark.session import get_shared_session


def test_a_server_that_is_not_there_is_named_at_once_without_its_token():
    started = time.monotonic()
    with pytest.raises(UnavailableError, match=r"Spark at sc://127\.0\.0\.1:9 does not") as caught:
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
    assert SparkRemote.parse("sc://localhost", environ).headers == (
        ("authorization", "Bearer theirs"),
    )
    named = SparkRemote.parse("sc://localhost/;token=mine", environ)
    assert named.headers == (("authorization", "Bearer mine"),)
    assert "mine" not in repr(named)


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
def test_an_address_that_is_none_is_refused_without_its_token(address):
    with pytest.raises(ConfigError, match=r"SPARK_REMOTE \(sc://") as caught:
        get_shared_session(address)
    said = "".join(traceback.format_exception(caught.value))
    assert "hidden" not in said.replace("host:hidden", "host")


def test_a_server_that_is_going_down_is_tried_again():
    from pyspark.errors.exceptions.connect import UnknownException

    said = "(java.lang.IllegalStateException) Cannot call methods on a stopped SparkContext."
    found = translate_error("/lake/orders", UnknownException(said))
    assert isinstance(found, UnavailableError)
    assert not found.permanent


@pytest.mark.parametrize(
    "said",
    [
        '(org.apache.hadoop.fs.UnsupportedFileSystemException) No FileSystem for scheme "s3"',
        (
            "(java.lang.RuntimeException) java.lang.ClassNotFoundException: "
            "Class org.apache.hadoop.fs.gs.GoogleHadoopFileSystem not found"
        ),
    ],
)
def test_a_store_that_spark_has_no_module_for_is_tried_again_when_it_has(said):
    from pyspark.errors.exceptions.connect import UnknownException

    found = translate_error(
        "s3://lake/orders", UnknownException(f"{said}\n\nJVM stacktrace:\n{TRACE}")
    )
    assert isinstance(found, UnavailableError)
    assert "lacks Hadoop's module" in str(found)
    assert "scala" not in str(found)


@pytest.mark.parametrize(
    ("condition", "parameters"),
    [
        ("RESPONSE_ALREADY_RECEIVED", {"error_type": "INVALID_HANDLE.SESSION_NOT_FOUND"}),
        ("NO_ACTIVE_SESSION", {}),
    ],
)
def test_what_the_client_says_of_a_server_that_came_anew_is_tried_again(condition, parameters):
    from pyspark.errors import PySparkRuntimeError

    error = PySparkRuntimeError(errorClass=condition, messageParameters=parameters)
    found = translate_error("/lake/orders", error)
    assert isinstance(found, UnavailableError)
    assert not found.permanent


def test_a_request_that_was_given_up_is_tried_again():
    from pyspark.sql.connect.client.retries import RetryException

    assert isinstance(translate_error("/lake/orders", RetryException()), UnavailableError)


@pytest.mark.parametrize("what", ["SESSION_CHANGED", "SESSION_NOT_FOUND", "OPERATION_ABANDONED"])
def test_a_handle_that_the_server_does_not_know_is_tried_again(what):
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    error = SparkConnectGrpcException(message="no", errorClass=f"INVALID_HANDLE.{what}")
    assert isinstance(translate_error("/lake/orders", error), UnavailableError)


PLAN = "\n'Project ['nope]\n+- SubqueryAlias spark_catalog.default.orders\n"
PYTHON = 'Traceback (most recent call last):\n  File "worker.py", line 3, in main\n    process()\n'
TRACE = "\tat org.apache.spark.sql.errors.QueryErrors.fail(QueryErrors.scala:9)\n" * 40


@pytest.mark.parametrize(
    ("condition", "said", "shown"),
    [
        (
            "UNRESOLVED_COLUMN.WITH_SUGGESTION",
            f"A column with name `nope` cannot be resolved. SQLSTATE: 42703;{PLAN}",
            "A column with name `nope` cannot be resolved.",
        ),
        (
            "NOBODY_KNOWS_IT",
            f"[NOBODY_KNOWS_IT] There is one. SQLSTATE: XX000{PLAN}\n\nJVM stacktrace:\n{TRACE}",
            "[NOBODY_KNOWS_IT] There is one.",
        ),
        (
            None,
            f"Lost task 0.0: java.lang.OutOfMemoryError: Java heap space\n{TRACE}{TRACE}",
            "java.lang.OutOfMemoryError: Java heap space",
        ),
        (
            None,
            f"Thrown from the Python worker:\n{PYTHON}ValueError: 1 is not 2\n{TRACE}",
            "in Python, ValueError: 1 is not 2. ",
        ),
    ],
)
def test_whatever_spark_raises_is_one_of_our_errors_and_as_long_as_what_it_says(
    condition, said, shown
):
    from pyspark.errors.exceptions.connect import AnalysisException

    error = AnalysisException(message=said, errorClass=condition)
    with pytest.raises(SourceError) as caught, wrap_spark_errors("/lake/orders"):
        raise error
    told = str(caught.value)
    assert told.startswith("/lake/orders: ")
    assert shown in told
    for part in ("\n", "Project", "scala", "SQLSTATE", "stacktrace"):
        assert part not in told
    assert caught.value.permanent
    unknown = condition != "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    assert isinstance(caught.value, ReadError) == unknown


def test_an_error_of_ours_that_an_executor_raised_is_that_error():
    from pyspark.errors.exceptions.connect import PythonException

    raised = "iscp_dagster.model.errors.UnavailableError: ClickHouse at http://h did not answer."
    cause = f"{PYTHON}OSError: [Errno 111]\n\nThe above exception was the direct cause:\n\n"
    error = PythonException(
        message=f"Thrown from the Python worker:\n{cause}{PYTHON}{raised}\n{TRACE}"
    )
    found = translate_error("/lake/orders", error)
    assert type(found) is UnavailableError
    assert str(found) == "ClickHouse at http://h did not answer."


def test_of_a_call_that_failed_its_details_are_told():
    said = "failed to connect to all addresses; last error: Connection refused (111)"
    call = (
        "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE"
        f'\n\tdetails = "{said}"\n\tdebug_error_string = "UNKNOWN:{said}"\n>'
    )
    assert summarize_message(call) == said
