"""The effects of committed entries, on SQLite and PostgreSQL."""

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
from runtime_support.errors import assert_names
from runtime_support.runtimes.manual_runtime import AWAKEABLE, CANCELED, make_awakeable_id, value

UNKNOWN = ids.format_id(bytes(16))


def call(path, *, kind=pb.CallEntryMessage, **fields):
    service, *key, handler = path.split("/")
    return kind(service_name=service, handler_name=handler, key="".join(key), **fields)


def send(path, **fields):
    return call(path, kind=pb.OneWayCallEntryMessage, **fields)


def complete(claim, index, data=b"v"):
    return op.CompleteAwakeable(awakeable=make_awakeable_id(claim, index), result=value(data))


def test_a_run_is_stored_unchanged_and_replayed(desk):
    mine = desk.begin(argument=b"in", headers=(("trace", "1"),))
    run = pb.RunEntryMessage(value=b"ran", name="charge")
    failed = pb.RunEntryMessage(failure=pb.Failure(code=400))
    assert desk.commit(mine, run, requires_ack=True) == CommittedEntry(index=1)
    assert desk.commit(mine, failed) == CommittedEntry(index=2)
    desk.fail(mine)
    input_, first, second = desk.claim_one().journal
    assert input_.message().value == b"in"
    assert [(header.key, header.value) for header in input_.message().headers] == [("trace", "1")]
    assert first == make_frame(run)
    assert second.message().failure.code == 400
    assert [entry.name for entry in desk.store.read_journal(mine.id)] == ["", "charge", ""]


def test_an_entry_is_committed_once_and_only_as_the_next(desk):
    mine = desk.begin()
    for _ in range(2):
        assert desk.commit(mine, send("Plain/go"), index=1) == CommittedEntry(index=1)
    other = desk.commit(mine, pb.RunEntryMessage(value=b"x"), index=1)
    assert (other.code, other.fenced) == (571, False)
    assert desk.commit(mine, pb.RunEntryMessage(value=b"x"), index=3).code == 571
    assert len(desk.store.read_journal(mine.id)) == 2
    assert len(desk.store.invocations()) == 2


def test_an_entry_with_a_result_has_no_effect(desk):
    mine = desk.begin("Cart/k/add")
    slept = pb.SleepEntryMessage(wake_up_time=desk.now + 1_000, empty=pb.Empty())
    called = call("Plain/go", value=b"known")
    assert desk.commit(mine, slept) == CommittedEntry(index=1)
    assert desk.commit(mine, called) == CommittedEntry(index=2)
    assert desk.store.look("one").next_at is None
    assert len(desk.store.invocations()) == 1
    desk.fail(mine)
    assert desk.claim_one().journal[2] == make_frame(called)


def test_custom_entries_are_kept_with_their_bits(desk):
    mine = desk.begin()

    def commit(index, *frame):
        entry = Frame.of(*frame)
        return desk.do(op.CommitEntry(id=mine.id, fence=mine.fence, index=index, frame=entry))

    for _ in range(2):
        assert commit(1, 0xFC07, 0x8123, b"\x62\x03own") == CommittedEntry(index=1)
    assert commit(2, 0xFC07, 0, b"\x6a\x00").code == 571
    desk.fail(mine)
    assert desk.claim_one().journal[1] == Frame.of(0xFC07, 0x0123, b"\x62\x03own")
    assert desk.store.read_journal(mine.id)[1].name == "own"


@pytest.mark.parametrize(
    "message", [pb.InputEntryMessage(value=b"x"), pb.EndMessage(), pb.StartMessage()]
)
def test_a_message_that_no_handler_sends_is_refused(desk, message):
    assert desk.commit(desk.begin(), message).code == 571


