"""What counts as an attempt of a run: each of its executions that failed, and nothing else."""

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
    Failure,
    ProtocolError,
    RunAttempts,
    read_run_attempts,
    write_run_attempts,
)
from durable_invocations.serving.attempts import attempt as attempts
from runtime_support.endpoints import asgi_stream
from runtime_support.endpoints.asgi_stream import attempt

SLOW = 60
"""More seconds than a test takes."""
LONG_AGO = (7, 9_999_999)
"""How often and how long the invocation was tried, as the Start says, whatever came of it."""


@pytest.fixture
def executed():
    return collections.Counter()


@pytest.fixture
def patient(monkeypatch):
    """Let a run that failed wait for all others, however slow this machine is."""
    monkeypatch.setattr(attempts, "LEAST_WAIT", SLOW)
    monkeypatch.setattr(attempts, "MOST_WAIT", SLOW)


journal_of = partial(asgi_stream.journal_of, runs=())
"""The invocation, by a runtime that counts the executions of runs."""


def ended(journal, most=10):
    """Drive attempts until the invocation has ended; how many."""
    for number in range(most):
        if attempt(journal)[-1] == "End":
            return number + 1
    raise AssertionError(f"it goes on after {most} attempts")


def test_attempts_that_never_executed_the_function_do_not_count(executed):
    async def pays(ctx: Context) -> str:
        def charge():
            executed["charge"] += 1
            if executed["charge"] < 3:
                raise OSError("no route")
            return "paid"

        return await ctx.run("charge", charge, retry=RunRetry(attempts=3, within=SLOW))

    journal = journal_of(pays)
    journal.retries = LONG_AGO
    ended(journal)
    assert journal.output.value == b'"paid"'
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
        try:
            await second
        except TerminalError as error:
            return f"{await first}, {error}"
        return "not reached"

    journal = journal_of(both)
    ended(journal)
    assert journal.output.value == b'"done, OSError: unplugged"'
    assert executed == {"slow": 2, "fails": 2}


@pytest.mark.usefixtures("patient")
def test_runs_that_fail_side_by_side_each_have_all_their_attempts_and_no_more(executed):
    async def three(ctx: Context) -> list[str]:
        def in_a_thread(name):
            executed[name] += 1
            raise OSError(name)

        async def here(name):
            in_a_thread(name)

        runs = [
            ctx.run("a", here, "a", retry=RunRetry(initial=0.2, attempts=2)),
            ctx.run("b", in_a_thread, "b", retry=RunRetry(initial=0.2, attempts=3)),
            ctx.run("c", in_a_thread, "c", retry=RunRetry(initial=0.2, attempts=4)),
        ]
        said = []
        for each in runs:
            try:
                await each
            except TerminalError as error:
                said.append(str(error))
        return said

    journal = journal_of(three)
    ended(journal)
    assert json.loads(journal.output.value) == ["OSError: a", "OSError: b", "OSError: c"]
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
        said = [await runs[0]]
        for each in runs[1:]:
            try:
                await each
            except TerminalError as error:
                said.append(f"{error.status} {error}")
        return ", ".join(said)

    journal = journal_of(two)
    ended(journal)
    assert journal.output.value == b'"on, 422 no such account, 500 OSError: unplugged"'
    assert executed == {"earlier": 5, "refused": 1, "exhausted": 2}


def test_the_first_failure_is_told_and_waits_for_the_others_no_longer_than_it_would_anyway():
    begun = threading.Event()

    async def both(ctx: Context) -> None:
        async def fails():
            await asyncio.to_thread(begun.wait, SLOW)
            raise RetryableError("busy", delay=0.1)

        async def hangs():
            begun.set()
            await asyncio.Event().wait()

        await ctx.gather(ctx.run("hangs", hangs), ctx.run("fails", fails))

    journal = journal_of(both)
    assert attempt(journal) == ["Error"]
    assert (journal.last.message, journal.last.related_entry_index) == ("busy", 2)
    assert journal.last.next_retry_delay < 100
    (told,) = journal.run_attempts
    assert (told.index, told.name, told.count) == (2, "fails", 1)


