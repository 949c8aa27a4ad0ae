"""A Spark that is not there is said at once, without its token."""

from __future__ import annotations

import time

import pytest

from iscp_dagster.core.errors import UnavailableError
from iscp_dagster.lake.failures import translated
from iscp_dagster.spark.session import connected


def test_a_server_that_is_not_there_is_named_at_once_without_its_token():
    started = time.monotonic()
    with pytest.raises(UnavailableError, match=r"Spark at sc://127\.0\.0\.1:9/ does not") as caught:
        connected("sc://127.0.0.1:9/;token=hidden")
    assert time.monotonic() - started < 30
    assert "hidden" not in str(caught.value)


def test_a_server_that_is_going_down_is_tried_again():
    from pyspark.errors.exceptions.connect import UnknownException

    said = "(java.lang.IllegalStateException) Cannot call methods on a stopped SparkContext."
    found = translated("/lake/orders", UnknownException(said))
    assert isinstance(found, UnavailableError)
    assert not found.permanent
