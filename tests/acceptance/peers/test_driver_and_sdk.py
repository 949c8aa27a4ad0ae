"""The tests' own driver of the protocol, held against an independent SDK: restate-sdk."""

from __future__ import annotations

import asyncio

import pytest
from peer import Peer
from scenarios import SCENARIOS

SDK_VERSION = 2


@pytest.mark.parametrize("duplex", [False, True], ids=["exchange", "duplex"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_driver_drives_restate_sdk(sdk_endpoint, tmp_path, scenario, duplex):
    async def scene():
        # Over HTTP/1.1 that SDK waits for the other side to leave before it ends a response.
        async with Peer(
            sdk_endpoint.url, duplex=duplex, version=SDK_VERSION, hang_up=not duplex
        ) as peer:
            await scenario(peer, tmp_path / "effects")

    asyncio.run(scene())
