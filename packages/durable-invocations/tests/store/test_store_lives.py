"""How invocations begin, are driven, wait for their keys and end, over SQLite and PostgreSQL."""

from contextlib import contextmanager

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
from runtime_support.runtimes.manual_runtime import (
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


def test_an_idempotency_key_is_of_a_handler_and_a_key(desk):
    first = desk.submit("Cart/k/add", idempotency_key="a")
    assert first.is_new
    assert desk.submit("Cart/k/add", idempotency_key="a") == Submitted(id=first.id, is_new=False)
    for path in ("Cart/l/add", "Cart/k/look", "Plain/go"):
        assert desk.submit(path, idempotency_key="a").is_new
    assert desk.submit("Cart/k/add").is_new
    assert desk.store.find("Cart", "k", "add", "a") == first.id
    assert desk.store.find("Cart", "k", "add", "b") is None
    for each in desk.claim():
        desk.finish(each, b"out")
    again = desk.submit("Cart/k/add", idempotency_key="a")
    assert again == Submitted(id=first.id, is_new=False, result=value(b"out"))
    assert desk.do(op.Purge(id=first.id)) == ChangeOutcome()
    assert desk.submit("Cart/k/add", idempotency_key="a").is_new


def test_submissions_of_one_transaction_share_an_idempotency_key(desk):
    keys = ("a", "a", "b", None, None)
    outcomes, changes = desk.store.run([make_submission(idempotency_key=key) for key in keys])
    assert [each.is_new for each in outcomes] == [True, False, True, True, True]
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


def test_a_workflow_whose_run_has_another_name_now_has_run_all_the_same(desk):
    first = desk.submit("Signup/me/run")
    renamed = RegisteredService(
        name="Signup",
        kind=ServiceKind.WORKFLOW,
        handlers=(RegisteredHandler(name="main", kind=HandlerKind.WORKFLOW),),
    )
    desk.do(op.Register(deployment=FIRST, services=(*SERVICES[:2], renamed)))
    assert desk.submit("Signup/me/main") == Submitted(id=first.id, is_new=False)
    assert desk.store.find("Signup", "me", "main", None) == first.id


def test_exclusive_invocations_of_a_key_go_one_by_one_in_order(desk):
    ids_ = [desk.submit("Cart/k/add").id for _ in range(4)]
    other, shared = desk.submit("Cart/l/add").id, desk.submit("Cart/k/look").id
    claimed = {claim.id: claim for claim in desk.claim()}
    assert claimed.keys() == {ids_[0], other, shared}
    assert [desk.status(each) for each in ids_[1:]] == ["inbox"] * 3
    desk.finish(claimed[other])
    assert desk.claim() == ()
    # One that waits can end, and the others stay in order.
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
        mine = desk.claim_one()
        desk.finish(mine)
    assert desk.claim() == ()


def test_exclusive_submissions_of_one_transaction_keep_their_order(desk):
    outcomes, _ = desk.store.run([make_submission(f"Cart/{key}/add") for key in "kklk"])
    order = []
    while claimed := desk.claim():
        order += [each.id for each in claimed if each.key == "k"]
        for each in claimed:
            desk.finish(each)
    assert order == [outcomes[at].id for at in (0, 1, 3)]


def test_a_submission_that_is_repeated_holds_up_no_others_of_its_key(desk):
    first, second = make_submission("Cart/k/add"), make_submission("Cart/k/add")
    desk.do(first)
    mine = desk.claim_one()
    desk.finish(mine)
    outcomes, changes = desk.store.run([first, second])
    assert [each.is_new for each in outcomes] == [False, True]
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
    assert [desk.status(each) for each in (late, soon)] == ["inbox", "inbox"]
    desk.finish(mine)
    for expected in (soon, late):
        mine = desk.claim_one()
        assert mine.id == expected
        desk.finish(mine)


def test_two_delayed_invocations_of_a_key_that_are_due_at_once(desk):
    ids_ = [desk.submit("Cart/k/add", at=desk.now + 1_000).id for _ in range(2)]
    assert desk.fire(1).count == 2
    for expected in ids_:
        mine = desk.claim_one()
        assert mine.id == expected
        desk.finish(mine)


def test_a_submission_that_is_wrong_is_refused(desk):
    for path, code in (("Nobody/go", 404), ("Plain/gone", 404), ("Cart/add", 400)):
        refused = desk.submit(path)
        assert isinstance(refused, OperationRefusal)
        assert refused.code == code
    assert desk.submit(idempotency_key="").code == 400
    assert desk.store.invocations() == []


def test_a_claim_takes_the_oldest_and_fences_others_off(desk, other):
    ids_ = [desk.submit().id for _ in range(5)]
    mine, theirs = desk.claim(2), other.claim(2)
    assert [each.id for each in (*mine, *theirs)] == ids_[:4]
    assert {each.fence for each in (*mine, *theirs)} == {1}
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


def test_a_claim_that_was_lost_is_freed_though_an_older_attempt_is_still_held(desk):
    mine = desk.begin()
    desk.commit(mine, pb.RunEntryMessage(value=b"x"), requires_ack=True)
    desk.suspend(mine, 1)
    lost = desk.claim_one()
    assert (lost.id, lost.fence) == (mine.id, mine.fence + 1)
    held = [(mine.id, mine.fence)]
    assert desk.do(op.Release(owner="one", driven=[*held, (lost.id, lost.fence)])) == 0
    assert desk.do(op.Release(owner="one", driven=held)) == 1
    assert [claim.id for claim in desk.claim()] == [mine.id]


def test_a_begun_invocation_stays_with_its_deployment(desk):
    mine = desk.begin()
    first = mine.deployment
    newer = Deployment(id="second", url="http://127.0.0.1:9081", http=2, versions=(2, 3))
    services = tuple(desk.store.services().values())
    assert desk.do(op.Register(deployment=newer, services=services)).is_new
    desk.fail(mine)
    fresh = desk.submit().id
    claimed = {claim.id: claim for claim in desk.claim()}
    assert claimed[mine.id].deployment == first
    assert claimed[fresh].deployment.id == "second"
    assert claimed[fresh].deployment.http == 2
    assert claimed[fresh].deployment.versions == (2, 3)


def test_a_claim_leaves_what_is_of_a_deployment_that_it_is_told(desk):
    id_ = desk.submit().id
    assert desk.claim(without=["first"]) == ()
    assert desk.status(id_) == "ready"
    assert [each.id for each in desk.claim(without=["second"])] == [id_]


def test_it_may_wait_for_more_entries_than_a_statement_takes(desk, engine):
    mine = desk.begin()
    desk.commit(mine, pb.AwakeableEntryMessage())
    with few_parameters(engine):
        outcome = desk.suspend(mine, *range(1, 70_002))
        assert (outcome.code, "entry 2," in outcome.message) == (571, True)
        assert desk.suspend(mine, 1) == ChangeOutcome()


@contextmanager
def few_parameters(engine):
    """As many as SQLite takes where it is built as its makers do."""
    limit = lambda connection, _: connection.setlimit(9, 32_766)  # noqa: E731
    if engine.dialect.name != "sqlite":
        yield
        return
    engine.dispose()
    sa.event.listen(engine, "connect", limit)
    yield
    sa.event.remove(engine, "connect", limit)


def test_suspending_on_what_is_completed_makes_it_ready_at_once(desk):
    mine = desk.begin("Cart/k/add")
    desk.commit(mine, pb.AwakeableEntryMessage())
    desk.commit(mine, pb.GetStateEntryMessage(key=b"n"))
    assert desk.suspend(mine, 1, 2) == ChangeOutcome()
    mine = desk.claim_one()
    # A Run that waits for its ack is stored: it is resumed at once.
    desk.commit(mine, pb.RunEntryMessage(value=b"x"), requires_ack=True)
    assert desk.suspend(mine, 3) == ChangeOutcome()
    mine = desk.claim_one()
    for wrong in ((), (4,), (1, 4)):
        assert desk.suspend(mine, *wrong).code == 571
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
    bad = desk.begin()
    desk.finish(bad, failure=Failure(code=400, message="nö\0"))
    assert desk.result(bad.id) == Failure(code=400, message="nö\0")
    nothing = desk.begin()
    desk.commit(nothing, pb.OutputEntryMessage())
    desk.do(op.Finish(id=nothing.id, fence=nothing.fence))
    assert desk.result(nothing.id) == value(b"")
    assert desk.store.read_results(["inv_1", mine.id]) == {mine.id: value(b"out")}


def test_a_failed_attempt_is_tried_again_later(desk):
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


@pytest.mark.parametrize("ends", ["suspended", "lost"])
def test_an_entry_that_is_stored_ends_the_count_of_failures_however_its_attempt_ends(desk, ends):
    mine = desk.begin()
    for _ in range(2):
        desk.fail(mine)
        mine = desk.claim_one()
    desk.commit(mine, pb.SleepEntryMessage(wake_up_time=desk.now + 1_000))
    if ends == "suspended":
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


def test_a_person_pauses_what_has_begun_and_completions_wait(desk):
    waiting = desk.submit("Cart/k/add").id
    behind = desk.submit("Cart/k/add").id
    later = desk.submit(at=desk.now + 1_000).id
    for each in (behind, later):
        assert desk.do(op.Pause(id=each)).code == 409
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
    for unknown in (op.Pause(id="x"), op.Resume(id="x"), op.Cancel(id="x"), op.Kill(id="x")):
        assert desk.do(unknown).code == 404


def test_a_retry_that_is_far_off_may_be_hastened(desk):
    mine = desk.begin()
    desk.fail(mine, 3_600)
    assert desk.do(op.Resume(id=mine.id)) == ChangeOutcome()
    assert [claim.id for claim in desk.claim()] == [mine.id]
    assert desk.fire().next_at is None


def test_only_what_has_ended_is_forgotten(desk):
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


@pytest.mark.parametrize("runs", [False, True])
def test_a_promise_that_no_run_came_for_is_forgotten_with_who_made_it(desk, runs):
    early = desk.begin("Signup/me/poke")
    desk.commit(early, pb.CompletePromiseEntryMessage(key="mail", completion_value=b"ok"))
    desk.finish(early)
    run = desk.submit("Signup/me/run") if runs else None
    desk.do(op.Purge(id=early.id))
    claimed = desk.claim()[0] if run else desk.begin("Signup/me/run")
    got = desk.commit(claimed, pb.GetPromiseEntryMessage(key="mail")).result
    assert got == (value(b"ok") if runs else None)


def test_ended_invocations_are_kept_for_a_day_and_forgotten_in_portions(desk):
    ended = [desk.begin().id for _ in range(5)]
    for each in desk.store.invocations():
        desk.do(op.Kill(id=each.id))
    open_ = desk.submit().id
    desk.watch.move(24 * 3_600 - 1)
    assert desk.do(op.Prune(now=desk.now)) == 0
    desk.watch.move(1)
    assert desk.do(op.Prune(now=desk.now, most=3)) == 3
    assert desk.do(op.Prune(now=desk.now, most=3)) == 2
    assert [invocation.id for invocation in desk.store.invocations()] == [open_]
    assert all(desk.store.read_journal(each) == [] for each in ended)


def test_nothing_is_left_of_what_is_forgotten(desk, engine):
    call = pb.CallEntryMessage(service_name="Plain", handler_name="go")
    mine = desk.begin("Signup/me/run")
    for message in (
        *(call, pb.GetPromiseEntryMessage(key="mail"), pb.AwakeableEntryMessage()),
        pb.SleepEntryMessage(wake_up_time=desk.now + 1_000),
        pb.AttachInvocationEntryMessage(invocation_id=desk.submit("Cart/k/add").id),
        pb.SetStateEntryMessage(key=b"n", value=b"1"),
    ):
        desk.commit(mine, message)
    desk.do(op.CompleteAwakeable(awakeable=make_awakeable_id(mine, 9), result=value(b"v")))
    for each in desk.store.invocations():
        desk.do(op.Kill(id=each.id))
    for each in desk.store.invocations():
        desk.do(op.Purge(id=each.id))
    with engine.connect() as connection:
        left = {
            table.name: count
            for table in TABLES
            if (count := connection.scalar(sa.select(sa.func.count()).select_from(table)))
        }
    assert left.keys() == {"durable_service_deployments", "durable_services", "durable_runtimes"}


@pytest.mark.parametrize("way", [op.Cancel, op.Kill])
def test_what_was_not_begun_ends_when_it_is_stopped(desk, way):
    first = desk.submit("Cart/k/add").id
    behind, last = desk.submit("Cart/k/add").id, desk.submit("Cart/k/add").id
    later = desk.submit("Cart/k/add", at=desk.now + 1_000).id
    for each in (behind, later):
        assert desk.do(way(id=each)) == ChangeOutcome()
        assert desk.do(way(id=each)) == ChangeOutcome(changed=False)
        assert desk.result(each).code == 409
    assert desk.fire(1).count == 0
    mine = desk.claim_one()
    assert mine.id == first
    desk.finish(mine)
    mine = desk.claim_one()
    assert mine.id == last
