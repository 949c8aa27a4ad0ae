"""The supervisor, with small real servers as its services."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from iscp_dagster.local.services.service import Service, make_http_probe, make_port_probe
from iscp_dagster.local.services.state import Condition
from iscp_dagster.local.stack.ports import find_free_port, is_free
from iscp_dagster.local.supervise import warded_command
from iscp_dagster.local.supervise.supervisor import Backoff, Supervisor
from iscp_dagster.local.supervise.ward import list_processes
from iscp_dagster.model.errors import UnavailableError
from support.errors import raises_naming

SECONDS = 60
DEAF = (sys.executable, "-c", "import time; time.sleep(600)")


class Watched:
    """Runs a supervisor and keeps its reports."""

    def __init__(self, *services: Service, **rules) -> None:
        self.seen = []
        self.changed = asyncio.Event()
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()
        self.lock = os.open(services[0].folder / "lock", os.O_RDWR | os.O_CREAT)
        supervisor = Supervisor(services, report=self.note, lock=self.lock, **rules)
        self.task = asyncio.create_task(supervisor.run(stop=self.stop, ready=self.ready.set))

    def note(self, state) -> None:
        self.seen.append(state)
        self.changed.set()

    async def until(self, condition) -> None:
        """Wait until a report of a service meets the condition."""

        async def wait() -> None:
            while not any(condition(state) for state in self.seen):
                self.changed.clear()
                await self.changed.wait()

        waiting = asyncio.create_task(wait())
        await asyncio.wait(
            {waiting, self.task}, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        assert waiting.done(), self.seen

    async def up(self) -> Watched:
        """Wait until all is ready; return this."""
        await asyncio.wait_for(self.ready.wait(), SECONDS)
        return self

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, SECONDS)
        os.close(self.lock)


def server(folder: Path, port: int, name: str = "web", **fields) -> Service:
    web = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1")
    return Service(
        **{
            "name": name,
            "command": web,
            "address": f"http://127.0.0.1:{port}",
            "environment": dict(os.environ),
            "folder": folder,
            "log": folder / f"{name}.log",
            "probe": make_http_probe(port, "/"),
            **fields,
        }
    )


async def test_services_start_and_stop(tmp_path: Path) -> None:
    ports = [find_free_port(), find_free_port()]
    one = server(tmp_path, ports[0])
    two = server(tmp_path, ports[1], name="two", probe=make_port_probe(ports[1]))
    watched = await Watched(one, two).up()
    assert not any(is_free(port) for port in ports)
    await watched.end()
    assert all(is_free(port) for port in ports)
    assert [state.condition for state in watched.seen if state.name == "web"] == [
        Condition.STARTING,
        Condition.READY,
        Condition.STOPPING,
        Condition.DOWN,
    ]


async def test_a_probe_and_a_note_that_fail_end_neither_service_nor_stack(tmp_path: Path) -> None:
    port, raised = find_free_port(), []

    async def probe(since: float) -> bool:
        if not raised:
            raised.append("probe")
            raise ValueError("the probe has a bug")
        return await make_http_probe(port, "/")(since)

    async def note() -> str:
        raised.append("note")
        raise ValueError("the note has a bug")

    watched = await Watched(server(tmp_path, port, probe=probe, note=note)).up()
    assert raised == ["probe", "note"]
    assert watched.seen[-1].condition is Condition.READY
    await watched.end()


async def test_a_service_that_uses_others_ends_before_they_are_stopped(tmp_path: Path) -> None:
    used = server(tmp_path, find_free_port())
    user = server(tmp_path, find_free_port(), name="user", stops_first=True)
    watched = await Watched(used, user).up()
    await watched.end()
    ends = [
        (state.name, state.condition)
        for state in watched.seen
        if state.condition in {Condition.STOPPING, Condition.DOWN}
    ]
    assert ends == [
        ("user", Condition.STOPPING),
        ("user", Condition.DOWN),
        ("web", Condition.STOPPING),
        ("web", Condition.DOWN),
    ]


async def test_a_killed_service_comes_back_on_its_port(tmp_path: Path) -> None:
    watched = await Watched(server(tmp_path, find_free_port())).up()
    first = watched.seen[-1].pid
    os.kill(first, signal.SIGKILL)
    await watched.until(lambda state: state.restarts == 1 and state.condition is Condition.READY)
    assert watched.seen[-1].pid != first
    await watched.end()


async def test_a_service_that_ends_at_once_is_an_error_with_its_log(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit('the disk is on fire')")
    other = server(tmp_path, find_free_port(), name="other")
    watched = Watched(server(tmp_path, find_free_port(), command=command), other)
    with raises_naming(UnavailableError, "web", "status 1", "web.log", "the disk is on fire"):
        await asyncio.wait_for(watched.task, SECONDS)
    assert watched.seen[-1].condition in {Condition.DOWN, Condition.STOPPING}


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"command": DEAF, "start_seconds": 0.5}, "0 seconds"),
        ({"warm": (sys.executable, "-c", "raise SystemExit(3)")}, "status 3"),
    ],
    ids=["it never answers", "its first use fails"],
)
async def test_a_service_that_does_not_come_up_is_an_error(tmp_path: Path, fields, value) -> None:
    watched = Watched(server(tmp_path, find_free_port(), **fields))
    with raises_naming(UnavailableError, "web", value):
        await asyncio.wait_for(watched.task, SECONDS)


async def test_a_service_is_ready_once_its_first_use_succeeded(tmp_path: Path) -> None:
    mark = tmp_path / "used"
    use = (sys.executable, "-c", f"open({str(mark)!r}, 'w').close()")
    watched = await Watched(server(tmp_path, find_free_port(), warm=use)).up()
    assert mark.exists()
    assert Condition.WARMING in [state.condition for state in watched.seen]
    await watched.end()


async def test_stopping_does_not_wait_for_a_service_to_come_up(tmp_path: Path) -> None:
    watched = Watched(server(tmp_path, find_free_port(), command=DEAF))
    await watched.until(lambda state: state.pid is not None)
    await watched.end()
    assert not watched.ready.is_set()


@pytest.mark.parametrize("steps", range(0, 60, 4))
async def test_a_canceled_start_leaves_nothing_running(tmp_path: Path, steps: int) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    before = children()
    starting = asyncio.create_task(
        warded_command.start(server(tmp_path, find_free_port(), command=DEAF), lock)
    )
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await (await starting).stop()
    os.close(lock)
    assert children() == before


def children() -> set[int]:
    return {
        pid for pid, parent, _, state in list_processes() if parent == os.getpid() and state != b"Z"
    }


def test_the_wait_before_a_restart_doubles_up_to_a_bound() -> None:
    backoff = Backoff(first=0.5, longest=3.0)
    assert [backoff.compute_delay(failures) for failures in (1, 2, 3, 4, 5000)] == [0.5, 1, 2, 3, 3]
