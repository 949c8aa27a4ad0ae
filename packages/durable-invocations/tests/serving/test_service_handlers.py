"""Handlers in request/response mode, driven entry by entry as a runtime does."""

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
    KeyedRequest,
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
from runtime_support.endpoints.asgi_stream import ID, attempt, output_of

journal_of = partial(asgi_stream.journal_of, app={"clock": lambda: 1_000.0})


def test_a_handler_that_only_returns():
    async def double(ctx: Context, number: int) -> int:
        return 2 * number

    journal = journal_of(double, b"21")
    assert attempt(journal) == ["Output", "End"]
    assert journal.output.value == b"42"


def test_a_context_tells_of_its_invocation():
    async def told(ctx: Context) -> list[str]:
        return [ctx.id, ctx.key, ctx.headers["x-from"], ctx.headers["x-by"]]

    headers = [("x-by", "sea"), ("x-from", "afar"), ("x-by", "air")]
    journal = journal_of(told, kind=VirtualObject, key="k", headers=headers)
    assert output_of(journal) == b'["inv_1test","k","afar","sea, air"]'


def test_a_run_is_stored_before_the_handler_goes_on():
    ran = []

    async def place(ctx: Context) -> str:
        number = await ctx.run("number", lambda: ran.append(1) or len(ran))
        await ctx.sleep(60)
        return f"number {number}"

    journal = journal_of(place)
    assert attempt(journal) == ["Run", "Suspension"]
    assert journal.entries[1].requires_ack
    assert journal.entries[1].message() == pb.RunEntryMessage(name="number", value=b"1")
    assert journal.last == pb.SuspensionMessage(entry_indexes=[1])
    assert attempt(journal) == ["Sleep", "Suspension"]
    assert journal.last == pb.SuspensionMessage(entry_indexes=[2])
    journal.complete(2)
    assert attempt(journal) == ["Output", "End"]
    assert journal.output.value == b'"number 1"'
    assert ran == [1]


def test_a_run_whose_entry_was_lost_runs_again():
    ran = []

    async def place(ctx: Context) -> int:
        return await ctx.run("number", lambda: ran.append(1) or len(ran))

    journal = journal_of(place)
    attempt(journal, commit=0)
    attempt(journal)
    attempt(journal)
    assert (ran, journal.output.value) == ([1, 1], b"2")


def test_runs_go_side_by_side_and_their_entries_in_order():
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

    journal = journal_of(pair)
    assert attempt(journal) == ["Run", "Run", "OneWayCall", "Suspension"]
    assert [each.message().name for each in journal.entries[1:3]] == ["waits", "sets"]
    assert attempt(journal) == ["Output", "End"]
    assert journal.output.value == b'["first","second"]'


def test_the_end_waits_for_runs_that_nobody_awaits():
    async def left(ctx: Context) -> None:
        ctx.run("left", asyncio.sleep, 0)

    assert attempt(journal_of(left)) == ["Run", "Output", "End"]


def test_a_sleep_wakes_at_its_time():
    async def doze(ctx: Context) -> None:
        await ctx.sleep(1.5, name="nap")
        await ctx.sleep(timedelta(minutes=1))

    journal = journal_of(doze)
    attempt(journal)
    assert journal.entries[1].message() == pb.SleepEntryMessage(wake_up_time=1_001_500, name="nap")
    journal.complete(1)
    attempt(journal)
    assert journal.entries[2].message().wake_up_time == 1_060_000


def test_a_call_and_what_becomes_of_it():
    async def ask(ctx: Context) -> int:
        call = ctx.call(
            "T", "answer", {"a": 1}, key="k", idempotency_key="i", headers={"h": "v"}, returns=int
        )
        told = await call.invocation_id()
        call.cancel()
        return len(told) + await call

    journal = journal_of(ask)
    assert attempt(journal) == ["Call", "GetCallInvocationId", "Suspension"]
    call = journal.entries[1].message()
    assert (call.service_name, call.handler_name, call.key) == ("T", "answer", "k")
    assert (call.parameter, call.idempotency_key) == (b'{"a":1}', "i")
    assert [(each.key, each.value) for each in call.headers] == [("h", "v")]
    assert journal.entries[2].message().call_entry_index == 1
    journal.complete(2, b"abc")
    assert attempt(journal) == ["CancelInvocation", "Suspension"]
    assert journal.entries[3].message().call_entry_index == 1
    journal.complete(1, b"4")
    assert output_of(journal) == b"7"


