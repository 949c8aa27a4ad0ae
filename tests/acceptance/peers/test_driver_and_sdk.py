"""The tests' own driver of the protocol, held against an independent SDK: restate-sdk."""

import asyncio

import pytest
from hypothesis import given, settings

from support.invocations.faults import JOURNEY_ENTRIES, NAMES, cuts, journey, many, orders, plans
from support.invocations.scenarios import SCENARIOS
from support.peers.protocol_peer import Peer

SDK_VERSION = 2
WAYS = pytest.mark.parametrize("duplex", [False, True], ids=["exchange", "duplex"])


@pytest.fixture(scope="session")
def new_peer(sdk_endpoint):
    # Once a request has ended, that SDK waits for the other side to leave before it ends too.
    def make(duplex):
        return Peer(sdk_endpoint.url, duplex=duplex, version=SDK_VERSION, hang_up=True)

    return make


@WAYS
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
async def test_driver_drives_restate_sdk(new_peer, tmp_path, scenario, duplex):
    async with new_peer(duplex) as peer:
        await scenario(peer, tmp_path / "effects")


@WAYS
async def test_journey_of_restate_sdk_survives_a_crash_at_each_entry(new_peer, tmp_path, duplex):
    async with new_peer(duplex) as peer:
        of = await journey(peer, tmp_path, plan=next(iter(cuts(2))))
        assert len(of.journal) == JOURNEY_ENTRIES, [each.name for each in of.journal]
        for plan in cuts(JOURNEY_ENTRIES):
            await journey(peer, tmp_path, plan)
            assert not plan.cuts, "the stream never came to the entry"


@settings(max_examples=15)
@given(plan=plans(JOURNEY_ENTRIES), of_calls=orders(len(NAMES) + 1))
def test_restate_sdk_ends_the_same_whatever_goes_wrong(new_peer, tmp_path_factory, plan, of_calls):
    async def scene():
        async with new_peer(duplex=True) as peer:
            folder = tmp_path_factory.mktemp("plan")
            await journey(peer, folder, plan)
            await many(peer, folder, of_calls)

    asyncio.run(scene())
