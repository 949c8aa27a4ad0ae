"""Invocations begin, are driven, wait for their keys and end, on SQLite and PostgreSQL."""

import pytest
import sqlalchemy as sa

from durable_invocations.protocol import ids
from durable_invocations.protocol.failures import ErrorReport, Failure
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.services import HandlerKind, ServiceKind
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.deployments import (
    Deployment,
    RegisteredHandler,
    RegisteredService,
)
from durable_invocations.runtime.store.outcomes import ChangeOutcome, OperationRefusal, Submitted
from runtime_support.errors import assert_names
from runtime_support.runtimes.manual_runtime import (
    AWAKEABLE,
    CALL,
    ERROR,
    FIRST,
    SERVICES,
    TABLES,
    make_awakeable_id,
    make_submission,
    value,
)


def test_the_same_submission_again_is_the_same_invocation(desk):
    id_ = ids.format_id(ids.make_id())
    assert desk.submit(id=id_) == Submitted(id=id_, is_new=True)
    assert desk.submit(id=id_) == Submitted(id=id_, is_new=False)
    assert len(desk.claim()) == 1
    assert desk.claim() == ()


def test_an_idempotency_key_holds_for_one_handler_and_key(desk):
    first = desk.submit("Cart/k/add", idempotency_key="a")
    assert first.is_new
    assert desk.submit("Cart/k/add", idempotency_key="a") == Submitted(id=first.id, is_new=False)
    for path in ("Cart/l/add", "Cart/k/look", "Plain/go"):
        assert desk.submit(path, idempotency_key="a").is_new
    assert desk.submit("Cart/k/add").is_new
    assert desk.store.find("Cart", "k", "add", "a") == first.id
    assert desk.store.find("Cart", "k", "add", "b") is None
    for claim in desk.claim():
        desk.finish(claim, b"out")
    again = desk.submit("Cart/k/add", idempotency_key="a")
    assert again == Submitted(id=first.id, is_new=False, result=value(b"out"))
    assert desk.do(op.Purge(id=first.id)) == ChangeOutcome()
    assert desk.submit("Cart/k/add", idempotency_key="a").is_new


def test_submissions_of_one_transaction_share_an_idempotency_key(desk):
    keys = ("a", "a", "b", None, None)
    outcomes, changes = desk.store.run([make_submission(idempotency_key=key) for key in keys])
    assert [outcome.is_new for outcome in outcomes] == [True, False, True, True, True]
    assert outcomes[1].id == outcomes[0].id
    assert changes.ready
    assert len(desk.claim()) == 4


def test_a_workflow_runs_once_for_a_key(desk):
    first = desk.submit("Signup/me/run")
    assert desk.submit("Signup/me/run") == Submitted(id=first.id, is_new=False)
    assert desk.submit("Signup/me/run", idempotency_key="x").id == first.id
    assert desk.submit("Signup/you/run").is_new
    assert desk.submit("Signup/me/poke").is_new
    assert desk.submit("Signup/me/poke").is_new
    assert desk.store.find("Signup", "me", "run", None) == first.id
    assert len(desk.claim()) == 4


def test_a_workflow_does_not_run_again_when_its_run_gets_another_name(desk):
    first = desk.submit("Signup/me/run")
    renamed = RegisteredService(
        name="Signup",
        kind=ServiceKind.WORKFLOW,
        handlers=(RegisteredHandler(name="main", kind=HandlerKind.WORKFLOW),),
    )
    desk.do(op.Register(deployment=FIRST, services=(*SERVICES[:2], renamed)))
    assert desk.submit("Signup/me/main") == Submitted(id=first.id, is_new=False)
    assert desk.store.find("Signup", "me", "main", None) == first.id


