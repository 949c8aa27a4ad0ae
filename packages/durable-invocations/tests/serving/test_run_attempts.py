"""The attempts of a run are its executions that failed, and nothing else."""

from __future__ import annotations

import asyncio
import collections
import json
import threading
from functools import partial

import pytest

from durable_invocations import Context, RetryableError, RunRetry, TerminalError
from durable_invocations.protocol.failures import (
    MOST_RUN_NAME,
    FailedExecutions,
    Failure,
    ProtocolError,
    read_run_attempts,
    write_run_attempts,
)
from durable_invocations.serving.attempts import attempt as attempts
from runtime_support.endpoints import asgi_stream
from runtime_support.endpoints.asgi_stream import attempt
from runtime_support.errors import raises_naming

SLOW = 60
"""More seconds than a test takes."""
LONG_AGO = (7, 9_999_999)
"""How often and how long the invocation was tried, according to the Start."""


@pytest.fixture
def executed():
    return collections.Counter()


@pytest.fixture
def patient(monkeypatch):
    """A run that failed waits for all others, however slow this machine is."""
    monkeypatch.setattr(attempts, "LEAST_WAIT", SLOW)
    monkeypatch.setattr(attempts, "MOST_WAIT", SLOW)


make_journal = partial(asgi_stream.make_journal, runs=())
"""An invocation at a runtime that counts the executions of runs."""


def drive_to_end(journal, most=10):
    """Drive attempts until the invocation ends; its output."""
    for _ in range(most):
        if attempt(journal)[-1] == "End":
            return journal.output.value
    raise AssertionError(f"it goes on after {most} attempts")


def fail_to_connect():
    raise OSError("no route")


async def describe_failure(operation):
    """Status and text of the terminal failure with which an operation ends."""
    try:
        await operation
    except TerminalError as error:
        return f"{error.status} {error}"
    return "not reached"


def test_attempts_that_never_executed_the_function_do_not_count(executed):
    async def pays(ctx: Context) -> str:
        def charge():
            executed["charge"] += 1
            if executed["charge"] < 3:
                raise OSError("no route")
            return "paid"

        return await ctx.run("charge", charge, retry=RunRetry(attempts=3, within=SLOW))

    journal = make_journal(pays)
    journal.retries = LONG_AGO
    assert drive_to_end(journal) == b'"paid"'
    assert executed["charge"] == 3


def test_a_run_beside_an_earlier_one_ends_by_its_own_policy(executed):
    async def both(ctx: Context) -> str:
        async def slow():
            executed["slow"] += 1
            if executed["slow"] < 2:
                await asyncio.Event().wait()
            return "done"

        async def fails():
            executed["fails"] += 1
            raise OSError("unplugged")

        first = ctx.run("slow", slow)
        second = ctx.run("fails", fails, retry=RunRetry(initial=0, attempts=2))
        failure = await describe_failure(second)
        return f"{await first}, {failure}"

    assert drive_to_end(make_journal(both)) == b'"done, 500 OSError: unplugged"'
    assert executed == {"slow": 2, "fails": 2}


@pytest.mark.usefixtures("patient")
def test_runs_that_fail_side_by_side_each_have_all_their_attempts_and_no_more(executed):
    async def three(ctx: Context) -> list[str]:
        def in_a_thread(name):
            executed[name] += 1
            raise OSError(name)

        async def in_the_loop(name):
            in_a_thread(name)

        runs = [
            ctx.run("a", in_the_loop, "a", retry=RunRetry(initial=0.2, attempts=2)),
            ctx.run("b", in_a_thread, "b", retry=RunRetry(initial=0.2, attempts=3)),
            ctx.run("c", in_a_thread, "c", retry=RunRetry(initial=0.2, attempts=4)),
        ]
        return [await describe_failure(run) for run in runs]

    output = drive_to_end(make_journal(three))
    assert json.loads(output) == ["500 OSError: a", "500 OSError: b", "500 OSError: c"]
    assert executed == {"a": 2, "b": 3, "c": 4}


@pytest.mark.usefixtures("patient")
def test_a_run_that_failed_for_good_is_not_executed_again_while_an_earlier_one_is_tried(executed):
    async def two(ctx: Context) -> str:
        def earlier():
            executed["earlier"] += 1
            if executed["earlier"] < 5:
                raise OSError("not yet")
            return "on"

        def refused():
            executed["refused"] += 1
            raise TerminalError("no such account", 422)

        def exhausted():
            executed["exhausted"] += 1
            raise OSError("unplugged")

        runs = [
            ctx.run("earlier", earlier, retry=RunRetry(initial=0.2, attempts=9)),
            ctx.run("refused", refused),
            ctx.run("exhausted", exhausted, retry=RunRetry(initial=0.2, attempts=2)),
        ]
        return ", ".join([await runs[0], *[await describe_failure(run) for run in runs[1:]]])

    output = drive_to_end(make_journal(two))
    assert output == b'"on, 422 no such account, 500 OSError: unplugged"'
    assert executed == {"earlier": 5, "refused": 1, "exhausted": 2}