@pytest.mark.usefixtures("patient")
def test_what_ends_while_a_failed_run_waits_is_stored(executed):
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

    journal = journal_of(both)
    assert attempt(journal) == ["Run", "Error"]
    ended(journal)
    assert journal.output.value == b'"off on"'
    assert executed == {"fails": 2, "ends": 1}


def test_the_time_of_a_run_is_that_of_its_executions_and_waits():
    async def pays(ctx: Context) -> str:
        def broken():
            raise OSError("no route")

        try:
            await ctx.run("charge", broken, retry=RunRetry(initial=4, factor=1, within=10))
        except TerminalError as error:
            return str(error)
        return "not reached"

    journal = journal_of(pays)
    journal.retries = LONG_AGO
    for number in range(1, 4):
        assert attempt(journal) == ["Error"]
        assert journal.last.next_retry_delay == 4_000
        (told,) = journal.run_attempts
        assert told.count == number
        assert 4_000 * number <= told.milliseconds < 4_000 * number + 1_000
    ended(journal)
    assert journal.output.value == b'"OSError: no route"'


def test_a_run_that_says_when_to_try_it_again_has_its_policys_bound():
    async def pays(ctx: Context) -> str:
        def busy():
            raise RetryableError("busy", delay=7)

        try:
            await ctx.run("charge", busy, retry=RunRetry(attempts=3))
        except TerminalError as error:
            return str(error)
        return "not reached"

    journal = journal_of(pays)
    for _ in range(2):
        assert attempt(journal) == ["Error"]
        assert (journal.last.message, journal.last.next_retry_delay) == ("busy", 7_000)
    ended(journal)
    assert journal.output.value == b'"RetryableError: busy"'


def test_a_failure_of_the_handler_keeps_what_is_known_of_runs():
    async def stumbles(ctx: Context) -> None:
        ctx.run("charge", int)
        raise KeyError("lost")

    kept = RunAttempts(index=1, name="charge", count=2, milliseconds=5)
    journal = journal_of(stumbles)
    journal.run_attempts = (kept,)
    assert attempt(journal)[-1] == "Error"
    assert journal.run_attempts == (kept,)


def test_another_run_in_the_same_place_has_attempts_of_its_own():
    async def pays(ctx: Context) -> None:
        def broken():
            raise OSError("no route")

        await ctx.run("pay" * MOST_RUN_NAME, broken, retry=RunRetry(attempts=2))

    journal = journal_of(pays)
    journal.run_attempts = (RunAttempts(index=1, name="charge", count=9, milliseconds=0),)
    assert attempt(journal) == ["Error"]
    (told,) = journal.run_attempts
    assert (told.name, told.count) == (("pay" * MOST_RUN_NAME)[:MOST_RUN_NAME], 1)
    attempt(journal)
    assert journal.entries[1].message().failure.message == "OSError: no route"


@pytest.mark.parametrize(("version", "told"), [(1, None), (2, ()), (3, ())])
def test_a_runtime_that_counts_nothing_is_told_nothing(version, told):
    async def pays(ctx: Context) -> None:
        raise OSError("no route")

    journal = journal_of(pays, version=version)
    journal.run_attempts = told
    heard = asyncio.run(journal.attempt())
    assert read_run_attempts(heard[-1].body) == told


def test_attempts_of_runs_that_are_no_message_break_the_protocol():
    gone = Failure(code=422, message="no such account")
    run = RunAttempts(index=1, name="charge", count=1, milliseconds=5, failure=gone)
    told = write_run_attempts([run])
    assert read_run_attempts(told) == (run,)
    with pytest.raises(ProtocolError, match="attempts of Runs"):
        read_run_attempts(told[:-1] + b"\xff")
