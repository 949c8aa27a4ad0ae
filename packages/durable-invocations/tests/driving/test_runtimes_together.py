"""Several runtimes on one database: one of them drives an invocation, and no others write to it."""

import asyncio
import threading
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from durable_invocations.errors import UnavailableError
from durable_invocations.protocol import ids
from durable_invocations.protocol.awakeables import make_awakeable_id
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import Value
from durable_invocations.runtime.runtime import Runtime
from durable_invocations.runtime.settings import RuntimeSettings
from durable_invocations.runtime.store.operations import CompleteAwakeable, Kill, Purge
from durable_invocations.runtime.store.views import Status
from durable_invocations.runtime.timers import SteadyClock
from runtime_support.endpoints.asgi_servers import hypercorn_of
from runtime_support.endpoints.scripted_service import Scripted
from runtime_support.errors import raises_naming
from runtime_support.runtimes.sqlite_runtime import running, store_at, until

OK = Value(value=b"null")


@asynccontextmanager
async def running_together(tmp_path, script, *settings):
    """Runtimes with these settings on one database, and a deployment of this script."""
    with hypercorn_of(Scripted(script)) as server:
        async with AsyncExitStack() as stack:
            runtimes = [
                await stack.enter_async_context(running(tmp_path, **options))
                for options in settings
            ]
            await runtimes[0].runtime.register(server.url)
            yield runtimes


def wait_in_thread(event):
    return asyncio.get_running_loop().run_in_executor(None, event.wait, 40)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_each_invocation_is_driven_by_one_of_two_runtimes(request, tmp_path, database):
    attempts = Counter()
    url = request.getfixturevalue("postgres") if database == "postgresql" else None

    async def script(stream, _):
        attempts[stream.start.debug_id] += 1
        await stream.send(pb.RunEntryMessage(value=b"1"), requires_ack=True)
        assert (await stream.next()).message().entry_index == 1
        await stream.output()

    async with running_together(tmp_path, script, *[{"database": url}] * 2) as (one, two):
        sent = [await driver.submit("S/h") for _ in range(20) for driver in (one, two)]
        # Each runtime also waits for the invocations of the other.
        results = await asyncio.gather(*(driver.end(id_) for id_ in sent for driver in (one, two)))
        invocations = [one.store.invocation(id_) for id_ in sent]
    assert set(results) == {OK}
    assert attempts == Counter(sent)
    ends = {(end.status, end.attempts, end.entries) for end in invocations}
    assert ends == {(Status.COMPLETED, 1, 3)}


async def test_a_completion_at_one_runtime_reaches_the_stream_of_another(tmp_path):
    waiting = threading.Event()

    async def script(stream, _):
        await stream.send(pb.AwakeableEntryMessage())
        waiting.set()
        value = (await stream.next()).message().value
        await stream.output(value)

    async with running_together(tmp_path, script, {}, {}) as (one, two):
        id_ = await one.submit("S/h")
        await until(waiting.is_set)
        other = two if one.store.invocation(id_).owner == one.store.owner else one
        name = make_awakeable_id(ids.parse_id(id_), 1)
        await other.runtime.do(CompleteAwakeable(awakeable=name, result=Value(value=b"7")))
        assert (await other.end(id_), one.store.invocation(id_).attempts) == (Value(value=b"7"), 1)


async def test_an_invocation_killed_through_one_runtime_is_dropped_by_the_other(tmp_path):
    waiting, dropped = threading.Event(), threading.Event()

    async def script(stream, _):
        await stream.send(pb.AwakeableEntryMessage())
        waiting.set()
        try:
            assert await stream.next() is None
        finally:
            dropped.set()

    async with running_together(tmp_path, script, {"most": 1}, {"most": 1}) as (one, two):
        id_ = await one.submit("S/h")
        await until(waiting.is_set)
        await until(lambda: len(one.journal(id_)) == 2)
        for driver in (two, one):
            await driver.runtime.do(Kill(id=id_))
        result = await one.end(id_)
        await until(dropped.is_set)
        journal = one.journal(id_)
    assert result.code == 409
    assert [entry.frame.kind.name for entry in journal][:2] == ["Input", "Awakeable"]


