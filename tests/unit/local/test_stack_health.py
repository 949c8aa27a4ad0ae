"""The supervisor's health checks of its services, and how long it tolerates bad answers."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from test_stack_supervisor import SECONDS, Watched, server
from test_stack_ward import is_alive

from iscp_dagster.local.services import clickhouse_health
from iscp_dagster.local.services.dagster_health import (
    DEAF_SECONDS,
    HANGING_SECONDS,
    IDLE_SECONDS,
    CodeHealth,
    DagsterHealth,
    find_idle_problem,
)
from iscp_dagster.local.services.rpc import Rpc, RpcError, encode_field
from iscp_dagster.local.services.service import Service, StalledProblem
from iscp_dagster.local.services.spark_health import SparkHealth
from iscp_dagster.local.services.state import Condition
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.local.supervise import suspended
from iscp_dagster.local.supervise.health_monitor import (
    HealthMonitor,
    RestartPolicy,
    measure_tree_cpu,
)
from iscp_dagster.local.supervise.ward import list_processes
from support.errors import assert_names, raises_naming
from support.services.scripted_http import Answering, answering_server

SOON = RestartPolicy(every=0.05, again=0.05, failures=3, idle_seconds=0.3, busy_seconds=SECONDS)
_IDLE = "import time; time.sleep(600)"
_BUSY = "while True: pass"


class Health:
    """A check that reports the problem that a test sets, and counts the mends."""

    def __init__(self, problem: str = "") -> None:
        self.problem = problem
        self.mended = 0
        self.helps = True

    async def check(self, _since: float) -> str:
        return self.problem

    async def mend(self) -> None:
        self.mended += 1
        if self.helps:
            self.problem = ""


class Code(CodeHealth):
    """A code server with the problem that a test sets."""

    def __init__(self) -> None:
        super().__init__("/no/socket")
        self.problem = ""

    async def find_problem(self, since: float) -> str:
        return self.problem


async def wait_until(condition) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def make_service(folder: Path, code: str = _IDLE, **fields) -> Service:
    async def up(_since: float) -> bool:
        return True

    command = (sys.executable, "-c", code)
    return server(folder, find_free_port(), command=command, probe=up, **fields)


def watch(folder: Path, health: Health, code: str = _IDLE, **fields) -> Watched:
    return Watched(make_service(folder, code, check=health.check, **fields), patience=SOON)


async def test_a_service_that_does_not_work_is_reported_and_started_again(tmp_path: Path) -> None:
    health = Health()
    supervised = await watch(tmp_path, health).up()
    first = supervised.seen[-1].pid
    health.problem = "answers nothing"
    await supervised.until(lambda state: state.condition is Condition.UNWELL)
    assert supervised.seen[-1].note == "answers nothing"
    await supervised.until(lambda state: state.restarts == 1)
    health.problem = ""
    await supervised.until(lambda state: state.restarts == 1 and state.condition is Condition.READY)
    assert supervised.seen[-1].pid != first
    assert supervised.seen[-1].note == ""
    await supervised.end()


async def test_a_mended_service_is_not_started_again(tmp_path: Path) -> None:
    health = Health()
    supervised = await watch(tmp_path, health, mend=health.mend).up()
    health.problem = "answers nothing"
    await supervised.until(lambda state: state.condition is Condition.UNWELL)
    supervised.seen.clear()
    await supervised.until(lambda state: state.condition is Condition.READY)
    assert [(state.restarts, state.note) for state in supervised.seen] == [(0, "")]
    assert health.mended == 1
    health.helps, health.problem = False, "answers nothing again"
    await supervised.until(lambda state: state.restarts == 1)
    assert health.mended == 2
    await supervised.end()


async def test_after_a_failed_mend_a_service_is_started_again_without_another_check(
    tmp_path: Path,
) -> None:
    checks = 0

    async def check(_since: float) -> str:
        nonlocal checks
        checks += 1
        return "answers nothing"

    async def mend() -> None:
        raise OSError("does not answer either")

    patience = replace(SOON, idle_seconds=0)
    supervised = Watched(make_service(tmp_path, check=check, mend=mend), patience=patience)
    await supervised.until(lambda state: state.restarts == 1)
    assert checks == patience.failures
    await supervised.end()


_BUSY_BELOW = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_BUSY!r}])"


@pytest.mark.parametrize(
    ("problem", "code", "reported"),
    [
        ("is slow", _BUSY, Condition.UNWELL),
        (StalledProblem("has run no job"), _IDLE, Condition.RESTARTING),
        (StalledProblem("has run no job"), _BUSY, Condition.READY),
        (StalledProblem("has run no job"), _BUSY_BELOW, Condition.READY),
    ],
)
async def test_a_slow_or_stalled_service_is_started_again_when_nothing_below_it_works(
    tmp_path: Path, problem: str, code: str, reported: Condition
) -> None:
    health = Health()
    supervised = await watch(tmp_path, health, code).up()
    pid = supervised.seen[-1].pid
    assert pid is not None
    health.problem = problem
    used = measure_tree_cpu(pid)
    await supervised.until(lambda state: state.condition is reported)
    lost = reported is Condition.RESTARTING
    if not lost:
        await wait_until(lambda: measure_tree_cpu(pid) > used + 4 * SOON.idle_seconds)
    assert bool(supervised.seen[-1].restarts) is lost
    await supervised.end()


def test_a_service_that_failed_is_checked_again_soon(tmp_path: Path) -> None:
    """A service that is checked four times less often recovers as fast as any other."""
    service = server(tmp_path, find_free_port(), check_interval_factor=4)
    monitor = HealthMonitor(service, os.getpid(), time.time(), lambda **_: None, RestartPolicy())
    assert monitor._pause() == 12
    monitor._record_failure("answers nothing", time.monotonic())
    assert monitor._pause() == 1
    asyncio.run(monitor._record_success())
    assert monitor._pause() == 12


async def test_a_probe_a_note_and_a_check_that_raise_end_neither_service_nor_stack(
    tmp_path: Path,
) -> None:
    raised = []

    def fail(which: str) -> str:
        raised.append(which)
        raise ValueError(f"the {which} has a bug")

    async def probe(_since: float) -> bool:
        return "probe" in raised or bool(fail("probe"))

    async def note() -> str:
        return fail("note")

    async def check(_since: float) -> str:
        return fail("check")

    service = replace(make_service(tmp_path, note=note, check=check), probe=probe)
    supervised = Watched(service, patience=replace(SOON, idle_seconds=0))
    await wait_until(lambda: raised.count("check") > SOON.failures)
    assert raised[:3] == ["probe", "note", "check"]
    assert {state.restarts for state in supervised.seen} == {0}
    assert supervised.seen[-1].condition is Condition.READY
    await supervised.end()


_STARTS_ONE = (
    "import os, subprocess, sys, time;"
    "below = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    "open(sys.argv[1], 'a').write(f'{below.pid} '); time.sleep(600)"
)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says what has stopped and whose it is")
async def test_a_stopped_process_below_a_service_is_resumed_and_ends_with_a_killed_ward(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(suspended, "EVERY", 0.5)
    written = tmp_path / "below"

    async def up(_since: float) -> bool:
        return written.exists() and written.read_text().endswith(" ")

    command = (sys.executable, "-c", _STARTS_ONE, str(written))
    supervised = await Watched(server(tmp_path, find_free_port(), command=command, probe=up)).up()
    below = int(written.read_text())
    os.kill(below, signal.SIGSTOP)
    await wait_until(lambda: below in suspended.find_stopped(os.getpid()))
    await wait_until(lambda: below not in suspended.find_stopped(os.getpid()))
    child = supervised.seen[-1].pid
    (ward,) = (parent for pid, parent, *_ in list_processes() if pid == child)
    os.kill(ward, signal.SIGKILL)
    await supervised.until(lambda state: state.condition is Condition.RESTARTING)
    assert not is_alive(child)
    assert not is_alive(below)
    await supervised.end()


@pytest.fixture
def answering() -> Iterator[Answering]:
    with answering_server() as server:
        yield server


def test_clickhouse_is_asked_a_query(answering: Answering) -> None:
    url = f"http://me:geheim@127.0.0.1:{answering.server_port}"
    assert clickhouse_health.find_problem(url) == ""
    assert answering.heard == ["Basic bWU6Z2VoZWlt"]
    answering.told = (503, {"X-ClickHouse-Exception-Code": "202"}, b"Too many queries")
    assert clickhouse_health.find_problem(url) == ""
    answering.told = (500, {"X-ClickHouse-Exception-Code": "243"}, b"No space\nleft")
    assert_names(clickhouse_health.find_problem(url), 500, "No space left")
    answering.seconds = 0.2
    late = clickhouse_health.find_problem(url, 0.05)
    assert_names(late, "0 seconds")
    nobody = clickhouse_health.find_problem(f"http://me:geheim@127.0.0.1:{find_free_port()}")
    assert_names(nobody, f"Errno {errno.ECONNREFUSED}")
    assert "geheim" not in late + nobody


def test_a_message_is_encoded_as_protobuf_does() -> None:
    from google.protobuf.type_pb2 import Field

    message = encode_field(3, 300) + encode_field(4, "a name") + encode_field(6, b"/type")
    assert Field.FromString(message) == Field(number=300, name="a name", type_url="/type")


def test_the_problem_of_a_missing_spark_shows_no_token() -> None:
    health = SparkHealth(f"sc://127.0.0.1:{find_free_port()}/;token=geheim")
    problem = asyncio.run(health.find_problem(0))
    assert_names(problem, "Connection refused")
    assert "geheim" not in problem


class Overtaken(Rpc):
    """A service whose first call is overtaken by another, which fails, once it has the channel."""

    overtaken = False

    def _open_channel(self):
        channel = super()._open_channel()
        if not self.overtaken:
            self.overtaken = True
            with pytest.raises(RpcError):
                self.call("/a.Service/Other", b"", 5.0)
        return channel


def test_a_failed_call_leaves_another_of_the_same_service_its_channel():
    """As a mend's and a check's are; it raised grpc's ValueError, which ended the whole stack."""
    rpc = Overtaken(f"127.0.0.1:{find_free_port()}")
    with raises_naming(RpcError, "Connection refused"):
        rpc.call("/a.Service/Call", b"", 5.0)
    assert rpc.overtaken
    with raises_naming(RpcError, "Connection refused") as caught:
        rpc.call("/a.Service/Call", b"", 5.0)
    assert not caught.value.late
    assert "\n" not in str(caught.value)


