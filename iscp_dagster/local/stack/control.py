"""Implements `iscp up`, `down` and `status`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from iscp_dagster.local.services import credentials, logs, state
from iscp_dagster.local.services.lock import HomeLocks
from iscp_dagster.local.services.settings import StackSettings, get_home, get_module_folder
from iscp_dagster.local.services.state import Condition, StackState, find_running_stack
from iscp_dagster.local.stack import plan, running, show
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.model.imports import ASSETS
from iscp_dagster.model.variables import HOME, LOG_URL

STOP_SECONDS = 60.0
_KILLED_SECONDS = 45.0
_POLL = 0.1
_SQLITE = "sqlite:///"


def start_stack(
    ports: Mapping[str, int | None],
    only: Sequence[str],
    *,
    detach: bool,
    paths: Callable[[], Iterable[str | None]] = tuple,
) -> int:
    """Bring up the stack of `ISCP_HOME`, or `only` some services; return the exit status.

    `paths` returns the declared tables' paths, which Spark must be able to read.
    """
    home = get_home(os.environ)
    if HomeLocks(home).is_supervised():
        return _join_stack(home)
    services = plan.select_services(only)
    plan.fetch_missing_jars(plan.resolve(home, ports, os.environ, services), paths)
    # The download may have taken minutes, and other programs may have taken ports since.
    settings = plan.resolve(home, ports, os.environ, services)
    return _start_detached(settings) if detach else _run_in_foreground(settings)


def _join_stack(home: Path) -> int:
    """Wait for the stack that another `iscp up` started, then print its addresses."""
    locks = HomeLocks(home)
    with show.StartUp() as progress:
        while (
            current := find_running_stack(home)
        ) is None or current.condition is Condition.STARTING:
            if current is not None:
                progress.update(current)
            elif not locks.is_supervised():
                raise UnavailableError(f"the stack in {home} did not come up; try again")
            time.sleep(_POLL)
    if current.condition is not Condition.READY:
        raise UnavailableError(f"the stack in {home} is going down; try again in a moment")
    show.print_line("The stack is already up:")
    show.print_addresses(current)
    return 0


def _run_in_foreground(settings: StackSettings) -> int:
    ready = False
    with show.StartUp() as progress:

        def watch(now: StackState) -> None:
            nonlocal ready
            if ready or now.condition is Condition.DOWN:
                return
            progress.update(now)
            if now.condition is Condition.READY:
                ready = True
                progress.close()
                _print_ready(settings, now)
                show.print_line("Press Ctrl-C to stop.")

        last_state = running.run(settings, watch)
    if last_state is None:
        return _join_stack(settings.home)
    show.print_line("The stack is down.")
    return 0 if ready else 128 + signal.SIGINT


def _start_detached(settings: StackSettings) -> int:
    """Start a supervisor that keeps running in its own session; wait until it is ready."""
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = settings.logs / "supervisor.log"
    logs.rotate(log)
    since = logs.size(log)
    supervisor = _spawn_supervisor(settings, log)
    try:
        with show.StartUp() as progress:
            current = _await_ready(settings.home, supervisor, progress)
    except KeyboardInterrupt:
        _end_supervisor(supervisor)
        raise
    if current is not None and current.supervisor == supervisor.pid:
        _print_ready(settings, current)
        return 0
    if _end_supervisor(supervisor) == 0 or current is not None:
        return _join_stack(settings.home)
    message = logs.read_tail(log, since=since).rpartition("iscp: ")[2]
    raise UnavailableError(message or f"the supervisor ended; see {log}")


def _print_ready(settings: StackSettings, now: StackState) -> None:
    for line in plan.describe_moved_ports(settings, now):
        show.print_line(line)
    show.print_addresses(now)


def _end_supervisor(supervisor: subprocess.Popen[bytes]) -> int:
    supervisor.terminate()
    return supervisor.wait()


def _spawn_supervisor(settings: StackSettings, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "iscp_dagster.cli.main", "up", *plan.format_options(settings)],
            # Elsewhere it would keep a folder from being unmounted.
            cwd=get_module_folder() if os.environ.get(ASSETS) else settings.home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | {HOME: str(settings.home)},
            start_new_session=True,
        )


def _await_ready(
    home: Path, supervisor: subprocess.Popen[bytes], progress: show.StartUp
) -> StackState | None:
    """Wait until the supervisor is ready, and return its state.

    Returns another supervisor's state if that one has the home; None when this one has ended.
    """
    while supervisor.poll() is None:
        current = find_running_stack(home)
        if current is not None:
            if current.supervisor != supervisor.pid:
                return current
            progress.update(current)
            if current.condition is Condition.READY:
                return current
        time.sleep(_POLL)
    return None


def stop_stack() -> None:
    """Stop the stack of `ISCP_HOME` and wait until no process of it is left."""
    home = get_home(os.environ)
    locks = HomeLocks(home)
    current = state.read(home)
    if not locks.is_supervised() or current is None:
        if locks.is_gone():
            show.print_line("The stack is not up.")
            return
        show.print_line("The supervisor is gone; waiting for its children to end.")
    else:
        _terminate_supervisor(current.supervisor, locks)
    if not locks.wait_gone(_KILLED_SECONDS):
        raise UnavailableError(f"processes of the stack in {home} have not ended; see {home}/logs")
    show.print_line("The stack is down.")


def _terminate_supervisor(supervisor: int, locks: HomeLocks) -> None:
    """Ask the supervisor to stop; kill it if it does not. The wards then stop the rest."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(supervisor, signum)
        except ProcessLookupError:
            return
        if locks.wait_gone(STOP_SECONDS):
            return


