"""The runtime drives users' handlers, in both modes."""

from __future__ import annotations

import asyncio
import collections
import json
import threading
import time
from dataclasses import replace

import pytest

from durable_invocations import Context, Service, VirtualObject, service_app
from durable_invocations.errors import ConfigError, UnavailableError
from durable_invocations.protocol.results import Value
from durable_invocations.runtime.http.exchange import DeploymentUnreachableError
from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.views import Status
from durable_invocations.runtime.timers import SteadyClock
from runtime_support.endpoints.asgi_servers import hypercorn_of, run, uvicorn_of
from runtime_support.errors import assert_names, raises_naming
from runtime_support.runtimes.sqlite_runtime import running, until

BOTH = pytest.mark.parametrize("server", [uvicorn_of, hypercorn_of], ids=["http1", "http2"])
steps = Service("Steps")
other = Service("Other")
counter = VirtualObject("Counter")
effects = collections.Counter()
may_end = threading.Event()
awakeables = []


@steps.handler
async def three(ctx: Context, tag: str) -> int:
    total = 0
    for number in range(3):
        total += await ctx.run(f"step {number}", effect, f"{tag}/{number}")
    return total


def effect(name: str) -> int:
    effects[name] += 1
    return effects[name]


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
    awakeables.append(name)
    return await answer


@steps.handler
async def deep(ctx: Context, depth: int) -> int:
    if depth == 0:
        return 0
    return 1 + await ctx.call("Steps", "deep", depth - 1)


@steps.handler
async def calls_other(ctx: Context, name: str) -> str:
    return await ctx.call("Other", "greets", name)


@steps.handler
async def hangs(ctx: Context) -> None:
    await ctx.run("hang", may_end.wait, 40)


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
    effects.clear()
    awakeables.clear()
    may_end.clear()
    yield
    may_end.set()


async def get_awakeable():
    """The id of the awakeable that the handler `asks` waits for."""
    (name,) = await until(lambda: awakeables)
    return name


def complete(name, value):
    return op.CompleteAwakeable(awakeable=name, result=Value(value=value))


@BOTH
async def test_each_step_is_executed_once_and_stored(tmp_path, urls, server):
    async with running(tmp_path, urls[server]) as driver:
        id_ = await driver.submit("Steps/three", "a")
        assert await driver.end(id_) == Value(value=b"3")
        journal = driver.journal(id_)
    kinds = [entry.frame.kind.name for entry in journal]
    assert kinds == ["Input", "Run", "Run", "Run", "Output"]
    assert [entry.name for entry in journal][1:4] == ["step 0", "step 1", "step 2"]
    assert effects == {"a/0": 1, "a/1": 1, "a/2": 1}


@pytest.mark.parametrize(("handler", "most"), [("no_steps", 2), ("three", 5)])
async def test_an_invocation_takes_as_few_transactions_as_its_acks_allow(
    tmp_path, urls, handler, most
):
    """One to begin, one for each step whose ack the handler awaits, one to end."""

    quiet = {"beat": 60, "poll": 60, "prune": 60}
    async with running(tmp_path, urls[hypercorn_of], **quiet) as driver:
        run_operations, transactions = driver.store.run, []

        def record(operations):
            transactions.append([type(operation).__name__ for operation in operations])
            return run_operations(operations)

        driver.store.run = record
        assert await driver.call(f"Steps/{handler}", "x") is not None
        writes = [names for names in transactions if not {"Beat", "Claim"} >= set(names)]
    assert len(writes) == most, writes
    assert {"Submit", "Claim"} <= set(writes[0])
    assert {"CommitEntry", "Finish"} <= set(writes[-1])


@BOTH
async def test_a_sleep_ends_within_a_quarter_of_a_second_of_its_time(tmp_path, urls, server):
    """At least one of three does, on a busy machine; a runtime that only polls is 5 s late."""

    async with running(tmp_path, urls[server], poll=5) as driver:
        sleeps = []
        for _ in range(3):
            id_ = await driver.submit("Steps/naps", 0.1)
            assert await driver.end(id_) == Value(value=b'"slept"')
            sleeps.append(driver.journal(id_)[1])
    delays = [sleep.completed_at - sleep.frame.message().wake_up_time for sleep in sleeps]
    assert 0 <= min(delays) <= 250