def test_exclusive_invocations_of_a_key_begin_one_by_one_in_order(desk):
    ids_ = [desk.submit("Cart/k/add").id for _ in range(4)]
    other, shared = desk.submit("Cart/l/add").id, desk.submit("Cart/k/look").id
    claimed = {claim.id: claim for claim in desk.claim()}
    assert claimed.keys() == {ids_[0], other, shared}
    assert [desk.status(id_) for id_ in ids_[1:]] == ["inbox"] * 3
    desk.finish(claimed[other])
    assert desk.claim() == ()
    # One that waits can end, and the others keep their order.
    desk.do(op.Kill(id=ids_[1]))
    assert desk.claim() == ()
    desk.finish(claimed[ids_[0]])
    for expected in ids_[2:]:
        mine = desk.claim_one()
        assert mine.id == expected
        desk.commit(mine, pb.SleepEntryMessage(wake_up_time=desk.now + 1_000))
        desk.suspend(mine, 1)
        assert desk.claim() == ()
        desk.fire(1)
        desk.finish(desk.claim_one())
    assert desk.claim() == ()


def test_exclusive_submissions_of_one_transaction_keep_their_order(desk):
    outcomes, _ = desk.store.run([make_submission(f"Cart/{key}/add") for key in "kklk"])
    first, second, other, third = (outcome.id for outcome in outcomes)
    assert desk.finish_all() == [[first, other], [second], [third]]


def test_a_repeated_submission_holds_up_no_others_of_its_key(desk):
    first, second = make_submission("Cart/k/add"), make_submission("Cart/k/add")
    desk.do(first)
    desk.finish(desk.claim_one())
    outcomes, changes = desk.store.run([first, second])
    assert [outcome.is_new for outcome in outcomes] == [False, True]
    assert changes.ready
    assert [claim.id for claim in desk.claim()] == [second.id]


def test_a_delayed_invocation_takes_its_place_when_it_is_due(desk):
    late = desk.submit("Cart/k/add", at=desk.now + 5_000).id
    soon = desk.submit("Cart/k/add", at=desk.now + 3_000).id
    now = desk.submit("Cart/k/add").id
    mine = desk.claim_one()
    assert mine.id == now
    assert desk.fire(10, most=1).next_at <= desk.now
    assert desk.fire().count == 1
    assert [desk.status(id_) for id_ in (late, soon)] == ["inbox", "inbox"]
    desk.finish(mine)
    assert desk.finish_all() == [[soon], [late]]


def test_delayed_invocations_of_a_key_that_are_due_at_once_keep_their_order(desk):
    first, second = (desk.submit("Cart/k/add", at=desk.now + 1_000).id for _ in range(2))
    assert desk.fire(1).count == 2
    assert desk.finish_all() == [[first], [second]]


def test_an_invalid_submission_is_refused(desk):
    for path, fields, code in (
        ("Nobody/go", {}, 404),
        ("Plain/gone", {}, 404),
        ("Cart/add", {}, 400),
        ("Plain/go", {"idempotency_key": ""}, 400),
    ):
        refusal = desk.submit(path, **fields)
        assert isinstance(refusal, OperationRefusal)
        assert refusal.code == code
    assert desk.store.invocations() == []


def test_a_claim_takes_the_oldest_and_fences_others_off(desk, other):
    ids_ = [desk.submit().id for _ in range(5)]
    mine, theirs = desk.claim(2), other.claim(2)
    assert [(claim.id, claim.fence) for claim in (*mine, *theirs)] == [(id_, 1) for id_ in ids_[:4]]
    assert desk.store.invocation(ids_[0]).owner == "one"
    assert desk.store.read_beats().keys() == {"one", "two"}
    assert desk.do(op.Release(owner="one", driven=[(ids_[0], 1)])) == 1
    again = {claim.id: claim for claim in other.claim()}
    assert again.keys() == {ids_[1], ids_[4]}
    assert again[ids_[1]].fence == 2
    zombie = mine[1]
    assert desk.commit(zombie, pb.RunEntryMessage(value=b"x")).fenced
    assert desk.suspend(zombie, 0).fenced
    assert desk.fail(zombie).fenced
    assert desk.do(op.Finish(id=zombie.id, fence=zombie.fence)).fenced
    assert desk.do(op.Pause(id=zombie.id, fence=zombie.fence, error=ERROR)).fenced
    assert len(desk.store.read_journal(zombie.id)) == 1
    assert other.commit(again[ids_[1]], pb.RunEntryMessage(value=b"x")).index == 1


