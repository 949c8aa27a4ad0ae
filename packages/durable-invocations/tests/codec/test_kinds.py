"""The table of types and the generated code agree with protocol.proto."""

import re
from pathlib import Path

import pytest

from durable_invocations.protocol import kinds
from durable_invocations.protocol.failures import ProtocolError
from durable_invocations.protocol.kinds import KINDS, OF_MESSAGE, get_kind
from durable_invocations.protocol.pb import custom_pb2, protocol_pb2
from durable_invocations.protocol.results import list_variants
from runtime_support.errors import raises_naming

PB = Path(__file__).parents[2] / "durable_invocations" / "protocol" / "pb"
PROTO = (PB / "protocol.proto").read_text()
COMMENTED = re.findall(
    r"(?://\s*Completable: (\w+)\n// Fallible: (\w+)\n)?"
    r"// Type: (0x\w+) \+ (\w)\n((?://.*\n)*)message (\w+) \{",
    PROTO,
)
NAMESPACES = {
    "Start Completion Suspension Error EntryAck End": 0,
    "Input Output": 1,
    "GetState SetState ClearState ClearAllState GetStateKeys GetPromise PeekPromise"
    " CompletePromise": 2,
    "Sleep Call OneWayCall Awakeable CompleteAwakeable Run CancelInvocation GetCallInvocationId"
    " AttachInvocation GetInvocationOutput": 3,
}


def test_the_types_are_those_of_the_schema():
    schema = {
        int(base, 16) + int(offset, 16): (name, completable == "Yes", fallible == "Yes")
        for completable, fallible, base, offset, _, name in COMMENTED
    }
    assert schema == {
        kind.code: (kind.message.DESCRIPTOR.name, kind.completable, kind.fallible)
        for kind in KINDS.values()
    }
    assert {kind.code for kind in KINDS.values() if not kind.entry} == set(range(6))
    assert [kind.code for kind in KINDS.values() if kind.since == 3] == [*range(0x0C06, 0x0C0A)]
    assert {kind.since for kind in KINDS.values()} == {1, 3}


def test_the_first_six_bits_of_a_type_are_its_namespace():
    numbers = {
        names: {kind.code >> 10 for kind in KINDS.values() if kind.name in names.split()}
        for names in NAMESPACES
    }
    assert numbers == {names: {number} for names, number in NAMESPACES.items()}
    assert sum(len(names.split()) for names in NAMESPACES) == len(KINDS)
    assert {code >> 10 for code in (0xFC00, 0xFFFF)} == {63}


def test_only_completable_entries_get_results_and_all_have_a_name():
    numbers = {"empty": 13, "value": 14, "failure": 15}
    for kind in KINDS.values():
        fields = kind.message.DESCRIPTOR.fields_by_name
        if kind.entry:
            assert fields["name"].number == 12
        if kind.completable:
            assert {"failure"} <= list_variants(kind) <= numbers.keys()
            assert all(fields[name].number == numbers[name] for name in list_variants(kind))


@pytest.mark.parametrize("file", ["protocol", "custom"])
def test_the_generated_code_has_the_fields_of_the_schema(file):
    text = re.sub(r"//.*", "", (PB / f"{file}.proto").read_text())
    module = {"protocol": protocol_pb2, "custom": custom_pb2}[file]
    fields = re.findall(r"^\s*(?:repeated |optional )?[\w.]+ (\w+) = (\d+);", text, re.MULTILINE)
    assert set(iter_fields(module)) == {(name, int(number)) for name, number in fields}


def iter_fields(module):
    """Name and number of each field of each message, nested ones included."""
    messages = list(module.DESCRIPTOR.message_types_by_name.values())
    for message in messages:
        messages += message.nested_types
        yield from ((field.name, field.number) for field in message.fields)


def test_the_schema_comes_with_its_licence():
    assert "MIT License" in (PB / "LICENSE").read_text()
    assert "Restate endpoint manifest" in (PB / "endpoint_manifest_schema.json").read_text()


def test_a_type_is_known_custom_or_refused():
    assert get_kind(0x0801) is kinds.SET_STATE
    assert OF_MESSAGE["dev.restate.service.protocol.SetStateEntryMessage"] is kinds.SET_STATE
    for code in (0xFC00, 0xFC02, 0xFFFF):
        assert (get_kind(code).custom, get_kind(code).entry) == (True, True)
        assert not get_kind(code).completable
        assert not get_kind(code).fallible
    for code in (0x0006, 0x0402, 0x0805, 0x0C0A, 0xFBFF, 0x1_0000, -1):
        with raises_naming(ProtocolError, f"0x{code:04X}", "0xFC00"):
            get_kind(code)
    assert str(kinds.RUN) == "Run (0x0C05)"
