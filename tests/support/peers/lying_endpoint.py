"""A service endpoint that first answers each invocation wrongly, and then correctly."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import h2.events

from runtime_support.endpoints.scripted_peers import h2_peer, raw_peer
from support.peers.endpoint_lies import DONE, Answer, pack
from support.peers.wire import Packet, unpack

MANIFEST = "application/vnd.restate.endpointmanifest.v1+json"


class Liar:
    """Answers the first attempt of the invocation with input N with its N-th lie."""

    def __init__(self, lies: list[Answer], *, version: int = 3) -> None:
        self.lies, self.version = lies, version
        self.attempts: Counter[int] = Counter()

    def manifest(self, *, duplex: bool) -> bytes:
        manifest = {
            "protocolMode": "BIDI_STREAM" if duplex else "REQUEST_RESPONSE",
            "minProtocolVersion": 1,
            "maxProtocolVersion": self.version,
            "services": [{"name": "Liar", "ty": "VIRTUAL_OBJECT", "handlers": [{"name": "go"}]}],
        }
        return json.dumps(manifest).encode()

    def answer(self, request: list[Packet]) -> Answer:
        number = int(request[1].message["value"] or b"-1")
        self.attempts[number] += 1
        if number >= 0 and self.attempts[number] == 1:
            return self.lies[number]
        ended = any(each.name == "OutputEntryMessage" for each in request)
        return Answer(body=pack(*DONE[ended:]))

    def head(self, answer: Answer) -> list[tuple[str, str]]:
        media = answer.media and answer.media.format(version=self.version)
        return [("content-type", media)] if media else []

    async def talk(self, reader: Any, writer: Any) -> None:
        """Speak HTTP/1.1."""
        answer = Answer()
        with suppress(EOFError):
            while not answer.broken:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await _body(reader, head)
                if head.startswith(b"GET"):
                    answer = Answer(media=MANIFEST, body=self.manifest(duplex=False))
                else:
                    answer = self.answer(unpack(body)[0])
                writer.write(self._format(answer) if answer.raw is None else answer.raw)
                await writer.drain()

    def _format(self, answer: Answer) -> bytes:
        length = len(answer.body) + 10 * answer.broken
        head = [*self.head(answer), ("content-length", str(length))]
        lines, body = "".join(f"{name}: {value}\r\n" for name, value in head), answer.body
        if answer.status == 204:
            lines, body = "", b""
        return f"HTTP/1.1 {answer.status} X\r\n{lines}\r\n".encode() + body

    def make_listener(self) -> Callable[[Any, Any], Any]:
        """Speak HTTP/2 on one connection."""
        parts: dict[int, bytes] = {}

        def hear(connection: Any, event: Any) -> None:
            if isinstance(event, h2.events.RequestReceived):
                parts[event.stream_id] = b""
                if dict(event.headers)[":method"] == "GET":
                    answer = Answer(media=MANIFEST, body=self.manifest(duplex=True))
                    self._respond(connection, event.stream_id, answer)
            elif isinstance(event, h2.events.DataReceived) and event.stream_id in parts:
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                parts[event.stream_id] += event.data
                packets, _ = unpack(parts[event.stream_id])
                if packets and len(packets) > packets[0].message["known_entries"]:
                    del parts[event.stream_id]
                    self._respond(connection, event.stream_id, self.answer(packets))

        return hear

    def _respond(self, connection: Any, stream: int, answer: Answer) -> None:
        if answer.raw is not None:
            connection.reset_stream(stream, 2)
            return
        connection.send_headers(stream, [(":status", str(answer.status)), *self.head(answer)])
        connection.send_data(stream, answer.body, end_stream=not answer.broken)
        if answer.broken:
            connection.reset_stream(stream, 2)


async def _body(reader: Any, head: bytes) -> bytes:
    lines = head.lower().split(b"\r\n")
    lengths = [line.partition(b":")[2] for line in lines if line.startswith(b"content-length:")]
    if lengths:
        return await reader.readexactly(int(lengths[0]))
    if b"transfer-encoding: chunked" not in lines:
        return b""
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readline()
    return b"".join(parts)


@asynccontextmanager
async def lying(liar: Liar, *, http: int) -> AsyncIterator[str]:
    """Run it until the end of the block; yield its address."""
    if http == 1:
        async with raw_peer(liar.talk) as url:
            yield url
        return
    listeners: dict[int, Callable[[Any, Any], Any]] = {}

    def hear(connection: Any, event: Any) -> Any:
        listener = listeners.setdefault(id(connection), liar.make_listener())
        return listener(connection, event)

    async with h2_peer(hear) as url:
        yield url
