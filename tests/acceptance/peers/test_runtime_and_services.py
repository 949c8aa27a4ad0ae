"""The project's runtime drives services written with restate-sdk, and with the project itself."""

from __future__ import annotations

import asyncio
import subprocess

from hypercorn.config import Config

from durable_invocations.runtime.http import connection2
from runtime_support.endpoints.asgi_servers import hypercorn_of
from support.invocations import project_services
from support.invocations.faults import PARALLEL, done_errand
from support.invocations.project_runtime import running
from support.invocations.scenarios import keeps_a_promise, play_all, until
from support.invocations.sdk_venv import sdk_python

MUCH = 2_000_000
MODES = {1: "REQUEST_RESPONSE", 2: "BIDI_STREAM"}


async def test_runtime_drives_services(url, engine, tmp_path, http):
    """The scenes, megabytes both ways, and a cancellation; as the deployment speaks."""
    async with running(engine, url, http=http) as caller:
        (deployment,) = (await caller.http.get("/admin/deployments")).json()["deployments"]
        assert deployment["mode"] == MODES[http]
        await play_all(caller, tmp_path)
        name = "x" * MUCH
        assert await caller.call("Steps", "chain", [name]) == [f"hello {name}"]
        id_ = await caller.send("Steps", "nap", 3_600)

        async def sleeps():
            return len((await caller.show(id_))["journal"]) == 2

        await until(sleeps)
        answer = await caller.http.patch(f"/admin/invocations/{id_}/cancel")
        assert answer.status_code in {200, 202}, answer.text
        output = await caller.http.get(f"/restate/invocation/{id_}/attach")
        assert (output.status_code, output.json()["message"]) == (409, "canceled")


async def test_runtime_does_the_entries_of_version_3(endpoint, engine, tmp_path, http):
    async with running(engine, endpoint.url, http=http) as caller:
        assert await caller.call("Newer", "parallel", str(tmp_path / "effects")) == PARALLEL
        assert await caller.call("Newer", "errand", "you") == done_errand("you")


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


def test_every_call_of_restate_sdk_is_listed():
    program = "from restate._internal import PyVM; print(*dir(PyVM))"
    command = [sdk_python(), "-c", program]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    calls = {name.removeprefix("sys_") for name in names if name.startswith("sys_")}
    assert calls == ENTRIES_OF_CALLS.keys()


async def test_runtime_stores_every_entry_that_restate_sdk_has(sdk_endpoint, engine, tmp_path):
    async with running(engine, sdk_endpoint.url, http=2) as caller:
        await caller.call("Counter", "journey", str(tmp_path / "effects"), key="one")
        await keeps_a_promise(caller, tmp_path)
        listed = (await caller.http.get("/admin/invocations")).json()["invocations"]
        journals = [(await caller.show(each["id"]))["journal"] for each in listed]
    entries = {entry["type"] for journal in journals for entry in journal}
    assert entries == set().union(*ENTRIES_OF_CALLS.values())


async def test_responses_that_an_sdk_leaves_open_hold_no_place(sdk_endpoint, engine):
    # Over HTTP/1.1 a handler of that SDK which suspends waits for the runtime to leave.
    async with running(engine, sdk_endpoint.url, http=1, most=2) as caller:
        calls = [caller.call("Steps", "nap", 0.05) for _ in range(12)]
        assert await asyncio.wait_for(asyncio.gather(*calls), 5) == ["rested"] * 12


async def test_the_last_request_of_a_connection_breaks_no_stream_off(engine, caplog, monkeypatch):
    # Hypercorn ends a connection with its thousandth request, here sooner, whatever else goes on.
    assert Config.keep_alive_max_requests > connection2.MOST_EXCHANGES
    monkeypatch.setattr(connection2, "MOST_EXCHANGES", 90)
    with hypercorn_of(project_services.app, keep_alive_max_requests=100) as served:
        async with running(engine, served.url, http=2, most=32) as caller:
            names = [str(number) for number in range(40)]
            for _ in range(4):
                greetings = await caller.call("Steps", "many", names)
                assert greetings == [f"hello {name}" for name in names]
    assert not [each for each in caplog.records if "attempt failed" in each.getMessage()]
