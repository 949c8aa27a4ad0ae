"""A command under a ward, as the supervisor sees it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

from iscp_dagster.stack.service import Service

_WARD = Path(__file__).with_name("ward.py")


@dataclass(frozen=True, kw_only=True)
class Warded:
    """A running command; `pid` is the command's own process, not its ward."""

    pid: int
    ward: asyncio.subprocess.Process

    async def ended(self) -> int:
        """Wait until the command and every process below it are gone; its exit status."""
        return await self.ward.wait()

    async def stop(self) -> int:
        """Stop the command and wait until every process below it is gone."""
        if self.ward.stdin is not None:
            self.ward.stdin.close()
        return await self.ended()


async def start(service: Service, lock: int, *, warm: bool = False) -> Warded:
    """Start the service, or what warms it, under a ward that holds the `lock` file meanwhile."""
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
    return Warded(pid=int(line or 0), ward=ward)