def print_status(*, as_json: bool) -> bool:
    """Print the condition of the stack's services; return whether the stack is up."""
    home = get_home(os.environ)
    current = find_running_stack(home)
    stack = current or _read_stopped_state(home)
    if as_json:
        show.print_line(json.dumps(_to_dict(stack, home), indent=2))
    elif stack is None or current is None:
        show.print_line(f"The stack in {home} is not up.")
    else:
        show.print_table(stack)
    return current is not None


def find_problems() -> list[str]:
    """List the problems: services of the running stack that are not ready, and jobs in error."""
    current = find_running_stack(get_home(os.environ))
    services = current.services if current else ()
    unwell = [
        service
        for service in services
        if service.condition not in {Condition.READY, Condition.EXTERNAL}
    ]
    problems = [f"{service.name} is {service.condition.value}" for service in unwell]
    return problems + _find_job_errors()


def _find_job_errors() -> list[str]:
    from iscp_dagster.joblog.sql.log import SqlLog
    from iscp_dagster.local.stack.environment import add_stack_variables
    from iscp_dagster.model.states import JobState

    url = add_stack_variables(os.environ)[LOG_URL]
    if url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).exists():
        return []
    number = SqlLog(url).count()[JobState.ERROR]
    return [f"jobs in error: {number:,}; see `iscp job list --state error`"] if number else []


def show_secrets(*, as_json: bool) -> bool:
    """Print the secrets of the stack of `ISCP_HOME`; return whether it is up."""
    home = get_home(os.environ)
    secrets = credentials.read(home)
    facts = {
        "clickhouse_user": "default",
        "clickhouse_password": secrets.password,
        "spark_token": secrets.spark_token,
        "webhook_secret": secrets.webhook,
    }
    if as_json:
        show.print_line(json.dumps(facts, indent=2))
    else:
        for name, value in facts.items():
            show.print_line(f"{name.replace('_', ' '):<22}{value}")
    return find_running_stack(home) is not None


def _read_stopped_state(home: Path) -> StackState | None:
    """The last written state, marked as down, since a killed supervisor could not mark it."""
    last_state = state.read(home)
    if last_state is None:
        return None
    services = tuple(
        replace(service, condition=Condition.DOWN, pid=None) for service in last_state.services
    )
    return replace(last_state, condition=Condition.DOWN, services=services)


def _to_dict(stack: StackState | None, home: Path) -> dict[str, object]:
    if stack is None:
        return {"condition": Condition.DOWN.value, "home": str(home), "services": []}
    return asdict(stack)