def test_each_key_has_its_state_and_entries_of_state_have_results_at_once(desk):
    mine = desk.begin("Cart/k/add")
    get = pb.GetStateEntryMessage(key=b"n\0")

    def set_state(claim, name, data):
        desk.commit(claim, pb.SetStateEntryMessage(key=name, value=data))

    def get_keys(claim):
        return parse_state_keys(desk.commit(claim, pb.GetStateKeysEntryMessage()).result.value)

    assert desk.commit(mine, get).result == EMPTY
    set_state(mine, b"n\0", b"1")
    set_state(mine, b"n\0", b"")
    set_state(mine, b"a", b"2")
    assert desk.commit(mine, get).result == value(b"")
    assert get_keys(mine) == [b"a", b"n\0"]
    other = desk.begin("Cart/l/look")
    assert desk.commit(other, get).result == EMPTY
    set_state(other, b"n\0", b"kept")
    desk.commit(mine, pb.ClearStateEntryMessage(key=b"n\0"))
    assert [desk.store.state("Cart", key) for key in "kl"] == [{b"a": b"2"}, {b"n\0": b"kept"}]
    assert get_keys(other) == [b"n\0"]
    set_state(mine, b"b", b"3")
    desk.commit(mine, pb.ClearAllStateEntryMessage())
    assert desk.commit(mine, get).result == EMPTY
    assert [desk.store.state("Cart", key) for key in "kl"] == [{}, {b"n\0": b"kept"}]
    desk.fail(mine)
    replayed = pb.GetStateEntryMessage(key=b"n\0", value=b"")
    assert desk.claim_one().journal[5] == make_frame(replayed)


def test_state_without_a_key_is_refused(desk):
    mine = desk.begin()
    for message in (pb.GetStateEntryMessage(key=b"n"), pb.SetStateEntryMessage(key=b"n")):
        assert desk.commit(mine, message).code == 571


def test_a_claim_has_the_state_or_a_part_of_it(desk):
    mine = desk.begin("Cart/k/add")
    assert (mine.state, mine.partial_state) == ((), False)
    for name in (b"a", b"b", b"c"):
        desk.commit(mine, pb.SetStateEntryMessage(key=name, value=b"x" * 9))
    desk.fail(mine)
    state = ((b"a", b"x" * 9), (b"b", b"x" * 9), (b"c", b"x" * 9))
    for bound, known in ((30, 3), (29, 2), (10, 1), (9, 0)):
        (again,) = desk.claim(eager_bytes=bound)
        assert (again.state, again.partial_state) == (state[:known], known < 3)
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
    again = desk.claim_one()
    assert [entry.completed for entry in again.journal] == [False, True, True, False]


def test_a_call_is_completed_by_the_end_of_its_invocation(desk):
    mine = desk.begin()
    message = call("Cart/k/add", parameter=b"2", headers=[pb.Header(key="a", value="b")])
    assert desk.commit(mine, message) == CommittedEntry(index=1)
    child = desk.claim_one()
    assert (child.service, child.handler, child.key) == ("Cart", "add", "k")
    assert child.journal[0].message().value == b"2"
    assert child.journal[0].message().headers[0].value == "b"
    assert desk.store.invocation(child.id).parent == mine.id
    assert desk.find_child(mine, 1) == child.id
    desk.suspend(mine, 1)
    desk.finish(child, b"sum")
    again = desk.claim_one()
    assert again.id == mine.id
    assert again.journal[1].message().value == b"sum"
    assert again.journal[1].completed


def test_a_call_fails_with_its_invocation(desk):
    mine = desk.begin()
    desk.commit(mine, call("Plain/go"))
    desk.suspend(mine, 1)
    failure = Failure(code=422, message="no")
    desk.finish(desk.claim_one(), failure=failure)
    assert Failure.read(desk.claim_one().journal[1].message().failure) == failure


@pytest.mark.parametrize(
    ("path", "fields", "code", "values"),
    [
        ("Nobody/go", {}, 404, ["'Nobody'"]),
        ("Plain/gone", {}, 404, ["'Plain'", "'gone'"]),
        ("Cart/add", {}, 400, ["'Cart'", "VIRTUAL_OBJECT"]),
        ("Plain/key/go", {}, 400, ["'Plain'", "SERVICE", "'key'"]),
        ("Cart/a\0/add", {}, 400, ["NUL"]),
        ("Plain/go", {"idempotency_key": ""}, 400, ["idempotency key"]),
    ],
)
@pytest.mark.parametrize("make", [call, send])
def test_an_invalid_call_is_refused_and_so_are_later_entries(
    desk, path, fields, code, values, make
):
    mine = desk.begin()
    refusal = desk.commit(mine, make(path, **fields))
    assert isinstance(refusal, OperationRefusal)
    assert refusal.code == code
    assert_names(refusal.message, *values)
    assert desk.commit(mine, pb.RunEntryMessage(value=b"x"), index=2).code == 571
    assert len(desk.store.read_journal(mine.id)) == 1
    assert len(desk.store.invocations()) == 1


