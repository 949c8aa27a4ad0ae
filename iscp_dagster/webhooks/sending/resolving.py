"""Names become addresses, each attempt anew, and every address is vetted."""

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

from iscp_dagster.webhooks.sending.addresses import Network, refusal

Asked = tuple[str, int]
"""A host and a port."""
Answer: TypeAlias = "asyncio.Future[Sequence[str]]"
Lookup = Callable[[str, int], Sequence[str]]
"""Gives a host's addresses; may take long, and raises OSError."""


class AddressError(httpcore.ConnectError):
    """The host's name leads to an address that events are not sent to."""


def addresses_of(host: str, port: int) -> list[str]:
    """What the system's resolver says, each address once."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Resolver:
    """Resolves names, each in a thread of its own, so that a slow one keeps no other waiting.

    Who asks for a name that is being looked up shares that answer. For one event loop.
    """

    def __init__(self, lookup: Lookup = addresses_of) -> None:
        self._lookup = lookup
        self._under_way: dict[Asked, Answer] = {}
        self._questions: dict[Asked, SimpleQueue[asyncio.AbstractEventLoop]] = {}

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The host's addresses now. Raises httpcore.ConnectError."""
        if _is_address(host):
            return [host]
        asked = (host, port)
        if asked not in self._under_way:
            loop = asyncio.get_running_loop()
            self._under_way[asked] = loop.create_future()
            self._thread_of(asked).put(loop)
        try:
            # Others may wait for it, too.
            return await asyncio.shield(self._under_way[asked])
        except OSError as error:
            raise httpcore.ConnectError(f"{host} cannot be resolved: {error}") from None

    def _thread_of(self, asked: Asked) -> SimpleQueue[asyncio.AbstractEventLoop]:
        if asked not in self._questions:
            questions = self._questions[asked] = SimpleQueue()
            # A daemon: the process must be able to end while a name server is silent.
            started = threading.Thread(target=self._look_up, args=(asked, questions), daemon=True)
            started.start()
        return self._questions[asked]

    def _look_up(self, asked: Asked, questions: SimpleQueue[asyncio.AbstractEventLoop]) -> None:
        while True:
            loop = questions.get()
            found: Sequence[str] = ()
            failed = None
            try:
                found = self._lookup(*asked)
            except (OSError, UnicodeError) as error:
                failed = error if isinstance(error, OSError) else OSError(str(error))
            # The loop may be gone when a name server answers at last.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._settle, asked, found, failed)

    def _settle(self, asked: Asked, found: Sequence[str], failed: OSError | None) -> None:
        answer = self._under_way.pop(asked)
        if failed is None:
            answer.set_result(found)
        else:
            answer.set_exception(failed)
            # Nobody may be waiting any longer.
            answer.exception()


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def vetted(
    resolver: Resolver, host: str, port: int, allowed: Sequence[Network]
) -> Sequence[str]:
    """The host's addresses, if events may be sent to every one of them. Raises AddressError."""
    found = await resolver.resolve(host, port)
    refused = [why for why in (refusal(each, allowed) for each in found) if why]
    if refused or not found:
        raise AddressError(f"{host}: {refused[0] if refused else 'no address'}")
    return found
