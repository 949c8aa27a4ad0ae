"""The run server: forks each run off a process that has imported what runs need.

Run as `python -m iscp_dagster.runs.server SOCKET` with DAGSTER_HOME set. It takes
requests from `iscp_dagster.runs.launcher`, one line of JSON per connection; only its own user can
reach the socket. The deployment's own code is not imported here: each run imports the current one.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import os
import select
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.runs.server_address import RunServerAddress, lock_address

if TYPE_CHECKING:
    from dagster import DagsterRun

SOCKET_VARIABLE = "ISCP_RUNS_SOCKET"
"""Where the run server listens; without it the code server starts every run."""
PING, START, END = "ping", "start", "end"
"""The requests: say whether it has the run, start it, interrupt it."""
ANSWER_SECONDS = 10.0
"""How long one side waits for the other."""
LONGEST = 2**20
"""Most bytes of a request."""
ANSWER_MARGIN_SECONDS = 2.0
"""A request read with less time than this left is not answered: its sender may give up."""
RUNS_END_SECONDS = 10.0
"""How long interrupted runs may take to end before the server does."""
PRELOADED = (
    "clickhouse_connect",
    "dagster._cli.api",
    "dagster._core.assets",
    "dagster._core.definitions.repository_definition.repository_data_builder",
    "dagster._core.execution.plan.active",
    "dagster._core.executor.in_process",
    "dagster._core.instance.factory",
    "dagster._core.storage.sqlite_storage",
    "dagster._core.system_config.composite_descent",
    "dagster._core.workspace.autodiscovery",
    "dagster._daemon.daemon",
    "deltalake",
    "encodings.idna",
    "fsspec.implementations.local",
    "grpc._channel",
    "iscp_dagster.joblog.sql.log",
    "iscp_dagster.location.build",
    "iscp_dagster.location.resources.environment",
    "iscp_dagster.runs.output",
    "iscp_dagster.runs.queueing",
    "iscp_dagster.runs.sqlite",
    "iscp_dagster.sync.interpreter",
    "pandas",
    "pyarrow.dataset",
    "pyarrow.pandas_compat",
    "pyspark.sql.connect.dataframe",
    "pyspark.sql.connect.session",
    "pyspark.sql.connect.window",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite",
    "structlog",
    "upath.implementations.local",
)
"""What runs import, except the deployment's own code. None of it starts a Python thread."""
LEFT_BEHIND = "The process of this run is gone; the next iteration continues from the watermark."
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
LOGGER = logging.getLogger(__name__)
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


@dataclass
class _Caller:
    """A connection whose request is not complete yet."""

    connection: socket.socket
    deadline: float = field(default_factory=lambda: time.monotonic() + ANSWER_SECONDS)
    received: bytearray = field(default_factory=bytearray)

    def read_request(self) -> Mapping[str, Any] | None:
        """Read what has arrived; the request, or None if it is not complete yet.

        Raises ValueError for an invalid one.
        """
        data = self.connection.recv(65_536)
        self.received += data
        if not data or len(self.received) > LONGEST:
            raise ValueError(self.received[:100])
        if not self.received.endswith(b"\n"):
            return None
        request = json.loads(self.received)
        if not isinstance(request, dict) or request.get("what") not in {PING, START, END}:
            raise ValueError(self.received[:100])
        return request