class Stuck(grpc.GenericRpcHandler):
    """Answers requests, but never ends a job."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        if details.method.endswith("AnalyzePlan"):
            return grpc.unary_unary_rpc_method_handler(lambda _asked, _context: b"")
        return grpc.unary_stream_rpc_method_handler(self._never)

    def _never(self, _asked: bytes, _context: object) -> Iterator[bytes]:
        self.over.wait(SECONDS)
        yield from ()


async def test_a_spark_that_has_no_turn_for_a_job_is_stalled() -> None:
    async def wait_until_well(health: SparkHealth) -> None:
        while await health.find_problem(0):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert health.jobs

    stuck = Stuck()
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([stuck])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        health = SparkHealth(f"sc://127.0.0.1:{port}", job_seconds=0.2)
        problem = await health.find_problem(0)
        assert_names(problem, "0 seconds")
        assert isinstance(problem, StalledProblem)
        # The next job waits, which improves nothing.
        assert await health.find_problem(0) == problem
        stuck.over.set()
        await asyncio.wait_for(wait_until_well(health), SECONDS)
    finally:
        stuck.over.set()
        server.stop(None).wait()


def sensor(last: float | None, status: str = "SKIPPED", state: str = "RUNNING") -> dict:
    ticks = [] if last is None else [{"timestamp": last, "status": status}]
    return {"minIntervalSeconds": 10, "sensorState": {"status": state, "ticks": ticks}}


@pytest.mark.parametrize(
    ("state", "silent"),
    [
        (sensor(-5), False),
        (sensor(-(IDLE_SECONDS + 31)), True),
        (sensor(None), True),
        (sensor(-(IDLE_SECONDS + 31), status="STARTED"), False),
        (sensor(-(HANGING_SECONDS + 1), status="STARTED"), True),
        (sensor(-(HANGING_SECONDS + 1), state="STOPPED"), False),
        ({}, False),
    ],
)
def test_a_sensor_that_should_have_ticked_is_a_problem(state: dict, silent: bool) -> None:
    now = 1_000_000.0
    for tick in state.get("sensorState", {}).get("ticks", []):
        tick["timestamp"] += now
    assert bool(find_idle_problem(state, now - 2 * HANGING_SECONDS, now)) is silent
    assert find_idle_problem(state, now - 1, now) == ""


@pytest.fixture
def dagster(answering: Answering) -> tuple[DagsterHealth, Code]:
    """Return the check of Dagster whose webserver is `answering`, and its code server."""
    code = Code()
    return DagsterHealth(answering.server_port, code), code


@pytest.mark.parametrize(
    ("beats", "noun"),
    [
        ((0, 0), ""),
        ((DEAF_SECONDS + 5, DEAF_SECONDS + 5), "heartbeat"),
        ((0, HANGING_SECONDS - 5), ""),
        ((0, HANGING_SECONDS + 5), "thread"),
    ],
)
def test_a_daemon_without_a_heartbeat_is_a_problem(answering, dagster, beats, noun) -> None:
    now = time.time()
    statuses = [{"required": True, "lastHeartbeatTime": now - beat} for beat in beats]
    data = {"instance": {"daemonHealth": {"allDaemonStatuses": statuses}}, "sensorOrError": {}}
    answering.told = (200, {}, json.dumps({"data": data}).encode())
    health, code = dagster
    problem = asyncio.run(health.find_daemon_problem(now - 1_000))
    assert_names(problem, *filter(None, [noun]))
    assert bool(problem) is bool(noun)
    assert asyncio.run(health.find_daemon_problem(now)) == ""
    code.problem = "does not answer"
    assert asyncio.run(health.find_daemon_problem(now - 1_000)) == ""


@pytest.mark.parametrize(
    ("entry", "lost"),
    [
        ({"__typename": "RepositoryLocation"}, False),
        (None, False),
        ({"__typename": "PythonError", "className": "SyntaxError"}, False),
        ({"__typename": "PythonError", "className": "DagsterUserCodeUnreachableError"}, True),
    ],
)
def test_a_webserver_that_lost_the_code_is_a_problem(answering, dagster, entry, lost) -> None:
    entries = [{"name": "iscp_dagster", "loadStatus": "LOADED", "locationOrLoadError": entry}]
    data = {"workspaceOrError": {"locationEntries": entries}}
    answering.told = (200, {}, json.dumps({"data": data}).encode())
    health, code = dagster
    problem = asyncio.run(health.find_web_problem(0))
    assert ("iscp_dagster" in problem, bool(problem)) == (lost, lost)
    code.problem = "does not answer"
    assert asyncio.run(health.find_web_problem(0)) == ""
    answering.told = (500, {}, b"no JSON")
    assert asyncio.run(health.find_web_problem(0))