def test_a_lost_claim_is_freed_though_an_older_attempt_is_still_driven(desk):
    mine = desk.begin()
    desk.commit(mine, pb.RunEntryMessage(value=b"x"), requires_ack=True)
    desk.suspend(mine, 1)
    lost = desk.claim_one()
    assert (lost.id, lost.fence) == (mine.id, mine.fence + 1)
    driven = [(mine.id, mine.fence)]
    assert desk.do(op.Release(owner="one", driven=[*driven, (lost.id, lost.fence)])) == 0
    assert desk.do(op.Release(owner="one", driven=driven)) == 1
    assert [claim.id for claim in desk.claim()] == [mine.id]


def test_an_invocation_that_has_begun_stays_with_its_deployment(desk):
    mine = desk.begin()
    first = mine.deployment
    newer = Deployment(id="second", url="http://127.0.0.1:9081", http=2, versions=(2, 3))
    services = tuple(desk.store.services().values())
    assert desk.do(op.Register(deployment=newer, services=services)).is_new
    desk.fail(mine)
    fresh = desk.submit().id
    claimed = {claim.id: claim for claim in desk.claim()}
    assert claimed[mine.id].deployment == first
    second = claimed[fresh].deployment
    assert (second.id, second.http, second.versions) == ("second", 2, (2, 3))


def test_a_claim_leaves_out_the_invocations_of_given_deployments(desk):
    id_ = desk.submit().id
    assert desk.claim(without=["first"]) == ()
    assert desk.status(id_) == "ready"
    assert [each.id for each in desk.claim(without=["second"])] == [id_]


def test_a_suspension_may_name_more_entries_than_a_statement_takes(desk, engine):
    def limit_parameters(connection, _):
        """SQLite's default, which a distribution may raise."""
        connection.setlimit(9, 32_766)

    mine = desk.begin()
    desk.commit(mine, AWAKEABLE)
    if engine.dialect.name == "sqlite":
        engine.dispose()
        sa.event.listen(engine, "connect", limit_parameters)
    outcome = desk.suspend(mine, *range(1, 70_002))
    assert outcome.code == 571
    assert_names(outcome.message, mine.id, "entry 2")
    assert desk.suspend(mine, 1) == ChangeOutcome()


def test_a_suspension_on_a_complete_entry_makes_the_invocation_ready_at_once(desk):
    mine = desk.begin("Cart/k/add")
    desk.commit(mine, AWAKEABLE)
    desk.commit(mine, pb.GetStateEntryMessage(key=b"n"))
    assert desk.suspend(mine, 1, 2) == ChangeOutcome()
    mine = desk.claim_one()
    # A Run that waits for its ack is stored: it is resumed at once.
    desk.commit(mine, pb.RunEntryMessage(value=b"x"), requires_ack=True)
    assert desk.suspend(mine, 3) == ChangeOutcome()
    mine = desk.claim_one()
    for indexes in ((), (4,), (1, 4)):
        assert desk.suspend(mine, *indexes).code == 571
    assert desk.suspend(mine, 1) == ChangeOutcome()
    assert desk.claim() == ()
    assert desk.store.invocation(mine.id).owner == ""


def test_an_invocation_ends_with_its_output_once(desk):
    mine = desk.begin()
    assert desk.do(op.Finish(id=mine.id, fence=mine.fence)).code == 571
    assert desk.result(mine.id) is None
    assert desk.finish(mine, b"out") == ChangeOutcome()
    assert desk.result(mine.id) == value(b"out")
    assert desk.do(op.Finish(id=mine.id, fence=mine.fence)).fenced
    failed = desk.begin()
    desk.finish(failed, failure=Failure(code=400, message="nö\0"))
    assert desk.result(failed.id) == Failure(code=400, message="nö\0")
    empty = desk.begin()
    desk.commit(empty, pb.OutputEntryMessage())
    desk.do(op.Finish(id=empty.id, fence=empty.fence))
    assert desk.result(empty.id) == value(b"")
    assert desk.store.read_results(["inv_1", mine.id]) == {mine.id: value(b"out")}


