"""Runs that a server forks: each in a separate process, with the current code."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import alembic.script.base as scripts
import pytest
from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.definitions.reconstruct import ReconstructableJob
from dagster._core.errors import DagsterInvariantViolationError, DagsterUserCodeUnreachableError
from dagster._core.launcher.base import LaunchRunContext, WorkerStatus

from iscp_dagster.runs import launcher, server, server_address
from iscp_dagster.runs.alembic_cache import cache_migrations
from iscp_dagster.runs.launcher import WarmRunLauncher
from iscp_dagster.runs.server import END, LEFT_BEHIND, PING, SOCKET_VARIABLE, START, ask
from iscp_dagster.runs.server_address import SERVER_TAG, RunServerAddress
from support.errors import assert_names, raises_naming
from support.services.stack import wait_for

pytestmark = pytest.mark.slow

SECONDS = 60.0
MODULE = """
import os
import subprocess
import threading
from pathlib import Path

import dagster as dg

FOLDER = Path(__file__).parent


def one_step(function):
    step = dg.op(name="step")(function)

    @dg.job(name=function.__name__, executor_def=dg.in_process_executor)
    def job():
        step()

    return job


@one_step
def writing():
    (FOLDER / "written").write_text(f"{os.getppid()} TEXT")


@one_step
def waiting():
    (FOLDER / "waiting").write_text(str(os.getpid()))
    threading.Event().wait()


@one_step
def leaving():
    child = subprocess.Popen(["sleep", "600"])
    (FOLDER / "left").write_text(str(child.pid))
"""
INSTANCE = """
run_launcher: {module: iscp_dagster.runs.launcher, class: WarmRunLauncher}
telemetry: {enabled: false}
"""
PARENT = """
import json, os, sys, threading
from importlib import import_module
from iscp_dagster.runs import server
from iscp_dagster.runs.alembic_cache import cache_migrations

def serve(socket, patience):
    os.dup2(2, 1)
    server.ANSWER_SECONDS = patience
    server.main(socket)

for name in server.PRELOADED:
    import_module(name)
cache_migrations()
print(json.dumps([str(thread) for thread in threading.enumerate()]), flush=True)
for line in sys.stdin:
    pid = server.fork_process(lambda: serve(*json.loads(line)))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Imports what a server does, then forks one for each line: it starts in a tenth of the time."""


class Served:
    """A run server, a Dagster instance that launches its runs there, and a module with jobs."""

    def __init__(self, folder: Path, instance: DagsterInstance, parent: subprocess.Popen) -> None:
        self.folder, self.instance, self.parent = folder, instance, parent
        self.socket = str(folder / "runs.sock")
        self.threads = json.loads(parent.stdout.readline())
        """Python's threads in the process that forks servers."""
        self.pid: int | None = None
        """The server's process; None once it has ended."""

    def write_module(self, text: str) -> None:
        (self.folder / "jobs.py").write_text(text)

    def start(self, patience: float = server.ANSWER_SECONDS) -> None:
        """Start a server that gives silent callers these seconds."""
        self.parent.stdin.write(json.dumps([self.socket, patience]) + "\n")
        self.parent.stdin.flush()
        self.pid = int(self.parent.stdout.readline())
        wait_for(self.answers, SECONDS, every=0.02)

    def answers(self) -> bool:
        try:
            return ask(self.socket, what=PING) == {"known": False}
        except OSError:
            return False

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the server the signal; return its exit status."""
        self.send_signal(signal.SIGCONT)
        self.send_signal(number)
        self.pid = None
        return int(self.parent.stdout.readline())

    def list_processes(self) -> set[int]:
        """Return the processes that the server has forked."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        with suppress(FileNotFoundError):
            return set(map(int, children.read_text().split()))
        return set()

    def knows(self, run: str) -> bool:
        return ask(self.socket, what=PING, run=run)["known"]

    @property
    def launcher(self) -> WarmRunLauncher:
        return self.instance.run_launcher

    def create_run(self, job: str, tags: dict[str, str] | None = None) -> str:
        job_ = ReconstructableJob.for_file(str(self.folder / "jobs.py"), job)
        run = self.instance.create_run_for_job(
            job_def=job_.get_definition(),
            job_code_origin=job_.get_python_origin(),
            status=DagsterRunStatus.STARTING,
            tags=tags,
        )
        return run.run_id

    def launch(self, run: str) -> None:
        self.launcher.launch_run(LaunchRunContext(self.instance.get_run_by_id(run), None))

    def launch_new(self, job: str) -> str:
        run = self.create_run(job)
        self.launch(run)
        return run

    def launch_waiting(self) -> tuple[str, int]:
        """Launch a run that never ends by itself; return it and its process."""
        run, file = self.launch_new("waiting"), self.folder / "waiting"
        wait_for(lambda: file.exists() and file.read_text(), SECONDS)
        return run, int(file.read_text())

    def launch_elsewhere(self) -> list[str]:
        """Launch a run that Dagster's own launcher gets; return the warnings in the run's log.

        That launcher needs a workspace, which is missing here.
        """
        run = self.create_run("writing")
        with raises_naming(DagsterInvariantViolationError, "workspace"):
            self.launch(run)
        return [text for text in self.messages(run) if "run server" in text]

    def messages(self, run: str) -> list[str]:
        return [event.message or "" for event in self.instance.all_logs(run)]

    def health(self, run: str) -> WorkerStatus:
        """Return the run's health, as Dagster's monitoring asks for it."""
        return self.launcher.check_run_worker_health(self.instance.get_run_by_id(run)).status

    def await_lost(self, run: str) -> None:
        """Wait until Dagster's monitoring would find that the run's process is gone."""
        wait_for(lambda: self.health(run) is WorkerStatus.NOT_FOUND, SECONDS)

    def status(self, run: str) -> DagsterRunStatus:
        return self.instance.get_run_by_id(run).status

    def await_status(self, run: str, status: DagsterRunStatus = DagsterRunStatus.SUCCESS) -> None:
        wait_for(lambda: self.status(run) is status, SECONDS, lambda: str(self.status(run)))


