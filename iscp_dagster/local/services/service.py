"""One supervised service: what to run and how to see that it is ready."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from iscp_dagster.local.services.settings import HOST

Probe = Callable[[float], Awaitable[bool]]
"""Whether a service that was started at the given time (seconds since 1970) is up."""


class StalledProblem(str):
    """A problem that counts only if the service uses no processor; otherwise it is just busy."""

    __slots__ = ()


Check = Callable[[float], Awaitable[str]]
"""The problem, in one line, of a service that was started at the given time; empty if none."""
_PROBE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Service:
    """A child of the supervisor.

    `probe` checks whether it answers. After the first start the command `warm` then runs;
    the service is ready when that succeeds. `start_seconds` bounds both together,
    `stop_seconds` the time between SIGTERM and SIGKILL. `check` runs repeatedly while it is up;
    when it keeps finding a problem, `mend` is tried once, and then the service is restarted.
    """

    name: str
    command: tuple[str, ...]
    address: str
    environment: Mapping[str, str]
    folder: Path
    log: Path
    probe: Probe
    check: Check | None = None
    check_interval_factor: float = 1.0
    """Factor on the time between two checks."""
    mend: Callable[[], Awaitable[None]] | None = None
    warm: tuple[str, ...] | None = None
    warm_environment: Mapping[str, str] | None = None
    start_seconds: float = 120.0
    stop_seconds: float = 15.0
    note: Callable[[], Awaitable[str]] | None = field(default=None, repr=False)
    after: str = ""
    """The service that must be ready before this one is first started."""
    stops_first: bool = False
    """Whether it must end before the other services are stopped."""


def make_http_probe(port: int, path: str) -> Probe:
    """A probe that succeeds once GET answers 200."""

    async def is_up(_since: float) -> bool:
        return await asyncio.to_thread(_is_answering, port, path)

    return is_up


def make_port_probe(port: int) -> Probe:
    """A probe that succeeds once the port accepts connections."""

    async def is_up(_since: float) -> bool:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            return False
        writer.close()
        return True

    return is_up


def _is_answering(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=_PROBE_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def post_json(port: int, path: str, body: object) -> object:
    """The JSON answer to a JSON request; OSError or HTTPException when there is none."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_PROBE_SECONDS)
    try:
        connection.request(
            "POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        answer: object = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()
