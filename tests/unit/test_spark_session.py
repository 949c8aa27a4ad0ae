"""A Spark that is not there is said at once, without its token."""

from __future__ import annotations

import time

import pytest

from iscp_dagster.core.errors import UnavailableError
from iscp_dagster.lake.failures import translated
from iscp_dagster.spark.session import shared


def test_a_server_that_is_not_there_is_named_at_once_without_its_token():
    started = time.monotonic()
    with pytest.raises(UnavailableError, match=r"Spark at sc://127\.0\.0\.1:9/ does not") as caught:
        shared("sc://127.0.0.1:9/;token=hidden")
    assert time.monotonic() - started < 30
    assert "hidden" not in str(caught.value)


def test_a_server_that_is_going_down_is_tried_again():
    from pyspark.errors.exceptions.connect import UnknownException

    said = "(java.lang.IllegalStateException) Cannot call methods on a stopped SparkContext."
    found = translated("/lake/orders", UnknownException(said))
    assert isinstance(found, UnavailableError)
    assert not found.permanent


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
    found = translated("/lake/orders", error)
    assert isinstance(found, UnavailableError)
    assert not found.permanent


def test_a_request_that_was_given_up_is_tried_again():
    from pyspark.sql.connect.client.retries import RetryException

    assert isinstance(translated("/lake/orders", RetryException()), UnavailableError)


@pytest.mark.parametrize("what", ["SESSION_CHANGED", "SESSION_NOT_FOUND", "OPERATION_ABANDONED"])
def test_a_handle_that_the_server_does_not_know_is_tried_again(what):
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    error = SparkConnectGrpcException(message="no", errorClass=f"INVALID_HANDLE.{what}")
    assert isinstance(translated("/lake/orders", error), UnavailableError)