class RunServer:
    """Forks a process for each run; has a single thread, as a process that forks must.

    So it never waits for a single caller: a silent one must not hold up the others.
    """

    def __init__(self, listening: socket.socket) -> None:
        self._listener = listening
        self._callers: dict[int, _Caller] = {}
        """By file descriptor."""
        self._pids: dict[str, int] = {}

    def serve(self) -> None:
        """Answer until SIGTERM or SIGINT, then interrupt the runs and wait for them."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _exit_server)
        signal.signal(signal.SIGCHLD, self._handle_child_exit)
        try:
            while True:
                self._serve_next()
        except SystemExit:
            self._listener.close()
            self._end_all_runs()

    def _serve_next(self) -> None:
        """Wait for a connection, for data, or until a caller has been silent for too long."""
        # Unlike epoll, it has no file of its own that forks would share.
        poll = select.poll()
        for file in (self._listener.fileno(), *self._callers):
            poll.register(file, select.POLLIN)
        for file, _ in poll.poll(self._compute_timeout()):
            if file in self._callers:
                self._serve_caller(self._callers[file])
            else:
                self._accept_caller()
        now = time.monotonic()
        for caller in [caller for caller in self._callers.values() if caller.deadline <= now]:
            self._close_caller(caller)

    def _compute_timeout(self) -> float | None:
        """Milliseconds until the first caller has been silent for too long."""
        remaining = [caller.deadline - time.monotonic() for caller in self._callers.values()]
        return math.ceil(max(0.0, min(remaining)) * 1_000) if remaining else None

    def _accept_caller(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._callers[connection.fileno()] = _Caller(connection)

    def _serve_caller(self, caller: _Caller) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            request = caller.read_request()
            if request is None:
                return
            self._answer_request(request, caller.connection)
        self._close_caller(caller)

    def _close_caller(self, caller: _Caller) -> None:
        del self._callers[caller.connection.fileno()]
        caller.connection.close()

    def _answer_request(self, request: Mapping[str, Any], connection: socket.socket) -> None:
        command, run = request["what"], str(request.get("run", ""))
        if time.monotonic() > float(request["until"]) - ANSWER_MARGIN_SECONDS:
            return
        with _block_signals():
            has_run = run in self._pids
            if command == START and not has_run:
                arguments = str(request["arguments"])
                self._pids[run] = self._fork_work(lambda: _execute_run(arguments))
            elif command == END and has_run:
                os.kill(self._pids[run], signal.SIGINT)
        connection.sendall(json.dumps({"known": has_run}).encode() + b"\n")

    def _fork_work(self, work: Callable[[], None]) -> int:
        callers = [caller.connection for caller in self._callers.values()]
        return fork_process(work, self._listener, *callers)

    def _handle_child_exit(self, *_: object) -> None:
        with _block_signals():
            # A run that was killed could not say so itself.
            killed = frozenset(run for run, status in self._collect_ended_runs() if status)
            if killed:
                self._fork_work(lambda: report_left_behind_runs(lambda run: run.run_id in killed))

    def _collect_ended_runs(self) -> Iterator[tuple[str, int]]:
        """Forget the runs whose processes have ended; yield them with their exit status."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for run in [run for run, pid in self._pids.items() if pid == ended[0]]:
                    del self._pids[run]
                    yield run, ended[1]

    def _end_all_runs(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for pid in self._pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        deadline = threading.Timer(RUNS_END_SECONDS, os._exit, (0,))
        deadline.daemon = True
        deadline.start()
        for pid in self._pids.values():
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


@contextmanager
def _block_signals() -> Iterator[None]:
    """Block signals; a process forked meanwhile starts with them blocked."""
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def _exit_server(*_: object) -> NoReturn:
    raise SystemExit


def fork_process(work: Callable[[], None], *to_close: socket.socket) -> int:
    """Fork a process that closes these sockets, then does the work.

    On Linux it dies with this one.
    """
    parent = os.getpid()
    pid = _fork_quietly()
    if pid:
        return pid
    code = 1
    try:
        for sock in to_close:
            sock.close()
        _prepare_child(parent)
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


def _fork_quietly() -> int:
    with warnings.catch_warnings():
        # Newer Pythons count native threads, too; those of Arrow's jemalloc are prepared for forks.
        if threading.active_count() == 1:
            warnings.filterwarnings("ignore", ".* is multi-threaded", DeprecationWarning)
        return os.fork()


def _prepare_child(parent: int) -> None:
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


def _execute_run(arguments: str) -> None:
    """Execute the run as `dagster api execute_run` does."""
    from iscp_dagster.runs.internals import execute_run_command

    execute_run_command.main([arguments], standalone_mode=False)


def report_left_behind_runs(is_left_behind: Callable[[DagsterRun], bool]) -> None:
    """End DAGSTER_HOME's runs that should have a worker and for which `is_left_behind` holds."""
    from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

    from iscp_dagster.runs.cancel import report_orphan

    worked = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
    with DagsterInstance.get() as instance:
        for run in filter(is_left_behind, instance.get_runs(RunsFilter(statuses=worked))):
            report_orphan(instance, run, LEFT_BEHIND)


def ask(path: str, **request: Any) -> Mapping[str, Any]:
    """Ask the server at the socket; `known` in its answer says whether it already had the `run`.

    Raises ConnectionRefusedError or FileNotFoundError if there is no server, so nothing was done,
    and another OSError if the request may have been carried out.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(path)
        request["until"] = time.monotonic() + ANSWER_SECONDS
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as answer:
            line = answer.readline()
    if not line.endswith(b"\n"):
        raise ConnectionResetError(f"The run server at {path} was gone before it answered.")
    reply: Mapping[str, Any] = json.loads(line)
    return reply


def main(path: str) -> None:
    """Import what runs need and serve at `path`; exits if another server already does.

    Fails the runs that an earlier server left behind: none of them lives any more.
    """
    try:
        name = lock_address(path).name
    except UnavailableError as error:
        sys.exit(str(error))
    for module in PRELOADED:
        import_module(module)
    # Imports Dagster, which clients of this module should not have to.
    from iscp_dagster.runs.alembic_cache import cache_migrations

    cache_migrations()

    def is_left_behind(run: DagsterRun) -> bool:
        address = RunServerAddress.from_run(run)
        return address is not None and address.name == name

    # In its own process: reading a storage may start threads, and this process must not have any.
    os.waitpid(fork_process(lambda: report_left_behind_runs(is_left_behind)), 0)
    RunServer(_open_socket(path)).serve()


def _open_socket(path: str) -> socket.socket:
    """A socket at the path that only this user can reach."""
    Path(path).unlink(missing_ok=True)
    old_umask = os.umask(0o177)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.umask(old_umask)
    listener.listen(64)
    return listener


if __name__ == "__main__":
    main(*sys.argv[1:])
