"""Canceling and killing what runs, waits or calls others, over SQLite and PostgreSQL."""

import pytest

from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.outcomes import ChangeOutcome, CommittedEntry, News
from runtime_support.runtimes.manual_runtime import CANCELED, KILLED, value

CALL = pb.CallEntryMessage(service_name="Plain", handler_name="go")
GET = pb.GetPromiseEntryMessage(key="mail")
AWAKEABLE = pb.AwakeableEntryMessage()


def child_of(desk, claimed, index):
    return desk.find_child(claimed, index)


def attach(id_):
    return pb.AttachInvocationEntryMessage(invocation_id=id_)


def test_cancelling_fails_every_entry_that_waits_and_cancels_calls(desk):
    target = desk.begin()
    mine = desk.begin("Signup/me/run")
    sleep = pb.SleepEntryMessage(wake_up_time=desk.now + 1_000)
    waiting = [sleep, CALL, AWAKEABLE, GET, attach(target.id)]
    for each in waiting:
        assert desk.commit(mine, each).result is None
    child = desk.find_child(mine, 2)
    desk.suspend(mine, 1)
    assert desk.do(op.Cancel(id=mine.id)) == ChangeOutcome()
    assert desk.result(child) == CANCELED
    again = desk.claim_one()
    failures = [Failure.read(each.message().failure) for each in again.journal[1:]]
    assert failures == [CANCELED] * 5
    # Nothing of it completes them again.
    desk.fire(1)
    desk.finish(target)
    assert desk.commit(again, sleep, index=1).result == CANCELED
    # Later steps, such as compensations, go on.
    assert desk.commit(again, CALL).result is None
    assert desk.result(target.id) == value(b"done")


@pytest.mark.parametrize("message", [CALL, AWAKEABLE, GET, attach("inv_1" + "A" * 22)])
def test_a_cancellation_that_nothing_waits_for_meets_the_next_that_would(desk, message):
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


def test_what_is_asked_of_a_call_that_a_cancellation_met_is_answered_by_that(desk):
    mine = desk.begin()
    desk.do(op.Cancel(id=mine.id))
    assert desk.commit(mine, CALL).result == CANCELED
    for of in (
        *(pb.GetCallInvocationIdEntryMessage, pb.AttachInvocationEntryMessage),
        pb.GetInvocationOutputEntryMessage,
    ):
        assert desk.commit(mine, of(call_entry_index=1)).result == CANCELED
    cancels = pb.CancelInvocationEntryMessage(call_entry_index=1)
    assert desk.commit(mine, cancels) == CommittedEntry(index=5)


def test_a_cancellation_meets_what_is_committed_in_the_same_transaction(desk):
    mine, other = desk.begin(), desk.begin()
    cancels = make_frame(pb.CancelInvocationEntryMessage(invocation_id=other.id))
    both = [
        op.CommitEntry(id=mine.id, fence=mine.fence, index=1, frame=cancels),
        op.CommitEntry(id=other.id, fence=other.fence, index=1, frame=make_frame(AWAKEABLE)),
    ]
    outcomes, _ = desk.store.run(both)
    assert [each.result for each in outcomes] == [None, CANCELED]


def test_a_cancellation_reaches_who_drives_the_invocation(desk, other):
    mine = desk.begin()
    desk.commit(mine, AWAKEABLE)
    _, changes = desk.store.run([op.Cancel(id=mine.id)])
    told = News(id=mine.id, fence=mine.fence, index=1, result=CANCELED)
    assert changes.news == (told,)
    theirs = desk.begin()
    desk.commit(theirs, AWAKEABLE)
    _, changes = other.store.run([op.Cancel(id=theirs.id)])
    assert changes.news == ()
    assert desk.store.look("one").news
    assert not desk.store.look("two").news
    assert desk.do(op.TakeNews(owner="one")) == (
        News(id=theirs.id, fence=theirs.fence, index=1, result=CANCELED),
    )
    assert desk.do(op.TakeNews(owner="one")) == ()
    assert not desk.store.look("one").news


def test_cancelling_goes_down_through_calls_and_their_ends_up(desk):
    top = desk.begin()
    desk.commit(top, CALL)
    middle = desk.claim_one()
    desk.commit(middle, CALL)
    bottom = desk.claim_one()
    desk.commit(bottom, AWAKEABLE)
    for each in (top, middle, bottom):
        desk.suspend(each, 1)
    desk.do(op.Cancel(id=top.id))
    again = {claim.id: claim for claim in desk.claim()}
    assert again.keys() == {top.id, middle.id, bottom.id}
    for each in again.values():
        assert Failure.read(each.journal[1].message().failure) == CANCELED
        desk.finish(each, failure=CANCELED)
    assert desk.claim() == ()


