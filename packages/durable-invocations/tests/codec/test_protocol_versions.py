"""Content types name versions of the protocol and of manifests."""

import pytest

from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.versions import (
    LOWEST,
    NEWEST,
    choose_manifest_version,
    format_content_type,
    format_manifest_type,
    get_needed_version,
    parse_version,
)

V1, V2 = format_manifest_type(1), format_manifest_type(2)


def test_the_versions_are_those_of_the_schema():
    assert (LOWEST, NEWEST) == (pb.V1, pb.V3)
    assert sorted(pb.ServiceProtocolVersion.values()) == [0, *range(LOWEST, NEWEST + 1)]


def test_a_content_type_names_the_version_of_the_protocol():
    assert format_content_type(1) == "application/vnd.restate.invocation.v1"
    known = [None, 1, 2, 3, None, None]
    assert [parse_version(format_content_type(version)) for version in range(6)] == known
    assert parse_version("Application/vnd.restate.invocation.v2; charset=x") == 2
    for header in (None, "", "application/json", "application/vnd.restate.invocation.v03", "v1"):
        assert parse_version(header) is None


@pytest.mark.parametrize(
    ("accept", "version"),
    [
        (f"{V2}, {V1}", 2),
        (f"{V1}, {V2}", 2),
        (f"{V1}, {V2};q=0.5", 1),
        (f"{V2};q=0, {V1}", 1),
        (V1, 1),
        (f"{format_manifest_type(3)}, {V1}", 1),
        (f"{format_manifest_type(3)}, {V2}", 2),
        (format_manifest_type(3), None),
        ("application/json", None),
        (f"{V1};q=0", None),
        ("*/*", 1),
        ("text/html, */*;q=0.8", 1),
        ("*/*;q=0", None),
        ("", 1),
        (None, 1),
        (V1.upper(), 1),
    ],
)
def test_the_manifest_is_one_that_the_runtime_accepts(accept, version):
    assert choose_manifest_version(accept) == version
    assert V2 == "application/vnd.restate.endpointmanifest.v2+json"


def test_a_calls_idempotency_key_came_with_version_3():
    for kind in (pb.CallEntryMessage, pb.OneWayCallEntryMessage):
        assert get_needed_version(make_frame(kind())) == 1
        assert get_needed_version(make_frame(kind(idempotency_key="x"))) == 3
    assert get_needed_version(make_frame(pb.CancelInvocationEntryMessage())) == 3
    assert get_needed_version(make_frame(pb.RunEntryMessage())) == 1
