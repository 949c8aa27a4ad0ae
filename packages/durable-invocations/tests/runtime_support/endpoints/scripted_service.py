"""A service deployment whose streams a test writes frame by frame."""

import json
import threading
from collections import Counter

from durable_invocations.protocol import kinds
from durable_invocations.protocol.decoding import Decoder
from durable_invocations.protocol.frames import Frame, encode, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb

LAST = {kinds.END.code, kinds.SUSPENSION.code, kinds.ERROR.code}
KIND = b"application/vnd.restate.endpointmanifest.v1+json"


def manifest(newest=3):
    return {
        "protocolMode": "BIDI_STREAM",
        "minProtocolVersion": 1,
        "maxProtocolVersion": newest,
        "services": [
            {"name": "S", "ty": "SERVICE", "handlers": [{"name": "h"}, {"name": "other"}]},
            {"name": "O", "ty": "VIRTUAL_OBJECT", "handlers": [{"name": "h"}]},
        ],
    }


class Stream:
    """One attempt, from the handler's side."""

    def __init__(self, scope, receive, send):
        self.path, self.method, self.client = scope["path"], scope["method"], scope["client"]
        self.headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self._receive, self._send = receive, send
        self._decoder, self._frames = Decoder(), []
        self.start, self.entries = None, []
        self.open, self.answering = True, False
        self.broken = False
        """Whether the runtime broke the stream off."""
        self.last = False

    async def next(self):
        """The next frame; None: the runtime sends no more."""
        while not self._frames and self.open:
            await self._take()
        return self._frames.pop(0) if self._frames else None

    async def replay(self):
        """Take the Start's message, and the entries that are replayed."""
        self.start = (await self.next()).message()
        self.entries = [await self.next() for _ in range(self.start.known_entries)]

    async def begin(self, status=200, kind=None):
        self.answering = True
        kind = kind or self.headers["content-type"]
        headers = [(b"content-type", kind.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def raw(self, data, *, more=True):
        if not self.answering:
            await self.begin()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def send(self, *messages, **flags):
        """Send frames, or messages with flags (`requires_ack`, `completed`)."""
        frames = [
            message if isinstance(message, Frame) else make_frame(message, **flags)
            for message in messages
        ]
        self.last = frames[-1].code in LAST
        await self.raw(b"".join(map(encode, frames)))

    async def output(self, value=b"null"):
        await self.send(pb.OutputEntryMessage(value=value), pb.EndMessage())

    async def close(self):
        """Take what the runtime still sends after a last message, then end."""
        while self.open and self.last:
            await self._take()
        await self.raw(b"", more=False)

    async def _take(self):
        event = await self._receive()
        self.broken = event["type"] == "http.disconnect"
        self.open = event.get("more_body", False)
        self._frames += self._decoder.feed(event.get("body", b""))


class Scripted:
    """An ASGI app that runs `script(stream, number)` for each attempt, which are counted from 1.

    The script begins after the replay, which its stream has as `start` and `entries`.
    """

    def __init__(self, script, newest=3):
        self.script, self.newest = script, newest
        self.attempts = Counter()
        self.streams = []
        self._lock = threading.Lock()

    async def __call__(self, scope, receive, send):
        if scope["path"].endswith("/discover"):
            headers = [(b"content-type", KIND)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            body = json.dumps(manifest(self.newest)).encode()
            await send({"type": "http.response.body", "body": body})
            return
        stream = Stream(scope, receive, send)
        with self._lock:
            self.attempts[stream.path] += 1
            number = self.attempts[stream.path]
            self.streams.append(stream)
        await stream.replay()
        await self.script(stream, number)
        await stream.close()
