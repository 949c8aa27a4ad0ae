"""A store of invocations with three services, worked by hand: a runtime without HTTP."""

from contextlib import contextmanager

import sqlalchemy as sa

from durable_invocations.protocol import awakeables, ids
from durable_invocations.protocol.failures import ErrorReport, Failure
from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import Value
from durable_invocations.protocol.services import HandlerKind, ServiceKind
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.sql.tables import METADATA
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.deployments import (
    Deployment,
    RegisteredHandler,
    RegisteredService,
)
from runtime_support.manual_clock import Watch

TABLES = list(METADATA.tables.values())
SHARED, EXCLUSIVE, RUN = HandlerKind.SHARED, HandlerKind.EXCLUSIVE, HandlerKind.WORKFLOW
SERVICES = (
    RegisteredService(
        name="Plain", kind=ServiceKind.SERVICE, handlers=(RegisteredHandler(name="go"),)
    ),
    RegisteredService(
        name="Cart",
        kind=ServiceKind.OBJECT,
        handlers=(
            RegisteredHandler(name="add", kind=EXCLUSIVE),
            RegisteredHandler(name="look", kind=SHARED),
        ),
    ),
    RegisteredService(
        name="Signup",
        kind=ServiceKind.WORKFLOW,
        handlers=(
            RegisteredHandler(name="run", kind=RUN),
            RegisteredHandler(name="poke", kind=SHARED),
        ),
    ),
)
FIRST = Deployment(id="first", url="http://127.0.0.1:9080")
CANCELED, KILLED = Failure(code=409, message="canceled"), Failure(code=409, message="killed")
ERROR = ErrorReport(code=500, message="broke", description="in line 1")


def value(data):
    return Value(value=data)


def awakeable_of(claimed, index):
    return awakeables.make_awakeable_id(ids.parse_id(claimed.id), index)


def submission(path="Plain/go", **more):
    """What submits by `Service/handler` or `Service/key/handler`."""
    service, *key, handler = path.split("/")
    named = {"id": ids.format_id(ids.make_id()), "service": service, "handler": handler}
    return op.Submit(key="".join(key), **(named | more))


class DiedError(BaseException):
    pass


@contextmanager
def dying(engine, at):
    """Die before the statement of that number; from 1 on, locks left out; 0: never."""
    count = 0

    def before(_connection, _cursor, statement, *_):
        nonlocal count
        count += "pg_advisory" not in statement
        if count == at > 0:
            raise DiedError

    sa.event.listen(engine, "before_cursor_execute", before)
    try:
        yield
    finally:
        sa.event.remove(engine, "before_cursor_execute", before)


class Desk:
    """Does operations one by one, each in a transaction of its own."""

    def __init__(self, engine, watch=None, *, owner="one", services=SERVICES):
        self.watch = watch or Watch(1_000)
        self.store = SqlStore(engine, owner=owner, clock=self.watch)
        self.owner = owner
        self.do = self.store.do
        self.frame = make_frame
        self.error = ERROR
        self.do(op.Register(deployment=FIRST, services=services))

    @property
    def now(self):
        return int(self.watch().timestamp() * 1_000)

    def submit(self, path="Plain/go", argument=b"", **more):
        """Submit as `submission` says; the outcome."""
        return self.do(submission(path, argument=argument, **more))

    def claim(self, most=10, owner=None, **more):
        return self.do(op.Claim(owner=owner or self.owner, most=most, **more))

    def begun(self, path="Plain/go", argument=b"", **more):
        """Submit an invocation, and claim it: the claim."""
        made = self.submit(path, argument, **more)
        (mine,) = [each for each in self.claim() if each.id == made.id]
        return mine

    def commit(self, claimed, message, index=None, **more):
        """Commit a message as the next entry of the journal, else at `index`."""
        at = len(self.store.read_journal(claimed.id)) if index is None else index
        sent = make_frame(message, **more)
        return self.do(op.CommitEntry(id=claimed.id, fence=claimed.fence, index=at, frame=sent))

    def suspend(self, claimed, *indexes):
        return self.do(op.Suspend(id=claimed.id, fence=claimed.fence, indexes=indexes))

    def finish(self, claimed, data=b"done", *, failure=None):
        """Commit the output, and end the invocation."""
        message = pb.OutputEntryMessage(value=data)
        if failure is not None:
            message = pb.OutputEntryMessage(failure=failure.written())
        self.commit(claimed, message)
        return self.do(op.Finish(id=claimed.id, fence=claimed.fence))

    def fail(self, claimed, seconds=0.0, error=ERROR):
        at = self.now + int(seconds * 1_000)
        return self.do(op.Fail(id=claimed.id, fence=claimed.fence, error=error, next_at=at))

    def result(self, id_):
        return self.store.read_results([id_])[id_]

    def status(self, id_):
        return self.store.invocation(id_).status.label

    def fire(self, after=0, **more):
        """Fire what is due so many seconds later."""
        self.watch.move(after)
        return self.do(op.Fire(now=self.now, **more))
