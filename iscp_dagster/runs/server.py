"""The run server: forks each run off a process that has imported what runs need.

Run as `python -m iscp_dagster.runs.server SOCKET` with DAGSTER_HOME set. It takes
requests from `iscp_dagster.runs.launcher`, one line of JSON per connection; only its own user can
reach the socket. The deployment's own code is not imported here: a run gets it as it then is.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dagster import DagsterRun

SOCKET_VARIABLE = "ISCP_RUNS_SOCKET"
"""Where the run server listens; without it the code server starts every run."""
SERVER_TAG = ".dagster/iscp_run_server"
"""Names a run and its server, see `server_of`; the user interface hides such tags."""
PING, START, END = "ping", "start", "end"
"""The requests: say whether it has the run, start it, interrupt it."""
ANSWER_SECONDS = 10.0
"""How long one side waits for the other."""
LONGEST = 2**20
"""Most bytes of a request."""
GRACE_SECONDS = 2.0
"""A request read with less time than this left is not answered: its sender may give up."""
END_SECONDS = 10.0
"""How long interrupted runs may take to end before the server does."""
PRELOADED = (
    "clickhouse_connect",
    "dagster._cli.api",
    "dagster._core.assets",
    "dagster._core.executor.in_process",
    "dagster._core.instance.factory",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.storage.sqlite_storage",
    "dagster._core.workspace.autodiscovery",
    "dagster._daemon.daemon",
    "deltalake",
    "fsspec.implementations.local",
    "iscp_dagster.joblog.sql.log",
    "iscp_dagster.location.build",
    "iscp_dagster.location.resources.environment",
    "iscp_dagster.sync.iterate",
    "pandas",
    "pyspark.sql.connect.dataframe",
    "pyspark.sql.connect.session",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite",
    "structlog",
    "upath.implementations.local",
)
"""What runs import, except the deployment's own code. None of it starts a Python thread."""
LEFT_BEHIND = "The process of this run is gone; the next iteration goes on from the watermark."
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
LOGGER = logging.getLogger(__name__)
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


class RunServer:
    """Forks a process for each run; has a single thread, as a process that forks must."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._pids: dict[str, int] = {}

    def serve(self) -> None:
        """Answer until SIGTERM or SIGINT, then interrupt the runs and wait for them."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave)
        signal.signal(signal.SIGCHLD, self._reap)
        try:
            while True:
                connection, _ = self._listening.accept()
                with connection, suppress(OSError, ValueError, KeyError, TypeError):
                    connection.settimeout(ANSWER_SECONDS)
                    self._answer(connection)
        except SystemExit:
            self._listening.close()
            self._end_all()

    def _answer(self, connection: socket.socket) -> None:
        asked = _line(connection)
        what, run = asked["what"], str(asked.get("run", ""))
        if time.monotonic() > float(asked["until"]) - GRACE_SECONDS:
            return
        with _undisturbed():
            known = run in self._pids
            if what == START and not known:
                self._pids[run] = self._forked(str(asked["arguments"]), connection)
            elif what == END and known:
                os.kill(self._pids[run], signal.SIGINT)
        connection.sendall(json.dumps({"known": known}).encode() + b"\n")

    def _forked(self, arguments: str, connection: socket.socket) -> int:
        return forked(lambda: _execute(arguments), self._listening, connection)

    def _reap(self, *_: object) -> None:
        with _undisturbed():
            # A run that was killed could not say so itself.
            killed = frozenset(run for run, status in self._ended() if status)
            if killed:
                forked(lambda: end_runs(lambda run: run.run_id in killed), self._listening)

    def _ended(self) -> Iterator[tuple[str, int]]:
        """Forget the runs whose processes have ended; yield them with their exit status."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for run in [run for run, pid in self._pids.items() if pid == ended[0]]:
                    del self._pids[run]
                    yield run, ended[1]

    def _end_all(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for pid in self._pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        over = threading.Timer(END_SECONDS, os._exit, (0,))
        over.daemon = True
        over.start()
        for pid in self._pids.values():
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Block signals; a process forked meanwhile starts with them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave(*_: object) -> NoReturn:
    raise SystemExit


def forked(work: Callable[[], None], *inherited: socket.socket) -> int:
    """Fork a process that does the work without these sockets; on Linux it dies with this one."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for each in inherited:
            each.close()
        _begin(parent)
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        LOGGER.exception("The process of a run failed.")
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        # As multiprocessing does: the parent's exit handlers must not run in the child.
        os._exit(code)


def _begin(parent: int) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()
    # Otherwise all runs would draw the same random numbers.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _execute(arguments: str) -> None:
    """Execute the run as `dagster api execute_run` does."""
    from dagster._cli.api import execute_run_command

    execute_run_command.main([arguments], standalone_mode=False)


def server_tag(run_id: str, path: str) -> dict[str, str]:
    """The tag of a run that the server at the socket is to start."""
    return {SERVER_TAG: f"{run_id} {path}"}


def server_of(run: DagsterRun) -> str:
    """The socket of the server that has the run; empty if a code server has it, or nobody yet.

    Dagster copies tags to a run that repeats another, so the tag counts only with the run's id.
    """
    run_id, _, path = run.tags.get(SERVER_TAG, "").partition(" ")
    return path if run_id == run.run_id else ""


def end_runs(left: Callable[[DagsterRun], bool]) -> None:
    """End those of DAGSTER_HOME's runs that should have a worker and are `left` behind."""
    from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

    from iscp_dagster.runs.cancel import end

    worked = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
    with DagsterInstance.get() as instance:
        for run in filter(left, instance.get_runs(RunsFilter(statuses=worked))):
            end(instance, run, LEFT_BEHIND)


def _line(connection: socket.socket) -> Mapping[str, Any]:
    """Read the request. Raises ValueError for an invalid one, OSError if none comes in time."""
    said = bytearray()
    while not said.endswith(b"\n"):
        some = connection.recv(65_536)
        if not some or len(said) > LONGEST:
            raise ValueError(said[:100])
        said += some
    asked = json.loads(said)
    if not isinstance(asked, dict) or asked.get("what") not in {PING, START, END}:
        raise ValueError(said[:100])
    return asked


def ask(path: str, **asked: Any) -> Mapping[str, Any]:
    """The answer of the server at the socket: `known` says whether it already had the `run`.

    Raises ConnectionRefusedError or FileNotFoundError if there is no server, so nothing was done,
    and other OSErrors where it may have done what was asked.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(path)
        asked["until"] = time.monotonic() + ANSWER_SECONDS
        connection.sendall(json.dumps(asked).encode() + b"\n")
        with connection.makefile("rb") as answer:
            said = answer.readline()
    if not said.endswith(b"\n"):
        raise ConnectionResetError(f"The run server at {path} was gone before it answered.")
    found: Mapping[str, Any] = json.loads(said)
    return found


def main(path: str) -> None:
    """Import what runs need and serve at `path`, in place of any earlier server."""
    for name in PRELOADED:
        import_module(name)
    # Imports Dagster, which clients of this module should not have to.
    from iscp_dagster.runs.migrations import remember

    remember()
    # In its own process: reading a storage may start threads, and this process must not have any.
    os.waitpid(forked(lambda: end_runs(lambda run: server_of(run) == path)), 0)
    Path(path).unlink(missing_ok=True)
    before = os.umask(0o177)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    os.umask(before)
    listening.listen(64)
    RunServer(listening).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
