"""Resumes processes of the stack that something has stopped (SIGSTOP).

A stopped Python worker holds its task, and with it Spark, for ever, and no service reports it.
Resuming it costs less than a restart: nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress

from iscp_dagster.local.supervise.ward import find_descendants, list_processes

_LOGGER = logging.getLogger(__name__)
EVERY = 3.0
RESUMED = 2
"""How many times in a row a process is resumed."""
_STOPPED = b"T"
"""The state in /proc; a process that a debugger holds has `t`."""


async def resume_stopped() -> None:
    """Look every few seconds, for ever, and resume processes found stopped twice in a row.

    A process that keeps being stopped is left to the health check of its service.
    """
    looks: dict[int, int] = {}
    while sys.platform == "linux":
        await asyncio.sleep(EVERY)
        looks = {pid: looks.get(pid, 0) + 1 for pid in find_stopped(os.getpid())}
        for pid, times in looks.items():
            if 1 < times <= 1 + RESUMED:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    _LOGGER.warning("process %s was stopped; resumed it", pid)


def find_stopped(pid: int) -> set[int]:
    """Every stopped process below the given one."""
    process_table = list_processes()
    stopped = {process_id for process_id, _, _, state in process_table if state == _STOPPED}
    return stopped & set(find_descendants(pid, process_table)) if stopped else set()
