"""Handlers in request/response mode; a test drives them entry by entry, as a runtime does."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_invocations import (
    Context,
    IdempotentRequest,
    TerminalError,
    VirtualObject,
    Workflow,
    WorkflowRun,
)
from durable_invocations.protocol.awakeables import make_awakeable_id
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import EMPTY, make_keys_value
from runtime_support.endpoints import asgi_stream
from runtime_support.endpoints.asgi_stream import ID, attempt, drive_to_output

make_journal = partial(asgi_stream.make_journal, app={"clock": lambda: 1_000.0})


def test_a_handler_that_only_returns():
    async def double(ctx: Context, number: int) -> int:
        return 2 * number

    journal = make_journal(double, b"21")
    assert attempt(journal) == ["Output", "End"]
    assert journal.output.value == b"42"


def test_a_context_has_the_id_key_and_headers_of_its_invocation():
    async def describe(ctx: Context) -> list[str]:
        return [ctx.id, ctx.key, ctx.headers["x-from"], ctx.headers["x-by"]]

    headers = [("x-by", "sea"), ("x-from", "afar"), ("x-by", "air")]
    journal = make_journal(describe, kind=VirtualObject, key="k", headers=headers)
    assert drive_to_output(journal) == b'["inv_1test","k","afar","sea, air"]'


def test_a_run_is_stored_before_the_handler_continues():
    executions = []

    async def place(ctx: Context) -> str:
        number = await ctx.run("number", lambda: executions.append(1) or len(executions))
        await ctx.sleep(60)
        return f"number {number}"

    journal = make_journal(place)
    assert attempt(journal) == ["Run", "Suspension"]
    assert journal.entries[1].requires_ack
    assert journal.entries[1].message() == pb.RunEntryMessage(name="number", value=b"1")
    assert journal.last == pb.SuspensionMessage(entry_indexes=[1])
    assert attempt(journal) == ["Sleep", "Suspension"]
    assert journal.last == pb.SuspensionMessage(entry_indexes=[2])
    journal.complete(2)
    assert attempt(journal) == ["Output", "End"]
    assert journal.output.value == b'"number 1"'
    assert executions == [1]


def test_a_run_whose_entry_was_lost_is_executed_again():
    executions = []

    async def place(ctx: Context) -> int:
        return await ctx.run("number", lambda: executions.append(1) or len(executions))

    journal = make_journal(place)
    attempt(journal, commit=0)
    attempt(journal)
    attempt(journal)
    assert (executions, journal.output.value) == ([1, 1], b"2")


def test_runs_are_executed_side_by_side_and_their_entries_sent_in_order():
    async def pair(ctx: Context) -> list[str]:
        met = asyncio.Event()

        async def waits():
            await met.wait()
            return "first"

        async def sets():
            met.set()
            return "second"

        one, two = ctx.run("waits", waits), ctx.run("sets", sets)
        ctx.send("S", "pair")
        return await ctx.gather(one, two)

    journal = make_journal(pair)
    assert attempt(journal) == ["Run", "Run", "OneWayCall", "Suspension"]
    assert [entry.message().name for entry in journal.entries[1:3]] == ["waits", "sets"]
    assert attempt(journal) == ["Output", "End"]
    assert journal.output.value == b'["first","second"]'


def test_the_end_waits_for_runs_that_nobody_awaits():
    async def left(ctx: Context) -> None:
        ctx.run("left", asyncio.sleep, 0)

    assert attempt(make_journal(left)) == ["Run", "Output", "End"]


def test_a_sleep_wakes_at_its_time():
    async def doze(ctx: Context) -> None:
        await ctx.sleep(1.5, name="nap")
        await ctx.sleep(timedelta(minutes=1))

    journal = make_journal(doze)
    attempt(journal)
    assert journal.entries[1].message() == pb.SleepEntryMessage(wake_up_time=1_001_500, name="nap")
    journal.complete(1)
    attempt(journal)
    assert journal.entries[2].message().wake_up_time == 1_060_000


def test_a_call_may_be_canceled_and_returns_a_result():
    async def ask(ctx: Context) -> int:
        call = ctx.call(
            "T", "answer", {"a": 1}, key="k", idempotency_key="i", headers={"h": "v"}, returns=int
        )
        id_ = await call.invocation_id()
        call.cancel()
        return len(id_) + await call

    journal = make_journal(ask)
    assert attempt(journal) == ["Call", "GetCallInvocationId", "Suspension"]
    call = journal.entries[1].message()
    assert (call.service_name, call.handler_name, call.key) == ("T", "answer", "k")
    assert (call.parameter, call.idempotency_key) == (b'{"a":1}', "i")
    assert [(header.key, header.value) for header in call.headers] == [("h", "v")]
    assert journal.entries[2].message().call_entry_index == 1
    journal.complete(2, b"abc")
    assert attempt(journal) == ["CancelInvocation", "Suspension"]
    assert journal.entries[3].message().call_entry_index == 1
    journal.complete(1, b"4")
    assert drive_to_output(journal) == b"7"


def test_a_handler_sends_invocations_now_and_later():
    async def begin(ctx: Context) -> None:
        now = ctx.send("T", "go", b"raw")
        ctx.send("T", "go", None, delay=2, key="k", idempotency_key="i")
        now.cancel()

    journal = make_journal(begin)
    kinds = ["OneWayCall", "OneWayCall", "CancelInvocation", "Output", "End"]
    assert attempt(journal) == kinds
    first, second = (entry.message() for entry in journal.entries[1:3])
    assert (first.parameter, first.invoke_time) == (b"raw", 0)
    assert (second.parameter, second.invoke_time, second.key) == (b"", 1_002_000, "k")
    assert second.idempotency_key == "i"


def test_a_handler_waits_for_an_awakeable_and_completes_others():
    async def wait(ctx: Context) -> str:
        id_, answer = ctx.awakeable(str, name="approval")
        ctx.resolve_awakeable("prom_1a", {"to": id_})
        ctx.reject_awakeable("prom_1b", "no", 404)
        return await answer

    journal = make_journal(wait)
    kinds = ["Awakeable", "CompleteAwakeable", "CompleteAwakeable", "Suspension"]
    assert attempt(journal) == kinds
    awaited, resolved, rejected = (entry.message() for entry in journal.entries[1:4])
    assert awaited.name == "approval"
    assert make_awakeable_id(ID, 1) in resolved.value.decode()
    assert (rejected.id, rejected.failure) == ("prom_1b", pb.Failure(code=404, message="no"))
    journal.complete(1, b'"yes"')
    assert drive_to_output(journal) == b'"yes"'


@pytest.mark.parametrize("value", [b"yes", b"7", b"\xff", b'"'])
def test_an_awakeable_or_promise_of_the_wrong_form_is_a_terminal_error(value):
    """It cannot be completed again, so another attempt would fail as well."""

    async def wait(ctx: Context) -> list:
        _, answer = ctx.awakeable(str)
        statuses = []
        for operation in (answer, ctx.promise("mail", str).value()):
            try:
                await operation
            except TerminalError as error:
                statuses.append(error.status)
        return statuses

    journal = make_journal(wait, kind=Workflow, mark="run", key="k")
    attempt(journal)
    journal.complete(1, value)
    attempt(journal)
    journal.complete(2, value)
    assert attempt(journal)[-2:] == ["Output", "End"]
    assert journal.output.value == b"[400,400]"


def test_a_workflow_has_promises():
    async def talk(ctx: Context) -> list:
        promise = ctx.promise("p")
        peeked = await promise.peek(default="none")
        await promise.resolve(1)
        rejection = promise.reject("late")
        value = await promise.value()
        try:
            await rejection
        except TerminalError as error:
            return [peeked, value, str(error)]

    journal = make_journal(talk, kind=Workflow, mark="run", key="k")
    attempt(journal)
    assert journal.kinds[1:] == ["PeekPromise"]
    journal.complete(1)
    attempt(journal)
    assert journal.entries[2].message().completion_value == b"1"
    journal.complete(2)
    attempt(journal)
    assert journal.kinds[3:] == ["CompletePromise", "GetPromise"]
    assert journal.entries[3].message().completion_failure.message == "late"
    journal.complete(4, b"1")
    journal.complete(3, Failure(code=409, message="kept before"))
    assert drive_to_output(journal) == b'["none",1,"kept before"]'


def test_a_handler_may_cancel_and_attach_to_other_invocations_and_read_their_outputs():
    async def look(ctx: Context) -> list:
        ctx.cancel("inv_1other")
        done = await ctx.output("inv_1other", default="going on")
        run = ctx.attach(WorkflowRun(workflow="W", key="k"))
        request = IdempotentRequest(service="T", handler="h", idempotency_key="i", key="k")
        return [done, *await ctx.gather(run, ctx.attach(request))]

    journal = make_journal(look)
    attempt(journal)
    assert journal.kinds[1:] == ["CancelInvocation", "GetInvocationOutput"]
    assert journal.entries[1].message().invocation_id == "inv_1other"
    journal.complete(2)
    attempt(journal)
    assert journal.kinds[3:] == ["AttachInvocation", "AttachInvocation"]
    assert journal.entries[3].message().workflow_target.workflow_key == "k"
    target = journal.entries[4].message().idempotent_request_target
    assert (target.service_key, target.idempotency_key) == ("k", "i")
    journal.complete(4, b"2")
    journal.complete(3, b"1")
    assert drive_to_output(journal) == b'["going on",1,2]'


async def counts(ctx: Context) -> list:
    """Reads and changes state in every way."""
    before = [await ctx.state.get("n", int, default=0), await ctx.state.keys()]
    ctx.state.set("n", before[0] + 1)
    ctx.state.set("raw", b"\x00")
    ctx.state.clear("gone")
    after = [await ctx.state.get("n", int), await ctx.state.get("gone"), await ctx.state.keys()]
    ctx.state.clear_all()
    return [*before, *after, await ctx.state.keys()]


CHANGES = ["SetState", "SetState", "ClearState"]
COUNTS = b'[4,["gone","n"],5,null,["n","raw"],[]]'


def test_complete_state_is_read_without_the_runtime():
    state = {"n": b"4", "gone": b"1"}
    journal = make_journal(counts, kind=VirtualObject, key="k", state=state)
    reads = ["GetState", "GetState", "GetStateKeys", "ClearAllState", "GetStateKeys"]
    assert attempt(journal) == ["GetState", "GetStateKeys", *CHANGES, *reads, "Output", "End"]
    assert journal.output.value == COUNTS
    assert all(entry.completed for entry in journal.entries if entry.kind.completable)
    replay = make_journal(counts, kind=VirtualObject, key="k", state=state)
    replay.entries = journal.entries[:-1]
    assert attempt(replay) == ["Output", "End"]
    assert replay.output.value == COUNTS


def test_partial_state_is_read_from_the_runtime():
    journal = make_journal(counts, kind=VirtualObject, key="k")
    assert attempt(journal) == ["GetState", "Suspension"]
    journal.complete(1, b"4")
    assert attempt(journal) == ["GetStateKeys", "Suspension"]
    journal.complete(2, make_keys_value([b"n", b"gone"]))
    # It knows the keys that it has set or cleared itself.
    assert attempt(journal) == [*CHANGES, "GetState", "GetState", "GetStateKeys", "Suspension"]
    journal.complete(8, make_keys_value([b"raw", b"n"]))
    assert attempt(journal) == ["ClearAllState", "GetStateKeys", "Output", "End"]
    assert journal.output.value == COUNTS


def test_chance_and_time_are_the_same_in_each_replay():
    async def draw(ctx: Context) -> list:
        values = [ctx.random.random(), str(ctx.uuid()), ctx.random.random(), await ctx.time()]
        await ctx.sleep(1)
        return values

    first, second = make_journal(draw), make_journal(draw)
    for journal in (first, second):
        attempt(journal)
        second.entries = first.entries[:]
        attempt(journal)
        journal.complete(2)
        attempt(journal)
    assert first.output.value == second.output.value


def test_chance_is_different_in_each_invocation():
    async def draw(ctx: Context) -> list:
        return [ctx.random.random(), str(ctx.uuid())]

    outputs = []
    for id_ in (b"a" * 16, b"b" * 16):
        journal = make_journal(draw)
        journal.id = id_
        outputs += json.loads(drive_to_output(journal))
    assert len(set(outputs)) == 4


@pytest.mark.parametrize("winner", ["reply", "late"])
def test_a_choice_is_the_same_in_each_replay(winner):
    async def choose(ctx: Context) -> list:
        reply, late = ctx.call("T", "h"), ctx.sleep(10)
        name, value = await ctx.select(reply=reply, late=late)
        await ctx.sleep(1)
        return [name, value]

    journal = make_journal(choose)
    assert attempt(journal) == ["Call", "Sleep", "Suspension"]
    assert journal.last == pb.SuspensionMessage(entry_indexes=[1, 2])
    journal.complete(1, b"7") if winner == "reply" else journal.complete(2)
    assert attempt(journal) == ["Custom", "Suspension"]
    assert journal.last == pb.SuspensionMessage(entry_indexes=[3])
    # The other is done by now, too.
    journal.complete(1, b"7") if winner == "late" else journal.complete(2, EMPTY)
    assert attempt(journal) == ["Sleep", "Suspension"]
    journal.complete(4)
    assert attempt(journal) == ["Output", "End"]
    assert journal.output.value == (b'["reply",7]' if winner == "reply" else b'["late",null]')


def test_a_result_may_be_awaited_twice_and_late():
    async def late(ctx: Context) -> list:
        first, second = ctx.call("T", "a"), ctx.call("T", "b")
        return [await second, await first, await second]

    journal = make_journal(late)
    attempt(journal)
    journal.complete(2, b"2")
    attempt(journal)
    journal.complete(1, b"1")
    assert drive_to_output(journal) == b"[2,1,2]"


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), max_size=12))
def test_the_result_is_the_same_whatever_entries_are_lost(commits):
    """And stored runs are not executed again."""
    effects = []

    async def order(ctx: Context) -> list:
        one = await ctx.run("one", lambda: effects.append("one") or "one")
        call, sleep = ctx.call("T", "h"), ctx.sleep(1)
        ctx.state.set("seen", one)
        name, _ = await ctx.select(call=call, sleep=sleep)
        two = await ctx.run("two", lambda: effects.append("two") or "two")
        return [one, name, two, await call]

    journal = make_journal(order, kind=VirtualObject, key="k")
    for commit in [*commits, *[None] * 6]:
        runs = [entry.message().name for entry in journal.entries if entry.kind.name == "Run"]
        stored = {name: effects.count(name) for name in runs if name in effects}
        frames = attempt(journal, commit)
        assert {name: effects.count(name) for name in stored} == stored
        if frames[-1] == "End" and journal.kinds[-1] == "Output":
            break
        for index, entry in enumerate(journal.entries):
            if entry.kind.completable and not entry.completed:
                journal.complete(index, b"5" if entry.kind.name == "Call" else EMPTY)
    assert drive_to_output(journal) == b'["one","call","two",5]'
