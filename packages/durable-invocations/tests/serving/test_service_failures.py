"""How handlers fail, and the errors that their runtime gets."""

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
from durable_invocations.protocol import kinds
from durable_invocations.protocol.decoding import Limits
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.serving.attempts.choices import make_choice_entry
from runtime_support.endpoints.asgi_stream import attempt, drive_to_output, make_journal
from runtime_support.errors import assert_names, raises_naming
from runtime_support.growth import SLACK, time_growth

NAMED = "inv_1test"
"""The invocation of a Journal."""


def drive_to_error(journal):
    """Drive one attempt; the error that ends it."""
    assert attempt(journal)[-1] == "Error"
    return journal.last


def fail(handler, **options):
    """Drive the first attempt of this handler; the error that ends it."""
    return drive_to_error(make_journal(handler, **options))


def make_raising(error):
    """A handler that raises this error."""

    async def fails(ctx: Context) -> None:
        raise error

    return fails


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_a_number_that_json_lacks_is_no_output(number):
    async def odd(ctx: Context) -> list:
        return ["NaN", number]

    assert_names(fail(odd).message, "ContextError", "JSON")


def test_a_text_may_be_nan():
    async def plain(ctx: Context) -> str:
        return "NaN, Infinity"

    assert attempt(make_journal(plain)) == ["Output", "End"]


def test_a_terminal_error_is_the_output():
    journal = make_journal(make_raising(TerminalError("no such order", 404)))
    assert attempt(journal) == ["Output", "End"]
    assert journal.output.failure == pb.Failure(code=404, message="no such order")


def test_an_argument_that_does_not_fit_is_the_callers_failure():
    async def double(ctx: Context, number: int) -> int:
        return 2 * number

    journal = make_journal(double, b'"x"')
    attempt(journal)
    assert journal.output.failure.code == 400
    assert_names(journal.output.failure.message, "argument", "S.double", "integer")


def test_another_error_is_retried():
    async def stumble(ctx: Context) -> None:
        ctx.send("T", "h")
        raise KeyError("lost")

    error = fail(stumble)
    assert (error.code, error.message) == (500, "KeyError: 'lost'")
    assert (error.description, error.related_entry_index) == ("", 1)
    assert not error.HasField("next_retry_delay")


def test_leaving_the_process_is_an_error_too():
    async def leave(ctx: Context) -> None:
        sys.exit(3)

    assert fail(leave).message == "SystemExit: 3"


@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [
        *((1.5, 1_500), (timedelta(seconds=2), 2_000), (-1, 0)),
        *((float("inf"), 31_622_400_000), (10**400, 31_622_400_000)),
    ],
)
def test_a_retryable_error_has_a_delay_within_what_the_protocol_has(delay, milliseconds):
    later = make_raising(RetryableError("busy", delay=delay))
    error = fail(later)
    assert (error.message, error.next_retry_delay) == ("busy", milliseconds)
    assert not fail(later, version=1).HasField("next_retry_delay")


@pytest.mark.parametrize("delay", [float("nan"), "soon"])
def test_a_delay_that_is_no_number_is_ignored(delay):
    error = fail(make_raising(RetryableError("busy", delay=delay)))
    assert not error.HasField("next_retry_delay")


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
def test_an_error_without_a_text_ends_the_attempt():
    """Otherwise its stream would stay open, and the runtime would wait for it."""

    mute, lone = make_raising(MuteError()), make_raising(RuntimeError("\ud800 is none"))

    async def garbled(ctx: Context) -> None:
        raise KeyError("x") from RuntimeError("\ud800")

    async def in_a_run(ctx: Context) -> None:
        await ctx.run("mute", mute, ctx)

    for handler in (mute, in_a_run):
        assert_names(fail(handler).message, "MuteError", "RuntimeError")
    for tracebacks in (True, False):
        for handler in (lone, garbled, mute):
            error = fail(handler, app={"tracebacks": tracebacks})
            assert bool(error.description) is tracebacks
    assert fail(lone).message == "RuntimeError: \\ud800 is none"


def test_a_long_error_is_truncated():
    """Otherwise the runtime would report a message that is too large, and not the error."""

    shout = make_raising(KeyError("m" * 40_000_000))
    for tracebacks in (True, False):
        error = fail(shout, app={"tracebacks": tracebacks})
        assert error.message.startswith("KeyError: 'mmm")
        assert error.ByteSize() < 1_000_000


class MuteTerminalError(TerminalError):
    __str__ = MuteError.__str__


ENDLESS = "m" * 40_000_000


