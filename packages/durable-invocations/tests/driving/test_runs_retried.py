"""The runtime stores the failed executions of runs from attempt to attempt, and only these."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from durable_invocations import Context, RunRetry, Service, TerminalError, service_app
from durable_invocations.protocol import failures
from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.runtime.driving.attempt_effects import MOST_RUNS
from durable_invocations.runtime.retries import RetryPolicy
from runtime_support.endpoints.asgi_servers import bound, hypercorn_of, run, uvicorn_of
from runtime_support.endpoints.scripted_service import Scripted
from runtime_support.runtimes.sqlite_runtime import running, until

BOTH = pytest.mark.parametrize("server", [uvicorn_of, hypercorn_of], ids=["http1", "http2"])
ENDLESS = RetryPolicy(initial=0.01, factor=1, cap=0.01, attempts=None)
REFUSALS = 5
executed = Counter()
payments = Service("Payments")


@payments.handler
async def pay(ctx: Context, attempts: int) -> str:
    retry = RunRetry(initial=1, factor=1, cap=1, attempts=attempts, within=300)
    try:
        return await ctx.run("charge", charge, retry=retry)
    except TerminalError as error:
        return str(error)


def charge() -> str:
    executed["charge"] += 1
    raise OSError("no route")


@payments.handler
async def both(ctx: Context) -> str:
    first = ctx.run("slow", slow)
    second = ctx.run("fails", fails, retry=RunRetry(initial=0.01, attempts=2))
    try:
        await ctx.gather(first, second)
    except TerminalError as error:
        return f"{await first}, {error}"
    return "not reached"


async def slow() -> str:
    executed["slow"] += 1
    # Longer than a failed run waits for it, as long as the other is tried again.
    await asyncio.sleep(3 if executed["fails"] < 2 else 0)
    return "done"


async def fails() -> None:
    executed["fails"] += 1
    raise OSError("unplugged")


@pytest.fixture(autouse=True)
def _fresh():
    executed.clear()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_refused_connections_are_no_attempts_of_a_run(request, tmp_path, database):
    listening, port = bound()
    listening.close()
    app = service_app(payments)
    url = request.getfixturevalue("postgres") if database == "postgresql" else None

    async def fail_once(driver):
        with uvicorn_of(app, port=port) as server:
            await driver.runtime.register(server.url)
            id_ = await driver.submit("Payments/pay", 3)
            await until(lambda: get_run_counts(driver, id_) == [1])
        return id_

    async def be_refused(driver, id_):
        before = driver.store.invocation(id_).attempts
        await until(lambda: driver.store.invocation(id_).attempts >= before + REFUSALS)
        assert executed["charge"] == 1

    async with running(tmp_path, policy=ENDLESS, database=url) as driver:
        id_ = await fail_once(driver)
        await be_refused(driver, id_)
    # The counts are in the database, not in the runtime.
    async with running(tmp_path, policy=ENDLESS, database=url) as driver:
        await be_refused(driver, id_)
        with uvicorn_of(app, port=port):
            assert (await driver.end(id_)).value == b'"OSError: no route"'
    assert executed["charge"] == 3


def get_run_counts(driver, id_):
    """How many executions of each run failed, as far as the runtime knows."""
    error = driver.store.invocation(id_).error
    return [attempts.count for attempts in (error and error.run_attempts) or ()]


@BOTH
async def test_a_run_ends_by_its_policy_though_an_earlier_one_goes_on(tmp_path, server):
    with server(service_app(payments)) as served:
        async with running(tmp_path, served.url) as driver:
            assert await driver.call("Payments/both") == "done, OSError: unplugged"
    assert executed == {"slow": 2, "fails": 2}


def call_scripted(folder, script, server):
    """Drive one invocation of a scripted handler; the runs in the Start of each attempt."""

    async def call(app):
        with server(app) as served:
            async with running(folder, served.url) as driver:
                await driver.call("S/h")

    app = Scripted(script)
    run(call(app))
    return [failures.read_run_attempts(stream.start.SerializeToString()) for stream in app.streams]


@BOTH
def test_the_next_start_repeats_the_runs_of_the_last_error_that_are_not_stored(tmp_path, server):
    failure = failures.Failure(code=422, message="no such account")
    runs = (
        failures.FailedExecutions(index=1, name="r1", count=1, milliseconds=9),
        failures.FailedExecutions(index=2, name="r2", count=2, milliseconds=8, failure=failure),
    )

    async def script(stream, number):
        if number == 1:
            report = failures.ErrorReport(message="no luck", run_attempts=runs)
            await stream.send(report.written())
        elif number == 2:
            await stream.send(pb.ErrorMessage(code=500, message="by another hand"))
        elif number == 3:
            await stream.send(pb.RunEntryMessage(name="r1", value=b"1"), requires_ack=True)
            await stream.send(pb.ErrorMessage(code=500, message="after an entry"))
        else:
            await stream.output()

    assert call_scripted(tmp_path, script, server) == [(), runs, runs, runs[1:]]


def test_the_runs_that_are_kept_are_bounded(tmp_path):
    name = "x" * failures.MOST_RUN_NAME
    runs = tuple(
        failures.FailedExecutions(index=n, name=f"{name}y", count=1, milliseconds=0)
        for n in range(1, MOST_RUNS + 9)
    )

    async def script(stream, number):
        if number == 1:
            await stream.send(failures.ErrorReport(message="no luck", run_attempts=runs).written())
        else:
            await stream.output()

    _, kept = call_scripted(tmp_path, script, hypercorn_of)
    assert [attempts.index for attempts in kept] == list(range(1, MOST_RUNS + 1))
    assert {attempts.name for attempts in kept} == {name}


def test_errors_of_version_1_have_no_runs():
    report = failures.ErrorReport(message="no luck", run_attempts=())
    assert failures.read_run_attempts(make_frame(report.written(1)).body) is None
    assert failures.read_run_attempts(make_frame(report.written(2)).body) == ()
