"""Runs that a server forks: each in a separate process, with the current code."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from dagster import DagsterEventType, DagsterInstance, DagsterRunStatus
from dagster._core.definitions.reconstruct import ReconstructableJob
from dagster._core.errors import DagsterInvariantViolationError, DagsterUserCodeUnreachableError
from dagster._core.launcher.base import LaunchRunContext, WorkerStatus

from iscp_dagster.runs import launcher, server
from iscp_dagster.runs.launcher import WarmRunLauncher
from iscp_dagster.runs.server import (
    END,
    LEFT_BEHIND,
    PING,
    SOCKET_VARIABLE,
    START,
    ask,
)
from iscp_dagster.runs.socket_path import SERVER_TAG, RunServerAddress
from support.services.stack import wait_for

pytestmark = pytest.mark.slow

SECONDS = 60.0
MODULE = """
import os
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import dagster as dg

HERE = Path(__file__).parent


@dg.op
def tells():
    (HERE / "told").write_text(f"{os.getppid()} SAYS")


@dg.op
def waits():
    (HERE / "waiting").write_text(str(os.getpid()))
    threading.Event().wait()


@dg.op
def leaves():
    left = subprocess.Popen(["sleep", "600"])
    (HERE / "left").write_text(str(left.pid))


@dg.job(executor_def=dg.in_process_executor)
def leaving():
    leaves()


@dg.job(executor_def=dg.in_process_executor)
def telling():
    tells()


@dg.job(executor_def=dg.in_process_executor)
def waiting():
    waits()
