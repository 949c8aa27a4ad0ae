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
        for each in operations:
            if isinstance(each, op.Cancel) and each.id == "poison":
                raise ValueError(each.id)
        return self.store.run(operations)


@pytest.fixture
def gate(desk):
    return Gate(desk.store)


def awaited(gate, asked, *, patience=5.0):
    """The outcomes of operations that are asked for while the writer is busy, and the changes."""
    told = []

    async def work():
        async with Writer(gate, told.append, patience=patience) as writer:
            first = writer.do(op.Beat(owner="one"))
            futures = [writer.do(each) for each in asked]
            gate.open.set()
            outcomes = await asyncio.gather(first, *futures, return_exceptions=True)
        with pytest.raises(UnavailableError):
            writer.do(op.Beat(owner="one"))
        return outcomes[1:]

    return asyncio.run(work()), told


def test_what_is_asked_for_meanwhile_shares_a_transaction(gate, desk):
    asked = [make_submission() for _ in range(40)]
    outcomes, told = awaited(gate, asked)
    assert outcomes == [Submitted(id=each.id, is_new=True) for each in asked]
    assert len(gate.groups) <= 2
    assert sum(map(len, gate.groups)) == 41
    assert [each.ready for each in told] == [True]
    assert {each.id for each in desk.store.invocations()} == {each.id for each in asked}


def test_the_order_of_an_attempt_is_kept_in_a_transaction(gate, desk):
    mine = desk.begin()
    runs = [make_frame(pb.RunEntryMessage(value=bytes([at]))) for at in range(1, 4)]
    output = make_frame(pb.OutputEntryMessage(value=b"out"))
    asked = [
        op.CommitEntry(id=mine.id, fence=mine.fence, index=at, frame=each)
        for at, each in enumerate([*runs, output], start=1)
    ]
    finish = op.Finish(id=mine.id, fence=mine.fence)
    outcomes, told = awaited(
        gate, [*asked, finish, make_submission(), op.Claim(owner="one", most=5)]
    )
    assert [each.index for each in outcomes[:4]] == [1, 2, 3, 4]
    assert outcomes[4] == ChangeOutcome()
    # What was submitted in the transaction is claimed in it.
    (claimed,) = outcomes[6]
    assert claimed.id == outcomes[5].id
    assert told[-1].ended == {mine.id: value(b"out")}


def test_an_operation_that_fails_fails_alone(gate, desk):
    good = [make_submission(), make_submission()]
    outcomes, _ = awaited(gate, [good[0], op.Cancel(id="poison"), op.Cancel(id="x"), good[1]])
    assert [outcomes[at].is_new for at in (0, 3)] == [True, True]
    assert isinstance(outcomes[1], ValueError)
    assert isinstance(outcomes[2], OperationRefusal)
    assert len(desk.store.invocations()) == 2


def test_a_database_that_was_away_is_tried_again(gate, desk):
    gate.failures = [UnavailableError("away"), UnavailableError("away")]
    asked = make_submission()
    outcomes, told = awaited(gate, [asked])
    assert outcomes == [Submitted(id=asked.id, is_new=True)]
    assert told[0].uncertain
    assert not told[-1].uncertain or len(told) == 1


def test_a_transaction_whose_commit_was_lost_is_done_once(gate, desk):
    """The database did it, and its answer did not arrive."""
    asked = make_submission()
    run = desk.store.run

    def lost(operations):
        outcome = run(operations)
        if asked in operations and len(gate.groups) < 3:
            raise UnavailableError("the connection broke")
        return outcome

    gate.store.run = lost
    outcomes, _ = awaited(gate, [asked])
    assert [each.id for each in outcomes] == [asked.id]
    assert [invocation.id for invocation in desk.store.invocations()] == [asked.id]


def test_a_database_that_stays_away_is_an_error(gate):
    gate.failures = [UnavailableError("away")] * 2
    (error,), told = awaited(gate, [make_submission()], patience=0.0)
    assert isinstance(error, UnavailableError)
    assert told == []


async def test_who_stops_waiting_does_not_undo_it(gate, desk):
    asked = make_submission()

    async with Writer(gate, lambda _: None) as writer:
        future = writer.do(asked)
        future.cancel()
        gate.open.set()
    assert [invocation.id for invocation in desk.store.invocations()] == [asked.id]


async def test_a_writer_reads_beside_what_it_writes(engine, watch):
    desk = Desk(engine, watch, services=SERVICES)
    mine = desk.submit().id

    async with Writer(desk.store, lambda _: None) as writer:
        look = await writer.read(desk.store.look, "one", watched=[mine])
        counts = await writer.read(desk.store.count_invocations)
    assert look.ready
    assert sum(counts.values()) == 1


def test_nothing_is_told_where_nothing_changed(gate):
    _, told = awaited(gate, [op.Beat(owner="one")])
    assert told == []
    assert Changes() == Changes(ended={})
