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
from iscp_dagster.local.services.settings import StackSettings, declaring_folder, home_of
from iscp_dagster.local.services.state import Condition, StackState, running_stack
from iscp_dagster.local.stack import plan, running, show
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.model.imports import ASSETS
from iscp_dagster.model.variables import HOME, LOG_URL

STOP_SECONDS = 60.0
_KILLED_SECONDS = 45.0
_POLL = 0.1
_SQLITE = "sqlite:///"


def up(
    ports: Mapping[str, int | None],
    only: Sequence[str],
    *,
    detach: bool,
    paths: Callable[[], Iterable[str | None]] = tuple,
) -> int:
    """Bring up the stack of `ISCP_HOME`, or `only` some services; return the exit status.

    `paths` returns the declared tables' paths, which Spark must be able to read.
    """
    home = home_of(os.environ)
    if HomeLocks(home).supervised():
        return _join(home)
    services = plan.wanted(only)
    plan.fetch(plan.resolve(home, ports, os.environ, services), paths)
    # The download may have taken minutes, and other programs may have taken ports since.
    settings = plan.resolve(home, ports, os.environ, services)
    return _detached(settings) if detach else _foreground(settings)


def _join(home: Path) -> int:
    """Wait for the stack that another `iscp up` started, then print its addresses."""
    locks = HomeLocks(home)
    with show.StartUp() as progress:
        while (current := running_stack(home)) is None or current.condition is Condition.STARTING:
            if current is not None:
                progress.update(current)
            elif not locks.supervised():
                raise UnavailableError(f"the stack in {home} did not come up; try again")
            time.sleep(_POLL)
    if current.condition is not Condition.READY:
        raise UnavailableError(f"the stack in {home} is going down; try again in a moment")
    show.line("The stack is already up:")
    show.addresses(current)
    return 0


def _foreground(settings: StackSettings) -> int:
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
                _say_ready(settings, now)
                show.line("Press Ctrl-C to stop.")

        last = running.run(settings, watch)
    if last is None:
        return _join(settings.home)
    show.line("The stack is down.")
    return 0 if ready else 128 + signal.SIGINT


def _detached(settings: StackSettings) -> int:
    """Start a supervisor that keeps running in its own session; wait until it is ready."""
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = settings.logs / "supervisor.log"
    logs.rotate(log)
    since = logs.size(log)
    supervisor = _spawn(settings, log)
    try:
        with show.StartUp() as progress:
            current = _await_ready(settings.home, supervisor, progress)
    except KeyboardInterrupt:
        _end(supervisor)
        raise
    if current is not None and current.supervisor == supervisor.pid:
        _say_ready(settings, current)
        return 0
    if _end(supervisor) == 0 or current is not None:
        return _join(settings.home)
    said = logs.tail(log, since=since).rpartition("iscp: ")[2]
    raise UnavailableError(said or f"the supervisor ended; see {log}")


def _say_ready(settings: StackSettings, now: StackState) -> None:
    for line in plan.moved(settings, now):
        show.line(line)
    show.addresses(now)


def _end(supervisor: subprocess.Popen[bytes]) -> int:
    supervisor.terminate()
    return supervisor.wait()


def _spawn(settings: StackSettings, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "iscp_dagster.cli.main", "up", *plan.options(settings)],
            # Elsewhere it would keep a folder from being unmounted.
            cwd=declaring_folder() if os.environ.get(ASSETS) else settings.home,
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
        current = running_stack(home)
        if current is not None:
            if current.supervisor != supervisor.pid:
                return current
            progress.update(current)
            if current.condition is Condition.READY:
                return current
        time.sleep(_POLL)
    return None


def down() -> None:
    """Stop the stack of `ISCP_HOME` and wait until no process of it is left."""
    home = home_of(os.environ)
    locks = HomeLocks(home)
    current = state.read(home)
    if not locks.supervised() or current is None:
        if locks.gone():
            show.line("The stack is not up.")
            return
        show.line("The supervisor is gone; waiting for its children to end.")
    else:
        _terminate(current.supervisor, locks)
    if not locks.wait_gone(_KILLED_SECONDS):
        raise UnavailableError(f"processes of the stack in {home} have not ended; see {home}/logs")
    show.line("The stack is down.")


def _terminate(supervisor: int, locks: HomeLocks) -> None:
    """Ask the supervisor to stop; kill it if it does not. The wards then stop the rest."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(supervisor, number)
        except ProcessLookupError:
            return
        if locks.wait_gone(STOP_SECONDS):
            return


def status(*, as_json: bool) -> bool:
    """Print the condition of the stack's services; return whether the stack is up."""
    home = home_of(os.environ)
    current = running_stack(home)
    found = current or _stopped(home)
    if as_json:
        show.line(json.dumps(_facts(found, home), indent=2))
    elif found is None or current is None:
        show.line(f"The stack in {home} is not up.")
    else:
        show.table(found)
    return current is not None


def problems() -> list[str]:
    """List the problems: services of the running stack that are not ready, and jobs in error."""
    current = running_stack(home_of(os.environ))
    services = current.services if current else ()
    unwell = [
        each for each in services if each.condition not in {Condition.READY, Condition.EXTERNAL}
    ]
    found = [f"{each.name} is {each.condition.value}" for each in unwell]
    return found + _jobs_in_error()


def _jobs_in_error() -> list[str]:
    from iscp_dagster.joblog.sql.log import SqlLog
    from iscp_dagster.local.stack.environment import with_stack
    from iscp_dagster.model.states import JobState

    url = with_stack(os.environ)[LOG_URL]
    if url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).exists():
        return []
    number = SqlLog(url).count()[JobState.ERROR]
    return [f"jobs in error: {number:,}; see `iscp job list --state error`"] if number else []


def show_secrets(*, as_json: bool) -> bool:
    """Print the secrets of the stack of `ISCP_HOME`; return whether it is up."""
    home = home_of(os.environ)
    held = credentials.read(home)
    facts = {
        "clickhouse_user": "default",
        "clickhouse_password": held.password,
        "spark_token": held.spark_token,
        "webhook_secret": held.webhook,
    }
    if as_json:
        show.line(json.dumps(facts, indent=2))
    else:
        for name, value in facts.items():
            show.line(f"{name.replace('_', ' '):<22}{value}")
    return running_stack(home) is not None


def _stopped(home: Path) -> StackState | None:
    """The last written state, marked as down, since a killed supervisor could not mark it."""
    last = state.read(home)
    if last is None:
        return None
    services = tuple(
        replace(service, condition=Condition.DOWN, pid=None) for service in last.services
    )
    return replace(last, condition=Condition.DOWN, services=services)


def _facts(found: StackState | None, home: Path) -> dict[str, object]:
    if found is None:
        return {"condition": Condition.DOWN.value, "home": str(home), "services": []}
    return asdict(found)