"""
INSTANCE = """
run_launcher: {module: iscp_dagster.runs.launcher, class: WarmRunLauncher}
telemetry: {enabled: false}
"""


class Served:
    """A run server, a Dagster instance that launches its runs there, and a module with jobs."""

    def __init__(self, folder: Path, instance: DagsterInstance) -> None:
        self.folder = folder
        self.instance = instance
        self.socket = str(folder / "runs.sock")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = os.environ | {"DAGSTER_HOME": self.instance.root_directory}
        command = [sys.executable, "-m", "iscp_dagster.runs.server", self.socket]
        self.process = subprocess.Popen(command, env=environment, cwd=self.folder)
        wait_for(self.answers, SECONDS)

    def answers(self) -> bool:
        assert self.process.poll() is None
        try:
            return ask(self.socket, what=PING) == {"known": False}
        except OSError:
            return False

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        return self.process.wait(SECONDS)

    @property
    def launcher(self) -> WarmRunLauncher:
        return self.instance.run_launcher

    def run_of(self, job: str, tags: dict[str, str] | None = None) -> str:
        job_ = ReconstructableJob.for_file(str(self.folder / "jobs.py"), job)
        run = self.instance.create_run_for_job(
            job_def=job_.get_definition(),
            job_code_origin=job_.get_python_origin(),
            status=DagsterRunStatus.STARTING,
            tags=tags,
        )
        return run.run_id

    def launched(self, job: str) -> str:
        run = self.run_of(job)
        self.launch(run)
        return run

    def waiting(self) -> tuple[str, int]:
        """Launch a run that never ends by itself; return it and its process."""
        return self.launched("waiting"), self.await_waiting()

    def launch(self, run: str) -> None:
        self.launcher.launch_run(LaunchRunContext(self.instance.get_run_by_id(run), None))

    def health(self, run: str) -> WorkerStatus:
        """Return the run's health, as Dagster's monitoring asks for it."""
        return self.launcher.check_run_worker_health(self.instance.get_run_by_id(run)).status

    def status(self, run: str) -> DagsterRunStatus:
        return self.instance.get_run_by_id(run).status

    def await_status(self, run: str, *wanted: DagsterRunStatus) -> None:
        wait_for(lambda: self.status(run) in wanted, SECONDS, lambda: str(self.status(run)))

    def await_waiting(self) -> int:
        """Wait for the run that never ends by itself; return its process."""
        place = self.folder / "waiting"
        wait_for(lambda: place.exists() and place.read_text(), SECONDS)
        return int(place.read_text())


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    home = folder / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(INSTANCE)
    with DagsterInstance.from_config(str(home)) as instance:
        it = Served(folder, instance)
        yield it
        it.end(signal.SIGKILL)


@pytest.fixture
def served(shared, monkeypatch):
    """Give a server that is up and has no run."""
    monkeypatch.setenv(SOCKET_VARIABLE, shared.socket)
    (shared.folder / "jobs.py").write_text(MODULE.replace("SAYS", "first"))
    if shared.process is None or shared.process.poll() is not None:
        shared.start()
    yield shared
    for process in _children(shared.process.pid):
        os.kill(process, signal.SIGKILL)
    (shared.folder / "waiting").unlink(missing_ok=True)


def test_each_run_has_a_process_of_its_own_and_the_code_as_it_then_is(served):
    first = served.launched("telling")
    served.await_status(first, DagsterRunStatus.SUCCESS)
    assert (served.folder / "told").read_text() == f"{served.process.pid} first"
    (served.folder / "jobs.py").write_text(MODULE.replace("SAYS", "another"))
    second = served.launched("telling")
    served.await_status(second, DagsterRunStatus.SUCCESS)
    assert (served.folder / "told").read_text() == f"{served.process.pid} another"


def test_a_run_whose_job_is_gone_by_now_fails_at_its_start(served):
    (served.folder / "told").unlink(missing_ok=True)
    run = served.run_of("telling")
    (served.folder / "jobs.py").write_text(MODULE.replace("telling", "batch_telling"))
    served.launch(run)
    served.await_status(run, DagsterRunStatus.FAILURE)
    assert not (served.folder / "told").exists()


def test_a_run_is_started_once_however_often_it_is_asked_for(served):
    run, process = served.waiting()
    (served.folder / "waiting").unlink()
    served.launch(run)
    assert ask(served.socket, what=PING, run=run)["known"]
    assert _children(served.process.pid) == {process}
    assert not (served.folder / "waiting").exists()


def test_a_run_is_canceled_whoever_asks(served, monkeypatch):
    run, process = served.waiting()
    # As on the command line, which has no socket set.
    monkeypatch.delenv(SOCKET_VARIABLE)
    assert served.launcher.terminate(run)
    served.await_status(run, DagsterRunStatus.CANCELED)
    wait_for(lambda: process not in _children(served.process.pid), SECONDS)
    assert not served.launcher.terminate(run)
    assert not ask(served.socket, what=END, run=run)["known"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_ends_interrupts_its_runs(served, number):
    run, _ = served.waiting()
    assert served.end(number) == 0
    # Dagster reports a failure when nobody asked to cancel the run.
    assert served.status(run) is DagsterRunStatus.FAILURE


def test_a_server_that_is_killed_takes_its_runs_along_and_the_next_one_fails_them(served):
    run, process = served.waiting()
    served.end(signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{process}").exists(), SECONDS)
    assert served.status(run) is DagsterRunStatus.STARTED
    served.start()
    assert served.status(run) is DagsterRunStatus.FAILURE
    (said,) = [
        each.message
        for each in served.instance.all_logs(run)
        if LEFT_BEHIND in (each.message or "")
    ]
    assert said


def test_a_run_whose_process_was_killed_is_found_gone(served, monkeypatch):
    run, process = served.waiting()
    assert served.launcher.supports_check_run_worker_health
    assert served.health(run) is WorkerStatus.RUNNING
    monkeypatch.setattr(server, "ANSWER_SECONDS", server.GRACE_SECONDS + 1)
    served.process.send_signal(signal.SIGSTOP)
    assert served.health(run) is WorkerStatus.RUNNING
    served.process.send_signal(signal.SIGCONT)
    os.kill(process, signal.SIGKILL)
    wait_for(lambda: served.health(run) is WorkerStatus.NOT_FOUND, SECONDS)
    served.end(signal.SIGKILL)
    wait_for(lambda: served.health(run) is WorkerStatus.NOT_FOUND, SECONDS)


def test_a_run_whose_process_was_killed_has_failed_at_once(served):
    """It does not wait for Dagster's monitoring, which gives a starting run two minutes."""
    killed, process = served.waiting()
    os.kill(process, signal.SIGKILL)
    served.await_status(killed, DagsterRunStatus.FAILURE)
    assert any(LEFT_BEHIND in (each.message or "") for each in served.instance.all_logs(killed))
    (served.folder / "waiting").unlink()
    other, _ = served.waiting()
    assert served.status(other) is DagsterRunStatus.STARTED


