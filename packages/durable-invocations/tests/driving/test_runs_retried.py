"""The attempts of runs over the runtime's stores: kept from attempt to attempt, and no others."""

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
WITHOUT_END = RetryPolicy(initial=0.01, factor=1, cap=0.01, attempts=None)
REFUSED = 5
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
async def test_connections_that_are_refused_are_no_attempts_of_a_run(request, tmp_path, database):
    listening, port = bound()
    listening.close()
    app = service_app(payments)
    on = request.getfixturevalue("postgres") if database == "postgresql" else None

    async def begun(driven):
        with uvicorn_of(app, port=port) as served:
            await driven.runtime.register(served.url)
            id_ = await driven.submit("Payments/pay", 3)
            await counted(driven, id_, 1)
        return id_

    async def down(driven, id_):
        tried = driven.store.invocation(id_).attempts
        await reached(lambda: driven.store.invocation(id_).attempts >= tried + REFUSED)
        assert executed["charge"] == 1

    async with running(tmp_path, policy=WITHOUT_END, database=on) as driven:
        id_ = await begun(driven)
        await down(driven, id_)
    # The counts are the database's, not the runtime's.
    async with running(tmp_path, policy=WITHOUT_END, database=on) as driven:
        await down(driven, id_)
        with uvicorn_of(app, port=port):
            assert (await driven.end(id_)).value == b'"OSError: no route"'
    assert executed["charge"] == 3


async def counted(driven, id_, count):
    """Wait until the runtime knows of so many executions that failed."""

    def is_so():
        error = driven.store.invocation(id_).error
        runs = error.run_attempts if error else None
        return [each.count for each in runs or ()] == [count]

    await reached(is_so)


async def reached(is_so):
    async def asked():
        return True if is_so() else None

    await until(asked)


@BOTH
async def test_a_run_ends_by_its_policy_though_an_earlier_one_goes_on(tmp_path, server):
    with server(service_app(payments)) as served:
        async with running(tmp_path, served.url) as driven:
            assert await driven.call("Payments/both") == "done, OSError: unplugged"
    assert executed == {"slow": 2, "fails": 2}


def call_scripted(folder, script, server):
    """Have the runtime drive one invocation whose service endpoint does what the script says."""

    async def inside():
        with server(Scripted(script)) as served:
            async with running(folder, served.url) as driven:
                await driven.call("S/h")

    run(inside())


@BOTH
def test_the_next_start_tells_what_the_last_error_told_of_runs_that_are_not_stored(
    tmp_path, server
):
    gone = failures.Failure(code=422, message="no such account")
    told = [
        failures.RunAttempts(index=1, name="r1", count=1, milliseconds=9),
        failures.RunAttempts(index=2, name="r2", count=2, milliseconds=8, failure=gone),
    ]
    starts = []

    async def script(stream, number):
        starts.append(failures.read_run_attempts(stream.start.SerializeToString()))
        if number == 1:
            report = failures.ErrorReport(message="no luck", run_attempts=tuple(told))
            await stream.send(report.written())
        elif number == 2:
            await stream.send(pb.ErrorMessage(code=500, message="by another hand"))
        elif number == 3:
            await stream.send(pb.RunEntryMessage(name="r1", value=b"1"), requires_ack=True)
            await stream.send(pb.ErrorMessage(code=500, message="after an entry"))
        else:
            await stream.output()

    call_scripted(tmp_path, script, server)
    assert starts == [(), tuple(told), tuple(told), (told[1],)]


def test_what_is_kept_of_runs_has_a_bound(tmp_path):
    name = "x" * failures.MOST_RUN_NAME
    runs = tuple(
        failures.RunAttempts(index=n, name=f"{name}y", count=1, milliseconds=0)
        for n in range(1, MOST_RUNS + 9)
    )
    starts = []

    async def script(stream, number):
        starts.append(failures.read_run_attempts(stream.start.SerializeToString()))
        if number == 1:
            await stream.send(failures.ErrorReport(message="no luck", run_attempts=runs).written())
        else:
            await stream.output()

    call_scripted(tmp_path, script, hypercorn_of)
    assert [each.index for each in starts[1]] == list(range(1, MOST_RUNS + 1))
    assert {each.name for each in starts[1]} == {name}


def test_version_1_is_told_nothing_of_runs():
    told = failures.ErrorReport(message="no luck", run_attempts=())
    assert failures.read_run_attempts(make_frame(told.written(1)).body) is None
    assert failures.read_run_attempts(make_frame(told.written(2)).body) == ()
