"""Invocations that are canceled or killed as they run, wait or call; SQLite and PostgreSQL."""

import pytest

from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.outcomes import ChangeOutcome, CommittedEntry, News
from runtime_support.runtimes.manual_runtime import AWAKEABLE, CALL, CANCELED, KILLED, value

GET = pb.GetPromiseEntryMessage(key="mail")


def attach(id_):
    return pb.AttachInvocationEntryMessage(invocation_id=id_)


def make_news(claim, index=None, result=None):
    return News(id=claim.id, fence=claim.fence, index=index, result=result)


def read_failure(claim, index=1):
    """The failure of an entry in the journal of the claim."""
    return Failure.read(claim.journal[index].message().failure)


def test_a_cancellation_fails_every_open_entry_and_cancels_calls(desk):
    target = desk.begin()
    mine = desk.begin("Signup/me/run")
    sleep = pb.SleepEntryMessage(wake_up_time=desk.now + 1_000)
    for message in (sleep, CALL, AWAKEABLE, GET, attach(target.id)):
        assert desk.commit(mine, message).result is None
    child = desk.find_child(mine, 2)
    desk.suspend(mine, 1)
    assert desk.do(op.Cancel(id=mine.id)) == ChangeOutcome()
    assert desk.result(child) == CANCELED
    again = desk.claim_one()
    assert [read_failure(again, index) for index in range(1, 6)] == [CANCELED] * 5
    # Nothing completes them again.
    desk.fire(1)
    desk.finish(target)
    assert desk.commit(again, sleep, index=1).result == CANCELED
    # Later steps, such as compensations, go on.
    assert desk.commit(again, CALL).result is None
    assert desk.result(target.id) == value(b"done")


@pytest.mark.parametrize("message", [CALL, AWAKEABLE, GET, attach("inv_1" + "A" * 22)])
def test_a_cancellation_without_an_open_entry_fails_the_next_entry_that_would_wait(desk, message):
    mine = desk.begin("Signup/me/run")
    assert desk.do(op.Cancel(id=mine.id)) == ChangeOutcome()
    assert desk.do(op.Cancel(id=mine.id)) == ChangeOutcome(changed=False)
    assert desk.store.invocation(mine.id).canceled
    desk.commit(mine, pb.RunEntryMessage(value=b"x"))
    assert desk.commit(mine, pb.GetStateEntryMessage(key=b"n")).result != CANCELED
    assert desk.commit(mine, message).result == CANCELED
    assert not desk.store.invocation(mine.id).canceled
    assert len(desk.store.invocations()) == 1
    assert desk.commit(mine, AWAKEABLE).result is None


def test_entries_about_a_canceled_call_are_canceled_too(desk):
    mine = desk.begin()
    desk.do(op.Cancel(id=mine.id))
    assert desk.commit(mine, CALL).result == CANCELED
    for kind in (
        *(pb.GetCallInvocationIdEntryMessage, pb.AttachInvocationEntryMessage),
        pb.GetInvocationOutputEntryMessage,
    ):
        assert desk.commit(mine, kind(call_entry_index=1)).result == CANCELED
    cancels = pb.CancelInvocationEntryMessage(call_entry_index=1)
    assert desk.commit(mine, cancels) == CommittedEntry(index=5)


def test_a_cancellation_fails_an_entry_that_is_committed_in_the_same_transaction(desk):
    mine, other = desk.begin(), desk.begin()
    cancels = make_frame(pb.CancelInvocationEntryMessage(invocation_id=other.id))
    both = [
        op.CommitEntry(id=mine.id, fence=mine.fence, index=1, frame=cancels),
        op.CommitEntry(id=other.id, fence=other.fence, index=1, frame=make_frame(AWAKEABLE)),
    ]
    outcomes, _ = desk.store.run(both)
    assert [outcome.result for outcome in outcomes] == [None, CANCELED]


def test_a_cancellation_reaches_the_runtime_that_drives_the_invocation(desk, other):
    mine = desk.begin()
    desk.commit(mine, AWAKEABLE)
    _, changes = desk.store.run([op.Cancel(id=mine.id)])
    assert changes.news == (make_news(mine, 1, CANCELED),)
    theirs = desk.begin()
    desk.commit(theirs, AWAKEABLE)
    _, changes = other.store.run([op.Cancel(id=theirs.id)])
    assert changes.news == ()
    assert desk.store.look("one").news
    assert not desk.store.look("two").news
    assert desk.do(op.TakeNews(owner="one")) == (make_news(theirs, 1, CANCELED),)
    assert desk.do(op.TakeNews(owner="one")) == ()
    assert not desk.store.look("one").news


def test_a_cancellation_cancels_the_calls_of_calls(desk):
    top = desk.begin()
    desk.commit(top, CALL)
    middle = desk.claim_one()
    desk.commit(middle, CALL)
    bottom = desk.claim_one()
    desk.commit(bottom, AWAKEABLE)
    for claim in (top, middle, bottom):
        desk.suspend(claim, 1)
    desk.do(op.Cancel(id=top.id))
    claims = desk.claim()
    assert {claim.id for claim in claims} == {top.id, middle.id, bottom.id}
    for claim in claims:
        assert read_failure(claim) == CANCELED
        desk.finish(claim, failure=CANCELED)
    assert desk.claim() == ()


