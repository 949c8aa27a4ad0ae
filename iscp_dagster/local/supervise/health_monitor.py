"""Watches a service that is up until it needs a restart."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iscp_dagster.local.services.service import Service, StalledProblem
from iscp_dagster.local.services.state import Condition
from iscp_dagster.local.supervise.ward import find_descendants, list_processes

_LOGGER = logging.getLogger(__name__)
_TICKS = os.sysconf("SC_CLK_TCK")
_USER_TIME = 11
"""Index of the user time in /proc/<pid>/stat, counted after the name; the system time follows."""

ChangeReporter = Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """When to restart a service: after `failures` failed checks in a row and a minimum time.

    The time is `idle_seconds`, or `busy_seconds` for a service that uses a processor, since it may
    only be slow under a heavy load. A service with `mend` is first mended, once, after `failures`.
    """

    every: float = 3.0
    again: float = 1.0
    """Seconds between two checks once one has failed."""
    failures: int = 3
    idle_seconds: float = 15.0
    busy_seconds: float = 120.0
    busy: float = 0.1
    """A service counts as busy when it uses more processors than this."""


class HealthMonitor:
    """Watches a service that started at `since`; `change` reports its condition and note."""

    def __init__(
        self,
        service: Service,
        pid: int,
        since: float,
        change: ChangeReporter,
        patience: RestartPolicy,
    ) -> None:
        self._service = service
        self._pid = pid
        self._since = since
        self._change = change
        self._patience = patience
        self._last_note = ""
        self._failures = 0
        self._failing_since = 0.0
        self._cpu = 0.0
        self._mended = False
        self._last_usage: tuple[float, float] | None = None
        """When the processor time of the service and its processes was read last, and that time."""

    async def watch_until_unwell(self, note: str) -> str:
        """Watch until the service needs a restart; return its problem."""
        self._last_note = note
        while True:
            await asyncio.sleep(self._pause())
            checked_at = time.monotonic()
            problem = await self._find_problem()
            if not problem:
                await self._record_success()
                continue
            self._record_failure(problem, checked_at)
            mend = None if self._mended else self._service.mend
            if mend is not None and self._failures >= self._patience.failures:
                mend = mend if await self._try_mend(mend) else None
            if mend is None and self._should_restart():
                return problem

    def _pause(self) -> float:
        return (
            self._patience.again
            if self._failures
            else self._patience.every * self._service.check_interval_factor
        )

    async def _find_problem(self) -> str:
        if self._service.check is None:
            return ""
        try:
            problem = await self._service.check(self._since)
        except Exception:
            _LOGGER.exception("the check of %s raised an error", self._service.name)
            return ""
        only_busy = problem and isinstance(problem, StalledProblem) and self._is_working()
        return "" if only_busy else problem

    def _is_working(self) -> bool:
        """Whether the service has used a processor since the last call; True for the first."""
        now, used = time.monotonic(), measure_tree_cpu(self._pid)
        before, self._last_usage = self._last_usage, (now, used)
        return before is None or used - before[1] > self._patience.busy * (now - before[0])

    async def _record_success(self) -> None:
        self._failures, self._mended = 0, False
        note = await read_note(self._service)
        if note != self._last_note:
            self._last_note = note
            self._change(condition=Condition.READY, note=note)

    def _record_failure(self, problem: str, checked_at: float) -> None:
        """Count the failed check that began at `checked_at`; report from the second on."""
        self._failures += 1
        if self._failures == 1:
            self._failing_since, self._cpu = checked_at, measure_cpu(self._pid)
        elif problem != self._last_note:
            self._last_note = problem
            self._change(condition=Condition.UNWELL, note=problem)

    def _should_restart(self) -> bool:
        lasted = time.monotonic() - self._failing_since
        used = measure_cpu(self._pid) - self._cpu
        busy = used > self._patience.busy * lasted
        seconds = self._patience.busy_seconds if busy else self._patience.idle_seconds
        return self._failures >= self._patience.failures and lasted >= seconds

    async def _try_mend(self, mend: Callable[[], Any]) -> bool:
        """Mend the service, which is gentler than a restart; later checks show whether it helped.

        Returns False when the attempt itself failed.
        """
        _LOGGER.warning("mending %s", self._service.name)
        self._mended = True
        try:
            await mend()
        except Exception as error:  # noqa: BLE001 - whatever it is, a restart is the next step
            _LOGGER.warning("%s could not be mended: %s", self._service.name, error)
            return False
        self._failures = 0
        return True


async def read_note(service: Service) -> str:
    """The note of a service that is up; empty if it has none, or if reading it fails."""
    try:
        return await service.note() if service.note else ""
    except Exception:
        _LOGGER.exception("the note of %s raised an error", service.name)
        return ""


def measure_tree_cpu(pid: int) -> float:
    """The processor time of a process and of all living processes below it."""
    return sum(map(measure_cpu, [pid, *find_descendants(pid, list_processes())]))


def measure_cpu(pid: int) -> float:
    """The processor time that a process has used; 0 if it is gone or there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    times = text.rpartition(")")[2].split()[_USER_TIME : _USER_TIME + 2]
    return sum(map(int, times)) / _TICKS
