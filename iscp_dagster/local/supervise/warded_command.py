"""A command under a ward, as the supervisor sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

from iscp_dagster.local.services.service import Service
from iscp_dagster.local.supervise.ward import list_processes

_WARD = Path(__file__).with_name("ward.py")
_POLL = 0.05


@dataclass(frozen=True, kw_only=True)
class WardedProcess:
    """A running command; `pid` is the command's own process, not its ward."""

    pid: int
    ward: asyncio.subprocess.Process

    async def wait_until_ended(self) -> int:
        """Wait until the command and every process below it are gone; its exit status."""
        status = await self.ward.wait()
        if status < 0:
            await self._end_strays()
        return status

    async def stop(self, grace: float | None = None) -> int:
        """Stop the command and wait until every process below it is gone.

        `grace`, in seconds, shortens the ward's own for a command that may not react.
        """
        # A ward that is itself stopped could not stop the command.
        _send_signal(self.ward.pid, signal.SIGCONT)
        if self.ward.stdin is not None:
            self.ward.stdin.close()
        if grace is not None:
            _, late = await asyncio.wait([asyncio.create_task(self.ward.wait())], timeout=grace)
            if late:
                _send_signal(self.pid, signal.SIGKILL)
        return await self.wait_until_ended()

    async def _end_strays(self) -> None:
        """Kill the processes of the command's session that outlived a killed ward."""
        while strays := _list_session(self.pid):
            for pid in strays:
                _send_signal(pid, signal.SIGKILL)
            await asyncio.sleep(_POLL)


def _list_session(leader: int) -> list[int]:
    if sys.platform != "linux":
        return []
    return [
        pid for pid, _, session, state in list_processes() if session == leader and state != b"Z"
    ]


def _send_signal(pid: int, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


async def start(service: Service, lock: int, *, warm: bool = False) -> WardedProcess:
    """Start the service, or its `warm` command, under a ward that keeps the `lock` file open.

    If this is canceled, nothing is left running.
    """
    starting = asyncio.create_task(_spawn_ward(service, lock, warm=warm))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        child = await starting
        await child.stop()
        raise


async def _spawn_ward(service: Service, lock: int, *, warm: bool) -> WardedProcess:
    command = service.warm or () if warm else service.command
    environment = (service.warm_environment if warm else None) or service.environment
    with service.log.open("ab") as log:
        ward = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(_WARD),
            str(service.stop_seconds),
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=log,
            env=dict(environment),
            cwd=service.folder,
            pass_fds=(lock,),
            start_new_session=True,
        )
    line = await ward.stdout.readline() if ward.stdout else b""
    # A ward that was killed before it printed an id has no command, only its own session.
    return WardedProcess(pid=int(line or ward.pid), ward=ward)
