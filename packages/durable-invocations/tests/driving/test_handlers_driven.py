"""Users' handlers driven by the runtime, in both modes."""

from __future__ import annotations

import asyncio
import collections
import json
import threading
import time
from dataclasses import replace

import pytest

from durable_invocations import Context, Service, VirtualObject, service_app
from durable_invocations.errors import UnavailableError
from durable_invocations.protocol.results import Value
from durable_invocations.runtime.http.exchange import DeploymentUnreachableError
from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.views import Status
from durable_invocations.runtime.timers import SteadyClock
from runtime_support.endpoints.asgi_servers import hypercorn_of, run, uvicorn_of
from runtime_support.runtimes.sqlite_runtime import running, until

BOTH = pytest.mark.parametrize("server", [uvicorn_of, hypercorn_of], ids=["http1", "http2"])
steps = Service("Steps")
other = Service("Other")
counter = VirtualObject("Counter")
done = collections.Counter()
held = threading.Event()


@steps.handler
async def three(ctx: Context, tag: str) -> int:
    total = 0
    for number in range(3):
        total += await ctx.run(f"step {number}", effect, f"{tag}/{number}")
    return total


def effect(name: str) -> int:
    done[name] += 1
    return done[name]


@steps.handler
async def no_steps(ctx: Context, tag: str) -> str:
    return tag