@pytest.fixture(scope="module")
def shared(tmp_path_factory, migrations_read):
    folder = tmp_path_factory.mktemp("runs")
    home = folder / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(INSTANCE)
    options = {"env": os.environ | {"DAGSTER_HOME": str(home)}, "cwd": folder, "text": True}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen([sys.executable, "-c", PARENT], **pipes, **options) as parent,
        DagsterInstance.from_config(str(home)) as instance,
    ):
        yield Served(folder, instance, parent)
        # Its server and that one's runs die with it.
        parent.kill()


@pytest.fixture
def served(shared, monkeypatch):
    """Give a server that is up, has no run, and about which no warning was given."""
    monkeypatch.setenv(SOCKET_VARIABLE, shared.socket)
    monkeypatch.setattr(launcher, "_SILENT", set())
    shared.write_module(MODULE)
    if shared.pid is None:
        shared.start()
    yield shared
    for process in shared.list_processes():
        os.kill(process, signal.SIGKILL)
    (shared.folder / "waiting").unlink(missing_ok=True)


def test_each_run_has_a_process_of_its_own_and_the_current_code(served):
    for text in ("first", "another"):
        served.write_module(MODULE.replace("TEXT", text))
        served.await_status(served.launch_new("writing"))
        assert (served.folder / "written").read_text() == f"{served.pid} {text}"


def test_a_run_that_cannot_begin_fails_at_its_start_and_leaves_the_server_as_it_was(served):
    ask(served.socket, what=START, run="none", arguments='{"no": "run"}')
    wait_for(lambda: not served.knows("none"), SECONDS)
    (served.folder / "written").unlink(missing_ok=True)
    run = served.create_run("writing")
    served.write_module(MODULE.replace("writing", "batch_writing"))
    served.launch(run)
    served.await_status(run, DagsterRunStatus.FAILURE)
    assert not (served.folder / "written").exists()
    served.write_module(MODULE)
    served.await_status(served.launch_new("writing"))


