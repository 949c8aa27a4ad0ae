"""When a runtime claims, without a store."""

from __future__ import annotations

import asyncio
import gc

from durable_invocations.errors import UnavailableError
from durable_invocations.runtime.claims import Claimer


class Places:
    """Room for attempts that never begin."""

    free: int = 1
    full: tuple[str, ...] = ()


async def test_a_claim_that_fails_as_the_runtime_stops_brings_no_traceback():
    unhandled, futures = [], []

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context["message"]))

    def put(operation):
        futures.append(loop.create_future())
        return futures[-1]

    claims = Claimer("one", put)
    claims.drive(Places())
    claims.stop()
    futures.pop().set_exception(UnavailableError("the database is away"))
    await asyncio.sleep(0)
    gc.collect()
    assert not unhandled