def test_a_one_way_call_begins_now_or_at_its_time(desk):
    mine = desk.begin()
    at = desk.now + 5_000
    for time in (0, desk.now - 1, at):
        assert desk.commit(mine, send("Plain/go", invoke_time=time)).result is None
    assert len(desk.claim()) == 2
    later = desk.find_child(mine, 3)
    assert (desk.status(later), desk.store.invocation(later).next_at) == ("scheduled", at)
    assert desk.fire(5).count == 1
    assert [claim.id for claim in desk.claim()] == [later]


def test_a_call_with_a_known_idempotency_key_waits_for_the_first_invocation(desk):
    mine = desk.begin()
    first = desk.submit("Plain/go", idempotency_key="a").id
    desk.commit(mine, call("Plain/go", idempotency_key="a"))
    desk.suspend(mine, 1)
    child = desk.claim_one()
    assert child.id == first
    desk.finish(child, b"once")
    again = desk.claim_one()
    assert again.journal[1].message().value == b"once"
    assert desk.commit(again, call("Plain/go", idempotency_key="a")).result == value(b"once")


def test_an_awakeable_is_completed_by_its_id_once(desk):
    mine = desk.begin()
    desk.commit(mine, AWAKEABLE)
    desk.commit(mine, AWAKEABLE)
    desk.suspend(mine, 1, 2)
    theirs = desk.begin()
    message = pb.CompleteAwakeableEntryMessage(id=make_awakeable_id(mine, 2), value=b"v")
    assert desk.commit(theirs, message) == CommittedEntry(index=1)
    assert desk.do(complete(mine, 2, b"late")) == ChangeOutcome(changed=False)
    woken = desk.claim_one()
    assert [entry.completed for entry in woken.journal] == [False, False, True]
    assert woken.journal[2].message().value == b"v"


def test_an_invocation_stays_suspended_until_an_entry_is_complete_that_it_waits_for(desk):
    mine = desk.begin()
    for _ in range(3):
        desk.commit(mine, AWAKEABLE)
    desk.suspend(mine, 1, 2)
    for index, status in ((3, "suspended"), (1, "ready")):
        assert desk.do(complete(mine, index)) == ChangeOutcome()
        assert desk.status(mine.id) == status
    woken = desk.claim_one()
    assert [entry.completed for entry in woken.journal] == [False, True, False, True]


def test_an_awakeable_may_be_completed_before_its_entry_is_stored(desk):
    mine = desk.begin()
    assert desk.do(complete(mine, 2, b"quick")) == ChangeOutcome()
    assert desk.do(complete(mine, 2, b"quick")) == ChangeOutcome(changed=False)
    assert desk.commit(mine, AWAKEABLE).result is None
    assert desk.commit(mine, AWAKEABLE).result == value(b"quick")


def test_an_unknown_awakeable_is_refused(desk):
    mine, ended = desk.begin(), desk.begin()
    desk.commit(mine, pb.RunEntryMessage(value=b"x"))
    desk.finish(ended)
    ids_ = ["prom_1", "x", awakeables.make_awakeable_id(bytes(16), 1), make_awakeable_id(mine, 1)]
    ids_ += [make_awakeable_id(mine, 2_000), make_awakeable_id(ended, 7)]
    for id_ in ids_:
        message = pb.CompleteAwakeableEntryMessage(id=id_, value=b"")
        assert desk.commit(mine, message).code == 404
    message = pb.CompleteAwakeableEntryMessage(id=make_awakeable_id(mine, 1))
    assert desk.commit(mine, message).code == 571


