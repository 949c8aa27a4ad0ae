"""Processes of the stack that something has stopped are told to go on.

A stopped Python worker holds its task, and with it Spark, for ever, and no service says so. To go
on costs less than to begin anew: nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from iscp_dagster.local.supervise.ward import below, processes

_LOGGER = logging.getLogger(__name__)
EVERY = 3.0
RESUMED = 2
"""How often in a row a process is told to go on."""
_STOPPED = b"T"
"""As /proc writes it; one that a debugger holds is `t`."""


async def keep_going() -> None:
    """Look every few seconds, for ever: what was stopped at two looks in a row goes on.

    What is stopped again and again is left to be missed by those who ask for its service.
    """
    looks: dict[int, int] = {}
    while sys.platform == "linux":
        await asyncio.sleep(EVERY)
        looks = {pid: looks.get(pid, 0) + 1 for pid in stopped_below(os.getpid())}
        for pid, times in looks.items():
            if 1 < times <= 1 + RESUMED:
                resume(pid)


def stopped_below(pid: int) -> set[int]:
    """Every stopped process below the given one."""
    found = processes()
    stopped = {each for each, _, _, state in found if state == _STOPPED}
    return stopped & set(below(pid, found)) if stopped else set()


def resume(pid: int) -> None:
    """Tell a process to go on."""
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return
    _LOGGER.warning("process %s was stopped; it goes on", pid)