@BOTH
async def test_an_object_handles_one_invocation_at_a_time_in_order(tmp_path, urls, server):
    async with running(tmp_path, urls[server]) as driver:
        ids = [await driver.submit("Counter/add", 1, key="k") for _ in range(12)]
        assert await driver.call("Counter/add", 5, key="other") == 5
        results = [await driver.end(id_) for id_ in ids]
    assert [int(result.value) for result in results] == list(range(1, 13))


@BOTH
async def test_a_handler_calls_a_handler_of_another_deployment(tmp_path, urls, server):
    with uvicorn_of(service_app(other)) as second:
        async with running(tmp_path, urls[server], second.url) as driver:
            assert await driver.call("Steps/calls_other", "you") == "hello you"


@BOTH
async def test_callers_make_room_for_the_handlers_that_they_call(tmp_path, urls, server):
    """With room for one attempt, a chain of calls ends all the same."""
    settings = {"most": 1, "yield_after": 0.01, "inactivity": 1_000}
    async with running(tmp_path, urls[server], **settings) as driver:
        assert await driver.call("Steps/deep", 4) == 4


async def test_an_invocation_that_waits_is_suspended_after_a_while_and_continues(tmp_path, urls):
    async with running(tmp_path, urls[hypercorn_of], inactivity=0.05) as driver:
        id_ = await driver.submit("Steps/asks")
        await driver.until(id_, Status.SUSPENDED)
        await driver.runtime.do(complete(await get_awakeable(), b'"yes"'))
        result = await driver.end(id_)
        shown = driver.store.invocation(id_)
    assert (result, shown.attempts) == (Value(value=b'"yes"'), 2)


async def test_an_attempt_that_sends_nothing_for_too_long_has_failed(tmp_path, urls):
    patient = RetryPolicy(initial=0.1, factor=1, cap=0.1, attempts=None)
    settings = {"inactivity": 0.02, "abort": 0.2, "policy": patient}
    async with running(tmp_path, urls[hypercorn_of], **settings) as driver:
        id_ = await driver.submit("Steps/hangs")
        waiting = await driver.until(id_, Status.BACKING_OFF)
        may_end.set()
        assert await driver.end(id_) == Value(value=b"")
    assert_names(waiting.error.message, urls[hypercorn_of], "message")


@pytest.mark.parametrize("operation", [op.Kill, op.Cancel])
async def test_an_invocation_that_is_stopped_ends_while_its_stream_is_open(
    tmp_path, urls, operation
):
    async with running(tmp_path, urls[hypercorn_of]) as driver:
        id_ = await driver.submit("Steps/asks")
        await get_awakeable()
        await driver.runtime.do(operation(id=id_))
        result = await driver.end(id_)
    assert result.code == 409


@BOTH
async def test_a_completion_arrives_though_the_answer_to_its_commit_is_lost(tmp_path, urls, server):
    async with running(tmp_path, urls[server]) as driver:
        run = driver.store.run
        losses = [UnavailableError("the connection broke")]

        def lose_answer(operations):
            outcome = run(operations)
            if losses and any(isinstance(each, op.CompleteAwakeable) for each in operations):
                raise losses.pop()
            return outcome

        driver.store.run = lose_answer
        id_ = await driver.submit("Steps/asks")
        answer = complete(await get_awakeable(), b'"yes"')
        assert (await driver.runtime.do(answer)).changed is False
        assert await driver.end(id_) == Value(value=b'"yes"')


async def test_a_completion_arrives_that_comes_before_the_stream_is_opened(tmp_path, urls):
    async with running(tmp_path, urls[hypercorn_of]) as driver:
        id_ = await driver.submit("Steps/asks")
        answer = complete(await get_awakeable(), b'"early"')
        run, do = driver.store.run, driver.runtime.do

        def complete_after_claim(operations):
            outcomes, changes = run(operations)
            if any(isinstance(each, op.Claim) for each in operations) and any(outcomes[-1:]):
                # The next transaction, whose news come in the same turn of the loop.
                _, more = run([answer])
                changes = replace(changes, news=(*changes.news, *more.news))
            return outcomes, changes

        await do(op.Pause(id=id_))
        driver.store.run = complete_after_claim
        await do(op.Resume(id=id_))
        assert await driver.end(id_) == Value(value=b'"early"')


async def test_a_runtime_that_stops_leaves_its_invocations_to_the_next_one(tmp_path, urls):
    async with running(tmp_path, urls[hypercorn_of]) as first:
        id_ = await first.submit("Steps/asks")
        name = await get_awakeable()
    async with running(tmp_path) as second:
        await second.runtime.do(complete(name, b'"later"'))
        assert await second.end(id_) == Value(value=b'"later"')