def begin_and_call(desk, calls):
    """An invocation, and the id of its call if it has one."""
    mine = desk.begin()
    if not calls:
        return mine, None
    desk.commit(mine, CALL)
    return mine, desk.find_child(mine, 1)


@pytest.mark.parametrize("calls", [False, True])
def test_a_canceled_invocation_that_is_paused_ends_and_its_calls_are_canceled(desk, calls):
    mine, child = begin_and_call(desk, calls)
    desk.do(op.Pause(id=mine.id))
    assert desk.do(op.Cancel(id=mine.id)) == ChangeOutcome()
    assert desk.result(mine.id) == CANCELED
    assert not calls or desk.result(child) == CANCELED
    assert desk.do(op.Resume(id=mine.id)) == ChangeOutcome(changed=False)
    assert desk.claim() == ()


@pytest.mark.parametrize("calls", [False, True])
def test_a_canceled_invocation_that_fails_ends_at_the_next_failure(desk, calls):
    mine, child = begin_and_call(desk, calls)
    desk.fail(mine, 60)
    assert desk.do(op.Cancel(id=mine.id)) == ChangeOutcome()
    assert desk.do(op.Cancel(id=mine.id)) == ChangeOutcome(changed=False)
    assert desk.status(mine.id) == "backing off"
    desk.fire(60)
    again = desk.claim_one(mine.id)
    assert desk.fail(again, 60) == ChangeOutcome()
    assert desk.result(mine.id) == CANCELED
    # The child runs, so it is canceled at its next wait.
    assert not calls or desk.store.invocation(child).canceled


def test_an_attempt_that_was_canceled_and_fails_is_the_last(desk):
    mine = desk.begin()
    desk.do(op.Cancel(id=mine.id))
    desk.do(op.Pause(id=mine.id, fence=mine.fence, error=desk.error))
    assert desk.result(mine.id) == CANCELED


def test_a_cancellation_of_a_failing_invocation_fails_its_open_entry_in_the_next_attempt(desk):
    mine, child = begin_and_call(desk, calls=True)
    desk.fail(mine, 60)
    desk.do(op.Cancel(id=mine.id))
    desk.fire(60)
    again = desk.claim_one(mine.id)
    assert desk.suspend(again, 1) == ChangeOutcome()
    woken = desk.claim_one(mine.id)
    assert read_failure(woken) == CANCELED
    assert not desk.store.invocation(mine.id).canceled
    assert desk.do(op.Cancel(id=child)) == ChangeOutcome(changed=False)
    # Its compensations may wait and fail as before.
    assert desk.commit(woken, AWAKEABLE).result is None
    assert desk.fail(woken, 60) == ChangeOutcome()
    assert desk.status(mine.id) == "backing off"


def test_a_kill_ends_an_invocation_and_its_calls_at_once(desk, other):
    top = desk.begin("Cart/k/add")
    behind = desk.submit("Cart/k/add").id
    one_way = pb.OneWayCallEntryMessage(service_name="Plain", handler_name="go")
    desk.commit(top, one_way)
    desk.commit(top, CALL)
    free, middle = desk.claim()
    desk.commit(middle, CALL)
    bottom = other.claim_one()
    outcomes, changes = desk.store.run([op.Kill(id=top.id)])
    assert outcomes == [ChangeOutcome()]
    assert changes.ended == dict.fromkeys((top.id, middle.id, bottom.id), KILLED)
    assert set(changes.news) == {make_news(top), make_news(middle)}
    assert other.do(op.TakeNews(owner="two")) == (make_news(bottom),)
    for claim in (top, middle, bottom):
        assert desk.commit(claim, pb.RunEntryMessage(value=b"x")).fenced
    assert desk.result(free.id) is None
    assert [claim.id for claim in desk.claim()] == [behind]
    assert desk.do(op.Kill(id=top.id)) == ChangeOutcome(changed=False)


def test_a_caller_continues_when_its_call_is_killed(desk):
    top = desk.begin()
    desk.commit(top, CALL)
    desk.suspend(top, 1)
    desk.do(op.Kill(id=desk.find_child(top, 1)))
    assert read_failure(desk.claim_one()) == KILLED


@pytest.mark.parametrize("stop", [op.Cancel, op.Kill])
def test_an_invocation_is_not_stopped_with_a_caller_that_only_attached_to_it(desk, stop):
    shared = desk.begin(idempotency_key="a")
    top = desk.begin()
    call = pb.CallEntryMessage(service_name="Plain", handler_name="go", idempotency_key="a")
    desk.commit(top, call)
    assert desk.find_child(top, 1) == shared.id
    desk.do(stop(id=top.id))
    assert desk.result(shared.id) is None
    assert not desk.store.invocation(shared.id).canceled
    desk.finish(shared, b"ok")
    assert desk.result(shared.id) == value(b"ok")


def test_a_pause_takes_the_invocation_from_its_runtime(desk, other):
    mine = desk.begin()
    _, changes = desk.store.run([op.Pause(id=mine.id)])
    assert changes.news == (make_news(mine),)
    assert desk.commit(mine, pb.RunEntryMessage(value=b"x")).fenced
    theirs = other.begin()
    desk.do(op.Pause(id=theirs.id))
    assert other.do(op.TakeNews(owner="two")) == (make_news(theirs),)
