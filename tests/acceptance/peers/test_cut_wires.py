"""The wire between the runtime and a service is cut anywhere; each journey ends the same, once."""

from random import Random

import pytest

from durable_invocations.runtime.sql.database import open_database
from support.invocations.faults import JOURNEY, once_after_ack
from support.invocations.project_runtime import running
from support.peers.cut_wire import DOWN, UP, wired

CUTS = 16
BYTES = {1: {UP: 2_500, DOWN: 1_200}, 2: {UP: 600, DOWN: 700}}
"""How far into a journey's bytes a cut may come, either way, by the version of HTTP."""


@pytest.mark.parametrize("http", [1, 2], ids=["exchange", "duplex"])
@pytest.mark.parametrize("served_by", ["sdk_endpoint", "endpoint"], ids=["sdk", "ours"])
async def test_a_journey_ends_the_same_wherever_its_wire_is_cut(
    request, tmp_path, record_property, served_by, http
):
    engine = open_database(f"sqlite:///{tmp_path}/log.db", keep_open=True)
    chance, effects = Random(http), {}
    there = request.getfixturevalue(served_by).url
    async with wired(there) as (wire, url), running(engine, url, http=http) as caller:
        for number in range(CUTS):
            way = chance.choice([UP, DOWN])
            wire.arm(way, chance.randrange(BYTES[http][way]))
            file = tmp_path / f"effects {number}"
            got = await caller.call("Counter", "journey", str(file), key=f"k{number}")
            assert got == JOURNEY
            for name, times in once_after_ack(file.read_text().splitlines()).items():
                effects[name] = effects.get(name, 0) + times
        assert wire.cuts > CUTS / 2
        record_property("cuts", wire.cuts)
    engine.dispose()
    record_property("effects", effects)