def test_a_send_now_and_later():
    async def begin(ctx: Context) -> None:
        now = ctx.send("T", "go", b"raw")
        ctx.send("T", "go", None, delay=2, key="k", idempotency_key="i")
        now.cancel()

    journal = journal_of(begin)
    names_ = ["OneWayCall", "OneWayCall", "CancelInvocation", "Output", "End"]
    assert attempt(journal) == names_
    first, second = (each.message() for each in journal.entries[1:3])
    assert (first.parameter, first.invoke_time) == (b"raw", 0)
    assert (second.parameter, second.invoke_time, second.key) == (b"", 1_002_000, "k")
    assert second.idempotency_key == "i"


def test_awakeables():
    async def wait(ctx: Context) -> str:
        id_, answer = ctx.awakeable(str, name="approval")
        ctx.resolve_awakeable("prom_1a", {"to": id_})
        ctx.reject_awakeable("prom_1b", "no", 404)
        return await answer

    journal = journal_of(wait)
    kinds = ["Awakeable", "CompleteAwakeable", "CompleteAwakeable", "Suspension"]
    assert attempt(journal) == kinds
    made, resolved, rejected = (each.message() for each in journal.entries[1:4])
    assert made.name == "approval"
    assert make_awakeable_id(ID, 1) in resolved.value.decode()
    assert (rejected.id, rejected.failure) == ("prom_1b", pb.Failure(code=404, message="no"))
    journal.complete(1, b'"yes"')
    assert output_of(journal) == b'"yes"'


@pytest.mark.parametrize("value", [b"yes", b"7", b"\xff", b'"'])
def test_an_awakeable_or_promise_of_the_wrong_form_is_a_terminal_error(value):
    """It cannot be completed again, so no other attempt would fare better."""

    async def wait(ctx: Context) -> list:
        _, answer = ctx.awakeable(str)
        told = []
        for each in (answer, ctx.promise("mail", str).value()):
            try:
                await each
            except TerminalError as error:
                told.append(error.status)
        return told

    journal = journal_of(wait, kind=Workflow, mark="run", key="k")
    attempt(journal)
    journal.complete(1, value)
    attempt(journal)
    journal.complete(2, value)
    assert attempt(journal)[-2:] == ["Output", "End"]
    assert journal.output.value == b"[400,400]"


def test_promises_of_a_workflow():
    async def talk(ctx: Context) -> list:
        promise = ctx.promise("p")
        peeked = await promise.peek(default="none")
        await promise.resolve(1)
        kept = promise.reject("late")
        value = await promise.value()
        try:
            await kept
        except TerminalError as error:
            return [peeked, value, str(error)]

    journal = journal_of(talk, kind=Workflow, mark="run", key="k")
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
    assert output_of(journal) == b'["none",1,"kept before"]'


def test_other_invocations_are_attached_to_canceled_and_asked():
    async def look(ctx: Context) -> list:
        ctx.cancel("inv_1other")
        done = await ctx.output("inv_1other", default="going on")
        run = ctx.attach(WorkflowRun(workflow="W", key="k"))
        request = KeyedRequest(service="T", handler="h", idempotency_key="i", key="k")
        return [done, *await ctx.gather(run, ctx.attach(request))]

    journal = journal_of(look)
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
    assert output_of(journal) == b'["going on",1,2]'


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


def test_state_that_is_known_whole_asks_the_runtime_nothing():
    state = {"n": b"4", "gone": b"1"}
    journal = journal_of(counts, kind=VirtualObject, key="k", state=state)
    got = attempt(journal)
    reads = ["GetState", "GetState", "GetStateKeys", "ClearAllState", "GetStateKeys"]
    assert got == ["GetState", "GetStateKeys", *CHANGES, *reads, "Output", "End"]
    expected = b'[4,["gone","n"],5,null,["n","raw"],[]]'
    assert journal.output.value == expected
    assert all(each.completed for each in journal.entries if each.kind.completable)
    again = journal_of(counts, kind=VirtualObject, key="k", state=state)
    again.entries = journal.entries[:-1]
    assert attempt(again) == ["Output", "End"]
    assert again.output.value == expected


