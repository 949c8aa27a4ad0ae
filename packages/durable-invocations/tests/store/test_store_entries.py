"""Each entry does what it says when it is committed, over SQLite and PostgreSQL."""

import pytest
import sqlalchemy as sa

from durable_invocations.protocol import awakeables, ids
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.frames import Frame, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import EMPTY, parse_state_keys
from durable_invocations.runtime.sql.lifecycle import completing
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.outcomes import (
    ChangeOutcome,
    CommittedEntry,
    OperationRefusal,
)
from runtime_support.runtimes.manual_runtime import CANCELED, make_awakeable_id, value

NOBODY = ids.format_id(bytes(16))


def call(path, *, of=pb.CallEntryMessage, **more):
    service, *key, handler = path.split("/")
    return of(service_name=service, handler_name=handler, key="".join(key), **more)


def test_a_run_is_stored_as_it_is_and_replayed(desk):
    mine = desk.begin(argument=b"in", headers=(("trace", "1"),))
    sent = pb.RunEntryMessage(value=b"ran", name="charge")
    assert desk.commit(mine, sent, requires_ack=True) == CommittedEntry(index=1)
    assert desk.commit(mine, pb.RunEntryMessage(failure=pb.Failure(code=400))) == CommittedEntry(
        index=2
    )
    desk.fail(mine)
    (again,) = desk.claim()
    input_, first, second = again.journal
    assert input_.message().value == b"in"
    assert [(each.key, each.value) for each in input_.message().headers] == [("trace", "1")]
    assert first == make_frame(sent)
    assert second.message().failure.code == 400
    assert [each.name for each in desk.store.read_journal(mine.id)] == ["", "charge", ""]


def test_an_entry_is_committed_once_and_only_as_the_next(desk):
    mine = desk.begin()
    assert desk.commit(mine, call("Plain/go", of=pb.OneWayCallEntryMessage)) == CommittedEntry(
        index=1
    )
    again = desk.commit(mine, call("Plain/go", of=pb.OneWayCallEntryMessage), index=1)
    assert again == CommittedEntry(index=1)
    other = desk.commit(mine, pb.RunEntryMessage(value=b"x"), index=1)
    assert (other.code, other.fenced) == (571, False)
    assert desk.commit(mine, pb.RunEntryMessage(value=b"x"), index=3).code == 571
    assert len(desk.store.read_journal(mine.id)) == 2
    assert len(desk.store.invocations()) == 2


def test_an_entry_that_came_completed_does_nothing(desk):
    mine = desk.begin("Cart/k/add")
    sleep = pb.SleepEntryMessage(wake_up_time=desk.now + 1_000)
    sleep.empty.SetInParent()
    call_ = call("Plain/go", value=b"known")
    assert desk.commit(mine, sleep) == CommittedEntry(index=1)
    assert desk.commit(mine, call_) == CommittedEntry(index=2)
    assert desk.store.look("one").next_at is None
    assert len(desk.store.invocations()) == 1
    desk.fail(mine)
    (again,) = desk.claim()
    assert again.journal[2] == make_frame(call_)


def test_custom_entries_are_kept_with_their_bits(desk):
    mine = desk.begin()
    sent = Frame.of(0xFC07, 0x8123, b"\x62\x03own")
    asked = op.CommitEntry(id=mine.id, fence=mine.fence, index=1, frame=sent)
    assert desk.do(asked) == CommittedEntry(index=1)
    assert desk.do(asked) == CommittedEntry(index=1)
    bad = Frame.of(0xFC07, 0, b"\x6a\x00")
    assert desk.do(op.CommitEntry(id=mine.id, fence=mine.fence, index=2, frame=bad)).code == 571
    desk.fail(mine)
    (again,) = desk.claim()
    assert again.journal[1] == Frame.of(0xFC07, 0x0123, b"\x62\x03own")
    assert desk.store.read_journal(mine.id)[1].name == "own"


@pytest.mark.parametrize(
    "message", [pb.InputEntryMessage(value=b"x"), pb.EndMessage(), pb.StartMessage()]
)
def test_what_no_handler_makes_is_refused(desk, message):
    assert desk.commit(desk.begin(), message).code == 571


