"""The wire between the runtime and a service is cut anywhere; each journey ends the same, once."""

from random import Random

import pytest

from support.invocations.faults import JOURNEY, once_after_ack
from support.invocations.project_runtime import running
from support.peers.cut_wire import DOWN, UP, wired

BYTES = {1: {UP: 2_500, DOWN: 1_200}, 2: {UP: 600, DOWN: 700}}
"""How far into a journey's bytes a cut may come, either way, by the version of HTTP."""


@pytest.mark.parametrize("cuts", [5, pytest.param(50, marks=pytest.mark.soak)])
async def test_a_journey_ends_the_same_wherever_its_wire_is_cut(
    url, engine, tmp_path, http, cuts, record_property
):
    chance, effects = Random(http), {}
    async with wired(url) as (wire, wire_url), running(engine, wire_url, http=http) as caller:
        for number in range(cuts):
            way = chance.choice([UP, DOWN])
            wire.arm(way, chance.randrange(BYTES[http][way]))
            file = tmp_path / f"effects {number}"
            assert await caller.call("Counter", "journey", str(file), key=f"k{number}") == JOURNEY
            for name, times in once_after_ack(file.read_text().splitlines()).items():
                effects[name] = effects.get(name, 0) + times
        assert wire.cuts > cuts / 2
        record_property("cuts", wire.cuts)
    record_property("effects", effects)