def test_a_run_that_was_to_be_canceled_and_is_killed_is_canceled(served):
    run, process = served.waiting()
    served.instance.report_run_canceling(served.instance.get_run_by_id(run))
    os.kill(process, signal.SIGKILL)
    served.await_status(run, DagsterRunStatus.CANCELED)


def test_of_a_run_that_a_code_server_started_nothing_is_known(served):
    assert served.health(served.run_of("telling")) is WorkerStatus.RUNNING


def ordinary(served):
    """Launch a run that Dagster's own launcher gets, and return the run's warnings.

    That launcher asks for a workspace, which is missing here.
    """
    run = served.run_of("telling")
    with pytest.raises(DagsterInvariantViolationError, match="requires a workspace"):
        served.launch(run)
    said = [each.message or "" for each in served.instance.all_logs(run)]
    return [each for each in said if "run server" in each]


def test_where_no_server_answers_the_code_server_starts_runs_and_one_warning_says_so(
    served, caplog
):
    served.await_status(served.launched("telling"), DagsterRunStatus.SUCCESS)
    served.end()
    (warning,) = ordinary(served)
    assert served.socket in warning
    assert "python -m iscp_dagster.runs.server" in warning
    assert ordinary(served) == ordinary(served) == []
    assert [each.getMessage() for each in caplog.records].count(warning) == 1
    served.start()
    served.await_status(served.launched("telling"), DagsterRunStatus.SUCCESS)
    served.end()
    with ThreadPoolExecutor(4) as threads:
        told = list(threads.map(ordinary, [served] * 12))
    assert sum(map(len, told)) == 1, "of many launches at once, and after another outage"


def test_where_no_server_is_to_be_asked_nothing_is_said(served, monkeypatch):
    monkeypatch.delenv(SOCKET_VARIABLE)
    assert ordinary(served) == []


def test_runs_that_four_threads_launch_are_each_started_once(served):
    runs = [served.run_of("telling") for _ in range(20)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(served.launch, [*runs, *runs]))
    for run in runs:
        served.await_status(run, DagsterRunStatus.SUCCESS)
        started = [each.dagster_event_type for each in served.instance.all_logs(run)]
        assert started.count(DagsterEventType.RUN_START) == 1


@pytest.fixture
def silent(served):
    """Give connections to the server on which nothing has been said."""
    with ExitStack() as stack:
        callers = []
        for _ in range(5):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            callers.append(stack.enter_context(connection))
            connection.settimeout(SECONDS)
            connection.connect(served.socket)
        yield callers


def test_callers_that_say_nothing_hold_up_nobody_and_are_hung_up_on(served, silent, monkeypatch):
    monkeypatch.setattr(server, "ANSWER_SECONDS", server.ANSWER_SECONDS / 2)
    silent[0].sendall(b'{"what": ')
    assert served.answers()
    served.await_status(served.launched("telling"), DagsterRunStatus.SUCCESS)
    assert [connection.recv(1) for connection in silent] == [b""] * len(silent)


def test_a_request_may_come_in_pieces(served, silent):
    asked = json.dumps({"what": PING, "until": time.monotonic() + SECONDS}).encode() + b"\n"
    for piece in (asked[:5], asked[5:-1], asked[-1:]):
        silent[0].sendall(piece)
        assert served.answers()
    assert json.loads(silent[0].recv(100)) == {"known": False}


def test_a_run_keeps_no_caller_of_its_server_waiting(served, silent):
    served.waiting()
    silent[0].sendall(b"nothing\n")
    assert silent[0].recv(1) == b""