def test_each_key_of_a_workflow_has_its_promises(desk):
    run, poke = desk.begin("Signup/me/run"), desk.begin("Signup/me/poke")
    assert desk.commit(run, pb.PeekPromiseEntryMessage(key="mail")).result == EMPTY
    assert desk.commit(run, pb.GetPromiseEntryMessage(key="mail")).result is None
    desk.suspend(run, 2)
    resolve = pb.CompletePromiseEntryMessage(key="mail", completion_value=b"ok")
    assert desk.commit(poke, resolve).result == EMPTY
    assert desk.commit(poke, resolve).result.code == 409
    again = desk.claim_one()
    assert again.journal[2].message().value == b"ok"
    assert desk.commit(again, pb.GetPromiseEntryMessage(key="mail")).result == value(b"ok")
    assert desk.commit(again, pb.PeekPromiseEntryMessage(key="mail")).result == value(b"ok")
    other = desk.begin("Signup/you/run")
    assert desk.commit(other, pb.PeekPromiseEntryMessage(key="mail")).result == EMPTY
    reject = pb.CompletePromiseEntryMessage(key="mail", completion_failure=pb.Failure(code=410))
    assert desk.commit(other, reject).result == EMPTY
    assert desk.commit(other, pb.GetPromiseEntryMessage(key="mail")).result.code == 410


def test_promises_elsewhere_are_refused(desk):
    for path in ("Plain/go", "Cart/k/add"):
        assert desk.commit(desk.begin(path), pb.GetPromiseEntryMessage(key="mail")).code == 571
    run = desk.begin("Signup/me/run")
    assert desk.commit(run, pb.CompletePromiseEntryMessage(key="mail")).code == 571


def test_a_handler_gets_the_id_of_a_call(desk):
    mine = desk.begin()
    desk.commit(mine, call("Plain/go"))
    desk.commit(mine, send("Plain/go"))

    def get_id(index):
        message = pb.GetCallInvocationIdEntryMessage(call_entry_index=index)
        return desk.commit(mine, message)

    for index in (1, 2):
        assert get_id(index).result == value(desk.find_child(mine, index).encode())
    for index in (0, 4, 2**32 - 1):
        refusal = get_id(index)
        assert refusal.code == 571
        assert_names(refusal.message, mine.id, f"entry {index}", "call")


def test_invocations_are_attached_to_and_read_by_every_target(desk):
    plain = desk.submit("Plain/go", idempotency_key="a").id
    keyed = desk.submit("Cart/k/look", idempotency_key="b").id
    run = desk.submit("Signup/me/run").id
    claimed = {claim.id: claim for claim in desk.claim()}
    mine = desk.begin()
    desk.commit(mine, call("Plain/go"))
    child = desk.claim_one()
    by_key = pb.IdempotentRequestTarget(
        service_name="Plain", handler_name="go", idempotency_key="a"
    )
    by_object = pb.IdempotentRequestTarget(
        service_name="Cart", service_key="k", handler_name="look", idempotency_key="b"
    )
    workflow = pb.WorkflowTarget(workflow_name="Signup", workflow_key="me")
    targets = [
        ({"invocation_id": plain}, claimed[plain]),
        ({"call_entry_index": 1}, child),
        ({"idempotent_request_target": by_key}, claimed[plain]),
        ({"idempotent_request_target": by_object}, claimed[keyed]),
        ({"workflow_target": workflow}, claimed[run]),
    ]
    for target, _ in targets:
        assert desk.commit(mine, pb.AttachInvocationEntryMessage(**target)).result is None
        assert desk.commit(mine, pb.GetInvocationOutputEntryMessage(**target)).result == EMPTY
    desk.suspend(mine, *range(2, 12, 2))
    for claim in (child, *claimed.values()):
        desk.finish(claim, claim.id.encode())
    again = desk.claim_one()
    outputs = [again.journal[index].message().value for index in range(2, 12, 2)]
    assert outputs == [claim.id.encode() for _, claim in targets]
    for target, claim in targets:
        for kind in (pb.AttachInvocationEntryMessage, pb.GetInvocationOutputEntryMessage):
            assert desk.commit(again, kind(**target)).result == value(claim.id.encode())


