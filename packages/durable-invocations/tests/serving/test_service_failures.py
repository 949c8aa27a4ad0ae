"""How handlers fail, and what their runtime is told."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from datetime import timedelta

import pytest

from durable_invocations import (
    Context,
    RetryableError,
    RunRetry,
    Service,
    TerminalError,
    VirtualObject,
    service_app,
)
from durable_invocations.errors import ConfigError
from durable_invocations.protocol.decoding import Limits
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.serving.attempts.choices import make_choice_entry
from runtime_support.endpoints.asgi_stream import attempt, journal_of, output_of
from runtime_support.growth import SLACK, time_growth

NAMED = "inv_1test"
"""The invocation of a Journal."""


def failed(journal):
    """The error that ends an attempt."""
    assert attempt(journal)[-1] == "Error"
    return journal.last


def raising(error):
    """A handler that fails so."""

    async def fails(ctx: Context) -> None:
        raise error

    return fails


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_what_json_has_no_number_for_is_no_output(number):
    async def odd(ctx: Context) -> list:
        return ["NaN", number]

    journal = journal_of(odd)
    assert "cannot be written as JSON" in failed(journal).message


def test_a_text_may_say_nan():
    async def plain(ctx: Context) -> str:
        return "NaN, Infinity"

    journal = journal_of(plain)
    assert attempt(journal) == ["Output", "End"]


def test_a_terminal_error_is_the_output():
    journal = journal_of(raising(TerminalError("no such order", 404)))
    assert attempt(journal) == ["Output", "End"]
    assert journal.output.failure == pb.Failure(code=404, message="no such order")


def test_an_argument_that_does_not_fit_is_the_callers_failure():
    async def double(ctx: Context, number: int) -> int:
        return 2 * number

    journal = journal_of(double, b'"x"')
    attempt(journal)
    assert journal.output.failure.code == 400
    assert "The argument of S.double does not fit" in journal.output.failure.message


def test_any_other_error_is_tried_again():
    async def stumble(ctx: Context) -> None:
        ctx.send("T", "h")
        raise KeyError("lost")

    error = failed(journal_of(stumble))
    assert (error.code, error.message) == (500, "KeyError: 'lost'")
    assert error.description == ""
    assert error.related_entry_index == 1
    assert not error.HasField("next_retry_delay")


def test_leaving_the_process_is_an_error_too():
    async def leave(ctx: Context) -> None:
        sys.exit(3)

    assert failed(journal_of(leave)).message == "SystemExit: 3"


def test_a_retryable_error_says_when():
    later = raising(RetryableError("busy", delay=1.5))
    error = failed(journal_of(later))
    assert (error.message, error.next_retry_delay) == ("busy", 1_500)
    assert not failed(journal_of(later, version=1)).HasField("next_retry_delay")


@pytest.mark.parametrize(
    ("delay", "told"),
    [
        *[(float("inf"), 31_622_400_000), (10**400, 31_622_400_000), (-1, 0)],
        (timedelta(seconds=2), 2_000),
    ],
)
def test_a_delay_beyond_what_the_protocol_has_is_the_nearest_that_it_has(delay, told):
    later = raising(RetryableError("busy", delay=delay))
    assert failed(journal_of(later)).next_retry_delay == told


@pytest.mark.parametrize("delay", [float("nan"), "soon"])
def test_a_delay_that_is_no_number_is_none(delay):
    later = raising(RetryableError("busy", delay=delay))
    assert not failed(journal_of(later)).HasField("next_retry_delay")


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("and that fails, too")


@pytest.fixture
def unlogged(caplog):
    """Log no errors: some forms of logs ask for their texts, and pytest-xdist passes on no lone
    surrogates.
    """
    caplog.set_level(logging.CRITICAL, "durable_invocations")


@pytest.mark.usefixtures("unlogged")
def test_an_error_that_cannot_be_told_ends_the_attempt():
    """Else its stream would stay open, and the runtime would wait for it."""

    mute, lone = raising(MuteError()), raising(RuntimeError("\ud800 is none"))

    async def garbled(ctx: Context) -> None:
        raise KeyError("x") from RuntimeError("\ud800")

    async def in_a_run(ctx: Context) -> None:
        await ctx.run("mute", mute, ctx)

    assert failed(journal_of(mute)).message == "MuteError: its text raises RuntimeError"
    assert failed(journal_of(in_a_run)).message == "MuteError: its text raises RuntimeError"
    for tracebacks in (True, False):
        for handler in (lone, garbled, mute):
            error = failed(journal_of(handler, app={"tracebacks": tracebacks}))
            assert bool(error.description) is tracebacks
    assert failed(journal_of(lone)).message == "RuntimeError: \\ud800 is none"


def test_an_error_without_end_is_cut():
    """Else the runtime would tell of a message that is too large, and not of the error."""

    shout = raising(KeyError("m" * 40_000_000))
    for tracebacks in (True, False):
        error = failed(journal_of(shout, app={"tracebacks": tracebacks}))
        assert error.message.startswith("KeyError: 'mmm")
        assert error.ByteSize() < 1_000_000


class MuteTerminalError(TerminalError):
    __str__ = MuteError.__str__


def terminal() -> None:
    raise TerminalError("m" * 40_000_000, 404)


def mute_terminal() -> None:
    raise MuteTerminalError("", 404)


def without_end() -> None:
    raise KeyError("m" * 40_000_000)


def mute_error() -> None:
    raise MuteError


@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize(
    ("function", "code", "begins"),
    [
        (terminal, 404, "mmm"),
        (mute_terminal, 404, "its text raises RuntimeError"),
        (without_end, 500, "KeyError: 'mmm"),
        (mute_error, 500, "MuteError: its text raises RuntimeError"),
    ],
)
def test_a_failure_for_good_ends_whatever_its_error_says(function, code, begins):
    """Else it would be tried for ever: its text raises, or is larger than a message may be."""

    async def in_a_run(ctx: Context) -> None:
        await ctx.run("fails", function, retry=RunRetry(attempts=1))

    async def itself(ctx: Context) -> None:
        function()

    for handler in (in_a_run, itself) if code == 404 else (in_a_run,):
        journal = journal_of(handler)
        while (ended := attempt(journal))[-1] == "Suspension":
            pass
        assert ended[-1] == "End"
        assert journal.output.failure.code == code
        assert journal.output.failure.message.startswith(begins)
        assert journal.output.ByteSize() < 1_000_000


def test_a_terminal_failure_that_no_message_can_have_is_written_out():
    refuse = raising(TerminalError("no \udcff", 404))

    async def refuse_in_a_run(ctx: Context) -> None:
        await ctx.run("refuse", refuse, ctx)

    async def reject(ctx: Context) -> None:
        ctx.reject_awakeable("prom_1NMyOAvDK2CcBjUH4Rmb7eGBp0DNNDnmsAAAAAQ", "no \udcff")

    said = pb.Failure(code=404, message="no \\udcff")
    journal = journal_of(refuse)
    attempt(journal)
    assert journal.output.failure == said
    journal = journal_of(refuse_in_a_run)
    assert attempt(journal)[0] == "Run"
    journal = journal_of(reject)
    assert attempt(journal)[-1] == "End"


@pytest.mark.parametrize("status", [-1, 2**32, 404.0, "404"])
def test_a_status_that_no_message_can_have_is_500(status):
    journal = journal_of(raising(TerminalError("no", status)))
    attempt(journal)
    assert journal.output.failure == pb.Failure(code=500, message="no")


def test_tracebacks_are_sent_where_they_are_asked_for():
    error = failed(journal_of(raising(KeyError("lost")), app={"tracebacks": True}))
    assert "test_service_failures.py" in error.description


def test_what_a_handler_awaits_may_fail():
    async def ask(ctx: Context) -> list:
        try:
            await ctx.gather(ctx.call("T", "h"), ctx.sleep(1))
        except TerminalError as error:
            return [error.status, str(error)]

    journal = journal_of(ask)
    attempt(journal)
    journal.complete(1, Failure(code=409, message="canceled"))
    assert attempt(journal) == ["Suspension"]
    journal.complete(2, Failure(code=410, message="second"))
    assert output_of(journal) == b'[409,"canceled"]'


def broken():
    raise OSError("unplugged")


async def works(ctx: Context) -> str:
    retry = RunRetry(initial=0.5, factor=3, cap=5, attempts=4, within=60)
    try:
        await ctx.run("work", broken, retry=retry)
    except TerminalError as error:
        return f"{error.status} {error}"


@pytest.mark.parametrize(("tried", "delay"), [(0, 500), (1, 1_500), (2, 4_500)])
def test_a_run_is_tried_again_by_its_policy(tried, delay):
    journal = journal_of(works)
    journal.retries = (tried, 1_000)
    error = failed(journal)
    assert (error.message, error.next_retry_delay) == ("OSError: unplugged", delay)
    assert (error.related_entry_index, error.related_entry_name) == (1, "work")
    assert error.related_entry_type == 0x0C05


@pytest.mark.parametrize("retries", [(3, 1_000), (1, 60_000)])
def test_a_run_fails_for_good_when_its_policy_is_exhausted(retries):
    journal = journal_of(works)
    journal.retries = retries
    assert attempt(journal) == ["Run", "Suspension"]
    assert journal.entries[1].message().failure.message == "OSError: unplugged"
    journal.retries = (0, 0)
    assert output_of(journal) == b'"500 OSError: unplugged"'


def test_the_tries_of_an_entry_are_not_those_of_the_next():
    async def two(ctx: Context) -> None:
        one, tries = ctx.run("one", int), RunRetry(attempts=2)
        await ctx.gather(one, ctx.run("two", broken, retry=tries))

    journal = journal_of(two)
    # The runtime tells of the first entry that is not stored, and both are begun. The wait for the
    # other, which may still be executed, is part of the delay.
    journal.retries = (5, 0)
    assert 0 <= failed(journal).next_retry_delay <= 100
    journal = journal_of(two)
    journal.retries = (0, 9_999_999)
    assert 0 <= failed(journal).next_retry_delay <= 100


@pytest.mark.parametrize(
    "wrong", [{"initial": -1}, {"factor": 0.5}, {"initial": 9, "cap": 1}, {"attempts": 0}]
)
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ConfigError):
        RunRetry(**wrong)


def test_a_terminal_error_in_a_run_is_its_result():
    async def refuse(ctx: Context) -> int:
        def checks():
            raise TerminalError("declined", 402)

        try:
            await ctx.run("check", checks)
        except TerminalError as error:
            return error.status

    journal = journal_of(refuse)
    assert attempt(journal) == ["Run", "Suspension"]
    assert output_of(journal) == b"402"


def test_a_run_that_is_canceled_or_exits_fails_its_attempt():
    async def cancels():
        raise asyncio.CancelledError

    async def canceled(ctx: Context) -> None:
        await ctx.run("cancels", cancels)

    async def exits(ctx: Context) -> None:
        await ctx.run("exits", sys.exit, 3)

    assert failed(journal_of(canceled)).message.startswith("CancelledError")
    assert failed(journal_of(exits)).message == "SystemExit: 3"


def test_a_result_that_does_not_fit_its_hint_is_told():
    async def asks(ctx: Context) -> int:
        return await ctx.call("T", "h", returns=int)

    journal = journal_of(asks)
    attempt(journal)
    journal.complete(1, b'"x"')
    assert "The result of entry 1 cannot be read" in failed(journal).message


async def plain(ctx: Context) -> None:
    await ctx.sleep(1)
    await ctx.call("T", "h", key="k")


LINE = plain.__code__.co_firstlineno


@pytest.mark.parametrize(
    ("recorded", "found", "line"),
    [
        (pb.RunEntryMessage(name="charge", value=b"1"), "Run name='charge'", LINE + 1),
        (pb.CallEntryMessage(service_name="U", handler_name="h"), "service_name='U'", LINE + 1),
        (pb.OutputEntryMessage(value=b"1"), "Output", LINE + 1),
    ],
)
def test_a_mismatch_names_both_entries_and_the_handlers_line(recorded, found, line):
    journal = journal_of(plain)
    journal.entries.append(make_frame(recorded))
    error = failed(journal)
    assert error.code == 570
    assert "Entry 1 of the journal is " in error.message
    assert found in error.message
    assert "the handler issues Sleep" in error.message
    assert f"test_service_failures.py, line {line}." in error.message


def test_a_mismatch_is_told_of_what_identifies_an_entry():
    journal = journal_of(plain)
    journal.entries.append(make_frame(pb.SleepEntryMessage(wake_up_time=1, empty=pb.Empty())))
    journal.entries.append(make_frame(pb.CallEntryMessage(service_name="T", handler_name="h")))
    error = failed(journal)
    assert "issues Call key='k' service_name='T' handler_name='h'" in error.message
    assert f"line {LINE + 2}." in error.message


def test_a_handler_that_ends_too_early_is_a_mismatch_at_its_definition():
    async def short(ctx: Context) -> None:
        pass

    journal = journal_of(short)
    journal.entries.append(make_frame(pb.SleepEntryMessage(wake_up_time=1, empty=pb.Empty())))
    error = failed(journal)
    assert error.code == 570
    assert "is Sleep, but the handler issues Output" in error.message
    assert f"line {short.__code__.co_firstlineno}." in error.message


def test_a_choice_among_other_operations_is_a_mismatch():
    async def choose(ctx: Context) -> str:
        return (await ctx.select(a=ctx.sleep(1), b=ctx.sleep(2)))[0]

    async def chooses(ctx: Context) -> str:
        _, b = ctx.sleep(1), ctx.sleep(2)
        return (await ctx.select(b=b))[0]

    journal = journal_of(choose)
    attempt(journal)
    journal.complete(1)
    attempt(journal)
    other = journal_of(chooses)
    other.entries = journal.entries
    error = failed(other)
    assert error.code == 570
    assert "Entry 3 of the journal chooses entry 1" in error.message
    assert f"line {chooses.__code__.co_firstlineno + 2}." in error.message


def test_a_choice_of_what_is_not_done_is_a_mismatch():
    async def choose(ctx: Context) -> str:
        return (await ctx.select(a=ctx.sleep(1), b=ctx.sleep(2)))[0]

    journal = journal_of(choose)
    attempt(journal)
    journal.entries.append(make_choice_entry(2))
    error = failed(journal)
    assert (error.code, error.related_entry_index) == (570, 3)
    assert "chooses entry 2, which is not done" in error.message


def test_a_handler_cannot_swallow_that_its_attempt_has_ended():
    after = []

    async def stubborn(ctx: Context) -> None:
        for _ in range(3):
            try:
                await ctx.sleep(1)
            except BaseException as error:  # noqa: BLE001
                after.append(type(error))
        ctx.send("T", "h")

    assert attempt(journal_of(stubborn)) == ["Sleep", "Suspension"]
    assert after == [asyncio.CancelledError] * 3


def test_a_handler_that_cancels_itself_is_tried_again():
    gives_up = raising(asyncio.CancelledError())
    assert failed(journal_of(gives_up)).message == "The handler was canceled."


def test_what_a_value_cannot_be_is_told():
    async def odd(ctx: Context) -> None:
        ctx.send("T", "h", object())

    assert "object cannot be written as JSON" in failed(journal_of(odd)).message


async def in_a_task(ctx: Context) -> None:
    async def aside():
        await ctx.sleep(1)

    await asyncio.create_task(aside())


async def awaited_in_a_task(ctx: Context) -> None:
    await asyncio.gather(ctx.sleep(1), ctx.sleep(2))


async def in_a_thread(ctx: Context) -> None:
    await ctx.run("aside", lambda: ctx.send("T", "h"))


async def in_a_run(ctx: Context) -> None:
    async def aside():
        ctx.send("T", "h")

    await ctx.run("aside", aside)


@pytest.mark.parametrize("handler", [in_a_task, awaited_in_a_task, in_a_thread, in_a_run])
def test_a_context_is_its_handlers_alone(handler):
    error = failed(journal_of(handler))
    assert f"S.{handler.__name__} uses its context in another task" in error.message


async def reads_state(ctx: Context) -> None:
    await ctx.state.get("x")


async def promises(ctx: Context) -> None:
    ctx.promise("x")


async def no_key(ctx: Context) -> None:
    ctx.send("T", "h", idempotency_key="")


async def nothing_to_select(ctx: Context) -> None:
    await ctx.select()


async def other_awaitables(ctx: Context) -> None:
    made = asyncio.sleep(0)
    try:
        await ctx.gather(ctx.sleep(1), made)
    finally:
        made.close()


async def runs_a_result(ctx: Context) -> None:
    await ctx.run("charge", len("abc"))


async def runs_a_coroutine(ctx: Context) -> None:
    made = asyncio.sleep(0)
    try:
        await ctx.run("charge", made)
    finally:
        made.close()


async def sleeps_a_text(ctx: Context) -> None:
    await ctx.sleep("3")


async def sends_without_end(ctx: Context) -> None:
    ctx.send("T", "h", delay=float("inf"))


async def sleeps_for_ages(ctx: Context) -> None:
    await ctx.sleep(1e18)


async def sleeps_beyond_numbers(ctx: Context) -> None:
    await ctx.sleep(10**400)


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        (sleeps_for_ages, "1e+18 is not a duration; give seconds up to a century, or a timedelta."),
        (sleeps_beyond_numbers, "is not a duration; give seconds up to a century, or a timedelta."),
        (runs_a_result, "The run 'charge' gets int instead of a function; give it the function"),
        (runs_a_coroutine, "The run 'charge' gets coroutine instead of a function"),
        (sleeps_a_text, "'3' is not a duration; give seconds up to a century, or a timedelta."),
        (sends_without_end, "inf is not a duration"),
        (reads_state, "S.reads_state has no state"),
        (promises, "S.promises has no promises"),
        (no_key, "idempotency_key is empty"),
        (nothing_to_select, "needs operations by name"),
        (other_awaitables, "coroutine is not an operation of the context"),
    ],
)
def test_what_a_context_does_not_do_is_told(handler, told):
    assert told in failed(journal_of(handler)).message


def test_a_shared_handler_changes_no_state():
    async def shares(ctx: Context) -> None:
        ctx.state.set("x", 1)

    error = failed(journal_of(shares, kind=VirtualObject, mark="shared", key="k"))
    assert "S.shares is shared, and only reads the state" in error.message


@pytest.mark.parametrize("version", [1, 2])
def test_what_an_older_runtime_lacks_is_told(version):
    async def cancels(ctx: Context) -> None:
        ctx.cancel("inv_1other")

    async def names_its_call(ctx: Context) -> None:
        ctx.call("T", "h", idempotency_key="i")

    for handler in (cancels, names_its_call):
        error = failed(journal_of(handler, version=version))
        assert f"the runtime speaks version {version}" in error.message


def test_a_journal_has_an_end():
    async def endless(ctx: Context) -> None:
        while True:
            ctx.send("T", "h")

    error = failed(journal_of(endless, app={"limits": Limits(journal_entries=20)}))
    assert "The journal has 20 entries, and no more are allowed" in error.message


def test_a_replay_takes_time_in_proportion_to_its_runs():
    async def steps(ctx: Context, count: int) -> int:
        return sum([await ctx.run("step", int) for _ in range(count)])

    def replay(count: int) -> None:
        journal = journal_of(steps, b"%d" % count)
        journal.entries += [make_frame(pb.RunEntryMessage(name="step", value=b"1"))] * count
        assert output_of(journal) == b"%d" % count

    assert time_growth(replay, 1_250, 10_000) < 8 * SLACK


def test_an_app_has_one_service_of_a_name():
    with pytest.raises(ConfigError, match="two services named S"):
        service_app(Service("S"), Service("S"))


def passed_through(caplog):
    """The functions in the traceback that was logged, however logs are formatted."""
    (record,) = caplog.records
    return [each.name for each in traceback.extract_tb(record.exc_info[2])]


def test_a_failing_handler_is_logged(caplog):
    async def stumble(ctx: Context) -> None:
        raise KeyError("lost")

    attempt(journal_of(stumble))
    assert f"{NAMED} (S.stumble): an attempt failed: KeyError: 'lost'" in caplog.messages
    assert "stumble" in passed_through(caplog)


def lose() -> None:
    raise KeyError("lost")


@pytest.mark.parametrize("retry", [None, RunRetry()])
def test_a_failing_run_is_logged(caplog, retry):
    async def stumble(ctx: Context) -> None:
        await ctx.run("charge", lose, retry=retry)

    attempt(journal_of(stumble))
    said = f"{NAMED} (S.stumble): an attempt failed in the run 'charge': KeyError: 'lost'"
    assert caplog.messages == [said]
    assert "lose" in passed_through(caplog)


def test_a_run_that_failed_for_good_is_logged(caplog):
    async def stumble(ctx: Context) -> None:
        await ctx.run("charge", lose, retry=RunRetry(attempts=1))

    attempt(journal_of(stumble))
    assert caplog.messages == [f"{NAMED} (S.stumble): the run 'charge' failed for good"]
    assert "lose" in passed_through(caplog)


def test_a_journal_that_does_not_match_is_logged(caplog):
    names = iter(["one", "uno"])

    async def renamed(ctx: Context) -> None:
        await ctx.run(next(names), int)
        await ctx.sleep(1)

    journal = journal_of(renamed)
    attempt(journal)
    attempt(journal)
    (said,) = caplog.messages
    assert said.startswith(f"{NAMED} (S.renamed): an attempt failed: Entry 1 of the journal")
    assert "'uno'" in said