@steps.handler
async def naps(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "slept"


@steps.handler
async def sends_later(ctx: Context, seconds: float) -> str:
    return await ctx.send("Steps", "no_steps", "x", delay=seconds).invocation_id()


@steps.handler
async def asks(ctx: Context) -> str:
    name, answer = ctx.awakeable()
    done[f"asked {name}"] += 1
    return await answer


@steps.handler
async def deep(ctx: Context, depth: int) -> int:
    if depth == 0:
        return 0
    return 1 + await ctx.call("Steps", "deep", depth - 1)


@steps.handler
async def abroad(ctx: Context, name: str) -> str:
    return await ctx.call("Other", "greets", name)


@steps.handler
async def hangs(ctx: Context) -> None:
    done["hanging"] += 1
    await ctx.run("hang", hang)


def hang() -> None:
    held.wait(40)


@other.handler
async def greets(ctx: Context, name: str) -> str:
    return f"hello {name}"


@counter.handler
async def add(ctx: Context, by: int) -> int:
    total = (await ctx.state.get("total") or 0) + by
    await ctx.run("think", asyncio.sleep, 0)
    ctx.state.set("total", total)
    return total


@pytest.fixture(scope="module")
def urls():
    with (
        uvicorn_of(service_app(steps, counter)) as one,
        hypercorn_of(service_app(steps, counter)) as two,
    ):
        yield {uvicorn_of: one.url, hypercorn_of: two.url}


@pytest.fixture(autouse=True)
def _fresh():
    done.clear()
    held.clear()
    yield
    held.set()


def awakeables():
    return [name.removeprefix("asked ") for name in done if name.startswith("asked ")]


@BOTH
async def test_each_step_is_done_once_and_stands_in_the_journal(tmp_path, urls, server):
    async with running(tmp_path, urls[server]) as driven:
        id_ = await driven.submit("Steps/three", "a")
        assert await driven.end(id_) == Value(value=b"3")
        journal = driven.journal(id_)
    assert [each.frame.kind.name for each in journal] == ["Input", "Run", "Run", "Run", "Output"]
    assert [each.name for each in journal][1:4] == ["step 0", "step 1", "step 2"]
    assert done == {"a/0": 1, "a/1": 1, "a/2": 1}


@pytest.mark.parametrize(("handler", "most"), [("no_steps", 2), ("three", 5)])
async def test_an_invocation_takes_as_few_transactions_as_its_acks_allow(
    tmp_path, urls, handler, most
):
    """One to begin, one for each step whose ack the handler awaits, one to end."""

    quiet = {"beat": 60, "poll": 60, "prune": 60}
    async with running(tmp_path, urls[hypercorn_of], **quiet) as driven:
        run_operations, every = driven.store.run, []

        def counted(operations):
            every.extend([[type(each).__name__ for each in operations]])
            return run_operations(operations)

        driven.store.run = counted
        assert await driven.call(f"Steps/{handler}", "x") is not None
        writes = [each for each in every if not {"Beat", "Claim"} >= set(each)]
    assert len(writes) == most, writes
    assert {"Submit", "Claim"} <= set(writes[0])
    assert {"CommitEntry", "Finish"} <= set(writes[-1])


@BOTH
async def test_a_sleep_ends_within_a_quarter_of_a_second_of_its_time(tmp_path, urls, server):
    """One of three does, on a machine that may be busy; who only polled would be 5 s late."""

    async with running(tmp_path, urls[server], poll=5) as driven:
        slept = []
        for _ in range(3):
            id_ = await driven.submit("Steps/naps", 0.1)
            assert await driven.end(id_) == Value(value=b'"slept"')
            slept.append(driven.journal(id_)[1])
    late = [each.completed_at - each.frame.message().wake_up_time for each in slept]
    assert 0 <= min(late) <= 250


@BOTH
async def test_an_object_handles_one_invocation_at_a_time_in_order(tmp_path, urls, server):
    async with running(tmp_path, urls[server]) as driven:
        sent = [await driven.submit("Counter/add", 1, key="k") for _ in range(12)]
        others = [driven.call("Counter/add", 5, key="other")]
        results = [await driven.end(each) for each in sent]
        others = await asyncio.gather(*others)
    assert [int(each.value) for each in results] == list(range(1, 13))
    assert others == [5]


@BOTH
async def test_a_handler_of_one_deployment_calls_another_ones(tmp_path, urls, server):
    with uvicorn_of(service_app(other)) as second:
        async with running(tmp_path, urls[server], second.url) as driven:
            assert await driven.call("Steps/abroad", "you") == "hello you"


@BOTH
async def test_callers_make_room_for_those_that_they_call(tmp_path, urls, server):
    """With one place for attempts, a chain of calls ends all the same."""
    settings = {"most": 1, "yield_after": 0.01, "inactivity": 1_000}
    async with running(tmp_path, urls[server], **settings) as driven:
        assert await driven.call("Steps/deep", 4) == 4


async def test_an_invocation_that_waits_is_suspended_after_a_while_and_goes_on(tmp_path, urls):
    async with running(tmp_path, urls[hypercorn_of], inactivity=0.05) as driven:
        id_ = await driven.submit("Steps/asks")
        await driven.until(id_, Status.SUSPENDED)
        (name,) = awakeables()
        answer = op.CompleteAwakeable(awakeable=name, result=Value(value=b'"yes"'))
        await driven.runtime.do(answer)
        result = await driven.end(id_)
        shown = driven.store.invocation(id_)
    assert (result, shown.attempts) == (Value(value=b'"yes"'), 2)


async def test_an_attempt_that_says_nothing_for_too_long_has_failed(tmp_path, urls):
    patient = RetryPolicy(initial=0.1, factor=1, cap=0.1, attempts=None)
    settings = {"inactivity": 0.02, "abort": 0.2, "policy": patient}
    async with running(tmp_path, urls[hypercorn_of], **settings) as driven:
        id_ = await driven.submit("Steps/hangs")
        found = await driven.until(id_, Status.BACKING_OFF)
        held.set()
        result = await driven.end(id_)
    assert "sent no message for" in found.error.message
    assert result == Value(value=b"")


@pytest.mark.parametrize("operation", [op.Kill, op.Cancel])
async def test_an_invocation_that_is_stopped_ends_while_its_stream_is_open(
    tmp_path, urls, operation
):
    async with running(tmp_path, urls[hypercorn_of]) as driven:
        id_ = await driven.submit("Steps/asks")
        await until(asked)
        await driven.runtime.do(operation(id=id_))
        result = await driven.end(id_)
    assert result.code == 409


@BOTH
async def test_a_completion_whose_commit_the_database_did_not_tell_of_arrives(
    tmp_path, urls, server
):
    async with running(tmp_path, urls[server]) as driven:
        run = driven.store.run
        losses = [UnavailableError("the connection broke")]

        def lost(operations):
            outcome = run(operations)
            if losses and any(isinstance(each, op.CompleteAwakeable) for each in operations):
                raise losses.pop()
            return outcome

        driven.store.run = lost
        id_ = await driven.submit("Steps/asks")
        (name,) = await until(asked)
        answer = op.CompleteAwakeable(awakeable=name, result=Value(value=b'"yes"'))
        assert (await driven.runtime.do(answer)).changed is False
        assert await driven.end(id_) == Value(value=b'"yes"')


async def test_a_completion_that_is_told_before_the_stream_is_opened_arrives(tmp_path, urls):
    async with running(tmp_path, urls[hypercorn_of]) as driven:
        id_ = await driven.submit("Steps/asks")
        (name,) = await until(asked)
        run, do = driven.store.run, driven.runtime.do
        answer = op.CompleteAwakeable(awakeable=name, result=Value(value=b'"early"'))

        def answered(operations):
            outcomes, changes = run(operations)
            if any(isinstance(each, op.Claim) for each in operations) and any(outcomes[-1:]):
                # The next transaction, which is told of in the same turn of the loop.
                _, more = run([answer])
                changes = replace(changes, news=(*changes.news, *more.news))
            return outcomes, changes

        await do(op.Pause(id=id_))
        driven.store.run = answered
        await do(op.Resume(id=id_))
        assert await driven.end(id_) == Value(value=b'"early"')


async def asked():
    return awakeables() or None


async def test_a_runtime_that_stops_leaves_what_it_drove_to_the_next_one(tmp_path, urls):
    async with running(tmp_path, urls[hypercorn_of]) as first:
        id_ = await first.submit("Steps/asks")
        await until(asked)
    (name,) = awakeables()
    async with running(tmp_path) as second:
        answer = op.CompleteAwakeable(awakeable=name, result=Value(value=b'"later"'))
        await second.runtime.do(answer)
        assert await second.end(id_) == Value(value=b'"later"')


async def test_a_suspended_invocation_takes_no_task_though_its_timer_runs(tmp_path, urls):
    async with running(tmp_path, urls[uvicorn_of]) as driven:
        before = asyncio.all_tasks()
        for _ in range(3):
            id_ = await driven.submit("Steps/naps", 86_400)
            await driven.until(id_, Status.SUSPENDED)

        async def as_before():
            return True if asyncio.all_tasks() == before else None

        assert await until(as_before)


async def test_a_wall_clock_that_is_put_back_holds_up_no_timer(tmp_path, urls):
    machine = {"ahead": 0.0}

    clock = SteadyClock(wall=lambda: time.time() + machine["ahead"])
    async with running(tmp_path, urls[uvicorn_of], clock=clock) as driven:
        id_ = await driven.submit("Steps/naps", 0.5)
        await driven.until(id_, Status.SUSPENDED)
        machine["ahead"] = -3_600.0
        assert await driven.end(id_) == Value(value=b'"slept"')


async def test_after_the_wall_clock_was_put_back_waits_are_as_long_as_they_were(tmp_path, urls):
    machine = {"ahead": 3_600.0}

    async def took(driven, id_):
        await driven.end(id_)
        found = driven.store.invocation(id_)
        return found.ended - found.created

    clock = SteadyClock(wall=lambda: time.time() + machine["ahead"])
    async with running(tmp_path, urls[uvicorn_of], clock=clock) as driven:
        machine["ahead"] = 0.0
        sleeps = await driven.submit("Steps/naps", 0.3)
        sends = await driven.submit("Steps/sends_later", 0.3)
        asked = _now()
        delayed = await driven.submit("Steps/no_steps", "x", at=asked + 300)
        stored = _now() - asked
        later = json.loads((await driven.end(sends)).value)
        # Their times count from when they were asked for, which is before they were stored.
        waits = [
            await took(driven, sleeps),
            await took(driven, delayed) + stored,
            await took(driven, later) + await took(driven, sends),
        ]
    assert all(300 <= each < 60_000 for each in waits), waits


def _now():
    return round(time.time() * 1_000)


async def test_an_attempt_that_breaks_by_itself_has_failed(tmp_path, urls, caplog):
    async with running(tmp_path, urls[uvicorn_of]) as driven:
        (known,) = await driven.runtime.read(driven.store.deployments)
        service = (await driven.runtime.read(driven.store.services))["Steps"]
        moved = replace(known, url="no address")
        await driven.runtime.do(op.Register(deployment=moved, services=(service,)))
        found = await driven.until(await driven.submit("Steps/no_steps", "x"), Status.PAUSED)
    assert "The address 'no address' is not the address" in found.error.message
    assert "its attempt failed unexpectedly" in caplog.text


def test_a_runtime_stops_though_its_database_is_away(tmp_path, caplog):
    def away(_operations):
        raise UnavailableError("away")

    async def inside():
        async with running(tmp_path, patience=60.0) as driven:
            driven.store.run = away
            waiting = asyncio.ensure_future(driven.runtime.do(op.Cancel(id="x")))
        with pytest.raises(UnavailableError, match="away"):
            await waiting

    run(inside(), 20)
    assert "others take this runtime's invocations over later: away" in caplog.text


async def test_an_unknown_invocation_has_no_end(tmp_path):
    async with running(tmp_path) as driven:
        assert await driven.end("inv_1unknown") is None


async def test_an_address_where_nothing_runs_is_not_registered(tmp_path):
    async with running(tmp_path) as driven:
        with pytest.raises(DeploymentUnreachableError):
            await driven.runtime.register("http://127.0.0.1:1")
        assert driven.store.deployments() == []


async def test_a_deployment_is_registered_with_how_it_is_spoken_to(tmp_path, urls):
    async with running(tmp_path, urls[uvicorn_of], urls[hypercorn_of]) as driven:
        deployments = driven.store.deployments()
        services = driven.store.services()
    assert [(each.http, each.mode.value) for each in deployments] == [
        (1, "REQUEST_RESPONSE"), (2, "BIDI_STREAM"),
    ]  # fmt: skip
    assert services["Counter"].handler("add").kind.value == "EXCLUSIVE"
    assert services["Steps"].handler("three").kind.value == "SHARED"
