"""Finds the processes of running stacks by kind, and kills, stops or holds them."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from iscp_dagster.local.services.state import Condition, ServiceState
from iscp_dagster.local.supervise.ward import find_descendants, list_processes
from support.services.stack import Stack, command_of

HOLD_SECONDS = 0.1
_DAEMON = "-m iscp_dagster.local.spark.daemon"
_RUNS = "-m iscp_dagster.runs.server"
KILL, STOP, HANG = "kill", "stop", "hang"
"""SIGKILL; SIGSTOP once; or SIGSTOP repeatedly, so that nothing can resume the process."""


@dataclass(frozen=True, kw_only=True)
class Process:
    pid: int
    command: str
    parent: str


def _has(*parts: str) -> Callable[[Process], bool]:
    return lambda process: (
        "ward.py" not in process.command and all(part in process.command for part in parts)
    )


def _executes(program: str, process: Process, *, forked: bool) -> bool:
    """Return whether the process is a fork of the program, or the program itself."""
    is_fork = program in process.parent and "ward.py" not in process.parent
    return program in process.command and "ward.py" not in process.command and is_fork is forked


KINDS: dict[str, Callable[[Process], bool]] = {
    "ward": lambda process: "ward.py" in process.command,
    "clickhouse": _has("chdb_http"),
    "jvm": _has("org.apache.spark.deploy.SparkSubmit"),
    "python daemon": lambda process: _executes(_DAEMON, process, forked=False),
    "python worker": lambda process: _executes(_DAEMON, process, forked=True),
    "code server": _has("dagster code-server start"),
    "code": _has("dagster api grpc"),
    "daemon": _has("dagster._daemon run"),
    "webserver": _has("dagster_webserver"),
    "graphql": _has("iscp_dagster.cli.main serve"),
    "invocations": _has("iscp_dagster.cli.main invocations serve"),
    "run server": lambda process: _executes(_RUNS, process, forked=False),
    "run": lambda process: _executes(_RUNS, process, forked=True),
}
SERVING = {"clickhouse": "clickhouse", "jvm": "spark", "code server": "code"} | {
    "webserver": "dagster",
    "graphql": "graphql",
    "invocations": "invocations",
    "run server": "runs",
}
"""The service's name for each kind that is a service and answers requests."""


def living(stacks: Iterable[Stack]) -> list[Process]:
    """Return every process below the stacks' supervisors."""
    processes = list_processes()
    parents = {pid: parent for pid, parent, *_ in processes}
    return [
        Process(pid=pid, command=command_of(pid), parent=command_of(parents[pid]))
        for stack in stacks
        for pid in find_descendants(stack.supervisor, processes)
    ]


def of_kind(stacks: Iterable[Stack], kind: str) -> list[int]:
    return [process.pid for process in living(stacks) if KINDS[kind](process)]


def serving(stacks: Iterable[Stack], kind: str) -> ServiceState:
    """Return the service of that kind, from the stack that started it."""
    services = (stack.service(SERVING[kind]) for stack in stacks)
    return next(each for each in services if each.condition is not Condition.EXTERNAL)


@dataclass
class Killer:
    """Strikes processes, and counts what was done to each kind."""

    stacks: tuple[Stack, ...]
    random: Random
    done: Counter[str] = field(default_factory=Counter)

    def strike(self, how: str, kinds: Collection[str]) -> list[str]:
        """Strike a random process of each kind that has one; return what was done."""
        struck = []
        for kind in kinds:
            pids = of_kind(self.stacks, kind)
            if pids:
                self._strike_one(how, kind, self.random.choice(pids))
                struck.append(f"{how} {kind}")
        self.done.update(struck)
        return struck

    def _strike_one(self, how: str, kind: str, pid: int) -> None:
        if how == HANG:
            restarts = serving(self.stacks, kind).restarts
            threading.Thread(target=self._hold, args=(pid, kind, restarts), daemon=True).start()
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if how == KILL else signal.SIGSTOP)

    def _hold(self, pid: int, kind: str, restarts: int) -> None:
        """Keep the process stopped until its service has been restarted."""
        pause = threading.Event()
        with suppress(ProcessLookupError, FileNotFoundError):
            while serving(self.stacks, kind).restarts == restarts:
                os.kill(pid, signal.SIGSTOP)
                pause.wait(HOLD_SECONDS)