def test_a_run_is_started_once_and_any_process_may_cancel_it(served, monkeypatch):
    run, process = served.launch_waiting()
    (served.folder / "waiting").unlink()
    served.launch(run)
    assert served.knows(run)
    assert served.list_processes() == {process}
    assert not (served.folder / "waiting").exists()
    # As on the command line, which has no socket set.
    monkeypatch.delenv(SOCKET_VARIABLE)
    assert served.launcher.terminate(run)
    served.await_status(run, DagsterRunStatus.CANCELED)
    wait_for(lambda: process not in served.list_processes(), SECONDS)
    assert not served.launcher.terminate(run)
    assert not ask(served.socket, what=END, run=run)["known"]


def test_a_server_that_ends_interrupts_its_runs(served):
    run, _ = served.launch_waiting()
    assert served.end(signal.SIGINT) == 0
    # Dagster reports a failure when nobody asked to cancel the run.
    assert served.status(run) is DagsterRunStatus.FAILURE


def test_the_server_after_a_killed_one_fails_that_one_s_runs_alone(served):
    """The others' tags name a server on another machine, or were copied from a run's first try."""
    run, process = served.launch_waiting()
    elsewhere = served.create_run("waiting")
    address = RunServerAddress(socket=served.socket, name="of another machine")
    served.instance.add_run_tags(elsewhere, address.build_tags(elsewhere))
    again = served.create_run("writing", served.instance.get_run_by_id(run).tags)
    assert SERVER_TAG in served.instance.get_run_by_id(again).tags
    served.end(signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{process}").exists(), SECONDS)
    assert served.status(run) is DagsterRunStatus.STARTED
    assert served.health(again) is WorkerStatus.RUNNING
    served.start()
    assert served.status(run) is DagsterRunStatus.FAILURE
    assert len([text for text in served.messages(run) if LEFT_BEHIND in text]) == 1
    assert served.status(elsewhere) is served.status(again) is DagsterRunStatus.STARTING
    served.launch(again)
    served.await_status(again)


def test_a_run_is_lost_once_its_process_or_its_server_is_killed(served, monkeypatch):
    run, process = served.launch_waiting()
    assert served.launcher.supports_check_run_worker_health
    assert served.health(run) is WorkerStatus.RUNNING
    served.send_signal(signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(server, "ANSWER_SECONDS", 0.1)
        assert served.health(run) is WorkerStatus.RUNNING
    served.send_signal(signal.SIGCONT)
    os.kill(process, signal.SIGKILL)
    served.await_lost(run)
    served.end(signal.SIGKILL)
    served.await_lost(run)


@pytest.mark.parametrize(
    ("canceling", "status"),
    [(False, DagsterRunStatus.FAILURE), (True, DagsterRunStatus.CANCELED)],
)
def test_a_run_whose_process_is_killed_ends_at_once(served, canceling, status):
    """It does not wait for Dagster's monitoring, which gives a starting run two minutes."""
    killed, process = served.launch_waiting()
    if canceling:
        served.instance.report_run_canceling(served.instance.get_run_by_id(killed))
    os.kill(process, signal.SIGKILL)
    served.await_status(killed, status)
    assert any(LEFT_BEHIND in text for text in served.messages(killed))
    (served.folder / "waiting").unlink()
    other, _ = served.launch_waiting()
    assert served.status(other) is DagsterRunStatus.STARTED


def test_without_a_server_the_code_server_starts_runs_and_one_warning_is_given(served, caplog):
    served.launch_new("writing")
    assert served.end(signal.SIGTERM) == 0
    (warning,) = served.launch_elsewhere()
    assert_names(warning, served.socket, "python -m iscp_dagster.runs.server")
    assert served.launch_elsewhere() == served.launch_elsewhere() == []
    assert [record.getMessage() for record in caplog.records].count(warning) == 1
    served.start()
    served.launch_new("writing")
    served.end()
    with ThreadPoolExecutor(4) as threads:
        warnings = list(threads.map(Served.launch_elsewhere, [served] * 4))
    assert sum(map(len, warnings)) == 1, "of many launches at once, and after another outage"


def test_where_no_server_is_set_no_warning_is_given(served, monkeypatch):
    monkeypatch.delenv(SOCKET_VARIABLE)
    assert served.launch_elsewhere() == []


def test_runs_that_four_threads_launch_are_each_started_once(served):
    runs = [served.create_run("writing") for _ in range(3)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(served.launch, [*runs, *runs]))
    for run in runs:
        served.await_status(run)
        types = [event.dagster_event_type for event in served.instance.all_logs(run)]
        assert types.count(DagsterEventType.RUN_START) == 1


@contextmanager
def connect(path: str, number: int) -> Iterator[list[socket.socket]]:
    """Connect to the server as callers that have not sent anything yet."""
    with ExitStack() as stack:
        callers = []
        for _ in range(number):
            caller = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            caller.settimeout(SECONDS)
            caller.connect(path)
            callers.append(caller)
        yield callers


def test_silent_callers_hold_up_nobody_and_are_hung_up_on(served):
    served.end()
    served.start(patience=4.0)
    run = served.create_run("writing")
    with connect(served.socket, 5) as callers:
        callers[0].sendall(b'{"what": ')
        assert served.answers()
        served.launch(run)
        assert select.select(callers, [], [], 0)[0] == [], "it has not hung up on any"
        assert [caller.recv(1) for caller in callers] == [b""] * 5
    served.await_status(run)
    # The next test gets a server with the usual patience.
    served.end(signal.SIGKILL)


def test_a_request_of_the_user_may_come_in_pieces_and_a_wrong_one_is_not_answered(served):
    assert stat.S_IMODE(Path(served.socket).stat().st_mode) == 0o600
    request = json.dumps({"what": PING, "until": time.monotonic() + SECONDS}).encode() + b"\n"
    with connect(served.socket, 1) as (caller,):
        for piece in (request[:5], request[5:-1], request[-1:]):
            caller.sendall(piece)
            assert served.answers()
        assert json.loads(caller.recv(100)) == {"known": False}
    for request in (
        *(b"", b"\n", b"{", b"[]\n", b'{"what": "start"}\n', b'{"what": "ping", "until": "x"}\n'),
        *(json.dumps({"what": "x" * server.LONGEST}).encode() + b"\n", b"\xff\xfe\n"),
    ):
        with connect(served.socket, 1) as (caller,):
            caller.sendall(request)
            caller.shutdown(socket.SHUT_WR)
            assert caller.recv(100) == b"", request[:100]
        assert served.answers()


def test_a_run_keeps_no_caller_of_its_server_waiting(served):
    with connect(served.socket, 1) as (caller,):
        served.launch_waiting()
        caller.sendall(b"nothing\n")
        assert caller.recv(1) == b""


def test_a_healthy_run_stays_so_where_its_server_is_not_seen(served):
    """As where the daemon is on another machine, or in another container.

    A run of a code server has no server at all.
    """
    assert served.health(served.create_run("writing")) is WorkerStatus.RUNNING
    run, process = served.launch_waiting()
    path, lock = Path(served.socket), Path(served.socket + ".lock")
    name = lock.read_text()
    hidden = path.rename(path.with_name("elsewhere"))
    assert served.health(run) is WorkerStatus.RUNNING
    hidden.rename(path)
    # Another server is there, which does not have the run.
    lock.write_text("another")
    os.kill(process, signal.SIGKILL)
    wait_for(lambda: not served.knows(run), SECONDS)
    assert served.health(run) is WorkerStatus.RUNNING
    lock.write_text(name)
    assert served.health(run) is WorkerStatus.NOT_FOUND
    served.end(signal.SIGKILL)
    served.await_lost(run)
    lock.rename(lock.with_name("lock elsewhere"))
    assert served.health(run) is WorkerStatus.RUNNING


def test_a_second_server_at_a_socket_ends_and_leaves_the_first_one_s_runs_alone(
    served, monkeypatch
):
    run, _ = served.launch_waiting()
    monkeypatch.setattr(server_address, "LOCK_SECONDS", 0)
    with pytest.raises(SystemExit) as caught:
        server.main(served.socket)
    assert_names(caught.value.code, served.socket, f"{served.socket}.lock")
    assert served.status(run) is DagsterRunStatus.STARTED
    assert served.knows(run)


@pytest.mark.skipif(sys.platform != "linux", reason="only there does a run die with its server")
def test_a_program_that_a_run_has_started_does_not_hold_the_lock(served):
    served.await_status(served.launch_new("leaving"))
    left = int((served.folder / "left").read_text())
    served.end(signal.SIGKILL)
    wait_for(lambda: RunServerAddress.from_socket(served.socket).is_deserted, SECONDS)
    # Raises if it had ended.
    os.kill(left, signal.SIGKILL)


def test_a_run_whose_server_is_killed_before_its_start_goes_to_the_code_server(served, monkeypatch):
    def ask_and_kill(path, **request):
        answer = ask(path, **request)
        served.end(signal.SIGKILL)
        return answer

    monkeypatch.setattr(launcher, "ask", ask_and_kill)
    run = served.create_run("writing")
    with raises_naming(DagsterInvariantViolationError, "workspace"):
        served.launch(run)
    assert served.health(run) is WorkerStatus.RUNNING
    served.start()
    assert served.status(run) is DagsterRunStatus.STARTING


def test_a_server_that_hangs_starts_nothing_once_nobody_waits_any_more(served, monkeypatch):
    run = served.create_run("writing")
    with monkeypatch.context() as patch:

        def ask_and_stop(path, **request):
            if request["what"] == START:
                served.send_signal(signal.SIGSTOP)
                patch.setattr(server, "ANSWER_SECONDS", 0.5)
            return ask(path, **request)

        patch.setattr(launcher, "ask", ask_and_stop)
        with raises_naming(DagsterUserCodeUnreachableError, served.socket):
            served.launch(run)
        # It was not even asked to start the other one.
        assert len(served.launch_elsewhere()) == 1
        with pytest.raises(TimeoutError):
            ask(served.socket, what=START, run=run, arguments="{}")
    served.send_signal(signal.SIGCONT)
    wait_for(served.answers, SECONDS)
    assert not served.knows(run)
    assert served.status(run) is DagsterRunStatus.STARTING


def test_the_modules_of_a_server_start_no_thread_of_python(shared):
    """A lock held by such a thread would stay locked in the run for ever."""
    assert len(shared.threads) == 1, shared.threads


@pytest.mark.usefixtures("migrations_read")
def test_a_storage_is_opened_without_reading_the_migrations_again(tmp_path, monkeypatch):
    names, load_file = [], scripts.util.load_python_file

    def load_and_count(folder, name):
        names.append(name)
        return load_file(folder, name)

    def count_read_migrations():
        names.clear()
        with DagsterInstance.local_temp(str(tmp_path)) as instance:
            run = instance.add_run(DagsterRun("some"))
            instance.report_engine_event("an event", run)
            assert len(instance.all_logs(run.run_id)) == 1
        return len([name for name in names if name != "env.py"])

    monkeypatch.setattr(scripts.util, "load_python_file", load_and_count)
    cache_migrations()
    assert [count_read_migrations() for _ in range(2)] == [0, 0], "of a new storage, and an old one"
    script_directory = scripts.ScriptDirectory
    monkeypatch.setattr(script_directory, "from_config", script_directory.from_config.__wrapped__)
    assert count_read_migrations() > 100


def run_program(code: str) -> list[str]:
    """Run the code in a new Python; return the words that it prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_each_run_draws_random_numbers_of_its_own():
    code = """
import os
import numpy.random
from iscp_dagster.runs.server import fork_process
for _ in range(2):
    os.waitpid(fork_process(lambda: print(numpy.random.rand())), 0)
"""
    assert len(set(run_program(code))) == 2


def test_a_fork_warns_of_threads_of_python_and_not_of_arrow_s():
    code = """
import os, threading, warnings
import pyarrow
from iscp_dagster.runs.server import fork_process
pyarrow.array(range(1000))
assert len(os.listdir("/proc/self/task")) > 1
for _ in range(2):
    with warnings.catch_warnings(record=True, action="always") as caught:
        os.waitpid(fork_process(lambda: print("forked")), 0)
    print(sum("multi-threaded" in str(warning.message) for warning in caught))
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
    assert run_program(code) == ["forked", "0", "forked", str(int(sys.version_info >= (3, 12)))]
