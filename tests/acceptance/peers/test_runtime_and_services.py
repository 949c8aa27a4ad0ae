"""The project's runtime drives services written with restate-sdk, and with the project itself."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from durable_invocations import Context, Service, service_app
from durable_invocations.runtime.sql.database import open_database
from runtime_support.endpoints.asgi_servers import hypercorn_of
from support.invocations.faults import JOURNEY, PARALLEL, done_errand
from support.invocations.project_runtime import running
from support.invocations.scenarios import SCENARIOS, promise_kept, until
from support.invocations.sdk_venv import sdk_python

MUCH = 2_000_000
MODES = {1: "REQUEST_RESPONSE", 2: "BIDI_STREAM"}
SERVED = pytest.mark.parametrize("served_by", ["sdk_endpoint", "endpoint"], ids=["sdk", "ours"])
WAYS = pytest.mark.parametrize("http", MODES, ids=["exchange", "duplex"])


@pytest.fixture
def engine(tmp_path):
    made = open_database(f"sqlite:///{tmp_path}/log.db", keep_open=True)
    yield made
    made.dispose()


@pytest.fixture
def url(served_by, request):
    return request.getfixturevalue(served_by).url


@WAYS
@SERVED
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
async def test_runtime_drives_services(url, engine, tmp_path, scenario, http):
    async with running(engine, url, http=http) as caller:
        await scenario(caller, tmp_path / "effects")


@WAYS
@SERVED
async def test_runtime_speaks_as_the_deployment_does(url, engine, http):
    async with running(engine, url, http=http) as caller:
        (deployment,) = (await caller.http.get("/admin/deployments")).json()["deployments"]
        assert deployment["mode"] == MODES[http]


@WAYS
async def test_runtime_drives_what_runs_at_once(endpoint, engine, tmp_path, http):
    async with running(engine, endpoint.url, http=http) as caller:
        assert await caller.call("Newer", "parallel", str(tmp_path / "effects")) == PARALLEL


@WAYS
async def test_runtime_does_the_entries_of_version_3(endpoint, engine, http):
    async with running(engine, endpoint.url, http=http) as caller:
        assert await caller.call("Newer", "errand", "you") == done_errand("you")


@WAYS
@SERVED
async def test_what_waits_in_a_service_is_canceled(url, engine, http):
    async with running(engine, url, http=http) as caller:
        id_ = await caller.send("Steps", "nap", 3_600)

        async def sleeps():
            return len((await caller.shown(id_))["journal"]) == 2

        await until(sleeps)
        answer = await caller.http.patch(f"/admin/invocations/{id_}/cancel")
        assert answer.status_code in {200, 202}, answer.text
        ended = await caller.http.get(f"/restate/invocation/{id_}/attach")
        assert (ended.status_code, ended.json()["message"]) == (409, "canceled")


@WAYS
@SERVED
async def test_megabytes_go_both_ways(url, engine, http):
    async with running(engine, url, http=http) as caller:
        name = "x" * MUCH
        assert await caller.call("Steps", "chain", [name]) == [f"hello {name}"]


@WAYS
@SERVED
async def test_a_handler_of_one_deployment_calls_those_of_another(url, engine, http):
    bridge = Service("Bridge")

    @bridge.handler
    async def cross(ctx: Context, name: str) -> list[str]:
        back = await ctx.call("Counter", "add", 1, key=name)
        return [await ctx.call("Steps", "greet", name), back]

    with hypercorn_of(service_app(bridge)) as near:
        async with running(engine, url, http=http) as caller:
            await caller.register(near.url)
            assert await caller.call("Bridge", "cross", "you") == ["hello you", 1]


@WAYS
@SERVED
async def test_runtime_drives_the_journey(url, engine, tmp_path, http):
    async with running(engine, url, http=http) as caller:
        file = str(tmp_path / "effects")
        assert await caller.call("Counter", "journey", file, key="one") == JOURNEY


ENTRIES_OF_CALLS = {
    "input": {"Input"},
    "write_output_success": {"Output"},
    "write_output_failure": {"Output"},
    "get_state": {"GetState"},
    "get_state_keys": {"GetStateKeys"},
    "set_state": {"SetState"},
    "clear_state": {"ClearState"},
    "clear_all_state": {"ClearAllState"},
    "sleep": {"Sleep"},
    "call": {"Call"},
    "send": {"OneWayCall"},
    "awakeable": {"Awakeable"},
    "complete_awakeable_success": {"CompleteAwakeable"},
    "complete_awakeable_failure": {"CompleteAwakeable"},
    "get_promise": {"GetPromise"},
    "peek_promise": {"PeekPromise"},
    "complete_promise_success": {"CompletePromise"},
    "complete_promise_failure": {"CompletePromise"},
    "run_enter": {"Run"},
    "run_exit_success": {"Run"},
    "run_exit_failure": {"Run"},
    "run_exit_failure_transient": set(),
    "end": set(),
}
"""The entries that each call of restate-sdk's state machine makes."""


@WAYS
def test_runtime_stores_every_entry_that_restate_sdk_has(sdk_endpoint, engine, tmp_path, http):
    program = "from restate._internal import PyVM; print(*dir(PyVM))"
    ran = subprocess.run([sdk_python(), "-c", program], capture_output=True, text=True, check=True)
    calls = {name.removeprefix("sys_") for name in ran.stdout.split() if name.startswith("sys_")}
    assert calls == ENTRIES_OF_CALLS.keys()

    async def scene():
        async with running(engine, sdk_endpoint.url, http=http) as caller:
            await caller.call("Counter", "journey", str(tmp_path / "effects"), key="one")
            await promise_kept(caller, tmp_path)
            listed = (await caller.http.get("/admin/invocations")).json()["invocations"]
            shown = [await caller.shown(each["id"]) for each in listed]
            return {entry["type"] for each in shown for entry in each["journal"]}

    assert asyncio.run(scene()) == set().union(*ENTRIES_OF_CALLS.values())


async def test_responses_that_an_sdk_leaves_open_hold_no_place(sdk_endpoint, engine):
    # Over HTTP/1.1 a handler of that SDK which suspends waits for the runtime to leave.
    async with running(engine, sdk_endpoint.url, http=1, most=2) as caller:
        every = [caller.call("Steps", "nap", 0.05) for _ in range(12)]
        assert await asyncio.wait_for(asyncio.gather(*every), 5) == ["rested"] * 12


def test_a_thousand_requests_break_no_stream_off(endpoint, engine, caplog):
    async def scene():
        # Hypercorn ends a connection with its thousandth request, whatever else goes on there.
        async with running(engine, endpoint.url, http=2, most=32) as caller:
            names = [str(number) for number in range(40)]
            for _ in range(30):
                got = await caller.call("Steps", "many", names)
                assert got == [f"hello {name}" for name in names]

    asyncio.run(scene())
    assert not [each for each in caplog.records if "attempt failed" in each.getMessage()]
