"""A replayed step must be the recorded one, but for results, times and names."""

import pytest

from durable_invocations.journal.matching import check, describe_entry, matches
from durable_invocations.protocol.failures import JournalMismatchError
from durable_invocations.protocol.frames import Frame, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from runtime_support.errors import raises_naming

CALL = {"service_name": "Cart", "handler_name": "add", "key": "k", "parameter": b"1"}


def make_pair(kind, field, one, other, **shared):
    """Two entries that differ in this field."""
    return kind(**shared | {field: one}), kind(**shared | {field: other})


SAME = [
    (pb.InputEntryMessage(), pb.InputEntryMessage(value=b"in")),
    (pb.OutputEntryMessage(value=b"1"), pb.OutputEntryMessage(value=b"2")),
    (pb.RunEntryMessage(name="a"), pb.RunEntryMessage(name="a", value=b"1")),
    (pb.SleepEntryMessage(wake_up_time=1), pb.SleepEntryMessage(wake_up_time=2, empty=pb.Empty())),
    (pb.CallEntryMessage(**CALL), pb.CallEntryMessage(**CALL, value=b"3", name="shown")),
    (pb.CallEntryMessage(**CALL, headers=[pb.Header(key="try")]), pb.CallEntryMessage(**CALL)),
    make_pair(pb.OneWayCallEntryMessage, "invoke_time", 1, 2, **CALL),
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
    make_pair(pb.CompletePromiseEntryMessage, "completion_value", b"1", b"2", key="p"),
    make_pair(pb.CompleteAwakeableEntryMessage, "id", "a", "b", value=b"1"),
    make_pair(pb.CancelInvocationEntryMessage, "call_entry_index", 1, 2),
    (
        pb.AttachInvocationEntryMessage(invocation_id="a"),
        pb.AttachInvocationEntryMessage(call_entry_index=2),
    ),
]


def get_name(message):
    return message.DESCRIPTOR.name


@pytest.mark.parametrize(("issued", "recorded"), SAME, ids=get_name)
def test_entries_of_the_same_step_match(issued, recorded):
    assert matches(make_frame(issued), make_frame(recorded))
    recorded.name = "shown to people" if not isinstance(recorded, pb.RunEntryMessage) else "a"
    check(1, make_frame(issued), make_frame(recorded))


@pytest.mark.parametrize(("issued", "recorded"), OTHER, ids=get_name)
def test_entries_of_different_steps_do_not_match(issued, recorded):
    issued, recorded = make_frame(issued), make_frame(recorded)
    assert not matches(issued, recorded)
    entries = (f"journal is {describe_entry(recorded)}", f"issues {describe_entry(issued)}")
    with raises_naming(JournalMismatchError, "Entry 7", *entries, "cart.py, line 3") as caught:
        check(7, issued, recorded, "cart.py, line 3")
    assert (caught.value.kind, caught.value.name) == (recorded.code, recorded.name)


LONG = "k" * 100
ALIKE = [
    (*make_pair(pb.SetStateEntryMessage, "value", b"1", b"2", key=b"k"), ["value"]),
    (*make_pair(pb.CallEntryMessage, "parameter", b"1", b"", **CALL), ["parameter"]),
    (
        pb.CompletePromiseEntryMessage(key="p", completion_value=b"1"),
        pb.CompletePromiseEntryMessage(key="p", completion_failure=pb.Failure()),
        ["completion_failure", "completion_value"],
    ),
    (
        pb.GetStateEntryMessage(key=f"{LONG}1".encode()),
        pb.GetStateEntryMessage(key=f"{LONG}2".encode(), value=b"v"),
        ["another key"],
    ),
    (
        pb.AttachInvocationEntryMessage(workflow_target=pb.WorkflowTarget(workflow_key="a")),
        pb.AttachInvocationEntryMessage(workflow_target=pb.WorkflowTarget(workflow_key="b")),
        ["workflow_target"],
    ),
]


@pytest.mark.parametrize(
    ("issued", "recorded", "fields"), ALIKE, ids=[fields[0] for *_, fields in ALIKE]
)
def test_entries_with_the_same_description_are_distinguished_by_their_fields(
    issued, recorded, fields
):
    issued, recorded = make_frame(issued), make_frame(recorded)
    assert describe_entry(issued) == describe_entry(recorded)
    with raises_naming(JournalMismatchError, "Entry 7", *fields, "cart.py, line 3"):
        check(7, issued, recorded, "cart.py, line 3")


def test_custom_entries_match_by_their_type():
    entry = Frame(code=0xFC01, body=b"\x08\x01")
    assert matches(entry, Frame(code=0xFC01, body=b"\x08\x02", reserved=1))
    assert not matches(entry, Frame(code=0xFC02, body=b"\x08\x01"))


def test_an_entry_is_described_by_what_identifies_it():
    messages = {
        "Run name='charge'": pb.RunEntryMessage(name="charge", value=b"1"),
        "Call key='k' service_name='Cart' handler_name='add'": pb.CallEntryMessage(**CALL),
        "SetState key='\ufffd'": pb.SetStateEntryMessage(key=b"\xff"),
        "CancelInvocation call_entry_index=3": pb.CancelInvocationEntryMessage(call_entry_index=3),
    }
    descriptions = [describe_entry(make_frame(message)) for message in messages.values()]
    assert descriptions == list(messages)
    assert describe_entry(Frame(code=0xFC01, body=b"")) == "Custom 0xFC01"
    assert len(describe_entry(make_frame(pb.RunEntryMessage(name="x" * 500)))) < 100