def test_a_failed_attempt_is_retried_later(desk):
    mine = desk.begin()
    error = ErrorReport(code=500, message="no \0", index=3, name="charge", kind=0x0C05)
    assert desk.fail(mine, 2.0, error) == ChangeOutcome()
    shown = desk.store.invocation(mine.id)
    assert (shown.status.label, shown.next_at) == ("backing off", desk.now + 2_000)
    assert (shown.error, shown.error_at) == (error, desk.now)
    assert desk.claim() == ()
    assert desk.fire(2).count == 1
    again = desk.claim_one()
    assert (again.retries, again.fence) == (1, 2)
    desk.fail(again)
    again = desk.claim_one()
    assert again.retries == 2
    desk.watch.move(1)
    desk.commit(again, pb.RunEntryMessage(value=b"x"))
    stored = desk.now
    desk.watch.move(1)
    desk.fail(again)
    again = desk.claim_one()
    assert (again.retries, again.stored_at) == (1, stored)
    assert desk.store.invocation(mine.id).attempts == 4


@pytest.mark.parametrize("end", ["suspended", "lost"])
def test_a_stored_entry_resets_the_count_of_failures_however_its_attempt_ends(desk, end):
    mine = desk.begin()
    for _ in range(2):
        desk.fail(mine)
        mine = desk.claim_one()
    desk.commit(mine, pb.SleepEntryMessage(wake_up_time=desk.now + 1_000))
    if end == "suspended":
        desk.suspend(mine, 1)
        desk.fire(1)
    else:
        desk.do(op.Release(owner="one"))
    mine = desk.claim_one()
    assert mine.retries == 0
    desk.fail(mine)
    mine = desk.claim_one()
    assert mine.retries == 1
    desk.do(op.Release(owner="one"))
    mine = desk.claim_one()
    assert mine.retries == 1


def test_an_exhausted_invocation_is_paused_until_it_is_resumed(desk):
    mine = desk.begin()
    desk.fail(mine)
    mine = desk.claim_one()
    assert desk.do(op.Pause(id=mine.id, fence=mine.fence, error=ERROR)) == ChangeOutcome()
    assert desk.do(op.Pause(id=mine.id)) == ChangeOutcome(changed=False)
    assert desk.store.invocation(mine.id).error == ERROR
    assert desk.claim() == ()
    assert desk.do(op.Resume(id=mine.id)) == ChangeOutcome()
    assert desk.do(op.Resume(id=mine.id)) == ChangeOutcome(changed=False)
    again = desk.claim_one()
    assert again.retries == 0


def test_only_an_invocation_that_has_begun_is_paused_and_its_completions_wait(desk):
    waiting = desk.submit("Cart/k/add").id
    behind = desk.submit("Cart/k/add").id
    later = desk.submit(at=desk.now + 1_000).id
    for id_ in (behind, later):
        assert desk.do(op.Pause(id=id_)).code == 409
    mine = desk.claim_one()
    desk.commit(mine, pb.SleepEntryMessage(wake_up_time=desk.now + 500))
    desk.suspend(mine, 1)
    assert desk.do(op.Pause(id=waiting)) == ChangeOutcome()
    assert desk.fire(0.5).count == 1
    assert desk.claim() == ()
    desk.do(op.Resume(id=waiting))
    again = desk.claim_one()
    assert again.journal[1].completed
    desk.finish(again)
    assert desk.do(op.Pause(id=waiting)).code == 409
    for operation in (op.Pause, op.Resume, op.Cancel, op.Kill):
        assert desk.do(operation(id="x")).code == 404


def test_a_late_retry_may_be_advanced(desk):
    mine = desk.begin()
    desk.fail(mine, 3_600)
    assert desk.do(op.Resume(id=mine.id)) == ChangeOutcome()
    assert [claim.id for claim in desk.claim()] == [mine.id]
    assert desk.fire().next_at is None