def test_state_is_of_a_key_and_complete_at_once(desk):
    mine = desk.begin("Cart/k/add")
    get = pb.GetStateEntryMessage(key=b"n\0")
    assert desk.commit(mine, get).result == EMPTY
    desk.commit(mine, pb.SetStateEntryMessage(key=b"n\0", value=b"1"))
    desk.commit(mine, pb.SetStateEntryMessage(key=b"n\0", value=b""))
    desk.commit(mine, pb.SetStateEntryMessage(key=b"a", value=b"2"))
    assert desk.commit(mine, get).result == value(b"")
    assert parse_state_keys(desk.commit(mine, pb.GetStateKeysEntryMessage()).result.value) == [
        b"a",
        b"n\0",
    ]
    other = desk.begin("Cart/l/look")
    assert desk.commit(other, get).result == EMPTY
    desk.commit(other, pb.SetStateEntryMessage(key=b"n\0", value=b"kept"))
    desk.commit(mine, pb.ClearStateEntryMessage(key=b"n\0"))
    assert [desk.store.state("Cart", key) for key in "kl"] == [{b"a": b"2"}, {b"n\0": b"kept"}]
    keys = desk.commit(other, pb.GetStateKeysEntryMessage()).result.value
    assert parse_state_keys(keys) == [b"n\0"]
    desk.commit(mine, pb.SetStateEntryMessage(key=b"b", value=b"3"))
    desk.commit(mine, pb.ClearAllStateEntryMessage())
    assert desk.commit(mine, get).result == EMPTY
    assert [desk.store.state("Cart", key) for key in "kl"] == [{}, {b"n\0": b"kept"}]
    desk.fail(mine)
    (again,) = desk.claim()
    assert again.journal[5] == make_frame(pb.GetStateEntryMessage(key=b"n\0", value=b""))


def test_state_without_a_key_is_refused(desk):
    mine = desk.begin()
    for message in (pb.GetStateEntryMessage(key=b"n"), pb.SetStateEntryMessage(key=b"n")):
        assert desk.commit(mine, message).code == 571


def test_a_claim_brings_the_state_or_a_part_of_it(desk):
    mine = desk.begin("Cart/k/add")
    assert (mine.state, mine.partial_state) == ((), False)
    for name in (b"a", b"b", b"c"):
        desk.commit(mine, pb.SetStateEntryMessage(key=name, value=b"x" * 9))
    desk.fail(mine)
    whole = ((b"a", b"x" * 9), (b"b", b"x" * 9), (b"c", b"x" * 9))
    for bound, known in ((30, 3), (29, 2), (10, 1), (9, 0)):
        (again,) = desk.claim(eager_bytes=bound)
        assert (again.state, again.partial_state) == (whole[:known], known < 3)
        desk.fail(again)


def test_a_sleep_ends_at_its_time(desk):
    mine = desk.begin()
    until = desk.now + 60_000
    assert desk.commit(mine, pb.SleepEntryMessage(wake_up_time=until)) == CommittedEntry(index=1)
    assert desk.commit(mine, pb.SleepEntryMessage(wake_up_time=desk.now)).result == EMPTY
    assert desk.commit(mine, pb.SleepEntryMessage(wake_up_time=2**64 - 1)).result is None
    assert desk.suspend(mine, 1) == ChangeOutcome()
    assert desk.status(mine.id) == "suspended"
    assert desk.store.invocation(mine.id).waits == (1,)
    fired = desk.fire(59)
    assert (fired.count, fired.next_at) == (0, until)
    assert desk.claim() == ()
    assert desk.fire(1).count == 1
    assert desk.fire().count == 0
    (again,) = desk.claim()
    assert [each.completed for each in again.journal] == [False, True, True, False]


def test_a_call_is_completed_by_the_end_of_what_it_calls(desk):
    mine = desk.begin()
    asked = call("Cart/k/add", parameter=b"2")
    asked.headers.add(key="a", value="b")
    assert desk.commit(mine, asked) == CommittedEntry(index=1)
    (child,) = desk.claim()
    assert (child.service, child.handler, child.key) == ("Cart", "add", "k")
    assert child.journal[0].message().value == b"2"
    assert child.journal[0].message().headers[0].value == "b"
    assert desk.store.invocation(child.id).parent == mine.id
    assert desk.store.read_journal(mine.id)[1].child == child.id
    desk.suspend(mine, 1)
    desk.finish(child, b"sum")
    (again,) = desk.claim()
    assert again.id == mine.id
    assert again.journal[1].message().value == b"sum"
    assert again.journal[1].completed


def test_a_call_fails_with_what_it_calls(desk):
    mine = desk.begin()
    desk.commit(mine, call("Plain/go"))
    desk.suspend(mine, 1)
    (child,) = desk.claim()
    desk.finish(child, failure=Failure(code=422, message="no"))
    (again,) = desk.claim()
    assert Failure.read(again.journal[1].message().failure) == Failure(code=422, message="no")


