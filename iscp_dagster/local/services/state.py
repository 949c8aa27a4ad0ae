"""A stack's state, which its supervisor writes to `stack.json` in its home."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from iscp_dagster.local.services.lock import HomeLocks
from iscp_dagster.model.errors import SetupError


class Condition(str, Enum):
    """How far a service, or the whole stack, has come."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    UNWELL = "unwell"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    DOWN = "down"
    EXTERNAL = "external"


@dataclass(frozen=True, kw_only=True)
class ServiceState:
    """One service: its condition, address, process and log.

    `pid` is the service's own process; `restarts` counts how often it was restarted because it had
    ended or was unwell.
    """

    name: str
    condition: Condition
    address: str
    pid: int | None = None
    log: str | None = None
    restarts: int = 0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class StackState:
    """A stack as its supervisor last wrote it; `started_at` is ISO 8601 in UTC."""

    condition: Condition
    home: str
    supervisor: int
    started_at: str
    services: tuple[ServiceState, ...]
    log_url: str = ""
    lake: str = ""
    clickhouse_urls: str = ""

    def get_service(self, name: str) -> ServiceState:
        """The named service; KeyError when the stack has none of that name."""
        for service in self.services:
            if service.name == name:
                return service
        raise KeyError(name)


def write(home: Path, state: StackState) -> None:
    """Replace `stack.json` atomically, so that a reader never sees half of it."""
    fresh = home / f"stack.json.{state.supervisor}"
    fresh.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
    fresh.replace(home / "stack.json")


def read(home: Path) -> StackState | None:
    """The last written state, or None when there is none.

    Raises SetupError for one that is damaged, or that another version of this package wrote.
    """
    path = home / "stack.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SetupError(
            f"{path} is damaged: {error}. Remove it once the processes of its stack are gone."
        ) from error
    try:
        return _parse_state(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SetupError(
            f"{path} was written by another version of iscp_dagster. Stop its stack with that "
            "version, or remove the file once its processes are gone."
        ) from error


def find_running_stack(home: Path) -> StackState | None:
    """The state of the stack that is up, or coming up, in a home; None when there is none.

    None also for the moment before a new supervisor writes its first state.
    """
    if not HomeLocks(home).is_supervised():
        return None
    state = read(home)
    if state is None or state.condition is Condition.DOWN or not _is_alive(state.supervisor):
        return None
    return state


def _is_alive(pid: int) -> bool:
    """Whether the process exists: a supervisor that was killed leaves its state behind."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _parse_state(fields: dict[str, Any]) -> StackState:
    services = tuple(
        ServiceState(**{**service, "condition": Condition(service["condition"])})
        for service in fields["services"]
    )
    return StackState(
        **{**fields, "condition": Condition(fields["condition"]), "services": services}
    )
