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
FAILS = (sys.executable, "-c", "raise SystemExit('the disk is on fire')")


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


async def test_services_start_and_one_that_uses_others_ends_before_they_are_stopped(
    tmp_path: Path,
) -> None:
    mark, ports = tmp_path / "used", [find_free_port(), find_free_port()]
    use = (sys.executable, "-c", f"open({str(mark)!r}, 'w').close()")
    used = server(tmp_path, ports[0], warm=use)
    probe = make_port_probe(ports[1])
    user = server(tmp_path, ports[1], name="user", probe=probe, stops_first=True)
    watched = await Watched(used, user).up()
    assert not any(is_free(port) for port in ports)
    assert mark.exists()
    await watched.end()
    assert all(is_free(port) for port in ports)
    seen = [(state.name, state.condition) for state in watched.seen]
    begins, ends = [Condition.STARTING, Condition.READY], [Condition.STOPPING, Condition.DOWN]
    assert [name for name, _ in seen[-4:]] == ["user", "user", "web", "web"]
    assert [condition for name, condition in seen if name == "user"] == begins + ends
    begins.insert(1, Condition.WARMING)
    assert [condition for name, condition in seen if name == "web"] == begins + ends


async def test_a_killed_service_comes_back_on_its_port(tmp_path: Path) -> None:
    watched = await Watched(server(tmp_path, find_free_port())).up()
    first = watched.seen[-1].pid
    os.kill(first, signal.SIGKILL)
    await watched.until(lambda state: state.restarts == 1 and state.condition is Condition.READY)
    assert watched.seen[-1].pid != first
    await watched.end()


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({"command": FAILS}, ("status 1", "web.log", "the disk is on fire")),
        ({"command": DEAF, "start_seconds": 0.5}, ("0 seconds",)),
        ({"warm": (sys.executable, "-c", "raise SystemExit(3)")}, ("status 3",)),
    ],
    ids=["it ends at once", "it never answers", "its first use fails"],
)
async def test_a_service_that_does_not_come_up_is_an_error_and_ends_all(
    tmp_path: Path, fields, values
) -> None:
    other = server(tmp_path, find_free_port(), name="other")
    watched = Watched(server(tmp_path, find_free_port(), **fields), other)
    with raises_naming(UnavailableError, "web", *values):
        await asyncio.wait_for(watched.task, SECONDS)
    assert watched.seen[-1].condition in {Condition.DOWN, Condition.STOPPING}


async def test_stopping_does_not_wait_for_a_service_to_come_up(tmp_path: Path) -> None:
    watched = Watched(server(tmp_path, find_free_port(), command=DEAF))
    await watched.until(lambda state: state.pid is not None)
    await watched.end()
    assert not watched.ready.is_set()


@pytest.mark.parametrize("steps", range(0, 60, 4))
async def test_a_canceled_start_leaves_nothing_running(tmp_path: Path, steps: int) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    before = children()
    deaf = server(tmp_path, find_free_port(), command=DEAF)
    starting = asyncio.create_task(warded_command.start(deaf, lock))
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