def test_a_healthy_run_stays_so_where_its_server_is_not_seen(served):
    """As where the daemon is on another machine, or in another container."""
    run, process = served.waiting()
    path, lock = Path(served.socket), Path(served.socket + ".lock")
    name = lock.read_text()
    hidden = path.rename(path.with_name("elsewhere"))
    assert served.health(run) is WorkerStatus.RUNNING
    hidden.rename(path)
    # Another server is there, which does not have the run.
    lock.write_text("another")
    os.kill(process, signal.SIGKILL)
    wait_for(lambda: not ask(served.socket, what=PING, run=run)["known"], SECONDS)
    assert served.health(run) is WorkerStatus.RUNNING
    lock.write_text(name)
    assert served.health(run) is WorkerStatus.NOT_FOUND
    served.end(signal.SIGKILL)
    wait_for(lambda: served.health(run) is WorkerStatus.NOT_FOUND, SECONDS)
    lock.rename(lock.with_name("lock elsewhere"))
    assert served.health(run) is WorkerStatus.RUNNING


def test_a_second_server_at_a_place_ends_and_leaves_the_first_s_runs_alone(served):
    run, _ = served.waiting()
    code = "from iscp_dagster.runs import place, server; place.TAKE_SECONDS = 0"
    code += f"; server.main({served.socket!r})"
    environment = os.environ | {"DAGSTER_HOME": served.instance.root_directory}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"still uses {served.socket}" in done.stderr
    assert served.status(run) is DagsterRunStatus.STARTED
    assert ask(served.socket, what=PING, run=run)["known"]


def test_a_server_fails_no_run_of_another_place_that_has_the_same_path(served):
    run = served.run_of("waiting")
    place = RunServerAddress(socket=served.socket, name="of another machine")
    served.instance.add_run_tags(run, place.build_tags(run))
    served.end(signal.SIGKILL)
    served.start()
    assert served.status(run) is DagsterRunStatus.STARTING


@pytest.mark.skipif(sys.platform != "linux", reason="only there does a run die with its server")
def test_what_a_run_leaves_running_does_not_hold_the_place(served):
    """A program that a run has started does not inherit the lock."""
    run = served.launched("leaving")
    served.await_status(run, DagsterRunStatus.SUCCESS)
    left = int((served.folder / "left").read_text())
    served.end(signal.SIGKILL)
    wait_for(lambda: RunServerAddress.from_socket(served.socket).is_deserted, SECONDS)
    # Raises if it had ended.
    os.kill(left, signal.SIGKILL)


def test_a_run_whose_server_went_before_it_started_the_run_is_the_code_server_s(
    served, monkeypatch
):
    def ask_and_kill(path, **asked):
        answer = ask(path, **asked)
        served.end(signal.SIGKILL)
        return answer

    monkeypatch.setattr(launcher, "ask", ask_and_kill)
    run = served.run_of("telling")
    with pytest.raises(DagsterInvariantViolationError, match="requires a workspace"):
        served.launch(run)
    assert served.health(run) is WorkerStatus.RUNNING
    served.start()
    assert served.status(run) is DagsterRunStatus.STARTING


def test_a_run_that_repeats_another_is_not_taken_for_one_of_its_server(served):
    """Dagster copies the first run's tags to it."""
    first = served.launched("telling")
    served.await_status(first, DagsterRunStatus.SUCCESS)
    again = served.run_of("telling", served.instance.get_run_by_id(first).tags)
    assert SERVER_TAG in served.instance.get_run_by_id(again).tags
    served.end(signal.SIGKILL)
    assert served.health(again) is WorkerStatus.RUNNING
    served.start()
    assert served.status(again) is DagsterRunStatus.STARTING
    served.launch(again)
    served.await_status(again, DagsterRunStatus.SUCCESS)


def test_a_server_that_hangs_starts_nothing_when_nobody_waits_any_more(served, monkeypatch):
    monkeypatch.setattr(server, "ANSWER_SECONDS", server.GRACE_SECONDS + 1)
    run = served.run_of("telling")

    def ask_and_stop(path, **asked):
        if asked["what"] == START:
            served.process.send_signal(signal.SIGSTOP)
        return ask(path, **asked)

    with monkeypatch.context() as patched:
        patched.setattr(launcher, "ask", ask_and_stop)
        with pytest.raises(DagsterUserCodeUnreachableError, match=r"runs\.sock"):
            served.launch(run)
    # It was not even asked to start the other one.
    assert len(ordinary(served)) == 1
    with pytest.raises(TimeoutError):
        ask(served.socket, what=START, run=run, arguments="{}")
    served.process.send_signal(signal.SIGCONT)
    wait_for(served.answers, SECONDS)
    assert not ask(served.socket, what=PING, run=run)["known"]
    assert served.status(run) is DagsterRunStatus.STARTING