@pytest.mark.parametrize(
    ("asked", "code", "culprit"),
    [
        (call("Nobody/go"), 404, "'Nobody'"),
        (call("Plain/gone"), 404, "'gone'"),
        (call("Cart/add"), 400, "needs a key"),
        (call("Plain/key/go"), 400, "has no keys"),
        (call("Cart/a\0/add"), 400, "NUL"),
        (call("Plain/go", idempotency_key=""), 400, "idempotency key is empty"),
    ],
)
@pytest.mark.parametrize("of", [pb.CallEntryMessage, pb.OneWayCallEntryMessage])
def test_calls_that_cannot_be_are_refused_and_what_follows_too(desk, asked, code, culprit, of):
    mine = desk.begin()
    wrong = of.FromString(asked.SerializeToString()) if of is pb.CallEntryMessage else None
    message = wrong or call(
        "/".join(filter(None, (asked.service_name, asked.key, asked.handler_name))),
        of=of,
        idempotency_key=asked.idempotency_key if asked.HasField("idempotency_key") else None,
    )
    refused = desk.commit(mine, message)
    assert isinstance(refused, OperationRefusal)
    assert refused.code == code
    assert culprit in refused.message
    assert desk.commit(mine, pb.RunEntryMessage(value=b"x"), index=2).code == 571
    assert len(desk.store.read_journal(mine.id)) == 1
    assert len(desk.store.invocations()) == 1


def test_a_one_way_call_begins_now_or_at_its_time(desk):
    mine = desk.begin()
    at = desk.now + 5_000
    for when in (0, desk.now - 1, at):
        asked = call("Plain/go", of=pb.OneWayCallEntryMessage, invoke_time=when)
        assert desk.commit(mine, asked).result is None
    assert len(desk.claim()) == 2
    later = desk.store.read_journal(mine.id)[3].child
    assert (desk.status(later), desk.store.invocation(later).next_at) == ("scheduled", at)
    assert desk.fire(5).count == 1
    assert [each.id for each in desk.claim()] == [later]


def test_a_call_under_a_used_idempotency_key_waits_for_the_first(desk):
    mine = desk.begin()
    first = desk.submit("Plain/go", idempotency_key="a").id
    desk.commit(mine, call("Plain/go", idempotency_key="a"))
    desk.suspend(mine, 1)
    (child,) = desk.claim()
    assert child.id == first
    desk.finish(child, b"once")
    (again,) = desk.claim()
    assert again.journal[1].message().value == b"once"
    assert desk.commit(again, call("Plain/go", idempotency_key="a")).result == value(b"once")


def test_an_awakeable_is_completed_by_its_id_once(desk):
    mine = desk.begin()
    desk.commit(mine, pb.AwakeableEntryMessage())
    desk.commit(mine, pb.AwakeableEntryMessage())
    desk.suspend(mine, 1, 2)
    theirs = desk.begin()
    id_ = make_awakeable_id(mine, 2)
    assert desk.commit(
        theirs, pb.CompleteAwakeableEntryMessage(id=id_, value=b"v")
    ) == CommittedEntry(index=1)
    again = op.CompleteAwakeable(awakeable=id_, result=Failure(code=500, message="late"))
    assert desk.do(again) == ChangeOutcome(changed=False)
    (woken,) = desk.claim()
    assert [each.completed for each in woken.journal] == [False, False, True]
    assert woken.journal[2].message().value == b"v"


def test_what_a_suspended_invocation_does_not_wait_for_leaves_it_suspended(desk):
    mine = desk.begin()
    for _ in range(3):
        desk.commit(mine, pb.AwakeableEntryMessage())
    desk.suspend(mine, 1, 2)
    for index, status in ((3, "suspended"), (1, "ready")):
        asked = op.CompleteAwakeable(awakeable=make_awakeable_id(mine, index), result=value(b"v"))
        assert desk.do(asked) == ChangeOutcome()
        assert desk.status(mine.id) == status
    (woken,) = desk.claim()
    assert [each.completed for each in woken.journal] == [False, True, False, True]


def test_an_awakeable_may_be_completed_before_its_entry_is_stored(desk):
    mine = desk.begin()
    early = op.CompleteAwakeable(awakeable=make_awakeable_id(mine, 2), result=value(b"quick"))
    assert desk.do(early) == ChangeOutcome()
    assert desk.do(early) == ChangeOutcome(changed=False)
    assert desk.commit(mine, pb.AwakeableEntryMessage()).result is None
    assert desk.commit(mine, pb.AwakeableEntryMessage()).result == value(b"quick")


