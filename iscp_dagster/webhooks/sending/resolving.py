"""Resolves names for each attempt anew, and vets every address."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from queue import SimpleQueue
from typing import TypeAlias

import httpcore

from iscp_dagster.webhooks.sending.addresses import Network, find_refusal

HostPort = tuple[str, int]
"""A host and a port."""
PendingAddresses: TypeAlias = "asyncio.Future[Sequence[str]]"
Lookup = Callable[[str, int], Sequence[str]]
"""Returns a host's addresses; may take long, and raises OSError."""


class AddressError(httpcore.ConnectError):
    """The host's name leads to an address that events are not sent to."""


def look_up_addresses(host: str, port: int) -> list[str]:
    """The addresses from the system's resolver, each once."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in infos))


class Resolver:
    """Resolves names, each in a thread of its own, so that a slow one delays no other.

    Callers that resolve a name at the same time share the answer. For one event loop.
    """

    def __init__(self, lookup: Lookup = look_up_addresses) -> None:
        self._lookup = lookup
        self._under_way: dict[HostPort, PendingAddresses] = {}
        self._questions: dict[HostPort, SimpleQueue[asyncio.AbstractEventLoop]] = {}

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The host's addresses now. Raises httpcore.ConnectError."""
        if _is_address(host):
            return [host]
        host_port = (host, port)
        if host_port not in self._under_way:
            loop = asyncio.get_running_loop()
            self._under_way[host_port] = loop.create_future()
            self._ensure_thread(host_port).put(loop)
        try:
            # Others may wait for it, too.
            return await asyncio.shield(self._under_way[host_port])
        except OSError as error:
            raise httpcore.ConnectError(f"{host} cannot be resolved: {error}") from None

    def _ensure_thread(self, host_port: HostPort) -> SimpleQueue[asyncio.AbstractEventLoop]:
        if host_port not in self._questions:
            questions = self._questions[host_port] = SimpleQueue()
            # A daemon: the process must be able to end while a name server is silent.
            thread = threading.Thread(
                target=self._look_up, args=(host_port, questions), daemon=True
            )
            thread.start()
        return self._questions[host_port]

    def _look_up(
        self, host_port: HostPort, questions: SimpleQueue[asyncio.AbstractEventLoop]
    ) -> None:
        while True:
            loop = questions.get()
            addresses: Sequence[str] = ()
            failure = None
            try:
                addresses = self._lookup(*host_port)
            except (OSError, UnicodeError) as error:
                failure = error if isinstance(error, OSError) else OSError(str(error))
            # The loop may be gone when a name server answers at last.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._settle_answer, host_port, addresses, failure)

    def _settle_answer(
        self, host_port: HostPort, addresses: Sequence[str], failure: OSError | None
    ) -> None:
        answer = self._under_way.pop(host_port)
        if failure is None:
            answer.set_result(addresses)
        else:
            answer.set_exception(failure)
            # Nobody may be waiting any longer.
            answer.exception()


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def resolve_vetted(
    resolver: Resolver, host: str, port: int, allowed: Sequence[Network]
) -> Sequence[str]:
    """The host's addresses, if events may be sent to every one of them. Raises AddressError."""
    addresses = await resolver.resolve(host, port)
    refusals = [
        reason for reason in (find_refusal(address, allowed) for address in addresses) if reason
    ]
    if refusals or not addresses:
        raise AddressError(f"{host}: {refusals[0] if refusals else 'no address'}")
    return addresses