def test_a_run_that_cannot_even_begin_leaves_the_server_as_it_was(served):
    ask(served.socket, what=START, run="none", arguments='{"no": "run"}')
    wait_for(lambda: not ask(served.socket, what=PING, run="none")["known"], SECONDS)
    served.await_status(served.launched("telling"), DagsterRunStatus.SUCCESS)


@pytest.mark.parametrize(
    "said",
    [
        *(b"", b"\n", b"{", b"[]\n", b'{"what": "start"}\n', b'{"what": "ping", "until": "x"}\n'),
        *(json.dumps({"what": "x" * server.LONGEST}).encode() + b"\n", b"\xff\xfe\n"),
    ],
    ids=["nothing", "blank", "half", "list", "too little", "no time", "too long", "no text"],
)
def test_what_is_no_question_is_not_answered_and_harms_nobody(served, said):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SECONDS)
        connection.connect(served.socket)
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""
    assert served.answers()


def test_nobody_else_reaches_the_socket(served):
    assert stat.S_IMODE(Path(served.socket).stat().st_mode) == 0o600


def test_what_forks_has_no_other_thread_of_python_s(served):
    """A lock held by such a thread would stay locked in the run for ever."""
    code = "import threading; from importlib import import_module; import iscp_dagster.runs.server"
    code += "; [import_module(name) for name in iscp_dagster.runs.server.PRELOADED]"
    code += "; print(threading.active_count(), *threading.enumerate())"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.startswith("1 "), run.stdout


def test_who_is_forked_opens_a_storage_without_reading_its_migrations(tmp_path):
    code = """
import os, sys
import alembic.script.base as scripts
from iscp_dagster.runs.alembic_cache import cache_migrations
from iscp_dagster.runs.server import fork_process
from dagster import DagsterInstance, DagsterRun

def read(folder):
    before = scripts.util.load_python_file
    found = []
    scripts.util.load_python_file = lambda *of: [found.append(of), before(*of)][1]
    with DagsterInstance.local_temp(folder) as instance:
        run = instance.add_run(DagsterRun("some"))
        instance.report_engine_event("told", run)
        assert len(instance.all_logs(run.run_id)) == 1
    print(len([name for _, name in found if name != "env.py"]))
    sys.stdout.flush()

os.waitpid(fork_process(lambda: read(sys.argv[1])), 0)
cache_migrations()
cache_migrations()
for folder in sys.argv[1:]:
    os.waitpid(fork_process(lambda: read(folder)), 0)
"""
    folders = [tmp_path / "there already", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    run = subprocess.run(
        [sys.executable, "-c", code, *folders], check=True, capture_output=True, text=True
    )
    alone, again, new = map(int, run.stdout.split())
    assert alone > 100
    assert (again, new) == (0, 0)


def test_each_run_draws_random_numbers_of_its_own():
    code = """
import os
import numpy.random
from iscp_dagster.runs.server import fork_process
for _ in range(2):
    os.waitpid(fork_process(lambda: print(numpy.random.rand())), 0)
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert len(set(run.stdout.split())) == 2


@pytest.mark.parametrize(("alone", "warnings"), [(True, 0), (False, sys.version_info >= (3, 12))])
def test_a_fork_is_warned_of_for_threads_of_python_and_not_for_those_of_arrow(alone, warnings):
    code = """
import os, sys, threading
import pyarrow
from iscp_dagster.runs.server import fork_process
pyarrow.array(range(1000))
assert len(os.listdir("/proc/self/task")) > 1
if sys.argv[1:]:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
os.waitpid(fork_process(lambda: print("forked")), 0)
"""
    command = [sys.executable, "-W", "always", "-c", code, *([] if alone else ["thread"])]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert run.stdout == "forked\n"
    assert run.stderr.count("multi-threaded") == warnings


def _children(pid: int) -> set[int]:
    with suppress(FileNotFoundError):
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return set()