def test_a_failed_run_waits_for_the_others_no_longer_than_its_delay():
    hanging = threading.Event()

    async def both(ctx: Context) -> None:
        async def fails():
            await asyncio.to_thread(hanging.wait, SLOW)
            raise RetryableError("busy", delay=0.1)

        async def hangs():
            hanging.set()
            await asyncio.Event().wait()

        await ctx.gather(ctx.run("hangs", hangs), ctx.run("fails", fails))

    journal = make_journal(both)
    assert attempt(journal) == ["Error"]
    assert (journal.last.message, journal.last.related_entry_index) == ("busy", 2)
    assert journal.last.next_retry_delay < 100
    (run,) = journal.run_attempts
    assert (run.index, run.name, run.count) == (2, "fails", 1)


@pytest.mark.usefixtures("patient")
def test_a_run_that_ends_while_a_failed_one_waits_is_stored(executed):
    async def both(ctx: Context) -> str:
        failed = asyncio.Event()

        async def fails():
            executed["fails"] += 1
            failed.set()
            if executed["fails"] == 1:
                raise OSError("unplugged")
            return "on"

        async def ends():
            executed["ends"] += 1
            await failed.wait()
            await asyncio.sleep(0)
            return "off"

        first, second = ctx.run("ends", ends), ctx.run("fails", fails, retry=RunRetry(initial=1))
        return " ".join(await ctx.gather(first, second))

    journal = make_journal(both)
    assert attempt(journal) == ["Run", "Error"]
    assert drive_to_end(journal) == b'"off on"'
    assert executed == {"fails": 2, "ends": 1}


def test_the_time_of_a_run_is_that_of_its_executions_and_waits():
    async def pays(ctx: Context) -> str:
        retry = RunRetry(initial=4, factor=1, within=10)
        return await describe_failure(ctx.run("charge", fail_to_connect, retry=retry))

    journal = make_journal(pays)
    journal.retries = LONG_AGO
    for number in range(1, 4):
        assert attempt(journal) == ["Error"]
        assert journal.last.next_retry_delay == 4_000
        (run,) = journal.run_attempts
        assert run.count == number
        assert 4_000 * number <= run.milliseconds < 4_000 * number + 1_000
    assert drive_to_end(journal) == b'"500 OSError: no route"'


def test_a_run_whose_error_has_a_delay_has_the_bound_of_its_policy():
    async def pays(ctx: Context) -> str:
        def busy():
            raise RetryableError("busy", delay=7)

        return await describe_failure(ctx.run("charge", busy, retry=RunRetry(attempts=3)))

    journal = make_journal(pays)
    for _ in range(2):
        assert attempt(journal) == ["Error"]
        assert (journal.last.message, journal.last.next_retry_delay) == ("busy", 7_000)
    assert drive_to_end(journal) == b'"500 RetryableError: busy"'


def test_a_failure_of_the_handler_keeps_the_attempts_of_runs():
    async def stumbles(ctx: Context) -> None:
        ctx.run("charge", int)
        raise KeyError("lost")

    kept = FailedExecutions(index=1, name="charge", count=2, milliseconds=5)
    journal = make_journal(stumbles)
    journal.run_attempts = (kept,)
    assert attempt(journal)[-1] == "Error"
    assert journal.run_attempts == (kept,)


def test_a_run_with_another_name_at_the_same_index_has_its_own_attempts():
    async def pays(ctx: Context) -> None:
        await ctx.run("pay" * MOST_RUN_NAME, fail_to_connect, retry=RunRetry(attempts=2))

    journal = make_journal(pays)
    journal.run_attempts = (FailedExecutions(index=1, name="charge", count=9, milliseconds=0),)
    assert attempt(journal) == ["Error"]
    (run,) = journal.run_attempts
    assert (run.name, run.count) == (("pay" * MOST_RUN_NAME)[:MOST_RUN_NAME], 1)
    attempt(journal)
    assert journal.entries[1].message().failure.message == "OSError: no route"


@pytest.mark.parametrize(("version", "runs"), [(1, None), (2, ()), (3, ())])
async def test_a_runtime_that_counts_nothing_gets_no_counts(version, runs):
    async def pays(ctx: Context) -> None:
        fail_to_connect()

    journal = make_journal(pays, version=version)
    journal.run_attempts = runs
    frames = await journal.attempt()
    assert read_run_attempts(frames[-1].body) == runs


def test_malformed_attempts_of_runs_break_the_protocol():
    failure = Failure(code=422, message="no such account")
    run = FailedExecutions(index=1, name="charge", count=1, milliseconds=5, failure=failure)
    body = write_run_attempts([run])
    assert read_run_attempts(body) == (run,)
    with raises_naming(ProtocolError, "Runs"):
        read_run_attempts(body[:-1] + b"\xff")
