"""An endpoint written with restate-sdk is killed while the runtime drives it; each journey ends."""

import asyncio
import time
from collections import Counter
from random import Random

import pytest

from support.invocations.asgi_process import SDK_SERVICES, served
from support.invocations.faults import JOURNEY, once_after_ack
from support.invocations.project_runtime import running
from support.invocations.sdk_venv import sdk_python
from support.workers.soak_length import soak_seconds

SECONDS = soak_seconds(120)
AT_ONCE = 6
APART_SECONDS = 0.1
"""The longest between an endpoint's start and its next death; a journey takes a third of that."""


@pytest.fixture
def mortal_sdk(tmp_path):
    with served(sdk_python(), SDK_SERVICES, tmp_path) as server:
        yield server


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 600)
async def test_journeys_of_restate_sdk_end_once_while_it_is_killed(
    mortal_sdk, engine, tmp_path, http, record_property
):
    chance, done, kills, journeys = Random(http), Counter(), 0, 0

    async def make_journey(caller, number):
        file = tmp_path / f"effects {number}"
        assert await caller.call("Counter", "journey", str(file), key=f"k{number}") == JOURNEY
        effects = once_after_ack(file.read_text().splitlines())
        assert effects.keys() == {"run 0", "run 1"}
        done.update(effects)

    end = time.monotonic() + SECONDS
    async with running(engine, mortal_sdk.url, http=http) as caller:
        while time.monotonic() < end:
            numbers = range(journeys, journeys + AT_ONCE)
            under_way = [asyncio.create_task(make_journey(caller, number)) for number in numbers]
            journeys += AT_ONCE
            for _ in range(chance.randint(1, 3)):
                await asyncio.sleep(APART_SECONDS * chance.random())
                mortal_sdk.kill()
                await asyncio.to_thread(mortal_sdk.start)
                kills += 1
            await asyncio.gather(*under_way)
    record_property("kills", kills)
    record_property("journeys", journeys)
    record_property("done again before the ack", done.total() - 2 * journeys)