def test_an_unknown_awakeable_is_refused(desk):
    mine, gone = desk.begin(), desk.begin()
    desk.commit(mine, pb.RunEntryMessage(value=b"x"))
    desk.finish(gone)
    ids_ = ["prom_1", "x", awakeables.make_awakeable_id(bytes(16), 1), make_awakeable_id(mine, 1)]
    ids_ += [make_awakeable_id(mine, 2_000), make_awakeable_id(gone, 7)]
    for each in ids_:
        asked = pb.CompleteAwakeableEntryMessage(id=each, value=b"")
        assert desk.commit(mine, asked).code == 404
    asked = pb.CompleteAwakeableEntryMessage(id=make_awakeable_id(mine, 1))
    assert desk.commit(mine, asked).code == 571


def test_promises_are_of_a_workflows_key(desk):
    run, poke = desk.begin("Signup/me/run"), desk.begin("Signup/me/poke")
    assert desk.commit(run, pb.PeekPromiseEntryMessage(key="mail")).result == EMPTY
    assert desk.commit(run, pb.GetPromiseEntryMessage(key="mail")).result is None
    desk.suspend(run, 2)
    asked = pb.CompletePromiseEntryMessage(key="mail", completion_value=b"ok")
    assert desk.commit(poke, asked).result == EMPTY
    assert desk.commit(poke, asked).result.code == 409
    (again,) = desk.claim()
    assert again.journal[2].message().value == b"ok"
    assert desk.commit(again, pb.GetPromiseEntryMessage(key="mail")).result == value(b"ok")
    assert desk.commit(again, pb.PeekPromiseEntryMessage(key="mail")).result == value(b"ok")
    other = desk.begin("Signup/you/run")
    assert desk.commit(other, pb.PeekPromiseEntryMessage(key="mail")).result == EMPTY
    no = pb.CompletePromiseEntryMessage(key="mail", completion_failure=pb.Failure(code=410))
    assert desk.commit(other, no).result == EMPTY
    assert desk.commit(other, pb.GetPromiseEntryMessage(key="mail")).result.code == 410


def test_promises_elsewhere_are_refused(desk):
    for path in ("Plain/go", "Cart/k/add"):
        assert desk.commit(desk.begin(path), pb.GetPromiseEntryMessage(key="mail")).code == 571
    run = desk.begin("Signup/me/run")
    assert desk.commit(run, pb.CompletePromiseEntryMessage(key="mail")).code == 571


def test_the_id_of_a_call_is_told(desk):
    mine = desk.begin()
    desk.commit(mine, call("Plain/go"))
    desk.commit(mine, call("Plain/go", of=pb.OneWayCallEntryMessage))
    children = [each.child for each in desk.store.read_journal(mine.id)[1:]]
    for index in (1, 2):
        asked = pb.GetCallInvocationIdEntryMessage(call_entry_index=index)
        assert desk.commit(mine, asked).result == value(children[index - 1].encode())
    for index in (0, 4, 2**32 - 1):
        refused = desk.commit(mine, pb.GetCallInvocationIdEntryMessage(call_entry_index=index))
        assert (refused.code, f"entry {index} is not a call" in refused.message) == (571, True)


def test_invocations_are_attached_to_and_looked_at_by_every_target(desk):
    plain = desk.submit("Plain/go", idempotency_key="a").id
    keyed = desk.submit("Cart/k/look", idempotency_key="b").id
    run = desk.submit("Signup/me/run").id
    claimed = {each.id: each for each in desk.claim()}
    mine = desk.begin()
    desk.commit(mine, call("Plain/go"))
    (child,) = desk.claim()
    same = pb.IdempotentRequestTarget
    targets = [
        ({"invocation_id": plain}, claimed[plain]),
        ({"call_entry_index": 1}, child),
        (
            {
                "idempotent_request_target": same(
                    service_name="Plain", handler_name="go", idempotency_key="a"
                )
            },
            claimed[plain],
        ),
        (
            {
                "idempotent_request_target": same(
                    service_name="Cart", service_key="k", handler_name="look", idempotency_key="b"
                )
            },
            claimed[keyed],
        ),
        (
            {"workflow_target": pb.WorkflowTarget(workflow_name="Signup", workflow_key="me")},
            claimed[run],
        ),
    ]
    for target, _ in targets:
        assert desk.commit(mine, pb.AttachInvocationEntryMessage(**target)).result is None
        assert desk.commit(mine, pb.GetInvocationOutputEntryMessage(**target)).result == EMPTY
    desk.suspend(mine, *range(2, 12, 2))
    for each in (child, *claimed.values()):
        desk.finish(each, each.id.encode())
    (again,) = desk.claim()
    assert [again.journal[index].message().value for index in range(2, 12, 2)] == [
        each.id.encode() for _, each in targets
    ]
    for target, each in targets:
        for of in (pb.AttachInvocationEntryMessage, pb.GetInvocationOutputEntryMessage):
            assert desk.commit(again, of(**target)).result == value(each.id.encode())


