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


def scope_of(path, *, method="POST", version=3, http="1.1", headers=()):
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


class Line:
    """The two ends of one request: what the runtime says, and what the endpoint answers."""

    def __init__(self, app, path, **scope):
        self._said = asyncio.Queue()
        self._heard = asyncio.Queue()
        self.status = None
        self.headers = {}
        self.body = b""
        self.ended = False
        self.begun = asyncio.Event()
        self._decoder = Decoder()
        self._frames = []
        self.task = asyncio.create_task(self._run(app, scope_of(path, **scope)))

    async def _run(self, app, scope):
        try:
            await app(scope, self._said.get, self._answered)
        finally:
            self._heard.put_nowait(None)

    async def _answered(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {key.decode(): value.decode() for key, value in message["headers"]}
            self.begun.set()
            return
        self.body += message.get("body", b"")
        self.ended = not message.get("more_body", False)
        self._heard.put_nowait(message.get("body", b""))

    def say(self, *frames, more=True, data=b""):
        body = data + b"".join(encode(each) for each in frames)
        self._said.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def hang_up(self):
        self._said.put_nowait({"type": "http.disconnect"})

    async def hear(self, seconds=10):
        """The next frame; None once the answer is over."""
        while not self._frames:
            body = await asyncio.wait_for(self._heard.get(), seconds)
            if body is None:
                return None
            self._frames += self._decoder.feed(body)
        return self._frames.pop(0)

    def waiting(self):
        """The frames that have come by now."""
        while not self._heard.empty():
            self._frames += self._decoder.feed(self._heard.get_nowait() or b"")
        frames, self._frames = self._frames, []
        return frames

    async def rest(self):
        heard = []
        while (each := await self.hear()) is not None:
            heard.append(each)
        return heard


@asynccontextmanager
async def line(app, path, **scope):
    """A request, of which nothing is left when the block ends."""
    before = asyncio.all_tasks()
    made = Line(app, path, **scope)
    try:
        yield made
    finally:
        made.hang_up()
        await asyncio.wait_for(made.task, 10)
        left = asyncio.all_tasks() - before
        assert left == set(), left


async def asked(app, path, body=b"", **scope):
    """Status, headers and body of one request."""
    async with line(app, path, **scope) as made:
        made.say(data=body, more=False)
        await asyncio.wait_for(asyncio.shield(made.task), 10)
    return made.status, made.headers, made.body


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
        """What it tells of runs; None: as a runtime that does not count their executions."""
        given = [pb.Header(key=name, value=value) for name, value in headers]
        self.entries = [make_frame(pb.InputEntryMessage(value=argument, headers=given))]
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
        async with line(self.app, self.path, version=self.version) as made:
            made.say(self.start(), *self.entries, more=False)
            heard = await made.rest()
        assert made.status == 200, made.body
        assert made.ended
        self.last = heard[-1].message()
        if self.run_attempts is not None and isinstance(self.last, pb.ErrorMessage):
            self.run_attempts = read_run_attempts(heard[-1].body)
        new = [each for each in heard if each.kind.entry]
        self.entries += new if commit is None else new[:commit]
        return heard

    def complete(self, index, result=EMPTY):
        result = Value(value=result) if isinstance(result, bytes) else result
        entry = self.entries[index]
        message = entry.message()
        set_result(message, result, entry.kind)
        self.entries[index] = make_frame(message, requires_ack=entry.requires_ack)

    @property
    def kinds(self):
        return [each.kind.name for each in self.entries]

    @property
    def output(self):
        assert isinstance(self.last, pb.EndMessage), self.last
        return self.entries[-1].message()


def journal_of(function, argument=b"", *, kind=Service, mark="handler", app=None, **options):
    """The invocation of a handler, that of a service which has no other."""
    service = kind("S")
    getattr(service, mark)(function)
    path = f"S/{function.__name__}"
    return Journal(service_app(service, **(app or {})), path, argument, **options)


def attempt(journal, commit=None):
    """Drive one attempt, and return the names of its frames."""
    return names(asyncio.run(journal.attempt(commit)))


def output_of(journal):
    """Drive one attempt, with which the invocation ends."""
    attempt(journal)
    return journal.output.value


def names(frames):
    return [each.kind.name for each in frames]


def told(index, result=EMPTY):
    """A completion, for full duplex."""
    return make_completion(index, Value(value=result) if isinstance(result, bytes) else result)


def ack(index):
    return make_frame(pb.EntryAckMessage(entry_index=index))
