"""Operations of an event loop share transactions, on SQLite and PostgreSQL."""

import asyncio
import threading

import pytest

from durable_invocations.errors import UnavailableError
from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.outcomes import (
    ChangeOutcome,
    Changes,
    OperationRefusal,
    Submitted,
)
from durable_invocations.runtime.writer import Writer
from runtime_support.runtimes.manual_runtime import SERVICES, Desk, make_submission, value


class Gate:
    """A store that waits before its first transaction, and fails those that a test names."""

    def __init__(self, store):
        self.store = store
        self.owner = store.owner
        self.open = threading.Event()
        self.groups = []
        self.failures = []

    def run(self, operations):
        assert self.open.wait(30)
        self.groups.append(list(operations))
        if self.failures:
            failure = self.failures.pop(0)
            if failure is not None:
                raise failure
        for operation in operations:
            if isinstance(operation, op.Cancel) and operation.id == "poison":
                raise ValueError(operation.id)
        return self.store.run(operations)


@pytest.fixture
def gate(desk):
    return Gate(desk.store)


async def do_while_busy(gate, operations, *, patience=5.0):
    """The outcomes of operations that are requested while the writer is busy, and the changes."""
    changes = []
    async with Writer(gate, changes.append, patience=patience) as writer:
        first = writer.do(op.Beat(owner="one"))
        futures = [writer.do(operation) for operation in operations]
        gate.open.set()
        outcomes = await asyncio.gather(first, *futures, return_exceptions=True)
    with pytest.raises(UnavailableError):
        writer.do(op.Beat(owner="one"))
    return outcomes[1:], changes


async def test_operations_share_a_transaction_while_the_writer_is_busy(gate, desk):
    submissions = [make_submission() for _ in range(40)]
    outcomes, changes = await do_while_busy(gate, submissions)
    ids = [submission.id for submission in submissions]
    assert outcomes == [Submitted(id=id_, is_new=True) for id_ in ids]
    assert len(gate.groups) <= 2
    assert sum(map(len, gate.groups)) == 41
    assert [change.ready for change in changes] == [True]
    assert {invocation.id for invocation in desk.store.invocations()} == set(ids)


async def test_the_order_of_an_attempt_is_kept_in_a_transaction(gate, desk):
    mine = desk.begin()
    runs = [make_frame(pb.RunEntryMessage(value=bytes([at]))) for at in range(1, 4)]
    output = make_frame(pb.OutputEntryMessage(value=b"out"))
    commits = [
        op.CommitEntry(id=mine.id, fence=mine.fence, index=at, frame=entry)
        for at, entry in enumerate([*runs, output], start=1)
    ]
    finish, claim = op.Finish(id=mine.id, fence=mine.fence), op.Claim(owner="one", most=5)
    outcomes, changes = await do_while_busy(gate, [*commits, finish, make_submission(), claim])
    assert [outcome.index for outcome in outcomes[:4]] == [1, 2, 3, 4]
    assert outcomes[4] == ChangeOutcome()
    # The submission of the transaction is claimed in the same one.
    (claimed,) = outcomes[6]
    assert claimed.id == outcomes[5].id
    assert changes[-1].ended == {mine.id: value(b"out")}


async def test_a_failure_of_an_operation_fails_no_other(gate, desk):
    operations = [
        *(make_submission(), op.Cancel(id="poison"), op.Cancel(id="x"), make_submission()),
    ]
    outcomes, _ = await do_while_busy(gate, operations)
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [Submitted, ValueError, OperationRefusal, Submitted]
    assert len(desk.store.invocations()) == 2


async def test_a_database_that_was_away_is_tried_again(gate):
    gate.failures = [UnavailableError("away"), UnavailableError("away")]
    submission = make_submission()
    outcomes, changes = await do_while_busy(gate, [submission])
    assert outcomes == [Submitted(id=submission.id, is_new=True)]
    assert changes[0].uncertain
    assert not changes[-1].uncertain or len(changes) == 1


async def test_a_transaction_whose_answer_is_lost_is_done_once(gate, desk):
    submission = make_submission()
    run = desk.store.run

    def lose_answer(operations):
        outcome = run(operations)
        if submission in operations and len(gate.groups) < 3:
            raise UnavailableError("the connection broke")
        return outcome

    gate.store.run = lose_answer
    outcomes, _ = await do_while_busy(gate, [submission])
    assert [outcome.id for outcome in outcomes] == [submission.id]
    assert [invocation.id for invocation in desk.store.invocations()] == [submission.id]


async def test_a_database_that_stays_away_is_an_error(gate):
    gate.failures = [UnavailableError("away")] * 2
    (error,), changes = await do_while_busy(gate, [make_submission()], patience=0.0)
    assert isinstance(error, UnavailableError)
    assert changes == []


async def test_a_canceled_request_does_not_undo_the_operation(gate, desk):
    submission = make_submission()

    async with Writer(gate, lambda _: None) as writer:
        future = writer.do(submission)
        future.cancel()
        gate.open.set()
    assert [invocation.id for invocation in desk.store.invocations()] == [submission.id]


async def test_a_writer_reads_while_it_writes(engine, watch):
    desk = Desk(engine, watch, services=SERVICES)
    mine = desk.submit().id

    async with Writer(desk.store, lambda _: None) as writer:
        look = await writer.read(desk.store.look, "one", watched=[mine])
        counts = await writer.read(desk.store.count_invocations)
    assert look.ready
    assert sum(counts.values()) == 1


async def test_a_transaction_without_changes_reports_none(gate):
    _, changes = await do_while_busy(gate, [op.Beat(owner="one")])
    assert changes == []
    assert Changes() == Changes(ended={})