@pytest.mark.parametrize("waits", [False, True])
def test_cancelling_what_is_paused_ends_it_and_cancels_its_calls(desk, waits):
    mine = desk.begin()
    if waits:
        desk.commit(mine, CALL)
        child = desk.find_child(mine, 1)
    desk.do(op.Pause(id=mine.id))
    assert desk.do(op.Cancel(id=mine.id)) == ChangeOutcome()
    assert desk.result(mine.id) == CANCELED
    assert not waits or desk.result(child) == CANCELED
    assert desk.do(op.Resume(id=mine.id)) == ChangeOutcome(changed=False)
    assert desk.claim() == ()


@pytest.mark.parametrize("waits", [False, True])
def test_cancelling_what_fails_ends_it_at_the_next_attempt_that_does(desk, waits):
    mine = desk.begin()
    if waits:
        desk.commit(mine, CALL)
        child = desk.find_child(mine, 1)
    desk.fail(mine, 60)
    assert desk.do(op.Cancel(id=mine.id)) == ChangeOutcome()
    assert desk.do(op.Cancel(id=mine.id)) == ChangeOutcome(changed=False)
    assert desk.status(mine.id) == "backing off"
    desk.fire(60)
    again = desk.claim_one(mine.id)
    assert desk.fail(again, 60) == ChangeOutcome()
    assert desk.result(mine.id) == CANCELED
    # It runs, and so is to be canceled at what it waits for.
    assert not waits or desk.store.invocation(child).canceled


def test_an_attempt_under_way_that_fails_and_was_canceled_is_the_last(desk):
    mine = desk.begin()
    desk.do(op.Cancel(id=mine.id))
    desk.do(op.Pause(id=mine.id, fence=mine.fence, error=desk.error))
    assert desk.result(mine.id) == CANCELED


def test_a_cancellation_of_what_failed_meets_what_it_waits_for_in_its_next_attempt(desk):
    mine = desk.begin()
    desk.commit(mine, CALL)
    child = desk.find_child(mine, 1)
    desk.fail(mine, 60)
    desk.do(op.Cancel(id=mine.id))
    desk.fire(60)
    again = desk.claim_one(mine.id)
    assert desk.suspend(again, 1) == ChangeOutcome()
    woken = desk.claim_one(mine.id)
    assert Failure.read(woken.journal[1].message().failure) == CANCELED
    assert not desk.store.invocation(mine.id).canceled
    assert desk.do(op.Cancel(id=child)) == ChangeOutcome(changed=False)
    # What it does about that may wait, and fail, as ever.
    assert desk.commit(woken, AWAKEABLE).result is None
    assert desk.fail(woken, 60) == ChangeOutcome()
    assert desk.status(mine.id) == "backing off"


def test_killing_ends_what_runs_and_its_calls_at_once(desk, other):
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
    assert set(changes.news) == {
        News(id=each.id, fence=each.fence, index=None) for each in (top, middle)
    }
    assert other.do(op.TakeNews(owner="two")) == (
        News(id=bottom.id, fence=bottom.fence, index=None),
    )
    for each in (top, middle, bottom):
        assert desk.commit(each, pb.RunEntryMessage(value=b"x")).fenced
    assert desk.result(free.id) is None
    assert [claim.id for claim in desk.claim()] == [behind]
    assert desk.do(op.Kill(id=top.id)) == ChangeOutcome(changed=False)


def test_a_caller_goes_on_when_its_call_is_killed(desk):
    top = desk.begin()
    desk.commit(top, CALL)
    desk.suspend(top, 1)
    desk.do(op.Kill(id=desk.find_child(top, 1)))
    again = desk.claim_one()
    assert Failure.read(again.journal[1].message().failure) == KILLED


@pytest.mark.parametrize("way", [op.Cancel, op.Kill])
def test_what_another_called_first_is_not_stopped_with_who_attached(desk, way):
    shared = desk.submit(idempotency_key="a").id
    target = desk.claim_one()
    top = desk.begin()
    asked = pb.CallEntryMessage(service_name="Plain", handler_name="go", idempotency_key="a")
    desk.commit(top, asked)
    assert desk.find_child(top, 1) == shared
    desk.do(way(id=top.id))
    assert desk.result(shared) is None
    assert not desk.store.invocation(shared).canceled
    desk.finish(target, b"ok")
    assert desk.result(shared) == value(b"ok")


def test_a_pause_by_a_person_takes_the_invocation_away(desk, other):
    mine = desk.begin()
    _, changes = desk.store.run([op.Pause(id=mine.id)])
    assert changes.news == (News(id=mine.id, fence=mine.fence, index=None),)
    assert desk.commit(mine, pb.RunEntryMessage(value=b"x")).fenced
    theirs = other.begin()
    desk.do(op.Pause(id=theirs.id))
    assert other.do(op.TakeNews(owner="two")) == (
        News(id=theirs.id, fence=theirs.fence, index=None),
    )
