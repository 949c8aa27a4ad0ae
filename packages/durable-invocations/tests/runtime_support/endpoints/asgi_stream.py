"""Drives the ASGI app of a service endpoint in process, frame by frame."""

import asyncio
from contextlib import asynccontextmanager
from urllib.parse import unquote

from durable_invocations import Service, service_app
from durable_invocations.protocol.decoding import Decoder
from durable_invocations.protocol.failures import read_run_attempts, write_run_attempts
from durable_invocations.protocol.frames import encode, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import EMPTY, Value, make_completion, set_result
from durable_invocations.protocol.versions import format_content_type

ID = bytes(range(16))


def make_scope(path, *, method="POST", version=3, http="1.1", headers=()):
    named = {"host": "127.0.0.1", "content-type": format_content_type(version), **dict(headers)}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": http,
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "headers": [(key.encode(), value.encode()) for key, value in named.items()],
    }


class AppStream:
    """One request to an app: the test sends as the runtime, and receives what the app answers."""

    def __init__(self, app, path, **scope):
        self._requests = asyncio.Queue()
        self._answers = asyncio.Queue()
        self.status = None
        self.headers = {}
        self.body = b""
        self.ended = False
        self.answering = asyncio.Event()
        self._decoder = Decoder()
        self._frames = []
        self.task = asyncio.create_task(self._run(app, make_scope(path, **scope)))

    async def _run(self, app, scope):
        try:
            await app(scope, self._requests.get, self._take_answer)
        finally:
            self._answers.put_nowait(None)

    async def _take_answer(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {key.decode(): value.decode() for key, value in message["headers"]}
            self.answering.set()
            return
        self.body += message.get("body", b"")
        self.ended = not message.get("more_body", False)
        self._answers.put_nowait(message.get("body", b""))

    def send(self, *frames, more=True, data=b""):
        body = data + b"".join(map(encode, frames))
        self._requests.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def hang_up(self):
        self._requests.put_nowait({"type": "http.disconnect"})

    async def receive(self, seconds=10):
        """The next frame; None once the answer is over."""
        while not self._frames:
            body = await asyncio.wait_for(self._answers.get(), seconds)
            if body is None:
                return None
            self._frames += self._decoder.feed(body)
        return self._frames.pop(0)

    def take_received(self):
        """The frames that have come by now."""
        while not self._answers.empty():
            self._frames += self._decoder.feed(self._answers.get_nowait() or b"")
        frames, self._frames = self._frames, []
        return frames

    async def receive_all(self):
        frames = []
        while (frame := await self.receive()) is not None:
            frames.append(frame)
        return frames


@asynccontextmanager
async def open_request(app, path, **scope):
    """Send a request; after the block, no task of it may be left."""
    before = asyncio.all_tasks()
    stream = AppStream(app, path, **scope)
    try:
        yield stream
    finally:
        stream.hang_up()
        await asyncio.wait_for(stream.task, 10)
        remaining = asyncio.all_tasks() - before
        assert remaining == set(), remaining


async def request(app, path, body=b"", **scope):
    """Status, headers and body of one answer."""
    async with open_request(app, path, **scope) as stream:
        stream.send(data=body, more=False)
        await asyncio.wait_for(asyncio.shield(stream.task), 10)
    return stream.status, stream.headers, stream.body


class Journal:
    """An invocation as a runtime keeps it, driven in request/response mode."""

    def __init__(
        self, app, target, argument=b"", *, key="", version=3, state=None, headers=(), runs=None
    ):
        self.app = app
        self.path = f"/invoke/{target}"
        self.id = ID
        self.version = version
        self.state = state
        self.key = key
        self.retries = (0, 0)
        self.run_attempts = runs
        """The failed executions of runs; None: this runtime does not count them."""
        headers = [pb.Header(key=name, value=value) for name, value in headers]
        self.entries = [make_frame(pb.InputEntryMessage(value=argument, headers=headers))]
        self.last = None

    def start(self):
        message = pb.StartMessage(
            id=self.id,
            debug_id="inv_1test",
            known_entries=len(self.entries),
            key=self.key,
            partial_state=self.state is None,
            retry_count_since_last_stored_entry=self.retries[0],
            duration_since_last_stored_entry=self.retries[1],
        )
        for name, value in (self.state or {}).items():
            message.state_map.add(key=name.encode(), value=value)
        if self.run_attempts is not None:
            message.MergeFromString(write_run_attempts(self.run_attempts))
        return make_frame(message)

    async def attempt(self, commit=None):
        """Drive one attempt; keep the first `commit` new entries, and return all its frames."""
        async with open_request(self.app, self.path, version=self.version) as stream:
            stream.send(self.start(), *self.entries, more=False)
            frames = await stream.receive_all()
        assert stream.status == 200, stream.body
        assert stream.ended
        self.last = frames[-1].message()
        if self.run_attempts is not None and isinstance(self.last, pb.ErrorMessage):
            self.run_attempts = read_run_attempts(frames[-1].body)
        entries = [frame for frame in frames if frame.kind.entry]
        self.entries += entries[:commit]
        return frames

    def complete(self, index, result=EMPTY):
        result = Value(value=result) if isinstance(result, bytes) else result
        entry = self.entries[index]
        message = entry.message()
        set_result(message, result, entry.kind)
        self.entries[index] = make_frame(message, requires_ack=entry.requires_ack)

    @property
    def kinds(self):
        return names(self.entries)

    @property
    def output(self):
        assert isinstance(self.last, pb.EndMessage), self.last
        return self.entries[-1].message()


def make_journal(function, argument=b"", *, kind=Service, mark="handler", app=None, **options):
    """The invocation of this function, as the only handler of the service S."""
    service = kind("S")
    getattr(service, mark)(function)
    path = f"S/{function.__name__}"
    return Journal(service_app(service, **(app or {})), path, argument, **options)


def attempt(journal, commit=None):
    """Drive one attempt, and return the names of its frames."""
    return names(asyncio.run(journal.attempt(commit)))


def drive_to_output(journal):
    """Drive the attempt that ends the invocation; its output."""
    attempt(journal)
    return journal.output.value


def names(frames):
    return [frame.kind.name for frame in frames]


def completion(index, result=EMPTY):
    """A completion, for full duplex."""
    return make_completion(index, Value(value=result) if isinstance(result, bytes) else result)
