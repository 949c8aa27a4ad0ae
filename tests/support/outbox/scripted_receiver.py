"""A receiver of webhooks on loopback, whose answers a test gives byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Received:
    """One request, and the number of the connection that it came on."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self):
        return json.loads(self.body)


Answering = Callable[[Received], "bytes | Awaitable[bytes | None] | None"]


def reply(status: int = 200, body: bytes = b"", **headers) -> bytes:
    lines = [f"HTTP/1.1 {status} Answer", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass
class Receiver:
    """Keeps what it received; `answering` gives an answer's bytes, or None to end it there."""

    answering: Answering = lambda _: reply()
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    under_way: int = 0
    most_under_way: int = 0
    names: list[str | None] = field(default_factory=list)
    """The names that TLS clients asked for."""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        return [each.id for each in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self.writers.append(writer)
        try:
            while (received := await self._request(reader, number)) is not None:
                if not await self._answer(received, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, number: int) -> Received | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        fields = (each.partition(":") for each in lines)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        received = Received(method, path, headers, body, number)
        self.requests.append(received)
        return received

    async def _answer(self, received: Received, writer: asyncio.StreamWriter) -> bool:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            answer = self.answering(received)
            if not isinstance(answer, bytes | None):
                answer = await answer
        finally:
            self.under_way -= 1
        if answer is None:
            return False
        writer.write(answer)
        await writer.drain()
        return True


@asynccontextmanager
async def receiving(answering: Answering | None = None, *, tls=None):
    """Run a receiver in the current event loop."""
    receiver = Receiver(answering or (lambda _: reply()))
    if tls is not None:
        tls.sni_callback = lambda _socket, name, _context: receiver.names.append(name)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for each in receiver.writers:
            each.transport.abort()
        await server.wait_closed()


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until the condition holds; an error after `seconds`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition():
        assert loop.time() < end, "timed out"
        await asyncio.sleep(0.005)