def test_only_an_ended_invocation_is_forgotten(desk):
    mine = desk.begin("Cart/k/add")
    desk.commit(mine, pb.SetStateEntryMessage(key=b"n", value=b"1"))
    assert desk.do(op.Purge(id=mine.id)).code == 409
    desk.finish(mine)
    assert desk.do(op.Purge(id=mine.id)) == ChangeOutcome()
    assert desk.do(op.Purge(id=mine.id)) == ChangeOutcome(changed=False)
    assert desk.store.invocation(mine.id) is None
    assert desk.store.read_journal(mine.id) == []
    # An object outlives its invocations.
    assert desk.store.state("Cart", "k") == {b"n": b"1"}


def test_a_workflow_is_forgotten_with_its_state_and_promises(desk):
    run = desk.begin("Signup/me/run")
    desk.commit(run, pb.SetStateEntryMessage(key=b"n", value=b"1"))
    desk.commit(run, pb.CompletePromiseEntryMessage(key="mail", completion_value=b"ok"))
    desk.finish(run)
    desk.do(op.Purge(id=run.id))
    assert desk.store.state("Signup", "me") == {}
    again = desk.begin("Signup/me/run")
    assert again.id != run.id
    assert desk.commit(again, pb.GetPromiseEntryMessage(key="mail")).result is None


@pytest.mark.parametrize("has_run", [False, True])
def test_a_promise_without_a_run_is_forgotten_with_the_invocation_that_completed_it(desk, has_run):
    early = desk.begin("Signup/me/poke")
    desk.commit(early, pb.CompletePromiseEntryMessage(key="mail", completion_value=b"ok"))
    desk.finish(early)
    if has_run:
        desk.submit("Signup/me/run")
    desk.do(op.Purge(id=early.id))
    run = desk.claim_one() if has_run else desk.begin("Signup/me/run")
    result = desk.commit(run, pb.GetPromiseEntryMessage(key="mail")).result
    assert result == (value(b"ok") if has_run else None)


def test_ended_invocations_are_kept_for_a_day_and_forgotten_in_portions(desk):
    ended = [desk.begin().id for _ in range(5)]
    for id_ in ended:
        desk.do(op.Kill(id=id_))
    open_ = desk.submit().id
    desk.watch.move(24 * 3_600 - 1)
    assert desk.do(op.Prune(now=desk.now)) == 0
    desk.watch.move(1)
    assert desk.do(op.Prune(now=desk.now, most=3)) == 3
    assert desk.do(op.Prune(now=desk.now, most=3)) == 2
    assert [invocation.id for invocation in desk.store.invocations()] == [open_]
    assert all(desk.store.read_journal(id_) == [] for id_ in ended)


def test_nothing_is_left_of_forgotten_invocations(desk, engine):
    mine = desk.begin("Signup/me/run")
    for message in (
        *(CALL, pb.GetPromiseEntryMessage(key="mail"), AWAKEABLE),
        pb.SleepEntryMessage(wake_up_time=desk.now + 1_000),
        pb.AttachInvocationEntryMessage(invocation_id=desk.submit("Cart/k/add").id),
        pb.SetStateEntryMessage(key=b"n", value=b"1"),
    ):
        desk.commit(mine, message)
    desk.do(op.CompleteAwakeable(awakeable=make_awakeable_id(mine, 9), result=value(b"v")))
    for operation in (op.Kill, op.Purge):
        for invocation in desk.store.invocations():
            desk.do(operation(id=invocation.id))
    with engine.connect() as connection:
        filled = {
            table.name
            for table in TABLES
            if connection.scalar(sa.select(sa.func.count()).select_from(table))
        }
    assert filled == {"durable_service_deployments", "durable_services", "durable_runtimes"}


@pytest.mark.parametrize("stop", [op.Cancel, op.Kill])
def test_an_invocation_that_has_not_begun_ends_when_it_is_stopped(desk, stop):
    first = desk.submit("Cart/k/add").id
    behind, last = desk.submit("Cart/k/add").id, desk.submit("Cart/k/add").id
    later = desk.submit("Cart/k/add", at=desk.now + 1_000).id
    for id_ in (behind, later):
        assert desk.do(stop(id=id_)) == ChangeOutcome()
        assert desk.do(stop(id=id_)) == ChangeOutcome(changed=False)
        assert desk.result(id_).code == 409
    assert desk.fire(1).count == 0
    assert desk.finish_all() == [[first], [last]]
