"""Joining a Spark session while other things are made ready."""

import itertools
import threading
from dataclasses import replace

import pytest

from iscp_dagster.model.errors import UnavailableError
from support.jobs.one_table import Clock, in_memory

SECONDS = 30


def test_the_first_call_gives_what_was_joined_meanwhile_and_the_next_asks_again():
    sessions, asked = itertools.count(), threading.Event()

    def join():
        asked.set()
        return next(sessions)

    joining = replace(in_memory(Clock()), spark=join).join_spark_early()
    assert asked.wait(SECONDS)
    assert [joining.spark(), joining.spark()] == [0, 1]


def test_an_error_of_joining_is_raised_where_the_session_is_asked_for():
    def join():
        raise UnavailableError("nobody answers")

    joining = replace(in_memory(Clock()), spark=join).join_spark_early()
    for _ in range(2):
        with pytest.raises(UnavailableError, match="nobody answers"):
            joining.spark()


def test_nobody_waits_for_a_session_that_is_not_asked_for():
    waits = threading.Event()
    replace(in_memory(Clock()), spark=waits.wait).join_spark_early()
    (thread,) = (each for each in threading.enumerate() if each.name == "joining Spark")
    assert thread.daemon
    waits.set()
    thread.join(SECONDS)
