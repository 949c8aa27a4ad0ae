"""Joining a Spark session while other things are made ready."""

import itertools
import threading
from dataclasses import replace

from iscp_dagster.model.errors import UnavailableError
from support.errors import raises_naming
from support.jobs.one_table import Clock, in_memory

SECONDS = 30


def join_early(join):
    """Return a deployment that joins its session by this function, and has begun to."""
    return replace(in_memory(Clock()), spark=join).join_spark_early()


def test_the_first_call_returns_the_session_joined_early_and_the_next_joins_again():
    sessions, has_joined = itertools.count(), threading.Event()

    def join():
        has_joined.set()
        return next(sessions)

    deployment = join_early(join)
    assert has_joined.wait(SECONDS)
    assert [deployment.spark(), deployment.spark()] == [0, 1]


def test_an_error_of_joining_is_raised_to_who_needs_the_session():
    def join():
        raise UnavailableError("sc://nowhere")

    deployment = join_early(join)
    for _ in range(2):
        with raises_naming(UnavailableError, "sc://nowhere"):
            deployment.spark()


def test_nobody_waits_for_a_session_that_nobody_needs():
    go = threading.Event()
    join_early(go.wait)
    (thread,) = (each for each in threading.enumerate() if each.name == "joining Spark")
    assert thread.daemon
    go.set()
    thread.join(SECONDS)