@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize(
    ("error", "code", "begins"),
    [
        (TerminalError(ENDLESS, 404), 404, "mmm"),
        (MuteTerminalError("", 404), 404, "its text raises RuntimeError"),
        (KeyError(ENDLESS), 500, "KeyError: 'mmm"),
        (MuteError(), 500, "MuteError: its text raises RuntimeError"),
    ],
    ids=["long terminal", "mute terminal", "long", "mute"],
)
def test_a_failure_for_good_ends_the_invocation_whatever_its_text(error, code, begins):
    """Otherwise it would be retried forever: its text raises, or is larger than a message."""
    itself = make_raising(error)

    async def in_a_run(ctx: Context) -> None:
        await ctx.run("fails", itself, ctx, retry=RunRetry(attempts=1))

    for handler in (in_a_run, itself) if code == 404 else (in_a_run,):
        journal = make_journal(handler)
        while (frames := attempt(journal))[-1] == "Suspension":
            pass
        assert frames[-1] == "End"
        assert journal.output.failure.code == code
        assert journal.output.failure.message.startswith(begins)
        assert journal.output.ByteSize() < 1_000_000


def test_a_lone_surrogate_in_a_terminal_failure_is_escaped():
    refuse = make_raising(TerminalError("no \udcff", 404))

    async def refuse_in_a_run(ctx: Context) -> None:
        await ctx.run("refuse", refuse, ctx)

    async def reject(ctx: Context) -> None:
        ctx.reject_awakeable("prom_1NMyOAvDK2CcBjUH4Rmb7eGBp0DNNDnmsAAAAAQ", "no \udcff")

    journal = make_journal(refuse)
    attempt(journal)
    assert journal.output.failure == pb.Failure(code=404, message="no \\udcff")
    assert attempt(make_journal(refuse_in_a_run))[0] == "Run"
    assert attempt(make_journal(reject))[-1] == "End"


@pytest.mark.parametrize("status", [-1, 2**32, 404.0, "404"])
def test_a_status_that_no_message_can_have_is_500(status):
    journal = make_journal(make_raising(TerminalError("no", status)))
    attempt(journal)
    assert journal.output.failure == pb.Failure(code=500, message="no")


def test_tracebacks_are_sent_where_they_are_asked_for():
    error = fail(make_raising(KeyError("lost")), app={"tracebacks": True})
    assert "test_service_failures.py" in error.description


def test_a_handler_may_catch_the_failure_of_an_operation():
    async def ask(ctx: Context) -> list:
        try:
            await ctx.gather(ctx.call("T", "h"), ctx.sleep(1))
        except TerminalError as error:
            return [error.status, str(error)]

    journal = make_journal(ask)
    attempt(journal)
    journal.complete(1, Failure(code=409, message="canceled"))
    assert attempt(journal) == ["Suspension"]
    journal.complete(2, Failure(code=410, message="second"))
    assert drive_to_output(journal) == b'[409,"canceled"]'


def fail_to_work():
    raise OSError("unplugged")


async def works(ctx: Context) -> str:
    retry = RunRetry(initial=0.5, factor=3, cap=5, attempts=4, within=60)
    try:
        await ctx.run("work", fail_to_work, retry=retry)
    except TerminalError as error:
        return f"{error.status} {error}"


@pytest.mark.parametrize(("tries", "delay"), [(0, 500), (1, 1_500), (2, 4_500)])
def test_a_run_is_retried_by_its_policy(tries, delay):
    journal = make_journal(works)
    journal.retries = (tries, 1_000)
    error = drive_to_error(journal)
    assert (error.message, error.next_retry_delay) == ("OSError: unplugged", delay)
    assert (error.related_entry_index, error.related_entry_name) == (1, "work")
    assert error.related_entry_type == 0x0C05


@pytest.mark.parametrize("retries", [(3, 1_000), (1, 60_000)])
def test_a_run_fails_for_good_when_its_policy_is_exhausted(retries):
    journal = make_journal(works)
    journal.retries = retries
    assert attempt(journal) == ["Run", "Suspension"]
    assert journal.entries[1].message().failure.message == "OSError: unplugged"
    journal.retries = (0, 0)
    assert drive_to_output(journal) == b'"500 OSError: unplugged"'


@pytest.mark.parametrize("retries", [(5, 0), (0, 9_999_999)])
def test_the_tries_of_an_entry_do_not_count_for_the_next(retries):
    """The runtime counts them for the first entry that is not stored, and both runs have begun."""

    async def two(ctx: Context) -> None:
        one, tries = ctx.run("one", int), RunRetry(attempts=2)
        await ctx.gather(one, ctx.run("two", fail_to_work, retry=tries))

    journal = make_journal(two)
    journal.retries = retries
    # The wait for the other run, which may still be executed, is part of the delay.
    assert 0 <= drive_to_error(journal).next_retry_delay <= 100


@pytest.mark.parametrize(
    "options", [{"initial": -1}, {"factor": 0.5}, {"initial": 9, "cap": 1}, {"attempts": 0}]
)
def test_an_invalid_policy_is_refused(options):
    with raises_naming(ConfigError, *(f"{name}={value}" for name, value in options.items())):
        RunRetry(**options)