def test_an_unknown_target_is_a_failure_and_an_invalid_one_is_refused(desk):
    mine = desk.begin()
    workflow = pb.WorkflowTarget(workflow_name="Signup", workflow_key="who")
    by_object = pb.IdempotentRequestTarget(
        service_name="Object", service_key="k", handler_name="go", idempotency_key="once"
    )
    targets = {
        UNKNOWN: {"invocation_id": UNKNOWN},
        "Signup/who": {"workflow_target": workflow},
        "Object/k/go/once": {"idempotent_request_target": by_object},
    }
    for kind in (pb.AttachInvocationEntryMessage, pb.GetInvocationOutputEntryMessage):
        for name, target in targets.items():
            failure = desk.commit(mine, kind(**target)).result
            assert failure.code == 404
            assert_names(failure.message, name)
        for target in ({"invocation_id": "inv_2"}, {"call_entry_index": 0}, {}):
            assert desk.commit(mine, kind(**target)).code == 571


def test_an_invocation_is_canceled_by_id_or_call(desk):
    mine = desk.begin()
    suspended = desk.begin()
    desk.commit(suspended, AWAKEABLE)
    desk.suspend(suspended, 1)
    desk.commit(mine, send("Plain/go"))
    child = desk.find_child(mine, 1)
    by_id = pb.CancelInvocationEntryMessage(invocation_id=suspended.id)
    assert desk.commit(mine, by_id) == CommittedEntry(index=2)
    by_call = pb.CancelInvocationEntryMessage(call_entry_index=1)
    assert desk.commit(mine, by_call) == CommittedEntry(index=3)
    assert desk.result(child) == CANCELED
    again = desk.claim_one()
    assert again.journal[1].message().failure.code == 409
    unknown = pb.CancelInvocationEntryMessage(invocation_id=UNKNOWN)
    assert desk.commit(mine, unknown) == CommittedEntry(index=4)
    for target in ({"invocation_id": "x"}, {"call_entry_index": 0}, {}):
        assert desk.commit(mine, pb.CancelInvocationEntryMessage(**target)).code == 571


def test_an_invocation_that_cancels_itself_fails_at_its_next_wait(desk):
    mine = desk.begin()
    desk.commit(mine, pb.CancelInvocationEntryMessage(invocation_id=mine.id))
    sleep = pb.SleepEntryMessage(wake_up_time=desk.now + 1_000)
    assert desk.commit(mine, sleep).result == CANCELED
    assert desk.commit(mine, sleep).result is None


def test_names_with_a_nul_are_refused_or_unknown(desk):
    """They are errors to PostgreSQL, and no runtime would drive the invocation any more."""
    mine = desk.begin()
    for path in ("a\0b/go", "Plain/go\0"):
        assert desk.commit(mine, send(path)).code == 400
    workflow = pb.WorkflowTarget(workflow_name="Signup\0", workflow_key="k\0")
    by_key = pb.IdempotentRequestTarget(
        service_name="a\0", handler_name="b\0", idempotency_key="c\0"
    )
    for target in ({"workflow_target": workflow}, {"idempotent_request_target": by_key}):
        assert desk.commit(mine, pb.AttachInvocationEntryMessage(**target)).result.code == 404


def test_any_number_of_waiting_invocations_is_resumed_in_statements_of_bounded_size(
    desk, monkeypatch
):
    monkeypatch.setattr(completing, "AT_ONCE", 4)
    target = desk.begin()
    waiting = [desk.begin() for _ in range(20)]
    for claim in waiting:
        desk.commit(claim, pb.AttachInvocationEntryMessage(invocation_id=target.id))
        desk.suspend(claim, 1)
    sizes = []

    def measure(_connection, _cursor, _statement, parameters, _context, many):
        sizes.extend(map(len, parameters if many else [parameters]))

    sa.event.listen(desk.store.engine, "before_cursor_execute", measure)
    desk.finish(target)
    sa.event.remove(desk.store.engine, "before_cursor_execute", measure)
    assert {desk.status(claim.id) for claim in waiting} == {"ready"}
    assert max(sizes) < len(waiting)
