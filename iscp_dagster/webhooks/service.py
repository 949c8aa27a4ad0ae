"""The sender as a service: by itself, or beside another one in an event loop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from iscp_dagster.events.ids import IdScheme
from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.model.clock import Clock, get_utc_now
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.errors import ConfigError, IscpError
from iscp_dagster.model.imports import require_extra
from iscp_dagster.model.variables import LOG_URL
from iscp_dagster.webhooks.answers import EndpointAnswer
from iscp_dagster.webhooks.outbox import Outbox

if TYPE_CHECKING:
    from iscp_dagster.webhooks.sending.posting import Poster
    from iscp_dagster.webhooks.sending.resolving import Resolver

_PING_BYTES = 16
_AGAIN_SECONDS = 5.0
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class SenderService:
    """Delivers events to the declared endpoints. Needs the extra `serve`.

    Raises ConfigError if ISCP_LOG_URL is not set, a secret is missing or malformed, or an endpoint
    allows a network that is never allowed.
    """

    environ: Mapping[str, str]
    endpoints: Sequence[Endpoint]

    def __post_init__(self) -> None:
        require_extra("serve", "the sender of webhooks", "httpcore", "sniffio")
        if not self.environ.get(LOG_URL):
            raise ConfigError(f"{LOG_URL} is not set; name the database of the ISCP log.")
        from iscp_dagster.webhooks.sending.resolving import Resolver

        for endpoint in self.endpoints:
            _make_poster(endpoint, self.environ, Resolver())

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until `stop` is set; then record the attempts under way, and end."""
        from iscp_dagster.webhooks.sending.resolving import Resolver
        from iscp_dagster.webhooks.sending.sender import Sender

        if not self.endpoints:
            await stop.wait()
            return
        outbox = Outbox(open_engine(self.environ[LOG_URL], keep_open=True))
        await asyncio.to_thread(outbox.ensure_log_tables)
        await asyncio.to_thread(
            outbox.free_gone_senders, lambda owner: is_gone(owner, identify_machine())
        )
        resolver = Resolver()
        sender = Sender(
            outbox,
            [
                (endpoint, partial(_make_poster, endpoint, self.environ, resolver))
                for endpoint in self.endpoints
            ],
            owner=f"{identify_machine()}:{os.getpid()}:{secrets.token_hex(4)}",
            make_batch_id=IdScheme.from_environment(self.environ).make_batch_id,
        )
        try:
            await sender.run(stop)
        finally:
            outbox.engine.dispose()


@asynccontextmanager
async def run_service(load: Callable[[], SenderService]) -> AsyncIterator[None]:
    """Run the service while the context is open, beside a server; logs what ends it.

    It is loaded in a thread, again until that succeeds.
    """
    stop = asyncio.Event()
    task = asyncio.ensure_future(_keep_running(load, stop))
    try:
        yield
    finally:
        stop.set()
        await task


async def _keep_running(load: Callable[[], SenderService], stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            service = await asyncio.to_thread(load)
            await service.run(stop)
        except IscpError as error:
            _LOGGER.warning("Webhooks are not delivered: %s", error)
        except Exception:
            _LOGGER.exception("The sender of webhooks ended; it starts again.")
        with anyio.move_on_after(_AGAIN_SECONDS):
            await stop.wait()


def identify_machine() -> str:
    """What makes a process id unique; empty if it is unknown."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()}/{booted}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def is_gone(owner: str, machine: str) -> bool:
    """Whether a lease's owner was a process on this machine that no longer exists."""
    owner_machine, _, process = owner.rpartition(":")[0].rpartition(":")
    return bool(machine) and owner_machine == machine and not Path(f"/proc/{process}").exists()


async def ping(
    endpoint: Endpoint, environ: Mapping[str, str], clock: Clock = get_utc_now
) -> EndpointAnswer:
    """Send the endpoint one signed event of type PING, in no outbox; returns its answer.

    It is sent even while the endpoint is paused. Raises ConfigError as SenderService does.
    """
    from iscp_dagster.webhooks.sending.resolving import Resolver

    id_ = f"ping_{secrets.token_hex(_PING_BYTES)}"
    event: dict[str, object] = {
        "event_id": id_,
        "event_type": "PING",
        "trigger_name": None,
        "timestamp": clock().isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "source_timestamp": None,
        "data": {},
    }
    body = json.dumps({"data": [event]} if endpoint.batch > 1 else event).encode()
    poster = _make_poster(endpoint, environ, Resolver(), clock)
    try:
        return await poster.post(id_, body)
    finally:
        await poster.aclose()


def _make_poster(
    endpoint: Endpoint, environ: Mapping[str, str], resolver: Resolver, clock: Clock = get_utc_now
) -> Poster:
    from iscp_dagster.webhooks.sending.posting import Poster

    return Poster(endpoint, environ, resolver, clock)