def test_state_that_is_known_in_part_is_asked_for():
    journal = journal_of(counts, kind=VirtualObject, key="k")
    assert attempt(journal) == ["GetState", "Suspension"]
    journal.complete(1, b"4")
    assert attempt(journal) == ["GetStateKeys", "Suspension"]
    journal.complete(2, make_keys_value([b"n", b"gone"]))
    # What the handler has set or cleared itself it knows.
    assert attempt(journal) == [*CHANGES, "GetState", "GetState", "GetStateKeys", "Suspension"]
    journal.complete(8, make_keys_value([b"raw", b"n"]))
    assert attempt(journal) == ["ClearAllState", "GetStateKeys", "Output", "End"]
    assert journal.output.value == b'[4,["gone","n"],5,null,["n","raw"],[]]'


def test_chance_and_time_are_the_same_in_each_replay():
    async def draw(ctx: Context) -> list:
        drawn = [ctx.random.random(), str(ctx.uuid()), ctx.random.random(), await ctx.time()]
        await ctx.sleep(1)
        return drawn

    first, second = journal_of(draw), journal_of(draw)
    for journal in (first, second):
        attempt(journal)
        second.entries = first.entries[:]
        attempt(journal)
        journal.complete(2)
        attempt(journal)
    assert first.output.value == second.output.value


@pytest.mark.parametrize("winner", ["reply", "late"])
def test_a_choice_is_the_same_in_each_replay(winner):
    async def choose(ctx: Context) -> list:
        reply, late = ctx.call("T", "h"), ctx.sleep(10)
        name, value = await ctx.select(reply=reply, late=late)
        await ctx.sleep(1)
        return [name, value]

    journal = journal_of(choose)
    assert attempt(journal) == ["Call", "Sleep", "Suspension"]
    assert journal.last == pb.SuspensionMessage(entry_indexes=[1, 2])
    journal.complete(1, b"7") if winner == "reply" else journal.complete(2)
    assert attempt(journal) == ["Custom", "Suspension"]
    assert journal.last == pb.SuspensionMessage(entry_indexes=[3])
    # The other is done by now, and chosen no more.
    journal.complete(1, b"7") if winner == "late" else journal.complete(2, EMPTY)
    assert attempt(journal) == ["Sleep", "Suspension"]
    journal.complete(4)
    assert attempt(journal) == ["Output", "End"]
    assert journal.output.value == (b'["reply",7]' if winner == "reply" else b'["late",null]')


def test_a_result_may_be_awaited_twice_and_late():
    async def late(ctx: Context) -> list:
        first, second = ctx.call("T", "a"), ctx.call("T", "b")
        return [await second, await first, await second]

    journal = journal_of(late)
    attempt(journal)
    journal.complete(2, b"2")
    attempt(journal)
    journal.complete(1, b"1")
    assert output_of(journal) == b"[2,1,2]"


def test_chance_is_another_in_each_invocation():
    async def draw(ctx: Context) -> list:
        return [ctx.random.random(), str(ctx.uuid())]

    outputs = []
    for id_ in (b"a" * 16, b"b" * 16):
        journal = journal_of(draw)
        journal.id = id_
        attempt(journal)
        outputs += json.loads(journal.output.value)
    assert len(set(outputs)) == 4


def runs_in(journal):
    return [each.message().name for each in journal.entries if each.kind.name == "Run"]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), max_size=12))
def test_the_result_is_the_same_whatever_entries_are_lost(commits):
    """And what is stored does not run again."""
    effects = []

    async def order(ctx: Context) -> list:
        one = await ctx.run("one", lambda: effects.append("one") or "one")
        call, sleep = ctx.call("T", "h"), ctx.sleep(1)
        ctx.state.set("seen", one)
        name, _ = await ctx.select(call=call, sleep=sleep)
        two = await ctx.run("two", lambda: effects.append("two") or "two")
        return [one, name, two, await call]

    journal = journal_of(order, kind=VirtualObject, key="k")
    for commit in [*commits, *[None] * 6]:
        stored = [name for name in runs_in(journal) if name in effects]
        before = {name: effects.count(name) for name in stored}
        heard = attempt(journal, commit)
        assert {name: effects.count(name) for name in stored} == before
        if heard[-1] == "End" and journal.kinds[-1] == "Output":
            break
        for index, each in enumerate(journal.entries):
            if each.kind.completable and not each.completed:
                journal.complete(index, b"5" if each.kind.name == "Call" else EMPTY)
    assert output_of(journal) == b'["one","call","two",5]'