async def test_a_suspended_invocation_takes_no_task_though_its_timer_runs(tmp_path, urls):
    async with running(tmp_path, urls[uvicorn_of]) as driver:
        before = asyncio.all_tasks()
        for _ in range(3):
            id_ = await driver.submit("Steps/naps", 86_400)
            await driver.until(id_, Status.SUSPENDED)
        await until(lambda: asyncio.all_tasks() == before)


class MovableClock(SteadyClock):
    """A clock whose machine's wall clock a test can put forward and back."""

    def __init__(self, ahead):
        self.ahead = ahead
        super().__init__(wall=lambda: time.time() + self.ahead)


async def test_a_wall_clock_that_is_put_back_holds_up_no_timer(tmp_path, urls):
    clock = MovableClock(ahead=0.0)
    async with running(tmp_path, urls[uvicorn_of], clock=clock) as driver:
        id_ = await driver.submit("Steps/naps", 0.5)
        await driver.until(id_, Status.SUSPENDED)
        clock.ahead = -3_600.0
        assert await driver.end(id_) == Value(value=b'"slept"')


async def test_after_the_wall_clock_was_put_back_waits_are_as_long_as_before(tmp_path, urls):
    async def measure(driver, id_):
        await driver.end(id_)
        invocation = driver.store.invocation(id_)
        return invocation.ended - invocation.created

    clock = MovableClock(ahead=3_600.0)
    async with running(tmp_path, urls[uvicorn_of], clock=clock) as driver:
        clock.ahead = 0.0
        sleeps = await driver.submit("Steps/naps", 0.3)
        sends = await driver.submit("Steps/sends_later", 0.3)
        begin = get_milliseconds()
        delayed = await driver.submit("Steps/no_steps", "x", at=begin + 300)
        stored = get_milliseconds() - begin
        later = json.loads((await driver.end(sends)).value)
        # The waits count from the requests, which come before the invocations are stored.
        waits = [
            await measure(driver, sleeps),
            await measure(driver, delayed) + stored,
            await measure(driver, later) + await measure(driver, sends),
        ]
    assert all(300 <= wait < 60_000 for wait in waits), waits


def get_milliseconds():
    return round(time.time() * 1_000)


async def test_an_attempt_fails_that_raises_an_unexpected_error(tmp_path, urls, caplog):
    async with running(tmp_path, urls[uvicorn_of]) as driver:
        (deployment,) = await driver.runtime.read(driver.store.deployments)
        service = (await driver.runtime.read(driver.store.services))["Steps"]
        moved = replace(deployment, url="no address")
        await driver.runtime.do(op.Register(deployment=moved, services=(service,)))
        paused = await driver.until(await driver.submit("Steps/no_steps", "x"), Status.PAUSED)
    assert_names(paused.error.message, "ConfigError", "'no address'")
    assert {record.exc_info[0] for record in caplog.records if record.exc_info} == {ConfigError}


def test_a_runtime_stops_though_its_database_is_away(tmp_path, caplog):
    def fail(_operations):
        raise UnavailableError("away")

    async def stop():
        async with running(tmp_path, patience=60.0) as driver:
            driver.store.run = fail
            waiting = asyncio.ensure_future(driver.runtime.do(op.Cancel(id="x")))
        with raises_naming(UnavailableError, "away"):
            await waiting

    run(stop(), 20)
    assert_names(caplog.messages[-1], "away")


async def test_an_unknown_invocation_has_no_result(tmp_path):
    async with running(tmp_path) as driver:
        assert await driver.end("inv_1unknown") is None


async def test_an_address_without_a_service_is_not_registered(tmp_path):
    async with running(tmp_path) as driver:
        with raises_naming(DeploymentUnreachableError, "http://127.0.0.1:1"):
            await driver.runtime.register("http://127.0.0.1:1")
        assert driver.store.deployments() == []


async def test_a_deployment_is_registered_with_its_protocol(tmp_path, urls):
    async with running(tmp_path, urls[uvicorn_of], urls[hypercorn_of]) as driver:
        deployments = driver.store.deployments()
        services = driver.store.services()
    protocols = [(deployment.http, deployment.mode.value) for deployment in deployments]
    assert protocols == [(1, "REQUEST_RESPONSE"), (2, "BIDI_STREAM")]
    assert services["Counter"].handler("add").kind.value == "EXCLUSIVE"
    assert services["Steps"].handler("three").kind.value == "SHARED"
