"""A driver written from the protocol's text alone, with services of the project and restate-sdk."""

import asyncio
import os
import subprocess
import sys
from functools import partial

import pytest
from hypothesis import given, settings

from support.invocations import faults
from support.invocations.scenarios import play_all
from support.paths import ROOT
from support.peers.fault_plans import Plan
from support.peers.protocol_peer import Peer


@pytest.fixture(scope="session")
def new_peer(endpoint):
    return partial(Peer, endpoint.url, version=3)


@pytest.fixture(scope="session")
def new_uvicorn_peer(endpoint_of_uvicorn):
    return partial(Peer, endpoint_of_uvicorn.url, version=3)


@pytest.fixture(scope="session")
def new_sdk_peer(sdk_endpoint):
    # Once a request has ended, that SDK waits for the other side to leave before it ends too.
    return partial(Peer, sdk_endpoint.url, version=2, hang_up=True)


@pytest.mark.parametrize(
    ("maker", "duplex"),
    [
        ("new_peer", True),
        ("new_uvicorn_peer", False),
        ("new_sdk_peer", True),
        ("new_sdk_peer", False),
    ],
)
async def test_driver_drives_services(request, tmp_path, maker, duplex):
    async with request.getfixturevalue(maker)(duplex=duplex) as peer:
        await play_all(peer, tmp_path)


@pytest.mark.parametrize("version", [1, 2])
async def test_the_journey_is_the_same_in_earlier_versions(endpoint, tmp_path, version):
    async with Peer(endpoint.url, duplex=True, version=version) as peer:
        await faults.drive_journey(peer, tmp_path, Plan())


@pytest.mark.parametrize("duplex", [False, True], ids=["exchange", "duplex"])
@pytest.mark.parametrize(
    ("maker", "drive", "entries"),
    [
        ("new_sdk_peer", faults.drive_journey, faults.JOURNEY_ENTRIES),
        ("new_peer", faults.drive_journey, faults.JOURNEY_ENTRIES),
        ("new_peer", faults.drive_errand, faults.ERRAND_ENTRIES),
        ("new_peer", faults.drive_parallel, faults.PARALLEL_ENTRIES),
    ],
)
async def test_an_invocation_survives_a_crash_at_each_entry(
    request, tmp_path, maker, drive, entries, duplex
):
    async with request.getfixturevalue(maker)(duplex=duplex) as peer:
        invocation = await drive(peer, tmp_path, Plan())
        assert len(invocation.journal) == entries, [entry.name for entry in invocation.journal]
        for stored in (True, False):
            plan = faults.cut_everywhere(entries, stored=stored)
            await drive(peer, tmp_path, plan)
            assert not plan.cuts, "the stream never came to the entry"


def drive_all(new_peer, folder, plans):
    async def drive_each():
        async with new_peer(duplex=True) as peer:
            for drive, plan in plans.items():
                await drive(peer, folder, plan)

    asyncio.run(drive_each())


@settings(max_examples=6)
@given(
    journey=faults.plans(faults.JOURNEY_ENTRIES),
    errand=faults.plans(faults.ERRAND_ENTRIES),
    parallel=faults.plans(faults.PARALLEL_ENTRIES),
    many=faults.orders(len(faults.NAMES) + 1),
)
def test_invocations_end_the_same_whatever_goes_wrong(
    new_peer, tmp_path_factory, journey, errand, parallel, many
):
    plans = {
        faults.drive_journey: journey,
        faults.drive_errand: errand,
        faults.drive_parallel: parallel,
    }
    plans[faults.drive_many] = many
    drive_all(new_peer, tmp_path_factory.getbasetemp(), plans)


@settings(max_examples=4)
@given(journey=faults.plans(faults.JOURNEY_ENTRIES), many=faults.orders(len(faults.NAMES) + 1))
def test_restate_sdk_ends_the_same_whatever_goes_wrong(
    new_sdk_peer, tmp_path_factory, journey, many
):
    plans = {faults.drive_journey: journey, faults.drive_many: many}
    drive_all(new_sdk_peer, tmp_path_factory.getbasetemp(), plans)


def test_driver_knows_the_text_alone():
    """Whatever it imports, none of the code that it is tested against comes with it."""
    program = (
        "import sys\nfrom support.peers import endpoint_lies, protocol_peer, runtime_breaches\n"
        "print(*(name for name in sys.modules if name.startswith(('iscp_dagster', 'google'))))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT / "tests",
        env=os.environ | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not result.stdout.strip()