def test_a_terminal_error_in_a_run_is_its_result():
    async def refuse(ctx: Context) -> int:
        try:
            await ctx.run("check", make_raising(TerminalError("declined", 402)), ctx)
        except TerminalError as error:
            return error.status

    journal = make_journal(refuse)
    assert attempt(journal) == ["Run", "Suspension"]
    assert drive_to_output(journal) == b"402"


def test_a_run_that_is_canceled_or_exits_fails_its_attempt():
    async def canceled(ctx: Context) -> None:
        await ctx.run("cancels", make_raising(asyncio.CancelledError()), ctx)

    async def exits(ctx: Context) -> None:
        await ctx.run("exits", sys.exit, 3)

    assert_names(fail(canceled).message, "CancelledError")
    assert fail(exits).message == "SystemExit: 3"


def test_a_result_that_does_not_fit_its_hint_fails_the_attempt():
    async def asks(ctx: Context) -> int:
        return await ctx.call("T", "h", returns=int)

    journal = make_journal(asks)
    attempt(journal)
    journal.complete(1, b'"x"')
    assert_names(drive_to_error(journal).message, "ContextError", "entry 1", "integer")


async def plain(ctx: Context) -> None:
    await ctx.sleep(1)
    await ctx.call("T", "h", key="k")


async def short(ctx: Context) -> None:
    pass


LINE = plain.__code__.co_firstlineno
SLEPT = pb.SleepEntryMessage(wake_up_time=1, empty=pb.Empty())


@pytest.mark.parametrize(
    ("handler", "recorded", "values", "line"),
    [
        (plain, [pb.RunEntryMessage(name="charge", value=b"1")], ["Run name='charge'"], LINE + 1),
        (plain, [pb.OutputEntryMessage(value=b"1")], ["Output"], LINE + 1),
        (
            plain,
            [SLEPT, pb.CallEntryMessage(service_name="T", handler_name="h")],
            ["Call key='k' service_name='T' handler_name='h'"],
            LINE + 2,
        ),
        # A handler that ends too early: its definition.
        (short, [SLEPT], ["Output"], short.__code__.co_firstlineno),
    ],
)
def test_a_mismatch_names_both_entries_and_the_handlers_line(handler, recorded, values, line):
    journal = make_journal(handler)
    journal.entries += map(make_frame, recorded)
    error, index = drive_to_error(journal), len(recorded)
    wrong = journal.entries[index]
    assert (error.code, error.related_entry_index) == (570, index)
    assert (error.related_entry_type, error.related_entry_name) == (wrong.code, wrong.name)
    place = f"test_service_failures.py, line {line}"
    assert_names(error.message, f"Entry {index}", wrong.kind.name, *values, place)
    assert ("Sleep" in error.message) is (index == 1)


async def chooses(ctx: Context) -> str:
    return (await ctx.select(a=ctx.sleep(1), b=ctx.sleep(2)))[0]


def test_a_choice_among_other_operations_is_a_mismatch():
    async def chooses_one(ctx: Context) -> str:
        _, b = ctx.sleep(1), ctx.sleep(2)
        return (await ctx.select(b=b))[0]

    journal = make_journal(chooses)
    attempt(journal)
    journal.complete(1)
    attempt(journal)
    other = make_journal(chooses_one)
    other.entries = journal.entries
    error = drive_to_error(other)
    assert (error.code, error.related_entry_index) == (570, 3)
    line = chooses_one.__code__.co_firstlineno + 2
    assert_names(error.message, "Entry 3", "entry 1", f"line {line}")


def test_a_choice_of_an_open_entry_is_a_mismatch():
    journal = make_journal(chooses)
    attempt(journal)
    journal.entries.append(make_choice_entry(2))
    error = drive_to_error(journal)
    assert (error.code, error.related_entry_index) == (570, 3)
    assert_names(error.message, "Entry 3", "entry 2")


def test_a_handler_cannot_swallow_the_end_of_its_attempt():
    errors = []

    async def stubborn(ctx: Context) -> None:
        for _ in range(3):
            try:
                await ctx.sleep(1)
            except BaseException as error:  # noqa: BLE001
                errors.append(type(error))
        ctx.send("T", "h")

    assert attempt(make_journal(stubborn)) == ["Sleep", "Suspension"]
    assert errors == [asyncio.CancelledError] * 3


def test_a_handler_that_cancels_itself_is_retried():
    error = fail(make_raising(asyncio.CancelledError()))
    assert error.code == 500
    assert_names(error.message, "canceled")


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
def test_only_the_handler_itself_may_use_its_context(handler):
    assert_names(fail(handler).message, "ContextError", f"S.{handler.__name__}", "gather()")