def test_targets_that_are_not_there(desk):
    mine = desk.begin()
    nowhere = pb.WorkflowTarget(workflow_name="Signup", workflow_key="who")
    once = pb.IdempotentRequestTarget(
        service_name="Object", service_key="k", handler_name="go", idempotency_key="once"
    )
    targets = {
        NOBODY: {"invocation_id": NOBODY},
        "Signup/who": {"workflow_target": nowhere},
        "Object/k/go/once": {"idempotent_request_target": once},
    }
    for of in (pb.AttachInvocationEntryMessage, pb.GetInvocationOutputEntryMessage):
        for named, target in targets.items():
            failure = desk.commit(mine, of(**target)).result
            assert (failure.code, f"no invocation {named}, or" in failure.message) == (404, True)
        for target in ({"invocation_id": "inv_2"}, {"call_entry_index": 0}, {}):
            assert desk.commit(mine, of(**target)).code == 571


def test_an_invocation_is_canceled_by_id_or_call(desk):
    mine = desk.begin()
    begun = desk.begin()
    desk.commit(begun, pb.AwakeableEntryMessage())
    desk.suspend(begun, 1)
    desk.commit(mine, call("Plain/go", of=pb.OneWayCallEntryMessage))
    child = desk.store.read_journal(mine.id)[1].child
    by_id = pb.CancelInvocationEntryMessage(invocation_id=begun.id)
    assert desk.commit(mine, by_id) == CommittedEntry(index=2)
    by_call = pb.CancelInvocationEntryMessage(call_entry_index=1)
    assert desk.commit(mine, by_call) == CommittedEntry(index=3)
    assert desk.result(child) == CANCELED
    (again,) = desk.claim()
    assert again.journal[1].message().failure.code == 409
    unknown = pb.CancelInvocationEntryMessage(invocation_id=NOBODY)
    assert desk.commit(mine, unknown) == CommittedEntry(index=4)
    for target in ({"invocation_id": "x"}, {"call_entry_index": 0}, {}):
        assert desk.commit(mine, pb.CancelInvocationEntryMessage(**target)).code == 571


def test_an_invocation_that_cancels_itself_meets_it_at_the_next_wait(desk):
    mine = desk.begin()
    desk.commit(mine, pb.CancelInvocationEntryMessage(invocation_id=mine.id))
    sleep = pb.SleepEntryMessage(wake_up_time=desk.now + 1_000)
    assert desk.commit(mine, sleep).result == CANCELED
    assert desk.commit(mine, sleep).result is None


def test_names_with_a_nul_are_refused_or_found_nowhere(desk):
    """PostgreSQL takes them for errors, which would leave the invocation to nobody."""
    mine = desk.begin()
    for path in ("a\0b/go", "Plain/go\0"):
        sent = call(path, of=pb.OneWayCallEntryMessage)
        assert desk.commit(mine, sent).code == 400
    asked = pb.AttachInvocationEntryMessage()
    asked.workflow_target.workflow_name, asked.workflow_target.workflow_key = "Signup\0", "k\0"
    assert desk.commit(mine, asked).result.code == 404
    at = asked.idempotent_request_target
    at.service_name, at.handler_name, at.idempotency_key = "a\0", "b\0", "c\0"
    assert desk.commit(mine, asked).result.code == 404


def test_however_many_wait_for_one_each_is_told_in_statements_of_bounded_size(desk, monkeypatch):
    monkeypatch.setattr(completing, "AT_ONCE", 4)
    target = desk.begin()
    waiting = [desk.begin() for _ in range(20)]
    for each in waiting:
        desk.commit(each, pb.AttachInvocationEntryMessage(invocation_id=target.id))
        desk.suspend(each, 1)
    sizes = []

    def executed(_connection, _cursor, _statement, parameters, _context, many):
        sizes.extend(map(len, parameters if many else [parameters]))

    sa.event.listen(desk.store.engine, "before_cursor_execute", executed)
    desk.finish(target)
    sa.event.remove(desk.store.engine, "before_cursor_execute", executed)
    assert {desk.status(each.id) for each in waiting} == {"ready"}
    assert max(sizes) < len(waiting)