async def test_a_dead_runtimes_invocations_are_taken_over_and_its_late_entries_refused(tmp_path):
    """The zombie keeps its stream open while the other runtime drives the invocation to its end."""
    waiting, may_send, refused = threading.Event(), threading.Event(), threading.Event()

    async def script(stream, number):
        if number == 1:
            waiting.set()
            await wait_in_thread(may_send)
            await stream.send(pb.RunEntryMessage(value=b"late", name="late"), requires_ack=True)
            # The stream is broken off instead of an ack.
            if await stream.next() is None:
                refused.set()
            return
        await stream.send(pb.RunEntryMessage(value=b"2", name="second"), requires_ack=True)
        await stream.next()
        await stream.output(b'"second"')

    with hypercorn_of(Scripted(script)) as server:
        async with running(tmp_path, server.url, beat=10_000) as zombie:
            id_ = await zombie.submit("S/h")
            await until(waiting.is_set)
            behind = SteadyClock(wall=lambda: 1_000_000.0)
            async with running(tmp_path, clock=behind, silent=0.1) as other:
                result = await other.end(id_)
                may_send.set()
                await until(refused.is_set)
                journal, attempts = other.journal(id_), other.store.invocation(id_).attempts
    assert result == Value(value=b'"second"')
    assert [entry.name for entry in journal if entry.name] == ["second"]
    assert attempts == 2


async def test_a_living_runtime_is_not_taken_over_whatever_its_clock_says(tmp_path):
    waiting, may_end = threading.Event(), threading.Event()

    async def script(stream, number):
        waiting.set()
        await wait_in_thread(may_end)
        await stream.output(b"%d" % number)

    with hypercorn_of(Scripted(script)) as server:
        past = SteadyClock(wall=lambda: 1_000_000.0)
        async with running(tmp_path, server.url, clock=past, beat=0.05) as one:
            id_ = await one.submit("S/h")
            await until(waiting.is_set)
            async with running(tmp_path, silent=3.0, beat=0.05) as two:
                owner = one.store.owner
                before = one.store.read_beats()[owner]
                await until(lambda: two.store.read_beats().get(owner, 0) >= before + 8)
                may_end.set()
                assert await two.end(id_) == Value(value=b"1")
                assert two.store.invocation(id_).attempts == 1


async def test_a_runtime_whose_database_is_away_does_not_start_and_leaves_no_thread(tmp_path):
    store = store_at(tmp_path)

    def fail(_):
        raise UnavailableError("the database is away")

    store.run = fail
    with raises_naming(UnavailableError, "away"):
        async with Runtime(store, RuntimeSettings(patience=0.01)):
            pytest.fail("it runs")
    store.engine.dispose()
    assert "invocations-writer" not in {thread.name for thread in threading.enumerate()}


async def test_a_wait_ends_though_another_runtime_ended_and_forgot_the_invocation(tmp_path):
    async def script(stream, _):
        await stream.next()

    async with running_together(tmp_path, script, {}, {}) as (one, two):
        id_ = await one.submit("S/h")
        waiting = asyncio.ensure_future(one.end(id_))
        await one.until(id_, Status.RUNNING, Status.READY)
        # Both in one transaction, so that the other runtime does not see the end.
        two.store.run([Kill(id=id_), Purge(id=id_)])
        assert await waiting is None


async def test_a_runtime_forgets_ended_invocations_after_their_retention_and_no_others(tmp_path):
    days = [0.0]
    clock = SteadyClock(wall=lambda: time.time() + days[0] * 86_400)

    async def script(stream, _):
        if stream.entries[0].message().value != b'"ends"':
            await stream.send(pb.AwakeableEntryMessage())
            assert await stream.next() is None
        await stream.output()

    async with running_together(tmp_path, script, {"clock": clock, "prune": 0.05}) as (driver,):

        def submit(name):
            return driver.submit("S/h", name, idempotency_key=name)

        kept, ended = await submit("waits"), await submit("ends")
        await driver.end(ended)
        days[0] = 0.999
        assert await submit("ends") == ended
        days[0] = 1.001
        await until(lambda: driver.store.invocation(ended) is None)
        assert await submit("waits") == kept
        assert await submit("ends") != ended
