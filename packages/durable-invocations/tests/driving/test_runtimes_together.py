"""Several runtimes on one database: each invocation is driven by one, and a zombie's is refused."""

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
from runtime_support.endpoints.asgi_servers import hypercorn_of, run
from runtime_support.endpoints.scripted_service import Scripted
from runtime_support.runtimes.sqlite_runtime import running, store_at, until

OK = Value(value=b"null")


@asynccontextmanager
async def together(tmp_path, script, *settings):
    """Runtimes with these settings on one database, and a deployment of this script."""
    with hypercorn_of(Scripted(script)) as served:
        async with AsyncExitStack() as stack:
            runtimes = [
                await stack.enter_async_context(running(tmp_path, **each)) for each in settings
            ]
            await runtimes[0].runtime.register(served.url)
            yield runtimes


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_each_invocation_is_driven_by_one_of_two_runtimes(request, tmp_path, database):
    begun = Counter()
    on = {"database": request.getfixturevalue("postgres") if database == "postgresql" else None}

    async def script(stream, _):
        begun[stream.start.debug_id] += 1
        await stream.send(pb.RunEntryMessage(value=b"1"), requires_ack=True)
        assert (await stream.next()).message().entry_index == 1
        await stream.output()

    async with together(tmp_path, script, on, on) as (one, two):
        sent = [await each.submit("S/h") for _ in range(20) for each in (one, two)]
        # Each waits for what the other was asked for, too.
        results = await asyncio.gather(*(each.end(id_) for id_ in sent for each in (one, two)))
        shown = [one.store.invocation(each) for each in sent]
    assert set(results) == {OK}
    assert begun == Counter(sent)
    assert {(each.status, each.attempts, each.entries) for each in shown} == {
        (Status.COMPLETED, 1, 3)
    }


async def test_what_one_runtime_is_told_reaches_the_stream_that_another_holds(tmp_path):
    waiting = threading.Event()

    async def script(stream, _):
        await stream.send(pb.AwakeableEntryMessage())
        waiting.set()
        value = (await stream.next()).message().value
        await stream.output(value)

    async with together(tmp_path, script, {}, {}) as (one, two):
        id_ = await one.submit("S/h")
        await until(lambda: is_set(waiting))
        driver = one if one.store.invocation(id_).owner == one.store.owner else two
        teller = two if driver is one else one
        name = make_awakeable_id(ids.parse_id(id_), 1)
        await teller.runtime.do(CompleteAwakeable(awakeable=name, result=Value(value=b"7")))
        assert (await teller.end(id_), one.store.invocation(id_).attempts) == (Value(value=b"7"), 1)


async def test_an_invocation_killed_through_one_runtime_is_dropped_by_the_other(tmp_path):
    waiting, dropped = threading.Event(), threading.Event()

    async def script(stream, _):
        await stream.send(pb.AwakeableEntryMessage())
        waiting.set()
        try:
            assert await stream.next() is None
        finally:
            dropped.set()

    async with together(tmp_path, script, {"most": 1}, {"most": 1}) as (one, two):
        id_ = await one.submit("S/h")
        await until(lambda: is_set(waiting))
        await until(lambda: stored(one, id_, 2))
        for each in (two, one):
            await each.runtime.do(Kill(id=id_))
        result = await one.end(id_)
        await until(lambda: is_set(dropped))
        journal = one.journal(id_)
    assert result.code == 409
    assert [each.frame.kind.name for each in journal][:2] == ["Input", "Awakeable"]


