"""Handlers in request/response mode, driven frame by frame as a runtime does."""

from __future__ import annotations

import asyncio

from asgistream import Journal, names

from iscp_dagster.invocations import Context, Service, service_app
from iscp_dagster.invocations.protocol.pb import protocol_pb2 as pb


def served(function, kind=Service):
    service = kind("S")
    service.handler(function)
    return service_app(service)


def test_a_handler_that_only_returns():
    async def double(ctx: Context, number: int) -> int:
        return 2 * number

    journal = Journal(served(double), "S/double", b"21")
    heard = asyncio.run(journal.attempt())
    assert names(heard) == ["Output", "End"]
    assert journal.output.value == b"42"


def test_a_run_is_stored_before_the_handler_goes_on():
    ran = []

    async def place(ctx: Context) -> str:
        number = await ctx.run("number", lambda: ran.append(1) or len(ran))
        await ctx.sleep(60)
        return f"number {number}"

    journal = Journal(served(place), "S/place")
    assert names(asyncio.run(journal.attempt())) == ["Run", "Suspension"]
    assert journal.entries[1].requires_ack
    assert journal.last == pb.SuspensionMessage(entry_indexes=[1])
    assert names(asyncio.run(journal.attempt())) == ["Sleep", "Suspension"]
    assert journal.last == pb.SuspensionMessage(entry_indexes=[2])
    journal.complete(2)
    assert names(asyncio.run(journal.attempt())) == ["Output", "End"]
    assert journal.output.value == b'"number 1"'
    assert ran == [1]
