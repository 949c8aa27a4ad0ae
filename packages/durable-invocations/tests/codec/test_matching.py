"""A replayed step must be the recorded one, but for results, times and names."""

import pytest

from durable_invocations.journal.matching import check, describe_entry, matches
from durable_invocations.protocol.failures import JournalMismatchError
from durable_invocations.protocol.frames import Frame, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb

CALL = {"service_name": "Cart", "handler_name": "add", "key": "k", "parameter": b"1"}


def differing(kind, field, one, other, **shared):
    """Two entries that differ in a field."""
    return kind(**shared | {field: one}), kind(**shared | {field: other})


SAME = [
    (pb.InputEntryMessage(), pb.InputEntryMessage(value=b"in")),
    (pb.OutputEntryMessage(value=b"1"), pb.OutputEntryMessage(value=b"2")),
    (pb.RunEntryMessage(name="a"), pb.RunEntryMessage(name="a", value=b"1")),
    (pb.SleepEntryMessage(wake_up_time=1), pb.SleepEntryMessage(wake_up_time=2, empty=pb.Empty())),
    (pb.CallEntryMessage(**CALL), pb.CallEntryMessage(**CALL, value=b"3", name="shown")),
    (pb.CallEntryMessage(**CALL, headers=[pb.Header(key="try")]), pb.CallEntryMessage(**CALL)),
    differing(pb.OneWayCallEntryMessage, "invoke_time", 1, 2, **CALL),
    (pb.GetStateEntryMessage(key=b"k"), pb.GetStateEntryMessage(key=b"k", value=b"v")),
    (pb.GetStateKeysEntryMessage(), pb.GetStateKeysEntryMessage(failure=pb.Failure())),
    (pb.AwakeableEntryMessage(), pb.AwakeableEntryMessage(value=b"v")),
]
OTHER = [
    (pb.RunEntryMessage(name="a"), pb.RunEntryMessage(name="b", value=b"1")),
    (pb.SleepEntryMessage(), pb.AwakeableEntryMessage()),
    (pb.GetStateEntryMessage(key=b"k"), pb.GetStateEntryMessage(key=b"l")),
    (pb.SetStateEntryMessage(key=b"k", value=b"1"), pb.SetStateEntryMessage(key=b"k", value=b"2")),
    (pb.ClearStateEntryMessage(key=b"k"), pb.ClearStateEntryMessage(key=b"l")),
    *(
        (pb.CallEntryMessage(**CALL), pb.CallEntryMessage(**CALL | other))
        for other in (
            *({"service_name": "X"}, {"handler_name": "x"}, {"key": "x"}, {"parameter": b"x"}),
            {"idempotency_key": "x"},
        )
    ),
    (pb.OneWayCallEntryMessage(**CALL), pb.OneWayCallEntryMessage(**CALL | {"key": "x"})),
    (pb.GetPromiseEntryMessage(key="p"), pb.GetPromiseEntryMessage(key="q")),
    (pb.PeekPromiseEntryMessage(key="p"), pb.PeekPromiseEntryMessage(key="q")),
    differing(pb.CompletePromiseEntryMessage, "completion_value", b"1", b"2", key="p"),
    differing(pb.CompleteAwakeableEntryMessage, "id", "a", "b", value=b"1"),
    differing(pb.CancelInvocationEntryMessage, "call_entry_index", 1, 2),
    (
        pb.AttachInvocationEntryMessage(invocation_id="a"),
        pb.AttachInvocationEntryMessage(call_entry_index=2),
    ),
]


@pytest.mark.parametrize(("issued", "recorded"), SAME, ids=lambda each: each.DESCRIPTOR.name)
def test_entries_that_are_the_same_step(issued, recorded):
    assert matches(make_frame(issued), make_frame(recorded))
    recorded.name = "shown to people" if not isinstance(recorded, pb.RunEntryMessage) else "a"
    check(1, make_frame(issued), make_frame(recorded))


@pytest.mark.parametrize(("issued", "recorded"), OTHER, ids=lambda each: each.DESCRIPTOR.name)
def test_entries_that_are_not(issued, recorded):
    assert not matches(make_frame(issued), make_frame(recorded))
    with pytest.raises(JournalMismatchError) as caught:
        check(7, make_frame(issued), make_frame(recorded), "cart.py, line 3")
    said = str(caught.value)
    assert f"Entry 7 of the journal is {describe_entry(make_frame(recorded))}, but" in said
    assert f"issues {describe_entry(make_frame(issued))}" in said
    assert "at cart.py, line 3." in said


LONG = "k" * 100
ALIKE = [
    (*differing(pb.SetStateEntryMessage, "value", b"1", b"2", key=b"k"), "another value"),
    (*differing(pb.CallEntryMessage, "parameter", b"1", b"", **CALL), "another parameter"),
    (
        pb.CompletePromiseEntryMessage(key="p", completion_value=b"1"),
        pb.CompletePromiseEntryMessage(key="p", completion_failure=pb.Failure()),
        "another completion_failure and completion_value",
    ),
    (
        pb.GetStateEntryMessage(key=f"{LONG}1".encode()),
        pb.GetStateEntryMessage(key=f"{LONG}2".encode(), value=b"v"),
        "another key",
    ),
    (
        pb.AttachInvocationEntryMessage(workflow_target=pb.WorkflowTarget(workflow_key="a")),
        pb.AttachInvocationEntryMessage(workflow_target=pb.WorkflowTarget(workflow_key="b")),
        "another workflow_target",
    ),
]


@pytest.mark.parametrize(
    ("issued", "recorded", "differs"), ALIKE, ids=lambda each: getattr(each, "DESCRIPTOR", each)
)
def test_entries_that_look_alike_are_told_apart_by_the_part_that_differs(issued, recorded, differs):
    assert describe_entry(make_frame(issued)) == describe_entry(make_frame(recorded))
    with pytest.raises(JournalMismatchError) as caught:
        check(7, make_frame(issued), make_frame(recorded), "cart.py, line 3")
    told = f"issues {describe_entry(make_frame(issued))} with {differs} at cart.py, line 3."
    assert told in str(caught.value)


def test_custom_entries_match_by_their_type():
    entry = Frame(code=0xFC01, body=b"\x08\x01")
    assert matches(entry, Frame(code=0xFC01, body=b"\x08\x02", reserved=1))
    assert not matches(entry, Frame(code=0xFC02, body=b"\x08\x01"))


def test_an_entry_is_described_by_what_identifies_it():
    assert (
        describe_entry(make_frame(pb.RunEntryMessage(name="charge", value=b"1")))
        == "Run name='charge'"
    )
    called = "Call key='k' service_name='Cart' handler_name='add'"
    assert describe_entry(make_frame(pb.CallEntryMessage(**CALL))) == called
    assert (
        describe_entry(make_frame(pb.SetStateEntryMessage(key=b"\xff"))) == "SetState key='\ufffd'"
    )
    assert describe_entry(make_frame(pb.CancelInvocationEntryMessage(call_entry_index=3))) == (
        "CancelInvocation call_entry_index=3"
    )
    assert describe_entry(Frame(code=0xFC01, body=b"")) == "Custom 0xFC01"
    assert len(describe_entry(make_frame(pb.RunEntryMessage(name="x" * 500)))) < 100