async def test_a_dead_runtimes_invocations_are_taken_over_and_its_late_entries_refused(tmp_path):
    """The zombie holds its stream while the other one drives the invocation to its end."""
    begun, let_go, refused = threading.Event(), threading.Event(), threading.Event()

    async def script(stream, number):
        if number == 1:
            begun.set()
            await asyncio.get_running_loop().run_in_executor(None, let_go.wait, 40)
            await stream.send(pb.RunEntryMessage(value=b"late", name="late"), requires_ack=True)
            # The stream is broken off instead of an ack.
            if await stream.next() is None:
                refused.set()
            return
        await stream.send(pb.RunEntryMessage(value=b"2", name="second"), requires_ack=True)
        await stream.next()
        await stream.output(b'"second"')

    with hypercorn_of(Scripted(script)) as served:
        async with running(tmp_path, served.url, beat=10_000) as zombie:
            id_ = await zombie.submit("S/h")
            await until(lambda: is_set(begun))
            behind = SteadyClock(wall=lambda: 1_000_000.0)
            async with running(tmp_path, clock=behind, silent=0.1) as other:
                result = await other.end(id_)
                let_go.set()
                await until(lambda: is_set(refused))
                journal = other.journal(id_)
                shown = other.store.invocation(id_)
    assert result == Value(value=b'"second"')
    assert [each.name for each in journal if each.name] == ["second"]
    assert shown.attempts == 2


async def test_a_runtime_that_lives_is_not_taken_over_whatever_its_clock_says(tmp_path):
    begun, let_go = threading.Event(), threading.Event()

    async def script(stream, number):
        begun.set()
        await asyncio.get_running_loop().run_in_executor(None, let_go.wait, 40)
        await stream.output(b"%d" % number)

    with hypercorn_of(Scripted(script)) as served:
        past = SteadyClock(wall=lambda: 1_000_000.0)
        async with running(tmp_path, served.url, clock=past, beat=0.05) as one:
            id_ = await one.submit("S/h")
            await until(lambda: is_set(begun))
            async with running(tmp_path, silent=3.0, beat=0.05) as two:
                before = one.store.read_beats()[one.store.owner]
                await until(lambda: beaten(two, one.store.owner, before + 8))
                let_go.set()
                assert await two.end(id_) == Value(value=b"1")
                assert two.store.invocation(id_).attempts == 1


async def is_set(event):
    return event.is_set() or None


async def stored(driven, id_, entries):
    return len(driven.journal(id_)) == entries or None


async def beaten(driven, owner, beat):
    return driven.store.read_beats().get(owner, 0) >= beat or None


def test_a_runtime_whose_database_is_away_does_not_start_and_leaves_no_thread(tmp_path):
    store = store_at(tmp_path)

    def away(_):
        raise UnavailableError("the database is away")

    store.run = away

    async def inside():
        with pytest.raises(UnavailableError, match="is away"):
            async with Runtime(store, RuntimeSettings(patience=0.01)):
                pytest.fail("it runs")

    run(inside())
    store.engine.dispose()
    assert not [each for each in threading.enumerate() if each.name == "invocations-writer"]


async def test_who_waits_for_what_another_runtime_ended_and_forgot_is_told(tmp_path):
    async def script(stream, _):
        await stream.next()

    async with together(tmp_path, script, {}, {}) as (one, two):
        id_ = await one.submit("S/h")
        waiting = asyncio.ensure_future(one.end(id_))
        await one.until(id_, Status.RUNNING, Status.READY)
        # Both in one transaction, so that no look of the other comes between them.
        two.store.run([Kill(id=id_), Purge(id=id_)])
        assert await waiting is None


async def test_a_runtime_forgets_what_ended_once_its_retention_is_over_and_nothing_else(tmp_path):
    days = [0.0]
    clock = SteadyClock(wall=lambda: time.time() + days[0] * 86_400)

    async def script(stream, _):
        if stream.entries[0].message().value != b'"ends"':
            await stream.send(pb.AwakeableEntryMessage())
            assert await stream.next() is None
        await stream.output()

    async def forgotten(driven, id_):
        return await driven.runtime.read(driven.store.invocation, id_) is None or None

    async with together(tmp_path, script, {"clock": clock, "prune": 0.05}) as (one,):
        kept = await one.submit("S/h", "waits", idempotency_key="waits")
        ended = await one.submit("S/h", "ends", idempotency_key="ends")
        await one.end(ended)
        days[0] = 0.999
        assert await one.submit("S/h", "ends", idempotency_key="ends") == ended
        days[0] = 1.001
        await until(lambda: forgotten(one, ended))
        assert await one.submit("S/h", "waits", idempotency_key="waits") == kept
        assert await one.submit("S/h", "ends", idempotency_key="ends") != ended
