"""The project's service endpoint, driven by a driver written from the protocol's text alone."""

import asyncio
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings

from support.invocations import faults
from support.invocations.scenarios import SCENARIOS
from support.paths import ROOT
from support.peers.fault_plans import Plan
from support.peers.protocol_peer import Peer

WAYS = pytest.mark.parametrize("duplex", [False, True], ids=["exchange", "duplex"])
MUCH = 2_000_000
VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])


@pytest.mark.parametrize(
    ("served_by", "duplex"),
    [("endpoint", False), ("endpoint", True), ("endpoint_of_uvicorn", False)],
    ids=["exchange", "duplex", "uvicorn"],
)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
async def test_driver_drives_the_endpoint(request, tmp_path, scenario, served_by, duplex):
    url = request.getfixturevalue(served_by).url
    async with Peer(url, duplex=duplex, version=3) as peer:
        await scenario(peer, tmp_path / "effects")


@WAYS
async def test_megabytes_go_through_the_endpoint(endpoint, duplex):
    async with Peer(endpoint.url, duplex=duplex, version=3) as peer:
        name = "x" * MUCH
        assert await peer.call("Steps", "chain", [name]) == [f"hello {name}"]


@VERSIONS
async def test_the_journey_is_the_same_in_each_version(endpoint, tmp_path, version):
    async with Peer(endpoint.url, duplex=True, version=version) as peer:
        await faults.journey(peer, tmp_path, Plan())


@WAYS
@pytest.mark.parametrize(
    ("drive", "entries"),
    [
        (faults.journey, faults.JOURNEY_ENTRIES),
        (faults.errand, faults.ERRAND_ENTRIES),
        (faults.parallel, faults.PARALLEL_ENTRIES),
    ],
)
async def test_an_invocation_survives_a_crash_at_each_entry(
    endpoint, tmp_path, drive, entries, duplex
):
    async with Peer(endpoint.url, duplex=duplex, version=3) as peer:
        of = await drive(peer, tmp_path, Plan())
        assert len(of.journal) == entries, [each.name for each in of.journal]
        for plan in faults.cuts(entries):
            await drive(peer, tmp_path, plan)
            assert not plan.cuts, "the stream never came to the entry"


@settings(max_examples=30)
@given(
    plan=faults.plans(faults.JOURNEY_ENTRIES),
    of_errand=faults.plans(faults.ERRAND_ENTRIES),
    of_parallel=faults.plans(faults.PARALLEL_ENTRIES),
    of_calls=faults.orders(len(faults.NAMES) + 1),
)
def test_invocations_end_the_same_whatever_goes_wrong(
    endpoint, tmp_path_factory, plan, of_errand, of_parallel, of_calls
):
    async def scene():
        folder = tmp_path_factory.getbasetemp()
        async with Peer(endpoint.url, duplex=True, version=3) as peer:
            await faults.journey(peer, folder, plan)
            await faults.errand(peer, folder, of_errand)
            await faults.parallel(peer, folder, of_parallel)
            await faults.many(peer, folder, of_calls)

    asyncio.run(scene())


def test_driver_knows_the_text_alone():
    """Whatever it imports, none of the code that it is held against comes with it."""
    program = (
        "import sys\nfrom support.peers import endpoint_lies, protocol_peer, runtime_breaches\n"
        "print(*(name for name in sys.modules if name.startswith(('iscp_dagster', 'google'))))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT / "tests",
        env=os.environ | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not ran.stdout.strip()