def with_coroutine(use):
    """Call `use` with the context and a coroutine, which is closed then."""

    def call(ctx):
        coroutine = asyncio.sleep(0)
        try:
            return use(ctx, coroutine)
        finally:
            coroutine.close()

    return call


@pytest.mark.parametrize(
    ("use", "values"),
    [
        (lambda ctx: ctx.sleep(1e18), ["1e+18", "timedelta"]),
        (lambda ctx: ctx.sleep(10**400), ["timedelta"]),
        (lambda ctx: ctx.sleep("3"), ["'3'", "timedelta"]),
        (lambda ctx: ctx.send("T", "h", delay=float("inf")), ["inf", "timedelta"]),
        (lambda ctx: ctx.run("charge", len("abc")), ["'charge'", "int"]),
        (with_coroutine(lambda ctx, other: ctx.run("charge", other)), ["'charge'", "coroutine"]),
        (with_coroutine(lambda ctx, other: ctx.gather(ctx.sleep(1), other)), ["coroutine"]),
        (lambda ctx: ctx.select(), ["select()"]),
        (lambda ctx: ctx.state.get("x"), ["S.misuse", "state"]),
        (lambda ctx: ctx.promise("x"), ["S.misuse", "promises"]),
        (lambda ctx: ctx.send("T", "h", idempotency_key=""), ["idempotency_key"]),
        (lambda ctx: ctx.send("T", "h", object()), ["object", "JSON"]),
    ],
)
def test_a_misuse_of_the_context_fails_the_attempt(use, values):
    async def misuse(ctx: Context) -> None:
        await use(ctx)

    assert_names(fail(misuse).message, "ContextError", *values)


def test_a_shared_handler_changes_no_state():
    async def shares(ctx: Context) -> None:
        ctx.state.set("x", 1)

    error = fail(shares, kind=VirtualObject, mark="shared", key="k")
    assert_names(error.message, "ContextError", "S.shares", "state", "exclusive")


@pytest.mark.parametrize("version", [1, 2])
def test_an_operation_that_an_older_runtime_lacks_fails_the_attempt(version):
    async def cancels(ctx: Context) -> None:
        ctx.cancel("inv_1other")

    async def names_its_call(ctx: Context) -> None:
        ctx.call("T", "h", idempotency_key="i")

    for handler, kind in ((cancels, kinds.CANCEL_INVOCATION), (names_its_call, kinds.CALL)):
        error = fail(handler, version=version)
        assert_names(error.message, "ContextError", kind, "version 3", f"version {version}")


def test_a_journal_is_bounded():
    async def endless(ctx: Context) -> None:
        while True:
            ctx.send("T", "h")

    error = fail(endless, app={"limits": Limits(journal_entries=20)})
    assert_names(error.message, "ContextError", "20 entries")


def test_a_replay_takes_time_in_proportion_to_its_runs():
    async def steps(ctx: Context, count: int) -> int:
        return sum([await ctx.run("step", int) for _ in range(count)])

    def replay(count: int) -> None:
        journal = make_journal(steps, b"%d" % count)
        journal.entries += [make_frame(pb.RunEntryMessage(name="step", value=b"1"))] * count
        assert drive_to_output(journal) == b"%d" % count

    assert time_growth(replay, 1_250, 10_000) < 8 * SLACK


def test_an_app_has_one_service_of_a_name():
    with raises_naming(ConfigError, "two services", "S"):
        service_app(Service("S"), Service("S"))


def lose() -> None:
    raise KeyError("lost")


async def loses(ctx: Context) -> None:
    lose()


def make_losing_run(retry):
    async def loses(ctx: Context) -> None:
        await ctx.run("charge", lose, retry=retry)

    return loses


@pytest.mark.parametrize(
    ("handler", "last", "values"),
    [
        (loses, "Error", ["KeyError: 'lost'"]),
        (make_losing_run(None), "Error", ["'charge'", "KeyError: 'lost'"]),
        (make_losing_run(RunRetry()), "Error", ["'charge'", "KeyError: 'lost'"]),
        (make_losing_run(RunRetry(attempts=1)), "Suspension", ["'charge'"]),
    ],
)
def test_a_failure_is_logged_once_with_its_traceback(caplog, handler, last, values):
    assert attempt(make_journal(handler))[-1] == last
    (record,) = caplog.records
    assert_names(record.getMessage(), NAMED, "S.loses", *values)
    assert "lose" in [frame.name for frame in traceback.extract_tb(record.exc_info[2])]


def test_a_mismatch_is_logged(caplog):
    names = iter(["one", "uno"])

    async def renamed(ctx: Context) -> None:
        await ctx.run(next(names), int)
        await ctx.sleep(1)

    journal = make_journal(renamed)
    attempt(journal)
    attempt(journal)
    (message,) = caplog.messages
    assert_names(message, NAMED, "S.renamed", "Entry 1", "'one'", "'uno'")
