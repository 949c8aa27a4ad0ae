"""Runtimes that share a store, and lists of its contents, on SQLite and PostgreSQL."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.services import Mode, ServiceKind
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.deployments import Deployment
from durable_invocations.runtime.store.outcomes import ChangeOutcome, Changes, News, Registered
from durable_invocations.runtime.store.views import InvocationFilter, Status
from runtime_support.errors import assert_names
from runtime_support.runtimes.manual_runtime import (
    AWAKEABLE,
    CALL,
    FIRST,
    KILLED,
    SERVICES,
    Desk,
    make_awakeable_id,
    make_submission,
    value,
)

SECOND = Deployment(
    id="second", url="http://127.0.0.1:9081", mode=Mode.FULL_DUPLEX, http=2, versions=(3, 3)
)


def complete(claim):
    return op.CompleteAwakeable(awakeable=make_awakeable_id(claim, 1), result=value(b"v"))


def test_a_completion_reaches_the_runtime_that_drives_the_invocation(desk, other):
    mine, theirs = desk.begin(), other.begin()
    desk.commit(mine, AWAKEABLE)
    other.commit(theirs, AWAKEABLE)
    _, changes = desk.store.run([complete(mine), complete(theirs)])
    news = [
        News(id=claim.id, fence=claim.fence, index=1, result=value(b"v"))
        for claim in (mine, theirs)
    ]
    assert changes == Changes(news=(news[0],))
    assert other.do(op.TakeNews(owner="two")) == (news[1],)
    _, changes = desk.store.run([complete(mine), complete(theirs)])
    assert changes == Changes()


def test_a_transaction_returns_the_ends_and_delays_of_its_operations(desk):
    mine = desk.begin()
    _, changes = desk.store.run([make_submission(at=desk.now + 9_000)])
    assert changes == Changes(next_at=desk.now + 9_000)
    desk.commit(mine, pb.OutputEntryMessage(value=b"out"))
    _, changes = desk.store.run([op.Finish(id=mine.id, fence=mine.fence)])
    assert changes == Changes(ended={mine.id: value(b"out")})


def test_a_runtime_without_beats_loses_its_invocations(desk, other):
    assert [desk.do(op.Beat(owner="one")) for _ in range(2)] == [1, 2]
    other.do(op.Beat(owner="two"))
    mine, theirs = desk.begin(), other.begin()
    desk.commit(mine, AWAKEABLE)
    other.do(complete(mine))
    assert other.do(op.Recover(beats=(("one", 1),))) == 0
    assert other.store.read_beats() == {"one": 2, "two": 1}
    assert other.do(op.Recover(beats=(("one", 2), ("three", 0)))) == 1
    assert other.store.read_beats() == {"two": 1}
    assert not other.store.look("one").news
    again = other.claim_one()
    assert (again.id, again.fence) == (mine.id, 2)
    assert again.journal[1].message().value == b"v"
    # It was not dead: it continues with a new claim, and can be taken for dead again.
    assert desk.finish(mine).fenced
    mine = desk.begin()
    assert desk.store.read_beats()["one"] == 0
    assert other.do(op.Recover(beats=(("one", 0),))) == 1
    assert desk.store.invocation(theirs.id).owner == "two"


def test_two_runtimes_claim_each_invocation_once(desk, other):
    count = 60
    submissions = [make_submission() for _ in range(count)]
    desk.store.run(submissions)

    def work(desk):
        ids = []
        while claims := desk.claim(5):
            ids += [claim.id for claim in claims]
            for claim in claims:
                desk.finish(claim)
        return ids

    with ThreadPoolExecutor() as pool:
        one, two = pool.map(work, (desk, other))
    assert sorted([*one, *two]) == sorted(submission.id for submission in submissions)
    assert desk.store.count_invocations() == {Status.COMPLETED: count}


def test_a_deployment_of_the_same_address_is_replaced(desk):
    outcome = desk.do(op.Register(deployment=SECOND, services=SERVICES[:1]))
    assert outcome == Registered(id="second", is_new=True)
    third = replace(SECOND, id="third", versions=(1, 2))
    outcome = desk.do(op.Register(deployment=third, services=SERVICES[1:2]))
    assert outcome == Registered(id="second", is_new=False)
    deployments = {deployment.id: deployment for deployment in desk.store.deployments()}
    assert deployments.keys() == {"first", "second"}
    assert deployments["second"] == replace(third, id="second", registered=desk.now)
    services = desk.store.services()
    assert services.keys() == {"Cart", "Signup"}
    assert services["Cart"] == replace(SERVICES[1], deployment="second")
    assert services["Signup"].deployment == "first"


def test_a_deployment_that_moves_keeps_its_invocations(desk):
    mine = desk.begin()
    desk.do(op.Register(deployment=SECOND, services=SERVICES[1:2]))
    theirs = desk.begin("Cart/k/add")
    assert theirs.deployment.id == "second"
    moved = replace(FIRST, url=SECOND.url)
    outcome = desk.do(op.Register(deployment=moved, services=SERVICES))
    assert outcome == Registered(id="first", is_new=False)
    assert [deployment.url for deployment in desk.store.deployments()] == [SECOND.url]
    for claim in (mine, theirs):
        desk.fail(claim)
    assert {claim.deployment.id for claim in desk.claim()} == {"first"}


def test_a_service_keeps_its_kind_unless_forced(desk):
    changed = (replace(SERVICES[0], kind=ServiceKind.OBJECT),)
    refusal = desk.do(op.Register(deployment=SECOND, services=changed))
    assert refusal.code == 409
    assert_names(refusal.message, "'Plain'", "SERVICE", "'first'", "VIRTUAL_OBJECT")
    assert len(desk.store.deployments()) == 1
    assert desk.do(op.Register(deployment=SECOND, services=changed, force=True)).is_new
    assert desk.store.services()["Plain"].kind is ServiceKind.OBJECT


def test_a_deployment_that_is_needed_is_not_forgotten_unless_forced(desk):
    mine, waiting = desk.begin(), desk.submit().id
    refusal = desk.do(op.Unregister(id="first"))
    assert refusal.code == 409
    assert_names(refusal.message, "'first'", 2, mine.id)
    assert desk.do(op.Unregister(id="first", force=True)) == ChangeOutcome()
    assert [desk.result(id_) for id_ in (mine.id, waiting)] == [KILLED, KILLED]
    assert desk.store.deployments() == []
    assert desk.store.services() == {}
    assert desk.do(op.Unregister(id="first")) == ChangeOutcome(changed=False)
    assert desk.submit().code == 404


def test_an_invocation_whose_service_is_gone_waits_without_holding_others_up(desk):
    lost = desk.submit("Cart/k/look").id
    desk.do(op.Register(deployment=FIRST, services=SERVICES[:1]))
    assert not desk.store.look("one").ready
    kept = desk.submit().id
    assert desk.store.look("one").ready
    assert [claim.id for claim in desk.claim(1)] == [kept]
    desk.do(op.Register(deployment=FIRST, services=SERVICES))
    assert [claim.id for claim in desk.claim()] == [lost]


def test_invocations_are_listed_newest_first_by_filters(desk):
    first = desk.begin()
    desk.commit(first, CALL)
    second = desk.submit("Cart/k/add", idempotency_key="a", headers=(("a", "b"),)).id
    third = desk.submit("Cart/k/look").id
    listed = desk.store.invocations()
    child = desk.find_child(first, 1)
    assert [invocation.id for invocation in listed] == [third, second, child, first.id]

    def list_ids(**fields):
        return [invocation.id for invocation in desk.store.invocations(InvocationFilter(**fields))]

    assert list_ids(limit=1) == [third]
    assert list_ids(before=listed[0].number, limit=1) == [second]
    assert list_ids(service="Cart", key="k") == [third, second]
    assert list_ids(handler="look") == [third]
    assert list_ids(idempotency_key="a") == [second]
    assert list_ids(parent=first.id) == [child]
    assert list_ids(statuses=[Status.RUNNING]) == [first.id]
    assert list_ids(key="") == [child, first.id]
    assert desk.store.count_invocations() == {Status.READY: 3, Status.RUNNING: 1}
    desk.finish(first, failure=Failure(code=409, message=""))
    last = desk.begin()
    desk.finish(last, b"")
    assert list_ids(statuses=[Status.COMPLETED]) == [last.id, first.id]
    assert list_ids(failed=True) == [first.id]
    invocation = desk.store.invocation(second)
    assert invocation.headers == (("a", "b"),)
    assert (invocation.entries, invocation.created, invocation.ended) == (1, desk.now, None)
    assert desk.store.invocation("inv_1") is None


def test_a_look_finds_ready_delayed_and_ended_invocations(desk):
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
    sleep = make_frame(pb.SleepEntryMessage(wake_up_time=until))
    claims = desk.claim(count)
    commits = [op.CommitEntry(id=c.id, fence=c.fence, index=1, frame=sleep) for c in claims]
    suspends = [op.Suspend(id=c.id, fence=c.fence, indexes=(1,)) for c in claims]
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


@pytest.mark.parametrize("text", ["\0", "a\0b"])
def test_a_text_that_postgresql_cannot_store_is_refused(desk, text):
    assert desk.submit(f"Cart/{text}/add").code == 400
    assert desk.submit(idempotency_key=text).code == 400
    mine = desk.begin()
    assert desk.commit(mine, pb.RunEntryMessage(value=b"\0", name=text)).index == 1
    assert desk.store.read_journal(mine.id)[1].name == text.replace("\0", "\\0")


def test_texts_that_an_index_does_not_take_are_refused(desk):
    """PostgreSQL's indexes take 2,700 bytes, compressed; random ones are not."""
    long = random.Random(1).randbytes(1_001).hex()
    assert desk.submit(f"Cart/{long[:1_001]}/add").code == 400
    mine = desk.begin(f"Signup/{long[:1_000]}/run")
    for message, code in (
        (pb.SetStateEntryMessage(key=bytes.fromhex(long)), 571),
        (pb.SetStateEntryMessage(key=bytes.fromhex(long)[1:]), None),
        (pb.GetPromiseEntryMessage(key=long[:1_001]), 571),
        (pb.GetPromiseEntryMessage(key=long[:1_000]), None),
    ):
        assert getattr(desk.commit(mine, message), "code", None) == code
    submitted = desk.submit(idempotency_key=long * 5)
    assert desk.submit(idempotency_key=long * 5).id == submitted.id
