"""A store of invocations with three services, without a runtime: a test does its operations."""

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
CALL = pb.CallEntryMessage(service_name="Plain", handler_name="go")
AWAKEABLE = pb.AwakeableEntryMessage()
CANCELED, KILLED = Failure(code=409, message="canceled"), Failure(code=409, message="killed")
ERROR = ErrorReport(code=500, message="broke", description="in line 1")


def value(data):
    return Value(value=data)


def make_awakeable_id(claim, index):
    return awakeables.make_awakeable_id(ids.parse_id(claim.id), index)


def make_submission(path="Plain/go", **fields):
    """Submits to `Service/handler` or `Service/key/handler`."""
    service, *key, handler = path.split("/")
    target = {"id": ids.format_id(ids.make_id()), "service": service, "handler": handler}
    return op.Submit(key="".join(key), **(target | fields))


class DiedError(BaseException):
    pass


@contextmanager
def die_at(engine, at):
    """Raise before the statement of this number, counted from 1 without locks; 0: never."""
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
    """A runtime's operations, which a test does one by one, each in its own transaction."""

    def __init__(self, engine, watch=None, *, owner="one", services=SERVICES):
        self.watch = watch or Watch(1_000)
        self.store = SqlStore(engine, owner=owner, clock=self.watch)
        self.owner = owner
        self.do = self.store.do
        self.error = ERROR
        self.do(op.Register(deployment=FIRST, services=services))

    @property
    def now(self):
        return int(self.watch().timestamp() * 1_000)

    def submit(self, path="Plain/go", argument=b"", **fields):
        """Submit to this path, as `make_submission` does; the outcome."""
        return self.do(make_submission(path, argument=argument, **fields))

    def claim(self, most=10, owner=None, **fields):
        return self.do(op.Claim(owner=owner or self.owner, most=most, **fields))

    def claim_one(self, id_=None):
        """Claim what is ready: the claim of this invocation, or else the only claim."""
        (claim,) = [claim for claim in self.claim() if id_ in {None, claim.id}]
        return claim

    def begin(self, path="Plain/go", argument=b"", **fields):
        """Submit an invocation, and claim it; the claim."""
        return self.claim_one(self.submit(path, argument, **fields).id)

    def commit(self, claim, message, index=None, **flags):
        """Commit a message at this index of the journal, or as the next entry."""
        at = len(self.store.read_journal(claim.id)) if index is None else index
        frame = make_frame(message, **flags)
        return self.do(op.CommitEntry(id=claim.id, fence=claim.fence, index=at, frame=frame))

    def suspend(self, claim, *indexes):
        return self.do(op.Suspend(id=claim.id, fence=claim.fence, indexes=indexes))

    def finish(self, claim, data=b"done", *, failure=None):
        """Commit the output, and end the invocation."""
        message = pb.OutputEntryMessage(value=data)
        if failure is not None:
            message = pb.OutputEntryMessage(failure=failure.written())
        self.commit(claim, message)
        return self.do(op.Finish(id=claim.id, fence=claim.fence))

    def finish_all(self):
        """Claim and finish until nothing is ready; the ids of each round of claims."""
        rounds = []
        while claims := self.claim():
            rounds.append([claim.id for claim in claims])
            for claim in claims:
                self.finish(claim)
        return rounds

    def fail(self, claim, seconds=0.0, error=ERROR):
        at = self.now + int(seconds * 1_000)
        return self.do(op.Fail(id=claim.id, fence=claim.fence, error=error, next_at=at))

    def find_child(self, claim, index):
        """The id of the invocation that the call at this index made."""
        return self.store.read_journal(claim.id)[index].child

    def result(self, id_):
        return self.store.read_results([id_])[id_]

    def status(self, id_):
        return self.store.invocation(id_).status.label

    def fire(self, after=0, **more):
        """Fire what is due after so many seconds."""
        self.watch.move(after)
        return self.do(op.Fire(now=self.now, **more))
