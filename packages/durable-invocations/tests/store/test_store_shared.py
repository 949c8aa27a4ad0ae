"""What several runtimes share, and what is shown, over SQLite and PostgreSQL."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.services import Mode, ServiceKind
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.deployments import Deployment
from durable_invocations.runtime.store.outcomes import ChangeOutcome, Changes, News, Registered
from durable_invocations.runtime.store.views import InvocationFilter, Status
from runtime_support.runtimes.manual_runtime import (
    FIRST,
    SERVICES,
    Desk,
    make_awakeable_id,
    make_submission,
    value,
)

SECOND = Deployment(
    id="second", url="http://127.0.0.1:9081", mode=Mode.FULL_DUPLEX, http=2, versions=(3, 3)
)
CALL = pb.CallEntryMessage(service_name="Plain", handler_name="go")


def test_a_completion_reaches_whoever_drives_the_invocation(desk, other):
    mine, theirs = desk.begin(), other.begin()
    for each in (mine, theirs):
        (desk if each is mine else other).commit(each, pb.AwakeableEntryMessage())
    asked = [
        op.CompleteAwakeable(awakeable=make_awakeable_id(each, 1), result=value(b"v"))
        for each in (mine, theirs)
    ]
    _, changes = desk.store.run(asked)
    assert changes == Changes(
        news=(News(id=mine.id, fence=mine.fence, index=1, result=value(b"v")),)
    )
    assert other.do(op.TakeNews(owner="two")) == (
        News(id=theirs.id, fence=theirs.fence, index=1, result=value(b"v")),
    )
    _, changes = desk.store.run(asked)
    assert changes == Changes()


def test_the_ends_and_delays_of_a_transaction_are_told(desk):
    mine = desk.begin()
    _, changes = desk.store.run([make_submission(at=desk.now + 9_000)])
    assert changes == Changes(next_at=desk.now + 9_000)
    desk.commit(mine, pb.OutputEntryMessage(value=b"out"))
    _, changes = desk.store.run([op.Finish(id=mine.id, fence=mine.fence)])
    assert changes == Changes(ended={mine.id: value(b"out")})


def test_a_runtime_whose_beat_stands_still_loses_what_it_drives(desk, other):
    assert [desk.do(op.Beat(owner="one")) for _ in range(2)] == [1, 2]
    other.do(op.Beat(owner="two"))
    mine, theirs = desk.begin(), other.begin()
    desk.commit(mine, pb.AwakeableEntryMessage())
    other.do(op.CompleteAwakeable(awakeable=make_awakeable_id(mine, 1), result=value(b"v")))
    assert other.do(op.Recover(beats=(("one", 1),))) == 0
    assert other.store.read_beats() == {"one": 2, "two": 1}
    assert other.do(op.Recover(beats=(("one", 2), ("three", 0)))) == 1
    assert other.store.read_beats() == {"two": 1}
    assert not other.store.look("one").news
    again = other.claim_one()
    assert (again.id, again.fence) == (mine.id, 2)
    assert again.journal[1].message().value == b"v"
    # It was not dead: it goes on with a new claim, and can be taken for dead again.
    assert desk.finish(mine).fenced
    mine = desk.begin()
    assert desk.store.read_beats()["one"] == 0
    assert other.do(op.Recover(beats=(("one", 0),))) == 1
    assert desk.store.invocation(theirs.id).owner == "two"


def test_two_runtimes_claim_side_by_side_each_once(desk, other, engine):
    count = 60
    submitted = [make_submission() for _ in range(count)]
    desk.store.run(submitted)
    found: dict[str, list[str]] = {"one": [], "two": []}

    def work(desk_):
        while claimed := desk_.claim(5):
            for each in claimed:
                found[desk_.owner].append(each.id)
                desk_.finish(each)

    threads = [threading.Thread(target=work, args=(each,)) for each in (desk, other)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted([*found["one"], *found["two"]]) == sorted(each.id for each in submitted)
    assert desk.store.count_invocations() == {Status.COMPLETED: count}


def test_a_deployment_of_the_same_address_is_replaced(desk):
    assert desk.do(op.Register(deployment=SECOND, services=SERVICES[:1])) == Registered(
        id="second", is_new=True
    )
    again = replace(SECOND, id="third", versions=(1, 2))
    assert desk.do(op.Register(deployment=again, services=SERVICES[1:2])) == Registered(
        id="second", is_new=False
    )
    shown = {each.id: each for each in desk.store.deployments()}
    assert shown.keys() == {"first", "second"}
    assert shown["second"] == replace(again, id="second", registered=desk.now)
    services = desk.store.services()
    assert {name: each.deployment for name, each in services.items()} == {
        "Cart": "second",
        "Signup": "first",
    }
    assert services["Cart"] == replace(SERVICES[1], deployment="second")


def test_a_deployment_that_moves_takes_its_begun_invocations_along(desk):
    mine = desk.begin()
    desk.do(op.Register(deployment=SECOND, services=SERVICES[1:2]))
    theirs = desk.begin("Cart/k/add")
    assert theirs.deployment.id == "second"
    moved = replace(FIRST, url=SECOND.url)
    done = Registered(id="first", is_new=False)
    assert desk.do(op.Register(deployment=moved, services=SERVICES)) == done
    assert [each.url for each in desk.store.deployments()] == [SECOND.url]
    for each in (mine, theirs):
        desk.fail(each)
    assert {each.deployment.id for each in desk.claim()} == {"first"}


def test_a_service_keeps_its_kind_unless_forced(desk):
    changed = (replace(SERVICES[0], kind=ServiceKind.OBJECT),)
    refused = desk.do(op.Register(deployment=SECOND, services=changed))
    assert refused.code == 409
    assert "'Plain' is a SERVICE" in refused.message
    assert len(desk.store.deployments()) == 1
    assert desk.do(op.Register(deployment=SECOND, services=changed, force=True)).is_new
    assert desk.store.services()["Plain"].kind is ServiceKind.OBJECT


def test_a_deployment_that_is_needed_is_not_forgotten_unless_forced(desk):
    mine, waiting = desk.begin(), desk.submit().id
    refused = desk.do(op.Unregister(id="first"))
    assert refused.code == 409
    assert mine.id in refused.message
    assert desk.do(op.Unregister(id="first", force=True)) == ChangeOutcome()
    assert {desk.result(each).message for each in (mine.id, waiting)} == {"killed"}
    assert desk.store.deployments() == []
    assert desk.store.services() == {}
    assert desk.do(op.Unregister(id="first")) == ChangeOutcome(changed=False)
    assert desk.submit().code == 404


def test_what_nobody_serves_any_more_waits_without_holding_others_up(desk):
    lost = desk.submit("Cart/k/look").id
    desk.do(op.Register(deployment=FIRST, services=SERVICES[:1]))
    assert not desk.store.look("one").ready
    kept = desk.submit().id
    assert desk.store.look("one").ready
    assert [claim.id for claim in desk.claim(1)] == [kept]
    desk.do(op.Register(deployment=FIRST, services=SERVICES))
    assert [claim.id for claim in desk.claim()] == [lost]


def test_invocations_are_listed_newest_first_by_what_is_asked(desk):
    first = desk.begin()
    desk.commit(first, CALL)
    second = desk.submit("Cart/k/add", idempotency_key="a", headers=(("a", "b"),)).id
    third = desk.submit("Cart/k/look").id
    listed = desk.store.invocations()
    child = desk.find_child(first, 1)
    assert [each.id for each in listed] == [third, second, child, first.id]

    def ids_of(**chosen):
        return [invocation.id for invocation in desk.store.invocations(InvocationFilter(**chosen))]

    assert ids_of(limit=1) == [third]
    assert ids_of(before=listed[0].number, limit=1) == [second]
    assert ids_of(service="Cart", key="k") == [third, second]
    assert ids_of(handler="look") == [third]
    assert ids_of(idempotency_key="a") == [second]
    assert ids_of(parent=first.id) == [child]
    assert ids_of(statuses=[Status.RUNNING]) == [first.id]
    assert ids_of(key="") == [child, first.id]
    assert desk.store.count_invocations() == {Status.READY: 3, Status.RUNNING: 1}
    desk.finish(first, failure=Failure(code=409, message=""))
    begun = desk.begin()
    desk.finish(begun, b"")
    assert ids_of(statuses=[Status.COMPLETED]) == [begun.id, first.id]
    assert ids_of(failed=True) == [first.id]
    shown = desk.store.invocation(second)
    assert shown.headers == (("a", "b"),)
    assert (shown.entries, shown.created, shown.ended) == (1, desk.now, None)
    assert desk.store.invocation("inv_1") is None


def test_a_look_says_what_there_is_to_do(desk):
    assert not desk.store.look("one").ready
    mine = desk.submit().id
    assert desk.store.look("one").ready
    desk.submit(at=desk.now + 7_000)
    claimed = desk.claim_one()
    assert desk.store.look("one").next_at == desk.now + 7_000
    assert desk.store.look("one", [mine, "inv_1"]).ended == {}
    desk.finish(claimed)
    assert desk.store.look("one", [mine, "inv_1"]).ended == {mine: value(b"done")}


def test_thousands_of_suspended_invocations_are_only_rows(engine, watch):
    desk = Desk(engine, watch)
    count = 2_000 if engine.dialect.name == "sqlite" else 200
    desk.store.run([make_submission() for _ in range(count)])
    until = desk.now + 60_000
    sleep = pb.SleepEntryMessage(wake_up_time=until)
    sleep_frame = desk.frame(sleep)
    claimed = desk.claim(count)
    commits = [op.CommitEntry(id=e.id, fence=e.fence, index=1, frame=sleep_frame) for e in claimed]
    suspends = [op.Suspend(id=e.id, fence=e.fence, indexes=(1,)) for e in claimed]
    outcomes, changes = desk.store.run([*commits, *suspends])
    assert outcomes[count:] == [ChangeOutcome()] * count
    assert changes.next_at == until
    assert desk.store.count_invocations() == {Status.SUSPENDED: count}
    look = desk.store.look("one")
    assert (look.ready, look.news, look.next_at) == (False, False, until)
    watch.now += timedelta(seconds=60)
    while desk.fire(most=5_000).count:
        pass
    assert desk.store.count_invocations() == {Status.READY: count}


@pytest.mark.parametrize("bad", ["\0", "a\0b"])
def test_a_text_that_postgresql_does_not_keep_is_refused(desk, bad):
    assert desk.submit(f"Cart/{bad}/add").code == 400
    assert desk.submit(idempotency_key=bad).code == 400
    mine = desk.begin()
    assert desk.commit(mine, pb.RunEntryMessage(value=b"\0", name=bad)).index == 1
    assert desk.store.read_journal(mine.id)[1].name == bad.replace("\0", "\\0")


def test_texts_that_an_index_does_not_take_are_refused(desk):
    """PostgreSQL's indexes take 2,700 bytes, compressed; random ones are not."""
    long = random.Random(1).randbytes(1_001).hex()
    assert desk.submit(f"Cart/{long[:1_001]}/add").code == 400
    mine = desk.begin(f"Signup/{long[:1_000]}/run")
    for message, code in (
        (pb.SetStateEntryMessage(key=bytes.fromhex(long)), True),
        (pb.SetStateEntryMessage(key=bytes.fromhex(long)[1:]), False),
        (pb.GetPromiseEntryMessage(key=long[:1_001]), True),
        (pb.GetPromiseEntryMessage(key=long[:1_000]), False),
    ):
        assert (getattr(desk.commit(mine, message), "code", None) == 571) == code
    keyed = desk.submit(idempotency_key=long * 5)
    assert desk.submit(idempotency_key=long * 5).id == keyed.id
