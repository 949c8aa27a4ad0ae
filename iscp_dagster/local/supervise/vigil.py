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

from iscp_dagster.local.services.service import Service, Stalled
from iscp_dagster.local.services.state import Condition
from iscp_dagster.local.supervise.ward import below, processes

_LOGGER = logging.getLogger(__name__)
_TICKS = os.sysconf("SC_CLK_TCK")
_USER_TIME = 11
"""Index of the user time in /proc/<pid>/stat, counted after the name; the system time follows."""

Change = Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class Patience:
    """When a service counts as lost: after `failures` failed looks in a row and a minimum time.

    The time is `idle_seconds`, or `busy_seconds` for a service that uses a processor, since it may
    only be slow under a heavy load. One that can be mended is, once, after `failures` looks.
    """

    every: float = 3.0
    again: float = 1.0
    """Seconds between two looks once one has failed."""
    failures: int = 3
    idle_seconds: float = 15.0
    busy_seconds: float = 120.0
    busy: float = 0.1
    """A service counts as busy when it uses more processors than this."""


class Vigil:
    """Watches one life of a service that began at `since`; `change` reports its state."""

    def __init__(
        self, service: Service, pid: int, since: float, change: Change, patience: Patience
    ) -> None:
        self._service = service
        self._pid = pid
        self._since = since
        self._change = change
        self._patience = patience
        self._said = ""
        self._failures = 0
        self._began = 0.0
        self._cpu = 0.0
        self._mended = False
        self._whole: tuple[float, float] | None = None
        """When the service and all below it were last measured, and their processor time then."""

    async def keep(self, note: str) -> str:
        """Watch until the service needs a restart; return what is wrong."""
        self._said = note
        while True:
            await asyncio.sleep(self._pause())
            looked = time.monotonic()
            problem = await self._problem()
            if not problem:
                await self._well()
                continue
            self._unwell(problem, looked)
            mend = None if self._mended else self._service.mend
            if mend is not None and self._failures >= self._patience.failures:
                mend = mend if await self._mend(mend) else None
            if mend is None and self._lost():
                return problem

    def _pause(self) -> float:
        return self._patience.again if self._failures else self._patience.every * self._service.pace

    async def _problem(self) -> str:
        if self._service.check is None:
            return ""
        try:
            problem = await self._service.check(self._since)
        except Exception:
            _LOGGER.exception("the check of %s failed itself", self._service.name)
            return ""
        borne = problem and isinstance(problem, Stalled) and self._works()
        return "" if borne else problem

    def _works(self) -> bool:
        """Whether the service has used a processor since the last look; True for the first."""
        now, used = time.monotonic(), cpu_below(self._pid)
        before, self._whole = self._whole, (now, used)
        return before is None or used - before[1] > self._patience.busy * (now - before[0])

    async def _well(self) -> None:
        self._failures, self._mended = 0, False
        note = await self._service.note() if self._service.note else ""
        if note != self._said:
            self._said = note
            self._change(condition=Condition.READY, note=note)

    def _unwell(self, problem: str, looked: float) -> None:
        """Count the failed look that began at `looked`; a single one is not reported."""
        self._failures += 1
        if self._failures == 1:
            self._began, self._cpu = looked, cpu_seconds(self._pid)
        elif problem != self._said:
            self._said = problem
            self._change(condition=Condition.UNWELL, note=problem)

    def _lost(self) -> bool:
        lasted = time.monotonic() - self._began
        used = cpu_seconds(self._pid) - self._cpu
        busy = used > self._patience.busy * lasted
        seconds = self._patience.busy_seconds if busy else self._patience.idle_seconds
        return self._failures >= self._patience.failures and lasted >= seconds

    async def _mend(self, mend: Callable[[], Any]) -> bool:
        """Try to mend the service, gentler than a restart; later looks tell whether it helped.

        False when the attempt itself failed.
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


def cpu_below(pid: int) -> float:
    """The processor time of a process and of all living processes below it."""
    return sum(map(cpu_seconds, [pid, *below(pid, processes())]))


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used; 0 where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    times = text.rpartition(")")[2].split()[_USER_TIME : _USER_TIME + 2]
    return sum(map(int, times)) / _TICKS
