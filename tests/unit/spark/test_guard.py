"""Spark's work ends when nobody needs it any more."""

import threading

import pytest

from iscp_dagster.model.errors import FenceError, UnavailableError
from iscp_dagster.spark.guard import interrupt_when_lost


class Spark:
    """Records the calls that a session would get."""

    def __init__(self):
        self.tags, self.interrupted = [], threading.Event()

    def addTag(self, tag):  # noqa: N802 - Spark's name
        self.tags.append(tag)

    def removeTag(self, tag):  # noqa: N802 - Spark's name
        self.tags.remove(tag)

    def interruptTag(self, tag):  # noqa: N802 - Spark's name
        assert tag in self.tags
        self.interrupted.set()


class Interrupted(BaseException):
    """Stands for what Dagster raises in a terminated run, which is not an Exception either."""


def test_work_that_ends_by_itself_is_left_alone():
    spark = Spark()
    with interrupt_when_lost(spark, lambda: True, every=0.001):
        assert len(spark.tags) == 1
    assert spark.tags == []
    assert not spark.interrupted.is_set()


def test_a_terminated_run_interrupts_its_work():
    spark = Spark()
    with pytest.raises(Interrupted), interrupt_when_lost(spark, lambda: True):
        raise Interrupted
    assert spark.interrupted.is_set()
    assert spark.tags == []


def test_a_run_that_lost_its_jobs_is_interrupted_and_raises_a_fence_error():
    spark = Spark()

    def work():
        with interrupt_when_lost(spark, lambda: False, every=0.001):
            assert spark.interrupted.wait(30)
            raise UnavailableError("operation canceled")

    with pytest.raises(FenceError):
        work()


def test_an_error_of_the_work_is_no_interruption():
    spark = Spark()
    with pytest.raises(UnavailableError), interrupt_when_lost(spark, lambda: True):
        raise UnavailableError("down")
    assert not spark.interrupted.is_set()


def test_a_job_log_that_does_not_answer_changes_nothing():
    spark, was_asked = Spark(), threading.Event()

    def holds_jobs():
        was_asked.set()
        raise UnavailableError("no log")

    with interrupt_when_lost(spark, holds_jobs, every=0.001):
        assert was_asked.wait(30)
    assert not spark.interrupted.is_set()
